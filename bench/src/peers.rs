//! `understudy bench peers`: forwarding against `dpdk-testpmd` on the same virtual devices, alternating, on one core.
//!
//! Each program plays a capture of 1,024 queue pairs over and over (`net_pcap` with `infinite_rx`) and sends the frames
//! back where they came from. Rates count by the polling thread's time on the CPU, which other load hardly moves; a
//! sample whose thread had less than nine tenths of a core is thrown away all the same.

use crate::process::{Program, Sample, measure};
use crate::traffic;
use clap::Args;
use miette::{IntoDiagnostic as _, Report, miette};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Queue pairs in the traffic
const QPS: u32 = 1024;
/// The part of a core that a sample's polling thread has to have had
const MIN_ON_CPU: f64 = 0.9;
/// Attempts at a sample that keeps its core
const ATTEMPTS: usize = 4;

/// Compare forwarding with dpdk-testpmd (io and macswap), on one core
#[derive(Args)]
pub struct PeersArgs {
    /// Samples of each program; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Length of a sample in seconds
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// CPU of the polling thread; the last one unless said
    #[arg(long)]
    cpu: Option<usize>,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Testpmd(&'static str),
    Forward { counted_qps: u32 },
}

impl Contender {
    fn name(self) -> String {
        match self {
            Self::Testpmd(mode) => format!("testpmd {mode}"),
            Self::Forward { counted_qps: 0 } => "understudy forward".into(),
            Self::Forward { counted_qps } => format!("understudy forward, {counted_qps} QPs counted"),
        }
    }
}

const CONTENDERS: [Contender; 4] = [
    Contender::Testpmd("io"),
    Contender::Testpmd("macswap"),
    Contender::Forward { counted_qps: 0 },
    Contender::Forward { counted_qps: QPS },
];
const PAYLOADS: [usize; 2] = [64, 1024];

/// One contender on one traffic.
#[derive(Serialize)]
struct Figure {
    program: String,
    payload_bytes: usize,
    /// Million frames a second of on-CPU time: median, least, most. Null when too few samples kept their core.
    mpps: Option<[f64; 3]>,
    /// Samples that counted, and that were thrown away
    samples: usize,
    lost_core: usize,
    /// Median part of a core
    on_cpu: Option<f64>,
}

/// A ratio of two medians, and what it should reach.
#[derive(Serialize)]
struct Ratio {
    what: String,
    value: Option<f64>,
    at_least: f64,
}

#[derive(Serialize)]
struct Comparison {
    figures: Vec<Figure>,
    ratios: Vec<Ratio>,
}

/// Runs the comparison and prints it. `understudy` is the program itself.
pub fn run(args: &PeersArgs, understudy: &Path) -> Result<(), Report> {
    let cpus = std::thread::available_parallelism().into_diagnostic()?.get();
    let cpu = args.cpu.unwrap_or(cpus - 1);
    let length = Duration::try_from_secs_f64(args.seconds).into_diagnostic()?;
    let dir = tempfile::tempdir().into_diagnostic()?;
    let bench = Bench { dir, cpu, understudy: understudy.into() };
    for payload in PAYLOADS {
        traffic::write(&bench.capture(payload), QPS, payload).into_diagnostic()?;
    }
    let mut samples = vec![(Vec::<Sample>::new(), 0); CONTENDERS.len() * PAYLOADS.len()];
    for round in 0..args.rounds {
        for (n, (payload, contender)) in all().enumerate() {
            // There and back, so that a drift of the machine's speed favours nobody.
            let (n, payload, contender) = if round % 2 == 0 {
                (n, payload, contender)
            } else {
                let n = samples.len() - 1 - n;
                let (payload, contender) = all().nth(n).expect("as many as samples");
                (n, payload, contender)
            };
            eprint!("\r\x1b[Kround {} of {}: {}, {payload} B", round + 1, args.rounds, contender.name());
            for _ in 0..ATTEMPTS {
                let sample = bench.sample(contender, payload, length)?;
                if sample.on_cpu >= MIN_ON_CPU {
                    samples[n].0.push(sample);
                    break;
                }
                samples[n].1 += 1;
            }
        }
    }
    eprint!("\r\x1b[K");
    let figures: Vec<_> = all()
        .zip(samples)
        .map(|((payload, contender), (samples, lost))| {
            figure(contender, payload, &samples, lost, args.rounds)
        })
        .collect();
    let comparison = Comparison { ratios: ratios(&figures), figures };
    let text =
        if args.json { serde_json::to_string(&comparison).into_diagnostic()? } else { comparison.text() };
    println!("{text}");
    Ok(())
}

fn all() -> impl Iterator<Item = (usize, Contender)> {
    PAYLOADS.into_iter().flat_map(|payload| CONTENDERS.into_iter().map(move |contender| (payload, contender)))
}

struct Bench {
    dir: TempDir,
    cpu: usize,
    understudy: PathBuf,
}

impl Bench {
    fn capture(&self, payload: usize) -> PathBuf {
        self.dir.path().join(format!("write-{payload}.pcap"))
    }

    fn sample(&self, contender: Contender, payload: usize, length: Duration) -> Result<Sample, Report> {
        let file_prefix = format!("understudy-bench-{}", std::process::id());
        let capture = self.capture(payload);
        let program = match contender {
            Contender::Testpmd(mode) => self.testpmd(mode, &capture, file_prefix),
            Contender::Forward { counted_qps } => self.forward(counted_qps, &capture, file_prefix)?,
        };
        measure(program, length, &self.dir.path().join("log")).map_err(|error| {
            let help = match contender {
                Contender::Testpmd(_) => "dpdk-testpmd is in Debian's package dpdk-dev",
                Contender::Forward { .. } => "does `understudy run` work without the benchmark?",
            };
            miette!(help = help, "{error}")
        })
    }

    fn testpmd(&self, mode: &str, capture: &Path, file_prefix: String) -> Program {
        let mut command = Command::new("dpdk-testpmd");
        // The main thread waits at its prompt, wherever the kernel puts it.
        let lcores = format!("0@(0-{}),1@{}", self.cpu.max(1), self.cpu);
        command.args(["--lcores", &lcores, "--no-huge", "-m", "256", "--no-pci"]);
        command.arg(format!("--file-prefix={file_prefix}"));
        command.arg(format!("--vdev=net_pcap0,rx_pcap={},infinite_rx=1", capture.display()));
        command.args(["--", "--nb-cores=1", "--port-topology=loop", "--rxd=512", "--txd=512", "--burst=32"]);
        command.args([
            "--total-num-mbufs=16383",
            "--auto-start",
            "--stats-period=3600",
            "--no-lsc-interrupt",
        ]);
        command.arg(format!("--forward-mode={mode}"));
        Program { command, file_prefix, thread_names: &["rte-worker-1", "lcore-worker-1", "dpdk-worker1"] }
    }

    fn forward(&self, counted_qps: u32, capture: &Path, file_prefix: String) -> Result<Program, Report> {
        let path = self.dir.path().join("forward.toml");
        let config = format!(
            "[runtime]\nworkers = [{}]\nmemory_mb = 256\nfile_prefix = \"{file_prefix}\"\ntelemetry = true\n\
             [[port]]\nname = \"loop\"\nbuffers = 16383\ndescriptors = 512\npcap = {{ rx = \"{}\", infinite = true }}\n\
             [forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = {counted_qps}\n",
            self.cpu,
            capture.display()
        );
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&self.understudy);
        command.arg("run").arg(path);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle], values[middle + 1])
    };
    Some([median, values[0], values[values.len() - 1]])
}

fn figure(contender: Contender, payload: usize, samples: &[Sample], lost_core: usize, rounds: u32) -> Figure {
    let enough = samples.len() >= rounds as usize;
    Figure {
        program: contender.name(),
        payload_bytes: payload,
        mpps: median(samples.iter().map(|s| s.per_cpu_second / 1e6)).filter(|_| enough),
        samples: samples.len(),
        lost_core,
        on_cpu: median(samples.iter().map(|s| s.on_cpu)).map(|[median, ..]| median),
    }
}

fn ratios(figures: &[Figure]) -> Vec<Ratio> {
    let rate = |payload, contender: Contender| {
        let name = contender.name();
        let figure = figures.iter().find(|f| f.payload_bytes == payload && f.program == name)?;
        figure.mpps.map(|[median, ..]| median)
    };
    let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let [io, macswap, forward, counting] = CONTENDERS;
    vec![
        Ratio {
            what: "forward / testpmd macswap, 64 B".into(),
            value: ratio(rate(64, forward), rate(64, macswap)),
            at_least: 0.60,
        },
        Ratio {
            what: format!("forward counting {QPS} QPs / testpmd macswap, 64 B"),
            value: ratio(rate(64, counting), rate(64, macswap)),
            at_least: 0.50,
        },
        Ratio {
            what: "(forward 1 KB / forward 64 B) / (testpmd io 1 KB / testpmd io 64 B)".into(),
            value: ratio(ratio(rate(1024, forward), rate(64, forward)), ratio(rate(1024, io), rate(64, io))),
            at_least: 1.0,
        },
    ]
}

impl Comparison {
    fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["program", "payload", "Mpps per CPU second", "least", "most", "on CPU", "samples"]);
        for f in &self.figures {
            let number = |n: Option<f64>| n.map_or_else(|| "lost its core".into(), |n| format!("{n:.2}"));
            let at = |i: usize| number(f.mpps.map(|m| m[i]));
            let thrown =
                if f.lost_core > 0 { format!(", {} thrown away", f.lost_core) } else { String::new() };
            table.add_row([
                f.program.clone(),
                format!("{} B", f.payload_bytes),
                at(0),
                at(1),
                at(2),
                number(f.on_cpu),
                format!("{}{thrown}", f.samples),
            ]);
        }
        let mut text = String::new();
        for line in table.lines() {
            _ = writeln!(text, "{}", line.trim_end());
        }
        text.push('\n');
        for ratio in &self.ratios {
            _ = match ratio.value {
                Some(value) => {
                    let verdict = if value >= ratio.at_least { "reached" } else { "missed" };
                    writeln!(text, "{value:.2}  {} (goal {:.2}: {verdict})", ratio.what, ratio.at_least)
                }
                None => writeln!(
                    text,
                    "  --  {}: a polling thread lost its core too often; no number",
                    ratio.what
                ),
            };
        }
        text.truncate(text.trim_end().len());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some([2.0, 1.0, 3.0]));
        assert_eq!(median([4.0, 1.0].into_iter()), Some([2.5, 1.0, 4.0]));
    }

    #[test]
    fn too_few_samples_make_no_number() {
        let sample = Sample { per_cpu_second: 1e6, on_cpu: 0.95 };
        let figure = figure(CONTENDERS[2], 64, &[sample; 4], 6, 5);
        assert!(figure.mpps.is_none());
        let figures = vec![figure];
        assert!(ratios(&figures).iter().all(|ratio| ratio.value.is_none()));
        assert!(Comparison { ratios: ratios(&figures), figures }.text().contains("no number"));
    }
}

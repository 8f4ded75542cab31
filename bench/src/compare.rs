//! Compares programs on the same virtual devices, alternating, on one core.
//!
//! Each program plays a capture repeatedly (`net_pcap` with `infinite_rx`). Rates are per CPU time of the
//! polling thread, which other load hardly affects; a sample whose thread had less than nine tenths of a core
//! is discarded nevertheless.

use crate::process::{Observer, Program, Sample, measure};
use crate::telemetry::CountedFrames;
use clap::Args;
use miette::{IntoDiagnostic as _, Report, miette};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Smallest fraction of a core that the polling thread of a valid sample had
const MIN_ON_CPU: f64 = 0.9;
/// Attempts at a sample whose polling thread is not preempted
const ATTEMPTS: usize = 4;
/// Default length of a sample in seconds
const SECONDS: f64 = 1.5;

/// Options of a comparison
#[derive(Clone, Args)]
pub struct CompareArgs {
    /// Samples of each program, of which the median is reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub(crate) rounds: u32,
    /// Length of a sample in seconds [default: 1.5; 5 for `observe`]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// CPU of the polling thread [default: the last one]
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Starts an observer of a running program.
pub(crate) type StartObserver = Box<dyn Fn(&Bench) -> std::io::Result<Box<dyn Observer>>>;

/// Returns the command that runs a program on a capture, with this file prefix.
pub(crate) type Launch = Box<dyn Fn(&Bench, &Path, String) -> Result<Program, Report>>;

/// A program with its traffic.
pub(crate) struct Entry {
    /// Name in the figures
    pub(crate) program: String,
    pub(crate) traffic: String,
    pub(crate) capture: PathBuf,
    pub(crate) launch: Launch,
    /// Help text if it cannot be measured
    pub(crate) help: &'static str,
    /// Frames that are counted
    pub(crate) counts: CountedFrames,
    /// Observer that is present during the measurement
    pub(crate) observer: Option<StartObserver>,
}

/// Result of one program with one traffic.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Figure {
    program: String,
    /// Frames that it handles
    traffic: String,
    /// Million frames per second of CPU time: median, least, most. Null when the thread was preempted in too
    /// many samples.
    mpps: Option<[f64; 3]>,
    /// Number of samples that counted
    samples: usize,
    /// Number of samples that were discarded
    #[serde(rename = "lost_core")]
    discarded: usize,
    /// Median fraction of a core
    on_cpu: Option<f64>,
    /// Median of the nanoseconds per frame of its function, without the drivers
    #[serde(skip_serializing_if = "Option::is_none")]
    own_ns: Option<f64>,
}

/// Results of all programs.
pub(crate) struct Figures(pub(crate) Vec<Figure>);

impl Figures {
    /// Returns a program's median rate with a traffic, in million frames a second.
    pub(crate) fn rate(&self, program: &str, traffic: &str) -> Option<f64> {
        let figure = self.0.iter().find(|f| f.traffic == traffic && f.program == program)?;
        figure.mpps.map(|[median, ..]| median)
    }

    /// Returns the nanoseconds per frame of a program's function with a traffic, without the drivers.
    pub(crate) fn own_ns(&self, program: &str, traffic: &str) -> Option<f64> {
        self.0.iter().find(|f| f.traffic == traffic && f.program == program)?.own_ns
    }

    /// Returns the ratio of the rates of two programs with one traffic.
    pub(crate) fn ratio(&self, a: &str, b: &str, traffic: &str) -> Option<f64> {
        Some(self.rate(a, traffic)? / self.rate(b, traffic)?)
    }
}

/// A ratio of medians, and its goal.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Ratio {
    /// The two programs, and the traffic
    pub(crate) what: String,
    pub(crate) value: Option<f64>,
    /// Goal; 0 if the ratio is only reported
    pub(crate) at_least: f64,
}

/// Result of `--json`. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Comparison {
    /// Rates of each program with each traffic
    figures: Vec<Figure>,
    /// Rates in relation to each other
    ratios: Vec<Ratio>,
}

/// Memory and buffers of a program, for the frames of its capture, which it holds in memory, and for those
/// that it handles.
#[derive(Clone, Copy)]
pub(crate) struct Capacity {
    memory_mb: usize,
    buffers: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { memory_mb: 256, buffers: 16_383 }
    }
}

impl Capacity {
    /// Returns enough room for a capture of `frames` frames.
    pub(crate) fn for_frames(frames: usize) -> Self {
        let default = Self::default();
        if frames < default.buffers / 2 {
            return default;
        }
        let buffers = frames + default.buffers;
        // A buffer and its metadata take less than 4 kB.
        Self { memory_mb: buffers * 4 / 1024 + 64, buffers }
    }
}

/// Environment of the programs: folder for files, CPU, and the path of `understudy`.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    pub(crate) cpu: usize,
    pub(crate) understudy: PathBuf,
}

impl Bench {
    /// Creates the environment. `understudy` is the path of the program itself.
    pub(crate) fn new(args: &CompareArgs, understudy: &Path) -> Result<Self, Report> {
        let cpus = std::thread::available_parallelism().into_diagnostic()?.get();
        let dir = tempfile::tempdir().into_diagnostic()?;
        Ok(Self { dir, cpu: args.cpu.unwrap_or(cpus - 1), understudy: understudy.into() })
    }

    /// Runs the comparison and prints it.
    pub(crate) fn compare(
        &self,
        args: &CompareArgs,
        entries: &[Entry],
        ratios: impl FnOnce(&Figures) -> Vec<Ratio>,
    ) -> Result<(), Report> {
        let length = Duration::try_from_secs_f64(args.seconds.unwrap_or(SECONDS)).into_diagnostic()?;
        let mut samples = vec![(Vec::<Sample>::new(), 0); entries.len()];
        for round in 0..args.rounds {
            for n in 0..entries.len() {
                // Alternating order, so that a drift of the machine's speed favours no program.
                let n = if round % 2 == 0 { n } else { entries.len() - 1 - n };
                let Entry { program, traffic, .. } = &entries[n];
                eprint!("\r\x1b[Kround {} of {}: {program}, {traffic}", round + 1, args.rounds);
                for _ in 0..ATTEMPTS {
                    let sample = self.sample(&entries[n], length)?;
                    if sample.on_cpu >= MIN_ON_CPU {
                        samples[n].0.push(sample);
                        break;
                    }
                    samples[n].1 += 1;
                }
            }
        }
        eprint!("\r\x1b[K");
        let figures = entries.iter().zip(samples);
        let figures = figures.map(|(entry, (samples, lost))| figure(entry, &samples, lost, args.rounds));
        let figures = Figures(figures.collect());
        let comparison = Comparison { ratios: ratios(&figures), figures: figures.0 };
        let text =
            if args.json { serde_json::to_string(&comparison).into_diagnostic()? } else { comparison.text() };
        println!("{text}");
        Ok(())
    }

    fn sample(&self, entry: &Entry, length: Duration) -> Result<Sample, Report> {
        let file_prefix = format!("understudy-bench-{}", std::process::id());
        let program = (entry.launch)(self, &entry.capture, file_prefix)?;
        let start_observer = || entry.observer.as_ref().map(|observer| observer(self)).transpose();
        measure(program, entry.counts, length, &self.log(), start_observer)
            .map_err(|error| miette!(help = entry.help, "{error}"))
    }

    /// Returns the path of the log of the program under measurement.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Returns the command of `dpdk-testpmd` on a capture.
    pub(crate) fn testpmd(&self, mode: &str, capture: &Path, file_prefix: String) -> Program {
        let mut command = Command::new("dpdk-testpmd");
        self.eal(&mut command, capture, &file_prefix);
        command.args(["--", "--nb-cores=1", "--port-topology=loop", "--rxd=512", "--txd=512", "--burst=32"]);
        command.args([
            "--total-num-mbufs=16383",
            "--auto-start",
            "--stats-period=3600",
            "--no-lsc-interrupt",
        ]);
        command.arg(format!("--forward-mode={mode}"));
        Program { command, file_prefix, thread_names: WORKERS }
    }

    /// Adds the EAL arguments of a DPDK program with one worker. Its main thread waits, on any CPU.
    pub(crate) fn eal(&self, command: &mut Command, capture: &Path, file_prefix: &str) {
        let lcores = format!("0@(0-{}),1@{}", self.cpu.max(1), self.cpu);
        command.args(["--lcores", &lcores, "--no-huge", "-m", "256", "--no-pci"]);
        command.arg(format!("--file-prefix={file_prefix}"));
        command.arg(format!("--vdev=net_pcap0,rx_pcap={},infinite_rx=1", capture.display()));
    }

    /// Returns the beginning of a configuration for `understudy run` with one worker on a capture.
    pub(crate) fn runtime(&self, capture: &Path, file_prefix: &str, mtu: u16, capacity: Capacity) -> String {
        let capture = format!("\"{}\"", capture.display());
        Self::process(&self.cpus(1), file_prefix, capacity) + &Self::port("loop", &capture, mtu, capacity)
    }

    /// Returns the beginning of a configuration with a worker for each capture: on [`cpu`](Self::cpu) and those before.
    pub(crate) fn runtime_of_workers(&self, captures: &[PathBuf], file_prefix: &str) -> String {
        let captures: Vec<_> = captures.iter().map(|path| format!("\"{}\"", path.display())).collect();
        let rx = format!("[{}]", captures.join(", "));
        let capacity = Capacity::default();
        Self::process(&self.cpus(captures.len()), file_prefix, capacity)
            + &Self::port("loop", &rx, 1500, capacity)
    }

    /// Returns the beginning of a configuration with these workers, and ports `p0`, `p1` and so on that each play a capture.
    pub(crate) fn runtime_of_ports(&self, captures: &[PathBuf], workers: usize, file_prefix: &str) -> String {
        let Capacity { memory_mb, buffers } = Capacity::default();
        let capacity = Capacity { memory_mb: memory_mb * captures.len(), buffers };
        let ports = captures.iter().enumerate().map(|(n, path)| {
            Self::port(&format!("p{n}"), &format!("\"{}\"", path.display()), 1500, capacity)
        });
        Self::process(&self.cpus(workers), file_prefix, capacity) + &ports.collect::<String>()
    }

    /// Returns the CPUs of this number of workers, as in a configuration.
    fn cpus(&self, workers: usize) -> String {
        let cpus: Vec<_> = (0..workers).map(|worker| (self.cpu - worker).to_string()).collect();
        cpus.join(", ")
    }

    fn process(cpus: &str, file_prefix: &str, capacity: Capacity) -> String {
        let memory_mb = capacity.memory_mb;
        format!(
            "[runtime]\nworkers = [{cpus}]\nmemory_mb = {memory_mb}\nfile_prefix = \"{file_prefix}\"\ntelemetry = true\n"
        )
    }

    fn port(name: &str, rx: &str, mtu: u16, capacity: Capacity) -> String {
        let buffers = capacity.buffers;
        format!(
            "[[port]]\nname = \"{name}\"\nmtu = {mtu}\nbuffers = {buffers}\ndescriptors = 512\npcap = {{ rx = {rx}, infinite = true }}\n"
        )
    }
}

/// Names of the only worker of DPDK programs, by DPDK version
pub(crate) const WORKERS: &[&str] = &["rte-worker-1", "lcore-worker-1", "dpdk-worker1"];

pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
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

fn figure(entry: &Entry, samples: &[Sample], discarded: usize, rounds: u32) -> Figure {
    let enough = samples.len() >= rounds as usize;
    Figure {
        program: entry.program.clone(),
        traffic: entry.traffic.clone(),
        mpps: median(samples.iter().map(|s| s.per_cpu_second / 1e6)).filter(|_| enough),
        samples: samples.len(),
        discarded,
        on_cpu: median(samples.iter().map(|s| s.on_cpu)).map(|[median, ..]| median),
        own_ns: median(samples.iter().filter_map(|s| s.own_ns)).map(|[median, ..]| median).filter(|_| enough),
    }
}

impl Comparison {
    fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        let own = self.figures.iter().any(|f| f.own_ns.is_some());
        let mut header =
            vec!["program", "traffic", "Mpps per CPU second", "least", "most", "on CPU", "samples"];
        header.extend(own.then_some("ns per frame without drivers"));
        table.set_header(header);
        for f in &self.figures {
            let number = |n: Option<f64>| n.map_or_else(|| "preempted".into(), |n| format!("{n:.2}"));
            let at = |i: usize| number(f.mpps.map(|m| m[i]));
            let discarded =
                if f.discarded > 0 { format!(", {} discarded", f.discarded) } else { String::new() };
            let mut row = vec![
                f.program.clone(),
                f.traffic.clone(),
                at(0),
                at(1),
                at(2),
                number(f.on_cpu),
                format!("{}{discarded}", f.samples),
            ];
            row.extend(own.then(|| f.own_ns.map_or_else(String::new, |ns| format!("{ns:.1}"))));
            table.add_row(row);
        }
        let mut text = String::new();
        for line in table.lines() {
            _ = writeln!(text, "{}", line.trim_end());
        }
        text.push('\n');
        for ratio in &self.ratios {
            // Ratios close to 1, such as a goal of at most one percent of cost, need one more digit.
            let digits = if (ratio.value.unwrap_or(0.0) - 1.0).abs() < 0.02 { 3 } else { 2 };
            _ = match ratio.value {
                Some(value) if ratio.at_least == 0.0 => writeln!(text, "{value:.digits$}  {}", ratio.what),
                Some(value) => {
                    let verdict = if value >= ratio.at_least { "reached" } else { "missed" };
                    let goal = ratio.at_least;
                    writeln!(text, "{value:.digits$}  {} (goal {goal:.2}: {verdict})", ratio.what)
                }
                None => writeln!(
                    text,
                    "  --  {}: a polling thread was preempted too often; not measured",
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
    fn median_also_returns_least_and_most() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some([2.0, 1.0, 3.0]));
        assert_eq!(median([4.0, 1.0].into_iter()), Some([2.5, 1.0, 4.0]));
    }

    #[test]
    fn too_few_samples_give_no_result() {
        let sample = Sample { per_cpu_second: 1e6, on_cpu: 0.95, own_ns: Some(20.0) };
        let entry = Entry {
            program: "one".into(),
            traffic: "some".into(),
            capture: PathBuf::new(),
            launch: Box::new(|_, _, _| Err(miette!("not started in this test"))),
            help: "",
            counts: CountedFrames::Sent,
            observer: None,
        };
        let too_few = Figures(vec![figure(&entry, &[sample; 4], 6, 5)]);
        assert_eq!((too_few.rate("one", "some"), too_few.own_ns("one", "some")), (None, None));
        let enough = Figures(vec![figure(&entry, &[sample; 5], 6, 5)]);
        assert_eq!(enough.ratio("one", "one", "some"), Some(1.0));
        assert_eq!(enough.own_ns("one", "some"), Some(20.0));
        let ratios = vec![Ratio { what: "it".into(), value: too_few.rate("one", "some"), at_least: 1.0 }];
        assert!(Comparison { ratios, figures: too_few.0 }.text().contains("not measured"));
    }
}

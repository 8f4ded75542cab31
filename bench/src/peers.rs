//! `understudy bench peers`: forwarding compared with `dpdk-testpmd`. Each program sends the frames of 1,024
//! queue pairs back where they came from. `--against` adds any other DPDK program to the comparison.

use crate::compare::{Bench, Capacity, CompareArgs, Entry, Figures, Ratio};
use crate::process::{BUSIEST, Program};
use crate::telemetry::CountedFrames;
use crate::traffic;
use clap::Args;
use miette::{IntoDiagnostic as _, Report};
use std::path::Path;
use std::process::Command;

/// Queue pairs in the traffic
const QPS: u32 = 1024;
const PAYLOADS: [usize; 2] = [64, 1024];

/// Compare forwarding with dpdk-testpmd (io and macswap), on one core
#[derive(Args)]
pub struct PeersArgs {
    /// Compare with this program, too: a DPDK program with telemetry and one polling thread, whose first port
    /// plays a capture. {capture}, {prefix} and {cpu} stand for the capture, the file prefix, and the CPU of
    /// the polling thread. May be given several times
    #[arg(long, value_name = "COMMAND", value_parser = command)]
    against: Vec<String>,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Checks that a command has the placeholders for the capture to play and for the file prefix, by which its
/// telemetry is found.
fn command(text: &str) -> Result<String, String> {
    for (placeholder, what) in
        [("{capture}", "the capture that its port plays"), ("{prefix}", "its file prefix")]
    {
        if !text.contains(placeholder) {
            return Err(format!("{placeholder} is missing; write it in place of {what}, such as: {EXAMPLE}"));
        }
    }
    Ok(text.to_owned())
}

const EXAMPLE: &str = "dpdk-l2fwd --lcores 0@0,1@{cpu} --no-huge -m 256 --no-pci --file-prefix={prefix} \
                       --vdev=net_pcap0,rx_pcap={capture},infinite_rx=1 -- -p 1";

/// Replaces the placeholders of a command.
fn expand(command: &str, capture: &Path, prefix: &str, cpu: usize) -> String {
    let quoted = format!("'{}'", capture.display().to_string().replace('\'', "'\\''"));
    command.replace("{capture}", &quoted).replace("{prefix}", prefix).replace("{cpu}", &cpu.to_string())
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
pub fn run(args: &PeersArgs, understudy: &Path) -> Result<(), Report> {
    let bench = Bench::new(&args.compare, understudy)?;
    let mut entries = Vec::new();
    for payload in PAYLOADS {
        let capture = bench.dir.path().join(format!("write-{payload}.pcap"));
        traffic::write(&capture, (0..QPS).map(|n| traffic::write_only(n, payload))).into_diagnostic()?;
        let entry = |program: String, launch, help| Entry {
            program,
            traffic: format!("{payload} B"),
            capture: capture.clone(),
            launch,
            help,
            counts: CountedFrames::Sent,
            observer: None,
        };
        for mode in ["io", "macswap"] {
            entries.push(entry(
                format!("testpmd {mode}"),
                Box::new(move |bench: &Bench, capture: &Path, prefix| {
                    Ok(bench.testpmd(mode, capture, prefix))
                }),
                "dpdk-testpmd is in Debian's package dpdk-dev",
            ));
        }
        for against in &args.against {
            let command = against.clone();
            entries.push(entry(
                name(against),
                Box::new(move |bench: &Bench, capture: &Path, file_prefix: String| {
                    let mut shell = Command::new("sh");
                    let command = expand(&command, capture, &file_prefix, bench.cpu);
                    shell.arg("-c").arg(format!("exec {command}"));
                    Ok(Program { command: shell, file_prefix, thread_names: BUSIEST })
                }),
                "check that the command runs by itself, with DPDK's telemetry",
            ));
        }
        for counted_qps in [0, QPS] {
            entries.push(entry(
                forward_name(counted_qps),
                Box::new(move |bench: &Bench, capture: &Path, prefix| {
                    forward(bench, counted_qps, capture, prefix)
                }),
                "check that `understudy run` works without the benchmark",
            ));
        }
    }
    bench.compare(&args.compare, &entries, |figures| ratios(figures, &args.against))
}

/// Returns the name of a command in the figures: its first 48 characters.
fn name(command: &str) -> String {
    command.chars().take(48).collect()
}

fn forward_name(counted_qps: u32) -> String {
    if counted_qps == 0 {
        "understudy forward".into()
    } else {
        format!("understudy forward, {counted_qps} QPs counted")
    }
}

fn forward(bench: &Bench, counted_qps: u32, capture: &Path, file_prefix: String) -> Result<Program, Report> {
    let path = bench.dir.path().join("forward.toml");
    let config = bench.runtime(capture, &file_prefix, 1500, Capacity::default())
        + &format!("[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = {counted_qps}\n");
    std::fs::write(&path, config).into_diagnostic()?;
    let mut command = Command::new(&bench.understudy);
    command.arg("run").arg(path);
    Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
}

fn ratios(figures: &Figures, against: &[String]) -> Vec<Ratio> {
    let (forward, counting) = (forward_name(0), forward_name(QPS));
    let growth = |program| Some(figures.rate(program, "1024 B")? / figures.rate(program, "64 B")?);
    let growths = growth(forward.as_str()).zip(growth("testpmd io"));
    let others = against.iter().flat_map(|command| PAYLOADS.map(|payload| (name(command), payload)));
    let others: Vec<_> = others
        .map(|(program, payload)| Ratio {
            what: format!("forward / {program}, {payload} B"),
            value: figures.ratio(&forward, &program, &format!("{payload} B")),
            at_least: 0.0,
        })
        .collect();
    let mut all = vec![
        Ratio {
            what: "forward / testpmd macswap, 64 B".into(),
            value: figures.ratio(&forward, "testpmd macswap", "64 B"),
            at_least: 0.60,
        },
        Ratio {
            what: format!("forward counting {QPS} QPs / testpmd macswap, 64 B"),
            value: figures.ratio(&counting, "testpmd macswap", "64 B"),
            at_least: 0.50,
        },
        Ratio {
            what: "(forward 1 KB / forward 64 B) / (testpmd io 1 KB / testpmd io 64 B)".into(),
            value: growths.map(|(ours, io)| ours / io),
            at_least: 1.0,
        },
    ];
    all.extend(others);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_need_placeholders_for_capture_and_prefix() {
        assert!(command(EXAMPLE).is_ok());
        for wrong in ["dpdk-l2fwd", "dpdk-l2fwd {capture}", "dpdk-l2fwd {prefix}"] {
            assert!(command(wrong).unwrap_err().contains("such as"), "{wrong}");
        }
        let text = expand("x {cpu} --prefix={prefix} {capture} {prefix}", Path::new("/a b's.pcap"), "p", 3);
        assert_eq!(text, "x 3 --prefix=p '/a b'\\''s.pcap' p");
    }
}

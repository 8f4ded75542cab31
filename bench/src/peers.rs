//! `understudy bench peers`: forwarding against `dpdk-testpmd`. Each program sends the frames of 1,024 queue pairs back
//! where they came from.

use crate::compare::{Bench, CompareArgs, Entry, Figures, Ratio, Room};
use crate::process::{Counts, Program};
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
    #[command(flatten)]
    compare: CompareArgs,
}

/// Runs the comparison and prints it. `understudy` is the program itself.
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
            counts: Counts::Sent,
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
        for counted_qps in [0, QPS] {
            entries.push(entry(
                forward_name(counted_qps),
                Box::new(move |bench: &Bench, capture: &Path, prefix| {
                    forward(bench, counted_qps, capture, prefix)
                }),
                "does `understudy run` work without the benchmark?",
            ));
        }
    }
    bench.compare(&args.compare, &entries, ratios)
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
    let config = bench.runtime(capture, &file_prefix, 1500, Room::default())
        + &format!("[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = {counted_qps}\n");
    std::fs::write(&path, config).into_diagnostic()?;
    let mut command = Command::new(&bench.understudy);
    command.arg("run").arg(path);
    Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let (forward, counting) = (forward_name(0), forward_name(QPS));
    let growth = |program| Some(figures.rate(program, "1024 B")? / figures.rate(program, "64 B")?);
    let growths = growth(forward.as_str()).zip(growth("testpmd io"));
    vec![
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
    ]
}

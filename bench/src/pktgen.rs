//! `understudy bench pktgen`: the rates of the packet generator and its receiver, compared with
//! `dpdk-testpmd` in mode `txonly`, which sends the same datagram repeatedly and touches its first 42 bytes.
//!
//! Both send into a `net_null` port, which discards all frames. The receiver is measured on a port that loops
//! frames back, on the same core as the sender: if that makes half of the sender's rate, checking a packet
//! takes no longer than sending one.

use crate::compare::{Bench, CompareArgs, Entry, Figures, Launch, Ratio, WORKERS};
use crate::process::Program;
use crate::telemetry::CountedFrames;
use clap::Args;
use miette::{IntoDiagnostic as _, Report};
use std::path::{Path, PathBuf};
use std::process::Command;

const TXONLY: &str = "testpmd txonly";
const SENDER: &str = "understudy pktgen";
const BOTH: &str = "understudy pktgen, sent and checked";

/// Bytes of the payload, and of the frame: Ethernet, IPv4, UDP, BTH, RETH, payload, and ICRC
const PAYLOAD: usize = 64;
const FRAME: usize = 14 + 20 + 8 + 12 + 16 + PAYLOAD + 4;

/// Queue pairs, name of the traffic, and the fraction of testpmd's rate that sending has to reach
const STREAMS: [(u32, &str, f64); 3] =
    [(1, "1 queue pair", 0.9), (1_000, "1,000 queue pairs", 0.7), (100_000, "100,000 queue pairs", 0.0)];

/// Compare sending 64-byte WRITEs with dpdk-testpmd (txonly), and sending with checking, on one core
#[derive(Args)]
pub struct PktgenArgs {
    #[command(flatten)]
    compare: CompareArgs,
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
pub fn run(args: &PktgenArgs, understudy: &Path) -> Result<(), Report> {
    let bench = Bench::new(&args.compare, understudy)?;
    let entry = |program: &str, traffic: &str, launch: Launch| Entry {
        program: program.into(),
        traffic: traffic.into(),
        capture: PathBuf::new(),
        launch,
        help: "run `understudy doctor` to see what is missing; dpdk-testpmd is in Debian's package dpdk-dev",
        counts: CountedFrames::Sent,
        observer: None,
    };
    let mut entries = vec![entry(TXONLY, "datagrams of this length", txonly())];
    for (qps, traffic, _) in STREAMS {
        entries.push(entry(SENDER, traffic, sending(qps, false, 1)));
        entries.push(entry(BOTH, traffic, sending(qps, true, 1)));
    }
    bench.compare(&args.compare, &entries, ratios)
}

fn txonly() -> Launch {
    Box::new(|bench, _, file_prefix| {
        let mut command = Command::new("dpdk-testpmd");
        let lcores = format!("0@(0-{}),1@{}", bench.cpu.max(1), bench.cpu);
        command.args(["--lcores", &lcores, "--no-huge", "-m", "256", "--no-pci"]);
        command.arg(format!("--file-prefix={file_prefix}"));
        command.arg(format!("--vdev=net_null0,size={FRAME}"));
        command.args(["--", "--nb-cores=1", "--port-topology=loop", "--rxd=512", "--txd=512", "--burst=32"]);
        command.args([
            "--total-num-mbufs=16383",
            "--auto-start",
            "--stats-period=3600",
            "--no-lsc-interrupt",
        ]);
        command.args(["--forward-mode=txonly", &format!("--txpkts={FRAME}")]);
        Ok(Program { command, file_prefix, thread_names: WORKERS })
    })
}

/// Returns how to send WRITEs on this number of queue pairs, and check them at a ring, on workers that each have a receive
/// queue of it.
pub(crate) fn sending(qps: u32, checks: bool, workers: usize) -> Launch {
    Box::new(move |bench, _, file_prefix| {
        let path = bench.dir.path().join("pktgen.toml");
        let (device, receive) =
            if checks { ("ring = {}", "receive = \"port\"\n") } else { ("null = { size = 64 }", "") };
        let cpus: Vec<_> = (0..workers).map(|worker| (bench.cpu - worker).to_string()).collect();
        let config = format!(
            "[runtime]\nworkers = [{}]\nmemory_mb = 256\nfile_prefix = \"{file_prefix}\"\ntelemetry = true\n\
             [[port]]\nname = \"port\"\ndescriptors = 512\nbuffers = 16383\nrx_queues = {workers}\n{device}\n\
             [pktgen]\nsend = \"port\"\n{receive}\
             [[pktgen.stream]]\nverb = \"write\"\nsize = {PAYLOAD}\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nqps = {qps}\n\
             slots = 1024\nlatency = true\n",
            cpus.join(", ")
        );
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.arg("pktgen").arg(path);
        Ok(Program { command, file_prefix, thread_names: &["worker-0", "worker-1"] })
    })
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let rate = |program, traffic| figures.rate(program, traffic);
    let testpmd = rate(TXONLY, "datagrams of this length");
    let ratio = |what: String, value: Option<f64>, at_least| Ratio { what, value, at_least };
    let over = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    STREAMS
        .into_iter()
        .flat_map(|(qps, traffic, at_least)| {
            let (sender, both) = (rate(SENDER, traffic), rate(BOTH, traffic));
            let least_checked = if qps > 1_000 { 0.0 } else { 0.5 };
            [
                ratio(format!("{traffic}: pktgen / testpmd txonly"), over(sender, testpmd), at_least),
                ratio(format!("{traffic}: sent and checked / sent"), over(both, sender), least_checked),
            ]
        })
        .collect()
}

//! `understudy bench p4ce`: the cost of replication, compared with `dpdk-testpmd` and with a program that
//! only rewrites frames.
//!
//! The traffic is leaders' WRITEs to 1,024 groups, or to one, and replicas' acknowledgements that do not
//! complete a quorum.

use crate::compare::{Bench, Capacity, CompareArgs, Entry, Figures, Launch, Ratio, WORKERS};
use crate::process::Program;
use crate::telemetry::CountedFrames;
use crate::traffic;
use clap::Args;
use core::net::IpAddr;
use miette::{IntoDiagnostic as _, Report, miette};
use p4ce::{GroupConfig, GroupId, Peer, Replica};
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use std::path::{Path, PathBuf};
use std::process::Command;
use switch::PortId;

/// Groups in the traffic
const GROUPS: u32 = 1024;
/// The switch's MAC address in the traffic
pub(crate) const OWN: &str = "02:00:00:00:00:01";
const REWRITER: &str = "C rewriter (array by QPN, ICRC corrected)";
const MACSWAP: &str = "testpmd macswap";

/// Compare replication with dpdk-testpmd (macswap) and with the minimal cost of a rewrite, on one core
#[derive(Args)]
pub struct P4ceArgs {
    #[command(flatten)]
    compare: CompareArgs,
}

/// Run the data plane with groups that exist from the start (used by `bench p4ce`)
#[derive(Args)]
pub struct LoadArgs {
    /// Configuration with [p4ce]
    pub config: PathBuf,
    /// Number of groups
    #[arg(long)]
    pub groups: u32,
    /// Replicas of each group
    #[arg(long)]
    pub replicas: u32,
    /// Share payloads of this many bytes or more, whatever the port's driver announces
    #[arg(long)]
    pub share_from: Option<usize>,
}

/// Queue pairs of a worker in the traffic, as many as its part of a switch for [`GROUPS`] groups has
const OF_WORKER: u32 = 1 << 15;

/// Returns the groups of the traffic: the leader of group `n` sends [`write_to_group`] of `n`. The groups belong to
/// the workers in turn.
pub fn groups(count: u32, replicas: u32, workers: u32) -> impl Iterator<Item = GroupConfig> {
    (0..count).map(move |n| {
        let shift = n % workers * OF_WORKER;
        let local: IpAddr = [198, 18, 0, 1 + (n % 200) as u8].into();
        let peer = |remote: IpAddr, local_qp, remote_qp, first| Peer {
            local,
            remote,
            mac: MacAddr([2, 0, 0, 0, 0, 2]),
            port: PortId(0),
            local_qp: Qpn::new(local_qp),
            remote_qp: Qpn::new(remote_qp),
            first: Psn::new(first),
        };
        let [_, _, high, low] = n.to_be_bytes();
        let replica = |r: u32| Replica {
            peer: peer(
                [198, 19 + r as u8, high, low].into(),
                replica_qp(n, r) + shift,
                0x2000 + n,
                n * 977 + r,
            ),
            va: u64::from(r) << 40,
            rkey: 0x77 + r,
        };
        GroupConfig {
            id: GroupId(n),
            own: MacAddr([2, 0, 0, 0, 0, 1]),
            leader: peer([10, 0, high, low].into(), 0x100 + n + shift, 0x3000 + n, n),
            rkey: 0x1000 + n,
            size: 1 << 48,
            replicas: (0..replicas).map(replica).collect(),
            // All replicas: the acknowledgements of one replica never complete the quorum.
            quorum: replicas as usize,
            outvote: false,
            max_lag: p4ce::gather::MAX_LAG,
        }
    })
}

/// Returns a WRITE of the leader of group `n`.
pub fn write_to_group(n: u32, workers: u32, payload: usize) -> Vec<u8> {
    traffic::write_to(n, Qpn::new(0x100 + n + n % workers * OF_WORKER), payload)
}

/// Returns the switch's queue pair towards replica `r` of group `n`.
const fn replica_qp(n: u32, r: u32) -> u32 {
    0x4000 + n * 16 + r
}

/// Returns an acknowledgement of the first packet of group `n`, by its replica `r`.
pub fn acknowledgement(n: u32, r: u32) -> Vec<u8> {
    let [_, _, high, low] = n.to_be_bytes();
    let (src, dst) = ([198, 19 + r as u8, high, low], [198, 18, 0, 1 + (n % 200) as u8]);
    traffic::acknowledge(src, dst, Qpn::new(replica_qp(n, r)), Psn::new(n * 977 + r))
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
pub fn run(args: &P4ceArgs, understudy: &Path) -> Result<(), Report> {
    let bench = Bench::new(&args.compare, understudy)?;
    let rewriter = compile_rewriter(&bench)?;
    let capture = |name: &str| bench.dir.path().join(format!("{name}.pcap"));
    let mut entries = Vec::new();
    for payload in [64, 1024] {
        let path = capture(&format!("write-{payload}"));
        traffic::write(&path, (0..GROUPS).map(|n| traffic::write_only(n, payload))).into_diagnostic()?;
        let name = format!("WRITE {payload} B");
        entries.push(entry(MACSWAP, &name, &path, macswap()));
        let rewriter = rewriter.clone();
        entries.push(entry(
            REWRITER,
            &name,
            &path,
            Box::new(move |bench, capture, prefix| Ok(rewriting(bench, &rewriter, capture, prefix))),
        ));
        for replicas in [1, 4] {
            entries.push(entry(&program_to(replicas), &name, &path, replicating(GROUPS, replicas, None)));
        }
    }
    let path = capture("one");
    traffic::write(&path, (0..GROUPS).map(|_| traffic::write_only(0, 64))).into_diagnostic()?;
    entries.push(entry(&program_to(1), "WRITE 64 B, one group", &path, replicating(1, 1, None)));
    let path = capture("ack");
    traffic::write(&path, (0..GROUPS).map(|n| acknowledgement(n, 0))).into_diagnostic()?;
    entries.push(entry(MACSWAP, "ACK", &path, macswap()));
    entries.push(Entry {
        counts: CountedFrames::Received,
        ..entry(GATHER, "ACK", &path, replicating(GROUPS, 2, None))
    });
    for payload in SHARED {
        // Few groups, because only the payload's size matters here
        let path = capture(&format!("share-{payload}"));
        traffic::write(&path, (0..32).map(|n| traffic::write_only(n, payload))).into_diagnostic()?;
        // The port takes segments, although its driver does not announce it.
        for (name, from) in [(COPIED, usize::MAX), (SHARED_BY, 0)] {
            entries.push(entry(name, &write_traffic(payload), &path, replicating(32, 4, Some(from))));
        }
    }
    bench.compare(&args.compare, &entries, ratios)
}

/// Payload sizes, in bytes, with which copying and sharing are compared
const SHARED: [usize; 6] = [64, 256, 512, 1024, 2048, 4096];
const COPIED: &str = "understudy p4ce to 4, payload copied";
const SHARED_BY: &str = "understudy p4ce to 4, payload shared";

/// Returns the name of the traffic of WRITEs to 32 groups.
fn write_traffic(payload: usize) -> String {
    format!("WRITE {payload} B, 32 groups")
}

const GATHER: &str = "understudy p4ce, absorbed, ICRC verified";

fn program_to(replicas: u32) -> String {
    format!("understudy p4ce to {replicas} (frames out)")
}

fn entry(program: &str, traffic: &str, capture: &Path, launch: Launch) -> Entry {
    Entry {
        program: program.into(),
        traffic: traffic.into(),
        capture: capture.into(),
        launch,
        help: "run `understudy doctor` to see what is missing; dpdk-testpmd is in Debian's package dpdk-dev",
        counts: CountedFrames::Sent,
        observer: None,
    }
}

fn macswap() -> Launch {
    Box::new(|bench, capture, prefix| Ok(bench.testpmd("macswap", capture, prefix)))
}

fn replicating(groups: u32, replicas: u32, share_from: Option<usize>) -> Launch {
    Box::new(move |bench, capture, file_prefix| {
        let path = bench.dir.path().join("p4ce.toml");
        let mtu = if share_from.is_some() { 4200 } else { 1500 };
        let config = bench.runtime(capture, &file_prefix, mtu, Capacity::default())
            + &format!(
                "[p4ce]\nmac = \"{OWN}\"\naddresses = [\"198.18.0.1/16\"]\ncounted_qps = 0\nsilent_after_ms = 0\n"
            );
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.args(["bench", "p4ce-load"]).arg(path);
        command.args(["--groups", &groups.to_string(), "--replicas", &replicas.to_string()]);
        if let Some(from) = share_from {
            command.args(["--share-from", &from.to_string()]);
        }
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

fn rewriting(bench: &Bench, rewriter: &Path, capture: &Path, file_prefix: String) -> Program {
    let mut command = Command::new(rewriter);
    bench.eal(&mut command, capture, &file_prefix);
    command.arg("--force-max-simd-bitwidth=512");
    // ICRC corrected, array by QPN
    command.args(["--", "2", "1"]);
    Program { command, file_prefix, thread_names: WORKERS }
}

/// Compiles the program that only rewrites.
fn compile_rewriter(bench: &Bench) -> Result<PathBuf, Report> {
    let (source, program) = (bench.dir.path().join("rewriter.c"), bench.dir.path().join("rewriter"));
    std::fs::write(&source, include_str!("../peers/rewriter.c")).into_diagnostic()?;
    // Debian's pkg-config flags name an old processor; `-march=native` has to follow them to take effect.
    let script = "exec cc -O3 -fno-strict-aliasing -o \"$1\" \"$0\" $(pkg-config --cflags --libs libdpdk) -march=native";
    let compiled =
        Command::new("sh").args(["-c", script]).arg(&source).arg(&program).status().into_diagnostic()?;
    if compiled.success() {
        Ok(program)
    } else {
        Err(miette!(
            help = "install gcc, pkg-config and libdpdk-dev",
            "bench/peers/rewriter.c does not compile"
        ))
    }
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let growth =
        figures.rate(&program_to(1), "WRITE 64 B").zip(figures.rate(&program_to(1), "WRITE 64 B, one group"));
    let ratio = |what: &str, value, at_least| Ratio { what: what.into(), value, at_least };
    let mut all = vec![
        ratio(
            "to one replica / testpmd macswap, 64 B",
            figures.ratio(&program_to(1), MACSWAP, "WRITE 64 B"),
            0.40,
        ),
        ratio(
            "to four, frames out / testpmd macswap, 64 B",
            figures.ratio(&program_to(4), MACSWAP, "WRITE 64 B"),
            0.35,
        ),
        ratio("ACKs absorbed / testpmd macswap", figures.ratio(GATHER, MACSWAP, "ACK"), 0.35),
        ratio(
            "to one replica / C rewriter, 1 KB",
            figures.ratio(&program_to(1), REWRITER, "WRITE 1024 B"),
            0.90,
        ),
        ratio("1,024 groups / one group, 64 B", growth.map(|(many, one)| many / one), 0.90),
    ];
    all.extend(SHARED.map(|payload| {
        // From 3,072 bytes on payloads are shared by default.
        let (name, at_least) = (write_traffic(payload), if payload < 3072 { 0.0 } else { 1.0 });
        let what = format!("to four, payload shared / copied, {payload} B");
        Ratio { what, value: figures.ratio(SHARED_BY, COPIED, &name), at_least }
    }));
    all
}

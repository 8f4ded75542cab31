//! `understudy bench swordbox`: the cost of sharing connections and resolving atomics, compared with
//! `dpdk-testpmd`.
//!
//! The traffic is requests of many clients and acknowledgements of the server, as a Swordbox between them
//! receives them ([`load`]). Each received frame makes one sent frame, if acknowledgements cover one
//! operation each.

pub mod load;
mod rack;
pub mod simulated;

use crate::compare::{Bench, Capacity, CompareArgs, Entry, Figures, Launch, Ratio};
use crate::process::Program;
use crate::telemetry::CountedFrames;
use crate::traffic;
use clap::Args;
use load::{Load, Tally, Verb};
use miette::{IntoDiagnostic as _, Report, miette};
use std::path::{Path, PathBuf};
use std::process::Command;

const MACSWAP: &str = "testpmd macswap";
const SWORDBOX: &str = "understudy swordbox";

/// Requests of 1,024 clients
pub(crate) const CLIENTS_1024: Load =
    Load { verb: Verb::Cas, connections: 1024, requests: 1, lines: 64, covered: 1 };
/// As many requests as 65,536 clients make with one each: the capture exceeds the caches
const CLIENTS_65536: Load = Load { connections: 65_536, lines: 256, ..CLIENTS_1024 };
const CLIENTS_1024_LONG: Load = Load { connections: 1024, requests: 64, ..CLIENTS_65536 };
/// Operations that an acknowledgement covers
const COVERED: [usize; 3] = [2, 8, 32];

/// Compare sharing connections and resolving atomics with dpdk-testpmd (macswap), on one core; and contended
/// locks with Swordbox and without (simulated)
#[derive(Args)]
pub struct SwordboxArgs {
    /// Run only the simulation
    #[arg(long)]
    simulated: bool,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Run the data plane on synthetic Swordbox traffic (used by `bench swordbox`)
#[derive(Args)]
pub struct LoadArgs {
    /// Configuration with a port that plays the traffic's capture
    pub config: PathBuf,
    /// Verb of the clients' requests
    #[arg(long)]
    verb: Verb,
    /// Number of clients
    #[arg(long)]
    connections: u32,
    /// Requests of each client
    #[arg(long)]
    requests: u32,
    /// Cached lines on each shared connection
    #[arg(long)]
    lines: usize,
    /// Operations that an acknowledgement covers
    #[arg(long)]
    covered: usize,
    /// Number of workers, each of which plays the capture of its own server
    #[arg(long, default_value_t = 1)]
    pub workers: u8,
}

impl LoadArgs {
    /// Returns the traffic.
    pub const fn load(&self) -> Load {
        let &Self { verb, connections, requests, lines, covered, .. } = self;
        Load { verb, connections, requests, lines, covered }
    }
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
pub fn run(args: &SwordboxArgs, understudy: &Path) -> Result<(), Report> {
    if args.simulated {
        return simulated::run(args.compare.json);
    }
    let bench = Bench::new(&args.compare, understudy)?;
    let mut entries = Vec::new();
    for verb in [Verb::Write, Verb::Cas] {
        let load = Load { verb, ..CLIENTS_1024 };
        let capture = capture(&bench, load)?;
        entries.push(entry(MACSWAP, load, &capture, macswap()));
        entries.push(entry(SWORDBOX, load, &capture, replaying(load)));
    }
    let covering = COVERED.map(|covered| Load { covered, ..CLIENTS_1024 });
    for load in [CLIENTS_1024_LONG, CLIENTS_65536].into_iter().chain(covering) {
        entries.push(entry(SWORDBOX, load, &capture(&bench, load)?, replaying(load)));
    }
    bench.compare(&args.compare, &entries, ratios)?;
    simulated::run(args.compare.json)
}

fn capture(bench: &Bench, load: Load) -> Result<PathBuf, Report> {
    let path = bench.dir.path().join(format!("{}.pcap", name(load).replace([' ', ','], "")));
    let (frames, _) = load.make();
    traffic::write(&path, frames.into_iter()).into_diagnostic()?;
    Ok(path)
}

/// Returns the name of a load in the figures.
fn name(load: Load) -> String {
    let verb = if load.verb == Verb::Cas { "CAS" } else { "WRITE 64 B" };
    let Load { connections, requests, covered, .. } = load;
    let long = if requests > 1 { format!(", {requests} each") } else { String::new() };
    let acks = if covered > 1 { format!(", an ACK for {covered}") } else { String::new() };
    format!("{verb}, {connections} clients{long}{acks}")
}

fn entry(program: &str, load: Load, capture: &Path, launch: Launch) -> Entry {
    Entry {
        program: program.into(),
        traffic: name(load),
        capture: capture.into(),
        launch,
        help: "run `understudy doctor` to see what is missing; dpdk-testpmd is in Debian's package dpdk-dev",
        counts: CountedFrames::Received,
        observer: None,
    }
}

fn macswap() -> Launch {
    Box::new(|bench, capture, prefix| Ok(bench.testpmd("macswap", capture, prefix)))
}

fn replaying(load: Load) -> Launch {
    Box::new(move |bench, capture, file_prefix| {
        let path = bench.dir.path().join("swordbox.toml");
        let capacity = Capacity::for_frames(load.frames());
        let config = bench.runtime(capture, &file_prefix, 1500, capacity)
            + "[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = 0\n";
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.args(load_command(load)).arg(path);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

/// Returns the command, but its configuration, that replays a load.
pub(crate) fn load_command(load: Load) -> Vec<String> {
    let verb = if load.verb == Verb::Cas { "cas" } else { "write" };
    let mut command: Vec<_> = ["bench", "swordbox-load", "--verb", verb].map(String::from).into();
    for (option, value) in [
        ("--connections", load.connections as usize),
        ("--requests", load.requests as usize),
        ("--lines", load.lines),
        ("--covered", load.covered),
    ] {
        command.extend([option.into(), value.to_string()]);
    }
    command
}

/// Checks that replays of `workers` workers together handled the traffic as intended.
///
/// # Errors
/// The difference from the intended behaviour.
pub fn check(load: &Load, workers: u8, tally: &Tally, frames: u64) -> Result<(), Report> {
    tally
        .check(load, workers, frames)
        .map_err(|what| miette!("invalid measurement of {}: {what}", name(*load)))
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let ratio = |what: String, value, at_least| Ratio { what, value, at_least };
    let write = name(Load { verb: Verb::Write, ..CLIENTS_1024 });
    let mut all = vec![
        ratio(
            "WRITEs on shared connections / testpmd macswap".into(),
            figures.ratio(SWORDBOX, MACSWAP, &write),
            0.35,
        ),
        ratio(
            "CAS to WRITE / testpmd macswap".into(),
            figures.ratio(SWORDBOX, MACSWAP, &name(CLIENTS_1024)),
            0.28,
        ),
        ratio(
            "65,536 clients / 1,024 clients".into(),
            figures
                .rate(SWORDBOX, &name(CLIENTS_65536))
                .zip(figures.rate(SWORDBOX, &name(CLIENTS_1024_LONG)))
                .map(|(many, few)| many / few),
            0.70,
        ),
    ];
    let operations =
        |load: Load| figures.rate(SWORDBOX, &name(load)).map(|frames| frames * load.operations_per_frame());
    all.extend(COVERED.map(|covered| {
        let both = operations(Load { covered, ..CLIENTS_1024 }).zip(operations(CLIENTS_1024));
        let what = format!("operations a second, an ACK for {covered} / an ACK each");
        ratio(what, both.map(|(one, each)| one / each), 1.0)
    }));
    all
}

//! `understudy bench workers`: what a second worker adds, and what it costs to dispatch a frame to its owner.
//!
//! One port plays a capture for each worker into a receive queue of its own, and discards what is sent. Frames are
//! steered if each capture has the frames that its worker owns, as a NIC delivers them that distributes by queue pair;
//! half of them are dispatched to the other worker if each capture has the frames of all owners. The packet generator sends
//! to a ring instead, which has a queue for each worker. 1Pipe's chip has four ports, each of which one worker receives and
//! sends; messages leave by a port of the same worker, or half of them by a port of the other worker.

use crate::compare::{Bench, CompareArgs, Entry, Figures, Launch, Ratio};
use crate::onepipe::load::{Kind, Load, Ports};
use crate::process::Program;
use crate::swordbox::{CLIENTS_1024, load_command};
use crate::telemetry::CountedFrames;
use crate::{onepipe, p4ce, pktgen, traffic};
use clap::Args;
use miette::{IntoDiagnostic as _, Report, miette};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Queue pairs, or groups, in the traffic
const FLOWS: u32 = 1024;
/// Payload of the frames, in bytes
const PAYLOAD: usize = 64;
const ONE: &str = "one worker";
const STEERED: &str = "two workers, steered";
const DISPATCHED: &str = "two workers, half dispatched";
const HANDED_OVER: &str = "two workers, half handed over";
/// Names of the workers' threads
const WORKERS: &[&str] = &["worker-0", "worker-1"];
/// Time that dispatching a frame may take, in nanoseconds
const DISPATCHED_NS: f64 = 15.0;

/// Measure what a second worker adds, and what it costs to dispatch a frame to its owner (two CPUs)
#[derive(Args)]
pub struct WorkersArgs {
    #[command(flatten)]
    compare: CompareArgs,
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
///
/// # Errors
/// If the machine has one CPU, or a program cannot be run.
pub fn run(args: &WorkersArgs, understudy: &Path) -> Result<(), Report> {
    let bench = Bench::new(&args.compare, understudy)?;
    if bench.cpu == 0 {
        return Err(miette!(
            help = "give the machine a second CPU, or write `--cpu` with another than 0",
            "two workers need two CPUs, and this one would be CPU 0"
        ));
    }
    let capture = |name: &str, flows: &mut dyn Iterator<Item = Vec<u8>>| {
        let path = bench.dir.path().join(format!("{name}.pcap"));
        traffic::write(&path, flows).into_diagnostic().map(|()| path)
    };
    let write = |n| traffic::write_only(n, PAYLOAD);
    let wire = capture("wire", &mut (0..FLOWS).map(write))?;
    let all = capture("all", &mut (0..FLOWS).map(|n| p4ce::write_to_group(n, 2, PAYLOAD)))?;
    let of_one = capture("one", &mut (0..FLOWS).map(|n| p4ce::write_to_group(n, 1, PAYLOAD)))?;
    let of = |worker| (0..FLOWS).filter(move |n| n % 2 == worker);
    let even = capture("even", &mut of(0).map(|n| p4ce::write_to_group(n, 2, PAYLOAD)))?;
    let odd = capture("odd", &mut of(1).map(|n| p4ce::write_to_group(n, 2, PAYLOAD)))?;
    let server = |worker, workers| {
        let (frames, _) = CLIENTS_1024.make_for(worker, workers);
        capture(&format!("server-{worker}-of-{workers}"), &mut frames.into_iter())
    };
    // The frames are the same, wherever they leave.
    let links = chip_load(Ports::Four).captures().into_iter().enumerate();
    let links = links.map(|(port, frames)| capture(&format!("chip-{port}"), &mut frames.into_iter()));
    let links: Vec<_> = links.collect::<Result<_, _>>()?;
    let entries = [
        entry(ONE, FORWARD, vec![wire.clone()], forwarding),
        entry(STEERED, FORWARD, vec![wire.clone(), wire], forwarding),
        entry(ONE, P4CE, vec![of_one], replicating),
        entry(STEERED, P4CE, vec![even, odd], replicating),
        entry(DISPATCHED, P4CE, vec![all.clone(), all], replicating),
        entry(ONE, SWORDBOX, vec![server(0, 1)?], sharing),
        entry(STEERED, SWORDBOX, vec![server(0, 2)?, server(1, 2)?], sharing),
        entry_of(ONE, CHIP, switching(links.clone(), Ports::Crossed, 1)),
        entry_of(STEERED, CHIP, switching(links.clone(), Ports::Four, 2)),
        entry_of(HANDED_OVER, CHIP, switching(links, Ports::Crossed, 2)),
        entry_of(ONE, PKTGEN, pktgen::sending(FLOWS, true, 1)),
        entry_of(STEERED, PKTGEN, pktgen::sending(FLOWS, true, 2)),
    ];
    bench.compare(&args.compare, &entries, ratios)
}

const CHIP: &str = "1Pipe's chip, message 64 B";
const FORWARD: &str = "forward, 64 B";
const P4CE: &str = "P4CE to one, WRITE 64 B";
const PKTGEN: &str = "pktgen, WRITE 64 B, sent and checked";
const SWORDBOX: &str = "Swordbox, CAS, a server each";

/// Table of a function, and the command that runs it with a configuration
type Function = fn(usize) -> (String, Vec<String>);

fn forwarding(_workers: usize) -> (String, Vec<String>) {
    ("[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = 0\n".into(), vec!["run".into()])
}

fn replicating(workers: usize) -> (String, Vec<String>) {
    let groups = FLOWS as usize * workers;
    let table = format!(
        "[p4ce]\nmac = \"{}\"\naddresses = [\"198.18.0.1/16\"]\ncounted_qps = 0\nsilent_after_ms = 0\ngroups = {groups}\n",
        p4ce::OWN
    );
    let flows = FLOWS.to_string();
    let command = ["bench", "p4ce-load", "--groups", &flows, "--replicas", "1"];
    (table, command.map(String::from).into())
}

fn sharing(workers: usize) -> (String, Vec<String>) {
    let mut command = load_command(CLIENTS_1024);
    command.extend(["--workers".into(), workers.to_string()]);
    (forwarding(workers).0, command)
}

/// Launches a chip with a capture for each port.
fn switching(captures: Vec<PathBuf>, ports: Ports, workers: usize) -> Launch {
    Box::new(move |bench, _, file_prefix| {
        let pairs: Vec<_> = (0..captures.len()).map(|port| format!("[\"p{port}\", \"p{port}\"]")).collect();
        let config = bench.runtime_of_ports(&captures, workers, &file_prefix)
            + &format!("[forward]\npairs = [{}]\ncounted_qps = 0\n", pairs.join(", "));
        let path = bench.dir.path().join("workers.toml");
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.args(onepipe::load_command(chip_load(ports))).arg(path);
        Ok(Program { command, file_prefix, thread_names: WORKERS })
    })
}

const fn chip_load(ports: Ports) -> Load {
    Load { kind: Kind::Messages, links: 4, ports, payload: PAYLOAD, standby: false }
}

fn entry(program: &str, traffic: &str, captures: Vec<PathBuf>, function: Function) -> Entry {
    let launch: Launch = Box::new(move |bench, _, file_prefix| {
        let workers = captures.len();
        let (table, arguments) = function(workers);
        let path = bench.dir.path().join("workers.toml");
        let config = bench.runtime_of_workers(&captures, &file_prefix) + &table;
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.args(arguments).arg(path);
        Ok(Program { command, file_prefix, thread_names: WORKERS })
    });
    entry_of(program, traffic, launch)
}

fn entry_of(program: &str, traffic: &str, launch: Launch) -> Entry {
    Entry {
        program: program.into(),
        traffic: traffic.into(),
        capture: PathBuf::new(),
        launch,
        help: "run `understudy doctor` to see what is missing",
        counts: CountedFrames::Sent,
        observer: None,
    }
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let ratio = |what: &str, value, at_least| Ratio { what: what.into(), value, at_least };
    let rates = figures.rate(STEERED, P4CE).zip(figures.rate(DISPATCHED, P4CE));
    // A frame takes one of two workers 2,000 ns, divided by the rate of both in million frames a second.
    let extra_ns = rates.map(|(steered, mixed)| 2.0 * (2_000.0 / mixed - 2_000.0 / steered));
    vec![
        ratio("forward: two workers, steered / one", figures.ratio(STEERED, ONE, FORWARD), 1.85),
        ratio("P4CE: two workers, steered / one", figures.ratio(STEERED, ONE, P4CE), 1.85),
        ratio(
            "Swordbox, two servers: two workers, steered / one",
            figures.ratio(STEERED, ONE, SWORDBOX),
            1.85,
        ),
        ratio("chip: two workers, same worker / one", figures.ratio(STEERED, ONE, CHIP), 1.85),
        ratio("chip: two workers, half handed over / one", figures.ratio(HANDED_OVER, ONE, CHIP), 1.5),
        ratio("pktgen: two workers, steered / one", figures.ratio(STEERED, ONE, PKTGEN), 1.85),
        ratio("P4CE: two workers, half dispatched / one", figures.ratio(DISPATCHED, ONE, P4CE), 1.7),
        ratio(
            "15 ns / additional time of a frame that is dispatched",
            extra_ns.map(|ns| DISPATCHED_NS / ns),
            1.0,
        ),
    ]
}

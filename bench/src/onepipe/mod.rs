//! `understudy bench onepipe`: the cost of barriers, compared with `dpdk-testpmd`.
//!
//! It measures messages through a switch that writes barriers into them (`chip`); beacons of 8 to 1,024 links
//! to a host that keeps a switch's barriers and sends each link a beacon when it has received one of every
//! link (input, minimum and output); and a process of the host library, which sends messages to itself
//! through a ring device and receives them. With `--simulated`, it measures delivery latency under packet
//! loss, and with `--hosts`, in large networks.

pub mod demo;
pub mod load;
pub mod simulated;

use crate::compare::{Bench, Capacity, CompareArgs, Entry, Figures, Launch, Ratio};
use crate::process::Program;
use crate::telemetry::CountedFrames;
use crate::traffic;
use clap::{Args, ValueEnum};
use load::{Kind, Load, Ports};
use miette::{IntoDiagnostic as _, Report, miette};
use representative::Counters;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const MACSWAP: &str = "testpmd macswap";
const FORWARD: &str = "understudy forward";
const CHIP: &str = "understudy onepipe, chip";
const HOST: &str = "understudy onepipe, host (beacons in)";

const PROCESS: &str = "understudy process (out and in)";
/// The paper's rate of a process, in million messages a second
const PROCESS_GOAL: f64 = 5.0;
/// Frames of a process besides messages: a beacon every `BEACON_EVERY_US` microseconds, and an ACK for every
/// `ACK_EVERY` packets
const BEACON_EVERY_US: f64 = 3.0;
const ACK_EVERY: u32 = 64;

/// Message sizes in bytes, without the 1Pipe header
const PAYLOADS: [usize; 2] = [64, 1024];
const LINKS: [u16; 5] = [8, 32, 128, 512, 1024];
/// Number of links that one core should serve, and the beacon interval in nanoseconds
const BEACON_GOALS: [(u16, f64); 2] = [(32, 1_000.0), (128, 3_000.0)];

/// Compare writing barriers into messages with dpdk-testpmd (macswap), and measure beacons of up to 1,024
/// links, on one core; or measure delivery latency under loss or in large networks (simulated)
#[derive(Args)]
pub struct OnePipeArgs {
    /// Run only the simulation: delivery latency on the paper's testbed under packet loss
    #[arg(long)]
    simulated: bool,
    /// With --simulated: fat trees of these numbers of hosts instead, 8 to 32768
    #[arg(long, requires = "simulated", value_delimiter = ',')]
    hosts: Vec<usize>,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Run the data plane on synthetic 1Pipe traffic (used by `bench onepipe` and `bench workers`)
#[derive(Args)]
pub struct LoadArgs {
    /// Configuration whose ports play the traffic's captures
    pub config: PathBuf,
    /// Kind of traffic
    #[arg(long)]
    kind: Kind,
    /// Number of links
    #[arg(long)]
    links: u16,
    /// Ports, and where messages leave
    #[arg(long, default_value = "one")]
    ports: Ports,
    /// Size of a message, in bytes
    #[arg(long)]
    payload: usize,
}

impl LoadArgs {
    /// Returns the traffic.
    pub const fn load(&self) -> Load {
        let Self { kind, links, ports, payload, config: _ } = *self;
        Load { kind, links, ports, payload, standby: false }
    }
}

const fn messages(payload: usize) -> Load {
    Load { kind: Kind::Messages, links: 1, ports: Ports::One, payload, standby: false }
}

const fn beacons(links: u16) -> Load {
    Load { kind: Kind::Beacons, links, ports: Ports::One, payload: 0, standby: false }
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
pub fn run(args: &OnePipeArgs, understudy: &Path) -> Result<(), Report> {
    if args.simulated {
        return simulated::run(&args.hosts, args.compare.json);
    }
    let bench = Bench::new(&args.compare, understudy)?;
    let mut entries = Vec::new();
    for load in PAYLOADS.map(messages) {
        let capture = capture(&bench, load)?;
        entries.push(entry(MACSWAP, load, &capture, macswap()));
        entries.push(entry(FORWARD, load, &capture, forwarding()));
        entries.push(entry(CHIP, load, &capture, playing(load)));
    }
    let load = messages(PAYLOADS[0]);
    entries.push(entry(PROCESS, load, &capture(&bench, load)?, process(PAYLOADS[0])));
    for load in LINKS.map(beacons) {
        let capture = capture(&bench, load)?;
        if BEACON_GOALS.iter().any(|&(links, _)| links == load.links) {
            entries.push(entry(FORWARD, load, &capture, forwarding()));
        }
        entries.push(Entry { counts: CountedFrames::Received, ..entry(HOST, load, &capture, playing(load)) });
    }
    bench.compare(&args.compare, &entries, ratios)
}

fn capture(bench: &Bench, load: Load) -> Result<PathBuf, Report> {
    let path = bench.dir.path().join(format!("{load}.pcap").replace(' ', "-"));
    traffic::write(&path, load.captures().remove(0).into_iter()).into_diagnostic()?;
    Ok(path)
}

fn entry(program: &str, load: Load, capture: &Path, launch: Launch) -> Entry {
    Entry {
        program: program.into(),
        traffic: load.to_string(),
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

/// Writes a configuration that reflects what its port plays.
fn reflecting(bench: &Bench, capture: &Path, file_prefix: &str) -> Result<PathBuf, Report> {
    let path = bench.dir.path().join("onepipe.toml");
    let config = bench.runtime(capture, file_prefix, 1500, Capacity::default())
        + "[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = 0\n";
    std::fs::write(&path, config).into_diagnostic()?;
    Ok(path)
}

fn forwarding() -> Launch {
    Box::new(|bench, capture, file_prefix| {
        let mut command = Command::new(&bench.understudy);
        command.arg("run").arg(reflecting(bench, capture, &file_prefix)?);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

fn playing(load: Load) -> Launch {
    Box::new(move |bench, capture, file_prefix| {
        let mut command = Command::new(&bench.understudy);
        command.args(load_command(load)).arg(reflecting(bench, capture, &file_prefix)?);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

/// Returns the command that runs the data plane on a load's traffic, without its configuration.
pub(crate) fn load_command(load: Load) -> Vec<String> {
    fn name(value: &impl ValueEnum) -> String {
        value.to_possible_value().expect("no value is skipped").get_name().into()
    }
    let mut command: Vec<_> = ["bench", "onepipe-load"].map(String::from).into();
    for (option, value) in [
        ("--kind", name(&load.kind)),
        ("--links", load.links.to_string()),
        ("--ports", name(&load.ports)),
        ("--payload", load.payload.to_string()),
    ] {
        command.extend([option.into(), value]);
    }
    command
}

/// Launches a process that receives all of its own messages: its only peer, and its switch, have its own
/// address.
fn process(payload: usize) -> Launch {
    Box::new(move |bench, _capture, file_prefix| {
        let path = bench.dir.path().join("process.toml");
        let own_endpoint = "mac = \"02:00:00:00:00:01\"\naddress = \"10.0.0.1\"\nqpn = 0x11\n";
        let config = format!(
            "[runtime]\nworkers = [{}]\nmemory_mb = 256\nfile_prefix = \"{file_prefix}\"\ntelemetry = true\n\
             [[port]]\nname = \"loop\"\nbuffers = 16383\nring = {{}}\n\
             [process]\nid = 1\nmac = \"02:00:00:00:00:01\"\naddress = \"10.0.0.1/24\"\n\
             ack_every = {ACK_EVERY}\nack_delay_us = 100\ntimeout_us = 1000000\n\
             [[process.beacons]]\n{own_endpoint}[[process.peers]]\nid = 2\n{own_endpoint}",
            bench.cpu
        );
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.arg("process").arg(path).args(["--to", "2", "--send", &u64::MAX.to_string()]);
        command.args(["--size", &payload.to_string()]);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

/// Returns the messages of a process that sends `mpps` million frames a second: the rest are beacons and
/// ACKs.
fn messages_of(mpps: f64) -> f64 {
    let acks = 1.0 / f64::from(ACK_EVERY);
    (mpps - 1.0 / BEACON_EVERY_US) / (1.0 + acks)
}

/// Checks that a run handled the traffic as intended.
///
/// # Errors
/// The difference from the intended behaviour.
pub fn check(load: &Load, counters: &[Arc<Counters>], frames: u64) -> Result<(), Report> {
    load.check(counters, frames).map_err(|what| miette!("invalid measurement of {load}: {what}"))
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let ratio = |what: String, value, at_least| Ratio { what, value, at_least };
    let mut all: Vec<_> = PAYLOADS
        .into_iter()
        .map(|payload| {
            let name = messages(payload).to_string();
            let value = figures.ratio(CHIP, MACSWAP, &name);
            ratio(format!("messages of {payload} B, chip / testpmd macswap"), value, 0.5)
        })
        .collect();
    let name = messages(PAYLOADS[0]).to_string();
    let process = figures.rate(PROCESS, &name).map(messages_of);
    let what = format!("million messages of {} B a second, sent and received by a process", PAYLOADS[0]);
    all.push(ratio(what, process, PROCESS_GOAL));
    let macswap_rate = figures.rate(MACSWAP, &name);
    let value = process.zip(macswap_rate).map(|(process, macswap_rate)| process / macswap_rate);
    all.push(ratio(
        format!("messages of {} B, sent and received by a process / testpmd macswap", PAYLOADS[0]),
        value,
        0.0,
    ));
    let total_ns =
        |program: &str, links| figures.rate(program, &beacons(links).to_string()).map(|mpps| 1_000.0 / mpps);
    for (links, interval_ns) in BEACON_GOALS {
        // Beacon interval, divided by the CPU time that one interval takes
        let interval_per_work = |ns: Option<f64>| ns.map(|ns| interval_ns / (ns * f64::from(links)));
        let name = format!(
            "beacons received and sent on {links} links: interval of {interval_ns} ns / CPU time per interval"
        );
        let own = figures.own_ns(HOST, &beacons(links).to_string());
        all.push(ratio(format!("{name}, function only"), interval_per_work(own), 1.0));
        all.push(ratio(format!("{name}, with the device"), interval_per_work(total_ns(HOST, links)), 0.0));
        let forward = total_ns(FORWARD, links);
        all.push(ratio(format!("ns per beacon that is only forwarded, {links} links"), forward, 0.0));
    }
    all.extend(LINKS.map(|links| {
        ratio(format!("ns per beacon received and sent, {links} links"), total_ns(HOST, links), 0.0)
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beacons_and_acks_do_not_count_as_messages() {
        // 64 messages and their ACK, three times in 3 us, and a beacon
        let frames = 3.0 * 65.0 + 1.0;
        let messages = messages_of(frames / BEACON_EVERY_US);
        assert!((messages - 3.0 * 64.0 / BEACON_EVERY_US).abs() < 1e-9, "{messages}");
    }
}

//! `understudy bench health`: the cost to a worker of observing the health of queue pairs.
//!
//! The same wire forwards the same connections, all of them counted, with and without observing their health.
//! Each connection sends WRITEs, which are acknowledged; their PSNs advance with each turn of the capture, so
//! that no packet is lost or retransmitted. Connections alternate in an order without a pattern.

use crate::compare::{Bench, Capacity, CompareArgs, Entry, Figures, Launch, Ratio};
use crate::process::Program;
use crate::telemetry::CountedFrames;
use crate::traffic;
use clap::Args;
use miette::{IntoDiagnostic as _, Report, miette};
use rocev2::rewrite::Rewriter;
use rocev2::{Bth, Class, Psn, Qpn, classify};
use std::path::{Path, PathBuf};
use std::process::Command;
use switch::forward::{Counters, Forward};
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// Counted queue pairs: the default number, and the number that fits into 16 bits
const QPS: [u32; 2] = [1_024, 65_536];
/// Fraction of the rate that has to remain
const MIN_RATE: f64 = 0.95;
/// Offset of the BTH in the frames
const BTH: usize = 42;

/// Measure the cost to a worker of observing the health of queue pairs
#[derive(Args)]
pub struct HealthArgs {
    #[command(flatten)]
    compare: CompareArgs,
}

/// Options of the load
#[derive(Args)]
pub struct LoadArgs {
    /// Configuration with `[forward]`
    pub config: PathBuf,
    /// Frames of the capture, all to different queue pairs
    #[arg(long)]
    pub frames: u64,
}

fn name(health: bool) -> &'static str {
    if health { "health observed" } else { "counted only" }
}

fn traffic_name(qps: u32) -> String {
    format!("{qps} queue pairs")
}

/// Returns a WRITE and its acknowledgement of each of `count` connections, in an order without pattern. `count`
/// is a power of two.
pub fn connections(count: u32, psn: u32) -> impl Iterator<Item = [Vec<u8>; 2]> {
    // The factor is odd, so that each connection occurs once.
    (0..count).map(move |n| n.wrapping_mul(40_503) % count).map(move |n| {
        let mut write = traffic::write_only(n, 64);
        set_psn(&mut write, Psn::new(psn));
        let (src, dst) = addresses(n);
        [write, traffic::acknowledge(dst, src, Qpn::new(0x100 + n), Psn::new(psn))]
    })
}

/// Returns the addresses of [`traffic::write_only`].
fn addresses(n: u32) -> ([u8; 4], [u8; 4]) {
    ([10, 0, (n >> 8) as u8, n as u8], [198, 18, 0, 1 + (n % 200) as u8])
}

fn set_psn(frame: &mut [u8], psn: Psn) {
    let Class::Roce(layout) = classify(frame) else { unreachable!("a well-formed RoCEv2 frame") };
    let mut rewriter = Rewriter::new(frame, layout);
    rewriter.set_psn(psn);
    rewriter.finish();
}

/// Runs the comparison and prints it. `understudy` is the path of the program itself.
///
/// # Errors
/// If a program cannot be run.
pub fn run(args: &HealthArgs, understudy: &Path) -> Result<(), Report> {
    let bench = Bench::new(&args.compare, understudy)?;
    let mut entries = Vec::new();
    for qps in QPS {
        let capture = bench.dir.path().join(format!("connections-{qps}.pcap"));
        traffic::write(&capture, connections(qps / 2, 0).flatten()).into_diagnostic()?;
        for health in [false, true] {
            entries.push(Entry {
                program: name(health).into(),
                traffic: traffic_name(qps),
                capture: capture.clone(),
                launch: observing(qps, health),
                help: "check that `understudy run` works without the benchmark",
                counts: CountedFrames::Sent,
                observer: None,
            });
        }
    }
    bench.compare(&args.compare, &entries, ratios)
}

fn observing(qps: u32, health: bool) -> Launch {
    Box::new(move |bench, capture, file_prefix| {
        let path = bench.dir.path().join("health.toml");
        let config = bench.runtime(capture, &file_prefix, 1500, Capacity::for_frames(qps as usize))
            + &format!("[forward]\npairs = [[\"loop\", \"loop\"]]\ncounted_qps = {qps}\nhealth = {health}\n");
        std::fs::write(&path, config).into_diagnostic()?;
        let mut command = Command::new(&bench.understudy);
        command.args(["bench", "health-load"]).arg(path).args(["--frames", &qps.to_string()]);
        Ok(Program { command, file_prefix, thread_names: &["worker-0"] })
    })
}

fn ratios(figures: &Figures) -> Vec<Ratio> {
    let ratio = |qps: u32| Ratio {
        what: format!("health observed / counted only, {qps} queue pairs"),
        value: figures.ratio(name(true), name(false), &traffic_name(qps)),
        at_least: MIN_RATE,
    };
    QPS.map(ratio).into()
}

/// A wire that gives each packet the PSN of its turn.
pub struct Advancing {
    forward: Forward,
    /// Frames of a turn, those left of this one, and its number
    frames: u64,
    left: u64,
    turn: u32,
}

impl Advancing {
    /// Returns a wire for a capture of `frames` frames.
    pub fn new(forward: Forward, frames: u64) -> Self {
        Self { forward, frames, left: frames, turn: 0 }
    }
}

impl Function for Advancing {
    type Command = switch::forward::Command;
    type Event = switch::forward::Event;

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        // One store, because the function reads the whole word next: a load cannot take its bytes from two stores.
        const WORD: usize = BTH + Bth::PSN_WORD;
        if let Some(word) = frame.bytes_mut().get_mut(WORD..).and_then(<[u8]>::first_chunk_mut::<4>) {
            *word = (u32::from_be_bytes(*word) & 0xff00_0000 | Psn::new(self.turn).get()).to_be_bytes();
        }
        self.left -= 1;
        if self.left == 0 {
            (self.left, self.turn) = (self.frames, self.turn + 1);
        }
        self.forward.on_frame(frame, port, now, out)
    }

    #[inline]
    fn prefetch_table(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.forward.prefetch_table(frame, fetch);
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.forward.prefetch_state(frame, fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.forward.on_timer(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.forward.next_timer()
    }

    fn on_command(&mut self, command: Self::Command, now: Nanos) {
        self.forward.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.forward.poll_event()
    }
}

/// Checks that a load has counted all packets, and found no fault.
///
/// # Errors
/// If that is not so.
pub fn check(counters: &Counters) -> Result<(), Report> {
    let faults: u64 = counters.health.iter().map(switch::forward::health::Health::faults).sum();
    let beyond = counters.qps.others.frames.get();
    if faults == 0 && beyond == 0 {
        Ok(())
    } else {
        Err(miette!("{faults} faults, and {beyond} packets to queue pairs beyond those counted"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use switch::forward::Config;
    use switch::forward::config::ForwardingMode;
    use switch::memory::run_frame;

    #[test]
    fn the_load_has_no_faults_and_measures_round_trips() {
        let mode = ForwardingMode::Pairs(vec![(PortId(0), PortId(0))]);
        let config = Config { mode, counted_qps: 64, health: true, ..Config::bridge(1, 1) };
        let forward = Forward::new(&config);
        let counters = forward.counters();
        let mut load = Advancing::new(forward, 64);
        let frames: Vec<_> = connections(32, 0).flatten().collect();
        assert_eq!(frames.iter().collect::<HashSet<_>>().len(), 64);
        for (n, frame) in frames.iter().cycle().take(64 * 400).enumerate() {
            // A round trip is begun every 10 us. 113 ns are 89 frames then, so that each of the 64 frames has its turn.
            run_frame(&mut load, frame, PortId(0), Nanos(n as u64 * 113));
        }
        check(&counters).unwrap();
        assert_eq!(counters.qps.iter().count(), 64);
        let samples = |qp: switch::forward::counters::QpCounter<'_>| {
            qp.health.is_some_and(|health| health.round_trips.samples.get() > 0)
        };
        assert!(counters.qps.iter().filter(|qp| samples(*qp)).count() > 16);
    }
}

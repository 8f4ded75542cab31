//! The forwarding function's control plane, and its part of the report.

use super::report::{OpcodeRow, PortRow, QpRow, ReasonRow, Report, WorkerRow};
use super::tunnel::TunnelStage;
use super::{EndConditions, random_u64};
use crate::observe::{FunctionMetrics, Port};
use core::net::IpAddr;
use dataplane::{Control, ControlOutput, Live, Mbuf, Outcome, Runtime, Stop};
use rocev2::{Fault, Opcode, Qpn};
use std::collections::HashMap;
use std::sync::Arc;
use switch::forward::{Command, Config, Counters, Event, Forward};
use switch::{DropReason, Function, PortId};

/// Distributes the MAC addresses that one worker has learned to all workers.
struct Bridge;

impl<F: Function<Command = Command, Event = Event>> Control<F> for Bridge {
    fn on_event(&mut self, worker: usize, event: Event, out: &mut ControlOutput<'_, F>) {
        let Event::Learned(mac, port) = event;
        for other in (0..out.workers()).filter(|&other| other != worker) {
            // A worker whose queue is full floods frames to this station until a frame of it is received
            // again, which loses nothing.
            _ = out.command(other, Command::Learn(mac, port));
        }
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, F>) -> bool {
        true
    }
}

pub(super) fn run(
    runtime: &mut Runtime,
    config: &Config,
    stage: &TunnelStage<'_>,
    workers: usize,
    until: EndConditions,
    stop: &Stop,
) -> Report {
    let functions: Vec<_> = (0..workers).map(|_| Forward::new(config).salted(random_u64())).collect();
    let counters: Vec<_> = functions.iter().map(Forward::counters).collect();
    let metrics = |_: &Bridge| FunctionMetrics::forwarded(&counters);
    let (outcome, seconds, tunnel) = stage.run_until(runtime, functions, &mut Bridge, metrics, until, stop);
    Report { tunnel, ..report(runtime, &outcome, &counters, config.counted_qps, seconds) }
}

/// Returns the report for any function that counts frames as forwarding does.
pub(super) fn report(
    runtime: &Runtime,
    outcome: &Outcome,
    counters: &[Arc<Counters>],
    counted_qps: usize,
    seconds: f64,
) -> Report {
    let sum = |count: &dyn Fn(&Counters) -> u64| counters.iter().map(|counters| count(counters)).sum::<u64>();
    let all_workers = |count: &dyn Fn(&dataplane::counters::WorkerCounters) -> u64| {
        outcome.workers.iter().map(|worker| count(worker)).sum::<u64>()
    };
    let ports = Port::all(runtime.ports(), &outcome.devices, &outcome.workers).enumerate();
    let ports = ports.map(|(index, port)| PortRow {
        port,
        roce_frames: sum(&|c| c.ports[index].roce.frames.get()),
        other_frames: sum(&|c| c.ports[index].other.frames.get()),
        malformed_frames: sum(&|c| c.ports[index].malformed.frames.get()),
    });
    let opcodes = (0..=255).filter_map(|value| {
        let frames = sum(&|c| c.opcodes[usize::from(value)].frames.get());
        let bytes = sum(&|c| c.opcodes[usize::from(value)].bytes.get());
        (frames > 0).then(|| OpcodeRow { opcode: value, name: Opcode(value).to_string(), frames, bytes })
    });
    let malformed = Fault::ALL.into_iter().filter_map(|fault| {
        let frames = sum(&|c| c.faults[fault as usize].get());
        (frames > 0).then(|| ReasonRow { reason: fault.name(), meaning: fault.to_string(), frames })
    });
    let drops = DropReason::all().filter_map(|reason| {
        let frames = all_workers(&|w| w.drops[reason.index()].get());
        (frames > 0).then(|| ReasonRow { reason: reason.name(), meaning: reason.explanation(), frames })
    });
    Report {
        seconds,
        tsc_hz: outcome.tsc_hz,
        ports: ports.collect(),
        opcodes: opcodes.collect(),
        malformed: malformed.collect(),
        drops: drops.collect(),
        qps: reported(counters),
        qps_beyond: (counted_qps > 0).then(|| sum(&|c| c.qps.others.frames.get())),
        workers: outcome
            .workers
            .iter()
            .enumerate()
            .map(|(index, worker)| WorkerRow::new(index, worker))
            .collect(),
        impair: None,
        p4ce: None,
        swordbox: None,
        onepipe: None,
        tunnel: None,
    }
}

/// Returns the queue pairs of all workers, unsorted: host, QPN, packets, bytes.
pub(crate) fn queue_pairs(counters: &[Arc<Counters>]) -> impl Iterator<Item = (IpAddr, Qpn, u64, u64)> {
    let (one, several) = match counters {
        [one] => (Some(one), HashMap::new()),
        several => (None, sums(several)),
    };
    let several = several.into_iter().map(|((host, qpn), (frames, bytes))| (host, qpn, frames, bytes));
    one.into_iter().flat_map(|one| one.qps.iter()).chain(several)
}

fn sums(counters: &[Arc<Counters>]) -> HashMap<(IpAddr, Qpn), (u64, u64)> {
    let mut sums = HashMap::new();
    for (host, qpn, frames, bytes) in counters.iter().flat_map(|counters| counters.qps.iter()) {
        let (f, b) = sums.entry((host, qpn)).or_insert((0, 0));
        *f += frames;
        *b += bytes;
    }
    sums
}

/// Returns the rows of the report, those with the most packets first.
fn reported(counters: &[Arc<Counters>]) -> Vec<QpRow> {
    let row = |(host, qpn, frames, bytes): (IpAddr, Qpn, _, _)| QpRow {
        dst: host.to_string(),
        qpn: qpn.get(),
        frames,
        bytes,
    };
    let mut rows: Vec<_> = queue_pairs(counters).map(row).collect();
    rows.sort_by(|a, b| b.frames.cmp(&a.frames).then_with(|| (&a.dst, a.qpn).cmp(&(&b.dst, b.qpn))));
    rows
}

//! Closing report of a function that also forwards frames: as tables for the terminal, as JSON for programs.

mod health;

use super::launch::ClosingReport;
use super::ports::Ports;
use crate::observe::{CountedQp, Port, Values, queue_pairs};
use crate::output::{row, section};
use dataplane::{Outcome, Runtime};
use rocev2::{Fault, Opcode};
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::Arc;
use switch::DropReason;
use switch::forward::Counters;

/// Queue pairs in the printed table; the JSON has all of them
const SHOWN_QPS: usize = 10;

/// Results of a function or of tunnels, as a part of the report.
pub(super) trait Section: Serialize {
    /// Key in the JSON
    const KEY: &'static str;

    /// Appends the results as text.
    fn text(&self, text: &mut String);
}

/// The closing report of a run. The serialised form is part of the program's interface: fields are added, not
/// renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Report {
    /// Length of the run in seconds
    pub(super) seconds: f64,
    /// TSC cycles per second
    pub(super) tsc_hz: u64,
    pub(super) ports: Vec<PortRow>,
    /// RoCEv2 packets by opcode
    pub(super) opcodes: Vec<OpcodeRow>,
    /// Malformed frames by fault, whether dropped or not
    pub(super) malformed: Vec<ReasonRow>,
    /// Dropped frames by reason
    pub(super) drops: Vec<ReasonRow>,
    /// RoCEv2 packets by destination queue pair, those with the most packets first
    pub(super) qps: Vec<QpRow>,
    /// Packets to queue pairs that have no counter of their own; null if packets are not counted by queue
    /// pair
    pub(super) qps_beyond: Option<u64>,
    /// Queue pairs whose packets several workers received, so that gaps are not known; null if their health is not
    /// observed
    pub(super) qps_split: Option<u64>,
    pub(super) workers: Vec<WorkerRow>,
    /// Results of the function and of tunnels in front of it, by name
    #[serde(flatten)]
    #[cfg_attr(test, schemars(skip))]
    sections: serde_json::Map<String, serde_json::Value>,
    /// What is worth knowing of the ports
    #[serde(skip)]
    port_notes: String,
    /// The same results as text
    #[serde(skip)]
    sections_text: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PortRow {
    #[serde(flatten)]
    pub(super) port: Port,
    /// Received frames, by kind
    #[serde(flatten)]
    #[cfg_attr(
        test,
        schemars(schema_with = "crate::reference::metrics::<switch::forward::counters::RxCounters>")
    )]
    pub(super) kinds: Values,
    /// Health of the RoCEv2 packets received, if it is observed
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<switch::forward::health::Health>"))]
    pub(super) health: Option<Values>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OpcodeRow {
    pub(super) opcode: u8,
    /// Name of the operation
    pub(super) name: String,
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ReasonRow {
    /// The reason as one word
    pub(super) reason: &'static str,
    #[serde(skip)]
    pub(super) meaning: String,
    pub(super) frames: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct QpRow {
    /// Address of the queue pair's host
    pub(crate) dst: String,
    pub(crate) qpn: u32,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    /// Health, if it is observed
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "health_schema"))]
    pub(super) health: Values,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct WorkerRow {
    /// Number of the worker, from 0
    worker: usize,
    /// Frames received
    rx_frames: u64,
    /// TSC cycles per frame, from the receive call to the send call, in iterations with frames
    cycles_per_frame: Option<f64>,
    /// Frames received in such an iteration
    frames_per_turn: Option<f64>,
    /// Frames handed off to the workers of their ports
    handed_off: u64,
    /// Frames dispatched to the workers that own what they belong to
    dispatched: u64,
    /// Frames handed to the control plane
    punted: u64,
}

impl WorkerRow {
    pub(super) fn new(worker: usize, counters: &dataplane::counters::WorkerCounters) -> Self {
        let rx_frames = counters.received();
        let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        Self {
            worker,
            rx_frames,
            cycles_per_frame: ratio(counters.busy_cycles.get(), counters.handled()),
            frames_per_turn: ratio(counters.handled(), counters.busy_turns.get()),
            handed_off: counters.handed_off.get(),
            dispatched: counters.dispatched.get(),
            punted: counters.punted.get(),
        }
    }
}

impl Report {
    /// Returns the report of any function that counts frames as forwarding does.
    pub(super) fn of(
        runtime: &Runtime,
        outcome: &Outcome,
        counters: &[Arc<Counters>],
        counted_qps: usize,
        seconds: f64,
    ) -> Self {
        let sum =
            |count: &dyn Fn(&Counters) -> u64| counters.iter().map(|counters| count(counters)).sum::<u64>();
        let all_workers = |count: &dyn Fn(&dataplane::counters::WorkerCounters) -> u64| {
            outcome.workers.iter().map(|worker| count(worker)).sum::<u64>()
        };
        let observed = counters.iter().all(|counters| !counters.health.is_empty());
        let Ports { rows, notes: port_notes } = Ports::of(runtime, outcome);
        let ports = rows.into_iter().enumerate().map(|(index, port)| PortRow {
            port,
            kinds: Values::total(counters.iter().map(|counters| &counters.ports[index])),
            health: observed.then(|| Values::total(counters.iter().map(|counters| &counters.health[index]))),
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
        Self {
            seconds,
            tsc_hz: outcome.tsc_hz,
            ports: ports.collect(),
            opcodes: opcodes.collect(),
            malformed: malformed.collect(),
            drops: drops.collect(),
            qps: queue_pair_rows(counters, observed),
            qps_split: observed.then(|| queue_pairs(counters).filter(|qp| qp.split).count() as u64),
            qps_beyond: (counted_qps > 0).then(|| sum(&|c| c.qps.others.frames.get())),
            workers: outcome
                .workers
                .iter()
                .enumerate()
                .map(|(index, worker)| WorkerRow::new(index, worker))
                .collect(),
            port_notes,
            sections: serde_json::Map::new(),
            sections_text: String::new(),
        }
    }

    /// Adds results of the function, after those of all functions and after sections added before.
    pub(super) fn with<S: Section>(mut self, section: &S) -> Self {
        let value = serde_json::to_value(section).expect("numbers and text always serialise");
        self.sections.insert(S::KEY.into(), value);
        section.text(&mut self.sections_text);
        self
    }
}

impl ClosingReport for Report {
    fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always serialise")
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let ports = self.ports.iter().map(|port| {
            let PortRow { port, kinds, .. } = port;
            let ((rx_frames, rx_bytes), (tx_frames, tx_bytes)) = (port.rx(), port.tx());
            let numbers = [vec![rx_frames, rx_bytes], kinds.numbers(), vec![tx_frames, tx_bytes]].concat();
            row(&[&port.name], &numbers)
        });
        section(
            &mut text,
            "Ports",
            &["port", "rx frames", "rx bytes", "RoCEv2", "other", "malformed", "tx frames", "tx bytes"],
            1,
            ports,
        );
        let opcodes = self
            .opcodes
            .iter()
            .map(|op| row(&[&format!("{:#04x}", op.opcode), &op.name], &[op.frames, op.bytes]));
        section(
            &mut text,
            "RoCEv2 packets by opcode",
            &["opcode", "operation", "frames", "bytes"],
            2,
            opcodes,
        );
        let qps = self
            .qps
            .iter()
            .take(SHOWN_QPS)
            .map(|qp| row(&[&qp.dst, &format!("{:#x}", qp.qpn)], &[qp.frames, qp.bytes]));
        section(
            &mut text,
            "RoCEv2 packets by destination queue pair",
            &["host", "QPN", "frames", "bytes"],
            2,
            qps,
        );
        health::text(self, &mut text);
        let mut notes = Vec::new();
        if self.qps.len() > SHOWN_QPS {
            notes.push(format!("queue pairs: {} more are in --json", self.qps.len() - SHOWN_QPS));
        }
        if let Some(beyond @ 1..) = self.qps_beyond {
            notes.push(format!(
                "queue pairs: {beyond} packets were for further queue pairs; raise `counted_qps` to count them"
            ));
        }
        let dropped =
            |reason| self.drops.iter().find(|drop| drop.reason == reason).map_or(0, |drop| drop.frames);
        let malformed =
            self.malformed.iter().map(|r| row(&[r.reason, &r.meaning], &[r.frames, dropped(r.reason)]));
        section(&mut text, "Malformed frames", &["reason", "meaning", "frames", "dropped"], 2, malformed);
        let others = self.drops.iter().filter(|drop| self.malformed.iter().all(|m| m.reason != drop.reason));
        let others = others.map(|r| row(&[r.reason, &r.meaning], &[r.frames]));
        section(&mut text, "Other dropped frames", &["reason", "meaning", "frames"], 2, others);
        text += &self.sections_text;
        for note in notes {
            _ = writeln!(text, "{note}");
        }
        text += &self.port_notes;
        for worker in &self.workers {
            _ = write!(text, "worker {}: {} frames", worker.worker, worker.rx_frames);
            if let (Some(cycles), Some(frames)) = (worker.cycles_per_frame, worker.frames_per_turn) {
                _ = write!(text, ", {cycles:.0} cycles per frame, {frames:.1} frames per turn");
            }
            if worker.handed_off > 0 {
                _ = write!(text, ", {} handed off to the workers of their ports", worker.handed_off);
            }
            if worker.dispatched > 0 {
                _ = write!(text, ", {} dispatched to the workers that own their groups", worker.dispatched);
            }
            text.push('\n');
        }
        let dropped: u64 = self.drops.iter().map(|r| r.frames).sum();
        let sum = |count: fn(&Port) -> u64| self.ports.iter().map(|row| count(&row.port)).sum::<u64>();
        let (received, sent) = (sum(|port| port.rx().0), sum(|port| port.tx().0));
        let lost = sum(|port| port.missed() + port.errors() + port.kernel_drops());
        let lost = if lost > 0 { format!("{lost} lost at ports, ") } else { String::new() };
        _ = write!(
            text,
            "{received} frames in, {sent} out, {dropped} dropped, {lost}in {:.2} s",
            self.seconds
        );
        text
    }
}

#[cfg(test)]
fn health_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    crate::reference::other_metrics::<switch::forward::counters::QpCounter<'_>>(&["frames", "bytes"])
}

/// Returns the rows of the report, those with the most packets first.
fn queue_pair_rows(counters: &[Arc<Counters>], observed: bool) -> Vec<QpRow> {
    let row = |qp: CountedQp<'_>| QpRow {
        dst: qp.host.to_string(),
        qpn: qp.qpn.get(),
        frames: qp.frames,
        bytes: qp.bytes,
        // Frames and bytes are the first two.
        health: if observed { qp.values().without_first(2) } else { Values::default() },
    };
    let mut rows: Vec<_> = queue_pairs(counters).map(row).collect();
    rows.sort_by(|a, b| b.frames.cmp(&a.frames).then_with(|| (&a.dst, a.qpn).cmp(&(&b.dst, b.qpn))));
    rows
}

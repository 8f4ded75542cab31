//! Closing report of a run: as tables for the terminal, as JSON for programs.

use super::onepipe::OnePipeReport;
use super::tunnel::TunnelReport;
use crate::observe::{FunctionMetrics, Port, Row as ObservedRow, Table as ObservedTable};
use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Queue pairs in the printed table; the JSON has all of them
const SHOWN_QPS: usize = 10;

/// The closing report of a run. The serialised form is part of the program's interface: fields are added, not
/// renamed.
#[derive(Serialize)]
pub(super) struct Report {
    /// Length of the run in seconds
    pub(super) seconds: f64,
    /// TSC cycles per second
    pub(super) tsc_hz: u64,
    pub(super) ports: Vec<PortRow>,
    pub(super) opcodes: Vec<OpcodeRow>,
    /// Malformed frames by fault, whether dropped or not
    pub(super) malformed: Vec<ReasonRow>,
    pub(super) drops: Vec<ReasonRow>,
    pub(super) qps: Vec<QpRow>,
    /// Packets to queue pairs that have no counter of their own; null if packets are not counted by queue
    /// pair
    pub(super) qps_beyond: Option<u64>,
    pub(super) workers: Vec<WorkerRow>,
    /// Results of the impairing function; omitted by other functions
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impair: Option<ImpairReport>,
    /// Results of P4CE; omitted by other functions
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p4ce: Option<P4ceReport>,
    /// Results of Swordbox; omitted by other functions
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) swordbox: Option<SwordboxReport>,
    /// Results of 1Pipe; omitted by other functions
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) onepipe: Option<OnePipeReport>,
    /// Tunnels that end at this instance; omitted if there are none
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tunnel: Option<TunnelReport>,
}

/// Connections of memory servers, and results of their operations.
#[derive(Serialize)]
pub(super) struct SwordboxReport {
    /// Layers that were on at the end
    pub(super) layers: String,
    /// Counters by name
    #[serde(flatten)]
    pub(super) counters: serde_json::Map<String, serde_json::Value>,
    /// Connections that could not be written to the journal
    pub(super) unwritten: u64,
    /// Table entries in use at the end
    pub(super) usage: BTreeMap<&'static str, u64>,
    /// Memory of full tables, in bytes
    pub(super) memory_bytes: BTreeMap<&'static str, usize>,
}

impl SwordboxReport {
    fn text(&self, text: &mut String) {
        let counted = self.counters.iter().filter_map(|(name, count)| Some((name, count.as_u64()?)));
        let counted = counted.filter(|(_, count)| *count > 0).map(|(name, count)| row(&[name], &[count]));
        section(text, "Swordbox", &["what", "count"], 1, counted);
        let used = |what| self.usage.get(what).copied().unwrap_or(0);
        _ = writeln!(
            text,
            "Layers: {}. At the end: {} connections, {} of them shared; {} lines with tracked words; {} held frames",
            self.layers,
            used("connections"),
            used("lanes"),
            used("lines"),
            used("held")
        );
        if self.unwritten > 0 {
            _ = writeln!(text, "{} connections could not be written to the journal", self.unwritten);
        }
    }
}

/// Groups of P4CE, and their packets.
#[derive(Serialize)]
pub(super) struct P4ceReport {
    /// Groups that leaders requested, and those opened, refused and closed
    pub(super) requested: u64,
    pub(super) opened: u64,
    pub(super) refused: u64,
    /// Groups refused because the leader may not open groups, or not as many
    pub(super) limited: u64,
    pub(super) closed: u64,
    /// Replicas excluded from groups that continued without them
    pub(super) excluded: u64,
    /// Requests of leaders that were sent to replicas, and their copies
    pub(super) requests: u64,
    pub(super) copies: u64,
    /// Responses of replicas
    pub(super) responses: u64,
    /// Responses sent to leaders
    pub(super) acks: u64,
    pub(super) naks: u64,
    pub(super) rnr_naks: u64,
    pub(super) fatal_naks: u64,
    pub(super) repeated: u64,
    pub(super) cnps: u64,
    /// Leaders and replicas that moved to another port
    pub(super) moved: u64,
    /// Groups that existed when the run ended
    pub(super) groups: Vec<GroupRow>,
}

#[derive(Serialize)]
pub(super) struct GroupRow {
    pub(super) group: u32,
    pub(super) leader: String,
    pub(super) replicas: Vec<String>,
    pub(super) excluded: Vec<String>,
    pub(super) quorum: usize,
    pub(super) open: bool,
}

impl P4ceReport {
    fn text(&self, text: &mut String) {
        _ = writeln!(
            text,
            "Groups: {} requested, {} opened, {} refused, {} closed; {} replicas excluded",
            self.requested, self.opened, self.refused, self.closed, self.excluded
        );
        _ = writeln!(
            text,
            "{} requests of leaders were copied to {}; {} responses were gathered into {} ACKs, {} NAKs, {} RNR NAKs, {} fatal NAKs",
            self.requests, self.copies, self.responses, self.acks, self.naks, self.rnr_naks, self.fatal_naks
        );
        for group in &self.groups {
            let state = if group.open { "" } else { ", not open yet" };
            let excluded = if group.excluded.is_empty() {
                String::new()
            } else {
                format!(", without {}", group.excluded.join(", "))
            };
            _ = writeln!(
                text,
                "Group {}: {} to {}, quorum {}{excluded}{state}",
                group.group,
                group.leader,
                group.replicas.join(", "),
                group.quorum
            );
        }
    }
}

/// Results of rules, and counts of held frames.
#[derive(Serialize)]
pub(super) struct ImpairReport {
    pub(super) rules: Vec<RuleRow>,
    /// Frames held back
    pub(super) held: u64,
    /// Frames still held when the run ended
    pub(super) held_at_end: u64,
    /// Largest number of frames that one worker held at once
    pub(super) held_peak: u64,
    /// Frames that were to be held but were sent at once because no slot was free
    pub(super) held_full: u64,
    /// Packets of flows whose first PSN could not be stored
    pub(super) flows_full: u64,
}

#[derive(Serialize)]
pub(super) struct RuleRow {
    pub(super) name: String,
    pub(super) action: &'static str,
    pub(super) matched: u64,
    pub(super) acted: u64,
    pub(super) unable: u64,
}

impl ImpairReport {
    /// Adds the function's metrics to `metrics`, for observation.
    pub(super) fn add_metrics(self, metrics: FunctionMetrics) -> FunctionMetrics {
        let rules = self.rules.iter().map(|rule| {
            ObservedRow::new([&*rule.name, rule.action], [rule.matched, rule.acted, rule.unable])
        });
        metrics
            .counters([("held", self.held), ("held_full", self.held_full), ("flows_full", self.flows_full)])
            .gauges([("held_now", self.held_at_end), ("held_peak", self.held_peak)])
            .first(ObservedTable::new("rule", &["rule", "action"], 1, &["matched", "acted", "unable"], rules))
    }

    fn text(&self, text: &mut String) {
        let rules = self
            .rules
            .iter()
            .map(|rule| row(&[&rule.name, rule.action], &[rule.matched, rule.acted, rule.unable]));
        section(text, "Rules", &["rule", "action", "matched", "acted", "unable"], 2, rules);
        if self.held > 0 {
            let Self { held, held_peak, held_at_end, .. } = self;
            _ = write!(text, "{held} frames were held back, up to {held_peak} at once");
            if *held_at_end > 0 {
                _ = write!(text, "; {held_at_end} were still held when the run ended, and are lost");
            }
            text.push('\n');
        }
        for (count, what) in [
            (self.held_full, "frames were not held back because no slot was free; raise `held`"),
            (self.flows_full, "packets were of flows that could not be stored; raise `flows`"),
        ] {
            if count > 0 {
                _ = writeln!(text, "{count} {what}");
            }
        }
    }
}

#[derive(Serialize)]
pub(super) struct PortRow {
    #[serde(flatten)]
    pub(super) port: Port,
    /// Received frames, by kind
    pub(super) roce_frames: u64,
    pub(super) other_frames: u64,
    pub(super) malformed_frames: u64,
}

#[derive(Serialize)]
pub(super) struct OpcodeRow {
    pub(super) opcode: u8,
    pub(super) name: String,
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

#[derive(Serialize)]
pub(super) struct ReasonRow {
    pub(super) reason: &'static str,
    #[serde(skip)]
    pub(super) meaning: String,
    pub(super) frames: u64,
}

#[derive(Serialize)]
pub(crate) struct QpRow {
    pub(crate) dst: String,
    pub(crate) qpn: u32,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

#[derive(Serialize)]
pub(super) struct WorkerRow {
    worker: usize,
    rx_frames: u64,
    /// TSC cycles per frame, from the receive call to the send call, in iterations with frames
    cycles_per_frame: Option<f64>,
    /// Frames received in such an iteration
    frames_per_turn: Option<f64>,
    handed_off: u64,
    punted: u64,
}

impl WorkerRow {
    pub(super) fn new(worker: usize, counters: &dataplane::counters::WorkerCounters) -> Self {
        let rx_frames = counters.received();
        let ratio = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        Self {
            worker,
            rx_frames,
            cycles_per_frame: ratio(counters.busy_cycles.get(), rx_frames),
            frames_per_turn: ratio(rx_frames, counters.busy_turns.get()),
            handed_off: counters.handed_off.get(),
            punted: counters.punted.get(),
        }
    }
}

impl Report {
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always serialise")
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let ports = self.ports.iter().map(|port| {
            let PortRow { port, roce_frames, other_frames, malformed_frames } = port;
            let Port { name, rx_frames, rx_bytes, tx_frames, tx_bytes, .. } = port;
            let numbers =
                [rx_frames, rx_bytes, roce_frames, other_frames, malformed_frames, tx_frames, tx_bytes];
            row(&[name], &numbers.map(|&n| n))
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
        if let Some(impair) = &self.impair {
            impair.text(&mut text);
        }
        if let Some(p4ce) = &self.p4ce {
            p4ce.text(&mut text);
        }
        if let Some(swordbox) = &self.swordbox {
            swordbox.text(&mut text);
        }
        if let Some(onepipe) = &self.onepipe {
            onepipe.text(&mut text);
        }
        if let Some(tunnel) = &self.tunnel {
            tunnel.text(&mut text);
        }
        for note in notes {
            _ = writeln!(text, "{note}");
        }
        for PortRow { port, .. } in &self.ports {
            for (count, what) in [
                (port.missed, "frames were lost before a worker received them"),
                (port.rx_errors, "frames were received with an error"),
                (port.no_buffer, "times no packet buffer was free; raise `buffers`"),
                (port.tx_errors, "frames could not be sent by the device"),
            ] {
                if count > 0 {
                    _ = writeln!(text, "port {}: {count} {what}", port.name);
                }
            }
        }
        for worker in &self.workers {
            _ = write!(text, "worker {}: {} frames", worker.worker, worker.rx_frames);
            if let (Some(cycles), Some(frames)) = (worker.cycles_per_frame, worker.frames_per_turn) {
                _ = write!(text, ", {cycles:.0} cycles per frame, {frames:.1} frames per turn");
            }
            if worker.handed_off > 0 {
                _ = write!(text, ", {} handed to other workers", worker.handed_off);
            }
            text.push('\n');
        }
        let dropped: u64 = self.drops.iter().map(|r| r.frames).sum();
        let sum = |count: fn(&Port) -> u64| self.ports.iter().map(|row| count(&row.port)).sum::<u64>();
        let (received, sent) = (sum(|port| port.rx_frames), sum(|port| port.tx_frames));
        _ = write!(text, "{received} frames in, {sent} out, {dropped} dropped, in {:.2} s", self.seconds);
        text
    }
}

pub(crate) fn row(words: &[&str], numbers: &[u64]) -> Vec<Cell> {
    let words = words.iter().map(Cell::new);
    let numbers = numbers.iter().map(|n| Cell::new(n).set_alignment(CellAlignment::Right));
    words.chain(numbers).collect()
}

/// Appends a titled table, in which the first `words` columns are left-aligned and the others right-aligned.
/// Appends nothing if there are no rows.
pub(crate) fn section(
    text: &mut String,
    title: &str,
    columns: &[&str],
    words: usize,
    rows: impl IntoIterator<Item = Vec<Cell>>,
) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(columns.iter().enumerate().map(|(at, name)| {
        let alignment = if at < words { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(name).set_alignment(alignment)
    }));
    table.add_rows(rows);
    if table.is_empty() {
        return;
    }
    _ = writeln!(text, "{title}");
    for line in table.lines() {
        _ = writeln!(text, " {}", line.trim_end());
    }
    text.push('\n');
}

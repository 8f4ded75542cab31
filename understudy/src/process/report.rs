//! Report of a 1Pipe process.

use super::reliable::{ReliableReport, ReliableStats};
use super::{Counts, FAILURES, Position, list};
use crate::observe::Values;
use onepipe_host::{Endpoint, Failure, ProcessId, Refusal, Timestamp};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Counts of received and failed messages.
#[derive(Default)]
pub(super) struct ReceiveStats {
    pub(super) received: u64,
    bytes: u64,
    by_sender: BTreeMap<u32, u64>,
    last: Option<Position>,
    /// Messages that precede one received before them, which violates the total order
    pub(super) out_of_order: u64,
    failed: Counts,
    /// Whether the report has the reliable service
    has_reliable: bool,
    pub(super) reliable: ReliableStats,
}

impl ReceiveStats {
    pub(super) fn new(has_reliable: bool) -> Self {
        Self { has_reliable, ..Self::default() }
    }

    pub(super) fn record(&mut self, timestamp: Timestamp, src: ProcessId, len: usize) {
        self.received += 1;
        self.bytes += len as u64;
        *self.by_sender.entry(src.0).or_default() += 1;
        let position = (timestamp, src);
        let in_order = self
            .last
            .is_none_or(|(time, src)| time.precedes(position.0) || time == position.0 && src <= position.1);
        self.out_of_order += u64::from(!in_order);
        self.last = Some(position);
    }

    /// Counts a failure and returns its name.
    pub(super) fn record_failure(&mut self, why: Failure) -> &'static str {
        let name = FAILURES.iter().find(|(failure, _)| *failure == why).map_or("other", |(_, name)| name);
        *self.failed.entry(name).or_default() += 1;
        name
    }

    /// Returns the report as JSON.
    pub(super) fn json(&self, endpoint: &Endpoint, scatterings: u64, seconds: f64) -> String {
        let (barrier, commit) = endpoint.barriers();
        let report = ProcessReport {
            seconds,
            process: endpoint.handle().id().0,
            scatterings,
            received: self.received,
            received_bytes: self.bytes,
            received_by_sender: &self.by_sender,
            out_of_order: self.out_of_order,
            failed: &self.failed,
            clock_ns: endpoint.timestamp().nanos(),
            barrier_ns: barrier.map(Timestamp::nanos),
            commit_ns: commit.map(Timestamp::nanos),
            counters: counters(endpoint),
            refused: refused(endpoint),
            reliable: self.has_reliable.then(|| self.reliable.json(endpoint.handle())),
        };
        serde_json::to_string(&report).expect("numbers and text always serialise")
    }

    pub(super) fn text(&self, endpoint: &Endpoint, scatterings: u64, seconds: f64) -> String {
        let mut text = format!(
            "{scatterings} scatterings sent, {} messages received ({} bytes) in {seconds:.2} s, {} out of order\n",
            self.received, self.bytes, self.out_of_order
        );
        // Writing to a string does not fail.
        for (sender, count) in &self.by_sender {
            _ = writeln!(text, "from process {sender}: {count}");
        }
        for (what, counts) in
            [("failed", &self.failed), ("counted", &counters(endpoint)), ("refused", &refused(endpoint))]
        {
            if !counts.is_empty() {
                _ = writeln!(text, "{what}: {}", list(counts));
            }
        }
        if self.has_reliable {
            self.reliable.text(endpoint.handle(), &mut text);
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// The report as JSON, and a line of `--live`. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProcessReport<'a> {
    /// Time since the start
    seconds: f64,
    /// Number of this process
    process: u32,
    /// Scatterings sent
    scatterings: u64,
    /// Messages received
    received: u64,
    received_bytes: u64,
    /// Messages received, by the number of the sender
    received_by_sender: &'a BTreeMap<u32, u64>,
    /// Messages received that precede one received before them, which violates the order
    out_of_order: u64,
    /// Messages that were not delivered, by reason
    failed: &'a Counts,
    /// Time of this process, in 1Pipe's time
    clock_ns: u64,
    /// Best-effort barrier, in 1Pipe's time; null if there is none yet
    barrier_ns: Option<u64>,
    /// Commit barrier, in 1Pipe's time; null if there is none yet
    commit_ns: Option<u64>,
    /// Counters that are not zero, by name
    counters: Counts,
    /// Packets that were not accepted, by reason
    refused: Counts,
    /// The reliable service; missing without `[controller]`
    #[serde(skip_serializing_if = "Option::is_none")]
    reliable: Option<ReliableReport>,
}

/// Returns the counters that are not zero.
fn counters(endpoint: &Endpoint) -> Counts {
    Values::of(endpoint.counters()).nonzero().collect()
}

/// Returns the counts of refused packets, by reason, that are not zero.
fn refused(endpoint: &Endpoint) -> Counts {
    let c = endpoint.counters();
    let all = Refusal::ALL.into_iter().map(|why| (why.name(), c.refused(why)));
    all.filter(|(_, count)| *count > 0).collect()
}

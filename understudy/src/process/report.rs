//! Report of a 1Pipe process.

use super::reliable::ReliableStats;
use super::{Counts, FAILURES, Position, list};
use crate::observe::Values;
use onepipe_host::{Endpoint, Failure, ProcessId, Refusal, Timestamp};
use serde_json::{Value, json};
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

    /// Returns the report as JSON. Fields are added, not renamed.
    pub(super) fn json(&self, endpoint: &Endpoint, scatterings: u64, seconds: f64) -> Value {
        let (barrier, commit) = endpoint.barriers();
        let mut report = json!({
            "seconds": seconds,
            "process": endpoint.handle().id().0,
            "scatterings": scatterings,
            "received": self.received,
            "received_bytes": self.bytes,
            "received_by_sender": self.by_sender,
            "out_of_order": self.out_of_order,
            "failed": self.failed,
            "clock_ns": endpoint.timestamp().nanos(),
            "barrier_ns": barrier.map(Timestamp::nanos),
            "commit_ns": commit.map(Timestamp::nanos),
            "counters": counters(endpoint),
            "refused": refused(endpoint),
        });
        if self.has_reliable {
            report["reliable"] = self.reliable.json(endpoint.handle());
        }
        report
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

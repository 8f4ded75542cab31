//! What the impairing function counts.

use crate::counters::Counter;
use crate::forward;
use std::sync::Arc;

/// Counters of one instance: written by its worker, read by anyone.
#[derive(Debug)]
pub struct Counters {
    /// What came in, as [`Forward`](crate::forward::Forward) counts it
    pub seen: Arc<forward::Counters>,
    /// By rule, in their order
    pub rules: Box<[RuleCounters]>,
    /// Frames held back
    pub held: Counter,
    /// Of these, those sent since
    pub released: Counter,
    /// Most frames held back at once
    pub held_peak: Counter,
    /// Frames that were to be held back and passed at once, because there was no place to hold one more
    pub held_full: Counter,
    /// Packets of flows whose first PSN there was no place to remember: no rule with an offset matches them
    pub flows_full: Counter,
}

/// What became of a rule.
#[derive(Debug, Default)]
pub struct RuleCounters {
    /// Packets that it is for
    pub matched: Counter,
    /// Packets that it acted on
    pub acted: Counter,
    /// Packets that it was to act on and could not: no place to hold one, no buffer for a copy, no payload to corrupt, not
    /// ECN capable or marked already
    pub unable: Counter,
}

impl Counters {
    pub(super) fn new(rules: usize, seen: Arc<forward::Counters>) -> Self {
        Self {
            seen,
            rules: (0..rules).map(|_| RuleCounters::default()).collect(),
            held: Counter::default(),
            released: Counter::default(),
            held_peak: Counter::default(),
            held_full: Counter::default(),
            flows_full: Counter::default(),
        }
    }

    /// Frames held back now.
    pub fn held_now(&self) -> u64 {
        // Whoever reads while the worker writes may see the second number newer than the first.
        self.held.get().saturating_sub(self.released.get())
    }

    pub(super) fn count_held(&self) {
        self.held.add(1);
        let now = self.held_now();
        self.held_peak.add(now.saturating_sub(self.held_peak.get()));
    }
}

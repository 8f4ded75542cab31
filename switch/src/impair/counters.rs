//! Counters of the impairing function.

use crate::counters::Counter;
use crate::forward;
use std::sync::Arc;

/// Counters of one instance: written by its worker, read by any thread.
#[derive(Debug)]
pub struct Counters {
    /// Received frames, as [`Forward`](crate::forward::Forward) counts them
    pub forward: Arc<forward::Counters>,
    /// Counters of the rules, in their order
    pub rules: Box<[RuleCounters]>,
    /// Frames that were held back
    pub held: Counter,
    /// Held frames that have been sent since
    pub released: Counter,
    /// Maximum count of frames held back at one time
    pub held_peak: Counter,
    /// Frames that should have been held back but were forwarded, because no slot was free
    pub held_full: Counter,
    /// Packets of flows whose first PSN could not be stored, which no rule with an offset matches
    pub flows_full: Counter,
}

/// Counters of one rule.
#[derive(Debug, Default)]
pub struct RuleCounters {
    /// Packets that matched
    pub matched: Counter,
    /// Packets on which the rule acted
    pub acted: Counter,
    /// Packets on which the rule should have acted but could not: no slot to hold one, no buffer for a copy,
    /// no payload to corrupt, not ECN-capable, or marked already
    pub unable: Counter,
}

impl Counters {
    pub(super) fn new(rules: usize, forward: Arc<forward::Counters>) -> Self {
        Self {
            forward,
            rules: (0..rules).map(|_| RuleCounters::default()).collect(),
            held: Counter::default(),
            released: Counter::default(),
            held_peak: Counter::default(),
            held_full: Counter::default(),
            flows_full: Counter::default(),
        }
    }

    /// Returns the count of frames that are held back now.
    pub fn held_now(&self) -> u64 {
        // A concurrent reader may see `released` newer than `held`.
        self.held.get().saturating_sub(self.released.get())
    }

    pub(super) fn count_held(&self) {
        self.held.add(1);
        let now = self.held_now();
        self.held_peak.add(now.saturating_sub(self.held_peak.get()));
    }
}

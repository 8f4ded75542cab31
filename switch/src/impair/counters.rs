//! Counters of the impairing function.

use crate::counters::{Counter, Maximum};
use crate::forward;
use crate::metrics;
use std::sync::Arc;

metrics! {
    /// Counters of one instance: written by its worker, read by any thread.
    #[derive(Debug)]
    pub struct Counters {
        /// Received frames, as [`Forward`](crate::forward::Forward) counts them
        pub forward: Arc<forward::Counters>,
        /// Frames that were held back
        pub held: Counter [frames],
        /// Held frames that have been sent since
        pub released: Counter,
        /// Maximum count of frames held back at one time
        pub held_peak: Maximum [frames],
        /// Frames that should have been held back but were forwarded, because no slot was free; raise
        /// `held`
        pub held_full: Counter [frames],
        /// Packets of flows whose first PSN could not be stored, which no rule with an offset matches; raise
        /// `flows`
        pub flows_full: Counter [packets],
    }
    also {
        /// Frames that are held back now; those that are still held when the run ends are lost
        Gauge held_now [frames as held_at_end / held_now] = Self::held_now,
    }
}

metrics! {
    /// Counters of one rule, which a worker has in a cache line of their own.
    #[derive(Debug, Default)]
    #[repr(align(64))]
    pub struct RuleCounters of rule by [rule] with [action] {
        /// Packets that matched
        pub matched: Counter [packets],
        /// Packets on which the rule acted
        pub acted: Counter [packets],
        /// Packets on which the rule should have acted but could not: no slot to hold one, no buffer for a
        /// copy, no payload to corrupt, not ECN-capable, or marked already
        pub unable: Counter [packets],
    }
}

metrics! {
    /// Counts of all removed rules with the same action.
    #[derive(Debug, Default)]
    pub struct RemovedCounters of removed_rule by [action] {
        /// Packets that matched
        pub matched: u64 [packets as matched / _],
        /// Packets on which the rules acted
        pub acted: u64 [packets as acted / _],
        /// Packets on which the rules could not act
        pub unable: u64 [packets as unable / _],
    }
}

impl Counters {
    pub(super) fn new(forward: Arc<forward::Counters>) -> Self {
        Self {
            forward,
            held: Counter::default(),
            released: Counter::default(),
            held_peak: Maximum::default(),
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
        self.held_peak.raise(self.held_now());
    }
}

//! Work and cost of a leader, counted separately for each replication path.

use hdrhistogram::Histogram;
use switch::Nanos;

/// Precision of latency histograms: two significant digits (1 %), up to one minute
const DIGITS: u8 = 2;
const MAX_LATENCY_NS: u64 = 60_000_000_000;

/// Path by which the leader replicates its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicationPath {
    /// The leader writes to each follower.
    Direct,
    /// The leader writes once, to the switch, which scatters the write.
    Switch,
}

/// Counters of the time during which one replication path was used.
#[derive(Clone, Debug)]
pub(crate) struct PathStats {
    /// Time during which the server led on this path
    pub(crate) time: Nanos,
    /// Values that this leader proposed and that were decided, and their bytes
    pub(crate) decided: u64,
    pub(crate) bytes: u64,
    /// All packets that the NIC sent and received in that time
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Time from proposal to decision, in ns
    pub(crate) latency: Histogram<u64>,
}

impl Default for PathStats {
    fn default() -> Self {
        let latency = Histogram::new_with_bounds(1, MAX_LATENCY_NS, DIGITS)
            .expect("the bounds and the precision are valid");
        Self { time: Nanos::ZERO, decided: 0, bytes: 0, sent: 0, received: 0, latency }
    }
}

impl PathStats {
    /// Counts a decided value of `len` bytes.
    pub(super) fn decided(&mut self, len: usize, latency: Nanos) {
        self.decided += 1;
        self.bytes += len as u64;
        self.latency.saturating_record(latency.0.max(1));
    }

    /// Copies `other` without allocating.
    pub(super) fn copy_from(&mut self, other: &Self) {
        (self.time, self.decided, self.bytes) = (other.time, other.decided, other.bytes);
        (self.sent, self.received) = (other.sent, other.received);
        self.latency.reset();
        self.latency.add(&other.latency).expect("all histograms have the same bounds");
    }

    /// Returns what was added since `before`, an earlier copy of this account.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut latency = self.latency.clone();
        latency.subtract(&before.latency).expect("counts only grow");
        Self {
            time: Nanos(self.time.0 - before.time.0),
            decided: self.decided - before.decided,
            bytes: self.bytes - before.bytes,
            sent: self.sent - before.sent,
            received: self.received - before.received,
            latency,
        }
    }
}

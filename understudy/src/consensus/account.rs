//! What a leader did and what it cost, counted by the way that its values took.

use hdrhistogram::Histogram;
use switch::Nanos;

/// Latencies are told apart by 1 %, up to a minute.
const DIGITS: u8 = 2;
const LONGEST_NS: u64 = 60_000_000_000;

/// How values come to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The leader writes to each.
    Direct,
    /// The leader writes once, to the switch.
    Switch,
}

/// What was done on one way.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// For how long it led so
    pub(crate) time: Nanos,
    /// Values that it proposed and that are decided, and their bytes
    pub(crate) decided: u64,
    pub(crate) bytes: u64,
    /// Packets of its NIC, all of them
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// From proposed to decided, in ns
    pub(crate) latency: Histogram<u64>,
}

impl Default for Account {
    fn default() -> Self {
        let latency =
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("bounds and digits that can be");
        Self { time: Nanos::ZERO, decided: 0, bytes: 0, sent: 0, received: 0, latency }
    }
}

impl Account {
    /// A value of so many bytes is decided.
    pub(super) fn decided(&mut self, len: usize, latency: Nanos) {
        self.decided += 1;
        self.bytes += len as u64;
        self.latency.saturating_record(latency.0.max(1));
    }

    /// Becomes what another one is, without allocating.
    pub(super) fn copy_from(&mut self, other: &Self) {
        (self.time, self.decided, self.bytes) = (other.time, other.decided, other.bytes);
        (self.sent, self.received) = (other.sent, other.received);
        self.latency.reset();
        self.latency.add(&other.latency).expect("all have the same bounds");
    }

    /// What was added since an earlier state of it.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut latency = self.latency.clone();
        latency.subtract(&before.latency).expect("it has only grown");
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

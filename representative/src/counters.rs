//! Counters of a representative.

use switch::counters::Counter;

/// Counters of one instance, which its worker increments and any thread reads.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages whose barriers were read and replaced (`chip`)
    pub messages: Counter,
    /// Messages forwarded although their timestamp is below the output barrier, which happens after a link
    /// has returned. Their receivers refuse the messages that are late for them
    pub late: Counter,
    /// Messages forwarded without a barrier, because their destination is not known yet and they were flooded
    pub flooded: Counter,
    /// Beacons accepted: datagrams
    pub datagrams: Counter,
    /// Beacons accepted: RDMA WRITEs
    pub writes: Counter,
    /// Beacons sent
    pub beacons: Counter,
    /// Beacons that were due but not sent for lack of room at the port
    pub unsent: Counter,
    /// Links removed because they were silent
    pub dead: Counter,
    /// Links removed because their neighbour, or the control plane, announced that nothing follows on them
    pub left: Counter,
    /// Links that took part again
    pub joined: Counter,
    /// Beacon intervals for which the worker was running
    pub ticks: Counter,
    /// Beacon intervals missed because the worker was busy otherwise
    pub ticks_missed: Counter,
    /// Sum of the ticks' delays, in nanoseconds: a measure of their jitter
    pub late_ns: Counter,
    /// Maximum delay of a tick, in nanoseconds
    pub latest_ns: Counter,
    /// Events discarded because too many were waiting for the control plane
    pub events_lost: Counter,
    refused: [Counter; Refusal::ALL.len()],
}

impl Counters {
    /// Returns how often a beacon or message was refused for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].get()
    }

    #[cold]
    pub(crate) fn refuse(&self, why: Refusal) {
        self.refused[why as usize].add(1);
    }

    pub(crate) fn late_by(&self, ns: u64) {
        self.late_ns.add(ns);
        let latest = self.latest_ns.get();
        self.latest_ns.add(ns.saturating_sub(latest));
    }
}

/// Reason why the barriers of a beacon or message were refused. Each reason is covered by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// A frame on a port without a link, or for a queue pair of no link
    UnknownLink,
    /// A beacon that is not from the link's neighbour, or not on its port
    WrongSource,
    /// A WRITE to an address other than the link's register, or with another key
    WrongMemory,
    /// Too short for a 1Pipe header, or no beacon where only beacons are valid
    NoHeader,
    /// A header of another version
    OtherVersion,
    /// The ICRC is wrong
    Damaged,
    /// A barrier that is too far ahead of the clock
    Ahead,
    /// A barrier that goes back
    Stale,
    /// A link that returns, and is too far behind to be waited for
    TooFarBehind,
    /// A message from a link above to a link above: no barrier covers it
    Valley,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::UnknownLink,
        Self::WrongSource,
        Self::WrongMemory,
        Self::NoHeader,
        Self::OtherVersion,
        Self::Damaged,
        Self::Ahead,
        Self::Stale,
        Self::TooFarBehind,
        Self::Valley,
    ];

    /// Returns the reason's name, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownLink => "unknown_link",
            Self::WrongSource => "wrong_source",
            Self::WrongMemory => "wrong_memory",
            Self::NoHeader => "no_header",
            Self::OtherVersion => "other_version",
            Self::Damaged => "damaged",
            Self::Ahead => "ahead",
            Self::Stale => "stale",
            Self::TooFarBehind => "too_far_behind",
            Self::Valley => "valley",
        }
    }
}

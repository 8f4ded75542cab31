//! What a representative counts.

use switch::counters::Counter;

/// Counters of one instance: written by its worker, read by anyone.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages whose barriers were taken and replaced (`chip`)
    pub messages: Counter,
    /// Messages that left although their timestamp lies before the barrier: of a link that has come back. Their receivers
    /// refuse what is late for them
    pub late: Counter,
    /// Messages that left without a barrier, as nobody knows yet where their destination is
    pub flooded: Counter,
    /// Beacons taken: datagrams
    pub datagrams: Counter,
    /// Beacons taken: RDMA WRITEs
    pub writes: Counter,
    /// Beacons sent
    pub beacons: Counter,
    /// Beacons that were due and for which there was no room
    pub unsent: Counter,
    /// Links that were removed, as they were silent
    pub dead: Counter,
    /// Links that were removed, as their neighbour said that nothing comes on them
    pub left: Counter,
    /// Links that took part again
    pub joined: Counter,
    /// Beacon intervals lived through
    pub ticks: Counter,
    /// Intervals that were missed, as this worker did something else
    pub ticks_missed: Counter,
    /// How late ticks were, all together, in nanoseconds: their jitter
    pub late_ns: Counter,
    /// How late the latest was, in nanoseconds
    pub latest_ns: Counter,
    /// Events that the control plane was not told of, as too many waited
    pub events_lost: Counter,
    refused: [Counter; Refusal::ALL.len()],
}

impl Counters {
    /// How often something was refused for this reason
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

/// Why what a beacon or a message says was not taken. Each reason is reached by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// It came where no link is, or to a queue pair of none
    UnknownLink,
    /// A beacon that is not from the link's neighbour, or not on its port
    WrongSource,
    /// A WRITE to something else than the link's register, or with another key
    WrongMemory,
    /// Too short for a header, or something else than a beacon where only beacons belong
    NoHeader,
    /// A header of another version
    OtherVersion,
    /// The ICRC is wrong
    Damaged,
    /// A barrier that is too far ahead of the clock
    Ahead,
    /// A barrier that goes back
    Stale,
    /// A link that wants to take part again, and is too far behind to be waited for
    TooFarBehind,
    /// A message from above to above: no barrier speaks of it
    Valley,
}

impl Refusal {
    /// Every reason.
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

    /// A word for it, as in reports.
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

//! Counters of a representative.

use switch::counters::{Counter, Maximum};
use switch::{metrics, reasons};

metrics! {
    /// Counters of one instance, which its worker increments and any thread reads.
    #[derive(Debug, Default)]
    pub struct Counters {
        /// Messages whose barriers were read and replaced (`chip`)
        pub messages: Counter [messages],
        /// Messages forwarded although their timestamp is below the output barrier, which happens after a link
        /// has returned. Their receivers refuse the messages that are late for them
        pub late: Counter [messages],
        /// Messages forwarded without a barrier, because their destination is not known yet and they were flooded
        pub flooded: Counter [messages],
        /// Beacons accepted: datagrams
        pub datagrams: Counter [beacons as beacons_taken_datagrams],
        /// Beacons accepted: RDMA WRITEs
        pub writes: Counter [beacons as beacons_taken_writes],
        /// Beacons sent
        pub beacons: Counter [beacons as beacons_sent],
        /// Beacons that were due but not sent for lack of room at the port
        pub unsent: Counter [beacons as beacons_unsent],
        /// Links removed because they were silent
        pub dead: Counter [links],
        /// Links removed because their neighbour, or the control plane, announced that nothing follows on them
        pub left: Counter [links],
        /// Links removed because their barriers were too far behind those of the others
        pub evicted: Counter [links],
        /// Links that took part again
        pub joined: Counter [links],
        /// Barriers ahead of the clock by more than `ahead_max`, which count as ahead by `ahead_max`
        pub lowered: Counter [barriers],
        /// Times at which all links from below were ahead of the clock by more than `ahead_max`, so that their
        /// median was believed instead of the clock
        pub distrusted: Counter [times as clock_distrusted],
        /// Clock beacons sent
        pub clock_beacons_sent: Counter [beacons],
        /// Clock beacons accepted
        pub clock_beacons_taken: Counter [beacons],
        /// Beacon intervals for which the worker was running
        pub ticks: Counter [intervals as intervals],
        /// Beacon intervals missed because the worker was busy otherwise
        pub ticks_missed: Counter [intervals as intervals_missed],
        /// Sum of the ticks' delays, in nanoseconds: a measure of their jitter
        pub late_ns: Counter [ns as intervals_late_ns],
        /// Maximum delay of a tick, in nanoseconds
        pub latest_ns: Maximum [ns as intervals_latest_ns],
        /// Events discarded because too many were waiting for the control plane: none, each link keeps its own
        pub events_lost: Counter [events],
        refused: [Counter; Refusal::ALL.len()],
    }
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
        self.latest_ns.raise(ns);
    }
}

reasons! {
    /// Reason why the barriers of a beacon or message were refused. Each reason is covered by a test.
    pub enum Refusal counted as "refused_" [packets] {
        /// A frame on a port without a link, or for a queue pair of no link
        UnknownLink = "unknown_link",
        /// A beacon that is not from the link's neighbour, or not on its port
        WrongSource = "wrong_source",
        /// A WRITE to an address other than the link's register, or with another key
        WrongMemory = "wrong_memory",
        /// Too short for a 1Pipe header, or no beacon where only beacons are valid
        NoHeader = "no_header",
        /// A header of another version
        OtherVersion = "other_version",
        /// The ICRC is wrong
        Damaged = "damaged",
        /// An announcement that nothing follows which is too far ahead of the clock
        Ahead = "ahead",
        /// A barrier that goes back
        Stale = "stale",
        /// A link that returns, and is too far behind to be waited for
        TooFarBehind = "too_far_behind",
        /// A message from a link above to a link above: no barrier covers it
        Valley = "valley",
        /// A clock beacon that is late or invalid, or that this node does not use
        Clock = "clock",
        /// A beacon of another incarnation than the controller has named, on a link that counts for the commit
        /// barrier. Its best-effort barrier is accepted
        OtherIncarnation = "other_incarnation",
    }
}

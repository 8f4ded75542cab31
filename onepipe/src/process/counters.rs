//! Counters of a process.

use switch::counters::Counter;
use switch::{metrics, reasons};

metrics! {
    /// Counters of one process, which the thread that runs it increments and any thread reads.
    #[derive(Debug, Default)]
    pub struct Counters {
        /// Messages sent, whatever their result
        pub sent: Counter [messages],
        /// Messages acknowledged as having arrived in time
        pub acknowledged: Counter [messages],
        /// Messages that failed
        pub failed: Counter,
        /// Messages delivered
        pub delivered: Counter [messages],
        /// Packets of messages sent
        pub packets_sent: Counter [packets],
        /// Packets of messages accepted
        pub packets_taken: Counter [packets],
        /// Received packets that a switch had marked as "congestion experienced"
        pub marked: Counter [packets],
        /// ACKs sent
        pub acks_sent: Counter [packets],
        /// ACKs accepted
        pub acks_taken: Counter [packets],
        /// NAKs sent
        pub naks_sent: Counter [packets],
        /// NAKs accepted
        pub naks_taken: Counter [packets],
        /// NAKs discarded because too many were waiting; later ACKs report the same packets
        pub naks_lost: Counter [packets],
        /// Beacons sent
        pub beacons_sent: Counter [beacons],
        /// Beacons accepted
        pub beacons_taken: Counter [beacons],
        /// Senders that were found to have restarted
        pub restarts: Counter [senders],
        /// Packets of reliable messages sent again
        pub repeated: Counter [packets],
        /// Recalls sent
        pub recalls_sent: Counter [packets],
        /// Recalls accepted
        pub recalls_taken: Counter [packets],
        /// Recalls of messages that the receiver had delivered, which a correct network never causes
        pub recalled_late: Counter [messages],
        /// Frames of the reliable service passed to the controller, because their receiver did not answer
        pub relayed: Counter [packets],
        /// Such frames that were discarded because too many waited; they are sent again
        pub relays_lost: Counter [packets],
        /// Frames of the reliable service that the controller has carried
        pub relays_taken: Counter [packets],
        /// Samples of the machine's clock that were earlier than what the process's clock had shown
        pub clamped: Counter [times],
        /// Clock beacons sent
        pub clock_beacons_sent: Counter [beacons],
        /// Clock beacons accepted
        pub clock_beacons_taken: Counter [beacons],
        /// Clock beacons with a time that is further from the machine's clock than `clock_limit`
        pub clock_beyond_limit: Counter [beacons],
        /// Times at which the barrier of the process's link had not risen for `stall_after`
        pub stalls: Counter [times],
        refused: [Counter; Refusal::ALL.len()],
    }
}

impl Counters {
    /// Returns how often a frame or its barrier was refused for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].get()
    }

    #[cold]
    pub(super) fn refuse(&self, why: Refusal) {
        self.refused[why as usize].add(1);
    }
}

reasons! {
    /// Reason why a frame, or the barrier in it, was refused. Each reason is covered by a test.
    #[derive(thiserror::Error)]
    pub enum Refusal counted as "refused_" [packets] {
        /// The frame is no datagram for this process's queue pair.
        #[error("not addressed to this process")]
        NotOurs = "not_ours",
        /// The `Q_Key` differs.
        #[error("wrong Q_Key")]
        WrongKey = "wrong_key",
        /// The ICRC is wrong.
        #[error("wrong ICRC")]
        Damaged = "damaged",
        /// The frame is too short for its headers.
        #[error("too short for its headers")]
        NoHeader = "no_header",
        /// The header has another version.
        #[error("header of another version")]
        OtherVersion = "other_version",
        /// The opcode is unknown, or of a service that is not implemented.
        #[error("opcode not supported")]
        Opcode = "opcode",
        /// The source is not in the table of peers.
        #[error("unknown source")]
        UnknownSource = "unknown_source",
        /// A beacon that is not from the other end of the link
        #[error("beacon from another source than the switch")]
        WrongSource = "wrong_source",
        /// A clock beacon that is late or invalid, or that this process does not use
        #[error("clock beacon that is late, invalid or not used")]
        Clock = "clock",
        /// A packet that arrived before this process had the time of its network
        #[error("before the clock is synchronised")]
        Unsynchronised = "unsynchronised",
        /// A commit barrier in a beacon that is not from the incarnation that the controller has named. The
        /// best-effort barrier in the same beacon is accepted.
        #[error("commit barrier of another incarnation of the switch")]
        CommitSource = "commit_source",
        /// A timestamp that is too far ahead of the clock
        #[error("too far ahead of the clock")]
        Ahead = "ahead",
        /// A barrier that goes back. A message in the same packet is accepted.
        #[error("barrier goes back")]
        Stale = "stale",
        /// The switch announces that nothing follows, but this process has not left.
        #[error("nothing follows is announced to a process that has not left")]
        Contradiction = "contradiction",
        /// A packet of a message whose time is past: a later one may have been delivered.
        #[error("below the barrier")]
        Late = "late",
        /// A packet that may have been sent before this process started, or that arrived before its first
        /// barrier. It is not answered: the previous incarnation may have delivered it.
        #[error("sent before this process started")]
        BeforeStart = "before_start",
        /// There is no room for the packet.
        #[error("no room")]
        NoRoom = "no_room",
        /// The packet has been received before.
        #[error("duplicate packet")]
        Duplicate = "duplicate",
        /// The packet was delayed until it had been given up.
        #[error("given up already")]
        GivenUp = "given_up",
        /// A packet of a run of which another packet was lost
        #[error("another packet of its run was lost")]
        Incomplete = "incomplete",
        /// An ACK or NAK that matches nothing in flight
        #[error("acknowledges nothing in flight")]
        Answer = "answer",
        /// A packet of the reliable service, in which this process does not take part.
        #[error("this process is not a member of the reliable service")]
        NotAdmitted = "not_admitted",
        /// A packet of the reliable service from a process that is not a member, or has failed.
        #[error("its sender is not a member")]
        OtherIncarnation = "other_incarnation",
        /// A reliable packet beyond the window that was granted to its sender.
        #[error("beyond the window granted")]
        Window = "window",
        /// A reliable packet at or below the commit barrier, which a correct network never delivers.
        #[error("at or below the commit barrier")]
        BelowCommit = "below_commit",
        /// A recall of packets that were never sent together, or an invalid answer to one.
        #[error("invalid recall")]
        Recall = "recall",
    }
}

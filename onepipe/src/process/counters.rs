//! Counters of a process.

use switch::counters::Counter;

/// Counters of one process, which the thread that runs it increments and any thread reads.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages sent, whatever their result
    pub sent: Counter,
    /// Messages acknowledged as having arrived in time
    pub acknowledged: Counter,
    /// Messages that failed
    pub failed: Counter,
    /// Messages delivered
    pub delivered: Counter,
    /// Packets of messages sent
    pub packets_sent: Counter,
    /// Packets of messages accepted
    pub packets_taken: Counter,
    /// Received packets that a switch had marked as "congestion experienced"
    pub marked: Counter,
    /// ACKs sent
    pub acks_sent: Counter,
    /// ACKs accepted
    pub acks_taken: Counter,
    /// NAKs sent
    pub naks_sent: Counter,
    /// NAKs accepted
    pub naks_taken: Counter,
    /// NAKs discarded because too many were waiting; later ACKs report the same packets
    pub naks_lost: Counter,
    /// Beacons sent
    pub beacons_sent: Counter,
    /// Beacons accepted
    pub beacons_taken: Counter,
    /// Senders that were found to have restarted
    pub restarts: Counter,
    /// Times at which the clock was set back and stood still instead
    pub clamped: Counter,
    refused: [Counter; Refusal::ALL.len()],
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

/// Reason why a frame, or the barrier in it, was refused. Each reason is covered by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The frame is no datagram for this process's queue pair.
    #[error("not addressed to this process")]
    NotOurs,
    /// The `Q_Key` differs.
    #[error("wrong Q_Key")]
    WrongKey,
    /// The ICRC is wrong.
    #[error("wrong ICRC")]
    Damaged,
    /// The frame is too short for its headers.
    #[error("too short for its headers")]
    NoHeader,
    /// The header has another version.
    #[error("header of another version")]
    OtherVersion,
    /// The opcode is unknown, or of a service that is not implemented.
    #[error("opcode not supported")]
    Opcode,
    /// The source is not in the table of peers.
    #[error("unknown source")]
    UnknownSource,
    /// A beacon that is not from the other end of the link
    #[error("beacon from another source than the switch")]
    WrongSource,
    /// A timestamp or barrier that is too far ahead of the clock
    #[error("too far ahead of the clock")]
    Ahead,
    /// A barrier that goes back. A message in the same packet is accepted.
    #[error("barrier goes back")]
    Stale,
    /// A packet of a message whose time is past: a later one may have been delivered.
    #[error("below the barrier")]
    Late,
    /// There is no room for the packet.
    #[error("no room")]
    NoRoom,
    /// The packet has been received before.
    #[error("duplicate packet")]
    Duplicate,
    /// The packet was delayed until it had been given up.
    #[error("given up already")]
    GivenUp,
    /// A packet of a run of which another packet was lost
    #[error("another packet of its run was lost")]
    Incomplete,
    /// An ACK or NAK that matches nothing in flight
    #[error("acknowledges nothing in flight")]
    Answer,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Self; 16] = [
        Self::NotOurs,
        Self::WrongKey,
        Self::Damaged,
        Self::NoHeader,
        Self::OtherVersion,
        Self::Opcode,
        Self::UnknownSource,
        Self::WrongSource,
        Self::Ahead,
        Self::Stale,
        Self::Late,
        Self::NoRoom,
        Self::Duplicate,
        Self::GivenUp,
        Self::Incomplete,
        Self::Answer,
    ];

    /// Returns the reason's name, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotOurs => "not_ours",
            Self::WrongKey => "wrong_key",
            Self::Damaged => "damaged",
            Self::NoHeader => "no_header",
            Self::OtherVersion => "other_version",
            Self::Opcode => "opcode",
            Self::UnknownSource => "unknown_source",
            Self::WrongSource => "wrong_source",
            Self::Ahead => "ahead",
            Self::Stale => "stale",
            Self::Late => "late",
            Self::NoRoom => "no_room",
            Self::Duplicate => "duplicate",
            Self::GivenUp => "given_up",
            Self::Incomplete => "incomplete",
            Self::Answer => "answer",
        }
    }
}

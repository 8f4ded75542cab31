//! What a process counts.

use switch::counters::Counter;

/// Counters of one process: written by the thread that runs it, read by anyone.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages that were sent, whatever became of them
    pub sent: Counter,
    /// Messages of which it was heard that they have arrived in time
    pub acknowledged: Counter,
    /// Messages that failed
    pub failed: Counter,
    /// Messages delivered
    pub delivered: Counter,
    /// Packets of messages that were sent
    pub packets_sent: Counter,
    /// Packets of messages that arrived
    pub packets_taken: Counter,
    /// Those of them that a switch had marked as "congestion experienced"
    pub marked: Counter,
    /// ACKs sent
    pub acks_sent: Counter,
    /// ACKs taken
    pub acks_taken: Counter,
    /// NAKs sent
    pub naks_sent: Counter,
    /// NAKs taken
    pub naks_taken: Counter,
    /// NAKs for which there was no place; ACKs say the same later
    pub naks_lost: Counter,
    /// Beacons sent
    pub beacons_sent: Counter,
    /// Beacons taken
    pub beacons_taken: Counter,
    /// Senders that were found to have begun anew
    pub restarts: Counter,
    /// Times at which the clock had been set back and stood still instead
    pub clamped: Counter,
    refused: [Counter; Refusal::ALL.len()],
}

impl Counters {
    /// How often something was refused for this reason
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].get()
    }

    #[cold]
    pub(super) fn refuse(&self, why: Refusal) {
        self.refused[why as usize].add(1);
    }
}

/// Why a frame, or what it says of the barrier, was not taken. Each reason is reached by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// It is no datagram for this process's queue pair.
    #[error("not for this process")]
    NotOurs,
    /// Its `Q_Key` is another.
    #[error("another Q_Key")]
    WrongKey,
    /// The ICRC is wrong.
    #[error("damaged")]
    Damaged,
    /// It is too short for its headers.
    #[error("too short for its headers")]
    NoHeader,
    /// A header of another version
    #[error("a header of another version")]
    OtherVersion,
    /// An opcode of which this process knows nothing, or whose service it does not provide
    #[error("an opcode that is not provided")]
    Opcode,
    /// From nobody who is known
    #[error("from nobody who is known")]
    UnknownSource,
    /// A beacon that is not from the other end of the link
    #[error("a beacon from somebody else")]
    WrongSource,
    /// A timestamp or barrier that is too far ahead of the clock
    #[error("too far ahead of the clock")]
    Ahead,
    /// A barrier that goes back. A message that it came with is taken.
    #[error("a barrier that goes back")]
    Stale,
    /// A packet of a message whose time is past: a later one may have been delivered.
    #[error("below the barrier")]
    Late,
    /// There is no room for it.
    #[error("no room")]
    NoRoom,
    /// It has come before.
    #[error("a duplicate")]
    Duplicate,
    /// It was overtaken by so much that it was given up already.
    #[error("given up already")]
    GivenUp,
    /// What remains of a run of which something was lost
    #[error("a part of its run was lost")]
    Incomplete,
    /// An ACK or NAK for nothing that is under way
    #[error("an answer to nothing that is under way")]
    Answer,
}

impl Refusal {
    /// Every reason.
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

    /// A word for it, as in reports.
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

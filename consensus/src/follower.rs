//! State of another server at its leader.

use super::resources::Outgoing;
use switch::Nanos;

/// Purpose of a work request to another server, encoded in its ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// After completion, the server holds all entries below this index.
    Entries(u64),
    /// Reads the log, in the read round with this number.
    Read(u64),
    /// Checks in this round whether the permission is valid.
    Check(u64),
    /// Writes the number of decided entries.
    Commit,
    /// Writes the head of a snapshot.
    Snapshot,
    /// Makes the server a member.
    Admission,
}

impl Request {
    const KIND: u32 = 56;

    pub(super) fn to_id(self) -> u64 {
        let (kind, number): (u64, u64) = match self {
            Self::Entries(next) => (0, next),
            Self::Read(batch) => (1, batch),
            Self::Check(round) => (2, round),
            Self::Commit => (3, 0),
            Self::Snapshot => (4, 0),
            Self::Admission => (5, 0),
        };
        kind << Self::KIND | number
    }

    pub(super) fn from_id(id: u64) -> Self {
        let number = id & ((1 << Self::KIND) - 1);
        match id >> Self::KIND {
            0 => Self::Entries(number),
            1 => Self::Read(number),
            2 => Self::Check(number),
            3 => Self::Commit,
            4 => Self::Snapshot,
            _ => Self::Admission,
        }
    }
}

/// Stage of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not connected; the next request for permission is due at this time.
    Absent(Nanos),
    /// Permission was requested.
    Requested,
    /// Permission was granted.
    Granted,
    /// Its log is being read.
    Reading,
    /// Its log was read.
    Read,
    /// The follower lacks entries that the leader's log no longer holds, and needs a snapshot.
    Wanting,
    /// It receives every entry.
    Active,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Follower {
    pub(super) link: Option<Outgoing>,
    pub(super) stage: Stage,
    /// Incarnation that granted permission
    pub(super) incarnation: u64,
    /// Whether it is a member, which counts towards majorities
    pub(super) is_member: bool,
    /// When it became active or, after that, a member
    pub(super) active_at: Nanos,
    /// Numbers of entries that were written to it directly, and of entries that it holds
    pub(super) posted: u64,
    pub(super) held: u64,
    /// Number of decided entries last written to it apart from entries
    pub(super) commit_sent: u64,
    /// Number of entries that it has applied and no longer needs
    pub(super) applied: u64,
    /// Index from which the entries below `applied` in its log are known to be the decided ones
    pub(super) valid_from: u64,
    /// Applied entries at the last check, and since when the number has not grown although more were decided
    pub(super) stalled_since: Option<(u64, Nanos)>,
    /// Whether a snapshot is being written to it
    pub(super) loading: bool,
    /// Round of the latest check that was posted
    pub(super) check_posted: u64,
    /// Round of the latest check that completed
    pub(super) check_completed: u64,
    /// First round in which other members have to confirm before it becomes a member; 0 if none
    pub(super) confirmed_from: u64,
    /// Whether the WRITE that makes it a member was posted
    pub(super) admitted: bool,
}

impl Follower {
    /// Returns a follower without connection, which is requested at this time.
    pub(super) const fn absent(until: Nanos) -> Self {
        Self {
            link: None,
            stage: Stage::Absent(until),
            incarnation: 0,
            is_member: false,
            active_at: Nanos::ZERO,
            posted: 0,
            held: 0,
            commit_sent: 0,
            applied: 0,
            valid_from: 0,
            stalled_since: None,
            loading: false,
            check_posted: 0,
            check_completed: 0,
            confirmed_from: 0,
            admitted: false,
        }
    }

    /// Returns whether it counts towards majorities and decisions.
    pub(super) fn counts(&self) -> bool {
        self.stage == Stage::Active && self.is_member
    }
}

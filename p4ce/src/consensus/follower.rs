//! Another server, as its leader sees it.

use super::server::Outgoing;
use switch::Nanos;

/// What a request to another server is for, as its number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// When it is done, the server holds all entries below.
    Entries(u64),
    /// Reads the log, after the reading of logs was begun anew n times.
    Read(u64),
    /// Asks for the n-th time whether permission stands.
    Check(u64),
    /// Says what is decided.
    Commit,
    /// Carries a snapshot.
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

/// Where another server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is to be asked, at this time.
    Absent(Nanos),
    /// It was asked for permission.
    Asked,
    /// It gave permission.
    Granted,
    /// Its log is being read.
    Reading,
    /// Its log was read.
    Read,
    /// It lacks so much that it needs a snapshot.
    Wanting,
    /// It gets every entry.
    Active,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Follower {
    pub(super) link: Option<Outgoing>,
    pub(super) stage: Stage,
    /// Which of its lives gave permission
    pub(super) incarnation: u64,
    /// Whether it counts
    pub(super) is_member: bool,
    /// When it became active and a member, if it is
    pub(super) active_at: Nanos,
    /// Entries below were written to it directly, and are held by it
    pub(super) posted: u64,
    pub(super) held: u64,
    /// What it was told last is decided, beside the entries
    pub(super) told: u64,
    /// It has no use for entries below.
    pub(super) applied: u64,
    /// What lies in its log from here up to those is what was decided.
    pub(super) vouched: u64,
    /// How many it had applied, as it showed, and since when: it has not got on in spite of there being more
    pub(super) lags: Option<(u64, Nanos)>,
    /// A snapshot is under way to it.
    pub(super) loading: bool,
    /// It was asked for the n-th time last whether permission stands, ...
    pub(super) asked: u64,
    /// ... and has answered for the n-th time.
    pub(super) answered: u64,
    /// Before it is a member, others have to answer from the n-th time on.
    pub(super) confirmed_from: u64,
    /// It was told that it is a member.
    pub(super) admitted: bool,
}

impl Follower {
    /// One that is asked at this time.
    pub(super) const fn absent(until: Nanos) -> Self {
        Self {
            link: None,
            stage: Stage::Absent(until),
            incarnation: 0,
            is_member: false,
            active_at: Nanos::ZERO,
            posted: 0,
            held: 0,
            told: 0,
            applied: 0,
            vouched: 0,
            lags: None,
            loading: false,
            asked: 0,
            answered: 0,
            confirmed_from: 0,
            admitted: false,
        }
    }

    /// Whether it is one of those that decide.
    pub(super) fn counts(&self) -> bool {
        self.stage == Stage::Active && self.is_member
    }
}

//! Records that a controller stores, and their encoding.
//!
//! A key is a kind and the numbers that name the record, big-endian, so that the order of the bytes is the
//! order of the keys. A value begins with the kind and the version of its format; its fields follow in the
//! order of their declaration. Times have 64 bits, in nanoseconds since the Unix epoch, so that they stay
//! unambiguous after the 78 hours of the times in packets.
//!
//! Format 1 knew one representative of each switch; its records are read as those of seat 0.

mod image;

pub use image::{Bad, Image};

use crate::store::Change;
use onepipe::ProcessId;
use onepipe::control::{Address, Boot, Incarnation, Wire, WireError};
use onepipe::{wire_enum, wire_structs};
use rocev2::Qpn;

/// Version of the format of all records that are written
pub const FORMAT: u8 = 2;
/// Length of an incarnation at the end of a key, in bytes
const INCARNATION_LEN: usize = 4;

/// Name of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Numbers that have not been given away
    Next,
    /// An incarnation of a process
    Member(ProcessId, Incarnation),
    /// An incarnation of a switch's representative: switch, seat, incarnation
    Rep(u16, u8, Incarnation),
    /// A case: failures that were decided together
    Case(u64),
    /// A link that is not pending
    Link(u32),
    /// Recalls of a sender for a failed receiver: receiver, its incarnation, sender, its incarnation, first PSN
    Recall(ProcessId, Incarnation, ProcessId, Incarnation, u32),
}

impl Wire for Key {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(self.kind());
        match *self {
            Self::Next => {}
            Self::Member(id, incarnation) => {
                id.put(to);
                incarnation.put(to);
            }
            Self::Rep(switch, seat, incarnation) => {
                switch.put(to);
                seat.put(to);
                incarnation.put(to);
            }
            Self::Case(number) => number.put(to),
            Self::Link(number) => number.put(to),
            Self::Recall(id, incarnation, from, of, first) => {
                for number in [id.0, incarnation.0, from.0, of.0, first] {
                    number.put(to);
                }
            }
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        Ok(match u8::take(from)? {
            1 => Self::Next,
            2 => Self::Member(Wire::take(from)?, Wire::take(from)?),
            3 => {
                let switch = Wire::take(from)?;
                let is_of_format_1 = from.len() == INCARNATION_LEN;
                let seat = if is_of_format_1 { 0 } else { Wire::take(from)? };
                Self::Rep(switch, seat, Wire::take(from)?)
            }
            4 => Self::Case(Wire::take(from)?),
            5 => Self::Link(Wire::take(from)?),
            6 => Self::Recall(
                Wire::take(from)?,
                Wire::take(from)?,
                Wire::take(from)?,
                Wire::take(from)?,
                Wire::take(from)?,
            ),
            other => return Err(WireError::Value { field: "kind of key", value: other.into() }),
        })
    }
}

impl Key {
    const fn kind(self) -> u8 {
        match self {
            Self::Next => 1,
            Self::Member(..) => 2,
            Self::Rep(..) => 3,
            Self::Case(_) => 4,
            Self::Link(_) => 5,
            Self::Recall(..) => 6,
        }
    }

    /// Returns the change that deletes this record.
    pub fn delete(self) -> Change {
        Change::Delete(self.to_bytes())
    }
}

wire_enum! {
    /// State of an incarnation of a process.
    pub enum MemberState {
        /// It has an incarnation, and is not admitted yet
        Joining = 1,
        /// Admitted
        Member = 2,
        /// A stored case says so
        Failed = 3,
        /// Its memory is gone, or it has recovered: nothing of it is needed any more
        Gone = 4,
        /// It has left without a failure; its number `case` orders that among the cases
        Left = 5,
    }
}

impl MemberState {
    /// Returns whether the incarnation, failed or not, may still be running.
    pub const fn is_present(self) -> bool {
        !matches!(self, Self::Gone | Self::Left)
    }
}

wire_enum! {
    /// State of an incarnation of a representative.
    pub enum RepState {
        /// Its floors are not known yet
        Registering = 1,
        /// Its floors are stored; it has not been configured yet
        Configuring = 2,
        /// It has been configured
        Active = 3,
        /// A later incarnation has its place, or the switch's other representative serves alone
        Retired = 4,
        /// Its neighbours are not to listen to it any more; some may not know it yet
        Leaving = 5,
    }
}

wire_enum! {
    /// Progress of a case.
    pub enum Stage {
        /// Decided: members are notified
        Decided = 1,
        /// All members have discarded, recalled and called back: links leave commit
        Completed = 2,
        /// All links have left commit
        Resumed = 3,
    }
}

wire_enum! {
    /// State of a link. A link without a record is pending, if it counts.
    pub enum LinkState {
        /// What its keeper sends is bounded by what came over it
        Relied = 1,
        /// It was dead and has left commit
        Absent = 2,
    }
}

wire_structs! {
    /// Numbers that have not been given away: all of them grow for ever.
    pub struct NextRecord {
        /// Incarnation of a process or of a representative
        incarnation: Incarnation,
        /// Case
        case: u64,
        /// Queue pair
        qpn: Qpn,
    }

    /// An incarnation of a process.
    pub struct MemberRecord {
        /// State
        state: MemberState,
        /// Queue pair
        qpn: Qpn,
        /// Number that it drew at its start
        boot: Boot,
        /// Address
        address: Address,
        /// No message of it has this time or an earlier one; 0 until it is admitted
        joined: u64,
        /// Number of the first case that was decided while it was a member; while it joins, since it was given the members
        since: u64,
        /// Time up to which its messages count, if it has failed; upper bound of their times, if it has left
        time: u64,
        /// Case in which it failed, or number of its departure; 0 if none
        case: u64,
        /// Upper bound of what it may have delivered before it was fenced, or before it left
        delivered: u64,
        /// Number of records of recalls for it
        recalls: u32,
    }

    /// An incarnation of a representative.
    pub struct RepRecord {
        /// State
        state: RepState,
        /// Number that it drew at its start
        boot: Boot,
        /// Address
        address: Address,
        /// First queue pair; those of the other links follow
        first_qp: Qpn,
        /// Floor of the upper node; 0 is none
        up: u64,
        /// Floor of the lower node; 0 is none
        down: u64,
    }

    /// A failed incarnation within a case.
    pub struct FailedMember {
        /// Process
        id: ProcessId,
        /// Incarnation
        incarnation: Incarnation,
        /// Messages above this time are discarded
        time: u64,
        /// Upper bound of what it may have delivered before it was fenced
        delivered: u64,
    }

    /// What stands still until a case is completed.
    pub struct FenceRecord {
        /// Inputs whose registers stand still
        frozen: Vec<u32>,
        /// Outputs without a commit barrier
        muted: Vec<u32>,
        /// Processes whose barrier stands still
        held: Vec<ProcessId>,
    }

    /// A case.
    pub struct CaseRecord {
        /// Progress
        stage: Stage,
        /// Failed incarnations; empty if only links are dead
        failed: Vec<FailedMember>,
        /// Links that leave commit
        dead: Vec<u32>,
        /// What stands still until the case is completed
        fence: FenceRecord,
        /// Receivers that may have delivered messages above the failures' times, because nothing that was
        /// reached could stop them
        unfenced: Vec<ProcessId>,
        /// Time of the decision
        at: u64,
    }

    /// Recalls of one scattering for a failed receiver.
    pub struct RecallRecord {
        /// Time of the scattering; 0 if it was not stamped
        time: u64,
        /// Last PSN
        last: u32,
    }

    /// State of a link.
    pub struct LinkRecord {
        /// State
        state: LinkState,
    }
}

/// Value of a record.
pub trait Value: Wire {
    /// Kind in front of the value, that of its key
    const KIND: u8;

    /// Returns the change that writes this value.
    fn put_at(&self, key: Key) -> Change {
        debug_assert_eq!(key.kind(), Self::KIND, "a value of another kind than its key");
        let mut bytes = vec![Self::KIND, FORMAT];
        self.put(&mut bytes);
        Change::Put(key.to_bytes(), bytes)
    }

    /// Returns the value of stored bytes.
    fn read(bytes: &[u8]) -> Result<Self, WireError> {
        let (&[kind, format], rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
        if kind != Self::KIND {
            return Err(WireError::Value { field: "kind of record", value: kind.into() });
        }
        if !(1..=FORMAT).contains(&format) {
            return Err(WireError::Value { field: "format of record", value: format.into() });
        }
        Self::parse(rest)
    }
}

macro_rules! values {
    ($($name:ident $kind:literal,)*) => { $(impl Value for $name { const KIND: u8 = $kind; })* };
}
values! { NextRecord 1, MemberRecord 2, RepRecord 3, CaseRecord 4, LinkRecord 5, RecallRecord 6, }

#[cfg(test)]
mod tests;

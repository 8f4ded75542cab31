//! All records of a store, parsed.

use super::{
    CaseRecord, FORMAT, Key, LinkRecord, LinkState, MemberRecord, MemberState, NextRecord, RecallRecord,
    RepRecord, Value,
};
use crate::store::{Change, Records};
use onepipe::ProcessId;
use onepipe::control::{FIRST_INCARNATION_QP, Incarnation, Wire, WireError};
use rocev2::Qpn;
use std::collections::BTreeMap;

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "record {key:02x?}: {error}; restore the store from a copy, or remove it while all processes are stopped"
)]
pub struct Bad {
    /// Bytes of the key
    pub key: Vec<u8>,
    /// What is wrong
    pub error: WireError,
}

/// Receiver of a recall and its incarnation
type Receiver = (ProcessId, Incarnation);
/// Sender of a recall, its incarnation, and the first PSN
type Recalled = (ProcessId, Incarnation, u32);

/// All records of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Numbers that have not been given away
    pub next: NextRecord,
    /// Incarnations of processes
    pub members: BTreeMap<(ProcessId, Incarnation), MemberRecord>,
    /// Incarnations of representatives, by switch and seat
    pub reps: BTreeMap<(u16, u8, Incarnation), RepRecord>,
    /// Cases
    pub cases: BTreeMap<u64, CaseRecord>,
    /// Links that are not pending
    pub links: BTreeMap<u32, LinkState>,
    /// Recalls for failed receivers
    pub recalls: BTreeMap<Receiver, BTreeMap<Recalled, RecallRecord>>,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            next: NextRecord { incarnation: Incarnation(1), case: 1, qpn: Qpn::new(FIRST_INCARNATION_QP) },
            members: BTreeMap::new(),
            reps: BTreeMap::new(),
            cases: BTreeMap::new(),
            links: BTreeMap::new(),
            recalls: BTreeMap::new(),
        }
    }
}

impl Image {
    /// Parses all records.
    ///
    /// # Errors
    /// Every record that cannot be read.
    pub fn load(records: &Records) -> Result<Self, Vec<Bad>> {
        let mut image = Self::default();
        let put = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let bad = |error| Bad { key: key.clone(), error };
            Key::parse(key).and_then(|key| image.put(key, value)).err().map(bad)
        };
        // Those of earlier formats first: a later one of the same incarnation has another key.
        let (earlier, present): (Vec<_>, Vec<_>) =
            records.iter().partition(|(_, value)| value.get(1).is_none_or(|&format| format < FORMAT));
        let bad: Vec<_> = earlier.into_iter().chain(present).filter_map(put).collect();
        if bad.is_empty() { Ok(image) } else { Err(bad) }
    }

    fn put(&mut self, key: Key, value: &[u8]) -> Result<(), WireError> {
        match key {
            Key::Next => self.next = Value::read(value)?,
            Key::Member(id, incarnation) => {
                self.members.insert((id, incarnation), Value::read(value)?);
            }
            Key::Rep(switch, seat, incarnation) => {
                self.reps.insert((switch, seat, incarnation), Value::read(value)?);
            }
            Key::Case(number) => {
                let case = CaseRecord::read(value)?;
                self.fail(number, &case);
                self.cases.insert(number, case);
            }
            Key::Link(number) => {
                self.links.insert(number, LinkRecord::read(value)?.state);
            }
            Key::Recall(id, incarnation, from, of, first) => {
                let of_receiver = self.recalls.entry((id, incarnation)).or_default();
                of_receiver.insert((from, of, first), Value::read(value)?);
            }
        }
        Ok(())
    }

    /// Marks the processes of a case as failed. They need no records of their own, so that one record decides.
    fn fail(&mut self, number: u64, case: &CaseRecord) {
        for failed in &case.failed {
            if let Some(member) = self.members.get_mut(&(failed.id, failed.incarnation))
                && matches!(member.state, MemberState::Joining | MemberState::Member)
            {
                member.state = MemberState::Failed;
                (member.case, member.time, member.delivered) = (number, failed.time, failed.delivered);
            }
        }
    }

    fn delete(&mut self, key: Key) {
        match key {
            Key::Next => {}
            Key::Member(id, incarnation) => drop(self.members.remove(&(id, incarnation))),
            Key::Rep(switch, seat, incarnation) => drop(self.reps.remove(&(switch, seat, incarnation))),
            Key::Case(number) => drop(self.cases.remove(&number)),
            Key::Link(number) => drop(self.links.remove(&number)),
            Key::Recall(id, incarnation, from, of, first) => {
                if let Some(of_receiver) = self.recalls.get_mut(&(id, incarnation)) {
                    of_receiver.remove(&(from, of, first));
                    if of_receiver.is_empty() {
                        self.recalls.remove(&(id, incarnation));
                    }
                }
            }
        }
    }

    /// Applies changes that have been written.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let key = |bytes: &[u8]| Key::parse(bytes).expect("the key of a change is well-formed");
            match change {
                Change::Put(bytes, value) => {
                    self.put(key(bytes), value).expect("the value of a change is well-formed");
                }
                Change::Delete(bytes) => self.delete(key(bytes)),
            }
        }
    }

    /// Returns the last incarnation of a process, with its record.
    pub fn member(&self, id: ProcessId) -> Option<(Incarnation, &MemberRecord)> {
        let all = self.members.range((id, Incarnation(0))..=(id, Incarnation(u32::MAX)));
        all.last().map(|(&(_, incarnation), record)| (incarnation, record))
    }

    /// Returns the records of the last incarnations of all processes, in the order of their numbers.
    pub fn last_members(&self) -> impl Iterator<Item = (ProcessId, &MemberRecord)> {
        let mut records = self.members.iter().peekable();
        core::iter::from_fn(move || {
            loop {
                let (&(id, _), record) = records.next()?;
                if records.peek().is_none_or(|(key, _)| key.0 != id) {
                    return Some((id, record));
                }
            }
        })
    }

    /// Returns the last incarnation of a seat of a switch, with its record.
    pub fn rep(&self, switch: u16, seat: u8) -> Option<(Incarnation, &RepRecord)> {
        let all = self.reps.range((switch, seat, Incarnation(0))..=(switch, seat, Incarnation(u32::MAX)));
        all.last().map(|(&(.., incarnation), record)| (incarnation, record))
    }
}

//! Writes to the store: one at a time, the next one with all that has gathered meanwhile.

use super::{Alarm, Bug, Effect, Machine};
use crate::record::{Key, NextRecord, Value};
use crate::store::{Change, MAX_BYTES, MAX_CHANGES, StoreError};
use onepipe::ProcessId;
use onepipe::control::{FIRST_INCARNATION_QP, Incarnation};
use rocev2::Qpn;
use std::collections::{BTreeSet, VecDeque};
use switch::Nanos;

/// Multiple of `respond_within` after which a write that was too large is tried again
const TOO_LARGE_WAITS: u64 = 20;

/// Number of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

/// What follows when changes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// A representative has an incarnation
    RepKnown(u16, u8),
    /// Floors are known
    FloorsKnown,
    /// A representative has been configured
    RepActive(u16, u8),
    /// A representative leaves
    Leaves(u16, u8),
    /// A process has an incarnation
    Joining(ProcessId),
    /// A process is a member
    Admitted(ProcessId),
    /// A case is decided
    Decided(u64),
    /// Part of a case's changes, before its record
    Part(u64),
    /// Part of a batch of recalls, before the last one
    SomeRecalls,
    /// Recalls of an incarnation that are not needed any more are deleted
    Forgotten,
    /// A case is completed
    Completed(u64),
    /// A case is closed
    Resumed(u64),
    /// Links are relied, or pending again
    Links,
    /// A sender's batch of recalls is stored
    Recalls(ProcessId, Incarnation, u32),
    /// A process has recovered
    Recovered(ProcessId),
    /// A process has left, with this number
    Left(ProcessId, u64),
}

#[derive(Clone, Debug)]
struct Write {
    id: WriteId,
    changes: Vec<Change>,
    then: Vec<Then>,
    /// Time at which it is tried again; `None` while the store works on it
    retry: Option<Nanos>,
}

#[derive(Clone, Debug)]
pub(super) struct Writes {
    next_id: u64,
    /// Numbers that have not been given away, also in changes that are not stored yet
    pub(super) next: NextRecord,
    outstanding: Option<Write>,
    waiting: VecDeque<(Vec<Change>, Then)>,
    /// When the present write began
    begun: Nanos,
    /// For how long the last write took
    took: Nanos,
    /// Since when recalls alone have been waiting
    recalls_since: Option<Nanos>,
}

impl Writes {
    pub(super) fn new(next: NextRecord) -> Self {
        let (begun, took) = (Nanos::ZERO, Nanos::ZERO);
        let (outstanding, waiting) = (None, VecDeque::new());
        Self { next_id: 1, next, outstanding, waiting, begun, took, recalls_since: None }
    }

    /// Returns whether changes with this continuation are on their way.
    pub(super) fn contains(&self, then: Then) -> bool {
        let outstanding = self.outstanding.iter().flat_map(|write| &write.then);
        outstanding.chain(self.waiting.iter().map(|(_, then)| then)).any(|&other| other == then)
    }

    /// Returns whether nothing is being written or waits for that.
    pub(super) fn is_empty(&self) -> bool {
        self.outstanding.is_none() && self.waiting.is_empty()
    }

    /// Returns whether nothing is being written that a decision depends on.
    pub(super) fn is_idle(&self) -> bool {
        let outstanding = self.outstanding.iter().flat_map(|write| &write.then);
        let mut all = outstanding.chain(self.waiting.iter().map(|(_, then)| then));
        all.all(|then| matches!(then, Then::Recalls(..) | Then::SomeRecalls))
    }

    /// Returns whether the admission of a process is being stored.
    pub(super) fn is_admitting(&self) -> bool {
        let outstanding = self.outstanding.iter().flat_map(|write| &write.then);
        let mut all = outstanding.chain(self.waiting.iter().map(|(_, then)| then));
        all.any(|then| matches!(then, Then::Admitted(_)))
    }

    /// Returns whether it is being stored that a process has left.
    pub(super) fn has_departure(&self) -> bool {
        let outstanding = self.outstanding.iter().flat_map(|write| &write.then);
        let mut all = outstanding.chain(self.waiting.iter().map(|(_, then)| then));
        all.any(|then| matches!(then, Then::Left(..)))
    }

    /// Returns the time until which recalls wait for others.
    pub(super) fn gathers_until(&self) -> Option<Nanos> {
        self.recalls_since.map(|since| since + self.took)
    }

    /// Returns whether recalls are being stored.
    pub(super) fn has_recalls(&self) -> bool {
        let outstanding = self.outstanding.iter().flat_map(|write| &write.then);
        let mut all = outstanding.chain(self.waiting.iter().map(|(_, then)| then));
        all.any(|then| matches!(then, Then::Recalls(..)))
    }

    /// Adds changes, unless some with the same continuation are on their way.
    pub(super) fn add(&mut self, changes: Vec<Change>, then: Then) {
        assert!(changes.len() <= MAX_CHANGES, "{} changes for {then:?}", changes.len());
        if !self.contains(then) {
            self.waiting.push_back((changes, then));
        }
    }

    /// Adds one of several parts with the same continuation.
    pub(super) fn add_part(&mut self, changes: Vec<Change>, then: Then) {
        assert!(changes.len() <= MAX_CHANGES, "{} changes for {then:?}", changes.len());
        self.waiting.push_back((changes, then));
    }

    /// Returns the processes whose recalls wait to be written, if only recalls wait.
    fn only_recalls(&self) -> Option<BTreeSet<ProcessId>> {
        let of = |(_, then): &(Vec<Change>, Then)| match *then {
            Then::Recalls(id, ..) => Some(Some(id)),
            Then::SomeRecalls => Some(None),
            _ => None,
        };
        let of: Option<Vec<_>> = self.waiting.iter().map(of).collect();
        of.map(|of| of.into_iter().flatten().collect())
    }

    /// Returns what is to be written together next.
    fn gather(&mut self) -> Option<(Vec<Change>, Vec<Then>)> {
        let (mut changes, mut then, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some((more, _)) = self.waiting.front() {
            let size: usize = more.iter().map(Change::size).sum();
            // One that is too large is left to the store: it is stored as a whole or not at all.
            let fits = changes.len() + more.len() <= MAX_CHANGES && bytes + size <= MAX_BYTES;
            if !fits && !then.is_empty() {
                break;
            }
            let (more, next) = self.waiting.pop_front().expect("the front");
            changes.extend(more);
            then.push(next);
            bytes += size;
        }
        (!then.is_empty()).then_some((changes, then))
    }

    /// Returns a number of an incarnation that was never used, and the change that stores this.
    pub(super) fn incarnation(&mut self) -> (Incarnation, Change) {
        let incarnation = self.next.incarnation;
        self.next.incarnation.0 += 1;
        (incarnation, self.next.put_at(Key::Next))
    }

    /// Returns the first of some queue pairs that were not used for long.
    pub(super) fn queue_pairs(&mut self, count: u32) -> Qpn {
        // Those below are configured ones; an older store may begin there.
        let next = self.next.qpn.get().max(FIRST_INCARNATION_QP);
        let first = if next + count >= 1 << 24 { FIRST_INCARNATION_QP } else { next };
        self.next.qpn = Qpn::new(first + count);
        Qpn::new(first)
    }

    /// Returns the number of a new case, and the change that stores this.
    pub(super) fn case(&mut self) -> (u64, Change) {
        let case = self.next.case;
        self.next.case += 1;
        (case, self.next.put_at(Key::Next))
    }
}

impl Machine {
    /// Returns whether recalls that wait are not written yet, because those of other members are about to come and
    /// would need another write: for as long as a write takes at most.
    fn gathers_recalls(&mut self) -> bool {
        let now = self.now;
        let writes = &self.leader().writes;
        let of = writes.only_recalls().filter(|of| writes.outstanding.is_none() && !of.is_empty());
        let one_by_one = self.has(Bug::RecallsOneByOne);
        let comes = of.is_some_and(|of| self.has_recalls_to_come(&of));
        let writes = &mut self.leader_mut().writes;
        if !comes || one_by_one {
            writes.recalls_since = None;
            return false;
        }
        let since = *writes.recalls_since.get_or_insert(now);
        now.since(since) < writes.took
    }

    pub(super) fn start_write(&mut self) {
        if self.gathers_recalls() {
            return;
        }
        let now = self.now;
        let writes = &mut self.leader_mut().writes;
        let id = WriteId(writes.next_id);
        let changes = if let Some(write) = &mut writes.outstanding {
            if write.retry.is_none_or(|at| now < at) {
                return;
            }
            (write.id, write.retry) = (id, None);
            write.changes.clone()
        } else {
            let Some((changes, then)) = writes.gather() else { return };
            writes.outstanding = Some(Write { id, changes: changes.clone(), then, retry: None });
            (writes.begun, writes.recalls_since) = (now, None);
            changes
        };
        writes.next_id += 1;
        self.effects.push_back(Effect::Write(id, changes));
    }

    pub(super) fn written(&mut self, id: WriteId, result: Result<(), StoreError>) {
        let (now, wait) = (self.now, self.config.respond_within);
        let Some(leader) = &mut self.leader else { return };
        let Some(write) = leader.writes.outstanding.take_if(|write| write.id == id && write.retry.is_none())
        else {
            return;
        };
        match result {
            Ok(()) => {
                leader.writes.took = now.since(leader.writes.begun).min(Nanos(wait.0 / 2));
                leader.image.apply(&write.changes);
                self.derive();
                for then in write.then {
                    self.stored(then);
                }
            }
            Err(error @ (StoreError::OtherTerm | StoreError::Unknown(_))) => {
                if error != StoreError::OtherTerm {
                    self.alarm(Alarm::Store(error));
                }
                self.step_down(true);
            }
            Err(error) => {
                // The servers' limit may be raised.
                let times = if matches!(error, StoreError::TooLarge(_)) { TOO_LARGE_WAITS } else { 1 };
                let retry = Some(Nanos(now.0 + times * wait.0));
                leader.writes.outstanding = Some(Write { retry, ..write });
                self.alarm(Alarm::Store(error));
            }
        }
    }

    fn stored(&mut self, then: Then) {
        match then {
            Then::SomeRecalls
            | Then::Forgotten
            | Then::RepKnown(..)
            | Then::RepActive(..)
            | Then::Leaves(..)
            | Then::Part(_)
            | Then::Links
            | Then::Resumed(_) => {}
            Then::FloorsKnown => self.floors_stored(),
            Then::Joining(id) => self.joining_stored(id),
            Then::Admitted(id) => self.admitted_stored(id),
            Then::Decided(case) => self.decided_stored(case),
            Then::Completed(case) => self.completed_stored(case),
            Then::Recalls(id, incarnation, batch) => self.recalls_stored(id, incarnation, batch),
            Then::Recovered(id) => self.recovered_stored(id),
            Then::Left(id, _) => self.left_stored(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Image;

    #[test]
    fn writes_are_gathered_up_to_what_every_store_takes() {
        let mut writes = Writes::new(Image::default().next);
        let put = |len: usize| vec![Change::Put(vec![1], vec![0; len])];
        for (case, len) in (1..).zip([10, MAX_BYTES / 2, MAX_BYTES / 2, 3 * MAX_BYTES, 10, 10]) {
            writes.add(put(len), Then::Decided(case));
        }
        let gathered = core::iter::from_fn(|| writes.gather().map(|(_, then)| then.len()));
        assert_eq!(gathered.collect::<Vec<_>>(), [2, 1, 1, 2]);
    }
}

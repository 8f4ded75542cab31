//! Processes that leave without a failure.
//!
//! Before a departure is stored, nothing of the process is left: its own scatterings are decided, those of all
//! others to it as well, and it has delivered what it had acknowledged. All of that stays true, so the leader
//! keeps in memory what it has heard of it, and a new leader asks again: the process repeats its request.

use super::writes::Then;
use super::{Bug, Machine, NodeKey};
use crate::record::{Key, MemberRecord, MemberState, Value};
use onepipe::control::{Incarnation, Message};
use onepipe::{ProcessId, Timestamp};
use std::collections::BTreeSet;

/// A process that leaves.
#[derive(Clone, Debug)]
pub(super) struct Departure {
    incarnation: Incarnation,
    /// Incarnations that have decided all of their scatterings to it
    answered: BTreeSet<(ProcessId, Incarnation)>,
    /// Number of the answer to it that all have answered
    permitted: Option<u64>,
    /// Upper bounds of what it has sent and of what it has delivered, when nothing more is to be delivered
    bounds: Option<(u64, u64)>,
}

impl Machine {
    /// Takes a process's request, which it repeats.
    pub(super) fn leave(
        &mut self,
        id: ProcessId,
        time: Timestamp,
        barrier: Option<Timestamp>,
        delivered: u64,
    ) {
        let node = NodeKey::Process(id);
        let Some((incarnation, record)) = self.leader().image.member(id) else { return };
        match record.state {
            MemberState::Left => return self.send(node, Message::Left { id, incarnation }),
            MemberState::Member => {}
            // It may never be heard. No member knows it, and it has sent and received nothing.
            MemberState::Joining if self.is_listening(id) => return self.store_departure(id, (0, 0)),
            // One that joins is admitted first: not all know it yet, and it does not know all that may send to it.
            MemberState::Joining | MemberState::Failed | MemberState::Gone => return,
        }
        let bounds = (self.time(Some(time)), self.time(barrier));
        if !self.plausible(node, [bounds.0, bounds.1]) {
            return;
        }
        let new = Departure { incarnation, answered: BTreeSet::new(), permitted: None, bounds: None };
        let departure = self.leader_mut().departures.entry(id).or_insert(new);
        match departure.permitted {
            Some(number) if number == delivered => departure.bounds = Some(bounds),
            Some(number) => self.send(node, Message::MayLeave { number }),
            None => {}
        }
        for other in self.undecided_for(id) {
            self.send(NodeKey::Process(other), Message::Leaving { id, incarnation });
        }
    }

    /// Takes the answer that a process has decided all of its scatterings to one that leaves.
    pub(super) fn leaving_ack(&mut self, from: ProcessId, id: ProcessId, incarnation: Incarnation) {
        let Some(own) = self.incarnation(NodeKey::Process(from)) else { return };
        match self.leader_mut().departures.get_mut(&id) {
            Some(departure) if departure.incarnation == incarnation => {
                departure.answered.insert((from, own));
            }
            _ => self.counts.ignored += 1,
        }
    }

    /// Returns the processes that may have scatterings to one that leaves: joining ones know it, too.
    fn undecided_for(&self, id: ProcessId) -> Vec<ProcessId> {
        let leader = self.leader();
        let Some(departure) = leader.departures.get(&id) else { return Vec::new() };
        let mut others = leader.unfailed();
        let has_answered = |other: ProcessId| {
            let incarnation = leader.image.member(other).map(|(incarnation, _)| incarnation);
            incarnation.is_some_and(|incarnation| departure.answered.contains(&(other, incarnation)))
        };
        others.retain(|&other| other != id && !has_answered(other));
        others
    }

    /// Lets processes go to which nothing more is sent, and stores that they have left.
    pub(super) fn advance_departures(&mut self) {
        let leader = self.leader_mut();
        if leader.departures.is_empty() {
            return;
        }
        let image = &leader.image;
        leader.departures.retain(|&id, departure| {
            let present = image.member(id).map(|(incarnation, record)| (incarnation, record.state));
            present == Some((departure.incarnation, MemberState::Member))
        });
        let leaving: Vec<_> = leader.departures.keys().copied().collect();
        for id in leaving {
            if !self.undecided_for(id).is_empty() && !self.has(Bug::LeaveUnannounced) {
                // A process that joins has learned of it: what it has reported may not be all.
                let departure = self.leader_mut().departures.get_mut(&id).expect("it is there");
                (departure.permitted, departure.bounds) = (None, None);
                continue;
            }
            let leader = self.leader_mut();
            let departure = leader.departures.get_mut(&id).expect("it is there");
            if let Some(bounds) = departure.bounds {
                self.store_departure(id, bounds);
            } else if departure.permitted.is_none() {
                leader.versions += 1;
                let number = u64::from(leader.term.0) << 32 | leader.versions;
                departure.permitted = Some(number);
                self.send(NodeKey::Process(id), Message::MayLeave { number });
            }
        }
    }

    /// Stores that a process has left, with its links. No case may be open: what leaves could be all that bounds a
    /// barrier while a failure is decided.
    fn store_departure(&mut self, id: ProcessId, (time, delivered): (u64, u64)) {
        let leader = self.leader();
        let waits = leader.has_open_case() || !leader.writes.is_idle();
        if waits || !self.paths_without(&BTreeSet::new(), &[id]) {
            return;
        }
        let Some((incarnation, record)) = self.leader().image.member(id) else { return };
        let record = record.clone();
        let (case, next) = self.leader_mut().writes.case();
        let time = time.max(record.joined);
        let record = MemberRecord { state: MemberState::Left, case, time, delivered, ..record };
        let mut changes = self.departures(&BTreeSet::new(), &[id]);
        changes.extend([record.put_at(Key::Member(id, incarnation)), next]);
        self.write_last(case, changes, Then::Left(id, case));
    }

    pub(super) fn left_stored(&mut self, id: ProcessId) {
        let Some((incarnation, _)) = self.leader().image.member(id) else { return };
        self.counts.left += 1;
        let leader = self.leader_mut();
        leader.departures.remove(&id);
        self.forget_node(NodeKey::Process(id));
        self.restart_joins();
        for other in self.leader().unfailed().into_iter().chain([id]) {
            self.send(NodeKey::Process(other), Message::Left { id, incarnation });
        }
        self.refresh();
    }
}

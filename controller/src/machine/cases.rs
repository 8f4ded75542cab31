//! Failures (1Pipe, section 5.2).
//!
//! A *suspicion* is in memory only: its effect, registers and barriers that stand still, delays deliveries
//! and can be undone at any time. It ends when all links speak again, or as a *case*, which is stored before
//! any node hears of it. A case is decided, then completed (all members have discarded, recalled, called back),
//! then resumed (its links have left commit).

use super::writes::Then;
use super::{Alarm, Bug, Machine, NodeKey};
use crate::graph::LinkId;
use crate::record::{CaseRecord, Key, LinkRecord, LinkState, Stage, Value};
use crate::store::{Change, MAX_CHANGES};
use onepipe::control::{Failed, Message};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use switch::Nanos;

/// A member's answer about a case; each includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Noticed,
    Recalled,
    Completed,
}

/// Answers of the members about a decided case.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    /// By member: the highest answer, and when it came, or since when an answer is missing
    members: BTreeMap<ProcessId, (Option<Answer>, Nanos)>,
    /// Time since which representatives have to let links leave
    resuming: Nanos,
}

impl Progress {
    /// Returns the members that have not given this answer.
    pub(super) fn missing(&self, answer: Answer) -> Vec<ProcessId> {
        let missing = self.members.iter().filter(|(_, state)| state.0 < Some(answer));
        missing.map(|(&id, _)| id).collect()
    }
}

impl Machine {
    pub(super) fn decided_stored(&mut self, case: u64) {
        self.leader_mut().suspicion = None;
        let Some(record) = self.leader().image.cases.get(&case).cloned() else { return };
        self.counts.failed += record.failed.len() as u64;
        if !record.unfenced.is_empty() {
            self.alarm(Alarm::Unfenced(case, record.unfenced.clone()));
        }
        for failed in &record.failed {
            self.leader_mut().joins.remove(&failed.id);
        }
        self.notify(case, &record);
        self.refresh();
    }

    pub(super) fn notify(&mut self, case: u64, record: &CaseRecord) {
        let now = self.now;
        let mut members = self.leader().unfailed();
        members.retain(|id| record.failed.iter().all(|failed| failed.id != *id));
        let progress =
            Progress { members: members.iter().map(|&id| (id, (None, now))).collect(), resuming: now };
        self.leader_mut().progress.insert(case, progress);
        for id in members {
            self.send(NodeKey::Process(id), Self::notice(case, record));
        }
        for failed in &record.failed {
            let time = Timestamp::new(failed.time);
            self.send(NodeKey::Process(failed.id), Message::YouFailed { case, time });
        }
    }

    pub(super) fn notice(case: u64, record: &CaseRecord) -> Message {
        let failed = record.failed.iter().map(|failed| Failed {
            id: failed.id,
            incarnation: failed.incarnation,
            time: Timestamp::new(failed.time),
        });
        Message::Notice { case, failed: failed.collect() }
    }

    /// Goes on with the cases of earlier leaders.
    pub(super) fn resume_cases(&mut self) {
        let open: Vec<_> =
            self.leader().image.cases.iter().map(|(&case, record)| (case, record.clone())).collect();
        for (case, record) in open {
            match record.stage {
                Stage::Decided => self.notify(case, &record),
                Stage::Completed => {
                    let progress = Progress { members: BTreeMap::new(), resuming: self.now };
                    self.leader_mut().progress.insert(case, progress);
                }
                Stage::Resumed => {}
            }
        }
    }

    /// Sends a process the notices that it has not completed.
    pub(super) fn resend_notices(&mut self, id: ProcessId) {
        let leader = self.leader();
        let open = leader.progress.iter().filter(|(_, progress)| {
            progress.members.get(&id).is_some_and(|(answer, _)| *answer != Some(Answer::Completed))
        });
        let open = open.map(|(&case, _)| case).chain(self.unknown_cases(id));
        let notices: Vec<_> =
            open.filter_map(|case| Some(Self::notice(case, leader.image.cases.get(&case)?))).collect();
        for notice in notices {
            self.send(NodeKey::Process(id), notice);
        }
    }

    /// Restarts the time in which a process has to answer notices.
    pub(super) fn renew_notices(&mut self, id: ProcessId) {
        let now = self.now;
        let open = self.leader_mut().progress.values_mut();
        open.filter_map(|progress| progress.members.get_mut(&id)).for_each(|(_, since)| *since = now);
    }

    pub(super) fn answered(&mut self, id: ProcessId, case: u64, answer: Answer) {
        let now = self.now;
        if answer == Answer::Completed {
            self.note_completed(id, case);
        }
        let progress = self.leader_mut().progress.get_mut(&case);
        let Some(state) = progress.and_then(|progress| progress.members.get_mut(&id)) else {
            self.counts.ignored += 1;
            return;
        };
        if state.0 < Some(answer) {
            *state = (Some(answer), now);
        }
    }

    /// Returns whether members that have got a notice have not sent recalls, and may: those that have none to store
    /// answer that all are done.
    pub(super) fn has_recalls_to_come(&self, sent: &BTreeSet<ProcessId>) -> bool {
        let leader = self.leader();
        let mut members = leader.progress.values().flat_map(|progress| &progress.members);
        let is_open =
            |id: &ProcessId, answer: Option<Answer>| answer < Some(Answer::Recalled) && !sent.contains(id);
        members.any(|(id, (answer, _))| is_open(id, *answer) && leader.is_unfailed(*id))
    }

    /// Returns whether all that have to answer have answered.
    fn all_answered(&self, case: u64, answer: Answer) -> bool {
        let Some(progress) = self.leader().progress.get(&case) else { return false };
        !progress.missing(answer).into_iter().any(|id| self.has_to_answer(id))
    }

    /// Returns whether cases wait for a process: not if it has failed since, nor if its link does not count yet, because
    /// that it is dead is then not noticed, and it has neither sent nor received anything.
    fn has_to_answer(&self, id: ProcessId) -> bool {
        self.leader().is_unfailed(id) && (!self.is_listening(id) || self.has(Bug::UnheardAnswer))
    }

    /// Takes decided cases to their next stage.
    pub(super) fn advance_cases(&mut self) {
        for case in self.leader().derived.open.clone() {
            if self.leader().image.cases[&case].stage == Stage::Decided {
                self.suspect_slow_members(case);
                self.complete(case);
            } else {
                self.finish(case);
            }
        }
    }

    /// Suspects members that do not answer a notice, or whose callback does not return.
    fn suspect_slow_members(&mut self, case: u64) {
        let Some(progress) = self.leader().progress.get(&case) else { return };
        let is_slow = |(answer, since): (Option<Answer>, Nanos)| {
            answer != Some(Answer::Completed) && answer != Some(Answer::Noticed) && self.is_late(since)
        };
        let slow = progress.members.iter().filter(|&(&id, &state)| is_slow(state) && self.has_to_answer(id));
        let slow = slow.map(|(&id, _)| id).filter(|&id| !self.may_connect(NodeKey::Process(id)));
        let slow: Vec<_> = slow.collect();
        for id in slow {
            self.suspect_node(NodeKey::Process(id));
        }
    }

    /// Stores that a case is completed. No suspicion may be open, and no member may be busy with another case, because
    /// what leaves could be all that keeps a member's barrier below the time of that failure.
    fn complete(&mut self, case: u64) {
        let record = self.leader().image.cases[&case].clone();
        let failed: Vec<_> = record.failed.iter().map(|failed| failed.id).collect();
        let dead: BTreeSet<_> = record.dead.iter().copied().map(LinkId).collect();
        let answer = if self.has(Bug::ResumeBeforeCallback) { Answer::Noticed } else { Answer::Completed };
        let leader = self.leader();
        let own_alone = self.has(Bug::CompletedApart);
        let is_open = |number| (number == case || !own_alone) && !self.all_answered(number, answer);
        let waits = self.decided_cases().any(is_open)
            || leader.suspicion.is_some()
            || leader.writes.contains(Then::Links)
            || leader.writes.contains(Then::Completed(case))
            || !self.paths_without(&dead, &failed)
            || self.is_left_below(&failed);
        if waits {
            return;
        }
        let unmuted = self.unmuted(&dead, &failed);
        if !unmuted.is_empty() {
            let since = self.leader().progress.get(&case).map_or(self.now, |progress| progress.resuming);
            let late = unmuted.into_iter().flat_map(|switch| self.unmuted_reps(switch));
            let late = late.filter(|&node| self.is_overdue(node, since));
            return late.collect::<Vec<_>>().into_iter().for_each(|node| self.suspect_node(node));
        }
        let changes = self.departures(&dead, &failed);
        let record = CaseRecord { stage: Stage::Completed, ..record };
        let changes = changes.into_iter().chain([record.put_at(Key::Case(case))]).collect();
        self.write_last(case, changes, Then::Completed(case));
    }

    pub(super) fn completed_stored(&mut self, case: u64) {
        let now = self.now;
        let leader = self.leader_mut();
        leader.suspicion.take_if(|suspicion| suspicion.is_writing(case));
        let progress = Progress { members: BTreeMap::new(), resuming: now };
        leader.progress.insert(case, progress);
        self.refresh();
    }

    /// Stores that a case is closed, when all representatives have let its links leave.
    fn finish(&mut self, case: u64) {
        if self.leader().writes.contains(Then::Resumed(case)) || self.leader().suspicion_is_writing() {
            return;
        }
        self.refresh();
        let nodes = &self.leader().nodes;
        let is_needed = |node: &NodeKey| matches!(node, NodeKey::Rep(switch, _) if self.is_needed(*switch));
        let missing = nodes.iter().filter(|(node, state)| is_needed(node) && !state.is_settled());
        let missing: Vec<_> = missing.map(|(&node, _)| node).collect();
        let since = self.leader().progress.get(&case).map_or(Nanos(0), |progress| progress.resuming);
        if missing.iter().any(|&node| !self.is_overdue(node, since)) {
            return;
        }
        let record = CaseRecord { stage: Stage::Resumed, ..self.leader().image.cases[&case].clone() };
        self.leader_mut().writes.add(vec![record.put_at(Key::Case(case))], Then::Resumed(case));
        self.leader_mut().progress.remove(&case);
        for node in missing {
            self.suspect_node(node);
        }
    }

    /// Returns whether a representative leaves that may state barriers to one of these processes.
    fn is_left_below(&self, failed: &[ProcessId]) -> bool {
        let mut places = failed.iter().filter_map(|&id| self.graph.place(id));
        places.any(|place| self.leader().has_leaving(place.switch))
    }

    /// Returns the representatives of a switch that have not acknowledged their present states.
    fn unmuted_reps(&self, switch: u16) -> Vec<NodeKey> {
        let leader = self.leader();
        let nodes = leader.serving(switch).map(|seat| NodeKey::Rep(switch, seat));
        let mut nodes: Vec<_> = nodes.collect();
        if nodes.iter().any(|&node| !leader.is_settled(node)) {
            nodes.retain(|&node| !leader.is_settled(node));
        }
        nodes
    }

    /// Returns the switches that get barriers also when these links have left, and have not acknowledged yet that a
    /// failed process below gets none: it may not know that it has failed.
    fn unmuted(&self, dead: &BTreeSet<LinkId>, failed: &[ProcessId]) -> BTreeSet<u16> {
        if self.has(Bug::CompletedUnmuted) {
            return BTreeSet::new();
        }
        let counted = self.counted_without(dead, failed);
        let gets_barriers = |number: u16| {
            let switch = self.graph.switch(number);
            let inputs = [switch.up, switch.down].into_iter().flat_map(|node| self.graph.inputs(node));
            inputs.filter(|&&link| link != switch.loopback).any(|link| counted.contains(link))
        };
        let places = failed.iter().filter_map(|&id| self.graph.place(id));
        let places = places.filter(|place| gets_barriers(place.switch));
        // One that has no state yet states nothing; its first one mutes the link.
        let places = places.filter(|place| !self.is_registering(place.switch));
        places.filter(|place| !self.has_muted(place.down)).map(|place| place.switch).collect()
    }

    fn counted_without(&self, dead: &BTreeSet<LinkId>, failed: &[ProcessId]) -> BTreeSet<LinkId> {
        let leader = self.leader();
        let absent = |link: LinkId| {
            dead.contains(&link) || leader.image.links.get(&link.0) == Some(&LinkState::Absent)
        };
        self.graph.counted(|id| leader.takes_part(id) && !failed.contains(&id), absent)
    }

    /// Returns the changes by which links leave: dead ones, and those behind which no process takes part any more.
    pub(super) fn departures(&self, dead: &BTreeSet<LinkId>, failed: &[ProcessId]) -> Vec<Change> {
        let leader = self.leader();
        let absent = |link: LinkId| {
            dead.contains(&link) || leader.image.links.get(&link.0) == Some(&LinkState::Absent)
        };
        let counted = self.counted_without(dead, failed);
        let core = |link: LinkId| !self.is_access(link);
        let dead = dead.iter().filter(|&&link| core(link));
        let dead = dead.map(|link| LinkRecord { state: LinkState::Absent }.put_at(Key::Link(link.0)));
        let known = leader.image.links.iter().filter(|(_, state)| **state == LinkState::Relied);
        let lost = known
            .map(|(&link, _)| LinkId(link))
            .filter(|&link| !(counted.contains(&link) || absent(link) && core(link)));
        lost.map(|link| Key::Link(link.0).delete()).chain(dead).collect()
    }

    fn write_parts(&mut self, case: u64, mut changes: Vec<Change>) {
        // A part is written before the case: the links that stay connect all members without those of the part.
        while !changes.is_empty() {
            let rest = changes.split_off(changes.len().min(MAX_CHANGES));
            self.leader_mut().writes.add_part(changes, Then::Part(case));
            changes = rest;
        }
    }

    pub(super) fn write_last(&mut self, case: u64, mut changes: Vec<Change>, then: Then) {
        if changes.len() > MAX_CHANGES {
            let rest = changes.split_off(changes.len() - MAX_CHANGES);
            self.write_parts(case, changes);
            changes = rest;
        }
        self.leader_mut().writes.add(changes, then);
    }

    /// Returns whether every two members are connected by relied links, without those that leave.
    pub(super) fn paths_without(&self, leave: &BTreeSet<LinkId>, failed: &[ProcessId]) -> bool {
        let relied = self.leader().relied();
        let mut members = self.leader().members();
        members.retain(|id| !failed.contains(id));
        let good = |link: LinkId| relied.contains(&link) && !leave.contains(&link);
        self.graph.unconnected_pair(&members, good).is_none()
    }

    /// Returns whether a decided case is left which not all members have completed.
    pub(super) fn has_uncompleted_case(&self) -> bool {
        self.decided_cases().any(|number| !self.all_answered(number, Answer::Completed))
    }

    fn decided_cases(&self) -> impl Iterator<Item = u64> {
        let cases = self.leader().image.cases.iter();
        cases.filter(|(_, case)| case.stage == Stage::Decided).map(|(&number, _)| number)
    }
}

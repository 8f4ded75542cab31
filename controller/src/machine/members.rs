//! Processes: incarnations and admission.
//!
//! A process's link counts once it is heard in both directions: one that is dead would hold the commit barrier of
//! all others until it is found silent. It counts before the process may send. Only then is it known after which
//! time its messages may lie: above every barrier that any node has sent without waiting for it.

use super::writes::Then;
use super::{Alarm, Bug, Leader, Machine, NodeKey};
use crate::graph::LinkId;
use crate::record::{
    CaseRecord, Key, LinkRecord, LinkState, MemberRecord, MemberState, RecallRecord, RepState, Stage, Value,
};
use crate::store::MAX_CHANGES;
use onepipe::control::{Address, Boot, Incarnation, Message, Peer, Reason};
use onepipe::{ProcessId, Timestamp};
use std::collections::BTreeSet;
use switch::Nanos;

/// A process that is not admitted yet.
#[derive(Clone, Debug)]
pub(super) struct Join {
    phase: Phase,
    since: Nanos,
    /// Time since which the process has no connection, if it has none
    alone_since: Option<Nanos>,
    /// Whether the operator knows that the join waits
    alarmed: bool,
    /// Cases that the process has completed
    completed: BTreeSet<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Its link is not heard yet, and does not count
    Listening,
    /// Its link is about to count at all representatives
    Counting,
    /// Members learn of it
    Announcing { joined: u64, answered: BTreeSet<ProcessId> },
    /// New links are about to catch up
    Catching { joined: u64, answered: BTreeSet<ProcessId> },
}

impl Leader {
    fn peer(&self, id: ProcessId) -> Option<Peer> {
        let (incarnation, record) = self.image.member(id)?;
        Some(Peer { id, incarnation, qpn: record.qpn, address: record.address })
    }

    /// Returns whether a case is open, so that joins wait.
    pub(super) fn has_open_case(&self) -> bool {
        self.suspicion.is_some() || !self.derived.open.is_empty()
    }
}

impl Machine {
    /// Goes on with joins that an earlier leader has begun.
    pub(super) fn resume_joins(&mut self) {
        let leader = self.leader();
        let joining: Vec<_> = leader
            .unfailed()
            .into_iter()
            .filter(|&id| leader.state(id) == Some(MemberState::Joining))
            .collect();
        for id in joining {
            self.start_join(id);
            self.resend_notices(id);
        }
    }

    fn start_join(&mut self, id: ProcessId) {
        let since = self.now;
        let completed = BTreeSet::new();
        let join = Join { phase: Phase::Listening, since, alone_since: None, alarmed: false, completed };
        self.leader_mut().joins.insert(id, join);
    }

    /// Returns whether a process is joining whose link is not heard yet, so that it does not count. Members do not know
    /// of the process.
    pub(super) fn is_listening(&self, id: ProcessId) -> bool {
        let leader = self.leader();
        let absent = |link: LinkId| leader.image.links.get(&link.0) == Some(&LinkState::Absent);
        leader.state(id) == Some(MemberState::Joining)
            && self.graph.place(id).is_some_and(|place| absent(place.up) || absent(place.down))
    }

    /// Records that a process has completed a case, which matters while it joins.
    pub(super) fn note_completed(&mut self, id: ProcessId, case: u64) {
        if let Some(join) = self.leader_mut().joins.get_mut(&id) {
            join.completed.insert(case);
        }
    }

    /// Returns the cases that did not wait for a joining process, and that it has not completed. It may have been given
    /// what failed in them as members.
    pub(super) fn unknown_cases(&self, id: ProcessId) -> Vec<u64> {
        let leader = self.leader();
        let record = leader.image.member(id).map(|(_, record)| record);
        let record = record.filter(|record| record.state == MemberState::Joining && record.since > 0);
        let (Some(join), Some(record)) = (leader.joins.get(&id), record) else { return Vec::new() };
        if self.has(Bug::UnheardUninformed) {
            return Vec::new();
        }
        let is_over = |record: &CaseRecord| record.stage != Stage::Decided && !record.failed.is_empty();
        let later = leader.image.cases.range(record.since..);
        let over = later.filter(|(case, record)| is_over(record) && !join.completed.contains(case));
        over.map(|(&case, _)| case).collect()
    }

    /// Returns whether a process's clock shows about the time of this controller's, and refuses the process if not.
    /// Its commit values would be wrong by as much, and delay everybody.
    pub(super) fn has_right_clock(&mut self, id: ProcessId, clock: Option<Timestamp>) -> bool {
        let off = clock.map_or(0, |clock| clock.distance(Timestamp::new(self.clock)));
        // Its message may have been on its way for as long as an answer may take; but one that was slow before has to
        // show the right time.
        let delay = if self.leader().clocks.is_slow(id) { 0 } else { self.config.respond_within.0 };
        let is_right = off.unsigned_abs() <= self.config.ahead_max.0 + delay;
        if is_right {
            self.leader_mut().clocks.forgive(id);
        } else {
            self.alarm(Alarm::Clock(id, off));
            self.send(NodeKey::Process(id), Message::Refused { reason: Reason::Clock });
        }
        is_right
    }

    pub(super) fn register(&mut self, id: ProcessId, boot: Boot, address: Address, topology: u64) {
        let node = NodeKey::Process(id);
        let wait = |reason| Message::Wait { reason, of: id.0 };
        if topology != self.config.network {
            self.alarm(Alarm::OtherTopology(node));
            return self.send(node, Message::Refused { reason: Reason::OtherTopology });
        }
        let Some(place) = self.graph.place(id) else {
            self.alarm(Alarm::Unknown(node));
            return self.send(node, Message::Refused { reason: Reason::Unknown });
        };
        if self.leader().writes.contains(Then::Joining(id)) || self.leader().writes.has_recalls() {
            // The process asks again.
            return;
        }
        let previous =
            self.leader().image.member(id).map(|(incarnation, record)| (incarnation, record.clone()));
        let mut joined = 0;
        let mut changes = Vec::new();
        if let Some((incarnation, record)) = previous {
            let living = matches!(record.state, MemberState::Joining | MemberState::Member);
            if living && record.boot == boot {
                return self.resend(node);
            }
            // Nothing depends on an incarnation that no member knows.
            let living = living && !self.is_listening(id);
            if living && !self.is_silent(place.up) {
                self.alarm(Alarm::Living(id));
                return self.send(node, Message::Refused { reason: Reason::Living });
            }
            let resumed = |case: u64| {
                self.leader().image.cases.get(&case).is_none_or(|case| case.stage == Stage::Resumed)
            };
            if living || !resumed(record.case) || self.leader().has_open_case() {
                return self.send(node, wait(Reason::Case));
            }
            if record.state == MemberState::Failed && record.boot == boot {
                // It still has its memory: it has to recover first.
                return self.resend(node);
            }
            joined = record.joined.max(record.time);
            if record.state != MemberState::Left {
                changes = self.bury(id, incarnation, &record);
            }
        } else if self.leader().has_open_case() {
            return self.send(node, wait(Reason::Case));
        }
        if changes.len() > MAX_CHANGES - 4 {
            // Recalls of the previous incarnation go first; the process asks again.
            changes.truncate(MAX_CHANGES);
            self.leader_mut().writes.add(changes, Then::Forgotten);
            return self.send(node, wait(Reason::Undecided));
        }
        let unheard = self.has(Bug::UnheardCounts);
        let writes = &mut self.leader_mut().writes;
        let qpn = writes.queue_pairs(1);
        let (incarnation, next) = writes.incarnation();
        let record = MemberRecord {
            state: MemberState::Joining,
            qpn,
            boot,
            address,
            joined,
            since: writes.next.case,
            time: 0,
            case: 0,
            delivered: 0,
            recalls: 0,
        };
        changes.extend([record.put_at(Key::Member(id, incarnation)), next]);
        let state = LinkRecord { state: LinkState::Absent };
        let counts = |link: LinkId| Key::Link(link.0).delete();
        let listens = |link: LinkId| state.put_at(Key::Link(link.0));
        changes.extend([place.up, place.down].map(|link| if unheard { counts(link) } else { listens(link) }));
        writes.add(changes, Then::Joining(id));
    }

    /// Returns the changes by which nothing of an incarnation is needed any more; the last one is that of its
    /// own record.
    pub(super) fn bury(
        &self,
        id: ProcessId,
        incarnation: Incarnation,
        record: &MemberRecord,
    ) -> Vec<crate::store::Change> {
        let recalls = self.leader().image.recalls.get(&(id, incarnation));
        let key = |&(from, of, first): &(ProcessId, Incarnation, u32)| {
            Key::Recall(id, incarnation, from, of, first)
        };
        let recalls =
            recalls.into_iter().flat_map(|recalls| recalls.keys()).map(|recall| key(recall).delete());
        let gone = MemberRecord { state: MemberState::Gone, recalls: 0, ..record.clone() };
        recalls.chain([gone.put_at(Key::Member(id, incarnation))]).collect()
    }

    pub(super) fn joining_stored(&mut self, id: ProcessId) {
        self.forget_node(NodeKey::Process(id));
        self.start_join(id);
        // Its incarnation first: a node takes a state of its own incarnation only.
        self.resend_member(id);
        self.refresh();
    }

    /// Sends a process its incarnation, and whether it is a member.
    pub(super) fn resend_member(&mut self, id: ProcessId) {
        let leader = self.leader();
        let Some((incarnation, record)) = leader.image.member(id) else { return };
        let (state, joined, case, time) = (record.state, record.joined, record.case, record.time);
        let (boot, qpn) = (record.boot, record.qpn);
        let members = leader.members().into_iter().filter_map(|id| leader.peer(id)).collect();
        let node = NodeKey::Process(id);
        match state {
            MemberState::Joining | MemberState::Member => {
                self.send(node, Message::Welcome { boot, incarnation, qpn, members });
                if state == MemberState::Member {
                    self.send(node, Message::Admitted { after: Self::timestamp(joined) });
                }
                self.announce_to(id);
            }
            MemberState::Failed => self.send(node, Message::YouFailed { case, time: Timestamp::new(time) }),
            MemberState::Left => self.send(node, Message::Left { id, incarnation }),
            MemberState::Gone => {}
        }
    }

    /// Tells a member about the processes that are being announced.
    pub(super) fn announce_to(&mut self, id: ProcessId) {
        let leader = self.leader();
        let announcing =
            leader.joins.iter().filter(|(_, join)| matches!(join.phase, Phase::Announcing { .. }));
        let peers: Vec<_> = announcing.filter_map(|(&joining, _)| leader.peer(joining)).collect();
        for peer in peers.into_iter().filter(|peer| peer.id != id) {
            self.send(NodeKey::Process(id), Message::MemberUp { peer });
        }
    }

    pub(super) fn member_ack(
        &mut self,
        from: ProcessId,
        of: ProcessId,
        incarnation: Incarnation,
        barrier: Option<Timestamp>,
    ) {
        let barrier = self.time(barrier);
        if self.incarnation(NodeKey::Process(of)) != Some(incarnation)
            || !self.plausible(NodeKey::Process(from), [barrier])
        {
            return;
        }
        let join = self.leader_mut().joins.get_mut(&of);
        if let Some(Join { phase: Phase::Announcing { joined, answered }, .. }) = join {
            *joined = (*joined).max(barrier);
            answered.insert(from);
        }
    }

    /// Has joins begin again, as what counts has changed.
    pub(super) fn restart_joins(&mut self) {
        let counting = self.leader_mut().joins.values_mut().filter(|join| join.phase != Phase::Listening);
        counting.for_each(|join| join.phase = Phase::Counting);
    }

    /// Takes joins to their next phase. They wait while a case is open, and restart after it.
    pub(super) fn advance_joins(&mut self) {
        if self.leader().has_open_case() {
            return self.restart_joins();
        }
        let joining: Vec<_> = self.leader().joins.keys().copied().collect();
        if joining.is_empty() {
            return;
        }
        // The desired states have to be those of all joins.
        self.refresh();
        let settled = self.reps_settled();
        for id in joining {
            if self.leader().state(id) != Some(MemberState::Joining) {
                self.leader_mut().joins.remove(&id);
                continue;
            }
            let phase = self.leader().joins[&id].phase.clone();
            let next = match phase {
                Phase::Listening => self.listen(id),
                Phase::Counting => self.count(id, settled),
                Phase::Announcing { joined, answered } => {
                    let members = self.leader().members();
                    members
                        .iter()
                        .all(|member| answered.contains(member))
                        .then_some(Phase::Catching { joined, answered })
                }
                Phase::Catching { joined, answered } => self.catch_up(id, joined, answered),
            };
            if let Some(next) = next {
                let announcing = matches!(next, Phase::Announcing { .. });
                self.leader_mut().joins.get_mut(&id).expect("it is there").phase = next;
                if announcing {
                    for member in self.leader().members() {
                        self.announce_to(member);
                    }
                }
            }
        }
    }

    /// Admits a process, or returns the phase before if others have become members since: they do not know it, and
    /// their barriers bound its messages, too.
    fn catch_up(&mut self, id: ProcessId, joined: u64, answered: BTreeSet<ProcessId>) -> Option<Phase> {
        if self.leader().writes.is_admitting() {
            return None;
        }
        if self.leader().members().iter().all(|member| answered.contains(member)) {
            self.admit(id, joined);
            return None;
        }
        Some(Phase::Announcing { joined, answered })
    }

    /// Returns the next phase if a process's link is heard, and the process knows of all failures since it was given the
    /// members.
    fn listen(&mut self, id: ProcessId) -> Option<Phase> {
        if !self.is_listening(id) && self.unknown_cases(id).is_empty() {
            // What nodes have acknowledged has to be later than this.
            self.leader_mut().epoch += 1;
            return Some(Phase::Counting);
        }
        let (node, now) = (NodeKey::Process(id), self.now);
        if self.is_listening(id) && self.is_late_join(id) {
            self.alarm(Alarm::JoinUnheard(id));
            self.send(node, Message::Wait { reason: Reason::NoPath, of: id.0 });
        }
        let is_alone = !self.up.contains(&node);
        let join = self.leader_mut().joins.get_mut(&id).expect("it is there");
        join.alone_since = is_alone.then(|| join.alone_since.unwrap_or(now));
        if let Some(since) = join.alone_since
            && self.is_overdue(node, since)
        {
            // What is stored for it would stay for ever.
            self.suspect_node(node);
        }
        None
    }

    /// Returns whether a join has waited for long; once.
    fn is_late_join(&mut self, id: ProcessId) -> bool {
        let late = self.is_late(self.leader().joins[&id].since);
        let join = self.leader_mut().joins.get_mut(&id).expect("it is there");
        late && !core::mem::replace(&mut join.alarmed, true)
    }

    /// Returns the next phase if a process's link counts everywhere.
    fn count(&mut self, id: ProcessId, settled: Result<(), u16>) -> Option<Phase> {
        if let Err(switch) = settled {
            if self.is_late_join(id) {
                self.alarm(Alarm::JoinWaits(switch));
                self.send(
                    NodeKey::Process(id),
                    Message::Wait { reason: Reason::Representative, of: switch.into() },
                );
            }
            return None;
        }
        if !self.leader().is_settled(NodeKey::Process(id)) {
            return None;
        }
        if !self.is_connected(id) {
            return None;
        }
        let acked = self.leader().nodes.values().filter_map(|state| state.acked.as_ref());
        let values = acked.flat_map(|acked| acked.outputs.into_iter().chain(acked.raws.values().copied()));
        let earlier = self.leader().image.member(id).map_or(0, |(_, record)| record.joined);
        // What representatives have stated that are retired
        let reps = self.leader().image.reps.values().filter(|rep| rep.state == RepState::Active);
        let values = values.chain(reps.flat_map(|rep| [rep.up, rep.down]));
        let joined = values.chain([earlier, self.recent()]).max().unwrap_or(0);
        Some(Phase::Announcing { joined, answered: BTreeSet::new() })
    }

    /// Returns whether a joining process and all members reach each other over links that count and are not
    /// silent. Members that know of it may send to it, and wait for its acknowledgement: one that is beyond a dead
    /// link would stop them.
    fn is_connected(&self, id: ProcessId) -> bool {
        let (leader, counted) = (self.leader(), self.counted());
        let mut members = leader.members();
        members.push(id);
        let usable = |link: LinkId| counted.contains(&link) && !self.is_silent(link);
        self.graph.unconnected_pair(&members, usable).is_none()
    }

    /// Writes the admission of a process, if all members are connected with it by relied links.
    fn admit(&mut self, id: ProcessId, joined: u64) {
        let leader = self.leader();
        let place = self.graph.place(id).expect("registered");
        if leader.writes.contains(Then::Links) || leader.writes.has_departure() {
            return;
        }
        let mut relied = leader.relied();
        relied.insert(place.down);
        let mut members = leader.members();
        members.push(id);
        let missing = self.graph.unconnected_pair(&members, |link| relied.contains(&link));
        if missing.is_some() {
            return;
        }
        let (incarnation, record) = leader.image.member(id).expect("registered");
        let since = leader.writes.next.case;
        let record = MemberRecord { state: MemberState::Member, joined, since, ..record.clone() };
        let down = LinkRecord { state: LinkState::Relied }.put_at(Key::Link(place.down.0));
        let changes = vec![record.put_at(Key::Member(id, incarnation)), down];
        self.leader_mut().writes.add(changes, Then::Admitted(id));
    }

    pub(super) fn admitted_stored(&mut self, id: ProcessId) {
        self.leader_mut().joins.remove(&id);
        let leader = self.leader();
        let Some((_, record)) = leader.image.member(id) else { return };
        let after = Self::timestamp(record.joined);
        let peers: Vec<_> = leader.members().into_iter().filter_map(|member| leader.peer(member)).collect();
        let node = NodeKey::Process(id);
        for peer in peers.into_iter().filter(|peer| peer.id != id) {
            self.send(node, Message::MemberUp { peer });
        }
        self.send(node, Message::Admitted { after });
        self.announce_to(id);
    }

    /// Returns the change that stores a recall.
    pub(super) fn recall_change(
        to: (ProcessId, Incarnation),
        from: (ProcessId, Incarnation),
        first: u32,
        record: &RecallRecord,
    ) -> crate::store::Change {
        record.put_at(Key::Recall(to.0, to.1, from.0, from.1, first))
    }
}

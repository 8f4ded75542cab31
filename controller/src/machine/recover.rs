//! Recalls for failed receivers, and recovery of a failed process that still has its memory.

use super::writes::Then;
use super::{Leader, Machine, NodeKey};
use crate::record::{Key, MemberRecord, MemberState, RecallRecord, Stage, Value};
use crate::store::MAX_CHANGES;
use onepipe::control::{Failed, Incarnation, Message, MissedNotice, Reason, Recall, StoredRecall};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Recalls and failures per page of a reply
const PAGE: usize = 1_000;

/// A process that asks for what it has missed.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    incarnation: Incarnation,
    case_done: u64,
    held_max: u64,
    /// Barriers of members
    barriers: BTreeMap<ProcessId, u64>,
}

impl Machine {
    /// Stores a batch of recalls, before their sender may count them as done.
    pub(super) fn store_recalls(&mut self, id: ProcessId, batch: u32, recalls: &[StoredRecall]) {
        let Some(incarnation) = self.incarnation(NodeKey::Process(id)) else { return };
        let then = Then::Recalls(id, incarnation, batch);
        let writes = &self.leader().writes;
        let ends = |to| writes.contains(Then::Recovered(to)) || writes.contains(Then::Joining(to));
        if writes.contains(then) || recalls.iter().any(|recall| ends(recall.to)) {
            // The sender repeats the batch.
            return;
        }
        let mut changes = Vec::new();
        let mut counts = BTreeMap::<_, u32>::new();
        for recall in recalls {
            let to = (recall.to, recall.incarnation);
            let image = &self.leader().image;
            let Some(member) = image.members.get(&to) else { continue };
            let known = image
                .recalls
                .get(&to)
                .is_some_and(|recalls| recalls.contains_key(&(id, incarnation, recall.first)));
            let count = counts.entry(to).or_insert(member.recalls);
            // Above the limit the receiver cannot recover, and its recalls are of no use.
            if member.state != MemberState::Failed || *count > self.config.max_recalls {
                continue;
            }
            *count += u32::from(!known);
            let record = RecallRecord { time: self.time(recall.time), last: recall.last };
            changes.push(Self::recall_change(to, (id, incarnation), recall.first, &record));
        }
        for (to, recalls) in counts {
            let member = self.leader().image.members[&to].clone();
            if member.state == MemberState::Failed && member.recalls != recalls {
                changes.push(MemberRecord { recalls, ..member }.put_at(Key::Member(to.0, to.1)));
            }
        }
        let writes = &mut self.leader_mut().writes;
        while changes.len() > MAX_CHANGES {
            let rest = changes.split_off(MAX_CHANGES);
            writes.add_part(changes, Then::SomeRecalls);
            changes = rest;
        }
        writes.add(changes, then);
    }

    pub(super) fn recalls_stored(&mut self, id: ProcessId, incarnation: Incarnation, batch: u32) {
        if self.incarnation(NodeKey::Process(id)) == Some(incarnation) {
            self.send(NodeKey::Process(id), Message::RecallsStored { batch });
        }
    }

    pub(super) fn recover(&mut self, id: ProcessId, case_done: u64, held_max: Option<Timestamp>) {
        let Some((incarnation, member)) = self.leader().image.member(id) else { return };
        let (state, recalls) = (member.state, member.recalls);
        if state != MemberState::Failed || recalls > self.config.max_recalls {
            let reason = Reason::Forgotten;
            return self.send(NodeKey::Process(id), Message::Refused { reason });
        }
        let held_max = self.time(held_max);
        let recovery = Recovery { incarnation, case_done, held_max, barriers: BTreeMap::new() };
        self.leader_mut().recoveries.insert(id, recovery);
        self.ask_members();
    }

    fn ask_members(&mut self) {
        for member in self.leader().members() {
            self.send(NodeKey::Process(member), Message::Progress {});
        }
    }

    pub(super) fn progress_reply(&mut self, id: ProcessId, barrier: Option<Timestamp>) {
        let barrier = self.time(barrier);
        if !self.plausible(NodeKey::Process(id), [barrier]) {
            return;
        }
        for recovery in self.leader_mut().recoveries.values_mut() {
            recovery.barriers.insert(id, barrier);
        }
    }

    /// Answers processes whose messages are all decided: every member's barrier has passed all that they hold
    /// and all that they may have delivered, and every sender among the failed has its time.
    pub(super) fn advance_recoveries(&mut self) {
        let Leader { image, recoveries, .. } = self.leader_mut();
        // A request that was repeated may have come after its process has recovered and joined again.
        recoveries.retain(|&id, recovery| {
            let failed = |(incarnation, member): (Incarnation, &MemberRecord)| {
                (incarnation, member.state) == (recovery.incarnation, MemberState::Failed)
            };
            image.member(id).is_some_and(failed)
        });
        let leader = self.leader();
        if leader.recoveries.is_empty() || leader.suspicion.is_some() {
            return;
        }
        let members: BTreeSet<_> = leader.members().into_iter().collect();
        let mut ready = Vec::new();
        let mut stale = false;
        for (&id, recovery) in &leader.recoveries {
            let Some((_, member)) = leader.image.member(id) else { continue };
            let passed = recovery.held_max.max(member.delivered);
            let known: Option<Vec<u64>> =
                members.iter().map(|id| recovery.barriers.get(id).copied()).collect();
            let Some(known) = known else { continue };
            match known.into_iter().min() {
                None => ready.push((id, None)),
                Some(least) if least >= passed => ready.push((id, Some(least))),
                Some(_) => stale = true,
            }
        }
        if stale {
            // Ask again: barriers rise.
            self.leader_mut().recoveries.values_mut().for_each(|recovery| recovery.barriers.clear());
            self.ask_members();
        }
        for (id, until) in ready {
            let recovery = self.leader_mut().recoveries.remove(&id).expect("just found");
            self.reply(id, recovery.case_done, until);
        }
    }

    fn reply(&mut self, id: ProcessId, case_done: u64, until: Option<u64>) {
        let image = &self.leader().image;
        let Some((incarnation, member)) = image.member(id) else { return };
        // Cases of before its time are not about messages that it may hold.
        let first = case_done.max(member.since.saturating_sub(1)) + 1;
        let missed = image.cases.range(first..).filter(|(_, case)| !case.failed.is_empty());
        let notices: Vec<_> = missed
            .map(|(&case, record)| match Self::notice(case, record) {
                Message::Notice { case, failed } => MissedNotice { case, failed },
                _ => MissedNotice { case, failed: Vec::<Failed>::new() },
            })
            .collect();
        let recalls = image.recalls.get(&(id, incarnation)).into_iter().flatten();
        let recalls: Vec<_> = recalls
            .map(|(&(from, incarnation, first), record)| Recall {
                from,
                incarnation,
                time: Self::timestamp(record.time),
                first,
                last: record.last,
            })
            .collect();
        let until = until.and_then(Self::timestamp);
        let pages = recalls.len().div_ceil(PAGE).max(notices.len().div_ceil(PAGE)).max(1);
        let part = |page: usize, len: usize| (page * PAGE).min(len)..((page + 1) * PAGE).min(len);
        for page in 0..pages {
            let message = Message::RecoverReply {
                page: page as u16,
                last: page + 1 == pages,
                until,
                notices: notices[part(page, notices.len())].to_vec(),
                recalls: recalls[part(page, recalls.len())].to_vec(),
            };
            self.send(NodeKey::Process(id), message);
        }
    }

    /// Forgets a process that has recovered; it may register again then.
    pub(super) fn recovered(&mut self, id: ProcessId) {
        let Some((incarnation, member)) = self.leader().image.member(id) else { return };
        let record = member.clone();
        let resumed =
            self.leader().image.cases.get(&record.case).is_none_or(|case| case.stage == Stage::Resumed);
        if record.state != MemberState::Failed
            || !resumed
            || self.leader().suspicion.is_some()
            || self.leader().writes.has_recalls()
        {
            return;
        }
        let mut changes = self.bury(id, incarnation, &record);
        // Recalls go first; the process repeats its message until the last part is stored.
        let then = if changes.len() > MAX_CHANGES { Then::Forgotten } else { Then::Recovered(id) };
        changes.truncate(MAX_CHANGES);
        self.leader_mut().writes.add(changes, then);
    }

    pub(super) fn recovered_stored(&mut self, id: ProcessId) {
        self.forget_node(NodeKey::Process(id));
    }
}

//! Leadership: permissions, agreement with what earlier leaders left, and replication.
//!
//! 1. The candidate requests permission to write its log from every other server, in a new term of its own. A
//!    server that grants it revokes the permission of any earlier leader. A majority of members, including
//!    the candidate, is enough.
//! 2. Then the logs of these members are read. The READs are posted after the last of these permissions was
//!    granted, so that all of them were in force at one moment, and none is from a server that has lost its
//!    memory since. Decided entries are taken over. Of entries that may have been decided, the value of the
//!    latest term is taken: if a value was decided, every later leader has seen it, and has written no other
//!    value.
//! 3. Each log is brought to the same content. An entry with the right value is not rewritten, except for its
//!    term and hash, which one packet carries: a copy of a value that may be decided is never torn.
//! 4. New values are written after that, and are decided when f other members hold them.

use super::Server;
use super::group::Group;
use super::watch::Membership;
use crate::agreement::{Log, agree_on_log, local_entry_data, store_entry};
use crate::config::{Bug, ProposeError};
use crate::follower::{Follower, Request, Stage};
use crate::hello::{Grant, Purpose};
use crate::log::{DECIDED, Entry, Term};
use crate::resources::{Outgoing, log_scratch, log_scratch_va};
use rnic::{Completion, CompletionOpcode, Data, Operation, Remote, Rnic, SendRequest, Sge};
use rocev2::Qpn;
use switch::Nanos;

/// Heartbeats for which a candidate waits for a majority
const CANDIDACY_HEARTBEATS: u64 = 60;
/// Heartbeats after which a lost server is contacted again
const RETRY_HEARTBEATS: u64 = 5;

/// State of a candidate or leader.
#[derive(Debug)]
pub(super) struct Leadership {
    term: Term,
    pub(super) since: Nanos,
    /// Followers by server number; the entry of this server stays `Absent`
    pub(super) followers: Vec<Follower>,
    /// Number of the current read round, incremented when a permission is lost while logs are read
    batch: u64,
    /// Index of the next value, once a majority has agreed
    pub(super) next: Option<u64>,
    /// Number of the latest round of permission checks
    pub(super) checks: u64,
    /// Number of entries that the available snapshot includes, and its length in bytes
    pub(super) snapshot: Option<(u64, usize)>,
    /// The group of the switch
    pub(super) group: Option<Group>,
    /// Earliest time of the next request for a group
    pub(super) group_at: Nanos,
}

impl Leadership {
    pub(super) fn is_established(&self) -> bool {
        self.next.is_some()
    }

    pub(super) fn links(&self) -> Vec<Outgoing> {
        self.followers.iter().filter_map(|follower| follower.link).collect()
    }

    fn member_count(&self) -> usize {
        self.followers.iter().filter(|follower| follower.counts()).count()
    }

    /// Returns the servers that count, and whether others are about to.
    pub(super) fn counting_members(&self) -> (Vec<u8>, bool) {
        let all = || (0..).zip(&self.followers);
        let about_to =
            |follower: &Follower| !matches!(follower.stage, Stage::Absent(_)) && !follower.counts();
        let counting = all().filter(|(_, follower)| follower.counts());
        (counting.map(|(server, _)| server).collect(), all().any(|(_, follower)| about_to(follower)))
    }

    pub(super) fn has_counted_for(&self, server: u8, now: Nanos, span: Nanos) -> bool {
        let follower = &self.followers[usize::from(server)];
        follower.counts() && now.since(follower.active_at) >= span
    }
}

impl Server {
    pub(super) fn start_candidacy(&mut self, nic: &mut Rnic, now: Nanos) {
        // Entries that have arrived are applied before the permissions change.
        self.deliver_decided(nic);
        // There is no term after the last one; no server accepts a term that is close to it.
        let Some(term) = self.latest_term().next_of(self.config.id, self.config.incarnation) else { return };
        // From now on no other server can write the local log, either.
        self.fence(nic, now);
        self.promised = term;
        self.leadership = Some(Leadership {
            term,
            since: now,
            followers: vec![Follower::absent(now); self.config.servers.len()],
            batch: 0,
            next: None,
            checks: 0,
            snapshot: None,
            group: None,
            group_at: now,
        });
    }

    /// Advances a candidacy or leadership: gives up without a majority, and sends everything that is due.
    pub(super) fn lead(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(leadership) = &self.leadership else { return };
        let late = now.since(leadership.since) > self.heartbeats(CANDIDACY_HEARTBEATS);
        if late && leadership.member_count() < self.config.quorum() {
            // A candidate without a majority, or a leader that lost it, gives up.
            self.step_down(nic, now);
            return;
        }
        if leadership.is_established() && self.rejected_term > leadership.term {
            // A follower promised a higher term, perhaps its own, and would reject ours forever.
            self.step_down(nic, now);
            self.start_candidacy(nic, now);
        }
        for server in self.peers() {
            let Some(leadership) = &self.leadership else { return };
            let (term, follower) = (leadership.term, leadership.followers[usize::from(server)]);
            let timed_out = follower.stage == Stage::Requested
                && follower
                    .link
                    .is_some_and(|link| link.is_older_than(now, self.heartbeats(RETRY_HEARTBEATS)));
            if timed_out {
                self.drop_link(nic, follower.link);
            } else if matches!(follower.stage, Stage::Active | Stage::Wanting)
                && !self.watch.is_alive(server)
                && let Some(link) = follower.link
            {
                // A follower that is written to only through the switch may not be missed otherwise.
                self.on_follower_lost(nic, server, link.qpn, now);
                self.drop_link(nic, Some(link));
                continue;
            }
            let due = matches!(follower.stage, Stage::Absent(at) if at <= now && self.watch.is_alive(server));
            if timed_out || due {
                let link = self.connect_to(nic, server, Purpose::Write(term), now);
                let again = now + self.heartbeats(RETRY_HEARTBEATS);
                let stage = if link.is_some() { Stage::Requested } else { Stage::Absent(again) };
                self.follower(server, |follower| (follower.link, follower.stage) = (link, stage));
            }
        }
        self.read_logs(nic, now);
        self.maintain_group(nic, now);
        self.replicate(nic);
    }

    pub(super) fn follower<R>(&mut self, server: u8, act: impl FnOnce(&mut Follower) -> R) -> Option<R> {
        Some(act(self.leadership.as_mut()?.followers.get_mut(usize::from(server))?))
    }

    /// Handles a granted permission.
    pub(super) fn on_granted(&mut self, nic: &mut Rnic, server: u8, qpn: Qpn, grant: Option<Grant>) {
        let len = self.config.layout.memory_len() as u64;
        let Some(grant) = grant.filter(|grant| grant.region.size() == len) else { return };
        let is_member = grant.is_member || self.config.has_bug(Bug::CountsBlank);
        self.follower(server, |follower| {
            if let Some(link) = follower.link.as_mut().filter(|link| link.qpn == qpn) {
                link.remote = Some(grant.region);
                let link = follower.link;
                *follower = Follower {
                    link,
                    stage: Stage::Granted,
                    incarnation: grant.incarnation,
                    is_member,
                    applied: grant.applied,
                    valid_from: grant.valid_from,
                    ..Follower::absent(Nanos::ZERO)
                };
            }
        });
        self.publish(nic);
    }

    /// Reads the logs of the servers that granted permission. Before there is a leader, the logs of a
    /// majority are read at the same time.
    fn read_logs(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(leadership) = &mut self.leadership else { return };
        let established = leadership.is_established();
        let reads = |follower: &Follower| matches!(follower.stage, Stage::Reading | Stage::Read);
        let has_granted =
            |follower: &Follower| follower.stage == Stage::Granted && (established || follower.is_member);
        let granted: Vec<u8> = (0..)
            .zip(&leadership.followers)
            .filter(|(_, one)| has_granted(one))
            .map(|(server, _)| server)
            .collect();
        if !established {
            if leadership.followers.iter().any(reads) || granted.len() < self.config.quorum() {
                return;
            }
            if granted.is_empty() {
                // The group has one server, which is a majority.
                return self.agree(nic, now);
            }
        }
        let request = Request::Read(leadership.batch);
        let len = self.config.layout.log_len() as u32;
        let Some(mr) = self.resources.as_ref().map(|resources| resources.scratch.1) else { return };
        for server in granted {
            let va = log_scratch_va(&self.config, server);
            self.follower(server, |follower| {
                let Some((qpn, region)) = follower.link.and_then(|link| Some((link.qpn, link.remote?)))
                else {
                    return;
                };
                let read = Operation::Read(Remote { va: region.va(), rkey: region.rkey() });
                let into = Data::Memory(Sge { mr, va, len });
                if nic.post_send(qpn, SendRequest::new(request.to_id(), read, into)).is_ok() {
                    follower.stage = Stage::Reading;
                }
            });
        }
    }

    pub(super) fn on_follower_lost(&mut self, nic: &mut Rnic, server: u8, qpn: Qpn, now: Nanos) {
        let again = now + self.heartbeats(RETRY_HEARTBEATS);
        let again = if self.config.has_bug(Bug::LosesFollower) { Nanos(u64::MAX) } else { again };
        let stage = self.follower(server, |follower| {
            let stage = follower.stage;
            follower.link.is_some_and(|link| link.qpn == qpn).then(|| {
                *follower = Follower::absent(again);
                stage
            })
        });
        let Some(stage) = stage.flatten() else { return };
        let Some(leadership) = &mut self.leadership else { return };
        // When the server returns, it gets its entries directly at first.
        if let Some(group) = leadership.group.as_mut().filter(|group| group.members.contains(&server)) {
            if !group.is_open() {
                return self.abandon_group(nic, now);
            }
            group.members.retain(|member| *member != server);
        }
        if !leadership.is_established() && matches!(stage, Stage::Reading | Stage::Read) {
            // The lost permission may have ended before the others began: all logs are read again, and
            // completions of READs that are in flight do not count.
            leadership.batch += 1;
            for follower in &mut leadership.followers {
                if matches!(follower.stage, Stage::Reading | Stage::Read) {
                    follower.stage = Stage::Granted;
                }
            }
            self.read_logs(nic, now);
        }
    }

    /// Handles a completed work request to a follower.
    pub(super) fn on_follower(&mut self, nic: &mut Rnic, server: u8, done: &Completion, now: Nanos) {
        let Some(leadership) = &self.leadership else { return };
        match Request::from_id(done.id) {
            Request::Read(batch) if done.opcode == CompletionOpcode::Read && batch == leadership.batch => {
                self.follower(server, |follower| follower.stage = Stage::Read);
                self.agree(nic, now);
            }
            Request::Entries(next) => {
                self.follower(server, |follower| follower.held = follower.held.max(next));
                self.decide(nic);
            }
            Request::Check(round) => {
                self.follower(server, |follower| follower.check_completed = round);
                self.admit_checked(nic);
            }
            Request::Snapshot => _ = self.follower(server, |follower| follower.loading = false),
            Request::Admission => {
                self.follower(server, |follower| (follower.is_member, follower.active_at) = (true, now));
            }
            Request::Read(_) | Request::Commit => {}
        }
    }

    /// Handles a log that was read. When enough logs have been read for the first time, brings them into
    /// agreement.
    fn agree(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(leadership) = &self.leadership else { return };
        let read: Vec<u8> = self
            .peers()
            .filter(|server| leadership.followers[usize::from(*server)].stage == Stage::Read)
            .collect();
        let term = leadership.term;
        if leadership.next.is_none() {
            if read.len() < self.config.quorum() {
                return;
            }
            let Some(resources) = &self.resources else { return };
            let log = |server: &u8| {
                let Follower { applied, valid_from, .. } = leadership.followers[usize::from(*server)];
                Log { server: *server, applied, valid_from }
            };
            let logs: Vec<_> = read.iter().map(log).collect();
            let Some((next, decided)) = agree_on_log(nic, &self.config, resources, &logs, self.applied, term)
            else {
                // Another server has to lead, and write here what is lacking.
                self.membership = Membership::Behind;
                self.step_down(nic, now);
                return;
            };
            self.decided = decided;
            if let Some(leadership) = &mut self.leadership {
                leadership.next = Some(next);
            }
        }
        for server in read {
            self.bring_up_to_date(nic, server, now);
        }
        self.read_logs(nic, now);
    }

    /// Writes what a server's log lacks: from its first entry that is not known to be decided, or from a
    /// snapshot.
    pub(super) fn bring_up_to_date(&mut self, nic: &mut Rnic, server: u8, now: Nanos) {
        let (Some(resources), Some(leadership)) = (&self.resources, &self.leadership) else { return };
        let Some(next) = leadership.next else { return };
        let layout = self.config.layout;
        let theirs = log_scratch(&self.config, nic.bytes(resources.scratch.0), server);
        let own = nic.bytes(resources.log.0);
        let valid_from = self.valid_from;
        let is_here = |from: u64| {
            (valid_from..=next).contains(&from)
                && (from..next).all(|index| layout.entry(index, own).is_some())
        };
        let known = leadership.followers[usize::from(server)].applied;
        let snapshot = leadership.snapshot.filter(|(from, _)| is_here(*from));
        let (from, snapshot) = match snapshot {
            _ if is_here(known) => (known, None),
            Some((from, len)) => (from, Some((from, len))),
            None => {
                self.follower(server, |follower| follower.stage = Stage::Wanting);
                return;
            }
        };
        let term = leadership.term;
        let mut writes = Vec::new();
        let skips = |index| self.config.has_bug(Bug::SnapshotGap) && snapshot.is_some() && index == from;
        for index in from..next {
            if skips(index) {
                continue;
            }
            let Some(mine) = layout.entry(index, own) else { continue };
            let known = layout.entry(index, theirs).filter(|entry| entry.value == mine.value);
            let write = match known {
                Some(entry) if entry.term == term => continue,
                Some(_) if self.config.has_bug(Bug::OldTermByCount) => continue,
                Some(_) => {
                    layout.resealed(index, theirs, term).map(|(at, seal)| (at, Data::Inline(seal.to_vec())))
                }
                None => local_entry_data(nic, resources, &layout, index).map(|data| (layout.at(index), data)),
            };
            if let Some((at, data)) = write {
                writes.push((Request::Entries(index + 1), at, data));
            }
        }
        let decided = self.decided;
        self.follower(server, |follower| {
            (follower.stage, follower.active_at) = (Stage::Active, now);
            (follower.posted, follower.held, follower.commit_sent) = (next, from, 0);
        });
        if let Some((from, len)) = snapshot {
            self.send_snapshot(nic, server, from, len);
        }
        for (request, at, data) in writes {
            self.write(nic, server, request, at, data);
        }
        // The completion of this WRITE also confirms the entries that were in the log before.
        let decided = Data::Inline(decided.to_le_bytes().to_vec());
        self.write(nic, server, Request::Entries(next), DECIDED, decided);
    }

    pub(super) fn write(
        &mut self,
        nic: &mut Rnic,
        server: u8,
        request: Request,
        at: usize,
        data: Data,
    ) -> bool {
        let target =
            self.follower(server, |follower| follower.link.and_then(|link| Some((link.qpn, link.remote?))));
        let Some((qpn, region)) = target.flatten() else { return false };
        let write = Operation::Write(Remote { va: region.va() + at as u64, rkey: region.rkey() });
        nic.post_send(qpn, SendRequest::new(request.to_id(), write, data)).is_ok()
    }

    /// Proposes a value. Returns the index that it has if it is decided. If this server loses its leadership
    /// first, the value may still be decided at this index, or not at all.
    ///
    /// # Errors
    /// If this server does not lead, the value is too long, or the window or the log is full.
    pub fn propose(&mut self, nic: &mut Rnic, value: &[u8]) -> Result<u64, ProposeError> {
        let next = self.leadership.as_ref().and_then(|leadership| leadership.next);
        let next = next.ok_or(ProposeError::NotLeader)?;
        let layout = self.config.layout;
        if value.len() > layout.max_value() {
            return Err(ProposeError::TooLong);
        }
        // The value must neither exceed the window, nor overwrite an entry that has not been applied by all
        // followers, at least f: one member of any majority has to know every decided entry.
        let follow = self
            .leadership
            .as_ref()
            .is_some_and(|leadership| leadership.member_count() >= self.config.quorum());
        let unused = self.needed_from().unwrap_or(next);
        if !follow || next - self.decided >= self.config.window || next - unused >= layout.slots() {
            return Err(ProposeError::Busy);
        }
        let Some(leadership) = &mut self.leadership else { return Err(ProposeError::NotLeader) };
        let Some(resources) = &self.resources else { return Err(ProposeError::NotLeader) };
        let entry = Entry { index: next, term: leadership.term, decided: self.decided, value };
        store_entry(nic, resources, &layout, &entry);
        leadership.next = Some(next + 1);
        self.replicate(nic);
        Ok(next)
    }

    /// Returns the index of the first entry that an active server, or this one, has not applied yet.
    fn needed_from(&self) -> Option<u64> {
        let leadership = self.leadership.as_ref()?;
        let active = (0..).zip(&leadership.followers).filter_map(|(server, follower)| {
            let applied = follower.applied.max(self.watch.applied_by(server, follower.incarnation));
            (follower.stage == Stage::Active).then_some(applied)
        });
        active.chain([self.applied]).min()
    }

    /// Writes new entries to all active followers.
    pub(super) fn replicate(&mut self, nic: &mut Rnic) {
        self.replicate_through(nic);
        let Some(next) = self.leadership.as_ref().and_then(|leadership| leadership.next) else { return };
        let layout = self.config.layout;
        for server in self.peers() {
            let Some((Stage::Active, posted)) =
                self.follower(server, |follower| (follower.stage, follower.posted))
            else {
                continue;
            };
            let group = self.leadership.as_ref().and_then(|leadership| leadership.group.as_ref());
            let until = group.and_then(|group| group.start_for(server)).unwrap_or(next);
            for index in posted..until {
                let Some(resources) = &self.resources else { return };
                let Some(write) = local_entry_data(nic, resources, &layout, index) else { break };
                if !self.write(nic, server, Request::Entries(index + 1), layout.at(index), write) {
                    break;
                }
                self.follower(server, |follower| follower.posted = index + 1);
            }
        }
    }

    /// Advances the number of decided entries to those that f other members hold.
    pub(super) fn decide(&mut self, nic: &mut Rnic) {
        let Some(leadership) = &self.leadership else { return };
        let Some(next) = leadership.next else { return };
        let counting = leadership.followers.iter().filter(|follower| follower.counts());
        let mut held: Vec<u64> = counting.map(|follower| follower.held).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let quorum = self.config.quorum();
        let directly = if quorum == 0 { next } else { held.get(quorum - 1).copied().unwrap_or(0).min(next) };
        let decided = directly.max(leadership.group.as_ref().map_or(0, Group::held));
        if decided > self.decided {
            self.decided = decided;
            if let Some(resources) = &self.resources {
                nic.bytes_mut(resources.log.0)[DECIDED..][..8].copy_from_slice(&decided.to_le_bytes());
            }
        }
    }

    /// Writes the number of decided entries to idle followers. Every entry carries the number of entries
    /// decided before it, so only the last ones need a write of their own.
    pub(super) fn commit_when_idle(&mut self, nic: &mut Rnic) {
        self.decide(nic);
        self.commit_through(nic);
        let decided = self.decided;
        for server in self.peers() {
            let due = self.follower(server, |follower| {
                follower.stage == Stage::Active && follower.commit_sent < decided && follower.held >= decided
            });
            let word = Data::Inline(decided.to_le_bytes().to_vec());
            if due == Some(true) && self.write(nic, server, Request::Commit, DECIDED, word) {
                self.follower(server, |follower| follower.commit_sent = decided);
            }
        }
    }
}

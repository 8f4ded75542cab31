//! A leader's office: votes, agreement with what earlier leaders left, and replication.
//!
//! 1. Every other server is asked for permission to write its log, in a term of one's own; it takes the permission from
//!    whoever had it. A majority, oneself included, is enough.
//! 2. Their logs are read. What is decided is taken over. Of what may be decided, the value of the latest term is: if
//!    one was decided, every later leader has seen it, and has written no other.
//! 3. Each log is brought to the same. What is there already is not written again, but for its term.
//! 4. New values are written behind that, and are decided when f others hold them.

use super::hello::Purpose;
use super::log::{Entry, Layout, Term};
use super::server::{Config, LOG_VA, Outgoing, ProposeError, Resources, Server, log_scratch, log_scratch_va};
use super::through::Group;
use crate::wire::Region;
use rnic::{Completed, Completion, Data, Operation, Remote, Rnic, SendRequest, Sge};
use rocev2::Qpn;
use switch::Nanos;

/// Heartbeats for which a candidate waits for a majority
const TERM_OF_CANDIDACY: u64 = 60;
/// Heartbeats after which a server that was lost is asked again
const ASK_AGAIN: u64 = 20;
/// The name of a READ of a log
const READ: u64 = u64::MAX;
/// The name of a write that decides nothing
pub(super) const COMMIT: u64 = u64::MAX - 1;

/// Where another server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is to be asked, at this time.
    Absent(Nanos),
    /// It was asked for permission.
    Asked,
    /// Its log is being read.
    Reading,
    /// Its log was read, and nobody has a majority yet.
    Read,
    /// It gets every entry.
    Active,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Follower {
    pub(super) link: Option<Outgoing>,
    pub(super) stage: Stage,
    /// When it became active, if it is
    active_at: Nanos,
    /// Entries below were written to it directly, and are held by it
    posted: u64,
    pub(super) held: u64,
    /// What it was told last is decided, beside the entries
    told: u64,
}

/// The office.
#[derive(Debug)]
pub(super) struct Leadership {
    term: Term,
    pub(super) since: Nanos,
    /// By their numbers; oneself is never anything but absent
    pub(super) followers: Vec<Follower>,
    /// The place of the next value, once there is a majority
    pub(super) next: Option<u64>,
    /// What the switch replicates to
    pub(super) group: Option<Group>,
    /// No group is asked for before
    pub(super) group_at: Nanos,
}

impl Leadership {
    pub(super) fn is_established(&self) -> bool {
        self.next.is_some()
    }

    pub(super) fn links(&self) -> Vec<Outgoing> {
        self.followers.iter().filter_map(|follower| follower.link).collect()
    }
}

impl Server {
    pub(super) fn run_for_office(&mut self, nic: &mut Rnic, now: Nanos) {
        let term = self.latest_term().next_of(self.config.id);
        // Nobody writes here either from now on.
        self.fence(nic, now);
        self.promised = term;
        let stage = Stage::Absent(now);
        let nobody = Follower { link: None, stage, active_at: now, posted: 0, held: 0, told: 0 };
        let followers = vec![nobody; self.config.servers.len()];
        self.leadership =
            Some(Leadership { term, since: now, followers, next: None, group: None, group_at: now });
    }

    /// What is due in office.
    pub(super) fn lead(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(leadership) = &self.leadership else { return };
        let late = now.since(leadership.since) > self.spans(TERM_OF_CANDIDACY);
        if late && leadership.active() < self.config.quorum() {
            // Without a majority there is nothing to lead.
            self.step_down(nic, now);
            return;
        }
        for server in self.others() {
            let Some(leadership) = &self.leadership else { return };
            let (term, follower) = (leadership.term, leadership.followers[usize::from(server)]);
            let asked_in_vain = follower.stage == Stage::Asked
                && follower.link.is_some_and(|link| link.is_older_than(now, self.spans(ASK_AGAIN)));
            if asked_in_vain {
                self.drop_link(nic, follower.link);
            }
            if asked_in_vain || matches!(follower.stage, Stage::Absent(at) if at <= now) {
                let link = self.connect(nic, server, Purpose::Write(term), now);
                let again = now + self.spans(ASK_AGAIN);
                let stage = if link.is_some() { Stage::Asked } else { Stage::Absent(again) };
                self.follower(server, |follower| (follower.link, follower.stage) = (link, stage));
            }
        }
        self.tend_group(nic, now);
        self.replicate(nic);
    }

    fn follower<R>(&mut self, server: u8, act: impl FnOnce(&mut Follower) -> R) -> Option<R> {
        Some(act(self.leadership.as_mut()?.followers.get_mut(usize::from(server))?))
    }

    /// A server gave permission: its log is read.
    pub(super) fn granted(&mut self, nic: &mut Rnic, server: u8, qpn: Qpn, region: Option<Region>) {
        let len = self.config.layout.len();
        let va = log_scratch_va(&self.config, server);
        let Some(scratch) = self.resources.as_ref().map(|resources| resources.scratch.1) else { return };
        self.follower(server, |follower| {
            let Some(link) = follower.link.as_mut().filter(|link| link.qpn == qpn) else { return };
            link.remote = region.filter(|region| region.size() == len as u64);
            let Some(region) = link.remote else { return };
            let read = Operation::Read(Remote { va: region.va(), rkey: region.rkey() });
            let into = Data::Memory(Sge { mr: scratch, va, len: len as u32 });
            if nic.post_send(qpn, SendRequest::new(READ, read, into)).is_ok() {
                follower.stage = Stage::Reading;
            }
        });
    }

    pub(super) fn follower_lost(&mut self, server: u8, qpn: Qpn, now: Nanos) {
        let again = now + self.spans(ASK_AGAIN);
        self.follower(server, |follower| {
            if follower.link.is_some_and(|link| link.qpn == qpn) {
                (follower.link, follower.stage) = (None, Stage::Absent(again));
            }
        });
        // When it comes back, it gets its entries directly at first.
        if let Some(leadership) = &mut self.leadership
            && leadership.followers[usize::from(server)].link.is_none()
            && let Some(group) = &mut leadership.group
        {
            group.members.retain(|member| *member != server);
        }
    }

    /// Something is done at another server.
    pub(super) fn on_follower(&mut self, nic: &mut Rnic, server: u8, done: &Completion) {
        if done.of == Completed::Read {
            self.follower(server, |follower| follower.stage = Stage::Read);
            self.agree(nic);
        } else if done.id != COMMIT {
            self.follower(server, |follower| follower.held = follower.held.max(done.id));
            self.decide(nic);
        }
    }

    /// A log was read: the first time that there are enough of them, they are brought to agreement.
    fn agree(&mut self, nic: &mut Rnic) {
        let Some(leadership) = &self.leadership else { return };
        let read: Vec<u8> = self
            .others()
            .filter(|server| leadership.followers[usize::from(*server)].stage == Stage::Read)
            .collect();
        let term = leadership.term;
        if leadership.next.is_none() {
            if read.len() < self.config.quorum() {
                return;
            }
            let Some(resources) = &self.resources else { return };
            let Some((next, decided)) = settle(nic, &self.config, resources, &read, self.decided, term)
            else {
                return;
            };
            self.decided = decided;
            if let Some(leadership) = &mut self.leadership {
                leadership.next = Some(next);
            }
        }
        for server in read {
            self.bring_up_to_date(nic, server);
        }
    }

    /// Writes what a server's log lacks.
    fn bring_up_to_date(&mut self, nic: &mut Rnic, server: u8) {
        let (Some(resources), Some(next)) = (&self.resources, self.leadership.as_ref().and_then(|l| l.next))
        else {
            return;
        };
        let layout = self.config.layout;
        let theirs = log_scratch(&self.config, nic.bytes(resources.scratch.0), server);
        let own = nic.bytes(resources.log.0);
        let known = word(theirs, 0);
        // Beyond the ring nothing can be brought: it needs a snapshot.
        let from = known.max(next.saturating_sub(layout.slots()));
        let mut writes = Vec::new();
        if from <= known || next <= layout.slots() {
            for index in from..next {
                let Some(mine) = layout.entry(index, own) else { continue };
                let same = layout.entry(index, theirs).is_some_and(|entry| entry.value == mine.value);
                let (at, len) = if same {
                    (layout.term_at(index), 8)
                } else {
                    (layout.at(index), Layout::written_len(mine.value.len()))
                };
                writes.push((index + 1, at, len));
            }
        } else {
            self.follower(server, |follower| follower.stage = Stage::Absent(Nanos(u64::MAX)));
            return;
        }
        let (mr, decided, at_beat) = (resources.log.1, self.decided, self.beat_at);
        self.follower(server, |follower| {
            (follower.stage, follower.posted, follower.held, follower.told) = (Stage::Active, next, from, 0);
            follower.active_at = at_beat;
        });
        for (id, at, len) in writes {
            self.write(
                nic,
                server,
                id,
                at,
                Data::Memory(Sge { mr, va: LOG_VA + at as u64, len: len as u32 }),
            );
        }
        // Also what says that all that was there is.
        self.write(nic, server, next, 0, Data::Inline(decided.to_le_bytes().to_vec()));
    }

    fn write(&mut self, nic: &mut Rnic, server: u8, id: u64, at: usize, data: Data) -> bool {
        let target =
            self.follower(server, |follower| follower.link.and_then(|link| Some((link.qpn, link.remote?))));
        let Some((qpn, region)) = target.flatten() else { return false };
        let write = Operation::Write(Remote { va: region.va() + at as u64, rkey: region.rkey() });
        nic.post_send(qpn, SendRequest::new(id, write, data)).is_ok()
    }

    /// Proposes a value: the place that it has if it is decided. It may still be decided, there or not at all, when this
    /// server loses its office before.
    ///
    /// # Errors
    /// If this server does not lead, or too much is under way.
    pub fn propose(&mut self, nic: &mut Rnic, value: &[u8]) -> Result<u64, ProposeError> {
        let next = self.leadership.as_ref().and_then(|leadership| leadership.next);
        let next = next.ok_or(ProposeError::NotLeader)?;
        let layout = self.config.layout;
        if value.len() > layout.max_value() {
            return Err(ProposeError::TooLong);
        }
        // Neither more than is wanted, nor over what somebody has not taken out of its log.
        let unused = self.needed_from().unwrap_or(next);
        if next - self.decided >= self.config.window || next - unused >= layout.slots() {
            return Err(ProposeError::Busy);
        }
        let Some(leadership) = &mut self.leadership else { return Err(ProposeError::NotLeader) };
        let Some(resources) = &self.resources else { return Err(ProposeError::NotLeader) };
        let entry = Entry { index: next, term: leadership.term, decided: self.decided, value };
        put(nic, resources, &layout, &entry);
        leadership.next = Some(next + 1);
        self.replicate(nic);
        Ok(next)
    }

    /// The first entry that an active server may still have to read in its log
    fn needed_from(&self) -> Option<u64> {
        let leadership = self.leadership.as_ref()?;
        let active =
            self.others().filter(|server| leadership.followers[usize::from(*server)].stage == Stage::Active);
        active.map(|server| self.applied_by(server)).chain([self.decided]).min()
    }

    /// Writes new entries to all who get them.
    pub(super) fn replicate(&mut self, nic: &mut Rnic) {
        self.replicate_through(nic);
        let Some(next) = self.leadership.as_ref().and_then(|leadership| leadership.next) else { return };
        let layout = self.config.layout;
        for server in self.others() {
            let Some((Stage::Active, posted)) =
                self.follower(server, |follower| (follower.stage, follower.posted))
            else {
                continue;
            };
            let group = self.leadership.as_ref().and_then(|leadership| leadership.group.as_ref());
            let until = group.and_then(|group| group.begins_for(server)).unwrap_or(next);
            for index in posted..until {
                let Some(resources) = &self.resources else { return };
                let len = layout.entry(index, nic.bytes(resources.log.0)).map(|entry| entry.value.len());
                let Some(len) = len else { break };
                let (at, mr) = (layout.at(index), resources.log.1);
                let len = Layout::written_len(len) as u32;
                if !self.write(
                    nic,
                    server,
                    index + 1,
                    at,
                    Data::Memory(Sge { mr, va: LOG_VA + at as u64, len }),
                ) {
                    break;
                }
                self.follower(server, |follower| follower.posted = index + 1);
            }
        }
    }

    /// Entries that f others hold are decided.
    pub(super) fn decide(&mut self, nic: &mut Rnic) {
        let Some(leadership) = &self.leadership else { return };
        let Some(next) = leadership.next else { return };
        let active = leadership.followers.iter().filter(|follower| follower.stage == Stage::Active);
        let mut held: Vec<u64> = active.map(|follower| follower.held).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let quorum = self.config.quorum();
        let directly = if quorum == 0 { next } else { held.get(quorum - 1).copied().unwrap_or(0).min(next) };
        let decided = directly.max(leadership.group.as_ref().map_or(0, Group::held));
        if decided > self.decided {
            self.decided = decided;
            if let Some(resources) = &self.resources {
                nic.bytes_mut(resources.log.0)[..8].copy_from_slice(&decided.to_le_bytes());
            }
        }
    }

    /// Entries tell what was decided before them. The last ones are told of by themselves, when nothing else is.
    pub(super) fn commit_when_idle(&mut self, nic: &mut Rnic) {
        self.decide(nic);
        self.commit_through(nic);
        let decided = self.decided;
        for server in self.others() {
            let due = self.follower(server, |follower| {
                let due =
                    follower.stage == Stage::Active && follower.told < decided && follower.held >= decided;
                if due {
                    follower.told = decided;
                }
                due
            });
            if due == Some(true) {
                self.write(nic, server, COMMIT, 0, Data::Inline(decided.to_le_bytes().to_vec()));
            }
        }
    }
}

impl Leadership {
    /// Who gets every entry, and whether others are about to
    pub(super) fn who_is_active(&self) -> (Vec<u8>, bool) {
        let is = |stage| move |(_, follower): &(u8, &Follower)| follower.stage == stage;
        let all = || (0..).zip(&self.followers);
        let about_to =
            [Stage::Asked, Stage::Reading, Stage::Read].map(|stage| all().any(|one| is(stage)(&one)));
        (all().filter(is(Stage::Active)).map(|(server, _)| server).collect(), about_to.contains(&true))
    }

    pub(super) fn has_been_active(&self, server: u8, now: Nanos, span: Nanos) -> bool {
        let follower = &self.followers[usize::from(server)];
        follower.stage == Stage::Active && now.since(follower.active_at) >= span
    }

    fn active(&self) -> usize {
        self.followers.iter().filter(|follower| follower.stage == Stage::Active).count()
    }
}

fn word(log: &[u8], at: usize) -> u64 {
    log.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Writes an entry into the own log.
fn put(nic: &mut Rnic, resources: &Resources, layout: &Layout, entry: &Entry<'_>) {
    let mut bytes = Vec::new();
    if layout.encode(entry, &mut bytes).is_some() {
        let at = layout.at(entry.index);
        nic.bytes_mut(resources.log.0)[at..at + bytes.len()].copy_from_slice(&bytes);
    }
}

/// Makes the own log what a new leader has to begin with, from it and those that were read: the first free place, and how
/// many entries are decided. `None` if something that is decided has left all of these logs.
fn settle(
    nic: &mut Rnic,
    config: &Config,
    resources: &Resources,
    read: &[u8],
    decided: u64,
    term: Term,
) -> Option<(u64, u64)> {
    let layout = config.layout;
    let mut chosen: Vec<(u64, Term, u64, Vec<u8>)> = Vec::new();
    let (own, scratch) = (nic.bytes(resources.log.0), nic.bytes(resources.scratch.0));
    let logs: Vec<&[u8]> =
        read.iter().map(|server| log_scratch(config, scratch, *server)).chain([own]).collect();
    let known = |log: &[u8]| word(log, 0);
    let most = logs.iter().map(|log| known(log)).max().unwrap_or(0).max(decided);
    let own_known = known(own).max(decided);
    for index in own_known..most {
        // Whoever knows that it is decided holds what was.
        let entry = logs.iter().filter(|log| known(log) > index).find_map(|log| layout.entry(index, log))?;
        chosen.push((index, entry.term, entry.decided, entry.value.to_vec()));
    }
    let mut next = most;
    loop {
        let entries = logs.iter().filter_map(|log| layout.entry(next, log));
        let Some(latest) = entries.max_by_key(|entry| entry.term) else { break };
        chosen.push((next, term, latest.decided, latest.value.to_vec()));
        next += 1;
    }
    for (index, term, decided, value) in chosen {
        put(nic, resources, &layout, &Entry { index, term, decided, value: &value });
    }
    nic.bytes_mut(resources.log.0)[..8].copy_from_slice(&most.to_le_bytes());
    Some((next, most))
}

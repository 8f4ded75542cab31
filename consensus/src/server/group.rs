//! Replication through a switch: the leader writes an entry once, and receives one completion when f other
//! members hold it.
//!
//! A group starts where its members' logs are equal. While the switch sets the group up, entries are written
//! to each server directly. Then the leader stops writing until all members hold the entries written so far.
//! From then on, all entries go through the group. If the group fails in any way, the leader requests
//! permission again, in the same term, from every server. That fences off the group together with the direct
//! connection, and each log is read and brought up to date as at the start of the leadership.

use super::Server;
use super::watch::Membership;
use crate::agreement::local_entry_data;
use crate::follower::{Follower, Request};
use crate::log::{DECIDED, Term};
use crate::resources::{LOG_VA, QpRole};
use p4ce::SwitchAddress;
use p4ce::wire::{GroupRequest, MemberRequest, Region, Replicas};
use rnic::cm::Conn;
use rnic::{Access, Data, Operation, Remote, Rnic, SendRequest};
use rocev2::Qpn;
use switch::Nanos;

/// Heartbeats in which a group has to be set up and drained
const SETUP_HEARTBEATS: u64 = 200;
/// Heartbeats after which a group is requested again from a switch that failed
const RETRY_HEARTBEATS: u64 = 300;
/// Heartbeats for which a member may make no progress behind the decided entries
const LAG_HEARTBEATS: u64 = 20;
/// Heartbeats that a server has for catching up before a group is requested without it, or again with it
const GRACE_HEARTBEATS: u64 = 50;

/// A leader's group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) qpn: Qpn,
    conn: Conn,
    /// Time of the request
    since: Nanos,
    pub(super) members: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Requested from the switch.
    Requested,
    /// Accepted by the switch. Entries from `until` on are not written to members before they hold all
    /// entries below.
    Draining { rkey: u32, until: u64 },
    /// Entries from `begin` to `posted` were written through the group, and f members hold all entries below
    /// `held`. The number of decided entries `commit_sent` was written after them.
    Open { rkey: u32, begin: u64, posted: u64, held: u64, commit_sent: u64 },
}

impl Group {
    /// Returns the index from which this server receives entries through the group, if it does.
    pub(super) fn start_for(&self, server: u8) -> Option<u64> {
        let begin = match self.state {
            State::Requested => return None,
            State::Draining { until, .. } => until,
            State::Open { begin, .. } => begin,
        };
        self.members.contains(&server).then_some(begin)
    }

    /// Returns the number of entries that f members hold.
    pub(super) fn held(&self) -> u64 {
        match self.state {
            State::Open { held, .. } => held,
            State::Requested | State::Draining { .. } => 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }
}

impl Server {
    /// Advances the group: requests it, opens it when its members have caught up, and replaces it when a
    /// member lags or a server can join.
    pub(super) fn maintain_group(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(switch) = self.config.switch else { return };
        let Some(leadership) = &self.leadership else { return };
        if !leadership.is_established() {
            return;
        }
        let Some(group) = &leadership.group else {
            if now >= leadership.group_at {
                self.request_group(nic, switch, now);
            }
            return;
        };
        let late = now.since(group.since) > self.heartbeats(SETUP_HEARTBEATS);
        match group.state {
            State::Requested | State::Draining { .. } if late => self.abandon_group(nic, now),
            State::Draining { rkey, until } => self.open_group(nic, rkey, until, now),
            State::Open { .. } => {
                let outside = |server: &u8| {
                    !group.members.contains(server)
                        && leadership.has_counted_for(*server, now, self.heartbeats(GRACE_HEARTBEATS))
                };
                let caught_up = now >= leadership.group_at && self.peers().any(|server| outside(&server));
                // A server outside of the group has caught up and joins a new group; or too few members are
                // left to decide anything; or a member lacks an entry that the switch will not send again.
                let too_few = group.members.len() < self.config.quorum();
                if caught_up || too_few || self.has_stalled_member(now) {
                    self.fall_back(nic, now, 0);
                }
            }
            State::Requested => {}
        }
    }

    /// Returns whether a member has not applied decided entries for too long.
    fn has_stalled_member(&mut self, now: Nanos) -> bool {
        let span = self.heartbeats(LAG_HEARTBEATS);
        let Some(leadership) = &mut self.leadership else { return false };
        let Some(Group { members, state: State::Open { commit_sent, .. }, .. }) = &leadership.group else {
            return false;
        };
        let mut late = false;
        for member in members {
            let follower = &mut leadership.followers[usize::from(*member)];
            let applied = self.watch.applied_by(*member, follower.incarnation).max(follower.applied);
            follower.stalled_since = match follower.stalled_since {
                _ if applied >= *commit_sent => None,
                Some((before, since)) if before == applied => {
                    late |= now.since(since) > span;
                    Some((before, since))
                }
                _ => Some((applied, now)),
            };
        }
        late
    }

    fn request_group(&mut self, nic: &mut Rnic, switch: SwitchAddress, now: Nanos) {
        let Some(leadership) = &self.leadership else { return };
        let (members, in_progress) = leadership.counting_members();
        // Wait for servers that are about to count, for a limited time.
        let waits = in_progress && now.since(leadership.group_at) < self.heartbeats(GRACE_HEARTBEATS);
        if members.len() < self.config.quorum().max(1) || waits {
            return;
        }
        let replicas = members.iter().map(|server| self.config.servers[usize::from(*server)]).collect();
        let request = GroupRequest {
            replicas: Replicas::Listed(replicas),
            quorum: self.config.quorum() as u8,
            port: self.config.port,
            // A NAK reports that a member has left: the group then ends, and another one starts without it.
            outvote: false,
        };
        let at = (switch.address, switch.port);
        let private_data = request.to_bytes().ok().zip(self.config.to(switch.address));
        let connection = private_data
            .map(|(request, envelope)| envelope.seal(request))
            .and_then(|private_data| self.connect(nic, at, private_data, QpRole::Group, now));
        let again = now + self.heartbeats(RETRY_HEARTBEATS);
        let Some(leadership) = &mut self.leadership else { return };
        match connection {
            Some((qpn, conn)) => {
                leadership.group = Some(Group { qpn, conn, since: now, members, state: State::Requested });
            }
            None => leadership.group_at = again,
        }
    }

    /// Handles the switch's reply.
    pub(super) fn on_group_accepted(&mut self, nic: &mut Rnic, qpn: Qpn, region: Option<Region>, now: Nanos) {
        let len = self.config.layout.memory_len() as u64;
        let Some(leadership) = &mut self.leadership else { return };
        let (Some(until), Some(group)) = (leadership.next, &mut leadership.group) else { return };
        if group.qpn != qpn || group.state != State::Requested {
            return;
        }
        match region {
            Some(region) if region.va() == 0 && region.size() == len => {
                group.state = State::Draining { rkey: region.rkey(), until };
                self.maintain_group(nic, now);
            }
            _ => self.abandon_group(nic, now),
        }
    }

    /// Starts to write through the group if all members hold what was written to them directly.
    fn open_group(&mut self, nic: &mut Rnic, rkey: u32, until: u64, now: Nanos) {
        let Some(leadership) = &mut self.leadership else { return };
        let Some(group) = &mut leadership.group else { return };
        let members = group.members.iter().map(|member| &leadership.followers[usize::from(*member)]);
        if members.clone().count() < self.config.quorum().max(1) {
            return self.abandon_group(nic, now);
        }
        if members.clone().all(|member| member.counts() && member.held >= until) {
            group.state = State::Open { rkey, begin: until, posted: until, held: until, commit_sent: 0 };
        }
        self.replicate(nic);
    }

    /// Writes new entries through the group.
    pub(super) fn replicate_through(&mut self, nic: &mut Rnic) {
        let (Some(leadership), Some(resources)) = (&mut self.leadership, &self.resources) else { return };
        let (Some(next), Some(group)) = (leadership.next, &mut leadership.group) else { return };
        let State::Open { rkey, posted, .. } = &mut group.state else { return };
        let layout = self.config.layout;
        while *posted < next {
            let Some(data) = local_entry_data(nic, resources, &layout, *posted) else { return };
            let write = Operation::Write(Remote { va: layout.at(*posted) as u64, rkey: *rkey });
            let request = SendRequest::new(Request::Entries(*posted + 1).to_id(), write, data);
            if nic.post_send(group.qpn, request).is_err() {
                return;
            }
            *posted += 1;
        }
    }

    /// Writes the number of decided entries through the group, after the entries, so that every member that
    /// receives it holds them.
    pub(super) fn commit_through(&mut self, nic: &mut Rnic) {
        let decided = self.decided;
        let group = self.leadership.as_mut().and_then(|leadership| leadership.group.as_mut());
        if let Some(group) = group
            && let State::Open { rkey, commit_sent, held, .. } = &mut group.state
            && *commit_sent < decided
            && *held >= decided
        {
            let write = Operation::Write(Remote { va: DECIDED as u64, rkey: *rkey });
            let data = Data::Inline(decided.to_le_bytes().to_vec());
            let request = SendRequest::new(Request::Commit.to_id(), write, data);
            if nic.post_send(group.qpn, request).is_ok() {
                *commit_sent = decided;
            }
        }
    }

    /// Handles a completion: f members hold an entry.
    pub(super) fn on_group(&mut self, nic: &mut Rnic, qpn: Qpn, id: u64) {
        let group = self.leadership.as_mut().and_then(|leadership| leadership.group.as_mut());
        if let Some(group) = group.filter(|group| group.qpn == qpn)
            && let Request::Entries(next) = Request::from_id(id)
            && let State::Open { held, .. } = &mut group.state
        {
            *held = (*held).max(next);
            self.decide(nic);
        }
    }

    /// Handles the loss of the group's connection.
    pub(super) fn on_group_lost(&mut self, nic: &mut Rnic, qpn: Qpn, now: Nanos) {
        let group = self.leadership.as_ref().and_then(|leadership| leadership.group.as_ref());
        match group.filter(|group| group.qpn == qpn) {
            Some(group) if group.is_open() => self.fall_back(nic, now, RETRY_HEARTBEATS),
            Some(_) => self.abandon_group(nic, now),
            None => {}
        }
    }

    /// Gives up a group through which nothing was written; its members are unaffected.
    pub(super) fn abandon_group(&mut self, nic: &mut Rnic, now: Nanos) {
        let again = now + self.heartbeats(RETRY_HEARTBEATS);
        self.end_group(nic, now);
        if let Some(leadership) = &mut self.leadership {
            leadership.group_at = again;
        }
        self.replicate(nic);
    }

    /// Requests permission again from every server, and a group after `heartbeats` at the earliest.
    fn fall_back(&mut self, nic: &mut Rnic, now: Nanos, heartbeats: u64) {
        self.end_group(nic, now);
        let again = now + self.heartbeats(heartbeats);
        let Some(leadership) = &mut self.leadership else { return };
        (leadership.since, leadership.group_at) = (now, again);
        let links = leadership.links();
        leadership.followers.fill(Follower::absent(now));
        for link in links {
            self.drop_link(nic, Some(link));
        }
    }

    pub(super) fn end_group(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Some(group) = self.leadership.as_mut().and_then(|leadership| leadership.group.take()) {
            _ = nic.disconnect(group.conn, &[], now);
            self.drop_qp(nic, group.qpn);
        }
    }

    /// Handles the switch's request for permission on behalf of a leader. It is granted if this server
    /// follows that leader. The request came from the switch's address.
    pub(super) fn join_group(
        &mut self,
        nic: &mut Rnic,
        conn: Conn,
        member: MemberRequest,
        now: Nanos,
    ) -> Option<()> {
        let leader = self.config.servers.get(usize::from(self.promised.server()))?;
        let follows = self.promised != Term::default() && self.writer.is_some();
        // The switch counts this server's acknowledgements, so it has to be a member.
        if !follows || *leader != member.leader || self.membership == Membership::Blank {
            return None;
        }
        self.leave_group(nic, now);
        let mr = self.open_log(nic, Access::REMOTE_WRITE)?;
        let region = Region::new(LOG_VA, mr.0, self.config.layout.memory_len() as u64);
        let private_data = region.to_bytes();
        let Some(qpn) = self.accept(nic, conn, Access::REMOTE_WRITE, private_data, QpRole::Joined, now)
        else {
            _ = nic.deregister(mr);
            return None;
        };
        self.joined = Some((qpn, mr, conn));
        Some(())
    }

    /// Revokes the group's permission to write the log, if there is a group.
    pub(super) fn leave_group(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Some((qpn, mr, conn)) = self.joined.take() {
            _ = nic.deregister(mr);
            _ = nic.disconnect(conn, &[], now);
            self.drop_qp(nic, qpn);
        }
    }
}

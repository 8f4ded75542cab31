//! Replication through a switch: the leader writes an entry once, and is told once that f others hold it.
//!
//! A group begins where its members' logs are the same: entries are written to each server directly while the switch sets
//! the group up, then none are until all members hold what was written, and from there on all go through the group. When
//! anything is wrong with it, permission is asked for anew, in the same term, at every server: that fences the group
//! together with the direct connection, and each log is read and brought up to date as at the beginning of the office.

use super::leader::{COMMIT, Stage};
use super::log::{Layout, Term};
use super::server::{LOG_VA, Server, Use};
use crate::wire::{GroupRequest, MemberRequest, Region, Replicas};
use core::net::IpAddr;
use rnic::cm::{Conn, PortSpace, service_id_of};
use rnic::{Access, ConnParam, Data, Operation, Remote, Rnic, SendRequest, Sge};
use rocev2::Qpn;
use switch::Nanos;

/// Heartbeats for which a group may be set up, or drained for
const PATIENCE: u64 = 200;
/// Heartbeats after which a switch that failed is asked again
const ASK_AGAIN: u64 = 300;
/// Heartbeats that a server has for catching up before a group is asked for without it, or anew with it
const GRACE: u64 = 50;

/// The switch that replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    /// Where it is asked for groups
    pub address: IpAddr,
    /// The port there, in `rdma_cm`'s TCP port space
    pub port: u16,
}

/// A leader's group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) qpn: Qpn,
    conn: Conn,
    /// When it was asked for
    since: Nanos,
    pub(super) members: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The switch was asked.
    Asked,
    /// It stands. No entry from `until` on is written to members before they hold those below.
    Draining { rkey: u32, until: u64 },
    /// Entries from `begin` to `posted` were written through it, those below `held` are held by f members, and that
    /// those below `told` are decided was written after them.
    Open { rkey: u32, begin: u64, posted: u64, held: u64, told: u64 },
}

impl Group {
    /// Entries from here on come to this server through it, if any do.
    pub(super) fn begins_for(&self, server: u8) -> Option<u64> {
        let begin = match self.state {
            State::Asked => return None,
            State::Draining { until, .. } => until,
            State::Open { begin, .. } => begin,
        };
        self.members.contains(&server).then_some(begin)
    }

    /// Entries below are held by f members.
    pub(super) fn held(&self) -> u64 {
        match self.state {
            State::Open { held, .. } => held,
            State::Asked | State::Draining { .. } => 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }
}

impl Server {
    /// What is due about the group.
    pub(super) fn tend_group(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(through) = self.config.through else { return };
        let Some(leadership) = &self.leadership else { return };
        if !leadership.is_established() {
            return;
        }
        let Some(group) = &leadership.group else {
            if now >= leadership.group_at {
                self.ask_for_group(nic, through, now);
            }
            return;
        };
        let late = now.since(group.since) > self.spans(PATIENCE);
        match group.state {
            State::Asked | State::Draining { .. } if late => self.abandon_group(nic, now),
            State::Draining { rkey, until } => self.open_group(nic, rkey, until, now),
            State::Open { .. } => {
                let outside = |server: &u8| {
                    !group.members.contains(server)
                        && leadership.has_been_active(*server, now, self.spans(GRACE))
                };
                if now >= leadership.group_at && self.others().any(|server| outside(&server)) {
                    // It has caught up, and gets its entries through a group that has it.
                    self.fall_back(nic, now, 0);
                }
            }
            State::Asked => {}
        }
    }

    fn ask_for_group(&mut self, nic: &mut Rnic, through: Through, now: Nanos) {
        let (Some(leadership), Some(resources)) = (&self.leadership, &self.resources) else { return };
        let (members, under_way) = leadership.who_is_active();
        // Those who are about to be active are waited for, for a while.
        let waits = under_way && now.since(leadership.group_at) < self.spans(GRACE);
        if members.len() < self.config.quorum().max(1) || waits {
            return;
        }
        let depth = self.config.layout.slots() as usize * 2 + 16;
        let again = now + self.spans(ASK_AGAIN);
        let Ok(qpn) = nic.create_qp(super::server::queue_pair(resources, depth)) else { return };
        let replicas = members.iter().map(|server| self.config.servers[usize::from(*server)]).collect();
        let request = GroupRequest {
            replicas: Replicas::Listed(replicas),
            quorum: self.config.quorum() as u8,
            port: self.config.port,
            // A member that has left is told by a NAK: the group then ends, and another begins without it.
            outvote: false,
        };
        let conn = request.to_bytes().ok().and_then(|private_data| {
            let param = ConnParam {
                access: Access::LOCAL_READ,
                ack_timeout: self.config.ack_timeout,
                retry_count: self.config.retry_count,
                private_data,
                ..ConnParam::default()
            };
            nic.connect(qpn, through.address, service_id_of(PortSpace::Tcp, through.port), param, now).ok()
        });
        let Some(conn) = conn else {
            _ = nic.destroy_qp(qpn);
            self.leadership.as_mut().expect("it leads").group_at = again;
            return;
        };
        self.uses.insert(qpn.get(), Use::Group);
        self.conns.insert(conn, qpn);
        if let Some(leadership) = &mut self.leadership {
            leadership.group = Some(Group { qpn, conn, since: now, members, state: State::Asked });
        }
    }

    /// The switch has answered.
    pub(super) fn group_stands(&mut self, nic: &mut Rnic, qpn: Qpn, region: Option<Region>, now: Nanos) {
        let len = self.config.layout.len() as u64;
        let Some(leadership) = &mut self.leadership else { return };
        let (Some(until), Some(group)) = (leadership.next, &mut leadership.group) else { return };
        if group.qpn != qpn || group.state != State::Asked {
            return;
        }
        match region {
            Some(region) if region.va() == 0 && region.size() == len => {
                group.state = State::Draining { rkey: region.rkey(), until };
                self.tend_group(nic, now);
            }
            _ => self.abandon_group(nic, now),
        }
    }

    /// Begins to write through the group if all members hold what was written to them directly.
    fn open_group(&mut self, nic: &mut Rnic, rkey: u32, until: u64, now: Nanos) {
        let Some(leadership) = &mut self.leadership else { return };
        let Some(group) = &mut leadership.group else { return };
        let members = group.members.iter().map(|member| &leadership.followers[usize::from(*member)]);
        if members.clone().count() < self.config.quorum().max(1) {
            return self.abandon_group(nic, now);
        }
        if members.clone().all(|member| member.stage == Stage::Active && member.held >= until) {
            group.state = State::Open { rkey, begin: until, posted: until, held: until, told: 0 };
        }
        self.replicate(nic);
    }

    /// Writes new entries through the group.
    pub(super) fn replicate_through(&mut self, nic: &mut Rnic) {
        let (Some(leadership), Some(resources)) = (&mut self.leadership, &self.resources) else { return };
        let (Some(next), Some(group)) = (leadership.next, &mut leadership.group) else { return };
        let State::Open { rkey, posted, .. } = &mut group.state else { return };
        let (layout, mr) = (self.config.layout, resources.log.1);
        while *posted < next {
            let Some(entry) = layout.entry(*posted, nic.bytes(resources.log.0)) else { return };
            let (at, len) = (layout.at(*posted), Layout::written_len(entry.value.len()) as u32);
            let write = Operation::Write(Remote { va: at as u64, rkey: *rkey });
            let data = Data::Memory(Sge { mr, va: LOG_VA + at as u64, len });
            if nic.post_send(group.qpn, SendRequest::new(*posted + 1, write, data)).is_err() {
                return;
            }
            *posted += 1;
        }
    }

    /// What is decided is told to members behind the entries, so that it comes to none that does not hold them.
    pub(super) fn commit_through(&mut self, nic: &mut Rnic) {
        let decided = self.decided;
        let group = self.leadership.as_mut().and_then(|leadership| leadership.group.as_mut());
        if let Some(group) = group
            && let State::Open { rkey, told, held, .. } = &mut group.state
            && *told < decided
            && *held >= decided
        {
            let write = Operation::Write(Remote { va: 0, rkey: *rkey });
            let data = Data::Inline(decided.to_le_bytes().to_vec());
            if nic.post_send(group.qpn, SendRequest::new(COMMIT, write, data)).is_ok() {
                *told = decided;
            }
        }
    }

    /// f members hold an entry.
    pub(super) fn on_group(&mut self, nic: &mut Rnic, qpn: Qpn, id: u64) {
        let group = self.leadership.as_mut().and_then(|leadership| leadership.group.as_mut());
        if let Some(group) = group.filter(|group| group.qpn == qpn && id != COMMIT)
            && let State::Open { held, .. } = &mut group.state
        {
            *held = (*held).max(id);
            self.decide(nic);
        }
    }

    /// The group's connection is no more.
    pub(super) fn group_lost(&mut self, nic: &mut Rnic, qpn: Qpn, now: Nanos) {
        let group = self.leadership.as_ref().and_then(|leadership| leadership.group.as_ref());
        match group.filter(|group| group.qpn == qpn) {
            Some(group) if group.is_open() => self.fall_back(nic, now, ASK_AGAIN),
            Some(_) => self.abandon_group(nic, now),
            None => {}
        }
    }

    /// A group that was not written to is given up; nobody need know.
    fn abandon_group(&mut self, nic: &mut Rnic, now: Nanos) {
        let again = now + self.spans(ASK_AGAIN);
        self.end_group(nic, now);
        if let Some(leadership) = &mut self.leadership {
            leadership.group_at = again;
        }
        self.replicate(nic);
    }

    /// Permission is asked for anew, everywhere, and the switch after so many heartbeats at the earliest.
    fn fall_back(&mut self, nic: &mut Rnic, now: Nanos, heartbeats: u64) {
        self.end_group(nic, now);
        let again = now + self.spans(heartbeats);
        let Some(leadership) = &mut self.leadership else { return };
        (leadership.since, leadership.group_at) = (now, again);
        let links: Vec<_> =
            leadership.followers.iter_mut().filter_map(|follower| follower.link.take()).collect();
        for follower in &mut leadership.followers {
            follower.stage = Stage::Absent(now);
        }
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

    /// The switch asks for permission in the name of a leader: it has what that leader has.
    pub(super) fn join(
        &mut self,
        nic: &mut Rnic,
        conn: Conn,
        member: MemberRequest,
        now: Nanos,
    ) -> Option<()> {
        let leader = self.config.servers.get(usize::from(self.promised.server()))?;
        if self.promised == Term::default() || *leader != member.leader || self.writer.is_none() {
            return None;
        }
        self.leave(nic, now);
        let resources = self.resources.as_ref()?;
        let len = self.config.layout.len();
        let mr = nic.register(resources.pd, resources.log.0, 0..len, LOG_VA, Access::REMOTE_WRITE).ok()?;
        let qpn = nic.create_qp(super::server::queue_pair(resources, 1)).ok()?;
        let region = Region::new(LOG_VA, mr.0, len as u64);
        let param = ConnParam {
            access: Access::REMOTE_WRITE,
            private_data: region.to_bytes(),
            ..ConnParam::default()
        };
        self.joined = Some((qpn, mr, conn));
        nic.accept(conn, qpn, param, now).ok()?;
        self.uses.insert(qpn.get(), Use::Joined);
        self.conns.insert(conn, qpn);
        Some(())
    }

    /// Takes the permission to write from the group, if there is one.
    pub(super) fn leave(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Some((qpn, mr, conn)) = self.joined.take() {
            _ = nic.deregister(mr);
            _ = nic.disconnect(conn, &[], now);
            self.drop_qp(nic, qpn);
        }
    }
}

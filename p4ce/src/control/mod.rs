//! The switch's control plane (paper IV-A): a leader asks the switch for a connection and names the replicas; the switch
//! connects to each of them, has the data plane open the group, and only then answers the leader. What goes wrong on the
//! way leaves nothing behind, and the leader is told why.
//!
//! ```text
//! leader          switch                replicas
//!   | --- REQ ---> | ------ REQ ----------> |   each its own
//!   |  (MRA, slow) | <----- REP ----------- |   address, key and size of its memory
//!   |              | (data plane opens)     |
//!   | <-- REP ---- | ------ RTU ----------> |   address 0, the group's key, size
//!   | --- RTU ---> |                        |
//! ```
//!
//! A replica that goes away is excluded; when a quorum is impossible, or the leader goes away, the group is over.

mod places;

use crate::function::{Command, Event, P4ce};
use crate::gather::MAX_MEMBERS;
use crate::group::{Group, GroupConfig, GroupId, Peer, Replica};
use crate::wire::{GroupRequest, MemberRequest, Refusal, Region, Replicas};
use core::net::IpAddr;
use places::{Places, Stations};
use rnic::cm::{
    self, Accept, Conn, ConnectRequest, Event as CmEvent, PortSpace, RemoteReply, RemoteRequest, Transport,
    service_id_of,
};
use rnic::{Endpoint, Interface};
use rocev2::cm::RejReason;
use rocev2::{Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::{Chance, Egress, Nanos, PortId};

/// How long an MRA says that it will take: 4.096 us times two to this, 4.3 s
const SERVICE_TIMEOUT: u8 = 20;
/// A leader is asked to wait when its group is not there after so long.
const PATIENCE: Nanos = Nanos::from_millis(100);
/// The time between two looks at groups that wait for something
const LOOK_EVERY: Nanos = Nanos::from_millis(20);

/// What a control plane is made with.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The switch's addresses
    pub interface: Interface,
    /// The port at which leaders ask for groups, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// As for the data plane
    pub groups: usize,
    /// As for the data plane
    pub queue_pairs: usize,
    /// Replicas of a group at most, up to [`MAX_MEMBERS`]
    pub max_replicas: usize,
    /// Lists that requests can name by a number
    pub lists: BTreeMap<u32, Vec<IpAddr>>,
    /// How long replicas may take to answer
    pub setup_timeout: Nanos,
    /// For keys, first PSNs and the like
    pub seed: u64,
    /// The first PSN of leaders, for tests of what happens at the end of all PSNs; otherwise by chance
    pub first_psn: Option<Psn>,
}

/// What a connection is to the group that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader,
    Replica(usize),
}

/// Where a group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Replicas have been asked.
    Connecting,
    /// All have answered; the data plane is opening it.
    Opening,
    /// The leader has been answered.
    Open,
    /// The data plane is closing it.
    Closing,
}

/// A replica, as far as it is known.
#[derive(Clone, Debug)]
struct Member {
    ip: IpAddr,
    conn: Conn,
    local_qp: Qpn,
    answer: Option<(RemoteReply, Region)>,
    /// It is written to
    in_group: bool,
}

/// A group, from the leader's request to its end.
#[derive(Clone, Debug)]
struct Pending {
    stage: Stage,
    leader: Conn,
    request: Box<RemoteRequest>,
    local_qp: Qpn,
    /// The leader's first PSN
    first: Psn,
    rkey: u32,
    quorum: usize,
    outvote: bool,
    members: Vec<Member>,
    since: Nanos,
    /// The leader was asked to wait.
    delayed: bool,
}

/// What the control plane counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// Groups that leaders asked for
    pub requested: u64,
    /// Groups that were opened
    pub opened: u64,
    /// Groups that were refused
    pub refused: u64,
    /// Groups that have ended
    pub closed: u64,
    /// Replicas excluded from a group that went on
    pub excluded: u64,
}

/// A group as the control plane shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its number
    pub id: GroupId,
    /// Its leader
    pub leader: IpAddr,
    /// Its replicas, and whether they are written to
    pub replicas: Vec<(IpAddr, bool)>,
    /// How many have to acknowledge
    pub quorum: usize,
    /// Packets go through it
    pub open: bool,
}

/// The control plane.
#[derive(Debug)]
pub struct Control {
    config: ControlConfig,
    endpoint: Endpoint,
    chance: Chance,
    stations: Stations,
    qpns: Places,
    ids: Places,
    groups: BTreeMap<GroupId, Pending>,
    roles: BTreeMap<Conn, (GroupId, Role)>,
    commands: VecDeque<Command>,
    look_at: Option<Nanos>,
    counters: ControlCounters,
}

impl Control {
    /// A control plane without groups.
    pub fn new(config: ControlConfig) -> Self {
        let cm = cm::Config { capacity: 2 * config.queue_pairs, ..cm::Config::default() };
        let mut endpoint = Endpoint::new(config.interface.clone(), cm, config.seed);
        // Nobody listens yet.
        _ = endpoint.cm_mut().listen(service_id_of(PortSpace::Tcp, config.port));
        Self {
            endpoint,
            chance: Chance::stream(config.seed, 2),
            stations: Stations::default(),
            qpns: Places::new(config.queue_pairs, 1 << 24),
            ids: Places::new(config.groups, config.groups),
            groups: BTreeMap::new(),
            roles: BTreeMap::new(),
            commands: VecDeque::new(),
            look_at: None,
            counters: ControlCounters::default(),
            config,
        }
    }

    /// What it has counted
    pub fn counters(&self) -> ControlCounters {
        self.counters
    }

    /// The groups there are, those included that are being made
    pub fn groups(&self) -> impl Iterator<Item = GroupStatus> + '_ {
        self.groups.iter().map(|(id, group)| GroupStatus {
            id: *id,
            leader: group.request.peer.remote,
            replicas: group.members.iter().map(|member| (member.ip, member.in_group)).collect(),
            quorum: group.quorum,
            open: group.stage == Stage::Open,
        })
    }

    /// Ends a group: leader and replicas are disconnected.
    pub fn close(&mut self, id: GroupId, now: Nanos) {
        self.end(id, None, now);
    }

    /// A leader asks for a group.
    fn on_requested(&mut self, conn: Conn, request: &RemoteRequest, now: Nanos) {
        self.counters.requested += 1;
        if let Err(refusal) = self.begin(conn, request, now) {
            self.counters.refused += 1;
            // It asked just now, and is told.
            _ = self.endpoint.cm_mut().reject(conn, RejReason::CONSUMER, &refusal.to_bytes(), now);
        }
    }

    fn begin(&mut self, leader: Conn, request: &RemoteRequest, now: Nanos) -> Result<(), Refusal> {
        let asked = GroupRequest::from_bytes(&request.private_data).map_err(|_| Refusal::Request)?;
        if request.transport != Transport::Rc {
            return Err(Refusal::Request);
        }
        let replicas = match asked.replicas {
            Replicas::Listed(list) => list,
            Replicas::Configured(id) => self.config.lists.get(&id).ok_or(Refusal::NoSuchList)?.clone(),
        };
        let quorum = self.check(&replicas, asked.quorum, request)?;
        let (id, local_qp, qpns) = self.places_for(replicas.len()).ok_or(Refusal::Full)?;
        self.roles.insert(leader, (id, Role::Leader));
        let mut members = Vec::with_capacity(replicas.len());
        for (ip, local_qp) in replicas.iter().copied().zip(qpns.iter().copied()) {
            let Some(conn) = self.connect(ip, local_qp, asked.port, request, now) else { break };
            self.roles.insert(conn, (id, Role::Replica(members.len())));
            members.push(Member { ip, conn, local_qp, answer: None, in_group: false });
        }
        let unused = &qpns[members.len()..];
        let complete = unused.is_empty();
        for qpn in unused {
            self.qpns.give_back(qpn.get());
        }
        let group = Pending {
            stage: Stage::Connecting,
            leader,
            request: Box::new(request.clone()),
            local_qp,
            first: self.config.first_psn.unwrap_or(Psn::new(self.chance.bits() as u32)),
            // Key 0 is nobody's.
            rkey: (self.chance.bits() as u32).max(1),
            quorum,
            outvote: asked.outvote,
            members,
            since: now,
            delayed: false,
        };
        self.groups.insert(id, group);
        self.look_at = Some(now + LOOK_EVERY);
        if !complete {
            self.end(id, Some(Refusal::Full), now);
        }
        Ok(())
    }

    /// Numbers for a group, its leader's queue pair, and those of its replicas
    fn places_for(&mut self, replicas: usize) -> Option<(GroupId, Qpn, Vec<Qpn>)> {
        let id = self.ids.take()?;
        let mut qpns: Vec<Qpn> = (0..=replicas).map_while(|_| self.qpns.take()).map(Qpn::new).collect();
        if qpns.len() <= replicas {
            for qpn in qpns {
                self.qpns.give_back(qpn.get());
            }
            self.ids.give_back(id);
            return None;
        }
        let leaders = qpns.pop()?;
        Some((GroupId(id), leaders, qpns))
    }

    /// Whether there can be such a group: how many replicas are a quorum.
    fn check(&self, replicas: &[IpAddr], quorum: u8, request: &RemoteRequest) -> Result<usize, Refusal> {
        let leader = request.peer.remote;
        if replicas.is_empty() || replicas.len() > self.config.max_replicas.min(MAX_MEMBERS) {
            return Err(Refusal::Count);
        }
        for (at, ip) in replicas.iter().enumerate() {
            if replicas[..at].contains(ip) {
                return Err(Refusal::Count);
            }
            if ip.is_ipv6() != leader.is_ipv6() {
                return Err(Refusal::Family);
            }
            if *ip == leader || self.config.interface.has(*ip) || ip.is_unspecified() || ip.is_multicast() {
                return Err(Refusal::NotAReplica(*ip));
            }
        }
        // With the leader, more than half.
        let quorum = if quorum == 0 { replicas.len().div_ceil(2) } else { usize::from(quorum) };
        if quorum > replicas.len() { Err(Refusal::Quorum) } else { Ok(quorum) }
    }

    /// Asks a replica for a connection.
    fn connect(
        &mut self,
        ip: IpAddr,
        local_qp: Qpn,
        port: u16,
        request: &RemoteRequest,
        now: Nanos,
    ) -> Option<Conn> {
        let local = self.config.interface.source_for(ip)?;
        let peer = cm::Peer { local, remote: ip };
        let leader_port = request.cma.map_or(0, |cma| cma.src_port.get());
        let member = MemberRequest { leader: request.peer.remote, port: leader_port };
        let unused = Psn::new(self.chance.bits() as u32);
        let connect = ConnectRequest {
            cma_src_port: Some(self.config.port),
            private_data: member.to_bytes(),
            path_mtu: request.path_mtu,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            flow_control: request.flow_control,
            traffic_class: request.traffic_class,
            ..ConnectRequest::new(peer, service_id_of(PortSpace::Tcp, port), local_qp, unused)
        };
        self.endpoint.cm_mut().connect(&connect, now).ok()
    }

    fn on_cm(&mut self, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            self.on_requested(conn, request, now);
            return;
        }
        let Some((id, role)) = self.roles.get(&conn).copied() else { return };
        if event.is_last() {
            self.roles.remove(&conn);
        }
        match (role, event) {
            (Role::Replica(member), CmEvent::Replied { reply, .. }) => {
                self.on_replied(id, member, reply, now);
            }
            (Role::Replica(member), CmEvent::Rejected { reason, .. }) => {
                self.on_replica_gone(id, member, Some(*reason), now);
            }
            (
                Role::Replica(member),
                CmEvent::Disconnecting { .. } | CmEvent::Disconnected { .. } | CmEvent::Unreachable { .. },
            ) => self.on_replica_gone(id, member, None, now),
            (
                Role::Leader,
                CmEvent::Rejected { .. }
                | CmEvent::Disconnecting { .. }
                | CmEvent::Disconnected { .. }
                | CmEvent::Unreachable { .. },
            ) => self.end(id, None, now),
            (Role::Leader, CmEvent::Established { .. } | CmEvent::Replied { .. })
            | (Role::Replica(_), CmEvent::Established { .. })
            | (_, CmEvent::Requested { .. }) => {}
        }
    }

    /// A replica has answered.
    fn on_replied(&mut self, id: GroupId, number: usize, reply: &RemoteReply, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let ip = group.members[number].ip;
        let Some(region) = Region::from_private_data(&reply.private_data) else {
            self.end(id, Some(Refusal::NoMemory(ip)), now);
            return;
        };
        let other = group.members.iter().find_map(|member| member.answer.as_ref());
        if other.is_some_and(|(_, other)| other.size() != region.size()) {
            self.end(id, Some(Refusal::Size(ip)), now);
            return;
        }
        group.members[number].answer = Some((reply.clone(), region));
        self.open(id, now);
    }

    /// Has the data plane open a group, once everything is known.
    fn open(&mut self, id: GroupId, now: Nanos) {
        let Some(group) = self.groups.get(&id).filter(|group| group.stage == Stage::Connecting) else {
            return;
        };
        let request = &group.request;
        let leader = (request.peer.remote, request.qpn, group.local_qp, group.first);
        let mut replicas = Vec::with_capacity(group.members.len());
        for member in &group.members {
            let Some((reply, region)) = &member.answer else { return };
            replicas.push(((member.ip, reply.qpn, member.local_qp, reply.starting_psn), *region));
        }
        // A neighbour that is not known yet is asked for, and looked for again.
        let Some(leader) = self.peer(leader, now) else { return };
        let replicas: Option<Vec<_>> = replicas
            .into_iter()
            .map(|(ends, region)| {
                let peer = self.peer(ends, now)?;
                Some(Replica { peer, va: region.va(), rkey: region.rkey() })
            })
            .collect();
        let Some(replicas) = replicas else { return };
        let Some(group) = self.groups.get_mut(&id) else { return };
        let size =
            group.members.iter().find_map(|member| member.answer.as_ref()).map_or(0, |(_, r)| r.size());
        let config = GroupConfig {
            id,
            own: self.config.interface.mac,
            leader,
            rkey: group.rkey,
            size,
            replicas,
            quorum: group.quorum,
            outvote: group.outvote,
        };
        match Group::new(config) {
            Some(group_) => {
                group.stage = Stage::Opening;
                self.commands.push_back(Command::Open(group_));
            }
            None => self.end(id, Some(Refusal::Family), now),
        }
    }

    /// The connection to a host, if it is known where that lies.
    fn peer(
        &mut self,
        (remote, remote_qp, local_qp, first): (IpAddr, Qpn, Qpn, Psn),
        now: Nanos,
    ) -> Option<Peer> {
        let local = self.config.interface.source_for(remote)?;
        let mac = self.endpoint.resolve(remote, now)?;
        let port = self.stations.port_of(mac)?;
        Some(Peer { local, remote, mac, port, local_qp, remote_qp, first })
    }

    /// The data plane has opened a group, or not: replicas and leader are told.
    fn on_opened(&mut self, id: GroupId, opened: bool, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.stage == Stage::Opening) else {
            return;
        };
        if !opened {
            self.end(id, Some(Refusal::Full), now);
            return;
        }
        group.stage = Stage::Open;
        let cm = self.endpoint.cm_mut();
        let mut flow_control = group.request.flow_control;
        let mut rnr_retry_count = 7;
        let mut size = 0;
        for member in &mut group.members {
            let Some((reply, region)) = &member.answer else { continue };
            flow_control &= reply.flow_control;
            rnr_retry_count = rnr_retry_count.min(reply.rnr_retry_count);
            size = region.size();
            // One that has gone meanwhile is excluded when that is reported.
            member.in_group = cm.confirm(member.conn, &[]).is_ok();
        }
        let accept = Accept {
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retry_count,
            flow_control,
            private_data: Region::new(0, group.rkey, size).to_bytes(),
            ..Accept::new(group.local_qp, group.first)
        };
        if cm.accept(group.leader, &accept, now).is_err() {
            self.end(id, None, now);
            return;
        }
        self.counters.opened += 1;
    }

    /// A replica refuses, does not answer, or goes away.
    fn on_replica_gone(&mut self, id: GroupId, number: usize, reason: Option<RejReason>, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let replica = group.members[number].ip;
        let refusal = match reason {
            Some(reason) => Refusal::Rejected { replica, reason },
            None => Refusal::Unreachable(replica),
        };
        match group.stage {
            Stage::Connecting | Stage::Opening => self.end(id, Some(refusal), now),
            Stage::Open => {
                if group.members[number].in_group {
                    group.members[number].in_group = false;
                    self.commands.push_back(Command::Exclude(id, number));
                    self.counters.excluded += 1;
                }
                self.end_if_impossible(id, now);
            }
            Stage::Closing => {}
        }
    }

    /// The data plane has excluded a replica.
    fn on_excluded(&mut self, id: GroupId, number: usize, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(member) = group.members.get_mut(number) else { return };
        if core::mem::replace(&mut member.in_group, false) {
            self.counters.excluded += 1;
        }
        let conn = member.conn;
        self.drop_connection(conn, now);
        self.end_if_impossible(id, now);
    }

    fn end_if_impossible(&mut self, id: GroupId, now: Nanos) {
        let members = |group: &Pending| group.members.iter().filter(|member| member.in_group).count();
        if self.groups.get(&id).is_some_and(|group| members(group) < group.quorum) {
            self.end(id, None, now);
        }
    }

    /// Ends a group at whatever stage. A leader that has not been answered is told why.
    fn end(&mut self, id: GroupId, refusal: Option<Refusal>, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.stage != Stage::Closing) else {
            return;
        };
        let stage = core::mem::replace(&mut group.stage, Stage::Closing);
        let leader = group.leader;
        let conns: Vec<_> = group.members.iter().map(|member| member.conn).collect();
        if let (Stage::Connecting | Stage::Opening, Some(refusal)) = (stage, refusal) {
            self.counters.refused += 1;
            // The leader may have given up.
            _ = self.endpoint.cm_mut().reject(leader, RejReason::CONSUMER, &refusal.to_bytes(), now);
            self.roles.remove(&leader);
        } else {
            self.drop_connection(leader, now);
        }
        for conn in conns {
            self.drop_connection(conn, now);
        }
        if stage == Stage::Connecting {
            self.forget(id);
        } else {
            self.commands.push_back(Command::Close(id));
        }
    }

    /// Ends a connection, wherever it stands.
    fn drop_connection(&mut self, conn: Conn, now: Nanos) {
        let cm = self.endpoint.cm_mut();
        if cm.disconnect(conn, &[], now).is_err() {
            // It does not stand yet, or stands no more.
            _ = cm.reject(conn, RejReason::CONSUMER, &[], now);
            self.roles.remove(&conn);
        }
    }

    /// Nothing knows a group any more: its numbers can be given again.
    fn forget(&mut self, id: GroupId) {
        let Some(group) = self.groups.remove(&id) else { return };
        for qpn in group.members.iter().map(|member| member.local_qp).chain([group.local_qp]) {
            self.qpns.give_back(qpn.get());
        }
        self.ids.give_back(id.0);
        self.counters.closed += 1;
    }

    /// Groups that wait: for a neighbour, for too long, or so long that their leader is to know.
    fn look(&mut self, now: Nanos) {
        let waiting: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(_, group)| group.stage == Stage::Connecting)
            .map(|(id, _)| *id)
            .collect();
        self.look_at = (!waiting.is_empty()).then(|| now + LOOK_EVERY);
        for id in waiting {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let waited = now.since(group.since);
            if waited >= self.config.setup_timeout {
                let missing = group.members.iter().find(|member| member.answer.is_none());
                let ip = missing.map_or(group.request.peer.remote, |member| member.ip);
                self.end(id, Some(Refusal::Unreachable(ip)), now);
                continue;
            }
            if waited >= PATIENCE && !core::mem::replace(&mut group.delayed, true) {
                // It may have given up.
                _ = self.endpoint.cm_mut().delay(group.leader, SERVICE_TIMEOUT);
            }
            self.open(id, now);
        }
    }

    fn follow(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            self.on_cm(&event, now);
        }
    }
}

impl switch::Control for Control {
    type Function = P4ce;

    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        self.stations.hear(frame, port);
        self.endpoint.on_frame(frame, now);
        self.follow(now);
    }

    fn on_event(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Opened(id, opened) => self.on_opened(id, opened, now),
            Event::Closed(id, _) => self.forget(id),
            Event::Excluded(id, member) => self.on_excluded(id, member, now),
        }
        self.follow(now);
    }

    fn on_timer(&mut self, now: Nanos) {
        if self.endpoint.next_timer().is_some_and(|at| at <= now) {
            self.endpoint.on_timer(now);
        }
        self.follow(now);
        if self.look_at.is_some_and(|at| at <= now) {
            self.look(now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.endpoint.next_timer(), self.look_at].into_iter().flatten().min()
    }

    fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        self.endpoint.poll_transmit(now, frame).then(|| self.stations.egress(frame))
    }
}

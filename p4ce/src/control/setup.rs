//! Setup of a group: a leader's request is checked, its replicas are connected, the data plane opens the
//! group, and the leader's connection is accepted.

use super::{Control, GroupState, Member, Role, Stage};
use crate::function::Command;
use crate::gather::MAX_MEMBERS;
use crate::group::{Group, GroupConfig, GroupId, Peer, Replica};
use crate::secret::Envelope;
use crate::wire::{GroupRequest, MemberRequest, Refusal, Region, Replicas};
use core::net::IpAddr;
use rnic::cm::{
    self, Accept, Conn, ConnectRequest, ConnectedTransport, PortSpace, RemoteReply, RemoteRequest,
    service_id_of,
};
use rocev2::cm::RejReason;
use rocev2::{Psn, Qpn};
use switch::Nanos;

/// Service timeout in an MRA: 4.096 us times 2^20, 4.3 s
const SERVICE_TIMEOUT: u8 = 20;
/// Time after which a leader whose group is not open yet receives an MRA
const MRA_AFTER: Nanos = Nanos::from_millis(100);
/// Interval between two checks of groups that are being set up
const CHECK_INTERVAL: Nanos = Nanos::from_millis(20);

impl Control {
    /// Handles a leader's request for a group.
    pub(super) fn on_requested(&mut self, conn: Conn, request: Box<RemoteRequest>, now: Nanos) {
        self.counters.requested += 1;
        if let Err(refusal) = self.begin(conn, request, now) {
            self.counters.refused += 1;
            self.counters.limited += u64::from(matches!(refusal, Refusal::Busy | Refusal::NotALeader));
            // The request is pending, so this does not fail.
            _ = self.endpoint.cm_mut().reject(conn, RejReason::CONSUMER, &refusal.to_bytes(), now);
        }
    }

    fn begin(&mut self, leader: Conn, request: Box<RemoteRequest>, now: Nanos) -> Result<(), Refusal> {
        let requested = GroupRequest::from_bytes(&request.private_data).map_err(|_| Refusal::Request)?;
        if request.transport != ConnectedTransport::Rc {
            return Err(Refusal::Request);
        }
        let len = requested.to_bytes().map_err(|_| Refusal::Request)?.len();
        let cm::AddressPair { local: to, remote: from } = request.addresses;
        if !(Envelope { secret: self.config.secret.as_ref(), from, to }).verifies(&request.private_data, len)
        {
            return Err(Refusal::Secret);
        }
        let replicas = match requested.replicas {
            Replicas::Listed(list) => list,
            Replicas::Configured(id) => self.config.lists.get(&id).ok_or(Refusal::NoSuchList)?.clone(),
        };
        let quorum = self.check(&replicas, requested.quorum, &request)?;
        self.admission.begin(request.addresses.remote, &self.config.limits, now)?;
        let Some((id, worker, local_qp, qpns)) = self.allocate_numbers(replicas.len()) else {
            // No REQ was sent to a replica.
            self.admission.withdraw(request.addresses.remote);
            return Err(Refusal::Full);
        };
        self.roles.insert(leader, (id, Role::Leader));
        let mut members = Vec::with_capacity(replicas.len());
        for (ip, local_qp) in replicas.into_iter().zip(qpns.iter().copied()) {
            let Some(conn) = self.connect(ip, local_qp, requested.port, &request, now) else { break };
            self.roles.insert(conn, (id, Role::Replica(members.len())));
            members.push(Member { ip, conn, local_qp, reply: None, in_group: false });
        }
        let unused = &qpns[members.len()..];
        let complete = unused.is_empty();
        for qpn in unused {
            self.queue_pairs.free(*qpn);
        }
        let group = GroupState {
            stage: Stage::Connecting,
            worker,
            leader,
            request,
            local_qp,
            first: self.config.first_psn.unwrap_or(Psn::new(self.rng.bits() as u32)),
            // Key 0 is never assigned.
            rkey: (self.rng.bits() as u32).max(1),
            quorum,
            outvote: requested.outvote,
            members,
            since: now,
            setup_done: false,
            delayed: false,
        };
        self.groups.insert(id, group);
        self.check_at = Some(now + CHECK_INTERVAL);
        if !complete {
            self.close_group(id, Some(Refusal::Full), now);
        }
        Ok(())
    }

    /// Allocates a group ID, a worker, the leader's queue pair and the replicas' queue pairs.
    fn allocate_numbers(&mut self, replicas: usize) -> Option<(GroupId, usize, Qpn, Vec<Qpn>)> {
        let id = self.ids.allocate()?;
        let Some((worker, mut qpns)) = self.queue_pairs.allocate(replicas + 1) else {
            self.ids.free(id);
            return None;
        };
        let leader_qp = qpns.pop()?;
        Some((GroupId(id), worker, leader_qp, qpns))
    }

    /// Checks whether a group is valid. Returns the number of replicas in a quorum.
    fn check(&self, replicas: &[IpAddr], quorum: u8, request: &RemoteRequest) -> Result<usize, Refusal> {
        let leader = request.addresses.remote;
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
            let is_none = *ip == leader || ip.is_unspecified() || ip.is_multicast();
            if is_none || self.config.interface.has(*ip) || !self.config.may_be_replica(*ip) {
                return Err(Refusal::NotAReplica(*ip));
            }
        }
        // A majority together with the leader.
        let quorum = if quorum == 0 { replicas.len().div_ceil(2) } else { usize::from(quorum) };
        if quorum > replicas.len() { Err(Refusal::Quorum) } else { Ok(quorum) }
    }

    /// Requests a connection to a replica.
    fn connect(
        &mut self,
        ip: IpAddr,
        local_qp: Qpn,
        port: u16,
        request: &RemoteRequest,
        now: Nanos,
    ) -> Option<Conn> {
        let local = self.config.interface.source_for(ip)?;
        let addresses = cm::AddressPair { local, remote: ip };
        let leader_port = request.cma.map_or(0, |cma| cma.src_port.get());
        let member = MemberRequest { leader: request.addresses.remote, port: leader_port };
        let envelope = Envelope { secret: self.config.secret.as_ref(), from: local, to: ip };
        let unused = Psn::new(self.rng.bits() as u32);
        let connect = ConnectRequest {
            cma_src_port: Some(self.config.port),
            private_data: envelope.seal(member.to_bytes()),
            path_mtu: request.path_mtu,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ack_timeout: request.ack_timeout,
            flow_control: request.flow_control,
            traffic_class: request.traffic_class,
            ..ConnectRequest::new(addresses, service_id_of(PortSpace::Tcp, port), local_qp, unused)
        };
        self.endpoint.cm_mut().connect(&connect, now).ok()
    }

    /// Handles a replica's REP.
    pub(super) fn on_replied(&mut self, id: GroupId, number: usize, reply: Box<RemoteReply>, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let ip = group.members[number].ip;
        let Some(region) = Region::from_private_data(&reply.private_data) else {
            self.close_group(id, Some(Refusal::NoMemory(ip)), now);
            return;
        };
        let other = group.members.iter().find_map(|member| member.reply.as_ref());
        if other.is_some_and(|(_, other)| other.size() != region.size()) {
            self.close_group(id, Some(Refusal::Size(ip)), now);
            return;
        }
        group.members[number].reply = Some((reply, region));
        self.open(id, now);
    }

    /// Lets the data plane open a group, once all replicas have replied and all addresses are resolved.
    fn open(&mut self, id: GroupId, now: Nanos) {
        let Self { config, endpoint, stations, groups, .. } = self;
        let Some(group) = groups.get_mut(&id).filter(|group| group.stage == Stage::Connecting) else {
            return;
        };
        let replies: Option<Vec<_>> = group.members.iter().map(|member| member.reply.as_ref()).collect();
        let Some(replies) = replies else { return };
        // An unresolved neighbour is requested, and checked again later.
        let mut peer = |remote, remote_qp, local_qp, first| {
            let local = config.interface.source_for(remote)?;
            let mac = endpoint.resolve(remote, now)?;
            let port = stations.port_of(mac)?;
            Some(Peer { local, remote, mac, port, local_qp, remote_qp, first })
        };
        let request = &group.request;
        let Some(leader) = peer(request.addresses.remote, request.qpn, group.local_qp, group.first) else {
            return;
        };
        let mut replicas = Vec::with_capacity(replies.len());
        let mut size = 0;
        for (member, (reply, region)) in group.members.iter().zip(replies) {
            let peer = peer(member.ip, reply.qpn, member.local_qp, reply.starting_psn);
            let Some(peer) = peer else { return };
            replicas.push(Replica { peer, va: region.va(), rkey: region.rkey() });
            size = region.size();
        }
        let opened = Group::new(GroupConfig {
            id,
            own: config.interface.mac,
            leader,
            rkey: group.rkey,
            size,
            replicas,
            quorum: group.quorum,
            outvote: group.outvote,
            max_lag: config.max_lag,
        });
        match opened {
            Some(opened) => {
                group.stage = Stage::Opening;
                self.commands.push_back((group.worker, Command::Open(opened)));
            }
            None => self.close_group(id, Some(Refusal::Family), now),
        }
    }

    /// Handles the data plane's result: confirms the replicas' connections and accepts the leader's.
    pub(super) fn on_opened(&mut self, id: GroupId, opened: bool, now: Nanos) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.stage == Stage::Opening) else {
            return;
        };
        if !opened {
            self.close_group(id, Some(Refusal::Full), now);
            return;
        }
        group.stage = Stage::Open;
        self.finish_setup(id);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let cm = self.endpoint.cm_mut();
        let mut flow_control = group.request.flow_control;
        let mut rnr_retry_count = 7;
        let mut size = 0;
        for member in &mut group.members {
            let Some((reply, region)) = &member.reply else { continue };
            flow_control &= reply.flow_control;
            rnr_retry_count = rnr_retry_count.min(reply.rnr_retry_count);
            size = region.size();
            // The event of a replica that has disconnected meanwhile excludes it.
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
            self.close_group(id, None, now);
            return;
        }
        self.counters.opened += 1;
    }

    /// Checks groups that are being set up: retries the resolution of neighbours, gives up after the timeout,
    /// and sends an MRA to the leader of a slow setup.
    pub(super) fn check_setups(&mut self, now: Nanos) {
        let waiting: Vec<GroupId> = self
            .groups
            .iter()
            .filter(|(_, group)| group.stage == Stage::Connecting)
            .map(|(id, _)| *id)
            .collect();
        self.check_at = (!waiting.is_empty()).then(|| now + CHECK_INTERVAL);
        for id in waiting {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let waited = now.since(group.since);
            if waited >= self.config.setup_timeout {
                let missing = group.members.iter().find(|member| member.reply.is_none());
                let ip = missing.map_or(group.request.addresses.remote, |member| member.ip);
                self.close_group(id, Some(Refusal::Unreachable(ip)), now);
                continue;
            }
            if waited >= MRA_AFTER && !core::mem::replace(&mut group.delayed, true) {
                // The leader may have given up.
                _ = self.endpoint.cm_mut().delay(group.leader, SERVICE_TIMEOUT);
            }
            self.open(id, now);
        }
    }
}

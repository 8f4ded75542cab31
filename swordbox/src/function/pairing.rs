//! Pairing: identifies the two queue pairs that belong to one connection, by messages of the connection
//! manager or by the PSNs of responses.

use super::Swordbox;
use crate::address::{NO_SERVER, bits_of};
use crate::config::Connection;
use crate::connections::UNKNOWN_PORT;
use crate::event::Event;
use crate::flow::{Flow, Stage};
use crate::handshakes::Request;
use crate::successor::Successor;
use crate::{Id, NONE};
use core::net::IpAddr;
use rocev2::aeth::Syndrome;
use rocev2::cm::{Body, Message, mad_of};
use rocev2::{Msn, Packet, Psn, Qpn};
use switch::forward::counters::HostQp;
use switch::{Nanos, PortId};

/// Number of responses with different PSNs that have to fit one connection, and no other, before the two
/// queue pairs are paired
const CONFIRMATIONS: u8 = 3;

impl Swordbox {
    /// Handles a datagram, which may set up or end a connection. Returns whether it may be forwarded: a DREQ
    /// may not while other clients use the connection.
    pub(crate) fn on_datagram(&mut self, packet: &Packet<'_>, port: PortId, now: Nanos) -> bool {
        let Some(message) = mad_of(packet).and_then(|mad| Message::parse(mad).ok()) else { return true };
        if !packet.verify_icrc() {
            return true;
        }
        match message.body {
            Body::Req(req) => {
                self.handshakes.keep(Request {
                    client: packet.src(),
                    comm_id: req.local_comm_id.get(),
                    qpn: req.qpn(),
                    psn: req.starting_psn(),
                    mtu: req.path_mtu().unwrap_or(0),
                    port,
                    replied: false,
                    number: 0,
                });
                true
            }
            Body::Rep(rep) => {
                let client = packet.dst();
                let comm_id = rep.remote_comm_id.get();
                if let Some(request) = self.handshakes.find(client, comm_id)
                    && !request.replied
                {
                    request.replied = true;
                    let request = *request;
                    let server = (packet.src(), rep.qpn());
                    self.connect(&request, server, rep.starting_psn(), rep.responder_resources, port, now);
                }
                true
            }
            Body::Dreq(dreq) => {
                self.disconnect(HostQp::new(packet.dst(), dreq.remote_qpn()), bits_of(packet.src()), port)
            }
            _ => true,
        }
    }

    /// Handles a completed handshake. State of untranslated connections with the same queue pairs is
    /// replaced; a translated one stays until packets of both endpoints show that it is gone.
    fn connect(
        &mut self,
        request: &Request,
        server: (IpAddr, Qpn),
        psn: Psn,
        responder_resources: u8,
        port: PortId,
        now: Nanos,
    ) {
        let successor = Successor {
            server,
            client: (request.client, request.qpn),
            psn,
            server_psn: request.psn,
            mtu: request.mtu,
            server_max_reads: responder_resources,
            client_port: request.port,
            server_port: port,
            at: now,
            request_seen: false,
        };
        let keys = successor.keys();
        if keys.iter().all(|key| self.connections.server_of(bits_of(key.host())) == NO_SERVER) {
            return;
        }
        self.on_connected(self.connections.server_of(bits_of(server.0)), now);
        let ended_connection = Connection { server, client: (request.client, Qpn::new(0)) };
        let in_use = |key| self.connections.find(key).is_some_and(|id| self.is_in_use(id, now));
        let known = keys.iter().any(|key| self.connections.is_translated(key) || in_use(key));
        if known || self.ended.contains(&ended_connection) {
            self.add_successor(successor);
        } else {
            self.replace_connection(&successor, true, now);
        }
    }

    /// Replaces whatever connections the queue pairs belonged to by a new one. `begins` states that no
    /// request of the new connection has been sent.
    pub(crate) fn replace_connection(&mut self, successor: &Successor, begins: bool, now: Nanos) {
        let (server, client) = (successor.server, successor.client);
        let keys = successor.keys();
        self.report_over(&Connection { server, client: (client.0, Qpn::new(0)) });
        for key in keys {
            if let Some(id) = self.connections.find(&key) {
                self.forget(id);
            }
        }
        let Some([to_server, to_client]) = self.connections.add_both(keys) else {
            self.counters.untracked.add(1);
            return;
        };
        // A REQ and a REP may be forged: the connection becomes synced only when a response to that client
        // matches its requests.
        self.pair(to_server, to_client, Stage::Paired);
        self.connections.endpoint_mut(to_server).port = successor.server_port;
        self.connections.endpoint_mut(to_client).port = successor.client_port;
        for (id, from, psn) in
            [(to_server, client.0, successor.psn), (to_client, server.0, successor.server_psn)]
        {
            let flow = self.connections.flow_mut(id);
            let max_reads = if id == to_server { successor.server_max_reads } else { 0 };
            flow.limits.announce(successor.mtu, max_reads);
            if begins {
                flow.begin(psn);
            } else {
                flow.limits.confirm(true);
            }
            let end = self.connections.endpoint_mut(id);
            end.from = bits_of(from);
            end.seen = now;
            if self.connections.flow(id).server != NO_SERVER {
                self.sources.add(bits_of(from));
            }
        }
        self.counters.paired_by_cm.add(1);
    }

    /// Removes a connection from the ended ones, because the server's queue pair now belongs to another
    /// connection.
    fn report_over(&mut self, key: &Connection) {
        if let Some(connection) = self.ended.remove(key) {
            self.events.push_back(Event::ConnectionEnded(connection));
        }
    }

    fn pair(&mut self, to_server: Id, to_client: Id, stage: Stage) {
        self.connections.pair(to_server, to_client);
        for id in [to_server, to_client] {
            let flow = self.connections.flow_mut(id);
            if flow.stage == Stage::Unpaired && flow.server != NO_SERVER {
                flow.stage = stage;
            }
        }
        self.counters.paired.add(1);
    }

    /// Handles a DREQ. Returns whether it may be forwarded. While other clients have operations in flight on
    /// the connection it may not; the connection manager retransmits it.
    fn disconnect(&mut self, key: HostQp, from: u128, port: PortId) -> bool {
        let Some(id) = self.connections.find(&key) else { return true };
        let peer = self.connections.endpoint(id).peer();
        if self.connections.flow(id).is_switch_owned {
            // Switch-owned QPs are disconnected by the control plane.
            return true;
        }
        if self.connections.key(peer).is_some_and(|other| bits_of(other.host()) != from) {
            // The receiver's connection manager will not find a connection with this sender.
            self.counters.spoofed.add(1);
            return true;
        }
        // `peer_port` is the port on which the sender's packets arrive, if known, which is the port on which
        // frames to the sender leave.
        let leads = peer != NONE && self.connections.endpoint(id).peer_port != UNKNOWN_PORT;
        if leads && self.connections.endpoint(peer).port != port && self.connections.is_translated(&key) {
            self.counters.spoofed.add(1);
            return true;
        }
        for end in [id, peer] {
            if end == NONE {
                continue;
            }
            if self.has_dependents_in_flight(end) {
                return false;
            }
            let shared_qp = self.connections.flow(end).shared_qp;
            if shared_qp != NONE {
                if self.shared_qps[shared_qp].in_flight() > 0 {
                    self.connections.flow_mut(end).closing = true;
                    return false;
                }
                self.unshare(end);
            }
        }
        let endpoints = [id, peer];
        let differs = |end: &Id| *end != NONE && self.connections.flow(*end).stage >= Stage::Translating;
        if !endpoints.iter().any(differs) {
            // A DREQ may be forged, and responses may still arrive: the connection is forgotten when it
            // becomes idle.
            for end in endpoints.into_iter().filter(|end| *end != NONE) {
                self.connections.flow_mut(end).disconnected = true;
            }
            return true;
        }
        for end in endpoints.into_iter().filter(|end| *end != NONE) {
            if self.connections.flow(end).stage == Stage::Translating {
                // The server ignores the packets in flight.
                self.end_connection(end);
            }
            // Forgotten, and removed from the journal, when the connection becomes idle.
            self.connections.flow_mut(end).disconnected = true;
        }
        true
    }

    /// Stops sharing a connection. No operation may be in flight on it.
    pub(crate) fn unshare(&mut self, id: Id) {
        let shared_qp = core::mem::replace(&mut self.connections.flow_mut(id).shared_qp, NONE);
        if shared_qp == NONE {
            return;
        }
        let qp = &mut self.shared_qps[shared_qp];
        qp.owner = NONE;
        let mut waiting = core::mem::replace(&mut qp.waiting, [NONE; 2])[0];
        while waiting != NONE {
            self.held.continue_later(waiting);
            waiting = self.connections.flow_mut(waiting).stop_waiting();
        }
    }

    /// Detaches a flow from shared QPs: no client is answered when its operations in flight there complete.
    pub(crate) fn orphan(&mut self, id: Id) {
        self.end_detour(id, false);
        let via = self.connections.flow(id).via;
        if self.connections.flow(id).shared_in_flight > 0 && via != NONE {
            let shared_qp = &mut self.shared_qps[via];
            for n in 0..shared_qp.in_flight() {
                let psn = shared_qp.acked.add(n);
                let entry = shared_qp.entry_mut(psn);
                if entry.flow == id {
                    entry.flow = NONE;
                }
            }
        }
        let waits = self.connections.flow(id).waits_for;
        if waits != NONE {
            let mut first = self.shared_qps[waits].waiting[0];
            self.remove_waiting(id, waits, &mut first);
            let mut last = first;
            while last != NONE && self.connections.flow(last).next_waiting != NONE {
                last = self.connections.flow(last).next_waiting;
            }
            self.shared_qps[waits].waiting = [first, last];
        }
        self.held.forget(id);
        self.held.clear(&mut self.connections.flow_mut(id).held);
        self.end_rereads(id);
    }

    /// Handles responses to a client's queue pair that match the requests of a connection other than the
    /// tracked one: its number was reused. The server may still have the old connection's queue pair, so the
    /// old connection is kept as ended. Returns whether there was room for that.
    fn end_reused(&mut self, to: Id) -> bool {
        let id = self.connections.endpoint(to).peer();
        if id == NONE {
            return true;
        }
        if self.connections.flow(id).is_translated() {
            if self.ended.is_full() {
                return false;
            }
            self.keep_as_ended(id);
        } else if self.connections.flow(id).journaled
            && let Some(connection) = self.connections.connection_of(id)
        {
            self.events.push_back(Event::ConnectionEnded(connection));
        }
        if self.connections.flow(to).journaled
            && let Some(connection) = self.connections.connection_of(to)
        {
            self.events.push_back(Event::ConnectionEnded(connection));
        }
        self.remove_connection(to);
        true
    }

    /// Removes an endpoint and its peer; their connection is over.
    pub(crate) fn forget(&mut self, id: Id) {
        for end in [id, self.connections.endpoint(id).peer()] {
            if end != NONE
                && self.connections.flow(end).journaled
                && let Some(connection) = self.connections.connection_of(end)
            {
                self.events.push_back(Event::ConnectionEnded(connection));
            }
        }
        self.remove_connection(id);
    }

    /// Removes both endpoints: a translated connection cannot be answered without either of them.
    fn remove_connection(&mut self, id: Id) {
        let peer = self.connections.endpoint(id).peer();
        self.remove_endpoint(id);
        if peer != NONE {
            self.remove_endpoint(peer);
        }
    }

    fn remove_endpoint(&mut self, id: Id) {
        let shared_qp = self.connections.flow(id).shared_qp;
        if shared_qp != NONE {
            self.fail_shared_qp(shared_qp);
        }
        self.orphan(id);
        self.unsteer(id);
        let from = self.connections.endpoint(id).from;
        if self.connections.flow(id).server != NO_SERVER && from != 0 {
            self.sources.remove(from);
        }
        if self.connections.remove(id) {
            self.counters.forgotten.add(1);
        }
    }

    /// Adds a connection to the ended ones, because its PSN translation is about to be lost.
    pub(crate) fn keep_as_ended(&mut self, id: Id) {
        if let Some(connection) = self.connections.connection_of(id) {
            let flow = self.connections.flow(id);
            let psns = (flow.window(), flow.translation.next());
            self.ended.keep(connection, psns);
        }
    }

    /// Examines 64 endpoints and forgets those that were idle for long. Translated connections are kept as
    /// ended, since their clients may only have paused.
    pub(crate) fn age(&mut self, now: Nanos) {
        for _ in 0..64.min(self.connections.ids()) {
            let Some(id) = self.connections.next_to_age() else { continue };
            if self.connections.is_switch_endpoint(id) || self.connections.flow(id).is_switch_owned {
                continue;
            }
            let period = self.period;
            self.connections.flow_mut(id).proofs.expire(period);
            // The switch's own responses set no time stamp, and operations of other clients use the port of a
            // shared QP's owner. So a connection is idle only if both of its endpoints are.
            let peer = self.connections.endpoint(id).peer();
            let seen = self.connections.last_seen(id);
            let over = self.connections.flow(id).disconnected
                && self.connections.flow(id).stage < Stage::Translating;
            let ageing = if over { self.config.dead_after } else { self.config.ageing };
            if now.since(seen) <= ageing || [id, peer].iter().any(|end| self.has_shared_operations(*end)) {
                continue;
            }
            let translated = [id, peer]
                .map(|end| self.connections.get_flow(end).is_some_and(Flow::is_translated).then_some(end));
            if translated.iter().all(Option::is_none) {
                self.forget(id);
                continue;
            }
            // The client may only have paused, and must not continue on a connection whose translation is
            // lost.
            if !self.ended.is_full() {
                translated.into_iter().flatten().for_each(|end| self.keep_as_ended(end));
                self.remove_connection(id);
            }
        }
    }

    /// Returns whether an operation is in flight on the shared QP that this connection is, or of this
    /// endpoint on a shared QP: both endpoints are needed when its response arrives. The response arrives
    /// within `dead_after`, or the shared QP fails.
    fn has_shared_operations(&self, id: Id) -> bool {
        self.connections.get_flow(id).is_some_and(|flow| {
            flow.shared_in_flight > 0
                || self.shared_qps.get(flow.shared_qp).is_some_and(|shared_qp| shared_qp.in_flight() > 0)
        })
    }

    /// Matches a response to an endpoint with unknown peer against the unpaired endpoints between the two
    /// hosts. The endpoint that fits is the candidate if it is the only one.
    pub(crate) fn match_response(&mut self, to: Id, packet: &Packet<'_>, from: u128, port: PortId) {
        let psn = packet.bth().psn();
        if let Some(found) = packet.atomic_ack() {
            self.connections.keep_result(to, psn, found.original.get());
        }
        let refused = packet.aeth().is_some_and(|aeth| !matches!(aeth.kind(), Syndrome::Ack(_)));
        let end = self.connections.endpoint_mut(to);
        let done = if refused { psn.sub(1) } else { psn };
        let msn = packet.aeth().map(rocev2::aeth::Aeth::msn);
        end.latest = Some(match end.latest {
            Some(latest) if !latest.0.precedes(done) => latest,
            latest => (done, msn.or(latest.map(|(_, msn)| msn)).unwrap_or(Msn::ZERO)),
        });
        let client = bits_of(packet.dst());
        let Some(found) = self.connections.candidate(client, from, psn, self.last_tick) else { return };
        let end = self.connections.endpoint(to);
        if let Some((latest, _)) = end.latest
            && let Some(flow) = self.connections.get_flow_mut(found)
            && !flow.may_have_requested(latest)
        {
            // The stored value belongs to an earlier connection with the same client queue pair number.
            self.connections.endpoint_mut(to).latest = Some((done, msn.unwrap_or(Msn::ZERO)));
        }
        let end = self.connections.endpoint_mut(to);
        if found == NONE || end.candidate_peer != found {
            end.candidate_peer = found;
            end.confirmed = (u8::from(found != NONE), psn);
            return;
        }
        if end.confirmed.1 == psn {
            return;
        }
        end.confirmed = (end.confirmed.0.saturating_add(1), psn);
        let (ageing, dead_after) = (self.config.ageing, self.config.dead_after);
        let complete = self.sources.are_all_tracked(packet.dst(), self.last_tick, ageing, dead_after);
        if end.confirmed.0 >= CONFIRMATIONS && complete {
            if self.connections.endpoint(to).peer() != NONE {
                // The endpoint is created again by later packets, and paired from scratch.
                _ = self.end_reused(to);
                return;
            }
            if core::mem::take(&mut self.connections.flow_mut(found).may_be_ended)
                && let Some(connection) = self.connections.key(found).copied()
            {
                // The server has acknowledged a request that the old connection's queue pair would have
                // refused.
                let client = (packet.dst(), Qpn::new(0));
                self.report_over(&Connection { server: (connection.host(), connection.qpn()), client });
            }
            self.pair(found, to, Stage::Paired);
            self.connections.flow_mut(found).existence.forget_structures();
            self.connections.endpoint_mut(found).port = port;
            // Completes the requests whose responses arrived before the pairing.
            self.complete_early(found);
            self.complete_early(to);
        }
    }

    /// Marks the requests as complete whose responses arrived before the pairing.
    fn complete_early(&mut self, id: Id) {
        let peer = self.connections.endpoint(id).peer();
        let Some((psn, msn)) = self.connections.endpoint(peer).latest else { return };
        self.connections.complete_early(id, psn);
        self.complete_before(id, psn.add(1));
        let flow = self.connections.flow_mut(id);
        flow.translation.set_msn(msn);
        flow.msn = msn;
    }
}

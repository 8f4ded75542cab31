//! Pairing: identifies the two queue pairs that belong to one connection, by messages of the connection
//! manager or by the PSNs of responses.

use crate::config::Connection;
use crate::flow::{Flow, Stage, WINDOW, Window};
use crate::function::{Event, NO_SERVER, Swordbox, UNKNOWN_PORT, bits_of};
use crate::records::{Record, What};
use crate::successor::Successor;
use crate::{Id, NONE};
use core::net::IpAddr;
use rocev2::aeth::Syndrome;
use rocev2::cm::{Body, Message, mad_of};
use rocev2::{Msn, Packet, Psn, Qpn};
use switch::forward::counters::HostQp;
use switch::table::{Index, Key, Salt, mix};
use switch::{Nanos, PortId};

/// Number of REQs remembered until their REP
const HANDSHAKES: usize = 4096;
/// Number of responses with different PSNs that have to fit one connection, and no other, before the two
/// queue pairs are paired
const CONFIRMATIONS: u8 = 3;
/// Unpaired endpoints between the same two hosts that are examined per tick. It bounds the cost of responses
/// that match none of very many endpoints
const MAX_EXAMINED: u32 = 1 << 16;
/// Unpaired endpoints between the same two hosts that are examined for one response
const CANDIDATES: usize = 1024;

/// A translated connection whose PSN translation is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedConnection {
    pub connection: Connection,
    /// Window of PSNs that its client would use next, and the next PSN that the server expects; `None` for
    /// connections from before a restart
    pub psns: Option<(Window, Psn)>,
}

impl EndedConnection {
    /// Returns whether a request with this PSN cannot come from the old client, and would be refused as too
    /// early by the server's old queue pair. If the server acknowledges such a request, the queue pair
    /// belongs to a new connection.
    pub(crate) fn is_new(&self, psn: Psn) -> bool {
        self.psns.is_some_and(|(window, server_next)| !window.fits(psn) && psn.distance(server_next) > WINDOW)
    }
}

/// Address of the requester, and of the responder
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hosts(u128, u128);

impl Key for Hosts {
    fn hash(&self) -> u64 {
        mix((self.0 as u64).rotate_left(32) ^ self.1 as u64 ^ (self.0 >> 64) as u64 ^ (self.1 >> 64) as u64)
    }

    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.0, salt.hash(self.1, 0))
    }
}

/// List of the unpaired endpoints between two hosts.
#[derive(Clone, Copy, Debug)]
struct HostPair {
    /// First endpoint of the list
    first: Id,
    /// Endpoints examined since `since`, to match responses
    examined: u32,
    since: Nanos,
}

/// Endpoints whose peer is unknown, by the two hosts.
#[derive(Debug)]
pub(crate) struct UnpairedEndpoints {
    index: Index<Hosts>,
    all: Vec<HostPair>,
    /// Results of recent atomics, by the endpoint that the response was sent to
    results: Box<[AtomicResult]>,
}

/// Result of an atomic.
#[derive(Clone, Copy, Debug)]
struct AtomicResult {
    to: Id,
    /// Incarnation of the endpoint `to`, since indices are reused
    incarnation: u32,
    psn: Psn,
    value: u64,
}

/// Number of results kept
const RESULTS: usize = 1 << 14;

impl UnpairedEndpoints {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let empty = AtomicResult { to: NONE, incarnation: 0, psn: Psn::ZERO, value: 0 };
        Self {
            index: Index::with_capacity(capacity),
            all: Vec::with_capacity(capacity),
            results: vec![empty; RESULTS].into(),
        }
    }

    /// Salts the hashes of the table.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
    }

    fn slot_of(to: Id, psn: Psn) -> usize {
        mix(u64::from(to) << 32 | u64::from(psn.get())) as usize % RESULTS
    }

    /// Returns the memory in bytes for `capacity` endpoints.
    pub(crate) fn bytes(capacity: usize) -> usize {
        Index::<Hosts>::bytes(capacity) + capacity * size_of::<HostPair>()
    }

    fn first(&self, client: u128, server: u128) -> Id {
        self.index.get(&Hosts(client, server)).map_or(NONE, |at| self.all[at as usize].first)
    }

    /// Adds to the number of endpoints examined between two hosts. Returns whether the limit of this tick
    /// permits more.
    fn count_examined(&mut self, client: u128, server: u128, examined: u32, tick: Nanos) -> bool {
        let Some(at) = self.index.get(&Hosts(client, server)) else { return true };
        let pair = &mut self.all[at as usize];
        if pair.since != tick {
            (pair.since, pair.examined) = (tick, 0);
        }
        pair.examined = pair.examined.saturating_add(examined);
        pair.examined <= MAX_EXAMINED
    }
}

/// A REQ.
#[derive(Clone, Copy, Debug)]
struct Request {
    client: IpAddr,
    comm_id: u32,
    qpn: Qpn,
    /// Starting PSN of the server
    psn: Psn,
    mtu: u16,
    port: PortId,
    /// The REP has been seen
    replied: bool,
    /// Sequence number; later REQs have larger ones
    number: u64,
}

/// The latest REQs: a set-associative table.
#[derive(Debug)]
pub(crate) struct Handshakes {
    requests: Vec<Option<Request>>,
    count: u64,
}

/// Associativity of the table
const ASSOCIATIVITY: usize = 8;

impl Handshakes {
    pub(crate) const BYTES: usize = HANDSHAKES * size_of::<Option<Request>>();

    pub(crate) fn new() -> Self {
        Self { requests: vec![None; HANDSHAKES], count: 0 }
    }

    fn set(&mut self, client: IpAddr, comm_id: u32) -> &mut [Option<Request>] {
        let hash = mix(bits_of(client) as u64 ^ u64::from(comm_id) << 32) as usize;
        &mut self.requests[hash % (HANDSHAKES / ASSOCIATIVITY) * ASSOCIATIVITY..][..ASSOCIATIVITY]
    }

    fn find(&mut self, client: IpAddr, comm_id: u32) -> Option<&mut Request> {
        let set = self.set(client, comm_id).iter_mut().flatten();
        set.into_iter().find(|request| request.client == client && request.comm_id == comm_id)
    }

    /// Stores a REQ, in place of the oldest of its set unless it is a retransmission.
    fn keep(&mut self, request: Request) {
        self.count += 1;
        let request = Request { number: self.count, ..request };
        if let Some(known) = self.find(request.client, request.comm_id) {
            if (known.qpn, known.psn) != (request.qpn, request.psn) {
                *known = request;
            }
            return;
        }
        let set = self.set(request.client, request.comm_id);
        let oldest = set.iter_mut().min_by_key(|slot| slot.map_or(0, |request| request.number));
        if let Some(slot) = oldest {
            *slot = Some(request);
        }
    }
}

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
        if keys.iter().all(|key| self.server_of(bits_of(key.host())) == NO_SERVER) {
            return;
        }
        self.on_connected(self.server_of(bits_of(server.0)), now);
        let ended_connection = Connection { server, client: (request.client, Qpn::new(0)) };
        let in_use = |key| self.index.get(key).is_some_and(|id| self.is_in_use(id, now));
        let known = keys.iter().any(|key| self.is_translated(key) || in_use(key));
        if known || self.ended.contains_key(&ended_connection) {
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
            if let Some(id) = self.index.get(&key) {
                self.forget(id);
            }
        }
        let [Some(to_server), Some(to_client)] = keys.map(|key| self.add_endpoint(key)) else {
            self.counters.untracked.add(1);
            for key in keys {
                self.index.remove(&key);
            }
            return;
        };
        // A REQ and a REP may be forged: the connection becomes synced only when a response to that client
        // matches its requests.
        self.pair(to_server, to_client, Stage::Paired);
        self.endpoints[to_server as usize].port = successor.server_port;
        self.endpoints[to_client as usize].port = successor.client_port;
        for (id, from, psn) in
            [(to_server, client.0, successor.psn), (to_client, server.0, successor.server_psn)]
        {
            let flow = &mut self.flows[id as usize];
            let params = (successor.mtu, if id == to_server { successor.server_max_reads } else { 0 });
            if begins {
                flow.begin(psn);
                flow.cm_params = Some(params);
            } else {
                (flow.mtu, flow.server_max_reads) = params;
            }
            let end = &mut self.endpoints[id as usize];
            end.from = bits_of(from);
            end.seen = now;
            if self.flows[id as usize].server != NO_SERVER {
                self.sources.add(bits_of(from));
            }
        }
        self.counters.paired_by_cm.add(1);
    }

    /// Removes a connection from the ended ones, because the server's queue pair now belongs to another
    /// connection.
    fn report_over(&mut self, key: &Connection) {
        if let Some(ended_connection) = self.ended.remove(key) {
            self.events.push_back(Event::ConnectionEnded(ended_connection.connection));
        }
    }

    /// Adds an endpoint whose sender is known to the unpaired ones.
    pub(crate) fn add_unpaired(&mut self, id: Id) {
        let Some(key) = self.index.key(id) else { return };
        let hosts = Hosts(self.endpoints[id as usize].from, bits_of(key.host()));
        let is_new = self.unpaired.index.get(&hosts).is_none();
        let Ok(at) = self.unpaired.index.get_or_insert(hosts) else { return };
        let none = HostPair { first: NONE, examined: 0, since: Nanos::ZERO };
        if is_new {
            crate::lines::put(&mut self.unpaired.all, at, none, none);
        }
        let next = core::mem::replace(&mut self.unpaired.all[at as usize].first, id);
        self.endpoints[id as usize].next = next;
        self.endpoints[id as usize].before = NONE;
        if let Some(next) = self.endpoints.get_mut(next as usize) {
            next.before = id;
        }
    }

    /// Removes an endpoint from the unpaired ones.
    fn remove_unpaired(&mut self, id: Id) {
        let Some(key) = self.index.key(id) else { return };
        let hosts = Hosts(self.endpoints[id as usize].from, bits_of(key.host()));
        let Some(at) = self.unpaired.index.get(&hosts) else { return };
        let end = &mut self.endpoints[id as usize];
        let (next, before) =
            (core::mem::replace(&mut end.next, NONE), core::mem::replace(&mut end.before, NONE));
        let first = &mut self.unpaired.all[at as usize].first;
        match self.endpoints.get_mut(before as usize) {
            Some(before) => before.next = next,
            None if *first == id => *first = next,
            // The endpoint is not in the list.
            None => return,
        }
        if let Some(next) = self.endpoints.get_mut(next as usize) {
            next.before = before;
        }
        if self.unpaired.all[at as usize].first == NONE {
            self.unpaired.index.remove(&hosts);
        }
    }

    fn pair(&mut self, to_server: Id, to_client: Id, stage: Stage) {
        for id in [to_server, to_client] {
            self.remove_unpaired(id);
        }
        self.endpoints[to_server as usize].peer = to_client;
        self.endpoints[to_client as usize].peer = to_server;
        for id in [to_server, to_client] {
            self.endpoints[id as usize].peer_port = UNKNOWN_PORT;
        }
        for id in [to_server, to_client] {
            let flow = &mut self.flows[id as usize];
            if flow.stage == Stage::Unpaired && flow.server != NO_SERVER {
                flow.stage = stage;
            }
        }
        self.counters.paired.add(1);
    }

    /// Handles a DREQ. Returns whether it may be forwarded. While other clients have operations in flight on
    /// the connection it may not; the connection manager retransmits it.
    fn disconnect(&mut self, key: HostQp, from: u128, port: PortId) -> bool {
        let Some(id) = self.index.get(&key) else { return true };
        let peer = self.endpoints[id as usize].peer;
        if self.flows[id as usize].is_switch_owned {
            // Switch-owned QPs are disconnected by the control plane.
            return true;
        }
        if self.index.key(peer).is_some_and(|other| bits_of(other.host()) != from) {
            // The receiver's connection manager will not find a connection with this sender.
            self.counters.spoofed.add(1);
            return true;
        }
        // `peer_port` is the port on which the sender's packets arrive, if known, which is the port on which
        // frames to the sender leave.
        let leads = peer != NONE && self.endpoints[id as usize].peer_port != UNKNOWN_PORT;
        if leads && self.endpoints[peer as usize].port != port && self.is_translated(&key) {
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
            let shared_qp = self.flows[end as usize].shared_qp;
            if shared_qp != NONE {
                if self.shared_qps[shared_qp as usize].in_flight > 0 {
                    self.flows[end as usize].closing = true;
                    return false;
                }
                self.unshare(end);
            }
        }
        let endpoints = [id, peer];
        let differs = |end: &Id| *end != NONE && self.flows[*end as usize].stage >= Stage::Translating;
        if !endpoints.iter().any(differs) {
            // A DREQ may be forged, and responses may still arrive: the connection is forgotten when it
            // becomes idle.
            for end in endpoints.into_iter().filter(|end| *end != NONE) {
                self.flows[end as usize].disconnected = true;
            }
            return true;
        }
        for end in endpoints.into_iter().filter(|end| *end != NONE) {
            if self.flows[end as usize].stage == Stage::Translating {
                // The server ignores the packets in flight.
                self.end_connection(end);
            }
            // Forgotten, and removed from the journal, when the connection becomes idle.
            self.flows[end as usize].disconnected = true;
        }
        true
    }

    /// Stops sharing a connection. No operation may be in flight on it.
    pub(crate) fn unshare(&mut self, id: Id) {
        let shared_qp = core::mem::replace(&mut self.flows[id as usize].shared_qp, NONE);
        if shared_qp == NONE {
            return;
        }
        let qp = &mut self.shared_qps[shared_qp as usize];
        qp.owner = NONE;
        let mut waiting = core::mem::replace(&mut qp.waiting, [NONE; 2])[0];
        while waiting != NONE {
            let flow = &mut self.flows[waiting as usize];
            let next = flow.next_waiting;
            flow.waits_for = NONE;
            flow.next_waiting = NONE;
            self.ready.push_back(waiting);
            waiting = next;
        }
    }

    /// Detaches a flow from shared QPs: no client is answered when its operations in flight there complete.
    pub(crate) fn orphan(&mut self, id: Id) {
        self.end_detour(id, false);
        let via = self.flows[id as usize].via;
        if self.flows[id as usize].shared_in_flight > 0 && via != NONE {
            let shared_qp = &mut self.shared_qps[via as usize];
            for n in 0..shared_qp.in_flight {
                let psn = shared_qp.acked.add(n);
                let entry = shared_qp.entry_mut(psn);
                if entry.flow == id {
                    entry.flow = NONE;
                }
            }
        }
        let waits = self.flows[id as usize].waits_for;
        if waits != NONE {
            let mut first = self.shared_qps[waits as usize].waiting[0];
            self.remove_waiting(id, waits, &mut first);
            let mut last = first;
            while last != NONE && self.flows[last as usize].next_waiting != NONE {
                last = self.flows[last as usize].next_waiting;
            }
            self.shared_qps[waits as usize].waiting = [first, last];
        }
        self.ready.retain(|other| *other != id);
        self.held.clear(&mut self.flows[id as usize].held);
        self.end_rereads(id);
    }

    /// Handles responses to a client's queue pair that match the requests of a connection other than the
    /// tracked one: its number was reused. The server may still have the old connection's queue pair, so the
    /// old connection is kept as ended. Returns whether there was room for that.
    fn end_reused(&mut self, to: Id) -> bool {
        let id = self.endpoints[to as usize].peer;
        if id == NONE {
            return true;
        }
        if self.flows[id as usize].stage >= Stage::Translating && !self.flows[id as usize].disconnected {
            if self.ended.len() + 1 >= self.config.connections {
                return false;
            }
            self.keep_as_ended(id);
        } else if self.flows[id as usize].journaled
            && let Some(connection) = self.connection_of(id)
        {
            self.events.push_back(Event::ConnectionEnded(connection));
        }
        if self.flows[to as usize].journaled
            && let Some(connection) = self.connection_of(to)
        {
            self.events.push_back(Event::ConnectionEnded(connection));
        }
        self.remove_connection(to);
        true
    }

    /// Removes an endpoint and its peer; their connection is over.
    pub(crate) fn forget(&mut self, id: Id) {
        for end in [id, self.endpoints[id as usize].peer] {
            if end != NONE
                && self.flows[end as usize].journaled
                && let Some(connection) = self.connection_of(end)
            {
                self.events.push_back(Event::ConnectionEnded(connection));
            }
        }
        self.remove_connection(id);
    }

    /// Removes both endpoints: a translated connection cannot be answered without either of them.
    fn remove_connection(&mut self, id: Id) {
        let peer = self.endpoints[id as usize].peer;
        self.remove_endpoint(id);
        if peer != NONE {
            self.remove_endpoint(peer);
        }
    }

    fn remove_endpoint(&mut self, id: Id) {
        let shared_qp = self.flows[id as usize].shared_qp;
        if shared_qp != NONE {
            self.fail_shared_qp(shared_qp);
        }
        self.orphan(id);
        self.unsteer(id);
        let peer = self.endpoints[id as usize].peer;
        if peer != NONE {
            self.endpoints[peer as usize].peer = NONE;
            self.endpoints[id as usize].peer = NONE;
        }
        self.remove_unpaired(id);
        let server = self.flows[id as usize].server;
        if server != NO_SERVER && self.endpoints[id as usize].from != 0 {
            self.sources.remove(self.endpoints[id as usize].from);
        }
        self.flows[id as usize] = Flow::new(server);
        if let Some(key) = self.index.key(id).copied() {
            self.index.remove(&key);
            self.counters.forgotten.add(1);
        }
    }

    /// Adds a connection to the ended ones, because its PSN translation is about to be lost.
    pub(crate) fn keep_as_ended(&mut self, id: Id) {
        if let Some(connection) = self.connection_of(id) {
            let flow = &self.flows[id as usize];
            let psns = Some((flow.window(), flow.server_next));
            self.ended.insert(connection.without_client_qpn(), EndedConnection { connection, psns });
        }
    }

    /// Examines 64 endpoints and forgets those that were idle for long. Translated connections are kept as
    /// ended, since their clients may only have paused.
    pub(crate) fn age(&mut self, now: Nanos) {
        let ids = self.index.ids();
        for _ in 0..64.min(ids) {
            self.age_cursor = (self.age_cursor + 1) % ids;
            let id = self.age_cursor;
            if self.index.key(id).is_none()
                || self.is_switch_endpoint(id)
                || self.flows[id as usize].is_switch_owned
            {
                continue;
            }
            let period = self.period;
            self.flows[id as usize].expire(period);
            // The switch's own responses set no time stamp, and operations of other clients use the port of a
            // shared QP's owner. So a connection is idle only if both of its endpoints are.
            let peer = self.endpoints[id as usize].peer;
            let seen = self.endpoints[id as usize].seen;
            let seen = self.endpoints.get(peer as usize).map_or(seen, |peer| seen.max(peer.seen));
            let over =
                self.flows[id as usize].disconnected && self.flows[id as usize].stage < Stage::Translating;
            let ageing = if over { self.config.dead_after } else { self.config.ageing };
            if now.since(seen) <= ageing || [id, peer].iter().any(|end| self.has_shared_operations(*end)) {
                continue;
            }
            let differs = |end: Id| {
                self.flows
                    .get(end as usize)
                    .is_some_and(|flow| flow.stage >= Stage::Translating && !flow.disconnected)
            };
            let differing = [id, peer].map(|end| differs(end).then_some(end));
            if differing.iter().all(Option::is_none) {
                self.forget(id);
                continue;
            }
            // The client may only have paused, and must not continue on a connection whose translation is
            // lost.
            if self.ended.len() + 1 < self.config.connections {
                differing.into_iter().flatten().for_each(|end| self.keep_as_ended(end));
                self.remove_connection(id);
            }
        }
    }

    /// Returns whether an operation is in flight on the shared QP that this connection is, or of this
    /// endpoint on a shared QP: both endpoints are needed when its response arrives. The response arrives
    /// within `dead_after`, or the shared QP fails.
    fn has_shared_operations(&self, id: Id) -> bool {
        self.flows.get(id as usize).is_some_and(|flow| {
            flow.shared_in_flight > 0
                || self
                    .shared_qps
                    .get(flow.shared_qp as usize)
                    .is_some_and(|shared_qp| shared_qp.in_flight > 0)
        })
    }

    /// Matches a response to an endpoint with unknown peer against the unpaired endpoints between the two
    /// hosts. The endpoint that fits is the candidate if it is the only one.
    pub(crate) fn match_response(&mut self, to: Id, packet: &Packet<'_>, from: u128, port: PortId) {
        let psn = packet.bth().psn();
        if let Some(found) = packet.atomic_ack() {
            let incarnation = self.flows[to as usize].incarnation;
            let result = AtomicResult { to, incarnation, psn, value: found.original.get() };
            self.unpaired.results[UnpairedEndpoints::slot_of(to, psn)] = result;
        }
        let refused = packet.aeth().is_some_and(|aeth| !matches!(aeth.kind(), Syndrome::Ack(_)));
        let end = &mut self.endpoints[to as usize];
        let done = if refused { psn.sub(1) } else { psn };
        let msn = packet.aeth().map(rocev2::aeth::Aeth::msn);
        end.latest = Some(match end.latest {
            Some(latest) if !latest.0.precedes(done) => latest,
            latest => (done, msn.or(latest.map(|(_, msn)| msn)).unwrap_or(Msn::ZERO)),
        });
        let client = bits_of(packet.dst());
        if !self.unpaired.count_examined(client, from, 0, self.last_tick) {
            return;
        }
        let mut found = NONE;
        let mut examined = 0;
        let mut next = self.unpaired.first(client, from);
        while next != NONE {
            let id = next;
            next = self.endpoints[id as usize].next;
            let flow = &mut self.flows[id as usize];
            if !flow.is_started {
                continue;
            }
            examined += 1;
            if flow.may_have_requested(psn) {
                if found != NONE {
                    found = NONE;
                    break;
                }
                found = id;
            }
            if examined > CANDIDATES {
                found = NONE;
                break;
            }
        }
        self.unpaired.count_examined(client, from, examined as u32, self.last_tick);
        let end = &mut self.endpoints[to as usize];
        if let Some(flow) = self.flows.get_mut(found as usize)
            && end.latest.is_some_and(|(psn, _)| !flow.may_have_requested(psn))
        {
            // The stored value belongs to an earlier connection with the same client queue pair number.
            end.latest = Some((done, msn.unwrap_or(Msn::ZERO)));
        }
        if found == NONE || end.candidate_peer != found {
            end.candidate_peer = found;
            end.confirmed = (u8::from(found != NONE), psn);
            return;
        }
        if end.confirmed.1 == psn {
            return;
        }
        end.confirmed = (end.confirmed.0.saturating_add(1), psn);
        let ageing = self.config.ageing;
        let is_past = |at: Option<Nanos>| at.is_none_or(|at| self.last_tick.since(at) > ageing);
        let last_untracked = self.sources.last_untracked(packet.dst());
        let complete = is_past(self.overflowed)
            && is_past(self.sources.last_refused(packet.dst()))
            && last_untracked.is_none_or(|at| self.last_tick.since(at) > self.config.dead_after);
        if end.confirmed.0 >= CONFIRMATIONS && complete {
            if self.endpoints[to as usize].peer != NONE {
                // The endpoint is created again by later packets, and paired from scratch.
                _ = self.end_reused(to);
                return;
            }
            if core::mem::take(&mut self.flows[found as usize].may_be_ended)
                && let Some(connection) = self.index.key(found).copied()
            {
                // The server has acknowledged a request that the old connection's queue pair would have
                // refused.
                let client = (packet.dst(), Qpn::new(0));
                self.report_over(&Connection { server: (connection.host(), connection.qpn()), client });
            }
            self.pair(found, to, Stage::Paired);
            self.flows[found as usize].forget_structures();
            self.endpoints[found as usize].port = port;
            // Completes the requests whose responses arrived before the pairing.
            self.complete_early(found);
            self.complete_early(to);
        }
    }

    /// Sets the result of an atomic whose response arrived before the pairing, if the result is still stored.
    pub(crate) fn find_result(&self, id: Id, record: &mut Record) {
        let peer = self.endpoints[id as usize].peer;
        let kept = &self.unpaired.results[UnpairedEndpoints::slot_of(peer, record.psn)];
        let incarnation = self.flows.get(peer as usize).map(|flow| flow.incarnation);
        if (kept.to, kept.psn) == (peer, record.psn) && Some(kept.incarnation) == incarnation {
            record.what = What::Atomic;
            record.value = kept.value;
        } else {
            record.what = What::Unknown;
        }
    }

    /// Marks the requests as complete whose responses arrived before the pairing.
    fn complete_early(&mut self, id: Id) {
        let peer = self.endpoints[id as usize].peer;
        let Some((psn, msn)) = self.endpoints[peer as usize].latest else { return };
        for at in 0..self.config.rd_atomic {
            let mut record = self.records(id)[at];
            if record.done || psn.precedes(record.psn) {
                continue;
            }
            record.done = true;
            if record.what == What::Atomic {
                self.find_result(id, &mut record);
            } else {
                record.what = What::Unseen;
            }
            self.records_mut(id)[at] = record;
            self.flows[id as usize].open -= 1;
        }
        self.complete_before(id, psn.add(1));
        let flow = &mut self.flows[id as usize];
        flow.server_msn = msn;
        flow.msn = msn;
    }
}

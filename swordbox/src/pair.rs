//! Pairing: identifies the two queue pairs that belong to one connection, by messages of the connection
//! manager or by the PSNs of responses.

use crate::config::Connection;
use crate::flow::{BEHIND, Flow, Stage, Window};
use crate::function::{Event, NO_SERVER, Swordbox, UNTOLD, bits_of};
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
const LOOKS: u32 = 1 << 16;
/// Unpaired endpoints between the same two hosts that are examined for one response
const CANDIDATES: usize = 1024;

/// A translated connection whose PSN translation is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub connection: Connection,
    /// Window of PSNs that its client would use next, and the next PSN that the server expects; `None` for
    /// connections from before a restart
    pub psns: Option<(Window, Psn)>,
}

impl Gone {
    /// Returns whether a request with this PSN cannot come from the old client, and would be refused as too
    /// early by the server's old queue pair. If the server acknowledges such a request, the queue pair
    /// belongs to a new connection.
    pub(crate) fn is_new(&self, psn: Psn) -> bool {
        self.psns.is_some_and(|(window, own_next)| !window.fits(psn) && psn.distance(own_next) > BEHIND)
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
struct Pair {
    /// First endpoint of the list
    first: Id,
    /// Endpoints examined since `since`, to match responses
    looked: u32,
    since: Nanos,
}

/// Endpoints whose peer is unknown, by the two hosts.
#[derive(Debug)]
pub(crate) struct Strangers {
    index: Index<Hosts>,
    all: Vec<Pair>,
    /// Results of recent atomics, by the endpoint that the response was sent to
    answers: Box<[Found]>,
}

/// Result of an atomic.
#[derive(Clone, Copy, Debug)]
struct Found {
    to: Id,
    /// Incarnation of the endpoint `to`, since indices are reused
    incarnation: u32,
    psn: Psn,
    value: u64,
}

/// Number of results kept
const ANSWERS: usize = 1 << 14;

impl Strangers {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let nothing = Found { to: NONE, incarnation: 0, psn: Psn::ZERO, value: 0 };
        Self {
            index: Index::with_capacity(capacity),
            all: Vec::with_capacity(capacity),
            answers: vec![nothing; ANSWERS].into(),
        }
    }

    /// Salts the hashes of the table.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
    }

    fn place(to: Id, psn: Psn) -> usize {
        mix(u64::from(to) << 32 | u64::from(psn.get())) as usize % ANSWERS
    }

    /// Returns the memory in bytes for `capacity` endpoints.
    pub(crate) fn bytes(capacity: usize) -> usize {
        Index::<Hosts>::bytes(capacity) + capacity * size_of::<Pair>()
    }

    fn first(&self, client: u128, server: u128) -> Id {
        self.index.get(&Hosts(client, server)).map_or(NONE, |at| self.all[at as usize].first)
    }

    /// Counts `looked` examined endpoints between two hosts. Returns whether the limit of this tick permits
    /// more.
    fn look(&mut self, client: u128, server: u128, looked: u32, tick: Nanos) -> bool {
        let Some(at) = self.index.get(&Hosts(client, server)) else { return true };
        let pair = &mut self.all[at as usize];
        if pair.since != tick {
            (pair.since, pair.looked) = (tick, 0);
        }
        pair.looked = pair.looked.saturating_add(looked);
        pair.looked <= LOOKS
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
const WAYS: usize = 8;

impl Handshakes {
    pub(crate) const BYTES: usize = HANDSHAKES * size_of::<Option<Request>>();

    pub(crate) fn new() -> Self {
        Self { requests: vec![None; HANDSHAKES], count: 0 }
    }

    fn places(&mut self, client: IpAddr, comm_id: u32) -> &mut [Option<Request>] {
        let hash = mix(bits_of(client) as u64 ^ u64::from(comm_id) << 32) as usize;
        &mut self.requests[hash % (HANDSHAKES / WAYS) * WAYS..][..WAYS]
    }

    fn find(&mut self, client: IpAddr, comm_id: u32) -> Option<&mut Request> {
        let places = self.places(client, comm_id).iter_mut().flatten();
        places.into_iter().find(|request| request.client == client && request.comm_id == comm_id)
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
        let places = self.places(request.client, request.comm_id);
        let oldest = places.iter_mut().min_by_key(|place| place.map_or(0, |request| request.number));
        if let Some(place) = oldest {
            *place = Some(request);
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
            max_reads: responder_resources,
            client_port: request.port,
            server_port: port,
            at: now,
            asked: false,
        };
        let keys = successor.keys();
        if keys.iter().all(|key| self.server_of(bits_of(key.host())) == NO_SERVER) {
            return;
        }
        self.on_connected(self.server_of(bits_of(server.0)), now);
        let gone = Connection { server, client: (request.client, Qpn::new(0)) };
        let in_use = |key| self.index.get(key).is_some_and(|id| self.is_in_use(id, now));
        let known = keys.iter().any(|key| self.is_translated(key) || in_use(key));
        if known || self.ended.contains_key(&gone) {
            self.await_successor(successor);
        } else {
            self.succeed(&successor, true, now);
        }
    }

    /// Replaces whatever connections the queue pairs belonged to by a new one. `begins` states that no
    /// request of the new connection has been sent.
    pub(crate) fn succeed(&mut self, successor: &Successor, begins: bool, now: Nanos) {
        let (server, client) = (successor.server, successor.client);
        let keys = successor.keys();
        self.declare_over(&Connection { server, client: (client.0, Qpn::new(0)) });
        for key in keys {
            if let Some(id) = self.index.get(&key) {
                self.forget(id);
            }
        }
        let [Some(to_server), Some(to_client)] = keys.map(|key| self.add_end(key)) else {
            self.counters.untracked.add(1);
            for key in keys {
                self.index.remove(&key);
            }
            return;
        };
        // A REQ and a REP may be forged: the connection becomes synced only when a response to that client
        // matches its requests.
        self.pair(to_server, to_client, Stage::Paired);
        self.ends[to_server as usize].port = successor.server_port;
        self.ends[to_client as usize].port = successor.client_port;
        for (id, from, psn) in
            [(to_server, client.0, successor.psn), (to_client, server.0, successor.server_psn)]
        {
            let flow = &mut self.flows[id as usize];
            let params = (successor.mtu, if id == to_server { successor.max_reads } else { 0 });
            if begins {
                flow.begin(psn);
                flow.cm_params = Some(params);
            } else {
                (flow.mtu, flow.max_reads) = params;
            }
            let end = &mut self.ends[id as usize];
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
    fn declare_over(&mut self, key: &Connection) {
        if let Some(gone) = self.ended.remove(key) {
            self.events.push_back(Event::Over(gone.connection));
        }
    }

    /// Adds an endpoint whose sender is known to the unpaired ones.
    pub(crate) fn await_peer(&mut self, id: Id) {
        let Some(key) = self.index.key(id) else { return };
        let hosts = Hosts(self.ends[id as usize].from, bits_of(key.host()));
        let is_new = self.strangers.index.get(&hosts).is_none();
        let Ok(at) = self.strangers.index.get_or_insert(hosts) else { return };
        let none = Pair { first: NONE, looked: 0, since: Nanos::ZERO };
        if is_new {
            crate::lines::put(&mut self.strangers.all, at, none, none);
        }
        let next = core::mem::replace(&mut self.strangers.all[at as usize].first, id);
        self.ends[id as usize].next = next;
        self.ends[id as usize].before = NONE;
        if let Some(next) = self.ends.get_mut(next as usize) {
            next.before = id;
        }
    }

    /// Removes an endpoint from the unpaired ones.
    fn introduce(&mut self, id: Id) {
        let Some(key) = self.index.key(id) else { return };
        let hosts = Hosts(self.ends[id as usize].from, bits_of(key.host()));
        let Some(at) = self.strangers.index.get(&hosts) else { return };
        let end = &mut self.ends[id as usize];
        let (next, before) =
            (core::mem::replace(&mut end.next, NONE), core::mem::replace(&mut end.before, NONE));
        let first = &mut self.strangers.all[at as usize].first;
        match self.ends.get_mut(before as usize) {
            Some(before) => before.next = next,
            None if *first == id => *first = next,
            // The endpoint is not in the list.
            None => return,
        }
        if let Some(next) = self.ends.get_mut(next as usize) {
            next.before = before;
        }
        if self.strangers.all[at as usize].first == NONE {
            self.strangers.index.remove(&hosts);
        }
    }

    fn pair(&mut self, to_server: Id, to_client: Id, stage: Stage) {
        for id in [to_server, to_client] {
            self.introduce(id);
        }
        self.ends[to_server as usize].peer = to_client;
        self.ends[to_client as usize].peer = to_server;
        for id in [to_server, to_client] {
            self.ends[id as usize].came_on = UNTOLD;
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
        let peer = self.ends[id as usize].peer;
        if self.flows[id as usize].is_own {
            // Switch-owned QPs are disconnected by the control plane.
            return true;
        }
        if self.index.key(peer).is_some_and(|other| bits_of(other.host()) != from) {
            // The receiver's connection manager will not find a connection with this sender.
            self.counters.spoofed.add(1);
            return true;
        }
        // `came_on` is the port on which the sender's packets arrive, if known, which is the port on which
        // frames to the sender leave.
        let leads = peer != NONE && self.ends[id as usize].came_on != UNTOLD;
        if leads && self.ends[peer as usize].port != port && self.is_translated(&key) {
            self.counters.spoofed.add(1);
            return true;
        }
        for end in [id, peer] {
            if end == NONE {
                continue;
            }
            if self.is_relied_upon(end) {
                return false;
            }
            let lane = self.flows[end as usize].lane;
            if lane != NONE {
                if self.lanes[lane as usize].under_way > 0 {
                    self.flows[end as usize].leaving = true;
                    return false;
                }
                self.leave(end);
            }
        }
        let ends = [id, peer];
        let differs = |end: &Id| *end != NONE && self.flows[*end as usize].stage >= Stage::Strict;
        if !ends.iter().any(differs) {
            // A DREQ may be forged, and responses may still arrive: the connection is forgotten when it
            // becomes idle.
            for end in ends.into_iter().filter(|end| *end != NONE) {
                self.flows[end as usize].over = true;
            }
            return true;
        }
        for end in ends.into_iter().filter(|end| *end != NONE) {
            if self.flows[end as usize].stage == Stage::Strict {
                // The server ignores the packets in flight.
                self.end(end);
            }
            // Forgotten, and removed from the journal, when the connection becomes idle.
            self.flows[end as usize].over = true;
        }
        true
    }

    /// Stops sharing a connection. No operation may be in flight on it.
    pub(crate) fn leave(&mut self, id: Id) {
        let lane = core::mem::replace(&mut self.flows[id as usize].lane, NONE);
        if lane == NONE {
            return;
        }
        let there = &mut self.lanes[lane as usize];
        there.owner = NONE;
        let mut waiting = core::mem::replace(&mut there.waiting, [NONE; 2])[0];
        while waiting != NONE {
            let flow = &mut self.flows[waiting as usize];
            let next = flow.next_waiting;
            flow.waits = NONE;
            flow.next_waiting = NONE;
            self.ready.push_back(waiting);
            waiting = next;
        }
    }

    /// Detaches a flow from shared QPs: no client is answered when its operations in flight there complete.
    pub(crate) fn orphan(&mut self, id: Id) {
        self.end_detour(id, false);
        let via = self.flows[id as usize].via;
        if self.flows[id as usize].shared > 0 && via != NONE {
            let lane = &mut self.lanes[via as usize];
            for n in 0..lane.under_way {
                let psn = lane.acked.add(n);
                let entry = lane.entry_mut(psn);
                if entry.flow == id {
                    entry.flow = NONE;
                }
            }
        }
        let waits = self.flows[id as usize].waits;
        if waits != NONE {
            let mut first = self.lanes[waits as usize].waiting[0];
            self.unwait(id, waits, &mut first);
            let mut last = first;
            while last != NONE && self.flows[last as usize].next_waiting != NONE {
                last = self.flows[last as usize].next_waiting;
            }
            self.lanes[waits as usize].waiting = [first, last];
        }
        self.ready.retain(|other| *other != id);
        self.held.clear(&mut self.flows[id as usize].held);
        self.end_rereads(id);
    }

    /// Handles responses to a client's queue pair that match the requests of a connection other than the
    /// tracked one: its number was reused. The server may still have the old connection's queue pair, so the
    /// old connection is kept as ended. Returns whether there was room for that.
    fn bury(&mut self, to: Id) -> bool {
        let id = self.ends[to as usize].peer;
        if id == NONE {
            return true;
        }
        if self.flows[id as usize].stage >= Stage::Strict && !self.flows[id as usize].over {
            if self.ended.len() + 1 >= self.config.connections {
                return false;
            }
            self.remember(id);
        } else if self.flows[id as usize].written
            && let Some(connection) = self.connection_of(id)
        {
            self.events.push_back(Event::Over(connection));
        }
        if self.flows[to as usize].written
            && let Some(connection) = self.connection_of(to)
        {
            self.events.push_back(Event::Over(connection));
        }
        self.forget_quietly(to);
        true
    }

    /// Removes an endpoint and its peer; their connection is over.
    pub(crate) fn forget(&mut self, id: Id) {
        for end in [id, self.ends[id as usize].peer] {
            if end != NONE
                && self.flows[end as usize].written
                && let Some(connection) = self.connection_of(end)
            {
                self.events.push_back(Event::Over(connection));
            }
        }
        self.forget_quietly(id);
    }

    /// Removes both endpoints: a translated connection cannot be answered without either of them.
    fn forget_quietly(&mut self, id: Id) {
        let peer = self.ends[id as usize].peer;
        self.forget_end(id);
        if peer != NONE {
            self.forget_end(peer);
        }
    }

    fn forget_end(&mut self, id: Id) {
        let lane = self.flows[id as usize].lane;
        if lane != NONE {
            self.fail(lane);
        }
        self.orphan(id);
        self.unsteer(id);
        let peer = self.ends[id as usize].peer;
        if peer != NONE {
            self.ends[peer as usize].peer = NONE;
            self.ends[id as usize].peer = NONE;
        }
        self.introduce(id);
        let server = self.flows[id as usize].server;
        if server != NO_SERVER && self.ends[id as usize].from != 0 {
            self.sources.remove(self.ends[id as usize].from);
        }
        self.flows[id as usize] = Flow::new(server);
        if let Some(key) = self.index.key(id).copied() {
            self.index.remove(&key);
            self.counters.forgotten.add(1);
        }
    }

    /// Adds a connection to the ended ones, because its PSN translation is about to be lost.
    pub(crate) fn remember(&mut self, id: Id) {
        if let Some(connection) = self.connection_of(id) {
            let flow = &self.flows[id as usize];
            let psns = Some((flow.window(), flow.own_next));
            self.ended.insert(connection.without_client_qpn(), Gone { connection, psns });
        }
    }

    /// Examines 64 endpoints and forgets those that were idle for long. Translated connections are kept as
    /// ended, since their clients may only have paused.
    pub(crate) fn age(&mut self, now: Nanos) {
        let ids = self.index.ids();
        for _ in 0..64.min(ids) {
            self.aged = (self.aged + 1) % ids;
            let id = self.aged;
            if self.index.key(id).is_none() || self.is_own_end(id) || self.flows[id as usize].is_own {
                continue;
            }
            let period = self.period;
            self.flows[id as usize].expire(period);
            // The switch's own responses set no time stamp, and operations of other clients use the port of a
            // shared QP's owner. So a connection is idle only if both of its endpoints are.
            let peer = self.ends[id as usize].peer;
            let seen = self.ends[id as usize].seen;
            let seen = self.ends.get(peer as usize).map_or(seen, |peer| seen.max(peer.seen));
            let over = self.flows[id as usize].over && self.flows[id as usize].stage < Stage::Strict;
            let ageing = if over { self.config.dead_after } else { self.config.ageing };
            if now.since(seen) <= ageing || [id, peer].iter().any(|end| self.carries(*end)) {
                continue;
            }
            let differs = |end: Id| {
                self.flows.get(end as usize).is_some_and(|flow| flow.stage >= Stage::Strict && !flow.over)
            };
            let differing = [id, peer].map(|end| differs(end).then_some(end));
            if differing.iter().all(Option::is_none) {
                self.forget(id);
                continue;
            }
            // The client may only have paused, and must not continue on a connection whose translation is
            // lost.
            if self.ended.len() + 1 < self.config.connections {
                differing.into_iter().flatten().for_each(|end| self.remember(end));
                self.forget_quietly(id);
            }
        }
    }

    /// Returns whether an operation is in flight on the shared QP that this connection is, or of this
    /// endpoint on a shared QP: both endpoints are needed when its response arrives. The response arrives
    /// within `dead_after`, or the shared QP fails.
    fn carries(&self, id: Id) -> bool {
        self.flows.get(id as usize).is_some_and(|flow| {
            flow.shared > 0 || self.lanes.get(flow.lane as usize).is_some_and(|lane| lane.under_way > 0)
        })
    }

    /// Matches a response to an endpoint with unknown peer against the unpaired endpoints between the two
    /// hosts. The endpoint that fits is the candidate if it is the only one.
    pub(crate) fn guess(&mut self, to: Id, packet: &Packet<'_>, from: u128, port: PortId) {
        let psn = packet.bth().psn();
        if let Some(found) = packet.atomic_ack() {
            let incarnation = self.flows[to as usize].incarnation;
            let answer = Found { to, incarnation, psn, value: found.original.get() };
            self.strangers.answers[Strangers::place(to, psn)] = answer;
        }
        let refused = packet.aeth().is_some_and(|aeth| !matches!(aeth.kind(), Syndrome::Ack(_)));
        let end = &mut self.ends[to as usize];
        let done = if refused { psn.sub(1) } else { psn };
        let msn = packet.aeth().map(rocev2::aeth::Aeth::msn);
        end.latest = Some(match end.latest {
            Some(latest) if !latest.0.precedes(done) => latest,
            latest => (done, msn.or(latest.map(|(_, msn)| msn)).unwrap_or(Msn::ZERO)),
        });
        let client = bits_of(packet.dst());
        if !self.strangers.look(client, from, 0, self.tick) {
            return;
        }
        let mut found = NONE;
        let mut looked = 0;
        let mut next = self.strangers.first(client, from);
        while next != NONE {
            let id = next;
            next = self.ends[id as usize].next;
            let flow = &mut self.flows[id as usize];
            if !flow.begun {
                continue;
            }
            looked += 1;
            if flow.may_have_asked(psn) {
                if found != NONE {
                    found = NONE;
                    break;
                }
                found = id;
            }
            if looked > CANDIDATES {
                found = NONE;
                break;
            }
        }
        self.strangers.look(client, from, looked as u32, self.tick);
        let end = &mut self.ends[to as usize];
        if let Some(flow) = self.flows.get_mut(found as usize)
            && end.latest.is_some_and(|(psn, _)| !flow.may_have_asked(psn))
        {
            // The stored value belongs to an earlier connection with the same client queue pair number.
            end.latest = Some((done, msn.unwrap_or(Msn::ZERO)));
        }
        if found == NONE || end.guess != found {
            end.guess = found;
            end.confirmed = (u8::from(found != NONE), psn);
            return;
        }
        if end.confirmed.1 == psn {
            return;
        }
        end.confirmed = (end.confirmed.0.saturating_add(1), psn);
        let ageing = self.config.ageing;
        let is_past = |at: Option<Nanos>| at.is_none_or(|at| self.tick.since(at) > ageing);
        let strayed = self.sources.strayed(packet.dst());
        let complete = is_past(self.overflowed)
            && is_past(self.sources.refused(packet.dst()))
            && strayed.is_none_or(|at| self.tick.since(at) > self.config.dead_after);
        if end.confirmed.0 >= CONFIRMATIONS && complete {
            if self.ends[to as usize].peer != NONE {
                // The endpoint is created again by later packets, and paired from scratch.
                _ = self.bury(to);
                return;
            }
            if core::mem::take(&mut self.flows[found as usize].haunted)
                && let Some(connection) = self.index.key(found).copied()
            {
                // The server has acknowledged a request that the old connection's queue pair would have
                // refused.
                let client = (packet.dst(), Qpn::new(0));
                self.declare_over(&Connection { server: (connection.host(), connection.qpn()), client });
            }
            self.pair(found, to, Stage::Paired);
            self.flows[found as usize].forget_structures();
            self.ends[found as usize].port = port;
            // Completes the requests whose responses arrived before the pairing.
            self.restart(found);
            self.restart(to);
        }
    }

    /// Sets the result of an atomic whose response arrived before the pairing, if the result is still stored.
    pub(crate) fn look_up(&self, id: Id, record: &mut Record) {
        let peer = self.ends[id as usize].peer;
        let kept = &self.strangers.answers[Strangers::place(peer, record.psn)];
        let incarnation = self.flows.get(peer as usize).map(|flow| flow.incarnation);
        if (kept.to, kept.psn) == (peer, record.psn) && Some(kept.incarnation) == incarnation {
            record.what = What::Atomic;
            record.value = kept.value;
        } else {
            record.what = What::Unknown;
        }
    }

    /// Marks the requests as complete whose responses arrived before the pairing.
    fn restart(&mut self, id: Id) {
        let peer = self.ends[id as usize].peer;
        let Some((psn, msn)) = self.ends[peer as usize].latest else { return };
        for at in 0..self.config.rd_atomic {
            let mut record = self.records(id)[at];
            if record.done || psn.precedes(record.psn) {
                continue;
            }
            record.done = true;
            if record.what == What::Atomic {
                self.look_up(id, &mut record);
            } else {
                record.what = What::Unseen;
            }
            self.records_mut(id)[at] = record;
            self.flows[id as usize].open -= 1;
        }
        self.done(id, psn.add(1));
        let flow = &mut self.flows[id as usize];
        flow.own_msn = msn;
        flow.msn = msn;
    }
}

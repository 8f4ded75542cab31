//! The two directions of a connection. A response names the requester's queue pair only, and a request that of
//! the responder: which belong together shows in the messages of the communication manager, or in responses
//! with the PSNs of requests between the same hosts.

use super::{Monitor, Place};
use crate::forward::counters::{Counters, HostQp};
use crate::forward::queue_pairs::{NONE, SEARCHED, source};
use crate::table::{Salt, mix};
use core::net::IpAddr;
use rocev2::cm::{Body, Message, mad_of};
use rocev2::{Packet, Psn, Qpn};

/// Responses that have to name the same two queue pairs
const CONFIRMATIONS: u32 = 3;
/// Requests that are remembered until their response
const REQUESTS: usize = 1024;
/// Exchanges of the communication manager that are remembered
const EXCHANGES: usize = 64;

/// A request that was remembered.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    psn: u32,
    /// Lower word of the requester's address
    from: u64,
    /// Queue pair to which it was sent; [`NONE`] if there are several with the same requester and PSN
    id: u32,
    /// Queue pair to which the response with its PSN was sent, or [`NONE`]
    answered: u32,
}

/// Some of the latest requests to queue pairs whose peer is not known, in the slots of their hash.
pub(super) struct Matches {
    salt: u64,
    slots: Box<[Remembered; REQUESTS]>,
}

impl Matches {
    /// Memory, in bytes
    pub(super) const BYTES: usize = REQUESTS * size_of::<Remembered>();

    pub(super) fn new() -> Self {
        let unused = Remembered { psn: NONE, from: 0, id: NONE, answered: NONE };
        let slots = vec![unused; REQUESTS].try_into();
        Self { salt: 0, slots: slots.unwrap_or_else(|_| unreachable!("the vector has this length")) }
    }

    pub(super) const fn set_salt(&mut self, salt: Salt) {
        self.salt = salt.hash(0, 0);
    }

    /// Returns the slot of a request with this PSN from the host whose address has this lower word.
    #[inline]
    fn slot(&self, from: u64, psn: Psn) -> usize {
        (mix(from ^ self.salt ^ u64::from(psn.get()) << 40) % REQUESTS as u64) as usize
    }

    /// Returns whether such a request is remembered, or was.
    #[inline]
    pub(super) fn knows(&self, from: u64, psn: Psn) -> bool {
        let slot = &self.slots[self.slot(from, psn)];
        slot.psn == psn.get() && slot.from == from
    }

    /// Remembers a request to the queue pair `id`.
    pub(super) fn add(&mut self, id: u32, from: u64, psn: Psn) {
        let ambiguous = self.knows(from, psn);
        let slot = &mut self.slots[self.slot(from, psn)];
        let id = if ambiguous && slot.id != id { NONE } else { id };
        *slot = Remembered { psn: psn.get(), from, id, answered: NONE };
    }
}

/// A connection that is being set up.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    client: IpAddr,
    server: IpAddr,
    /// Communication ID of the client
    id: u32,
    client_qp: Qpn,
    /// First PSN of the server's requests
    psn: Psn,
    /// Path MTU in bytes; 0 if not known
    mtu: u32,
}

/// The latest requests for connections.
pub(super) struct Exchanges {
    ring: [Option<Exchange>; EXCHANGES],
    next: usize,
}

impl Exchanges {
    pub(super) const fn new() -> Self {
        Self { ring: [None; EXCHANGES], next: 0 }
    }
}

impl Monitor {
    /// Returns the address of a queue pair's host.
    pub(super) fn address(id: u32, counters: &Counters) -> [u64; 2] {
        counters.qps.entries[id as usize].key().map_or([0; 2], |key| key.address())
    }

    /// Forgets which queue pair is at the other end of a connection, because one of the two has begun another.
    pub(super) fn separate(&mut self, id: u32, counters: &Counters) {
        let entries = &counters.qps.entries;
        let entry = &entries[id as usize];
        for (id, entry) in [(entry.peer.get(), entries.get(entry.peer.get() as usize)), (id, Some(entry))] {
            if let Some(entry) = entry {
                entry.peer.set(NONE);
                entry.sample.set(SEARCHED);
                self.states[id as usize].candidate = (NONE, 0);
            }
        }
    }

    /// Notes that two queue pairs are the ends of a connection.
    fn join(&mut self, ids: [u32; 2], counters: &Counters) {
        for id in ids {
            self.separate(id, counters);
        }
        for (id, peer) in [(ids[0], ids[1]), (ids[1], ids[0])] {
            let entry = &counters.qps.entries[id as usize];
            entry.peer.set(peer);
            entry.sample.set(NONE);
        }
    }

    /// Searches for the queue pair from which a response to `id` comes: the only one to which the latest
    /// requests with the PSNs of several responses were sent.
    pub(super) fn search(&mut self, id: u32, psn: Psn, packet: &Packet<'_>, counters: &Counters) {
        let hosts = [Self::address(id, counters), source(packet)];
        if !self.matches.knows(hosts[0][1], psn) {
            return;
        }
        let at = self.matches.slot(hosts[0][1], psn);
        let slot = &mut self.matches.slots[at];
        if slot.id == NONE || slot.answered == id || Self::address(slot.id, counters) != hosts[1] {
            return;
        }
        if slot.answered != NONE {
            // Two queue pairs got a response with this PSN.
            slot.id = NONE;
            for id in [slot.answered, id] {
                self.states[id as usize].candidate = (NONE, 0);
            }
            return;
        }
        slot.answered = id;
        let found = slot.id;
        let (candidate, confirmed) = self.states[id as usize].candidate;
        let confirmed = if candidate == found { confirmed + 1 } else { 1 };
        self.states[id as usize].candidate = (found, confirmed);
        let free = |id: u32| counters.qps.entries[id as usize].peer.get() == NONE;
        let same = self.states[found as usize].src == hosts[0];
        if confirmed >= CONFIRMATIONS && same && free(found) {
            self.join([id, found], counters);
        }
    }

    /// Takes a message of the communication manager.
    #[cold]
    pub(super) fn exchange(&mut self, packet: &Packet<'_>, place: &mut Place<'_>) {
        let Some(Ok(message)) = mad_of(packet).map(Message::parse) else { return };
        let (src, dst) = (packet.src(), packet.dst());
        match message.body {
            Body::Req(req) => {
                let exchange = Exchange {
                    client: src,
                    server: dst,
                    id: req.local_comm_id.get(),
                    client_qp: req.qpn(),
                    psn: req.starting_psn(),
                    mtu: req.path_mtu().map_or(0, u32::from),
                };
                let ring = &mut self.exchanges;
                ring.ring[ring.next] = Some(exchange);
                ring.next = (ring.next + 1) % EXCHANGES;
            }
            Body::Rep(rep) => {
                let mut known = self.exchanges.ring.iter_mut();
                let id = rep.remote_comm_id.get();
                let is = |known: &Exchange| (known.client, known.server, known.id) == (dst, src, id);
                // A REP that is repeated finds nothing, and changes nothing.
                let Some(slot) = known.find(|slot| slot.as_ref().is_some_and(is)) else { return };
                if let Some(exchange) = slot.take() {
                    self.connect(exchange, rep.qpn(), rep.starting_psn(), place);
                }
            }
            _ => {}
        }
    }

    /// Begins a connection. `psn` is the first PSN of the client's requests.
    fn connect(&mut self, exchange: Exchange, server_qp: Qpn, psn: Psn, place: &mut Place<'_>) {
        let Exchange { client, server, client_qp, .. } = exchange;
        let keys = [HostQp::new(server, server_qp), HostQp::new(client, client_qp)];
        let ids = keys.map(|key| place.qps.find_or_add(&place.counters.qps, key));
        let [Ok(to_server), Ok(to_client)] = ids else { return };
        self.join([to_server, to_client], place.counters);
        let directions = [(to_server, keys[1], psn), (to_client, keys[0], exchange.psn)];
        for (id, source, first) in directions {
            let state = &mut self.states[id as usize];
            state.src = source.address();
            state.requests.connect(first, exchange.mtu);
            let entry = &place.counters.qps.entries[id as usize];
            // The first request is judged: whether it is one of RC or UC is not known.
            entry.expected.set(NONE);
            entry.responded.set(NONE);
        }
    }
}

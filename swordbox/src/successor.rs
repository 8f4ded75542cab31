//! Successors: connections that the connection manager set up with a queue pair number of a translated
//! connection. A successor replaces the old connection only when packets of both endpoints show that the old
//! one is gone, because a REQ and a REP can be forged.

use crate::function::Swordbox;
use crate::{Id, NONE};
use core::net::IpAddr;
use rocev2::{Opcode, Packet, Psn, Qpn};
use switch::forward::counters::HostQp;
use switch::table::{Key, mix};
use switch::{Nanos, PortId};

/// Number of slots; the table is direct-mapped
const SLOTS: usize = 1024;
/// Number of requests from the starting PSN on that pass before the server has answered one
const EARLY_REQUESTS: i32 = 256;

/// A connection that the connection manager set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Successor {
    pub server: (IpAddr, Qpn),
    pub client: (IpAddr, Qpn),
    /// Starting PSN of the client
    pub psn: Psn,
    /// Starting PSN of the server
    pub server_psn: Psn,
    /// Path MTU in bytes; 0 if it is unknown
    pub mtu: u16,
    /// READs and atomics that the server accepts at once
    pub server_max_reads: u8,
    /// Ports on which the REQ and the REP arrived
    pub client_port: PortId,
    pub server_port: PortId,
    pub at: Nanos,
    /// A request from the starting PSN on has been forwarded
    pub request_seen: bool,
}

impl Successor {
    /// Returns the queue pairs: the server's, then the client's.
    pub(crate) fn keys(&self) -> [HostQp; 2] {
        [self.server, self.client].map(|(host, qpn)| HostQp::new(host, qpn))
    }
}

/// Successors by the server's and by the client's queue pair.
#[derive(Debug)]
pub(crate) struct Successors {
    slots: Box<[Option<Successor>]>,
    /// Slot in `slots`, by client
    by_client: Box<[u16]>,
}

fn slot_of((host, qpn): (IpAddr, Qpn)) -> usize {
    mix(HostQp::new(host, qpn).hash()) as usize % SLOTS
}

impl Successors {
    pub(crate) const BYTES: usize = SLOTS * (size_of::<Option<Successor>>() + size_of::<u16>());

    pub(crate) fn new() -> Self {
        Self { slots: vec![None; SLOTS].into(), by_client: vec![0; SLOTS].into() }
    }

    fn keep(&mut self, successor: Successor) {
        let slot = slot_of(successor.server);
        self.slots[slot] = Some(successor);
        self.by_client[slot_of(successor.client)] = slot as u16;
    }

    fn of_server(&mut self, server: (IpAddr, Qpn)) -> Option<&mut Successor> {
        self.slots[slot_of(server)].as_mut().filter(|successor| successor.server == server)
    }

    fn of_client(&self, client: (IpAddr, Qpn)) -> Option<Successor> {
        let slot = usize::from(self.by_client[slot_of(client)]);
        self.slots[slot].filter(|successor| successor.client == client)
    }
}

impl Swordbox {
    /// Stores a successor of a translated connection, unless the REP arrived on another port than the
    /// server's packets.
    pub(crate) fn add_successor(&mut self, successor: Successor) {
        let known = self.index.get(&HostQp::new(successor.server.0, successor.server.1));
        let peer = known.map_or(NONE, |id| self.endpoints[id as usize].peer);
        let leads =
            peer != NONE && known.is_some_and(|id| self.endpoints[id as usize].port != successor.server_port);
        if leads {
            self.counters.spoofed.add(1);
            return;
        }
        self.successors.keep(successor);
    }

    /// Returns whether a request that does not fit the translated connection is an early request of a
    /// successor. The server's old queue pair takes such a request for a duplicate or for one that is too
    /// early, and executes it in neither case.
    #[cold]
    pub(crate) fn is_for_successor(&mut self, packet: &Packet<'_>, now: Nanos) -> bool {
        let server = (packet.dst(), packet.bth().dest_qp());
        let (client, psn, ageing) = (packet.src(), packet.bth().psn(), self.config.ageing);
        let Some(successor) = self.successors.of_server(server) else { return false };
        let fits = (0..EARLY_REQUESTS).contains(&psn.distance(successor.psn));
        if successor.client.0 != client || !fits || now.since(successor.at) > ageing || !packet.verify_icrc()
        {
            return false;
        }
        successor.request_seen = true;
        true
    }

    /// Handles a response that fits no tracked connection: if it is the server's first acknowledgement to a
    /// successor, the successor replaces the old connection. Returns whether it does.
    #[cold]
    pub(crate) fn try_succeed(&mut self, packet: &Packet<'_>, port: PortId, now: Nanos) -> bool {
        let client = (packet.dst(), packet.bth().dest_qp());
        let psn = packet.bth().psn();
        let acknowledges =
            matches!(
                packet.layout().opcode(),
                Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE | Opcode::RC_READ_RESPONSE_ONLY
            ) && packet.aeth().is_some_and(|aeth| matches!(aeth.kind(), rocev2::aeth::Syndrome::Ack(_)));
        let Some(successor) = self.successors.of_client(client) else { return false };
        if !successor.request_seen
            || !acknowledges
            || successor.server.0 != packet.src()
            || successor.server_port != port
            || now.since(successor.at) > self.config.ageing
            || !(0..EARLY_REQUESTS).contains(&psn.distance(successor.psn))
            || !packet.verify_icrc()
        {
            return false;
        }
        let slot = slot_of(successor.server);
        self.successors.slots[slot] = None;
        // Later requests are in flight already; tracking begins with the next one.
        self.replace_connection(&successor, false, now);
        true
    }

    /// Returns whether a queue pair belongs to a translated connection.
    pub(crate) fn is_translated(&self, key: &HostQp) -> bool {
        let Some(id) = self.index.get(key) else { return false };
        let differs = |end: Id| {
            self.flows
                .get(end as usize)
                .is_some_and(|flow| flow.stage >= crate::flow::Stage::Translating && !flow.disconnected)
        };
        differs(id) || differs(self.endpoints[id as usize].peer)
    }
}

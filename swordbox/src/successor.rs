//! Successors: connections that the connection manager set up with a queue pair number of a translated
//! connection. A successor replaces the old connection only when packets of both endpoints show that the old
//! one is gone, because a REQ and a REP can be forged.

use core::net::IpAddr;
use rocev2::{Psn, Qpn};
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
    /// Whether a request from the starting PSN on has been forwarded
    pub request_seen: bool,
}

impl Successor {
    /// Returns whether this PSN of the client is one of its first requests, at a time when the server may not
    /// have answered one.
    pub(crate) fn is_early(&self, psn: Psn) -> bool {
        (0..EARLY_REQUESTS).contains(&psn.distance(self.psn))
    }

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

    pub(crate) fn keep(&mut self, successor: Successor) {
        let slot = slot_of(successor.server);
        self.slots[slot] = Some(successor);
        self.by_client[slot_of(successor.client)] = slot as u16;
    }

    pub(crate) fn of_server(&mut self, server: (IpAddr, Qpn)) -> Option<&mut Successor> {
        self.slots[slot_of(server)].as_mut().filter(|successor| successor.server == server)
    }

    pub(crate) fn of_client(&self, client: (IpAddr, Qpn)) -> Option<Successor> {
        let slot = usize::from(self.by_client[slot_of(client)]);
        self.slots[slot].filter(|successor| successor.client == client)
    }

    /// Removes a successor.
    pub(crate) fn remove(&mut self, successor: &Successor) {
        self.slots[slot_of(successor.server)] = None;
    }
}

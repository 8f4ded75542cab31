//! Handshakes of the connection manager: each REQ is stored until its REP.

use crate::address::bits_of;
use crate::successor::Successors;
use core::net::IpAddr;
use rocev2::{Psn, Qpn};
use switch::PortId;
use switch::table::mix;

/// Number of REQs remembered until their REP
const HANDSHAKES: usize = 4096;

/// A REQ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub client: IpAddr,
    pub comm_id: u32,
    pub qpn: Qpn,
    /// Starting PSN of the server
    pub psn: Psn,
    pub mtu: u16,
    pub port: PortId,
    /// Whether the REP has been seen
    pub replied: bool,
    /// Sequence number; later REQs have larger ones
    pub number: u64,
}

/// The latest REQs, in a set-associative table, and the connections that replace translated ones.
#[derive(Debug)]
pub(crate) struct Handshakes {
    requests: Vec<Option<Request>>,
    count: u64,
    /// Connections that were set up with a queue pair number of a translated connection
    pub successors: Successors,
}

/// Associativity of the table
const ASSOCIATIVITY: usize = 8;

impl Handshakes {
    pub(crate) const BYTES: usize = HANDSHAKES * size_of::<Option<Request>>() + Successors::BYTES;

    pub(crate) fn new() -> Self {
        Self { requests: vec![None; HANDSHAKES], count: 0, successors: Successors::new() }
    }

    fn set(&mut self, client: IpAddr, comm_id: u32) -> &mut [Option<Request>] {
        let hash = mix(bits_of(client) as u64 ^ u64::from(comm_id) << 32) as usize;
        &mut self.requests[hash % (HANDSHAKES / ASSOCIATIVITY) * ASSOCIATIVITY..][..ASSOCIATIVITY]
    }

    pub(crate) fn find(&mut self, client: IpAddr, comm_id: u32) -> Option<&mut Request> {
        let set = self.set(client, comm_id).iter_mut().flatten();
        set.into_iter().find(|request| request.client == client && request.comm_id == comm_id)
    }

    /// Stores a REQ, in place of the oldest of its set unless it is a retransmission.
    pub(crate) fn keep(&mut self, request: Request) {
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

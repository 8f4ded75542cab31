//! What a Swordbox is told beforehand.

use crate::Id;
use crate::steering::Structure;
use core::net::IpAddr;
use core::ops::Range;
use rnic::Interface;
use rocev2::Qpn;
use switch::Nanos;
use switch::forward;

/// Configuration of [`Swordbox`](crate::Swordbox).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The bridge that carries all frames
    pub forward: forward::Config,
    /// Connections that are tracked at once. The packets of others pass untouched
    pub connections: usize,
    /// Of those, connections of one host at most
    pub per_host: usize,
    /// Operations outstanding at once on a shared connection. A power of two
    pub in_flight: usize,
    /// READs and atomics of a connection that are remembered, to answer those that its client repeats: as many as a client
    /// may have outstanding
    pub rd_atomic: usize,
    /// Lines of 64 bytes of the servers' memory in whose words' values are cached
    pub lines: usize,
    /// Slots for frames that wait for their turn; at least 2, since one client uses at most half
    pub held: usize,
    /// Nodes at once that are on their way into a data structure; those that come then are not steered
    pub appends: usize,
    /// Answers at once that wait until such a node is where it belongs; for one that comes then, its client asks again
    pub withheld: usize,
    /// A connection of which nothing was heard for so long is forgotten
    pub ageing: Nanos,
    /// For how long a client's right to an operation with a key counts as proven after it was used with success on the client's
    /// own connection
    pub proof: Nanos,
    /// For how long a request may be on its way to memory at most. After one that did not take a shared connection, the words
    /// that it touched are not decided here for that long
    pub settle: Nanos,
    /// The shortest time after which operations on a shared connection that are not acknowledged are sent again
    pub replay_after: Nanos,
    /// A shared connection on which nothing has been acknowledged for so long is given up
    pub dead_after: Nanos,
    /// The memory servers
    pub servers: Vec<Server>,
    /// The switch's own addresses, for lanes of its own
    pub interface: Option<Interface>,
    /// For how long the other side of a CM message may take to answer
    pub connect_timeout: Nanos,
    /// The shortest time after which a lane of the switch's own that is lost or refused is tried again. It doubles each time
    pub reconnect_after: Nanos,
    /// A lane of the switch's own that was silent for so long is tried by a WRITE of nothing
    pub probe_after: Nanos,
    /// What is done; can be changed at run time
    pub layers: Layers,
    /// What becomes of a CAS of which it is known that it fails
    pub failed_cas: FailedCas,
    /// Connections of an earlier life, whose two sides do not agree about PSNs without its tables: their packets go nowhere
    pub ended: Vec<Connection>,
    /// A planted bug, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

/// A memory server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its address
    pub host: IpAddr,
    /// Where words lie on which many clients operate: lock tables
    pub tables: Vec<Table>,
    /// Data structures in its memory of which something is known
    pub structures: Vec<Structure>,
    /// Words that are not to be cached, because the server's own programs write them
    pub never: Vec<Range<u64>>,
    /// A word outside all tables that has received so many atomics is treated as if it were in one; 0 for never
    pub detect: u32,
    /// Connections that are shared at once, at most
    pub lanes: usize,
    /// Path MTU, in bytes, of connections that the connection manager does not make; 0 to learn it from packets
    pub path_mtu: u16,
    /// READs and atomics that the server takes at once on a connection (its queue pairs' `max_dest_rd_atomic`), unless the
    /// connection manager told
    pub rd_atomic: u8,
    /// Whether connections are shared. Regions with `IBV_ACCESS_RELAXED_ORDERING` do not keep the order of WRITEs on which
    /// that relies
    pub share: bool,
    /// The service at which the switch connects lanes of its own, if the server has one
    pub connect: Option<Connect>,
}

/// Lanes of the switch's own at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// What the REQ asks for (IB 12.6.5): [`service_id_of`](rnic::cm::service_id_of) of a port
    pub service: u64,
    /// The REQ's private data, behind `rdma_cm`'s header
    pub private_data: Vec<u8>,
    /// How many lanes
    pub lanes: usize,
}

/// Words of a server's memory, one every `stride` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The key of their region, if it is known beforehand
    pub rkey: Option<u32>,
    /// Virtual addresses
    pub range: Range<u64>,
    /// Bytes from a word to the next; a multiple of 8
    pub stride: u64,
    /// Whether a client that may do atomics here may WRITE, too: only then can a CAS become a WRITE before any client has
    /// written with this key
    pub writable: bool,
}

/// What is done, layer by layer (paper: evaluation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is switched by itself")]
pub struct Layers {
    /// Operations on a tracked word leave on one connection, whichever they came on
    pub remap: bool,
    /// A CAS or FETCH_ADD whose outcome is known leaves as a WRITE; needs `remap`
    pub cas_to_write: bool,
    /// A WRITE or CAS of a known data structure goes to where it belongs now
    pub steer_writes: bool,
    /// READs, too
    pub steer_reads: bool,
}

impl Layers {
    /// Packets pass as they are.
    pub const PASS: Self =
        Self { remap: false, cas_to_write: false, steer_writes: false, steer_reads: false };
    /// Requests go to where they belong now, on the connections that they came on.
    pub const STEER: Self = Self { remap: false, cas_to_write: false, steer_writes: true, steer_reads: true };
    /// Atomics are resolved here.
    pub const CAS_TO_WRITE: Self =
        Self { remap: true, cas_to_write: true, steer_writes: false, steer_reads: false };
}

/// What becomes of a CAS of which it is known that it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailedCas {
    /// A WRITE of what the word holds, like any other
    #[default]
    Write,
    /// An answer from here, if nothing that the answer depends on is still on its way to the server; otherwise a WRITE
    Answer,
}

/// A connection by its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// The server and its queue pair
    pub server: (IpAddr, Qpn),
    /// The client and its queue pair
    pub client: (IpAddr, Qpn),
}

impl Connection {
    /// What a request tells of it.
    pub(crate) fn without_client_qpn(&self) -> Self {
        Self { client: (self.client.0, Qpn::new(0)), ..*self }
    }
}

impl Config {
    /// Nothing but a bridge, with room for 65,536 connections.
    pub fn new(forward: forward::Config) -> Self {
        Self {
            forward,
            connections: 65_536,
            per_host: 16_384,
            in_flight: 1_024,
            rd_atomic: 16,
            lines: 16_384,
            held: 4_096,
            appends: 4_096,
            withheld: 1_024,
            ageing: Nanos::from_secs(600),
            proof: Nanos::from_secs(10),
            settle: Nanos::from_millis(20),
            replay_after: Nanos::from_micros(100),
            dead_after: Nanos::from_secs(2),
            servers: Vec::new(),
            interface: None,
            connect_timeout: Nanos::from_millis(500),
            reconnect_after: Nanos::from_millis(100),
            probe_after: Nanos::from_millis(500),
            layers: Layers::PASS,
            failed_cas: FailedCas::Write,
            ended: Vec::new(),
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

impl Config {
    /// Lanes of the switch's own, by their number among all: each server's own lanes come before those that it may borrow.
    pub(crate) fn own_lanes(&self) -> impl Iterator<Item = (Id, (IpAddr, &Connect))> {
        let mut next = 0;
        self.servers.iter().flat_map(move |server| {
            let first = next;
            let own = if self.interface.is_some() { server.connect.as_ref() } else { None };
            let count = own.map_or(0, |own| own.lanes);
            next = first + count + server.lanes;
            own.into_iter()
                .flat_map(move |own| (first..first + count).map(move |lane| (lane as Id, (server.host, own))))
        })
    }

    /// All lanes, own and borrowed
    pub fn lanes(&self) -> usize {
        self.own_lanes().count() + self.servers.iter().map(|server| server.lanes).sum::<usize>()
    }
}

impl Server {
    /// A server without tables.
    pub fn new(host: IpAddr) -> Self {
        Self {
            host,
            tables: Vec::new(),
            structures: Vec::new(),
            never: Vec::new(),
            detect: 0,
            lanes: 4,
            path_mtu: 0,
            rd_atomic: 1,
            share: true,
            connect: None,
        }
    }

    /// Whether the word at `va` is one of a table's.
    pub(crate) fn table_of(&self, va: u64, rkey: u32) -> Option<&Table> {
        self.tables.iter().find(|table| {
            table.range.contains(&va)
                && table.range.end - va >= 8
                && (va - table.range.start).is_multiple_of(table.stride)
                && table.rkey.is_none_or(|own| own == rkey)
        })
    }

    /// Whether the server's own programs may write the word at `va`.
    pub(crate) fn is_never_cached(&self, va: u64) -> bool {
        self.never.iter().any(|range| range.start < va.saturating_add(8) && va < range.end)
    }
}

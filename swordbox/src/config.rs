//! Configuration of a Swordbox.

use crate::Id;
use crate::owners::Owners;
use crate::steering::Structure;
use core::net::IpAddr;
use core::ops::Range;
use rnic::Interface;
use rocev2::Qpn;
use switch::Nanos;
use switch::forward;

/// Configuration of [`Swordbox`](crate::Swordbox). With several workers, each has tables of these capacities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bridge that forwards all frames
    pub forward: forward::Config,
    /// Connections tracked at once. Packets of further connections are forwarded unchanged
    pub connections: usize,
    /// Tracked connections of one host at most
    pub per_host: usize,
    /// Operations outstanding on one shared QP at most; a power of two
    pub in_flight: usize,
    /// READs and atomics recorded per connection to answer retransmissions: as many as a client may have
    /// outstanding
    pub rd_atomic: usize,
    /// Cached lines of 64 bytes of the servers' memory
    pub lines: usize,
    /// Slots for held frames; at least 2, since one client uses at most half
    pub held: usize,
    /// Nodes that may be pending (their CAS outstanding) at once in all data structures. While all slots are
    /// in use, further CAS are not steered
    pub appends: usize,
    /// Responses withheld at once until the node that they depend on is linked. While all slots are in use,
    /// further responses are dropped and their clients retransmit
    pub withheld: usize,
    /// Time without packets after which a connection is forgotten
    pub ageing: Nanos,
    /// Time for which a client's right to an operation with a key counts as proven after a successful use on
    /// the client's own connection
    pub proof: Nanos,
    /// Upper bound of the time that a request takes from the switch to the server's memory. After a request
    /// that bypassed the shared QP, the words that it touched are not resolved for this long
    pub settle: Nanos,
    /// Minimum time after which unacknowledged operations on a shared QP are retransmitted
    pub replay_after: Nanos,
    /// Time without an acknowledgement after which a shared QP is given up
    pub dead_after: Nanos,
    /// Memory servers
    pub servers: Vec<Server>,
    /// Addresses of the switch itself, for switch-owned QPs
    pub interface: Option<Interface>,
    /// Response timeout of CM messages
    pub connect_timeout: Nanos,
    /// Minimum delay before a lost or refused switch-owned QP is connected again. It doubles with each
    /// attempt
    pub reconnect_after: Nanos,
    /// Idle time after which a switch-owned QP is probed by a zero-length WRITE
    pub probe_after: Nanos,
    /// Enabled layers; can be changed at run time
    pub layers: Layers,
    /// Handling of a CAS that is known to fail
    pub failed_cas: FailedCas,
    /// Translated connections from before a restart, whose PSN translation is lost: their packets are dropped
    pub ended: Vec<Connection>,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<crate::Bug>,
}

/// A memory server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Address
    pub host: IpAddr,
    /// Tables of contended words, such as lock tables
    pub tables: Vec<WordTable>,
    /// Data structures in the server's memory that Swordbox caches state of
    pub structures: Vec<Structure>,
    /// Address ranges that are never cached because programs on the server write to them
    pub never_cached: Vec<Range<u64>>,
    /// Number of atomics after which a word outside all tables is tracked like a word of a table; 0 to
    /// disable
    pub detect_after: u32,
    /// Client-owned connections that are shared at once at most
    pub client_owned_qps: usize,
    /// Path MTU, in bytes, of connections that were set up without the connection manager; 0 to learn it from
    /// packets
    pub path_mtu: u16,
    /// READs and atomics that the server accepts at once on a connection (its queue pairs'
    /// `max_dest_rd_atomic`), unless the connection manager announced it
    pub rd_atomic: u8,
    /// Whether connections are shared. Sharing relies on WRITEs of one connection taking effect in order,
    /// which regions with `IBV_ACCESS_RELAXED_ORDERING` do not guarantee
    pub share: bool,
    /// Service at which switch-owned QPs are connected, if the server offers one
    pub connect: Option<SwitchOwnedQps>,
}

/// Switch-owned QPs at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchOwnedQps {
    /// Service ID in the REQ (IB 12.6.5): [`service_id_of`](rnic::cm::service_id_of) of a port
    pub service: u64,
    /// Private data of the REQ, behind the header of `rdma_cm`
    pub private_data: Vec<u8>,
    /// Number of switch-owned QPs
    pub qps: usize,
}

/// Words of a server's memory, one every `stride` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WordTable {
    /// R_Key of the region, if known in advance
    pub rkey: Option<u32>,
    /// Virtual addresses
    pub range: Range<u64>,
    /// Distance between two words in bytes; a multiple of 8
    pub stride: u64,
    /// Whether a client with the right to atomics here may also WRITE. Without it, a CAS becomes a WRITE only
    /// after some client has written with this key
    pub writable: bool,
}

/// Enabled layers (paper: evaluation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each layer is enabled independently")]
pub struct Layers {
    /// Whether operations on a tracked word are multiplexed onto one shared QP
    pub remap: bool,
    /// Whether a CAS or FETCH_ADD whose result is known is forwarded as a WRITE; needs `remap`
    pub cas_to_write: bool,
    /// Whether a CAS that appends to a known data structure is redirected to its last node
    pub steer_writes: bool,
    /// Whether a READ of a known data structure is redirected to the current location
    pub steer_reads: bool,
}

impl Layers {
    /// All packets are forwarded unchanged.
    pub const PASS: Self =
        Self { remap: false, cas_to_write: false, steer_writes: false, steer_reads: false };
    /// Requests are steered, on their own connections.
    pub const STEER: Self = Self { remap: false, cas_to_write: false, steer_writes: true, steer_reads: true };
    /// Atomics are resolved by the switch.
    pub const CAS_TO_WRITE: Self =
        Self { remap: true, cas_to_write: true, steer_writes: false, steer_reads: false };
}

/// Handling of a CAS that is known to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FailedCas {
    /// Forwarded as a WRITE of the current value, like a CAS that succeeds
    #[default]
    Write,
    /// Answered by the switch if the result does not depend on an operation in flight, otherwise like
    /// [`Write`](Self::Write)
    Respond,
}

/// Identity of a connection: its two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// Server address and queue pair
    pub server: (IpAddr, Qpn),
    /// Client address and queue pair
    pub client: (IpAddr, Qpn),
}

impl Connection {
    /// Returns this connection without the client's queue pair, which requests do not carry.
    pub(crate) fn without_client_qpn(&self) -> Self {
        Self { client: (self.client.0, Qpn::new(0)), ..*self }
    }
}

impl Config {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(crate) fn has_bug(&self, bug: crate::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the configuration of a plain bridge with room for 65,536 connections.
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
            bug: None,
        }
    }
}

impl Config {
    /// Returns the configuration of worker `worker` of `workers`: with the servers that belong to it, and the ended
    /// connections to them. Those to hosts that are no longer servers are the same at all workers, any of which may get
    /// their packets.
    pub(crate) fn of_worker(self, worker: usize, workers: usize) -> Self {
        assert!(worker < workers, "there is no worker {worker} of {workers}");
        let owners = Owners::new(&self, workers);
        let belongs = |host| owners.worker_of_server(host).is_none_or(|owner| owner == worker);
        Self {
            servers: self.servers.into_iter().filter(|server| belongs(server.host)).collect(),
            ended: self.ended.into_iter().filter(|ended| belongs(ended.server.0)).collect(),
            ..self
        }
    }

    /// Returns the index and the server of each switch-owned QP. Indices count all shared QPs; each server's
    /// switch-owned ones come before the client-owned ones.
    pub(crate) fn switch_owned_qps(&self) -> impl Iterator<Item = (Id, (IpAddr, &SwitchOwnedQps))> {
        let mut next = 0;
        self.servers.iter().flat_map(move |server| {
            let first = next;
            let own = if self.interface.is_some() { server.connect.as_ref() } else { None };
            let count = own.map_or(0, |own| own.qps);
            next = first + count + server.client_owned_qps;
            own.into_iter().flat_map(move |own| {
                (first..first + count).map(move |shared_qp| (shared_qp as Id, (server.host, own)))
            })
        })
    }

    /// Returns the number of shared QPs, switch-owned and client-owned.
    pub fn shared_qps(&self) -> usize {
        self.switch_owned_qps().count()
            + self.servers.iter().map(|server| server.client_owned_qps).sum::<usize>()
    }
}

impl Server {
    /// Returns a server without tables or structures, with four shared QPs.
    pub fn new(host: IpAddr) -> Self {
        Self {
            host,
            tables: Vec::new(),
            structures: Vec::new(),
            never_cached: Vec::new(),
            detect_after: 0,
            client_owned_qps: 4,
            path_mtu: 0,
            rd_atomic: 1,
            share: true,
            connect: None,
        }
    }

    /// Returns the table that has a word at `va`, if any.
    pub(crate) fn table_of(&self, va: u64, rkey: u32) -> Option<&WordTable> {
        self.tables.iter().find(|table| {
            table.range.contains(&va)
                && table.range.end - va >= 8
                && (va - table.range.start).is_multiple_of(table.stride)
                && table.rkey.is_none_or(|own| own == rkey)
        })
    }

    /// Returns whether the word at `va` overlaps a range that is never cached.
    #[inline]
    pub(crate) fn is_never_cached(&self, va: u64) -> bool {
        self.never_cached.iter().any(|range| range.start < va.saturating_add(8) && va < range.end)
    }
}

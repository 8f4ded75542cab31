//! A workload of clients that contend for words of remote memory, and the guarantees that have to hold for
//! any switch between them and the memory servers. A switch that responds in place of a server is judged by
//! what the clients observe; a plain bridge has to pass, too.
//!
//! Every connection keeps a number of requests outstanding, of all verbs: on words that all clients share, on
//! memory of its own, messages, and critical sections like those of Sherman (Wang et al., SIGMOD 2022): a
//! client takes a lock by `CmpSwap`, reads a page, then posts the WRITE of the page and the release of the
//! lock back to back, without waiting for the first. The checks:
//!
//! * one order explains the operations on each word and the memory at the end ([`linear`]), and it keeps the
//!   order of each connection's operations;
//! * no lock has two holders, and each holder finds the page as the previous holder wrote it;
//! * a connection reads from memory of its own what it wrote, and the memory holds that at the end;
//! * messages arrive once, in order and as they were sent;
//! * completions arrive once and in order; without faults, none is an error.
//!
//! A connection that breaks leaves operations with an unknown outcome behind: they may or may not have taken
//! effect. Its client continues with a new connection.

mod client;
mod cluster;
mod connect;
mod end;
mod history;
pub mod linear;
mod plan;
mod section;
mod server;
mod verb;

pub use client::ClientApp;
pub use cluster::{Cluster, Sides, Totals, Wiring};
pub use server::ServerApp;
pub use verb::Verb;

use rnic::{AckPolicy, PathMtu, ReadyToSend};
use sim::Link;
use switch::{Nanos, Probability};

/// Virtual address of a server's words, which the locks of its pages follow
pub const TABLE_VA: u64 = 0x1000_0000_0000;
/// Virtual address of a server's pages, if they have a key of their own; otherwise they follow the locks
pub const PAGES_VA: u64 = 0x2000_0000_0000;

/// Parameters of the workload.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Config {
    /// Seed of everything that is drawn
    pub seed: u64,
    /// Number of clients
    pub clients: u16,
    /// Number of memory servers
    pub servers: u16,
    /// Connections from each client to each server
    pub connections: u32,
    /// Operations of each connection, in addition to its critical sections
    pub operations: u32,
    /// Outstanding requests of each connection, in addition to those of a critical section
    pub depth: u32,
    /// Outstanding READs and atomics of each connection
    pub max_rd_atomic: u8,
    /// Words of each server that all clients share
    pub words: u32,
    /// Skew of the words' popularity: the exponent of Zipf's law; 0 for uniform
    pub zipf: f64,
    /// Relative frequency of each verb, in the order of [`Verb::ALL`]
    pub mix: [u32; Verb::ALL.len()],
    /// Critical sections of each connection
    pub sections: u32,
    /// Pages of each server
    pub pages: u32,
    /// Bytes of a page
    pub page_size: u32,
    /// Attempts of a critical section to take its lock
    pub tries: u32,
    /// Size of the memory of a connection's own, and of the longest message (bytes)
    pub max_size: u32,
    /// Path MTU
    pub mtu: PathMtu,
    /// Whether each connection gets keys of its own for words and pages
    pub own_keys: bool,
    /// Whether pages have another key than words, and addresses apart from them
    pub separate_keys: bool,
    /// Whether connections are set up by the communication manager; otherwise the simulator exchanges the
    /// numbers
    pub by_cm: bool,
    /// Whether all connections begin with the same PSN, if they are set up without the communication manager
    pub equal_psns: bool,
    /// Whether all addresses are IPv6
    pub v6: bool,
    /// ACK timeout: 4.096 us * 2^`timeout`
    pub timeout: u8,
    /// Retry limit; [`ReadyToSend::NO_LIMIT`] for none
    pub retry_count: u8,
    /// Packets in flight per connection at most
    pub window: u32,
    /// When servers acknowledge
    pub ack: AckPolicy,
    /// Share of hosts whose NICs keep no results of old READs and atomics, as soft-RoCE does not
    pub forgetful: Probability,
    /// Receive requests that a server keeps posted for each connection
    pub receives: u32,
    /// Upper bound of the time until a used receive request is posted again (us)
    pub repost_us: u32,
    /// Time for which the server posts no further receive request on the first connection, which starts with
    /// one
    pub starve: Option<Nanos>,
    /// Start of the clients
    pub begin_at: Nanos,
    /// Connections of the switch's own at each server at once
    pub switch_connections: usize,
    /// Whether connections may break: there are faults, or retries are limited
    pub may_fail: bool,
    /// Time from the break of a connection to its re-establishment
    pub reconnect_after: Nanos,
    /// Whether a server keeps its end of a broken connection if the client has not restarted
    pub linger: bool,
    /// Number of changes of a host's UDP source ports, as when a network's paths change
    pub rehashes: u32,
    /// Number of connections that lose the right to write words; needs `may_fail`
    pub revocations: u32,
    /// Time after the revocation for which such a connection's requests may still be executed
    pub revoked_within: Nanos,
    /// Whether connections share state in the switch, so that a fault of one may break another
    pub shares_fate: bool,
    /// Time for which a connection's requests may still be executed after its queue pair at the server is
    /// gone: the switch may forward those that it holds
    pub forwarded_for: Nanos,
    /// Rounds of forged packets of a host without access rights
    pub forged_rounds: u32,
    /// Whether a server's memory survives its restart: only its process restarts, or the memory is persistent
    pub keeps_memory: bool,
    /// Number of words, the last ones, that the server's program writes locally, too
    pub local_words: u32,
    /// Whether restarted servers give their regions the same keys again
    pub same_keys_after_restart: bool,
    /// Link of each client to the switch
    pub client_link: Link,
    /// Link of each server to the switch
    pub server_link: Link,
    /// Bug to plant in every NIC, to test whether the checks find it
    pub bug: Option<rnic::Bug>,
}

impl Default for Config {
    /// Four clients and one server, fast links, no faults.
    fn default() -> Self {
        Self {
            seed: 1,
            clients: 4,
            servers: 1,
            connections: 1,
            operations: 40,
            depth: 8,
            max_rd_atomic: 4,
            words: 4,
            zipf: 0.0,
            mix: [4, 3, 3, 3, 1, 1, 1, 1, 1],
            sections: 4,
            pages: 2,
            page_size: 1500,
            tries: 8,
            max_size: 3000,
            mtu: PathMtu::B1024,
            own_keys: false,
            separate_keys: false,
            by_cm: false,
            equal_psns: false,
            v6: false,
            timeout: 8,
            retry_count: ReadyToSend::NO_LIMIT,
            window: 64,
            ack: AckPolicy::OnRequest,
            forgetful: Probability::NEVER,
            receives: 8,
            repost_us: 0,
            starve: None,
            begin_at: Nanos::ZERO,
            switch_connections: 0,
            may_fail: false,
            reconnect_after: Nanos::from_micros(300),
            linger: false,
            rehashes: 0,
            revocations: 0,
            revoked_within: Nanos::ZERO,
            shares_fate: false,
            forwarded_for: Nanos::ZERO,
            forged_rounds: 0,
            keeps_memory: false,
            local_words: 0,
            same_keys_after_restart: false,
            client_link: Link::default(),
            server_link: Link::default(),
            bug: None,
        }
    }
}

/// How a server treats a switch's request for a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchConnection {
    /// Accepts it with a queue pair like those of clients
    Good,
    /// Accepts it with a queue pair of another protection domain, in which no key is valid
    OtherDomain,
    /// Rejects it
    Refused,
}

impl SwitchConnection {
    const ALL: [Self; 3] = [Self::Good, Self::OtherDomain, Self::Refused];

    /// Returns the private data of a REQ that requests this treatment.
    pub const fn private_data(self) -> &'static [u8] {
        match self {
            Self::Good => b"switch: good",
            Self::OtherDomain => b"switch: other domain",
            Self::Refused => b"switch: refused",
        }
    }

    /// Returns the treatment that a REQ with this private data requests; `None` if the REQ is not a switch's.
    fn requested_by(private_data: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|treatment| private_data.starts_with(treatment.private_data()))
    }
}

/// `rdma_cm` port on which servers accept connections
pub const PORT: u16 = 9000;
/// Connection to which [`Config::starve`] applies
const STARVED: u32 = 1;

impl Config {
    /// Returns the size of a server's words and locks (bytes).
    pub fn table_size(&self) -> usize {
        (self.words + self.pages) as usize * 8
    }

    /// Returns the size of a server's pages (bytes).
    pub fn pages_size(&self) -> usize {
        self.pages as usize * self.page_size as usize
    }

    /// Returns the number of switch ports for all hosts.
    pub fn ports(&self) -> u16 {
        self.clients + self.servers + u16::from(self.forged_rounds > 0)
    }

    /// Returns the shortest time from one failed attempt to connect to the next: all retries, and the pause.
    fn retry_interval(&self) -> Nanos {
        let wait = 4096 << self.timeout;
        Nanos(wait * (u64::from(self.retry_count) + 1) + self.reconnect_after.0)
    }

    /// Returns whether the links lose, corrupt or reorder frames, or have short queues; each of these costs
    /// retries.
    fn costs_retries(&self) -> bool {
        let costs_retries = |link: &Link| {
            link.queue < Link::default().queue
                || [link.loss, link.corrupt, link.reorder].iter().any(|share| !share.is_never())
        };
        costs_retries(&self.client_link) || costs_retries(&self.server_link)
    }

    /// Returns whether the links keep the order of frames and duplicate none.
    fn keeps_order(&self) -> bool {
        [&self.client_link, &self.server_link]
            .iter()
            .all(|link| link.reorder.is_never() && link.duplicate.is_never())
    }
}

/// Returns contents derived from a number: all zero for 0.
fn fill(number: u64, len: usize) -> Vec<u8> {
    if number == 0 {
        return vec![0; len];
    }
    let mut bytes = Vec::with_capacity(len + 8);
    let mut next = number;
    while bytes.len() < len {
        next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        bytes.extend((next ^ next >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns a number for the n-th write of a connection: never 0, and no two are equal.
fn unique(conn_id: u32, number: u64) -> u64 {
    (u64::from(conn_id) << 40 | (number + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

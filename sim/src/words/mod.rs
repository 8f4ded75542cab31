//! Clients that contend for words of remote memory, and what must hold of them whatever stands between them and the
//! memory servers. A switch that answers for a server is judged by what clients see; a plain bridge has to pass, too.
//!
//! Every connection keeps a number of requests outstanding, of all verbs: on words that all clients share, on memory of
//! its own, messages, and sections as Sherman has them (Wang et al., SIGMOD 2022): a lock is taken by `CmpSwap`, a page
//! read, written, and the lock given back right behind it, without waiting. What is checked:
//!
//! * the operations on each word can be explained by one order, with the memory in the end ([`linear`]), in which those of
//!   a connection keep theirs;
//! * no lock has two holders, and whoever gets it finds the page as the last holder wrote it;
//! * a connection reads from memory of its own what it wrote, and in the end it holds that;
//! * messages come once and in order, as they were sent;
//! * completions come once and in order; unless something crashes, none is an error.
//!
//! A connection that breaks leaves operations of which nobody knows whether they took effect; its client goes on with a
//! new one.

mod client;
mod cluster;
mod connect;
mod end;
pub mod linear;
mod plan;
mod section;
mod server;
mod truth;

pub use client::ClientApp;
pub use cluster::{Cluster, Sides, Totals, Wiring};
pub use plan::Verb;
pub use server::ServerApp;

use crate::Link;
use rnic::{AckPolicy, PathMtu, ReadyToSend};
use switch::{Nanos, Share};

/// The virtual address of a server's words, with the locks of its pages behind them
pub const TABLE_VA: u64 = 0x1000_0000_0000;
/// The virtual address of a server's pages, where they have a key of their own; behind the locks otherwise
pub const PAGES_VA: u64 = 0x2000_0000_0000;

/// What is to be run.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Config {
    /// For everything that is drawn
    pub seed: u64,
    /// Clients
    pub clients: u16,
    /// Memory servers
    pub servers: u16,
    /// Connections from each client to each server
    pub connections: u32,
    /// Operations of each connection, beside its sections
    pub operations: u32,
    /// Requests outstanding at once, beside those of a section
    pub depth: u32,
    /// READs and atomics outstanding at once
    pub max_rd_atomic: u8,
    /// Words of each server that all share
    pub words: u32,
    /// How much more some words are used than others: the exponent of Zipf's law; 0 for all alike
    pub zipf: f64,
    /// How often each verb is used, in the order of [`Verb::ALL`]
    pub mix: [u32; Verb::ALL.len()],
    /// Sections of each connection
    pub sections: u32,
    /// Pages of each server
    pub pages: u32,
    /// Bytes of a page
    pub page_size: u32,
    /// How often a section tries to get its lock
    pub tries: u32,
    /// The memory of a connection's own, and the longest message (bytes)
    pub max_size: u32,
    /// Path MTU
    pub mtu: PathMtu,
    /// Whether each connection is told keys of its own for words and pages
    pub own_keys: bool,
    /// Whether pages have another key than words, and lie elsewhere
    pub separate_keys: bool,
    /// Whether connections are made by the communication manager; by hand otherwise
    pub by_cm: bool,
    /// Whether all connections made by hand begin with the same PSN
    pub equal_psns: bool,
    /// Whether everything is IPv6
    pub v6: bool,
    /// ACK time-out: 4.096 us times two to this
    pub timeout: u8,
    /// [`ReadyToSend::NO_LIMIT`] for no limit
    pub retry_count: u8,
    /// Packets under way on a connection at most
    pub window: u32,
    /// When servers acknowledge
    pub ack: AckPolicy,
    /// The share of hosts whose NICs forget old READs and atomics, as soft-RoCE does
    pub forgetful: Share,
    /// Receive requests that a server has posted for each connection
    pub receives: u32,
    /// The time after which a receive request that was used is posted again, at most (microseconds)
    pub repost_us: u32,
    /// For how long the server posts no receive request again on the first connection, which has one to begin with
    pub starve: Option<Nanos>,
    /// When clients begin
    pub begin_at: Nanos,
    /// Connections that a switch has at each server at once
    pub lanes: usize,
    /// Whether connections may break: something crashes, or retries are limited
    pub may_fail: bool,
    /// How long it takes until a connection that broke is made anew
    pub reconnect_after: Nanos,
    /// Whether a server keeps its end of a connection that broke, if the client is still there
    pub linger: bool,
    /// How often a host's UDP source ports change, as a network's paths may
    pub rehashes: u32,
    /// How many connections lose their right to words; needs `may_fail`
    pub revocations: u32,
    /// For how long they may go on after that at most
    pub revoked_within: Nanos,
    /// Whether connections share what the switch has, so that what happens to one may end another
    pub shares_fate: bool,
    /// For how long a connection's operations may still be done when its server's queue pair is gone: what a switch has of
    /// them it may pass on
    pub outlives: Nanos,
    /// Packets of a host that has neither rights nor scruples
    pub lies: u32,
    /// Whether a server that restarts has what stood in its memory: its process began anew, or the memory is persistent
    pub keeps_memory: bool,
    /// Words at the end of those that clients use which the server's program writes, too, without the network
    pub local_words: u32,
    /// Servers that restart give their regions the keys that they had before
    pub keys_again: bool,
    /// Each client's link to the switch
    pub client_link: Link,
    /// Each server's
    pub server_link: Link,
    /// A bug that is planted in every NIC, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<rnic::Bug>,
}

impl Default for Config {
    /// Four clients at one server with fast links on which nothing bad happens.
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
            forgetful: Share::NEVER,
            receives: 8,
            repost_us: 0,
            starve: None,
            begin_at: Nanos::ZERO,
            lanes: 0,
            may_fail: false,
            reconnect_after: Nanos::from_micros(300),
            linger: false,
            rehashes: 0,
            revocations: 0,
            revoked_within: Nanos::ZERO,
            shares_fate: false,
            outlives: Nanos::ZERO,
            lies: 0,
            keeps_memory: false,
            local_words: 0,
            keys_again: false,
            client_link: Link::default(),
            server_link: Link::default(),
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

/// What a switch that asks a server for a connection of its own is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A queue pair as clients have it
    Good,
    /// A queue pair of another protection domain: no key is good there
    OtherDomain,
    /// A refusal
    Refused,
}

impl Lane {
    const ALL: [Self; 3] = [Self::Good, Self::OtherDomain, Self::Refused];

    /// What it writes into its REQ's private data
    pub const fn private_data(self) -> &'static [u8] {
        match self {
            Self::Good => b"lane: good",
            Self::OtherDomain => b"lane: other domain",
            Self::Refused => b"lane: refused",
        }
    }

    /// What a REQ with this private data asks for, if it is a switch's.
    fn asked_by(private_data: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| private_data.starts_with(lane.private_data()))
    }
}

/// The port of `rdma_cm` at which servers accept connections
pub const PORT: u16 = 9000;
/// The connection that is starved
const STARVED: u32 = 1;

impl Config {
    /// Bytes of a server's words and locks
    pub fn table_size(&self) -> usize {
        (self.words + self.pages) as usize * 8
    }

    /// Bytes of a server's pages
    pub fn pages_size(&self) -> usize {
        self.pages as usize * self.page_size as usize
    }

    /// Ports that a switch needs for all hosts
    pub fn ports(&self) -> u16 {
        self.clients + self.servers + u16::from(self.lies > 0)
    }

    /// Shortest time from when a connection is made in vain until it is made again: its retries, and a pause
    fn in_vain(&self) -> Nanos {
        let wait = 4096 << self.timeout;
        Nanos(wait * (u64::from(self.retry_count) + 1) + self.reconnect_after.0)
    }

    /// Whether the wires lose frames, damage them, change their order or have short queues: all of this costs retries.
    fn harms(&self) -> bool {
        let harms = |link: &Link| {
            link.queue < Link::default().queue
                || [link.loss, link.corrupt, link.reorder].iter().any(|share| !share.is_never())
        };
        harms(&self.client_link) || harms(&self.server_link)
    }

    /// Whether the wires keep the order of frames.
    fn keeps_order(&self) -> bool {
        [&self.client_link, &self.server_link]
            .iter()
            .all(|link| link.reorder.is_never() && link.duplicate.is_never())
    }
}

/// Bytes that a number stands for: all zero for 0.
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

/// A number for the n-th thing that a connection writes: no two are equal, and none is 0.
fn unique(line: u32, number: u64) -> u64 {
    (u64::from(line) << 40 | (number + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

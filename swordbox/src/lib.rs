//! Swordbox (Grant et al., "Swordbox: Accelerated Sharing of Disaggregated Memory"): a switch that resolves
//! contended atomics between clients and memory servers.
//!
//! [`Swordbox`] is a bridge that tracks the reliable connections that cross it. Operations on words that many
//! clients share are multiplexed onto one of the server's connections, the *shared QP*, so that the server
//! executes them in the order in which the switch forwarded them. An atomic whose result follows from that
//! order is forwarded as a WRITE of its result. [`Control`] is the control plane, which records translated
//! connections in a [`Journal`]. [`steering`] redirects stale requests to data structures.
//! docs/swordbox.md explains why clients cannot observe the difference.

#![forbid(unsafe_code)]
#![allow(clippy::similar_names, reason = "the names are the terms of this crate")]

mod address;
pub mod config;
mod connect;
mod connections;
pub mod control;
mod counters;
mod damaged;
mod ended;
mod event;
mod flow;
mod function;
mod handshakes;
mod headers;
mod held;
mod lines;
mod memory;
mod message;
mod op;
mod owners;
mod proof;
mod records;
mod reread;
mod shared_qps;
mod sketch;
mod source;
pub mod steering;
mod successor;

pub use config::{Config, Connection, FailedCas, Layers, Server, SwitchOwnedQps, WordTable};
pub use connect::ConnectCounters;
pub use control::{Control, Journal};
pub use counters::{Counters, Usage};
pub use event::{Command, Event, OpenSharedQp};
pub use function::Swordbox;
pub use memory::MemoryBounds;

/// Index of an entry of a table
type Id = u32;
/// Index that refers to no entry
const NONE: Id = Id::MAX;
/// Minimum path MTU in bytes
const MIN_PATH_MTU: u32 = 256;
/// Maximum number of times that a retransmission interval doubles
const MAX_BACKOFF_SHIFT: u8 = 6;

/// Bugs that tests plant to check that they are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A write that bypasses a word's shared QP does not invalidate the cached value
    StaleWord,
    /// Of the operations that a coalesced ACK covers, the first client gets no ACK
    LostAck,
    /// A retransmitted atomic is resolved a second time
    ResolvedTwice,
    /// A READ retransmitted by its client is forwarded with its old PSN
    OldRead,
    /// A packet with a different UDP source port is taken for a packet of a new connection
    NewPort,
    /// A right that was proven once never expires
    KeptRight,
    /// A client whose queue pair was lost in the server's restart uses a shared QP to the restarted server
    DeadClient,
    /// A cached word is kept when its shared QP ends or changes, although the server may have restarted
    KeptWord,
    /// A QP stays shared with an owner whose request does not complete while other clients wait
    StuckOwner,
    /// Middle and Last packets invalidate cached words only if they belong to the newest WRITE of their queue
    /// pair
    EarlierMessage,
    /// The cached state of a server's data structures is kept when the server restarts
    KeptStructure,
    /// The owner of a packet follows from a hash of its addresses, so several workers handle requests to a server
    WrongOwner,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 12] = [
        Self::StaleWord,
        Self::LostAck,
        Self::ResolvedTwice,
        Self::OldRead,
        Self::NewPort,
        Self::KeptRight,
        Self::DeadClient,
        Self::KeptWord,
        Self::StuckOwner,
        Self::EarlierMessage,
        Self::KeptStructure,
        Self::WrongOwner,
    ];
}

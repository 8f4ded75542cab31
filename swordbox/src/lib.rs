//! Swordbox (paper: Grant et al., "Swordbox: Accelerated Sharing of Disaggregated Memory"): a switch that sees every
//! request to a memory server in one order, and uses it.
//!
//! [`Swordbox`] is a bridge that tracks the connections that cross it. Operations on words that many clients share leave on
//! one of the server's connections, whichever they came on, so that the server executes them in the order in which they were
//! seen here; an atomic whose outcome follows from that order leaves as a WRITE of it. docs/swordbox.md says why no client
//! can tell the difference.

#![forbid(unsafe_code)]
#![allow(clippy::similar_names, reason = "lanes and lines are what this is about")]

mod answer;
#[cfg(test)]
mod bounds;
pub mod clients;
pub mod config;
mod connect;
pub mod control;
mod counters;
mod detour;
mod doubt;
mod flow;
mod foresee;
mod function;
mod guard;
mod headers;
mod held;
mod lane;
mod lines;
mod memory;
mod message;
mod op;
mod own;
mod pair;
mod proof;
mod records;
mod repeated;
mod request;
mod reread;
mod response;
mod salt;
mod share;
mod sketch;
mod source;
pub mod steering;
mod straight;
mod successor;
mod tend;
mod way;

pub use config::{Config, Connect, Connection, FailedCas, Layers, Server, Table};
pub use connect::ConnectCounters;
pub use control::{Control, Journal};
pub use counters::Counters;
pub use function::{Command, Event, Swordbox};
pub use memory::Memory;
pub use own::OpenLane;

/// A small number for what stands in a table
type Id = u32;
/// The number of nothing
const NONE: Id = Id::MAX;

/// Bugs that can be planted, to see whether tests find them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// What goes to a word on another way does not make its cached value doubtful
    StaleWord,
    /// Of the operations that a coalesced acknowledgement covers, the first is not told to its client
    LostAck,
    /// An atomic that its client repeats is decided anew
    DecidedAnew,
    /// A READ that its client repeats goes to the server under its old PSN
    OldRead,
    /// A packet from another UDP source port is taken for one of a new connection
    NewPort,
    /// A right that was proven once counts for ever
    KeptRight,
    /// A client whose queue pair was lost in the server's restart shares a lane to the restarted server
    DeadClient,
    /// A word's value is kept when its lane ends, and when it moves to another lane: the server may have restarted
    KeptWord,
    /// A lane stays with an owner whose request does not end while other clients wait for the lane
    StuckLane,
    /// Middle and Last packets invalidate cached words only if they belong to the newest WRITE of their queue pair
    EarlierMessage,
    /// What is known of a server's data structures is kept when the server restarts
    KeptStructure,
}

#[cfg(debug_assertions)]
impl Bug {
    /// Every bug.
    pub const ALL: [Self; 11] = [
        Self::StaleWord,
        Self::LostAck,
        Self::DecidedAnew,
        Self::OldRead,
        Self::NewPort,
        Self::KeptRight,
        Self::DeadClient,
        Self::KeptWord,
        Self::StuckLane,
        Self::EarlierMessage,
        Self::KeptStructure,
    ];
}

//! What a server is told, and what it tells.

use super::log::Layout;
use super::through::Through;
use core::net::IpAddr;
use rnic::{MemoryError, QpError};
use switch::Nanos;

/// What a server is told about itself and the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its number
    pub id: u8,
    /// The addresses of all servers, by their numbers
    pub servers: Vec<IpAddr>,
    /// Where they listen, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Their logs
    pub layout: Layout,
    /// The time between two heartbeats, and between two looks at the others'
    pub heartbeat: Nanos,
    /// Values that are proposed and not decided at once
    pub window: u64,
    /// How long a NIC waits for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// And how often it tries again
    pub retry_count: u8,
    /// The switch that replicates, if there is one
    pub through: Option<Through>,
    /// Names this life of the server: another number whenever it begins anew with empty memory (a random one will do)
    pub incarnation: u64,
}

impl Config {
    /// Servers that have to hold an entry beside the leader: f of 2f + 1
    pub fn quorum(&self) -> usize {
        self.servers.len() / 2
    }
}

/// What the application is told, in the order of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// A value is decided.
    Entry {
        /// Its place, counted from 0
        index: u64,
        /// What was proposed
        value: Vec<u8>,
    },
    /// This server lacked too much: its state is now what another one's was.
    Snapshot {
        /// Entries below are in it: the next one has this place.
        next: u64,
        /// What an application gave with [`Server::give_snapshot`]
        state: Vec<u8>,
    },
}

/// Why a value is not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another server leads, or none does yet
    #[error("this server does not lead")]
    NotLeader,
    /// As many as the window allows are under way
    #[error("too many values are under way")]
    Busy,
    /// Longer than an entry can be
    #[error("the value is too long")]
    TooLong,
}

/// Why a server does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No room for a queue
    #[error(transparent)]
    Queue(#[from] QpError),
    /// No room for memory
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

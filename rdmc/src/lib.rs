//! RDMC: large objects to many hosts, over RDMA unicast (Behrens et al., *RDMC: A Reliable RDMA Multicast for Large
//! Objects*, DSN 2018), and with a switch's help.
//!
//! An object is cut into blocks, and receivers relay: while a block comes in, another one goes out.
//!
//! * [`schedule`] says who sends which block to whom at which step: a pure function.
//! * A [`Node`] is a process on an [`rnic::Rnic`]. It creates groups with other nodes, sends, and closes them; it has no
//!   socket, thread or clock. docs/rdmc.md says what nodes tell each other.
//! * [`model`] says what transfers take that are too large to simulate.

#![forbid(unsafe_code)]

mod config;
pub mod cosmos;
pub mod delivery;
mod group;
mod mesh;
pub mod model;
mod node;
pub mod schedule;
mod through;
mod wire;

pub use config::{CallError, Config, Failure, GroupConfig, Memory, StartError};
pub use group::{IncomingMessage, MessageComplete};
pub use node::{Counters, Event, Node};
pub use p4ce::consensus::SwitchAddress;
pub use schedule::{Algorithm, Racks, Receive, Schedule, ScheduleError, Send, To};
pub use through::copied_at_once;

/// Bugs that can be planted, to see whether tests find them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Blocks are sent whether or not the receiver is ready
    Unready,
    /// Failures are not told to others
    NoRelay,
    /// The root closes a group without asking whether everybody has everything
    EarlyClose,
    /// The first block to come is taken for block 0
    WrongFirst,
    /// A relay is not waited for: a message is complete when its blocks are there
    NotPassedOn,
    /// A node that loses another one names itself
    WrongMember,
    /// A receiver that has accepted an offer does not look at the names of later ones
    HalfName,
    /// Receivers are not told of the switch that copies
    SwitchUntold,
    /// A root does not wait until segments are written
    Heedless,
}

#[cfg(debug_assertions)]
impl Bug {
    /// Every bug of groups.
    pub const ALL: [Self; 6] = [
        Self::Unready,
        Self::NoRelay,
        Self::EarlyClose,
        Self::WrongFirst,
        Self::NotPassedOn,
        Self::WrongMember,
    ];
    /// Every bug of deliveries.
    pub const DELIVERY: [Self; 3] = [Self::HalfName, Self::SwitchUntold, Self::Heedless];
}

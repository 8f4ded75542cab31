//! RDMC: reliable multicast of large objects over RDMA unicast (Behrens et al., *RDMC: A Reliable RDMA
//! Multicast for Large Objects*, DSN 2018), and with a switch that copies blocks.
//!
//! An object is cut into blocks, and receivers relay: a receiver sends one block on while the next one
//! arrives.
//!
//! * [`schedule`] computes which node sends which block to which node at which step. It is a pure function.
//! * A [`Node`] is an endpoint on an [`rnic::Rnic`]. It creates groups with other nodes, sends messages to
//!   them, and closes them. It has no socket, thread or clock. docs/rdmc.md describes the protocol between
//!   nodes.
//! * [`delivery`] sends an object of any length in segments, and goes on with the surviving receivers after a
//!   failure.
//! * [`model`] computes the duration of transfers that are too large to simulate packet by packet.

#![forbid(unsafe_code)]

mod config;
pub mod cosmos;
pub mod delivery;
mod group;
mod in_network;
mod mesh;
pub mod model;
mod node;
pub mod schedule;
mod wire;

pub use config::{CallError, Config, Failure, GroupConfig, MessageMemory, StartError};
pub use group::{IncomingMessage, MessageComplete};
pub use in_network::switch_fanout;
pub use node::{Counters, Event, Node};
pub use p4ce::SwitchAddress;
pub use schedule::{Algorithm, Racks, Receive, Schedule, ScheduleError, Send, To};

/// Bugs that can be planted, to check that tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A sender sends blocks without waiting for the receiver's ready word.
    IgnoresReadyWord,
    /// A member does not relay failures to the other members.
    NoRelay,
    /// The root closes a group without waiting for the members' `Received` messages.
    EarlyClose,
    /// A receiver stores the first block that arrives as block 0.
    WrongFirst,
    /// A relay completes a message when its blocks have arrived, although it has not sent all of them on.
    CompletesBeforeRelaying,
    /// A node that loses a peer reports itself as the failed member.
    WrongMember,
    /// A receiver that has accepted an offer ignores the name notes of later offers.
    IgnoresLaterNames,
    /// The root does not send receivers the note that names the switch.
    SwitchNoteOmitted,
    /// The root sends further segments without waiting until receivers have written the earlier ones.
    IgnoresWindow,
}

impl Bug {
    /// All bugs of groups.
    pub const ALL: [Self; 6] = [
        Self::IgnoresReadyWord,
        Self::NoRelay,
        Self::EarlyClose,
        Self::WrongFirst,
        Self::CompletesBeforeRelaying,
        Self::WrongMember,
    ];
    /// All bugs of deliveries.
    pub const DELIVERY: [Self; 3] = [Self::IgnoresLaterNames, Self::SwitchNoteOmitted, Self::IgnoresWindow];
}

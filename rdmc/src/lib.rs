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

mod bug;
mod config;
pub mod cosmos;
pub mod delivery;
mod depth;
mod group;
mod in_network;
mod mesh;
pub mod model;
mod node;
pub mod schedule;
mod wire;

pub use bug::Bug;
pub use config::{CallError, Config, Failure, GroupConfig, MessageMemory, StartError};
pub use group::{IncomingMessage, MessageComplete};
pub use in_network::switch_fanout;
pub use node::{Counters, Event, Node};
pub use p4ce::SwitchAddress;
pub use schedule::{Algorithm, Racks, Receive, Schedule, ScheduleError, Send, To};

//! Consensus on top of replicated writes, with Mu's protocol as P4CE uses it (P4CE, section III).
//!
//! Every server has a log in registered memory ([`log`]). The servers read each other's heartbeats
//! ([`detector`]), and the live server with the lowest number leads ([`Server`]). It obtains write permission
//! from a majority, brings their logs into agreement, and then writes each value once to each log: directly,
//! or once to all logs through a switch ([`SwitchAddress`]).
//!
//! An application creates a [`Server`], calls [`Server::start`] once, then [`Server::run`] after each event
//! of the NIC and at [`Server::next_timer`]. It proposes values with [`Server::propose`] and applies those
//! that [`Server::poll_decided`] returns.

#![forbid(unsafe_code)]

mod agreement;
mod config;
pub mod detector;
mod follower;
mod hello;
pub mod log;
mod resources;
mod server;

pub use config::Bug;
pub use config::{BootstrapError, Config, Decided, ProposeError, StartError, WaitReason};
pub use detector::Detector;
pub use log::{Entry, Layout, Term};
pub use p4ce::SwitchAddress;
pub use server::{Membership, Server, SnapshotError};

//! Connections of 1Pipe's management network: TCP between the controller and its nodes, which are processes,
//! representatives of switches, and operators.
//!
//! A [`Connection`] is a state machine without I/O: a handshake that names the protocol's version, the peer and
//! the topology, then frames of at most [`MAX_MESSAGE`] bytes. With a [`Secret`], each end proves that it has
//! the secret, and each frame has a tag over its direction, number and content, so that a frame that was
//! changed, repeated, reordered, reflected or taken from another connection ends the connection. Nothing is
//! encrypted. Without a secret, both ends have to be on the loopback interface.
//!
//! [`Client`] holds connections to all controllers, and [`Server`] those of all nodes, with one thread each.

#![forbid(unsafe_code)]

mod bug;
mod client;
mod clock;
mod connection;
mod frame;
mod hello;
mod mailbox;
mod poller;
mod queue;
mod reason;
mod secret;
mod server;
mod stream;

pub use bug::Bug;
pub use client::{CONNECT_TIME, Client, ClientConfig, ClientEvent};
pub use connection::{Connection, Event, Identity};
pub use hello::{Peer, VERSION};
pub use reason::Reason;
pub use secret::{Secret, SecretError};
pub use server::{ConnectionId, Counts, Server, ServerConfig, ServerEvent};

use switch::Nanos;

/// Length of the longest message, in bytes
pub const MAX_MESSAGE: usize = 64 << 10;
/// Bytes that may wait to be sent on a connection; one message more ends the connection
pub const MAX_QUEUED: usize = 2 << 20;
/// Time within which a handshake has to be complete
pub const HANDSHAKE_TIME: Nanos = Nanos::from_secs(2);
/// Each end sends a frame at least this often
pub const KEEP_ALIVE: Nanos = Nanos::from_millis(500);
/// A peer that has sent nothing for this time is dead
pub const DEAD_AFTER: Nanos = Nanos::from_secs(3);

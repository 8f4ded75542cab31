//! Consensus on top of replicated writes, with the protocol that the paper takes from Mu (III).
//!
//! Every server has a log in registered memory ([`log`]). They read each other's heartbeats ([`detector`]); the live one
//! with the lowest number leads ([`Server`]): it gets permission to write from a majority, brings their logs to agreement,
//! and from then on writes each value once to each log: by itself, or once for all through a switch ([`Through`]).

mod admit;
mod agreement;
mod config;
pub mod detector;
mod follower;
mod hello;
mod leader;
pub mod log;
mod server;
#[cfg(test)]
mod tests;
mod through;
mod watch;

pub use admit::SnapshotError;
#[cfg(debug_assertions)]
pub use config::Bug;
pub use config::{BootstrapError, Config, Decided, ProposeError, StartError, Waiting};
pub use detector::Detector;
pub use log::{Entry, Layout, Term};
pub use server::Server;
pub use through::Through;
pub use watch::Standing;

//! A server of a replicated service: `p4ce::consensus` on a host's NIC, an application whose state is a count and a
//! running hash, and a load that it proposes while it leads.

mod account;
mod replica;
#[cfg(test)]
mod tests;

pub(crate) use account::{Account, Way};
pub(crate) use replica::{Replica, Seen, State};

use crate::host::HostConfig;
use core::net::IpAddr;
use p4ce::Secret;
use p4ce::consensus::{Config, Layout, Through};
use switch::Nanos;

/// Times that a NIC sends again before it gives up
const RETRIES: u8 = 6;
/// Unit of a NIC's patience (IB 9.7.6.1.3)
const ACK_TIMEOUT_NS: u64 = 4096;

/// What a server is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsensusConfig {
    pub(crate) host: HostConfig,
    pub(crate) id: u8,
    /// By their numbers
    pub(crate) servers: Vec<IpAddr>,
    pub(crate) port: u16,
    pub(crate) switch: Option<Through>,
    /// What servers and switch share
    pub(crate) secret: Option<Secret>,
    pub(crate) heartbeat: Nanos,
    pub(crate) layout: Layout,
    pub(crate) window: u64,
    pub(crate) load: Option<Load>,
}

/// What a server proposes while it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Bytes of a value
    pub(crate) size: usize,
    /// Values a second; as many as the window allows if not said
    pub(crate) rate: Option<u64>,
}

impl ConsensusConfig {
    /// As the protocol wants it, for a life that has this name.
    pub(crate) fn server(&self, incarnation: u64) -> Config {
        // A NIC gives up when the others would, too: they take 14 heartbeats to think somebody dead, and it sends seven
        // times, once or twice a heartbeat apart.
        let units = self.heartbeat.0.div_ceil(ACK_TIMEOUT_NS).next_power_of_two();
        Config {
            id: self.id,
            servers: self.servers.clone(),
            port: self.port,
            layout: self.layout,
            heartbeat: self.heartbeat,
            window: self.window,
            ack_timeout: units.trailing_zeros().clamp(1, 31) as u8,
            retry_count: RETRIES,
            through: self.switch,
            incarnation,
            secret: self.secret.clone(),
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

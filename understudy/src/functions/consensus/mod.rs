//! A server of a replicated service (`[consensus]` beside `[nic]`): the crate `consensus` on a host's NIC, an
//! application whose state is a count and a running hash, and a load generator that proposes values while the
//! server leads.

mod config;
mod path_stats;
mod replica;
mod run;
mod summary;
#[cfg(test)]
mod tests;

pub(in crate::functions) use config::{is_given, read};
pub(crate) use path_stats::{PathStats, ReplicationPath};
pub(crate) use replica::{AppState, Replica, ReplicaStatus};

use crate::functions::function::{File, SwitchFunction};
use crate::functions::host::HostConfig;
use crate::functions::launch::{Closing, Launch};
use consensus::{Config, Layout, SwitchAddress};
use core::net::IpAddr;
use dataplane::config::Port;
use miette::Report;
use p4ce::Secret;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::Nanos;
use switch::metrics::{Group, Metrics as _};

/// The table `[consensus]`
pub(crate) const TABLE: &TableSpec = &config::Keys::TABLE;
/// Retransmissions before the NIC reports an error
const RETRY_COUNT: u8 = 6;
/// Unit of the local ACK timeout, in ns (IB 9.7.6.1.3)
const ACK_TIMEOUT_NS: u64 = 4096;

/// Configuration of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsensusConfig {
    pub(crate) host: HostConfig,
    pub(crate) id: u8,
    /// Addresses of all servers, indexed by server number
    pub(crate) servers: Vec<IpAddr>,
    pub(crate) port: u16,
    pub(crate) switch: Option<SwitchAddress>,
    /// Secret that the servers and the switch share
    pub(crate) secret: Option<Secret>,
    pub(crate) heartbeat: Nanos,
    pub(crate) layout: Layout,
    pub(crate) window: u64,
    pub(crate) load: Option<Load>,
}

/// Load that a server proposes while it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Size of a value, in bytes
    pub(crate) size: usize,
    /// Values per second; if `None`, as many as the window allows
    pub(crate) rate: Option<u64>,
}

impl ConsensusConfig {
    /// Returns the protocol's configuration for the incarnation numbered `incarnation`.
    pub(crate) fn protocol_config(&self, incarnation: u64) -> Config {
        // The NIC gives up at about the time at which the other servers declare this server dead: they wait
        // for 14 heartbeats, and the NIC transmits seven times, one to two heartbeats apart.
        let units = self.heartbeat.0.div_ceil(ACK_TIMEOUT_NS).next_power_of_two();
        Config {
            id: self.id,
            servers: self.servers.clone(),
            port: self.port,
            layout: self.layout,
            heartbeat: self.heartbeat,
            window: self.window,
            ack_timeout: units.trailing_zeros().clamp(1, 31) as u8,
            retry_count: RETRY_COUNT,
            switch: self.switch,
            incarnation,
            secret: self.secret.clone(),
            bug: None,
        }
    }
}

impl SwitchFunction for ConsensusConfig {
    const TABLE: &'static TableSpec = TABLE;
    const METRICS: &'static [Group] = &[rnic::Counters::GROUP, ReplicaStatus::GROUP];
    const LIVE: bool = true;

    /// Returns `None`: a server needs the host of `[nic]`.
    fn read(table: &Table<'_>, _ports: &Ports) -> Option<Self> {
        config::read_table(table, None)
    }

    fn check(&mut self, file: &File<'_>) {
        file.check_one_worker("[consensus] supports one worker");
    }

    fn summary(&self, _ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self)
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (
            crate::reference::Part::Whole(crate::reference::schema::<run::Printed<'_>>()),
            Some(crate::reference::schema::<run::Line>()),
        )
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

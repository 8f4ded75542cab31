//! A host on a port (`[nic]`): a software NIC as a switch function, and the services that use it.

mod config;
mod function;
mod memory;
mod perftest;
mod rping;
mod run;
mod service;
mod session;
pub(in crate::functions) mod summary;
mod tcp;
#[cfg(test)]
mod tests;
mod ucmatose;

pub(crate) use config::Keys;
pub(crate) use config::{AckKeys, read_ack};
pub(crate) use function::{Event, Host, HostStatus};
pub(crate) use perftest::{PerftestConfig, Test};
pub(in crate::functions) use run::counters_line;
pub(crate) use service::{Client, Kind, ServiceConfig, ServiceRow};
pub(crate) use tcp::MAX_ADDRESSES;

use crate::functions::function::{File, SwitchFunction};
use crate::functions::launch::{Closing, Launch};
use core::net::IpAddr;
use dataplane::config::Port;
use miette::Report;
use rnic::{AckPolicy, PathMtu};
use rocev2::ethernet::MacAddr;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::metrics::{Group, Metrics as _};

/// Configuration of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostConfig {
    /// MAC address; if `None`, that of the port
    pub(crate) mac: Option<MacAddr>,
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) gateways: Vec<IpAddr>,
    pub(crate) vlan: Option<u16>,
    /// Largest path MTU of the host's connections
    pub(crate) mtu: PathMtu,
    pub(crate) window: u32,
    pub(crate) ack: AckPolicy,
    pub(crate) credits: bool,
    pub(crate) max_qps: usize,
    /// Seed for first PSNs, communication identifiers and the like. If `None`, it is random, because two runs
    /// must not use the same identifiers for different connections.
    pub(crate) seed: Option<u64>,
    pub(crate) services: Vec<ServiceConfig>,
    pub(crate) perftests: Vec<PerftestConfig>,
}

impl HostConfig {
    /// Returns the configuration of a NIC on a port with this MAC address.
    pub(crate) fn nic(&self, port_mac: [u8; 6]) -> rnic::Config {
        let interface = rnic::Interface {
            mac: self.mac.unwrap_or(MacAddr(port_mac)),
            addresses: self.addresses.clone(),
            gateways: self.gateways.clone(),
            vlan: self.vlan,
            neighbours: Vec::new(),
        };
        rnic::Config {
            max_qps: self.max_qps,
            max_regions: 4 * self.max_qps,
            mtu: self.mtu,
            window: self.window,
            ack: self.ack,
            credits: self.credits,
            seed: self.seed.unwrap_or_else(crate::system::random_u64),
            ..rnic::Config::new(interface)
        }
    }
}

impl SwitchFunction for HostConfig {
    const TABLE: &'static TableSpec = &Keys::TABLE;
    const METRICS: &'static [Group] = &[rnic::Counters::GROUP, HostStatus::GROUP, ServiceRow::GROUP];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        file.check_one_worker("a host supports one worker");
    }

    fn summary(&self, _ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self)
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (crate::reference::Part::Whole(crate::reference::schema::<run::Printed<'_>>()), None)
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

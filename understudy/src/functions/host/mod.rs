//! A host on a port (`[nic]`): a software NIC as a switch function, and the services that use it.

mod config;
mod control;
mod function;
mod memory;
mod perftest;
mod rping;
mod run;
mod service;
mod session;
mod status;
pub(in crate::functions) mod summary;
mod tcp;
#[cfg(test)]
mod tests;
mod ucmatose;

pub(crate) use config::Keys;
pub(crate) use config::{AckKeys, read_ack};
pub(crate) use control::HostControl;
pub(crate) use function::{Event, Host};
pub(crate) use perftest::{PerftestConfig, Test};
pub(in crate::functions) use run::counters_line;
pub(crate) use service::{Client, Kind, ServiceConfig, ServiceRow};
pub(crate) use status::HostStatus;
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
use switch::Rng;
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
    /// Workers, each with a part of the host's NIC
    pub(crate) workers: usize,
}

impl HostConfig {
    /// Returns a worker's part of the host: all servers, and its share of the clients' connections. `seed` is that of the
    /// host.
    fn part(&self, worker: usize, seed: u64) -> Self {
        let mut part = self.clone();
        part.seed = Some(if self.workers == 1 { seed } else { Rng::stream(seed, worker as u64).bits() });
        for (number, service) in part.services.iter_mut().enumerate() {
            if let Some(client) = &mut service.client {
                // Clients begin at different workers, so that those with one connection are not all at the same.
                let position = (worker + self.workers - number % self.workers) % self.workers;
                *client = client.part(position as u32, self.workers as u32);
            }
        }
        part
    }

    /// Returns the function of each worker, on a port with this MAC address.
    pub(crate) fn functions(&self, port_mac: [u8; 6]) -> Result<Vec<Host>, String> {
        let seed = self.seed.unwrap_or_else(crate::system::random_u64);
        (0..self.workers).map(|worker| Host::new(&self.part(worker, seed), worker, port_mac)).collect()
    }

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
    const HAS_OWNERS: bool = true;
    const METRICS: &'static [Group] = &[rnic::Counters::GROUP, HostStatus::GROUP, ServiceRow::GROUP];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        self.workers = file.runtime.cpus.len();
        config::check_workers(self, file);
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

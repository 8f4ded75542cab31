//! Wires, a bridge or a router (`[forward]`).

pub(in crate::functions) mod config;
mod run;
pub(in crate::functions) mod summary;

use crate::functions::function::SwitchFunction;
use crate::functions::launch::{Closing, Launch};
use crate::functions::tunnel::types::InnerFunction;
use dataplane::config::Port;
use miette::Report;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::forward::Config;
use switch::forward::counters::RxCounters;
use switch::forward::health::Health;
use switch::metrics::{Group, Metrics as _};

impl SwitchFunction for Config {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const METRICS: &'static [Group] = &[RxCounters::GROUP, Health::GROUP];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::forwarding(table, ports)
    }

    fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self, ports)
    }

    fn behind_tunnels(&self) -> Option<InnerFunction> {
        let router_mac = config::router_mac(&self.mode);
        Some(InnerFunction { router_mac, mac: router_mac })
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (crate::reference::Part::Forwarding, None)
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

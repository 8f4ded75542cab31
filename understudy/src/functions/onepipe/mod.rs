//! Switch that keeps 1Pipe's barriers, and a bridge (`[onepipe]`).

pub(crate) mod config;
pub(crate) mod controller;
mod keeper;
mod report;
mod run;
mod summary;

pub(crate) use config::OnePipeConfig;

use crate::functions::forward::config::router_mac;
use crate::functions::function::{File, SwitchFunction};
use crate::functions::launch::{Closing, Launch};
use crate::functions::tunnel;
use crate::functions::tunnel::types::InnerFunction;
use dataplane::config::Port;
use miette::Report;
use representative::{ConfigError, Counters, Refusal};
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::forward::counters::RxCounters;
use switch::forward::health::Health;
use switch::metrics::{Group, Metrics as _};

impl SwitchFunction for OnePipeConfig {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const METRICS: &'static [Group] = &[
        RxCounters::GROUP,
        Health::GROUP,
        Counters::GROUP,
        report::LagCounters::GROUP,
        Refusal::GROUP,
        report::BARRIERS,
        report::CONTROLLER,
    ];
    const LIVE: bool = true;

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        self.controller = controller::read_optional(file, &mut self.switch, &self.names);
        self.workers = file.runtime.cpus.len();
        let with = match self.switch.check_several_workers() {
            Err(ConfigError::HostOnWorkers) => {
                "`incarnation = \"host\"`: one process represents a switch on a host"
            }
            Err(ConfigError::ControllerOnWorkers) => "[controller]: one worker has all commit registers",
            Err(ConfigError::ClockBeaconsOnWorkers) => {
                "`clock_from = \"beacons\"`: one worker measures all links"
            }
            _ if file.root.has(tunnel::TABLE) => {
                "[tunnel]: barriers are written before packets are encapsulated"
            }
            _ => return,
        };
        file.check_one_worker(&format!("[onepipe] supports one worker with {with}"));
    }

    fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self, ports)
    }

    fn behind_tunnels(&self) -> Option<InnerFunction> {
        let router_mac = router_mac(&self.switch.forward.mode);
        Some(InnerFunction { router_mac, mac: router_mac.or(self.mac) })
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (
            crate::reference::Part::Section(crate::reference::schema::<report::OnePipeReport>()),
            Some(crate::reference::schema::<report::LiveLine>()),
        )
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

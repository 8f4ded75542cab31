//! Switch that replicates writes, and a bridge (`[p4ce]`).

pub(in crate::functions) mod config;
mod report;
mod run;
mod summary;

pub(crate) use config::P4ceConfig;
pub(crate) use run::load;

use crate::functions::function::{File, SwitchFunction};
use crate::functions::launch::{Closing, Launch};
use ::p4ce::{ControlCounters, Counters};
use dataplane::config::Port;
use miette::Report;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::forward::counters::RxCounters;
use switch::forward::health::Health;
use switch::metrics::{Group, Metrics as _};

impl SwitchFunction for P4ceConfig {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const HAS_OWNERS: bool = true;
    const METRICS: &'static [Group] = &[
        RxCounters::GROUP,
        Health::GROUP,
        ControlCounters::GROUP,
        Counters::GROUP,
        Group::of_function(&[&[run::OPEN_GROUPS]]),
        run::GROUPS,
    ];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        Some(config::read(table, ports))
    }

    fn check(&mut self, file: &File<'_>) {
        self.workers = file.runtime.cpus.len();
    }

    fn summary(&self, _ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self)
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (crate::reference::Part::Section(crate::reference::schema::<report::P4ceReport>()), None)
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

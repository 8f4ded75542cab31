//! Packet generator (`[pktgen]`).

mod config;
mod hgrm;
pub(crate) mod invalid;
mod rates;
mod report;
mod run;
mod summary;

use crate::functions::function::{File, SwitchFunction};
use crate::functions::launch::{Closing, Launch};
use dataplane::config::Port;
use miette::Report;
use pktgen::counters::StreamCounters;
use pktgen::{Counters, Profile};
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::metrics::{Group, Metrics as _};

impl SwitchFunction for Profile {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const METRICS: &'static [Group] = &[Counters::GROUP, StreamCounters::GROUP];
    const LIVE: bool = true;
    const HAS_OWNERS: bool = true;

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        config::check_workers(self, file);
        let ends = "the run ends by `duration_s`, or by `packets` of each stream";
        file.runtime.reject_stop_when_idle("[pktgen]", ends, file.root.problems());
    }

    fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self, ports)
    }

    fn notes(&self, workers: usize) -> Vec<String> {
        summary::notes(self, workers)
    }

    fn memory(&self) -> String {
        summary::state(self)
    }

    fn end(&self) -> Option<&'static str> {
        Some("when all packets are sent and received")
    }

    fn run(&self, launch: Launch<'_, Self>) -> Result<Closing, Report> {
        run::run(self, launch)
    }
}

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
use crate::observe::steer::{Change, RatesRequest, RatesState, Steering};
use dataplane::config::Port;
use miette::Report;
use pktgen::counters::StreamCounters;
use pktgen::{Counters, Profile, Rate};
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::metrics::{Group, Metrics as _};

impl SwitchFunction for Profile {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const METRICS: &'static [Group] = &[Counters::GROUP, StreamCounters::GROUP];
    const LIVE: bool = true;
    const HAS_OWNERS: bool = true;
    const CHANGEABLE: &'static [&'static str] = &["pktgen.stream.rate"];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        config::check_workers(self, file);
        let ends = "the run ends by `duration_s`, or by `packets` of each stream";
        file.runtime.reject_stop_when_idle("[pktgen]", ends, file.root.problems());
    }

    /// Rates change. A ramp, which a request cannot state, is left as it is.
    fn follow(&mut self, newer: &Self, _ports: &[Port]) -> Option<Change> {
        let pairs = self.streams.iter_mut().zip(&newer.streams);
        let changed = pairs.filter(|(own, newer)| {
            own.name == newer.name && own.rate != newer.rate && !matches!(newer.rate, Rate::Ramp { .. })
        });
        let rates: Vec<_> = changed
            .map(|(own, newer)| {
                own.rate = newer.rate;
                (Some(own.name.clone()), rates::text(own.rate))
            })
            .collect();
        let describe = |state: &RatesState| format!("rates {}", state.text());
        (!rates.is_empty())
            .then(|| Change::new(|response| Steering::Rates(RatesRequest::Set { rates }, response), describe))
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

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (
            crate::reference::Part::Whole(crate::reference::schema::<report::PktgenReport>()),
            Some(crate::reference::schema::<run::LiveLine>()),
        )
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch)
    }
}

//! Wires with injected faults (`[impair]`).

mod config;
mod control;
mod report;
mod rules;
mod run;
mod summary;

use crate::functions::function::SwitchFunction;
use crate::functions::launch::{Closing, Launch};
use crate::observe::steer::{Change, RulesRequest, RulesState, Steering};
use dataplane::config::Port;
use miette::Report;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::forward::counters::RxCounters;
use switch::forward::health::Health;
use switch::impair::Config;
use switch::impair::Counters;
use switch::impair::counters::RuleCounters;
use switch::metrics::{Group, Metrics as _};

impl SwitchFunction for Config {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const METRICS: &'static [Group] =
        &[RxCounters::GROUP, Health::GROUP, Counters::GROUP, RuleCounters::GROUP];
    const CHANGEABLE: &'static [&'static str] = &["impair.rule"];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn follow(&mut self, newer: &Self, ports: &[Port]) -> Option<Change> {
        if self.rules == newer.rules {
            return None;
        }
        self.rules.clone_from(&newer.rules);
        let text = rules::text(&self.rules, ports);
        let request = RulesRequest::Apply { origin: "the rules".into(), text };
        let describe = |state: &RulesState| format!("rules {}", state.names());
        Some(Change::new(|response| Steering::Rules(request, response), describe))
    }

    fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self, ports)
    }

    fn notes(&self, workers: usize) -> Vec<String> {
        summary::notes(self, workers)
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (crate::reference::Part::Section(crate::reference::schema::<report::ImpairReport>()), None)
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

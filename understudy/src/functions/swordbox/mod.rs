//! Switch that resolves atomics, and a bridge (`[swordbox]`).

mod config;
mod report;
mod run;
mod summary;

pub(crate) use config::SwordboxConfig;

use crate::functions::function::{File, SwitchFunction};
use crate::functions::launch::{Closing, Launch};
use crate::observe::steer::{Change, Steering};
use dataplane::config::Port;
use miette::Report;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::tree::Table;
use switch::forward::counters::RxCounters;
use switch::forward::health::Health;
use switch::metrics::{Group, Metrics as _};
use swordbox::{ConnectCounters, Counters, Usage};

impl SwitchFunction for SwordboxConfig {
    const TABLE: &'static TableSpec = &config::Keys::TABLE;
    const HAS_OWNERS: bool = true;
    const RELOADS: bool = true;
    const CHANGEABLE: &'static [&'static str] = &["swordbox.layers"];
    const METRICS: &'static [Group] = &[
        RxCounters::GROUP,
        Health::GROUP,
        Counters::GROUP,
        ConnectCounters::GROUP,
        run::JournalCounters::GROUP,
        Usage::GROUP,
    ];

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        config::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        self.workers = file.runtime.cpus.len();
        self.journal = self.journal.take().map(|journal| file.folder.join(journal));
        if let Some(journal) = &self.journal {
            config::check_journal_folder(journal, file.root);
        }
    }

    fn follow(&mut self, newer: &Self, _ports: &[Port]) -> Option<Change> {
        let layers = newer.switch.layers;
        let before = core::mem::replace(&mut self.switch.layers, layers);
        let describe = |layers: &_| format!("layers {}", run::layers_text(*layers));
        (layers != before).then(|| Change::new(|response| Steering::Layers(layers, response), describe))
    }

    fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self, ports)
    }

    fn notes(&self, _workers: usize) -> Vec<String> {
        summary::notes(self)
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (crate::reference::Part::Section(crate::reference::schema::<report::SwordboxReport>()), None)
    }

    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
        run::run(self, launch).map(Into::into)
    }
}

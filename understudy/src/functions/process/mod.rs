//! 1Pipe process (`[process]`), which `understudy process` runs.

mod summary;

use crate::functions::function::{File, SwitchFunction};
use crate::functions::launch::{Closing, Launch};
use crate::observe;
use dataplane::config::Port;
use miette::Report;
use onepipe_host::Settings;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::Table;
use switch::metrics::Group;

impl SwitchFunction for Settings {
    const TABLE: &'static TableSpec = onepipe_host::file::TABLE;
    const METRICS: &'static [Group] = &[];
    const COMMAND: &'static str = "process";

    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self> {
        onepipe_host::file::read(table, ports)
    }

    fn check(&mut self, file: &File<'_>) {
        self.read_controller(file.root, file.folder);
        onepipe_host::file::check_runtime(file.runtime, file.root.problems());
        if let Some(given) = file.root.header_span(&observe::Keys::TABLE) {
            let problem = Problem::at(given, "[observe] is not valid beside [process]").label("no observers");
            let help = "remove it: `understudy process` has no observers, only `understudy run` has";
            file.root.problems().add(problem.help(help));
        }
    }

    fn summary(&self, _ports: &[Port]) -> Vec<(&'static str, String)> {
        summary::lines(self)
    }

    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>) {
        (crate::reference::Part::Whole(crate::reference::schema::<crate::process::ProcessReport<'_>>()), None)
    }

    fn run(&self, _launch: Launch<'_>) -> Result<Closing, Report> {
        unreachable!("`run` rejects a function of another command")
    }
}

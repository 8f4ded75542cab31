//! What the program needs to know of a switch function, so that a file can name it and commands can describe
//! and run it.

use super::launch::{Closing, Launch};
use super::tunnel::types::InnerFunction;
use crate::observe::steer::Change;
use dataplane::config::Port;
use miette::Report;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::runtime::Runtime;
use settings::tree::Table;
use std::path::Path;
use switch::metrics::Group;

/// Configuration of a switch function, and all that depends on which function it is.
pub(crate) trait SwitchFunction: Sized {
    /// Table that configures the function
    const TABLE: &'static TableSpec;
    /// Name of the table
    const KEY: &'static str = Self::TABLE.key();
    /// Command that runs the function
    const COMMAND: &'static str = "run";
    /// Whether `--live` makes the function print lines during the run
    const LIVE: bool = false;

    /// Whether each frame belongs to one worker, so that a worker without a receive queue has work
    const HAS_OWNERS: bool = false;

    /// Whether SIGHUP makes the program read the configuration again, instead of ending the run, in a terminal as well
    const RELOADS: bool = false;
    /// Keys that can change in a run, as in `impair.rule`
    const CHANGEABLE: &'static [&'static str] = &[];

    /// Metrics of the function, for the reference page
    #[cfg_attr(not(test), expect(dead_code, reason = "a test writes the page"))]
    const METRICS: &'static [Group];

    /// Reads the function's table. Adds each problem to those of the table, and returns `None` if the
    /// configuration is not complete.
    fn read(table: &Table<'_>, ports: &Ports) -> Option<Self>;

    /// Checks what the rest of the file sets, and makes paths relative to the file's folder.
    fn check(&mut self, _file: &File<'_>) {}

    /// Returns the lines with which `check` describes the function: a key and a value each. `ports` are those
    /// of the file.
    fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)>;

    /// Returns `check`'s notes about valid settings that may not be intended. `workers` is their number.
    fn notes(&self, _workers: usize) -> Vec<String> {
        Vec::new()
    }

    /// Describes memory that the function needs beside packet buffers, to be added to a sentence of `check`.
    fn memory(&self) -> String {
        String::new()
    }

    /// Describes when the run ends, if the function decides that.
    fn end(&self) -> Option<&'static str> {
        None
    }

    /// Makes what can change in a run as it is in `newer`. Returns the request that changes the running function so, if
    /// that differed.
    fn follow(&mut self, _newer: &Self, _ports: &[Port]) -> Option<Change> {
        None
    }

    /// Returns what `[tunnel]` needs to know of the function behind the tunnels, if tunnels can end in front
    /// of it.
    fn behind_tunnels(&self) -> Option<InnerFunction> {
        None
    }

    /// Returns the form of the function's part of the closing report, and of the lines of `--live`, for the
    /// reference page.
    #[cfg(test)]
    fn json() -> (crate::reference::Part, Option<schemars::Schema>);

    /// Builds the function of each worker and the control plane, runs them, and returns the closing report.
    /// Calls [`Launch::start`] after everything that may fail without ports.
    fn run(&self, launch: Launch<'_>) -> Result<Closing, Report>;
}

/// The rest of a file, for checks against a function's own table.
pub(crate) struct File<'a> {
    pub(crate) root: &'a Table<'a>,
    /// Contents of `[runtime]`
    pub(crate) runtime: &'a Runtime,
    pub(crate) ports: &'a Ports,
    /// Folder of the file, in which its relative paths begin
    pub(crate) folder: &'a Path,
}

impl File<'_> {
    /// Reports a file with more than one worker. `why` is the reason for the limit.
    pub(crate) fn check_one_worker(&self, why: &str) {
        self.runtime.check_one_worker(why, self.root.problems());
    }
}

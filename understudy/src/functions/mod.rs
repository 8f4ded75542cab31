//! Switch functions that `understudy` runs: one folder each, with the reader of its table, its summary for
//! `check`, its part of `run`, and its closing report.
//!
//! A function is a type that implements [`SwitchFunction`]. Its folder and its line in the list below are all
//! that the rest of the program needs.

mod forward;
mod function;
mod impair;
mod launch;
mod ports;
mod report;

pub(crate) mod consensus;
pub(crate) mod host;
pub(crate) mod onepipe;
pub(crate) mod p4ce;
pub(crate) mod pktgen;
pub(crate) mod process;
pub(crate) mod swordbox;
pub(crate) mod tunnel;

pub(crate) use function::File;
pub(crate) use launch::{Closing, Launch, Options, Versions};

use crate::observe::steer::Change;
use core::ops::Range;
use dataplane::config::Port;
use function::SwitchFunction;
use miette::Report;
use settings::declare::TableSpec;
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::Table;
use settings::words;
use tunnel::types::InnerFunction;

macro_rules! registry {
    (
        selected by their tables { $($own:ident($own_config:ty),)* }
        selected beside another { $($beside:ident($beside_config:ty),)* }
    ) => {
        registry!(@all $($own($own_config),)* $($beside($beside_config),)*);

        /// Functions that a table of their own selects, in the order in which messages list them.
        pub(crate) const FUNCTIONS: &[FunctionTable] = &[$(FunctionTable {
            spec: <$own_config as SwitchFunction>::TABLE,
            read: |table, ports| <$own_config as SwitchFunction>::read(table, ports).map(FunctionConfig::$own),
        },)*];
    };
    (@all $($variant:ident($config:ty),)*) => {
        /// Switch function and its configuration.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum FunctionConfig {
            $($variant($config),)*
        }

        /// Evaluates an expression with the configuration of a function, whichever it is.
        macro_rules! with_config {
            ($function:expr, $name:ident => $value:expr) => {
                match $function {
                    $(FunctionConfig::$variant($name) => $value,)*
                }
            };
        }

        impl FunctionConfig {
            /// Runs the function, and returns its closing report.
            pub(crate) fn run(&self, launch: Launch<'_>) -> Result<Closing, Report> {
                with_config!(self, config => SwitchFunction::run(config, launch))
            }

            /// Makes what can change in a run as it is in `newer`, if that is for the same function. Returns the request
            /// that changes the running function so, if that differed.
            pub(crate) fn follow(&mut self, newer: &Self, ports: &[Port]) -> Option<Change> {
                match (self, newer) {
                    $((Self::$variant(config), Self::$variant(newer)) => config.follow(newer, ports),)*
                    _ => None,
                }
            }
        }

        /// Returns the tables of the functions, and their metrics.
        #[cfg(test)]
        pub(crate) fn metrics() -> impl Iterator<Item = (&'static str, &'static [switch::metrics::Group])> {
            [$((<$config as SwitchFunction>::KEY, <$config as SwitchFunction>::METRICS)),*].into_iter()
        }

        /// Returns the tables of the functions, and the forms of their closing reports and lines of `--live`.
        #[cfg(test)]
        pub(crate) fn json() -> impl Iterator<Item = (&'static str, (crate::reference::Part, Option<schemars::Schema>))> {
            [$((<$config as SwitchFunction>::KEY, <$config as SwitchFunction>::json())),*].into_iter()
        }

        /// Returns the tables of the functions that print lines with `--live`.
        pub(crate) fn live_tables() -> impl Iterator<Item = &'static str> {
            let all = [$((<$config as SwitchFunction>::KEY, <$config as SwitchFunction>::LIVE)),*];
            all.into_iter().filter(|(_, live)| *live).map(|(key, _)| key)
        }
    };
}

registry! {
    selected by their tables {
        Forward(switch::forward::Config),
        Impair(switch::impair::Config),
        Nic(host::HostConfig),
        P4ce(p4ce::P4ceConfig),
        Swordbox(swordbox::SwordboxConfig),
        OnePipe(onepipe::OnePipeConfig),
        Process(::onepipe_host::Settings),
        Pktgen(::pktgen::Profile),
    }
    selected beside another {
        Consensus(consensus::ConsensusConfig),
    }
}

/// Returns the form of the closing report of functions that forward frames.
#[cfg(test)]
pub(crate) fn report_json() -> schemars::Schema {
    crate::reference::schema::<report::Report>()
}

impl FunctionConfig {
    /// Returns the name of the table that configures the function.
    pub(crate) const fn name(&self) -> &'static str {
        const fn key<F: SwitchFunction>(_: &F) -> &'static str {
            F::KEY
        }
        with_config!(self, config => key(config))
    }

    /// Returns the table that configures the function.
    pub(crate) const fn table(&self) -> &'static TableSpec {
        const fn table<F: SwitchFunction>(_: &F) -> &'static TableSpec {
            F::TABLE
        }
        with_config!(self, config => table(config))
    }

    /// Returns the command that runs the function.
    pub(crate) const fn command(&self) -> &'static str {
        const fn command<F: SwitchFunction>(_: &F) -> &'static str {
            F::COMMAND
        }
        with_config!(self, config => command(config))
    }

    /// Returns whether SIGHUP makes the program read the configuration again, instead of ending the run.
    pub(crate) const fn reloads(&self) -> bool {
        const fn reloads<F: SwitchFunction>(_: &F) -> bool {
            F::RELOADS
        }
        with_config!(self, config => reloads(config))
    }

    /// Returns the keys that can change in a run.
    pub(crate) const fn changeable(&self) -> &'static [&'static str] {
        const fn keys<F: SwitchFunction>(_: &F) -> &'static [&'static str] {
            F::CHANGEABLE
        }
        with_config!(self, config => keys(config))
    }

    /// Checks what the rest of the file sets, and makes paths relative to the file's folder.
    pub(crate) fn check(&mut self, file: &File<'_>) {
        with_config!(self, config => SwitchFunction::check(config, file));
    }

    /// Returns the lines with which `check` describes the function: a key and a value each.
    pub(crate) fn summary(&self, ports: &[Port]) -> Vec<(&'static str, String)> {
        with_config!(self, config => SwitchFunction::summary(config, ports))
    }

    /// Returns whether each frame belongs to one worker.
    pub(crate) fn has_owners(&self) -> bool {
        fn of<C: SwitchFunction>(_config: &C) -> bool {
            C::HAS_OWNERS
        }
        with_config!(self, config => of(config))
    }

    /// Returns `check`'s notes about valid settings that may not be intended.
    pub(crate) fn notes(&self, workers: usize) -> Vec<String> {
        with_config!(self, config => SwitchFunction::notes(config, workers))
    }

    /// Describes memory that the function needs beside packet buffers.
    pub(crate) fn memory(&self) -> String {
        with_config!(self, config => SwitchFunction::memory(config))
    }

    /// Describes when the run ends, if the function decides that.
    pub(crate) fn end(&self) -> Option<&'static str> {
        with_config!(self, config => SwitchFunction::end(config))
    }

    /// Returns what `[tunnel]` needs to know of the function, if tunnels can end in front of it.
    pub(crate) fn behind_tunnels(&self) -> Option<InnerFunction> {
        with_config!(self, config => SwitchFunction::behind_tunnels(config))
    }
}

/// Table that configures a function.
#[derive(Clone, Copy)]
pub(crate) struct FunctionTable {
    pub(crate) spec: &'static TableSpec,
    pub(crate) read: fn(&Table<'_>, &Ports) -> Option<FunctionConfig>,
}

/// Reads the function, and `[consensus]` if the file has it beside `[nic]`.
pub(crate) fn read(root: &Table<'_>, ports: &Ports) -> Option<FunctionConfig> {
    let function = read_one_of(FUNCTIONS, root, ports);
    if !consensus::is_given(root) {
        return function;
    }
    let host = match function {
        Some(FunctionConfig::Nic(host)) => Some(host),
        _ => None,
    };
    consensus::read(root, host).map(FunctionConfig::Consensus)
}

/// Reads the function. The file has to have exactly one of `functions`.
pub(crate) fn read_one_of(
    functions: &[FunctionTable],
    root: &Table<'_>,
    ports: &Ports,
) -> Option<FunctionConfig> {
    let problems = root.problems();
    let mut first: Option<Range<usize>> = None;
    let mut found = None;
    for FunctionTable { spec, read } in functions {
        let Some(given) = root.header_span(spec) else {
            problems.add_absent(spec);
            continue;
        };
        if let Some(first) = &first {
            let problem = Problem::at(given.clone(), "the file has two functions").label("the second");
            problems.add(
                problem
                    .also(first.clone(), "the first")
                    .help("keep one, and run another instance for the other"),
            );
        }
        first = first.or(Some(given));
        if let Some(table) = root.section(spec) {
            found = read(&table, ports);
            table.finish();
        }
    }
    // An unknown table, which is reported anyway, may be a function whose name is misspelt.
    if first.is_none() && !root.has_unknown_tables() {
        let problem = Problem::of_file("no table defines what happens to frames");
        let tables: Vec<_> = functions.iter().map(|table| table.spec.header).collect();
        problems.add(problem.help(format!(
            "add a function, such as\n\n{}\n\nit can be {}; configs/ has an example of each",
            forward::config::example(ports),
            words::one_of(&tables)
        )));
    }
    found
}

//! Reads configuration files: TOML in; plain values of `dataplane` and `switch` out, or all problems of the
//! file.
//!
//! A file has ports (`[[port]]`) and one function, which is a table named after it (`functions`). `[consensus]`
//! may stand beside `[nic]`, and `[tunnel]` beside `[forward]` or `[onepipe]`. `[runtime]` and `[observe]`
//! change the defaults.

mod controller;
mod rfc2544;
mod scenario;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod topology;

pub(crate) use settings::{Finding, Report};

pub(crate) use controller::{ControllerConfig, StoreConfig};
pub(crate) use rfc2544::{Rfc2544Config, Traffic};
pub(crate) use source::Source;
pub(crate) use topology::{Controller, Network, System};

use crate::etcd::Address;
use crate::functions::tunnel::{self, TunnelConfig};
use crate::functions::{self, File, FunctionConfig};
use crate::observe::{self, ObserveConfig, Target};
use core::time::Duration;
use settings::declare::TableSpec;
use settings::file::{parsed, text_of};
use settings::report::Problem;
use settings::tree::{Problems, Table};
// Modules that the readers of tables import as `super::...`
use settings::{Dpdk, Machine, port, report, tree, words};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// The table `[rfc2544]`
pub(crate) const RFC2544: &TableSpec = &rfc2544::Keys::TABLE;
/// Tables of a scenario
#[cfg(test)]
pub(crate) const SCENARIO: [&TableSpec; 7] = [
    &scenario::Keys::TABLE,
    &scenario::HostKeys::TABLE,
    &scenario::SwitchKeys::TABLE,
    &scenario::LinkKeys::TABLE,
    &scenario::work::VerbsKeys::TABLE,
    &scenario::work::GroupsKeys::TABLE,
    &scenario::fault::Keys::TABLE,
];
/// Tables of a topology
#[cfg(test)]
pub(crate) const TOPOLOGY: [&TableSpec; 5] = [
    &topology::Keys::TABLE,
    &topology::SwitchKeys::TABLE,
    &topology::HostKeys::TABLE,
    &topology::LinkKeys::TABLE,
    &topology::ControllerKeys::TABLE,
];

/// Tables of a controller
#[cfg(test)]
pub(crate) const CONTROLLER: [&TableSpec; 1] = [&controller::Keys::TABLE];

/// Exit status of a program whose configuration is invalid
pub(crate) const EXIT_CODE: u8 = 2;

/// Contents of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// DPDK, ports and workers
    pub(crate) runtime: dataplane::Config,
    /// Function that handles the frames
    pub(crate) function: FunctionConfig,
    /// Tunnels that end before the function handles the frames
    pub(crate) tunnel: Option<TunnelConfig>,
    /// Where observers connect
    pub(crate) observe: ObserveConfig,
    /// Time without received frames after which the run ends
    pub(crate) stop_when_idle: Option<Duration>,
    /// Path of the file, or the name that messages use instead
    pub(crate) path: PathBuf,
}

/// Reads a configuration file. Relative paths in it begin in its folder.
pub(crate) fn load(path: &Path) -> Result<Config, Report> {
    load_text(path, &text_of(path)?, path.parent().unwrap_or(Path::new("")))
}

/// Reads the text of a configuration that messages call `origin`. Relative paths in it begin in `folder`.
pub(crate) fn load_text(origin: &Path, text: &str, folder: &Path) -> Result<Config, Report> {
    check_purpose(origin, text, Purpose::Run)?;
    parse_on(origin, text, folder, &Machine::this())
}

/// Returns the address of an instance for its socket's path or its configuration file. The error is a text for
/// users.
pub(crate) fn target(path: &Path) -> Result<Target, String> {
    let argument = path.to_string_lossy();
    if Address::is_meant(&argument) {
        return Err(format!(
            "{argument} is a key in etcd, not an instance; name its socket, which `socket` in its [observe] sets"
        ));
    }
    if !path.is_file() {
        // The path of a socket, which may not exist yet.
        return if path.extension().is_some_and(|extension| extension == "toml") {
            Err(format!("{}: there is no such file", path.display()))
        } else {
            Ok(Target { socket: path.to_owned() })
        };
    }
    let observe = match purpose(path) {
        Purpose::Controller => load_controller(path).map(|config| config.observe),
        _ => load(path).map(|config| config.observe),
    };
    let observe = observe.map_err(|report| report.render())?;
    observe.socket.map(|socket| Target { socket }).ok_or_else(|| {
        format!(
            "{} has no `socket` to connect to; add\n\n[observe]\nsocket = \"/run/understudy/observe.sock\"\n\nand restart the \
             instance",
            path.display()
        )
    })
}

/// Reads a scenario of the simulator.
pub(crate) fn load_scenario(path: &Path) -> Result<workloads::scenario::Scenario, Report> {
    let text = text_of(path)?;
    check_purpose(path, &text, Purpose::Sim)?;
    parsed(path, &text, scenario::read)
}

/// Reads a topology and plans it.
pub(crate) fn load_topology(path: &Path) -> Result<Network, Report> {
    let text = text_of(path)?;
    check_purpose(path, &text, Purpose::Plan)?;
    parsed(path, &text, topology::read)
}

/// Reads a topology in which each process has a number, and plans it.
pub(crate) fn load_plan(path: &Path) -> Result<Network, Report> {
    let text = text_of(path)?;
    check_purpose(path, &text, Purpose::Plan)?;
    parse_plan(path, &text)
}

/// Reads such a topology from its text.
pub(crate) fn parse_plan(path: &Path, text: &str) -> Result<Network, Report> {
    parsed(path, text, topology::read_numbered)
}

/// Reads a file with `[rfc2544]`.
pub(crate) fn load_rfc2544(path: &Path) -> Result<Rfc2544Config, Report> {
    let text = text_of(path)?;
    check_purpose(path, &text, Purpose::Rfc2544)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parsed(path, &text, |root, problems| {
        let root = Table::root(root, problems);
        let dpdk = Dpdk::read(&root, folder, &Machine::this());
        let read = rfc2544::read(&root, &dpdk.ports);
        dpdk.runtime.check_one_worker(
            "[rfc2544] supports one worker: the receiver needs the sender's state",
            problems,
        );
        let ends = "the run ends when all trials are done";
        dpdk.runtime.reject_stop_when_idle("[rfc2544]", ends, problems);
        root.finish();
        let (settings, traffic, command) = read?;
        Some(Rfc2544Config { runtime: dpdk.build()?, settings, traffic, command })
    })
}

/// Reads the file of a controller, with the topology and the secret that it names.
pub(crate) fn load_controller(path: &Path) -> Result<ControllerConfig, Report> {
    let text = text_of(path)?;
    check_purpose(path, &text, Purpose::Controller)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parsed(path, &text, |root, problems| controller::read(root, folder, problems))
}

/// Command that a file is for, judged by its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// `understudy run`
    Run,
    /// `understudy sim`
    Sim,
    /// `understudy plan`
    Plan,
    /// `understudy bench rfc2544`
    Rfc2544,
    /// `understudy controller`
    Controller,
}

/// Returns the command that a file is for. A file that does not parse is for `run`, which reports the
/// problem.
pub(crate) fn purpose(path: &Path) -> Purpose {
    let text = text_of(path).unwrap_or_default();
    let (root, _) = DeTable::parse_recoverable(&text);
    purpose_of(root.get_ref())
}

fn purpose_of(root: &DeTable<'_>) -> Purpose {
    match root {
        root if topology::is_topology(root) => Purpose::Plan,
        root if scenario::is_scenario(root) => Purpose::Sim,
        root if root.contains_key("rfc2544") => Purpose::Rfc2544,
        root if controller::is_controller(root) => Purpose::Controller,
        _ => Purpose::Run,
    }
}

impl Purpose {
    /// Returns what a file is, the command for it, and an example.
    const fn describe(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Run => ("a configuration of ports and a function", "run", "configs/bump-in-the-wire.toml"),
            Self::Sim => ("a scenario of the simulator", "sim", "configs/sim/verbs.toml"),
            Self::Plan => ("a topology", "plan", "configs/onepipe/testbed.toml"),
            Self::Rfc2544 => {
                ("a configuration of RFC 2544 tests", "bench rfc2544", "configs/pktgen/rfc2544.toml")
            }
            Self::Controller => {
                ("a configuration of 1Pipe's controller", "controller", "configs/onepipe/controller.toml")
            }
        }
    }
}

/// Reports a file that is for another command, or not for this program, in place of each of its tables.
fn check_purpose(path: &Path, text: &str, expected: Purpose) -> Result<(), Report> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let (root, shown) = (root.get_ref(), path.display());
    let (noun, _, example) = expected.describe();
    let found = purpose_of(root);
    let is_foreign =
        found == Purpose::Run && !root.is_empty() && !root.keys().any(|key| is_known(key.get_ref()));
    let problem = if !errors.is_empty() {
        // The parser's errors are reported instead.
        return Ok(());
    } else if is_foreign {
        Problem::of_file(format!("{shown} is not a file of understudy: it has none of its tables"))
            .help(format!("name {noun}, such as {example}"))
    } else if found != expected {
        let (other, command, _) = found.describe();
        Problem::of_file(format!("{shown} is {other}, not {noun}"))
            .help(format!("use `understudy {command} {shown}`, or name {noun}, such as {example}"))
    } else {
        return Ok(());
    };
    Err(Report::new(path, "", vec![problem]))
}

/// Returns whether a table's name is one of a configuration of ports, or may be a misspelt one.
fn is_known(name: &str) -> bool {
    let own = ["runtime", "port", "tunnel", "observe", "consensus"];
    let tables = || functions::FUNCTIONS.iter().map(|table| table.spec.key()).chain(own);
    tables().any(|table| table == name) || words::closest(name, tables()).is_some()
}

/// Reads the text of a file that messages call `origin`. Relative paths in it begin in `folder`.
pub(crate) fn parse(text: &str, origin: &str, folder: &Path) -> Result<Config, Report> {
    parse_on(Path::new(origin), text, folder, &Machine::this())
}

/// Reads the text of the file `path` for `machine`.
fn parse_on(path: &Path, text: &str, folder: &Path, machine: &Machine) -> Result<Config, Report> {
    parsed(path, text, |root, problems| read(root, path, folder, machine, problems))
}

/// Returns the configuration if it is complete. It is valid only if `problems` is empty as well.
fn read(
    root: &DeTable<'_>,
    path: &Path,
    folder: &Path,
    machine: &Machine,
    problems: &Problems,
) -> Option<Config> {
    let root = Table::root(root, problems);
    let dpdk = Dpdk::read(&root, folder, machine);
    let (runtime, ports) = (&dpdk.runtime, &dpdk.ports);
    let mut function = functions::read(&root, ports);
    let tunnel = tunnel::read_optional(&root, function.as_ref().and_then(FunctionConfig::behind_tunnels));
    let observe = observe::read_config(&root, folder);
    if let Some(function) = &mut function {
        function.check(&File { root: &root, runtime, ports, folder });
    }
    root.finish();
    let stop_when_idle = runtime.stop_when_idle;
    Some(Config {
        runtime: dpdk.build()?,
        function: function?,
        tunnel,
        observe,
        stop_when_idle,
        path: path.to_owned(),
    })
}

//! Reads configuration files: TOML in; plain values of `dataplane` and `switch` out, or all problems of the
//! file.
//!
//! A file has ports (`[[port]]`) and one function, which is a table named after it ([`FUNCTIONS`]).
//! `[consensus]` may stand beside `[nic]`, and `[tunnel]` beside `[forward]` or `[onepipe]`. `[runtime]` and
//! `[observe]` change the defaults. To add a function, add a variant to [`FunctionConfig`], a file like
//! `forward.rs`, and a line to [`FUNCTIONS`].

mod consensus;
mod forward;
mod impair;
mod nic;
mod observe;
mod onepipe;
mod p4ce;
mod pairs;
mod pktgen;
mod rfc2544;
mod routes;
mod scenario;
mod swordbox;
#[cfg(test)]
mod tests;
mod topology;
mod tunnel;

pub(crate) use settings::{Finding, Report};

pub(crate) use observe::ObserveConfig;
pub(crate) use onepipe::{Clock, OnePipeConfig};
pub(crate) use p4ce::P4ceConfig;
pub(crate) use rfc2544::{Rfc2544Config, Traffic};
pub(crate) use swordbox::SwordboxConfig;
pub(crate) use topology::{Network, System};
pub(crate) use tunnel::TunnelConfig;

use crate::consensus::ConsensusConfig;
use crate::host::HostConfig;
use core::ops::Range;
use core::time::Duration;
use settings::file::{parsed, text_of};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Problems, Table, absent, section};
// Modules that the readers of tables import as `super::...`
use settings::{Dpdk, Machine, port, report, tree, words};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

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

/// Switch function and its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FunctionConfig {
    /// Wires, a learning bridge or a router
    Forward(switch::forward::Config),
    /// Wires with injected faults
    Impair(switch::impair::Config),
    /// Host with a software NIC
    Nic(HostConfig),
    /// Host that is one of the servers of a replicated service
    Consensus(ConsensusConfig),
    /// Switch that replicates writes, and a bridge
    P4ce(P4ceConfig),
    /// Switch that resolves atomics, and a bridge
    Swordbox(SwordboxConfig),
    /// Switch that keeps barriers, and a bridge
    OnePipe(OnePipeConfig),
    /// 1Pipe process
    Process(::onepipe::Settings),
    /// Packet generator
    Pktgen(::pktgen::Profile),
}

impl FunctionConfig {
    /// Returns the name of the table that configures the function.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Forward(_) => "forward",
            Self::Impair(_) => "impair",
            Self::Nic(_) => "nic",
            Self::Consensus(_) => "consensus",
            Self::P4ce(_) => "p4ce",
            Self::Swordbox(_) => "swordbox",
            Self::OnePipe(_) => "onepipe",
            Self::Process(_) => "process",
            Self::Pktgen(_) => "pktgen",
        }
    }
}

/// Table that configures a function.
struct FunctionTable {
    key: &'static str,
    read: fn(&Table<'_>, &Ports) -> Option<FunctionConfig>,
}

/// All functions.
const FUNCTIONS: [FunctionTable; 8] = [
    FunctionTable { key: "forward", read: forward::read },
    FunctionTable { key: "impair", read: impair::read },
    FunctionTable { key: "nic", read: nic::read },
    FunctionTable { key: "p4ce", read: p4ce::read },
    FunctionTable { key: "swordbox", read: swordbox::read },
    FunctionTable { key: "onepipe", read: onepipe::read },
    FunctionTable { key: "process", read: process },
    FunctionTable { key: "pktgen", read: pktgen::read },
];

/// Reads `[process]` with the reader of the host library.
fn process(table: &Table<'_>, ports: &Ports) -> Option<FunctionConfig> {
    ::onepipe::file::read(table, ports).map(FunctionConfig::Process)
}

/// Reads a configuration file. Relative paths in it begin in its folder.
pub(crate) fn load(path: &Path) -> Result<Config, Report> {
    let text = text_of(path)?;
    parse_on(path, &text, path.parent().unwrap_or(Path::new("")), &Machine::this())
}

/// Reads a scenario of the simulator.
pub(crate) fn load_scenario(path: &Path) -> Result<sim::scenario::Scenario, Report> {
    let text = text_of(path)?;
    parsed(path, &text, scenario::read)
}

/// Reads a topology and plans it.
pub(crate) fn load_topology(path: &Path) -> Result<Network, Report> {
    let text = text_of(path)?;
    parsed(path, &text, topology::read)
}

/// Reads a file with `[rfc2544]`.
pub(crate) fn load_rfc2544(path: &Path) -> Result<Rfc2544Config, Report> {
    let text = text_of(path)?;
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
}

/// Returns the command that a file is for. A file that does not parse is for `run`, which reports the
/// problem.
pub(crate) fn purpose(path: &Path) -> Purpose {
    let text = text_of(path).unwrap_or_default();
    let (root, _) = DeTable::parse_recoverable(&text);
    match root.get_ref() {
        root if topology::is_topology(root) => Purpose::Plan,
        root if scenario::is_scenario(root) => Purpose::Sim,
        root if root.contains_key("rfc2544") => Purpose::Rfc2544,
        _ => Purpose::Run,
    }
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
    let mut function = consensus::read_optional(&root, function(&root, ports, &FUNCTIONS));
    let tunnel = tunnel::read_optional(&root, function.as_ref());
    let observe = observe::read(&root, function.as_ref(), folder);
    match &mut function {
        Some(FunctionConfig::Nic(_) | FunctionConfig::Consensus(_)) => {
            runtime.check_one_worker("a host supports one worker", problems);
        }
        Some(FunctionConfig::P4ce(_)) => runtime.check_one_worker("[p4ce] supports one worker", problems),
        Some(FunctionConfig::Swordbox(config)) => {
            let why = "[swordbox] supports one worker, which puts the operations on each word into one order";
            runtime.check_one_worker(why, problems);
            config.journal = config.journal.take().map(|journal| folder.join(journal));
        }
        Some(FunctionConfig::OnePipe(_)) => {
            let why = "[onepipe] supports one worker: barriers need the order of each link's frames";
            runtime.check_one_worker(why, problems);
        }
        Some(FunctionConfig::Process(_)) => {
            ::onepipe::file::check_runtime(runtime, problems);
        }
        Some(FunctionConfig::Pktgen(_)) => {
            let why = "[pktgen] supports one worker: the receiver needs the sender's state";
            runtime.check_one_worker(why, problems);
            let ends = "the run ends by `duration_s`, or by `packets` of each stream";
            runtime.reject_stop_when_idle("[pktgen]", ends, problems);
        }
        Some(FunctionConfig::Forward(_) | FunctionConfig::Impair(_)) | None => {}
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

/// Reads the function. The file has to have exactly one of `functions`.
fn function(root: &Table<'_>, ports: &Ports, functions: &[FunctionTable]) -> Option<FunctionConfig> {
    let problems = root.problems();
    let mut first: Option<Range<usize>> = None;
    let mut found = None;
    for FunctionTable { key, read, .. } in functions {
        let Some(given) = root.get(key, "") else {
            // The keys of absent tables are registered, so that a misplaced key is recognised.
            let unreported = Problems::default();
            let table = absent(key, &unreported);
            read(&table, ports);
            table.finish();
            problems.add_known_tables(unreported);
            continue;
        };
        if let Some(first) = &first {
            let problem = Problem::at(given.key_span(), "the file has two functions").label("the second");
            problems.add(
                problem
                    .also(first.clone(), "the first")
                    .help("keep one, and run another instance for the other"),
            );
        }
        first = first.or(Some(given.key_span()));
        if let Some(table) = section(root, key) {
            found = read(&table, ports);
            table.finish();
        }
    }
    // An unknown table, which is reported anyway, may be a function whose name is misspelt.
    if first.is_none() && !root.has_unknown_tables() {
        let problem = Problem::of_file("no table defines what happens to frames");
        let tables: Vec<_> = functions.iter().map(|table| format!("[{}]", table.key)).collect();
        problems.add(problem.help(format!(
            "add a function, such as\n\n{}\n\nit can be {}; configs/ has an example of each",
            forward::example(ports),
            words::one_of(&tables)
        )));
    }
    found
}

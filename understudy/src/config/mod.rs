//! The configuration file: TOML in, plain values of `dataplane` and `switch` out, or everything that is wrong with it.
//!
//! A file has ports (`[[port]]`), one function (a table named after it, [`FUNCTIONS`]; beside `[nic]` there may be
//! `[consensus]`, beside `[forward]` and `[onepipe]` `[tunnel]`) and, if the defaults are not to be, `[runtime]`. To add a
//! function: a variant of [`FunctionConfig`], a file like `forward.rs`, a line in [`FUNCTIONS`].

mod consensus;
mod forward;
mod impair;
mod nic;
mod onepipe;
mod p4ce;
mod pairs;
mod pktgen;
mod routes;
mod scenario;
mod swordbox;
#[cfg(test)]
mod tests;
mod topology;
mod tunnel;

pub(crate) use settings::{Finding, Report};

pub(crate) use onepipe::{Clock, OnePipeConfig};
pub(crate) use p4ce::P4ceConfig;
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
// Where the readers of tables look for them
use settings::{Dpdk, Machine, port, report, tree, words};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// What a program ends with whose configuration is wrong
pub(crate) const EXIT_CODE: u8 = 2;

/// What a configuration file asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// DPDK, ports and workers
    pub(crate) runtime: dataplane::Config,
    /// What becomes of frames
    pub(crate) function: FunctionConfig,
    /// Tunnels that end before the function sees what they carry
    pub(crate) tunnel: Option<TunnelConfig>,
    /// End when no frame has come for so long
    pub(crate) stop_when_idle: Option<Duration>,
    /// Where it was read, or what stands for that
    pub(crate) path: PathBuf,
}

/// The switch function and what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FunctionConfig {
    /// A wire or a learning bridge
    Forward(switch::forward::Config),
    /// A wire with faults
    Impair(switch::impair::Config),
    /// A host with a software NIC
    Nic(HostConfig),
    /// A host that is one of the servers of a replicated service
    Consensus(ConsensusConfig),
    /// A switch that replicates writes, and a bridge
    P4ce(P4ceConfig),
    /// A switch that resolves atomics, and a bridge
    Swordbox(SwordboxConfig),
    /// A switch that keeps barriers, and a bridge
    OnePipe(OnePipeConfig),
    /// A process of 1Pipe
    Process(::onepipe::Settings),
    /// A packet generator
    Pktgen(::pktgen::Profile),
}

/// A table that configures a function.
struct FunctionTable {
    key: &'static str,
    read: fn(&Table<'_>, &Ports) -> Option<FunctionConfig>,
}

/// The functions there are.
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

/// The host library reads it.
fn process(table: &Table<'_>, ports: &Ports) -> Option<FunctionConfig> {
    ::onepipe::file::read(table, ports).map(FunctionConfig::Process)
}

/// Reads a file.
pub(crate) fn load(path: &Path) -> Result<Config, Report> {
    let text = text_of(path)?;
    parse_on(path, &text, path.parent().unwrap_or(Path::new("")), &Machine::this())
}

/// Reads a file of the simulator.
pub(crate) fn load_scenario(path: &Path) -> Result<sim::scenario::Scenario, Report> {
    let text = text_of(path)?;
    parsed(path, &text, scenario::read)
}

/// Reads a topology, and plans it.
pub(crate) fn load_topology(path: &Path) -> Result<Network, Report> {
    let text = text_of(path)?;
    parsed(path, &text, topology::read)
}

/// What a file is for, as far as its tables tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// `understudy run`
    Run,
    /// `understudy sim`
    Sim,
    /// `understudy plan`
    Plan,
}

/// What a file is for; a file that does not parse is for `run`, which says what is wrong.
pub(crate) fn purpose(path: &Path) -> Purpose {
    let text = text_of(path).unwrap_or_default();
    let (root, _) = DeTable::parse_recoverable(&text);
    match root.get_ref() {
        root if topology::is_one(root) => Purpose::Plan,
        root if scenario::is_one(root) => Purpose::Sim,
        _ => Purpose::Run,
    }
}

/// Reads the text of a file that messages call `origin`. Relative paths in it begin in `folder`.
pub(crate) fn parse(text: &str, origin: &str, folder: &Path) -> Result<Config, Report> {
    parse_on(Path::new(origin), text, folder, &Machine::this())
}

/// Reads the text of the file `path` for a machine.
fn parse_on(path: &Path, text: &str, folder: &Path, machine: &Machine) -> Result<Config, Report> {
    parsed(path, text, |root, problems| read(root, path, folder, machine, problems))
}

/// The configuration, if enough was understood; whether nothing is wrong is for `problems` to say.
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
    let mut function = consensus::beside(&root, function(&root, ports, &FUNCTIONS));
    let tunnel = tunnel::beside(&root, function.as_ref());
    match &mut function {
        Some(FunctionConfig::Nic(_) | FunctionConfig::Consensus(_)) => {
            runtime.check_one_worker("a host has one worker", problems);
        }
        Some(FunctionConfig::P4ce(_)) => runtime.check_one_worker("[p4ce] has one worker", problems),
        Some(FunctionConfig::Swordbox(config)) => {
            let why = "[swordbox] has one worker: operations on a word are put into one order by one owner";
            runtime.check_one_worker(why, problems);
            config.journal = config.journal.take().map(|journal| folder.join(journal));
        }
        Some(FunctionConfig::OnePipe(_)) => {
            let why = "[onepipe] has one worker: that a link keeps its order is what barriers rest on";
            runtime.check_one_worker(why, problems);
        }
        Some(FunctionConfig::Process(_)) => {
            ::onepipe::file::check_runtime(runtime, problems);
        }
        Some(FunctionConfig::Pktgen(_)) => {
            let why = "[pktgen] has one worker: who sends knows what is to come";
            runtime.check_one_worker(why, problems);
            let ends = "`duration_s`, or `packets` of each stream, say when it ends";
            runtime.check_goes_on_when_idle("[pktgen]", ends, problems);
        }
        Some(FunctionConfig::Forward(_) | FunctionConfig::Impair(_)) | None => {}
    }
    root.finish();
    let stop_when_idle = runtime.stop_when_idle;
    Some(Config {
        runtime: dpdk.build()?,
        function: function?,
        tunnel,
        stop_when_idle,
        path: path.to_owned(),
    })
}

/// Reads the one function, which has to be one of `functions`.
fn function(root: &Table<'_>, ports: &Ports, functions: &[FunctionTable]) -> Option<FunctionConfig> {
    let problems = root.problems();
    let mut first: Option<Range<usize>> = None;
    let mut found = None;
    for FunctionTable { key, read, .. } in functions {
        let Some(given) = root.get(key, "") else {
            // Which keys it would have is told all the same: they may stand in the wrong place.
            let unheard = Problems::default();
            let table = absent(key, &unheard);
            read(&table, ports);
            table.finish();
            problems.know_tables_of(unheard);
            continue;
        };
        if let Some(first) = &first {
            let problem = Problem::at(given.key_span(), "there are two functions").label("another");
            problems.add(
                problem
                    .also(first.clone(), "one")
                    .help("keep one: a program plays one part, and another is played by another program"),
            );
        }
        first = first.or(Some(given.key_span()));
        if let Some(table) = section(root, key) {
            found = read(&table, ports);
            table.finish();
        }
    }
    // A table that is not known may be a function with a slip in its name, and is reported anyway.
    if first.is_none() && !root.has_unknown_tables() {
        let problem = Problem::of_file("no table says what becomes of frames");
        let tables: Vec<_> = functions.iter().map(|table| format!("[{}]", table.key)).collect();
        problems.add(problem.help(format!(
            "add a function, such as\n\n{}\n\nit can be {}: configs/ has an example of each",
            forward::example(ports),
            words::one_of(&tables)
        )));
    }
    found
}

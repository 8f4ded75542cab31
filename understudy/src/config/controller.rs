//! Reads the file of 1Pipe's controller: `[controller]`, and the topology and the secret that it names.

use super::report::Problem;
use super::topology::Network;
use super::tree::{Problems, Table, Value};
use crate::observe::{self, ObserveConfig};
use controller::graph::Graph;
use controller::machine;
use core::net::SocketAddr;
use management::Secret;
use settings::declare::{inline, millis, other, special, whole};
use std::path::{Path, PathBuf};
use switch::Nanos;
use toml::Spanned;
use toml::de::DeTable;

/// Number of recalls that are stored for a failed process
const MAX_RECALLS: u32 = 1_000_000;

/// Beacon intervals for which further reports join the first: keepers find the links of a dead node silent within one
/// of each other, and a report that comes later begins a new round before the decision
const GATHER_INTERVALS: u64 = 2;
/// A member whose clock is behind by more than this many times `ahead_max_us` fails
const BEHIND_AHEAD_MAX: u64 = 2;

settings::table! {
    /// 1Pipe's controller, for `understudy controller`
    pub(crate) enum Keys "[controller]";
    /// Address at which nodes and operators connect; port 0: a free one
    listen: SocketAddr = other("address with a port", address) => required() example("10.9.0.1:7070");
    /// File with the topology of the network
    topology: () = special("path") => required() example("testbed.toml");
    /// File with the secret that all nodes, controllers and operators share: 16 bytes or more, readable by its owner alone
    secret_file: () = special("path") => optional("only programs on this machine can connect") example("secret");
    /// Where decisions are stored
    store: () = inline(&StoreKeys::TABLE) => required() example({ file = "controller.redb" });
    /// Intervals without a beacon after which a representative reports a link; for two more intervals, further reports join the first. Not below `dead_after_intervals` of the topology
    fail_after_intervals: u32 = whole(1..=1_000_000) => default(10);
    /// Time in which a node has to answer, and in which an application's callback has to return
    respond_within_ms: Nanos = millis(1..=60_000) => default(100);
}

settings::table! {
    /// Store of the controller
    pub(crate) enum StoreKeys "`store`";
    /// File, which one controller has open at a time. It is created if there is none
    file: () = special("path") => required() example("controller.redb");
}

/// Contents of a controller's file, with what it names.
#[derive(Clone, Debug)]
pub(crate) struct ControllerConfig {
    pub(crate) server: controller::server::Config,
    pub(crate) graph: Graph,
    /// File of the topology
    pub(crate) topology: PathBuf,
    /// File of the secret
    pub(crate) secret_file: Option<PathBuf>,
    /// File of the store
    pub(crate) store: PathBuf,
    /// Where observers connect
    pub(crate) observe: ObserveConfig,
}

/// Returns whether the tables are those of a controller. Processes and representatives have ports, and a
/// topology has `[topology]`.
pub(super) fn is_controller(root: &DeTable<'_>) -> bool {
    root.contains_key("controller") && !["port", "topology"].iter().any(|key| root.contains_key(*key))
}

/// Returns the configuration if it is complete. It is valid only if `problems` is empty as well.
pub(super) fn read(root: &DeTable<'_>, folder: &Path, problems: &Problems) -> Option<ControllerConfig> {
    let root = Table::root(root, problems);
    let table = root.section(&Keys::TABLE);
    let observe = observe::read_config(&root, folder);
    root.finish();
    let table = table?;
    let path = |value: &Value<'_>| value.text().map(|text| folder.join(text));
    let listen = table.spanned(Keys::listen);
    let secret_value = table.value(Keys::secret_file);
    let secret_file = secret_value.as_ref().and_then(path);
    let secret = secret_value.as_ref().and_then(|value| secret(value, &path(value)?));
    let topology = table.value(Keys::topology);
    let topology = topology.and_then(|value| Some((path(&value)?, network(&value, &path(&value)?)?)));
    let store = table.inline(Keys::store).and_then(|table| {
        let file = table.value(StoreKeys::file).as_ref().and_then(path);
        table.finish();
        file
    });
    if let (Some(listen), None) = (&listen, &secret_value) {
        check_loopback(listen, problems);
    }
    check_fail_after(&table, topology.as_ref().map(|(_, network)| network));
    let respond_within = table.read(Keys::respond_within_ms);
    table.finish();
    let (topology, network) = topology?;
    let settings = network.topology.settings;
    let machine = machine::Config {
        network: network.topology.hash(),
        gather: Nanos(settings.beacon_interval.0 * GATHER_INTERVALS),
        respond_within,
        reconnect_within: management::CONNECT_TIME,
        ahead_max: settings.ahead_max,
        behind_max: Some(Nanos(BEHIND_AHEAD_MAX * settings.ahead_max.0)),
        max_recalls: MAX_RECALLS,
    };
    let id = |host: usize| network.topology.hosts[host].id.expect("`read_numbered` requires numbers");
    let graph = Graph::of(&network.topology, &network.plan, id);
    let server = controller::server::Config { listen: listen?.into_inner(), secret, machine };
    Some(ControllerConfig { server, graph, topology, secret_file, store: store?, observe })
}

fn address(value: &Value<'_>) -> Option<SocketAddr> {
    let text = value.text()?;
    let address = text.parse().ok();
    if address.is_none() {
        let problem = value
            .problem(format!("`{text}` is not an address with a port"))
            .label("not an address to listen at");
        value.add(
            problem.help("write such as `\"10.9.0.1:7070\"` or `\"[fd00::1]:7070\"`; names are not resolved"),
        );
    }
    address
}

/// Reports an address that other machines can reach, in a file without a secret.
fn check_loopback(listen: &Spanned<SocketAddr>, problems: &Problems) {
    let address = listen.get_ref();
    if !address.ip().to_canonical().is_loopback() {
        let message = format!("there is no `secret_file`, and {address} is not a loopback address");
        let help = "add `secret_file = \"secret\"`, or listen at an address such as \"127.0.0.1:7070\"";
        problems.add(Problem::at(listen.span(), message).label("every host could connect").help(help));
    }
}

/// Reads the secret.
fn secret(value: &Value<'_>, path: &Path) -> Option<Secret> {
    Secret::read(path)
        .map_err(|error| {
            let text = error.to_string();
            let (what, help) = text.split_once("; ").unwrap_or((&text, "name another file"));
            value.add(value.problem(what).label("this file").help(help));
        })
        .ok()
}

/// Reads the topology, in which each process has to have a number.
fn network(value: &Value<'_>, path: &Path) -> Option<Network> {
    super::load_plan(path)
        .map_err(|report| {
            let findings: Vec<_> = report.findings().collect();
            let first = findings.first().map_or_else(String::new, |finding| finding.message.to_owned());
            let more = match findings.len() {
                0 | 1 => String::new(),
                count => format!(", and {} more", count - 1),
            };
            let problem = value.problem(format!("the topology is not valid: {first}{more}"));
            let help = format!("correct it; `understudy check {}` shows everything", path.display());
            value.add(problem.label("this file").help(help));
        })
        .ok()
}

/// Checks the intervals after which a link is reported, which may not be fewer than those of best effort.
fn check_fail_after(table: &Table<'_>, network: Option<&Network>) {
    let intervals = table.read(Keys::fail_after_intervals);
    let least = network.map_or(0, |network| network.topology.settings.dead_after_intervals);
    if intervals < least {
        let message = format!(
            "`fail_after_intervals` is {intervals}, below the topology's `dead_after_intervals` of {least}"
        );
        let problem = match table.span_of(Keys::fail_after_intervals) {
            Some(span) => Problem::at(span, message),
            None => table.problem(message),
        };
        let help = format!(
            "write `fail_after_intervals = {least}` or more: a link leaves best effort before a process fails"
        );
        table.problems().add(problem.label("too few").help(help));
    }
}

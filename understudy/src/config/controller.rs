//! Reads the file of 1Pipe's controller: `[controller]`, and the topology and the secret that it names.

use super::report::Problem;
use super::topology::Network;
use super::tree::{Problems, Table, Value};
use crate::observe::{self, ObserveConfig};
use controller::graph::Graph;
use controller::machine;
use core::net::SocketAddr;
use management::Secret;
use onepipe_host::file::controller::{CommonKeys, address, fail_after, secret_file};
use settings::declare::{inline, millis, other, special};
use std::path::{Path, PathBuf};
use switch::Nanos;
use toml::de::DeTable;

/// Number of recalls that are stored for a failed process
const MAX_RECALLS: u32 = 1_000_000;

/// Beacon intervals for which further reports join the first: keepers find the links of a dead node silent within one
/// of each other, and a report that comes later begins a new round before the decision
const GATHER_INTERVALS: u64 = 2;
/// A member whose clock is behind by more than this many times `ahead_max_us` fails
const BEHIND_AHEAD_MAX: u64 = 2;

settings::table! {
    /// What `[controller]` of a controller and of a topology have
    pub(crate) enum ServerKeys "[controller]" with CommonKeys;
    /// Address at which nodes and operators connect; port 0: a free one, in a controller's file only
    listen: SocketAddr = other("address with a port", address) => required() example("10.9.0.1:7070");
    /// Time in which a node has to answer the controller, and in which an application's callback has to return
    respond_within_ms: Nanos = millis(1..=60_000) => default(100);
}

settings::table! {
    /// 1Pipe's controller, for `understudy controller`
    pub(crate) enum Keys "[controller]" with ServerKeys;
    /// File with the topology of the network
    topology: () = special("path") => required() example("testbed.toml");
    /// Where decisions are stored
    store: () = inline(&StoreKeys::TABLE) => required() example({ file = "controller.redb" });
}

settings::table! {
    /// Store of the controller
    pub(crate) enum StoreKeys "`store`";
    /// File, which one controller has open at a time. It is created if there is none. Either this or `etcd`
    file: () = special("path") => optional("the store is in etcd") example("controller.redb");
    /// URLs of the servers of etcd, which the controllers of a network share; `http` only. Needs a program built with `--features etcd`
    etcd: Vec<String> = other("list of URLs", |value| value.list_of(url)) => optional("the store is a file") example(["http://10.9.0.1:2379"]);
    /// Beginning of the keys in etcd. Each network has its own, and none is below another's
    prefix: String = other("path", prefix) => default("/1pipe");
    /// Time for which a controller leads without an answer of etcd, which rounds it up to seconds, and to its own least (Debian's: 2 s)
    lease_ms: Nanos = millis(1000..=60_000) => default(2000);
}

/// Where decisions are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreConfig {
    File(PathBuf),
    Etcd {
        /// URLs, at least one
        servers: Vec<String>,
        prefix: String,
        lease: Nanos,
    },
}

impl core::fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Etcd { servers, prefix, lease } => {
                let milliseconds = lease.0 / 1_000_000;
                write!(f, "{prefix} in etcd at {}, leases of {milliseconds} ms", servers.join(", "))
            }
        }
    }
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
    pub(crate) store: StoreConfig,
    /// Where observers connect
    pub(crate) observe: ObserveConfig,
}

/// What `[controller]` of a controller and of a topology have, but for `fail_after_intervals`.
pub(super) struct Server<'a> {
    pub(super) listen: Option<SocketAddr>,
    pub(super) secret_file: Option<Value<'a>>,
    pub(super) respond_within: Nanos,
}

impl<'a> Server<'a> {
    /// Reads the keys. Other machines than this one need a secret.
    pub(super) fn read(table: &Table<'a>) -> Self {
        let listen = table.read(ServerKeys::listen);
        let secret_file = secret_file(table, listen.as_slice(), table.value(ServerKeys::listen).as_ref());
        Self { listen, secret_file, respond_within: table.read(ServerKeys::respond_within_ms) }
    }
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
    let server = Server::read(&table);
    let secret_file = server.secret_file.as_ref().and_then(path);
    let secret = server.secret_file.as_ref().and_then(|value| secret(value, &path(value)?));
    let topology = table.value(Keys::topology);
    let topology = topology.and_then(|value| Some((path(&value)?, network(&value, &path(&value)?)?)));
    let store = table.inline(Keys::store).and_then(|table| store(table, folder));
    // Nodes report links; the intervals are checked here only.
    fail_after(
        &table,
        topology.as_ref().map_or(0, |(_, network)| network.topology.settings.dead_after_intervals),
    );
    table.finish();
    let (topology, network) = topology?;
    let settings = network.topology.settings;
    let machine = machine::Config {
        network: network.topology.hash(),
        gather: Nanos(settings.beacon_interval.0 * GATHER_INTERVALS),
        respond_within: server.respond_within,
        reconnect_within: management::CONNECT_TIME,
        ahead_max: settings.ahead_max,
        behind_max: Some(Nanos(BEHIND_AHEAD_MAX * settings.ahead_max.0)),
        max_recalls: MAX_RECALLS,
    };
    let id = |host: usize| network.topology.hosts[host].id.expect("`read_numbered` requires numbers");
    let graph = Graph::of(&network.topology, &network.plan, id);
    let server = controller::server::Config { listen: server.listen?, secret, machine };
    Some(ControllerConfig { server, graph, topology, secret_file, store: store?, observe })
}

/// Reads the store, which is a file or in etcd.
fn store(table: Table<'_>, folder: &Path) -> Option<StoreConfig> {
    let file = table.value(StoreKeys::file);
    let path = file.as_ref().and_then(Value::text).map(|text| folder.join(text));
    let etcd_span = table.span_of(StoreKeys::etcd);
    let servers = table.read(StoreKeys::etcd);
    let (prefix, lease) = (table.read(StoreKeys::prefix), table.read(StoreKeys::lease_ms));
    let complain = |span, message: &str, label: &str, help: &str| {
        table.problems().add(Problem::at(span, message).label(label).help(help));
    };
    match (&file, &etcd_span) {
        (Some(_), Some(span)) => {
            let message = "`store` has both `file` and `etcd`";
            complain(span.clone(), message, "a second store", "remove one of them");
        }
        (None, None) => {
            let help = "write `file = \"controller.redb\"` or `etcd = [\"http://10.9.0.1:2379\"]`";
            table.problems().add(table.problem("`store` has neither `file` nor `etcd`").help(help));
        }
        _ => {}
    }
    if let (Some(span), Some(true)) = (&etcd_span, servers.as_ref().map(Vec::is_empty)) {
        let help = "write at least one URL, such as `[\"http://10.9.0.1:2379\"]`";
        complain(span.clone(), "`etcd` names no server", "an empty list", help);
    }
    if etcd_span.is_none() && file.is_some() {
        let spans = [table.span_of(StoreKeys::prefix), table.span_of(StoreKeys::lease_ms)];
        for (name, span) in ["prefix", "lease_ms"].into_iter().zip(spans) {
            if let Some(span) = span {
                let message = format!("`{name}` is not valid for a store in a file");
                complain(span, &message, "for `etcd` only", "remove it");
            }
        }
    }
    table.finish();
    match servers {
        Some(servers) => Some(StoreConfig::Etcd { servers, prefix, lease }),
        None => path.map(StoreConfig::File),
    }
}

/// Reads the URL of a server: `http`, a host and a port.
fn url(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let is_host = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.map_or_else(
            || !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)),
            |inner| inner.parse::<core::net::Ipv6Addr>().is_ok(),
        )
    };
    let address = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let is_valid = address
        .and_then(|address| address.rsplit_once(':'))
        .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port != 0));
    if !is_valid {
        let problem = value.problem(format!("`{text}` is not the URL of a server of etcd"));
        let help = "write such as `\"http://10.9.0.1:2379\"`; TLS (`https`) is not supported";
        value.add(problem.label("not such a URL").help(help));
    }
    is_valid.then(|| text.to_owned())
}

/// Reads the beginning of keys.
fn prefix(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let is_valid = text.strip_prefix('/').is_some_and(|rest| {
        !rest.is_empty() && !rest.ends_with('/') && rest.chars().all(|c| c.is_ascii_graphic())
    });
    if !is_valid {
        let problem = value.problem(format!("`{text}` is not a prefix of keys"));
        let help = "write such as `\"/1pipe\"`: a slash, and printable ASCII that does not end with a slash";
        value.add(problem.label("not a prefix").help(help));
    }
    is_valid.then(|| text.to_owned())
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

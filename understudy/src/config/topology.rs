//! Reads topologies of 1Pipe networks: `[topology]`, `[[switch]]`, `[[host]]` and `[[link]]`. The plan is
//! made at once, because some problems of a topology show only then.

use super::report::Problem;
use super::scenario::network::Names;
use super::tree::{Problems, Table, Value, section, sections};
use super::words;
use core::net::IpAddr;
use core::ops::Range;
use representative::MIN_DEAD_AFTER;
use representative::plan::{self, About, Host, Link, Node, Plan, Settings, Switch, Topology};
use rocev2::Qpn;
use settings::address::{address, ip, station};
use switch::Nanos;
use toml::de::DeTable;

/// Values of `os`
const OS_VALUES: [&str; 4] = ["sonic", "eos", "linux", "understudy"];
/// Values of `idle`
const IDLE_VALUES: [&str; 3] = ["spin", "yield", "sleep"];
/// Longest wait, in microseconds: one second. Longer ones are taken for mistakes
const MAX_WAIT_US: u64 = 1_000_000;
/// Shortest timeout, in microseconds: processes wait up to 3 us before they acknowledge
const MIN_TIMEOUT_US: u64 = 4;
/// Largest first queue pair number. Numbers have 24 bits, and those of a host's representatives follow the
/// first: there is room for millions
const MAX_FIRST_QP: u64 = 0x80_0000;

/// Topology, its plan, and what the plan's files need besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) topology: Topology,
    pub(crate) plan: Plan,
    /// System of each switch
    pub(crate) systems: Vec<System>,
    /// Network interface of each host, which its representatives use
    pub(crate) interfaces: Vec<String>,
    /// Value of `idle` for workers, if the file sets it
    pub(crate) idle: Option<&'static str>,
}

/// Software of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Sonic,
    Eos,
    Linux,
    /// This program, which ends the tunnels
    Understudy,
    /// Any other
    Other,
}

/// Spans of the nodes and links in the file.
#[derive(Default)]
struct Spans {
    names: Names,
    switches: Vec<(String, Range<usize>)>,
    hosts: Vec<(String, Range<usize>)>,
    links: Vec<Range<usize>>,
}

/// Returns whether the tables are those of a topology.
pub(super) fn is_topology(root: &DeTable<'_>) -> bool {
    root.contains_key("topology")
}

/// Returns the topology and its plan if they are complete. They are valid only if `problems` is empty as
/// well.
pub(super) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Network> {
    let root = Table::root(root, problems);
    let (settings, idle) = section(&root, "topology").map_or_else(Default::default, |table| settings(table));
    let switch_tables = sections(&root, "switch")?;
    let host_tables = sections(&root, "host")?;
    let link_tables = sections(&root, "link")?;
    root.finish();
    let mut spans = Spans::default();
    for table in &switch_tables {
        let name = name(table, &mut spans.names).unwrap_or_default();
        spans.switches.push(name);
    }
    for table in &host_tables {
        let name = name(table, &mut spans.names).unwrap_or_default();
        spans.hosts.push(name);
    }
    let switches: Vec<_> =
        switch_tables.into_iter().zip(0..).map(|(table, n)| switch(table, n, &spans)).collect();
    let hosts: Vec<_> = host_tables.into_iter().zip(0..).map(|(table, n)| host(table, n, &spans)).collect();
    let links: Vec<_> = link_tables.into_iter().map(|table| link(table, &mut spans)).collect();
    let (switches, systems) = switches.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let (hosts, interfaces) = hosts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let links = links.into_iter().collect::<Option<Vec<_>>>()?;
    if problems.any() {
        // A problem of one part may be the cause of every problem of the whole.
        return None;
    }
    let topology = Topology { settings, switches, hosts, links };
    match plan::plan(&topology) {
        Ok(plan) => Some(Network { topology, plan, systems, interfaces, idle }),
        Err(found) => {
            for problem in &found {
                problems.add(spans.explain(problem, &topology));
            }
            None
        }
    }
}

impl Spans {
    fn get(&self, about: About) -> Option<Range<usize>> {
        match about {
            About::Topology => None,
            About::Node(Node::Host(host)) => Some(self.hosts[host].1.clone()),
            About::Node(Node::Switch(switch)) => Some(self.switches[switch].1.clone()),
            About::Link(link) => Some(self.links[link].clone()),
        }
    }

    fn explain(&self, problem: &plan::Problem, topology: &Topology) -> Problem {
        let (message, help) = problem.describe(topology);
        let (about, also) = problem.about();
        let report = match self.get(about) {
            Some(span) => Problem::at(span, message).label("here"),
            None => Problem::of_file(message),
        };
        let report = match also.and_then(|also| self.get(also)) {
            Some(span) => report.also(span, "and here"),
            None => report,
        };
        report.help(help)
    }

    /// Returns the index in `list` of the node that `value` names. Reports an unknown name.
    fn find_index(list: &[(String, Range<usize>)], value: &Value<'_>, what: &str) -> Option<usize> {
        let text = value.text()?;
        let found = list.iter().position(|(name, _)| name == text);
        if found.is_none() {
            let names = list.iter().map(|(name, _)| name).filter(|name| !name.is_empty());
            let close = words::closest(text, names.clone().map(String::as_str));
            let help = match (close, names.clone().count()) {
                (Some(close), _) => format!("did you mean `{close}`?"),
                (None, 0) => format!("add a `[[{what}]]`"),
                (None, 1..=12) => format!("it can be {}", words::one_of(names)),
                (None, _) => format!("write the `name` of a `[[{what}]]`"),
            };
            let problem = value.problem(format!("there is no {what} `{text}`"));
            value.add(problem.label(format!("no such {what}")).help(help));
        }
        found
    }
}

/// Longest name, in bytes. Files for `understudy run` use it as the name of a link, with the kind of the node
/// in front
const MAX_NAME: usize = crate::functions::onepipe::config::MAX_NAME - "switch ".len();

/// Reads a name, which becomes part of file names and of switches' configurations.
fn name(table: &Table<'_>, names: &mut Names) -> Option<(String, Range<usize>)> {
    let name = names.read_name(table)?;
    let span = names.all[&name].clone();
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&letter);
    if !name.chars().all(is_valid) || name.starts_with('.') || name.len() > MAX_NAME {
        let problem = Problem::at(span.clone(), format!("`{name}` is not a valid name"));
        let help = format!(
            "write up to {MAX_NAME} letters, digits, `-`, `_` and `.`: files and rules on switches have \
             this name"
        );
        table.problems().add(problem.label("not a file name").help(help));
    }
    Some((name, span))
}

fn settings(table: Table<'_>) -> (Settings, Option<&'static str>) {
    let default = Settings::default();
    let qp = |key, range, default: Qpn| Qpn::new(table.number(key, range, default.get().into()) as u32);
    let interval = table.number("beacon_interval_ns", 1_000..=1_000_000, default.beacon_interval.0);
    let dead_after = table.number(
        "dead_after_intervals",
        MIN_DEAD_AFTER.into()..=1_000_000,
        default.dead_after_intervals.into(),
    );
    let micros =
        |key, min, max, default: Nanos| Nanos::from_micros(table.number(key, min..=max, default.0 / 1_000));
    let idle = table.get("idle", "\"sleep\"").and_then(|value| value.word(&IDLE_VALUES));
    let host_qp = qp("host_qp", 2..=MAX_FIRST_QP, default.host_qp);
    let first_qp = qp("first_qp", 2..=MAX_FIRST_QP, default.first_qp);
    let settings = Settings {
        beacon_interval: Nanos(interval),
        dead_after_intervals: dead_after as u32,
        traffic_class: table.number("traffic_class", 0..=255, default.traffic_class.into()) as u8,
        ahead_max: micros("ahead_max_us", 1, MAX_WAIT_US, default.ahead_max),
        timeout: micros("timeout_us", MIN_TIMEOUT_US, 10 * MAX_WAIT_US, default.timeout),
        host_qp,
        first_qp,
        ..default
    };
    if host_qp >= first_qp
        && let Some(value) = table.get("host_qp", "17").or_else(|| table.get("first_qp", "256"))
    {
        let problem = value.problem("`host_qp` has to be below `first_qp`").label("not below `first_qp`");
        value.add(problem.help(
            "lower `host_qp`, or raise `first_qp`: representatives use `first_qp` and the numbers that follow",
        ));
    }
    table.finish();
    (settings, idle)
}

fn switch(table: Table<'_>, number: usize, spans: &Spans) -> Option<(Switch, System)> {
    let layer = table.spanned_number("layer", 1..=64, 1).map(|layer| layer.into_inner() as u32);
    let tunnel = table.get("tunnel", "\"10.255.0.1\"").map(|value| unicast(&value));
    let mac = table.get("mac", "\"02:00:00:00:01:01\"").map(|value| station(&value));
    let representative =
        table.get("representative", "\"h1\"").map(|value| Spans::find_index(&spans.hosts, &value, "host"));
    let system = table.get("os", "\"sonic\"").map(|value| value.word(&OS_VALUES));
    table.finish();
    let system = match system {
        None => System::Other,
        Some(word) => match word? {
            "sonic" => System::Sonic,
            "eos" => System::Eos,
            "linux" => System::Linux,
            _ => System::Understudy,
        },
    };
    let switch = Switch {
        name: spans.switches[number].0.clone(),
        layer,
        tunnel: optional(tunnel)?,
        mac: optional(mac)?,
        representative: optional(representative)?,
    };
    Some((switch, system))
}

/// Separates an absent key (`Some(None)`) from an invalid value (`None`).
#[expect(clippy::option_option, reason = "absent, or invalid")]
fn optional<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        Some(None) => None,
        Some(read) => Some(read),
        None => Some(None),
    }
}

fn unicast(value: &Value<'_>) -> Option<IpAddr> {
    let ip = ip(value)?;
    if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        let problem = value
            .problem(format!("{ip} is not a routable unicast address"))
            .label("not an address of a switch");
        value.add(problem.help(
            "write an address of the switch that the network routes to, such as that of a loopback interface",
        ));
        return None;
    }
    Some(ip)
}

/// Reads the address of a host, and the prefix length of its subnet.
fn read_host_address(value: &Value<'_>) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = address(value)?;
    let is_reserved = match ip {
        // The first address of an IPv4 subnet is the subnet's own, and the last its broadcast address.
        IpAddr::V4(ip) if prefix < 31 => {
            let host = u32::MAX >> prefix;
            ip.to_bits() & host == 0 || ip.to_bits() & host == host
        }
        _ => false,
    };
    if is_reserved || ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        let problem = value
            .problem(format!("{ip} is not an address of a host"))
            .label("subnet, broadcast or special address");
        value.add(
            problem.help("write the host's address and its subnet's prefix length, such as `10.0.0.1/24`"),
        );
        return None;
    }
    Some((ip, prefix))
}

fn host(table: Table<'_>, number: usize, spans: &Spans) -> Option<(Host, String)> {
    let address = table.require("address", "\"10.0.0.1/24\"").and_then(|value| read_host_address(&value));
    let mac = table.require("mac", "\"02:00:00:00:00:01\"").and_then(|value| station(&value));
    let switches = table.require("switch", "\"tor1\"").and_then(|value| {
        let values = value.one_or_list();
        values
            .iter()
            .map(|value| Spans::find_index(&spans.switches, value, "switch"))
            .collect::<Option<Vec<_>>>()
    });
    let messages = table.boolean("messages", true);
    if let (true, Some(several @ [_, _, ..]), Some(value)) =
        (messages, switches.as_deref(), table.get("switch", "\"tor1\""))
    {
        let problem = value.problem(format!("a host that sends messages has {} switches", several.len()));
        value.add(problem.label("more than one").help(
            "keep one: a process supports one link; or write `messages = false` if the host only \
             represents switches",
        ));
    }
    let represents = table.boolean("represents", true);
    let interface = table.get("interface", "\"eth0\"").map_or(Some("eth0"), |value| value.text());
    table.finish();
    let (address, prefix) = address?;
    let name = spans.hosts[number].0.clone();
    let host = Host { name, address, prefix, mac: mac?, switches: switches?, messages, represents };
    Some((host, interface?.to_owned()))
}

fn link(table: Table<'_>, spans: &mut Spans) -> Option<Link> {
    let ends = table.require("ends", "[\"tor1\", \"spine1\"]").and_then(|value| {
        let list = value.list()?;
        let [a, b] = list.as_slice() else {
            let problem = value.problem("`ends` of a link has to name two switches").label("not two");
            value.add(problem.help(
                "write `ends = [\"tor1\", \"spine1\"]`; a host names its switches with its key `switch`",
            ));
            return None;
        };
        spans.links.push(value.span());
        let find_index = |value| Spans::find_index(&spans.switches, value, "switch");
        let (a, b) = (find_index(a), find_index(b));
        Some([a?, b?])
    });
    let cost = table.number("cost", 1..=1 << 24, 1) as u32;
    table.finish();
    Some(Link { ends: ends?, cost })
}

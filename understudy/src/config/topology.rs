//! Topologies of 1Pipe's networks: `[topology]`, `[[switch]]`, `[[host]]` and `[[link]]`. What was read is planned at once, as what
//! is wrong with a topology shows only then.

use super::forward::station;
use super::report::Problem;
use super::scenario::{address, network::Names};
use super::tree::{Problems, Table, Value, section, sections};
use super::words;
use core::net::IpAddr;
use core::ops::Range;
use representative::MIN_DEAD_AFTER;
use representative::plan::{self, About, Host, Link, Node, Plan, Settings, Switch, Topology};
use rocev2::Qpn;
use switch::Nanos;
use toml::de::DeTable;

/// What may stand in `os`
const SYSTEMS: [&str; 4] = ["sonic", "eos", "linux", "understudy"];
/// What may stand in `idle`
const IDLE: [&str; 3] = ["spin", "yield", "sleep"];
/// A second: longer waits are a slip
const MAX_US: u64 = 1_000_000;
/// Longer than processes wait before they acknowledge, which is 3 us
const LEAST_TIMEOUT_US: u64 = 4;
/// Queue pair numbers have 24 bits. Those of a host's representatives follow the first, and there is room for millions
const LAST_QP: u64 = 0x80_0000;

/// A topology, its plan, and what the plan is written down for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) topology: Topology,
    pub(crate) plan: Plan,
    /// By switch
    pub(crate) systems: Vec<System>,
    /// By host: the interface that its representatives have
    pub(crate) interfaces: Vec<String>,
    /// What workers do while there is nothing to do, if the file says so
    pub(crate) idle: Option<&'static str>,
}

/// What runs on a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Sonic,
    Eos,
    Linux,
    /// This program's tunnel termination
    Understudy,
    /// Something else
    Other,
}

/// Where things stand in the file.
#[derive(Default)]
struct Places {
    names: Names,
    switches: Vec<(String, Range<usize>)>,
    hosts: Vec<(String, Range<usize>)>,
    links: Vec<Range<usize>>,
}

/// Whether the tables are those of a topology.
pub(super) fn is_one(root: &DeTable<'_>) -> bool {
    root.contains_key("topology")
}

/// The topology and its plan, if enough was understood; whether nothing is wrong is for `problems` to say.
pub(super) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Network> {
    let root = Table::root(root, problems);
    let (settings, idle) = section(&root, "topology").map_or_else(Default::default, |table| settings(table));
    let switch_tables = sections(&root, "switch")?;
    let host_tables = sections(&root, "host")?;
    let link_tables = sections(&root, "link")?;
    root.finish();
    let mut places = Places::default();
    for table in &switch_tables {
        let name = name(table, &mut places.names).unwrap_or_default();
        places.switches.push(name);
    }
    for table in &host_tables {
        let name = name(table, &mut places.names).unwrap_or_default();
        places.hosts.push(name);
    }
    let switches: Vec<_> =
        switch_tables.into_iter().zip(0..).map(|(table, n)| switch(table, n, &places)).collect();
    let hosts: Vec<_> = host_tables.into_iter().zip(0..).map(|(table, n)| host(table, n, &places)).collect();
    let links: Vec<_> = link_tables.into_iter().map(|table| link(table, &mut places)).collect();
    let (switches, systems) = switches.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let (hosts, interfaces) = hosts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let links = links.into_iter().collect::<Option<Vec<_>>>()?;
    if problems.are_there() {
        // What is wrong with a part may be all that is wrong with the whole.
        return None;
    }
    let topology = Topology { settings, switches, hosts, links };
    match plan::plan(&topology) {
        Ok(plan) => Some(Network { topology, plan, systems, interfaces, idle }),
        Err(found) => {
            for problem in &found {
                problems.add(places.explain(problem, &topology));
            }
            None
        }
    }
}

impl Places {
    fn of(&self, about: About) -> Option<Range<usize>> {
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
        let told = match self.of(about) {
            Some(place) => Problem::at(place, message).label("here"),
            None => Problem::of_file(message),
        };
        let told = match also.and_then(|also| self.of(also)) {
            Some(place) => told.also(place, "and here"),
            None => told,
        };
        told.help(help)
    }

    /// The place of what is called so in a list
    fn find(list: &[(String, Range<usize>)], value: &Value<'_>, what: &str) -> Option<usize> {
        let text = value.text()?;
        let found = list.iter().position(|(name, _)| name == text);
        if found.is_none() {
            let names = list.iter().map(|(name, _)| name).filter(|name| !name.is_empty());
            let close = words::meant(text, names.clone().map(String::as_str));
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

/// What is called so in files for `understudy run` has to fit there, with what it is before it.
const MAX_NAME: usize = super::onepipe::MAX_NAME - "switch ".len();

/// Names stand in names of files and in switches' configurations.
fn name(table: &Table<'_>, names: &mut Names) -> Option<(String, Range<usize>)> {
    let name = names.take(table)?;
    let place = names.all[&name].clone();
    let right = |letter: char| letter.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&letter);
    if !name.chars().all(right) || name.starts_with('.') || name.len() > MAX_NAME {
        let problem = Problem::at(place.clone(), format!("`{name}` cannot be a name here"));
        let help = format!(
            "write up to {MAX_NAME} letters, digits, `-`, `_` and `.`: files are called so, and rules on switches"
        );
        table.problems().add(problem.label("not a name for a file").help(help));
    }
    Some((name, place))
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
    let micros = |key, least, most, default: Nanos| {
        Nanos::from_micros(table.number(key, least..=most, default.0 / 1_000))
    };
    let idle = table.get("idle", "\"sleep\"").and_then(|value| value.word(&IDLE));
    let host_qp = qp("host_qp", 2..=LAST_QP, default.host_qp);
    let first_qp = qp("first_qp", 2..=LAST_QP, default.first_qp);
    let settings = Settings {
        beacon_interval: Nanos(interval),
        dead_after_intervals: dead_after as u32,
        traffic_class: table.number("traffic_class", 0..=255, default.traffic_class.into()) as u8,
        ahead_max: micros("ahead_max_us", 1, MAX_US, default.ahead_max),
        timeout: micros("timeout_us", LEAST_TIMEOUT_US, 10 * MAX_US, default.timeout),
        host_qp,
        first_qp,
        ..default
    };
    if host_qp >= first_qp
        && let Some(value) = table.get("host_qp", "17").or_else(|| table.get("first_qp", "256"))
    {
        let problem = value.problem("`host_qp` has to be below `first_qp`").label("in the way");
        value.add(problem.help("representatives' queue pairs are `first_qp` and those that follow it"));
    }
    table.finish();
    (settings, idle)
}

fn switch(table: Table<'_>, number: usize, places: &Places) -> Option<(Switch, System)> {
    let layer = table.spanned_number("layer", 1..=64, 1).map(|layer| layer.into_inner() as u32);
    let tunnel = table.get("tunnel", "\"10.255.0.1\"").map(|value| unicast(&value));
    let mac = table.get("mac", "\"02:00:00:00:01:01\"").map(|value| station(&value));
    let representative =
        table.get("representative", "\"h1\"").map(|value| Places::find(&places.hosts, &value, "host"));
    let system = table.get("os", "\"sonic\"").map(|value| value.word(&SYSTEMS));
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
        name: places.switches[number].0.clone(),
        layer,
        tunnel: maybe(tunnel)?,
        mac: maybe(mac)?,
        representative: maybe(representative)?,
    };
    Some((switch, system))
}

/// What was written and understood, or was not written
#[expect(clippy::option_option, reason = "not written, or not understood")]
fn maybe<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        Some(None) => None,
        Some(read) => Some(read),
        None => Some(None),
    }
}

fn unicast(value: &Value<'_>) -> Option<IpAddr> {
    let ip = super::nic::ip(value)?;
    if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        let problem =
            value.problem(format!("no packet can be sent to {ip} alone")).label("not an address of a switch");
        value.add(problem.help(
            "write an address of the switch that the network routes to, such as that of a loopback interface",
        ));
        return None;
    }
    Some(ip)
}

/// An address that one host can have, and the length of its subnet's prefix
fn of_a_host(value: &Value<'_>) -> Option<(IpAddr, u8)> {
    let (ip, prefix) = address(value)?;
    let subnet = match ip {
        // Of its subnet, the first address is the subnet's, and the last everybody's.
        IpAddr::V4(ip) if prefix < 31 => {
            let host = u32::MAX >> prefix;
            ip.to_bits() & host == 0 || ip.to_bits() & host == host
        }
        _ => false,
    };
    if subnet || ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        let problem = value.problem(format!("no host has the address {ip}")).label("not one host's");
        value.add(problem.help("write the host's address and its subnet's length, such as `10.0.0.1/24`"));
        return None;
    }
    Some((ip, prefix))
}

fn host(table: Table<'_>, number: usize, places: &Places) -> Option<(Host, String)> {
    let address = table.require("address", "\"10.0.0.1/24\"").and_then(|value| of_a_host(&value));
    let mac = table.require("mac", "\"02:00:00:00:00:01\"").and_then(|value| station(&value));
    let switches = table.require("switch", "\"tor1\"").and_then(|value| {
        let values = value.one_or_list();
        values.iter().map(|value| Places::find(&places.switches, value, "switch")).collect::<Option<Vec<_>>>()
    });
    let messages = table.boolean("messages", true);
    if let (true, Some(several @ [_, _, ..]), Some(value)) =
        (messages, switches.as_deref(), table.get("switch", "\"tor1\""))
    {
        let problem = value.problem(format!("a host that sends messages is at {} switches", several.len()));
        value.add(problem.label("each would wait for its beacons").help(
            "name one: a process knows one link; or write `messages = false`, if the host only stands for switches",
        ));
    }
    let represents = table.boolean("represents", true);
    let interface = table.get("interface", "\"eth0\"").map_or(Some("eth0"), |value| value.text());
    table.finish();
    let (address, prefix) = address?;
    let name = places.hosts[number].0.clone();
    let host = Host { name, address, prefix, mac: mac?, switches: switches?, messages, represents };
    Some((host, interface?.to_owned()))
}

fn link(table: Table<'_>, places: &mut Places) -> Option<Link> {
    let ends = table.require("ends", "[\"tor1\", \"spine1\"]").and_then(|value| {
        let list = value.list()?;
        let [a, b] = list.as_slice() else {
            let problem = value.problem("a link has two ends").label("not two");
            value.add(
                problem.help("write `ends = [\"tor1\", \"spine1\"]`; hosts say with `switch` where they are"),
            );
            return None;
        };
        places.links.push(value.span());
        let find = |value| Places::find(&places.switches, value, "switch");
        let (a, b) = (find(a), find(b));
        Some([a?, b?])
    });
    let cost = table.number("cost", 1..=1 << 24, 1) as u32;
    table.finish();
    Some(Link { ends: ends?, cost })
}

//! Reads topologies of 1Pipe networks: `[topology]`, `[[switch]]`, `[[host]]` and `[[link]]`. The plan is
//! made at once, because some problems of a topology show only then.

use super::controller::{Server, ServerKeys};
use super::report::Problem;
use super::scenario::network::Names;
use super::tree::{Problems, Table, Value};
use super::words;
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use onepipe::{ClockSource, ProcessId};
use onepipe_host::file::controller::{fail_after, refuse_address};
use representative::MIN_DEAD_AFTER;
use representative::plan::{self, About, Host, Link, Node, Plan, Settings, Switch, Topology};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use settings::address::{address, ip};
use settings::declare::{Key, Required, boolean, mac, micros, nanos, other, special, text, whole, words};
use switch::Nanos;
use toml::de::DeTable;

/// Longest wait, in microseconds: one second. Longer ones are taken for mistakes
const MAX_WAIT_US: u64 = 1_000_000;
/// Shortest timeout, in microseconds: processes wait up to 3 us before they acknowledge
const MIN_TIMEOUT_US: u64 = 4;
/// Largest first queue pair number. Numbers have 24 bits, and those of a host's representatives follow the
/// first: there is room for millions
const MAX_FIRST_QP: u64 = 0x80_0000;

settings::table! {
    /// 1Pipe's settings of a network, for `understudy plan`
    pub(crate) enum Keys "[topology]";
    /// Time between two beacons of a link
    beacon_interval_ns: Nanos = nanos(1_000..=1_000_000) => default(3000);
    /// Intervals without a beacon after which a link is dead
    dead_after_intervals: u32 = whole(MIN_DEAD_AFTER as u64..=1_000_000) => default(10);
    /// What a worker of the planned files does in turns without work, as `idle` of `[runtime]`
    idle: &'static str = words(&[("spin", "spin"), ("yield", "yield"), ("sleep", "sleep")]) => optional("`spin`") example("sleep");
    /// Queue pair of the processes
    host_qp: u32 = whole(2..=MAX_FIRST_QP) => default(17);
    /// First queue pair of the representatives, above `host_qp`
    first_qp: u32 = whole(2..=MAX_FIRST_QP) => default(256);
    /// Traffic class of messages and beacons
    traffic_class: u8 = whole(0..=255) => default(0);
    /// Lead over its own clock from which a node does not believe a timestamp
    ahead_max_us: Nanos = micros(1..=MAX_WAIT_US) => default(10000);
    /// What the clocks of all nodes follow: their machines' clocks, which something else synchronises, or clock beacons
    clock_from: ClockSource = words(&[("host", ClockSource::Host), ("beacons", ClockSource::Beacons)]) => default("host");
    /// Largest difference between the clocks of two hosts: a process that starts accepts only messages stamped later than its clock by this time. 0: it accepts all
    clock_error_us: Nanos = micros(0..=MAX_WAIT_US) => optional("100, or `ahead_max_us` if that is shorter") example(100);
    /// Time without an acknowledgement after which a message fails
    timeout_us: Nanos = micros(MIN_TIMEOUT_US..=10 * MAX_WAIT_US) => default(1000);
}

settings::table! {
    /// Switch of the network
    pub(crate) enum SwitchKeys "[[switch]]";
    /// Name: letters, digits, `-`, `_` and `.`
    name: () = special("string") => required() example("a");
    /// Layer: switches of layer 1 have hosts
    layer: u32 = whole(1..=64) => optional("found from the links") example(1);
    /// Address at which the switch ends tunnels
    tunnel: IpAddr = other("IP address", unicast) => optional("it ends no tunnels") example("10.255.0.1");
    /// MAC address of the switch
    mac: MacAddr = mac() => optional("not needed by the plan") example("02:00:00:00:01:01");
    /// Host that represents the switch
    representative: () = special("name of a host") => optional("chosen by the plan") example("h1");
    /// Second host that represents the switch, so that nothing stops if one of the two fails; not with `clock_from = "beacons"`
    standby: () = special("name of a host") => optional("none") example("h2");
    /// Software of the switch, for which the plan writes rules
    os: System = words(&[("sonic", System::Sonic), ("eos", System::Eos), ("linux", System::Linux), ("understudy", System::Understudy)]) => optional("another one") example("sonic");
}

settings::table! {
    /// Host of the network
    pub(crate) enum HostKeys "[[host]]";
    /// Name: letters, digits, `-`, `_` and `.`
    name: () = special("string") => required() example("a");
    /// Number of the host's process, kept for ever: it orders equal timestamps
    id: u32 = whole(1..=u32::MAX as u64) => optional("none; `understudy plan` requires it with `messages = true`") example(1);
    /// Address of the host, with the length of its subnet's prefix
    address: (IpAddr, u8) = other("IP address with a prefix length", read_host_address) => required() example("10.0.0.1/24");
    /// MAC address of the host
    mac: MacAddr = mac() => required() example("02:00:00:00:00:01");
    /// Switch that the host is linked to; several only with `messages = false`
    switch: () = special("name of a switch, or list of names") => required() example("tor1");
    /// Whether a process runs on the host
    messages: bool = boolean() => default(true);
    /// Whether the host may represent switches
    represents: bool = boolean() => default(true);
    /// Network interface of the representatives
    interface: String = text("name of an interface") => default("eth0");
}

settings::table! {
    /// Link between two switches
    pub(crate) enum LinkKeys "[[link]]";
    /// The two switches
    ends: () = special("list of two names of switches") => required() example(["tor1", "spine1"]);
    /// Cost of the link in routing
    cost: u32 = whole(1..=1 << 24) => default(1);
}

settings::table! {
    /// Controller of the reliable service: with it, the plan has what representatives, processes and the controller need
    pub(crate) enum ControllerKeys "[controller]" with ServerKeys;
}

/// Controller, as the plan's files have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Controller {
    pub(crate) listen: SocketAddr,
    pub(crate) secret_file: Option<String>,
    pub(crate) respond_within: Nanos,
}

/// Topology, its plan, and what the plan's files need besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) topology: Topology,
    pub(crate) plan: Plan,
    /// System of each switch
    pub(crate) systems: Vec<System>,
    /// Network interface of each host, which its representatives use
    pub(crate) interfaces: Vec<String>,
    /// Span of each host's name in the file
    pub(crate) names: Vec<Range<usize>>,
    /// Value of `idle` for workers, if the file sets it
    pub(crate) idle: Option<&'static str>,
    /// Controller of the reliable service
    pub(crate) controller: Option<Controller>,
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

/// Returns the topology and its plan, in which each process has a number; see [`read`].
pub(super) fn read_numbered(root: &DeTable<'_>, problems: &Problems) -> Option<Network> {
    let network = read(root, problems)?;
    for missing in network.topology.missing_ids() {
        let (message, help) = missing.describe(&network.topology);
        let (About::Node(Node::Host(host)), _) = missing.about() else { continue };
        problems.add(Problem::at(network.names[host].clone(), message).label("no `id`").help(help));
    }
    Some(network)
}

/// Returns the topology and its plan if they are complete. They are valid only if `problems` is empty as
/// well.
pub(super) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Network> {
    let root = Table::root(root, problems);
    let (mut settings, idle) = root.section(&Keys::TABLE).map_or_else(Default::default, settings);
    let controller = controller(&root, &mut settings);
    let switch_tables = root.sections(&SwitchKeys::TABLE)?;
    let host_tables = root.sections(&HostKeys::TABLE)?;
    let link_tables = root.sections(&LinkKeys::TABLE)?;
    root.finish();
    let mut spans = Spans::default();
    for table in &switch_tables {
        let name = name(table, SwitchKeys::name, &mut spans.names).unwrap_or_default();
        spans.switches.push(name);
    }
    for table in &host_tables {
        let name = name(table, HostKeys::name, &mut spans.names).unwrap_or_default();
        spans.hosts.push(name);
    }
    let switches: Vec<_> =
        switch_tables.into_iter().zip(0..).map(|(table, n)| switch(table, n, &spans)).collect();
    let hosts: Vec<_> = host_tables.into_iter().zip(0..).map(|(table, n)| host(table, n, &spans)).collect();
    let links: Vec<_> = link_tables.into_iter().map(|table| link(table, &mut spans)).collect();
    let (switches, systems) = switches.into_iter().unzip();
    let (hosts, interfaces) = hosts.into_iter().collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let links = links.into_iter().collect::<Option<Vec<_>>>()?;
    if problems.any() {
        // A problem of one part may be the cause of every problem of the whole.
        return None;
    }
    let topology = Topology { settings, switches, hosts, links };
    match plan::plan(&topology) {
        Ok(plan) => {
            let names = spans.hosts.into_iter().map(|(_, span)| span).collect();
            Some(Network { topology, plan, systems, interfaces, names, idle, controller })
        }
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
fn name(table: &Table<'_>, key: Key<(), Required>, names: &mut Names) -> Option<(String, Range<usize>)> {
    let name = names.read_name(table, key)?;
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
    let (host_qp, first_qp) = (table.read(Keys::host_qp), table.read(Keys::first_qp));
    let settings = Settings {
        beacon_interval: table.read(Keys::beacon_interval_ns),
        dead_after_intervals: table.read(Keys::dead_after_intervals),
        traffic_class: table.read(Keys::traffic_class),
        ahead_max: table.read(Keys::ahead_max_us),
        clock_error: clock_error(&table),
        clock_source: table.read(Keys::clock_from),
        timeout: table.read(Keys::timeout_us),
        host_qp: Qpn::new(host_qp),
        first_qp: Qpn::new(first_qp),
        ..Settings::default()
    };
    let idle = table.read(Keys::idle);
    if host_qp >= first_qp
        && let Some(value) = table.value(Keys::host_qp).or_else(|| table.value(Keys::first_qp))
    {
        let problem = value.problem("`host_qp` has to be below `first_qp`").label("not below `first_qp`");
        value.add(problem.help(
            "lower `host_qp`, or raise `first_qp`: representatives use `first_qp` and the numbers that follow",
        ));
    }
    table.finish();
    (settings, idle)
}

/// Reads `[controller]`, if the file has it.
fn controller(root: &Table<'_>, settings: &mut Settings) -> Option<Controller> {
    let table = root.optional_section(&ControllerKeys::TABLE)?;
    let Server { listen, secret_file, respond_within } = Server::read(&table);
    if let (Some(listen), Some(value)) = (listen, table.value(ServerKeys::listen))
        && listen.port() == 0
    {
        refuse_address(&value, &listen.to_string());
    }
    settings.fail_after_intervals = Some(fail_after(&table, settings.dead_after_intervals));
    let secret_file = secret_file.and_then(|value| value.text().map(str::to_owned));
    table.finish();
    Some(Controller { listen: listen?, secret_file, respond_within })
}

/// Reads the largest difference between two clocks, which may not be longer than what is refused as too far
/// ahead.
fn clock_error(table: &Table<'_>) -> Nanos {
    let (default, ahead_max) = (Settings::default().clock_error, table.read(Keys::ahead_max_us));
    let Some(given) = table.spanned(Keys::clock_error_us) else { return default.min(ahead_max) };
    let (span, clock_error) = (given.span(), given.into_inner());
    if clock_error > ahead_max {
        let problem = Problem::at(span, "`clock_error_us` is longer than `ahead_max_us`").label("too long");
        table.problems().add(problem.help(format!(
            "messages of correct hosts would be refused: write {} or less, or a longer `ahead_max_us`",
            ahead_max.0 / 1_000
        )));
    }
    clock_error
}

fn switch(table: Table<'_>, number: usize, spans: &Spans) -> (Switch, System) {
    let host = |key| table.value(key).and_then(|value| Spans::find_index(&spans.hosts, &value, "host"));
    let (representative, standby) = (host(SwitchKeys::representative), host(SwitchKeys::standby));
    let switch = Switch {
        name: spans.switches[number].0.clone(),
        layer: table.read(SwitchKeys::layer),
        tunnel: table.read(SwitchKeys::tunnel),
        mac: table.read(SwitchKeys::mac),
        representative,
        standby,
    };
    let system = table.read(SwitchKeys::os).unwrap_or(System::Other);
    table.finish();
    (switch, system)
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
    let (address, mac) = (table.read(HostKeys::address), table.read(HostKeys::mac));
    let switches = table.value(HostKeys::switch).and_then(|value| {
        let values = value.one_or_list();
        values
            .iter()
            .map(|value| Spans::find_index(&spans.switches, value, "switch"))
            .collect::<Option<Vec<_>>>()
    });
    let messages = table.read(HostKeys::messages);
    if let (true, Some(several @ [_, _, ..]), Some(value)) =
        (messages, switches.as_deref(), table.value(HostKeys::switch))
    {
        let problem = value.problem(format!("a host that sends messages has {} switches", several.len()));
        value.add(problem.label("more than one").help(
            "keep one: a process supports one link; or write `messages = false` if the host only \
             represents switches",
        ));
    }
    let id = table.read(HostKeys::id).map(ProcessId);
    let (represents, interface) = (table.read(HostKeys::represents), table.read(HostKeys::interface));
    table.finish();
    let (address, prefix) = address?;
    let name = spans.hosts[number].0.clone();
    let host = Host { name, id, address, prefix, mac: mac?, switches: switches?, messages, represents };
    Some((host, interface))
}

fn link(table: Table<'_>, spans: &mut Spans) -> Option<Link> {
    let ends = table.value(LinkKeys::ends).and_then(|value| {
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
    let cost = table.read(LinkKeys::cost);
    table.finish();
    Some(Link { ends: ends?, cost })
}

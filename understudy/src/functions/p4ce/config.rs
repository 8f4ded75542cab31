//! Reads the table `[p4ce]`: the switch's own addresses, its groups, and the bridge that it otherwise is.

#[cfg(test)]
mod tests;

use crate::functions::forward::config::routes::prefix;
use core::net::IpAddr;
use p4ce::Limits;
use p4ce::Secret;
use p4ce::gather::MAX_MEMBERS;
use rocev2::ethernet::MacAddr;
use settings::address;
use settings::declare::{boolean, ips, mac, millis, other, secs, special, tables, whole};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use std::collections::BTreeMap;
use switch::Nanos;
use switch::forward::config::{MacTable, Prefix};

/// Shortest secret, in bytes: fewer hexadecimal digits would hold less than 64 bits
const MIN_SECRET: usize = 16;
/// Upper bound of `groups` and of request rates; a switch that has no configuration of hosts has no use for
/// more
const MAX_GROUPS: u64 = 1 << 16;

/// Contents of `[p4ce]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct P4ceConfig {
    /// MAC address of the switch; the first port's if `None`
    pub(crate) mac: Option<MacAddr>,
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) gateways: Vec<IpAddr>,
    pub(crate) vlan: Option<u16>,
    /// Port at which leaders request groups
    pub(crate) port: u16,
    pub(crate) groups: usize,
    pub(crate) max_replicas: usize,
    pub(crate) silent_after: Nanos,
    pub(crate) setup_timeout: Nanos,
    /// Limits of what a host may request
    pub(crate) limits: Limits,
    /// Secret that leaders have to prove
    pub(crate) secret: Option<Secret>,
    pub(crate) lists: BTreeMap<u32, Vec<IpAddr>>,
    pub(crate) stations: MacTable,
    pub(crate) ports: u16,
    pub(crate) counted_qps: usize,
    pub(crate) health: bool,
    /// Seed; drawn at random if `None`
    pub(crate) seed: Option<u64>,
    /// Number of workers
    pub(crate) workers: usize,
}

settings::table! {
    /// Switch that replicates writes to groups of replicas, and a bridge
    pub(crate) enum Keys "[p4ce]";
    /// MAC address of the switch
    mac: MacAddr = mac() => optional("that of the first port") example("02:00:00:00:00:fe");
    /// Addresses at which leaders request groups, with the lengths of their subnets' prefixes
    addresses: Vec<(IpAddr, u8)> = other("list of IP addresses with prefix lengths", |value| {
        address::own_addresses(value, "write the address at which leaders request groups, such as `addresses = [\"10.0.0.254/24\"]`")
    }) => required() example(["10.0.0.254/24"]);
    /// Routers to hosts of other subnets
    gateways: Vec<IpAddr> = ips() => default([]) example(["10.0.0.1"]);
    /// VLAN of the switch's own frames
    vlan: u16 = whole(1..=4094) => optional("no tag") example(10);
    /// Port for requests
    port: u16 = whole(1..=65_535) => default(18515);
    /// Groups that may exist at one time
    groups: usize = whole(1..=MAX_GROUPS) => default(1024);
    /// Replicas that a group may have
    max_replicas: usize = whole(1..=MAX_MEMBERS as u64) => default(16);
    /// Time after which a silent replica is excluded; 0 means never
    silent_after_ms: Nanos = millis(0..=3_600_000) => default(200);
    /// Time after which a group has to be connected, or is refused
    setup_timeout_ms: Nanos = millis(1..=600_000) => default(3000);
    /// Stations that the bridge learns
    stations: usize = whole(1..=1 << 20) => default(4096);
    /// Time after which the bridge forgets a silent station
    ageing_s: Nanos = secs(1..=1_000_000) => default(300);
    /// Queue pairs that are counted individually
    counted_qps: usize = whole(0..=1 << 20) => default(1024);
    /// Whether to observe the health of counted queue pairs: gaps, retransmissions, NAKs, congestion, round-trip times
    health: bool = boolean() => default(true);
    /// Seed of queue pair numbers and of identifiers
    seed: u64 = whole(0..=i64::MAX as u64) => optional("random") example(1);
    /// Subnets whose hosts may request groups
    leaders: Vec<Prefix> = other("list of prefixes", prefixes) => optional("all hosts") example(["10.0.0.0/24"]);
    /// Subnets whose hosts may be replicas
    replicas: Vec<Prefix> = other("list of prefixes", prefixes) => optional("all hosts") example(["10.0.0.0/24"]);
    /// Groups that one leader may have
    groups_per_leader: usize = whole(1..=MAX_GROUPS) => optional("as many as `groups`") example(1024);
    /// Requests of one leader that are accepted in a second
    leader_requests_per_s: usize = whole(1..=MAX_GROUPS) => default(16);
    /// Requests of all leaders that are accepted in a second
    requests_per_s: usize = whole(1..=MAX_GROUPS) => default(64);
    /// Secret of at least 16 bytes that leaders need to request groups
    secret: Secret = other("string", secret) => optional("requests need no secret") example("6f2c9a0d51e84b7f");
    /// Replicas that requests name by a number
    list: () = tables(&ListKeys::TABLE) => optional("no list");
}

settings::table! {
    /// Replicas that requests name by a number
    pub(crate) enum ListKeys "[[p4ce.list]]";
    /// Number in requests
    number: u32 = whole(0..=u32::MAX as u64) => required() example(1);
    /// Addresses of the replicas
    replicas: () = special("list of IP addresses") => required() example(["10.0.0.1", "10.0.0.2"]);
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> P4ceConfig {
    let groups = table.read(Keys::groups);
    let max_replicas = table.read(Keys::max_replicas);
    let stations = table.read(Keys::stations);
    let limits = Limits {
        leaders: table.read(Keys::leaders).unwrap_or_default(),
        replicas: table.read(Keys::replicas).unwrap_or_default(),
        groups_per_leader: table.read(Keys::groups_per_leader).unwrap_or(groups),
        requests_per_leader: table.read(Keys::leader_requests_per_s),
        requests: table.read(Keys::requests_per_s),
        ..Limits::default()
    };
    let (addresses, lists) = (table.read(Keys::addresses), lists(table, max_replicas));
    P4ceConfig {
        mac: table.read(Keys::mac),
        addresses: addresses.unwrap_or_default(),
        gateways: table.read(Keys::gateways),
        vlan: table.read(Keys::vlan),
        port: table.read(Keys::port),
        groups,
        max_replicas,
        silent_after: table.read(Keys::silent_after_ms),
        setup_timeout: table.read(Keys::setup_timeout_ms),
        limits,
        secret: table.read(Keys::secret),
        lists: lists.unwrap_or_default(),
        stations: MacTable { capacity: stations, ageing: table.read(Keys::ageing_s), fixed: Vec::new() },
        ports: ports.list.len() as u16,
        counted_qps: table.read(Keys::counted_qps),
        health: table.read(Keys::health),
        seed: table.read(Keys::seed),
        workers: 1,
    }
}

/// Reads the subnets of the hosts that may do something.
fn prefixes(value: &Value<'_>) -> Option<Vec<Prefix>> {
    let prefixes = value.list_of(prefix)?;
    if prefixes.is_empty() {
        let problem = value.problem(format!("{} is empty", value.name())).label("no host");
        value.add(problem.help("list the subnets of the permitted hosts, or remove the key to permit all"));
    }
    Some(prefixes)
}

/// Reads `secret`, which leaders, replicas and the switch share.
pub(in crate::functions) fn secret(value: &Value<'_>) -> Option<Secret> {
    let text = value.text()?;
    if text.len() < MIN_SECRET {
        let problem =
            value.problem(format!("`secret` has only {} bytes", text.len())).label("can be guessed");
        value.add(problem.help(format!(
            "write at least {MIN_SECRET} random bytes, such as the output of `openssl \
             rand -hex 32`, at all servers and the switch"
        )));
        return None;
    }
    Some(Secret::new(text))
}

/// Reads the lists of replicas that requests name by a number.
fn lists(table: &Table<'_>, max_replicas: usize) -> Option<BTreeMap<u32, Vec<IpAddr>>> {
    let (problems, mut lists) = (table.problems(), BTreeMap::new());
    for table in table.tables(Keys::list)? {
        let number = table.spanned(ListKeys::number);
        let replicas = table.value(ListKeys::replicas).and_then(|value| read_replicas(&value, max_replicas));
        table.finish();
        if let (Some(number), Some(replicas)) = (number, replicas)
            && lists.insert(*number.get_ref(), replicas).is_some()
        {
            let message = format!("two lists have the number {}", number.get_ref());
            let problem = Problem::at(number.span(), message).label("again");
            problems.add(problem.help("give each list its own `number`"));
        }
    }
    Some(lists)
}

fn read_replicas(value: &Value<'_>, max: usize) -> Option<Vec<IpAddr>> {
    let list = value.list()?;
    if list.is_empty() || list.len() > max {
        let problem = value.problem(format!("`replicas` lists {} replicas", list.len()));
        value.add(
            problem
                .label("too few or too many")
                .help(format!("list 1 to {max} replicas: `max_replicas` is the limit")),
        );
        return None;
    }
    list.iter().map(address::ip).collect()
}

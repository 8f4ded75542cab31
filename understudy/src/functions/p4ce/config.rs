//! Reads the table `[p4ce]`: the switch's own addresses, its groups, and the bridge that it otherwise is.

#[cfg(test)]
mod tests;

use crate::functions::forward::config::DEFAULT_COUNTED_QPS;
use crate::functions::forward::config::routes::prefix;
use core::net::IpAddr;
use p4ce::Limits;
use p4ce::Secret;
use p4ce::gather::MAX_MEMBERS;
use rocev2::ethernet::MacAddr;
use settings::address::address;
use settings::address::station;
use settings::port::Ports;
use settings::tree::{Table, Value, subsections};
use std::collections::BTreeMap;
use switch::Nanos;
use switch::forward::config::{MacTable, Prefix};

/// Default port for requests: that of perftest, which no other program uses
const DEFAULT_PORT: u64 = 18_515;
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
    /// Seed; drawn at random if `None`
    pub(crate) seed: Option<u64>,
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<P4ceConfig> {
    let mac = table.get("mac", "\"02:00:00:00:00:fe\"").and_then(|value| station(&value));
    let addresses = table.require("addresses", "[\"10.0.0.254/24\"]").and_then(|value| {
        let list = value.list()?;
        if list.is_empty() {
            value.add(value.problem("`addresses` is empty").label("no address").help(
                "write the address at which leaders request groups, such as `addresses = \
                 [\"10.0.0.254/24\"]`",
            ));
        }
        list.iter().map(address).collect::<Option<Vec<_>>>()
    });
    let gateways = table
        .get("gateways", "[\"10.0.0.1\"]")
        .map_or(Some(Vec::new()), |value| value.list()?.iter().map(settings::address::ip).collect());
    let vlan = table.spanned_number("vlan", 1..=4094, 10).map(|id| id.into_inner() as u16);
    let port = table.number("port", 1..=65_535, DEFAULT_PORT) as u16;
    let groups = table.number("groups", 1..=MAX_GROUPS, 1024) as usize;
    let max_replicas = table.number("max_replicas", 1..=MAX_MEMBERS as u64, MAX_MEMBERS as u64) as usize;
    let silent_after = Nanos::from_millis(table.number("silent_after_ms", 0..=3_600_000, 200));
    let setup_timeout = Nanos::from_millis(table.number("setup_timeout_ms", 1..=600_000, 3000));
    let stations = table.number("stations", 1..=1 << 20, 4096) as usize;
    let ageing = Nanos::from_secs(table.number("ageing_s", 1..=1_000_000, 300));
    let counted_qps = table.number("counted_qps", 0..=1 << 20, DEFAULT_COUNTED_QPS) as usize;
    let seed = table.spanned_number("seed", 0..=i64::MAX as u64, 1).map(toml::Spanned::into_inner);
    let limits = limits(table, groups);
    let secret = secret(table);
    let lists = lists(table, max_replicas);
    Some(P4ceConfig {
        mac,
        addresses: addresses?,
        gateways: gateways?,
        vlan,
        port,
        groups,
        max_replicas,
        silent_after,
        setup_timeout,
        limits: limits?,
        secret,
        lists: lists?,
        stations: MacTable { capacity: stations, ageing, fixed: Vec::new() },
        ports: ports.list.len() as u16,
        counted_qps,
        seed,
    })
}

/// Reads the limits of what a host may request.
fn limits(table: &Table<'_>, groups: usize) -> Option<Limits> {
    let default = Limits::default();
    let prefixes = |key| -> Option<Vec<Prefix>> {
        let Some(value) = table.get(key, "[\"10.0.0.0/24\"]") else { return Some(Vec::new()) };
        let list = value.list()?;
        if list.is_empty() {
            let problem = value.problem(format!("`{key}` is empty")).label("no host");
            value.add(
                problem.help("list the subnets of the permitted hosts, or remove the key to permit all"),
            );
            return None;
        }
        list.iter().map(prefix).collect()
    };
    let (leaders, replicas) = (prefixes("leaders"), prefixes("replicas"));
    let number = |key, default: usize| table.number(key, 1..=MAX_GROUPS, default as u64) as usize;
    let limits = Limits {
        groups_per_leader: number("groups_per_leader", groups),
        requests_per_leader: number("leader_requests_per_s", default.requests_per_leader),
        requests: number("requests_per_s", default.requests),
        ..default
    };
    Some(Limits { leaders: leaders?, replicas: replicas?, ..limits })
}

/// Reads `secret`, which leaders, replicas and the switch share.
pub(in crate::functions) fn secret(table: &Table<'_>) -> Option<Secret> {
    let value = table.get("secret", "\"6f2c...\"")?;
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
    let mut lists = BTreeMap::new();
    for table in subsections(table, "list", "[[p4ce.list]]")? {
        let number = table.require("number", "1");
        let id = number.as_ref().and_then(|value| value.number(0..=u32::MAX.into(), 1));
        let replicas = table.require("replicas", "[\"10.0.0.1\", \"10.0.0.2\"]");
        let replicas = replicas.and_then(|value| read_replicas(&value, max_replicas));
        table.finish();
        if let (Some(value), Some(id), Some(replicas)) = (number, id, replicas)
            && lists.insert(id as u32, replicas).is_some()
        {
            let problem = value.problem(format!("two lists have the number {id}")).label("again");
            value.add(problem.help("give each list its own `number`"));
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
    list.iter().map(settings::address::ip).collect()
}

//! Reads the table `[consensus]` beside `[nic]`, which makes the host one of the servers of a replicated
//! service.

#[cfg(test)]
mod tests;

use super::{AppState, ConsensusConfig, Load};
use crate::functions::host::HostConfig;
use crate::functions::p4ce::config::secret;
use consensus::{Layout, SwitchAddress};
use core::net::IpAddr;
use settings::address::ip;
use settings::report::Problem;
use settings::tree::{Problems, Table, Value, absent, section};
use switch::Nanos;

const KEY: &str = "consensus";
/// Default port at which servers listen; `DEFAULT_SWITCH_PORT` is that of the switch
const DEFAULT_PORT: u64 = 7000;
const DEFAULT_SWITCH_PORT: u64 = 18_515;
/// Largest number of servers: a leader and the members of one of the switch's groups
const MAX_SERVERS: usize = 1 + p4ce::gather::MAX_MEMBERS;
/// Number of other servers whose addresses fit into a request to the switch (docs/p4ce.md): with IPv4, with
/// IPv6
const MAX_NAMED: [usize; 2] = [12, 3];
/// The same numbers if the request also carries the 16-byte tag of a secret
const MAX_NAMED_WITH_SECRET: [usize; 2] = [8, 2];
/// Longest log, in bytes: a log is read by one READ (IB 9.4.1)
const MAX_LOG: usize = 1 << 30;
const SERVERS_EXAMPLE: &str = "[\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]";

/// Returns whether the file has `[consensus]`.
pub(in crate::functions) fn is_given(root: &Table<'_>) -> bool {
    let given = root.get(KEY, "").is_some();
    if !given {
        // The keys of the absent table are registered, so that a misplaced key is recognised.
        let unreported = Problems::default();
        let table = absent(KEY, &unreported);
        read_table(&table, None);
        table.finish();
        root.problems().add_known_tables(unreported);
    }
    given
}

/// Reads `[consensus]`, which makes `host` of `[nic]` a server.
pub(in crate::functions) fn read(root: &Table<'_>, host: Option<HostConfig>) -> Option<ConsensusConfig> {
    let given = root.get(KEY, "")?;
    let nic = root.get("nic", "");
    if nic.is_none() {
        let problem = problem_at_key(&given, "[consensus] needs [nic]").label("no [nic] in the file");
        given.add(problem.help("add `[nic]` with this server's `addresses`, and remove any other function"));
    }
    if let Some(nic) = nic.and_then(|_| section(root, "nic")) {
        if let Some(service) = nic.get("service", "[]") {
            let problem = problem_at_key(&service, "[[nic.service]] is not valid beside [consensus]")
                .label("a service");
            given.add(problem.help("remove [[nic.service]]; run another instance for services"));
        }
        nic.discard();
    }
    let table = section(root, KEY)?;
    let config = read_table(&table, host);
    table.finish();
    config
}

fn problem_at_key(value: &Value<'_>, message: &str) -> Problem {
    Problem::at(value.key_span(), message)
}

pub(super) fn read_table(table: &Table<'_>, host: Option<HostConfig>) -> Option<ConsensusConfig> {
    let servers = table.require("servers", SERVERS_EXAMPLE);
    let addresses = servers.as_ref().and_then(read_servers);
    let id = table.require("id", "0");
    let id_read =
        id.as_ref().and_then(|id| read_id(id, servers.as_ref(), addresses.as_deref(), host.as_ref()));
    let port = table.number("port", 1..=65_535, DEFAULT_PORT) as u16;
    let switch = table.get("switch", "\"10.0.0.254\"");
    let switch_port = table.spanned_number("switch_port", 1..=65_535, DEFAULT_SWITCH_PORT);
    if let (None, Some(port)) = (&switch, &switch_port) {
        let problem = Problem::at(port.span(), "`switch_port` needs `switch`").label("no switch");
        table.problems().add(problem.help("add `switch`, or remove `switch_port`"));
    }
    let switch_port = switch_port.map_or(DEFAULT_SWITCH_PORT, toml::Spanned::into_inner) as u16;
    let secret = secret(table);
    let max_named = if secret.is_some() { MAX_NAMED_WITH_SECRET } else { MAX_NAMED };
    let address = switch.map(|value| read_switch(&value, servers.as_ref(), addresses.as_deref(), max_named));
    let switch = address.map(|address| Some(SwitchAddress { address: address?, port: switch_port }));
    let heartbeat = Nanos::from_micros(table.number("heartbeat_us", 10..=10_000_000, 1000));
    let log_entries = table.number("log_entries", 8..=1 << 20, 4096);
    let max_value = table.number("max_value", 1..=1 << 20, 256) as usize;
    let min_snapshot = AppState::LEN as u64;
    let max_snapshot = table.number("max_snapshot", min_snapshot..=1 << 30, 4096) as usize;
    let window = table.spanned_number("window", 1..=1 << 20, 32);
    let load = table.get("propose", "{ size = 64 }").map(|value| read_load(&value, max_value));
    let layout = Layout::new(log_entries, max_value, max_snapshot);
    if layout.log_len() > MAX_LOG
        && let Some(value) = table.get("log_entries", "4096").or_else(|| table.get("max_value", "256"))
    {
        let problem = value.problem(format!("the log has {} MB", layout.log_len() >> 20)).label("too long");
        value.add(problem.help(format!(
            "the log has `log_entries` of `max_value` + 40 bytes each: lower one of the two, so that it \
             has at most {} MB",
            MAX_LOG >> 20
        )));
    }
    if let Some(window) = window.as_ref().filter(|window| *window.get_ref() > log_entries) {
        let message =
            format!("`window` is {} values, but the log has only {log_entries} entries", window.get_ref());
        let problem = Problem::at(window.span(), message).label("longer than the log");
        table.problems().add(problem.help("lower `window`, or raise `log_entries`"));
    }
    Some(ConsensusConfig {
        host: host?,
        id: id_read?,
        servers: addresses?,
        port,
        switch: switch.map_or(Some(None), |switch| switch.map(Some))?,
        secret,
        heartbeat,
        layout,
        window: window.map_or(32, toml::Spanned::into_inner),
        load: load.map_or(Some(None), |load| load.map(Some))?,
    })
}

/// Reads `servers`: the addresses of all servers, in the order of their numbers.
fn read_servers(value: &Value<'_>) -> Option<Vec<IpAddr>> {
    let list = value.list()?;
    if list.is_empty() || list.len() > MAX_SERVERS {
        let problem = value.problem(format!("`servers` lists {} servers", list.len()));
        let help =
            format!("list 1 to {MAX_SERVERS} servers in the order of their numbers, including this one");
        value.add(problem.label("too few or too many").help(help));
        return None;
    }
    let mut addresses = Vec::new();
    for value in &list {
        let address = ip(value)?;
        if let Some(first) = addresses.iter().position(|known| *known == address) {
            let problem = value.problem(format!("{address} is already server {first}")).label("again");
            value.add(problem.help("give each server its own address"));
            return None;
        }
        addresses.push(address);
    }
    Some(addresses)
}

/// Reads `id`, the number of this server. Its address has to be one of the host's.
fn read_id(
    value: &Value<'_>,
    servers: Option<&Value<'_>>,
    addresses: Option<&[IpAddr]>,
    host: Option<&HostConfig>,
) -> Option<u8> {
    let last = addresses.map_or(MAX_SERVERS, <[_]>::len) as u64 - 1;
    let id = value.number(0..=last, 0)? as u8;
    let address = addresses?.get(usize::from(id))?;
    if let Some(host) = host
        && !host.addresses.iter().any(|(own, _)| own == address)
    {
        let problem = value
            .problem(format!("server {id} has the address {address}, which this host does not have"))
            .label("this server's number");
        let element = servers.and_then(Value::list).and_then(|list| list.get(usize::from(id)).cloned());
        let problem = match element {
            Some(element) => problem.also(element.span(), "its address"),
            None => problem,
        };
        value
            .add(problem.help(format!("add {address} to `addresses` of [nic], or change `id` or `servers`")));
    }
    Some(id)
}

/// Reads `switch`, the switch's address, which no server may have.
fn read_switch(
    value: &Value<'_>,
    servers: Option<&Value<'_>>,
    addresses: Option<&[IpAddr]>,
    max_named: [usize; 2],
) -> Option<IpAddr> {
    let address = ip(value)?;
    let addresses = addresses.unwrap_or(&[]);
    if let Some(server) = addresses.iter().position(|server| *server == address) {
        let problem = value
            .problem(format!("the switch and server {server} have the same address"))
            .label("the address of a server");
        value.add(problem.help("write the switch's own address, one of `addresses` in its [p4ce]"));
    }
    let max = max_named[usize::from(address.is_ipv6())];
    if let Some(servers) = servers
        && addresses.len() > max + 1
    {
        let problem = servers.problem(format!("{} servers are too many with a switch", addresses.len()));
        let help = format!(
            "a request to the switch has room for {max} other servers: remove servers, or remove `switch`"
        );
        servers.add(problem.label("too many").help(help));
    }
    Some(address)
}

/// Reads `propose`: the values that this server proposes as a load.
fn read_load(value: &Value<'_>, max_value: usize) -> Option<Load> {
    let table = value.table("`propose`")?;
    let size = table.require("size", "64");
    let size = size.and_then(|value| Some((value.number(1..=1 << 20, 64)? as usize, value)));
    let rate = table.spanned_number("rate", 1..=1_000_000_000, 10_000).map(toml::Spanned::into_inner);
    table.finish();
    let (size, value) = size?;
    if size > max_value {
        let problem = value.problem(format!("`size` is {size} bytes, but `max_value` is {max_value}"));
        value.add(problem.label("too long").help("lower `size`, or raise `max_value` at all servers"));
    }
    Some(Load { size, rate })
}

//! Reads the table `[consensus]` beside `[nic]`, which makes the host one of the servers of a replicated
//! service.

#[cfg(test)]
mod tests;

use super::{AppState, ConsensusConfig, Load};
use crate::functions::function::SwitchFunction;
use crate::functions::host::{self, HostConfig};
use crate::functions::p4ce::config::secret;
use consensus::{Layout, SwitchAddress};
use core::net::IpAddr;
use p4ce::Secret;
use settings::address::ip;
use settings::declare::{inline, micros, other, special, whole};
use settings::report::Problem;
use settings::tree::{Table, Value};
use switch::Nanos;

/// Port of a P4CE switch, unless `switch_port` is given
const DEFAULT_SWITCH_PORT: u16 = 18_515;
/// Largest number of servers: a leader and the members of one of the switch's groups
const MAX_SERVERS: usize = 1 + p4ce::gather::MAX_MEMBERS;
/// Number of other servers whose addresses fit into a request to the switch (docs/p4ce.md): with IPv4, with
/// IPv6
const MAX_NAMED: [usize; 2] = [12, 3];
/// The same numbers if the request also carries the 16-byte tag of a secret
const MAX_NAMED_WITH_SECRET: [usize; 2] = [8, 2];
/// Longest log, in bytes: a log is read by one READ (IB 9.4.1)
const MAX_LOG: usize = 1 << 30;

settings::table! {
    /// Makes the host of `[nic]` a server of a replicated service
    pub(crate) enum Keys "[consensus]";
    /// Addresses of all servers, in the order of their numbers
    servers: () = special("list of IP addresses") => required() example(["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    /// Number of this server: the position of its address in `servers`, from 0
    id: u8 = whole(0..=MAX_SERVERS as u64 - 1) => required() example(0);
    /// Port at which servers listen for each other
    port: u16 = whole(1..=65_535) => default(7000);
    /// Address of a P4CE switch, through which the leader replicates
    switch: () = special("IP address") => optional("the leader writes to each server") example("10.0.0.254");
    /// Port of the switch for requests
    switch_port: u16 = whole(1..=65_535) => optional("18515") example(18515);
    /// Secret that all servers and the switch share, of at least 16 bytes
    secret: Secret = other("string", secret) => optional("requests carry none") example("6f2c9a0d51e84b7f");
    /// Time between two heartbeats
    heartbeat_us: Nanos = micros(10..=10_000_000) => default(1000);
    /// Entries of the log
    log_entries: u64 = whole(8..=1 << 20) => default(4096);
    /// Largest value of an entry
    max_value: usize = whole(1..=1 << 20).unit("bytes") => default(256);
    /// Largest snapshot of the service's state
    max_snapshot: usize = whole(AppState::LEN as u64..=1 << 30).unit("bytes") => default(4096);
    /// Values that the leader proposes before the first of them is decided
    window: u64 = whole(1..=1 << 20) => default(32);
    /// Values that this server proposes as a load while it leads
    propose: () = inline(&LoadKeys::TABLE) => optional("none") example({ size = 64 });
}

settings::table! {
    /// Load that a server proposes while it leads
    pub(crate) enum LoadKeys "`propose`";
    /// Size of a value
    size: usize = whole(1..=1 << 20).unit("bytes") => required() example(64);
    /// Values in a second
    rate: u64 = whole(1..=1_000_000_000) => optional("as many as `window` allows") example(10000);
}

/// Returns whether the file has `[consensus]`.
pub(in crate::functions) fn is_given(root: &Table<'_>) -> bool {
    let given = root.has(&Keys::TABLE);
    if !given {
        root.problems().add_absent(&Keys::TABLE);
    }
    given
}

/// Reads `[consensus]`, which makes `host` of `[nic]` a server.
pub(in crate::functions) fn read(root: &Table<'_>, host: Option<HostConfig>) -> Option<ConsensusConfig> {
    let given = root.header_span(&Keys::TABLE)?;
    if !root.has(HostConfig::TABLE) {
        let problem = Problem::at(given, "[consensus] needs [nic]").label("no [nic] in the file");
        let help = "add `[nic]` with this server's `addresses`, and remove any other function";
        root.problems().add(problem.help(help));
    } else if let Some(nic) = root.section(HostConfig::TABLE) {
        if let Some(service) = nic.value(host::Keys::service) {
            let problem = Problem::at(service.key_span(), "[[nic.service]] is not valid beside [consensus]");
            let help = "remove [[nic.service]]; run another instance for services";
            root.problems().add(problem.label("a service").help(help));
        }
        nic.discard();
    }
    let table = root.section(&Keys::TABLE)?;
    let config = read_table(&table, host);
    table.finish();
    config
}

pub(super) fn read_table(table: &Table<'_>, host: Option<HostConfig>) -> Option<ConsensusConfig> {
    let servers = table.value(Keys::servers);
    let addresses = servers.as_ref().and_then(read_servers);
    let id = table.value(Keys::id);
    let id = id.and_then(|id| read_id(&id, servers.as_ref(), addresses.as_deref(), host.as_ref()));
    let switch = table.value(Keys::switch);
    let switch_port = table.spanned(Keys::switch_port);
    if let (None, Some(port)) = (&switch, &switch_port) {
        let problem = Problem::at(port.span(), "`switch_port` needs `switch`").label("no switch");
        table.problems().add(problem.help("add `switch`, or remove `switch_port`"));
    }
    let port = switch_port.map_or(DEFAULT_SWITCH_PORT, toml::Spanned::into_inner);
    let secret = table.read(Keys::secret);
    let max_named = if secret.is_some() { MAX_NAMED_WITH_SECRET } else { MAX_NAMED };
    let address =
        switch.and_then(|value| read_switch(&value, servers.as_ref(), addresses.as_deref(), max_named));
    let (log_entries, max_value) = (table.read(Keys::log_entries), table.read(Keys::max_value));
    let layout = Layout::new(log_entries, max_value, table.read(Keys::max_snapshot));
    if layout.log_len() > MAX_LOG
        && let Some(at) = table.span_of(Keys::log_entries).or_else(|| table.span_of(Keys::max_value))
    {
        let problem = Problem::at(at, format!("the log has {} MB", layout.log_len() >> 20)).label("too long");
        table.problems().add(problem.help(format!(
            "the log has `log_entries` of `max_value` + 40 bytes each: lower one of the two, so that it \
             has at most {} MB",
            MAX_LOG >> 20
        )));
    }
    if let Some(window) = table.spanned(Keys::window).filter(|window| *window.get_ref() > log_entries) {
        let message =
            format!("`window` is {} values, but the log has only {log_entries} entries", window.get_ref());
        let problem = Problem::at(window.span(), message).label("longer than the log");
        table.problems().add(problem.help("lower `window`, or raise `log_entries`"));
    }
    let load = table.inline(Keys::propose).and_then(|table| read_load(table, max_value));
    let (own_port, heartbeat) = (table.read(Keys::port), table.read(Keys::heartbeat_us));
    Some(ConsensusConfig {
        host: host?,
        id: id?,
        servers: addresses?,
        port: own_port,
        switch: address.map(|address| SwitchAddress { address, port }),
        secret,
        heartbeat,
        layout,
        window: table.read(Keys::window),
        load,
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
    let id = value.whole_in(0..=last, "0")? as u8;
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
fn read_load(table: Table<'_>, max_value: usize) -> Option<Load> {
    let size = table.spanned(LoadKeys::size);
    let rate = table.read(LoadKeys::rate);
    if let Some(size) = size.as_ref().filter(|size| *size.get_ref() > max_value) {
        let message = format!("`size` is {} bytes, but `max_value` is {max_value}", size.get_ref());
        let problem = Problem::at(size.span(), message).label("too long");
        table.problems().add(problem.help("lower `size`, or raise `max_value` at all servers"));
    }
    table.finish();
    Some(Load { size: size?.into_inner(), rate })
}

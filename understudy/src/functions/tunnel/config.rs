//! Reads the table `[tunnel]` beside `[forward]` or `[onepipe]`: tunnels end at this switch, before its
//! function handles the inner packets.

#[cfg(test)]
mod tests;

use super::types::{InnerFunction, TunnelConfig};
use crate::functions::function::SwitchFunction;
use crate::functions::onepipe::OnePipeConfig;
use core::net::IpAddr;
use core::ops::Range;
use rocev2::ethernet::MacAddr;
use settings::address::ip;
use settings::declare::{TableSpec, list, mac, other, special};
use settings::report::Problem;
use settings::tree::{Table, Value};
use switch::tunnel::InnerForwarding;

/// Functions that can have tunnels in front of them
const FUNCTIONS: [&TableSpec; 2] = [switch::forward::Config::TABLE, OnePipeConfig::TABLE];
/// Largest number of addresses, more than a switch has neighbours
const MAX_ADDRESSES: usize = 1 << 16;
const NEXT_HOP_EXAMPLE: &str = "{ address = \"10.0.1.1\", mac = \"02:00:00:00:01:01\" }";

settings::table! {
    /// Tunnels that end at this switch, before `[forward]` or `[onepipe]` handles the inner packets
    pub(crate) enum Keys "[tunnel]";
    /// MAC address of the switch
    mac: MacAddr = mac() => optional("that of the router, or of the first port") example("02:00:00:00:00:fe");
    /// Addresses at which tunnels end
    addresses: () = special("list of IP addresses") => required() example(["10.255.0.1"]);
    /// Addresses from which tunnels are accepted
    sources: () = special("list of IP addresses") => required() example(["10.0.1.1", "10.255.0.5"]);
    /// Destinations of inner packets, unless the function is a router
    next_hops: () = list(&HopKeys::TABLE) => optional("the router sends inner packets on") example([{ address = "10.0.1.1", mac = "02:00:00:00:01:01" }]);
}

settings::table! {
    /// Next hop of inner packets
    pub(crate) enum HopKeys "`next_hops`";
    /// Destination address of inner packets
    address: IpAddr = other("IP address", unicast) => required() example("10.0.1.1");
    /// MAC address of the next hop
    mac: MacAddr = mac() => required() example("02:00:00:00:01:01");
}

/// Reads `[tunnel]`, if the file has it.
/// `function` is the function behind the tunnels, if it is valid and tunnels can end in front of it.
pub(crate) fn read_optional(root: &Table<'_>, function: Option<InnerFunction>) -> Option<TunnelConfig> {
    let Some(given) = root.header_span(&Keys::TABLE) else {
        root.problems().add_absent(&Keys::TABLE);
        return None;
    };
    if FUNCTIONS.iter().all(|table| !root.has(table)) {
        let problem = Problem::at(given, "[tunnel] needs [forward] or [onepipe]").label("no such function");
        let help = "remove it, or replace the function by [forward] or [onepipe]: only these end tunnels";
        root.problems().add(problem.help(help));
    }
    let table = root.section(&Keys::TABLE)?;
    let config = read(&table, function.as_ref());
    table.finish();
    config
}

fn read(table: &Table<'_>, inner_function: Option<&InnerFunction>) -> Option<TunnelConfig> {
    let (mac, tunnel_mac) = (table.value(Keys::mac), table.read(Keys::mac));
    let endpoints = table.value(Keys::addresses).and_then(|value| addresses(&value));
    let sources = table.value(Keys::sources).and_then(|value| addresses(&value));
    let next_hops = table.value(Keys::next_hops);
    let hops = next_hops.as_ref().map(self::next_hops);
    if let Some(endpoints) = &endpoints {
        for (source, span) in sources.iter().flatten() {
            check_version(table, *source, span.clone(), endpoints);
            if let Some((_, own)) = endpoints.iter().find(|(end, _)| end == source) {
                let problem = Problem::at(span.clone(), format!("{source} is an address of this switch"));
                let problem = problem.label("a tunnel from here to here").also(own.clone(), "ends here");
                table.problems().add(problem.help("remove it: `sources` are the switches at the other ends"));
            }
        }
    }
    if let Some(inner_function) = inner_function {
        if let (Some(value), Some(tunnel_mac), Some(own)) = (&mac, tunnel_mac, inner_function.router_mac)
            && tunnel_mac != own
        {
            let problem =
                value.problem(format!("`mac` of [tunnel] is {tunnel_mac}, but the router's is {own}"));
            value.add(problem.label("not the router's").help(
                "remove `mac`, or write that of `routes`: the router drops frames for other addresses",
            ));
        }
        check_next_hops(table, next_hops.as_ref(), inner_function.router_mac.is_some());
    }
    let without_spans =
        |found: Vec<(IpAddr, Range<usize>)>| found.into_iter().map(|(address, _)| address).collect();
    Some(TunnelConfig {
        mac: tunnel_mac.or_else(|| inner_function.and_then(|inner_function| inner_function.mac)),
        endpoints: without_spans(endpoints?),
        sources: without_spans(sources?),
        inner_forwarding: match hops {
            Some(hops) => InnerForwarding::NextHops(hops?),
            None => InnerForwarding::Function,
        },
    })
}

/// Reports whether inner packets have no next hop, or two sources of one.
fn check_next_hops(table: &Table<'_>, next_hops: Option<&Value<'_>>, is_router: bool) {
    match next_hops {
        Some(value) if is_router => {
            let problem = Problem::at(value.key_span(), "`next_hops` is not valid for a router");
            value.add(problem.label("the router has routes").help(
                "remove it: a router sends inner packets on by `routes`, and by the `mac` of the next hops \
                 there",
            ));
        }
        None if !is_router => {
            let problem = table.problem("[tunnel] does not define where inner packets go");
            table.problems().add(problem.label("no next hop").help(format!(
                "add `next_hops = [{NEXT_HOP_EXAMPLE}]`, or make the switch a router, by `routes` with a \
                 `mac`: inner packets arrive with this switch's own MAC address, which gives a bridge or a \
                 wire no destination"
            )));
        }
        _ => {}
    }
}

/// Reads a list of addresses with their spans.
fn addresses(value: &Value<'_>) -> Option<Vec<(IpAddr, Range<usize>)>> {
    let list = value.list()?;
    if list.is_empty() || list.len() > MAX_ADDRESSES {
        let problem = value.problem(format!("{} has {} addresses", value.name(), list.len()));
        let help = format!("write 1 to {MAX_ADDRESSES} addresses{}", value.such_as());
        value.add(problem.label("too few or too many").help(help));
        return None;
    }
    let found: Option<Vec<_>> = list.iter().map(|value| Some((unicast(value)?, value.span()))).collect();
    let found = found?;
    let mut sorted: Vec<_> = found.iter().collect();
    sorted.sort_by_key(|&&(address, _)| address);
    for pair in sorted.windows(2) {
        let [(address, first), (same, second)] = pair else { continue };
        if address == same {
            value.add(duplicate(*address, first, second));
        }
    }
    Some(found)
}

fn duplicate(address: IpAddr, first: &Range<usize>, second: &Range<usize>) -> Problem {
    let problem = Problem::at(second.clone(), format!("{address} is listed twice")).label("again");
    problem.also(first.clone(), "first here").help("remove one of the two")
}

fn unicast(value: &Value<'_>) -> Option<IpAddr> {
    let ip = ip(value)?;
    if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        let problem = value.problem(format!("{ip} is not a routable unicast address"));
        value.add(problem.label("not the address of a host or switch").help(
            "write addresses that the network routes to, such as that of a host or of a switch's loopback \
             interface",
        ));
        return None;
    }
    Some(ip)
}

/// Reports a source whose IP version no end has: both addresses of a header have the same version.
fn check_version(
    table: &Table<'_>,
    source: IpAddr,
    span: Range<usize>,
    endpoints: &[(IpAddr, Range<usize>)],
) {
    if endpoints.iter().any(|(end, _)| end.is_ipv4() == source.is_ipv4()) {
        return;
    }
    let version = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let problem = Problem::at(span, format!("{source} is an {version} address, but no tunnel ends at one"));
    table.problems().add(problem.label("no end of this version").help(format!(
        "add an {version} address to `addresses`, or write the source's address of the other version: one \
         header holds both"
    )));
}

fn next_hops(value: &Value<'_>) -> Option<Vec<(IpAddr, MacAddr)>> {
    let mut hops = Vec::new();
    let mut spans: Vec<(IpAddr, Range<usize>)> = Vec::new();
    for element in value.list()? {
        let table = element.with_example(NEXT_HOP_EXAMPLE).inline()?;
        let (found, mac) = (table.spanned(HopKeys::address), table.read(HopKeys::mac));
        if let Some(found) = &found {
            if let Some((_, first)) = spans.iter().find(|(other, _)| other == found.get_ref()) {
                table.problems().add(duplicate(*found.get_ref(), first, &found.span()));
            }
            spans.push((*found.get_ref(), found.span()));
        }
        table.finish();
        hops.push(found.map(toml::Spanned::into_inner).zip(mac));
    }
    hops.into_iter().collect()
}

//! The table `[tunnel]` beside `[forward]` or `[onepipe]`: tunnels end at this switch, before its function sees what they carry.

use super::FunctionConfig;
use super::forward::station;
use super::nic::ip;
use super::onepipe::router;
use super::report::Problem;
use super::tree::{Problems, Table, Value, absent, section};
use core::net::IpAddr;
use core::ops::Range;
use rocev2::ethernet::MacAddr;
use switch::forward::config::Topology;
use switch::tunnel::{Config, Onward};

const KEY: &str = "tunnel";
/// Functions that it stands in front of
const BEHIND: [&str; 2] = ["forward", "onepipe"];
/// More neighbours than a switch has
const MAX_ADDRESSES: usize = 1 << 16;
const NEXT_HOP: &str = "{ address = \"10.0.1.1\", mac = \"02:00:00:00:01:01\" }";

/// What `[tunnel]` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TunnelConfig {
    /// The switch's MAC address; the first port's own if nothing says it
    pub(crate) mac: Option<MacAddr>,
    /// Addresses at which tunnels end
    pub(crate) ends: Vec<IpAddr>,
    /// Whose tunnels
    pub(crate) sources: Vec<IpAddr>,
    /// Who sends the inner packets on
    pub(crate) onward: Onward,
}

impl TunnelConfig {
    /// The same for a switch whose first port has this MAC address.
    pub(crate) fn at(&self, port_mac: MacAddr) -> Config {
        let Self { mac, ends, sources, onward } = self.clone();
        Config { mac: mac.unwrap_or(port_mac), ends, sources, onward }
    }
}

/// Reads what stands in front of the function, if there is anything.
pub(super) fn beside(root: &Table<'_>, function: Option<&FunctionConfig>) -> Option<TunnelConfig> {
    let Some(given) = root.get(KEY, "") else {
        // Which keys it would have is told all the same.
        let unheard = Problems::default();
        let table = absent(KEY, &unheard);
        read(&table, None);
        table.finish();
        root.problems().know_tables_of(unheard);
        return None;
    };
    if BEHIND.iter().all(|key| root.get(key, "").is_none()) {
        let problem = Problem::at(given.key_span(), "[tunnel] has neither [forward] nor [onepipe] behind it");
        given.add(problem.label("in front of what?").help(
            "remove it: only a switch that forwards, and that of 1Pipe, end tunnels; add such a function in place of another \
             if this is one",
        ));
    }
    let table = section(root, KEY)?;
    let config = read(&table, function.and_then(behind).as_ref());
    table.finish();
    config
}

/// What is known of the switch behind
struct Behind<'a> {
    topology: &'a Topology,
    /// Its MAC address, if the file says it
    mac: Option<MacAddr>,
}

fn behind(function: &FunctionConfig) -> Option<Behind<'_>> {
    let (topology, mac) = match function {
        FunctionConfig::Forward(forward) => (&forward.topology, None),
        FunctionConfig::OnePipe(onepipe) => (&onepipe.switch.forward.topology, onepipe.mac),
        _ => return None,
    };
    Some(Behind { topology, mac: router(topology).or(mac) })
}

fn read(table: &Table<'_>, behind: Option<&Behind<'_>>) -> Option<TunnelConfig> {
    let mac = table.get("mac", "\"02:00:00:00:00:fe\"");
    let said = mac.as_ref().map(station);
    let ends = addresses(table, "addresses", "[\"10.255.0.1\"]", "where do tunnels end?");
    let sources = addresses(table, "sources", "[\"10.0.1.1\", \"10.255.0.5\"]", "whose tunnels?");
    let next_hops = table.get("next_hops", NEXT_HOP);
    let hops = next_hops.as_ref().map(self::next_hops);
    if let Some(ends) = &ends {
        for &(source, ref place) in sources.iter().flatten() {
            one_version(table, source, place.clone(), ends);
        }
    }
    if let Some(behind) = behind {
        if let (Some(value), Some(Some(said)), Some(own)) = (&mac, said, router(behind.topology))
            && said != own
        {
            let problem = value.problem(format!("the tunnels end at {said}, and the router is {own}"));
            value.add(
                problem
                    .label("another address")
                    .help("leave `mac` out, or write that of `routes`: the router drops what is for others"),
            );
        }
        goes_on(table, next_hops.as_ref(), router(behind.topology).is_some());
    }
    let only = |found: Vec<(IpAddr, Range<usize>)>| found.into_iter().map(|(address, _)| address).collect();
    Some(TunnelConfig {
        mac: match said {
            Some(said) => Some(said?),
            None => behind.and_then(|behind| behind.mac),
        },
        ends: only(ends?),
        sources: only(sources?),
        onward: match hops {
            Some(hops) => Onward::NextHops(hops?),
            None => Onward::Function,
        },
    })
}

/// Whether it is known how what tunnels carry gets on.
fn goes_on(table: &Table<'_>, next_hops: Option<&Value<'_>>, is_router: bool) {
    match next_hops {
        Some(value) if is_router => {
            let problem = Problem::at(value.key_span(), "`next_hops` are for a switch that is no router");
            value.add(problem.label("twice").help(
                "remove it: what comes out of tunnels goes by `routes`, and by the `mac` of the next hops there",
            ));
        }
        None if !is_router => {
            let problem = table.problem("nothing says where what tunnels carry goes next");
            table.problems().add(problem.label("to whom?").help(format!(
                "it comes to this switch's own MAC address, by which no bridge and no wire finds the way: add `next_hops = \
                 [{NEXT_HOP}]`, or make the switch a router, by `routes` with a `mac`"
            )));
        }
        _ => {}
    }
}

/// A list of addresses, each with its place
fn addresses(
    table: &Table<'_>,
    key: &'static str,
    example: &'static str,
    label: &str,
) -> Option<Vec<(IpAddr, Range<usize>)>> {
    let value = table.require(key, example)?;
    let list = value.list()?;
    if list.is_empty() || list.len() > MAX_ADDRESSES {
        let problem = value.problem(format!("`{key}` has {} addresses", list.len())).label(label);
        value.add(problem.help(format!("write 1 to {MAX_ADDRESSES}{}", value.such_as())));
        return None;
    }
    let found: Option<Vec<_>> = list.iter().map(|value| Some((unicast(value)?, value.span()))).collect();
    let found = found?;
    let mut sorted: Vec<_> = found.iter().collect();
    sorted.sort_by_key(|&&(address, _)| address);
    for pair in sorted.windows(2) {
        let [(address, first), (same, second)] = pair else { continue };
        if address == same {
            value.add(twice(*address, first, second));
        }
    }
    Some(found)
}

fn twice(address: IpAddr, first: &Range<usize>, second: &Range<usize>) -> Problem {
    let problem = Problem::at(second.clone(), format!("{address} stands there twice")).label("again");
    problem.also(first.clone(), "first here").help("remove one of the two")
}

fn unicast(value: &Value<'_>) -> Option<IpAddr> {
    let ip = ip(value)?;
    if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() {
        let problem = value.problem(format!("no packet can be sent to {ip} alone"));
        value.add(problem.label("not an address of one station").help(
            "write addresses that the network routes to: a switch's, such as that of a loopback interface, or a host's",
        ));
        return None;
    }
    Some(ip)
}

/// A header has addresses of one version.
fn one_version(table: &Table<'_>, source: IpAddr, place: Range<usize>, ends: &[(IpAddr, Range<usize>)]) {
    if ends.iter().any(|(end, _)| end.is_ipv4() == source.is_ipv4()) {
        return;
    }
    let version = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let problem = Problem::at(place, format!("{source} is an {version} address, and no tunnel ends at one"));
    table.problems().add(problem.label("to which end?").help(format!(
        "add an {version} address to `addresses`, or write the source's other one: both are in one header"
    )));
}

fn next_hops(value: &Value<'_>) -> Option<Vec<(IpAddr, MacAddr)>> {
    let list = value.list()?;
    let mut hops = Vec::new();
    let mut places: Vec<(IpAddr, Range<usize>)> = Vec::new();
    for element in list {
        let element = element.like(NEXT_HOP);
        let table = element.table("`next_hops`")?;
        let to = table.require("address", "\"10.0.1.1\"");
        let found = to.as_ref().and_then(unicast);
        let mac = table.require("mac", "\"02:00:00:00:01:01\"").and_then(|value| station(&value));
        table.finish();
        if let (Some(to), Some(found)) = (&to, found) {
            if let Some((_, first)) = places.iter().find(|(other, _)| *other == found) {
                element.add(twice(found, first, &to.span()));
            }
            places.push((found, to.span()));
        }
        hops.push(found.zip(mac));
    }
    hops.into_iter().collect()
}

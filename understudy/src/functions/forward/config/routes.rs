//! Reads `routes`, the table of a router, for functions that forward.

use core::ops::Range;
use rocev2::ethernet::MacAddr;
use settings::address::station;
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value, subsections};
use switch::forward::config::{NextHop, Prefix, Route, RouteTable, Ttl};

/// Largest number of routes, enough for a switch of the largest networks
const MAX_ROUTES: usize = 1 << 20;
const HOP_EXAMPLE: &str = "{ port = \"host-a\", mac = \"02:00:00:00:00:01\" }";

/// Reads `routes`, which is part of the function's table `within`.
pub(in crate::functions) fn read(value: &Value<'_>, within: &Table<'_>, ports: &Ports) -> Option<RouteTable> {
    let table = value.table("`routes`")?;
    let own_mac = table.get("mac", "\"02:00:00:00:00:fe\"");
    let has_mac = own_mac.is_some();
    let mac = own_mac.map_or(Some(MacAddr([0; 6])), |value| station(&value));
    let ttl = table.get("ttl", "\"keep\"").and_then(|value| value.word(&["decrement", "keep"]));
    let seed = table.number("seed", 0..=i64::MAX as u64, 1);
    let name = format!("[[{}.routes.to]]", within.name().trim_matches(['[', ']']));
    let routes = routes(&table, &name, ports, has_mac);
    table.finish();
    let ttl = if ttl == Some("keep") { Ttl::Keep } else { Ttl::Decrement };
    Some(RouteTable { mac: mac?, ttl, seed, routes: routes? })
}

fn routes(table: &Table<'_>, name: &str, ports: &Ports, has_mac: bool) -> Option<Vec<Route>> {
    let tables = subsections(table, "to", name)?;
    if tables.is_empty() {
        let problem = table.problem("`routes` has no route").label("no destination");
        table.problems().add(problem.help(format!(
            "add one for each network, such as\n\n{name}\nprefix = \"10.0.0.0/8\"\nvia = [{HOP_EXAMPLE}]"
        )));
    }
    if let Some(excess) = tables.get(MAX_ROUTES) {
        let problem = excess.problem(format!("`routes` has {} routes", tables.len()));
        let problem = problem.label("the first one too many");
        table.problems().add(problem.help(format!("keep at most {MAX_ROUTES}")));
        return None;
    }
    let mut spans: std::collections::HashMap<Prefix, Range<usize>> = std::collections::HashMap::new();
    let mut routes = Vec::new();
    for table in tables {
        let given = table.require("prefix", "\"10.0.0.0/8\"");
        let to = given.as_ref().and_then(prefix);
        let via =
            table.require("via", "[{ port = \"host-a\" }]").and_then(|value| hops(&value, ports, has_mac));
        table.finish();
        if let (Some(given), Some(to)) = (given, to) {
            if let Some(first) = spans.get(&to) {
                let problem = given.problem(format!("two routes have the prefix {to}")).label("again");
                let problem = problem.also(first.clone(), "first here");
                given
                    .add(problem.help(
                        "put all next hops into the `via` of one route, which spreads flows over them",
                    ));
            }
            spans.insert(to, given.span());
        }
        routes.push(to.zip(via).map(|(to, via)| Route { to, via }));
    }
    routes.into_iter().collect()
}

pub(in crate::functions) fn prefix(value: &Value<'_>) -> Option<Prefix> {
    let text = value.text()?;
    let prefix = text.parse().ok();
    if prefix.is_none() {
        let problem =
            value.problem(format!("`{text}` is not a prefix")).label("not an address with a prefix length");
        value.add(problem.help(
            "write an address whose bits after the prefix are zero, such as `\"10.0.0.0/8\"` or \
             `\"fd00::/16\"`",
        ));
    }
    prefix
}

fn hops(value: &Value<'_>, ports: &Ports, has_mac: bool) -> Option<Vec<NextHop>> {
    let list = value.list()?;
    if list.is_empty() {
        let problem = value.problem("`via` is empty").label("no next hop");
        value.add(problem.help(format!(
            "write a next hop, such as `via = [{HOP_EXAMPLE}]`, or remove the route: packets without a route \
             are dropped"
        )));
        return None;
    }
    let mut hops = Vec::new();
    for element in list {
        let element = element.with_example(HOP_EXAMPLE);
        let Some(table) = element.table("`via`") else { continue };
        let port = table.require("port", "\"host-a\"").and_then(|value| ports.find(&value));
        let given = table.get("mac", "\"02:00:00:00:00:01\"");
        let mac = given.as_ref().and_then(station);
        table.finish();
        if let Some(given) = given.filter(|_| !has_mac) {
            let problem = Problem::at(given.key_span(), "a next hop has a `mac`, but the router has none");
            given.add(
                problem.label("no source address").help("add `mac = \"02:00:00:00:00:fe\"` to `routes`"),
            );
        }
        hops.push(port.map(|port| NextHop { port, mac }));
    }
    hops.into_iter().collect()
}

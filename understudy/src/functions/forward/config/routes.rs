//! Reads `routes`, the table of a router, for functions that forward.

use core::ops::Range;
use rocev2::ethernet::MacAddr;
use settings::declare::{list, mac, other, special, tables, whole, words};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use switch::forward::config::{NextHop, Prefix, Route, RouteTable, Ttl};

/// Largest number of routes, enough for a switch of the largest networks
const MAX_ROUTES: usize = 1 << 20;
const HOP_EXAMPLE: &str = "{ port = \"host-a\", mac = \"02:00:00:00:00:01\" }";

settings::table! {
    /// Router; a packet without a route is dropped
    pub(crate) enum RouterKeys "`routes`";
    /// MAC address of the router, which drops frames for other addresses; next hops with a `mac` need it
    mac: MacAddr = mac() => optional("frames for every address are routed") example("02:00:00:00:00:fe");
    /// Whether a packet's TTL is decremented, as by a router, or kept, as by a switch
    ttl: Ttl = words(&[("decrement", Ttl::Decrement), ("keep", Ttl::Keep)]) => default("decrement") example("keep");
    /// Seed of the choice between equal next hops
    seed: u64 = whole(0..=i64::MAX as u64) => default(1);
    /// Destinations; the header begins with the table of the router, as in `[[forward.routes.to]]`
    to: () = tables(&RouteKeys::TABLE) => required();
}

settings::table! {
    /// Route to a network
    pub(crate) enum RouteKeys "[[forward.routes.to]]";
    /// Network: an address, and the length of its prefix
    prefix: Prefix = other("prefix", prefix) => required() example("10.0.0.0/8");
    /// Next hops, over which flows are spread
    via: () = list(&HopKeys::TABLE) => required() example([{ port = "host-a" }]);
}

settings::table! {
    /// Next hop
    pub(crate) enum HopKeys "`via`";
    /// Port that leads to it
    port: () = special("name of a port") => required() example("host-a");
    /// Its MAC address, which the router writes into each frame
    mac: MacAddr = mac() => optional("frames keep their addresses") example("02:00:00:00:00:01");
}

/// Reads `routes`, which is part of the function's table `within`.
pub(in crate::functions) fn read(value: &Value<'_>, within: &Table<'_>, ports: &Ports) -> Option<RouteTable> {
    let table = value.inline()?;
    let has_mac = table.value(RouterKeys::mac).is_some();
    let mac = table.read(RouterKeys::mac).unwrap_or(MacAddr([0; 6]));
    let (ttl, seed) = (table.read(RouterKeys::ttl), table.read(RouterKeys::seed));
    let name = format!("[[{}.routes.to]]", within.name().trim_matches(['[', ']']));
    let routes = routes(&table, &name, ports, has_mac);
    table.finish();
    Some(RouteTable { mac, ttl, seed, routes: routes? })
}

fn routes(table: &Table<'_>, name: &str, ports: &Ports, has_mac: bool) -> Option<Vec<Route>> {
    let tables = table.tables_named(RouterKeys::to, name)?;
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
        let given = table.spanned(RouteKeys::prefix);
        let via = table.value(RouteKeys::via).and_then(|value| hops(&value, ports, has_mac));
        let to = given.as_ref().map(|given| *given.get_ref());
        if let (Some(given), Some(to)) = (given, to) {
            if let Some(first) = spans.get(&to) {
                let message = format!("two routes have the prefix {to}");
                let problem =
                    Problem::at(given.span(), message).label("again").also(first.clone(), "first here");
                table
                    .problems()
                    .add(problem.help(
                        "put all next hops into the `via` of one route, which spreads flows over them",
                    ));
            }
            spans.insert(to, given.span());
        }
        table.finish();
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
        let Some(table) = element.with_example(HOP_EXAMPLE).inline() else { continue };
        let port = table.value(HopKeys::port).and_then(|value| ports.find(&value));
        let (given, mac) = (table.value(HopKeys::mac), table.read(HopKeys::mac));
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

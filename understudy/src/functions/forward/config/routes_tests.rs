//! Tests of `routes`.

use crate::config::tests::{PORTS, fails, read};
use crate::functions::FunctionConfig;
use rocev2::ethernet::MacAddr;
use switch::PortId;
use switch::forward::config::{ForwardingMode, NextHop, Route, RouteTable, Ttl};

/// Returns a file with these lines in `[forward.routes]`, and a route with these.
fn routes(table: &str, route: &str) -> String {
    [PORTS, "[forward.routes]\n", table, "\n[[forward.routes.to]]\n", route, "\n"].concat()
}

fn table(text: &str) -> RouteTable {
    match read(text).function {
        FunctionConfig::Forward(switch::forward::Config { mode: ForwardingMode::Routes(table), .. }) => table,
        other => panic!("{other:?}"),
    }
}

const ROUTE: &str = "prefix = \"10.0.0.0/8\"\nvia = [{ port = \"a\" }]";

#[test]
fn keys_and_defaults_are_read() {
    let hop = NextHop { port: PortId(0), mac: None };
    let route = Route { to: "10.0.0.0/8".parse().unwrap(), via: vec![hop] };
    let expected =
        RouteTable { mac: MacAddr([0; 6]), ttl: Ttl::Decrement, seed: 1, routes: vec![route.clone()] };
    assert_eq!(table(&routes("", ROUTE)), expected);
    let text = routes("mac = \"02:00:00:00:00:fe\"\nttl = \"keep\"\nseed = 9", ROUTE)
        + "[[forward.routes.to]]\nprefix = \"fd00::/16\"\n\
           via = [{ port = \"b\", mac = \"02:00:00:00:00:01\" }, { port = \"a\" }]\n";
    let beside = NextHop { port: PortId(1), mac: Some(MacAddr([2, 0, 0, 0, 0, 1])) };
    let second = Route { to: "fd00::/16".parse().unwrap(), via: vec![beside, hop] };
    let expected = RouteTable {
        mac: MacAddr([2, 0, 0, 0, 0, 0xfe]),
        ttl: Ttl::Keep,
        seed: 9,
        routes: vec![route, second],
    };
    assert_eq!(table(&text), expected);
}

#[test]
fn invalid_routes_are_reported() {
    fails(
        &[PORTS, "[forward]\nroutes = {} #!\n"].concat(),
        "`routes` has no route",
        "add one for each network, such as\n\n[[forward.routes.to]]\nprefix = \"10.0.0.0/8\"\nvia = [{ port = \"host-a\", mac = \
         \"02:00:00:00:00:01\" }]",
    );
    for text in ["10.0.0.1/8", "10.0.0.0/33", "10.0.0.0", "fd00::/129", "all"] {
        fails(
            &routes("", &ROUTE.replace("10.0.0.0/8\"", &format!("{text}\" #!"))),
            &format!("`{text}` is not a prefix"),
            "write an address whose bits after the prefix are zero, such as `\"10.0.0.0/8\"` or \
             `\"fd00::/16\"`",
        );
    }
    fails(
        &routes("", &ROUTE.replace("[{ port = \"a\" }]", "[] #!")),
        "`via` is empty",
        "write a next hop, such as `via = [{ port = \"host-a\", mac = \"02:00:00:00:00:01\" }]`, or remove \
         the route: packets without a route are dropped",
    );
    fails(
        &routes("", &ROUTE.replace(" }]", ", mac = \"02:00:00:00:00:01\" }] #!")),
        "a next hop has a `mac`, but the router has none",
        "add `mac = \"02:00:00:00:00:fe\"` to `routes`",
    );
    fails(
        &(routes("", ROUTE) + "[[forward.routes.to]]\n" + &ROUTE.replace("/8\"", "/8\" #!")),
        "two routes have the prefix 10.0.0.0/8",
        "put all next hops into the `via` of one route, which spreads flows over them",
    );
    fails(
        &routes("gateway = 1 #!", ROUTE),
        "there is no key `gateway` in `routes`",
        "`routes` takes `mac`, `ttl`, `seed` and `to`",
    );
    fails(
        &[
            PORTS,
            "[forward]\nmac_table = {}\nroutes.to = [{ prefix = \"::/0\", via = [{ port = \"a\" }] }] #!\n",
        ]
        .concat(),
        "[forward] has both `mac_table` and `routes`",
        "keep `pairs` to join ports two by two, `mac_table` for a learning bridge, or `routes` for a router",
    );
}

//! Tests of `[tunnel]`.

use crate::config::tests::{FORWARD, PORTS, fails, read};
use crate::functions::tunnel::TunnelConfig;
use rocev2::ethernet::MacAddr;
use switch::tunnel::{Config, InnerForwarding};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);
const ROUTER: &str = "[forward.routes]\nmac = \"02:00:00:00:00:fe\"\n[[forward.routes.to]]\nprefix = \"0.0.0.0/0\"\n\
                      via = [{ port = \"a\", mac = \"02:00:00:00:00:01\" }]\n";
const TUNNEL: &str = "[tunnel]\naddresses = [\"10.255.0.1\"]\nsources = [\"10.0.1.1\"]\n";
const HOPS: &str = "next_hops = [{ address = \"10.0.1.1\", mac = \"02:00:00:00:00:01\" }]\n";
const BRIDGE: &str = "[forward]\nmac_table = {}\n";
const ONEPIPE: &str = "[onepipe]\nincarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\nmac = \"02:00:00:00:00:fe\"\n\
                       [[onepipe.links]]\nside = \"below\"\nport = \"a\"\nmac = \"02:00:00:00:00:01\"\naddress = \"10.0.0.1\"\n\
                       qpn = 0x11\n";
const ADDRESS_HELP: &str =
    "write addresses that the network routes to, such as that of a host or of a switch's loopback interface";

fn tunnel(parts: &[&str]) -> TunnelConfig {
    let text = [&[PORTS], parts].concat().concat();
    read(&text).tunnel.unwrap_or_else(|| panic!("no tunnel in{text}"))
}

/// Returns the file of a router with this change to `[tunnel]`.
fn slip(from: &str, to: &str) -> String {
    assert!(TUNNEL.contains(from));
    [PORTS, &TUNNEL.replace(from, to), ROUTER].concat()
}

#[test]
fn keys_and_defaults_are_read() {
    let expected = TunnelConfig {
        mac: Some(OWN),
        endpoints: vec![[10, 255, 0, 1].into()],
        sources: vec![[10, 0, 1, 1].into()],
        inner_forwarding: InnerForwarding::Function,
    };
    // A router uses its own MAC address for the tunnels.
    assert_eq!(tunnel(&[TUNNEL, ROUTER]), expected);
    assert_eq!(tunnel(&[TUNNEL, "mac = \"02:00:00:00:00:fe\"\n", ROUTER]), expected);
    let hops = InnerForwarding::NextHops(vec![([10, 0, 1, 1].into(), MacAddr([2, 0, 0, 0, 0, 1]))]);
    let bridge = TunnelConfig { inner_forwarding: hops, ..expected };
    assert_eq!(tunnel(&[TUNNEL, HOPS, ONEPIPE]), bridge, "[onepipe] gives its address to the tunnels");
    let nobody_says = TunnelConfig { mac: None, ..bridge.clone() };
    for function in [BRIDGE, FORWARD] {
        assert_eq!(tunnel(&[TUNNEL, HOPS, function]), nobody_says);
    }
    let port = MacAddr([2, 0, 0, 0, 0, 9]);
    let TunnelConfig { endpoints, sources, inner_forwarding, .. } = bridge.clone();
    assert_eq!(nobody_says.with_port_mac(port), Config { mac: port, endpoints, sources, inner_forwarding });
    assert_eq!(bridge.with_port_mac(port).mac, OWN);
    let both = TUNNEL.replace("\"]\ns", "\", \"fd00::1\"]\ns").replace(".1.1\"", ".1.1\", \"fd00::2\"");
    let both = tunnel(&[&both, ROUTER]);
    assert_eq!((both.endpoints.len(), both.sources.len()), (2, 2));
    assert_eq!(read(&[PORTS, BRIDGE].concat()).tunnel, None);
}

#[test]
fn inner_packets_need_exactly_one_next_hop() {
    fails(
        &[PORTS, &TUNNEL.replace("[tunnel]", "[tunnel] #!"), BRIDGE].concat(),
        "[tunnel] does not define where inner packets go",
        "add `next_hops = [{ address = \"10.0.1.1\", mac = \"02:00:00:00:01:01\" }]`, or make the switch a \
         router, by `routes` with a `mac`: inner packets arrive with this switch's own MAC address, which \
         gives a bridge or a wire no destination",
    );
    fails(
        &[PORTS, TUNNEL, &HOPS.replace('\n', " #!\n"), ROUTER].concat(),
        "`next_hops` is not valid for a router",
        "remove it: a router sends inner packets on by `routes`, and by the `mac` of the next hops there",
    );
    fails(
        &[PORTS, TUNNEL, "mac = \"02:00:00:00:00:fd\" #!\n", ROUTER].concat(),
        "`mac` of [tunnel] is 02:00:00:00:00:fd, but the router's is 02:00:00:00:00:fe",
        "remove `mac`, or write that of `routes`: the router drops frames for other addresses",
    );
    fails(
        &[PORTS, &TUNNEL.replace("[tunnel]", "[tunnel] #!"), "[impair]\npairs = [[\"a\", \"b\"]]\n"].concat(),
        "[tunnel] needs [forward] or [onepipe]",
        "remove it, or replace the function by [forward] or [onepipe]: only these end tunnels",
    );
}

#[test]
fn invalid_addresses_are_reported() {
    fails(
        &slip("[\"10.255.0.1\"]", "[] #!"),
        "`addresses` has 0 addresses",
        "write 1 to 65536 addresses, such as `addresses = [\"10.255.0.1\"]`",
    );
    fails(
        &slip("[\"10.0.1.1\"]", "[] #!"),
        "`sources` has 0 addresses",
        "write 1 to 65536 addresses, such as `sources = [\"10.0.1.1\", \"10.255.0.5\"]`",
    );
    for address in ["224.0.0.1", "0.0.0.0", "127.0.0.1"] {
        fails(
            &slip("10.255.0.1\"]", &format!("{address}\"] #!")),
            &format!("{address} is not a routable unicast address"),
            ADDRESS_HELP,
        );
    }
    fails(
        &slip("[\"10.0.1.1\"]", "[\"10.0.1.1\", \"10.0.1.1\"] #!"),
        "10.0.1.1 is listed twice",
        "remove one of the two",
    );
    fails(
        &slip("[\"10.0.1.1\"]", "[\"10.255.0.1\"] #!"),
        "10.255.0.1 is an address of this switch",
        "remove it: `sources` are the switches at the other ends",
    );
    fails(
        &slip("10.0.1.1\"]", "fd00::1\"] #!"),
        "fd00::1 is an IPv6 address, but no tunnel ends at one",
        "add an IPv6 address to `addresses`, or write the source's address of the other version: one header \
         holds both",
    );
    fails(
        &slip("sources", "source = 1 #!\nsources"),
        "there is no key `source` in [tunnel]",
        "did you mean `sources`? [tunnel] takes `mac`, `addresses`, `sources` and `next_hops`",
    );
    let hop = HOPS.trim_end().replace(']', ", ");
    fails(
        &[PORTS, TUNNEL, &hop, "{ address = \"10.0.1.1\", mac = \"02:00:00:00:00:02\" }] #!\n", BRIDGE]
            .concat(),
        "10.0.1.1 is listed twice",
        "remove one of the two",
    );
    fails(
        &[
            PORTS,
            TUNNEL,
            &HOPS.replace("02:00:00:00:00:01\"", "01:00:00:00:00:01\"").replace('\n', " #!\n"),
            BRIDGE,
        ]
        .concat(),
        "01:00:00:00:00:01 is a group address, which belongs to no single station",
        "give the address of one station: the first byte of such an address is even, as in `52:54:00:00:00:01`",
    );
}

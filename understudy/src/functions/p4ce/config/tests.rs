//! Tests of `[p4ce]`.

use crate::config::tests::{PORTS, fails, read};
use crate::functions::FunctionConfig;
use crate::functions::p4ce::P4ceConfig;
use p4ce::Limits;
use rocev2::ethernet::MacAddr;
use switch::Nanos;
use switch::forward::config::MacTable;

/// Returns a file with these lines in `[p4ce]`.
fn p4ce(lines: &str) -> String {
    [PORTS, "[p4ce]\n", lines, "\n"].concat()
}

fn switch(text: &str) -> P4ceConfig {
    match read(text).function {
        FunctionConfig::P4ce(config) => config,
        other => panic!("{other:?}"),
    }
}

const ADDRESS: &str = "addresses = [\"10.0.0.254/24\"]";

#[test]
fn keys_and_defaults_are_read() {
    let defaults = P4ceConfig {
        mac: None,
        addresses: vec![([10, 0, 0, 254].into(), 24)],
        gateways: vec![],
        vlan: None,
        port: 18_515,
        groups: 1024,
        max_replicas: 16,
        silent_after: Nanos::from_millis(200),
        setup_timeout: Nanos::from_millis(3000),
        limits: Limits { groups_per_leader: 1024, ..Limits::default() },
        secret: None,
        lists: [].into(),
        stations: MacTable { capacity: 4096, ageing: Nanos::from_secs(300), fixed: Vec::new() },
        ports: 2,
        counted_qps: 1024,
        health: true,
        seed: None,
        workers: 1,
    };
    assert_eq!(switch(&p4ce(ADDRESS)), defaults);
    let all = [
        "addresses = [\"10.0.0.254/24\", \"fd00::fe/64\"]\nmac = \"02:00:00:00:00:fe\"\ngateways = [\"10.0.0.1\"]",
        "vlan = 7\nport = 9\ngroups = 3\nmax_replicas = 4\nsilent_after_ms = 0\nsetup_timeout_ms = 50\nstations = 9",
        "leaders = [\"10.0.0.0/24\"]\nreplicas = [\"10.1.0.0/16\", \"fd00::/64\"]\ngroups_per_leader = 2",
        "leader_requests_per_s = 5\nrequests_per_s = 6",
        "secret = \"a secret of enough bytes\"\nageing_s = 8\ncounted_qps = 0\nseed = 5\n[[p4ce.list]]\nnumber = 2\nreplicas = [\"10.0.0.1\", \"10.0.0.2\"]",
    ];
    let expected = P4ceConfig {
        mac: Some(MacAddr([2, 0, 0, 0, 0, 0xfe])),
        addresses: vec![([10, 0, 0, 254].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, 0xfe].into(), 64)],
        gateways: vec![[10, 0, 0, 1].into()],
        vlan: Some(7),
        port: 9,
        groups: 3,
        max_replicas: 4,
        silent_after: Nanos::ZERO,
        setup_timeout: Nanos::from_millis(50),
        limits: Limits {
            leaders: vec!["10.0.0.0/24".parse().unwrap()],
            replicas: vec!["10.1.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()],
            groups_per_leader: 2,
            requests_per_leader: 5,
            requests: 6,
            ..Limits::default()
        },
        secret: Some(p4ce::Secret::new("a secret of enough bytes")),
        lists: [(2, vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()])].into(),
        stations: MacTable { capacity: 9, ageing: Nanos::from_secs(8), fixed: Vec::new() },
        ports: 2,
        counted_qps: 0,
        health: true,
        seed: Some(5),
        workers: 1,
    };
    assert_eq!(switch(&p4ce(&all.join("\n"))), expected);
}

#[test]
fn an_address_is_required() {
    fails(
        &p4ce("").replace("[p4ce]", "[p4ce] #!"),
        "[p4ce] has no `addresses`",
        "add `addresses = [\"10.0.0.254/24\"]`",
    );
    fails(
        &p4ce("addresses = [] #!"),
        "`addresses` is empty",
        "write the address at which leaders request groups, such as `addresses = [\"10.0.0.254/24\"]`",
    );
}

#[test]
fn groups_are_spread_over_all_workers() {
    let file = ["[runtime]\nworkers = [\"any\", \"any\", \"any\"]\n", &p4ce(ADDRESS)].concat();
    let config = switch(&file);
    assert_eq!(config.workers, 3);
    assert_eq!(
        crate::functions::p4ce::summary::lines(&config)[1],
        ("groups", "at the worker with the fewest, which gets their frames from the others".into())
    );
}

#[test]
fn permitted_hosts_are_named_by_subnet() {
    fails(
        &p4ce(&[ADDRESS, "\nleaders = [] #!"].concat()),
        "`leaders` is empty",
        "list the subnets of the permitted hosts, or remove the key to permit all",
    );
    fails(
        &p4ce(&[ADDRESS, "\nreplicas = [\"10.0.0.1/24\"] #!"].concat()),
        "`10.0.0.1/24` is not a prefix",
        "write an address whose bits after the prefix are zero, such as `\"10.0.0.0/8\"` or `\"fd00::/16\"`",
    );
}

#[test]
fn lists_have_valid_replicas_and_their_own_numbers() {
    let list = |lines: &str| p4ce(&[ADDRESS, "\n[[p4ce.list]]\n", lines].concat());
    fails(
        &list("number = 1\nreplicas = [] #!"),
        "`replicas` lists 0 replicas",
        "list 1 to 16 replicas: `max_replicas` is the limit",
    );
    fails(
        &list("number = 1\nreplicas = [\"here\"] #!"),
        "`here` is not an IP address",
        "write an address such as `\"10.0.0.1\"` or `\"fd00::1\"`",
    );
    fails(
        &list(
            "number = 1\nreplicas = [\"10.0.0.1\"]\n[[p4ce.list]]\nnumber = 1 #!\nreplicas = [\"10.0.0.2\"]",
        ),
        "two lists have the number 1",
        "give each list its own `number`",
    );
}

#[test]
fn addresses_are_listed_once() {
    fails(
        &p4ce("addresses = [\"10.0.0.254/24\", \"10.0.0.254/16\"] #!"),
        "`addresses` lists 10.0.0.254 twice",
        "remove one of the two",
    );
}

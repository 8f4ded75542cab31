//! Tests of `[nic]`.

use crate::config::tests::{fails, read};
use crate::functions::FunctionConfig;
use crate::functions::host::{Client, HostConfig, Kind, PerftestConfig, ServiceConfig, Test};
use rnic::{AckPolicy, PathMtu, Transport};
use rocev2::ethernet::MacAddr;
use switch::Nanos;

const PORT: &str = "[[port]]\nname = \"a\"\nring = {}\n";

/// Returns a file with these lines in `[nic]`.
fn nic(lines: &str) -> String {
    [PORT, "[nic]\n", lines, "\n"].concat()
}

/// Returns a file with a service of these lines.
fn service(lines: &str) -> String {
    nic(&["addresses = [\"10.0.0.2/24\"]\n[[nic.service]]\n", lines].concat())
}

fn host(text: &str) -> HostConfig {
    match read(text).function {
        FunctionConfig::Nic(config) => config,
        other => panic!("{other:?}"),
    }
}

fn defaults() -> HostConfig {
    HostConfig {
        mac: None,
        addresses: vec![([10, 0, 0, 2].into(), 24)],
        gateways: vec![],
        vlan: None,
        mtu: PathMtu::B1024,
        window: 128,
        ack: AckPolicy::OnRequest,
        credits: false,
        max_qps: 1024,
        seed: None,
        services: vec![],
        perftests: vec![],
        workers: 1,
    }
}

#[test]
fn keys_and_defaults_are_read() {
    assert_eq!(host(&nic("addresses = [\"10.0.0.2/24\"]")), defaults());
    let all = nic(
        "addresses = [\"10.0.0.2/24\", \"fd00::2/64\"]\nmac = \"02:00:00:00:00:07\"\ngateways = [\"10.0.0.254\"]\n\
         vlan = 10\nmtu = 4096\nwindow = 7\nack = { packets = 4, time_us = 20 }\ncredits = true\n\
         max_connections = 5\nseed = 9",
    );
    let expected = HostConfig {
        mac: Some(MacAddr([2, 0, 0, 0, 0, 7])),
        addresses: vec![([10, 0, 0, 2].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, 2].into(), 64)],
        gateways: vec![[10, 0, 0, 254].into()],
        vlan: Some(10),
        mtu: PathMtu::B4096,
        window: 7,
        ack: AckPolicy::Every { packets: 4, time: Nanos(20_000) },
        credits: true,
        max_qps: 5,
        seed: Some(9),
        services: vec![],
        perftests: vec![],
        workers: 1,
    };
    assert_eq!(host(&all), expected);
}

#[test]
fn services_are_read() {
    let only = |lines: &str| {
        let mut services = host(&service(lines)).services;
        assert_eq!(services.len(), 1);
        services.remove(0)
    };
    let rping = Kind::Rping { count: 0, size: 1 << 20 };
    assert_eq!(only("kind = \"rping_server\""), ServiceConfig { kind: rping, port: 7174, client: None });
    let client = Client { server: [10, 0, 0, 1].into(), connections: 3, at_once: 64 };
    assert_eq!(
        only("kind = \"ucmatose_client\"\nserver = \"10.0.0.1\"\nconnections = 3\nsize = 9"),
        ServiceConfig { kind: Kind::Ucmatose { messages: 10, size: 9 }, port: 7471, client: Some(client) }
    );
    assert_eq!(
        only("kind = \"memory\"\nport = 9\nsize = 64"),
        ServiceConfig { kind: Kind::Memory { size: 64 }, port: 9, client: None }
    );
}

#[test]
fn perftest_servers_are_read() {
    let only = |lines: &str| {
        let host = host(&service(&["kind = \"perftest_server\"\n", lines].concat()));
        assert_eq!((host.services.len(), host.perftests.len()), (0, 1));
        host.perftests[0]
    };
    for (name, test) in Test::ALL {
        let size = if test == Test::WriteLat { 2 } else { 1 << 23 };
        assert_eq!(
            only(&format!("test = \"{name}\"")),
            PerftestConfig { test, port: 18515, size, transport: Transport::Rc }
        );
    }
    assert_eq!(
        only("test = \"send_bw\"\nport = 9\nsize = 64\ntransport = \"uc\""),
        PerftestConfig { test: Test::SendBw, port: 9, size: 64, transport: Transport::Uc }
    );
}

#[test]
fn perftest_servers_need_a_test_and_their_own_port() {
    let perftest = |lines: &str| service(&["kind = \"perftest_server\"\n", lines].concat());
    fails(
        &perftest("").replace("[[nic.service]]", "[[nic.service]] #!"),
        "[[nic.service]] has no `test`",
        "add `test = \"write_bw\"`",
    );
    fails(
        &perftest("test = \"ib_send_bw\" #!"),
        "`test` cannot be `ib_send_bw`",
        "did you mean `send_bw`? it can be `write_bw`, `read_bw`, `send_bw`, `atomic_bw`, `write_lat`, `read_lat`, `send_lat` or `atomic_lat`",
    );
    fails(
        &perftest("test = \"read_bw\"\ntransport = \"uc\" #!"),
        "read_bw does not run on UC",
        "remove `transport`: UC has neither READs nor atomics",
    );
    fails(
        &perftest("test = \"read_bw\"\nmessages = 3 #!"),
        "there is no key `messages` in [[nic.service]]",
        "[[nic.service]] takes `kind`, `test`, `port`, `size` and `transport`",
    );
    let two = "test = \"read_bw\"\n[[nic.service]] #!\nkind = \"perftest_server\"\ntest = \"send_bw\"";
    fails(&perftest(two), "two services listen at port 18515", "give one of them another `port`");
    let nine = (2..11).map(|host| format!("\"10.0.0.{host}/24\"")).collect::<Vec<_>>().join(", ");
    let nine = format!("addresses = [{nine}] #!");
    fails(
        &perftest("test = \"read_bw\"").replace("addresses = [\"10.0.0.2/24\"]", &nine),
        "a host with a perftest server has 9 addresses",
        "list at most 8, or remove the perftest server",
    );
    // The ports of TCP and those of rdma_cm are different ones.
    let other = "test = \"read_bw\"\nport = 7174\n[[nic.service]]\nkind = \"rping_server\"";
    assert_eq!(host(&perftest(other)).services.len(), 1);
}

#[test]
fn addresses_are_required_and_have_a_prefix() {
    fails(
        &nic("#!").replace("[nic]\n#!", "[nic] #!"),
        "[nic] has no `addresses`",
        "add `addresses = [\"10.0.0.2/24\"]`",
    );
    fails(
        &nic("addresses = [] #!"),
        "`addresses` is empty",
        "write the host's address, such as `addresses = [\"10.0.0.2/24\"]`",
    );
    for text in ["10.0.0.2", "10.0.0.2/33", "fd00::1/129", "here/24"] {
        fails(
            &nic(&format!("addresses = [\"{text}\"] #!")),
            &format!("`{text}` is not an IP address with a prefix length"),
            "write `\"10.0.0.1/24\"` or `\"fd00::1/64\"`",
        );
    }
    fails(
        &nic("addresses = [\"10.0.0.2/24\"]\ngateways = [\"there\"] #!"),
        "`there` is not an IP address",
        "write an address such as `\"10.0.0.1\"` or `\"fd00::1\"`",
    );
}

#[test]
fn numbers_outside_of_their_range_are_reported() {
    fails(
        &nic("addresses = [\"10.0.0.2/24\"]\nmtu = 1500 #!"),
        "1500 is not a path MTU",
        "write 256, 512, 1024, 2048 or 4096; a port with MTU 1500 carries 1024",
    );
    fails(
        &nic("addresses = [\"10.0.0.2/24\"]\nvlan = 4095 #!"),
        "`vlan` cannot be 4095",
        "write a number from 1 to 4094, such as `vlan = 10`",
    );
}

#[test]
fn a_host_has_one_port_and_numbers_for_all_connections() {
    let two = ["[[port]]\nname = \"b\"\nring = {}\n", PORT].concat().replace("\"a\"", "\"a\" #!");
    fails(
        &[&two, "[nic]\naddresses = [\"10.0.0.2/24\"]\n"].concat(),
        "a host has exactly one port",
        "remove it, or run another instance for another host",
    );
    fails(
        &[
            "[runtime]\nworkers = [\"any\", \"any\", \"any\", \"any\", \"any\"] #!\n",
            &nic("addresses = [\"10.0.0.2/24\"]\nmax_connections = 524289"),
        ]
        .concat(),
        "524289 connections at each of 5 workers; the limit is 524288",
        "write `max_connections = 524288`, or list fewer workers",
    );
}

#[test]
fn services_need_valid_kinds_and_their_own_ports() {
    fails(
        &service("kind = \"rping\" #!"),
        "`kind` cannot be `rping`",
        "did you mean `rping_server`? it can be `rping_server`, `rping_client`, `ucmatose_server`, `ucmatose_client`, `memory` or `perftest_server`",
    );
    fails(
        &service("kind = \"memory\"\nserver = \"10.0.0.1\" #!"),
        "there is no key `server` in [[nic.service]]",
        "[[nic.service]] takes `kind`, `port` and `size`",
    );
    let twice = service("kind = \"memory\"\nport = 7471\n[[nic.service]] #!\nkind = \"ucmatose_server\"");
    fails(&twice, "two services listen at port 7471", "give `memory` or `ucmatose_server` another `port`");
}

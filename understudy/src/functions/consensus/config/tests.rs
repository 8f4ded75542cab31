//! Tests of `[consensus]` beside `[nic]`.

use crate::config::tests::{PORTS, fails, read};
use crate::functions::FunctionConfig;
use crate::functions::consensus::{ConsensusConfig, Load};
use consensus::{Layout, SwitchAddress};
use core::net::IpAddr;
use p4ce::Secret;
use switch::Nanos;

const PORT: &str = "[[port]]\nname = \"a\"\nring = {}\n";
const NIC: &str = "[nic]\naddresses = [\"10.0.0.2/24\", \"fd00::2/64\"]\n";
const SERVERS: &str = "servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\n";

/// Returns a file with these lines in `[consensus]`.
fn consensus(lines: &str) -> String {
    [PORT, NIC, "[consensus]\n", lines, "\n"].concat()
}

/// Returns a file with these lines in `[consensus]`, beside the required keys.
fn with(lines: &str) -> String {
    consensus(&["id = 1\n", SERVERS, lines].concat())
}

fn server(text: &str) -> ConsensusConfig {
    match read(text).function {
        FunctionConfig::Consensus(config) => config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn keys_and_defaults_are_read() {
    let plain = server(&with(""));
    let addresses: Vec<IpAddr> = (1..=3).map(|n| [10, 0, 0, n].into()).collect();
    assert_eq!(plain.host.addresses[0], (addresses[1], 24));
    let defaults = ConsensusConfig {
        host: plain.host.clone(),
        id: 1,
        servers: addresses,
        port: 7000,
        switch: None,
        secret: None,
        heartbeat: Nanos::from_millis(1),
        layout: Layout::new(4096, 256, 4096),
        window: 32,
        load: None,
    };
    assert_eq!(plain, defaults);
    let all = server(&with(
        "port = 7\nswitch = \"10.0.0.254\"\nswitch_port = 8\nheartbeat_us = 2500\nlog_entries = 100\nmax_value = 64\n\
         max_snapshot = 16\nwindow = 100\nsecret = \"0123456789abcdef\"\npropose = { size = 64, rate = 9 }",
    ));
    let expected = ConsensusConfig {
        port: 7,
        switch: Some(SwitchAddress { address: [10, 0, 0, 254].into(), port: 8 }),
        secret: Some(Secret::new("0123456789abcdef")),
        heartbeat: Nanos::from_micros(2500),
        layout: Layout::new(100, 64, 16),
        window: 100,
        load: Some(Load { size: 64, rate: Some(9) }),
        ..defaults
    };
    assert_eq!(all, expected);
    let unlimited = server(&with("switch = \"10.0.0.254\"\npropose = { size = 1 }"));
    assert_eq!(unlimited.load, Some(Load { size: 1, rate: None }));
    assert_eq!(unlimited.switch.map(|switch| switch.port), Some(18_515));
    // The NIC's acknowledgement timeout is 4.096 us times two to this power: a heartbeat or a little more.
    assert_eq!((plain.protocol_config(1).ack_timeout, all.protocol_config(1).ack_timeout), (8, 10));
}

#[test]
fn consensus_needs_nic_alone() {
    let consensus = ["[consensus] #!\nid = 1\n", SERVERS].concat();
    let beside = "add `[nic]` with this server's `addresses`, and remove any other function";
    let other = [PORTS, "[forward]\npairs = [[\"a\", \"b\"]]\n", &consensus].concat();
    fails(&other, "[consensus] needs [nic]", beside);
    let service = "[[nic.service]] #!\nkind = \"rping_server\"\n";
    fails(
        &[PORT, NIC, service, &consensus.replace("#!", "")].concat(),
        "[[nic.service]] is not valid beside [consensus]",
        "remove [[nic.service]]; run another instance for services",
    );
    fails(
        &["[runtime]\nworkers = [0, 1] #!\n", &with("")].concat(),
        "[consensus] supports one worker",
        "write `workers = [1]`, or leave the key out",
    );
}

#[test]
fn ids_and_servers_have_to_fit_the_host() {
    fails(
        &consensus(SERVERS).replace("[consensus]", "[consensus] #!"),
        "[consensus] has no `id`",
        "add `id = 0`",
    );
    fails(
        &consensus("id = 1").replace("[consensus]", "[consensus] #!"),
        "[consensus] has no `servers`",
        "add `servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]`",
    );
    fails(
        &consensus(&["id = 3 #!\n", SERVERS].concat()),
        "`id` cannot be 3",
        "write a number from 0 to 2, such as `id = 0`",
    );
    fails(
        &consensus(&["id = 0 #!\n", SERVERS].concat()),
        "server 0 has the address 10.0.0.1, which this host does not have",
        "add 10.0.0.1 to `addresses` of [nic], or change `id` or `servers`",
    );
    fails(
        &consensus("id = 0\nservers = [] #!"),
        "`servers` lists 0 servers",
        "list 1 to 17 servers in the order of their numbers, including this one",
    );
    fails(
        &consensus("id = 0\nservers = [\"10.0.0.2\", \"10.0.0.2\"] #!"),
        "10.0.0.2 is already server 0",
        "give each server its own address",
    );
    fails(
        &consensus("id = 0\nservers = [\"here\"] #!"),
        "`here` is not an IP address",
        "write an address such as `\"10.0.0.1\"` or `\"fd00::1\"`",
    );
}

#[test]
fn switches_have_an_address_of_their_own_and_few_servers() {
    fails(
        &with("switch_port = 5 #!"),
        "`switch_port` needs `switch`",
        "add `switch`, or remove `switch_port`",
    );
    fails(
        &with("switch = \"10.0.0.3\" #!"),
        "the switch and server 2 have the same address",
        "write the switch's own address, one of `addresses` in its [p4ce]",
    );
    let many: Vec<_> = (1..=14).map(|n| format!("\"10.0.0.{n}\"")).collect();
    fails(
        &consensus(&format!("id = 1\nswitch = \"10.0.0.254\"\nservers = [{}] #!", many.join(", "))),
        "14 servers are too many with a switch",
        "a request to the switch has room for 12 other servers: remove servers, or remove `switch`",
    );
    let ten = many[..10].join(", ");
    fails(
        &consensus(&format!(
            "id = 1\nsecret = \"0123456789abcdef\"\nswitch = \"10.0.0.254\"\nservers = [{ten}] #!"
        )),
        "10 servers are too many with a switch",
        "a request to the switch has room for 8 other servers: remove servers, or remove `switch`",
    );
}

#[test]
fn a_secret_that_can_be_guessed_is_refused() {
    fails(
        &with("secret = \"0123456789abcde\" #!"),
        "`secret` has only 15 bytes",
        "write at least 16 random bytes, such as the output of `openssl rand -hex 32`, at \
         all servers and the switch",
    );
}

#[test]
fn logs_and_loads_have_to_fit() {
    fails(
        &with("log_entries = 20\nwindow = 21 #!"),
        "`window` is 21 values, but the log has only 20 entries",
        "lower `window`, or raise `log_entries`",
    );
    fails(
        &with("log_entries = 1048576 #!\nmax_value = 1024"),
        "the log has 1064 MB",
        "the log has `log_entries` of `max_value` + 40 bytes each: lower one of the two, so that it has at \
         most 1024 MB",
    );
    fails(
        &with("max_value = 63\npropose = { size = 64 } #!"),
        "`size` is 64 bytes, but `max_value` is 63",
        "lower `size`, or raise `max_value` at all servers",
    );
    fails(&with("propose = { rate = 5 } #!"), "`propose` has no `size`", "add `size = 64`");
    fails(
        &with("propose = 64 #!"),
        "`propose` has to be a table, and is a whole number",
        "write a table in braces, such as `propose = { size = 64 }`",
    );
    fails(
        &with("heartbeat = 5 #!"),
        "there is no key `heartbeat` in [consensus]",
        "did you mean `heartbeat_us`? [consensus] takes `servers`, `id`, `port`, `switch`, `switch_port`, `secret`, `heartbeat_us`, `log_entries`, `max_value`, `max_snapshot`, `window` and `propose`",
    );
}

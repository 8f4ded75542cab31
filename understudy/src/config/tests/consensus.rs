//! `[consensus]` beside `[nic]`.

use super::{PORTS, read, wrong};
use crate::config::FunctionConfig;
use crate::consensus::{ConsensusConfig, Load};
use core::net::IpAddr;
use p4ce::Secret;
use p4ce::consensus::{Layout, Through};
use switch::Nanos;

const PORT: &str = "[[port]]\nname = \"a\"\nring = {}\n";
const NIC: &str = "[nic]\naddresses = [\"10.0.0.2/24\", \"fd00::2/64\"]\n";
const SERVERS: &str = "servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\n";

/// A file with these lines in `[consensus]`
fn consensus(lines: &str) -> String {
    [PORT, NIC, "[consensus]\n", lines, "\n"].concat()
}

/// A file with these lines in `[consensus]`, beside what has to be there
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
fn what_is_said_and_what_is_not() {
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
        switch: Some(Through { address: [10, 0, 0, 254].into(), port: 8 }),
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
    // What the NIC waits for an acknowledgement: 4.096 us times two to this, a heartbeat or a little more.
    assert_eq!((plain.server(1).ack_timeout, all.server(1).ack_timeout), (8, 10));
}

#[test]
fn what_it_stands_beside() {
    let consensus = ["[consensus] #!\nid = 1\n", SERVERS].concat();
    let beside = "add `[nic]` with this server's `addresses`, in place of any other function";
    let other = [PORTS, "[forward]\npairs = [[\"a\", \"b\"]]\n", &consensus].concat();
    wrong(&other, "[consensus] has no [nic] beside it", beside);
    let service = "[[nic.service]] #!\nkind = \"rping_server\"\n";
    wrong(
        &[PORT, NIC, service, &consensus.replace("#!", "")].concat(),
        "a host with [consensus] has no services",
        "remove the [[nic.service]]; a host that serves is another program",
    );
    wrong(
        &["[runtime]\nworkers = [0, 1] #!\n", &with("")].concat(),
        "a host has one worker",
        "write `workers = [1]`, or leave the key out",
    );
}

#[test]
fn servers_that_cannot_be() {
    wrong(
        &consensus(SERVERS).replace("[consensus]", "[consensus] #!"),
        "[consensus] has no `id`",
        "add `id = 0`",
    );
    wrong(
        &consensus("id = 1").replace("[consensus]", "[consensus] #!"),
        "[consensus] has no `servers`",
        "add `servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]`",
    );
    wrong(
        &consensus(&["id = 3 #!\n", SERVERS].concat()),
        "`id` cannot be 3",
        "write a number from 0 to 2, such as `id = 0`",
    );
    wrong(
        &consensus(&["id = 0 #!\n", SERVERS].concat()),
        "server 0 is 10.0.0.1, and this host is not",
        "add 10.0.0.1 to `addresses` of [nic], or change `id` or `servers`",
    );
    wrong(
        &consensus("id = 0\nservers = [] #!"),
        "`servers` lists 0 servers",
        "list all servers in the order of their numbers, 1 to 17, this one among them",
    );
    wrong(
        &consensus("id = 0\nservers = [\"10.0.0.2\", \"10.0.0.2\"] #!"),
        "10.0.0.2 is server 0 already",
        "give each server an address of its own",
    );
    wrong(
        &consensus("id = 0\nservers = [\"here\"] #!"),
        "`here` is not an IP address",
        "write an address such as `\"10.0.0.1\"` or `\"fd00::1\"`",
    );
}

#[test]
fn switches_that_cannot_be() {
    wrong(
        &with("switch_port = 5 #!"),
        "a port of a switch that is not there",
        "add `switch`, or remove `switch_port`",
    );
    wrong(
        &with("switch = \"10.0.0.3\" #!"),
        "the switch has the address of server 2",
        "the switch has an address of its own: `addresses` of its [p4ce]",
    );
    let many: Vec<_> = (1..=14).map(|n| format!("\"10.0.0.{n}\"")).collect();
    wrong(
        &consensus(&format!("id = 1\nswitch = \"10.0.0.254\"\nservers = [{}] #!", many.join(", "))),
        "14 servers, and a switch",
        "a leader can name 12 others to the switch; leave `switch` out, or servers",
    );
    let ten = many[..10].join(", ");
    wrong(
        &consensus(&format!(
            "id = 1\nsecret = \"0123456789abcdef\"\nswitch = \"10.0.0.254\"\nservers = [{ten}] #!"
        )),
        "10 servers, and a switch",
        "a leader can name 8 others to the switch; leave `switch` out, or servers",
    );
}

#[test]
fn a_secret_that_can_be_guessed_is_refused() {
    wrong(
        &with("secret = \"0123456789abcde\" #!"),
        "a secret of 15 bytes",
        "write 16 bytes or more that nobody can guess, such as what `openssl rand -hex 32` prints, at all servers and the \
         switch",
    );
}

#[test]
fn logs_and_loads_that_cannot_be() {
    wrong(
        &with("log_entries = 20\nwindow = 21 #!"),
        "a window of 21 values, and a log of 20",
        "lower `window`, or raise `log_entries`",
    );
    wrong(
        &with("log_entries = 1048576 #!\nmax_value = 1024"),
        "a log of 1064 MB",
        "it has `log_entries` of `max_value` bytes and 40 more; it can have 1024 MB",
    );
    wrong(
        &with("max_value = 63\npropose = { size = 64 } #!"),
        "values of 64 bytes, and `max_value` is 63",
        "lower `size`, or raise `max_value` at all servers",
    );
    wrong(&with("propose = { rate = 5 } #!"), "`propose` has no `size`", "add `size = 64`");
    wrong(
        &with("propose = 64 #!"),
        "`propose` has to be a table, and is a whole number",
        "write a table in braces, such as `propose = { size = 64 }`",
    );
    wrong(
        &with("heartbeat = 5 #!"),
        "there is no key `heartbeat` in [consensus]",
        "did you mean `heartbeat_us`? [consensus] takes `servers`, `id`, `port`, `switch`, `switch_port`, `secret`, `heartbeat_us`, `log_entries`, `max_value`, `max_snapshot`, `window` and `propose`",
    );
}

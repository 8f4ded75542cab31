//! Files with `[process]`: valid ones, and each mistake with its message and help.

use onepipe::ClockSource;
use onepipe_host::{Clock, Config, load};
use rocev2::Qpn;
use std::fs;
use switch::Nanos;

const HEAD: &str = "[[port]]\nname = \"eth\"\nring = {}\n";
const PROCESS: &str = "[process]\nid = 1\naddress = \"10.0.0.1/24\"\n";
const BEACONS: &str =
    "[[process.beacons]]\nmac = \"02:00:00:00:00:fe\"\naddress = \"10.0.0.254\"\nqpn = 0x102\n";
const PEER: &str = "[[process.peers]]\nid = 2\nmac = \"02:00:00:00:00:02\"\naddress = \"10.0.0.2\"\n";

fn read(text: &str) -> Result<Config, Vec<(String, String)>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.process.toml");
    fs::write(&path, text).unwrap();
    load(&path).map_err(|report| {
        report.findings().map(|found| (found.message.to_owned(), found.help.to_owned())).collect()
    })
}

/// Asserts that a file of these parts has one problem, with this message; `help` is a part of its help.
fn wrong(parts: &[&str], message: &str, help: &str) {
    let found = read(&parts.concat()).expect_err(message);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, message);
    assert!(found[0].1.contains(help), "{:?}", found[0].1);
}

/// Second representative, behind [`BEACONS`]
const STANDBY: &str = "standby = { mac = \"02:00:00:00:00:fd\", address = \"10.0.0.7\", qpn = 0x203 }\n";

#[test]
fn small_file_has_defaults_for_the_rest() {
    let config = read(&[HEAD, PROCESS, BEACONS, PEER].concat()).unwrap();
    let process = &config.process.process;
    assert_eq!(
        (config.process.mac, config.process.clock, config.process.settled_events),
        (None, Clock::Realtime, false)
    );
    assert_eq!(
        (process.own.qpn, process.tor.qpn, process.peers[0].qpn),
        (Qpn::new(0x11), Qpn::new(0x102), Qpn::new(0x11))
    );
    assert_eq!(
        (process.mtu, process.timeout, process.beacon_interval),
        (1024, Nanos::from_millis(1), Nanos(3000))
    );
    assert!(process.tor.detour.is_empty());
    assert_eq!(
        (process.clock_error, process.stall_after),
        (Nanos::from_micros(100), Nanos::from_micros(300))
    );
}

#[test]
fn clock_follows_beacons_where_that_is_written() {
    let with = |lines: &str| read(&[HEAD, PROCESS, lines, BEACONS, PEER].concat()).unwrap().process.process;
    let process = with("clock_from = \"beacons\"\nclock_limit_us = 70\n");
    assert_eq!((process.clock_source, process.clock_limit), (ClockSource::Beacons, Nanos(70_000)));
    let process = with("clock_from = \"host\"\n");
    assert_eq!((process.clock_source, process.clock_limit), (ClockSource::Host, Nanos::from_millis(2_000)));
}

#[test]
fn every_key_is_read() {
    let keys = "mac = \"02:00:00:00:00:01\"\nqpn = 0x20\nbarriers_in_messages = true\nbeacon_interval_ns = 4000\n\
                traffic_class = 0x68\nhop_limit = 9\nmtu = 512\nqkey = 7\nclock = \"tai\"\nahead_max_us = 5\nclock_error_us = 4\nstall_after_us = 3\n\
                timeout_us = 400\nack_delay_us = 20\nack_every = 8\ntell_settled = true\nreceive_window_kib = 100\n\
                receive_buffer_kib = 200\nsend_buffer_kib = 300\ninitial_window_kib = 50\nmax_unsettled = 9\n";
    let beacons = "[[process.beacons]]\nswitch = \"tor1\"\nmac = \"02:00:00:00:00:fe\"\naddress = \"10.0.0.1\"\n\
                   qpn = 0x102\ndetour = [\"10.255.0.1\"]\n";
    let standby = "standby = { mac = \"02:00:00:00:00:fd\", address = \"10.0.0.7\", qpn = 0x203, detour = [\"10.255.0.1\"] }\n";
    let config =
        read(&[HEAD, PROCESS, keys, beacons, standby, PEER, "qpn = 0x21\n"].concat()).unwrap().process;
    assert_eq!(
        (config.mac.unwrap().0, config.clock, config.settled_events),
        ([2, 0, 0, 0, 0, 1], Clock::Tai, true)
    );
    assert_eq!((config.switch.as_str(), config.prefix), ("tor1", 24));
    let process = config.process;
    assert_eq!((process.own.qpn, process.peers[0].qpn), (Qpn::new(0x20), Qpn::new(0x21)));
    assert_eq!((process.beacon_interval, process.traffic_class, process.hop_limit), (Nanos(4000), 0x68, 9));
    assert_eq!((process.mtu, process.qkey, process.ahead_max), (512, 7, Nanos(5000)));
    assert_eq!((process.clock_error, process.stall_after), (Nanos(4000), Nanos(3000)));
    assert_eq!((process.timeout, process.ack_delay, process.ack_every), (Nanos(400_000), Nanos(20_000), 8));
    assert_eq!((process.receive_window, process.receive_buffer), (100 << 10, 200 << 10));
    assert_eq!(
        (process.send_buffer, process.initial_window, process.max_unsettled),
        (300 << 10, 50 << 10, 9)
    );
    let detour = ["10.255.0.1".parse::<core::net::IpAddr>().unwrap()];
    assert_eq!(process.tor.detour, detour);
    let standby = process.standby.expect("the switch has two representatives");
    assert_eq!((standby.mac.0, standby.qpn), ([2, 0, 0, 0, 0, 0xfd], Qpn::new(0x203)));
    assert_eq!((standby.address.to_string().as_str(), &standby.detour[..]), ("10.0.0.7", &detour[..]));
}

#[test]
fn standby_has_an_address_of_its_own() {
    let standby = |address: &str| {
        format!("standby = {{ mac = \"02:00:00:00:00:fd\", address = \"{address}\", qpn = 0x203 }}\n")
    };
    wrong(
        &[HEAD, PROCESS, BEACONS, &standby("10.0.0.254"), PEER],
        "the standby has the address of the first representative",
        "write the address of another host, or remove `standby`",
    );
    wrong(
        &[HEAD, PROCESS, BEACONS, &standby("fd00::2"), PEER],
        "fd00::2 is an IPv6 address, and the process's own is IPv4",
        "write an IPv4 address",
    );
    wrong(
        &[
            HEAD,
            PROCESS,
            BEACONS,
            "standby = { mac = \"02:00:00:00:00:fd\", address = \"10.0.0.7\" }\n",
            PEER,
        ],
        "`standby` has no `qpn`",
        "0x100",
    );
}

#[test]
fn mistakes_are_reported_with_what_to_write() {
    wrong(&[HEAD, PROCESS, PEER], "[process] has no [[process.beacons]]", "[[process.beacons]]\nswitch = ");
    wrong(&[HEAD, PROCESS, BEACONS], "[process] has no peers", "[[process.peers]]\nid = 2");
    wrong(&[HEAD, PROCESS, BEACONS, BEACONS, PEER], "a process's beacons go to one switch", "keep one");
    wrong(
        &[HEAD, PROCESS, BEACONS, PEER, PEER.replace(".2\"", ".3\"").as_str()],
        "process number 2 is used twice",
        "its own number",
    );
    wrong(
        &[HEAD, PROCESS, BEACONS, PEER, PEER.replace("id = 2", "id = 3").as_str()],
        "two processes are at 10.0.0.2 with queue pair 0x11",
        "its own `qpn`",
    );
    wrong(
        &[HEAD, PROCESS, BEACONS, PEER.replace("id = 2", "id = 1").as_str()],
        "process 1 is this one",
        "remove it",
    );
    wrong(
        &[HEAD, PROCESS, BEACONS, PEER.replace("10.0.0.2", "fd00::2").as_str()],
        "fd00::2 is an IPv6 address, and the process's own is IPv4",
        "write an IPv4 address",
    );
    wrong(
        &[HEAD, PROCESS, BEACONS, "detour = [\"10.0.0.8\", \"10.0.0.9\"]\n", PEER],
        "the detour has more than one switch",
        "process's switch ends tunnels",
    );
    wrong(
        &[HEAD, PROCESS, "mtu = 1500\n", BEACONS, PEER],
        "packets of 1500 bytes do not fit into the port's 1500",
        "at most `mtu = 1448`",
    );
    wrong(
        &[HEAD, PROCESS, "mtu = 1001\n", BEACONS, PEER],
        "`mtu` has to be a multiple of four, but is 1001",
        "`mtu = 1000`",
    );
    wrong(
        &[HEAD, "mtu = 900\n", PROCESS, BEACONS, PEER],
        "packets of 1024 bytes do not fit into the port's 900",
        "at most `mtu = 848`",
    );
    wrong(
        &[HEAD, PROCESS, "ahead_max_us = 20\nclock_error_us = 21\n", BEACONS, PEER],
        "`clock_error_us` is longer than `ahead_max_us`",
        "write 20 or less",
    );
    wrong(
        &[HEAD, PROCESS, "clock_from = \"beacons\"\n", BEACONS, STANDBY, PEER],
        "clocks cannot follow beacons where the switch has a `standby`",
        "write `clock_from = \"host\"`, or remove `standby`",
    );
    wrong(
        &[HEAD, PROCESS, "timeout_us = 20\nack_delay_us = 20\n", BEACONS, PEER],
        "`timeout_us` is not longer than `ack_delay_us`",
        "write 200 or more",
    );
    wrong(
        &[HEAD, PROCESS, "qpm = 3\n", BEACONS, PEER],
        "there is no key `qpm` in [process]",
        "did you mean `qpn`?",
    );
    wrong(
        &["[runtime]\nstop_when_idle_ms = 5\n", HEAD, PROCESS, BEACONS, PEER],
        "`stop_when_idle_ms` is not valid with [process]",
        "until it leaves",
    );
    wrong(
        &[HEAD, HEAD.replace("eth", "two").as_str(), PROCESS, BEACONS, PEER],
        "a process has one port",
        "another program",
    );
    wrong(
        &["[runtime]\nworkers = [\"any\", \"any\"]\n", HEAD, PROCESS, BEACONS, PEER],
        "[process] has one worker, its polling thread: its frames leave in one order",
        "workers = [1]",
    );
    wrong(&[HEAD, "[process]\nid = 1\n", BEACONS, PEER], "[process] has no `address`", "add `address = ");
    let nothing = read(HEAD).expect_err("[process] is missing");
    assert_eq!(nothing[0].0, "[process] has no `id`");
}

#[test]
fn the_controller_is_read_and_each_mistake_is_reported() {
    let with = |keys: &str| [HEAD, PROCESS, BEACONS, PEER, "[controller]\n", keys].concat();
    let config = read(&with(
        "addresses = [\"10.9.0.1:7070\", \"[::1]:7071\"]\nsecret_file = \"secret\"\ntopology = \
         \"00c0ffee00c0ffee\"\nmerged = true\nmax_members = 8\nreliable_buffer_kib = 1024\n",
    ))
    .unwrap();
    let controller = config.process.controller.as_ref().unwrap();
    assert_eq!(controller.controllers.addresses[1], "[::1]:7071".parse().unwrap());
    assert_eq!(
        (controller.controllers.topology, controller.is_merged, controller.fail_after),
        (0xc0_ffee_00c0_ffee, true, 10)
    );
    assert!(controller.controllers.secret_file.as_ref().unwrap().ends_with("secret"));
    assert_eq!((config.process.process.max_members, config.process.process.reliable_buffer), (8, 1 << 20));
    assert!(read(&[HEAD, PROCESS, BEACONS, PEER].concat()).unwrap().process.controller.is_none());
    let topology = "topology = \"00c0ffee00c0ffee\"\n";
    wrong(
        &[&with("addresses = [\"10.9.0.1:7070\"]\n"), topology],
        "there is no `secret_file`, and 10.9.0.1:7070 is not a loopback address",
        "add `secret_file",
    );
    wrong(&[&with("addresses = []\n"), topology], "`addresses` is empty", "or remove [controller]");
    wrong(
        &[&with("addresses = [\"here\"]\n"), topology],
        "`here` is not an address with a port",
        "names are not resolved",
    );
    wrong(
        &[&with("addresses = [\"127.0.0.1:7070\"]\ntopology = \"12\"\n")],
        "`12` is not the hash of a topology",
        "understudy plan",
    );
}

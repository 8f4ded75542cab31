//! Tests of `[onepipe]`.

use crate::config::tests::{PORTS, fails, folder, read, read_in};
use crate::functions::FunctionConfig;
use crate::functions::onepipe::{OnePipeConfig, summary};
use onepipe::{OnePipe, Timestamp};
use onepipe_host::Clock;
use representative::Representative;
use representative::config::{BeaconForm, Config, End, Incarnation, Link, Pace, Registers, Side};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use switch::{Nanos, PortId, forward};

const HEAD: &str = "incarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\n";
const LINK: &str = "[[onepipe.links]]\nside = \"below\"\nport = \"a\"\nmac = \"02:00:00:00:00:01\"\naddress = \"10.0.0.1\"\nqpn = 0x11\n";

/// Returns a file with these lines in `[onepipe]`, and a link.
fn onepipe(lines: &str) -> String {
    [PORTS, "[onepipe]\n", HEAD, lines, "\n", LINK].concat()
}

/// Returns a file with this change to its link.
fn link(from: &str, to: &str) -> String {
    assert!(LINK.contains(from));
    onepipe("").replace(from, to)
}

fn switch(text: &str) -> OnePipeConfig {
    match read(text).function {
        FunctionConfig::OnePipe(config) => config,
        other => panic!("{other:?}"),
    }
}

fn first_link() -> Link {
    Link {
        side: Side::Below,
        port: PortId(0),
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        address: [10, 0, 0, 1].into(),
        detour: Vec::new(),
        qpn: Qpn::new(0x11),
        beacon: BeaconForm::Datagram,
        standby: None,
    }
}

fn defaults() -> Config {
    Config {
        forward: forward::Config { counted_qps: 1024, health: true, ..forward::Config::bridge(2, 4096) },
        incarnation: Incarnation::Chip,
        pace: Pace::Passing,
        mac: MacAddr([0; 6]),
        addresses: vec![[10, 0, 0, 254].into()],
        qkey: OnePipe::QKEY,
        first_qp: Qpn::new(0x100),
        registers: Registers { va: 0x10_0000, rkey: OnePipe::QKEY },
        beacon_interval: Nanos(3_000),
        dead_after_intervals: 10,
        fail_after_intervals: None,
        join_window: Nanos::from_micros(300),
        ahead_max: Nanos::from_millis(10),
        clock_source: onepipe::ClockSource::Host,
        clock: Timestamp::default(),
        traffic_class: 0,
        links: vec![first_link()],
        evict_after: Nanos::from_millis(3),
        layer: 1,
        declares: true,
        bug: None,
    }
}

#[test]
fn absent_keys_have_defaults() {
    let expected = OnePipeConfig {
        switch: defaults(),
        mac: None,
        addresses: vec![([10, 0, 0, 254].into(), 24)],
        names: vec!["10.0.0.1".into()],
        clock: Clock::Realtime,
        lag_alarm: Some(Nanos::from_micros(300)),
        controller: None,
        workers: 1,
    };
    assert_eq!(switch(&onepipe("")), expected);
    // The default of the join window grows with the time after which a link is dead.
    let slow = switch(&onepipe("beacon_interval_ns = 1000000"));
    assert_eq!(
        (slow.switch.join_window, slow.lag_alarm),
        (Nanos::from_millis(100), Some(Nanos::from_millis(100)))
    );
    assert_eq!(slow.switch.evict_after, Nanos::from_secs(1));
    assert_eq!(switch(&onepipe("lag_alarm_us = 0")).lag_alarm, None);
}

#[test]
fn every_key_is_read() {
    let lines = [
        "incarnation = \"host\"\naddresses = [\"10.0.0.254/24\", \"fd00::fe/64\"]\nmac = \"02:00:00:00:00:fe\"",
        "pace = \"instants\"\nclock = \"tai\"\nbeacon_interval_ns = 1000\ndead_after_intervals = 5\njoin_window_us = 5\nevict_after_us = 88\nlayer = 2",
        "lag_alarm_us = 77\nahead_max_us = 5\nqkey = 6\ntraffic_class = 0x6a\nfirst_qp = 16777212",
        "registers = { va = 0x7000, rkey = 8 }\npairs = [[\"a\", \"b\"]]\ncounted_qps = 0",
        &LINK
            .replace("qpn", "beacon = { va = 0x9000, rkey = 9 }\nname = \"spine 1\"\ndetour = [\"10.9.0.1\", \"10.9.0.2\"]\nqpn")
            .replace("below", "above"),
        "standby = { mac = \"02:00:00:00:00:09\", address = \"10.0.0.9\", qpn = 0x109, beacon = { va = 0x9100, rkey = 7 }, detour = [\"10.9.0.1\"] }",
        &LINK.replace("10.0.0.1", "fd00::1").replace("qpn", "barriers_in_messages = false\nqpn"),
    ];
    let text = [PORTS, "[onepipe]\n", &lines.join("\n")].concat();
    let above = Link {
        side: Side::Above,
        detour: vec![[10, 9, 0, 1].into(), [10, 9, 0, 2].into()],
        beacon: BeaconForm::Write { va: 0x9000, rkey: 9 },
        standby: Some(End {
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            address: [10, 0, 0, 9].into(),
            detour: vec![[10, 9, 0, 1].into()],
            qpn: Qpn::new(0x109),
            beacon: BeaconForm::Write { va: 0x9100, rkey: 7 },
        }),
        ..first_link()
    };
    let below = Link { address: [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(), ..first_link() };
    let expected = Config {
        forward: forward::Config {
            mode: forward::config::ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]),
            health: true,
            ..forward::Config::bridge(2, 0)
        },
        incarnation: Incarnation::Host,
        pace: Pace::Instants,
        mac: MacAddr([2, 0, 0, 0, 0, 0xfe]),
        addresses: vec![[10, 0, 0, 254].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 0xfe].into()],
        qkey: 6,
        first_qp: Qpn::new(16_777_212),
        registers: Registers { va: 0x7000, rkey: 8 },
        beacon_interval: Nanos(1_000),
        dead_after_intervals: 5,
        join_window: Nanos(5_000),
        evict_after: Nanos(88_000),
        layer: 2,
        ahead_max: Nanos(5_000),
        clock_source: onepipe::ClockSource::Host,
        traffic_class: 0x6a,
        links: vec![above, below],
        ..defaults()
    };
    let read = switch(&text);
    assert_eq!(read.switch, expected);
    assert_eq!((read.mac, read.clock), (Some(MacAddr([2, 0, 0, 0, 0, 0xfe])), Clock::Tai));
    assert_eq!(read.names, ["spine 1", "fd00::1"]);
    assert_eq!(read.lag_alarm, Some(Nanos::from_micros(77)));
    assert!(Representative::new(read.switch).is_ok(), "a valid file makes a valid configuration");
}

#[test]
fn required_keys_and_the_number_of_workers_are_checked() {
    let bare = [PORTS, "[onepipe] #!\naddresses = [\"10.0.0.254/24\"]\n", LINK].concat();
    fails(&bare, "[onepipe] has no `incarnation`", "add `incarnation = \"chip\"`");
    fails(
        &onepipe("").replace("\"chip\"", "\"chips\" #!"),
        "`incarnation` cannot be `chips`",
        "did you mean `chip`? it can be `chip`, `switch-cpu` or `host`",
    );
    fails(
        &onepipe("").replace("[\"10.0.0.254/24\"]", "[] #!"),
        "`addresses` is empty",
        "write the switch's address, from which it sends beacons",
    );
    fails(
        &[PORTS, "[onepipe] #!\n", HEAD].concat(),
        "[onepipe] has no link",
        "add one for each neighbour, such as\n\n[[onepipe.links]]\nside = \"below\"\nport = \"host-a\"\nmac = \
         \"02:00:00:00:00:01\"\naddress = \"10.0.0.1\"\nqpn = 0x11",
    );
    let on_two = |file: &str| ["[runtime]\nworkers = [\"any\", \"any\"] #!\n", file].concat();
    let help = "write `workers = [1]`, or leave the key out";
    let host = onepipe("").replace("\"chip\"", "\"host\"");
    let message = "[onepipe] supports one worker with `incarnation = \"host\"`: one process represents a switch on a host";
    fails(&on_two(&host), message, help);
    let message =
        "[onepipe] supports one worker with `clock_from = \"beacons\"`: one worker measures all links";
    fails(&on_two(&onepipe("clock_from = \"beacons\"")), message, help);
}

#[test]
fn each_port_has_one_of_several_workers() {
    let file = ["[runtime]\nworkers = [\"any\", \"any\", \"any\"]\n", &onepipe("")].concat();
    let config = switch(&file);
    assert_eq!(config.workers, 3);
    let ports = read(&file).runtime.ports;
    let lines = summary::lines(&config, &ports);
    let workers = "one receive and one send queue each, by worker: 0: a, 1: b, 2: none";
    assert!(lines.contains(&("ports", workers.into())), "{lines:?}");
}

#[test]
fn times_and_numbers_have_a_range() {
    fails(
        &onepipe("beacon_interval_ns = 999 #!"),
        "`beacon_interval_ns` cannot be 999",
        "write a number from 1000 to 1000000, such as `beacon_interval_ns = 3000`",
    );
    fails(
        &onepipe("beacon_interval_ns = 1001\njoin_window_us = 10 #!"),
        "`join_window_us` is shorter than the time after which a link is dead",
        "write at least 11, which is `beacon_interval_ns` times `dead_after_intervals`; otherwise a dead \
         link could never come back",
    );
    fails(
        &onepipe("first_qp = 16777214 #!"),
        "`first_qp` cannot be 16777214",
        "write a number from 2 to 16777213, such as `first_qp = 256`",
    );
    fails(&onepipe("clock = \"ptp\" #!"), "`clock` cannot be `ptp`", "it can be `realtime` or `tai`");
}

#[test]
fn clock_follows_beacons_where_that_is_written() {
    assert_eq!(
        switch(&onepipe("clock_from = \"beacons\"")).switch.clock_source,
        onepipe::ClockSource::Beacons
    );
    assert_eq!(switch(&onepipe("")).switch.clock_source, onepipe::ClockSource::Host);
    let standby = "standby = { mac = \"02:00:00:00:00:09\", address = \"10.0.0.9\", qpn = 0x109 }\nqpn";
    fails(
        &onepipe("clock_from = \"beacons\" #!").replace("\"chip\"", "\"host\"").replace("qpn", standby),
        "clocks cannot follow beacons where a neighbour has a `standby`",
        "write `clock_from = \"host\"`, or remove `standby`: clock beacons are exchanged with one representative",
    );
}

#[test]
fn standby_is_another_node_beside_a_representative_on_a_host() {
    let with = |address: &str| {
        let standby =
            format!("standby = {{ mac = \"02:00:00:00:00:09\", address = {address}, qpn = 0x109 }} #!\nqpn");
        link("qpn", &standby)
    };
    for incarnation in ["chip", "switch-cpu"] {
        fails(
            &with("\"10.0.0.9\"").replace("\"chip\"", &format!("\"{incarnation}\"")),
            "a switch that keeps its own barriers hears one node per link",
            "remove `standby`, here and at the neighbouring switch; only `incarnation = \"host\"` has links to two \
             representatives",
        );
    }
    let host = |text: String| text.replace("\"chip\"", "\"host\"");
    fails(
        &host(with("\"10.0.0.1\"")),
        "the standby has the address of the neighbour's first representative",
        "write the address of another host, or remove `standby`: beacons are assigned to the two by their source",
    );
    fails(
        &host(with("\"fd00::9\"")),
        "fd00::9 is an IPv6 address, but the switch has none",
        "add an IPv6 address to `addresses` of [onepipe], or write the neighbour's address of the other \
         version",
    );
    let read = switch(&host(with("\"10.0.0.9\"")));
    assert!(Representative::new(read.switch).is_ok());
}

#[test]
fn links_have_valid_ports_addresses_and_detours() {
    let two = onepipe("") + &LINK.replace("port = \"a\"", "port = \"a\" #!");
    fails(
        &two,
        "two links are at port `a`",
        "give each link its own port; only `incarnation = \"host\"` distinguishes links by queue pair",
    );
    let host = two.replace("\"chip\"", "\"host\"");
    assert!(read_in(folder().path(), &host).is_ok(), "links share a port of a host");
    fails(&link("port = \"a\"", "port = \"c\" #!"), "there is no port `c`", "the ports are `a` and `b`");
    fails(
        &link("\"10.0.0.1\"", "\"fd00::1\" #!"),
        "fd00::1 is an IPv6 address, but the switch has none",
        "add an IPv6 address to `addresses` of [onepipe], or write the neighbour's address of the other \
         version",
    );
    fails(&link("\"below\"", "\"under\" #!"), "`side` cannot be `under`", "it can be `below` or `above`");
    fails(&link("qpn", "beacon = \"write\" #!\nqpn"), "`beacon` cannot be `write`", "it can be `datagram`");
    fails(&link("qpn", "beacon = { va = 1 } #!\nqpn"), "`beacon` has no `rkey`", "add `rkey = 0x31506970`");
    fails(
        &link("qpn", "name = \"a\\nb\" #!\nqpn"),
        "`name` does not fit on a line",
        "write at most 64 characters",
    );
    fails(
        &link("qpn", "detour = [\"10.9.0.1\"] #!\nqpn"),
        "a switch needs no detour for its own beacons",
        "remove `detour`: frames that the switch sends at a port pass the port's link; only `incarnation = \
         \"host\"` needs a detour",
    );
    let around =
        |ends: &str| link("qpn", &format!("detour = [{ends}] #!\nqpn")).replace("\"chip\"", "\"host\"");
    fails(
        &around("\"10.9.0.1\", \"10.9.0.2\", \"10.9.0.3\""),
        "a detour has at most two switches, the ends of the link",
        "write the addresses at which the two switches of the link end tunnels, the nearer one first",
    );
    for ends in ["\"10.9.0.1\", \"fd00::1\"", "\"fd00::1\""] {
        fails(
            &around(ends),
            "the addresses of a detour need one IP version, which the switch has as well",
            "write addresses of one IP version, of which `addresses` of [onepipe] has one: the tunnels \
             start there",
        );
    }
    let queues = link("port = \"a\"", "port = \"a\" #!");
    let queues = queues.replacen("ring = {}", "ring = {}\nrx_queues = 2", 1);
    fails(
        &queues,
        "port `a` is at a link, but has 2 receive queues",
        "write `rx_queues = 1` for that port, or one capture: barriers need the order of each link's frames",
    );
}

/// Hosts that resolve the switch's address also send to it the frames to be routed.
#[test]
fn a_switch_that_routes_has_one_address() {
    let routes = "routes = { mac = \"02:00:00:00:00:fd\", to = [{ prefix = \"10.0.0.0/8\", via = [{ port = \"a\", mac = \
                  \"02:00:00:00:00:01\" }] }] }\n";
    assert_eq!(switch(&onepipe(routes)).mac, Some(MacAddr([2, 0, 0, 0, 0, 0xfd])));
    assert_eq!(
        switch(&onepipe(&format!("{routes}mac = \"02:00:00:00:00:fd\""))).mac,
        Some(MacAddr([2, 0, 0, 0, 0, 0xfd]))
    );
    fails(
        &onepipe(&format!("{routes}mac = \"02:00:00:00:00:fe\" #!")),
        "`mac` of the switch is 02:00:00:00:00:fe, but that of `routes` is 02:00:00:00:00:fd",
        "write the same address in both: hosts that resolve the switch's address also send to it the frames \
         to be routed",
    );
}

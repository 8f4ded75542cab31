//! Tests of the topologies of 1Pipe networks.

use super::super::{Network, System, parsed, topology};
use core::net::IpAddr;
use onepipe::ProcessId;
use representative::plan::{Link, Node, Settings};
use rocev2::Qpn;
use std::path::Path;
use switch::Nanos;

/// Two racks below a spine
const VALID: &str = r#"
[topology]
[[switch]]
name = "tor1"
tunnel = "10.255.0.1"
mac = "02:00:00:01:00:01"
[[switch]]
name = "tor2"
[[switch]]
name = "spine"
[[host]]
name = "a"
id = 1
address = "10.0.1.1/24"
mac = "02:00:00:00:00:01"
switch = "tor1"
[[host]]
name = "b"
id = 4000000000
address = "10.0.2.1/24"
mac = "02:00:00:00:00:02"
switch = "tor2"
[[host]]
name = "r1"
address = "10.0.1.2/24"
mac = "02:00:00:00:00:03"
switch = "tor1"
messages = false
[[host]]
name = "r2"
address = "10.0.2.2/24"
mac = "02:00:00:00:00:04"
switch = "tor2"
messages = false
[[host]]
name = "r3"
address = "10.0.3.2/24"
mac = "02:00:00:00:00:05"
switch = "spine"
messages = false
[[link]]
ends = ["tor1", "spine"]
[[link]]
ends = ["tor2", "spine"]
"#;

fn read(text: &str) -> Result<Network, Vec<(usize, String, String)>> {
    let found = parsed(Path::new("test.toml"), text, topology::read_numbered);
    found.map_err(|report| {
        report.findings().map(|f| (f.position.line, f.message.to_owned(), f.help.to_owned())).collect()
    })
}

/// Returns the same network with the MAC addresses of its switches, which representatives in other subnets
/// need.
fn valid() -> String {
    VALID
        .replace("name = \"tor2\"\n[[", "name = \"tor2\"\nmac = \"02:00:00:01:00:02\"\n[[")
        .replace("name = \"spine\"\n[[", "name = \"spine\"\nmac = \"02:00:00:01:00:03\"\n[[")
}

/// Asserts that the replacement of `old` makes exactly one problem, with this message, on the line that is
/// marked with `#!`, and with these words in its help.
#[track_caller]
fn fails(old: &str, new: &str, message: &str, help: &str) {
    let whole = valid();
    assert!(whole.contains(old), "{old}");
    let text = whole.replacen(old, new, 1);
    let line = text.lines().position(|line| line.contains("#!")).map_or(1, |index| index + 1);
    let found = read(&text).expect_err("the file is invalid");
    let messages: Vec<_> = found.iter().map(|(line, message, _)| (*line, message.as_str())).collect();
    assert_eq!(messages, [(line, message)]);
    assert!(found[0].2.contains(help), "{}", found[0].2);
}

#[test]
fn every_key_is_read() {
    let network = read(&valid()).unwrap();
    assert_eq!(network.topology.settings, Settings::default());
    let layers: Vec<_> =
        network.plan.switches.iter().map(|switch| (switch.layer, switch.representative)).collect();
    assert_eq!(layers, [(1, 2), (1, 3), (2, 4)]);
    assert_eq!(
        (network.systems, network.interfaces),
        (vec![System::Other; 3], vec!["eth0"; 5].into_iter().map(String::from).collect())
    );
    let text = valid()
        .replace("[topology]", "[topology]\nbeacon_interval_ns = 5000\ndead_after_intervals = 20\ntraffic_class = 0x68\nidle = \"sleep\"\nahead_max_us = 70\nclock_error_us = 60\ntimeout_us = 4\nhost_qp = 8\nfirst_qp = 9")
        .replace("name = \"tor1\"\n", "name = \"tor1\"\nlayer = 3\nos = \"sonic\"\nrepresentative = \"b\"\nstandby = \"r1\"\n")
        .replace("name = \"spine\"\n", "name = \"spine\"\nlayer = 7\nos = \"eos\"\ntunnel = \"10.255.0.3\"\n")
        .replace("name = \"b\"\n", "name = \"b\"\nrepresents = false\ninterface = \"eth7\"\n")
        .replace("ends = [\"tor2\", \"spine\"]", "ends = [\"tor2\", \"spine\"]\ncost = 7");
    let network = read(&text).unwrap();
    let settings = network.topology.settings;
    assert_eq!((settings.beacon_interval, settings.dead_after_intervals), (Nanos(5000), 20));
    assert_eq!(
        (settings.traffic_class, settings.host_qp, settings.first_qp),
        (0x68, Qpn::new(8), Qpn::new(9))
    );
    assert_eq!((settings.ahead_max, settings.timeout), (Nanos(70_000), Nanos(4_000)));
    assert_eq!((settings.clock_error, settings.clock_source), (Nanos(60_000), onepipe::ClockSource::Host));
    let text = valid().replace("[topology]", "[topology]\nclock_from = \"beacons\"");
    assert_eq!(read(&text).unwrap().topology.settings.clock_source, onepipe::ClockSource::Beacons);
    assert_eq!(network.idle, Some("sleep"));
    let tor1 = &network.topology.switches[0];
    assert_eq!(
        (tor1.layer, tor1.representative, tor1.standby, tor1.tunnel),
        (Some(3), Some(1), Some(2), Some(IpAddr::from([10, 255, 0, 1])))
    );
    assert_eq!(network.topology.links[1], Link { ends: [1, 2], cost: 7 });
    assert_eq!(network.systems, [System::Sonic, System::Other, System::Eos]);
    let b = &network.topology.hosts[1];
    assert_eq!((b.represents, b.messages, network.interfaces[1].as_str()), (false, true, "eth7"));
    assert_eq!(network.topology.name(Node::Host(1)), "b");
    let ids: Vec<_> = network.topology.hosts.iter().map(|host| host.id).collect();
    assert_eq!(ids, [Some(ProcessId(1)), Some(ProcessId(4_000_000_000)), None, None, None]);
}

#[test]
fn each_slip_is_reported_at_its_place() {
    fails("name = \"a\"", "name = \"tor1\" #!", "two nodes have the name `tor1`", "its own name");
    fails("name = \"a\"", "name = \"a/b\" #!", "`a/b` is not a valid name", "files and rules on switches");
    fails("switch = \"tor1\"", "switch = \"tor\" #!", "there is no switch `tor`", "did you mean `tor1`?");
    fails(
        "tunnel = \"10.255.0.1\"",
        "representative = \"x\" #!",
        "there is no host `x`",
        "it can be `a`, `b`, `r1`, `r2` or `r3`",
    );
    fails(
        "tunnel = \"10.255.0.1\"",
        "standby = \"r\" #!",
        "there is no host `r`",
        "it can be `a`, `b`, `r1`, `r2` or `r3`",
    );
    fails(
        "name = \"tor1\"\n",
        "name = \"tor1\" #!\nrepresentative = \"r1\"\nstandby = \"r1\"\n",
        "`r1` is both the representative and the standby of `tor1`",
        "name another host with `standby = \"...\"`",
    );
    fails("id = 1\n", "id = 0 #!\n", "`id` cannot be 0", "1");
    fails("\"10.255.0.1\"", "\"224.0.0.1\" #!", "224.0.0.1 is not a routable unicast address", "routes to");
    for address in ["224.0.0.1/24", "10.0.1.255/24", "10.0.1.0/24", "127.0.0.1/8"] {
        let ip = address.split('/').next().unwrap();
        let message = format!("{ip} is not an address of a host");
        fails("\"10.0.1.1/24\"", &format!("\"{address}\" #!"), &message, "such as `10.0.0.1/24`");
    }
    fails(
        "switch = \"tor1\"\n",
        "switch = [\"tor1\", \"tor2\"] #!\n",
        "a host that sends messages has 2 switches",
        "a process supports one link",
    );
    fails(
        "\"tor1\", \"spine\"]",
        "\"tor1\"] #!",
        "`ends` of a link has to name two switches",
        "a host names its switches",
    );
    fails(
        "[topology]",
        "[topology]\nhost_qp = 0x100 #!",
        "`host_qp` has to be below `first_qp`",
        "the numbers that follow",
    );
    fails("[topology]", "[topology]\nidle = \"slep\" #!", "`idle` cannot be `slep`", "sleep");
    let errors = "[topology]\nahead_max_us = 90\nclock_error_us = 91 #!";
    fails("[topology]", errors, "`clock_error_us` is longer than `ahead_max_us`", "write 90 or less");
    fails("[topology]", "[topology]\ntimeout_us = 3 #!", "`timeout_us` cannot be 3", "4");
    fails(
        "tunnel = ",
        "os = \"junos\" #!\ntunnel = ",
        "`os` cannot be `junos`",
        "`sonic`, `eos`, `linux` or `understudy`",
    );
    fails(
        "switch = \"tor1\"\n",
        "swich = \"tor1\" #!\nswitch = \"tor1\"\n",
        "there is no key `swich` in [[host]]",
        "did you mean `switch`?",
    );
    fails(
        "switch = \"tor1\"\n",
        "switch = \"tor1\"\ncost = 0 #!\n",
        "there is no key `cost` in [[host]]",
        "`cost` belongs to [[link]]",
    );
}

#[test]
fn problems_of_the_whole_are_reported() {
    fails(
        "\"tor2\", \"spine\"]",
        "\"tor2\", \"tor1\"] #!",
        "neither of `tor2` and `tor1` is above the other",
        "layer 1",
    );
    fails(
        "name = \"a\"\nid = 1\n",
        "name = \"a\" #!\n",
        "`a` sends messages but has no `id`",
        "`id = 4000000001`",
    );
    fails(
        "name = \"b\"\nid = 4000000000",
        "name = \"b\" #!\nid = 1",
        "`a` and `b` have the same `id`, 1",
        "its own",
    );
    let no_representative = "`tor2` has no representative, so its links have none: to `spine`";
    let forbidden = valid().replace("mac = \"02:00:00:00", "represents = false\nmac = \"02:00:00:00");
    let found = read(&forbidden).unwrap_err();
    assert!(
        found.iter().any(|(line, message, _)| (*line, message.as_str()) == (8, no_representative)),
        "{found:?}"
    );
    fails(
        "name = \"b\"\nid = 4000000000\naddress = \"10.0.2.1/24\"",
        "name = \"b\" #!\nid = 4000000000\naddress = \"10.0.1.1/24\"",
        "`a` and `b` have the same address, 10.0.1.1",
        "its own",
    );
}

#[test]
fn controller_is_read_with_its_mistakes() {
    let with = |lines: &str| VALID.replace("[topology]", &format!("[controller]\n{lines}\n[topology]"));
    let network = read(&with("listen = \"127.0.0.1:70\"").replace("mac = \"02:00:00:01:00:01\"\n", ""));
    assert!(network.is_err(), "other checks go on");
    let whole = valid().replace(
        "[topology]",
        "[controller]\nlisten = \"127.0.0.1:70\"\n[topology]\ndead_after_intervals = 12",
    );
    let network = read(&whole).unwrap();
    let controller = network.controller.unwrap();
    assert_eq!((controller.listen.port(), controller.secret_file), (70, None));
    assert_eq!(network.topology.settings.fail_after_intervals, Some(12));
    fails(
        "[topology]",
        "[controller]\nlisten = \"10.9.0.1:7070\" #!\n[topology]",
        "there is no `secret_file`, and 10.9.0.1:7070 is not a loopback address",
        "add `secret_file",
    );
    fails(
        "[topology]",
        "[controller]\nlisten = \"127.0.0.1:7070\"\nfail_after_intervals = 9 #!\n[topology]",
        "`fail_after_intervals` is 9, below the `dead_after_intervals` of 10",
        "write 10 or more",
    );
    fails(
        "[topology]",
        "[controller]\nlisten = \"nowhere\" #!\n[topology]",
        "`nowhere` is not an address with a port",
        "names are not resolved",
    );
}

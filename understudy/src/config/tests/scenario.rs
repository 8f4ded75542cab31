//! Tests of the simulator's scenarios.

use super::super::{parsed, scenario};
use core::net::IpAddr;
use std::path::Path;
use workloads::scenario::{
    AckSpec, EcnSpec, FaultKind, FaultSpec, GroupsSpec, NumberRange, Scenario, SwitchKind, Work, to_toml,
};

const HOSTS: &str =
    "[[host]]\nname = \"a\"\naddress = \"10.0.0.1/24\"\n[[host]]\nname = \"b\"\naddress = \"10.0.0.2/24\"\n";

/// Returns a file with two hosts, and a link with these lines.
fn link(lines: &str) -> String {
    [HOSTS, "[[link]]\nends = [\"a\", \"b\"]\n", lines, "\n"].concat()
}

fn problems(text: &str) -> Vec<(usize, String, String)> {
    let report = parsed(Path::new("test.toml"), text, scenario::read).expect_err("the file is invalid");
    report.findings().map(|f| (f.position.line, f.message.to_owned(), f.help.to_owned())).collect()
}

/// Asserts that there is exactly one problem, with this message and this help, on the line that is marked
/// with `#!`.
#[track_caller]
fn fails(text: &str, message: &str, help: &str) {
    let line = text.lines().position(|line| line.contains("#!")).map_or(1, |index| index + 1);
    assert_eq!(problems(text), [(line, message.to_owned(), help.to_owned())], "in:{text}");
}

#[track_caller]
fn read(text: &str) -> Scenario {
    parsed(Path::new("test.toml"), text, scenario::read)
        .unwrap_or_else(|report| panic!("{}", report.render()))
}

#[test]
fn keys_are_read() {
    let text = link(
        "rate_gbps = [1, 2.5]\ndelay_us = 0.5\nloss = [0, 0.1]\nmtu = 4200\n\
         ecn = { min = 1, max = [5, 6], share = 0.5 }\n\
         [verbs]\nmtu = [256, 4096]\nretry_count = 3\nunreliable = [0, 2]\nsrq = \"any\"\nverbs = [\"read\"]\n\
         [[fault]]\nat_us = 1\ncrash = \"a\"\nfor_us = [2, 3]\n\
         [[fault]]\nat_us = 1\nclock = \"b\"\nstep_us = -4\n\
         [[fault]]\nat_us = 1\nmute = [\"a\"]\n\
         [[fault]]\nat_us = 1\npart = [\"a\", \"b\"]\n\
         [[fault]]\nat_us = 1\nlink = [\"b\", \"a\"]\nmtu = [300, 600]",
    )
    .replace("[[link]]", "ack = { packets = 4, time_us = 20 }\ncredits = true\n[[link]]");
    let scenario = read(&text);
    let link = &scenario.links[0];
    assert_eq!(link.rate, NumberRange { low: 1_000_000_000, high: 2_500_000_000 });
    assert_eq!(link.delay, NumberRange::fixed(500));
    assert_eq!(link.loss, NumberRange { low: 0, high: 100_000_000 });
    let ecn = EcnSpec {
        min: NumberRange::fixed(1),
        max: NumberRange { low: 5, high: 6 },
        share: NumberRange::fixed(500_000_000),
    };
    assert_eq!(link.ecn, Some(ecn));
    assert_eq!(scenario.hosts[1].ack, AckSpec::Every { packets: 4, time: 20_000 });
    assert_eq!(scenario.hosts[1].credits, NumberRange::fixed(1));
    assert_eq!(scenario.hosts[0].address, (IpAddr::from([10, 0, 0, 1]), 24));
    let Work::Verbs(verbs) = &scenario.work else { panic!("{:?}", scenario.work) };
    assert_eq!(verbs.mtu_log2, NumberRange { low: 8, high: 12 });
    assert_eq!(verbs.retry_count, NumberRange::fixed(3));
    assert_eq!(verbs.unreliable, NumberRange { low: 0, high: 2 });
    assert_eq!(verbs.srq, NumberRange { low: 0, high: 1 });
    let crash = FaultSpec {
        at: NumberRange::fixed(1000),
        kind: FaultKind::Crash("a".into()),
        lasts: Some(NumberRange { low: 2000, high: 3000 }),
    };
    assert_eq!(scenario.faults[0], crash);
    assert_eq!(scenario.faults[1].kind, FaultKind::ClockStep("b".into(), NumberRange::fixed(-4000)));
    let [a, b] = ["a", "b"].map(String::from);
    assert_eq!(scenario.faults[2].kind, FaultKind::Mute(vec![a.clone()]));
    assert_eq!(scenario.faults[3].kind, FaultKind::PartitionPair([a.clone(), b.clone()]));
    assert_eq!(scenario.faults[4].kind, FaultKind::Mtu([b, a], NumberRange { low: 300, high: 600 }));
    assert_eq!(read(&to_toml(&scenario)), scenario);
}

#[test]
fn a_printed_scenario_reads_as_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sim");
    let mut seen = 0;
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let scenario = read(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(read(&to_toml(&scenario)), scenario, "{}", path.display());
        // The values that a seed draws are equal, too.
        let drawn = scenario.drawn(3);
        assert_eq!(read(&to_toml(&drawn)), drawn, "{}", path.display());
        seen += 1;
    }
    assert!(seen >= 3);
}

#[test]
fn hosts_need_one_link_each_in_one_network() {
    assert_eq!(problems("[sim]\n")[0].1, "the scenario has fewer than two hosts");
    fails(
        &link("[[switch]]\nname = \"a\" #!"),
        "two nodes have the name `a`",
        "give each host and switch its own name",
    );
    fails(
        &link("[[host]]\nname = \"c\" #!\naddress = \"10.0.0.3/24\""),
        "host `c` has 0 links, but needs exactly one",
        "join hosts to a `[[switch]]`, or two hosts to each other",
    );
    fails(
        &link("").replace("10.0.0.2", "10.0.0.1").replace("name = \"b\"", "name = \"b\" #!"),
        "`a` and `b` have the same address",
        "give each host its own `address`",
    );
    fails(
        &link("").replace("10.0.0.2", "fd00::2").replace("name = \"b\"", "name = \"b\" #!"),
        "`a` and `b` have addresses of different IP versions",
        "give all hosts IPv4 addresses, or all IPv6 addresses",
    );
    let ends = |ends: [&str; 2]| format!("[[link]]\nends = [\"{}\", \"{}\"]\n", ends[0], ends[1]);
    let switches = "[[switch]]\nname = \"s\"\n[[switch]]\nname = \"t\"\n";
    let apart = [HOSTS, switches, &ends(["a", "s"]), &ends(["b", "t"])].concat();
    fails(
        &apart.replace("name = \"b\"", "name = \"b\" #!"),
        "no path joins `a` and `b`",
        "add a `[[link]]` between the parts",
    );
    let loops = [&apart, &ends(["s", "t"]), "[[link]]\nends = [\"t\", \"s\"] #!\n"].concat();
    fails(
        &loops,
        "`t` and `s` are already joined",
        "remove a link: learning bridges send frames to unknown addresses around a loop for ever",
    );
}

#[test]
fn ranges_have_two_numbers_in_order() {
    fails(
        &link("loss = [0.1, 0] #!"),
        "the range `loss` ends before it begins",
        "write the smaller number first: `[least, greatest]`",
    );
    fails(
        &link("loss = [0.1] #!"),
        "`loss` has to be a number or two numbers",
        "write a number, or `[least, greatest]`, from which the seed draws one",
    );
    fails(&link("loss = 1.5 #!"), "`loss` cannot be 1.5", "write a number from 0 to 1");
    fails(
        &link("mtu = 1500\n[verbs]\nmtu = [256, 4096] #!"),
        "packets of this size exceed the MTU of a link",
        "with headers they have 4180 bytes: give the link between `a` and `b` an `mtu` of at least 4180",
    );
}

#[test]
fn unknown_names_are_reported() {
    fails(
        &link("los = 0.1 #!"),
        "there is no key `los` in [[link]]",
        "did you mean `loss`? [[link]] takes `ends`, `rate_gbps`, `delay_us`, `jitter_us`, `loss`, `duplicate`, `reorder`, `reorder_by_us`, `corrupt`, `mtu`, `queue` and `ecn`",
    );
    fails(
        &link("").replace("ends = [\"a\", \"b\"]", "ends = [\"a\", \"c\"] #!"),
        "there is no host or switch `c`",
        "it can be `a` or `b`",
    );
}

#[test]
fn faults_need_the_right_nodes_and_keys() {
    let each = "write one of `crash = \"a\"`, `pause = \"a\"`, `partition = [\"a\"]`, `mute = [\"a\"]`, `part = \
     [\"a\", \"b\"]`, `link = [\"a\", \"b\"]` with `mtu`, `swap = [\"a\", \"b\"]`, `stranger = \"s\"` with \
     `lies`, `rehash = \"a\"` with `salt`, or `clock = \"a\"` with `step_us` or `drift_ppm`; `for_us` is \
     the duration";
    fails(&link("[[fault]] #!\nat_us = 1"), "a [[fault]] needs exactly one event with all of its keys", each);
    fails(
        &link("[[fault]]\nat_us = 1\ncrash = \"c\" #!"),
        "there is no host or switch `c`",
        "it can be `a` or `b`",
    );
    for key in ["partition", "mute"] {
        for nodes in ["[]", "[\"a\", \"b\"]"] {
            fails(
                &link(&format!("[[fault]]\nat_us = 1\n{key} = {nodes} #!")),
                "no link leads from these nodes to other nodes",
                "name the hosts and switches of one side only, such as `[\"a\"]`",
            );
        }
    }
    for hosts in ["[\"a\"]", "[\"a\", \"a\"]", "[\"a\", \"b\", \"a\"]"] {
        fails(
            &link(&format!("[[fault]]\nat_us = 1\npart = {hosts} #!")),
            "`part` needs two hosts, which then do not receive each other's packets",
            "write `part = [\"a\", \"b\"]`",
        );
        fails(
            &link(&format!("[[fault]]\nat_us = 1\nmtu = 300\nlink = {hosts} #!")),
            "no link joins these two nodes",
            "write the `ends` of a `[[link]]`",
        );
    }
    fails(
        &link("[[fault]]\nat_us = 1\nlies = 3\nstranger = \"a\" #!"),
        "`stranger` needs the switch at which the outsider is",
        "name a `[[switch]]`",
    );
    fails(
        &link("[[fault]]\nat_us = 1\nswap = [\"a\"] #!"),
        "`swap` needs two hosts, which then swap their ports",
        "write `swap = [\"a\", \"b\"]`",
    );
    fails(
        &link("[[fault]]\nat_us = 1\nswap = [\"a\", \"b\"] #!"),
        "hosts swap their ports only at one switch",
        "name two hosts that are linked to the same `[[switch]]`",
    );
    fails(
        &star("", "[[fault]]\nat_us = 1\nsalt = 7\nrehash = \"s\" #!"),
        "`rehash` needs a host: a switch has no UDP source ports",
        "name a `[[host]]`",
    );
    // Incomplete events, and two events in one fault
    for keys in [
        "mtu = 300",
        "lies = 3",
        "salt = 7",
        "rehash = \"a\"",
        "swap = [\"a\", \"b\"]\npause = \"a\"",
        "stranger = \"a\"",
        "link = [\"a\", \"b\"]",
        "crash = \"a\"\nmute = [\"a\"]",
        "step_us = 1\npause = \"a\"",
    ] {
        fails(
            &link(&format!("[[fault]] #!\nat_us = 1\n{keys}")),
            "a [[fault]] needs exactly one event with all of its keys",
            each,
        );
    }
}

/// Returns a file with three hosts at a switch. `switch` has the lines of the switch, `lines` those that
/// follow.
fn star(switch: &str, lines: &str) -> String {
    let third = "[[host]]\nname = \"c\"\naddress = \"10.0.0.3/24\"\n";
    let joined = ["a", "b", "c"].map(|host| format!("[[link]]\nends = [\"{host}\", \"s\"]\n")).concat();
    [HOSTS, third, "[[switch]]\nname = \"s\"\n", switch, "\n", &joined, lines, "\n"].concat()
}

const P4CE: &str = "function = \"p4ce\"\naddress = \"10.0.0.254/24\"\nsilent_after_us = 500";

#[test]
fn groups_need_leaders_and_one_switch() {
    let text = star(
        P4CE,
        "[groups]\nleaders = [\"b\"]\nquorum = [1, 2]\nmtu = 256\noutvote = \"any\"\nmessages = 0",
    );
    let scenario = read(&text);
    let address = (IpAddr::from([10, 0, 0, 254]), 24);
    let silent_after = NumberRange::fixed(500_000);
    assert_eq!(scenario.switches[0].kind, SwitchKind::P4ce { address, silent_after });
    let groups = GroupsSpec {
        quorum: NumberRange { low: 1, high: 2 },
        mtu_log2: NumberRange::fixed(8),
        outvote: NumberRange { low: 0, high: 1 },
        messages: NumberRange::fixed(0),
        ..GroupsSpec::new(vec!["b".into()])
    };
    assert_eq!(scenario.work, Work::Groups(groups));
    let one = "[groups] needs exactly one switch that replicates";
    let add = "add a `[[switch]]` with `function = \"p4ce\"` and an `address`";
    fails(&star("", "[groups] #!\nleaders = [\"a\"]"), one, add);
    let some = "`leaders` has to name some of the hosts, each once";
    for leaders in ["[]", "[\"a\", \"a\"]", "[\"a\", \"b\", \"c\"]"] {
        let text = star(P4CE, &format!("[groups]\nleaders = {leaders} #!"));
        fails(&text, some, "name at least one host, and leave out at least one, which is a replica");
    }
    let names = "it can be `a`, `b` or `c`";
    fails(&star(P4CE, "[groups]\nleaders = [\"s\"] #!"), "there is no host `s`", names);
    let both = star(P4CE, "[groups]\nleaders = [\"a\"]\n[verbs] #!\nsrq = true");
    fails(&both, "a scenario has `[verbs]` or `[groups]`, not both", "remove `[verbs]` or `[groups]`");
    let quorum = star(P4CE, "[groups]\nleaders = [\"a\"]\nquorum = 3 #!");
    fails(&quorum, "`quorum` cannot be 3", "write a number from 0 to 2");
    let v6 =
        star(&P4CE.replace("10.0.0.254/24", "fd00::1/64"), "").replace("name = \"s\"", "name = \"s\" #!");
    fails(
        &v6,
        "`a` and `s` have addresses of different IP versions",
        "give all IPv4 addresses, or all IPv6 addresses",
    );
}

#[test]
fn an_unknown_function_of_a_switch_is_one_problem() {
    let hosts = ["a", "b"].map(|name| {
        let address = if name == "a" { 1 } else { 2 };
        format!("[[host]]\nname = \"{name}\"\naddress = \"10.0.0.{address}/24\"\n[[link]]\nends = [\"{name}\", \"s\"]\n")
    });
    let switch =
        "[[switch]]\nname = \"s\"\nfunction = \"p4c\" #!\naddress = \"10.0.0.254/24\"\nsilent_after_us = 5\n";
    fails(
        &[&hosts[0], &hosts[1], switch, "[groups]\nleaders = [\"a\"]\n"].concat(),
        "`function` cannot be `p4c`",
        "did you mean `p4ce`? it can be `bridge` or `p4ce`",
    );
}

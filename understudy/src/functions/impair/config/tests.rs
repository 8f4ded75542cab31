//! Tests of `[impair]`.

use crate::config::tests::{PORTS, fails, problems_in, read};
use crate::functions::FunctionConfig;
use rocev2::{Opcode, Psn, Qpn};
use switch::impair::{Action, Config, Field, IpPrefix, Match, Operations, PsnRange, Rule};
use switch::{Nanos, PortId, Probability};

const PAIRS: &str = "[impair]\npairs = [[\"a\", \"b\"]]\n";
const RULE_KEYS: &str = "[[impair.rule]] takes `name`, `match`, `share`, `skip`, `times`, `action`, `delay_us`, `jitter_us`, `copies`, `behind`, `at_most_us`, `field` and `force`";

/// Returns a file with these lines in `[impair]`.
fn impair(lines: &str) -> String {
    [PORTS, PAIRS, lines, "\n"].concat()
}

/// Returns a file with a rule of these lines.
fn rule(lines: &str) -> String {
    impair(&["[[impair.rule]]\n", lines].concat())
}

/// Returns a file with a rule whose `match` has these keys.
fn matching(content: &str) -> String {
    rule(&["action = \"drop\"\nmatch = { ", content, " } #!"].concat())
}

fn function(text: &str) -> Config {
    match read(text).function {
        FunctionConfig::Impair(config) => config,
        other => panic!("{other:?}"),
    }
}

fn only_rule(text: &str) -> Rule {
    let mut rules = function(text).rules;
    assert_eq!(rules.len(), 1);
    rules.remove(0)
}

fn action(lines: &str) -> Action {
    only_rule(&rule(lines)).action
}

#[test]
fn absent_keys_have_defaults() {
    let config = Config {
        ports: 2,
        pairs: vec![(PortId(0), PortId(1))],
        seed: 1,
        held: 4096,
        frame_len: 1500 + 14 + 12,
        flows: 4096,
        counted_qps: 1024,
        health: true,
        rules: vec![],
    };
    assert_eq!(function(&impair("")), config);
    let rule = Rule {
        name: "rule 1".into(),
        matching: Match::default(),
        share: Probability::ALWAYS,
        skip: 0,
        times: u64::MAX,
        action: Action::Drop,
    };
    assert_eq!(function(&self::rule("action = \"drop\"")), Config { rules: vec![rule], ..config });
}

#[test]
fn every_key_is_read() {
    let config = function(&impair(
        r#"seed = 7
           held = 16
           flows = 17
           counted_qps = 0
           [[impair.rule]]
           name = "lose"
           match = { opcode = ["rc_write_only", "ack", 0x04], qpn = [0x11, 18], src = "10.0.0.1", dst = "fd00::/64", port = "b", psn = "0xfffff0-15", psn_offset = 3 }
           share = 0.25
           skip = 5
           times = 6
           action = "drop"
           [[impair.rule]]
           share = 1
           match = { qpn = 5, psn = 9, psn_offset = "0-10", opcode = "cm" }
           action = "corrupt""#,
    ));
    assert_eq!((config.seed, config.held, config.flows, config.counted_qps), (7, 16, 17, 0));
    let range = |first, last| Some(PsnRange { first: Psn::new(first), last: Psn::new(last) });
    let opcodes = [Opcode::RC_WRITE_ONLY, Opcode::RC_SEND_ONLY].map(Operations::only);
    let lose = Rule {
        name: "lose".into(),
        matching: Match {
            operations: Operations::class("ack").map(|ack| ack.and(opcodes[0]).and(opcodes[1])),
            qpns: vec![Qpn::new(0x11), Qpn::new(18)],
            src: Some(IpPrefix::host("10.0.0.1".parse().unwrap())),
            dst: IpPrefix::new("fd00::".parse().unwrap(), 64),
            port: Some(PortId(1)),
            psn: range(0xff_fff0, 15),
            psn_offset: range(3, 3),
        },
        share: Probability::new(0.25).unwrap(),
        skip: 5,
        times: 6,
        action: Action::Drop,
    };
    let damage = Rule {
        name: "rule 2".into(),
        matching: Match {
            operations: Operations::class("cm"),
            qpns: vec![Qpn::new(5)],
            psn: range(9, 9),
            psn_offset: range(0, 10),
            ..Match::default()
        },
        share: Probability::ALWAYS,
        skip: 0,
        times: u64::MAX,
        action: Action::Corrupt(Field::Payload),
    };
    assert_eq!(config.rules, [lose, damage]);
}

#[test]
fn every_action_is_read() {
    let us = Nanos::from_micros;
    for (lines, expected) in [
        ("action = \"delay\"\ndelay_us = 100", Action::Delay { by: us(100), jitter: us(0) }),
        ("action = \"delay\"\ndelay_us = 0\njitter_us = 50", Action::Delay { by: us(0), jitter: us(50) }),
        ("action = \"duplicate\"", Action::Duplicate { copies: 1 }),
        ("action = \"duplicate\"\ncopies = 3", Action::Duplicate { copies: 3 }),
        ("action = \"reorder\"", Action::Reorder { behind: 1, at_most: us(10_000) }),
        ("action = \"reorder\"\nbehind = 3\nat_most_us = 5", Action::Reorder { behind: 3, at_most: us(5) }),
        ("action = \"corrupt\"\nfield = \"payload\"", Action::Corrupt(Field::Payload)),
        ("action = \"corrupt\"\nfield = \"header\"", Action::Corrupt(Field::Header)),
        ("action = \"corrupt\"\nfield = \"icrc\"", Action::Corrupt(Field::Icrc)),
        ("action = \"mark\"", Action::Mark { force: false }),
        ("action = \"mark\"\nforce = true", Action::Mark { force: true }),
    ] {
        assert_eq!(action(lines), expected, "{lines}");
    }
}

#[test]
fn every_opcode_has_a_name() {
    for &opcode in Opcode::KNOWN {
        let name = opcode.info().unwrap().constant.to_lowercase();
        let rule = only_rule(&matching(&format!("opcode = \"{name}\"")));
        assert_eq!(rule.matching.operations, Some(Operations::only(opcode)));
        assert!(Operations::class(&name).is_none(), "a class and an opcode share the name {name}");
    }
    for class in Operations::CLASSES {
        let rule = only_rule(&matching(&format!("opcode = \"{class}\"")));
        assert_eq!(rule.matching.operations, Operations::class(class));
    }
}

#[test]
fn impair_needs_pairs_and_is_the_only_function() {
    fails(
        &[PORTS, "[impair] #!\n"].concat(),
        "[impair] does not define where frames go",
        r#"add `pairs = [["a", "b"]]` to join ports two by two"#,
    );
    fails(
        &[PORTS, "[impair]\npairs = [[\"a\", \"b\"], [\"b\", \"b\"]] #!\n"].concat(),
        "port `b` is in two pairs",
        "remove it from one of them",
    );
    fails(
        &[PORTS, "[impair] #!\npairs = [[\"a\", \"b\"]]\n[forward]\npairs = [[\"a\", \"b\"]]"].concat(),
        "the file has two functions",
        "keep one, and run another instance for the other",
    );
}

#[test]
fn unknown_keys_are_reported_with_suggestions() {
    fails(
        &impair("sed = 5 #!"),
        "there is no key `sed` in [impair]",
        "did you mean `seed`? [impair] takes `seed`, `pairs`, `held`, `flows`, `counted_qps`, `health` and `rule`",
    );
    fails(
        &rule("action = \"drop\"\nshares = 0.5 #!"),
        "there is no key `shares` in [[impair.rule]]",
        &format!("did you mean `share`? {RULE_KEYS}"),
    );
    fails(
        &matching("opcodes = \"write\""),
        "there is no key `opcodes` in `match`",
        "did you mean `opcode`? `match` takes `opcode`, `qpn`, `src`, `dst`, `port`, `psn` and `psn_offset`",
    );
    fails(
        &rule("match = { qpn = 5 }\naction = \"drop\"\npsn = 7 #!"),
        "there is no key `psn` in [[impair.rule]]",
        "`psn` belongs to `match`: move it there",
    );
}

#[test]
fn rules_need_double_brackets_an_action_and_their_own_names() {
    fails(
        &impair("rule = 5 #!"),
        "`rule` has to be a list of tables",
        "begin each with the line `[[impair.rule]]`, in double brackets, and write its keys below",
    );
    fails(
        &impair("[impair.rule] #!\naction = \"drop\""),
        "`rule` has to be a list of tables",
        "begin each with the line `[[impair.rule]]`, in double brackets, and write its keys below",
    );
    fails(
        &impair("[[impair.rule]] #!\nshare = 0.5"),
        "[[impair.rule]] has no `action`",
        r#"add `action = "drop"`"#,
    );
    fails(
        &rule("action = \"lose\" #!"),
        "`action` cannot be `lose`",
        "it can be `drop`, `delay`, `duplicate`, `reorder`, `corrupt` or `mark`",
    );
    fails(
        &rule("name = \"one\"\naction = \"drop\"\n[[impair.rule]]\nname = \"one\" #!\naction = \"drop\""),
        "two rules have the name `one`",
        "give each rule its own name, which seeds its random choices",
    );
    fails(
        &rule("action = \"drop\"\n[[impair.rule]]\nname = \"rule 1\" #!\naction = \"drop\""),
        "two rules have the name `rule 1`",
        "give each rule its own name, which seeds its random choices",
    );
    fails(
        &rule("name = \"two\\nlines\" #!\naction = \"drop\""),
        "`name` of a rule is too long, or has control characters",
        "write up to 64 characters, such as `name = \"lose some\"`",
    );
}

#[test]
fn numbers_outside_of_their_range_are_reported() {
    let share = |value: &str| rule(&format!("action = \"drop\"\nshare = {value} #!"));
    for value in ["1.5", "-0.1", "nan", "2", "inf"] {
        fails(
            &share(value),
            &format!("`share` cannot be {value}"),
            "write a number from 0 to 1, such as `share = 0.01`",
        );
    }
    fails(
        &share("\"0.5\""),
        "`share` has to be a number, and is a string",
        "leave out the quotes: `share = 0.5`",
    );
    fails(
        &share("\"1 %\""),
        "`share` has to be a number, and is a string",
        "write a number such as `share = 0.01`",
    );
    fails(
        &rule("action = \"drop\"\ntimes = 0 #!"),
        "`times` cannot be 0",
        "write a number from 1 to 281474976710656, such as `times = 1`",
    );
    fails(
        &rule("action = \"duplicate\"\ncopies = 17 #!"),
        "`copies` cannot be 17",
        "write a number from 1 to 16, such as `copies = 1`",
    );
    fails(
        &impair("held = 0 #!"),
        "`held` cannot be 0",
        "write a number from 1 to 65536, such as `held = 4096`",
    );
}

#[test]
fn keys_of_other_actions_are_reported() {
    fails(
        &rule("action = \"drop\"\ndelay_us = 100 #!"),
        "`delay_us` is not valid for `action = \"drop\"`",
        "remove it, or write `action = \"delay\"`",
    );
    fails(
        &rule("action = \"delay\"\ndelay_us = 5\nfield = \"icrc\" #!"),
        "`field` is not valid for `action = \"delay\"`",
        "remove it, or write `action = \"corrupt\"`",
    );
    fails(
        &impair("[[impair.rule]] #!\naction = \"delay\"\njitter_us = 5"),
        "[[impair.rule]] has no `delay_us`",
        "add `delay_us = 100`",
    );
    fails(
        &rule("action = \"corrupt\"\nfield = \"bth\" #!"),
        "`field` cannot be `bth`",
        "it can be `payload`, `header` or `icrc`",
    );
}

#[test]
fn matches_have_valid_opcodes_numbers_and_ports() {
    let opcodes = "write `request`, `response`, `ack`, `read`, `write`, `send`, `atomic` or `cm`, or an opcode such as `rc_write_only`, `ud_send_only_imm` or 0x0a";
    fails(
        &rule("action = \"drop\"\nmatch = \"write\" #!"),
        "`match` has to be a table, and is a string",
        "write a table in braces, such as `match = { opcode = \"write\" }`",
    );
    fails(
        &matching("opcode = \"rc_writ_only\""),
        "there is no opcode `rc_writ_only`",
        &format!("did you mean `rc_write_only`? {opcodes}"),
    );
    fails(&matching("opcode = [0x15]"), "there is no opcode 0x15 in RoCEv2", opcodes);
    fails(
        &matching("opcode = []"),
        "`opcode` is empty, so no packet matches",
        "remove it, or list at least one value, such as `opcode = \"rc_write_only\"`",
    );
    fails(
        &matching("qpn = 0x1000000"),
        "`qpn` cannot be 0x1000000",
        "write a number from 0 to 16777215, such as `qpn = 17`",
    );
    fails(&matching("port = \"c\""), "there is no port `c`", "the ports are `a` and `b`");
    fails(
        &matching("psn = \"5 to 7\""),
        "`psn` cannot be `5 to 7`",
        "write a number from 0 to 16777215, or two joined by `-`, such as `psn = \"100-200\"`",
    );
    fails(
        &matching("psn_offset = \"10-5\""),
        "the range `psn_offset` ends before it begins",
        "write the smaller number first: `\"5-10\"`",
    );
}

#[test]
fn hosts_are_addresses_or_networks() {
    for text in ["10.0.0", "10.0.0.0/33", "10.0.0.0/x", "host-a", "fd00::/129"] {
        fails(
            &matching(&format!("src = \"{text}\"")),
            &format!("`{text}` is neither an address nor a network"),
            "write an address, or a network with its prefix length, such as `src = \"10.0.0.1\"`",
        );
    }
    fails(
        &matching("dst = \"10.0.0.1/24\""),
        "10.0.0.1 is not the first address of its network",
        "write `\"10.0.0.0/24\"` for the network, or `\"10.0.0.1\"` for the host",
    );
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let text = impair(
        "seed = -1\n[[impair.rule]]\naction = \"drp\"\nshare = 7\nmatch = { qpn = \"x\", opcode = \"wrte\" }\n\
         [[impair.rule]]\nfoo = 1\n",
    );
    let folder = crate::config::tests::folder();
    let lines: Vec<_> = problems_in(folder.path(), &text).into_iter().map(|(line, ..)| line).collect();
    assert_eq!(lines, [10, 12, 13, 14, 14, 15, 16]);
}

//! Invalid configuration files, as their authors see them: where each problem is, what is wrong, and what to write.

use crate::commands::{configs, text, understudy};
use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::fs;
use std::process::Output;

/// An example configuration with one change that makes it invalid.
struct Broken {
    /// File in `configs/`
    config: &'static str,
    /// Text whose first occurrence is replaced, and what replaces it
    change: (&'static str, &'static str),
    /// Number of problems reported
    findings: usize,
    /// Text that begins on the line of the first problem
    at: &'static str,
    /// Part of the first problem's message
    message: &'static str,
    /// Part of its remedy
    help: &'static str,
}

impl Broken {
    /// Returns the changed file's contents.
    fn content(&self) -> String {
        let content = fs::read_to_string(configs().join(self.config)).unwrap();
        let (from, to) = self.change;
        assert!(content.contains(from), "{} does not contain {from:?}", self.config);
        content.replacen(from, to, 1)
    }

    /// Returns whether the report is the expected one, and the line on which the first problem is expected.
    fn is_explained(&self, content: &str, output: &Output) -> (bool, usize) {
        let at = content.find(self.at);
        let at = at.unwrap_or_else(|| panic!("{} does not contain {:?}", self.config, self.at));
        let line = content[..at].matches('\n').count() + 1;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_is_on_the_page("`understudy check --json`", &report);
        let errors = report["errors"].as_array().unwrap();
        let first = errors.first().unwrap_or(&Value::Null);
        let contains =
            |key: &str, words: &str| first[key].as_str().is_some_and(|found| found.contains(words));
        let explained = output.status.code() == Some(2)
            && errors.len() == self.findings
            && first["line"] == line
            && contains("message", self.message)
            && contains("help", self.help)
            && errors.iter().all(|error| error["help"] != "");
        (explained, line)
    }
}

const BROKEN: [Broken; 50] = [
    // The switch functions: forward, impair, tunnel, P4CE, Swordbox and 1Pipe
    Broken {
        config: "bump-in-the-wire.toml",
        change: ("counted_qps = 1024", "counted_qp = 1024"),
        findings: 1,
        at: "counted_qp =",
        message: "there is no key `counted_qp` in [forward]",
        help: "did you mean `counted_qps`?",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: ("mtu = 4200", r#"mtu = "4200""#),
        findings: 1,
        at: r#"mtu = "4200""#,
        message: "`mtu` has to be a whole number, and is a string",
        help: "leave out the quotes: `mtu = 4200`",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"[["a", "b"]]"#, r#"[["a", "c"]]"#),
        findings: 1,
        at: "pairs =",
        message: "there is no port `c`",
        help: "the ports are `a` and `b`",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"name = "b""#, r#"name = "a""#),
        findings: 2,
        at: "name = \"a\"\nmtu = 4200\n",
        message: "two ports are called `a`",
        help: "give each port a name of its own",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: ("[observe]", "[impair]\npairs = [[\"a\", \"b\"]]\n\n[observe]"),
        findings: 1,
        at: "[impair]",
        message: "the file has two functions",
        help: "keep one, and run another instance",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"[["a", "b"]]"#, r#"[["a", "b"]"#),
        findings: 1,
        at: "verify =",
        message: "a comma is missing between two elements, or the bracket after the last",
        help: "put commas between the elements, and `]` after the last",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"[["a", "b"]]"#, r#"[["a", b]]"#),
        findings: 1,
        at: "pairs =",
        message: "`b`",
        help: r#""b""#,
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: ("mtu = 4200", "mtu = 4200\nmtu = 9000"),
        findings: 1,
        at: "mtu = 9000",
        message: "`mtu` is defined twice",
        help: "remove one of the two",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: ("[forward]", "[foward]"),
        findings: 1,
        at: "[foward]",
        message: "there is no table `foward`",
        help: "did you mean `[forward]`?",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"af_packet = { interface = "host-a" }"#, ""),
        findings: 1,
        at: "[[port]]",
        message: "port `a` has no device",
        help: r#"such as `af_packet = { interface = "eth1" }`"#,
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"interface = "host-b""#, r#"interface = "host-a""#),
        findings: 1,
        at: "interface = \"host-a\" }\n\n[forward]",
        message: "port `a` and port `b` both use the interface `host-a`",
        help: "give each port a device of its own",
    },
    Broken {
        config: "bump-in-the-wire.toml",
        change: (r#"socket = "/run/understudy.sock""#, "prometheus = 70000"),
        findings: 1,
        at: "prometheus = 70000",
        message: "`prometheus` cannot be 70000",
        help: "write a number from 1 to 65535",
    },
    Broken {
        config: "hardware.toml",
        change: (r#"mlx5 = "0000:3b:00.1""#, r#"mlx5 = "0000:3b:00.0""#),
        findings: 1,
        at: r#"mlx5 = "0000:3b:00.0""#,
        message: "port `host` and port `network` both use the PCI device 0000:3b:00.0",
        help: "give each port a device of its own",
    },
    Broken {
        config: "hardware.toml",
        change: ("memory_mb = 1024", r#"memory_mb = "1 GB""#),
        findings: 1,
        at: "memory_mb =",
        message: "`memory_mb` has to be a whole number, and is a string",
        help: "write a number such as `memory_mb = 64`",
    },
    Broken {
        config: "memif/bridge.toml",
        change: (r#"role = "server""#, r#"role = "master""#),
        findings: 1,
        at: r#"role = "master""#,
        message: "`role` cannot be `master`",
        help: "it can be `server` or `client`",
    },
    Broken {
        config: "learning-bridge.toml",
        change: ("52:54:00:00:00:01", "52:54:00:00:01"),
        findings: 1,
        at: "52:54:00:00:01",
        message: "`52:54:00:00:01` is not a MAC address",
        help: "write six bytes in hexadecimal with colons",
    },
    Broken {
        config: "learning-bridge.toml",
        change: ("ageing_s = 300", r#"ageing_s = "300 s""#),
        findings: 1,
        at: "ageing_s =",
        message: "`ageing_s` has to be a whole number, and is a string",
        help: "write a number such as `ageing_s = 300`",
    },
    Broken {
        config: "learning-bridge.toml",
        change: ("counted_qps = 256", r#"pairs = [["one", "two"], ["three", "three"]]"#),
        findings: 1,
        at: "[forward.mac_table]",
        message: "[forward] has both `pairs` and `mac_table`",
        help: "keep `pairs` to join ports two by two, `mac_table` for a learning bridge",
    },
    Broken {
        config: "router.toml",
        change: (r#""10.0.0.1/32""#, r#""10.0.0.1/33""#),
        findings: 1,
        at: r#""10.0.0.1/33""#,
        message: "`10.0.0.1/33` is not a prefix",
        help: r#"such as `"10.0.0.0/8"`"#,
    },
    Broken {
        config: "router.toml",
        change: (r#""10.0.0.2/32""#, r#""10.0.0.1/32""#),
        findings: 1,
        at: "prefix = \"10.0.0.1/32\"\nvia = [{ port = \"host-b\"",
        message: "two routes have the prefix 10.0.0.1/32",
        help: "put all next hops into the `via` of one route",
    },
    Broken {
        config: "router.toml",
        change: (r#"ttl = "decrement""#, r#"ttl = "drop""#),
        findings: 1,
        at: "ttl =",
        message: "`ttl` cannot be `drop`",
        help: "it can be `decrement` or `keep`",
    },
    Broken {
        config: "impair.toml",
        change: ("share = 0.02", "share = 1.5"),
        findings: 1,
        at: "share = 1.5",
        message: "`share` cannot be 1.5",
        help: "write a number from 0 to 1",
    },
    Broken {
        config: "impair.toml",
        change: ("behind = 3", "behind = 3\ndelay_us = 5"),
        findings: 1,
        at: "delay_us = 5\n",
        message: r#"`delay_us` is not valid for `action = "reorder"`"#,
        help: r#"remove it, or write `action = "delay"`"#,
    },
    Broken {
        config: "impair.toml",
        change: ("delay_us = 100", ""),
        findings: 1,
        at: "[[impair.rule]]\nname = \"late\"",
        message: "[[impair.rule]] has no `delay_us`",
        help: "add `delay_us = 100`",
    },
    Broken {
        config: "impair.toml",
        change: ("100-16777215", "100-16777216"),
        findings: 1,
        at: "100-16777216",
        message: "`psn_offset` cannot be `100-16777216`",
        help: "write a number from 0 to 16777215, or two joined by `-`",
    },
    Broken {
        config: "impair.toml",
        change: (r#"name = "late""#, r#"name = "twice""#),
        findings: 1,
        at: "name = \"twice\"\nmatch = { opcode = [\"rc_send_only\"",
        message: "two rules have the name `twice`",
        help: "give each rule its own name",
    },
    Broken {
        config: "tunnel.toml",
        change: (r#"addresses = ["10.255.0.1"]"#, r#"addresses = ["10.255.0.1/32"]"#),
        findings: 1,
        at: "addresses =",
        message: "`10.255.0.1/32` is not an IP address",
        help: r#"write an address such as `"10.0.0.1"`"#,
    },
    Broken {
        config: "pktgen/null.toml",
        change: ("[pktgen]", "[runtime]\nworkers = [\"any\", \"any\"]\n[pktgen]"),
        findings: 1,
        at: "workers =",
        message: "the streams give 1 of 2 workers something to send",
        help: "list 1 CPU in `workers`, or raise `qps`",
    },
    Broken {
        config: "p4ce.toml",
        change: ("10.0.0.254/24", "224.0.0.254/24"),
        findings: 1,
        at: "addresses =",
        message: "224.0.0.254 is not an address of a host",
        help: "write the host's address and its subnet's prefix length",
    },
    Broken {
        config: "p4ce.toml",
        change: ("[p4ce]", "[p4ce]\nsecret = \"short\""),
        findings: 1,
        at: r#"secret = "short""#,
        message: "`secret` has only 5 bytes",
        help: "write at least 16 random bytes",
    },
    Broken {
        config: "swordbox.toml",
        change: (r#"["remap", "cas_to_write"]"#, r#"["cas_to_write"]"#),
        findings: 1,
        at: "layers =",
        message: "the layer `cas_to_write` needs the layer `remap`",
        help: r#"write `layers = ["remap", "cas_to_write"]`"#,
    },
    Broken {
        config: "swordbox.toml",
        change: (r#"journal = "swordbox.journal""#, ""),
        findings: 1,
        at: "layers =",
        message: "the layer `remap` needs a `journal`",
        help: r#"add `journal = "swordbox.journal"`"#,
    },
    Broken {
        config: "onepipe.toml",
        change: (r#"side = "below""#, r#"side = "left""#),
        findings: 1,
        at: r#"side = "left""#,
        message: "`side` cannot be `left`",
        help: "it can be `below` or `above`",
    },
    Broken {
        config: "onepipe.toml",
        change: (r#"mac = "02:00:00:00:00:02""#, ""),
        findings: 1,
        at: "[[onepipe.links]]\nname = \"host b\"",
        message: "[[onepipe.links]] has no `mac`",
        help: r#"add `mac = "02:00:00:00:00:01"`"#,
    },
    // Hosts, processes and servers
    Broken {
        config: "process.toml",
        change: ("id = 2", "id = 1"),
        findings: 1,
        at: "id = 1\nmac =",
        message: "process 1 is this one",
        help: "a process is not listed among its own peers",
    },
    Broken {
        config: "consensus.toml",
        change: ("id = 0", "id = 3"),
        findings: 1,
        at: "id = 3",
        message: "`id` cannot be 3",
        help: "write a number from 0 to 2",
    },
    Broken {
        config: "consensus.toml",
        change: (r#""10.0.0.2", "10.0.0.3"]"#, r#""10.0.0.2", "10.0.0.2"]"#),
        findings: 1,
        at: "servers =",
        message: "10.0.0.2 is already server 1",
        help: "give each server its own address",
    },
    Broken {
        config: "host.toml",
        change: (r#"kind = "rping_server""#, r#"kind = "rping""#),
        findings: 1,
        at: r#"kind = "rping""#,
        message: "`kind` cannot be `rping`",
        help: "did you mean `rping_server`?",
    },
    Broken {
        config: "host.toml",
        change: ("port = 7900", "port = 7174"),
        findings: 1,
        at: "[[nic.service]]\nkind = \"memory\"",
        message: "two services listen at port 7174",
        help: "give `rping_server` or `memory` another `port`",
    },
    Broken {
        config: "memif/client.toml",
        change: ("server = \"10.0.0.1\"\n", ""),
        findings: 1,
        at: "[[nic.service]]",
        message: "[[nic.service]] has no `server`",
        help: r#"add `server = "10.0.0.1"`"#,
    },
    // Traffic and benchmarks
    Broken {
        config: "pktgen/null.toml",
        change: ("size = 64\n", "size = 64\ncoalesce = 8\n"),
        findings: 1,
        at: "coalesce = 8",
        message: r#"`coalesce` is not valid for `verb = "write"`"#,
        help: r#"remove it, or write `verb = "ack"`"#,
    },
    Broken {
        config: "pktgen/null.toml",
        change: (r#"send = "out""#, r#"send = "eth0""#),
        findings: 1,
        at: "send =",
        message: "there is no port `eth0`",
        help: "the only port is `out`",
    },
    Broken {
        config: "pktgen/closed-loop.toml",
        change: ("packets_per_s = 20_000", "packets_per_s = 20_000, bits_per_s = 1_000_000"),
        findings: 1,
        at: "bits_per_s",
        message: "`rate` has two rates",
        help: "write `rate = { packets_per_s = 1_000_000 }`",
    },
    Broken {
        config: "pktgen/rfc2544.toml",
        change: ("resolution = 0.02", "resolution = 2"),
        findings: 1,
        at: "resolution = 2",
        message: "`resolution` cannot be 2",
        help: "write a number from 0.0001 to 0.5",
    },
    // Scenarios and topologies
    Broken {
        config: "sim/verbs.toml",
        change: (r#"ends = ["a", "b"]"#, r#"ends = ["a", "c"]"#),
        findings: 1,
        at: "ends =",
        message: "there is no host or switch `c`",
        help: "it can be `a` or `b`",
    },
    Broken {
        config: "sim/verbs.toml",
        change: ("loss = [0, 0.1]", "loss = [0.1, 0]"),
        findings: 1,
        at: "loss = [0.1, 0]",
        message: "the range `loss` ends before it begins",
        help: "write the smaller number first",
    },
    Broken {
        config: "sim/verbs.toml",
        change: (r#""10.0.0.2/24""#, r#""10.0.0.1/24""#),
        findings: 1,
        at: r#"name = "b""#,
        message: "`a` and `b` have the same address",
        help: "give each host its own `address`",
    },
    Broken {
        config: "sim/p4ce.toml",
        change: (r#"crash = "r1""#, "crash = \"r1\"\npause = \"r2\""),
        findings: 1,
        at: "[[fault]]",
        message: "a [[fault]] needs exactly one event",
        help: r#"write one of `crash = "a"`"#,
    },
    Broken {
        config: "onepipe/testbed.toml",
        change: (r#""10.255.0.2""#, r#""10.255.0.1""#),
        findings: 1,
        at: r#"name = "tor2""#,
        message: "`tor1` and `tor2` have the same address, 10.255.0.1",
        help: "give each its own address",
    },
    Broken {
        config: "onepipe/testbed.toml",
        change: (r#"ends = ["tor4", "spine4"]"#, r#"ends = ["tor4", "spine9"]"#),
        findings: 1,
        at: r#"ends = ["tor4", "spine9"]"#,
        message: "there is no switch `spine9`",
        help: "did you mean `spine1`?",
    },
];

#[test]
fn fifty_broken_files_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for broken in &BROKEN {
        let content = broken.content();
        let path = folder.path().join("my.toml");
        fs::write(&path, &content).unwrap();
        let output = understudy(&["check", path.to_str().unwrap(), "--json"]);
        let (explained, line) = broken.is_explained(&content, &output);
        if !explained {
            wrong.push(format!(
                "{}, line {line}: {}{}",
                broken.config,
                text(&output.stdout),
                text(&output.stderr)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

//! The command line: exit codes, and what is printed to standard output and standard error.

use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use understudy_tests::processes;

pub(crate) fn understudy(arguments: &[&str]) -> Output {
    let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
    command.args(arguments).env("NO_COLOR", "1").output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// Writes a file with this content to a temporary folder.
pub(crate) fn file(content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    std::fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn every_example_configuration_is_valid() {
    let mut names = Vec::new();
    let mut paths: Vec<_> =
        std::fs::read_dir(configs()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let folders: Vec<_> = paths.extract_if(.., |path| path.is_dir()).collect();
    for folder in folders {
        paths.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    for path in paths {
        let output = understudy(&["check", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let quiet = understudy(&["check", "--quiet", path.to_str().unwrap()]);
        assert!(quiet.status.success() && quiet.stdout.is_empty(), "{}", path.display());
        names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    for name in [
        "bump-in-the-wire.toml",
        "consensus.toml",
        "demo.toml",
        "host.toml",
        "hardware.toml",
        "impair.toml",
        "onepipe.toml",
        "process.toml",
        "learning-bridge.toml",
        "swordbox.toml",
        "verbs.toml",
        "bridge.toml",
        "testbed.toml",
        "closed-loop.toml",
    ] {
        assert!(names.iter().any(|found| found == name), "{name} is missing: {names:?}");
    }
}

/// A file of another kind is one message, whatever its content is.
#[test]
fn a_file_of_another_kind_is_one_message() {
    let capture = understudy_tests::captures::path("rc_write_loss.pcap");
    let folder = tempfile::tempdir().unwrap();
    let topology = configs().join("onepipe/testbed.toml");
    let forward = configs().join("bump-in-the-wire.toml");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let program = Path::new(env!("CARGO_BIN_EXE_understudy"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let configuration = ["run", "host", "pktgen", "process", "sim", "bench rfc2544", "check", "plan"];
    let other = [&capture, folder.path(), &manifest, program, &page];
    let mut cases: Vec<(&str, &Path)> = Vec::new();
    cases.extend(configuration.iter().flat_map(|command| other.iter().map(|file| (*command, *file))));
    cases.extend(configuration[..6].iter().map(|command| (*command, topology.as_path())));
    cases.extend(
        ["sim", "plan", "bench rfc2544", "host", "pktgen"].map(|command| (command, forward.as_path())),
    );
    for command in ["decode", "diagnose"] {
        cases.extend([folder.path(), &manifest, program, &page, &topology].map(|file| (command, file)));
    }
    for (command, file) in cases {
        let words = command.split(' ').chain([file.to_str().unwrap()]);
        let output = understudy(&words.collect::<Vec<_>>());
        let printed = text(&output.stderr);
        let case = format!("{command} {}: {printed}", file.display());
        assert!(!output.status.success() && output.stdout.is_empty(), "{case}");
        assert!((1..=7).contains(&printed.lines().count()), "{case}");
        assert!(printed.replace('\n', "").contains(file.file_name().unwrap().to_str().unwrap()), "{case}");
    }
    // The message names the command for it.
    let output = understudy(&["run", topology.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("use `understudy plan"), "{}", text(&output.stderr));
}

#[test]
fn help_of_commands_that_need_a_file_promises_no_demonstration() {
    for (command, promises) in [("run", true), ("host", false), ("pktgen", false)] {
        let help = text(&understudy(&[command, "--help"]).stdout);
        assert_eq!(help.contains("demonstration"), promises, "{help}");
        assert_eq!(help.contains("<CONFIG>"), !promises, "{help}");
    }
}

#[test]
fn check_notes_hardware_that_is_absent() {
    let output = understudy(&["check", configs().join("hardware.toml").to_str().unwrap()]);
    let printed = text(&output.stdout);
    let absent = !Path::new("/sys/bus/pci/devices/0000:3b:00.0").exists();
    assert_eq!(
        printed.contains("this machine has no PCI device 0000:3b:00.0 at present"),
        absent,
        "{printed}"
    );
}

#[test]
fn check_summarizes_a_valid_file() {
    let path = configs().join("bump-in-the-wire.toml");
    let output = understudy(&["check", path.to_str().unwrap()]);
    let summary = text(&output.stdout);
    for words in ["interface host-a", "a <-> b", "counted_qps 1024", "MB in ordinary pages"] {
        assert!(summary.contains(words), "{words:?} is missing in\n{summary}");
    }
    assert_eq!(text(&output.stderr), "");
    let output = understudy(&["check", "--json", path.to_str().unwrap()]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_is_on_the_page("`understudy check --json`", &value);
    assert_eq!(value["ok"], true);
    assert_eq!(value["errors"].as_array().map(Vec::len), Some(0));
}

#[test]
fn check_shows_errors_at_their_lines() {
    let (_folder, path) =
        file("[[port]]\nname = \"a\"\nmtuu = 1500\nring = {}\n\n[forward]\npairs = [[\"a\", \"b\"]]\n");
    let output = understudy(&["check", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let shown = text(&output.stderr);
    for words in [
        "my.toml:3:1",
        "mtuu = 1500",
        "did you mean `mtu`?",
        "my.toml:7:16",
        "there is no port `b`",
        "2 things are wrong",
    ] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
    }

    let output = understudy(&["check", &path, "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["ok"], false);
    let places: Vec<_> = value["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| (error["line"].as_u64().unwrap(), error["column"].as_u64().unwrap()))
        .collect();
    assert_eq!(places, [(3, 1), (7, 16)]);
    assert!(value["errors"][0]["message"].as_str().unwrap().contains("mtuu"));
    assert!(value["errors"][0]["help"].as_str().unwrap().contains("did you mean `mtu`?"));
}

#[test]
fn an_unreadable_file_is_named_in_the_error() {
    for (path, words) in [("/nowhere/my.toml", "no such file"), ("/", "directory")] {
        let output = understudy(&["check", path]);
        assert_eq!(output.status.code(), Some(2));
        let shown = text(&output.stderr);
        assert!(shown.contains(path) && shown.contains(words) && shown.contains("configs/"), "{shown}");
        let output = understudy(&["check", "--json", path]);
        assert_eq!(output.status.code(), Some(2));
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(value["errors"][0]["message"].as_str().unwrap().contains(words), "{value}");
    }
}

#[test]
fn plan_describes_a_network_and_writes_its_configurations() {
    let path = configs().join("onepipe/testbed.toml");
    let output = understudy(&["plan", path.to_str().unwrap()]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for words in [
        "32 hosts, 10 switches, 16 links between switches",
        "h9 -> tor2 -> spine1 -> h2: 3 IP headers",
        "Of 96 directions of links, 40 need a detour.",
        "ip decap-group onepipe",
        "\"tunnel_type\": \"IPINIP\"",
        "`--out DIR` writes these, 42 configurations",
    ] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/folder");
    let output = understudy(&["plan", path.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(text(&output.stdout).contains("Wrote 53 files"), "{}", text(&output.stdout));
    for name in
        ["tor1.representative.toml", "install.sh", "tor1.eos", "spine1.sonic.json", "h32.process.toml"]
    {
        assert!(out.join(name).is_file(), "{name}");
    }
    let own = folder.path().join("own.toml");
    let changed = std::fs::read_to_string(&path).unwrap().replace("id = 4\n", "id = 99\n");
    std::fs::write(&own, changed.replace("id = 3\n", "id = 4\n").replace("id = 32\n", "id = 3\n")).unwrap();
    let output = understudy(&["plan", own.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()));
    // Without the frame, and whatever the length of the path.
    let shown = text(&output.stderr).replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "process 3 is host `h3` in",
        "h3.process.toml, but `h32` here",
        "process 4 is host `h4` in",
        "h4.process.toml, but `h3` here",
        "host `h32` is process 32 in",
        "but 3 here",
        "own.toml:",
        "pass `--renumber`",
    ] {
        assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
    }
    let output = understudy(&["plan", path.to_str().unwrap(), "--out", "/dev/null/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/dev/null/nowhere/"), "{}", text(&output.stderr));
}

#[test]
fn a_loop_in_a_network_is_reported_at_its_link() {
    let rack = |n: usize| {
        format!(
            "[[switch]]\nname = \"s{n}\"\n[[host]]\nname = \"h{n}\"\naddress = \"10.0.{n}.1/24\"\n\
             mac = \"02:00:00:00:00:0{n}\"\nswitch = \"s{n}\"\n"
        )
    };
    let links = "[[link]]\nends = [\"s1\", \"s2\"]\n[[link]]\nends = [\"s2\", \"s3\"]\n[[link]]\nends = [\"s3\", \"s1\"]\n";
    let (_folder, path) = file(&["[topology]\n", &rack(1), &rack(2), &rack(3), links].concat());
    for command in ["plan", "check"] {
        let output = understudy(&[command, &path]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()));
        let shown = text(&output.stderr);
        for words in ["my.toml:24:8", "a loop: `s1` - `s2` - `s3` - `s1`", "3 things are wrong"] {
            assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
        }
    }
}

#[test]
fn doctor_succeeds_and_prints_a_verdict() {
    let output = understudy(&["doctor"]);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    let last = shown.lines().last().unwrap();
    assert!(last.starts_with("virtual devices: ") && last.contains("; hardware ports: "), "{shown}");

    let output = understudy(&["doctor", "--json"]);
    assert!(output.status.success());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_is_on_the_page("`understudy doctor --json`", &value);
    assert_eq!(value["verdict"], last);
    for finding in value["findings"].as_array().unwrap() {
        assert!(["ok", "note", "warning"].contains(&finding["state"].as_str().unwrap()), "{finding}");
        assert!(finding["command"].is_string() || finding["command"].is_null(), "{finding}");
    }
}

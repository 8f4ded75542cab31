//! `understudy sim`: many seeds, byte-identical replays, captures, and the report of a failure.

use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use understudy_tests::captures::frames;
use understudy_tests::processes;

/// Seeds of each scenario in `make test`; `make soak` runs others.
const SEEDS: u64 = 100;

/// Returns the path of a scenario of the repository. An absolute path is returned as it is.
fn path_of(scenario: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sim").join(scenario)
}

fn sim(scenario: impl AsRef<Path>, arguments: &[&str]) -> Output {
    let path = path_of(scenario);
    let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
    command.arg("sim").arg(path).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

#[track_caller]
fn json(output: &Output) -> Value {
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let command = if result.get("seed").is_some() { "sim" } else { "sim --seeds N" };
    assert_is_on_the_page(&format!("`understudy {command} --json`"), &result);
    result
}

/// Checks that `seeds` seeds pass, with more than `operations` operations in total. Returns the report.
#[track_caller]
fn check_seeds(scenario: impl AsRef<Path>, seeds: u64, operations: u64) -> Value {
    let output = sim(scenario, &["--seeds", &seeds.to_string(), "--json"]);
    let report = json(&output);
    assert!(output.status.success() && report["ok"] == true, "{report:#}");
    assert_eq!(report["passed"], seeds);
    assert!(report["operations"].as_u64().unwrap() > operations, "{report:#}");
    report
}

#[test]
fn seeds_of_every_verb_pass() {
    let report = check_seeds("verbs.toml", SEEDS, 5_000);
    assert_eq!(report["broken_ends"], 0);
}

#[test]
fn messages_of_up_to_a_megabyte_pass_lossy_links() {
    let report = check_seeds("large.toml", SEEDS / 5, 200);
    assert_eq!(report["broken_ends"], 0);
}

#[test]
fn messages_of_up_to_64_kilobytes_pass_lossy_links() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shorter.toml");
    let text = std::fs::read_to_string(path_of("large.toml")).unwrap();
    let shorter = text.replace("max_size = 1_048_576", "max_size = 65_536");
    assert_ne!(text, shorter);
    std::fs::write(&path, shorter).unwrap();
    let report = check_seeds(path, SEEDS, 1000);
    assert_eq!(report["broken_ends"], 0);
}

/// Digests of all frames of seeds 1 to 20. They are the same on every machine and with every build. A change
/// of the protocols, the NIC or the simulator changes them; the new digests have to be entered here.
#[test]
fn digests_are_the_same_on_every_machine() {
    let digests = ["verbs.toml", "large.toml", "rack.toml", "p4ce.toml"].map(|scenario| {
        let report = json(&sim(scenario, &["--seeds", "20", "--json"]));
        (scenario, report["digest"].as_str().unwrap().to_owned())
    });
    let expected = [
        ("verbs.toml", "87a3836fac1bdaaf"),
        ("large.toml", "5597bc79850bd32c"),
        ("rack.toml", "db6a0de80ce176f1"),
        ("p4ce.toml", "491e1e7b2c23abca"),
    ];
    assert_eq!(digests, expected.map(|(scenario, digest)| (scenario, digest.to_owned())));
}

/// Returns the lines of a list of failed seeds that name a scenario; the others name a suite of `sim`.
fn scenario_seeds(list: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = list.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(scenario, _)| Path::new(scenario).extension().is_some())
}

#[test]
fn scenario_seeds_that_failed_before_pass() {
    assert_eq!(scenario_seeds("words 3\nverbs.toml 17\n").collect::<Vec<_>>(), [("verbs.toml", "17")]);
    for (scenario, seed) in scenario_seeds(include_str!("../../../workloads/tests/seeds.txt")) {
        let output = sim(scenario, &["--seed", seed]);
        assert!(output.status.success(), "{scenario} {seed}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn seeds_with_crashes_pass() {
    let report = check_seeds("rack.toml", SEEDS, 10_000);
    assert!(report["broken_ends"].as_u64().unwrap() > 0, "no connection was broken by a crash");
}

#[test]
fn seeds_of_replication_pass() {
    let report = check_seeds("p4ce.toml", SEEDS, 5_000);
    let groups = report["broken_ends"].as_u64().unwrap();
    assert!((10..300).contains(&groups), "some but not all groups have to end: {groups}");
}

#[test]
fn the_number_of_threads_does_not_change_the_result() {
    let digest = |threads: &str| {
        let report =
            json(&sim("verbs.toml", &["--seeds", "20", "--from", "7", "--threads", threads, "--json"]));
        report["digest"].clone()
    };
    assert_eq!(digest("1"), digest("3"));
}

#[test]
fn a_seed_replays_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, seed: &str| {
        let path = folder.path().join(name);
        let report = sim("verbs.toml", &["--seed", seed, "--json", "--pcap", path.to_str().unwrap()]);
        (report.stdout, std::fs::read(&path).unwrap())
    };
    let first = run("first.pcap", "42");
    assert!(first == run("second.pcap", "42"));
    assert!(first != run("other.pcap", "43"));
    // The capture has every frame that was sent on the link, and these are RoCE packets.
    let report: Value = serde_json::from_slice(&first.0).unwrap();
    let sent: u64 =
        report["links"].as_array().unwrap().iter().map(|link| link["sent"].as_u64().unwrap()).sum();
    assert_eq!(frames(&folder.path().join("first.pcap")).len() as u64, sent);
    let path = folder.path().join("first.pcap");
    let decode = processes::command(env!("CARGO_BIN_EXE_understudy"))
        .args(["decode", "--json", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(String::from_utf8(decode.stdout).unwrap().contains("RDMA WRITE"));
}

#[test]
fn one_of_several_links_can_be_captured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("left.pcap");
    let output = sim("rack.toml", &["--seed", "1", "--pcap", &format!("left,a={}", path.display())]);
    assert!(output.status.success());
    assert!(!frames(&path).is_empty());
    let output = sim("rack.toml", &["--seed", "1", "--pcap", &format!("a,b={}", path.display())]);
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("there is no link a,b") && printed.contains("a,left"), "wrong error: {printed}");
    let output = sim("rack.toml", &["--seed", "1", "--pcap", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_failure_is_reported_with_its_seed_and_shrunk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow.toml");
    // Too many operations for a millisecond
    let text = "[sim]\nlimit_ms = 1\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1/24\"\n\
                [[host]]\nname = \"b\"\naddress = \"10.0.0.2/24\"\n\
                [[link]]\nends = [\"a\", \"b\"]\ndelay_us = 300\nloss = 0.1\n[verbs]\noperations = 50\n";
    std::fs::write(&path, text).unwrap();
    let run = |arguments: &[&str]| {
        processes::command(env!("CARGO_BIN_EXE_understudy"))
            .arg("sim")
            .arg(&path)
            .args(arguments)
            .output()
            .unwrap()
    };
    let output = run(&["--seeds", "10", "--from", "5"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stdout).unwrap();
    for words in ["with seed 5: not done after 1 ms", "slow.toml --seed 5 --digest ", "The smallest scenario"]
    {
        assert!(printed.contains(words), "{words:?} is missing in\n{printed}");
    }
    // The printed command line replays the run. If the scenario has changed, the replay reports that it is
    // another run.
    let (_, digest) = printed.split_once("slow.toml --seed 5 --digest ").unwrap();
    let digest = digest.lines().next().unwrap();
    let replay = |scenario: &str| {
        std::fs::write(&path, scenario).unwrap();
        run(&["--seed", "5", "--digest", digest, "--no-shrink"])
    };
    let same = replay(text);
    assert_eq!((same.status.code(), &*same.stderr), (Some(1), &b""[..]));
    let other = replay(&text.replace("loss = 0.1", "loss = 0.2"));
    let other_printed = String::from_utf8(other.stderr).unwrap();
    assert!(other_printed.contains("not the run to be replayed"), "{other_printed}");
    assert_eq!(other.status.code(), Some(2));
    std::fs::write(&path, text).unwrap();
    // The smaller scenario fails with the same seed, and has no unnecessary faults.
    let report = json(&run(&["--seed", "5", "--json"]));
    let smaller = report["failure"]["shrunk"]["scenario"].as_str().unwrap().to_owned();
    assert!(smaller.contains("loss = 0\n") && smaller.contains("connections = 1\n"), "{smaller}");
    std::fs::write(&path, &smaller).unwrap();
    let again = run(&["--seed", "5", "--json", "--no-shrink"]);
    assert_eq!(again.status.code(), Some(1));
    assert_eq!(json(&again)["failure"]["seed"], 5);
    assert_eq!(json(&again)["failure"]["shrunk"], Value::Null);
}

#[test]
fn an_error_in_a_scenario_is_shown_at_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my.toml");
    std::fs::write(&path, "[[host]]\nname = \"a\"\nadress = \"10.0.0.1/24\"\n").unwrap();
    for command in ["sim", "check"] {
        let output =
            processes::command(env!("CARGO_BIN_EXE_understudy")).arg(command).arg(&path).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(printed.contains("my.toml:3:1") && printed.contains("did you mean `address`?"), "{printed}");
    }
}

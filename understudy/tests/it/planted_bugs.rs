//! Bugs that are planted into rnic have to be found by the simulator, or its silence would mean nothing.
//!
//! Builds with debug assertions can plant them (`understudy sim --bug`).

use serde_json::Value;
use std::path::Path;
use understudy_tests::processes;

/// Runs a thousand seeds with a bug.
fn run(scenario: &Path, arguments: &[&str]) -> Value {
    let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
    let output = command.arg("sim").arg(scenario).args(arguments).arg("--json").output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The bug is found within a thousand seeds: which was it?
#[track_caller]
fn found(bug: &str, arguments: &[&str]) -> Value {
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sim/verbs.toml");
    let report = run(&scenario, &[&["--seeds", "1000", "--bug", bug], arguments].concat());
    assert_eq!(report["ok"], false, "{bug} was not found: {report:#}");
    println!("{bug}: seed {}, {}", report["failure"]["seed"], report["failure"]["violation"]);
    report["failure"].clone()
}

#[test]
fn what_is_found_is_made_smaller() {
    let bug = "atomic-twice";
    let failure = found(bug, &[]);
    let seed = failure["seed"].to_string();
    let folder = tempfile::tempdir().unwrap();
    let smaller = folder.path().join("smaller.toml");
    std::fs::write(&smaller, failure["shrunk"]["scenario"].as_str().unwrap()).unwrap();
    assert_eq!(run(&smaller, &["--seed", &seed, "--bug", bug, "--no-shrink"])["ok"], false);
    assert_eq!(run(&smaller, &["--seed", &seed])["ok"], true, "nothing is wrong without the bug");
}

#[test]
fn acknowledging_a_psn_too_far() {
    found("ack-too-far", &["--no-shrink"]);
}

#[test]
fn executing_an_atomic_twice() {
    found("atomic-twice", &["--no-shrink"]);
}

#[test]
fn taking_duplicates_for_new() {
    found("no-duplicate-check", &["--no-shrink"]);
}

#[test]
fn a_wrong_wrap_of_psns() {
    found("wrong-wrap", &["--no-shrink"]);
}

#[test]
fn answering_a_repeated_read_with_stale_data() {
    found("stale-read", &["--no-shrink"]);
}

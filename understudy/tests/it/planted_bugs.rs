//! Checks that the simulator finds bugs planted into rnic; otherwise, a run without violations would have no
//! meaning.
//!
//! Builds with debug assertions can plant bugs (`understudy sim --bug`).

use serde_json::Value;
use std::path::Path;
use understudy_tests::processes;

/// Runs `understudy sim` with the given arguments. Returns its report.
fn run(scenario: &Path, arguments: &[&str]) -> Value {
    let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
    let output = command.arg("sim").arg(scenario).args(arguments).arg("--json").output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Checks that the bug is found within a thousand seeds, and that the seed has no violation without it. Returns the
/// failure.
#[track_caller]
fn found(bug: &str, arguments: &[&str]) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/sim/verbs.toml");
    // Where an operation never completes, requests are repeated until the end: a tenth of the time shows it, too.
    let text = std::fs::read_to_string(path).unwrap();
    let shorter = text.replacen("limit_ms = 10_000 ", "limit_ms = 1_000 ", 1);
    assert_ne!(shorter, text, "the scenario has another limit");
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("verbs.toml");
    std::fs::write(&scenario, shorter).unwrap();
    let report = run(&scenario, &[&["--seeds", "1000", "--bug", bug], arguments].concat());
    assert_eq!(report["ok"], false, "{bug} was not found: {report:#}");
    let seed = report["failure"]["seed"].to_string();
    println!("{bug}: seed {seed}, {}", report["failure"]["violation"]);
    assert_eq!(
        run(&scenario, &["--seed", &seed])["ok"],
        true,
        "{bug}: seed {seed} fails without the bug, too"
    );
    report["failure"].clone()
}

#[test]
fn a_found_bug_is_shrunk_to_a_smaller_scenario() {
    let bug = "atomic-twice";
    let failure = found(bug, &[]);
    let seed = failure["seed"].to_string();
    let folder = tempfile::tempdir().unwrap();
    let smaller = folder.path().join("smaller.toml");
    std::fs::write(&smaller, failure["shrunk"]["scenario"].as_str().unwrap()).unwrap();
    assert_eq!(run(&smaller, &["--seed", &seed, "--bug", bug, "--no-shrink"])["ok"], false);
    assert_eq!(
        run(&smaller, &["--seed", &seed])["ok"],
        true,
        "the smaller scenario fails even without the bug"
    );
}

#[test]
fn planted_acknowledgement_of_a_psn_too_far_is_found() {
    found("ack-too-far", &["--no-shrink"]);
}

#[test]
fn planted_double_execution_of_an_atomic_is_found() {
    found("atomic-twice", &["--no-shrink"]);
}

#[test]
fn planted_lack_of_duplicate_detection_is_found() {
    found("no-duplicate-check", &["--no-shrink"]);
}

#[test]
fn planted_wrong_wrap_of_psns_is_found() {
    found("wrong-wrap", &["--no-shrink"]);
}

#[test]
fn planted_stale_response_to_a_repeated_read_is_found() {
    found("stale-read", &["--no-shrink"]);
}

//! `understudy demo swordbox`: contended locks with Swordbox and without.

use serde_json::Value;
use understudy_tests::processes;

#[test]
fn contended_locks_are_taken_faster_with_swordbox() {
    let demo = |options: &[&str]| {
        let output = processes::command(env!("CARGO_BIN_EXE_understudy"))
            .args(["demo", "swordbox", "--quick"])
            .args(options)
            .output()
            .unwrap();
        // The program fails if Swordbox gains nothing.
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = demo(&["--json"]);
    println!("{printed}");
    let runs: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let number = |run: &Value, key: &str| run[key].as_f64().unwrap();
    assert_eq!(runs.len(), 6);
    for pair in runs.chunks(2) {
        assert_eq!(
            (pair[0]["switch"].as_str(), pair[1]["switch"].as_str()),
            (Some("without"), Some("CAS to WRITE"))
        );
        assert!(number(&pair[1], "locks_per_s") > 0.9 * number(&pair[0], "locks_per_s"), "{pair:?}");
    }
    let contended = &runs[4..];
    assert!(number(&contended[1], "p99_us") < number(&contended[0], "p99_us"), "{contended:?}");
}

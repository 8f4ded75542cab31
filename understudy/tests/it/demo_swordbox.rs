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
    // The simulation repeats exactly, so the headline is that of these runs.
    let printed = demo(&[]);
    let headline = printed.trim_end().lines().last().unwrap();
    let gain = number(&contended[1], "locks_per_s") / number(&contended[0], "locks_per_s");
    let expected =
        format!("One lock, {} clients: {gain:.1} times the locks a second", contended[1]["clients"]);
    assert!(headline.starts_with(&expected), "{headline}, expected {expected}");
}

#[test]
fn the_demonstration_of_onepipe_ends_with_its_result() {
    let demo = |options: &[&str]| {
        let output = processes::command(env!("CARGO_BIN_EXE_understudy"))
            .args(["demo", "onepipe", "--quick"])
            .args(options)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let rows: Vec<Value> =
        demo(&["--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (best_effort, both): (Vec<&Value>, Vec<_>) = rows.iter().partition(|row| row["delivered"].is_u64());
    let sum = |rows: &[&Value], key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    let failures: Vec<_> = best_effort.iter().filter(|row| row["what_happens"] != "").collect();
    let stall = failures.iter().map(|row| row["longest_stall_us"].as_f64().unwrap()).fold(0.0, f64::max);
    let printed = demo(&[]);
    let begins = |begin: String| {
        let line = printed.lines().find(|line| line.starts_with(&begin));
        line.unwrap_or_else(|| panic!("no line begins with {begin:?}: {printed}")).to_owned()
    };
    let headline = begins(format!(
        "32 hosts: {} messages delivered in one order, through {} failures",
        sum(&best_effort, "delivered"),
        failures.len()
    ));
    let stated = headline.split("for ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(stated.is_some_and(|stated| (stated - stall).abs() < 0.1), "{headline}, expected {stall}");
    let (best_effort, reliable) = (sum(&both, "best_effort"), sum(&both, "reliable"));
    let headline = begins(format!("{best_effort} best-effort and {reliable} reliable messages"));
    assert!(headline.contains(&format!("{} processes failed", sum(&both, "failed"))), "{headline}");
}

//! `understudy demo swordbox` and `demo onepipe`: their tables, last lines and JSON.

use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use understudy_tests::processes::{self, Process};

/// Line of the demonstration's table.
struct Row {
    clients: u64,
    switch: String,
    locks_per_s: f64,
    p99_us: f64,
}

impl Row {
    /// Parses a line, if it is one of the table.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |n: usize| words.get(n)?.parse().ok();
        let clients = words.first()?.parse().ok()?;
        Some(Self { clients, switch: (*words.get(1)?).into(), locks_per_s: number(2)?, p99_us: number(7)? })
    }
}

/// Starts a quick demonstration.
fn demo(name: &str, options: &[&str]) -> Process {
    let mut program = processes::command(env!("CARGO_BIN_EXE_understudy"));
    program.args(["demo", name, "--quick"]).args(options);
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    Process::start(program)
}

#[test]
fn contended_locks_are_taken_faster_with_swordbox() {
    let output = demo("swordbox", &[]).finish();
    // The program fails if Swordbox gains nothing.
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    println!("{printed}");
    // The simulation repeats exactly, so the page shows this output word by word.
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = format!("```\n{}\n```\n", printed.trim_end());
    assert!(page.contains(&block), "README.md shows another output; paste this one");
    let rows: Vec<_> = printed.lines().filter_map(Row::parse).collect();
    assert_eq!(rows.len(), 6);
    for pair in rows.chunks(2) {
        assert_eq!([&*pair[0].switch, &*pair[1].switch], ["without", "Swordbox"]);
        assert!(pair[1].locks_per_s > 0.9 * pair[0].locks_per_s, "{} clients", pair[0].clients);
    }
    let contended = &rows[4..];
    assert!(contended[1].p99_us < contended[0].p99_us);
    let headline = printed.trim_end().lines().last().unwrap();
    let gain = contended[1].locks_per_s / contended[0].locks_per_s;
    let expected = format!("One lock, {} clients: {gain:.1} times the locks a second", contended[1].clients);
    assert!(headline.starts_with(&expected), "{headline}, expected {expected}");

    // The simulation repeats exactly, so the first lines of JSON, before many clients contend, have the same numbers.
    let mut json = demo("swordbox", &["--json"]);
    let mut lines = BufReader::new(json.stdout.take().unwrap()).lines();
    for row in &rows[..4] {
        let run: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let switch = if row.switch == "without" { "without" } else { "CAS to WRITE" };
        assert_eq!((&run["clients"], &run["switch"]), (&row.clients.into(), &switch.into()), "{run}");
        for (key, number) in [("locks_per_s", row.locks_per_s), ("p99_us", row.p99_us)] {
            assert_eq!(run[key].as_f64(), Some(number), "{key} in {run}");
        }
    }
}

/// Lines of the tables of 1Pipe's demonstration that have this number of numbers after what happens, which may be nothing.
/// Returns what happens with these numbers.
fn rows_of_onepipe(printed: &str, numbers: usize) -> Vec<(String, Vec<f64>)> {
    let parse = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let values =
            |words: &[&str]| words.iter().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
        let (before, after) = words.split_at_checked(words.len().checked_sub(numbers)?)?;
        // Barriers and time, or time alone
        let time = before.iter().position(|word| word.parse::<u64>().is_ok()).filter(|time| *time <= 1)?;
        Some((before[time + 1..].join(" "), values(after)?))
    };
    printed.lines().filter_map(parse).collect()
}

#[test]
fn the_demonstration_of_onepipe_ends_with_its_result() {
    let output = demo("onepipe", &[]).finish();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let (first, second) = printed.split_once("\nBoth services").unwrap();
    let best_effort = rows_of_onepipe(first, 5);
    let both = rows_of_onepipe(second, 8);
    assert_eq!((best_effort.len(), both.len()), (12, 12), "{printed}");
    let sum = |rows: &[(String, Vec<f64>)], column: usize| rows.iter().map(|row| row.1[column]).sum::<f64>();
    let failures: Vec<_> = best_effort.iter().filter(|(what, _)| !what.is_empty()).collect();
    // A stall is printed with two digits here, and with one in the line below.
    let stall = failures.iter().map(|(_, numbers)| numbers[4]).fold(0.0, f64::max);
    let begins = |begin: String| {
        let line = printed.lines().find(|line| line.starts_with(&begin));
        line.unwrap_or_else(|| panic!("no line begins with {begin:?}: {printed}")).to_owned()
    };
    let headline = begins(format!(
        "32 hosts: {} messages delivered in one order, through {} failures",
        sum(&best_effort, 1),
        failures.len()
    ));
    let stated = headline.split("for ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(stated.is_some_and(|stated| (stated - stall).abs() < 0.1), "{headline}, expected {stall}");
    let headline = begins(format!("{} best-effort and {} reliable messages", sum(&both, 2), sum(&both, 3)));
    assert!(headline.contains(&format!("{} processes failed", sum(&both, 5))), "{headline}");
    assert_eq!(printed.trim_end().lines().last(), Some(headline.as_str()), "the result is the last line");

    // The simulation repeats exactly, so lines of JSON have the same numbers, up to the first of both services.
    let mut json = demo("onepipe", &["--json"]);
    let mut lines = BufReader::new(json.stdout.take().unwrap()).lines();
    let best_effort_keys = ["hosts", "delivered", "failed", "mean_us", "longest_stall_us"];
    let both_keys = ["hosts", "members", "best_effort", "reliable", "recalled", "failed"];
    let rows = best_effort.iter().map(|row| (row, &best_effort_keys[..])).chain([(&both[0], &both_keys[..])]);
    for ((what, numbers), keys) in rows {
        let row: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(row["what_happens"], **what, "{row}");
        for (key, number) in keys.iter().zip(numbers) {
            assert_eq!(row[key].as_f64(), Some(*number), "{key} in {row}");
        }
    }
}

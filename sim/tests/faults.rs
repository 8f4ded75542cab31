//! The table of docs/TESTING.md that says which suite draws which fault is that of the suites' sources.

use std::fmt::Write;
use std::path::Path;

/// Suites that take seeds, and the files that say what those draw
const SUITES: [(&str, &[&str]); 8] = [
    ("verbs", &["verbs.rs"]),
    ("words", &["words.rs", "drawn/mod.rs"]),
    ("Swordbox", &["swordbox.rs", "drawn/mod.rs"]),
    ("steering", &["steering.rs"]),
    ("P4CE", &["groups.rs"]),
    ("consensus", &["consensus/seeds.rs"]),
    ("RDMC", &["rdmc/seeds.rs", "rdmc/deliveries.rs"]),
    ("1Pipe", &["onepipe/seeds.rs"]),
];

/// Faults, and the words of a source that draws them
const FAULTS: [(&str, &[&str]); 25] = [
    ("frames lost", &["loss"]),
    ("frames damaged", &["corrupt"]),
    ("frames out of order", &["reorder"]),
    ("frames duplicated", &["duplicate"]),
    ("a node crashes", &["Fault::Crash", "FaultKind::Crash"]),
    ("a node restarts with empty memory", &["Fault::Restart", "FaultKind::Crash"]),
    ("a process is stopped for a while", &["Fault::Pause", "FaultKind::Pause"]),
    ("a link is cut", &["Fault::Cut", "FaultKind::Partition", "environment::cut"]),
    ("a link is cut in one direction", &["Fault::Mute", "FaultKind::Mute", "environment::cut"]),
    ("two hosts cannot hear each other", &["Fault::Part", "FaultKind::Part", ".part("]),
    ("the MTU of a link changes", &["Fault::Mtu", "FaultKind::Mtu", "environment::cut"]),
    ("hosts change ports", &["Fault::Swap", ".swap(", "environment::cut"]),
    ("clocks jump or drift", &["Fault::ClockStep", "Fault::ClockDrift", "ppb", "skew"]),
    ("UDP source ports change", &["rehashes", "set_path_salt"]),
    ("responders forget old READs", &["forgetful", "FORGETFUL"]),
    ("receives are missing for a while", &["starve", "repost_us", "receives"]),
    ("rights are revoked", &["revocations", "revoke"]),
    (
        "a host lies, floods or is no member",
        &[
            "lies: if",
            "setup.lies",
            "FaultKind::Stranger",
            "config.lies",
            "hostile:",
            "stranger:",
            "tree.stranger",
        ],
    ),
    ("the control plane is slow, its queue short", &["Queues::drawn"]),
    ("frames come milliseconds late", &["late.below", "reorder_by = Between"]),
    ("a node restarts with the memory that it had", &["keeps_memory"]),
    ("queue pairs and R_keys have the same numbers after a restart", &["keys_again"]),
    ("the server's program writes shared words", &["local_words"]),
    ("an operator changes what the switch does", &["set_layers"]),
    ("few places in the switch's tables", &["fn small", "queue_pairs:", "max_lag:"]),
];

const BEGIN: &str = "<!-- made by sim/tests/faults.rs -->\n";
const END: &str = "<!-- end -->\n";

/// Returns the table.
fn table(root: &Path) -> String {
    let source = |file: &&str| std::fs::read_to_string(root.join("tests").join(file)).unwrap();
    let sources = SUITES.map(|(_, files)| files.iter().map(source).collect::<String>());
    let mut table = format!(
        "| drawn |{}\n|---|{}\n",
        SUITES.map(|(name, _)| format!(" {name} |")).concat(),
        ":-:|".repeat(8)
    );
    for (name, words) in FAULTS {
        let draws = sources.each_ref().map(|source| words.iter().any(|word| source.contains(word)));
        assert!(draws.contains(&true), "no suite draws: {name}");
        let marks = draws.map(|draws| if draws { " x |" } else { " |" }).concat();
        writeln!(table, "| {name} |{marks}").unwrap();
    }
    table
}

/// With UPDATE in the environment, the table is written anew.
#[test]
fn table_of_faults_in_the_docs_is_that_of_the_suites() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = root.join("../docs/TESTING.md");
    let text = std::fs::read_to_string(&docs).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table's place");
    let (written, after) = rest.split_once(END).expect("the table's end");
    let table = table(root);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&docs, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(written, table, "write it anew: UPDATE=1 cargo test -p sim --test faults");
}

/// A line that is misspelt would never be run.
#[test]
fn seeds_that_are_kept_are_of_a_test_that_runs_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for line in include_str!("seeds.txt").lines() {
        let (test, seed) = line.split_once(' ').unwrap_or_else(|| panic!("no seed: {line:?}"));
        assert!(seed.parse::<u64>().is_ok(), "no seed: {line:?}");
        let places =
            [root.join("tests").join(test).with_extension("rs"), root.join("../configs/sim").join(test)];
        assert!(places.iter().any(|place| place.exists()), "no such test: {line:?}");
    }
}

//! The table of docs/TESTING.md that says which suite draws which fault is that of the suites' sources.

use std::fmt::Write;
use std::path::Path;

/// Suites that take seeds, and the files that say what those draw
const SUITES: [(&str, &[&str]); 8] = [
    ("verbs", &["tests/it/verbs.rs", "src/verbs/mod.rs"]),
    ("words", &["tests/it/words.rs", "tests/it/drawn.rs", "src/words/cluster.rs"]),
    ("Swordbox", &["tests/it/swordbox.rs", "tests/it/drawn.rs", "src/words/cluster.rs"]),
    ("steering", &["tests/it/steering.rs"]),
    ("P4CE", &["tests/it/groups.rs"]),
    ("consensus", &["tests/it/consensus/seeds.rs"]),
    ("RDMC", &["tests/it/rdmc/seeds.rs", "tests/it/rdmc/deliveries.rs"]),
    ("1Pipe", &["tests/it/onepipe/seeds.rs"]),
];

/// A fault
struct Row {
    name: &'static str,
    /// Words of a source that draws it
    words: &'static [&'static str],
    /// Suites in which it cannot happen, and why not
    cannot: &'static [(&'static [&'static str], &'static str)],
}

const fn all(name: &'static str, words: &'static [&'static str]) -> Row {
    Row { name, words, cannot: &[] }
}

const fn row(
    name: &'static str,
    words: &'static [&'static str],
    cannot: &'static [(&'static [&'static str], &'static str)],
) -> Row {
    Row { name, words, cannot }
}

const FAULTS: [Row; 31] = [
    all("frames lost", &["loss"]),
    all("frames damaged", &["corrupt"]),
    all("frames out of order", &["reorder"]),
    all("frames duplicated", &["duplicate"]),
    all(
        "frames come milliseconds late",
        &["late.below", "reorder_by = Between", "environment::late", "late(seed, may_fail"],
    ),
    all("short queues of links and switch ports", &["queue = ", "short_queue"]),
    all(
        "messages longer than the path MTU",
        &["mtu_log2", "max_size", "mtu:", "sizes:", "block_bytes", "largest"],
    ),
    row(
        "PSNs near the wrap",
        &["first_psn"],
        &[(
            &["1Pipe"],
            "a process draws its first PSN of 2^24 and sends some hundred packets; its timestamps wrap in every run, and its tests \
             in `representative` begin just before the last PSN",
        )],
    ),
    all("a node crashes", &["Fault::Crash", "FaultKind::Crash"]),
    all("a node restarts with empty memory", &["Fault::Restart", "FaultKind::Crash"]),
    row(
        "a node restarts with the memory that it had",
        &["keeps_memory"],
        &[
            (&["verbs"], "a host that restarts takes no further part: its connections are not made again"),
            (
                &["P4CE"],
                "a replica that restarts is in none of its groups any more, and a group's memory is written once",
            ),
            (&["consensus"], "a server keeps its log in its process's memory: one that restarts is blank"),
            (
                &["RDMC"],
                "a host that restarts is in none of its groups any more, and each has memory of its own",
            ),
            (&["1Pipe"], "neither processes nor switches keep anything that a restart survives"),
        ],
    ),
    row(
        "queue pairs and R_keys have the same numbers after a restart",
        &["keys_again"],
        &[
            (&["verbs"], "a host that restarts makes neither queue pairs nor memory regions"),
            (
                &["1Pipe"],
                "its queue pairs and keys have the numbers that the configuration says, after a restart too",
            ),
        ],
    ),
    all("a process is stopped for a while", &["Fault::Pause", "FaultKind::Pause"]),
    all("clocks drift", &["environment::drift", "FaultKind::ClockDrift", "drift_ppb"]),
    row(
        "clocks are set",
        &["Fault::ClockStep"],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC"],
            "their time is CLOCK_MONOTONIC or a CPU's cycles, which are not set; a machine that is suspended is a process that is \
             stopped",
        )],
    ),
    all("a link is cut", &["Fault::Cut", "FaultKind::Partition", "environment::cut"]),
    all("a link is cut in one direction", &["Fault::Mute", "FaultKind::Mute", "environment::cut"]),
    all("two hosts cannot hear each other", &["Fault::Part", "FaultKind::Part", ".part("]),
    all("the MTU of a link changes", &["Fault::Mtu", "FaultKind::Mtu", "environment::cut"]),
    all("hosts change ports", &["Fault::Swap", "FaultKind::Swap", ".swap(", "environment::cut"]),
    row(
        "UDP source ports change",
        &["rehashes", "set_path_salt", "environment::rehash", "FaultKind::Rehash"],
        &[(
            &["1Pipe"],
            "a process sends to another one from one UDP source port for good: what barriers say holds on one path",
        )],
    ),
    row(
        "responders forget old READs",
        &["forgetful", "FORGETFUL"],
        &[(&["P4CE", "RDMC", "1Pipe"], "nothing there sends READs or atomics")],
    ),
    row(
        "receives are missing for a while, or receivers are slow",
        &["starve", "repost_us", "receives:", "Habit::Disk", "reads_every"],
        &[(
            &["steering", "consensus"],
            "nodes and logs are written into memory: nothing sends messages that need receives",
        )],
    ),
    row(
        "rights are revoked",
        &["revocations", "revoke_us", "revoke_after", "fn changes("],
        &[
            (
                &["steering"],
                "a steered request stays on its client's connection, where the server's NIC checks its rights as those of any other",
            ),
            (&["RDMC"], "members may write until their group ends, and nothing takes that back before"),
            (&["1Pipe"], "its messages are datagrams, which need no right to memory"),
        ],
    ),
    all(
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
    row(
        "the control plane is slow, its queue short",
        &["Queues::drawn"],
        &[
            (&["verbs", "words"], "a bridge has no control plane"),
            (
                &["1Pipe"],
                "best-effort delivery does not wait for the control plane, which only hears of links",
            ),
        ],
    ),
    row(
        "few places in the switch's tables",
        &["fn small", "queue_pairs:", "queue_pairs =", "few_stations", "connections: if"],
        &[
            (&["verbs"], "the switch is the bridge of the suite of words, which has few places there"),
            (&["1Pipe"], "hosts and links are configured, and tables have as many places"),
        ],
    ),
    row(
        "the server's program writes shared words",
        &["local_words"],
        &[
            (&["verbs"], "atomics are atomic to each other, not to a host's own program (IB 9.4.5)"),
            (
                &["steering"],
                "its program appends nothing; connections that find no place in the table append unseen",
            ),
            (&["P4CE", "consensus", "RDMC", "1Pipe"], "no words are shared: memory has one writer at a time"),
        ],
    ),
    row(
        "an operator changes what the switch does",
        &["set_layers", "Order::Give"],
        &[
            (&["verbs", "words"], "a bridge has no settings"),
            (&["P4CE", "consensus", "RDMC"], "P4CE's switch has no setting that changes while it runs"),
        ],
    ),
    row(
        "switches of different incarnations in one network",
        &["incarnations"],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC"],
            "only 1Pipe's switches have incarnations",
        )],
    ),
    row(
        "several workers",
        &[],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC", "1Pipe"],
            "one worker owns a function's state; `dataplane` tests with loom how it is handed over",
        )],
    ),
];

const BEGIN: &str = "<!-- made by sim/tests/it/faults.rs -->\n";
const END: &str = "<!-- end -->\n";

/// Returns whether a suite, whose sources these are, draws a fault. One that does not has a reason.
fn is_drawn(row: &Row, suite: &str, source: &str) -> bool {
    let is_drawn = row.words.iter().any(|word| source.contains(word));
    let has_reason = row.cannot.iter().any(|(suites, _)| suites.contains(&suite));
    match (is_drawn, has_reason) {
        (true, true) => panic!("{suite} draws, and has a reason not to: {}", row.name),
        (false, false) => panic!("{suite} does not draw, and has no reason not to: {}", row.name),
        (is_drawn, _) => is_drawn,
    }
}

/// Returns the table, and the reasons below it.
fn table(root: &Path) -> String {
    let source = |file: &&str| std::fs::read_to_string(root.join(file)).unwrap();
    let sources = SUITES.map(|(name, files)| (name, files.iter().map(source).collect::<String>()));
    let mut table = format!(
        "| drawn |{}\n|---|{}\n",
        SUITES.map(|(name, _)| format!(" {name} |")).concat(),
        ":-:|".repeat(8)
    );
    let mut reasons = String::new();
    for row in &FAULTS {
        let mark =
            |(suite, source): &(&str, String)| if is_drawn(row, suite, source) { " x |" } else { " - |" };
        let marks = sources.each_ref().map(mark);
        writeln!(table, "| {} |{}", row.name, marks.concat()).unwrap();
        for (suites, why) in row.cannot {
            writeln!(reasons, "- {} ({}): {why}.", row.name, suites.join(", ")).unwrap();
        }
    }
    format!("{table}\nWhy a fault cannot happen in a suite (`-`):\n\n{reasons}")
}

/// Names in constants are those of suites and faults.
#[test]
fn reasons_are_of_suites_and_faults_that_exist() {
    let is_suite = |name: &&str| SUITES.iter().any(|(suite, _)| suite == name);
    assert!(FAULTS.iter().flat_map(|row| row.cannot).all(|(suites, _)| suites.iter().all(&is_suite)));
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
    assert_eq!(written, table, "write it anew: UPDATE=1 cargo test -p sim faults::");
}

/// A line that is misspelt would never be run.
#[test]
fn seeds_that_are_kept_are_of_a_test_that_runs_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for line in include_str!("../seeds.txt").lines() {
        let (test, seed) = line.split_once(' ').unwrap_or_else(|| panic!("no seed: {line:?}"));
        assert!(seed.parse::<u64>().is_ok(), "no seed: {line:?}");
        let places =
            [root.join("tests/it").join(test).with_extension("rs"), root.join("../configs/sim").join(test)];
        assert!(places.iter().any(|place| place.exists()), "no such test: {line:?}");
    }
}

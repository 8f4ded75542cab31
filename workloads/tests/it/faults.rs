//! Generates the table in docs/TESTING.md that lists which suite draws which fault, and checks it against the
//! sources of the suites.

use std::fmt::Write;
use std::path::Path;

/// Suites that take seeds, and the files that contain their draws
const SUITES: [(&str, &[&str]); 8] = [
    ("verbs", &["tests/it/verbs.rs", "src/verbs/mod.rs"]),
    ("words", &["tests/it/words.rs", "tests/it/drawn.rs", "src/words/cluster.rs"]),
    (
        "Swordbox",
        &[
            "tests/it/swordbox.rs",
            "tests/it/swordbox/workers.rs",
            "tests/it/drawn.rs",
            "src/words/cluster.rs",
        ],
    ),
    ("steering", &["tests/it/steering.rs"]),
    ("P4CE", &["tests/it/groups.rs", "tests/it/groups/net.rs"]),
    ("consensus", &["tests/it/consensus/seeds.rs"]),
    ("RDMC", &["tests/it/rdmc/seeds.rs", "tests/it/rdmc/deliveries.rs"]),
    (
        "1Pipe",
        &[
            "tests/it/onepipe/seeds.rs",
            "tests/it/onepipe/clocks.rs",
            "tests/it/onepipe/crashes.rs",
            "tests/it/onepipe/restarts.rs",
        ],
    ),
];

/// A row of the table: one fault.
struct Row {
    name: &'static str,
    /// Substrings of a suite's sources that show that it draws the fault
    words: &'static [&'static str],
    /// Suites in which the fault cannot occur, with the reason
    exempt: &'static [(&'static [&'static str], &'static str)],
}

const fn all(name: &'static str, words: &'static [&'static str]) -> Row {
    Row { name, words, exempt: &[] }
}

const fn row(
    name: &'static str,
    words: &'static [&'static str],
    exempt: &'static [(&'static [&'static str], &'static str)],
) -> Row {
    Row { name, words, exempt }
}

const FAULTS: [Row; 34] = [
    all("frames lost", &["loss"]),
    all("frames damaged", &["corrupt"]),
    all("frames out of order", &["reorder"]),
    all("frames duplicated", &["duplicate"]),
    all(
        "frames are milliseconds late",
        &["late.below", "reorder_by = NumberRange", "environment::late", "late(seed, may_fail"],
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
            "a process draws its first PSN from 2^24 values and sends some hundred packets. Its timestamps wrap in every run, and its tests \
             in `representative` begin just before the PSN wraps",
        )],
    ),
    all("a node crashes", &["Fault::Crash", "FaultKind::Crash"]),
    all("a node restarts with empty memory", &["Fault::Restart", "FaultKind::Crash"]),
    row(
        "a node restarts with its old memory",
        &["keeps_memory"],
        &[
            (&["verbs"], "a host that restarts does not reconnect"),
            (
                &["P4CE"],
                "a replica that restarts is no longer a member of its groups, and a group's memory is written once",
            ),
            (&["consensus"], "a server keeps its log in the memory of its process, so a restart empties it"),
            (
                &["RDMC"],
                "a host that restarts is no longer a member of its groups, and each group has its own memory",
            ),
            (&["1Pipe"], "neither processes nor switches have state that survives a restart"),
        ],
    ),
    row(
        "QPNs and R_keys are the same after a restart",
        &["same_keys_after_restart"],
        &[
            (&["verbs"], "a host that restarts creates neither queue pairs nor memory regions"),
            (&["1Pipe"], "its QPNs and R_keys are configured, so they are always the same after a restart"),
        ],
    ),
    all("a process is paused", &["Fault::Pause", "FaultKind::Pause"]),
    all("clocks drift", &["environment::drift", "FaultKind::ClockDrift", "drift_ppb"]),
    row(
        "clocks are stepped",
        &["Fault::ClockStep"],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC"],
            "their time is CLOCK_MONOTONIC or a CPU's cycle counter, which are never stepped; a suspended machine counts as a paused \
             process",
        )],
    ),
    row(
        "clocks are wrong from the beginning",
        &["wrong_keepers"],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC"],
            "their nodes measure time spans only, and compare no times of different clocks",
        )],
    ),
    all("a link is cut", &["Fault::Cut", "FaultKind::Partition(", "environment::cut"]),
    all("a link is cut in one direction", &["Fault::Mute", "FaultKind::Mute", "environment::cut"]),
    all(
        "two hosts cannot reach each other",
        &["Fault::PartitionPair", "FaultKind::PartitionPair", ".partition(client"],
    ),
    all("the MTU of a link changes", &["Fault::Mtu", "FaultKind::Mtu", "environment::cut"]),
    all("hosts swap switch ports", &["Fault::Swap", "FaultKind::Swap", ".swap(", "environment::cut"]),
    row(
        "UDP source ports change",
        &["rehashes", "set_path_salt", "environment::rehash", "FaultKind::Rehash"],
        &[(
            &["1Pipe"],
            "a process always sends to a peer from the same UDP source port, because a barrier is valid for one path only",
        )],
    ),
    row(
        "responders do not keep results of old READs and atomics",
        &["forgetful", "FORGETFUL"],
        &[(&["P4CE", "RDMC", "1Pipe"], "no node sends READs or atomics")],
    ),
    row(
        "receive buffers are missing for a while, or receivers are slow",
        &["starve", "repost_us", "receives:", "ReceiverBehaviour::WriteTime", "reads_every"],
        &[(
            &["steering", "consensus"],
            "nodes and logs are written into memory: no message needs a receive buffer",
        )],
    ),
    row(
        "access rights are revoked",
        &["revocations", "revoke_us", "revoke_after", "fn changes("],
        &[
            (
                &["steering"],
                "a steered request stays on its client's connection, and the server's NIC checks its rights as usual",
            ),
            (&["RDMC"], "members may write until their group ends; no right is revoked before"),
            (&["1Pipe"], "its messages are datagrams, which need no memory access rights"),
        ],
    ),
    all(
        "a host forges packets, floods or is not a member",
        &[
            "forged_rounds: if",
            "setup.forged_rounds",
            "FaultKind::Outsider",
            "config.forged_rounds",
            "hostile:",
            "outsider:",
            "tree.outsider",
        ],
    ),
    row(
        "the control plane is slow or its queue is short",
        &["Queues::drawn"],
        &[
            (&["verbs", "words"], "a bridge has no control plane"),
            (
                &["1Pipe"],
                "best-effort delivery does not wait for the control plane, which only receives link events",
            ),
        ],
    ),
    row(
        "few entries in the switch's tables",
        &["fn small", "queue_pairs:", "queue_pairs =", "small_mac_table", "connections: if"],
        &[
            (&["verbs"], "the switch is the bridge of the words suite, which draws small tables"),
            (&["1Pipe"], "hosts and links are configured, and tables are sized for them"),
        ],
    ),
    row(
        "the server's program writes shared words",
        &["local_words"],
        &[
            (
                &["verbs"],
                "atomics are atomic with respect to each other, not to the host's own CPU (IB 9.4.5)",
            ),
            (
                &["steering"],
                "its program appends nothing; connections without a table entry append without the switch's tracking",
            ),
            (&["P4CE", "consensus", "RDMC", "1Pipe"], "no words are shared: memory has one writer at a time"),
        ],
    ),
    row(
        "an operator changes the switch's settings",
        &["set_layers", "OperatorAction::Remove"],
        &[
            (&["verbs", "words"], "a bridge has no settings"),
            (&["P4CE", "consensus", "RDMC"], "P4CE's switch has no setting that can change while it runs"),
        ],
    ),
    row(
        "a switch restarts as another incarnation",
        &["reincarnate"],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC"],
            "only 1Pipe's switches have incarnations",
        )],
    ),
    row(
        "nodes of an earlier version",
        &["tree.old"],
        &[(
            &["verbs", "words", "Swordbox", "steering", "P4CE", "consensus", "RDMC"],
            "their packets are those of the InfiniBand specification, which has no earlier version here",
        )],
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
        &["Workers::drawn", "Workers::of_senders"],
        &[
            (&["verbs", "words"], "a bridge has no state that a worker owns"),
            (&["RDMC"], "its switch is P4CE's, whose own suites draw them"),
        ],
    ),
];

const BEGIN: &str = "<!-- made by workloads/tests/it/faults.rs -->\n";
const END: &str = "<!-- end -->\n";

/// Returns whether a suite with the given sources draws a fault.
///
/// Panics if the suite does not draw it and has no reason, or draws it and has one.
fn is_drawn(row: &Row, suite: &str, source: &str) -> bool {
    let is_drawn = row.words.iter().any(|word| source.contains(word));
    let has_reason = row.exempt.iter().any(|(suites, _)| suites.contains(&suite));
    match (is_drawn, has_reason) {
        (true, true) => {
            panic!("{suite} draws the fault {:?}, but has a reason not to; remove the reason", row.name)
        }
        (false, false) => panic!("{suite} does not draw the fault {:?}; draw it or give a reason", row.name),
        (is_drawn, _) => is_drawn,
    }
}

/// Returns the table, followed by the reasons.
fn table(root: &Path) -> String {
    let source = |file: &&str| std::fs::read_to_string(root.join(file)).unwrap();
    let sources = SUITES.map(|(name, files)| (name, files.iter().map(source).collect::<String>()));
    let mut table = format!(
        "| fault |{}\n|---|{}\n",
        SUITES.map(|(name, _)| format!(" {name} |")).concat(),
        ":-:|".repeat(8)
    );
    let mut reasons = String::new();
    for row in &FAULTS {
        let mark =
            |(suite, source): &(&str, String)| if is_drawn(row, suite, source) { " x |" } else { " - |" };
        let marks = sources.each_ref().map(mark);
        writeln!(table, "| {} |{}", row.name, marks.concat()).unwrap();
        for (suites, why) in row.exempt {
            writeln!(reasons, "- {} ({}): {why}.", row.name, suites.join(", ")).unwrap();
        }
    }
    format!("{table}\nWhy a fault cannot happen in a suite (`-`):\n\n{reasons}")
}

/// The suites named in reasons exist.
#[test]
fn reasons_name_existing_suites() {
    let is_suite = |name: &&str| SUITES.iter().any(|(suite, _)| suite == name);
    assert!(FAULTS.iter().flat_map(|row| row.exempt).all(|(suites, _)| suites.iter().all(&is_suite)));
}

/// With UPDATE in the environment, rewrites the table instead of comparing it.
#[test]
fn the_table_of_faults_in_the_docs_matches_the_suites() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = root.join("../docs/TESTING.md");
    let text = std::fs::read_to_string(&docs).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("no line marks the beginning of the table");
    let (written, after) = rest.split_once(END).expect("no line marks the end of the table");
    let table = table(root);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&docs, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(
        written, table,
        "the table is out of date; run UPDATE=1 cargo test -p workloads --test it faults::"
    );
}

/// Returns the sources of the tests below a folder.
fn test_sources(folder: &Path) -> String {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { test_sources(&path) } else { read(&path) }).collect()
}

/// A line with a misspelt suite would never be run.
#[test]
fn recorded_failing_seeds_name_an_existing_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = test_sources(&root.join("tests/it"));
    for line in include_str!("../seeds.txt").lines() {
        let (test, seed) = line
            .split_once(' ')
            .unwrap_or_else(|| panic!("invalid line in seeds.txt: {line:?}; write a test and a seed"));
        assert!(seed.parse::<u64>().is_ok(), "invalid seed in seeds.txt: {line:?}; write a number");
        let is_scenario = !test.is_empty() && root.join("../configs/sim").join(test).is_file();
        let is_suite = sources.contains(&format!("environment::seeds(\"{test}\", "));
        assert!(is_suite || is_scenario, "no such test in seeds.txt: {line:?}");
    }
}

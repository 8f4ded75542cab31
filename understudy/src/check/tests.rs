//! Tests of the example files and of the reference page.

use super::example;
use crate::config::{CONTROLLER, RFC2544, SCENARIO, TOPOLOGY};
use crate::functions::{FUNCTIONS, consensus, onepipe, tunnel};
use crate::observe;
use core::fmt::Write;
use settings::TABLES;
use settings::reference::section;
use std::path::Path;

/// Keys of an example that are not valid beside others of it: names of keys, and tables with all of their keys
const INCOMPATIBLE: [(&str, &[&str]); 12] = [
    ("", &["pci", "mlx5", "af_xdp", "tap", "memif", "vhost", "ring", "pcap", "null", "devargs"]),
    ("", &["memory_mb", "workers"]),
    ("forward", &["mac_table", "routes", "drop"]),
    ("tunnel", &["mac_table", "routes", "drop"]),
    ("swordbox", &["pairs", "routes", "drop", "layers"]),
    ("onepipe", &["pairs", "routes", "drop", "detour", "standby", "lag_alarm_us"]),
    ("impair", &["delay_us", "jitter_us", "copies", "behind", "at_most_us", "field", "force"]),
    ("nic", &["count", "messages", "test", "transport", "server", "connections", "at_once"]),
    (
        "consensus",
        &[
            "[[nic.service]]",
            "kind",
            "port",
            "size",
            "count",
            "messages",
            "test",
            "transport",
            "server",
            "connections",
            "at_once",
        ],
    ),
    ("process", &["stop_when_idle_ms"]),
    ("rfc2544", &["stop_when_idle_ms", "packets_per_s"]),
    ("pktgen", &["stop_when_idle_ms", "coalesce", "timeout_us", "outstanding", "over_s"]),
];

/// Returns the problems of an example.
fn problems(name: &str, text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{name}.toml"));
    std::fs::write(&path, text).unwrap();
    let read = if name == "rfc2544" {
        crate::config::load_rfc2544(&path).map(drop)
    } else {
        crate::config::load(&path).map(drop)
    };
    read.err().map(|report| format!("{}\n{text}", report.render())).unwrap_or_default()
}

/// Removes the marks of keys that are commented out, except for those that are not valid beside others.
fn uncommented(name: &str, text: &str) -> String {
    let skipped = |key: &str| {
        INCOMPATIBLE.iter().any(|(table, keys)| (table.is_empty() || *table == name) && keys.contains(&key))
    };
    let line = |line: &str| {
        let bare = line.strip_prefix('#').filter(|bare| !bare.starts_with(' '));
        match bare {
            Some(bare) if !skipped(bare.split(" = ").next().unwrap_or_default()) => format!("{bare}\n"),
            _ => format!("{line}\n"),
        }
    };
    text.lines().map(line).collect()
}

#[test]
fn every_example_is_valid() {
    for name in example::names() {
        let text = example::file(name).unwrap();
        assert_eq!(problems(name, &text), "", "{name}");
    }
}

#[test]
fn examples_with_all_keys_are_valid() {
    for name in example::names() {
        let text = uncommented(name, &example::file(name).unwrap());
        assert_eq!(problems(name, &text), "", "{name}");
    }
}

/// Returns the reference page.
fn page() -> String {
    let mut page = String::from(
        "# Configuration\n\nEvery table and key of a configuration file, generated from their declarations \
         (`UPDATE=1 cargo test -p understudy --bin understudy check::tests`). `understudy check --example \
         p4ce` prints a commented file with all keys of a function. A relative path begins in the folder of \
         the file.\n",
    );
    let sections: [(&str, Vec<_>); 6] = [
        ("All files", [TABLES.as_slice(), &[&observe::Keys::TABLE]].concat()),
        (
            "Functions",
            FUNCTIONS
                .iter()
                .map(|function| function.spec)
                .chain([consensus::TABLE, tunnel::TABLE, &onepipe::controller::Keys::TABLE])
                .chain([onepipe_host::file::controller::TABLE])
                .collect(),
        ),
        ("Scenarios of the simulator", SCENARIO.to_vec()),
        ("Networks of 1Pipe", TOPOLOGY.to_vec()),
        ("1Pipe's controller", CONTROLLER.to_vec()),
        ("Tests of a device", vec![RFC2544]),
    ];
    for (title, tables) in sections {
        let _ = write!(page, "\n## {title}\n");
        for table in tables {
            section(&mut page, table);
        }
    }
    page
}

/// With UPDATE in the environment, rewrites the page instead of comparing it.
#[test]
fn the_reference_page_matches_the_declarations() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, page).unwrap();
        return;
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        written, page,
        "out of date; run UPDATE=1 cargo test -p understudy --bin understudy check::tests"
    );
}

//! Results of runs: as tables for the terminal, as JSON for programs.

use super::Failure;
use super::sweep::Summary;
use crate::observe::Values;
use comfy_table::{Cell, CellAlignment, Table, presets};
use core::fmt::Display;
use serde::Serialize;
use serde_json::{Map, Value};
use sim::{LinkCounters, NicCounters};
use std::collections::BTreeMap;
use switch::metrics::Metrics as _;
use workloads::scenario::{HostReport, Outcome, to_toml};

/// Counters of a host's NIC that are shown
const OF_NIC: [&str; 16] = [
    "received",
    "sent",
    "icrc_errors",
    "duplicates",
    "forgotten",
    "out_of_sequence",
    "naks_sent",
    "rnr_naks_sent",
    "retransmitted",
    "timeouts",
    "retries_exceeded",
    "lost_responses",
    "stale_responses",
    "cnps_sent",
    "cnps_received",
    "ce_marked",
];

fn nic_counters(counters: &NicCounters) -> [(&'static str, u64); 16] {
    let values = Values::of(counters);
    OF_NIC.map(|name| (name, values.get(name)))
}

/// Returns a table with a column for each name that has a number other than 0 in any row.
fn table(first: &str, rows: &[(String, Vec<(&'static str, u64)>)]) -> String {
    let Some((_, names)) = rows.first() else { return String::new() };
    let shown: Vec<usize> =
        (0..names.len()).filter(|column| rows.iter().any(|(_, row)| row[*column].1 > 0)).collect();
    if shown.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let head = |text: &dyn Display| Cell::new(text.to_string());
    table.set_header(
        [head(&first)]
            .into_iter()
            .chain(shown.iter().map(|column| head(&names[*column].0.replace('_', " ")))),
    );
    for (name, row) in rows {
        let number = |column: &usize| Cell::new(row[*column].1).set_alignment(CellAlignment::Right);
        table.add_row([Cell::new(name)].into_iter().chain(shown.iter().map(number)));
    }
    format!("{table}\n")
}

fn link_rows(outcome: &Outcome) -> Vec<(String, Vec<(&'static str, u64)>)> {
    let rows = outcome.links.iter().flat_map(|link| {
        let [a, b] = &link.ends;
        [(format!("{a} > {b}"), link.counters[0]), (format!("{b} > {a}"), link.counters[1])]
    });
    rows.map(|(name, counters)| (name, counters.reported().collect())).collect()
}

pub(super) fn one_text(outcome: &Outcome) -> String {
    let hosts: Vec<_> =
        outcome.hosts.iter().map(|host| (host.name.clone(), nic_counters(&host.counters).to_vec())).collect();
    let switches: Vec<_> = outcome
        .switches
        .iter()
        .map(|switch| {
            let dropped = switch.counters.dropped.iter().sum();
            let counts = vec![
                ("received", switch.counters.received),
                ("forwarded", switch.counters.forwarded),
                ("dropped", dropped),
            ];
            (switch.name.clone(), counts)
        })
        .collect();
    let total = outcome.operations_in_all();
    let mut text = format!(
        "Seed {}: {} of virtual time, {} packets, {total} operations completed. Digest {:016x}\n",
        outcome.seed,
        Span(outcome.time.0),
        outcome.packets,
        outcome.digest
    );
    text += &table("operations", &[("completed".into(), outcome.operations.clone())]);
    text += &table("link", &link_rows(outcome));
    text += &table("host", &hosts);
    text += &table("switch", &switches);
    if outcome.violation.is_none() {
        text += match outcome.broken {
            0 => "All checks passed.\n".to_owned(),
            ends => format!("All checks passed; {ends} ends of connections failed.\n"),
        }
        .as_str();
    }
    text
}

pub(super) fn sweep_text(summary: &Summary) -> String {
    let seconds = summary.time.as_secs_f64();
    let failed = match &summary.failed {
        None => String::new(),
        Some(_) => ", then one failed".into(),
    };
    format!(
        "{} seeds from {} on passed{failed}: {} operations, {} packets ({:.2} million per second, {:.1} s), {} ends of \
         connections failed. Digest {:016x}\n",
        summary.passed,
        summary.from,
        summary.operations,
        summary.packets,
        summary.packets as f64 / seconds / 1e6,
        seconds,
        summary.broken,
        summary.digest
    )
}

/// Result of `--json` for one seed. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct One {
    seed: u64,
    /// Whether all checks passed
    ok: bool,
    /// Digest of the whole run, in hexadecimal digits: the same for each run of this seed
    digest: String,
    /// Virtual time at the end
    world_ns: u64,
    /// Events of the simulator
    events: u64,
    /// Frames that arrived at a node
    packets: u64,
    /// Operations that completed, by name
    operations: Counts,
    /// Ends of connections that failed
    broken_ends: u64,
    /// Each direction of each link
    links: Vec<LinkRow>,
    hosts: Vec<HostRow>,
    /// The violation; null if all checks passed
    failure: Option<FailureRow>,
}

type Counts = BTreeMap<&'static str, u64>;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LinkRow {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<sim::LinkCounters>"))]
    counts: Values,
    /// Node that sends
    from: String,
    /// Node that receives
    to: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HostRow {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "nic_schema"))]
    counts: Map<String, Value>,
    /// Name of the host
    name: String,
}

#[cfg(test)]
fn nic_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    crate::reference::chosen_metrics::<NicCounters>(&OF_NIC)
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FailureRow {
    seed: u64,
    /// First violation in words
    violation: String,
    /// Smaller scenario that fails, too; null if there is none, or with `--no-shrink`
    shrunk: Option<ShrunkRow>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShrunkRow {
    /// The scenario as a file
    scenario: String,
    /// Its first violation
    violation: Option<String>,
    /// Frames that arrived at a node
    packets: u64,
    /// Scenarios that were tried to find it
    tried: u32,
}

impl From<&Failure> for FailureRow {
    fn from(failure: &Failure) -> Self {
        let shrunk = failure.shrunk.as_ref().map(|shrunk| ShrunkRow {
            scenario: to_toml(&shrunk.scenario),
            violation: shrunk.outcome.violation.clone(),
            packets: shrunk.outcome.packets,
            tried: shrunk.tried,
        });
        Self { seed: failure.seed, violation: failure.violation.clone(), shrunk }
    }
}

pub(super) fn one_json(outcome: &Outcome, failure: Option<&Failure>) -> String {
    let links = outcome.links.iter().flat_map(|link| {
        let [a, b] = &link.ends;
        [(a, b, &link.counters[0]), (b, a, &link.counters[1])]
    });
    let link = |(from, to, counters): (&String, &String, &LinkCounters)| LinkRow {
        counts: Values::of(counters),
        from: from.clone(),
        to: to.clone(),
    };
    let host = |host: &HostReport| HostRow {
        counts: nic_counters(&host.counters)
            .map(|(name, value)| (name.into(), value.into()))
            .into_iter()
            .collect(),
        name: host.name.clone(),
    };
    line(&One {
        seed: outcome.seed,
        ok: outcome.violation.is_none(),
        digest: format!("{:016x}", outcome.digest),
        world_ns: outcome.time.0,
        events: outcome.events,
        packets: outcome.packets,
        operations: outcome.operations.iter().copied().collect(),
        broken_ends: outcome.broken,
        links: links.map(link).collect(),
        hosts: outcome.hosts.iter().map(host).collect(),
        failure: failure.map(Into::into),
    })
}

/// Result of `--json` for several seeds. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sweep {
    /// First seed
    from: u64,
    /// Seeds that passed all checks
    passed: u64,
    /// Whether all did
    ok: bool,
    /// Digest of all runs, in hexadecimal digits
    digest: String,
    /// Events of the simulator
    events: u64,
    /// Frames that arrived at a node
    packets: u64,
    /// Operations that completed
    operations: u64,
    /// Ends of connections that failed
    broken_ends: u64,
    /// Time that the runs took
    seconds: f64,
    /// First violation; null if all seeds passed
    failure: Option<FailureRow>,
}

pub(super) fn sweep_json(summary: &Summary, failure: Option<&Failure>) -> String {
    line(&Sweep {
        from: summary.from,
        passed: summary.passed,
        ok: summary.failed.is_none(),
        digest: format!("{:016x}", summary.digest),
        events: summary.events,
        packets: summary.packets,
        operations: summary.operations,
        broken_ends: summary.broken,
        seconds: summary.time.as_secs_f64(),
        failure: failure.map(Into::into),
    })
}

fn line(result: &impl Serialize) -> String {
    serde_json::to_string(result).expect("numbers and text always serialise") + "\n"
}

/// A time span, printed in a suitable unit.
struct Span(u64);

impl Display for Span {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} us", ns / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} ms", ns / 1e6),
            _ => write!(f, "{:.3} s", ns / 1e9),
        }
    }
}

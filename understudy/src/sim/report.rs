//! Results of runs: as tables for the terminal, as JSON for programs.

use super::Failure;
use super::sweep::Summary;
use comfy_table::{Cell, CellAlignment, Table, presets};
use core::fmt::Display;
use serde_json::{Value, json};
use sim::NicCounters;
use switch::metrics::Metrics as _;
use workloads::scenario::{Outcome, to_toml};

fn nic_counters(counters: &NicCounters) -> [(&'static str, u64); 16] {
    [
        ("received", counters.received),
        ("sent", counters.sent),
        ("icrc_errors", counters.icrc_errors),
        ("duplicates", counters.duplicates),
        ("forgotten", counters.forgotten),
        ("out_of_sequence", counters.out_of_sequence),
        ("naks_sent", counters.naks_sent),
        ("rnr_naks_sent", counters.rnr_naks_sent),
        ("retransmitted", counters.retransmitted),
        ("timeouts", counters.timeouts),
        ("retries_exceeded", counters.retries_exceeded),
        ("lost_responses", counters.lost_responses),
        ("stale_responses", counters.stale_responses),
        ("cnps_sent", counters.cnps_sent),
        ("cnps_received", counters.cnps_received),
        ("ce_marked", counters.ce_marked),
    ]
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

fn failure_json(failure: Option<&Failure>) -> Value {
    failure.map_or(Value::Null, |failure| {
        json!({
            "seed": failure.seed,
            "violation": failure.violation,
            "shrunk": failure.shrunk.as_ref().map(|shrunk| json!({
                "scenario": to_toml(&shrunk.scenario),
                "violation": shrunk.outcome.violation,
                "packets": shrunk.outcome.packets,
                "tried": shrunk.tried,
            })),
        })
    })
}

fn object(counters: &[(&'static str, u64)]) -> Value {
    counters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

pub(super) fn one_json(outcome: &Outcome, failure: Option<&Failure>) -> String {
    let links: Vec<_> = outcome
        .links
        .iter()
        .flat_map(|link| {
            let [a, b] = &link.ends;
            [(a, b, link.counters[0]), (b, a, link.counters[1])]
        })
        .map(|(from, to, counters)| {
            let mut row = object(&counters.reported().collect::<Vec<_>>());
            row["from"] = json!(from);
            row["to"] = json!(to);
            row
        })
        .collect();
    let hosts: Vec<_> = outcome
        .hosts
        .iter()
        .map(|host| {
            let mut row = object(&nic_counters(&host.counters));
            row["name"] = json!(host.name);
            row
        })
        .collect();
    let value = json!({
        "seed": outcome.seed,
        "ok": outcome.violation.is_none(),
        "digest": format!("{:016x}", outcome.digest),
        "world_ns": outcome.time.0,
        "events": outcome.events,
        "packets": outcome.packets,
        "operations": object(&outcome.operations),
        "broken_ends": outcome.broken,
        "links": links,
        "hosts": hosts,
        "failure": failure_json(failure),
    });
    format!("{value}\n")
}

pub(super) fn sweep_json(summary: &Summary, failure: Option<&Failure>) -> String {
    let value = json!({
        "from": summary.from,
        "passed": summary.passed,
        "ok": summary.failed.is_none(),
        "digest": format!("{:016x}", summary.digest),
        "events": summary.events,
        "packets": summary.packets,
        "operations": summary.operations,
        "broken_ends": summary.broken,
        "seconds": summary.time.as_secs_f64(),
        "failure": failure_json(failure),
    });
    format!("{value}\n")
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

//! Closing report of a controller.

use super::metrics::Metrics;
use crate::observe::Values;
use core::fmt::Write as _;
use serde::Serialize;
use std::collections::BTreeMap;

/// The report as JSON. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// Length of the run
    seconds: f64,
    /// Term in which it led; 0 if it did not lead
    term: u64,
    /// Members of the reliable service
    members: u64,
    /// Nodes that were connected
    connected: u64,
    /// Cases that were not closed
    open_cases: u64,
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<Metrics>"))]
    counters: Values,
    /// Connections that ended, by reason
    connections_ended: BTreeMap<&'static str, u64>,
}

/// Returns the report as JSON.
pub(super) fn json(metrics: &Metrics, seconds: f64) -> String {
    let snapshot = &metrics.snapshot;
    let report = Report {
        seconds,
        term: snapshot.term.into(),
        members: snapshot.members,
        connected: snapshot.connected,
        open_cases: snapshot.open_cases,
        counters: Values::of(metrics),
        connections_ended: metrics.ended().collect(),
    };
    serde_json::to_string(&report).expect("numbers and text always serialise")
}

pub(super) fn text(metrics: &Metrics, seconds: f64) -> String {
    let snapshot = &metrics.snapshot;
    let leads = match snapshot.term {
        0 => "without leading".to_owned(),
        term => format!("leading in term {term}"),
    };
    let mut text = format!(
        "{seconds:.2} s, {leads}: {} members, {} nodes connected, {} open cases\n",
        snapshot.members, snapshot.connected, snapshot.open_cases
    );
    let list = |counts: Vec<(&'static str, u64)>| {
        let list: Vec<_> =
            counts.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
        list.join(", ")
    };
    let counted = Values::of(metrics).nonzero().collect();
    for (what, counts) in [("counted", counted), ("connections ended", metrics.ended().collect::<Vec<_>>())] {
        if !counts.is_empty() {
            // Writing to a string does not fail.
            _ = writeln!(text, "{what}: {}", list(counts));
        }
    }
    text
}

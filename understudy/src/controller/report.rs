//! Closing report of a controller.

use super::metrics::Metrics;
use crate::observe::Values;
use core::fmt::Write as _;
use serde_json::{Value, json};

/// Returns the report as JSON. Fields are added, not renamed.
pub(super) fn json(metrics: &Metrics, seconds: f64) -> Value {
    let snapshot = &metrics.snapshot;
    let ended: serde_json::Map<_, _> =
        metrics.ended().map(|(name, count)| (name.to_owned(), count.into())).collect();
    json!({
        "seconds": seconds,
        "term": snapshot.term,
        "members": snapshot.members,
        "connected": snapshot.connected,
        "open_cases": snapshot.open_cases,
        "counters": Values::of(metrics),
        "connections_ended": ended,
    })
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

//! Closing report of a controller.

use ::controller::server::Snapshot;
use core::fmt::Write as _;
use management::{Counts, Reason};
use serde_json::{Value, json};

/// Returns the counts of a controller by name, which are the fields of the report.
fn counts(snapshot: &Snapshot, connections: &Counts) -> [(&'static str, u64); 17] {
    let (machine, counts) = (&snapshot.machine, &snapshot.counts);
    [
        ("failed", machine.failed),
        ("thawed", machine.thawed),
        ("forwarded", machine.forwarded),
        ("forward_refused", machine.forward_refused),
        ("ignored", machine.ignored),
        ("writes", counts.writes),
        ("store_errors", counts.store_errors),
        ("alarms", counts.alarms),
        ("undecodable", counts.undecodable),
        ("other_name", counts.other_name),
        ("too_long", counts.too_long),
        ("requests", counts.requests),
        ("requests_refused", counts.requests_refused),
        ("accepted", connections.accepted),
        ("opened", connections.opened),
        ("received", connections.received),
        ("sent", connections.sent),
    ]
}

/// Returns how many connections ended, by reason, where any did.
fn ended(connections: &Counts) -> impl Iterator<Item = (&'static str, u64)> + '_ {
    Reason::NAMES.into_iter().zip(connections.ended).filter(|(_, count)| *count > 0)
}

/// Returns the report as JSON. Fields are added, not renamed.
pub(super) fn json(snapshot: &Snapshot, connections: &Counts, seconds: f64) -> Value {
    let counts: serde_json::Map<_, _> = counts(snapshot, connections)
        .map(|(name, count)| (name.to_owned(), count.into()))
        .into_iter()
        .collect();
    let ended: serde_json::Map<_, _> =
        ended(connections).map(|(name, count)| (name.to_owned(), count.into())).collect();
    json!({
        "seconds": seconds,
        "term": snapshot.term,
        "members": snapshot.members,
        "connected": snapshot.connected,
        "open_cases": snapshot.open_cases,
        "counters": counts,
        "connections_ended": ended,
    })
}

pub(super) fn text(snapshot: &Snapshot, connections: &Counts, seconds: f64) -> String {
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
    let counted = counts(snapshot, connections).into_iter().filter(|(_, count)| *count > 0).collect();
    for (what, counts) in
        [("counted", counted), ("connections ended", ended(connections).collect::<Vec<_>>())]
    {
        if !counts.is_empty() {
            // Writing to a string does not fail.
            _ = writeln!(text, "{what}: {}", list(counts));
        }
    }
    text
}

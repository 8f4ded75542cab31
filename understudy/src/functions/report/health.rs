//! Health of ports and queue pairs in the closing report.

use super::{QpRow, Report};
use crate::observe::Values;
use crate::output::{row, section};
use core::fmt::Write as _;

/// Queue pairs in the printed table; the JSON has all of them
const SHOWN: usize = 10;

/// Appends the health of ports that have faults or congestion, and of the queue pairs that have most of them.
pub(super) fn text(report: &Report, text: &mut String) {
    let ports =
        report.ports.iter().filter_map(|port| Some((vec![port.port.name.clone()], port.health.clone()?)));
    table(text, "Health of received RoCEv2 packets", &["port"], ports.filter(|(_, health)| is_ill(health)));
    let mut ill: Vec<&QpRow> = report.qps.iter().filter(|qp| is_ill(&qp.health)).collect();
    ill.sort_by_key(|qp| {
        let of = |name| qp.health.get(name);
        core::cmp::Reverse((of("faults"), of("ce_marks") + of("cnps_seen"), qp.frames))
    });
    let row = |qp: &&QpRow| (vec![qp.dst.clone(), format!("{:#x}", qp.qpn)], qp.health.clone());
    let shown = ill.iter().take(SHOWN).map(row);
    table(text, "Unhealthy queue pairs (of packets to them)", &["host", "QPN"], shown);
    if ill.len() > SHOWN {
        // Writing to a string does not fail.
        _ = writeln!(text, "unhealthy queue pairs: {} more are in --json", ill.len() - SHOWN);
    }
    if let Some(split @ 1..) = report.qps_split {
        _ = writeln!(
            text,
            "queue pairs: the packets to {split} were received by several workers, so that their gaps are not known"
        );
    }
}

/// Returns whether there is a fault or a sign of congestion.
fn is_ill(health: &Values) -> bool {
    ["faults", "ce_marks", "cnps_seen"].iter().any(|name| health.get(name) > 0)
}

/// Appends a table of those metrics that are not zero in all rows.
fn table(text: &mut String, title: &str, words: &[&str], rows: impl Iterator<Item = (Vec<String>, Values)>) {
    let rows: Vec<_> = rows.collect();
    let Some((_, first)) = rows.first() else { return };
    let names: Vec<_> = first.reported().map(|(name, _)| name).collect();
    let names: Vec<_> =
        names.into_iter().filter(|name| rows.iter().any(|(_, health)| health.get(name) > 0)).collect();
    let heads: Vec<_> = names.iter().map(|name| name.replace('_', " ")).collect();
    let heads: Vec<_> = words.iter().copied().chain(heads.iter().map(String::as_str)).collect();
    let cells = rows.iter().map(|(cells, health)| {
        let cells: Vec<_> = cells.iter().map(String::as_str).collect();
        row(&cells, &names.iter().map(|name| health.get(name)).collect::<Vec<_>>())
    });
    section(text, title, &heads, words.len(), cells);
}

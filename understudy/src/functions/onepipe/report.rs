//! Report of a 1Pipe switch, at any time of its run.

use super::OnePipeConfig;
use crate::functions::report::Section;
use crate::observe::{FunctionMetrics, Row, Table};
use crate::output::{row, section};
use core::fmt::Write as _;
use onepipe::Timestamp;
use representative::config::Side;
use representative::view::BarrierView;
use representative::{Counters, LinkId, Refusal, View};
use serde::Serialize;
use std::collections::BTreeMap;

/// Links in the printed table; the JSON has all of them
const SHOWN_LINKS: usize = 64;

/// Barriers, links and counters. Fields are added, not renamed.
#[derive(Serialize)]
pub(super) struct OnePipeReport {
    /// Counters by name
    #[serde(flatten)]
    counters: BTreeMap<&'static str, u64>,
    /// Packets that were not accepted, by reason
    refused: BTreeMap<&'static str, u64>,
    /// Barriers of the links to above and to below, as last read; null if they were never read
    above: Option<BarrierRow>,
    below: Option<BarrierRow>,
    links: Vec<LinkRow>,
}

#[derive(Serialize)]
struct BarrierRow {
    best_effort_ns: Option<u64>,
    commit_ns: Option<u64>,
    /// Link that holds the best-effort barrier, and its name
    holder: Option<u16>,
    holder_name: Option<String>,
}

#[derive(Serialize)]
struct LinkRow {
    link: u16,
    name: String,
    side: &'static str,
    state: &'static str,
    /// Lead of its register over the barrier; 0 for the link that holds it. Null unless the link is alive
    ahead_ns: Option<u64>,
    /// Lag of its barrier behind the median of the links that it is compared with. Null unless the link is
    /// alive
    lag_ns: Option<u64>,
}

pub(super) fn switch_report(
    config: &OnePipeConfig,
    counters: &Counters,
    view: Option<&View>,
    lagging: u64,
) -> OnePipeReport {
    let counted = [
        ("messages", &counters.messages),
        ("late", &counters.late),
        ("flooded", &counters.flooded),
        ("beacons_taken_datagrams", &counters.datagrams),
        ("beacons_taken_writes", &counters.writes),
        ("beacons_sent", &counters.beacons),
        ("beacons_unsent", &counters.unsent),
        ("dead", &counters.dead),
        ("left", &counters.left),
        ("joined", &counters.joined),
        ("intervals", &counters.ticks),
        ("intervals_missed", &counters.ticks_missed),
        ("intervals_late_ns", &counters.late_ns),
        ("intervals_latest_ns", &counters.latest_ns),
        ("events_lost", &counters.events_lost),
    ];
    let counted = counted.map(|(name, counter)| (name, counter.get())).into_iter();
    let refused = Refusal::ALL.map(|why| (why.name(), counters.refused(why))).into_iter();
    let barrier = |view: BarrierView| BarrierRow {
        best_effort_ns: view.best_effort.map(Timestamp::nanos),
        commit_ns: view.commit.map(Timestamp::nanos),
        holder: view.holder.map(|LinkId(link)| link),
        holder_name: view.holder.map(|LinkId(link)| config.names[usize::from(link)].clone()),
    };
    let links = view.into_iter().flat_map(|view| (0..).zip(&view.links).zip(&config.names));
    OnePipeReport {
        counters: counted.chain([("lagging", lagging)]).collect(),
        refused: refused.filter(|(_, count)| *count > 0).collect(),
        above: view.map(|view| barrier(view.above)),
        below: view.map(|view| barrier(view.below)),
        links: links
            .map(|((number, link), name)| LinkRow {
                link: number,
                name: name.clone(),
                side: if link.side == Side::Below { "below" } else { "above" },
                state: link.state.name(),
                ahead_ns: link.ahead.map(|by| by.0),
                lag_ns: link.lag.map(|by| by.0),
            })
            .collect(),
    }
}

impl OnePipeReport {
    /// Adds the switch's metrics to `told`, for observation.
    pub(super) fn add_metrics(self, metrics: FunctionMetrics) -> FunctionMetrics {
        // The latest interval is a maximum, not a sum.
        let (latest, counters): (Vec<_>, Vec<_>) =
            self.counters.into_iter().partition(|(name, _)| *name == "intervals_latest_ns");
        let refused = self.refused.into_iter().map(|(why, count)| (format!("refused_{why}"), count));
        let ns = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| ns.to_string());
        let links = self.links.iter().map(|link| {
            let (ahead, lag) = (ns(link.ahead_ns), ns(link.lag_ns));
            Row::new([&*link.link.to_string(), &link.name, link.side, link.state, &ahead, &lag], [])
        });
        let sides = [("above", &self.above), ("below", &self.below)];
        let barriers = sides.into_iter().filter_map(|(side, barrier)| {
            Some((format!("barrier_{side}_ns"), barrier.as_ref()?.best_effort_ns?))
        });
        metrics
            .counters(counters)
            .counters(refused)
            .gauges(latest)
            .gauges(barriers.collect::<Vec<_>>())
            .first(Table::new(
                "link",
                &["link", "name", "side", "state", "ahead_ns", "lag_ns"],
                2,
                &[],
                links,
            ))
    }
}

impl Section for OnePipeReport {
    const KEY: &'static str = "onepipe";

    fn text(&self, text: &mut String) {
        let happened = self.counters.iter().filter(|(_, count)| **count > 0);
        section(text, "1Pipe", &["what", "count"], 1, happened.map(|(name, count)| row(&[name], &[*count])));
        let refused = self.refused.iter().map(|(why, count)| row(&[why], &[*count]));
        section(text, "1Pipe: refused", &["why", "count"], 1, refused);
        let links = self.links.iter().take(SHOWN_LINKS).map(|link| {
            let number = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| ns.to_string());
            let (ahead, lag) = (number(link.ahead_ns), number(link.lag_ns));
            row(&[&link.link.to_string(), &link.name, link.side, link.state, &ahead, &lag], &[])
        });
        let heads = ["link", "name", "side", "state", "ahead of the barrier, ns", "behind the others, ns"];
        section(text, "Links", &heads, heads.len(), links);
        for (side, barrier) in [("above", &self.above), ("below", &self.below)] {
            let Some(barrier) = barrier else { continue };
            _ = match (barrier.best_effort_ns, barrier.holder, &barrier.holder_name) {
                (Some(at), Some(link), Some(name)) => {
                    writeln!(text, "Barrier of the links to {side}: {at} ns, held by link {link} ({name})")
                }
                (Some(at), ..) => writeln!(text, "Barrier of the links to {side}: {at} ns"),
                (None, Some(link), Some(name)) => {
                    writeln!(text, "No barrier of the links to {side}: link {link} ({name}) has sent none")
                }
                (None, ..) => {
                    writeln!(text, "No barrier of the links to {side}: no link is alive")
                }
            };
        }
        if self.links.len() > SHOWN_LINKS {
            _ = writeln!(text, "links: {} more are in --json", self.links.len() - SHOWN_LINKS);
        }
    }
}

//! Report of a 1Pipe switch, at any time of its run.

use super::OnePipeConfig;
use super::keeper::KeeperStatus;
use crate::functions::report::Section;
use crate::observe::{FunctionMetrics, Row, Table, Values};
use crate::output::{row, section};
use core::fmt::Write as _;
use onepipe::Timestamp;
use representative::config::Side;
use representative::view::BarrierView;
use representative::{Counters, LinkId, Refusal, View};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::metrics::{Group, Kind, Metric};

/// Links in the printed table; the JSON has all of them
const SHOWN_LINKS: usize = 64;

switch::metrics! {
    /// Counters of the monitoring of links.
    #[derive(Default)]
    pub(super) struct LagCounters {
        /// Times that a link held a barrier and lagged
        pub(super) lagging: u64 [times],
    }
}

const BARRIER_ABOVE: Metric =
    Metric::new(Kind::Gauge, "barrier_above_ns", "ns", "Best-effort barrier of the links to above")
        .observed_only();
const BARRIER_BELOW: Metric =
    Metric::new(Kind::Gauge, "barrier_below_ns", "ns", "Best-effort barrier of the links to below")
        .observed_only();
const CONNECTED: Metric =
    Metric::new(Kind::Gauge, "controllers_connected", "controllers", "Controllers that are connected")
        .observed_only();
const TERM: Metric =
    Metric::new(Kind::Gauge, "controller_term", "terms", "Latest term of a controller").observed_only();
const INCARNATION: Metric = Metric::new(
    Kind::Gauge,
    "incarnation",
    "incarnations",
    "Incarnation that the controller has given; 0: none",
)
.observed_only();
const COUNTED: Metric =
    Metric::new(Kind::Gauge, "links_counted", "links", "Inputs that count for the commit barrier")
        .observed_only();
const FROZEN: Metric =
    Metric::new(Kind::Gauge, "links_frozen", "links", "Counted inputs whose commit registers stand still")
        .observed_only();
const SILENT: Metric =
    Metric::new(Kind::Gauge, "links_silent", "links", "Inputs that were reported as silent").observed_only();
pub(super) const CONTROLLER: Group =
    Group::of_function(&[&[CONNECTED, TERM, INCARNATION, COUNTED, FROZEN, SILENT]]);
pub(super) const BARRIERS: Group = Group::of_function(&[&[BARRIER_ABOVE, BARRIER_BELOW]]);
/// Links, without counters of their own
const LINKS: Group = Group {
    item: "link",
    keys: &["link", "name"],
    properties: &["side", "state", "ahead_ns", "lag_ns"],
    fields: &[],
};

/// Barriers, links and counters. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OnePipeReport {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics2::<Counters, LagCounters>"))]
    counts: Values,
    /// Packets that were not accepted, by reason
    refused: BTreeMap<&'static str, u64>,
    /// Barriers of the links to above, as last read; null if they were never read
    above: Option<BarrierRow>,
    /// Barriers of the links to below, as last read; null if they were never read
    below: Option<BarrierRow>,
    /// Of the reliable service; null without a controller
    controller: Option<ControllerRow>,
    links: Vec<LinkRow>,
}

/// A line of `--live`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct LiveLine {
    /// Time since the run began
    pub(super) seconds: f64,
    /// As in the closing report
    pub(super) onepipe: OnePipeReport,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ControllerRow {
    /// Controllers that are connected
    connected: usize,
    /// Latest term of a controller
    term: u64,
    /// Incarnation of this representative; 0 before the controller has given one
    incarnation: u32,
    /// Version of the state that has taken effect
    version: u64,
    /// Inputs that count for the commit barrier
    counted: usize,
    /// Counted inputs whose registers stand still
    frozen: usize,
    /// Outputs without a commit barrier
    muted: usize,
    /// Counted inputs that have not reached their floor
    catching_up: usize,
    /// Inputs that were reported as silent
    silent: usize,
    /// Messages of controllers that were refused
    refused: u64,
}

impl From<KeeperStatus> for ControllerRow {
    fn from(KeeperStatus { connected, status, refused }: KeeperStatus) -> Self {
        Self {
            connected,
            term: status.term,
            incarnation: status.incarnation.0,
            version: status.version,
            counted: status.counted,
            frozen: status.frozen,
            muted: status.muted,
            catching_up: status.catching_up,
            silent: status.silent,
            refused,
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct BarrierRow {
    /// Best-effort barrier, in 1Pipe's time; null if there is none yet
    best_effort_ns: Option<u64>,
    /// Commit barrier, in 1Pipe's time; null if there is none yet
    commit_ns: Option<u64>,
    /// Link that holds the best-effort barrier
    holder: Option<u16>,
    /// Name of this link
    holder_name: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LinkRow {
    /// Number of the link
    link: u16,
    name: String,
    /// `above` or `below`
    side: &'static str,
    /// State of the link, such as `alive`
    state: &'static str,
    /// Lead of its register over the barrier; 0 for the link that holds it. Null unless the link is alive
    ahead_ns: Option<u64>,
    /// Lag of its barrier behind the median of the links that it is compared with. Null unless the link is
    /// alive
    lag_ns: Option<u64>,
}

pub(super) fn switch_report(
    config: &OnePipeConfig,
    counters: &[Arc<Counters>],
    view: Option<&View>,
    lag: &LagCounters,
    keeper: Option<KeeperStatus>,
) -> OnePipeReport {
    let refused = Refusal::ALL.into_iter().map(|why| (why.name(), refused(counters, why)));
    let barrier = |view: BarrierView| BarrierRow {
        best_effort_ns: view.best_effort.map(Timestamp::nanos),
        commit_ns: view.commit.map(Timestamp::nanos),
        holder: view.holder.map(|LinkId(link)| link),
        holder_name: view.holder.map(|LinkId(link)| config.names[usize::from(link)].clone()),
    };
    let links = view.into_iter().flat_map(|view| (0..).zip(&view.links).zip(&config.names));
    OnePipeReport {
        counts: Values::total(counters.iter().map(Arc::as_ref)).and(Values::of(lag)),
        refused: refused.filter(|(_, count)| *count > 0).collect(),
        above: view.map(|view| barrier(view.above)),
        below: view.map(|view| barrier(view.below)),
        controller: keeper.map(Into::into),
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

/// Returns how often all workers have refused a packet for this reason.
fn refused(counters: &[Arc<Counters>], why: Refusal) -> u64 {
    counters.iter().map(|counters| counters.refused(why)).sum()
}

impl OnePipeReport {
    /// Adds the switch's metrics to `metrics`, for observation.
    pub(super) fn add_metrics(
        &self,
        counters: &[Arc<Counters>],
        metrics: FunctionMetrics,
    ) -> FunctionMetrics {
        let ns = |ns: Option<u64>| ns.map_or_else(|| "-".into(), |ns| ns.to_string());
        let links = self.links.iter().map(|link| {
            let (ahead, lag) = (ns(link.ahead_ns), ns(link.lag_ns));
            Row::new([&*link.link.to_string(), &link.name, link.side, link.state, &ahead, &lag], [])
        });
        let best_effort = |barrier: &Option<BarrierRow>| barrier.as_ref()?.best_effort_ns;
        let of = |value: fn(&ControllerRow) -> u64| self.controller.as_ref().map(value);
        metrics
            .value(&CONNECTED, of(|row| row.connected as u64))
            .value(&TERM, of(|row| row.term))
            .value(&INCARNATION, of(|row| row.incarnation.into()))
            .value(&COUNTED, of(|row| row.counted as u64))
            .value(&FROZEN, of(|row| row.frozen as u64))
            .value(&SILENT, of(|row| row.silent as u64))
            .values(&self.counts)
            .reasons(Refusal::ALL.map(|why| (why.metric(), refused(counters, why))))
            .value(&BARRIER_ABOVE, best_effort(&self.above))
            .value(&BARRIER_BELOW, best_effort(&self.below))
            .first(Table::of(&LINKS, links))
    }
}

impl Section for OnePipeReport {
    const KEY: &'static str = "onepipe";

    fn text(&self, text: &mut String) {
        let happened = self.counts.nonzero().map(|(name, count)| row(&[name], &[count]));
        section(text, "1Pipe", &["what", "count"], 1, happened);
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
        if let Some(row) = &self.controller {
            _ = writeln!(
                text,
                "Controllers: {} connected, term {}, incarnation {}; links: {} counted, {} frozen, {} catching up, {} \
                 silent; messages refused: {}",
                row.connected,
                row.term,
                row.incarnation,
                row.counted,
                row.frozen,
                row.catching_up,
                row.silent,
                row.refused
            );
        }
        if self.links.len() > SHOWN_LINKS {
            _ = writeln!(text, "links: {} more are in --json", self.links.len() - SHOWN_LINKS);
        }
    }
}

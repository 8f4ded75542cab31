//! Rates per second, from two snapshots of an instance.

use crate::observe::{Latency, Snapshot};
use std::collections::HashMap;

/// The last two snapshots.
#[derive(Default)]
pub(super) struct Rates {
    before: Option<Snapshot>,
    now: Option<Snapshot>,
}

/// The data on the screen. Rates are zero until there are two snapshots.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) title: String,
    pub(super) uptime_s: f64,
    pub(super) ports: Vec<PortView>,
    pub(super) workers: Vec<WorkerView>,
    /// Drop reasons with frames, those with the highest current rate first: name, frames, and frames per
    /// second
    pub(super) drops: Vec<(String, u64, f64)>,
    pub(super) latencies: Vec<Latency>,
    pub(super) tables: Vec<TableView>,
}

#[derive(Clone, Debug)]
pub(super) struct PortView {
    pub(super) name: String,
    pub(super) link: String,
    /// Rates per second; bits of frames as they are in memory
    pub(super) rx_frames: f64,
    pub(super) rx_bits: f64,
    pub(super) tx_frames: f64,
    pub(super) tx_bits: f64,
    /// Totals
    pub(super) missed: u64,
    pub(super) errors: u64,
    pub(super) kernel_drops: u64,
}

#[derive(Clone, Debug)]
pub(super) struct WorkerView {
    pub(super) worker: usize,
    pub(super) rx_frames: f64,
    /// During iterations with frames; `None` if there were none
    pub(super) cycles_per_frame: Option<f64>,
    pub(super) ns_per_frame: Option<f64>,
    pub(super) frames_per_turn: Option<f64>,
    /// Share of the time, and of the iterations
    pub(super) busy: f64,
    pub(super) empty_turns: f64,
}

#[derive(Clone, Debug)]
pub(super) struct TableView {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
    /// Number of columns that identify a row
    pub(super) keys: usize,
    pub(super) counts: Vec<String>,
    pub(super) rows: Vec<RowView>,
    pub(super) more: usize,
}

#[derive(Clone, Debug)]
pub(super) struct RowView {
    pub(super) cells: Vec<String>,
    /// Count and rate per second of each counter; a gauge has no rate
    pub(super) counts: Vec<(u64, Option<f64>)>,
}

impl Rates {
    /// Adds a snapshot. One of another instance, or of a restarted one, discards the earlier snapshot.
    pub(super) fn add(&mut self, snapshot: Snapshot) {
        let is_same_run =
            |before: &Snapshot| before.instance == snapshot.instance && before.uptime_s < snapshot.uptime_s;
        self.before = self.now.take().filter(is_same_run);
        self.now = Some(snapshot);
    }

    pub(super) fn view(&self) -> Option<View> {
        let now = self.now.as_ref()?;
        let before = self.before.as_ref().unwrap_or(now);
        Some(view(before, now))
    }
}

/// Returns the state of a link for people; `-` if an instance of another version does not report it.
pub(super) fn link_name(link: &str) -> String {
    if link.is_empty() { "-".into() } else { link.replace('_', " ") }
}

fn view(before: &Snapshot, now: &Snapshot) -> View {
    let span = now.uptime_s - before.uptime_s;
    let rate = |before: u64, now: u64| {
        if span > 0.0 { now.saturating_sub(before) as f64 / span } else { 0.0 }
    };
    let ports = before.ports.iter().zip(&now.ports).map(|(before, now)| PortView {
        name: now.name.clone(),
        link: link_name(&now.link),
        rx_frames: rate(before.rx().0, now.rx().0),
        rx_bits: rate(before.rx().1, now.rx().1) * 8.0,
        tx_frames: rate(before.tx().0, now.tx().0),
        tx_bits: rate(before.tx().1, now.tx().1) * 8.0,
        missed: now.missed(),
        errors: now.errors(),
        kernel_drops: now.kernel_drops(),
    });
    let hz = now.tsc_hz as f64;
    let workers = before.workers.iter().zip(&now.workers).map(|(before, now)| {
        let part = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
        let frames = now.handled().saturating_sub(before.handled());
        let cycles = now.busy_cycles().saturating_sub(before.busy_cycles());
        let busy_turns = now.busy_turns().saturating_sub(before.busy_turns());
        let turns = now.turns().saturating_sub(before.turns());
        WorkerView {
            worker: now.worker,
            rx_frames: rate(before.rx_frames(), now.rx_frames()),
            cycles_per_frame: part(cycles, frames),
            ns_per_frame: part(cycles, frames).map(|cycles| cycles * 1e9 / hz),
            frames_per_turn: part(frames, busy_turns),
            busy: (rate(before.busy_cycles(), now.busy_cycles()) / hz).min(1.0),
            empty_turns: part(turns.saturating_sub(busy_turns), turns).unwrap_or(0.0),
        }
    });
    let drops = before.drops.iter().zip(&now.drops).filter(|(_, now)| now.frames > 0);
    let mut drops: Vec<_> = drops
        .map(|(before, now)| (now.reason.clone(), now.frames, rate(before.frames, now.frames)))
        .collect();
    drops.sort_by(|(_, frames, rate), (_, other, others)| others.total_cmp(rate).then(other.cmp(frames)));
    let instance = &now.instance;
    View {
        title: format!("understudy {} [{}] {}", instance.version, instance.function, instance.config),
        uptime_s: now.uptime_s,
        ports: ports.collect(),
        workers: workers.collect(),
        drops,
        latencies: now.metrics.latencies.clone(),
        tables: tables(before, now, &rate),
    }
}

fn tables(before: &Snapshot, now: &Snapshot, rate: &dyn Fn(u64, u64) -> f64) -> Vec<TableView> {
    let tables = now.metrics.tables.iter().map(|table| {
        let old = before.metrics.tables.iter().find(|old| old.name == table.name);
        let old: HashMap<_, _> = old
            .into_iter()
            .flat_map(|old| &old.rows)
            .map(|row| (&row.cells[..table.keys], &row.counts))
            .collect();
        let rows = table.rows.iter().map(|row| {
            let old = old.get(&row.cells[..table.keys]);
            // A new row has no rate, because it is not known since when it counts.
            let counts = row
                .counts
                .iter()
                .enumerate()
                .map(|(at, &count)| (count, Some(old.map_or(0.0, |old| rate(old[at], count)))));
            RowView { cells: row.cells.clone(), counts: counts.collect() }
        });
        TableView {
            name: table.name.clone(),
            columns: table.columns.clone(),
            keys: table.keys,
            counts: table.counts.clone(),
            rows: rows.collect(),
            more: table.more,
        }
    });
    let counters = now.metrics.counters.iter().map(|counter| {
        let old = before.metrics.counters.iter().find(|old| old.name == counter.name);
        let rate = old.map_or(0.0, |old| rate(old.value, counter.value));
        RowView { cells: vec![counter.name.clone()], counts: vec![(counter.value, Some(rate))] }
    });
    let gauges = now
        .metrics
        .gauges
        .iter()
        .map(|gauge| RowView { cells: vec![gauge.name.clone()], counts: vec![(gauge.value, None)] });
    let all = TableView {
        name: "counter".into(),
        columns: vec!["counter".into()],
        keys: 1,
        counts: vec!["count".into()],
        rows: counters.chain(gauges).collect(),
        more: 0,
    };
    tables.chain([all]).collect()
}

impl TableView {
    /// Returns the rows sorted by the rate of this counter and then by its count, highest first.
    pub(super) fn sorted(&self, by: usize) -> Vec<&RowView> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        let key = |row: &RowView| {
            row.counts.get(by).map_or((0.0, 0), |&(count, rate)| (rate.unwrap_or(0.0), count))
        };
        rows.sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
        });
        rows
    }
}

/// Formats a number with at most six characters, including a unit of a thousand: `999`, `12.3 k`, `1.23 M`. All
/// numbers of 64 bits fit.
pub(super) fn short(number: f64) -> String {
    let mut number = number;
    if number < 999.5 {
        let places = usize::from(number < 9.95 && number.fract() > 0.0);
        return format!("{number:.places$}");
    }
    for unit in ["k", "M", "G", "T", "P", "E"] {
        number /= 1000.0;
        if number < 999.5 || unit == "E" {
            let places = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
            return format!("{number:.places$} {unit}");
        }
    }
    unreachable!("the last unit takes all numbers")
}

/// Formats a time in at most seven characters.
pub(super) fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{:.1} us", ns / 1e3),
        ns if ns < 999_500_000.0 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Formats a time in hours, minutes and seconds.
pub(super) fn clock(seconds: f64) -> String {
    let seconds = seconds as u64;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

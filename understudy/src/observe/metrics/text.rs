//! A snapshot in Prometheus' text format, version 0.0.4.

use crate::observe::snapshot::{Counts, Latency, Row, Snapshot, Table};
use core::fmt::{Display, Write as _};
use dataplane::counters::{PortCounters, WorkerCounters};
use dataplane::{DeviceCounters, PortState};
use switch::metrics::{Group, Kind, Metric, Metrics as _};

/// Metrics of every instance that are no counters of its parts
pub(super) const INFO: Metric = Metric::new(Kind::Gauge, "info", "", "The instance, which is always 1");
pub(super) const UPTIME: Metric =
    Metric::new(Kind::Gauge, "uptime_seconds", "seconds", "Time since the run began");
pub(super) const DROPPED: Metric =
    Metric::new(Kind::Counter, "dropped_frames", "frames", "Frames dropped, by reason");
pub(super) const BUSY_SECONDS: Metric = Metric::new(
    Kind::Counter,
    "worker_busy_seconds",
    "seconds",
    "Time of a worker's iterations in which frames were received",
);
pub(super) const LATENCY: Metric = Metric::new(
    Kind::Gauge,
    "latency_seconds",
    "seconds",
    "Latencies since the run began, by what was measured",
);

/// Returns the name of a metric with this prefix: that of its item or function, with an underscore.
pub(super) fn series(prefix: &str, kind: Kind, name: &str) -> String {
    let end = if kind == Kind::Counter { "_total" } else { "" };
    format!("understudy_{prefix}{name}{end}")
}

/// Returns all metrics of a snapshot.
pub(super) fn of(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    let instance = &snapshot.instance;
    let labels =
        [("function", &*instance.function), ("version", &instance.version), ("dpdk", &instance.dpdk)];
    text.one("", &INFO, &labels, 1);
    text.one("", &UPTIME, &[], snapshot.uptime_s);
    let ports: Vec<_> = snapshot.ports.iter().map(|port| (port.name.clone(), &port.counts)).collect();
    items(&mut text, &PortCounters::GROUP, &ports);
    items(&mut text, &DeviceCounters::GROUP, &ports);
    items(&mut text, &PortState::GROUP, &ports);
    let name = text.metric("", &DROPPED);
    for drop in &snapshot.drops {
        text.value(&name, &[("reason", &drop.reason)], drop.frames);
    }
    let workers = || snapshot.workers.iter().map(|worker| (worker.worker.to_string(), worker));
    let counts: Vec<_> = workers().map(|(number, worker)| (number, &worker.counts)).collect();
    items(&mut text, &WorkerCounters::GROUP, &counts);
    let name = text.metric("", &BUSY_SECONDS);
    for (number, worker) in workers() {
        let seconds = worker.busy_cycles() as f64 / snapshot.tsc_hz as f64;
        text.value(&name, &[("worker", &number)], seconds);
    }
    let prefix = format!("{}_", instance.function);
    let metrics = &snapshot.metrics;
    for (kind, values) in [(Kind::Counter, &metrics.counters), (Kind::Gauge, &metrics.gauges)] {
        for named in values {
            let name = text.head(&prefix, kind, &named.name, named.help);
            text.value(&name, &[], named.value);
        }
    }
    for table in &metrics.tables {
        rows(&mut text, table);
    }
    latencies(&mut text, &metrics.latencies);
    text.0
}

/// Appends the counters of items, each with the value of its label.
fn items(text: &mut Text, group: &Group, items: &[(String, &Counts)]) {
    for metric in group.metrics() {
        let (Some(reported), Some(observed)) = (metric.reported, metric.observed) else { continue };
        let name = text.head(&format!("{}_", group.item), metric.kind, observed, metric.help);
        for (item, counts) in items {
            text.value(&name, &[(group.keys[0], item)], counts.get(reported));
        }
    }
}

/// Returns the key columns of a row as labels.
fn labels<'a>(keys: &'a [String], row: &'a Row) -> Vec<(&'a str, &'a str)> {
    keys.iter().zip(&row.cells).map(|(key, cell)| (key.as_str(), cell.as_str())).collect()
}

fn rows(text: &mut Text, table: &Table) {
    let prefix = format!("{}_", table.name);
    let (mut gauge, mut count) = (table.columns.len() - table.gauges, 0);
    for metric in table.group.iter().flat_map(|group| group.metrics()) {
        let Some(observed) = metric.observed else { continue };
        let name = text.head(&prefix, metric.kind, observed, metric.help);
        let at = if metric.kind == Kind::Counter { &mut count } else { &mut gauge };
        for row in &table.rows {
            let labels = labels(&table.columns[..table.keys], row);
            if metric.kind == Kind::Counter {
                text.value(&name, &labels, row.counts[*at]);
            } else {
                text.value(&name, &labels, &row.cells[*at]);
            }
        }
        *at += 1;
    }
}

fn latencies(text: &mut Text, latencies: &[Latency]) {
    if latencies.is_empty() {
        return;
    }
    let name = series("", LATENCY.kind, LATENCY.observed.unwrap_or_default());
    text.block(&name, "summary", LATENCY.help);
    for latency in latencies {
        let quantiles = [
            ("0.5", latency.p50_ns),
            ("0.9", latency.p90_ns),
            ("0.99", latency.p99_ns),
            ("0.999", latency.p999_ns),
            ("1", latency.max_ns),
        ];
        for (quantile, ns) in quantiles {
            text.value(&name, &[("of", &latency.name), ("quantile", quantile)], ns as f64 / 1e9);
        }
        text.value(&format!("{name}_count"), &[("of", &latency.name)], latency.count);
    }
}

/// The text written so far.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins the block of a metric. Returns the name of its series.
    fn head(&mut self, prefix: &str, kind: Kind, name: &str, help: &str) -> String {
        let name = series(prefix, kind, name);
        self.block(&name, if kind == Kind::Counter { "counter" } else { "gauge" }, help);
        name
    }

    fn metric(&mut self, prefix: &str, metric: &Metric) -> String {
        self.head(prefix, metric.kind, metric.observed.unwrap_or_default(), metric.help)
    }

    fn block(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string does not fail.
        _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            _ = write!(self.0, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        _ = writeln!(self.0, "{end} {value}");
    }

    fn one(&mut self, prefix: &str, metric: &Metric, labels: &[(&str, &str)], value: impl Display) {
        let name = self.metric(prefix, metric);
        self.value(&name, labels, value);
    }
}

//! A snapshot in Prometheus' text format, version 0.0.4.

use crate::observe::snapshot::{Latency, Row, Snapshot, Table};
use core::fmt::{Display, Write as _};

/// Returns all metrics of a snapshot.
pub(super) fn of(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    let instance = &snapshot.instance;
    let labels =
        [("function", &*instance.function), ("version", &instance.version), ("dpdk", &instance.dpdk)];
    text.one("understudy_info", "gauge", "The instance, which is always 1", &labels, 1);
    text.one("understudy_uptime_seconds", "gauge", "Time since the run began", &[], snapshot.uptime_s);
    ports(&mut text, snapshot);
    let name = "understudy_dropped_frames_total";
    text.head(name, "counter", "Frames dropped, by reason");
    for drop in &snapshot.drops {
        text.value(name, &[("reason", &drop.reason)], drop.frames);
    }
    workers(&mut text, snapshot);
    let function = &instance.function;
    for counter in &snapshot.metrics.counters {
        let name = format!("understudy_{function}_{}_total", counter.name);
        text.one(&name, "counter", &words(function, &counter.name), &[], counter.value);
    }
    for gauge in &snapshot.metrics.gauges {
        let name = format!("understudy_{function}_{}", gauge.name);
        text.one(&name, "gauge", &words(function, &gauge.name), &[], gauge.value);
    }
    for table in &snapshot.metrics.tables {
        rows(&mut text, table);
    }
    latencies(&mut text, &snapshot.metrics.latencies);
    text.0
}

fn words(function: &str, name: &str) -> String {
    format!("[{function}]: {}", name.replace('_', " "))
}

fn ports(text: &mut Text, snapshot: &Snapshot) {
    type Count = fn(&super::super::snapshot::Port) -> u64;
    let counts: [(&str, &str, Count); 8] = [
        ("received_frames", "Frames received", |port| port.rx_frames),
        ("received_bytes", "Bytes received, without frame check sequences", |port| port.rx_bytes),
        ("sent_frames", "Frames that the device accepted for transmission", |port| port.tx_frames),
        ("sent_bytes", "Bytes that the device accepted for transmission", |port| port.tx_bytes),
        ("missed_frames", "Frames lost in the device because no worker received them in time", |port| {
            port.missed
        }),
        ("receive_errors", "Frames that the device received with an error", |port| port.rx_errors),
        ("no_buffer", "Receive attempts of the device that found no free packet buffer", |port| {
            port.no_buffer
        }),
        ("send_errors", "Frames that the device could not send", |port| port.tx_errors),
    ];
    for (what, help, count) in counts {
        let name = format!("understudy_port_{what}_total");
        text.head(&name, "counter", help);
        for port in &snapshot.ports {
            text.value(&name, &[("port", &port.name)], count(port));
        }
    }
}

fn workers(text: &mut Text, snapshot: &Snapshot) {
    type Count = fn(&super::super::snapshot::Worker) -> u64;
    let counts: [(&str, &str, Count); 7] = [
        ("received_frames", "Frames received by a worker", |worker| worker.rx_frames),
        ("turns", "Iterations of a worker's loop", |worker| worker.turns),
        ("busy_turns", "Iterations of a worker's loop in which frames were received", |worker| {
            worker.busy_turns
        }),
        ("consumed_frames", "Frames that the function consumed", |worker| worker.consumed),
        ("punted_frames", "Frames passed to the control plane", |worker| worker.punted),
        ("handed_off_frames", "Frames handed to the worker that owns their port", |worker| worker.handed_off),
        ("made_frames", "Frames that the function created and sent", |worker| worker.made),
    ];
    for (what, help, count) in counts {
        let name = format!("understudy_worker_{what}_total");
        text.head(&name, "counter", help);
        for worker in &snapshot.workers {
            text.value(&name, &[("worker", &worker.worker.to_string())], count(worker));
        }
    }
    for (name, help, unit) in [
        (
            "understudy_worker_busy_seconds_total",
            "Time of a worker's iterations in which frames were received",
            snapshot.tsc_hz,
        ),
        (
            "understudy_worker_busy_cycles_total",
            "TSC cycles of a worker's iterations in which frames were received",
            1,
        ),
    ] {
        text.head(name, "counter", help);
        for worker in &snapshot.workers {
            let label = [("worker", &*worker.worker.to_string())];
            if unit == 1 {
                text.value(name, &label, worker.busy_cycles);
            } else {
                text.value(name, &label, worker.busy_cycles as f64 / unit as f64);
            }
        }
    }
}

/// Returns the key columns of a row as labels.
fn labels<'a>(keys: &'a [String], row: &'a Row) -> Vec<(&'a str, &'a str)> {
    keys.iter().zip(&row.cells).map(|(key, cell)| (key.as_str(), cell.as_str())).collect()
}

fn rows(text: &mut Text, table: &Table) {
    let keys = &table.columns[..table.keys];
    let help = |what: &str| format!("{} by {}", what.replace('_', " "), keys.join(", "));
    for at in table.columns.len() - table.gauges..table.columns.len() {
        let column = &table.columns[at];
        let name = format!("understudy_{}_{column}", table.name);
        text.head(&name, "gauge", &help(column));
        for row in &table.rows {
            text.value(&name, &labels(keys, row), &row.cells[at]);
        }
    }
    for (at, count) in table.counts.iter().enumerate() {
        let name = format!("understudy_{}_{count}_total", table.name);
        text.head(&name, "counter", &help(count));
        for row in &table.rows {
            text.value(&name, &labels(keys, row), row.counts[at]);
        }
    }
}

fn latencies(text: &mut Text, latencies: &[Latency]) {
    if latencies.is_empty() {
        return;
    }
    let name = "understudy_latency_seconds";
    text.head(name, "summary", "Latencies since the run began, by what was measured");
    for latency in latencies {
        let quantiles = [
            ("0.5", latency.p50_ns),
            ("0.9", latency.p90_ns),
            ("0.99", latency.p99_ns),
            ("0.999", latency.p999_ns),
            ("1", latency.max_ns),
        ];
        for (quantile, ns) in quantiles {
            text.value(name, &[("of", &latency.name), ("quantile", quantile)], ns as f64 / 1e9);
        }
        text.value("understudy_latency_seconds_count", &[("of", &latency.name)], latency.count);
    }
}

/// The text written so far.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        _ = writeln!(
            self.0,
            "# HELP {name} {}\n# TYPE {name} {kind}",
            help.replace('\\', "\\\\").replace('\n', "\\n")
        );
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

    fn one(&mut self, name: &str, kind: &str, help: &str, labels: &[(&str, &str)], value: impl Display) {
        self.head(name, kind, help);
        self.value(name, labels, value);
    }
}

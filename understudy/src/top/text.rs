//! One snapshot of an instance, as text.

use super::rates::{clock, link_name, time};
use crate::observe::Snapshot;
use crate::output::{row, section};
use core::fmt::Write as _;

/// Returns the counts since the run began.
pub(super) fn of(snapshot: &Snapshot) -> String {
    let instance = &snapshot.instance;
    let mut text = format!(
        "understudy {} [{}] {}, process {}, {}, up {}\n\n",
        instance.version,
        instance.function,
        instance.config,
        instance.pid,
        instance.dpdk,
        clock(snapshot.uptime_s)
    );
    let ports = snapshot.ports.iter().map(|port| {
        let ((rx_frames, rx_bytes), (tx_frames, tx_bytes)) = (port.rx(), port.tx());
        let lost = [port.missed(), port.errors(), port.kernel_drops()];
        let numbers = [rx_frames, rx_bytes, tx_frames, tx_bytes].into_iter().chain(lost);
        row(&[&port.name, &link_name(&port.link)], &numbers.collect::<Vec<_>>())
    });
    let heads = [
        "port",
        "link",
        "rx frames",
        "rx bytes",
        "tx frames",
        "tx bytes",
        "missed",
        "errors",
        "kernel drops",
    ];
    section(&mut text, "Ports", &heads, 2, ports);
    let workers = snapshot.workers.iter().map(|worker| {
        let part = |a: u64, b: u64| if b > 0 { format!("{:.1}", a as f64 / b as f64) } else { "-".into() };
        let words = [
            worker.worker.to_string(),
            part(worker.busy_cycles(), worker.handled()),
            part(worker.handled(), worker.busy_turns()),
        ];
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        row(&words, &[worker.rx_frames(), worker.turns(), worker.busy_turns()])
    });
    let heads = ["worker", "cycles/frame", "frames/turn", "rx frames", "turns", "busy turns"];
    section(&mut text, "Workers", &heads, 3, workers);
    let drops = snapshot.drops.iter().filter(|drop| drop.frames > 0);
    let drops = drops.map(|drop| row(&[&drop.reason, &drop.meaning], &[drop.frames]));
    section(&mut text, "Dropped frames", &["reason", "meaning", "frames"], 2, drops);
    for table in &snapshot.metrics.tables {
        let heads: Vec<_> = table.columns.iter().chain(&table.counts).map(String::as_str).collect();
        let rows = table.rows.iter().map(|this| {
            let words: Vec<_> = this.cells.iter().map(String::as_str).collect();
            row(&words, &this.counts)
        });
        section(&mut text, &table.name.replace('_', " "), &heads, table.columns.len(), rows);
        if table.more > 0 {
            _ = writeln!(text, " {} more\n", table.more);
        }
    }
    let latencies = snapshot.metrics.latencies.iter().map(|latency| {
        let times =
            [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns].map(time);
        let words: Vec<_> = std::iter::once(&*latency.name).chain(times.iter().map(String::as_str)).collect();
        row(&words, &[latency.count])
    });
    section(&mut text, "Latency", &["of", "50 %", "90 %", "99 %", "99.9 %", "max", "count"], 6, latencies);
    let numbers =
        snapshot.metrics.counters.iter().filter(|counter| counter.value > 0).chain(&snapshot.metrics.gauges);
    section(&mut text, "Counters", &["counter", "count"], 1, numbers.map(|n| row(&[&n.name], &[n.value])));
    text
}

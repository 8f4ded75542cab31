//! Snapshot of a running instance: a tree of plain numbers, the same for `top`, scripts and Prometheus. The
//! control thread builds it on request, from counters that workers maintain anyway.

use super::QueuePair;
use core::cmp::{Ordering, Reverse};
use core::net::IpAddr;
use dataplane::counters::{PortCounters, WorkerCounters};
use dataplane::{DeviceCounters, Live, PortInfo, Runtime};
use rocev2::Qpn;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use switch::DropReason;
use switch::forward::Counters as Forwarded;

/// Maximum number of rows of a table; the busiest are kept
pub(crate) const ROWS: usize = 200;

/// State of an instance at one moment. The serialised form is part of the program's interface: fields are
/// added, not renamed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) instance: Instance,
    /// Seconds since the run began
    pub(crate) uptime_s: f64,
    /// TSC cycles per second
    pub(crate) tsc_hz: u64,
    pub(crate) ports: Vec<Port>,
    /// Every drop reason, including those with no frames
    pub(crate) drops: Vec<Dropped>,
    pub(crate) workers: Vec<Worker>,
    #[serde(flatten)]
    pub(crate) metrics: FunctionMetrics,
}

/// Identity of the instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Instance {
    pub(crate) config: String,
    /// Table of the configuration that selects the function, such as `forward`
    pub(crate) function: String,
    pub(crate) version: String,
    pub(crate) dpdk: String,
    pub(crate) pid: u32,
}

/// Counters of a port, summed over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) rx_frames: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    /// From here on: counted by the device itself
    pub(crate) missed: u64,
    pub(crate) rx_errors: u64,
    pub(crate) no_buffer: u64,
    pub(crate) tx_errors: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dropped {
    pub(crate) reason: String,
    pub(crate) meaning: String,
    pub(crate) frames: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_field_names, reason = "named as in the closing report")]
pub(crate) struct Worker {
    pub(crate) worker: usize,
    pub(crate) rx_frames: u64,
    /// Iterations of its loop, those in which frames were received, and the TSC cycles of the latter
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) busy_cycles: u64,
    /// Frames that were neither forwarded nor dropped, by what became of them
    pub(crate) consumed: u64,
    pub(crate) punted: u64,
    pub(crate) handed_off: u64,
    /// Frames that the function created and sent
    pub(crate) made: u64,
}

/// Metrics of the function itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FunctionMetrics {
    /// Values that only grow
    pub(crate) counters: Vec<NamedValue>,
    /// Values that may fall
    pub(crate) gauges: Vec<NamedValue>,
    pub(crate) tables: Vec<Table>,
    pub(crate) latencies: Vec<Latency>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedValue {
    /// Words separated by underscores
    pub(crate) name: String,
    pub(crate) value: u64,
}

/// Table of items of one kind: queue pairs, groups, links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// Name of one item, in words separated by underscores, as used in the names of metrics
    pub(crate) name: String,
    /// Columns that identify an item, then its other properties
    pub(crate) columns: Vec<String>,
    /// Number of columns that identify an item
    pub(crate) keys: usize,
    /// Number of columns at the end that are numbers, which may fall
    #[serde(default)]
    pub(crate) gauges: usize,
    /// Names of the counters of each item; these only grow
    pub(crate) counts: Vec<String>,
    /// Items with the highest first counter, at most [`ROWS`]
    pub(crate) rows: Vec<Row>,
    /// Number of items without a row
    pub(crate) more: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) cells: Vec<String>,
    pub(crate) counts: Vec<u64>,
    /// Queue pairs that belong to the item: host, if known, and QPN
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue_pairs: Vec<QueuePair>,
}

/// Quantiles of a histogram, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

impl Snapshot {
    /// Returns the current state of an instance.
    pub(crate) fn of(live: &Live<'_>, instance: &Instance, uptime_s: f64, metrics: FunctionMetrics) -> Self {
        let all = |count: &dyn Fn(&WorkerCounters) -> u64| {
            live.workers().iter().map(|worker| count(worker)).sum::<u64>()
        };
        Self {
            instance: instance.clone(),
            uptime_s,
            tsc_hz: live.tsc_hz(),
            ports: Port::all(live.ports(), &live.device_counters(), live.workers()).collect(),
            drops: DropReason::all()
                .map(|reason| Dropped {
                    reason: reason.name().into(),
                    meaning: reason.explanation(),
                    frames: all(&|w| w.drops[reason.index()].get()),
                })
                .collect(),
            workers: (0..)
                .zip(live.workers())
                .map(|(worker, counters)| Worker {
                    worker,
                    rx_frames: counters.received(),
                    turns: counters.turns.get(),
                    busy_turns: counters.busy_turns.get(),
                    busy_cycles: counters.busy_cycles.get(),
                    consumed: counters.consumed.get(),
                    punted: counters.punted.get(),
                    handed_off: counters.handed_off.get(),
                    made: counters.made.get(),
                })
                .collect(),
            metrics,
        }
    }
}

impl Port {
    /// Returns the ports with the counters of their devices and of all workers.
    pub(crate) fn all<'a>(
        ports: impl Iterator<Item = &'a PortInfo>,
        devices: &[DeviceCounters],
        workers: &[Arc<WorkerCounters>],
    ) -> impl Iterator<Item = Self> {
        ports.zip(devices).enumerate().map(move |(index, (info, device))| {
            let all = |count: &dyn Fn(&PortCounters) -> u64| {
                workers.iter().map(|worker| count(&worker.ports[index])).sum::<u64>()
            };
            Self {
                name: info.name.clone(),
                driver: info.driver.clone(),
                rx_frames: all(&|port| port.rx.frames.get()),
                rx_bytes: all(&|port| port.rx.bytes.get()),
                tx_frames: all(&|port| port.tx.frames.get()),
                tx_bytes: all(&|port| port.tx.bytes.get()),
                missed: device.missed,
                rx_errors: device.rx_errors,
                no_buffer: device.no_buffer,
                tx_errors: device.tx_errors,
            }
        })
    }
}

impl Instance {
    /// Returns the identity of this process, with the path of its configuration and the table of its function.
    pub(crate) fn this(config: &Path, function: &str) -> Self {
        Self {
            config: config.display().to_string(),
            function: function.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            dpdk: Runtime::version(),
            pid: std::process::id(),
        }
    }
}

impl FunctionMetrics {
    /// Adds counters.
    pub(crate) fn counters(mut self, counters: impl IntoIterator<Item = (impl Into<String>, u64)>) -> Self {
        self.counters.extend(named(counters));
        self
    }

    /// Adds gauges.
    pub(crate) fn gauges(mut self, gauges: impl IntoIterator<Item = (impl Into<String>, u64)>) -> Self {
        self.gauges.extend(named(gauges));
        self
    }

    /// Adds a table, if it has rows.
    pub(crate) fn table(mut self, table: Table) -> Self {
        if !table.rows.is_empty() {
            self.tables.push(table);
        }
        self
    }

    /// Adds a table before all others, if it has rows: the main table of the function.
    pub(crate) fn first(mut self, table: Table) -> Self {
        if !table.rows.is_empty() {
            self.tables.insert(0, table);
        }
        self
    }

    /// Returns the counters of all workers, for any function that counts frames as forwarding does.
    pub(crate) fn forwarded(counters: &[Arc<Forwarded>]) -> Self {
        let sum = |count: &dyn Fn(&Forwarded) -> u64| counters.iter().map(|c| count(c)).sum::<u64>();
        let ports = |count: &dyn Fn(&switch::forward::counters::RxCounters) -> u64| {
            sum(&|c| c.ports.iter().map(count).sum())
        };
        let opcodes = (0..=255u8).filter_map(|value| {
            let frames = sum(&|c| c.opcodes[usize::from(value)].frames.get());
            let bytes = sum(&|c| c.opcodes[usize::from(value)].bytes.get());
            (frames > 0).then(|| Row::new([rocev2::Opcode(value).to_string()], [frames, bytes]))
        });
        let faults = rocev2::Fault::ALL.into_iter().filter_map(|fault| {
            let frames = sum(&|c| c.faults[fault as usize].get());
            (frames > 0).then(|| Row::new([fault.name(), &fault.to_string()], [frames]))
        });
        Self::default()
            .counters([
                ("roce_frames", ports(&|seen| seen.roce.frames.get())),
                ("other_frames", ports(&|seen| seen.other.frames.get())),
                ("malformed_frames", ports(&|seen| seen.malformed.frames.get())),
            ])
            .table(Table::queue_pairs(counters))
            .table(Table::new("opcode", &["opcode"], 1, &["frames", "bytes"], opcodes))
            .table(Table::new("malformed", &["reason", "meaning"], 1, &["frames"], faults))
    }
}

fn named(numbers: impl IntoIterator<Item = (impl Into<String>, u64)>) -> impl Iterator<Item = NamedValue> {
    numbers.into_iter().map(|(name, value)| NamedValue { name: name.into(), value })
}

impl Table {
    /// Returns a table of the busiest of `rows`.
    pub(crate) fn new(
        name: &str,
        columns: &[&str],
        keys: usize,
        counts: &[&str],
        rows: impl IntoIterator<Item = Row>,
    ) -> Self {
        let order = |a: &Row, b: &Row| b.counts.cmp(&a.counts).then_with(|| a.cells.cmp(&b.cells));
        Self::of_busiest(name, columns, keys, counts, busiest(rows, order), |row| row)
    }

    /// Returns a table of `things`, of which [`busiest`] omitted `more`. Rows are built only for those that
    /// are shown.
    pub(crate) fn of_busiest<T>(
        name: &str,
        columns: &[&str],
        keys: usize,
        counts: &[&str],
        (things, more): (Vec<T>, usize),
        row: impl Fn(T) -> Row,
    ) -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let rows = things.into_iter().map(row).collect();
        Self {
            name: name.into(),
            columns: words(columns),
            keys,
            gauges: 0,
            counts: words(counts),
            rows,
            more,
        }
    }

    /// Declares the last `gauges` columns to be numbers that may fall.
    pub(crate) const fn with_gauges(mut self, gauges: usize) -> Self {
        self.gauges = gauges;
        self
    }

    /// Returns the table of packets by destination queue pair.
    fn queue_pairs(counters: &[Arc<Forwarded>]) -> Self {
        type Counted = (IpAddr, Qpn, u64, u64);
        let order = |&(host, qpn, frames, bytes): &Counted| (Reverse((frames, bytes)), host, qpn.get());
        let all = queue_pairs(counters);
        let row = |(host, qpn, frames, bytes): Counted| Row {
            queue_pairs: vec![(Some(host), qpn.get())],
            ..Row::new([host.to_string(), format!("{:#x}", qpn.get())], [frames, bytes])
        };
        let busiest = busiest(all, |a, b| order(a).cmp(&order(b)));
        Self::of_busiest("queue_pair", &["host", "qpn"], 2, &["frames", "bytes"], busiest, row)
    }
}

/// Returns the queue pairs of all workers, unsorted: host, QPN, packets, bytes.
pub(crate) fn queue_pairs(counters: &[Arc<Forwarded>]) -> impl Iterator<Item = (IpAddr, Qpn, u64, u64)> {
    let (one, several) = match counters {
        [one] => (Some(one), HashMap::new()),
        several => (None, sums(several)),
    };
    let several = several.into_iter().map(|((host, qpn), (frames, bytes))| (host, qpn, frames, bytes));
    one.into_iter().flat_map(|one| one.qps.iter()).chain(several)
}

fn sums(counters: &[Arc<Forwarded>]) -> HashMap<(IpAddr, Qpn), (u64, u64)> {
    let mut sums = HashMap::new();
    for (host, qpn, frames, bytes) in counters.iter().flat_map(|counters| counters.qps.iter()) {
        let (f, b) = sums.entry((host, qpn)).or_insert((0, 0));
        *f += frames;
        *b += bytes;
    }
    sums
}

/// Returns the first [`ROWS`] items in this order, and the number of the rest. There may be tens of thousands
/// of items: at most twice [`ROWS`] are held at once, and an item that comes after those kept costs one
/// comparison.
pub(crate) fn busiest<T>(
    all: impl IntoIterator<Item = T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> (Vec<T>, usize) {
    let mut kept = Vec::<T>::new();
    // Whether no item among the first `ROWS` comes after `kept[ROWS - 1]`
    let mut chosen = false;
    let mut seen = 0;
    for thing in all {
        seen += 1;
        if chosen && order(&thing, &kept[ROWS - 1]) == Ordering::Greater {
            continue;
        }
        if kept.len() == 2 * ROWS {
            kept.select_nth_unstable_by(ROWS - 1, &order);
            kept.truncate(ROWS);
            chosen = true;
        }
        kept.push(thing);
    }
    kept.sort_unstable_by(&order);
    kept.truncate(ROWS);
    let more = seen - kept.len();
    (kept, more)
}

impl Row {
    pub(crate) fn new(
        cells: impl IntoIterator<Item = impl Into<String>>,
        counts: impl IntoIterator<Item = u64>,
    ) -> Self {
        Self {
            cells: cells.into_iter().map(Into::into).collect(),
            counts: counts.into_iter().collect(),
            queue_pairs: Vec::new(),
        }
    }
}

impl Latency {
    /// Returns the quantiles of a histogram of nanoseconds; `None` if it is empty.
    pub(crate) fn of(name: impl Into<String>, times: &hdrhistogram::Histogram<u64>) -> Option<Self> {
        let at = |quantile| times.value_at_quantile(quantile);
        (!times.is_empty()).then(|| Self {
            name: name.into(),
            count: times.len(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: times.max(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn only_the_busiest_items_become_rows() {
        for all in [0, 1, ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 1, 65_536] {
            // Each count three times, unordered
            let count = |n: usize| (n * 40_503 % 65_536) as u64 / 3;
            let made = Cell::new(0);
            let order = |a: &usize, b: &usize| count(*b).cmp(&count(*a)).then_with(|| a.cmp(b));
            let table = Table::of_busiest("t", &["n"], 1, &["c"], busiest(0..all, order), |n| {
                made.set(made.get() + 1);
                Row::new([n.to_string()], [count(n)])
            });
            let mut expected: Vec<_> = (0..all).collect();
            expected.sort_by(order);
            expected.truncate(ROWS);
            let expected: Vec<_> = expected.iter().map(|&n| Row::new([n.to_string()], [count(n)])).collect();
            assert_eq!((&table.rows, table.more), (&expected, all - expected.len()), "{all}");
            assert_eq!(made.get(), all.min(ROWS));
        }
    }

    #[test]
    fn a_table_has_the_busiest_rows_and_the_number_of_the_rest() {
        let rows = (0..1_000_u64).map(|n| Row::new([format!("{n:04}")], [n / 2]));
        let table = Table::new("t", &["n"], 1, &["c"], rows);
        assert_eq!((table.rows.len(), table.more), (ROWS, 1_000 - ROWS));
        let first: Vec<_> = table.rows.iter().take(3).map(|row| (&*row.cells[0], row.counts[0])).collect();
        assert_eq!(first, [("0998", 499), ("0999", 499), ("0996", 498)]);
    }
}

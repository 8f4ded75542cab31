//! What can be seen of a running instance at one moment: a tree of plain numbers, the same for `top`, scripts and Prometheus.
//! It is made by the control thread from counters that workers add to anyway, and only when somebody asks.

use super::QueuePair;
use core::cmp::{Ordering, Reverse};
use core::net::IpAddr;
use dataplane::counters::{PortCounters, WorkerCounters};
use dataplane::{DeviceCounters, Live, PortInfo, Runtime};
use rocev2::Qpn;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use switch::DropReason;
use switch::forward::Counters as Forwarded;

/// Rows of a table at most: the busiest
pub(crate) const ROWS: usize = 200;

/// An instance at one moment. Its serialised form is the program's interface: fields are added, not renamed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) instance: Instance,
    /// Since the run began
    pub(crate) uptime_s: f64,
    /// Time stamp counter cycles a second
    pub(crate) tsc_hz: u64,
    pub(crate) ports: Vec<Port>,
    /// Every reason there is, whether it came up or not
    pub(crate) drops: Vec<Dropped>,
    pub(crate) workers: Vec<Worker>,
    #[serde(flatten)]
    pub(crate) told: Told,
}

/// Who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Instance {
    pub(crate) config: String,
    /// The table that configures it, such as `forward`
    pub(crate) function: String,
    pub(crate) version: String,
    pub(crate) dpdk: String,
    pub(crate) pid: u32,
}

/// A port, summed over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) rx_frames: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_frames: u64,
    pub(crate) tx_bytes: u64,
    /// Counted by the device itself
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
    /// Turns of its loop, those in which frames came, and the cycles of those
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) busy_cycles: u64,
    /// What became of frames, beside being forwarded or dropped
    pub(crate) consumed: u64,
    pub(crate) punted: u64,
    pub(crate) handed_off: u64,
    /// Frames that the function sent beside those that came
    pub(crate) made: u64,
}

/// What a function tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Numbers that only grow
    pub(crate) counters: Vec<Named>,
    /// Numbers that come and go
    pub(crate) gauges: Vec<Named>,
    pub(crate) tables: Vec<Table>,
    pub(crate) latencies: Vec<Latency>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// In words with underscores between them
    pub(crate) name: String,
    pub(crate) value: u64,
}

/// Things of one kind: queue pairs, groups, links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    /// One of them, with underscores between words, as it stands in the names of metrics
    pub(crate) name: String,
    /// What tells one from another, then what else is said of it
    pub(crate) columns: Vec<String>,
    /// How many columns tell one from another
    pub(crate) keys: usize,
    /// How many of the last columns are numbers, which may fall
    #[serde(default)]
    pub(crate) gauges: usize,
    /// What is counted of each; these only grow
    pub(crate) counts: Vec<String>,
    /// Those with the highest first count, [`ROWS`] at most
    pub(crate) rows: Vec<Row>,
    /// How many more there are
    pub(crate) more: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) cells: Vec<String>,
    pub(crate) counts: Vec<u64>,
    /// Queue pairs that belong to it: the host, if it is known, and the QPN
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue_pairs: Vec<QueuePair>,
}

/// Times in nanoseconds, from a histogram.
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
    /// An instance as it is now.
    pub(crate) fn of(live: &Live<'_>, instance: &Instance, uptime_s: f64, told: Told) -> Self {
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
            told,
        }
    }
}

impl Port {
    /// Ports with what their devices and all workers counted.
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
    pub(crate) fn of(config: &crate::config::Config) -> Self {
        Self {
            config: config.path.display().to_string(),
            function: config.function.name().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            dpdk: Runtime::version(),
            pid: std::process::id(),
        }
    }
}

impl Told {
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

    /// Adds a table before the others, if it has rows: what the function is about.
    pub(crate) fn first(mut self, table: Table) -> Self {
        if !table.rows.is_empty() {
            self.tables.insert(0, table);
        }
        self
    }

    /// What all workers counted, for any function that counts frames as forwarding does.
    pub(crate) fn forwarded(counters: &[Arc<Forwarded>]) -> Self {
        let sum = |count: &dyn Fn(&Forwarded) -> u64| counters.iter().map(|c| count(c)).sum::<u64>();
        let ports = |count: &dyn Fn(&switch::forward::counters::Seen) -> u64| {
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

fn named(numbers: impl IntoIterator<Item = (impl Into<String>, u64)>) -> impl Iterator<Item = Named> {
    numbers.into_iter().map(|(name, value)| Named { name: name.into(), value })
}

impl Table {
    /// The busiest of `rows`.
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

    /// These things, of which there were [`more`](busiest): rows are made of those alone that are shown.
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

    /// So many of the last columns are numbers, which may fall.
    pub(crate) const fn with_gauges(mut self, gauges: usize) -> Self {
        self.gauges = gauges;
        self
    }

    /// Packets by the queue pair that they are for.
    fn queue_pairs(counters: &[Arc<Forwarded>]) -> Self {
        type Counted = (IpAddr, Qpn, u64, u64);
        let order = |&(host, qpn, frames, bytes): &Counted| (Reverse((frames, bytes)), host, qpn.get());
        let all = crate::run::queue_pairs(counters);
        let row = |(host, qpn, frames, bytes): Counted| Row {
            queue_pairs: vec![(Some(host), qpn.get())],
            ..Row::new([host.to_string(), format!("{:#x}", qpn.get())], [frames, bytes])
        };
        let busiest = busiest(all, |a, b| order(a).cmp(&order(b)));
        Self::of_busiest("queue_pair", &["host", "qpn"], 2, &["frames", "bytes"], busiest, row)
    }
}

/// The first [`ROWS`] in this order, and how many more there are. There may be ten thousands, of which few are to be shown: never
/// more than twice as many are held, and what comes behind those that are kept costs a comparison.
pub(crate) fn busiest<T>(
    all: impl IntoIterator<Item = T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> (Vec<T>, usize) {
    let mut kept = Vec::<T>::new();
    // Whether nothing of the first `ROWS` comes behind the last of them
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
    /// A histogram of nanoseconds; `None` if nothing was measured.
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
    fn of_many_only_the_busiest_become_rows() {
        for all in [0, 1, ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 1, 65_536] {
            // Each count three times, in no order
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
    fn rows_are_the_busiest_and_say_how_many_more_there_are() {
        let rows = (0..1_000_u64).map(|n| Row::new([format!("{n:04}")], [n / 2]));
        let table = Table::new("t", &["n"], 1, &["c"], rows);
        assert_eq!((table.rows.len(), table.more), (ROWS, 1_000 - ROWS));
        let first: Vec<_> = table.rows.iter().take(3).map(|row| (&*row.cells[0], row.counts[0])).collect();
        assert_eq!(first, [("0998", 499), ("0999", 499), ("0996", 498)]);
    }
}

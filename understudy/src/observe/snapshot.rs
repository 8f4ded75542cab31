//! Snapshot of a running instance: a tree of plain numbers, the same for `top`, scripts and Prometheus. The
//! control thread builds it on request, from counters that workers maintain anyway. Names and help texts are
//! those that the counters declare (`switch::metrics`).

use super::QueuePair;
use super::queue_pairs;
use super::values::Values;
use core::cmp::Ordering;
use dataplane::counters::WorkerCounters;
use dataplane::{Devices, Live, PortInfo, Runtime};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use switch::DropReason;
use switch::forward::Counters as Forwarded;
use switch::forward::health::Health;
use switch::metrics::{Group, Kind, Metric};

/// Maximum number of rows of a table; the busiest are kept
pub(crate) const ROWS: usize = 200;

/// State of an instance at one moment. The serialised form is part of the program's interface: fields are
/// added, not renamed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Instance {
    /// Path of the configuration
    pub(crate) config: String,
    /// Table of the configuration that selects the function, such as `forward`
    pub(crate) function: String,
    /// Version of understudy
    pub(crate) version: String,
    /// Version of DPDK
    pub(crate) dpdk: String,
    /// Process that runs the instance
    pub(crate) pid: u32,
}

/// Counters of a port, summed over all workers, and of its device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Port {
    /// Name in the configuration
    pub(crate) name: String,
    /// Driver of DPDK
    pub(crate) driver: String,
    /// State of the link: `up`, `down`, `no_carrier`, `gone` or `no_peer`
    #[serde(default)]
    pub(crate) link: String,
    #[serde(flatten)]
    #[cfg_attr(
        test,
        schemars(
            schema_with = "crate::reference::metrics3::<dataplane::counters::PortCounters, dataplane::DeviceCounters, dataplane::PortState>"
        )
    )]
    pub(crate) counts: Counts,
}

/// Values by the names that metrics have in the closing report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Counts(serde_json::Map<String, serde_json::Value>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Dropped {
    /// The reason as one word
    pub(crate) reason: String,
    /// The reason in words
    pub(crate) meaning: String,
    pub(crate) frames: u64,
}

/// Counters of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Worker {
    /// Number of the worker, from 0
    pub(crate) worker: usize,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<WorkerCounters>"))]
    pub(crate) counts: Counts,
}

/// Metrics of the function itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FunctionMetrics {
    /// Values that only grow
    pub(crate) counters: Vec<NamedValue>,
    /// Values that may fall
    pub(crate) gauges: Vec<NamedValue>,
    /// Items of the function, such as queue pairs
    pub(crate) tables: Vec<Table>,
    /// Quantiles of times
    pub(crate) latencies: Vec<Latency>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NamedValue {
    /// Words separated by underscores
    pub(crate) name: String,
    pub(crate) value: u64,
    /// Description, which is not sent to `top`
    #[serde(skip)]
    pub(crate) help: &'static str,
}

/// Table of items of one kind: queue pairs, groups, links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Items with the highest first counter, at most 200; those of queue pairs with the most faults first
    pub(crate) rows: Vec<Row>,
    /// Number of items without a row
    pub(crate) more: usize,
    /// Declaration of the table, which is not sent to `top`
    #[serde(skip)]
    pub(crate) group: Option<&'static Group>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    /// Values of `columns`
    pub(crate) cells: Vec<String>,
    /// Values of the table's `counts`
    pub(crate) counts: Vec<u64>,
    /// Queue pairs that belong to the item: host, if known, and QPN
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue_pairs: Vec<QueuePair>,
}

/// Quantiles of a histogram, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Latency {
    /// What takes the time
    pub(crate) name: String,
    /// Number of times
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
            ports: Port::all(live.ports(), &live.devices(), live.workers()).collect(),
            drops: DropReason::all()
                .map(|reason| Dropped {
                    reason: reason.name().into(),
                    meaning: reason.explanation(),
                    frames: all(&|w| w.drops[reason.index()].get()),
                })
                .collect(),
            workers: (0..)
                .zip(live.workers())
                .map(|(worker, counters)| Worker { worker, counts: Values::of(&**counters).into() })
                .collect(),
            metrics,
        }
    }

    /// Returns the current state of an instance without ports and workers.
    pub(crate) fn without_ports(instance: &Instance, uptime_s: f64, metrics: FunctionMetrics) -> Self {
        let instance = instance.clone();
        Self { instance, uptime_s, tsc_hz: 0, ports: vec![], drops: vec![], workers: vec![], metrics }
    }
}

impl Port {
    /// Returns the ports with the counters of their devices and of all workers.
    pub(crate) fn all<'a>(
        ports: impl Iterator<Item = &'a PortInfo>,
        (devices, states): &Devices,
        workers: &[Arc<WorkerCounters>],
    ) -> impl Iterator<Item = Self> {
        ports.zip(devices.iter().zip(states)).enumerate().map(move |(index, (info, (device, state)))| {
            let forwarded = Values::total(workers.iter().map(|worker| &worker.ports[index]));
            Self {
                name: info.name.clone(),
                driver: info.driver.clone(),
                link: state.link.name().into(),
                counts: forwarded.and(Values::of(device)).and(Values::of(state)).into(),
            }
        })
    }
}

impl Counts {
    /// Returns the value with this name; zero if an instance of another version does not have it.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
    }
}

impl From<Values> for Counts {
    fn from(values: Values) -> Self {
        Self(values.reported().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Counters from which `top` and the closing report compute
impl Port {
    pub(crate) fn rx(&self) -> (u64, u64) {
        (self.counts.get("rx_frames"), self.counts.get("rx_bytes"))
    }

    pub(crate) fn tx(&self) -> (u64, u64) {
        (self.counts.get("tx_frames"), self.counts.get("tx_bytes"))
    }

    /// Returns the count of frames lost because they were not received in time, or for lack of a buffer.
    pub(crate) fn missed(&self) -> u64 {
        self.counts.get("missed") + self.counts.get("no_buffer")
    }

    /// Returns the count of frames received with an error or not sent by the device.
    pub(crate) fn errors(&self) -> u64 {
        self.counts.get("rx_errors") + self.counts.get("tx_errors")
    }

    /// Returns the count of frames that the kernel dropped at the interface of the port, in both directions.
    pub(crate) fn kernel_drops(&self) -> u64 {
        self.counts.get("kernel_rx_dropped") + self.counts.get("kernel_tx_dropped")
    }
}

impl Worker {
    pub(crate) fn rx_frames(&self) -> u64 {
        self.counts.get("rx_frames")
    }

    /// Returns the count of frames for which the function was run.
    pub(crate) fn handled(&self) -> u64 {
        self.counts.get("handled")
    }

    pub(crate) fn turns(&self) -> u64 {
        self.counts.get("turns")
    }

    pub(crate) fn busy_turns(&self) -> u64 {
        self.counts.get("busy_turns")
    }

    pub(crate) fn busy_cycles(&self) -> u64 {
        self.counts.get("busy_cycles")
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
    /// Adds values of declared metrics.
    pub(crate) fn values(mut self, values: &Values) -> Self {
        for (metric, name, value) in values.observed() {
            self.push(metric, name, value);
        }
        self
    }

    /// Adds a metric, if it has a value.
    pub(crate) fn value(mut self, metric: &'static Metric, value: Option<u64>) -> Self {
        if let (Some(name), Some(value)) = (metric.observed, value) {
            self.push(metric, name, value);
        }
        self
    }

    /// Adds the counters of reasons that have occurred.
    pub(crate) fn reasons(self, reasons: impl IntoIterator<Item = (&'static Metric, u64)>) -> Self {
        let occurred = reasons.into_iter().filter(|(_, count)| *count > 0);
        occurred.fold(self, |all, (metric, count)| all.value(metric, Some(count)))
    }

    fn push(&mut self, metric: &Metric, name: &str, value: u64) {
        let values = if metric.kind == Kind::Counter { &mut self.counters } else { &mut self.gauges };
        values.push(NamedValue { name: name.into(), value, help: metric.help });
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
        let opcodes = (0..=255u8).filter_map(|value| {
            let frames = sum(&|c| c.opcodes[usize::from(value)].frames.get());
            let bytes = sum(&|c| c.opcodes[usize::from(value)].bytes.get());
            (frames > 0).then(|| Row::new([rocev2::Opcode(value).to_string()], [frames, bytes]))
        });
        let faults = rocev2::Fault::ALL.into_iter().filter_map(|fault| {
            let frames = sum(&|c| c.faults[fault as usize].get());
            (frames > 0).then(|| Row::new([fault.name(), &fault.to_string()], [frames]))
        });
        let health: Vec<&Health> = counters.iter().flat_map(|counters| &counters.health).collect();
        let health = if health.is_empty() { Values::default() } else { Values::total(health) };
        Self::default()
            .values(&Values::total(counters.iter().flat_map(|counters| &counters.ports)))
            .values(&health)
            .table(queue_pairs::table(counters))
            .table(Table::of(&Forwarded::OPCODES, opcodes))
            .table(Table::of(&Forwarded::FAULTS, faults))
    }
}

impl Table {
    /// Returns a table of the busiest of `rows`.
    pub(crate) fn of(group: &'static Group, rows: impl IntoIterator<Item = Row>) -> Self {
        let order = |a: &Row, b: &Row| b.counts.cmp(&a.counts).then_with(|| a.cells.cmp(&b.cells));
        Self::of_busiest(group, busiest(rows, order), |row| row)
    }

    /// Returns a table of `things`, of which [`busiest`] omitted `more`. Rows are built only for those that
    /// are shown.
    pub(crate) fn of_busiest<T>(
        group: &'static Group,
        (things, more): (Vec<T>, usize),
        row: impl Fn(T) -> Row,
    ) -> Self {
        let names = |counter: bool| {
            let metrics = group.metrics().filter(move |metric| (metric.kind == Kind::Counter) == counter);
            metrics.filter_map(|metric| metric.observed).map(Into::into)
        };
        let words = group.keys.iter().chain(group.properties).map(|&word| word.into());
        Self {
            name: group.item.into(),
            columns: words.chain(names(false)).collect(),
            keys: group.keys.len(),
            gauges: names(false).count(),
            counts: names(true).collect(),
            rows: things.into_iter().map(row).collect(),
            more,
            group: Some(group),
        }
    }
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
    /// Returns a row of a table of these metrics: gauges follow the cells.
    pub(crate) fn of(cells: impl IntoIterator<Item = impl Into<String>>, values: &Values) -> Self {
        let of_kind = |counter: bool| {
            let observed =
                values.observed().filter(move |(metric, ..)| (metric.kind == Kind::Counter) == counter);
            observed.map(|(.., value)| value)
        };
        let gauges = of_kind(false).map(|value| value.to_string());
        Self::new(cells.into_iter().map(Into::into).chain(gauges), of_kind(true))
    }

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
    use dataplane::DeviceCounters;
    use switch::metrics::Metrics as _;

    const GROUP: Group = Group {
        item: "t",
        keys: &["n"],
        properties: &[],
        fields: &[&[Metric::new(Kind::Counter, "c", "times", "Count")]],
    };

    #[test]
    fn only_the_busiest_items_become_rows() {
        for all in [0, 1, ROWS, ROWS + 1, 2 * ROWS, 2 * ROWS + 1, 65_536] {
            // Each count three times, unordered
            let count = |n: usize| (n * 40_503 % 65_536) as u64 / 3;
            let made = Cell::new(0);
            let order = |a: &usize, b: &usize| count(*b).cmp(&count(*a)).then_with(|| a.cmp(b));
            let table = Table::of_busiest(&GROUP, busiest(0..all, order), |n| {
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
    fn computed_columns_read_declared_counters() {
        let forwarded = dataplane::counters::PortCounters::default();
        forwarded.rx.count(64);
        forwarded.tx.count_many(2, 200);
        let device = DeviceCounters {
            missed: 1,
            no_buffer: 2,
            rx_errors: 3,
            tx_errors: 4,
            kernel_rx_dropped: 5,
            kernel_tx_dropped: 6,
            ..Default::default()
        };
        let counts = Values::of(&forwarded).and(Values::of(&device)).into();
        let port = Port { counts, ..Port::default() };
        assert_eq!((port.rx(), port.tx(), port.missed(), port.errors()), ((1, 64), (2, 200), 3, 7));
        assert_eq!(port.kernel_drops(), 11);
        let declared: Vec<_> = WorkerCounters::GROUP.metrics().filter_map(|metric| metric.reported).collect();
        let counts = Counts(declared.iter().map(|&name| (name.into(), 1.into())).collect());
        let worker = Worker { worker: 0, counts };
        let frames = [worker.rx_frames(), worker.handled()];
        let turns = [worker.turns(), worker.busy_turns(), worker.busy_cycles()];
        assert_eq!((frames, turns), ([1; 2], [1; 3]), "{declared:?}");
    }

    #[test]
    fn a_table_has_the_busiest_rows_and_the_number_of_the_rest() {
        let rows = (0..1_000_u64).map(|n| Row::new([format!("{n:04}")], [n / 2]));
        let table = Table::of(&GROUP, rows);
        assert_eq!((table.rows.len(), table.more), (ROWS, 1_000 - ROWS));
        let first: Vec<_> = table.rows.iter().take(3).map(|row| (&*row.cells[0], row.counts[0])).collect();
        assert_eq!(first, [("0998", 499), ("0999", 499), ("0996", 498)]);
    }
}

//! 1Pipe in virtual time: delivery latency under packet loss, as in figure 9b of the paper, and in networks
//! of up to 32,768 hosts. The latencies are the same on any machine.

use comfy_table::{Cell, CellAlignment, Table, presets};
use miette::{IntoDiagnostic as _, Report, miette};
use representative::Incarnation;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use switch::Nanos;
use workloads::onepipe::{BEACON_INTERVAL, FatTree, Latency, Network, Span};

/// Latency without loss of best-effort delivery with barriers on hosts and 512 processes, in microseconds
/// (1Pipe, figure 9a)
const PAPER_LOSSLESS_US: f64 = 15.97;
/// Loss probabilities of a packet on a link: none, and those of figure 9b; and the paper's latency in
/// microseconds, where known
pub(crate) const LOSSES: [(f64, Option<f64>); 9] = [
    (0.0, Some(PAPER_LOSSLESS_US)),
    (1e-8, None),
    (1e-7, None),
    (1e-6, None),
    (1e-5, Some(16.46)),
    (1e-4, None),
    (1e-3, Some(19.71)),
    (1e-2, None),
    (1e-1, Some(27.19)),
];
/// Hosts of each of the four racks: each process of the paper's testbed is a host here
pub(crate) const HOSTS_PER_RACK: usize = 128;
/// Peers of each host: with all hosts as peers, each host would have a table of all hosts
const PEERS: usize = 32;
/// Duration of measurements with loss
const LOSS_DURATION: Nanos = Nanos::from_micros(200);
/// Duration of measurements without loss, in networks of any size
const SCALE_DURATION: Nanos = Nanos::from_micros(30);
/// Rate of the testbed's links, in bits a second
pub const RATE_BPS: u64 = 100_000_000_000;
/// Length of a beacon datagram, with its frame check sequence, in bytes
const BEACON: f64 = 94.0;

pub(crate) const fn name(incarnation: Incarnation) -> &'static str {
    match incarnation {
        Incarnation::Chip => "chip",
        Incarnation::SwitchCpu => "switch-cpu",
        Incarnation::Host => "host",
    }
}

fn us(ns: f64) -> f64 {
    (ns / 10.0).round() / 100.0
}

fn percent(share: f64) -> f64 {
    (100_000.0 * share).round() / 1000.0
}

fn ratio(value: f64, of: f64) -> f64 {
    (1000.0 * value / of).round() / 1000.0
}

fn of_latency(latency: &Latency) -> Value {
    json!({
        "deliveries": latency.deliveries,
        "mean_us": us(latency.mean_ns),
        "p99_us": us(latency.p99.0 as f64),
        "overhead_us": us(latency.overhead_ns()),
    })
}

fn with(mut row: Value, more: Value) -> Value {
    if let (Value::Object(row), Value::Object(more)) = (&mut row, more) {
        row.extend(more);
    }
    row
}

/// Measures the latency of best-effort delivery on the paper's testbed with `hosts_per_rack` hosts in each of
/// its four racks, where each packet is lost on each link with probability `loss`.
///
/// # Errors The simulation's error.
pub fn lossy(
    incarnation: Incarnation,
    loss: f64,
    hosts_per_rack: usize,
    seed: u64,
) -> Result<Latency, Report> {
    let mut tree = FatTree::testbed(incarnation);
    tree.hosts = hosts_per_rack;
    tree.behaviour.partners = PEERS.min(2 * hosts_per_rack);
    let measured = tree.losing(loss).latency(Span::new(LOSS_DURATION), seed);
    let measured =
        measured.map_err(|what| miette!("{} barriers, a loss of {loss:e}: {what}", name(incarnation)));
    Ok(measured?.0)
}

/// Returns a row of the table of losses. `lossless` is the mean latency without loss.
fn loss_row(
    incarnation: Incarnation,
    (loss, paper): (f64, Option<f64>),
    lossless: Option<f64>,
) -> Result<(Value, f64), Report> {
    let latency = lossy(incarnation, loss, HOSTS_PER_RACK, 1)?;
    let paper = paper.filter(|_| incarnation == Incarnation::Host);
    let row = json!({
        "barriers": name(incarnation),
        "loss": loss,
        "lost_percent": percent(latency.lost),
        "times": ratio(latency.mean_ns, lossless.unwrap_or(latency.mean_ns)),
        "paper_us": paper,
        "paper_times": paper.map(|us| ratio(us, PAPER_LOSSLESS_US)),
    });
    Ok((with(of_latency(&latency), row), latency.mean_ns))
}

/// Returns the percentage of a link's bandwidth that switches' beacons take.
fn beacon_percent(tree: &FatTree, made: &Network) -> f64 {
    let beacons: u64 = (0..made.representatives.len()).map(|n| made.counters(n).beacons.get()).sum();
    // Each link has two ends; hosts send on theirs themselves.
    let outputs = (made.access.len() + 2 * made.uplinks.len()) as f64;
    let bits = beacons as f64 * BEACON * 8.0 / outputs;
    percent(1e9 * bits / (made.world.now().0 as f64 * tree.link.rate_bps as f64))
}

/// Returns the peak memory of this process so far, in MB.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).map_or(0, |kb: u64| kb / 1024)
}

/// Returns the CPU time of this process so far, in seconds. Wall-clock time would include other programs on
/// the machine.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the mean time from arrival to delivery (ns) of messages over the longest path of a tree, which were sent
/// within a span of the world's time: the cost of ordering where all paths have the same delay (1Pipe, section 4.2).
/// Messages over a shorter path also wait for the barriers that come over the longest one.
pub(crate) fn cost_of_ordering(tree: &FatTree, network: &Network, span: Span) -> f64 {
    let below_top = match (tree.pods, tree.racks) {
        (1, 1) => 1,
        (1, _) => tree.hosts,
        _ => tree.racks * tree.hosts,
    };
    let sent = Network::time(span.warm_up)..Network::time(span.warm_up + span.lasts);
    let (mut count, mut sum) = (0_u64, 0);
    for host in network.each_host() {
        // Arrivals have no sender; those of two senders with the same timestamp are left out.
        let mut arrived = BTreeMap::new();
        for &(at, ns) in &host.arrived {
            arrived.entry(at).and_modify(|arrival| *arrival = None).or_insert(Some(ns));
        }
        let own = host.number();
        for (&(at, from, _), &ns) in host.delivered.iter().zip(&host.latencies_ns) {
            if from / below_top != own / below_top
                && sent.contains(&at)
                && let Some(&Some(arrival)) = arrived.get(&at)
            {
                (count, sum) = (count + 1, sum + ns - arrival);
            }
        }
    }
    sum as f64 / count as f64
}

/// A network, and its delivery latency
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Number of hosts
    pub hosts: usize,
    /// Number of switches
    pub switches: usize,
    /// Number of links between switches, and to hosts
    pub links: usize,
    /// Delivery latency
    pub latency: Latency,
    /// Mean cost of ordering for messages over the longest path (ns)
    pub ordering_ns: f64,
    /// Percentage of a link's bandwidth that switches' beacons take
    pub beacons_percent: f64,
}

/// Measures the delivery latency in a fat tree of `hosts` hosts, with barriers in the switches, links of
/// `rate_bps`, and no loss.
///
/// # Errors
/// There is no fat tree of this size, or the simulation failed.
pub fn scale(hosts: usize, rate_bps: u64, seed: u64) -> Result<Scale, Report> {
    let Some(mut tree) = FatTree::of_hosts(Incarnation::Chip, hosts) else {
        let sizes: Vec<_> = FatTree::SIZES.map(|size| size.to_string()).into();
        return Err(miette!(
            help = format!("use one of {}", sizes.join(", ")),
            "there is no fat tree of {hosts} hosts"
        ));
    };
    tree.link.rate_bps = rate_bps;
    tree.behaviour.partners = PEERS.min(hosts / 2);
    let span = Span { settles: Nanos(10 * BEACON_INTERVAL.0), ..Span::new(SCALE_DURATION) };
    let measured = tree.losing(0.0).latency(span, seed);
    let (latency, made) = measured.map_err(|what| miette!("{hosts} hosts: {what}"))?;
    Ok(Scale {
        hosts,
        switches: made.representatives.len(),
        links: made.access.len() + made.uplinks.len(),
        latency,
        ordering_ns: cost_of_ordering(&tree, &made, span),
        beacons_percent: beacon_percent(&tree, &made),
    })
}

/// Returns a row of the table of sizes.
fn scale_row(hosts: usize) -> Result<Value, Report> {
    let began = cpu_s();
    let Scale { switches, links, latency, beacons_percent, .. } = scale(hosts, RATE_BPS, 1)?;
    let row = json!({
        "hosts": hosts,
        "switches": switches,
        "links": links,
        "beacons_percent": beacons_percent,
        "cpu_seconds": us(1000.0 * (cpu_s() - began)),
        "memory_so_far_mb": peak_mb(),
    });
    Ok(with(of_latency(&latency), row))
}

/// Runs the simulation and prints it: losses, or networks of these sizes.
pub(super) fn run(hosts: &[usize], as_json: bool) -> Result<(), Report> {
    let mut out = std::io::stdout().lock();
    if !hosts.is_empty() {
        let rows = hosts.iter().map(|&hosts| scale_row(hosts)).collect::<Result<Vec<_>, _>>()?;
        if as_json {
            return writeln!(out, "{}", json!({ "scale": rows })).into_diagnostic();
        }
        let columns = [
            "hosts",
            "switches",
            "links",
            "deliveries",
            "mean_us",
            "p99_us",
            "overhead_us",
            "beacons_percent",
            "cpu_seconds",
            "memory_so_far_mb",
        ];
        return writeln!(
            out,
            "Fat trees, barriers in the switches, no loss (virtual time). Overhead: from arrival to delivery:\n{}",
            table(&rows, &columns)
        )
        .into_diagnostic();
    }
    let mut rows = Vec::new();
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut lossless = None;
        for loss in LOSSES {
            let (row, mean) = loss_row(incarnation, loss, lossless)?;
            lossless.get_or_insert(mean);
            rows.push(row);
        }
    }
    if as_json {
        return writeln!(out, "{}", json!({ "loss": rows })).into_diagnostic();
    }
    let columns = [
        "barriers",
        "loss",
        "deliveries",
        "lost_percent",
        "mean_us",
        "p99_us",
        "overhead_us",
        "times",
        "paper_us",
        "paper_times",
    ];
    writeln!(
        out,
"The paper's testbed with {} hosts, best effort, with this probability of loss per packet and link (virtual time; figure\n\
         9b, whose hosts take time for each packet). Times: the mean divided by that without loss:\n{}",
        4 * HOSTS_PER_RACK,
        table(&rows, &columns)
    )
    .into_diagnostic()
}

fn table(rows: &[Value], columns: &[&str]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let cell = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(columns.iter().map(|column| cell(column.replace('_', " "))));
    for row in rows {
        let text = |column: &str| match &row[column] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            Value::Number(loss) if column == "loss" => {
                loss.as_f64().map_or_else(String::new, |loss| format!("{loss:e}"))
            }
            value => value.to_string(),
        };
        table.add_row(columns.iter().map(|column| cell(text(column))));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_sizes_are_refused_with_a_list_of_sizes() {
        let row = scale_row(8).unwrap();
        assert_eq!((&row["switches"], &row["links"]), (&1.into(), &8.into()));
        assert!(row["deliveries"].as_u64() > Some(0) && row["beacons_percent"].as_f64() > Some(0.1), "{row}");
        let error = scale_row(9).unwrap_err();
        assert!(format!("{error:?}").contains("2048"), "{error:?}");
    }

    #[test]
    fn rows_are_formatted_as_a_table() {
        let row = json!({ "barriers": "host", "loss": 1e-5, "paper_us": null, "times": 1.03 });
        let shown = table(&[row], &["barriers", "loss", "paper_us", "times"]);
        assert_eq!(
            shown.lines().last().unwrap().split_whitespace().collect::<Vec<_>>(),
            ["host", "1e-5", "-", "1.03"]
        );
    }
}

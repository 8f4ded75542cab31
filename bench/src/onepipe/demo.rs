//! `understudy demo onepipe`: the paper's testbed in one process. All hosts broadcast, with the barriers in
//! the switches, on their CPUs, and on hosts beside them. Then a host, a link and a switch fail. Then both services
//! run while hosts, links, a switch and the controller fail.

mod reliable;

use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use miette::{IntoDiagnostic as _, Report, miette};
use representative::Incarnation;
use serde_json::{Value, json};
use sim::Fault;
use std::io::{IsTerminal as _, Write as _};
use switch::Nanos;
use workloads::onepipe::{BEACON_INTERVAL, Behaviour, FatTree, Host, Network};

/// Show 1Pipe on the paper's testbed of 32 hosts: total order and its cost, and both services while hosts,
/// links, a switch and the controller fail (simulated)
#[derive(Args)]
pub struct DemoArgs {
    /// Halve the duration
    #[arg(long)]
    quick: bool,
    /// Print a line of JSON for each row instead
    #[arg(long)]
    json: bool,
}

/// A host of the second rack, a host of the third, and the fourth rack's switch with its hosts, which have no
/// other switch
const FAILED_HOST: usize = 9;
const FAILED_LINK: usize = 17;
const FAILED_RACK: usize = 3;
const HOSTS_PER_RACK: usize = 8;
/// Time after a failure at which the surviving hosts are notified of it, as by a controller
const NOTIFIED_AFTER: Nanos = Nanos::from_micros(50);

/// Event at the beginning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureEvent {
    Nothing,
    HostFails,
    LinkFails,
    SwitchFails,
}

impl FailureEvent {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::HostFails => "host 9 fails",
            Self::LinkFails => "the link of host 17 fails",
            Self::SwitchFails => "the switch of rack 3 fails",
        }
    }

    fn fault(self, network: &Network) -> Option<Fault> {
        match self {
            Self::Nothing => None,
            Self::HostFails => Some(Fault::Crash(network.hosts[FAILED_HOST])),
            Self::LinkFails => Some(Fault::Cut(vec![network.access[FAILED_LINK]])),
            Self::SwitchFails => Some(Fault::Crash(network.switches[FAILED_RACK])),
        }
    }

    /// Returns the hosts that are unreachable from now on.
    fn unreachable(self) -> Vec<usize> {
        match self {
            Self::Nothing => Vec::new(),
            Self::HostFails => vec![FAILED_HOST],
            Self::LinkFails => vec![FAILED_LINK],
            Self::SwitchFails => (FAILED_RACK * HOSTS_PER_RACK..(FAILED_RACK + 1) * HOSTS_PER_RACK).collect(),
        }
    }
}

/// Observations of the surviving hosts in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Row {
    hosts: usize,
    delivered: usize,
    mean_ns: f64,
    /// Longest time in which a host's barrier did not rise
    stall: Nanos,
    failed: usize,
}

/// A running testbed.
struct Run {
    network: Network,
    at: Nanos,
    alive: Vec<usize>,
    /// Totals at the end of the last row: messages delivered, their latencies in nanoseconds, and messages
    /// that failed
    before: (usize, u64, usize),
}

impl Run {
    fn new(incarnation: Incarnation, seed: u64) -> Self {
        let mut tree = FatTree::testbed(incarnation);
        tree.every = Nanos::from_micros(15);
        tree.skew_ns = 300;
        tree.lasts = Nanos::from_secs(1);
        tree.behaviour = Behaviour { broadcasts: true, ..Behaviour::default() };
        let network = tree.build(seed);
        Self { alive: (0..network.hosts.len()).collect(), network, at: Nanos::ZERO, before: (0, 0, 0) }
    }

    fn totals(&self) -> (usize, u64, usize) {
        let hosts = self.alive.iter().map(|&n| self.network.world.node::<Host>(self.network.hosts[n]));
        hosts.fold((0, 0, 0), |(delivered, took, failed), host| {
            let failures = host.sent.iter().filter(|sent| matches!(sent.fate, Some(Err(_)))).count();
            (
                delivered + host.delivered.len(),
                took + host.latencies_ns.iter().sum::<u64>(),
                failed + failures,
            )
        })
    }

    /// Advances virtual time.
    fn advance(&mut self, time: Nanos) {
        self.at = self.at + time;
        self.network.world.run_until(self.at);
    }

    /// Injects the event, and advances virtual time by `duration`.
    fn row(&mut self, event: FailureEvent, duration: Nanos) -> Result<Row, Report> {
        if let Some(fault) = event.fault(&self.network) {
            self.network.world.schedule(self.at, fault);
        }
        let dead = event.unreachable();
        self.alive.retain(|host| !dead.contains(host));
        self.before = self.totals();
        for &host in &self.alive {
            self.network.world.node_mut::<Host>(self.network.hosts[host]).stall = Nanos::ZERO;
        }
        self.advance(NOTIFIED_AFTER);
        let now = self.network.world.now();
        for &host in &self.alive {
            self.network.world.node_mut::<Host>(self.network.hosts[host]).forget(&dead, now);
        }
        self.advance(duration.since(NOTIFIED_AFTER));
        self.network.check_order().map_err(|what| miette!("{what}"))?;
        let (delivered, took, failed) = self.totals();
        let (delivered, took) = (delivered - self.before.0, took - self.before.1);
        let stalls = self.alive.iter().map(|&n| self.network.world.node::<Host>(self.network.hosts[n]).stall);
        Ok(Row {
            hosts: self.alive.len(),
            delivered,
            mean_ns: took as f64 / delivered.max(1) as f64,
            stall: stalls.max().unwrap_or_default(),
            failed: failed - self.before.2,
        })
    }
}

/// A failure on the testbed, and the observations of the surviving hosts
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// Failed component
    pub what: &'static str,
    /// Number of surviving hosts
    pub hosts: usize,
    /// Messages that they delivered afterwards
    pub delivered: usize,
    /// Longest time in which the barrier of one of them did not rise
    pub stall: Nanos,
}

/// Measures a run without failures, then the failure of a host, of a host's link and of a rack's switch, one
/// after the other, with best-effort delivery.
///
/// # Errors
/// The total order was violated.
pub fn failures(incarnation: Incarnation, seed: u64) -> Result<Vec<Failure>, Report> {
    let mut run = Run::new(incarnation, seed);
    // The first barriers arrive.
    run.advance(Nanos::from_micros(60));
    let events = [
        ("nothing", FailureEvent::Nothing),
        ("host", FailureEvent::HostFails),
        ("host link", FailureEvent::LinkFails),
        ("ToR switch", FailureEvent::SwitchFails),
    ];
    let one = |(what, event)| {
        let Row { hosts, delivered, stall, .. } = run.row(event, Nanos::from_micros(150))?;
        Ok(Failure { what, hosts, delivered, stall })
    };
    events.into_iter().map(one).collect()
}

const fn name(incarnation: Incarnation) -> &'static str {
    match incarnation {
        Incarnation::Chip => "chip",
        Incarnation::SwitchCpu => "switch-cpu",
        Incarnation::Host => "host",
    }
}

/// Returns a time in microseconds, with two digits behind the point.
fn us(ns: f64) -> f64 {
    (ns / 10.0).round() / 100.0
}

/// Seed of the demonstration
const SEED: u64 = 1;

/// Rows printed so far
struct Output {
    columns: &'static [&'static str],
    json: bool,
    /// Lines of the table on the terminal, to be overwritten
    lines: usize,
    rows: Vec<Value>,
}

const COLUMNS: [&str; 8] =
    ["barriers", "time us", "what happens", "hosts", "delivered", "failed", "mean us", "longest stall us"];

impl Output {
    const fn new(columns: &'static [&'static str], json: bool) -> Self {
        Self { columns, json, lines: 0, rows: Vec::new() }
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let cell = |text: String, column: usize| {
            let words = column == 0 || column == 2;
            let side = if words { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(side)
        };
        table.set_header(self.columns.iter().enumerate().map(|(n, column)| cell((*column).into(), n)));
        for row in &self.rows {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
            let key = |column: &str| text(&row[column.replace(' ', "_")]);
            table.add_row(self.columns.iter().enumerate().map(|(n, column)| cell(key(column), n)));
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    fn add(&mut self, row: Value, last: bool) -> Result<(), Report> {
        let mut out = std::io::stdout().lock();
        if self.json {
            return writeln!(out, "{row}").into_diagnostic();
        }
        self.rows.push(row);
        let live = out.is_terminal();
        if !live && !last {
            return Ok(());
        }
        let table = self.table();
        if live && self.lines > 0 {
            write!(out, "\x1b[{}F\x1b[J", self.lines).into_diagnostic()?;
        }
        self.lines = table.lines().count();
        writeln!(out, "{table}").into_diagnostic()?;
        out.flush().into_diagnostic()
    }
}

/// Prints the demonstration row by row: best effort alone with the barriers at three places, then both services with
/// a controller.
///
/// # Errors
/// The total order was violated, a barrier did not rise for more than 20 beacon intervals, a scattering was delivered by
/// a part of its receivers, or the network has not recovered.
pub fn demo(args: &DemoArgs) -> Result<(), Report> {
    best_effort(args)?;
    let time = Nanos::from_micros(if args.quick { 500 } else { 1000 });
    if !args.json {
        reliable::introduce();
    }
    let mut output = Output::new(&reliable::COLUMNS, args.json);
    let sums = reliable::run(Incarnation::Host, time, &mut output)?;
    if !args.json {
        println!("\n{}", sums.headline());
    }
    Ok(())
}

/// Prints the best-effort service's rows.
fn best_effort(args: &DemoArgs) -> Result<(), Report> {
    let duration = Nanos::from_micros(if args.quick { 150 } else { 300 });
    let mut output = Output::new(&COLUMNS, args.json);
    if !args.json {
        println!(
            "The paper's testbed in virtual time: 32 hosts in 4 racks, 4 spine and 2 core switches, links of 100 Gb/s and 500 ns,\n\
             beacons every {} us. Every host broadcasts to all hosts, every 15 us on average; all deliver in one order, which is\n\
             checked. Barriers are kept in the switches (chip), on their CPUs (switch-cpu), or on a host beside each (host).\n\
             A host that is silent for ten intervals is considered failed, and the other hosts continue; 50 us after a\n\
             failure they are notified which hosts to exclude.\n",
            BEACON_INTERVAL.0 / 1000
        );
    }
    let all = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];
    let events =
        [FailureEvent::Nothing, FailureEvent::HostFails, FailureEvent::LinkFails, FailureEvent::SwitchFails];
    let (mut delivered, mut hosts) = (0, 0);
    let mut stalls = Vec::new();
    for incarnation in all {
        let mut run = Run::new(incarnation, SEED);
        // The first barriers arrive.
        run.advance(Nanos::from_micros(60));
        for event in events {
            let row = run.row(event, duration)?;
            if row.delivered == 0 || row.stall.0 > 20 * BEACON_INTERVAL.0 {
                let what = event.name();
                return Err(miette!(
                    "{}, {what}: barriers did not rise for {} ns",
                    name(incarnation),
                    row.stall.0
                ));
            }
            (delivered, hosts) = (delivered + row.delivered, hosts.max(row.hosts));
            if event != FailureEvent::Nothing {
                stalls.push(row.stall.0 as f64 / 1e3);
            }
            let last = incarnation == all[2] && event == events[3];
            let value = json!({
                "barriers": name(incarnation),
                "time_us": run.at.0 / 1000,
                "what_happens": event.name(),
                "hosts": row.hosts,
                "delivered": row.delivered,
                "failed": row.failed,
                "mean_us": us(row.mean_ns),
                "longest_stall_us": us(row.stall.0 as f64),
            });
            output.add(value, last)?;
        }
    }
    if !args.json {
        let longest = stalls.iter().copied().fold(0.0, f64::max);
        println!(
            "\n{hosts} hosts: {delivered} messages delivered in one order, through {} failures that stopped delivery for {longest:.1} us \
             at most",
            stalls.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_stalls_the_survivors_for_about_ten_intervals() {
        for incarnation in [Incarnation::Chip, Incarnation::Host] {
            let mut run = Run::new(incarnation, SEED);
            run.advance(Nanos::from_micros(60));
            let duration = Nanos::from_micros(120);
            let undisturbed = run.row(FailureEvent::Nothing, duration).unwrap();
            assert!(
                undisturbed.hosts == 32 && undisturbed.delivered > 5_000,
                "{incarnation:?}: {undisturbed:?}"
            );
            assert!(
                undisturbed.failed == 0 && undisturbed.stall.0 < 4 * BEACON_INTERVAL.0,
                "{incarnation:?}: {undisturbed:?}"
            );
            for (event, hosts) in [
                (FailureEvent::HostFails, 31),
                (FailureEvent::LinkFails, 30),
                (FailureEvent::SwitchFails, 22),
            ] {
                let row = run.row(event, duration).unwrap();
                assert!(row.hosts == hosts && row.delivered > 1_000, "{incarnation:?} {event:?}: {row:?}");
                let intervals = row.stall.0 / BEACON_INTERVAL.0;
                assert!((8..18).contains(&intervals), "{incarnation:?} {event:?}: {row:?}");
                assert!(row.failed > 0, "messages to failed hosts fail: {row:?}");
            }
        }
    }
}

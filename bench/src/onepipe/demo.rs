//! `understudy demo onepipe`: the paper's testbed in one process, whose hosts all broadcast, with the barriers in the switches, on
//! their CPUs, and on hosts beside them. Then a host, a link and a switch die.

use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use miette::{IntoDiagnostic as _, Report, miette};
use representative::Incarnation;
use serde_json::{Value, json};
use sim::Fault;
use sim::onepipe::{BEACON_INTERVAL, Behaviour, FatTree, Host, Network};
use std::io::{IsTerminal as _, Write as _};
use switch::Nanos;

/// Show 1Pipe on the paper's testbed of 32 hosts: total order and what it costs, also while a host, a link and a switch die
/// (simulated)
#[derive(Args)]
pub struct DemoArgs {
    /// Half as long
    #[arg(long)]
    quick: bool,
    /// Print a line of JSON for each row instead
    #[arg(long)]
    json: bool,
}

/// A host of the second rack, one of the third, and the fourth rack's switch with all who have no other
const DIES: usize = 9;
const CUT_OFF: usize = 17;
const RACK: usize = 3;
const IN_RACK: usize = 8;
/// After this, those who go on are told who has failed, as a controller would
const TOLD_AFTER: Nanos = Nanos::from_micros(50);

/// What happens at the beginning of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    Nothing,
    HostDies,
    LinkDies,
    SwitchDies,
}

impl Happens {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::HostDies => "host 9 dies",
            Self::LinkDies => "host 17's link dies",
            Self::SwitchDies => "switch of rack 3 dies",
        }
    }

    fn fault(self, made: &Network) -> Option<Fault> {
        match self {
            Self::Nothing => None,
            Self::HostDies => Some(Fault::Crash(made.hosts[DIES])),
            Self::LinkDies => Some(Fault::Cut(vec![made.access[CUT_OFF]])),
            Self::SwitchDies => Some(Fault::Crash(made.switches[RACK])),
        }
    }

    /// Who cannot be reached any more
    fn dead(self) -> Vec<usize> {
        match self {
            Self::Nothing => Vec::new(),
            Self::HostDies => vec![DIES],
            Self::LinkDies => vec![CUT_OFF],
            Self::SwitchDies => (RACK * IN_RACK..(RACK + 1) * IN_RACK).collect(),
        }
    }
}

/// What those who go on saw in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Row {
    hosts: usize,
    delivered: usize,
    mean_ns: f64,
    /// The longest time in which a host's barrier did not rise
    stall: Nanos,
    failed: usize,
}

/// A testbed that runs.
struct Run {
    made: Network,
    at: Nanos,
    alive: Vec<usize>,
    /// Sums at the end of the last row: messages delivered, how long they took, and those that failed
    before: (usize, u64, usize),
}

impl Run {
    fn new(incarnation: Incarnation, seed: u64) -> Self {
        let mut tree = FatTree::testbed(incarnation);
        tree.every = Nanos::from_micros(15);
        tree.skew_ns = 300;
        tree.lasts = Nanos::from_secs(1);
        tree.behaviour = Behaviour { broadcasts: true, ..Behaviour::default() };
        let made = tree.build(seed);
        Self { alive: (0..made.hosts.len()).collect(), made, at: Nanos::ZERO, before: (0, 0, 0) }
    }

    fn sums(&self) -> (usize, u64, usize) {
        let hosts = self.alive.iter().map(|&n| self.made.world.node::<Host>(self.made.hosts[n]));
        hosts.fold((0, 0, 0), |(delivered, took, failed), host| {
            let failures = host.sent.iter().filter(|sent| matches!(sent.fate, Some(Err(_)))).count();
            (
                delivered + host.delivered.len(),
                took + host.latencies_ns.iter().sum::<u64>(),
                failed + failures,
            )
        })
    }

    /// Time passes.
    fn pass(&mut self, time: Nanos) {
        self.at = self.at + time;
        self.made.world.run_until(self.at);
    }

    /// Something happens, and time passes.
    fn row(&mut self, happens: Happens, lasts: Nanos) -> Result<Row, Report> {
        if let Some(fault) = happens.fault(&self.made) {
            self.made.world.schedule(self.at, fault);
        }
        let dead = happens.dead();
        self.alive.retain(|host| !dead.contains(host));
        self.before = self.sums();
        for &host in &self.alive {
            self.made.world.node_mut::<Host>(self.made.hosts[host]).stall = Nanos::ZERO;
        }
        self.pass(TOLD_AFTER);
        let now = self.made.world.now();
        for &host in &self.alive {
            self.made.world.node_mut::<Host>(self.made.hosts[host]).forget(&dead, now);
        }
        self.pass(lasts.since(TOLD_AFTER));
        self.made.check_order().map_err(|what| miette!("{what}"))?;
        let (delivered, took, failed) = self.sums();
        let (delivered, took) = (delivered - self.before.0, took - self.before.1);
        let stalls = self.alive.iter().map(|&n| self.made.world.node::<Host>(self.made.hosts[n]).stall);
        Ok(Row {
            hosts: self.alive.len(),
            delivered,
            mean_ns: took as f64 / delivered.max(1) as f64,
            stall: stalls.max().unwrap_or_default(),
            failed: failed - self.before.2,
        })
    }
}

/// Something that failed on the testbed, and what those who go on saw of it
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// What
    pub what: &'static str,
    /// Hosts that go on
    pub hosts: usize,
    /// Messages that they delivered afterwards
    pub delivered: usize,
    /// The longest time in which the barrier of one of them did not rise
    pub stall: Nanos,
}

/// What happens when nothing fails, and then a host, a host's link and a rack's switch, one after the other: best effort.
///
/// # Errors
/// Order was violated.
pub fn failures(incarnation: Incarnation, seed: u64) -> Result<Vec<Failed>, Report> {
    let mut run = Run::new(incarnation, seed);
    // Barriers come down for the first time.
    run.pass(Nanos::from_micros(60));
    let happenings = [
        ("nothing", Happens::Nothing),
        ("host", Happens::HostDies),
        ("host link", Happens::LinkDies),
        ("ToR switch", Happens::SwitchDies),
    ];
    let one = |(what, happens)| {
        let Row { hosts, delivered, stall, .. } = run.row(happens, Nanos::from_micros(150))?;
        Ok(Failed { what, hosts, delivered, stall })
    };
    happenings.into_iter().map(one).collect()
}

const fn name(incarnation: Incarnation) -> &'static str {
    match incarnation {
        Incarnation::Chip => "chip",
        Incarnation::SwitchCpu => "switch-cpu",
        Incarnation::Host => "host",
    }
}

/// What the demonstration is drawn from
const SEED: u64 = 1;

/// What is shown so far
struct Shown {
    json: bool,
    /// Lines that stand there, to be written over
    lines: usize,
    rows: Vec<Value>,
}

const COLUMNS: [&str; 8] =
    ["barriers", "time us", "what happens", "hosts", "delivered", "failed", "mean us", "longest stall us"];

impl Shown {
    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let cell = |text: String, column: usize| {
            let words = column == 0 || column == 2;
            let side = if words { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(side)
        };
        table.set_header(COLUMNS.iter().enumerate().map(|(n, column)| cell((*column).into(), n)));
        for row in &self.rows {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
            let key = |column: &str| text(&row[column.replace(' ', "_")]);
            table.add_row(COLUMNS.iter().enumerate().map(|(n, column)| cell(key(column), n)));
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

/// Shows it, row by row. Fails if order is violated, or somebody's barrier stands still for good.
///
/// # Errors
/// So it was.
pub fn demo(args: &DemoArgs) -> Result<(), Report> {
    let lasts = Nanos::from_micros(if args.quick { 150 } else { 300 });
    let mut shown = Shown { json: args.json, lines: 0, rows: Vec::new() };
    if !args.json {
        println!(
            "The paper's testbed in virtual time: 32 hosts in 4 racks, 4 spine and 2 core switches, links of 100 Gb/s and 500 ns,\n\
             beacons every {} us. Every host broadcasts to all, every 15 us on average; all deliver in one order, which is\n\
             checked. Barriers are kept in the switches (chip), on their CPUs (switch-cpu), or on a host beside each (host).\n\
             Whoever is silent for ten intervals is dead, and the others go on; 50 us after a failure they are told whom to\n\
             send nothing to.\n",
            BEACON_INTERVAL.0 / 1000
        );
    }
    let all = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];
    let happenings = [Happens::Nothing, Happens::HostDies, Happens::LinkDies, Happens::SwitchDies];
    for incarnation in all {
        let mut run = Run::new(incarnation, SEED);
        // Barriers come down for the first time.
        run.pass(Nanos::from_micros(60));
        for happens in happenings {
            let row = run.row(happens, lasts)?;
            if row.delivered == 0 || row.stall.0 > 20 * BEACON_INTERVAL.0 {
                let what = happens.name();
                return Err(miette!(
                    "{}, {what}: barriers stand still for {} ns",
                    name(incarnation),
                    row.stall.0
                ));
            }
            let last = incarnation == all[2] && happens == happenings[3];
            let us = |ns: f64| (ns / 10.0).round() / 100.0;
            let value = json!({
                "barriers": name(incarnation),
                "time_us": run.at.0 / 1000,
                "what_happens": happens.name(),
                "hosts": row.hosts,
                "delivered": row.delivered,
                "failed": row.failed,
                "mean_us": us(row.mean_ns),
                "longest_stall_us": us(row.stall.0 as f64),
            });
            shown.add(value, last)?;
        }
    }
    if !args.json {
        println!("\nOne order everywhere, in every row.");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_dies_stalls_the_others_for_ten_intervals_and_no_longer() {
        for incarnation in [Incarnation::Chip, Incarnation::Host] {
            let mut run = Run::new(incarnation, SEED);
            run.pass(Nanos::from_micros(60));
            let lasts = Nanos::from_micros(120);
            let well = run.row(Happens::Nothing, lasts).unwrap();
            assert!(well.hosts == 32 && well.delivered > 5_000, "{incarnation:?}: {well:?}");
            assert!(well.failed == 0 && well.stall.0 < 4 * BEACON_INTERVAL.0, "{incarnation:?}: {well:?}");
            for (happens, hosts) in
                [(Happens::HostDies, 31), (Happens::LinkDies, 30), (Happens::SwitchDies, 22)]
            {
                let row = run.row(happens, lasts).unwrap();
                assert!(row.hosts == hosts && row.delivered > 1_000, "{incarnation:?} {happens:?}: {row:?}");
                let intervals = row.stall.0 / BEACON_INTERVAL.0;
                assert!((8..18).contains(&intervals), "{incarnation:?} {happens:?}: {row:?}");
                assert!(row.failed > 0, "what was sent to the dead: {row:?}");
            }
        }
    }
}

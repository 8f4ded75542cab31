//! `understudy bench consensus`: the packets and goodput of a leader with and without the switch, and the
//! cost of failures, in virtual time: the same numbers on any machine.

use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use miette::{IntoDiagnostic as _, Report, miette};
use serde_json::{Value, json};
use std::io::Write as _;
use switch::Nanos;
use workloads::consensus::costs::{self, Failure, LeaderRates, Load, pause};

/// Rate of every link, in bits a second: the leader's link is the bottleneck
pub(crate) const RATE: u64 = 10_000_000_000;
/// Seed of every run
const SEED: u64 = 1;
const SIZES: [usize; 5] = [64, 512, 1024, 4096, 8192];

/// Compare consensus with and without the switch: packets, goodput, fail-over (simulated; about a minute)
#[derive(Args)]
pub struct ConsensusArgs {
    /// Number of times at which each failure is tried
    #[arg(long, default_value_t = 5)]
    moments: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the comparison and prints it.
pub fn run(args: &ConsensusArgs) -> Result<(), Report> {
    let packets = packets()?;
    let goodput = goodput()?;
    let failures = failures(args.moments)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({ "packets": packets, "goodput": goodput, "failures": failures });
        return writeln!(out, "{all}").into_diagnostic();
    }
    let text = [
        "The leader's packets for each value of 64 bytes (heartbeats excluded):".into(),
        table(&packets, &["replicas", "out", "in", "out_through", "in_through"]),
        format!("\nGoodput of a leader with a link of {} Gb/s:", RATE / 1_000_000_000),
        table(&goodput, &["replicas", "value_bytes", "gbps", "gbps_through", "ratio"]),
        format!(
            "\nTime (us) without decisions after a crash, with heartbeats every 100 us (median of {} crash times):",
            args.moments
        ),
        table(&failures, &["replicas", "crashed", "us", "us_through", "ratio"]),
        format!(
            "\nA crashed switch restarts after {} ms or slightly more; until then no host can reach another host. Columns \
             `through`: with the switch.",
            costs::OUTAGE.0 / 1_000_000
        ),
    ];
    writeln!(out, "{}", text.join("\n")).into_diagnostic()
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn simulation_error(error: String) -> Report {
    miette!("{error}")
}

/// Rates of a leader without the switch and with it
#[derive(Clone, Copy, Debug)]
pub struct RateComparison {
    /// Number of replicas besides the leader
    pub replicas: u8,
    /// Size of a value, in bytes
    pub size: usize,
    /// Rates without the switch
    pub without_switch: LeaderRates,
    /// Rates with the switch
    pub with_switch: LeaderRates,
}

impl RateComparison {
    /// Measures the rates without the switch and with it.
    ///
    /// # Errors
    /// The simulation's error.
    pub fn measure(replicas: u8, size: usize, seed: u64) -> Result<Self, Report> {
        let load =
            |through_switch| Load { replicas, size, through_switch, rate_bps: RATE, window: None, seed };
        let without_switch = load(false).rates().map_err(simulation_error)?;
        let with_switch = load(true).rates().map_err(simulation_error)?;
        Ok(Self { replicas, size, without_switch, with_switch })
    }
}

/// Times without decisions after a crash, without the switch and with it
#[derive(Clone, Copy, Debug)]
pub struct PauseComparison {
    /// Number of replicas besides the leader
    pub replicas: u8,
    /// The component that crashes
    pub failure: Failure,
    /// Median without the switch
    pub without_switch: Nanos,
    /// Median with the switch
    pub with_switch: Nanos,
}

impl PauseComparison {
    /// Measures the times without the switch and with it, as medians over `moments` crash times.
    ///
    /// # Errors
    /// The simulation's error.
    pub fn measure(replicas: u8, failure: Failure, moments: u64, seed: u64) -> Result<Self, Report> {
        let (without_switch, _) = pause(failure, false, replicas, moments, seed).map_err(simulation_error)?;
        let (with_switch, _) = pause(failure, true, replicas, moments, seed).map_err(simulation_error)?;
        Ok(Self { replicas, failure, without_switch, with_switch })
    }
}

fn packets() -> Result<Vec<Value>, Report> {
    let row = |replicas: u8| {
        let RateComparison { without_switch, with_switch, .. } = RateComparison::measure(replicas, 64, SEED)?;
        Ok(json!({
            "replicas": replicas,
            "out": rounded(without_switch.packets_out, 2),
            "in": rounded(without_switch.packets_in, 2),
            "out_through": rounded(with_switch.packets_out, 2),
            "in_through": rounded(with_switch.packets_in, 2),
        }))
    };
    [2, 4, 8].into_iter().map(row).collect()
}

fn goodput() -> Result<Vec<Value>, Report> {
    let mut rows = Vec::new();
    for replicas in [2, 4] {
        for size in SIZES {
            let RateComparison { without_switch, with_switch, .. } =
                RateComparison::measure(replicas, size, SEED)?;
            rows.push(json!({
                "replicas": replicas,
                "value_bytes": size,
                "gbps": rounded(without_switch.goodput_bps / 1e9, 2),
                "gbps_through": rounded(with_switch.goodput_bps / 1e9, 2),
                "ratio": rounded(with_switch.goodput_bps / without_switch.goodput_bps, 2),
            }));
        }
    }
    Ok(rows)
}

fn failures(moments: u64) -> Result<Vec<Value>, Report> {
    let mut rows = Vec::new();
    for replicas in [2, 4] {
        for failure in Failure::ALL {
            let PauseComparison { without_switch, with_switch, .. } =
                PauseComparison::measure(replicas, failure, moments, SEED)?;
            let us = |span: Nanos| rounded(span.0 as f64 / 1000.0, 1);
            rows.push(json!({
                "replicas": replicas,
                "crashed": failure.name(),
                "us": us(without_switch),
                "us_through": us(with_switch),
                "ratio": (without_switch.0 > 0).then(|| rounded(with_switch.0 as f64 / without_switch.0 as f64, 2)),
            }));
        }
    }
    Ok(rows)
}

fn rounded(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

fn table(rows: &[Value], columns: &[&str]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let cell = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(columns.iter().map(|column| cell(column.replace('_', " "))));
    for row in rows {
        let text = |value: &Value| match value {
            Value::Null => "-".into(),
            Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        table.add_row(columns.iter().map(|column| cell(text(&row[column]))));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

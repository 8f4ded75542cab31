//! `understudy bench consensus`: what a leader saves with the switch, and what failures cost, in virtual time: the same
//! numbers on any machine.

use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use miette::{IntoDiagnostic as _, Report, miette};
use serde_json::{Value, json};
use sim::consensus::costs::{self, Failure, LeaderRates, Load, pause};
use std::io::Write as _;
use switch::Nanos;

/// Bits a second of every link: the leader's is the limit
pub(crate) const RATE: u64 = 10_000_000_000;
/// Of every run
const SEED: u64 = 1;
const SIZES: [usize; 5] = [64, 512, 1024, 4096, 8192];

/// Compare consensus with and without the switch: packets, goodput, fail-over (simulated; about a minute)
#[derive(Args)]
pub struct ConsensusArgs {
    /// Moments at which each failure is tried
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
        "The leader's packets for each value of 64 bytes (beside heartbeats, of which there are few):".into(),
        table(&packets, &["replicas", "out", "in", "out_through", "in_through"]),
        format!("\nGoodput of a leader with a link of {} Gb/s:", RATE / 1_000_000_000),
        table(&goodput, &["replicas", "value_bytes", "gbps", "gbps_through", "ratio"]),
        format!(
            "\nFor how long (us) nothing is decided when one crashes, with heartbeats of 100 us (median of {} moments):",
            args.moments
        ),
        table(&failures, &["replicas", "crashed", "us", "us_through", "ratio"]),
        format!(
            "\nA crashed switch begins anew after {} ms or somewhat more; nobody reaches anybody meanwhile. `through`: by the \
             switch.",
            costs::OUTAGE.0 / 1_000_000
        ),
    ];
    writeln!(out, "{}", text.join("\n")).into_diagnostic()
}

#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn wrong(error: String) -> Report {
    miette!("{error}")
}

/// A leader's pace without the switch and with it
#[derive(Clone, Copy, Debug)]
pub struct Paces {
    /// Replicas beside it
    pub replicas: u8,
    /// Bytes of a value
    pub size: usize,
    /// Without
    pub directly: LeaderRates,
    /// With
    pub through: LeaderRates,
}

impl Paces {
    /// Measures both.
    ///
    /// # Errors
    /// What was wrong with a run.
    pub fn measure(replicas: u8, size: usize, seed: u64) -> Result<Self, Report> {
        let load = |through| Load { replicas, size, through, rate_bps: RATE, window: None, seed };
        let directly = load(false).pace().map_err(wrong)?;
        let through = load(true).pace().map_err(wrong)?;
        Ok(Self { replicas, size, directly, through })
    }
}

/// How long nothing is decided when something crashes, without the switch and with it
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// Replicas beside the leader
    pub replicas: u8,
    /// What crashes
    pub failure: Failure,
    /// Without, the median
    pub directly: Nanos,
    /// With
    pub through: Nanos,
}

impl Pauses {
    /// Measures both, at so many moments.
    ///
    /// # Errors
    /// What was wrong with a run.
    pub fn measure(replicas: u8, failure: Failure, moments: u64, seed: u64) -> Result<Self, Report> {
        let (directly, _) = pause(failure, false, replicas, moments, seed).map_err(wrong)?;
        let (through, _) = pause(failure, true, replicas, moments, seed).map_err(wrong)?;
        Ok(Self { replicas, failure, directly, through })
    }
}

fn packets() -> Result<Vec<Value>, Report> {
    let row = |replicas: u8| {
        let Paces { directly, through, .. } = Paces::measure(replicas, 64, SEED)?;
        Ok(json!({
            "replicas": replicas,
            "out": rounded(directly.packets_out, 2),
            "in": rounded(directly.packets_in, 2),
            "out_through": rounded(through.packets_out, 2),
            "in_through": rounded(through.packets_in, 2),
        }))
    };
    [2, 4, 8].into_iter().map(row).collect()
}

fn goodput() -> Result<Vec<Value>, Report> {
    let mut rows = Vec::new();
    for replicas in [2, 4] {
        for size in SIZES {
            let Paces { directly, through, .. } = Paces::measure(replicas, size, SEED)?;
            rows.push(json!({
                "replicas": replicas,
                "value_bytes": size,
                "gbps": rounded(directly.goodput_bps / 1e9, 2),
                "gbps_through": rounded(through.goodput_bps / 1e9, 2),
                "ratio": rounded(through.goodput_bps / directly.goodput_bps, 2),
            }));
        }
    }
    Ok(rows)
}

fn failures(moments: u64) -> Result<Vec<Value>, Report> {
    let mut rows = Vec::new();
    for replicas in [2, 4] {
        for failure in Failure::ALL {
            let Pauses { directly, through, .. } = Pauses::measure(replicas, failure, moments, SEED)?;
            let us = |span: Nanos| rounded(span.0 as f64 / 1000.0, 1);
            rows.push(json!({
                "replicas": replicas,
                "crashed": failure.name(),
                "us": us(directly),
                "us_through": us(through),
                "ratio": (directly.0 > 0).then(|| rounded(through.0 as f64 / directly.0 as f64, 2)),
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

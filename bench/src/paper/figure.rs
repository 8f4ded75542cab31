//! Figures and tables of papers: what the paper reports, what is measured here, and whether the shape is the
//! same.

use clap::ValueEnum;
use core::fmt::{self, Write as _};
use miette::Report;
use serde::{Deserialize, Serialize};

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    /// 1Pipe: Scalable Total Order Communication in Data Center Networks
    #[value(name = "1pipe")]
    #[serde(rename = "1pipe")]
    OnePipe,
    /// P4CE: Consensus over RDMA at Line Speed
    P4ce,
    /// Swordbox: Accelerating Shared Access in RDMA-based Disaggregated Memory
    Swordbox,
    /// RDMC: A Reliable RDMA Multicast for Large Objects
    Rdmc,
}

impl Paper {
    /// All papers
    pub const ALL: [Self; 4] = [Self::OnePipe, Self::P4ce, Self::Swordbox, Self::Rdmc];

    /// Returns the name on the command line.
    pub const fn key(self) -> &'static str {
        match self {
            Self::OnePipe => "1pipe",
            Self::P4ce => "p4ce",
            Self::Swordbox => "swordbox",
            Self::Rdmc => "rdmc",
        }
    }

    /// Returns the name of the system.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnePipe => "1Pipe",
            Self::P4ce => "P4CE",
            Self::Swordbox => "Swordbox",
            Self::Rdmc => "RDMC",
        }
    }
}

/// Options of all experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether experiments are shorter and have fewer points
    pub quick: bool,
    /// Seed of all random choices
    pub seed: u64,
}

impl Settings {
    /// Returns `quick` or `full`, by [`quick`](Self::quick).
    pub fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Paper that has it
    pub paper: Paper,
    /// Number in the paper, such as `fig5`, or a keyword if it has none
    pub id: &'static str,
    /// Title
    pub title: &'static str,
    /// Result in the paper
    pub paper_result: &'static str,
    /// How it is reproduced here
    pub reproduction: Reproduction,
    /// Why it does not hold in all checks, if it does not
    pub in_part: Option<Reason>,
}

/// Why a figure does not hold in all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Reason
    pub why: &'static str,
    /// What has to change for it to hold
    pub plan: &'static str,
}

/// How a figure is reproduced.
#[derive(Clone, Copy, Debug)]
pub enum Reproduction {
    /// By an experiment
    Measured {
        /// Description of the experiment
        how: &'static str,
        /// Whether the experiment depends on [`Settings::seed`]
        random: bool,
        /// Source of the numbers
        source: NumberSource,
        /// Function that runs the experiment
        run: fn(&Settings) -> Result<Outcome, Report>,
    },
    /// Not reproduced, for this reason
    Omitted(&'static str),
}

/// Source of a figure's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberSource {
    /// Simulation of packets in virtual time
    Packets,
    /// Formulas of a model, without packets: the model's assumptions hold by construction
    Model,
}

impl NumberSource {
    /// Returns the heading of the description of the measured numbers in reports.
    pub(super) const fn heading(self) -> &'static str {
        match self {
            Self::Packets => "Ours",
            Self::Model => "Ours (computed by a model, not measured)",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.paper.key(), self.id)
    }
}

impl Figure {
    /// Returns a figure that is measured by simulating packets.
    pub(super) const fn measured(
        (paper, id, title): (Paper, &'static str, &'static str),
        paper_result: &'static str,
        how: &'static str,
        run: fn(&Settings) -> Result<Outcome, Report>,
    ) -> Self {
        Self {
            paper,
            id,
            title,
            paper_result,
            reproduction: Reproduction::Measured { how, random: true, source: NumberSource::Packets, run },
            in_part: None,
        }
    }

    /// Returns a figure that is computed by a model without random input.
    pub(super) const fn computed(
        (paper, id, title): (Paper, &'static str, &'static str),
        paper_result: &'static str,
        how: &'static str,
        run: fn(&Settings) -> Result<Outcome, Report>,
    ) -> Self {
        Self {
            paper,
            id,
            title,
            paper_result,
            reproduction: Reproduction::Measured { how, random: false, source: NumberSource::Model, run },
            in_part: None,
        }
    }

    /// Returns a figure that is computed by a model, from random objects.
    pub(super) const fn computed_from_random(
        (paper, id, title): (Paper, &'static str, &'static str),
        paper_result: &'static str,
        how: &'static str,
        run: fn(&Settings) -> Result<Outcome, Report>,
    ) -> Self {
        Self {
            paper,
            id,
            title,
            paper_result,
            reproduction: Reproduction::Measured { how, random: true, source: NumberSource::Model, run },
            in_part: None,
        }
    }

    /// Returns a figure that is not reproduced.
    pub(super) const fn omitted(
        (paper, id, title): (Paper, &'static str, &'static str),
        paper_result: &'static str,
        why: &'static str,
    ) -> Self {
        Self { paper, id, title, paper_result, reproduction: Reproduction::Omitted(why), in_part: None }
    }

    /// Returns this figure with the reason why it does not hold in all checks, and with what has to change.
    pub(super) const fn in_part(self, why: &'static str, plan: &'static str) -> Self {
        Self { in_part: Some(Reason { why, plan }), ..self }
    }

    /// Returns the command that measures this figure, unless there is a result.
    pub fn command(&self, settings: &Settings) -> String {
        let mut command = format!("understudy bench paper {} --only {}", self.paper.key(), self.id);
        if settings.quick {
            command.push_str(" --quick");
        }
        if settings.seed != 1 {
            _ = write!(command, " --seed {}", settings.seed);
        }
        command
    }

    /// Returns the command that measures this figure again, even if there is a result.
    pub fn fresh_command(&self, settings: &Settings) -> String {
        self.command(settings) + " --fresh"
    }

    /// Returns the beginning of the names of the figure's files.
    pub fn file_name(&self, settings: &Settings) -> String {
        format!("{}-{}{}", self.paper.key(), self.id, settings.choose(".quick", ""))
    }
}

/// Origin of a series
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The paper, or its authors' own data
    Paper,
    /// Measured here
    Ours,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name in legends
    pub name: String,
    /// Origin
    #[serde(rename = "whose")]
    pub origin: Origin,
    /// Points, x and y
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Returns a curve that was measured here.
    pub fn ours(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), origin: Origin::Ours, points: points.into_iter().collect() }
    }

    /// Returns a curve of the paper.
    pub fn paper(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), origin: Origin::Paper, points: points.into_iter().collect() }
    }

    /// Returns the value at `x`, if there is a point.
    pub fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|point| (point.0 - x).abs() <= 1e-9 * x.abs()).map(|point| point.1)
    }

    /// Returns the value of the last point; NaN if there is none.
    pub fn last(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |point| point.1)
    }
}

/// Unit of the points on an axis. Labels have the unit of the same kind that fits the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Counts and ratios
    Number,
    /// Millions of a count
    Millions,
    /// Percent
    Percent,
    /// Microseconds
    Us,
    /// Milliseconds
    Ms,
    /// Seconds
    S,
    /// Bytes
    Bytes,
    /// 1,024 bytes
    KiB,
    /// Gigabits a second
    Gbps,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Quantity
    pub label: String,
    /// Unit of the points
    pub unit: Unit,
    /// Whether it is logarithmic
    pub log: bool,
    /// Position of zero on a logarithmic axis, if it has one
    pub zero: Option<f64>,
}

impl Axis {
    /// Returns a linear axis.
    pub fn linear(label: &str, unit: Unit) -> Self {
        Self { label: label.into(), unit, log: false, zero: None }
    }

    /// Returns a logarithmic axis.
    pub fn log(label: &str, unit: Unit) -> Self {
        Self { label: label.into(), unit, log: true, zero: None }
    }

    /// Returns this axis with a tick that stands for zero.
    #[must_use]
    pub fn with_zero_at(self, position: f64) -> Self {
        Self { zero: Some(position), ..self }
    }
}

/// Curves on common axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// Title
    pub title: String,
    /// Horizontal axis
    pub x: Axis,
    /// Vertical axis
    pub y: Axis,
    /// Curves
    pub series: Vec<Series>,
}

/// A measured number, and the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Quantity and unit
    pub what: String,
    /// The paper's number, as printed there; `None` if the paper has none
    pub paper: Option<String>,
    /// The measured number
    pub ours: f64,
}

/// A distribution of latencies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Name in file names
    pub name: String,
    /// Latencies in nanoseconds, and their counts
    pub counts: Vec<(u64, u64)>,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Expectation
    pub what: String,
    /// Observed values
    pub seen: String,
    /// Whether the expectation holds
    pub holds: bool,
}

impl Check {
    pub(super) fn new(what: impl Into<String>, seen: String, holds: bool) -> Self {
        Self { what: what.into(), seen, holds }
    }
}

/// Result of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Plots
    pub plots: Vec<Plot>,
    /// Numbers
    pub values: Vec<Value>,
    /// Checks of whether the shape is the paper's
    pub checks: Vec<Check>,
    /// Distributions of latencies
    pub histograms: Vec<Distribution>,
}

impl Outcome {
    /// Adds a plot.
    pub(super) fn plot(&mut self, title: &str, x: Axis, y: Axis, series: Vec<Series>) {
        self.plots.push(Plot { title: title.into(), x, y, series });
    }

    /// Adds a number.
    pub(super) fn value(&mut self, what: impl Into<String>, paper: Option<&str>, ours: f64) {
        self.values.push(Value { what: what.into(), paper: paper.map(Into::into), ours });
    }

    /// Returns the verdict of all checks. Without any check, the shape does not hold.
    pub fn verdict(&self) -> Verdict {
        let holds = self.checks.iter().filter(|check| check.holds).count();
        match holds {
            0 => Verdict::No,
            all if all == self.checks.len() => Verdict::Holds,
            _ => Verdict::Partly,
        }
    }
}

/// Whether the paper's shape holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// In all checks
    Holds,
    /// In some checks
    Partly,
    /// In no check
    No,
}

impl Verdict {
    /// Returns the verdict's wording in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Partly => "in part",
            Self::No => "does not hold",
        }
    }
}

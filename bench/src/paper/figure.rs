//! A figure or table of a paper: what the paper says, what is measured here, and whether the shape is the same.

use super::shape::Check;
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
    /// All of them
    pub const ALL: [Self; 4] = [Self::OnePipe, Self::P4ce, Self::Swordbox, Self::Rdmc];

    /// As it is called on the command line
    pub const fn key(self) -> &'static str {
        match self {
            Self::OnePipe => "1pipe",
            Self::P4ce => "p4ce",
            Self::Swordbox => "swordbox",
            Self::Rdmc => "rdmc",
        }
    }

    /// As it calls itself
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnePipe => "1Pipe",
            Self::P4ce => "P4CE",
            Self::Swordbox => "Swordbox",
            Self::Rdmc => "RDMC",
        }
    }
}

/// How experiments are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Shorter, and with fewer points
    pub quick: bool,
    /// For everything that is drawn
    pub seed: u64,
}

impl Settings {
    /// One or the other
    pub fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Of which paper
    pub paper: Paper,
    /// Its number there, such as `fig5`; what it is about, if it has none
    pub id: &'static str,
    /// What it is about
    pub title: &'static str,
    /// What the paper says of it
    pub says: &'static str,
    /// What there is of it here
    pub shown: Shown,
}

/// What there is of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Shown {
    /// It is measured
    Measured {
        /// How, in a sentence
        how: &'static str,
        /// Whether something is drawn at random for it, from [`Settings::seed`]
        drawn: bool,
        /// Where its numbers come from
        by: By,
        /// Does it.
        run: fn(&Settings) -> Result<Outcome, Report>,
    },
    /// It is not, for this reason
    Not(&'static str),
}

/// Where the numbers of a figure come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Packets that are simulated in virtual time
    Packets,
    /// The formulas of a model, without packets: what the model assumes holds by construction
    Model,
}

impl By {
    /// Heading of what a report says of our numbers
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
    /// A figure that is measured in packets
    pub(super) const fn measured(
        (paper, id, title): (Paper, &'static str, &'static str),
        says: &'static str,
        how: &'static str,
        run: fn(&Settings) -> Result<Outcome, Report>,
    ) -> Self {
        Self { paper, id, title, says, shown: Shown::Measured { how, drawn: true, by: By::Packets, run } }
    }

    /// A figure that is computed, of which nothing is drawn at random
    pub(super) const fn computed(
        (paper, id, title): (Paper, &'static str, &'static str),
        says: &'static str,
        how: &'static str,
        run: fn(&Settings) -> Result<Outcome, Report>,
    ) -> Self {
        Self { paper, id, title, says, shown: Shown::Measured { how, drawn: false, by: By::Model, run } }
    }

    /// A figure that is computed by a model, of objects that are drawn at random
    pub(super) const fn computed_of_drawn(
        (paper, id, title): (Paper, &'static str, &'static str),
        says: &'static str,
        how: &'static str,
        run: fn(&Settings) -> Result<Outcome, Report>,
    ) -> Self {
        Self { paper, id, title, says, shown: Shown::Measured { how, drawn: true, by: By::Model, run } }
    }

    /// A figure that is not
    pub(super) const fn not(
        (paper, id, title): (Paper, &'static str, &'static str),
        says: &'static str,
        why: &'static str,
    ) -> Self {
        Self { paper, id, title, says, shown: Shown::Not(why) }
    }

    /// What repeats it alone
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

    /// What measures it anew, though it is there.
    pub fn again(&self, settings: &Settings) -> String {
        self.command(settings) + " --fresh"
    }

    /// A name for files
    pub fn file_name(&self, settings: &Settings) -> String {
        format!("{}-{}{}", self.paper.key(), self.id, settings.choose(".quick", ""))
    }
}

/// Who a series is from
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whose {
    /// The paper, or its authors' own data
    Paper,
    /// Ours
    Ours,
}

/// A curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What it is
    pub name: String,
    /// Who says so
    pub whose: Whose,
    /// x and y
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A curve of ours
    pub fn ours(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), whose: Whose::Ours, points: points.into_iter().collect() }
    }

    /// One of the paper
    pub fn paper(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { name: name.into(), whose: Whose::Paper, points: points.into_iter().collect() }
    }

    /// The value at `x`, if there is one
    pub fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|point| (point.0 - x).abs() <= 1e-9 * x.abs()).map(|point| point.1)
    }

    /// The value of the last point
    pub fn last(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |point| point.1)
    }
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows, and its unit
    pub label: String,
    /// Whether it is logarithmic
    pub log: bool,
}

impl Axis {
    /// A linear one
    pub fn linear(label: &str) -> Self {
        Self { label: label.into(), log: false }
    }

    /// A logarithmic one
    pub fn log(label: &str) -> Self {
        Self { label: label.into(), log: true }
    }
}

/// Curves in one system of axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// What is to be seen
    pub title: String,
    /// To the right
    pub x: Axis,
    /// Up
    pub y: Axis,
    /// The curves
    pub series: Vec<Series>,
}

/// A number that the paper and we have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// What it is, and its unit
    pub what: String,
    /// The paper's, as it says it; `None` where it says nothing
    pub paper: Option<String>,
    /// Ours
    pub ours: f64,
}

/// A distribution of latencies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// Of what
    pub name: String,
    /// Nanoseconds, and how often
    pub counts: Vec<(u64, u64)>,
}

/// What an experiment found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Curves
    pub plots: Vec<Plot>,
    /// Numbers
    pub values: Vec<Value>,
    /// Whether the shape is the paper's
    pub checks: Vec<Check>,
    /// Latencies
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

    /// What the checks come to
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
    /// In everything that is checked
    Holds,
    /// In some of it
    Partly,
    /// In nothing
    No,
}

impl Verdict {
    /// In a word
    pub const fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Partly => "in part",
            Self::No => "does not hold",
        }
    }
}

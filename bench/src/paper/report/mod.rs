//! The report of the papers' figures: as one HTML page, as Markdown and as JSON, with the same content; and
//! histogram files.

mod axis;
mod html;
mod markdown;
mod plot;
mod style;

use super::figure::{Figure, NumberSource, Outcome, Paper, Reason, Reproduction, Settings, Verdict};
use super::machine::Machine;
use super::results::{self, Record, Store};
use super::shape;
use core::fmt;
use hdrhistogram::Histogram;
use miette::{IntoDiagnostic as _, Report, WrapErr as _};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// An experiment that failed, and the reason
pub(super) type Failed = (&'static Figure, String);

/// State of a figure.
#[derive(Debug)]
pub(super) enum State {
    /// Measured
    Measured(Box<Record>),
    /// Not measured yet
    Pending,
    /// The experiment failed, with this error
    Failed(String),
    /// Not reproduced, for this reason
    Omitted(&'static str),
}

/// Numbers of figures by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    holds: usize,
    partly: usize,
    no: usize,
    failed: usize,
    not_measured: usize,
    not_shown: usize,
}

impl Tally {
    fn of<'a>(states: impl Iterator<Item = &'a State>) -> Self {
        let mut tally = Self::default();
        for state in states {
            let count = match state {
                State::Measured(record) => match record.outcome.verdict() {
                    Verdict::Holds => &mut tally.holds,
                    Verdict::Partly => &mut tally.partly,
                    Verdict::No => &mut tally.no,
                },
                State::Failed(_) => &mut tally.failed,
                State::Pending => &mut tally.not_measured,
                State::Omitted(_) => &mut tally.not_shown,
            };
            *count += 1;
        }
        tally
    }
}

/// Writes the headline of the report: how many of the figures that can be shown hold.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, partly, no, failed, not_measured, .. } = *self;
        write!(
            f,
            "{holds} of {} figures hold, {partly} in part",
            holds + partly + no + failed + not_measured
        )?;
        for (count, what) in [(no, "not at all"), (failed, "failed"), (not_measured, "not measured yet")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// Content of a report: every figure, in the papers' order.
pub(super) struct Content<'a> {
    pub(super) settings: &'a Settings,
    pub(super) machine: &'a Machine,
    pub(super) figures: Vec<(&'static Figure, State)>,
}

impl<'a> Content<'a> {
    /// Returns the content of a report about these figures.
    pub(super) fn new(
        figures: impl Iterator<Item = &'static Figure>,
        store: &Store,
        settings: &'a Settings,
        machine: &'a Machine,
        failed: &[Failed],
    ) -> Self {
        let state = |figure: &'static Figure| match figure.reproduction {
            Reproduction::Omitted(why) => State::Omitted(why),
            Reproduction::Measured { .. } => {
                let why = failed
                    .iter()
                    .find(|(other, _)| core::ptr::eq(*other, figure))
                    .map(|failed| failed.1.clone());
                why.map_or_else(
                    || {
                        store
                            .load(figure, settings)
                            .map_or(State::Pending, |record| State::Measured(Box::new(record)))
                    },
                    State::Failed,
                )
            }
        };
        Self { settings, machine, figures: figures.map(|figure| (figure, state(figure))).collect() }
    }

    pub(super) fn of(&self, paper: Paper) -> impl Iterator<Item = &(&'static Figure, State)> {
        self.figures.iter().filter(move |(figure, _)| figure.paper == paper)
    }

    /// Returns how many figures hold.
    pub(super) fn tally(&self) -> Tally {
        Tally::of(self.figures.iter().map(|figure| &figure.1))
    }

    /// Returns how many of a paper's figures hold.
    pub(super) fn tally_of(&self, paper: Paper) -> Tally {
        Tally::of(self.of(paper).map(|figure| &figure.1))
    }

    /// Returns the properties of the run, by name.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let Machine { program, commit, cpu, cpus, memory_mib, kernel, dpdk } = self.machine;
        let run = if self.settings.quick { "quick: shorter, with fewer points" } else { "full" };
        vec![
            ("Program", format!("understudy {program} (version, digest of the file)")),
            ("Commit", commit.clone().unwrap_or_else(|| "unknown".into())),
            ("Run", run.into()),
            ("Seed", self.settings.seed.to_string()),
            ("CPU", format!("{cpu}, {cpus} in use")),
            ("Memory", format!("{memory_mib} MiB")),
            ("Linux", kernel.clone()),
            ("DPDK", dpdk.clone()),
        ]
    }
}

/// Introduction of the report
pub(super) const PREFACE: &str = "This report compares the figures and tables of the four papers with what this program reproduces in \
    software. Results are measured in virtual time, or computed by a model where a figure states it. Software takes no time, and \
    the times of links and of the server's NIC are inputs. So numbers are the same on any machine, and only the shapes of figures \
    are comparable, not their absolute values. The checks below each figure compute from our numbers whether its shape holds.";

/// File names of the report
const HTML: &str = "report.html";
const MARKDOWN: &str = "report.md";
const JSON: &str = "report.json";

/// Writes the report about these figures beside the results. Returns a summary for the terminal.
pub(super) fn write(
    figures: impl Iterator<Item = &'static Figure>,
    store: &Store,
    settings: &Settings,
    machine: &Machine,
    failed: &[Failed],
) -> Result<String, Report> {
    let content = Content::new(figures, store, settings, machine, failed);
    let folder = store.folder();
    results::write(&folder.join(HTML), &html::page(&content)?)?;
    results::write(&folder.join(MARKDOWN), &markdown::text(&content))?;
    results::write(&folder.join(JSON), &serde_json::to_string_pretty(&json(&content)).into_diagnostic()?)?;
    let mut summary = markdown::summary(&content);
    let histograms = histograms(store, &content)?;
    _ = write!(summary, "\n{}", folder.join(HTML).display());
    _ = write!(summary, ", {MARKDOWN}, {JSON} and {histograms} histograms (.hgrm) beside it");
    Ok(summary)
}

/// Reason for a figure that has none
const NO_REASON: Reason = Reason {
    why: "not known: the figure holds in all checks with seed 1, both in full and with --quick",
    plan: "none yet",
};

/// Returns the reason why a figure does not hold in all checks, or `None` if it does.
pub(super) fn reason(figure: &Figure, outcome: &Outcome) -> Option<Reason> {
    (outcome.verdict() != Verdict::Holds).then(|| figure.in_part.unwrap_or(NO_REASON))
}

fn histograms(store: &Store, content: &Content<'_>) -> Result<usize, Report> {
    let folder = store.folder().join("histograms");
    let mut written = 0;
    for (figure, state) in &content.figures {
        let State::Measured(record) = state else { continue };
        for distribution in &record.outcome.histograms {
            std::fs::create_dir_all(&folder)
                .into_diagnostic()
                .wrap_err("cannot create the folder for histograms")?;
            // Three digits, as the generator's histograms have
            let mut histogram = Histogram::<u64>::new(3).into_diagnostic()?;
            for &(ns, count) in &distribution.counts {
                histogram.record_n(ns, count).into_diagnostic()?;
            }
            let name = format!("{}-{}.hgrm", figure.file_name(content.settings), distribution.name);
            results::write(&folder.join(name), &crate::hgrm::text(&histogram))?;
            written += 1;
        }
    }
    Ok(written)
}

fn json(content: &Content<'_>) -> Value {
    let figure = |(figure, state): &(&'static Figure, State)| {
        let mut value = json!({
            "paper": figure.paper.key(),
            "figure": figure.id,
            "title": figure.title,
            "paper_says": figure.paper_result,
        });
        match state {
            State::Measured(record) => {
                if let Reproduction::Measured { how, source, .. } = figure.reproduction {
                    value["how"] = json!(how);
                    value["computed"] = json!(source == NumberSource::Model);
                }
                value["verdict"] = json!(record.outcome.verdict());
                value["reason"] = json!(reason(figure, &record.outcome));
                value["command"] = json!(record.command);
                value["cpu_seconds"] = json!(record.cpu_seconds);
                value["outcome"] = json!({
                    "plots": record.outcome.plots,
                    "values": record.outcome.values,
                    "checks": record.outcome.checks,
                });
            }
            State::Pending => value["not_measured_yet"] = json!(figure.command(content.settings)),
            State::Failed(why) => value["failed"] = json!(why),
            State::Omitted(why) => value["not_shown"] = json!(why),
        }
        value
    };
    json!({
        "headline": content.tally().to_string(),
        "verdicts": content.tally(),
        "machine": content.machine,
        "settings": content.settings,
        "figures": content.figures.iter().map(figure).collect::<Vec<_>>(),
    })
}

/// Formats a measured number.
pub(super) fn number(value: f64) -> String {
    shape::text(value)
}

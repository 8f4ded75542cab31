//! The report of the papers' figures: as one HTML page, as Markdown and as JSON, with the same content; and
//! histogram files.

mod axis;
mod html;
mod markdown;
mod plot;
mod style;

use super::figure::{Figure, NumberSource, Paper, Reproduction, Settings};
use super::machine::Machine;
use super::results::{self, Record, Store};
use super::shape;
use hdrhistogram::Histogram;
use miette::{IntoDiagnostic as _, Report, WrapErr as _};
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
        "machine": content.machine,
        "settings": content.settings,
        "figures": content.figures.iter().map(figure).collect::<Vec<_>>(),
    })
}

/// Formats a measured number.
pub(super) fn number(value: f64) -> String {
    shape::text(value)
}

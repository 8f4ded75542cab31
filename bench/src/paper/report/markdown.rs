//! The report as Markdown: without the curves, whose points are in the JSON.

use super::super::figure::{Figure, Paper, Shown};
use super::{Content, PREFACE, State, number};
use core::fmt::Write as _;

/// Escapes text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn word(state: &State) -> &'static str {
    match state {
        State::Done(record) => record.outcome.verdict().name(),
        State::Open => "not measured yet",
        State::Failed(_) => "failed",
        State::Not(_) => "not shown",
    }
}

/// Returns a line for each figure that was measured or failed.
pub(super) fn summary(content: &Content<'_>) -> String {
    let mut text = String::new();
    for (figure, state) in
        content.figures.iter().filter(|(_, state)| !matches!(state, State::Not(_) | State::Open))
    {
        _ = writeln!(
            text,
            "{:<9} {:<16} {:<15} {}",
            figure.paper.key(),
            figure.id,
            word(state),
            figure.title
        );
    }
    text
}

/// Returns the whole report.
pub(super) fn text(content: &Content<'_>) -> String {
    let mut text = format!("# The papers' figures, in software\n\n{PREFACE}\n\n| | |\n|---|---|\n");
    for (name, fact) in content.facts() {
        _ = writeln!(text, "| {name} | {} |", cell(&fact));
    }
    for paper in Paper::ALL {
        _ = write!(text, "\n## {}\n", paper.name());
        for (figure, state) in content.of(paper).filter(|(_, state)| !matches!(state, State::Not(_))) {
            section(&mut text, figure, state, content);
        }
        text.push_str("\n### Not shown\n\n| figure | paper | why not |\n|---|---|---|\n");
        for (figure, state) in content.of(paper) {
            let State::Not(why) = state else { continue };
            _ = writeln!(
                text,
                "| {}: {} | {} | {} |",
                figure.id,
                cell(figure.title),
                cell(figure.says),
                cell(why)
            );
        }
    }
    text
}

fn section(text: &mut String, figure: &Figure, state: &State, content: &Content<'_>) {
    _ = write!(text, "\n### {}: {}\n\nShape: **{}**\n\n", figure.id, figure.title, word(state));
    _ = writeln!(text, "- Paper: {}", figure.says);
    if let Shown::Measured { how, by, .. } = figure.shown {
        _ = writeln!(text, "- {}: {how}", by.heading());
    }
    let State::Done(record) = state else {
        _ = match state {
            State::Failed(why) => writeln!(text, "- Failed: {why}"),
            _ => writeln!(text, "- To do: `{}`", figure.command(content.settings)),
        };
        return;
    };
    _ = writeln!(
        text,
        "- Again: `{}` (seed {}, {} s of CPU)",
        record.command,
        record.settings.seed,
        number(record.cpu_seconds)
    );
    if !record.outcome.values.is_empty() {
        text.push_str("\n| | paper | ours |\n|---|---|---|\n");
        for value in &record.outcome.values {
            let paper = value.paper.as_deref().unwrap_or("");
            _ = writeln!(text, "| {} | {} | {} |", cell(&value.what), cell(paper), number(value.ours));
        }
    }
    text.push_str("\n| checked | found | holds |\n|---|---|---|\n");
    for check in &record.outcome.checks {
        let holds = if check.holds { "yes" } else { "no" };
        _ = writeln!(text, "| {} | {} | {holds} |", cell(&check.what), cell(&check.seen));
    }
}

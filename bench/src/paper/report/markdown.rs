//! The report as Markdown: without the curves, whose points are in the JSON.

use super::super::figure::{Figure, Paper, Reproduction};
use super::{Content, PREFACE, State, number};
use core::fmt::Write as _;

/// Escapes text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn wording(state: &State) -> &'static str {
    match state {
        State::Measured(record) => record.outcome.verdict().name(),
        State::Pending => "not measured yet",
        State::Failed(_) => "failed",
        State::Omitted(_) => "not shown",
    }
}

/// Returns the headline, and a line for each figure that was measured or failed.
pub(super) fn summary(content: &Content<'_>) -> String {
    let mut text = format!("{}\n\n", content.tally());
    for (figure, state) in
        content.figures.iter().filter(|(_, state)| !matches!(state, State::Omitted(_) | State::Pending))
    {
        _ = writeln!(
            text,
            "{:<9} {:<16} {:<15} {}",
            figure.paper.key(),
            figure.id,
            wording(state),
            figure.title
        );
    }
    text
}

/// Returns the whole report.
pub(super) fn text(content: &Content<'_>) -> String {
    let mut text = format!("# {}\n\n{PREFACE}\n\n| | |\n|---|---|\n", content.tally());
    for (name, fact) in content.facts() {
        _ = writeln!(text, "| {name} | {} |", cell(&fact));
    }
    for paper in Paper::ALL {
        _ = write!(text, "\n## {}\n\n{}\n", paper.name(), content.tally_of(paper));
        for (figure, state) in content.of(paper).filter(|(_, state)| !matches!(state, State::Omitted(_))) {
            section(&mut text, figure, state, content);
        }
        text.push_str("\n### Not shown\n\n| figure | paper | why not |\n|---|---|---|\n");
        for (figure, state) in content.of(paper) {
            let State::Omitted(why) = state else { continue };
            _ = writeln!(
                text,
                "| {}: {} | {} | {} |",
                figure.id,
                cell(figure.title),
                cell(figure.paper_result),
                cell(why)
            );
        }
    }
    text
}

fn section(text: &mut String, figure: &Figure, state: &State, content: &Content<'_>) {
    _ = write!(text, "\n### {}: {}\n\nShape: **{}**\n\n", figure.id, figure.title, wording(state));
    _ = writeln!(text, "- Paper: {}", figure.paper_result);
    if let Reproduction::Measured { how, source, .. } = figure.reproduction {
        _ = writeln!(text, "- {}: {how}", source.heading());
    }
    if let State::Measured(record) = state
        && let Some(reason) = super::reason(figure, &record.outcome)
    {
        _ = writeln!(text, "- Why: {}\n- Plan: {}", reason.why, reason.plan);
    }
    let State::Measured(record) = state else {
        _ = match state {
            State::Failed(why) => writeln!(text, "- Failed: {why}"),
            _ => writeln!(text, "- To do: `{}`", figure.command(content.settings)),
        };
        return;
    };
    _ = writeln!(
        text,
        "- Command: `{}` (seed {}, {} s of CPU)",
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

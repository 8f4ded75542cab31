//! The report as one self-contained HTML page.

use super::super::figure::{Figure, Origin, Outcome, Paper, Plot, Reproduction, Value, Verdict};
use super::style::STYLE;
use super::{Content, PREFACE, State, number, plot, reason};
use core::fmt::Write as _;
use miette::Report;

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the page.
pub(super) fn page(content: &Content<'_>) -> Result<String, Report> {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>understudy: the papers' figures</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>{}</h1>\n<p>{}</p>\n",
        content.tally(),
        escaped(PREFACE)
    );
    page.push_str("<dl class=\"run\">\n");
    for (name, fact) in content.facts() {
        _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escaped(&fact));
    }
    page.push_str("</dl>\n");
    overview(&mut page, content);
    for paper in Paper::ALL {
        _ = writeln!(
            page,
            "<h2 id=\"{}\">{} <span class=\"seen\">{}</span></h2>",
            paper.key(),
            paper.name(),
            content.tally_of(paper)
        );
        for (figure, state) in content.of(paper) {
            if !matches!(state, State::Omitted(_)) {
                article(&mut page, figure, state, content)?;
            }
        }
        not_shown(&mut page, content, paper);
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

const fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Partly => "partly",
        Verdict::No => "no",
    }
}

/// Returns the wording and the CSS class of a figure's state.
fn wording(state: &State) -> (&'static str, &'static str) {
    match state {
        State::Measured(record) => {
            let verdict = record.outcome.verdict();
            (verdict.name(), class(verdict))
        }
        State::Pending => ("not measured yet", "open"),
        State::Failed(_) => ("failed", "failed"),
        State::Omitted(_) => ("not shown", "open"),
    }
}

fn anchor(figure: &Figure) -> String {
    format!("{}-{}", figure.paper.key(), figure.id)
}

fn overview(page: &mut String, content: &Content<'_>) {
    page.push_str("<nav>\n");
    for paper in Paper::ALL {
        let (key, name, tally) = (paper.key(), paper.name(), content.tally_of(paper));
        _ = writeln!(
            page,
            "<section>\n<p><a href=\"#{key}\">{name}</a> <span class=\"seen\">{tally}</span></p>\n<ul>"
        );
        for (figure, state) in content.of(paper).filter(|(_, state)| !matches!(state, State::Omitted(_))) {
            let (wording, class) = wording(state);
            _ = writeln!(
                page,
                "<li><span><a href=\"#{}\">{}</a> {}</span><span class=\"state {class}\">{wording}</span></li>",
                anchor(figure),
                figure.id,
                escaped(figure.title)
            );
        }
        page.push_str("</ul>\n</section>\n");
    }
    page.push_str("</nav>\n");
}

fn term(page: &mut String, name: &str, text: &str) {
    _ = writeln!(page, "<p><span class=\"term\">{name}</span>{text}</p>");
}

fn article(page: &mut String, figure: &Figure, state: &State, content: &Content<'_>) -> Result<(), Report> {
    let (wording, class) = wording(state);
    _ = writeln!(
        page,
        "<article id=\"{}\">\n<h3>{}: {} <span class=\"verdict {class}\">{wording}</span></h3>",
        anchor(figure),
        figure.id,
        escaped(figure.title)
    );
    // Several plots are side by side above the text; a single one is the first part of it.
    let plots = if let State::Measured(record) = state { &record.outcome.plots[..] } else { &[] };
    if plots.len() > 1 {
        page.push_str("<div class=\"plots\">\n");
        plots.iter().try_for_each(|plot| drawing(page, plot))?;
        page.push_str("</div>\n");
    }
    page.push_str("<div class=\"columns\">\n");
    if let [plot] = plots {
        drawing(page, plot)?;
    }
    term(page, "Paper", &escaped(figure.paper_result));
    if let Reproduction::Measured { how, source, .. } = figure.reproduction {
        term(page, source.heading(), &escaped(how));
    }
    if let State::Measured(record) = state
        && let Some(reason) = reason(figure, &record.outcome)
    {
        page.push_str("<div class=\"reason\">\n");
        term(page, "Why", &escaped(reason.why));
        term(page, "Plan", &escaped(reason.plan));
        page.push_str("</div>\n");
    }
    match state {
        State::Measured(record) => {
            outcome(page, &record.outcome);
            let command = escaped(&record.command);
            term(
                page,
                "Command",
                &format!(
                    "<code>{command}</code> (seed {}, {} s of CPU)",
                    record.settings.seed,
                    number(record.cpu_seconds)
                ),
            );
        }
        State::Failed(why) => term(page, "Failed", &escaped(why)),
        _ => term(page, "To do", &format!("<code>{}</code>", escaped(&figure.command(content.settings)))),
    }
    page.push_str("</div>\n</article>\n");
    Ok(())
}

/// Adds the numbers and checks.
fn outcome(page: &mut String, outcome: &Outcome) {
    numbers(page, &outcome.values);
    page.push_str("<ul class=\"checks\">\n");
    for check in &outcome.checks {
        let (mark, class) = if check.holds { ("&#10003;", "holds") } else { ("&#10007;", "no") };
        _ = writeln!(
            page,
            "<li><span class=\"{class}\">{mark}</span> {} <span class=\"seen\">{}</span></li>",
            escaped(&check.what),
            escaped(&check.seen)
        );
    }
    page.push_str("</ul>\n");
}

/// Number of values from which on those that the paper does not have are folded
const MANY_VALUES: usize = 15;

fn numbers(page: &mut String, values: &[Value]) {
    let (shown, folded): (Vec<_>, Vec<_>) =
        values.iter().partition(|value| values.len() < MANY_VALUES || value.paper.is_some());
    if !shown.is_empty() {
        table(page, &shown);
    }
    if !folded.is_empty() {
        _ = writeln!(
            page,
            "<details>\n<summary>{} numbers that the paper does not have</summary>",
            folded.len()
        );
        table(page, &folded);
        page.push_str("</details>\n");
    }
}

fn table(page: &mut String, values: &[&Value]) {
    page.push_str("<table>\n<tr><th></th><th>Paper</th><th>Ours</th></tr>\n");
    for value in values {
        _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td></tr>",
            escaped(&value.what),
            escaped(value.paper.as_deref().unwrap_or("")),
            number(value.ours)
        );
    }
    page.push_str("</table>\n");
}

fn drawing(page: &mut String, plot: &Plot) -> Result<(), Report> {
    _ = writeln!(
        page,
        "<figure>\n<figcaption>{}</figcaption>\n{}",
        escaped(&plot.title),
        plot::svg(plot)?.trim()
    );
    // The title of a single curve is that of the plot.
    if plot.series.len() < 2 {
        page.push_str("</figure>\n");
        return Ok(());
    }
    page.push_str("<ul class=\"legend\">\n");
    for (n, series) in plot.series.iter().enumerate() {
        let class = if series.origin == Origin::Paper { " class=\"paper\"" } else { "" };
        let colour = plot::colour(plot, n);
        _ = writeln!(
            page,
            "<li><i{class} style=\"border-color:var(--c{colour})\"></i>{}</li>",
            escaped(&series.name)
        );
    }
    page.push_str("</ul>\n</figure>\n");
    Ok(())
}

fn not_shown(page: &mut String, content: &Content<'_>, paper: Paper) {
    let count = content.of(paper).filter(|(_, state)| matches!(state, State::Omitted(_))).count();
    _ = writeln!(
        page,
        "<details open=\"open\">\n<summary>Not shown ({count})</summary>\n<div class=\"wide\"><table>"
    );
    page.push_str("<tr><th>Figure</th><th>Paper</th><th>Why not</th></tr>\n");
    for (figure, state) in content.of(paper) {
        let State::Omitted(why) = state else { continue };
        _ = writeln!(
            page,
            "<tr><td>{}: {}</td><td>{}</td><td>{}</td></tr>",
            figure.id,
            escaped(figure.title),
            escaped(figure.paper_result),
            escaped(why)
        );
    }
    page.push_str("</table></div>\n</details>\n");
}

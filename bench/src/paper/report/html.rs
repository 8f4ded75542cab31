//! The report as one self-contained HTML page.

use super::super::figure::{Figure, Origin, Outcome, Paper, Plot, Reproduction, Verdict};
use super::style::STYLE;
use super::{Content, PREFACE, State, number, plot};
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
         <h1>The papers' figures, in software</h1>\n<p>{}</p>\n",
        escaped(PREFACE)
    );
    page.push_str("<div class=\"wide\"><table>\n");
    for (name, fact) in content.facts() {
        _ = writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&fact));
    }
    page.push_str("</table></div>\n");
    overview(&mut page, content);
    for paper in Paper::ALL {
        _ = writeln!(page, "<h2 id=\"{}\">{}</h2>", paper.key(), paper.name());
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
    page.push_str("<div class=\"wide\"><table>\n<tr><th>Paper</th><th>Figure</th><th>Shape</th></tr>\n");
    for (figure, state) in content.figures.iter().filter(|(_, state)| !matches!(state, State::Omitted(_))) {
        let (wording, class) = wording(state);
        _ = writeln!(
            page,
            "<tr><td>{}</td><td><a href=\"#{}\">{}</a> {}</td><td class=\"{class}\">{wording}</td></tr>",
            figure.paper.name(),
            anchor(figure),
            figure.id,
            escaped(figure.title)
        );
    }
    page.push_str("</table></div>\n");
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
    let term = |page: &mut String, name: &str, text: &str| {
        _ = writeln!(page, "<p><span class=\"term\">{name}</span>{text}</p>");
    };
    term(page, "Paper", &escaped(figure.paper_result));
    if let Reproduction::Measured { how, source, .. } = figure.reproduction {
        term(page, source.heading(), &escaped(how));
    }
    match state {
        State::Measured(record) => {
            outcome(page, &record.outcome)?;
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
    page.push_str("</article>\n");
    Ok(())
}

fn outcome(page: &mut String, outcome: &Outcome) -> Result<(), Report> {
    if !outcome.plots.is_empty() {
        page.push_str("<div class=\"plots\">\n");
        for plot in &outcome.plots {
            drawing(page, plot)?;
        }
        page.push_str("</div>\n");
    }
    if !outcome.values.is_empty() {
        page.push_str("<div class=\"wide\"><table>\n<tr><th></th><th>Paper</th><th>Ours</th></tr>\n");
        for value in &outcome.values {
            _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td></tr>",
                escaped(&value.what),
                escaped(value.paper.as_deref().unwrap_or("")),
                number(value.ours)
            );
        }
        page.push_str("</table></div>\n");
    }
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
    Ok(())
}

fn drawing(page: &mut String, plot: &Plot) -> Result<(), Report> {
    _ = writeln!(
        page,
        "<figure>\n<figcaption>{}</figcaption>\n{}",
        escaped(&plot.title),
        plot::svg(plot)?.trim()
    );
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

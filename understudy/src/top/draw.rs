//! The screen: ports, workers, drops and latency at the top, and a table of the function's own at the bottom.

use super::app::App;
use super::rates::{TableView, View, clock, short, time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

/// Minimum height of the table at the bottom, including its tabs and header
const TABLE: usize = 7;
/// Maximum number of workers shown, and of drops and latencies
const WORKERS: usize = 4;
const LINES: usize = 3;
/// Maximum number of drops and latencies on screens of at least this height
const MORE_LINES: usize = 8;
const TALL: u16 = 36;
/// Maximum width of a cell, and space between two columns, in characters
const WIDEST: usize = 40;
const SPACE: usize = 2;
const KEYS: &str = "q quit  p pause  tab next table  \u{2190}\u{2192} sort by  \u{2191}\u{2193} scroll";

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const HEAD: Style = Style::new().add_modifier(Modifier::DIM);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// A section with a header and rows. The first column is left-aligned, the others right-aligned.
struct Section {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Number of rows that did not fit
    more: usize,
}

pub(super) fn draw(app: &App, frame: &mut Frame<'_>) {
    let area = frame.area();
    let [top, body, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(area);
    frame.render_widget(title(app, top.width), top);
    frame.render_widget(Paragraph::new(Line::styled(KEYS, HEAD)), bottom);
    match (&app.view, &app.error) {
        (Some(view), _) => draw_view(app, view, frame, body),
        (None, Some(error)) => {
            let message = Paragraph::new(format!("\n{error}\n\nWaiting for the instance."));
            frame.render_widget(message.wrap(ratatui::widgets::Wrap { trim: true }), body);
        }
        (None, None) => frame.render_widget(Paragraph::new("\nConnecting."), body),
    }
}

/// Returns the title line: the instance on the left, its state on the right.
fn title(app: &App, width: u16) -> Line<'static> {
    let (name, uptime) = app.view.as_ref().map_or(("understudy".into(), String::new()), |view| {
        (view.title.clone(), format!("up {}", clock(view.uptime_s)))
    });
    let state = match (app.paused, app.error.is_some() && app.view.is_some()) {
        (_, true) => "DISCONNECTED, waiting  ",
        (true, false) => "PAUSED  ",
        (false, false) => "",
    };
    let right = format!("{state}{uptime}");
    let room = usize::from(width).saturating_sub(right.chars().count() + 1);
    let name: String = name.chars().take(room).collect();
    let gap = " ".repeat(usize::from(width).saturating_sub(name.chars().count() + right.chars().count()));
    Line::from(vec![Span::styled(name, BOLD), Span::raw(gap), Span::styled(right, BOLD)])
}

fn draw_view(app: &App, view: &View, frame: &mut Frame<'_>, area: Rect) {
    let lines = if area.height < TALL { LINES } else { MORE_LINES };
    let mut sections = vec![workers(view), drops(view, lines)];
    if !view.latencies.is_empty() {
        sections.push(latencies(view, lines));
    }
    let taken: usize = sections.iter().map(Section::height).sum();
    let room = usize::from(area.height).saturating_sub(taken + TABLE + 2).max(1);
    sections.insert(0, ports(view, room));
    let mut left = area;
    for section in &sections {
        let height = (section.height() as u16).min(left.height);
        let [here, rest] = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(left);
        section.draw(frame, here);
        left = rest;
    }
    draw_table(app, view, frame, left);
}

impl Section {
    /// Returns the height, including an empty line at the end.
    fn height(&self) -> usize {
        1 + self.rows.len() + usize::from(self.more > 0) + 1
    }

    fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut rows = self.rows.clone();
        if self.more > 0 {
            rows.push(vec![format!("{} more", self.more)]);
        }
        let order: Vec<_> = (0..self.heads.len()).collect();
        frame.render_widget(table(&self.heads, None, &rows, 1, &order, area.width), area);
    }
}

/// Returns a table whose first `words` columns are left-aligned and whose other columns are right-aligned.
/// One header may be marked. If not all columns fit into `room`, those that come first in `order` are kept.
fn table(
    heads: &[String],
    marked: Option<usize>,
    rows: &[Vec<String>],
    words: usize,
    order: &[usize],
    room: u16,
) -> Table<'static> {
    let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| shorten(cell)).collect()).collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        cells.chain(heads.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heads.len()).map(width).collect();
    let shown = fitting(&widths, order, usize::from(room));
    let cell = |at: usize, text: &str| {
        let width = widths[at];
        if at < words { text.to_owned() } else { format!("{text:>width$}") }
    };
    let row = |cells: &Vec<String>| {
        let cells = shown.iter().filter_map(|&at| Some(Cell::new(cell(at, cells.get(at)?))));
        Row::new(cells.collect::<Vec<_>>())
    };
    let head = shown.iter().map(|&at| {
        let style = if marked == Some(at) { REVERSED } else { HEAD };
        Cell::new(Span::styled(cell(at, &heads[at]), style))
    });
    Table::new(
        rows.iter().map(row).collect::<Vec<_>>(),
        shown.iter().map(|&at| Constraint::Length(widths[at] as u16)),
    )
    .header(Row::new(head.collect::<Vec<_>>()))
    .column_spacing(SPACE as u16)
    .flex(ratatui::layout::Flex::Start)
}

/// Shortens a cell, to leave room for others.
fn shorten(cell: &str) -> String {
    match cell.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}\u{2026}", &cell[..end]),
        None => cell.to_owned(),
    }
}

/// Returns the columns that fit into `room`, and the first of `order` in any case.
fn fitting(widths: &[usize], order: &[usize], room: usize) -> Vec<usize> {
    let mut shown = Vec::new();
    let mut taken = 0;
    for &at in order {
        let space = if shown.is_empty() { 0 } else { SPACE };
        if shown.is_empty() || taken + space + widths[at] <= room {
            taken += space + widths[at];
            shown.push(at);
        }
    }
    shown.sort_unstable();
    shown
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

fn ports(view: &View, room: usize) -> Section {
    let mut ports: Vec<_> = view.ports.iter().collect();
    if ports.len() > room {
        ports.sort_by(|a, b| (b.rx_frames + b.tx_frames).total_cmp(&(a.rx_frames + a.tx_frames)));
    }
    let shown = if ports.len() > room { room.saturating_sub(1).max(1) } else { ports.len() };
    let rows = ports.iter().take(shown).map(|port| {
        let rates = [port.rx_frames, port.rx_bits, port.tx_frames, port.tx_bits].map(short);
        let totals = [port.missed, port.errors, port.kernel_drops].map(|n| short(n as f64));
        [port.name.clone(), port.link.clone()].into_iter().chain(rates).chain(totals).collect()
    });
    Section {
        heads: strings([
            "port",
            "link",
            "rx frames/s",
            "rx bit/s",
            "tx frames/s",
            "tx bit/s",
            "missed",
            "errors",
            "kernel drops",
        ]),
        rows: rows.collect(),
        more: ports.len() - shown,
    }
}

fn workers(view: &View) -> Section {
    let rows = view.workers.iter().take(WORKERS).map(|worker| {
        let number = |number: Option<f64>, places| {
            number.map_or_else(|| "-".into(), |number| format!("{number:.places$}"))
        };
        vec![
            worker.worker.to_string(),
            short(worker.rx_frames),
            number(worker.cycles_per_frame, 0),
            number(worker.ns_per_frame, 1),
            number(worker.frames_per_turn, 1),
            format!("{:.1} %", worker.busy * 100.0),
            format!("{:.1} %", worker.empty_turns * 100.0),
        ]
    });
    let heads = ["worker", "frames/s", "cycles/frame", "ns/frame", "frames/turn", "busy", "empty turns"];
    Section { heads: strings(heads), rows: rows.collect(), more: view.workers.len().saturating_sub(WORKERS) }
}

fn drops(view: &View, lines: usize) -> Section {
    let rows =
        view.drops.iter().take(lines).map(|(reason, frames, rate)| {
            vec![reason.replace('_', " "), short(*rate), short(*frames as f64)]
        });
    let first = if view.drops.is_empty() { "no frames dropped" } else { "dropped" };
    let heads =
        if view.drops.is_empty() { vec![first.into()] } else { strings([first, "frames/s", "frames"]) };
    Section { heads, rows: rows.collect(), more: view.drops.len().saturating_sub(lines) }
}

fn latencies(view: &View, lines: usize) -> Section {
    let rows = view.latencies.iter().take(lines).map(|latency| {
        let times = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
        std::iter::once(latency.name.clone())
            .chain([short(latency.count as f64)])
            .chain(times.map(time))
            .collect()
    });
    Section {
        heads: strings(["latency", "count", "50 %", "90 %", "99 %", "99.9 %", "max"]),
        rows: rows.collect(),
        more: view.latencies.len().saturating_sub(lines),
    }
}

/// Draws the names of the tables, and the selected table.
fn draw_table(app: &App, view: &View, frame: &mut Frame<'_>, area: Rect) {
    let tab = app.tab();
    let Some(shown) = view.tables.get(tab) else { return };
    let [tabs, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let names = view.tables.iter().enumerate().flat_map(|(at, table)| {
        let name = table.name.replace('_', " ");
        let plural = if name == "malformed" { "" } else { "s" };
        let name = format!(" {name}{plural} ({}) ", table.rows.len() + table.more);
        [Span::styled(name, if at == tab { REVERSED } else { Style::new() }), Span::raw(" ")]
    });
    frame.render_widget(Line::from(names.collect::<Vec<_>>()), tabs);
    let sorted_by = app.sorted_by.min(shown.counts.len().saturating_sub(1));
    let (heads, rows) = cells(shown, sorted_by, app.first_row, usize::from(body.height));
    let marked = (!shown.counts.is_empty()).then(|| shown.columns.len() + 2 * sorted_by);
    let order = order(shown, sorted_by);
    frame.render_widget(table(&heads, marked, &rows, shown.columns.len(), &order, body.width), body);
}

/// Returns the columns in order of priority: keys, the counter by which the table is sorted, other rates,
/// other cells, other counts. Counters that are zero in all rows come last.
fn order(shown: &TableView, sorted_by: usize) -> Vec<usize> {
    let words = shown.columns.len();
    let rate = |count: usize| words + 2 * count;
    let counts = |count: usize| shown.rows.iter().any(|row| row.counts.get(count).is_some_and(|at| at.0 > 0));
    let (nonzero, zero): (Vec<_>, Vec<_>) =
        (0..shown.counts.len()).filter(|&count| count != sorted_by).partition(|&count| counts(count));
    let others = || nonzero.iter().copied();
    let sorted = (sorted_by < shown.counts.len()).then(|| [rate(sorted_by), rate(sorted_by) + 1]);
    (0..shown.keys)
        .chain(sorted.into_iter().flatten())
        .chain(others().map(rate))
        .chain(shown.keys..words)
        .chain(others().map(|count| rate(count) + 1))
        .chain(zero.iter().flat_map(|&count| [rate(count), rate(count) + 1]))
        .collect()
}

/// Returns the headers and rows of a table, with a rate and a total for each counter.
fn cells(
    shown: &TableView,
    sorted_by: usize,
    first_row: usize,
    height: usize,
) -> (Vec<String>, Vec<Vec<String>>) {
    let heads =
        shown.columns.iter().map(|name| name.replace('_', " ")).chain(shown.counts.iter().flat_map(|name| {
            let name = name.replace('_', " ");
            [format!("{name}/s"), name]
        }));
    let rows = shown.sorted(sorted_by).into_iter().skip(first_row).take(height).map(|row| {
        let counts = row
            .counts
            .iter()
            .flat_map(|(count, rate)| [rate.map_or_else(|| "-".into(), short), short(*count as f64)]);
        row.cells.iter().cloned().chain(counts).collect()
    });
    (heads.collect(), rows.collect())
}

//! Rates from two snapshots, and what the screen shows of them.

use super::app::App;
use super::draw::draw;
use super::rates::{clock, short, time};
use super::text;
use crate::observe::{ClientError, FunctionMetrics, Latency, Row, Snapshot, Table};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use serde_json::json;
use switch::metrics::{Group, Kind, Metric};

/// Table of queue pairs without their health
const QUEUE_PAIRS: Group = Group {
    item: "queue_pair",
    keys: &["host", "qpn"],
    properties: &[],
    fields: &[&[
        Metric::new(Kind::Counter, "frames", "frames", "Frames"),
        Metric::new(Kind::Counter, "bytes", "bytes", "Bytes"),
    ]],
};

/// Items without counters
const LINKS: Group = Group { item: "link", keys: &["link"], properties: &[], fields: &[] };
/// Items with counters and long properties
const GROUPS: Group = Group {
    item: "group",
    keys: &["group", "leader"],
    properties: &["replicas", "state"],
    fields: &[&[
        Metric::new(Kind::Counter, "requests", "packets", "Requests"),
        Metric::new(Kind::Counter, "request_bytes", "bytes", "Their length"),
        Metric::new(Kind::Counter, "responses", "packets", "Responses"),
    ]],
};

/// Returns a snapshot after `uptime_s` at a steady pace: a million frames per second, with drops and three
/// queue pairs.
fn snapshot(uptime_s: f64) -> Snapshot {
    let so_far = |rate: u64| (uptime_s * rate as f64) as u64;
    let port = |name: &str, rx: u64, tx: u64| {
        json!({
            "name": name, "driver": "net_pcap", "link": if name == "left" { "up" } else { "no_carrier" }, "rx_frames": so_far(rx), "rx_bytes": so_far(rx * 100),
            "tx_frames": so_far(tx), "tx_bytes": so_far(tx * 100), "missed": 7, "rx_errors": 0, "no_buffer": 0,
            "tx_errors": 0, "kernel_rx_dropped": 1, "kernel_tx_dropped": 2,
        })
    };
    let base = json!({
        "instance": {}, "uptime_s": uptime_s, "tsc_hz": 2_000_000_000u64,
        "ports": [port("left", 1_000_000, 0), port("right", 0, 1_000_000)],
        "drops": [
            { "reason": "port_full", "meaning": "…", "frames": 5 },
            { "reason": "impaired", "meaning": "…", "frames": so_far(10) },
            { "reason": "no_buffer", "meaning": "…", "frames": 0 },
        ],
        "workers": [{
            "worker": 0, "rx_frames": so_far(1_000_000), "handled": so_far(1_000_000), "turns": so_far(4_000_000), "busy_turns": so_far(100_000),
            "busy_cycles": so_far(500_000_000), "consumed": 0, "punted": 0, "handed_off": 0, "made": 0,
        }],
        "counters": [{ "name": "roce_frames", "value": so_far(1_000_000) }],
        "gauges": [{ "name": "held", "value": 12 }],
        "tables": [], "latencies": [],
    });
    let mut base = base;
    base["instance"] = json!({
        "config": "configs/demo.toml", "function": "forward", "version": "0.1.0", "dpdk": "DPDK 22.11.11", "pid": 4711,
    });
    let mut snapshot: Snapshot = serde_json::from_value(base).unwrap();
    let rows = [("10.0.0.1", "0x11", 400_000), ("10.0.0.2", "0x12", 600_000), ("fd00::1", "0x13", 3)];
    let rows = rows.map(|(host, qpn, rate)| Row::new([host, qpn], [so_far(rate), so_far(rate * 100)]));
    // The slowest queue pair has the most bytes.
    let [a, b, mut c] = rows;
    c.counts[1] = so_far(1_000_000_000);
    let table = Table::of(&QUEUE_PAIRS, [a, b, c]);
    let mut times = hdrhistogram::Histogram::<u64>::new(3).unwrap();
    times.record_n(1_500, 99).unwrap();
    times.record(2_500_000).unwrap();
    let latencies = Latency::of("writes latency", &times).into_iter().collect();
    snapshot.metrics = FunctionMetrics { latencies, ..snapshot.metrics }.table(table);
    snapshot
}

fn screen(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame)).unwrap();
    let cells = terminal.backend().buffer().content().chunks(usize::from(width));
    cells
        .map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned())
        .collect()
}

fn app() -> App {
    let mut app = App::default();
    app.update(Ok(snapshot(60.0)));
    app.update(Ok(snapshot(62.0)));
    app
}

fn press(app: &mut App, code: KeyCode) -> bool {
    app.on_key(KeyEvent::from(code))
}

/// Returns the words of the line that begins with `start`.
fn line<'a>(screen: &'a [String], start: &str) -> Vec<&'a str> {
    let line = screen.iter().find(|line| line.trim_start().starts_with(start));
    line.unwrap_or_else(|| panic!("no {start} in\n{}", screen.join("\n")))
        .split("  ")
        .map(str::trim)
        .filter(|w| !w.is_empty())
        .collect()
}

#[test]
fn a_screen_of_80_by_24_shows_all_sections() {
    let screen = screen(&app(), 80, 24);
    assert_eq!(line(&screen, "understudy"), ["understudy 0.1.0 [forward] configs/demo.toml", "up 0:01:02"]);
    assert_eq!(line(&screen, "left"), ["left", "up", "1.00 M", "800 M", "0", "0", "7", "0"]);
    assert_eq!(line(&screen, "right"), ["right", "no carrier", "0", "0", "1.00 M", "800 M", "7", "0"]);
    // A wider screen has one more column.
    let wide = self::screen(&app(), 100, 24);
    assert!(line(&wide, "port ").ends_with(&["missed", "errors", "kernel drops"]), "{wide:?}");
    assert!(line(&wide, "left").ends_with(&["7", "0", "3"]), "{wide:?}");
    // 500 M cycles per second of 2 G, for a million frames in 100,000 of 4 M iterations
    assert_eq!(line(&screen, "0 "), ["0", "1.00 M", "500", "250.0", "10.0", "25.0 %", "97.5 %"]);
    // The reason with the highest current rate comes first.
    assert_eq!(line(&screen, "impaired"), ["impaired", "10", "620"]);
    assert_eq!(line(&screen, "port full"), ["port full", "0", "5"]);
    assert!(!screen.iter().any(|line| line.contains("no buffer")));
    assert_eq!(
        line(&screen, "writes latency"),
        ["writes latency", "100", "1.5 us", "1.5 us", "1.5 us", "2.5 ms", "2.5 ms"]
    );
    assert!(screen.iter().any(|line| line.contains(" queue pairs (3) ") && line.contains(" counters (2)")));
    assert_eq!(line(&screen, "10.0.0.2"), ["10.0.0.2", "0x12", "600 k", "37.2 M", "60.0 M", "3.72 G"]);
    let at = |start: &str| screen.iter().position(|line| line.starts_with(start)).unwrap();
    assert!(at("10.0.0.2") < at("10.0.0.1") && at("10.0.0.1") < at("fd00::1"), "busiest first");
    assert!(screen[23].starts_with("q quit") && screen.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn keys_sort_scroll_select_pause_and_quit() {
    let mut app = app();
    press(&mut app, KeyCode::Right);
    let by_bytes = screen(&app, 80, 24);
    let at = |screen: &[String], start: &str| screen.iter().position(|line| line.starts_with(start)).unwrap();
    assert!(at(&by_bytes, "fd00::1") < at(&by_bytes, "10.0.0.2"));
    press(&mut app, KeyCode::Right);
    assert_eq!(app.sorted_by, 0);
    press(&mut app, KeyCode::Down);
    let scrolled = screen(&app, 80, 24);
    assert!(
        !scrolled.iter().any(|line| line.starts_with("10.0.0.2 "))
            && scrolled.iter().any(|line| line.starts_with("10.0.0.1 "))
    );
    press(&mut app, KeyCode::Tab);
    let counters = screen(&app, 80, 24);
    assert_eq!(line(&counters, "roce_frames"), ["roce_frames", "1.00 M", "62.0 M"]);
    assert_eq!(line(&counters, "held"), ["held", "-", "12"]);
    press(&mut app, KeyCode::BackTab);
    assert_eq!(app.tab(), 0);
    // The screen does not change while paused.
    press(&mut app, KeyCode::Char('p'));
    app.update(Ok(snapshot(120.0)));
    let paused = screen(&app, 80, 24);
    assert!(paused[0].ends_with("PAUSED  up 0:01:02"), "{}", paused[0]);
    press(&mut app, KeyCode::Char('p'));
    assert!(screen(&app, 80, 24)[0].ends_with("up 0:02:00"));
    assert!(!press(&mut app, KeyCode::Char('q')));
}

#[test]
fn a_lost_instance_is_shown_as_disconnected() {
    let mut app = App::default();
    app.update(Err(ClientError::NotListening("/run/observe.sock".into())));
    let waiting = screen(&app, 80, 24).join("\n");
    assert!(
        waiting.contains("no instance listens at /run/observe.sock")
            && waiting.contains("Waiting for the instance."),
        "{waiting}"
    );
    app.update(Ok(snapshot(60.0)));
    app.update(Err(ClientError::NotListening("/run/observe.sock".into())));
    assert!(screen(&app, 80, 24)[0].contains("DISCONNECTED, waiting"));
    // After a restart, no rate is computed from counts of the previous run.
    app.update(Ok(snapshot(1.0)));
    let anew = screen(&app, 80, 24);
    assert!(anew[0].ends_with("up 0:00:01") && !anew[0].contains("DISCONNECTED"));
    assert_eq!(line(&anew, "left"), ["left", "up", "0", "0", "0", "0", "7", "0"]);
}

#[test]
fn the_screen_can_have_any_size() {
    let mut full = app();
    let mut many = snapshot(64.0);
    let one = many.ports[0].clone();
    many.ports = (0..64).map(|n| crate::observe::Port { name: format!("port-{n}"), ..one.clone() }).collect();
    many.metrics = many.metrics.table(Table::of(&LINKS, [Row::new(["only words"], [])]));
    full.update(Ok(many.clone()));
    many.uptime_s += 1.0;
    full.update(Ok(many));
    for width in [1, 7, 40, 80, 140, 300] {
        for height in [1, 2, 5, 10, 24, 40, 100] {
            screen(&full, width, height);
        }
    }
    let crowded = screen(&full, 80, 24);
    assert!(crowded.iter().any(|line| line.ends_with(" more")), "{}", crowded.join("\n"));
    assert!(crowded.iter().any(|line| line.contains("10.0.0.2")), "{}", crowded.join("\n"));
    press(&mut full, KeyCode::BackTab);
    press(&mut full, KeyCode::BackTab);
    press(&mut full, KeyCode::Right);
    assert!(screen(&full, 80, 24).iter().any(|line| line.starts_with("only words")));
}

#[test]
fn the_text_has_all_sections() {
    let text = text::of(&snapshot(62.0));
    for words in [
        "understudy 0.1.0 [forward] configs/demo.toml, process 4711",
        " left ",
        " no carrier ",
        "kernel drops",
        "port_full",
        "fd00::1",
        "1.5 us",
        "held",
    ] {
        assert!(text.contains(words), "{words:?} in\n{text}");
    }
}

#[test]
fn numbers_and_times_are_formatted_briefly() {
    let numbers = [0.0, 0.04, 9.94, 9.96, 999.4, 999.6, 9_994.0, 12_345.0, 999_600.0, 1.5e9, 2.5e15, 1e18];
    let texts = [
        "0", "0.0", "9.9", "10", "999", "1.00 k", "9.99 k", "12.3 k", "1.00 M", "1.50 G", "2.50 P", "1.00 E",
    ];
    assert_eq!(numbers.map(short), texts);
    assert_eq!(
        [0, 999, 1_000, 999_999, 1_000_000, 2_500_000_000].map(time),
        ["0 ns", "999 ns", "1.0 us", "1.0 ms", "1.0 ms", "2.50 s"]
    );
    assert_eq!(clock(3_725.9), "1:02:05");
}

#[test]
fn key_columns_remain_on_a_narrow_screen() {
    let mut app = App::default();
    for uptime_s in [60.0, 62.0] {
        let mut seen = snapshot(uptime_s);
        let replicas = (2..=9).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>().join(" ");
        let row = Row::new(["3", "10.0.0.1", &replicas, "open"], [uptime_s as u64 * 1000, 5_000_000, 7]);
        seen.metrics = seen.metrics.first(Table::of(&GROUPS, [row]));
        app.update(Ok(seen));
    }
    let narrow = screen(&app, 80, 24);
    assert_eq!(
        line(&narrow, "group "),
        ["group", "leader", "state", "requests/s", "requests", "request bytes/s", "responses/s"]
    );
    assert_eq!(line(&narrow, "3 "), ["3", "10.0.0.1", "open", "1.00 k", "62.0 k", "0", "0"]);
    let wide = screen(&app, 140, 40);
    assert!(
        line(&wide, "group ").len() >= 9 && wide.iter().any(|line| line.contains("10.0.0.2 10.0.0.3")),
        "{}",
        wide.join("\n")
    );
    press(&mut app, KeyCode::Right);
    assert_eq!(line(&screen(&app, 80, 24), "group ")[3..5], ["requests/s", "request bytes/s"]);
}

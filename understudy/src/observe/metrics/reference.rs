//! The page docs/metrics.md: every metric with its type, unit, labels and help, from the declarations.

use super::text::{BUSY_SECONDS, DROPPED, INFO, LATENCY, UPTIME, series};
use crate::functions;
use crate::observe::ConfigState;
use crate::reference::assert_is_written;
use core::fmt::Write as _;
use dataplane::counters::{PortCounters, WorkerCounters};
use dataplane::{DeviceCounters, PortState};
use switch::forward::Counters as Forwarded;
use switch::forward::counters::{QpCounter, RxCounters};
use switch::forward::health::Health;
use switch::metrics::{Group, Kind, Metric, Metrics as _};
use switch::tunnel::{self, Refusal};

const HEAD: &str = "# Metrics

Every metric that Prometheus gets from an instance ([Observing a running instance](observe.md)), and its name in \
the closing report (`--json`), if the report has it. `understudy top --json` has the name between \
`understudy_FUNCTION_` or `understudy_ITEM_` and `_total`, except for ports and workers, which have that of the report. \
A name with dots is in a section of the report. A metric without a name of its own is only in the report.

The counters' declarations in the source are the origin of this page: \
`UPDATE=1 cargo test -p understudy --bin understudy reference` writes it.
";

/// Appends a section with a table of the metrics of these groups.
fn section(page: &mut String, title: &str, text: &str, prefix: &str, groups: &[Group]) {
    _ = writeln!(page, "\n## {title}\n");
    if !text.is_empty() {
        _ = writeln!(page, "{text}\n");
    }
    *page += "| metric | type | unit | labels | in the report | meaning |\n|---|---|---|---|---|---|\n";
    for group in groups {
        let prefix = if group.item.is_empty() { prefix.to_owned() } else { format!("{}_", group.item) };
        for metric in group.metrics() {
            row(page, &prefix, metric, group.keys);
        }
    }
}

fn row(page: &mut String, prefix: &str, metric: &Metric, labels: &[&str]) {
    let Metric { reported, observed, kind, unit, help } = metric;
    let code = |name: String| format!("`{name}`");
    let name = observed.map(|name| code(series(prefix, *kind, name))).unwrap_or_default();
    let reported = reported.map(|name| code(name.into())).unwrap_or_default();
    let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
    _ = writeln!(page, "| {name} | {kind} | {unit} | {} | {reported} | {help} |", labels.join(", "));
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    let labels: [(&[&str], Metric); 4] = [
        (&["function", "version", "dpdk"], INFO),
        (&[], UPTIME),
        (&["reason"], DROPPED),
        (&["worker"], BUSY_SECONDS),
    ];
    section(&mut page, "Every instance", "", "", &[]);
    for (labels, metric) in labels {
        row(&mut page, "", &metric.observed_only(), labels);
    }
    let name = series("", LATENCY.kind, LATENCY.observed.unwrap_or_default());
    _ = writeln!(page, "| `{name}` | summary | seconds | of, quantile |  | {} |", LATENCY.help);
    page += "\nLatencies are those of `[pktgen]`'s packets and of `[consensus]`'s decisions; quantile 1 is the maximum.\n";
    let text = "Every frame is accounted for: `offered` = `rx_frames` + `missed` + `rx_errors` + `waiting`, and nothing waits \
        once the port's workers have caught up. The report and `understudy top --json` also have the state of the link in \
        words, as `link`: `up`, `down`, `no_carrier`, `gone` or `no_peer`.";
    section(&mut page, "Ports", text, "", &[PortCounters::GROUP, DeviceCounters::GROUP, PortState::GROUP]);
    let text = "Cycles per frame are busy cycles divided by handled frames: those received here and not dispatched, and those \
        taken from other workers. Handled frames that were neither consumed, punted nor handed off were forwarded or dropped. The closing report has `rx_frames`, `handed_off`, `dispatched` and `punted` of each worker.";
    section(&mut page, "Workers", text, "", &[WorkerCounters::GROUP]);
    let text = "Newer versions of the configuration ([Reload](service.md#reload), [Configuration in etcd](deploy.md#configuration-in-etcd)). They \
        appear when the first one has been read, and at once with a configuration in etcd.";
    section(&mut page, "Configuration", text, "", &[ConfigState::GROUP]);
    let is_bridge = |groups: &[Group]| groups.contains(&RxCounters::GROUP);
    let bridges: Vec<_> = functions::metrics()
        .filter(|(_, groups)| is_bridge(groups))
        .map(|(key, _)| format!("`[{key}]`"))
        .collect();
    let text = format!(
        "Functions that forward frames ({}) have these, with their own name for FUNCTION. 200 queue pairs have series, which \
         appear and disappear if there are more: the 100 with the most faults, and the busiest. The closing report has the \
         metrics of health for each port, too. They are missing with `health = false`.",
        bridges.join(", ")
    );
    let groups = [RxCounters::GROUP, Health::GROUP, QpCounter::GROUP, Forwarded::OPCODES, Forwarded::FAULTS];
    section(&mut page, "Forwarding", &text, "FUNCTION_", &groups);
    let text = "Tunnels in front of a function. A reason has a series once it has occurred.";
    let groups = [tunnel::Counters::GROUP, Refusal::GROUP];
    section(&mut page, "`[tunnel]`", text, "FUNCTION_", &groups);
    for (key, groups) in functions::metrics() {
        let own: Vec<_> = groups
            .iter()
            .filter(|group| ![RxCounters::GROUP, Health::GROUP].contains(*group))
            .copied()
            .collect();
        if !own.is_empty() {
            section(&mut page, &format!("`[{key}]`"), "", &format!("{key}_"), &own);
        }
    }
    let text = "1Pipe's controller (`understudy controller`), with `[observe]` in its file.";
    section(&mut page, "`[controller]`", text, "controller_", &crate::controller::metrics::GROUPS);
    page
}

/// With UPDATE in the environment, rewrites the page instead of comparing it.
#[test]
fn the_reference_page_matches_the_declarations() {
    assert_is_written("metrics.md", page());
}

/// A declared metric has a help text and a unit, no two of a function have the same name, and no section of the
/// report has the name of a metric.
#[test]
fn every_metric_has_a_help_text_and_a_name_of_its_own() {
    for (key, groups) in functions::metrics() {
        let mut names = std::collections::HashSet::new();
        let reported = || groups.iter().flat_map(Group::metrics).filter_map(|metric| metric.reported);
        let is_in =
            |path: &str, name: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        assert!(reported().all(|name| !reported().any(|path| is_in(path, name))), "[{key}]");
        for group in groups {
            for metric in group.metrics() {
                assert!(!metric.help.is_empty() && !metric.unit.is_empty(), "[{key}] {metric:?}");
                assert!(!metric.help.contains(['|', '\n']), "[{key}] {metric:?}");
                let is_new = metric.observed.is_none_or(|name| names.insert((group.item, name)));
                assert!(is_new, "[{key}] has two metrics {:?}", metric.observed);
            }
        }
    }
}

//! Describes what a scenario would run.

use core::fmt::Write;
use std::path::Path;
use workloads::scenario::{FaultKind, GroupsSpec, NumberRange, Scenario, SwitchKind, VerbsSpec, Work};

/// Returns a description of the network, its workload and its faults.
pub(super) fn of(path: &Path, scenario: &Scenario) -> String {
    let mut text = format!("{} is valid. `understudy sim` would run:\n\n", path.display());
    let hosts: Vec<_> =
        scenario.hosts.iter().map(|host| format!("{} ({})", host.name, host.address.0)).collect();
    let mut line = |key: &str, value: String| _ = writeln!(text, "{key:<9} {value}");
    line("hosts", hosts.join(", "));
    if !scenario.switches.is_empty() {
        let switches = scenario.switches.iter().map(|switch| match switch.kind {
            SwitchKind::Bridge => switch.name.clone(),
            SwitchKind::P4ce { address, .. } => format!("{} (P4CE at {})", switch.name, address.0),
        });
        line("switches", switches.collect::<Vec<_>>().join(", "));
    }
    for link in &scenario.links {
        let [a, b] = &link.ends;
        let impairments = [
            ("lost", link.loss),
            ("duplicated", link.duplicate),
            ("reordered", link.reorder),
            ("damaged", link.corrupt),
        ];
        let impairments = impairments.iter().filter(|(_, share)| share.high > 0);
        let impairments: Vec<_> =
            impairments.map(|(what, share)| format!("{} {what}", range_text(*share, 1e7, " %"))).collect();
        let impairments = if impairments.is_empty() { "no faults".into() } else { impairments.join(", ") };
        let rate = range_text(link.rate, 1e9, " Gb/s");
        line("link", format!("{a} - {b}: {rate}, {}, {impairments}", range_text(link.delay, 1e3, " us")));
    }
    match &scenario.work {
        Work::Verbs(verbs) => line("verbs", verbs_of(verbs)),
        Work::Groups(groups) => line("groups", groups_of(groups)),
    }
    for fault in &scenario.faults {
        let what = match &fault.kind {
            FaultKind::Crash(node) => format!("{node} crashes"),
            FaultKind::Pause(node) => format!("{node} pauses"),
            FaultKind::Partition(nodes) => format!("partition of {}", nodes.join(", ")),
            FaultKind::Mute(nodes) => format!("no packets arrive from {}", nodes.join(", ")),
            FaultKind::PartitionPair([a, b]) => format!("{a} and {b} do not receive each other's packets"),
            FaultKind::Mtu([a, b], mtu) => format!("MTU between {a} and {b}: {}", range_text(*mtu, 1.0, "")),
            FaultKind::Outsider(switch, packets) => {
                format!("an outsider sends {} packets at {switch}", range_text(*packets, 1.0, ""))
            }
            FaultKind::Swap([a, b]) => format!("{a} and {b} swap their ports"),
            FaultKind::Rehash(node, _) => format!("{node} sends from other UDP source ports"),
            FaultKind::ClockStep(node, by) => {
                format!("the clock of {node} jumps {}", range_text(*by, 1e3, " us"))
            }
            FaultKind::ClockDrift(node, by) => {
                format!("the clock of {node} drifts {}", range_text(*by, 1e3, " ppm"))
            }
        };
        let lasts =
            fault.lasts.map(|lasts| format!(", for {}", range_text(lasts, 1e3, " us"))).unwrap_or_default();
        line("fault", format!("after {}: {what}{lasts}", range_text(fault.at, 1e3, " us")));
    }
    text
}

fn verbs_of(verbs: &VerbsSpec) -> String {
    let names: Vec<_> = verbs.verbs.iter().map(|verb| verb.name()).collect();
    format!(
        "connections between each pair of hosts: {}, and {} unreliable ones; operations of each end: {}, \
         of up to {} bytes: {}",
        range_text(verbs.connections, 1.0, ""),
        range_text(verbs.unreliable, 1.0, ""),
        range_text(verbs.operations, 1.0, ""),
        range_text(verbs.max_size, 1.0, ""),
        names.join(", ")
    )
}

fn groups_of(groups: &GroupsSpec) -> String {
    let quorum = match groups.quorum {
        NumberRange { low: 0, high: 0 } => "a majority including the leader".into(),
        quorum => range_text(quorum, 1.0, " replicas"),
    };
    format!(
        "led by {}, {} each; operations: {} of up to {} bytes; acknowledged by {quorum}",
        groups.leaders.join(", "),
        range_text(groups.groups, 1.0, ""),
        range_text(groups.operations, 1.0, ""),
        range_text(groups.max_size, 1.0, ""),
    )
}

/// Formats a number or a range, divided by `unit`, with the unit's name.
fn range_text(between: NumberRange, unit: f64, name: &str) -> String {
    let [low, high] = [between.low, between.high].map(|number| number as f64 / unit);
    if between.low == between.high { format!("{low}{name}") } else { format!("{low} to {high}{name}") }
}

//! Reads scenarios of the simulator: `[sim]`, `[[host]]`, `[[switch]]`, `[[link]]`, `[verbs]` or `[groups]`,
//! and `[[fault]]`. Every number may be a range, `[low, high]`, from which the seed draws.

mod fault;
pub(in crate::config) mod network;
mod work;

use super::report::Problem;
use super::tree::{Problems, Table, Value, absent, section, sections};
use crate::functions::host::read_ack;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use network::{Names, Network};
use settings::address::address;
use toml::de::DeTable;
use workloads::scenario::{EcnSpec, HostSpec, LinkSpec, NumberRange, Scenario, SwitchKind, SwitchSpec, Work};

const MICRO: f64 = 1e3;
const MILLI: f64 = 1e6;
const SHARE_SCALE: f64 = 1e9;
/// Range of times in a scenario, in microseconds: up to ten days
const TIMES_US: RangeInclusive<f64> = 0.0..=864e9;
/// Returns whether the tables are those of a scenario.
pub(in crate::config) fn is_scenario(root: &DeTable<'_>) -> bool {
    ["sim", "host", "link", "verbs", "groups"].iter().any(|key| root.contains_key(*key))
}

/// Returns the scenario if it is complete. It is valid only if `problems` is empty as well.
pub(in crate::config) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Scenario> {
    let [has_verbs, has_groups] = ["verbs", "groups"].map(|key| root.contains_key(key));
    let root = Table::root(root, problems);
    let sim = section(&root, "sim").unwrap_or_else(|| absent("sim", problems));
    let limit =
        read_range(&sim, "limit_ms", MILLI, 0.001..=864e6).unwrap_or(NumberRange::fixed(100_000_000_000));
    sim.finish();
    let mut names = Names::default();
    let hosts: Vec<_> =
        sections(&root, "host")?.into_iter().filter_map(|table| host(table, &mut names)).collect();
    let switches: Vec<_> =
        sections(&root, "switch")?.into_iter().filter_map(|table| switch(table, &mut names)).collect();
    let mut network = Network::new(&names);
    let links: Vec<_> =
        sections(&root, "link")?.into_iter().filter_map(|table| link(table, &mut network)).collect();
    network.check(&hosts, problems);
    let table = |key| section(&root, key).unwrap_or_else(|| absent(key, problems));
    let work = if has_groups {
        if has_verbs {
            let verbs = table("verbs");
            let problem =
                verbs.problem("a scenario has `[verbs]` or `[groups]`, not both").label("beside `[groups]`");
            problems.add(problem.help("remove `[verbs]` or `[groups]`"));
            verbs.discard();
        }
        work::groups(table("groups"), &hosts, &switches, &links).map(Work::Groups)
    } else {
        work::verbs(table("verbs"), &links).map(Work::Verbs)
    };
    let nodes = fault::Nodes { names: &names, hosts: &hosts, links: &links };
    let faults: Vec<_> =
        sections(&root, "fault")?.into_iter().filter_map(|table| fault::read(table, &nodes)).collect();
    root.finish();
    for switch in &switches {
        if let (SwitchKind::P4ce { address, .. }, Some(host)) = (switch.kind, hosts.first())
            && address.0.is_ipv4() != host.address.0.is_ipv4()
        {
            let span = names.all[&switch.name].clone();
            let problem = Problem::at(
                span,
                format!("`{}` and `{}` have addresses of different IP versions", host.name, switch.name),
            );
            problems.add(
                problem.label("another IP version").help("give all IPv4 addresses, or all IPv6 addresses"),
            );
        }
    }
    if hosts.len() < 2 && !problems.any() {
        problems.add(Problem::of_file("the scenario has fewer than two hosts").help(
            "add hosts and a link between them, such as\n\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1/24\"\n\n\
             [[host]]\nname = \"b\"\naddress = \"10.0.0.2/24\"\n\n[[link]]\nends = [\"a\", \"b\"]",
        ));
    }
    Some(Scenario { limit, hosts, switches, links, work: work?, faults })
}

/// Reads a number or `[low, high]`, and multiplies it by `unit`, the scenario's units in one of the key's.
fn read_range(
    table: &Table<'_>,
    key: &'static str,
    unit: f64,
    range: RangeInclusive<f64>,
) -> Option<NumberRange> {
    let value = table.get(key, "")?;
    read_scaled(&value, unit, range)
}

fn read_scaled(value: &Value<'_>, unit: f64, range: RangeInclusive<f64>) -> Option<NumberRange> {
    let number =
        |value: &Value<'_>| value.fraction(range.clone()).map(|number| (number * unit).round() as i64);
    let Some(list) = value.list_if_any() else { return number(value).map(NumberRange::fixed) };
    let [low, high] = list.as_slice() else {
        value.add(
            value
                .problem(format!("{} has to be a number or two numbers", value.name()))
                .label("not two")
                .help("write a number, or `[least, greatest]`, from which the seed draws one"),
        );
        return None;
    };
    let (low, high) = (number(low)?, number(high)?);
    if low > high {
        value.add(
            value
                .problem(format!("the range {} ends before it begins", value.name()))
                .label("the second is smaller than the first")
                .help("write the smaller number first: `[least, greatest]`"),
        );
        return None;
    }
    Some(NumberRange { low, high })
}

/// Reads `true`, `false` or `"any"`. An absent key is `false`.
fn flag(table: &Table<'_>, key: &'static str) -> NumberRange {
    let Some(value) = table.get(key, "true") else { return NumberRange::fixed(0) };
    if value.text_if_any() == Some("any") {
        return NumberRange { low: 0, high: 1 };
    }
    NumberRange::fixed(value.boolean().unwrap_or(false).into())
}

fn host(table: Table<'_>, names: &mut Names) -> Option<HostSpec> {
    let name = names.read_name(&table);
    let address = table.require("address", "\"10.0.0.1/24\"").and_then(|value| address(&value));
    let defaults = HostSpec::new("", IpAddr::from([0; 4]), 0);
    let ppm = -1e5..=1e5;
    let spec = HostSpec {
        clock_offset: read_range(&table, "clock_offset_us", MICRO, -1e8..=1e8)
            .unwrap_or(defaults.clock_offset),
        clock_drift: read_range(&table, "clock_drift_ppm", MICRO, ppm).unwrap_or(defaults.clock_drift),
        window: read_range(&table, "window", 1.0, 1.0..=65536.0).unwrap_or(defaults.window),
        ack: table.get("ack", "\"every-packet\"").and_then(|value| read_ack(&value)).unwrap_or(defaults.ack),
        credits: flag(&table, "credits"),
        dcqcn: flag(&table, "dcqcn"),
        forgetful: flag(&table, "forgetful"),
        ..defaults
    };
    table.finish();
    Some(HostSpec { name: name?, address: address?, ..spec })
}

fn switch(table: Table<'_>, names: &mut Names) -> Option<SwitchSpec> {
    let name = names.read_name(&table);
    let function = table.get("function", "\"p4ce\"").map_or(Some("bridge"), |v| v.word(&["bridge", "p4ce"]));
    let kind = match function {
        Some("p4ce") => table.require("address", "\"10.0.0.254/24\"").and_then(|value| {
            let silent_after = read_range(&table, "silent_after_us", MICRO, TIMES_US);
            Some(SwitchKind::P4ce {
                address: address(&value)?,
                silent_after: silent_after.unwrap_or(NumberRange::fixed(0)),
            })
        }),
        function => function.map(|_| SwitchKind::Bridge),
    };
    table.finish();
    Some(SwitchSpec { name: name?, kind: kind? })
}

fn link(table: Table<'_>, network: &mut Network<'_>) -> Option<LinkSpec> {
    let ends = table.require("ends", "[\"a\", \"b\"]").and_then(|value| {
        let list = value.list()?;
        let [a, b] = list.as_slice() else {
            value.add(
                value.problem("a link has two ends").label("not two").help("write `ends = [\"a\", \"b\"]`"),
            );
            return None;
        };
        let (a, b) = (network.names.resolve(a)?, network.names.resolve(b)?);
        if a == b {
            value.add(
                value
                    .problem("a link joins two different nodes")
                    .label("one node twice")
                    .help("write `ends = [\"a\", \"b\"]`"),
            );
            return None;
        }
        if !network.join(&a, &b) {
            value.add(
                value.problem(format!("`{a}` and `{b}` are already joined")).label("closes a loop").help(
                    "remove a link: learning bridges send frames to unknown addresses around a loop for ever",
                ),
            );
        }
        Some([a, b])
    });
    network.incomplete |= ends.is_none();
    let defaults = LinkSpec::new("", "");
    let share = || 0.0..=1.0;
    let time = |key, default| read_range(&table, key, MICRO, TIMES_US).unwrap_or(default);
    let spec = LinkSpec {
        rate: read_range(&table, "rate_gbps", 1e9, 0.0..=1e4).unwrap_or(defaults.rate),
        delay: time("delay_us", defaults.delay),
        jitter: time("jitter_us", defaults.jitter),
        loss: read_range(&table, "loss", SHARE_SCALE, share()).unwrap_or(defaults.loss),
        duplicate: read_range(&table, "duplicate", SHARE_SCALE, share()).unwrap_or(defaults.duplicate),
        reorder: read_range(&table, "reorder", SHARE_SCALE, share()).unwrap_or(defaults.reorder),
        reorder_by: time("reorder_by_us", defaults.reorder_by),
        corrupt: read_range(&table, "corrupt", SHARE_SCALE, share()).unwrap_or(defaults.corrupt),
        mtu: read_range(&table, "mtu", 1.0, 128.0..=65536.0).unwrap_or(defaults.mtu),
        queue: read_range(&table, "queue", 1.0, 0.0..=1e12).unwrap_or(defaults.queue),
        ecn: table.get("ecn", "{ min = 5000, max = 200000, share = 0.01 }").and_then(|value| ecn(&value)),
        ..defaults
    };
    table.finish();
    Some(LinkSpec { ends: ends?, ..spec })
}

fn ecn(value: &Value<'_>) -> Option<EcnSpec> {
    let table = value.table("`ecn`")?;
    let bytes = |key| table.require(key, "5000").and_then(|value| read_scaled(&value, 1.0, 0.0..=1e12));
    let (min, max) = (bytes("min"), bytes("max"));
    let share = table.require("share", "0.01").and_then(|value| read_scaled(&value, SHARE_SCALE, 0.0..=1.0));
    table.finish();
    let (min, max) = (min?, max?);
    if min.high >= max.low {
        value.add(value.problem("`max` has to be greater than `min`").label("not greater").help(
            "raise `max`: nothing is marked below `min`, everything from `max` on, and in between a share \
             that grows up to `share`",
        ));
        return None;
    }
    Some(EcnSpec { min, max, share: share? })
}

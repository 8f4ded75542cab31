//! Reads scenarios of the simulator: `[sim]`, `[[host]]`, `[[switch]]`, `[[link]]`, `[verbs]` or `[groups]`,
//! and `[[fault]]`. Every number may be a range, `[low, high]`, from which the seed draws.

mod fault;
pub(in crate::config) mod network;
mod work;

use super::report::Problem;
use super::tree::{Problems, Table, Value, absent, section, sections};
use core::net::IpAddr;
use core::ops::RangeInclusive;
use network::{Names, Network};
pub(in crate::config) use settings::address::address;
use sim::scenario::{AckSpec, Between, EcnSpec, HostSpec, LinkSpec, Scenario, SwitchKind, SwitchSpec, Work};
use toml::de::DeTable;

const MICRO: f64 = 1e3;
const MILLI: f64 = 1e6;
const SHARE: f64 = 1e9;
/// Range of times in a scenario, in microseconds: up to ten days
const LONG_US: RangeInclusive<f64> = 0.0..=864e9;
/// Returns whether the tables are those of a scenario.
pub(in crate::config) fn is_one(root: &DeTable<'_>) -> bool {
    ["sim", "host", "link", "verbs", "groups"].iter().any(|key| root.contains_key(*key))
}

/// Returns the scenario if it is complete. It is valid only if `problems` is empty as well.
pub(in crate::config) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Scenario> {
    let [has_verbs, has_groups] = ["verbs", "groups"].map(|key| root.contains_key(key));
    let root = Table::root(root, problems);
    let sim = section(&root, "sim").unwrap_or_else(|| absent("sim", problems));
    let limit = between(&sim, "limit_ms", MILLI, 0.001..=864e6).unwrap_or(Between::just(100_000_000_000));
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
            verbs.forget();
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
    if hosts.len() < 2 && !problems.are_there() {
        problems.add(Problem::of_file("the scenario has fewer than two hosts").help(
            "add hosts and a link between them, such as\n\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1/24\"\n\n\
             [[host]]\nname = \"b\"\naddress = \"10.0.0.2/24\"\n\n[[link]]\nends = [\"a\", \"b\"]",
        ));
    }
    Some(Scenario { limit, hosts, switches, links, work: work?, faults })
}

/// Reads a number or `[low, high]`, and multiplies it by `unit`, the scenario's units in one of the key's.
fn between(table: &Table<'_>, key: &'static str, unit: f64, range: RangeInclusive<f64>) -> Option<Between> {
    let value = table.get(key, "")?;
    scaled(&value, unit, range)
}

fn scaled(value: &Value<'_>, unit: f64, range: RangeInclusive<f64>) -> Option<Between> {
    let number =
        |value: &Value<'_>| value.fraction(range.clone()).map(|number| (number * unit).round() as i64);
    let Some(list) = value.list_if_any() else { return number(value).map(Between::just) };
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
    Some(Between { low, high })
}

/// Reads `true`, `false` or `"any"`. An absent key is `false`.
fn flag(table: &Table<'_>, key: &'static str) -> Between {
    let Some(value) = table.get(key, "true") else { return Between::just(0) };
    if value.text_if_any() == Some("any") {
        return Between { low: 0, high: 1 };
    }
    Between::just(value.boolean().unwrap_or(false).into())
}

fn host(table: Table<'_>, names: &mut Names) -> Option<HostSpec> {
    let name = names.take(&table);
    let address = table.require("address", "\"10.0.0.1/24\"").and_then(|value| address(&value));
    let plain = HostSpec::new("", IpAddr::from([0; 4]), 0);
    let ppm = -1e5..=1e5;
    let spec = HostSpec {
        clock_offset: between(&table, "clock_offset_us", MICRO, -1e8..=1e8).unwrap_or(plain.clock_offset),
        clock_drift: between(&table, "clock_drift_ppm", MICRO, ppm).unwrap_or(plain.clock_drift),
        window: between(&table, "window", 1.0, 1.0..=65536.0).unwrap_or(plain.window),
        ack: table.get("ack", "\"every-packet\"").and_then(|value| ack_of(&value)).unwrap_or(plain.ack),
        credits: flag(&table, "credits"),
        dcqcn: flag(&table, "dcqcn"),
        forgetful: flag(&table, "forgetful"),
        ..plain
    };
    table.finish();
    Some(HostSpec { name: name?, address: address?, ..spec })
}

pub(in crate::config) fn ack_of(value: &Value<'_>) -> Option<AckSpec> {
    if value.text_if_any().is_some() {
        return Some(match value.word(&["any", "every-packet", "on-request"])? {
            "any" => AckSpec::Any,
            "every-packet" => AckSpec::EveryPacket,
            _ => AckSpec::OnRequest,
        });
    }
    let value = value.clone().like("{ packets = 4, time_us = 20 }");
    let table = value.table("`ack`")?;
    let packets = table.require("packets", "4").and_then(|value| value.number(1..=1 << 20, 4));
    let time = table.require("time_us", "20").and_then(|value| value.fraction(0.0..=1e9));
    table.finish();
    Some(AckSpec::Every { packets: packets? as u32, time: (time? * MICRO).round() as u64 })
}

fn switch(table: Table<'_>, names: &mut Names) -> Option<SwitchSpec> {
    let name = names.take(&table);
    let function = table.get("function", "\"p4ce\"").map_or(Some("bridge"), |v| v.word(&["bridge", "p4ce"]));
    let kind = match function {
        Some("p4ce") => table.require("address", "\"10.0.0.254/24\"").and_then(|value| {
            let silent_after = between(&table, "silent_after_us", MICRO, LONG_US);
            Some(SwitchKind::P4ce {
                address: address(&value)?,
                silent_after: silent_after.unwrap_or(Between::just(0)),
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
        let (a, b) = (network.names.known(a)?, network.names.known(b)?);
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
    network.unclear |= ends.is_none();
    let plain = LinkSpec::new("", "");
    let share = || 0.0..=1.0;
    let time = |key, default| between(&table, key, MICRO, LONG_US).unwrap_or(default);
    let spec = LinkSpec {
        rate: between(&table, "rate_gbps", 1e9, 0.0..=1e4).unwrap_or(plain.rate),
        delay: time("delay_us", plain.delay),
        jitter: time("jitter_us", plain.jitter),
        loss: between(&table, "loss", SHARE, share()).unwrap_or(plain.loss),
        duplicate: between(&table, "duplicate", SHARE, share()).unwrap_or(plain.duplicate),
        reorder: between(&table, "reorder", SHARE, share()).unwrap_or(plain.reorder),
        reorder_by: time("reorder_by_us", plain.reorder_by),
        corrupt: between(&table, "corrupt", SHARE, share()).unwrap_or(plain.corrupt),
        mtu: between(&table, "mtu", 1.0, 128.0..=65536.0).unwrap_or(plain.mtu),
        queue: between(&table, "queue", 1.0, 0.0..=1e12).unwrap_or(plain.queue),
        ecn: table.get("ecn", "{ min = 5000, max = 200000, share = 0.01 }").and_then(|value| ecn(&value)),
        ..plain
    };
    table.finish();
    Some(LinkSpec { ends: ends?, ..spec })
}

fn ecn(value: &Value<'_>) -> Option<EcnSpec> {
    let table = value.table("`ecn`")?;
    let bytes = |key| table.require(key, "5000").and_then(|value| scaled(&value, 1.0, 0.0..=1e12));
    let (min, max) = (bytes("min"), bytes("max"));
    let share = table.require("share", "0.01").and_then(|value| scaled(&value, SHARE, 0.0..=1.0));
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

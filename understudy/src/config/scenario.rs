//! Scenarios of the simulator: `[sim]`, `[[host]]`, `[[switch]]`, `[[link]]`, `[verbs]` or `[groups]`, and `[[fault]]`. Every number
//! may be a range, `[low, high]`, from which the seed draws.

use super::report::Problem;
use super::tree::{Problems, Table, Value, absent, section, sections};
use core::net::IpAddr;
use core::ops::{Range, RangeInclusive};
use sim::scenario::{
    AckSpec, Between, EcnSpec, FaultKind, FaultSpec, GroupsSpec, HostSpec, LinkSpec, Scenario, SwitchKind,
    SwitchSpec, VerbsSpec, Work,
};
use sim::verbs::Verb;
use std::collections::{BTreeMap, BTreeSet};
use toml::de::DeTable;

const MICRO: f64 = 1e3;
const MILLI: f64 = 1e6;
const SHARE: f64 = 1e9;
/// A time of a scenario at most, in microseconds: ten days
const LONG_US: RangeInclusive<f64> = 0.0..=864e9;
/// What the headers of a packet take beside its payload: IPv6 40, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4
const HEADERS: i64 = 84;

/// Whether the tables are those of a scenario.
pub(super) fn is_one(root: &DeTable<'_>) -> bool {
    ["sim", "host", "link", "verbs", "groups"].iter().any(|key| root.contains_key(*key))
}

/// The scenario, if enough was understood; whether nothing is wrong is for `problems` to say.
pub(super) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Scenario> {
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
            let problem = verbs.problem("hosts have one thing to do").label("beside `[groups]`");
            problems.add(problem.help("leave `[verbs]` or `[groups]` out"));
            verbs.forget();
        }
        read_groups(table("groups"), &hosts, &switches, &links).map(Work::Groups)
    } else {
        read_verbs(table("verbs"), &links).map(Work::Verbs)
    };
    let faults: Vec<_> =
        sections(&root, "fault")?.into_iter().filter_map(|table| fault(table, &names)).collect();
    root.finish();
    for switch in &switches {
        if let (SwitchKind::P4ce { address, .. }, Some(host)) = (switch.kind, hosts.first())
            && address.0.is_ipv4() != host.address.0.is_ipv4()
        {
            let span = names.all[&switch.name].clone();
            let problem = Problem::at(
                span,
                format!("`{}` and `{}` cannot speak to each other", host.name, switch.name),
            );
            problems.add(
                problem
                    .label("an address of another family")
                    .help("give all IPv4 addresses, or all IPv6 addresses"),
            );
        }
    }
    if hosts.len() < 2 && !problems.are_there() {
        problems.add(Problem::of_file("there are fewer than two hosts").help(
            "add hosts and a link between them, such as\n\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1/24\"\n\n\
             [[host]]\nname = \"b\"\naddress = \"10.0.0.2/24\"\n\n[[link]]\nends = [\"a\", \"b\"]",
        ));
    }
    Some(Scenario { limit, hosts, switches, links, work: work?, faults })
}

/// A number or `[low, high]`, in units of so many of the scenario's
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
                .problem(format!("{} has to be a number, or two", value.name()))
                .label("not two")
                .help("write a number, or `[least, greatest]`, from which the seed draws one"),
        );
        return None;
    };
    let (low, high) = (number(low)?, number(high)?);
    if low > high {
        value.add(
            value
                .problem(format!("{} ends before it begins", value.name()))
                .label("the second is smaller than the first")
                .help("write the smaller number first: `[least, greatest]`"),
        );
        return None;
    }
    Some(Between { low, high })
}

/// `true`, `false` or `"any"`
fn flag(table: &Table<'_>, key: &'static str) -> Between {
    let Some(value) = table.get(key, "true") else { return Between::just(0) };
    if value.text_if_any() == Some("any") {
        return Between { low: 0, high: 1 };
    }
    Between::just(value.boolean().unwrap_or(false).into())
}

/// Names of hosts and switches, and where they stand
#[derive(Default)]
struct Names {
    all: BTreeMap<String, Range<usize>>,
}

impl Names {
    fn take(&mut self, table: &Table<'_>) -> Option<String> {
        let value = table.require("name", "\"a\"")?;
        let name = value.text()?.to_owned();
        if let Some(first) = self.all.get(&name) {
            let problem = value.problem(format!("there are two nodes named `{name}`")).label("again");
            value.add(
                problem.also(first.clone(), "first here").help("give each host and switch its own name"),
            );
            return None;
        }
        self.all.insert(name.clone(), value.span());
        Some(name)
    }

    fn known(&self, value: &Value<'_>) -> Option<String> {
        let name = value.text()?;
        if self.all.contains_key(name) {
            return Some(name.to_owned());
        }
        let names = super::words::one_of(self.all.keys());
        value.add(
            value.problem(format!("there is no host or switch `{name}`")).label("no such node").help(
                if names.is_empty() { "add a `[[host]]`".into() } else { format!("it can be {names}") },
            ),
        );
        None
    }
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
        ..plain
    };
    table.finish();
    Some(HostSpec { name: name?, address: address?, ..spec })
}

pub(super) fn address(value: &Value<'_>) -> Option<(IpAddr, u8)> {
    let text = value.text()?;
    let parsed = text.split_once('/').and_then(|(ip, prefix)| {
        let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
        (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, prefix))
    });
    if parsed.is_none() {
        let problem = value.problem(format!("`{text}` is no address with the length of its prefix"));
        value.add(problem.label("not an address").help("write `\"10.0.0.1/24\"` or `\"fd00::1/64\"`"));
    }
    parsed
}

pub(super) fn ack_of(value: &Value<'_>) -> Option<AckSpec> {
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

/// What is joined so far.
struct Network<'a> {
    names: &'a Names,
    /// The part of the network that a node belongs to, by a node of it
    part: BTreeMap<String, String>,
    links: BTreeMap<String, usize>,
    /// The ends of a link were not understood: what has no link may have that one
    unclear: bool,
}

impl<'a> Network<'a> {
    fn new(names: &'a Names) -> Self {
        let part = names.all.keys().map(|name| (name.clone(), name.clone())).collect();
        Self { names, part, links: BTreeMap::new(), unclear: false }
    }

    /// False if both were joined already.
    fn join(&mut self, a: &str, b: &str) -> bool {
        for end in [a, b] {
            *self.links.entry(end.to_owned()).or_default() += 1;
        }
        let (Some(first), Some(second)) = (self.part.get(a).cloned(), self.part.get(b).cloned()) else {
            return true;
        };
        for part in self.part.values_mut().filter(|part| **part == second) {
            part.clone_from(&first);
        }
        first != second
    }

    fn check(&self, hosts: &[HostSpec], problems: &Problems) {
        for host in hosts {
            let links = self.links.get(&host.name).copied().unwrap_or(0);
            if links > 1 || links == 0 && !self.unclear {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("host `{}` has {links} links, and needs one", host.name))
                        .label("one port, one link")
                        .help("join hosts to a `[[switch]]`, or two hosts to each other"),
                );
            }
        }
        let Some((first, rest)) = hosts.split_first() else { return };
        for host in rest {
            let apart = self.part.get(&host.name) != self.part.get(&first.name);
            if apart
                && !self.unclear
                && self.links.contains_key(&host.name)
                && self.links.contains_key(&first.name)
            {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("nothing joins `{}` and `{}`", first.name, host.name))
                        .label("in a part of the network of its own")
                        .help("add a `[[link]]` between the parts"),
                );
            }
            if host.address.0.is_ipv4() != first.address.0.is_ipv4() {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(
                        span,
                        format!("`{}` and `{}` cannot speak to each other", first.name, host.name),
                    )
                    .label("an address of another family")
                    .help("give all hosts IPv4 addresses, or all IPv6 addresses"),
                );
            }
            let same = |other: &&HostSpec| other.name != host.name && other.address.0 == host.address.0;
            if let Some(other) = hosts.iter().find(same)
                && other.name < host.name
            {
                let span = self.names.all[&host.name].clone();
                problems.add(
                    Problem::at(span, format!("`{}` and `{}` have the same address", other.name, host.name))
                        .label("the same again")
                        .help("give each host its own `address`"),
                );
            }
        }
    }
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
                    .problem("a link joins two nodes")
                    .label("one node twice")
                    .help("write `ends = [\"a\", \"b\"]`"),
            );
            return None;
        }
        if !network.join(&a, &b) {
            value.add(
                value.problem(format!("`{a}` and `{b}` are joined already")).label("closes a loop").help(
                    "take a link away: learning bridges send what they do not know around a loop for ever",
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
            "nothing is marked below `min`, everything from `max` on, and in between a share that grows up to `share`",
        ));
        return None;
    }
    Some(EcnSpec { min, max, share: share? })
}

/// `retry_count` of a workload, or that of one that does not say.
fn retry_count(table: &Table<'_>, plain: Between) -> Option<Between> {
    match table.get("retry_count", "7") {
        Some(value) if value.text_if_any() == Some("unlimited") => Some(plain),
        Some(value) => scaled(&value, 1.0, 0.0..=7.0),
        None => Some(plain),
    }
}

fn read_groups(
    table: Table<'_>,
    hosts: &[HostSpec],
    switches: &[SwitchSpec],
    links: &[LinkSpec],
) -> Option<GroupsSpec> {
    let plain = GroupsSpec::new(Vec::new());
    let replicating = |switch: &&SwitchSpec| matches!(switch.kind, SwitchKind::P4ce { .. });
    if switches.iter().filter(replicating).count() != 1 {
        table.problems().add(
            table
                .problem("one switch has to replicate what leaders write")
                .label("none does, or several")
                .help("add a `[[switch]]` with `function = \"p4ce\"` and an `address`"),
        );
    }
    let leader = |value: &Value<'_>| {
        let name = value.text()?;
        if !hosts.iter().any(|host| host.name == name) {
            let names = super::words::one_of(hosts.iter().map(|host| &host.name));
            let problem = value.problem(format!("there is no host `{name}`")).label("no such host");
            value.add(problem.help(format!("it can be {names}")));
            return None;
        }
        Some(name.to_owned())
    };
    let leaders = table.require("leaders", "[\"a\"]").and_then(|value| {
        let leaders: Vec<_> = value.list()?.iter().map(leader).collect::<Option<_>>()?;
        let distinct: BTreeSet<_> = leaders.iter().collect();
        if leaders.is_empty() || distinct.len() < leaders.len() || leaders.len() >= hosts.len() {
            value.add(
                value
                    .problem("some hosts have to lead, and the others are their replicas")
                    .label("not some of the hosts, each once")
                    .help("name one host at least, and leave one out at least"),
            );
            return None;
        }
        Some(leaders)
    });
    let replicas = hosts.len().saturating_sub(leaders.as_ref().map_or(1, Vec::len)).max(1) as u32;
    let number = |key, range: RangeInclusive<u32>, default| {
        let (first, last) = range.into_inner();
        between(&table, key, 1.0, first.into()..=last.into()).unwrap_or(default)
    };
    let retry_count = retry_count(&table, plain.retry_count);
    let spec = GroupsSpec {
        groups: number("groups", 1..=1000, plain.groups),
        operations: number("operations", 0..=1_000_000, plain.operations),
        depth: number("depth", 1..=4096, plain.depth),
        max_size: number("max_size", 0..=1 << 27, plain.max_size),
        mtu_log2: table.get("mtu", "1024").and_then(|value| mtu(&value, links)).unwrap_or(plain.mtu_log2),
        timeout: number("timeout", 1..=31, plain.timeout),
        quorum: number("quorum", 0..=replicas.min(255), plain.quorum),
        outvote: flag(&table, "outvote"),
        receives: number("receives", 1..=4096, plain.receives),
        messages: number("messages", 0..=1_000_000, plain.messages),
        retry_count: retry_count.unwrap_or(plain.retry_count),
        ..plain
    };
    table.finish();
    Some(GroupsSpec { leaders: leaders?, ..spec })
}

fn read_verbs(table: Table<'_>, links: &[LinkSpec]) -> Option<VerbsSpec> {
    let plain = VerbsSpec::default();
    let number = |key, range: RangeInclusive<u32>, default| {
        let (first, last) = range.into_inner();
        between(&table, key, 1.0, first.into()..=last.into()).unwrap_or(default)
    };
    let names: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
    let verb = |value: &Value<'_>| {
        let name = value.word(&names)?;
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    };
    let verbs = table.get("verbs", "[\"write\", \"read\"]").map_or(Some(plain.verbs), |value| {
        let list: Option<Vec<_>> = value.list()?.iter().map(verb).collect();
        let list = list?;
        if list.is_empty() {
            value.add(value.problem("`verbs` is empty").label("none").help("name one at least"));
        }
        Some(list)
    });
    let retry_count = retry_count(&table, plain.retry_count);
    let spec = VerbsSpec {
        connections: number("connections", 1..=100_000, plain.connections),
        unreliable: number("unreliable", 0..=100_000, plain.unreliable),
        operations: number("operations", 0..=100_000_000, plain.operations),
        depth: number("depth", 1..=4096, plain.depth),
        max_size: number("max_size", 0..=1 << 27, plain.max_size),
        mtu_log2: table.get("mtu", "1024").and_then(|value| mtu(&value, links)).unwrap_or(plain.mtu_log2),
        timeout: number("timeout", 1..=31, plain.timeout),
        receives: number("receives", 1..=4096, plain.receives),
        repost_us: number("repost_us", 0..=1_000_000, plain.repost_us),
        rnr_timer: number("rnr_timer", 0..=31, plain.rnr_timer),
        max_rd_atomic: number("max_rd_atomic", 1..=128, plain.max_rd_atomic),
        words: number("words", 1..=4096, plain.words),
        srq: flag(&table, "srq"),
        flow_control: flag(&table, "flow_control"),
        verbs: verbs?,
        retry_count: retry_count?,
    };
    table.finish();
    Some(spec)
}

/// A path MTU, or the range of those from one to another
fn mtu(value: &Value<'_>, links: &[LinkSpec]) -> Option<Between> {
    let Between { low, high } = scaled(value, 1.0, 256.0..=4096.0)?;
    if [low, high].iter().any(|mtu| mtu.count_ones() != 1) {
        value.add(
            value.problem(format!("{} is no path MTU", value.name())).label("not one of InfiniBand's").help(
                "it can be 256, 512, 1024, 2048 or 4096; `[256, 4096]` is one of them as the seed has it",
            ),
        );
        return None;
    }
    if let Some(link) = links.iter().find(|link| link.mtu.low < high + HEADERS) {
        let least = high + HEADERS;
        value.add(value.problem("packets of this size do not pass all links").label("too large").help(format!(
            "with headers they have {least} bytes: give the link between `{}` and `{}` an `mtu` of {least} at least",
            link.ends[0], link.ends[1]
        )));
        return None;
    }
    let log2 = |mtu: i64| i64::from(mtu.trailing_zeros());
    Some(Between { low: log2(low), high: log2(high) })
}

fn fault(table: Table<'_>, names: &Names) -> Option<FaultSpec> {
    let at = table.require("at_us", "100").and_then(|value| scaled(&value, MICRO, LONG_US));
    let lasts = between(&table, "for_us", MICRO, LONG_US);
    let node = |key| table.get(key, "\"a\"").and_then(|value| names.known(&value));
    let (crash, pause, clock) = (node("crash"), node("pause"), node("clock"));
    let partition = table
        .get("partition", "[\"a\"]")
        .and_then(|value| value.list()?.iter().map(|name| names.known(name)).collect::<Option<Vec<_>>>());
    let step = between(&table, "step_us", MICRO, -1e8..=1e8);
    let drift = between(&table, "drift_ppm", MICRO, -1e5..=1e5);
    let kinds: Vec<FaultKind> = [
        crash.map(FaultKind::Crash),
        pause.map(FaultKind::Pause),
        partition.map(FaultKind::Partition),
        clock.clone().zip(step).map(|(node, by)| FaultKind::ClockStep(node, by)),
        clock.zip(drift).map(|(node, by)| FaultKind::ClockDrift(node, by)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if kinds.len() != 1 {
        let problem = table.problem("a fault is one thing that happens").label("none, or several");
        table.problems().add(problem.help(
            "write one of `crash = \"a\"`, `pause = \"a\"`, `partition = [\"a\"]`, or `clock = \"a\"` with `step_us` or \
             `drift_ppm`; `for_us` says for how long",
        ));
    }
    table.finish();
    let [kind] = <[_; 1]>::try_from(kinds).ok()?;
    Some(FaultSpec { at: at?, kind, lasts })
}

//! Reads the workload of the hosts of a scenario: `[verbs]` or `[groups]`.

use super::{flag, read_range, read_scaled};
use crate::config::tree::{Table, Value};
use crate::config::words;
use core::ops::RangeInclusive;
use std::collections::BTreeSet;
use workloads::scenario::{GroupsSpec, HostSpec, LinkSpec, NumberRange, SwitchKind, SwitchSpec, VerbsSpec};
use workloads::verbs::Verb;

/// Bytes of a packet beside its payload: IPv6 40, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4
const HEADERS: i64 = 84;

/// Reads a whole number, or a range of them.
fn read_integers(table: &Table<'_>, key: &'static str, range: RangeInclusive<u32>) -> Option<NumberRange> {
    let (first, last) = range.into_inner();
    read_range(table, key, 1.0, first.into()..=last.into())
}

/// Reads `retry_count` of a workload. Returns `defaults` if the key is absent or `"unlimited"`.
fn retry_count(table: &Table<'_>, defaults: NumberRange) -> Option<NumberRange> {
    match table.get("retry_count", "7") {
        Some(value) if value.text_if_any() == Some("unlimited") => Some(defaults),
        Some(value) => read_scaled(&value, 1.0, 0.0..=7.0),
        None => Some(defaults),
    }
}

pub(super) fn groups(
    table: Table<'_>,
    hosts: &[HostSpec],
    switches: &[SwitchSpec],
    links: &[LinkSpec],
) -> Option<GroupsSpec> {
    let defaults = GroupsSpec::new(Vec::new());
    let replicating = |switch: &&SwitchSpec| matches!(switch.kind, SwitchKind::P4ce { .. });
    if switches.iter().filter(replicating).count() != 1 {
        table.problems().add(
            table
                .problem("[groups] needs exactly one switch that replicates")
                .label("none, or several")
                .help("add a `[[switch]]` with `function = \"p4ce\"` and an `address`"),
        );
    }
    let leader = |value: &Value<'_>| {
        let name = value.text()?;
        if !hosts.iter().any(|host| host.name == name) {
            let names = words::one_of(hosts.iter().map(|host| &host.name));
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
                    .problem("`leaders` has to name some of the hosts, each once")
                    .label("empty, repeated, or all hosts")
                    .help("name at least one host, and leave out at least one, which is a replica"),
            );
            return None;
        }
        Some(leaders)
    });
    let replicas = hosts.len().saturating_sub(leaders.as_ref().map_or(1, Vec::len)).max(1) as u32;
    let number = |key, range, default| read_integers(&table, key, range).unwrap_or(default);
    let retry_count = retry_count(&table, defaults.retry_count);
    let spec = GroupsSpec {
        groups: number("groups", 1..=1000, defaults.groups),
        operations: number("operations", 0..=1_000_000, defaults.operations),
        depth: number("depth", 1..=4096, defaults.depth),
        max_size: number("max_size", 0..=1 << 27, defaults.max_size),
        mtu_log2: table.get("mtu", "1024").and_then(|value| mtu(&value, links)).unwrap_or(defaults.mtu_log2),
        timeout: number("timeout", 1..=31, defaults.timeout),
        quorum: number("quorum", 0..=replicas.min(255), defaults.quorum),
        outvote: flag(&table, "outvote"),
        receives: number("receives", 1..=4096, defaults.receives),
        messages: number("messages", 0..=1_000_000, defaults.messages),
        retry_count: retry_count.unwrap_or(defaults.retry_count),
        ..defaults
    };
    table.finish();
    Some(GroupsSpec { leaders: leaders?, ..spec })
}

pub(super) fn verbs(table: Table<'_>, links: &[LinkSpec]) -> Option<VerbsSpec> {
    let defaults = VerbsSpec::default();
    let number = |key, range, default| read_integers(&table, key, range).unwrap_or(default);
    let names: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
    let verb = |value: &Value<'_>| {
        let name = value.word(&names)?;
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    };
    let verbs = table.get("verbs", "[\"write\", \"read\"]").map_or(Some(defaults.verbs), |value| {
        let list: Option<Vec<_>> = value.list()?.iter().map(verb).collect();
        let list = list?;
        if list.is_empty() {
            value.add(value.problem("`verbs` is empty").label("no verb").help("name at least one verb"));
        }
        Some(list)
    });
    let retry_count = retry_count(&table, defaults.retry_count);
    let spec = VerbsSpec {
        connections: number("connections", 1..=100_000, defaults.connections),
        unreliable: number("unreliable", 0..=100_000, defaults.unreliable),
        operations: number("operations", 0..=100_000_000, defaults.operations),
        depth: number("depth", 1..=4096, defaults.depth),
        max_size: number("max_size", 0..=1 << 27, defaults.max_size),
        mtu_log2: table.get("mtu", "1024").and_then(|value| mtu(&value, links)).unwrap_or(defaults.mtu_log2),
        timeout: number("timeout", 1..=31, defaults.timeout),
        receives: number("receives", 1..=4096, defaults.receives),
        repost_us: number("repost_us", 0..=1_000_000, defaults.repost_us),
        rnr_timer: number("rnr_timer", 0..=31, defaults.rnr_timer),
        max_rd_atomic: number("max_rd_atomic", 1..=128, defaults.max_rd_atomic),
        words: number("words", 1..=4096, defaults.words),
        srq: flag(&table, "srq"),
        flow_control: flag(&table, "flow_control"),
        background_reads: flag(&table, "background_reads"),
        revoke_us: number("revoke_us", 0..=1_000_000_000, defaults.revoke_us),
        verbs: verbs?,
        retry_count: retry_count?,
    };
    table.finish();
    Some(spec)
}

/// Reads a path MTU, or a range, from which the seed draws one.
fn mtu(value: &Value<'_>, links: &[LinkSpec]) -> Option<NumberRange> {
    let NumberRange { low, high } = read_scaled(value, 1.0, 256.0..=4096.0)?;
    if [low, high].iter().any(|mtu| mtu.count_ones() != 1) {
        value.add(
            value
                .problem(format!("{} is not a path MTU", value.name()))
                .label("not defined by InfiniBand")
                .help("write 256, 512, 1024, 2048 or 4096; of `[256, 4096]` the seed draws one"),
        );
        return None;
    }
    if let Some(link) = links.iter().find(|link| link.mtu.low < high + HEADERS) {
        let least = high + HEADERS;
        value.add(value.problem("packets of this size exceed the MTU of a link").label("too large").help(
            format!(
                "with headers they have {least} bytes: give the link between `{}` and `{}` an `mtu` of at \
             least {least}",
                link.ends[0], link.ends[1]
            ),
        ));
        return None;
    }
    let log2 = |mtu: i64| i64::from(mtu.trailing_zeros());
    Some(NumberRange { low: log2(low), high: log2(high) })
}

//! Reads the workload of the hosts of a scenario: `[verbs]` or `[groups]`.

use super::{drawn, flag, read_scaled};
use crate::config::tree::{Table, Value};
use crate::config::words;
use rnic::ReadyToSend;
use settings::declare::{self, Kind, Type, other, special};
use std::collections::BTreeSet;
use workloads::scenario::{GroupsSpec, HostSpec, LinkSpec, NumberRange, VerbsSpec};
use workloads::verbs::Verb;

/// Bytes of a packet beside its payload: IPv6 40, UDP 8, BTH 12, RETH 16, immediate 4, ICRC 4
const HEADERS: i64 = 84;

/// A whole number, or two between which the seed draws one.
const fn wholes(first: u32, last: u32) -> Type<NumberRange> {
    drawn(first as f64..=last as f64)
}

/// Reads `retry_count`.
fn retry_count(value: &Value<'_>) -> Option<NumberRange> {
    match value.text_if_any() {
        Some("unlimited") => Some(NumberRange::fixed(ReadyToSend::NO_LIMIT.into())),
        _ => read_scaled(value, 1.0),
    }
}

/// Reads a path MTU, or two between which the seed draws one, as logarithms.
fn mtu_log2(value: &Value<'_>) -> Option<NumberRange> {
    let NumberRange { low, high } = read_scaled(value, 1.0)?;
    if [low, high].iter().any(|mtu| mtu.count_ones() != 1) {
        value.add(
            value
                .problem(format!("{} is not a path MTU", value.name()))
                .label("not defined by InfiniBand")
                .help("write 256, 512, 1024, 2048 or 4096; of `[256, 4096]` the seed draws one"),
        );
        return None;
    }
    let log2 = |mtu: i64| i64::from(mtu.trailing_zeros());
    Some(NumberRange { low: log2(low), high: log2(high) })
}

/// Reads a list of verbs.
fn verb_list(value: &Value<'_>) -> Option<Vec<Verb>> {
    let names: Vec<_> = Verb::ALL.iter().map(|verb| verb.name()).collect();
    let verbs = value.list_of(|value| {
        let name = value.word(&names)?;
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    })?;
    if verbs.is_empty() {
        value.add(value.problem("`verbs` is empty").label("no verb").help("name at least one verb"));
    }
    Some(verbs)
}

settings::table! {
    /// Workload: verbs on connections between each pair of hosts
    pub(crate) enum VerbsKeys "[verbs]";
    /// Verbs that are used
    verbs: Vec<Verb> = other("list of verbs", verb_list) => optional("all") example(["write", "read"]);
    /// Retransmissions before an error; `"unlimited"` or a number up to 7
    retry_count: NumberRange = declare::drawn(0.0..=7.0, retry_count) => default("unlimited") example(7);
    /// Reliable connections of each pair of hosts
    connections: NumberRange = wholes(1, 100_000) => default(1);
    /// Unreliable connections of each pair of hosts
    unreliable: NumberRange = wholes(0, 100_000) => default(0);
    /// Operations of each end
    operations: NumberRange = wholes(0, 100_000_000) => default(20);
    /// Operations in flight
    depth: NumberRange = wholes(1, 4096) => default(8);
    /// Largest operation
    max_size: NumberRange = wholes(0, 1 << 27).unit("bytes") => default(65536);
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    mtu: NumberRange = declare::drawn(256.0..=4096.0, mtu_log2).unit("bytes") => default(1024);
    /// ACK timeout: 4.096 us * 2^N (IB 9.7.6.1.3)
    timeout: NumberRange = wholes(1, 31) => default(8);
    /// Receive requests that are posted
    receives: NumberRange = wholes(1, 4096) => default(8);
    /// Upper bound of the time until a used receive request is posted again
    repost_us: NumberRange = wholes(0, 1_000_000).unit("us") => default(0);
    /// Minimum RNR NAK timer, as encoded (IB table 45)
    rnr_timer: NumberRange = wholes(0, 31) => default(1);
    /// READs and atomics in flight
    max_rd_atomic: NumberRange = wholes(1, 128) => default(4);
    /// Words for atomics at each host
    words: NumberRange = wholes(1, 4096) => default(2);
    /// Whether all ends of a host share one receive queue
    srq: NumberRange = flag() => default(false) example(true);
    /// Whether end-to-end credits are used
    flow_control: NumberRange = flag() => default(false) example(true);
    /// Whether one end of each connection reads until the other end has finished
    background_reads: NumberRange = flag() => default(false) example(true);
    /// Time within which each host revokes the rights of one connection; 0 means never
    revoke_us: NumberRange = wholes(0, 1_000_000_000).unit("us") => default(0);
}

settings::table! {
    /// Workload: leaders that replicate through a switch with `function = "p4ce"`
    pub(crate) enum GroupsKeys "[groups]";
    /// Hosts that lead groups; the others are replicas
    leaders: () = special("list of names of hosts") => required() example(["a"]);
    /// Retransmissions before an error; `"unlimited"` or a number up to 7
    retry_count: NumberRange = declare::drawn(0.0..=7.0, retry_count) => default("unlimited") example(7);
    /// Groups of each leader
    groups: NumberRange = wholes(1, 1000) => default(1);
    /// Writes to each group
    operations: NumberRange = wholes(0, 1_000_000) => default(50);
    /// Writes in flight
    depth: NumberRange = wholes(1, 4096) => default(8);
    /// Largest write
    max_size: NumberRange = wholes(0, 1 << 27).unit("bytes") => default(4096);
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    mtu: NumberRange = declare::drawn(256.0..=4096.0, mtu_log2).unit("bytes") => default(1024);
    /// ACK timeout of the leaders: 4.096 us * 2^N (IB 9.7.6.1.3)
    timeout: NumberRange = wholes(1, 31) => default(8);
    /// Replicas that acknowledge a write, at most all; 0 means a majority including the leader
    quorum: NumberRange = wholes(0, 255) => default(0);
    /// Whether a quorum outvotes the other replicas' NAKs
    outvote: NumberRange = flag() => default(false) example(true);
    /// Receive requests that a replica posts for each group
    receives: NumberRange = wholes(1, 4096) => default(16);
    /// Average number of operations for each message; 0 means no messages
    messages: NumberRange = wholes(0, 1_000_000) => default(4);
}

/// Reads `[groups]`. `replicating` is the number of switches that replicate, if all could be read.
pub(super) fn groups(
    table: Table<'_>,
    hosts: &[HostSpec],
    replicating: Option<usize>,
    links: &[LinkSpec],
) -> Option<GroupsSpec> {
    if replicating.is_some_and(|count| count != 1) {
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
    let leaders = table.value(GroupsKeys::leaders).and_then(|value| {
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
    let quorum = table
        .value(GroupsKeys::quorum)
        .map(|value| value.with_kind(Kind::Drawn(0.0, replicas.min(255).into())));
    let mtu = table.value(GroupsKeys::mtu);
    let spec = GroupsSpec {
        groups: table.read(GroupsKeys::groups),
        operations: table.read(GroupsKeys::operations),
        depth: table.read(GroupsKeys::depth),
        max_size: table.read(GroupsKeys::max_size),
        mtu_log2: table.read(GroupsKeys::mtu),
        timeout: table.read(GroupsKeys::timeout),
        quorum: quorum.and_then(|value| read_scaled(&value, 1.0)).unwrap_or(NumberRange::fixed(0)),
        outvote: table.read(GroupsKeys::outvote),
        receives: table.read(GroupsKeys::receives),
        messages: table.read(GroupsKeys::messages),
        retry_count: table.read(GroupsKeys::retry_count),
        ..GroupsSpec::new(Vec::new())
    };
    check_mtu(mtu.as_ref(), spec.mtu_log2, links);
    table.finish();
    Some(GroupsSpec { leaders: leaders?, ..spec })
}

pub(super) fn verbs(table: Table<'_>, links: &[LinkSpec]) -> VerbsSpec {
    let mtu = table.value(VerbsKeys::mtu);
    let spec = VerbsSpec {
        connections: table.read(VerbsKeys::connections),
        unreliable: table.read(VerbsKeys::unreliable),
        operations: table.read(VerbsKeys::operations),
        depth: table.read(VerbsKeys::depth),
        max_size: table.read(VerbsKeys::max_size),
        mtu_log2: table.read(VerbsKeys::mtu),
        timeout: table.read(VerbsKeys::timeout),
        receives: table.read(VerbsKeys::receives),
        repost_us: table.read(VerbsKeys::repost_us),
        rnr_timer: table.read(VerbsKeys::rnr_timer),
        max_rd_atomic: table.read(VerbsKeys::max_rd_atomic),
        words: table.read(VerbsKeys::words),
        srq: table.read(VerbsKeys::srq),
        flow_control: table.read(VerbsKeys::flow_control),
        background_reads: table.read(VerbsKeys::background_reads),
        revoke_us: table.read(VerbsKeys::revoke_us),
        verbs: table.read(VerbsKeys::verbs).unwrap_or_else(|| Verb::ALL.to_vec()),
        retry_count: table.read(VerbsKeys::retry_count),
    };
    check_mtu(mtu.as_ref(), spec.mtu_log2, links);
    table.finish();
    spec
}

/// Reports a path MTU whose packets exceed the MTU of a link.
fn check_mtu(value: Option<&Value<'_>>, log2: NumberRange, links: &[LinkSpec]) {
    let least = (1 << log2.high) + HEADERS;
    let Some((value, link)) = value.zip(links.iter().find(|link| link.mtu.low < least)) else { return };
    value.add(value.problem("packets of this size exceed the MTU of a link").label("too large").help(
        format!(
            "with headers they have {least} bytes: give the link between `{}` and `{}` an `mtu` of at \
             least {least}",
            link.ends[0], link.ends[1]
        ),
    ));
}

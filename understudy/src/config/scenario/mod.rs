//! Reads scenarios of the simulator: `[sim]`, `[[host]]`, `[[switch]]`, `[[link]]`, `[verbs]` or `[groups]`,
//! and `[[fault]]`. Every number may be a range, `[low, high]`, from which the seed draws.

pub(in crate::config) mod fault;
pub(in crate::config) mod network;
pub(in crate::config) mod work;

use super::report::Problem;
use super::tree::{Problems, Table, Value};
use crate::functions::host::{AckKeys, read_ack};
use core::net::IpAddr;
use core::ops::RangeInclusive;
use network::{Names, Network};
use settings::declare::{self, Kind, Type, or_inline, other, special, subnet_address, words};
use toml::de::DeTable;
use workloads::scenario::{
    AckSpec, EcnSpec, HostSpec, LinkSpec, NumberRange, Scenario, SwitchKind, SwitchSpec, Work,
};

/// Range of times in a scenario, in microseconds: up to ten days
const TIMES_US: RangeInclusive<f64> = 0.0..=864e9;

/// A number, or two between which the seed draws one.
const fn drawn(range: RangeInclusive<f64>) -> Type<NumberRange> {
    declare::drawn(range, |value| read_scaled(value, 1.0))
}

/// Times in microseconds, which the scenario keeps in nanoseconds.
const fn us(range: RangeInclusive<f64>) -> Type<NumberRange> {
    declare::drawn(range, |value| read_scaled(value, 1e3)).unit("us")
}

/// Shares, which the scenario keeps in billionths.
const fn share() -> Type<NumberRange> {
    declare::drawn(0.0..=1.0, |value| read_scaled(value, 1e9))
}

/// Drifts in millionths, which the scenario keeps in billionths.
const fn ppm() -> Type<NumberRange> {
    declare::drawn(-1e5..=1e5, |value| read_scaled(value, 1e3)).unit("ppm")
}

/// `true`, `false`, or either, which the seed draws.
const fn flag() -> Type<NumberRange> {
    other("`true`, `false` or `\"any\"`", |value| {
        if value.text_if_any() == Some("any") {
            return Some(NumberRange { low: 0, high: 1 });
        }
        value.boolean().map(|flag| NumberRange::fixed(flag.into()))
    })
}

settings::table! {
    /// Scenario of the simulator. Every number may be `[least, greatest]`, between which the seed draws one
    pub(crate) enum Keys "[sim]";
    /// Virtual time after which the run ends
    limit_ms: NumberRange = declare::drawn(0.001..=864e6, |value| read_scaled(value, 1e6)).unit("ms") => default(100000);
}

settings::table! {
    /// Host
    pub(crate) enum HostKeys "[[host]]";
    /// Name
    name: () = special("string") => required() example("a");
    /// Address, with the length of its subnet's prefix
    address: (IpAddr, u8) = subnet_address() => required() example("10.0.0.1/24");
    /// Offset of the host's clock
    clock_offset_us: NumberRange = us(-1e8..=1e8) => default(0);
    /// Drift of the host's clock
    clock_drift_ppm: NumberRange = ppm() => default(0);
    /// Packets that a requester sends without an acknowledgement
    window: NumberRange = drawn(1.0..=65536.0).unit("packets") => default(256);
    /// Requests that ask for an acknowledgement, as in `[nic]`
    ack: AckSpec = or_inline("`\"on-request\"`, `\"every-packet\"`, `\"any\"`", &AckKeys::TABLE, read_ack) => default("on-request") example("every-packet");
    /// Whether acknowledgements carry credits
    credits: NumberRange = flag() => default(false) example(true);
    /// Whether the host slows down on congestion notifications
    dcqcn: NumberRange = flag() => default(false) example(true);
    /// Whether the host repeats only its last READs and atomics, as soft-RoCE does
    forgetful: NumberRange = flag() => default(false) example(true);
}

settings::table! {
    /// Switch
    pub(crate) enum SwitchKeys "[[switch]]";
    /// Name
    name: () = special("string") => required() example("a");
    /// What the switch is: a learning bridge, or a bridge that replicates writes, too
    function: &'static str = words(&[("bridge", "bridge"), ("p4ce", "p4ce")]) => default("bridge") example("p4ce");
    /// Address at which leaders request groups; `p4ce` requires it
    address: (IpAddr, u8) = subnet_address() => optional("only for `p4ce`") example("10.0.0.254/24");
    /// Time after which `p4ce` excludes a silent replica; 0 means never
    silent_after_us: NumberRange = us(TIMES_US) => default(0);
}

settings::table! {
    /// Link between two nodes
    pub(crate) enum LinkKeys "[[link]]";
    /// The two nodes
    ends: () = special("list of two names") => required() example(["a", "b"]);
    /// Rate
    rate_gbps: NumberRange = declare::drawn(0.0..=1e4, |value| read_scaled(value, 1e9)).unit("Gbit/s") => default(100);
    /// Delay
    delay_us: NumberRange = us(TIMES_US) => default(1);
    /// Largest random addition to the delay
    jitter_us: NumberRange = us(TIMES_US) => default(0);
    /// Share of frames that are lost
    loss: NumberRange = share() => default(0);
    /// Share of frames that arrive twice
    duplicate: NumberRange = share() => default(0);
    /// Share of frames that arrive late, behind others
    reorder: NumberRange = share() => default(0);
    /// Delay of these frames
    reorder_by_us: NumberRange = us(TIMES_US) => default(20);
    /// Share of frames in which a bit is flipped
    corrupt: NumberRange = share() => default(0);
    /// Largest IP packet
    mtu: NumberRange = drawn(128.0..=65536.0).unit("bytes") => default(1500);
    /// Queue in front of the link
    queue: NumberRange = drawn(0.0..=1e12).unit("bytes") => default(1048576);
    /// Marking of frames by the length of the queue
    ecn: EcnSpec = Type::new(Kind::Table(&EcnKeys::TABLE, ""), ecn) => optional("no frame is marked") example({ min = 5000, max = 200000, share = 0.01 });
}

settings::table! {
    /// Marking of frames by the length of the queue
    pub(crate) enum EcnKeys "`ecn`";
    /// Length up to which nothing is marked
    min: NumberRange = drawn(0.0..=1e12).unit("bytes") => required() example(5000);
    /// Length from which everything is marked
    max: NumberRange = drawn(0.0..=1e12).unit("bytes") => required() example(200000);
    /// Share that is marked just below `max`
    share: NumberRange = share() => required() example(0.01);
}

/// Returns whether the tables are those of a scenario.
pub(in crate::config) fn is_scenario(root: &DeTable<'_>) -> bool {
    ["sim", "host", "link", "verbs", "groups"].iter().any(|key| root.contains_key(*key))
}

/// Returns the scenario if it is complete. It is valid only if `problems` is empty as well.
pub(in crate::config) fn read(root: &DeTable<'_>, problems: &Problems) -> Option<Scenario> {
    let [has_verbs, has_groups] = ["verbs", "groups"].map(|key| root.contains_key(key));
    let root = Table::root(root, problems);
    let sim = root.section(&Keys::TABLE).unwrap_or_else(|| Table::absent(&Keys::TABLE, problems));
    let limit = sim.read(Keys::limit_ms);
    sim.finish();
    let mut names = Names::default();
    let hosts: Vec<_> =
        root.sections(&HostKeys::TABLE)?.into_iter().filter_map(|table| host(table, &mut names)).collect();
    let switch_tables = root.sections(&SwitchKeys::TABLE)?;
    let count = switch_tables.len();
    let switches: Vec<_> = switch_tables.into_iter().filter_map(|table| switch(table, &mut names)).collect();
    let mut network = Network::new(&names);
    let links: Vec<_> =
        root.sections(&LinkKeys::TABLE)?.into_iter().filter_map(|table| link(table, &mut network)).collect();
    network.check(&hosts, problems);
    let table = |spec| root.section(spec).unwrap_or_else(|| Table::absent(spec, problems));
    // A switch that could not be read may be the one that replicates.
    let is_p4ce = |switch: &&SwitchSpec| matches!(switch.kind, SwitchKind::P4ce { .. });
    let replicating = (switches.len() == count).then(|| switches.iter().filter(is_p4ce).count());
    let work = if has_groups {
        if has_verbs {
            let verbs = table(&work::VerbsKeys::TABLE);
            let problem =
                verbs.problem("a scenario has `[verbs]` or `[groups]`, not both").label("beside `[groups]`");
            problems.add(problem.help("remove `[verbs]` or `[groups]`"));
            verbs.discard();
        }
        work::groups(table(&work::GroupsKeys::TABLE), &hosts, replicating, &links).map(Work::Groups)
    } else {
        Some(Work::Verbs(work::verbs(table(&work::VerbsKeys::TABLE), &links)))
    };
    let nodes = fault::Nodes { names: &names, hosts: &hosts, links: &links };
    let faults: Vec<_> = root
        .sections(&fault::Keys::TABLE)?
        .into_iter()
        .filter_map(|table| fault::read(table, &nodes))
        .collect();
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
fn read_scaled(value: &Value<'_>, unit: f64) -> Option<NumberRange> {
    let number = |value: &Value<'_>| value.fraction().map(|number| (number * unit).round() as i64);
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

fn host(table: Table<'_>, names: &mut Names) -> Option<HostSpec> {
    let name = names.read_name(&table, HostKeys::name);
    let address = table.read(HostKeys::address);
    let spec = HostSpec {
        clock_offset: table.read(HostKeys::clock_offset_us),
        clock_drift: table.read(HostKeys::clock_drift_ppm),
        window: table.read(HostKeys::window),
        ack: table.read(HostKeys::ack),
        credits: table.read(HostKeys::credits),
        dcqcn: table.read(HostKeys::dcqcn),
        forgetful: table.read(HostKeys::forgetful),
        ..HostSpec::new("", IpAddr::from([0; 4]), 0)
    };
    table.finish();
    Some(HostSpec { name: name?, address: address?, ..spec })
}

fn switch(table: Table<'_>, names: &mut Names) -> Option<SwitchSpec> {
    let name = names.read_name(&table, SwitchKeys::name);
    let function = table.value(SwitchKeys::function);
    if function.is_some_and(|value| SwitchKeys::function.parse(&value).is_none()) {
        // The keys depend on `function`, which is not known.
        table.discard();
        return None;
    }
    let kind = if table.read(SwitchKeys::function) == "p4ce" {
        table.require_here(SwitchKeys::address);
        let silent_after = table.read(SwitchKeys::silent_after_us);
        table.read(SwitchKeys::address).map(|address| SwitchKind::P4ce { address, silent_after })
    } else {
        Some(SwitchKind::Bridge)
    };
    table.finish_read();
    Some(SwitchSpec { name: name?, kind: kind? })
}

fn link(table: Table<'_>, network: &mut Network<'_>) -> Option<LinkSpec> {
    let ends = table.value(LinkKeys::ends).and_then(|value| {
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
    let spec = LinkSpec {
        rate: table.read(LinkKeys::rate_gbps),
        delay: table.read(LinkKeys::delay_us),
        jitter: table.read(LinkKeys::jitter_us),
        loss: table.read(LinkKeys::loss),
        duplicate: table.read(LinkKeys::duplicate),
        reorder: table.read(LinkKeys::reorder),
        reorder_by: table.read(LinkKeys::reorder_by_us),
        corrupt: table.read(LinkKeys::corrupt),
        mtu: table.read(LinkKeys::mtu),
        queue: table.read(LinkKeys::queue),
        ecn: table.read(LinkKeys::ecn),
        ..LinkSpec::new("", "")
    };
    table.finish();
    Some(LinkSpec { ends: ends?, ..spec })
}

fn ecn(value: &Value<'_>) -> Option<EcnSpec> {
    let table = value.inline()?;
    let (min, max) = (table.read(EcnKeys::min), table.read(EcnKeys::max));
    let share = table.read(EcnKeys::share);
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

//! Reads the table `[impair]` and its rules.

mod matching;
#[cfg(test)]
mod tests;

use crate::functions::forward::config::pairs::{self, example_pairs};
use core::ops::Range;
use settings::declare::{Key, boolean, inline, micros, number, special, tables, whole, words};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use switch::impair::{Action, Config, Field, Match, Rule};
use switch::{Nanos, Probability};

/// Longest name of a rule, in characters, so that reports fit on a line
const MAX_NAME: usize = 64;
/// Upper bound for numbers of packets: more than any run sees
const MAX_PACKETS: u64 = 1 << 48;
/// Longest delay, in microseconds: ten seconds, after which every sender has given up
const MAX_DELAY_US: u64 = 10_000_000;
/// Bytes of an Ethernet header and of the most VLAN tags that are parsed
const ETHERNET_AND_TAGS: usize = 14 + 4 * rocev2::packet::MAX_TAGS;

/// What a rule does to a packet, before the keys of the action are read
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Drop,
    Delay,
    Duplicate,
    Reorder,
    Corrupt,
    Mark,
}

settings::table! {
    /// Wires with faults, which are drawn from a seed
    pub(crate) enum Keys "[impair]";
    /// Seed of all random choices
    seed: u64 = whole(0..=i64::MAX as u64) => default(1);
    /// Ports that are joined two by two; a port with itself reflects
    pairs: () = special("list of pairs of ports") => optional("the file is invalid") example([["host-a", "host-b"]]);
    /// Frames that a worker holds back at one time
    held: usize = whole(1..=65_536).unit("frames") => default(4096);
    /// Queue pairs of which rules with `psn_offset` remember the first PSN
    flows: usize = whole(1..=1 << 20) => default(4096);
    /// Queue pairs that are counted individually
    counted_qps: usize = whole(0..=1 << 20) => default(1024);
    /// Whether to observe the health of counted queue pairs: gaps, retransmissions, NAKs, congestion, round-trip times
    health: bool = boolean() => default(true);
    /// Faults, each with the packets that have it
    rule: () = tables(&RuleKeys::TABLE) => optional("all packets pass");
}

settings::table! {
    /// Fault, and the packets that have it. A packet passes from rule to rule until one drops it or holds it back
    pub(crate) enum RuleKeys "[[impair.rule]]";
    /// Name in reports, which also seeds the rule's random choices
    name: () = special("string of up to 64 characters") => optional("`rule` and its number") example("lose some");
    /// Packets that the rule applies to
    r#match: () = inline(&matching::Keys::TABLE) => optional("all RoCEv2 packets") example({ opcode = "write" });
    /// Share of these packets that has the fault
    share: f64 = number(0.0..=1.0) => default(1.0) example(0.01);
    /// Packets that pass before the first fault
    skip: u64 = whole(0..=MAX_PACKETS).unit("packets") => default(0);
    /// Packets that have the fault, after which the rule no longer applies
    times: u64 = whole(1..=MAX_PACKETS).unit("packets") => optional("no limit") example(1);
    /// Fault
    action: Verb = words(&ACTIONS) => required() example("drop");
    /// Delay, for `action = "delay"`, which requires it
    delay_us: Nanos = micros(0..=MAX_DELAY_US) => optional("only with `delay`") example(100);
    /// Largest random addition to the delay
    jitter_us: Nanos = micros(0..=MAX_DELAY_US) => default(0) example(50);
    /// Copies that are sent beside the packet, for `duplicate`
    copies: u32 = whole(1..=16) => default(1);
    /// Later packets of the same port that the packet is sent behind, for `reorder`
    behind: u64 = whole(1..=65_536).unit("packets") => default(1) example(3);
    /// Longest time for which `reorder` holds a packet back
    at_most_us: Nanos = micros(1..=MAX_DELAY_US) => default(10000);
    /// Where `corrupt` flips a bit
    field: Field = words(&[("payload", Field::Payload), ("header", Field::Header), ("icrc", Field::Icrc)]) => default("payload");
    /// Whether `mark` marks packets that are not ECN-capable, too
    force: bool = boolean() => default(false);
}

/// Values of `action`
const ACTIONS: [(&str, Verb); 6] = [
    ("drop", Verb::Drop),
    ("delay", Verb::Delay),
    ("duplicate", Verb::Duplicate),
    ("reorder", Verb::Reorder),
    ("corrupt", Verb::Corrupt),
    ("mark", Verb::Mark),
];

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<Config> {
    let pairs = table.value(Keys::pairs);
    if pairs.is_none() {
        let problem = table.problem("[impair] does not define where frames go").label("no `pairs`");
        let pair = example_pairs(ports);
        table.problems().add(problem.help(format!("add `pairs = {pair}` to join ports two by two")));
    }
    let pairs = pairs.and_then(|value| pairs::read(&value, ports, "remove it from one of them"));
    let rules = read_rules(table, ports);
    let mtu = ports.list.iter().map(|port| usize::from(port.mtu)).max().unwrap_or(0);
    Some(Config {
        ports: ports.list.len() as u16,
        seed: table.read(Keys::seed),
        held: table.read(Keys::held),
        frame_len: mtu + ETHERNET_AND_TAGS,
        flows: table.read(Keys::flows),
        counted_qps: table.read(Keys::counted_qps),
        health: table.read(Keys::health),
        pairs: pairs?,
        rules: rules?,
    })
}

pub(super) fn read_rules(table: &Table<'_>, ports: &Ports) -> Option<Vec<Rule>> {
    let tables = table.tables(Keys::rule)?;
    let mut names: Vec<(String, Option<Range<usize>>)> = Vec::new();
    let read = tables.into_iter().enumerate().map(|(index, table)| {
        let given = table.value(RuleKeys::name);
        let name = given.as_ref().map_or(Some(format!("rule {}", index + 1)), name);
        let span = given.map(|value| value.span());
        if let Some(name) = &name {
            if let Some((_, first)) = names.iter().find(|(other, _)| other == name) {
                let problem = match &span {
                    Some(span) => Problem::at(span.clone(), format!("two rules have the name `{name}`")),
                    None => table.problem(format!("two rules have the name `{name}`")),
                };
                let problem = match first {
                    Some(first) => problem.label("again").also(first.clone(), "first here"),
                    None => problem.label("the default name of another rule"),
                };
                table
                    .problems()
                    .add(problem.help("give each rule its own name, which seeds its random choices"));
            }
            names.push((name.clone(), span));
        }
        rule(table, ports, name)
    });
    // All rules are read, so that the problems of each are reported.
    let read: Vec<Option<Rule>> = read.collect();
    read.into_iter().collect()
}

/// Reads a name that fits into reports.
fn name(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.chars().count() > MAX_NAME || text.chars().any(char::is_control) {
        let problem = value
            .problem("`name` of a rule is too long, or has control characters")
            .label("not a valid name");
        value.add(problem.help(format!("write up to {MAX_NAME} characters, such as `name = \"lose some\"`")));
        return None;
    }
    Some(text.to_owned())
}

fn rule(table: Table<'_>, ports: &Ports, name: Option<String>) -> Option<Rule> {
    let matching = table.value(RuleKeys::r#match);
    let matching = matching.map_or(Some(Match::default()), |value| matching::read(&value, ports));
    let share = table.read(RuleKeys::share);
    let skip = table.read(RuleKeys::skip);
    let times = table.read(RuleKeys::times).unwrap_or(u64::MAX);
    let action = action(&table);
    table.finish();
    Some(Rule {
        name: name?,
        matching: matching?,
        share: Probability::new(share)?,
        skip,
        times,
        action: action?,
    })
}

fn action(table: &Table<'_>) -> Option<Action> {
    let (given, verb) = (table.value(RuleKeys::action), table.read(RuleKeys::action));
    check_action(table, RuleKeys::delay_us, given.as_ref(), verb, Verb::Delay);
    check_action(table, RuleKeys::jitter_us, given.as_ref(), verb, Verb::Delay);
    check_action(table, RuleKeys::copies, given.as_ref(), verb, Verb::Duplicate);
    check_action(table, RuleKeys::behind, given.as_ref(), verb, Verb::Reorder);
    check_action(table, RuleKeys::at_most_us, given.as_ref(), verb, Verb::Reorder);
    check_action(table, RuleKeys::field, given.as_ref(), verb, Verb::Corrupt);
    check_action(table, RuleKeys::force, given.as_ref(), verb, Verb::Mark);
    // All keys are read, whichever the action is, so that the problems of each are reported.
    let (by, jitter) = (table.read(RuleKeys::delay_us), table.read(RuleKeys::jitter_us));
    let (behind, at_most) = (table.read(RuleKeys::behind), table.read(RuleKeys::at_most_us));
    let (copies, field, force) =
        (table.read(RuleKeys::copies), table.read(RuleKeys::field), table.read(RuleKeys::force));
    Some(match verb? {
        Verb::Drop => Action::Drop,
        Verb::Delay => Action::Delay { by: by.or_else(|| missing_delay(table))?, jitter },
        Verb::Duplicate => Action::Duplicate { copies },
        Verb::Reorder => Action::Reorder { behind, at_most },
        Verb::Corrupt => Action::Corrupt(field),
        Verb::Mark => Action::Mark { force },
    })
}

/// Reports that `delay_us` is missing, unless it is invalid.
fn missing_delay(table: &Table<'_>) -> Option<Nanos> {
    table.require_here(RuleKeys::delay_us);
    None
}

/// Reports a key that belongs to another action than the rule's.
fn check_action<T, P>(
    table: &Table<'_>,
    key: Key<T, P>,
    given: Option<&Value<'_>>,
    verb: Option<Verb>,
    owner: Verb,
) {
    let name = |verb: Verb| ACTIONS.iter().find(|(_, known)| *known == verb).map_or("", |(name, _)| name);
    let (Some(value), Some(verb), Some(given)) = (table.value(key), verb, given) else { return };
    if verb != owner {
        let message = format!("{} is not valid for `action = \"{}\"`", value.name(), name(verb));
        let problem = Problem::at(value.key_span(), message).label(format!("a key of `{}`", name(owner)));
        let help = format!("remove it, or write `action = \"{}\"`", name(owner));
        value.add(problem.also(given.span(), "the action").help(help));
    }
}

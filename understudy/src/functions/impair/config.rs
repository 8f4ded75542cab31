//! Reads the table `[impair]` and its rules.

mod matching;
#[cfg(test)]
mod tests;

use crate::functions::forward::config::DEFAULT_COUNTED_QPS;
use crate::functions::forward::config::pairs::{self, example_pairs};
use core::ops::{Range, RangeInclusive};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value, subsections};
use switch::impair::{Action, Config, Field, Match, Rule};
use switch::{Nanos, Probability};

/// Header of a rule
const RULE_HEADER: &str = "[[impair.rule]]";
/// Longest name of a rule, in characters, so that reports fit on a line
const MAX_NAME: usize = 64;
/// Upper bound for numbers of packets: more than any run sees
const MAX_PACKETS: u64 = 1 << 48;
/// Longest delay, in microseconds: ten seconds, after which every sender has given up
const MAX_DELAY_US: u64 = 10_000_000;
/// Bytes of an Ethernet header and of the most VLAN tags that are parsed
const ETHERNET_AND_TAGS: usize = 14 + 4 * rocev2::packet::MAX_TAGS;

/// Values of `action`
const ACTIONS: [&str; 6] = ["drop", "delay", "duplicate", "reorder", "corrupt", "mark"];
/// Keys that belong to one action: key, action, example
const ACTION_KEYS: [(&str, &str, &str); 7] = [
    ("delay_us", "delay", "100"),
    ("jitter_us", "delay", "50"),
    ("copies", "duplicate", "1"),
    ("behind", "reorder", "3"),
    ("at_most_us", "reorder", "10000"),
    ("field", "corrupt", "\"payload\""),
    ("force", "mark", "true"),
];

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<Config> {
    let seed = table.number("seed", 0..=i64::MAX as u64, 1);
    let pairs = table.get("pairs", "[[\"host-a\", \"host-b\"]]");
    if pairs.is_none() {
        let problem = table.problem("[impair] does not define where frames go").label("no `pairs`");
        let pair = example_pairs(ports);
        table.problems().add(problem.help(format!("add `pairs = {pair}` to join ports two by two")));
    }
    let pairs = pairs.and_then(|value| pairs::read(&value, ports, "remove it from one of them"));
    let held = table.number("held", 1..=65_536, 4096) as usize;
    let flows = table.number("flows", 1..=1 << 20, 4096) as usize;
    let counted_qps = table.number("counted_qps", 0..=1 << 20, DEFAULT_COUNTED_QPS) as usize;
    let rules = rules(table, ports);
    let mtu = ports.list.iter().map(|port| usize::from(port.mtu)).max().unwrap_or(0);
    Some(Config {
        ports: ports.list.len() as u16,
        pairs: pairs?,
        seed,
        held,
        frame_len: mtu + ETHERNET_AND_TAGS,
        flows,
        counted_qps,
        rules: rules?,
    })
}

fn rules(table: &Table<'_>, ports: &Ports) -> Option<Vec<Rule>> {
    let tables = subsections(table, "rule", RULE_HEADER)?;
    let mut names: Vec<(String, Option<Range<usize>>)> = Vec::new();
    let read = tables.into_iter().enumerate().map(|(index, table)| {
        let given = table.get("name", "\"lose some\"");
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
    let matching = table.get("match", "{ opcode = \"write\" }");
    let matching = matching.map_or(Some(Match::default()), |value| matching::read(&value, ports));
    let share = table.get("share", "0.01").map_or(Some(1.0), |value| value.fraction(0.0..=1.0));
    let skip = table.number("skip", 0..=MAX_PACKETS, 0);
    let times = table.spanned_number("times", 1..=MAX_PACKETS, 1).map_or(u64::MAX, toml::Spanned::into_inner);
    let action = action(&table);
    table.finish();
    Some(Rule {
        name: name?,
        matching: matching?,
        share: Probability::new(share?)?,
        skip,
        times,
        action: action?,
    })
}

fn action(table: &Table<'_>) -> Option<Action> {
    let given = table.require("action", "\"drop\"");
    let word = given.as_ref().and_then(|value| value.word(&ACTIONS));
    for (key, owner, example) in ACTION_KEYS {
        let Some(value) = table.get(key, example) else { continue };
        if let (Some(word), Some(given)) = (word.filter(|word| *word != owner), &given) {
            let problem =
                Problem::at(value.key_span(), format!("`{key}` is not valid for `action = \"{word}\"`"));
            let problem = problem.label(format!("a key of `{owner}`")).also(given.span(), "the action");
            value.add(problem.help(format!("remove it, or write `action = \"{owner}\"`")));
        }
    }
    let micros =
        |key, range: RangeInclusive<u64>, default| Nanos::from_micros(table.number(key, range, default));
    // All keys are read, whichever the action is, so that the problems of each are reported.
    let (by, jitter) = (micros("delay_us", 0..=MAX_DELAY_US, 100), micros("jitter_us", 0..=MAX_DELAY_US, 0));
    let (behind, at_most) =
        (table.number("behind", 1..=65_536, 1), micros("at_most_us", 1..=MAX_DELAY_US, 10_000));
    let copies = table.number("copies", 1..=16, 1) as u32;
    let field = table.get("field", "\"payload\"");
    let field = field.map_or(Some("payload"), |value| value.word(&["payload", "header", "icrc"]));
    let force = table.boolean("force", false);
    Some(match word? {
        "drop" => Action::Drop,
        "delay" => {
            table.require("delay_us", "100")?;
            Action::Delay { by, jitter }
        }
        "duplicate" => Action::Duplicate { copies },
        "reorder" => Action::Reorder { behind, at_most },
        "corrupt" => Action::Corrupt(match field? {
            "header" => Field::Header,
            "icrc" => Field::Icrc,
            _ => Field::Payload,
        }),
        _ => Action::Mark { force },
    })
}

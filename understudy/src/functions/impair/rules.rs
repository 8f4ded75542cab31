//! Rules as text: a rule as the lines of a configuration, and rules that requests state.

use super::config::{Keys, read_rules};
use core::fmt::Write as _;
use dataplane::config::Port;
use settings::declare::TableSpec;
use settings::file::parsed;
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::Table;
use std::path::Path;
use switch::impair::{Action, Field, Rule};
use switch::{Nanos, Probability};

/// Keys of a rule that belong to one action
const ACTION_KEYS: [&str; 7] = ["delay_us", "jitter_us", "copies", "behind", "at_most_us", "field", "force"];

/// Keys and values of one rule, in the syntax of a configuration. A key of `match` has that prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleText(Vec<(String, String)>);

impl RuleText {
    /// Returns the keys of a rule, without those that have their default. `ports` are the names of the ports.
    pub(super) fn of(rule: &Rule, ports: &[String]) -> Self {
        let Rule { name, matching, share, skip, times, action } = rule;
        let mut text = Self::default();
        text.push("name", quoted(name));
        let mut criterion = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                text.push(&format!("match.{key}"), value);
            }
        };
        let quoted_text = |text: String| quoted(&text);
        criterion("opcode", matching.operations.map(|set| list(set.names().into_iter().map(quoted_text))));
        let qpns = matching.qpns.iter().map(|qpn| format!("{:#x}", qpn.get()));
        criterion("qpn", (!matching.qpns.is_empty()).then(|| list(qpns)));
        criterion("src", matching.src.map(|network| quoted_text(network.to_string())));
        criterion("dst", matching.dst.map(|network| quoted_text(network.to_string())));
        let port = matching.port.and_then(|port| ports.get(port.index()));
        criterion("port", port.map(|port| quoted(port)));
        criterion("psn", matching.psn.map(|psn| quoted_text(psn.to_string())));
        criterion("psn_offset", matching.psn_offset.map(|psn| quoted_text(psn.to_string())));
        if *share != Probability::ALWAYS {
            text.push("share", format!("{:?}", share.get()));
        }
        if *skip > 0 {
            text.push("skip", skip.to_string());
        }
        if *times < u64::MAX {
            text.push("times", times.to_string());
        }
        text.push("action", quoted(action.name()));
        text.push_action(*action);
        text
    }

    fn push_action(&mut self, action: Action) {
        let us = |Nanos(ns)| (ns / 1000).to_string();
        match action {
            Action::Drop => {}
            Action::Delay { by, jitter } => {
                self.push("delay_us", us(by));
                self.push("jitter_us", us(jitter));
            }
            Action::Duplicate { copies } => self.push("copies", copies.to_string()),
            Action::Reorder { behind, at_most } => {
                self.push("behind", behind.to_string());
                self.push("at_most_us", us(at_most));
            }
            Action::Corrupt(field) => {
                let name = match field {
                    Field::Payload => "payload",
                    Field::Header => "header",
                    Field::Icrc => "icrc",
                };
                self.push("field", quoted(name));
            }
            Action::Mark { force } => self.push("force", force.to_string()),
        }
    }

    fn push(&mut self, key: &str, value: String) {
        self.0.push((key.to_owned(), value));
    }

    /// Sets keys as a command line states them: a value that is not TOML is a string, and an empty one removes
    /// the key. With another action, the keys of the action before are removed.
    pub(super) fn set(&mut self, keys: &[(String, String)]) {
        if keys
            .iter()
            .any(|(key, value)| key == "action" && !self.0.contains(&(key.clone(), toml_value(value))))
        {
            self.0.retain(|(key, _)| !ACTION_KEYS.contains(&key.as_str()));
        }
        for (key, value) in keys {
            self.0.retain(|(other, _)| other != key);
            if !value.is_empty() {
                self.push(key, toml_value(value));
            }
        }
    }

    /// Returns the lines of the rule, with their header.
    pub(super) fn toml(&self) -> String {
        let mut text = String::from("[[impair.rule]]\n");
        let criteria: Vec<_> =
            self.0.iter().filter_map(|(key, value)| Some((key.strip_prefix("match.")?, value))).collect();
        for (key, value) in self.0.iter().filter(|(key, _)| !key.starts_with("match.")) {
            // Writing to a string does not fail.
            _ = writeln!(text, "{key} = {value}");
        }
        if !criteria.is_empty() {
            let criteria: Vec<_> = criteria.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            _ = writeln!(text, "match = {{ {} }}", criteria.join(", "));
        }
        text
    }

    /// Returns the rule.
    pub(super) fn read(&self, ports: &Ports) -> Result<Rule, String> {
        let mut rules = read("rule", &self.toml(), ports)?;
        match (rules.pop(), rules.is_empty()) {
            (Some(rule), true) => Ok(rule),
            // Values cannot contain line ends, so there is one table.
            _ => Err("state the keys of one rule".into()),
        }
    }
}

/// Returns rules as [`read`] reads them.
pub(super) fn text(rules: &[Rule], ports: &[Port]) -> String {
    let names: Vec<_> = ports.iter().map(|port| port.name.clone()).collect();
    // Without rules, this line is all that there is.
    let head = if rules.is_empty() { "[impair]\n" } else { "" };
    rules.iter().fold(head.to_owned(), |text, rule| text + &RuleText::of(rule, &names).toml())
}

/// Reads the rules of a text that messages call `origin`: its `[[impair.rule]]` tables. Other tables are
/// ignored, so that the text may be a whole configuration. The error is a text for users.
pub(super) fn read(origin: &str, text: &str, ports: &Ports) -> Result<Vec<Rule>, String> {
    const SPEC: &TableSpec = &Keys::TABLE;
    let rules = parsed(Path::new(origin), text, |root, problems| {
        let root = Table::root(root, problems);
        if !root.has(SPEC) {
            let problem = Problem::of_file(format!("{origin} has no rules"));
            problems.add(problem.help(
                "begin each rule with the line `[[impair.rule]]`; a line `[impair]` without rules removes all",
            ));
        }
        let rules = root.section(SPEC).and_then(|table| {
            let rules = read_rules(&table, ports);
            table.finish();
            rules
        });
        root.discard();
        rules
    });
    rules.map_err(|report| report.render_plain())
}

/// Returns a value of a command line in the syntax of a configuration: a string, unless it already is a value.
fn toml_value(text: &str) -> String {
    let is_value = format!("value = {text}").parse::<toml::Table>().is_ok_and(|table| table.len() == 1);
    if is_value { text.to_owned() } else { quoted(text) }
}

/// Returns a string in quotes. The escapes of JSON are among those of TOML.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns one value, or a list of several.
fn list(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<_> = values.collect();
    match values.len() {
        1 => values.remove(0),
        _ => format!("[{}]", values.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::read as read_file;
    use crate::functions::FunctionConfig;

    const RULES: &str = r#"
[[impair.rule]]
name = "say \"lost\""
share = 0.3
skip = 5
times = 7
match = { opcode = ["write", "rc_send_only", "cm"], qpn = [17, 18], src = "10.0.0.0/24", dst = "fd00::1", port = "a", psn = "5-3", psn_offset = 4 }
action = "drop"
[[impair.rule]]
share = 1e-9
match = { opcode = ["ud_send_only", "request"], src = "10.0.0.1", dst = "::/0" }
action = "delay"
delay_us = 3
jitter_us = 4
[[impair.rule]]
action = "duplicate"
copies = 3
[[impair.rule]]
action = "reorder"
behind = 9
at_most_us = 10
match = { opcode = "ack" }
[[impair.rule]]
action = "corrupt"
field = "icrc"
[[impair.rule]]
action = "mark"
force = true
"#;

    fn ports() -> (Vec<String>, Ports) {
        let text = format!("{}[impair]\npairs = [[\"a\", \"b\"]]\n", crate::config::tests::PORTS);
        let config = read_file(&text);
        let FunctionConfig::Impair(_) = config.function else { panic!("[impair]") };
        (vec!["a".into(), "b".into()], Ports::of(&config.runtime.ports))
    }

    #[test]
    fn rules_are_unchanged_by_a_round_trip_through_text() {
        let (names, ports) = ports();
        let rules = read("rules", RULES, &ports).unwrap();
        assert_eq!(rules.len(), 6);
        for rule in &rules {
            let text = RuleText::of(rule, &names);
            assert_eq!(text.read(&ports).as_ref(), Ok(rule), "{}", text.toml());
        }
        let first = RuleText::of(&rules[0], &names).toml();
        assert!(first.contains(r#"opcode = ["write", "cm", "rc_send_only"]"#), "{first}");
        let ack = RuleText::of(&rules[3], &names).toml();
        assert!(ack.contains(r#"match = { opcode = "ack" }"#), "{ack}");
    }

    #[test]
    fn keys_of_a_command_line_replace_those_of_a_rule() {
        let (names, ports) = ports();
        let rules = read("rules", RULES, &ports).unwrap();
        let set = |rule: usize, keys: &[(&str, &str)]| {
            let mut text = RuleText::of(&rules[rule], &names);
            text.set(
                &keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Vec<_>>(),
            );
            text.read(&ports)
        };
        let changed =
            set(0, &[("share", "0.5"), ("times", ""), ("match.src", "10.0.0.9"), ("match.psn", "")]).unwrap();
        assert_eq!((changed.share, changed.times), (Probability::new(0.5).unwrap(), u64::MAX));
        let src = changed.matching.src.unwrap();
        assert!(changed.matching.psn.is_none() && src.to_string() == "10.0.0.9");
        // The keys of `delay` go with it, and those of the same action stay.
        assert_eq!(set(1, &[("action", "drop")]).unwrap().action, Action::Drop);
        let delay = Action::Delay { by: Nanos(3000), jitter: Nanos(9000) };
        assert_eq!(set(1, &[("action", "delay"), ("jitter_us", "9")]).unwrap().action, delay);
        let wrong = set(0, &[("share", "3")]).unwrap_err();
        assert!(wrong.contains("share"), "{wrong}");
        let wrong = set(0, &[("match.port", "c")]).unwrap_err();
        assert!(wrong.contains("there is no port `c`"), "{wrong}");
        // A value cannot add lines.
        let wrong = set(0, &[("share", "1\n[[impair.rule]]\naction = \"drop\"")]).unwrap_err();
        assert!(wrong.contains("share"), "{wrong}");
    }

    #[test]
    fn only_the_rules_of_a_configuration_are_read() {
        let (_, ports) = ports();
        let rules = read("my.toml", &format!("[[port]]\nname = \"z\"\n[impair]\nseed = 9\n{RULES}"), &ports);
        assert_eq!(rules.unwrap().len(), 6);
        assert_eq!(read("my.toml", "[impair]\n", &ports), Ok(Vec::new()));
        let wrong = read("my.toml", "[[impair.rules]]\naction = \"drop\"\n", &ports).unwrap_err();
        assert!(
            wrong.contains("there is no key `rules`") && wrong.contains("did you mean `rule`"),
            "{wrong}"
        );
        let wrong = read("my.toml", "", &ports).unwrap_err();
        assert!(wrong.contains("my.toml has no rules"), "{wrong}");
        let wrong = read("my.toml", "[[impair.rule]\n", &ports).unwrap_err();
        assert!(wrong.contains("my.toml"), "{wrong}");
    }
}

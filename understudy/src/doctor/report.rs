//! Formats findings as text and as JSON.

use super::{Finding, Ports, State};
use serde::Serialize;

/// Columns of a terminal
const WIDTH: usize = 80;

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning(_) => "warning",
        }
    }
}

/// Returns the findings by topic, each with its command below, then the verdict.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    let mut topic = "";
    for finding in findings {
        if finding.topic != topic {
            if !topic.is_empty() {
                lines.push(String::new());
            }
            topic = finding.topic;
            lines.push(topic.to_owned());
        }
        for (index, line) in wrapped(&finding.message, WIDTH - 11).into_iter().enumerate() {
            let word = if index == 0 { finding.state.word() } else { "" };
            lines.push(format!("  {word:<7}  {line}"));
        }
        // Commands are not wrapped, so that they can be copied.
        lines.extend(finding.command.as_ref().map(|command| format!("{:11}# {command}", "")));
    }
    lines.push(String::new());
    if findings.iter().any(|finding| finding.command.is_some()) {
        lines.extend(["Lines after # are commands, to be run as root.".into(), String::new()]);
    }
    lines.push(verdict(findings));
    lines.join("\n") + "\n"
}

/// Returns the findings and the verdict as one JSON value.
pub(super) fn json(findings: &[Finding]) -> String {
    let row = |finding: &Finding| Row {
        topic: finding.topic,
        state: finding.state.word(),
        finding: finding.message.clone(),
        command: finding.command.clone(),
    };
    let report = Report {
        findings: findings.iter().map(row).collect(),
        for_virtual: count_warnings(findings, Ports::Virtual),
        for_hardware: count_warnings(findings, Ports::Hardware),
        verdict: verdict(findings),
    };
    serde_json::to_string(&report).expect("numbers and text always serialise") + "\n"
}

/// Result of `--json`. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// What was found, ordered by topic
    findings: Vec<Row>,
    /// Warnings that keep virtual devices from running
    #[serde(rename = "virtual")]
    for_virtual: usize,
    /// Warnings that keep ports of network cards from running
    #[serde(rename = "hardware")]
    for_hardware: usize,
    /// The counts in words
    verdict: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Row {
    /// Part of the machine
    topic: &'static str,
    /// `ok`, `note` or `warning`
    state: &'static str,
    /// Description in a sentence
    finding: String,
    /// Command that helps, to be run as root
    command: Option<String>,
}

/// Returns the verdict, such as `virtual devices: ready; hardware ports: 2 things to fix`.
pub(super) fn verdict(findings: &[Finding]) -> String {
    let words = |ports| match count_warnings(findings, ports) {
        0 => "ready".into(),
        1 => "1 thing to fix".into(),
        count => format!("{count} things to fix"),
    };
    format!("virtual devices: {}; hardware ports: {}", words(Ports::Virtual), words(Ports::Hardware))
}

fn count_warnings(findings: &[Finding], ports: Ports) -> usize {
    findings.iter().filter(|finding| finding.state == State::Warning(ports)).count()
}

/// Wraps text into lines of at most `width` characters. A longer word is a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::ok("DPDK", "it is there"),
            Finding::warning("IOMMU", Ports::Hardware, "word ".repeat(20).trim_end()).command("fix it"),
            Finding::note("IOMMU", "a note"),
        ]
    }

    #[test]
    fn text_fits_80_columns() {
        let text = text(&findings());
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.starts_with("DPDK\n  ok       it is there\n\nIOMMU\n  warning  word"), "{text}");
        assert!(text.contains("\n           # fix it\n  note     a note\n"), "{text}");
        assert!(text.contains("to be run as root"), "{text}");
        assert!(text.ends_with("\nvirtual devices: ready; hardware ports: 1 thing to fix\n"), "{text}");
    }

    #[test]
    fn the_verdict_counts_warnings_by_kind_of_port() {
        let mut findings = findings();
        assert_eq!(verdict(&findings[..1]), "virtual devices: ready; hardware ports: ready");
        findings.push(Finding::warning("x", Ports::Virtual, "x"));
        findings.push(Finding::warning("x", Ports::Hardware, "x"));
        assert_eq!(verdict(&findings), "virtual devices: 1 thing to fix; hardware ports: 2 things to fix");
    }

    #[test]
    fn json_has_the_findings_and_the_counts() {
        let value: Value = serde_json::from_str(&json(&findings())).unwrap();
        assert_eq!(value["findings"][1]["state"], "warning");
        assert_eq!(value["findings"][1]["command"], "fix it");
        assert_eq!(value["findings"][2]["command"], Value::Null);
        assert_eq!((value["virtual"].as_u64(), value["hardware"].as_u64()), (Some(0), Some(1)));
    }
}

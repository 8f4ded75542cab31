//! Describes the rules of `[impair]`.

use crate::functions::forward::summary::{counted, pairs_text};
use dataplane::config::Port;
use switch::Probability;
use switch::impair::{Action, Config, Field, Match, Rule};

pub(super) fn lines(config: &Config, ports: &[Port]) -> Vec<(&'static str, String)> {
    let pairs = pairs_text(&config.pairs, ports);
    let held = if config.rules.iter().any(holds_frames) {
        let mb = (config.held * config.frame_len).div_ceil(1 << 20);
        format!("; a worker holds back up to {} frames, in {mb} MB", config.held)
    } else {
        String::new()
    };
    let first = ("impair", format!("{pairs}; seed {}{held}", config.seed));
    let rules = config.rules.iter().map(|rule| ("", line(rule)));
    core::iter::once(first).chain(rules).chain([counted(config.counted_qps, config.health)]).collect()
}

fn holds_frames(rule: &Rule) -> bool {
    matches!(rule.action, Action::Delay { .. } | Action::Reorder { .. })
}

pub(super) fn line(rule: &Rule) -> String {
    let Rule { name, matching, share, skip, times, action } = rule;
    let us = |ns: u64| ns / 1000;
    let action = match action {
        Action::Drop => "are dropped".into(),
        Action::Delay { by, jitter } if jitter.0 == 0 => format!("are delayed by {} us", us(by.0)),
        Action::Delay { by, jitter } => format!("are delayed by {} to {} us", us(by.0), us(by.0 + jitter.0)),
        Action::Duplicate { copies: 1 } => "are sent twice".into(),
        Action::Duplicate { copies } => format!("are sent {} times", copies + 1),
        Action::Reorder { behind, at_most } => {
            format!("are sent behind {behind} later ones, or after {} us", us(at_most.0))
        }
        Action::Corrupt(Field::Payload) => "get a bit flipped in the payload".into(),
        Action::Corrupt(Field::Header) => "get a bit flipped in the BTH".into(),
        Action::Corrupt(Field::Icrc) => "get a bit flipped in the ICRC".into(),
        Action::Mark { force: false } => "are ECN-marked if they are ECN-capable".into(),
        Action::Mark { force: true } => "are ECN-marked".into(),
    };
    let share = if *share == Probability::ALWAYS { "all".into() } else { share.to_string() };
    let skip = if *skip == 0 { String::new() } else { format!(", except the first {skip},") };
    let times = match times {
        &u64::MAX => String::new(),
        1 => ", once".into(),
        times => format!(", up to {times} times"),
    };
    format!("`{name}`: {share} of {}{skip} {action}{times}", packets(matching))
}

/// Returns the packets that a rule selects, by the names of its keys; the values are in the file.
fn packets(matching: &Match) -> String {
    let Match { operations, qpns, src, dst, port, psn, psn_offset } = matching;
    let keys = [
        (operations.is_some(), "opcode"),
        (!qpns.is_empty(), "QPN"),
        (src.is_some(), "source"),
        (dst.is_some(), "destination"),
        (port.is_some(), "port"),
        (psn.is_some(), "PSN"),
        (psn_offset.is_some(), "PSN offset"),
    ];
    let keys: Vec<_> = keys.iter().filter(|(present, _)| *present).map(|(_, key)| *key).collect();
    match keys.as_slice() {
        [] => "the RoCEv2 packets".into(),
        [only] => format!("the packets with its {only}"),
        [head @ .., last] => format!("the packets with its {} and {last}", head.join(", ")),
    }
}

/// Returns notes about valid settings that may not be intended.
pub(super) fn notes(config: &Config, workers: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if config.rules.is_empty() {
        notes.push("[impair] has no [[impair.rule]]: all packets pass".into());
    }
    if workers > 1 {
        let counts_packets = |rule: &&Rule| {
            let reorders = matches!(rule.action, Action::Reorder { .. });
            rule.skip > 0 || rule.times < u64::MAX || rule.matching.psn_offset.is_some() || reorders
        };
        notes.extend(config.rules.iter().filter(counts_packets).map(|rule| {
            format!(
                "rule `{}`: each of the {workers} workers counts only its own packets; run one worker to \
                 have them counted together",
                rule.name
            )
        }));
    }
    notes
}

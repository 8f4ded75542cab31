//! The table `[impair]`: a wire that does to RoCE packets what its rules say.

use super::FunctionConfig;
use super::forward;
use super::port::Ports;
use super::report::Problem;
use super::tree::{Table, Value};
use core::net::IpAddr;
use rocev2::{Opcode, Psn, Qpn};
use switch::impair::{Action, Config, Match, Network, OpcodeSet, Part, Rule};
use switch::{Nanos, Share};

const ACTIONS: [&str; 6] = ["drop", "delay", "duplicate", "reorder", "corrupt", "mark"];
/// Frames that are held back at once where the file does not say
const HELD: u64 = 1024;
/// Ethernet header, two tags
const FRAME_OVERHEAD: usize = 14 + 8;
const MAX_PSN: u64 = (1 << 24) - 1;

/// Words for opcodes, and the base opcodes that they mean: of each service
const CLASSES: [(&str, &[u8]); 9] = [
    ("send", &[0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x16, 0x17]),
    ("write", &[0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b]),
    ("read_request", &[0x0c]),
    ("read_response", &[0x0d, 0x0e, 0x0f, 0x10]),
    ("ack", &[0x11]),
    ("atomic_ack", &[0x12]),
    ("atomic", &[0x13, 0x14]),
    ("request", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x0a, 0x0b, 0x0c, 0x13, 0x14, 0x16, 0x17]),
    ("response", &[0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12]),
];

/// What the table may look like for these ports.
pub(super) fn example(ports: &Ports) -> String {
    format!(
        "[impair]\npairs = {}\n\n[[impair.rule]]\naction = \"drop\"\nshare = 0.01",
        forward::own_pair(ports)
    )
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<FunctionConfig> {
    let forward = forward::wires(table, ports);
    let seed = table.number("seed", 0..=u64::MAX, 1);
    let held = table.number("held", 1..=1 << 20, HELD) as usize;
    let rules = table
        .require("rule", "[{ action = \"drop\", share = 0.01 }]")
        .and_then(|value| value.list()?.iter().map(|value| rule(value, ports)).collect::<Option<Vec<_>>>());
    let longest = ports.list.iter().map(|port| usize::from(port.mtu)).max().unwrap_or(1500);
    Some(FunctionConfig::Impair(Config {
        forward: forward?,
        rules: rules?,
        seed,
        held,
        max_frame: longest + FRAME_OVERHEAD,
    }))
}

fn rule(value: &Value<'_>, ports: &Ports) -> Option<Rule> {
    let table = value.table("[[impair.rule]]")?;
    let of = table
        .get("match", "{ opcode = \"write\" }")
        .map_or_else(|| Some(Match::default()), |value| matching(&value, ports));
    let share =
        table.get("share", "0.01").map_or(Some(Share::ALWAYS), |value| Share::new(value.decimal(0.0..=1.0)?));
    let skip = table.number("skip", 0..=u64::MAX, 0);
    let times = table.spanned_number("times", 0..=u64::MAX, 1).map(toml::Spanned::into_inner);
    let name =
        table.get("name", "\"lose one in a hundred\"").and_then(|value| value.text().map(str::to_owned));
    let action = table.require("action", "\"drop\"").and_then(|value| value.word(&ACTIONS));
    let us = |key, default: f64| {
        let value = table.get(key, "100");
        let us = value.map_or(Some(default), |value| value.decimal(0.0..=3.6e9));
        us.map(|us| Nanos((us * 1e3).round() as u64))
    };
    let what = action.and_then(|action| match action {
        "drop" => Some(Action::Drop),
        "delay" => {
            table.require("delay_us", "100");
            Some(Action::Delay { base: us("delay_us", 0.0)?, jitter: us("jitter_us", 0.0)? })
        }
        "duplicate" => Some(Action::Duplicate { copies: table.number("copies", 1..=64, 1) as u32 }),
        "reorder" => Some(Action::Reorder {
            behind: table.number("behind", 1..=1024, 1) as u32,
            at_most: us("at_most_us", 10_000.0)?,
        }),
        "corrupt" => {
            let part = table
                .get("part", "\"payload\"")
                .map_or(Some("payload"), |value| value.word(&["payload", "header", "icrc"]));
            Some(Action::Corrupt(match part? {
                "header" => Part::Header,
                "icrc" => Part::Icrc,
                _ => Part::Payload,
            }))
        }
        _ => Some(Action::Mark { force: table.boolean("force", false) }),
    });
    if action.is_some() {
        table.finish();
    } else {
        // Which keys it has is not known.
        table.forget();
    }
    let name = name.unwrap_or_else(|| action.unwrap_or_default().to_owned());
    Some(Rule { name, of: of?, skip, times, share: share?, action: what? })
}

fn matching(value: &Value<'_>, ports: &Ports) -> Option<Match> {
    let table = value.table("`match`")?;
    // Each is read, so that the problems of each are shown.
    let port = table.get("port", "\"a\"").map(|value| ports.find(&value));
    let opcodes = table.get("opcode", "\"write\"").map(|value| opcodes(&value));
    let qpn = table.spanned_number("qpn", 0..=MAX_PSN, 17).map(|qpn| Qpn::new(qpn.into_inner() as u32));
    let psn = table.get("psn", "\"100-200\"").map(|value| range(&value));
    let offset = table.get("psn_offset", "\"0-9\"").map(|value| range(&value));
    let src = table.get("src", "\"10.0.0.1\"").map(|value| network(&value));
    let dst = table.get("dst", "\"10.0.0.0/24\"").map(|value| network(&value));
    table.finish();
    Some(Match {
        port: said(port)?,
        opcodes: said(opcodes)?,
        qpn,
        psn: said(psn)?.map(|(first, last)| (Psn::new(first), Psn::new(last))),
        psn_offset: said(offset)?,
        src: said(src)?,
        dst: said(dst)?,
    })
}

/// What was not said is none; `None` is what was said and not understood.
#[expect(clippy::option_option, reason = "two reasons for none")]
fn said<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(value) => value.map(Some),
    }
}

/// An opcode's number or name, a word for several, or a list of those
fn opcodes(value: &Value<'_>) -> Option<OpcodeSet> {
    if let Some(list) = value.list_if_any() {
        return list.iter().try_fold(OpcodeSet::default(), |set, value| Some(set.and(opcodes(value)?)));
    }
    let Some(text) = value.text_if_any() else {
        let number = value.number(0..=255, 10)?;
        return Some(OpcodeSet::of(|opcode| u64::from(opcode.0) == number));
    };
    if text == "cnp" {
        return Some(OpcodeSet::of(|opcode| opcode == Opcode::CNP));
    }
    if let Some((_, bases)) = CLASSES.iter().find(|(name, _)| *name == text) {
        // RC, UC and UD, which have other operations
        return Some(OpcodeSet::of(|opcode| {
            matches!(opcode.0 >> 5, 0 | 1 | 3) && bases.contains(&(opcode.0 & 0x1f))
        }));
    }
    let plain = |name: &str| name.to_lowercase().replace([' ', '-'], "_");
    let named = OpcodeSet::of(|opcode| plain(&opcode.to_string()) == plain(text));
    if named == OpcodeSet::default() {
        let words: Vec<_> = CLASSES.iter().map(|(name, _)| *name).chain(["cnp"]).collect();
        let problem = value.problem(format!("there is no opcode `{text}`")).label("no such opcode");
        value.add(problem.help(format!(
            "it can be {}, a name such as `RC RDMA WRITE Only`, or a number such as 0x0a",
            super::words::one_of(words)
        )));
        return None;
    }
    Some(named)
}

/// `"first-last"`, or one number
fn range(value: &Value<'_>) -> Option<(u32, u32)> {
    let Some(text) = value.text_if_any() else {
        let number = value.number(0..=MAX_PSN, 100)? as u32;
        return Some((number, number));
    };
    let number = |text: &str| {
        let text = text.trim();
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        number.filter(|number| *number <= MAX_PSN).map(|number| number as u32)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let both = number(first).zip(number(last));
    if both.is_none() {
        let problem = value.problem(format!("`{text}` is no range of PSNs")).label("not a range");
        value.add(
            problem.help(format!("write a number, or `\"100-200\"`; PSNs go up to {MAX_PSN}, and on at 0")),
        );
    }
    both
}

/// An address, or one with the length of a prefix
fn network(value: &Value<'_>) -> Option<Network> {
    let text = value.text()?;
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let network = address.parse::<IpAddr>().ok().and_then(|address| {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(longest), |prefix| prefix.parse().ok())?;
        (prefix <= longest).then_some(Network { address, prefix })
    });
    if network.is_none() {
        let problem: Problem = value.problem(format!("`{text}` is no address")).label("not an address");
        value.add(problem.help("write `\"10.0.0.1\"` for a host, or `\"10.0.0.0/24\"` for a network"));
    }
    network
}

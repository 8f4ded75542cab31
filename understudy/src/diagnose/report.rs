//! Report of a diagnosis, as text and as JSON.

use super::analysis::{Diagnosis, Totals};
use super::explain::{end, plural, words};
use super::finding::{Detail, Finding, Severity};
use super::packet::Sight;
use core::fmt::Write as _;
use core::net::IpAddr;
use rocev2::Qpn;
use serde_json::{Value, json};

/// Width of the text, in columns
const WIDTH: usize = 100;

/// Findings in the text; `--json` has all
const MAX_SHOWN: usize = 40;

/// Returns the report as text. `name` is the name of the capture or the instance.
pub(super) fn text(name: &str, diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for (number, finding) in (1..=MAX_SHOWN).zip(&diagnosis.findings) {
        let words = words(finding);
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        // Writing to a string does not fail.
        _ = writeln!(text, "{number}. {severity}: {}", words.title);
        if let Some(ends) = finding.ends {
            _ = writeln!(text, "   {} -> {}", end(ends.requester), end(ends.responder));
        }
        if let Some(packets) = packets(finding, diagnosis.began_ns) {
            wrap(&mut text, &packets);
        }
        wrap(&mut text, &words.explanation);
        wrap(&mut text, &format!("Next: {}.", words.next));
        text.push('\n');
    }
    if let Some(more @ 1..) = diagnosis.findings.len().checked_sub(MAX_SHOWN) {
        _ = writeln!(text, "{} more: --json has all\n", plural(more as u64, "finding"));
    }
    _ = writeln!(text, "{name}: {}", summary(diagnosis));
    text
}

/// Returns the packets of a finding in words.
fn packets(finding: &Finding, began_ns: u64) -> Option<String> {
    let seconds = |sight: &Sight| sight.time_ns as i128 - i128::from(began_ns);
    let one = |sight: &Sight| format!("{} ({:.6} s)", sight.number, seconds(sight) as f64 / 1e9);
    let named: Vec<_> = finding.packets.iter().map(one).collect();
    if named.is_empty() {
        return None;
    }
    let noun = if named.len() == 1 { "Packet" } else { "Packets" };
    let last = finding.last.filter(|last| !finding.packets.contains(last));
    let last = last.map_or_else(String::new, |last| format!(" ... {}", one(&last)));
    Some(format!("{noun} {}{last}", named.join(", ")))
}

/// Appends a paragraph, indented and at most [`WIDTH`] columns wide.
fn wrap(text: &mut String, paragraph: &str) {
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            text.push('\n');
            column = 0;
        }
        text.push_str(if column == 0 { "   " } else { " " });
        column += if column == 0 { 3 } else { 1 } + width;
        text.push_str(word);
    }
    text.push('\n');
}

fn summary(diagnosis: &Diagnosis) -> String {
    let Totals { packets, connections, forgotten, omitted, unordered, missed, duration_ns, .. } =
        diagnosis.totals;
    let of =
        |severity| diagnosis.findings.iter().filter(|finding| finding.severity == severity).count() as u64;
    let (errors, warnings, notes) = (of(Severity::Error), of(Severity::Warning), of(Severity::Note));
    let mut text = format!(
        "{} on {} in {:.6} s; {}",
        plural(packets, "RoCEv2 packet"),
        plural(connections as u64, "connection"),
        duration_ns as f64 / 1e9,
        if errors + warnings + notes == 0 {
            "no findings".into()
        } else {
            [plural(errors, "error"), plural(warnings, "warning"), plural(notes, "note")].join(", ")
        }
    );
    if packets == 0 {
        text += ". Nothing to diagnose: capture UDP port 4791 on the path of the connections";
    }
    if missed > 0 {
        _ = write!(
            text,
            ". {missed} packets came too fast for the trace: findings that rest on missing packets are left out; capture to a file for these"
        );
    }
    if unordered > 0 {
        _ = write!(
            text,
            ". {unordered} packets are earlier than the one before them: order the file with `reordercap` for exact results"
        );
    }
    if forgotten > 0 {
        _ = write!(
            text,
            ". {forgotten} directions of connections were forgotten, because more were active than fit into the memory: filter the capture by host"
        );
    }
    if omitted > 0 {
        _ = write!(text, ". {omitted} events had no room");
    }
    text
}

/// Returns the report as JSON.
pub(super) fn json(name: &str, diagnosis: &Diagnosis) -> Value {
    let findings: Vec<_> = diagnosis.findings.iter().map(finding).collect();
    let mut value = json!(diagnosis.totals);
    value["file"] = name.into();
    value["began_ns"] = diagnosis.began_ns.into();
    value["findings"] = findings.into();
    value
}

fn finding(finding: &Finding) -> Value {
    let words = words(finding);
    let side =
        |(address, qpn): (IpAddr, Option<Qpn>)| json!({ "address": address, "qpn": qpn.map(Qpn::get) });
    json!({
        "kind": finding.kind.name(),
        "severity": finding.severity,
        "requester": finding.ends.map(|ends| side(ends.requester)),
        "responder": finding.ends.map(|ends| side(ends.responder)),
        "events": finding.events,
        "count": finding.count,
        "packets": finding.packets,
        "last": finding.last,
        "detail": detail(finding.detail),
        "title": words.title,
        "explanation": words.explanation,
        "next": words.next,
    })
}

fn detail(detail: Detail) -> Value {
    match detail {
        Detail::None => Value::Null,
        Detail::Psns { from, len } => json!({ "psn": from.get(), "packets": len }),
        Detail::Refused { psn, opcode, access, code } => json!({
            "psn": psn.get(), "opcode": opcode.map(|opcode| opcode.0), "access": access, "code": code,
        }),
        Detail::Rnr { psn, us } => json!({ "psn": psn.get(), "timer_us": us }),
        Detail::Storm { packets, repeated, retries, most } => json!({
            "packets": packets, "repeated": repeated, "retries": retries, "most_in_a_row": most,
        }),
        Detail::Mtu { seen, expected } => json!({ "seen": seen, "expected": expected }),
        Detail::Named { number, name } => json!({ "number": number, "name": name }),
        Detail::Time { ns } => json!({ "waited_ns": ns }),
        Detail::Address { address } => json!({ "expected": address }),
    }
}

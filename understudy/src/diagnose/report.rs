//! Report of a diagnosis, as text and as JSON.

use super::analysis::{Diagnosis, Totals};
use super::explain::{end, plural, words};
use super::finding::{Detail, Finding, Severity};
use super::packet::{Access, Sight};
use core::fmt::Write as _;
use core::net::IpAddr;
use rocev2::Qpn;
use serde::Serialize;
use serde_json::Value;

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

/// The report as JSON. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct JsonReport<'a> {
    #[serde(flatten)]
    totals: Totals,
    /// Name of the capture, or of the instance
    file: &'a str,
    /// Time of the first packet in nanoseconds since 1970
    began_ns: u64,
    /// Findings, the worst first
    findings: Vec<FindingRow>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FindingRow {
    /// What happened, as one word
    kind: &'static str,
    severity: Severity,
    requester: Option<Side>,
    responder: Option<Side>,
    /// Times that it happened
    events: u64,
    /// Packets concerned
    count: u64,
    /// First packets that show it, six at most
    packets: Vec<Sight>,
    /// Last packet that shows it
    last: Option<Sight>,
    /// Details of the first event, by `kind`
    detail: Option<DetailRow>,
    /// What happened, in a line
    title: String,
    /// What the packets show
    explanation: String,
    /// What to try next
    next: &'static str,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Side {
    address: IpAddr,
    /// Null if the capture does not show it
    qpn: Option<u32>,
}

/// Details of an event.
#[derive(Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum DetailRow {
    /// Lost packets
    Psns {
        /// Number of the first lost packet
        psn: u32,
        /// Packets lost with it, and it
        packets: u32,
    },
    /// Refused request
    Refused {
        /// Number of the request
        psn: u32,
        opcode: Option<u8>,
        /// Memory that the request accesses
        access: Option<Access>,
        /// NAK code
        code: u8,
    },
    /// RNR NAK
    Rnr {
        /// Number of the request
        psn: u32,
        /// Time that the responder asks for, in microseconds
        timer_us: u32,
    },
    /// Retransmissions
    Storm {
        /// Packets sent in all
        packets: u64,
        /// Packets sent again
        repeated: u64,
        /// Times that packets were sent again
        retries: u64,
        /// Most times that one packet was sent again in a row
        most_in_a_row: u32,
    },
    /// Path MTUs or payload lengths
    Mtu {
        /// In bytes
        seen: u32,
        /// In bytes
        expected: u32,
    },
    /// A reason
    Named {
        /// Number of the reason
        number: u32,
        /// Name of the reason
        name: &'static str,
    },
    /// A time
    Time {
        /// In nanoseconds
        waited_ns: u64,
    },
    /// An address
    Address {
        /// Address that was expected
        expected: IpAddr,
    },
}

/// Returns the report as JSON.
pub(super) fn json(name: &str, diagnosis: &Diagnosis) -> Value {
    let report = JsonReport {
        totals: diagnosis.totals,
        file: name,
        began_ns: diagnosis.began_ns,
        findings: diagnosis.findings.iter().map(finding).collect(),
    };
    serde_json::to_value(report).expect("numbers and text always serialise")
}

fn finding(finding: &Finding) -> FindingRow {
    let words = words(finding);
    let side = |(address, qpn): (IpAddr, Option<Qpn>)| Side { address, qpn: qpn.map(Qpn::get) };
    FindingRow {
        kind: finding.kind.name(),
        severity: finding.severity,
        requester: finding.ends.map(|ends| side(ends.requester)),
        responder: finding.ends.map(|ends| side(ends.responder)),
        events: finding.events,
        count: finding.count,
        packets: finding.packets.clone(),
        last: finding.last,
        detail: detail(finding.detail),
        title: words.title,
        explanation: words.explanation,
        next: words.next,
    }
}

fn detail(detail: Detail) -> Option<DetailRow> {
    Some(match detail {
        Detail::None => return None,
        Detail::Psns { from, len } => DetailRow::Psns { psn: from.get(), packets: len },
        Detail::Refused { psn, opcode, access, code } => {
            DetailRow::Refused { psn: psn.get(), opcode: opcode.map(|opcode| opcode.0), access, code }
        }
        Detail::Rnr { psn, us } => DetailRow::Rnr { psn: psn.get(), timer_us: us },
        Detail::Storm { packets, repeated, retries, most } => {
            DetailRow::Storm { packets, repeated, retries, most_in_a_row: most }
        }
        Detail::Mtu { seen, expected } => DetailRow::Mtu { seen, expected },
        Detail::Named { number, name } => DetailRow::Named { number, name },
        Detail::Time { ns } => DetailRow::Time { waited_ns: ns },
        Detail::Address { address } => DetailRow::Address { expected: address },
    })
}

//! `understudy decode`: decodes captured frames.

mod capture;
mod dissect;
mod fields;
mod filter;

pub(crate) use capture::{CaptureError, Flow, Frame, LinkType, for_each};
pub(crate) use dissect::{Dissection, Roce, dissect};
#[cfg(test)]
pub(crate) use fields::PacketFields;
pub(crate) use filter::OpcodeFilter;

use crate::output::print_error;
use clap::Args;
use core::net::IpAddr;
use miette::{MietteDiagnostic, Report};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show the RoCEv2 packets of a capture file (pcap or pcapng)
#[derive(Args)]
pub(crate) struct DecodeArgs {
    /// Capture file; - reads standard input
    file: PathBuf,
    /// Print one JSON object per packet, one per line
    #[arg(long)]
    json: bool,
    /// Also show frames that are not RoCEv2
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    opcodes: OpcodeFilter,
    /// Show only packets from or to this host
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
}

/// Returns exit code 1 if the file cannot be read to its end. What could be read is printed nevertheless.
pub(crate) fn run(args: &DecodeArgs) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut decoder = Decoder { args, first_time: None, summary: Summary::default(), failed: None };
    let read = capture::for_each(&args.file, |frame| match decoder.show(frame, &mut out) {
        Ok(()) => Flow::Continue(()),
        Err(error) => {
            decoder.failed = Some(error);
            Flow::Break(())
        }
    });
    let written = match decoder.failed {
        Some(error) => Err(error),
        None if args.json => out.flush(),
        // The error says all there is to say.
        None if decoder.summary.frames == 0 && read.is_err() => Ok(()),
        None => write!(out, "{}", decoder.summary.text()).and_then(|()| out.flush()),
    };
    match written {
        // The reader closed the pipe, such as `| head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("understudy: standard output: {error}"));
            return ExitCode::FAILURE;
        }
        Ok(()) => {}
    }
    match read {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("{:?}", explain(&args.file, &error)));
            ExitCode::FAILURE
        }
    }
}

/// Returns a report of a capture that could not be read, or not to its end.
pub(crate) fn explain(file: &Path, error: &CaptureError) -> Report {
    let help = match error {
        CaptureError::Io(error) if error.kind() == ErrorKind::NotFound => "check the path",
        CaptureError::Io(_) => "check that it is a regular file and that you may read it",
        CaptureError::Format => {
            "tcpdump -w, Wireshark and dumpcap write such files; unpack a compressed file first"
        }
        CaptureError::Cut => {
            "all frames before this one were decoded; the capture may still be being written"
        }
        CaptureError::Damaged(_) => {
            "all frames before the damage were decoded; Wireshark's `editcap` may repair the file"
        }
    };
    MietteDiagnostic::new(format!("{}: {error}", name_of(file))).with_help(help).into()
}

/// Returns the name of a file for messages.
pub(crate) fn name_of(file: &Path) -> String {
    if file.as_os_str() == capture::STDIN { "standard input".into() } else { file.display().to_string() }
}

/// Dissects a frame of a capture.
pub(crate) fn dissect_frame<'a>(frame: &Frame<'a>) -> Dissection<'a> {
    match frame.link.link(frame.bytes) {
        Some(link) => dissect(frame.bytes, link, frame.bytes.len() >= frame.wire_len),
        None if capture::is_known(frame.link) => Dissection::Other("truncated".into()),
        None => Dissection::Other(format!("link type {}", frame.link)),
    }
}

struct Decoder<'a> {
    args: &'a DecodeArgs,
    first_time: Option<u64>,
    summary: Summary,
    failed: Option<io::Error>,
}

impl Decoder<'_> {
    fn show(&mut self, frame: Frame<'_>, out: &mut impl Write) -> io::Result<()> {
        self.summary.frames += 1;
        let first = *self.first_time.get_or_insert(frame.time_ns.unwrap_or(0));
        match dissect_frame(&frame) {
            Dissection::Roce(roce) => {
                if !self.args.opcodes.matches(&roce) || !filter::concerns(&roce, self.args.host) {
                    self.summary.filtered += 1;
                    return Ok(());
                }
                self.summary.count(&roce);
                if self.args.json {
                    json_line(&frame, roce.packet_fields(), out)
                } else {
                    text_line(frame, first, &roce, out)
                }
            }
            Dissection::Other(what) => {
                self.summary.others += 1;
                if !self.args.all {
                    Ok(())
                } else if self.args.json {
                    json_line(&frame, OtherFrame { roce: false, what }, out)
                } else {
                    writeln!(
                        out,
                        "{:>6} {:>12.6}  {what}, {} B",
                        frame.number,
                        relative(frame, first),
                        frame.wire_len
                    )
                }
            }
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Returns the seconds since the first frame.
fn relative(frame: Frame<'_>, first: u64) -> f64 {
    let time = frame.time_ns.unwrap_or(first);
    if time >= first { seconds(time - first) } else { -seconds(first - time) }
}

/// A line of `--json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct JsonLine<F> {
    /// Number of the frame in the capture, from 1
    frame: u64,
    /// Capture time in seconds since 1970
    time: Option<f64>,
    /// Capture time in nanoseconds since 1970
    time_ns: Option<u64>,
    /// Length of the frame, without its check sequence, in bytes
    frame_len: usize,
    #[serde(flatten)]
    fields: F,
}

/// Any other frame, with `--all`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OtherFrame {
    /// Always false
    roce: bool,
    /// Short description
    what: String,
}

fn json_line(frame: &Frame<'_>, fields: impl Serialize, out: &mut impl Write) -> io::Result<()> {
    let time = frame.time_ns.map(seconds);
    let line =
        JsonLine { frame: frame.number, time, time_ns: frame.time_ns, frame_len: frame.wire_len, fields };
    serde_json::to_writer(&mut *out, &line)?;
    writeln!(out)
}

fn text_line(frame: Frame<'_>, first: u64, roce: &Roce<'_>, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:>6} {:>12.6}  {}", frame.number, relative(frame, first), described(roce))
}

/// Dissects an Ethernet frame of length `len`, of which `bytes` were captured.
pub(crate) fn dissect_ethernet(bytes: &[u8], len: usize) -> Option<Dissection<'_>> {
    let link = LinkType::ETHERNET.link(bytes)?;
    Some(dissect(bytes, link, bytes.len() >= len))
}

/// Returns the fields of a frame that is no RoCEv2 packet, in a trace.
fn other(what: String) -> Map<String, Value> {
    Map::from_iter([("roce".into(), false.into()), ("other".into(), what.into())])
}

/// Returns the fields of a JSON record of an Ethernet frame, as `understudy decode --json` prints them.
pub(crate) fn fields(bytes: &[u8], len: usize) -> Map<String, Value> {
    match dissect_ethernet(bytes, len) {
        Some(Dissection::Roce(roce)) => roce.fields(),
        Some(Dissection::Other(what)) => other(what),
        None => other("truncated".into()),
    }
}

/// Describes an Ethernet frame of length `len`, of which `bytes` were captured, in one line without a line
/// end.
pub(crate) fn describe(bytes: &[u8], len: usize) -> String {
    match dissect_ethernet(bytes, len) {
        None => "truncated".into(),
        Some(Dissection::Roce(roce)) => described(&roce),
        Some(Dissection::Other(what)) => format!("{what}, {len} B"),
    }
}

fn described(roce: &Roce<'_>) -> String {
    let (src, dst) = roce.addresses;
    let mut line = format!("{src} > {dst}");
    for vlan in &roce.vlans {
        _ = write!(line, " vlan {vlan}");
    }
    if let Some(bth) = &roce.bth {
        _ = write!(line, "  {bth}");
    }
    for (name, value) in &roce.extended() {
        _ = write!(line, "  {name}");
        words(&mut line, value);
    }
    if let Some(len @ 1..) = roce.payload_len {
        _ = write!(line, "  {len} B");
    }
    match roce.icrc_ok {
        Some(false) => line += "  BAD ICRC",
        None if roce.fault.is_none() => line += "  (cut by the capture)",
        Some(true) | None => {}
    }
    if let Some(fault) = roce.fault {
        _ = write!(line, "  MALFORMED: {fault}");
    }
    line
}

/// Appends a header's fields as words. Addresses and keys are printed in hexadecimal; long private data is
/// omitted.
fn words(line: &mut String, value: &Value) {
    let Value::Object(fields) = value else {
        _ = write!(line, " {value}");
        return;
    };
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("private_data" | "syndrome", _) => {}
            ("va" | "rkey" | "qkey" | "src_qp" | "qpn" | "remote_qpn" | "service_id", Value::Number(n)) => {
                _ = write!(line, " {name} {:#x}", n.as_u64().unwrap_or(0));
            }
            ("kind" | "reason_name", Value::String(word)) => _ = write!(line, " {word}"),
            (_, Value::Object(_)) => words(line, value),
            (_, Value::String(word)) => _ = write!(line, " {name} {word}"),
            (_, Value::Null) => _ = write!(line, " {name} unlimited"),
            _ => _ = write!(line, " {name} {value}"),
        }
    }
}

/// Totals of the whole file.
#[derive(Default)]
struct Summary {
    frames: u64,
    others: u64,
    roce: u64,
    /// RoCEv2 packets that the filter does not select
    filtered: u64,
    /// Name and packet count of each opcode, by opcode number
    opcodes: BTreeMap<u8, (String, u64)>,
    bad_icrc: u64,
    no_icrc: u64,
    malformed: BTreeMap<&'static str, u64>,
}

impl Summary {
    fn count(&mut self, roce: &Roce<'_>) {
        self.roce += 1;
        if let Some(bth) = &roce.bth {
            let opcode = bth.opcode();
            self.opcodes.entry(opcode.0).or_insert_with(|| (opcode.to_string(), 0)).1 += 1;
        }
        match roce.icrc_ok {
            Some(true) => {}
            Some(false) => self.bad_icrc += 1,
            None => self.no_icrc += 1,
        }
        if let Some(fault) = roce.fault {
            *self.malformed.entry(fault.name()).or_default() += 1;
        }
    }

    fn text(&self) -> String {
        let mut text = format!("\n{} frames, {} of them RoCEv2", self.frames, self.roce);
        if self.others > 0 {
            _ = write!(text, ", {} others", self.others);
        }
        if self.filtered > 0 {
            _ = write!(text, ", {} more RoCEv2 packets not selected", self.filtered);
        }
        let good = self.roce - self.bad_icrc - self.no_icrc;
        _ = writeln!(text, "\nICRC: {good} right, {} wrong, {} not captured", self.bad_icrc, self.no_icrc);
        for (opcode, (name, count)) in &self.opcodes {
            _ = writeln!(text, "{count:>9}  {opcode:#04x} {name}");
        }
        for (name, count) in &self.malformed {
            _ = writeln!(text, "{count:>9}  malformed: {name}");
        }
        text
    }
}

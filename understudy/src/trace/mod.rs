//! `understudy trace`: shows packets of a running instance as they are received and sent.

mod pcapng;

use crate::config::{self, EXIT_CODE};
use crate::decode::{Dissection, OpcodeFilter, describe, dissect_ethernet, fields};
use crate::observe::{Client, ClientError, Part, Target, TraceLine, TraceRecord, TraceRequest};
use crate::output::print_error;
use crate::system::catch_signals;
use core::net::IpAddr;
use dataplane::watch::{MAX_SNAP_LEN, SNAP_LEN};
use pcapng::Capture;
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tracing::info;

/// Show packets of a running instance, each as it was received and as it was sent
///
/// The instance's configuration has to have `[observe]` with `socket` (docs/observe.md). Ctrl-C ends the trace.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["qp", "group", "all"])))]
pub(crate) struct Args {
    /// Socket of the instance, or its configuration file
    #[arg(value_name = "SOCKET|CONFIG")]
    target: PathBuf,
    /// Trace packets to the queue pair with this number, before or after rewriting
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Option<u32>,
    /// Trace all RoCEv2 packets
    #[arg(long)]
    all: bool,
    /// Trace only packets to this host; with --group or --all, packets from or to it
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Trace packets of this group of [p4ce]: those of its leader and of its replicas
    #[arg(long, value_name = "GROUP")]
    group: Option<u32>,
    /// End after this many packets
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Also write frames to this file: received ones on interface PORT-in, sent ones on PORT-out
    #[arg(long, value_name = "FILE")]
    pcapng: Option<PathBuf>,
    /// Print one line of JSON per packet, with the fields of `understudy decode --json` for each frame
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    opcodes: OpcodeFilter,
    /// Show this many bytes of each frame, 0 for whole frames. Workers that copy more than 256 are slower, and more
    /// packets are missed
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_LEN, value_parser = parse_snaplen)]
    snaplen: usize,
}

fn parse_snaplen(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Ok(MAX_SNAP_LEN),
        Ok(bytes) if bytes <= MAX_SNAP_LEN => Ok(bytes),
        _ => Err(format!("write a number of bytes, at most {MAX_SNAP_LEN}, or 0 for whole frames")),
    }
}

pub(crate) fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok().filter(|number| *number < 1 << 24).ok_or_else(|| "a QPN is a number below 2^24".into())
}

/// Number of read timeouts within which an instance has to begin and end a trace
const MAX_TIMEOUTS: u32 = 50;

/// Reason why the trace ended early.
enum Failure {
    Client(ClientError),
    /// Writing to standard output failed
    Out(io::Error),
    File(io::Error),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match config::target(&args.target) {
        Ok(target) => target,
        Err(why) => {
            print_error(why);
            return ExitCode::from(EXIT_CODE);
        }
    };
    match trace(args, &target) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe, such as `| head`.
        Err(Failure::Out(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let why = match failure {
                Failure::Client(error) => error.to_string(),
                Failure::Out(error) => format!("standard output: {error}"),
                Failure::File(error) => {
                    format!("{}: {error}", args.pcapng.as_deref().unwrap_or("".as_ref()).display())
                }
            };
            print_error(format_args!("understudy: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn trace(args: &Args, target: &Target) -> Result<(), Failure> {
    let mut client = Client::connect(target)?;
    let stop = catch_signals().map_err(|error| Failure::Out(io::Error::other(error.to_string())))?;
    // The instance selects packets by queue pair and host, this process by everything else.
    let host = args.host.filter(|_| args.group.is_none());
    let filters = !args.opcodes.is_empty() || (args.host.is_some() && host.is_none());
    let count = args.count.filter(|_| !filters);
    // Workers copy enough for filters and the ICRC of short packets; this process shortens what it shows.
    let snaplen = Some(args.snaplen.max(SNAP_LEN) as u32);
    client.trace(TraceRequest { qp: args.qp, host, group: args.group, count, all: args.all, snaplen })?;
    let mut printer = Printer { args, filters, ports: Vec::new(), capture: None, first_ns: None, shown: 0 };
    let mut ending = false;
    // Consecutive read timeouts while a line has to come
    let mut timeouts = 0;
    loop {
        // An instance ignores the end of a trace that has not begun.
        if stop.flag().load(Ordering::Relaxed) && !ending && !printer.ports.is_empty() {
            ending = true;
            client.end_trace()?;
        }
        match client.next_line()? {
            None if ending || printer.ports.is_empty() => {
                timeouts += 1;
                if timeouts > MAX_TIMEOUTS {
                    return Err(ClientError::Disconnected(ErrorKind::TimedOut.into()).into());
                }
            }
            None => {}
            Some(TraceLine::Begin { ports }) => {
                timeouts = 0;
                let capture = args.pcapng.as_deref().map(|path| Capture::create(path, &ports)).transpose();
                printer.capture = capture.map_err(Failure::File)?;
                info!("Watching. Ctrl-C ends it.");
                printer.ports = ports;
            }
            Some(TraceLine::Packet(record)) => {
                if args.count.is_none_or(|count| printer.shown < count) {
                    printer.print(record)?;
                }
                if filters && args.count == Some(printer.shown) && !ending {
                    ending = true;
                    client.end_trace()?;
                }
            }
            Some(TraceLine::End { missed, .. }) => {
                let packets = printer.shown;
                printer.capture.map_or(Ok(()), Capture::finish).map_err(Failure::File)?;
                let more = if missed > 0 && filters && args.count == Some(printer.shown) {
                    // Counted until the stop request, which came after the last packet shown
                    "; others may have been missed in between".to_owned()
                } else if missed > 0 {
                    format!("; {missed} more were missed, because they arrived too fast")
                } else {
                    String::new()
                };
                info!("{packets} packet{}{more}", if packets == 1 { "" } else { "s" });
                return Ok(());
            }
        }
    }
}

struct Printer<'a> {
    args: &'a Args,
    /// Whether this process selects packets
    filters: bool,
    ports: Vec<String>,
    capture: Option<Capture>,
    first_ns: Option<u64>,
    /// Packets printed
    shown: u64,
}

impl Printer<'_> {
    fn print(&mut self, mut record: TraceRecord) -> Result<(), Failure> {
        if self.filters && !record.parts.iter().any(|part| selects(self.args, part)) {
            return Ok(());
        }
        self.shown += 1;
        record.number = self.shown;
        let first = *self.first_ns.get_or_insert(record.time_ns);
        let text = if self.args.json {
            format!("{}\n", json(&record, &self.ports, self.args.snaplen))
        } else {
            text(&record, first, &self.ports)
        };
        for part in &mut record.parts {
            if let Part::In { bytes, .. } | Part::Out { bytes, .. } | Part::Lost { bytes, .. } = part {
                bytes.0.truncate(self.args.snaplen);
            }
        }
        if let Some(capture) = &mut self.capture {
            capture.write(&record).map_err(Failure::File)?;
        }
        io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::Out)
    }
}

/// Returns the port, length and bytes of a part that is a frame.
fn frame(part: &Part) -> Option<(u16, usize, &[u8])> {
    match part {
        Part::In { port, len, bytes }
        | Part::Out { port, len, bytes }
        | Part::Lost { port, len, bytes, .. } => Some((*port, *len as usize, &bytes.0)),
        Part::Dropped { .. } | Part::Punted | Part::Consumed => None,
    }
}

/// Returns whether the opcode and the host of a part are selected.
fn selects(args: &Args, part: &Part) -> bool {
    let Some((_, len, bytes)) = frame(part) else { return false };
    let Some(Dissection::Roce(packet)) = dissect_ethernet(bytes, len) else { return false };
    let (src, dst) = packet.addresses;
    args.opcodes.matches(&packet) && args.host.is_none_or(|host| host == src || host == dst)
}

/// Returns a record as JSON. Each frame has its port's name, and the fields of `understudy decode --json`.
fn json(record: &TraceRecord, ports: &[String], snaplen: usize) -> Value {
    let mut value = json!(record);
    for (part, value) in record.parts.iter().zip(value["parts"].as_array_mut().into_iter().flatten()) {
        let Some(((port, len, bytes), object)) = frame(part).zip(value.as_object_mut()) else { continue };
        if let Some(Value::String(digits)) = object.get_mut("bytes") {
            digits.truncate(2 * snaplen);
        }
        let name = ports.get(usize::from(port)).cloned();
        let more = json!(FrameFields { port_name: name, frame_len: len, fields: fields(bytes, len) });
        object.extend(more.as_object().cloned().unwrap_or_default());
    }
    value
}

/// What `--json` adds to a part that is a frame.
#[derive(serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FrameFields {
    /// Name of the port
    port_name: Option<String>,
    /// Length of the frame, in bytes
    frame_len: usize,
    /// Fields of `decode --json`
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "crate::decode::PacketFields"))]
    fields: serde_json::Map<String, Value>,
}

/// Returns a line for each part of a traced packet. The first line has its number and time.
fn text(record: &TraceRecord, first_ns: u64, ports: &[String]) -> String {
    use core::fmt::Write as _;

    let widest = ports.iter().map(|port| port.chars().count()).max().unwrap_or(0);
    let name = |port: u16| ports.get(usize::from(port)).map_or("?", String::as_str);
    let seconds = record.time_ns.saturating_sub(first_ns) as f64 / 1e9;
    let mut head = format!("{:>6} {seconds:>12.6}", record.number);
    let mut text = String::new();
    let last = record.parts.len().saturating_sub(1);
    for (at, part) in record.parts.iter().enumerate() {
        if at == last && record.left_out > 0 {
            _ = writeln!(text, "{:>19}  {:<widest$}  {} more frames are not shown", "", "", record.left_out);
        }
        let line = match part {
            Part::In { port, len, bytes } => {
                format!("{:<widest$}  in   {}", name(*port), describe(&bytes.0, *len as usize))
            }
            Part::Out { port, len, bytes } => {
                format!("{:<widest$}  out  {}", name(*port), describe(&bytes.0, *len as usize))
            }
            Part::Lost { port, len, bytes, reason } => {
                let (reason, frame) = (reason.replace('_', " "), describe(&bytes.0, *len as usize));
                format!("{:<widest$}  lost ({reason})  {frame}", name(*port))
            }
            Part::Dropped { reason } => format!("{:<widest$}  dropped: {}", "", reason.replace('_', " ")),
            Part::Punted => format!("{:<widest$}  to the control plane", ""),
            Part::Consumed => format!("{:<widest$}  consumed", ""),
        };
        // Writing to a string does not fail.
        _ = writeln!(text, "{head:>19}  {line}");
        head.clear();
    }
    text
}

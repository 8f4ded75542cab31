//! `understudy trace`: shows packets of a running instance as they are received and sent.

mod pcapng;

use crate::config::{self, EXIT_CODE};
use crate::decode::describe;
use crate::observe::{Client, ClientError, Part, Target, TraceLine, TraceRecord, TraceRequest};
use crate::output::print_error;
use crate::system::catch_signals;
use core::net::IpAddr;
use pcapng::Capture;
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tracing::info;

/// Show packets of a running instance, each as it was received and as it was sent
///
/// The instance's configuration has to have `[observe]` with `socket` (docs/observe.md). Ctrl-C ends the trace.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["qp", "group"])))]
pub(crate) struct Args {
    /// Socket of the instance, or its configuration file
    #[arg(value_name = "SOCKET|CONFIG")]
    target: PathBuf,
    /// Trace packets to the queue pair with this number, before or after rewriting
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Option<u32>,
    /// Trace only packets to this host
    #[arg(long, value_name = "ADDRESS", requires = "qp")]
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
    /// Print one line of JSON per packet
    #[arg(long)]
    json: bool,
}

fn parse_qpn(text: &str) -> Result<u32, String> {
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
    client.trace(TraceRequest { qp: args.qp, host: args.host, group: args.group, count: args.count })?;
    let mut printer = Printer { args, ports: Vec::new(), capture: None, first_ns: None };
    let mut ending = false;
    // Consecutive read timeouts while a line has to come
    let mut timeouts = 0;
    loop {
        if stop.flag().load(Ordering::Relaxed) && !ending {
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
            Some(TraceLine::Packet(record)) => printer.print(&record)?,
            Some(TraceLine::End { packets, missed }) => {
                printer.capture.map_or(Ok(()), Capture::finish).map_err(Failure::File)?;
                let more = if missed > 0 {
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
    ports: Vec<String>,
    capture: Option<Capture>,
    first_ns: Option<u64>,
}

impl Printer<'_> {
    fn print(&mut self, record: &TraceRecord) -> Result<(), Failure> {
        let first = *self.first_ns.get_or_insert(record.time_ns);
        if let Some(capture) = &mut self.capture {
            capture.write(record).map_err(Failure::File)?;
        }
        let text = if self.args.json {
            let json = serde_json::to_string(record).expect("numbers and text always serialise");
            format!("{json}\n")
        } else {
            text(record, first, &self.ports)
        };
        io::stdout().lock().write_all(text.as_bytes()).map_err(Failure::Out)
    }
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

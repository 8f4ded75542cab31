//! `understudy diagnose`: says what went wrong on RoCEv2 connections, from captures or from a running instance.
//!
//! [`Analysis`] is a state machine over decoded packets, without I/O, in bounded memory; `connections` follows
//! queue pairs, `cm` the communication manager. `explain` puts findings into words.

mod analysis;
mod cm;
mod connections;
mod explain;
mod finding;
mod live;
mod packet;
mod report;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use report::JsonReport;

use crate::decode::{CaptureError, Flow, dissect_frame, explain as explain_capture, for_each, name_of};
use crate::output::{print, print_error};
use crate::system::parse_seconds;
use analysis::{Analysis, Diagnosis};
use core::net::IpAddr;
use core::time::Duration;
use finding::Severity;
use packet::Sight;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Say what went wrong on RoCEv2 connections: losses and where, retransmissions, NAKs, path MTU, rejects
///
/// Reads captures (pcap or pcapng), or traces a running instance.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Capture files, each of which is diagnosed by itself; - reads standard input
    #[arg(value_name = "FILE", required_unless_present = "at", conflicts_with = "at")]
    files: Vec<PathBuf>,
    /// Diagnose a running instance: its socket, or its configuration file (docs/observe.md)
    #[arg(long, value_name = "SOCKET|CONFIG")]
    at: Option<PathBuf>,
    /// With --at: trace only packets to the queue pair with this number; a connection is then seen in one direction
    #[arg(long, value_name = "QPN", value_parser = crate::trace::parse_qpn, requires = "at")]
    qp: Option<u32>,
    /// With --at: trace only packets from or to this host; with --qp, to it
    #[arg(long, value_name = "ADDRESS", requires = "at")]
    host: Option<IpAddr>,
    /// With --at: trace for this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds, default_value = "10", requires = "at")]
    duration: Duration,
    /// Print one JSON object per input, one per line
    #[arg(long)]
    json: bool,
}

/// Exit code if an input could not be read to its end
const UNREADABLE: u8 = 2;

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut code = 0;
    if let Some(at) = &args.at {
        let (diagnosis, failure) = match live::diagnose(at, args) {
            Ok(diagnosis) => (diagnosis, None),
            Err(why) => {
                print_error(why);
                return ExitCode::from(UNREADABLE);
            }
        };
        return ExitCode::from(show(args, &at.display().to_string(), &diagnosis, failure));
    }
    for file in &args.files {
        let (diagnosis, result) = diagnose(file);
        // What cannot be read at all has no report.
        let failure = result.err().map(|error| format!("{:?}", explain_capture(file, &error)));
        if let (Some(why), 0) = (&failure, diagnosis.totals.frames) {
            print_error(why);
            code = UNREADABLE;
            continue;
        }
        code = code.max(show(args, &name_of(file), &diagnosis, failure));
    }
    ExitCode::from(code)
}

/// Prints a report, and the reason why the input could not be read to its end. Returns the exit code.
fn show(args: &Args, name: &str, diagnosis: &Diagnosis, failure: Option<String>) -> u8 {
    let text = if args.json {
        format!("{}\n", report::json(name, diagnosis))
    } else {
        report::text(name, diagnosis)
    };
    _ = print(&text, ExitCode::SUCCESS);
    if let Some(why) = failure {
        print_error(why);
        return UNREADABLE;
    }
    u8::from(diagnosis.findings.iter().any(|finding| finding.severity == Severity::Error))
}

/// Diagnoses a capture, as far as it can be read.
fn diagnose(file: &Path) -> (Diagnosis, Result<(), CaptureError>) {
    let mut analysis = Analysis::default();
    let result = for_each(file, |frame| {
        let sight = Sight { number: frame.number, time_ns: frame.time_ns.unwrap_or(0) };
        analysis.frame(sight, frame.interface, &dissect_frame(&frame));
        Flow::Continue(())
    });
    (analysis.finish(), result)
}

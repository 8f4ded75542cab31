//! Lines that `--print` writes, and where reports go.

use super::Args;
use onepipe_host::{ProcessId, Scattering, Timestamp};
use std::fs::File;
use std::io::Write;

/// Returns where reports go: a file, or the standard stream that has no messages.
pub(super) fn report_output(args: &Args) -> Result<Box<dyn Write>, miette::Report> {
    Ok(match &args.report {
        Some(path) => Box::new(
            File::create(path).map_err(|error| miette::miette!("--report: {}: {error}", path.display()))?,
        ),
        None if args.print => Box::new(std::io::stderr()),
        None => Box::new(std::io::stdout()),
    })
}

/// Prints a line for a received message.
pub(super) fn print(out: &mut impl Write, timestamp: Timestamp, src: ProcessId, payload: &[u8]) {
    let number = payload.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
    _ = writeln!(out, "{} {src} {number} {}", timestamp.nanos(), payload.len());
}

/// Prints a line for a failed message. Scatterings are numbered as this program numbers its messages: by the
/// calls, from 0.
pub(super) fn print_failed(out: &mut impl Write, number: Scattering, dst: ProcessId, why: &str) {
    _ = writeln!(out, "failed {} {dst} {why}", number.0);
}

/// Prints a line for a failed process.
pub(super) fn print_process_failed(out: &mut impl Write, id: ProcessId, timestamp: Timestamp) {
    _ = writeln!(out, "process_failed {id} {}", timestamp.nanos());
}

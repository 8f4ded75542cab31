//! Printing.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Prints a text to standard output. A reader that has gone away (`| head`) is no error.
pub(crate) fn print(text: &str, code: ExitCode) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => code,
    }
}

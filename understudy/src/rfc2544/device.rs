//! The device under test, if it is a program that this command starts.

use crate::output::printable;
use miette::{IntoDiagnostic as _, miette};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// Interval and number of checks whether the program has ended
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(20);
const EXIT_POLLS: u32 = 250;

/// A program that runs until this is dropped.
pub(super) struct Device {
    child: Child,
    command: String,
    /// Folder of the log with the program's output
    folder: TempDir,
}

impl Device {
    /// Starts a command in a folder. The first word `understudy` stands for this program.
    pub(super) fn start(command: &str, folder: &Path) -> Result<Self, miette::Report> {
        let logs = tempfile::tempdir().into_diagnostic()?;
        let log = File::create(logs.path().join("log")).into_diagnostic()?;
        let own = std::env::current_exe().into_diagnostic()?;
        let program = match command.strip_prefix("understudy ") {
            Some(rest) => format!("\"$0\" {rest}"),
            None => command.to_owned(),
        };
        // The kernel kills the device if this program ends without stopping it.
        let kill_with_parent = "setpriv --pdeathsig KILL --";
        let script =
            format!("command -v setpriv >/dev/null || exec {program}\nexec {kill_with_parent} {program}");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(own);
        if !folder.as_os_str().is_empty() {
            shell.current_dir(folder);
        }
        // A program that reads commands, such as testpmd, ends at the end of its input, so the pipe stays
        // open.
        shell.stdin(Stdio::piped()).stdout(log.try_clone().into_diagnostic()?).stderr(log);
        let child = shell.spawn().into_diagnostic()?;
        Ok(Self { child, command: command.to_owned(), folder: logs })
    }

    /// Returns an error with the program's last output if it has ended.
    pub(super) fn check(&mut self) -> Result<(), miette::Report> {
        let Some(status) = self.child.try_wait().into_diagnostic()? else { return Ok(()) };
        Err(miette!(
            help = self.last_output(),
            "the device under test, `{}`, ended with {status}",
            self.command
        ))
    }

    /// Returns the last lines of the program's output.
    pub(super) fn last_output(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        format!("its last output:\n{}", printable(&lines[lines.len().saturating_sub(8)..].join("\n")))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // On SIGINT, a DPDK program removes its files.
        _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        for _ in 0..EXIT_POLLS {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            sleep(EXIT_POLL_INTERVAL);
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

//! The program as a child process that tests observe, signal, or kill.

use crate::common::json_page::{assert_is_on_the_page, assert_report_is_on_the_page};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use understudy_tests::processes::{Process, Signal, command as program};

/// Timeout for everything that tests wait for. It is far above all expected times, for busy machines.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// Standard error of the process so far, and whether it is closed.
#[derive(Default)]
struct Printed {
    text: String,
    is_closed: bool,
}

/// A process with the text it has printed to standard error. It is killed when dropped.
pub(crate) struct Machine {
    child: Process,
    printed: Arc<(Mutex<Printed>, Condvar)>,
}

impl Machine {
    /// Starts a subcommand of the program, which may include options. Returns immediately.
    pub(crate) fn start(command: &str, config: &Path) -> Self {
        let mut child = program(env!("CARGO_BIN_EXE_understudy"));
        child.args(command.split(' ')).args(["--json", config.to_str().unwrap()]);
        child.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Process::start(child);
        let printed = Arc::<(Mutex<Printed>, Condvar)>::default();
        let (writer, stderr) = (Arc::clone(&printed), child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                writer.0.lock().unwrap().text += &(line + "\n");
                writer.1.notify_all();
            }
            writer.0.lock().unwrap().is_closed = true;
            writer.1.notify_all();
        });
        Self { child, printed }
    }

    /// Starts a subcommand, and returns when the process is ready.
    pub(crate) fn ready(command: &str, config: &Path) -> Self {
        let machine = Self::start(command, config);
        machine.wait_for("is ready", 1);
        machine
    }

    /// Waits until the process has printed `words` at least `times` times.
    ///
    /// Panics if it ends before, or after [`DEADLINE`].
    pub(crate) fn wait_for(&self, words: &str, times: usize) {
        let missing = |printed: &mut Printed| printed.text.matches(words).count() < times;
        let (printed, changed) = &*self.printed;
        let waits = |printed: &mut Printed| !printed.is_closed && missing(printed);
        let (mut printed, _) = changed.wait_timeout_while(printed.lock().unwrap(), DEADLINE, waits).unwrap();
        assert!(!missing(&mut printed), "expected {times} times {words:?} in\n{}", printed.text);
    }

    /// Returns what the process has printed to standard error so far.
    pub(crate) fn printed(&self) -> String {
        self.printed.0.lock().unwrap().text.clone()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    /// Kills the process with SIGKILL.
    ///
    /// Panics if it has already ended.
    pub(crate) fn kill(mut self) {
        assert!(
            self.child.try_wait().unwrap().is_none(),
            "the process has already ended: {}",
            self.printed()
        );
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end of the process. Returns whether it succeeded, and its report.
    pub(crate) fn end(mut self) -> (bool, String) {
        let mut report = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        (self.child.wait().unwrap().success(), report)
    }

    /// Interrupts the process (SIGINT). Returns its report.
    pub(crate) fn interrupt(self) -> Value {
        self.child.signal(Signal::INT);
        let printed = Arc::clone(&self.printed);
        let (succeeded, report) = self.end();
        assert!(succeeded, "{}{report}", printed.0.lock().unwrap().text);
        let report: Value = serde_json::from_str(&report).unwrap();
        if report.get("services").is_some() {
            assert_is_on_the_page("Closing report of `understudy host --json`", &report);
        } else {
            assert_report_is_on_the_page(&report);
        }
        report
    }
}

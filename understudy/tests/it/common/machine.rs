//! The program as a child process that tests observe, signal, or kill.

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
struct Said {
    text: String,
    over: bool,
}

/// A process with the text it has printed to standard error. It is killed when dropped.
pub(crate) struct Machine {
    child: Process,
    said: Arc<(Mutex<Said>, Condvar)>,
}

impl Machine {
    /// Starts a subcommand of the program, which may include options. Returns immediately.
    pub(crate) fn start(command: &str, config: &Path) -> Self {
        let mut child = program(env!("CARGO_BIN_EXE_understudy"));
        child.args(command.split(' ')).args(["--json", config.to_str().unwrap()]);
        child.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Process::start(child);
        let said = Arc::<(Mutex<Said>, Condvar)>::default();
        let (hears, stderr) = (Arc::clone(&said), child.stderr.take().unwrap());
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                hears.0.lock().unwrap().text += &(line + "\n");
                hears.1.notify_all();
            }
            hears.0.lock().unwrap().over = true;
            hears.1.notify_all();
        });
        Self { child, said }
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
        let missing = |said: &mut Said| said.text.matches(words).count() < times;
        let (said, told) = &*self.said;
        let waits = |said: &mut Said| !said.over && missing(said);
        let (mut said, _) = told.wait_timeout_while(said.lock().unwrap(), DEADLINE, waits).unwrap();
        assert!(!missing(&mut said), "expected {times} times {words:?} in\n{}", said.text);
    }

    /// Returns what the process has printed to standard error so far.
    pub(crate) fn said(&self) -> String {
        self.said.0.lock().unwrap().text.clone()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process with SIGKILL.
    ///
    /// Panics if it has already ended.
    pub(crate) fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the process has already ended: {}", self.said());
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
        let said = Arc::clone(&self.said);
        let (well, report) = self.end();
        assert!(well, "{}", said.0.lock().unwrap().text);
        serde_json::from_str(&report).unwrap()
    }
}

//! The program as a process of its own: a machine that others look at, talk to, or kill.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use understudy_tests::processes::{Process, Signal, command as program};

/// For machines that have something else to do; nothing is expected to take so long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// What it has said on standard error, and whether that is all.
#[derive(Default)]
struct Said {
    text: String,
    over: bool,
}

/// A process, killed when dropped, and what it says.
pub(crate) struct Machine {
    child: Process,
    said: Arc<(Mutex<Said>, Condvar)>,
}

impl Machine {
    /// Starts a command of the program, perhaps with options behind it. Returns at once.
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

    /// Returns when it is ready.
    pub(crate) fn ready(command: &str, config: &Path) -> Self {
        let machine = Self::start(command, config);
        machine.wait_for("is ready", 1);
        machine
    }

    /// Waits until it has said `words` so many times.
    pub(crate) fn wait_for(&self, words: &str, times: usize) {
        let missing = |said: &mut Said| said.text.matches(words).count() < times;
        let (said, told) = &*self.said;
        let waits = |said: &mut Said| !said.over && missing(said);
        let (mut said, _) = told.wait_timeout_while(said.lock().unwrap(), DEADLINE, waits).unwrap();
        assert!(!missing(&mut said), "not {times} times {words:?} in\n{}", said.text);
    }

    /// What it has said so far
    pub(crate) fn said(&self) -> String {
        self.said.0.lock().unwrap().text.clone()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, of which it hears nothing.
    pub(crate) fn kill(mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it has ended: {}", self.said());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end: whether all went well, and its report.
    pub(crate) fn end(mut self) -> (bool, String) {
        let mut report = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        (self.child.wait().unwrap().success(), report)
    }

    /// Ctrl-C; its report.
    pub(crate) fn interrupt(self) -> Value {
        self.child.signal(Signal::INT);
        let said = Arc::clone(&self.said);
        let (well, report) = self.end();
        assert!(well, "{}", said.0.lock().unwrap().text);
        serde_json::from_str(&report).unwrap()
    }
}

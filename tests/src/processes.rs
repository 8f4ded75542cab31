//! Child processes of tests. Each ends with its test, whether the test passes, panics, or is killed after a
//! timeout.

use core::ops::{Deref, DerefMut};
use rustix::process::{Pid, kill_process};
use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

pub use rustix::process::Signal;

/// Runs a program that the kernel kills when the thread that started it ends (`PR_SET_PDEATHSIG`, which
/// `exec` keeps). If the parent ended before the request reached the kernel, `PPID` differs and the program
/// is not run. Under `nohup`, the tests themselves ignore SIGHUP, which `exec` would keep, too.
const KILLED_WITH_PARENT: [&str; 7] = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "--",
    "sh",
    "-c",
    r#"[ "$PPID" = "$0" ] && exec env --default-signal=HUP "$@""#,
];

/// Returns a command that runs `program`. The process is killed when the calling thread ends, which suits
/// [`Command::output`]. Use [`Process::start`] for a process that runs while the test continues.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(KILLED_WITH_PARENT[0]);
    // Tests wait for events at level info.
    command.env_remove("UNDERSTUDY_LOG");
    // The tests may be a service themselves, whose manager waits for no messages of these processes.
    for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM"] {
        command.env_remove(variable);
    }
    command.args(&KILLED_WITH_PARENT[1..]).arg(std::process::id().to_string()).arg(program);
    command
}

/// A running process. It is killed when this value is dropped, and when the test's process ends without
/// dropping it.
pub struct Process(Option<Child>);

/// A command to start, and the channel on which the process is returned.
type StartRequest = (Command, Sender<io::Result<Child>>);

/// Returns the sender to a thread that starts processes and lives as long as this process does. The kernel's
/// signal is sent at the end of the thread that started a process, which may be earlier than the end of the
/// test.
fn starter() -> &'static Sender<StartRequest> {
    static STARTER: OnceLock<Sender<StartRequest>> = OnceLock::new();
    STARTER.get_or_init(|| {
        let (requests, received) = channel::<StartRequest>();
        thread::spawn(move || {
            for (mut command, response) in received {
                _ = response.send(command.spawn());
            }
        });
        requests
    })
}

impl Process {
    /// Starts a command returned by [`command`].
    ///
    /// # Panics
    /// If the process cannot be started, or the command is not from [`command`].
    pub fn start(command: Command) -> Self {
        assert_eq!(
            command.get_program(),
            KILLED_WITH_PARENT[0],
            "the command is not from `processes::command`"
        );
        let (response, started) = channel();
        starter().send((command, response)).expect("the starter thread lives as long as the process");
        Self(Some(started.recv().expect("the starter thread responds").expect("the process can be started")))
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// If the process has been waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self), signal).expect("the process has not been waited for");
    }

    /// Waits for the end of the process. Returns what it printed to those of its pipes that have not been
    /// taken.
    pub fn finish(mut self) -> Output {
        self.0
            .take()
            .expect("the child is taken only here")
            .wait_with_output()
            .expect("the process can be waited for")
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("the child is taken only at the end")
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("the child is taken only at the end")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

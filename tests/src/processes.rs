//! Processes that tests start. Each ends with the test, however that ends: by a panic, by `SIGKILL` after a time-out, or well.

use core::ops::{Deref, DerefMut};
use rustix::process::{Pid, kill_process};
use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

pub use rustix::process::Signal;

/// Runs a program that the kernel kills when the thread that started it ends (`PR_SET_PDEATHSIG`, which `exec` keeps). A
/// parent that ended before the kernel was asked shows in `PPID`.
const LEASH: [&str; 7] =
    ["setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", r#"[ "$PPID" = "$0" ] && exec "$@""#];

/// Returns a command that runs `program`. The process is killed when the calling thread ends, which suits
/// [`Command::output`]; [`Process::start`] is for a process that runs beside the test.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(LEASH[0]);
    command.args(&LEASH[1..]).arg(std::process::id().to_string()).arg(program);
    command
}

/// A running process. It is killed when this is dropped, and when the test's process ends without that.
pub struct Process(Option<Child>);

/// A command to start, and the way back for the process.
type Order = (Command, Sender<io::Result<Child>>);

/// Starts processes from a thread that lives as long as this process does: the kernel's signal is sent at the end of the
/// thread that started a process, which may come before the end of the test.
fn starter() -> &'static Sender<Order> {
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    STARTER.get_or_init(|| {
        let (orders, received) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, back) in received {
                _ = back.send(command.spawn());
            }
        });
        orders
    })
}

impl Process {
    /// Starts a command that [`command`] has returned.
    ///
    /// # Panics
    /// If it cannot be started, or is another one.
    pub fn start(command: Command) -> Self {
        assert_eq!(command.get_program(), LEASH[0], "made by `processes::command`");
        let (back, started) = channel();
        starter().send((command, back)).expect("the thread lives as long as the process");
        Self(Some(started.recv().expect("it answers").expect("the process can be started")))
    }

    /// Sends a signal to the process, which has not been waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self), signal).expect("the process has not been waited for");
    }

    /// Waits for the end of the process. Returns what it printed to the pipes that are still its own.
    pub fn finish(mut self) -> Output {
        self.0.take().expect("it is taken here alone").wait_with_output().expect("it can be waited for")
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("it is taken at the end alone")
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is taken at the end alone")
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

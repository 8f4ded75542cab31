//! The program as a service of systemd: readiness and watchdog.
//!
//! The program reports to a service manager that sets `NOTIFY_SOCKET` (`Type=notify`) when the workers run and when the run
//! ends, and with `WATCHDOG_USEC` (`WatchdogSec=`), four times within that time, that the control thread and all workers make
//! progress.
//! The messages are those of sd_notify(3).

use crate::system::now;
use dataplane::Live;
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};
use tracing::{error, info, warn};

/// Messages within the time after which the service manager considers the program stuck
const MESSAGES: u32 = 4;

/// Returns whether this process is a service, and no terminal can hang up. (A shell of a service may have inherited its
/// environment.)
pub(crate) fn is_managed() -> bool {
    manager().is_some() && !io::stdin().is_terminal()
}

/// Returns the path of the service manager's socket, or its abstract name after `@` (sd_notify(3)).
fn manager() -> Option<OsString> {
    std::env::var_os("NOTIFY_SOCKET")
}

/// Reports that the run ends.
pub(crate) fn stopping() {
    send("STOPPING=1\n");
}

/// Sends a message to the service manager, if there is one. Returns false if its queue is full: waiting for it would stop
/// the control plane.
fn send(message: &str) -> bool {
    let Some(path) = manager() else { return true };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(message.as_bytes(), &address)
    });
    match sent {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => {
            warn!("Cannot send a message to the service manager: {error}.");
            true
        }
    }
}

/// Returns the time after which the service manager considers this process stuck (sd_watchdog_enabled(3)).
fn watchdog_limit() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse().ok();
    let is_other =
        number("WATCHDOG_PID").is_some_and(|process: u64| process != u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|_| !is_other).map(Duration::from_micros)
}

/// The service manager of a run, if there is one.
pub(crate) struct Manager {
    watchdog: Watchdog,
}

impl Manager {
    /// Prepares the messages to the manager. `status` describes the run for `systemctl status`.
    pub(crate) fn new(status: String) -> Self {
        Self { watchdog: Watchdog::new("Worker", status) }
    }

    /// Sends the messages that are due.
    pub(crate) fn on_tick(&mut self, live: &Live<'_>) {
        self.watchdog.on_tick(live.workers().iter().map(|worker| worker.turns.get()));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        stopping();
    }
}

/// Reports to the service manager that the program is ready, and that its workers go on.
pub(crate) struct Watchdog {
    /// What makes turns, for messages
    subject: &'static str,
    /// Line for `systemctl status`, until it is sent
    ready: Option<String>,
    /// Time between two messages; `None` if the service manager has no watchdog
    interval: Option<Duration>,
    last_at: Instant,
    /// Turns of each worker at the last message
    turns: Vec<u64>,
    /// Whether it was reported that a worker is stuck
    is_reported: bool,
}

impl Watchdog {
    /// Prepares the watchdog that the service manager requests, if it does. `subject` is what makes turns. `status` describes the program when it is
    /// ready, which is at the first [`Self::on_tick`].
    pub(crate) fn new(subject: &'static str, status: String) -> Self {
        Self::with_limit(watchdog_limit(), subject, status)
    }

    fn with_limit(limit: Option<Duration>, subject: &'static str, status: String) -> Self {
        let interval = limit.map(|limit| limit / MESSAGES);
        Self { subject, ready: Some(status), interval, last_at: now(), turns: Vec::new(), is_reported: false }
    }

    /// Sends the messages that are due. `turns` returns how many turns each worker has made.
    pub(crate) fn on_tick(&mut self, turns: impl Iterator<Item = u64>) {
        if self.ready.as_ref().is_some_and(|status| send(&format!("READY=1\nSTATUS={status}\n"))) {
            self.ready = None;
        }
        if self.interval.is_some() && self.is_due(now(), turns) {
            // One that finds the queue full is replaced by the next.
            send("WATCHDOG=1\n");
        }
    }

    /// Returns whether a message is due and no worker is stuck.
    fn is_due(&mut self, now: Instant, turns: impl Iterator<Item = u64>) -> bool {
        if self.interval.is_none_or(|interval| now.duration_since(self.last_at) < interval) {
            return false;
        }
        self.last_at = now;
        let before = core::mem::replace(&mut self.turns, turns.collect());
        let Some(stuck) = self.turns.iter().zip(&before).position(|(turns, before)| turns == before) else {
            if core::mem::take(&mut self.is_reported) {
                info!("All workers make progress again.");
            }
            return true;
        };
        if !core::mem::replace(&mut self.is_reported, true) {
            let interval = self.interval.unwrap_or_default();
            error!(
                "{} {stuck} has made no progress for {interval:?}; the service manager ends this program if that goes on.",
                self.subject
            );
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_reset_while_every_worker_makes_turns() {
        let mut dog = Watchdog::with_limit(Some(Duration::from_millis(400)), "Worker", String::new());
        let start = dog.last_at;
        let mut due = |ms, turns: [u64; 2]| dog.is_due(start + Duration::from_millis(ms), turns.into_iter());
        assert!(!due(99, [1, 1]), "early");
        assert!(due(100, [1, 1]), "the first message has nothing to compare with");
        assert!(!due(150, [5, 5]), "early");
        assert!(due(200, [6, 2]));
        assert!(!due(300, [7, 2]), "the second worker is stuck");
        assert!(!due(400, [8, 2]));
        assert!(due(500, [9, 3]), "it goes on");
    }

    #[test]
    fn no_message_is_due_without_a_watchdog() {
        let mut dog = Watchdog::with_limit(None, "Worker", String::new());
        let later = dog.last_at + Duration::from_secs(9);
        assert!(!dog.is_due(later, [1].into_iter()));
    }
}

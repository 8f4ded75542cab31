//! Receiving with a timeout.

use super::Receiver;
use crate::service::ReliableError;
use core::time::Duration;
use onepipe::process::Message;
use std::time::Instant;

/// Number of polls after which a thread that waits for a message yields the CPU, and after which it sleeps
const SPINS: u32 = 256;
const YIELDS: u32 = 1024;
/// Duration of each sleep
const SLEEP: Duration = Duration::from_micros(50);

#[allow(
    clippy::disallowed_methods,
    reason = "the application's thread waits, and nothing of the protocol depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

impl Receiver {
    /// Returns the next message. Waits for at most `timeout`, or until the endpoint [has
    /// ended](super::Handle::has_ended). Calls the callback for messages that fail meanwhile.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<Message> {
        // Best effort is not refused.
        self.wait(timeout, |receiver| Ok(receiver.unreliable_recv())).ok().flatten()
    }

    /// Returns the next reliable message, as [`reliable_recv`](Self::reliable_recv) does. Waits as
    /// [`recv_timeout`](Self::recv_timeout) does.
    ///
    /// # Errors
    /// There is no controller, or messages are received in the merged order.
    pub fn reliable_recv_timeout(&mut self, timeout: Duration) -> Result<Option<Message>, ReliableError> {
        self.wait(timeout, Self::reliable_recv)
    }

    /// Returns the next message of either service, as [`recv`](Self::recv) does. Waits as
    /// [`recv_timeout`](Self::recv_timeout) does.
    ///
    /// # Errors
    /// There is no controller, or messages are received by service.
    pub fn merged_recv_timeout(&mut self, timeout: Duration) -> Result<Option<Message>, ReliableError> {
        self.wait(timeout, Self::recv)
    }

    fn wait(
        &mut self,
        timeout: Duration,
        next: impl Fn(&mut Self) -> Result<Option<Message>, ReliableError>,
    ) -> Result<Option<Message>, ReliableError> {
        if timeout.is_zero() {
            return next(self);
        }
        let mut start = None;
        let mut polls = 0u32;
        loop {
            // Read before the ring is polled: messages delivered before the end are still received.
            let has_ended = self.handle.has_ended();
            if let Some(message) = next(self)? {
                return Ok(Some(message));
            }
            if has_ended {
                return Ok(None);
            }
            match polls {
                ..SPINS => core::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP.min(timeout)),
            }
            let time = now();
            if time.duration_since(*start.get_or_insert(time)) >= timeout {
                return next(self);
            }
            polls = polls.saturating_add(1);
        }
    }
}

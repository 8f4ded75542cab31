//! Arguments of the application's callbacks.

use core::time::Duration;
use onepipe::Timestamp;
use onepipe::process::{Event, Failure, ProcessId, Scattering};

/// A message that failed (1Pipe, Table 1: argument of the `onepipe_send_fail_callback` callback).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Scattering of the message
    pub scattering: Scattering,
    /// Timestamp of the scattering, if it has been stamped
    pub timestamp: Option<Timestamp>,
    /// Receiver of the message
    pub dst: ProcessId,
    /// Index of the message in the call
    pub part: u32,
    /// Reason
    pub why: Failure,
}

/// The barrier of the process's link stands still, so that nothing is delivered, or rises again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The barrier has not risen for [`stall_after`](onepipe::process::Config::stall_after)
    Stalled {
        /// The barrier, if there has been any
        barrier: Option<Timestamp>,
    },
    /// The barrier rises again
    Recovered {
        /// The new barrier
        barrier: Timestamp,
        /// Time for which it stood still
        after: Duration,
    },
}

impl Stall {
    /// Returns the stall that an event reports, if it is of that kind.
    pub(super) fn of(event: &Event) -> Option<Self> {
        match *event {
            Event::Stalled { barrier } => Some(Self::Stalled { barrier }),
            Event::Recovered { barrier, after } => {
                Some(Self::Recovered { barrier, after: Duration::from_nanos(after.0) })
            }
            Event::SendFailed { .. } | Event::Settled { .. } => None,
        }
    }
}

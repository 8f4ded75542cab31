//! Merged order of both services (1Pipe, section 2.1).
//!
//! Each service delivers its messages in order. A best-effort message also waits until the commit barrier has
//! reached its timestamp: until then a reliable message that is earlier may still be committed. A reliable
//! message waits until the best-effort barrier has passed its timestamp.

use super::super::types::ProcessId;
use crate::header::Timestamp;

/// Service by which the next message of the merged order was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    BestEffort,
    Reliable,
}

/// Position of a message: its timestamp and its sender
pub(super) type Position = (Timestamp, ProcessId);

/// First message of each service that is delivered, and both barriers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) best_effort: Option<Position>,
    pub(super) reliable: Option<Position>,
    /// Best-effort barrier: all messages before it are delivered
    pub(super) barrier: Option<Timestamp>,
    /// Commit barrier: all messages up to it are delivered
    pub(super) commit: Option<Timestamp>,
    /// Planted bug: best-effort messages do not wait for the commit barrier
    pub(super) is_unmerged: bool,
}

/// Returns whether a message is before another one. No sender uses a timestamp for both services.
fn is_before(one: Position, other: Position) -> bool {
    one.0.precedes(other.0) || one.0 == other.0 && one.1 < other.1
}

impl Heads {
    /// Returns the service of the next message, or `None` if an earlier one may still come.
    pub(super) fn next(&self) -> Option<Service> {
        let is_first =
            |one: Position, other: Option<Position>| other.is_none_or(|other| is_before(one, other));
        if let Some(position) = self.best_effort
            && is_first(position, self.reliable)
        {
            let is_committed = self.commit.is_some_and(|commit| !commit.precedes(position.0));
            return (is_committed || self.is_unmerged).then_some(Service::BestEffort);
        }
        let is_past =
            self.barrier.is_some_and(|barrier| self.reliable.is_some_and(|(time, _)| time.precedes(barrier)));
        is_past.then_some(Service::Reliable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(best_effort: Option<u64>, reliable: Option<u64>, barrier: u64, commit: u64) -> Option<Service> {
        // Across the wrap of timestamps
        let time = |time: u64| Timestamp::new((1 << 48) - 10).add(time);
        Heads {
            best_effort: best_effort.map(|at| (time(at), ProcessId(2))),
            reliable: reliable.map(|at| (time(at), ProcessId(1))),
            barrier: Some(time(barrier)),
            commit: Some(time(commit)),
            is_unmerged: false,
        }
        .next()
    }

    #[test]
    fn each_service_waits_for_the_barrier_of_the_other() {
        assert_eq!(next(Some(12), None, 15, 9), None, "a reliable message of 10 may be committed later");
        assert_eq!(next(Some(12), None, 15, 12), Some(Service::BestEffort));
        assert_eq!(next(Some(12), Some(10), 15, 12), Some(Service::Reliable));
        assert_eq!(next(None, Some(10), 10, 12), None, "a best-effort message of 10 may still arrive");
        assert_eq!(next(None, Some(10), 11, 12), Some(Service::Reliable));
        assert_eq!(next(Some(10), Some(10), 11, 12), Some(Service::Reliable), "by sender");
        assert_eq!(next(None, None, 15, 15), None);
    }
}

//! Barriers of a process's link, as received (1Pipe, section 4.1).

use crate::header::{OnePipe, Timestamp};
use switch::Nanos;

use super::clock::Clock;
use super::config::Config;
use super::counters::Refusal;

/// Best-effort and commit barrier, unwrapped; 0 before there is one.
#[derive(Clone, Debug)]
pub(super) struct Barriers {
    best_effort: u64,
    commit: u64,
    /// Time of the switch's clock in the last beacon received, plus 1 ns if that beacon announced that
    /// nothing follows; unwrapped
    last_tor_beacon: u64,
    /// Maximum time by which a timestamp may be ahead of the clock, in nanoseconds
    ahead_max: u64,
}

impl Barriers {
    pub(super) const fn new(config: &Config) -> Self {
        Self { best_effort: 0, commit: 0, last_tor_beacon: 0, ahead_max: config.ahead_max.0 }
    }

    /// Returns the best-effort barrier, unwrapped.
    #[inline]
    pub(super) const fn best_effort(&self) -> u64 {
        self.best_effort
    }

    /// Returns both barriers as timestamps.
    pub(super) fn timestamps(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let timestamp = |barrier| (barrier != 0).then(|| Timestamp::new(barrier));
        (timestamp(self.best_effort), timestamp(self.commit))
    }

    /// Returns whether a time is too far ahead of the clock.
    #[inline]
    pub(super) fn is_ahead(&self, time: u64, clock: &Clock, now: Nanos) -> bool {
        time > self.limit(clock, now)
    }

    /// Returns the latest time that is not too far ahead of the clock.
    #[inline]
    fn limit(&self, clock: &Clock, now: Nanos) -> u64 {
        clock.read(now).saturating_add(self.ahead_max)
    }

    /// Updates the barriers by those that the link's other end has sent. Those that are too far ahead of the
    /// clock count as the latest valid time.
    pub(super) fn update(&mut self, header: &OnePipe, clock: &Clock, now: Nanos) -> Result<(), Refusal> {
        let limit = self.limit(clock, now);
        let unwrap =
            |value: Option<Timestamp>| value.map_or(0, |value| clock.unwrap_timestamp(value, now).min(limit));
        let (barrier, commit) = (unwrap(header.barrier()), unwrap(header.commit()));
        self.commit = self.commit.max(commit);
        if barrier != 0 && barrier < self.best_effort {
            return Err(Refusal::Stale);
        }
        self.best_effort = self.best_effort.max(barrier);
        Ok(())
    }

    /// Checks the time of a beacon. Returns it, unwrapped.
    pub(super) fn check_beacon(&self, header: &OnePipe, clock: &Clock, now: Nanos) -> Result<u64, Refusal> {
        let is_final = header.nothing_follows();
        let time = clock.unwrap_timestamp(header.timestamp(), now);
        if is_final && self.is_ahead(time, clock, now) {
            return Err(Refusal::Ahead);
        }
        // A late or repeated announcement carries no barrier that would reveal its age, and would raise this
        // process's barrier above timestamps that still arrive.
        let old = time.saturating_add(self.ahead_max) < clock.read(now);
        if is_final && (old || time < self.last_tor_beacon) {
            return Err(Refusal::Stale);
        }
        Ok(time)
    }

    /// Updates the barriers by a beacon with this checked time.
    pub(super) fn update_by_beacon(
        &mut self,
        header: &OnePipe,
        time: u64,
        clock: &Clock,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let is_final = header.nothing_follows();
        self.update(header, clock, now)?;
        self.last_tor_beacon = self.last_tor_beacon.max(time + u64::from(is_final));
        if is_final {
            // No sender is left to wait for. A sender that returns uses later timestamps, or its messages are
            // refused.
            self.best_effort = self.best_effort.max(clock.read(now));
        }
        Ok(())
    }
}

//! Clock of a process, which never goes back (1Pipe, section 4.1).

use crate::header::Timestamp;
use switch::Nanos;

/// 1Pipe's time, unwrapped to 64 bits: the low 48 bits are the timestamp.
#[derive(Debug)]
pub(super) struct Clock {
    /// Time shown when the runner's clock is 0
    epoch: u64,
    /// Maximum that `epoch` has had
    epoch_max: u64,
    /// Latest time that was sent or returned
    issued: u64,
    /// Latest timestamp of a scattering. No two scatterings have the same
    stamped: u64,
}

impl Clock {
    /// Creates a clock that shows `clock` when the runner's clock is 0.
    pub(super) const fn new(clock: Timestamp) -> Self {
        // Starts one 48-bit period after 0, so that earlier times exist
        let epoch = (1 << 48) + clock.nanos();
        Self { epoch, epoch_max: epoch, issued: 0, stamped: 0 }
    }

    /// Returns the time that the clock was set to show, which may be before what it has shown.
    pub(super) const fn unclamped(&self, now: Nanos) -> u64 {
        self.epoch.wrapping_add(now.0)
    }

    /// Returns the time, which never goes back.
    #[inline]
    pub(super) fn read(&self, now: Nanos) -> u64 {
        self.unclamped(now).max(self.issued)
    }

    /// Returns the time, to be sent or returned to the application. From now on the clock shows no earlier
    /// time.
    #[inline]
    pub(super) fn issue(&mut self, now: Nanos) -> u64 {
        self.issued = self.read(now);
        self.issued
    }

    /// Returns a timestamp for a scattering, later than that of any other scattering.
    #[inline]
    pub(super) fn stamp(&mut self, now: Nanos) -> u64 {
        self.stamped = self.read(now).max(self.stamped + 1);
        self.issued = self.stamped;
        self.stamped
    }

    /// Makes all timestamps of scatterings later than `time`.
    pub(super) fn stamp_after(&mut self, time: Timestamp, now: Nanos) {
        self.stamped = self.stamped.max(self.unwrap_timestamp(time, now));
    }

    /// Returns whether the clock stands still because it was set back.
    pub(super) fn is_clamped(&self, now: Nanos) -> bool {
        self.unclamped(now) < self.issued
    }

    /// Returns the runner's time at which the clock will show more than `time`, which is ahead of it.
    pub(super) fn when_past(&self, time: u64, now: Nanos) -> Nanos {
        now + Nanos(time.saturating_sub(self.unclamped(now)) + 1)
    }

    /// Sets the clock, in the direction of the shorter distance.
    pub(super) fn set(&mut self, clock: Timestamp, now: Nanos) {
        let by = clock.distance(Timestamp::new(self.unclamped(now)));
        self.epoch = self.epoch.wrapping_add_signed(by);
        self.epoch_max = self.epoch_max.max(self.epoch);
    }

    /// Returns the time that the clock would show if it had never been set back. Clocks of other nodes, which
    /// were not, are no further ahead than that.
    #[inline]
    pub(super) const fn without_setbacks(&self, now: Nanos) -> u64 {
        self.epoch_max.wrapping_add(now.0)
    }

    /// Unwraps a timestamp, as near to the present as possible.
    #[inline]
    pub(super) fn unwrap_timestamp(&self, timestamp: Timestamp, now: Nanos) -> u64 {
        let clock = self.read(now);
        clock.wrapping_add_signed(timestamp.distance(Timestamp::new(clock)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_goes_back_and_never_repeats_a_timestamp() {
        let mut clock = Clock::new(Timestamp::new((1 << 48) - 10));
        let first = clock.stamp(Nanos(5));
        assert_eq!(Timestamp::new(first), Timestamp::new((1 << 48) - 5));
        assert_eq!(clock.stamp(Nanos(5)), first + 1, "no two scatterings have the same timestamp");
        assert_eq!(clock.issue(Nanos(5)), first + 1);
        assert_eq!(clock.unwrap_timestamp(Timestamp::new(3), Nanos(5)), first + 8, "across the wrap");
        clock.set(Timestamp::new((1 << 48) - 105), Nanos(5));
        assert!(clock.is_clamped(Nanos(5)));
        assert_eq!((clock.issue(Nanos(50)), clock.stamp(Nanos(50))), (first + 1, first + 2), "stands still");
        assert_eq!(clock.when_past(first + 2, Nanos(50)), Nanos(108));
        assert_eq!((clock.read(Nanos(107)), clock.read(Nanos(108))), (first + 2, first + 3));
        assert!(!clock.is_clamped(Nanos(108)));
        assert_eq!(
            clock.without_setbacks(Nanos(108)),
            clock.unclamped(Nanos(208)),
            "clocks that were not set back went on"
        );
    }
}

//! A process's clock: it never goes back (1Pipe, section 4.1; FACTS C-46).

use rocev2::onepipe::Timestamp;
use switch::Nanos;

/// 1Pipe's time on a line that does not wrap: the low 48 bits are the timestamp.
#[derive(Debug)]
pub(super) struct Clock {
    /// What it shows when the runner's clock is 0
    epoch: u64,
    /// The latest that this has been
    epoch_max: u64,
    /// The latest time that anybody was told
    told: u64,
    /// The latest timestamp of a scattering. No two have the same
    stamped: u64,
}

impl Clock {
    /// A clock that shows `clock` when the runner's is 0.
    pub(super) const fn new(clock: Timestamp) -> Self {
        // One round on, so that there is something before it
        let epoch = (1 << 48) + clock.nanos();
        Self { epoch, epoch_max: epoch, told: 0, stamped: 0 }
    }

    /// What it was set to show, which may lie before what it has shown.
    pub(super) const fn shows(&self, now: Nanos) -> u64 {
        self.epoch.wrapping_add(now.0)
    }

    /// What it shows.
    #[inline]
    pub(super) fn read(&self, now: Nanos) -> u64 {
        self.shows(now).max(self.told)
    }

    /// The same, for others to know: it shows no less from now on.
    #[inline]
    pub(super) fn tell(&mut self, now: Nanos) -> u64 {
        self.told = self.read(now);
        self.told
    }

    /// A timestamp for a scattering.
    #[inline]
    pub(super) fn stamp(&mut self, now: Nanos) -> u64 {
        self.stamped = self.read(now).max(self.stamped + 1);
        self.told = self.stamped;
        self.stamped
    }

    /// Whether it stands still, as it was set back
    pub(super) fn stands(&self, now: Nanos) -> bool {
        self.shows(now) < self.told
    }

    /// When it will show more than `time`, which lies ahead of it.
    pub(super) fn when_past(&self, time: u64, now: Nanos) -> Nanos {
        now + Nanos(time.saturating_sub(self.shows(now)) + 1)
    }

    /// Sets it, by the shorter way round.
    pub(super) fn set(&mut self, clock: Timestamp, now: Nanos) {
        let by = clock.distance(Timestamp::new(self.shows(now)));
        self.epoch = self.epoch.wrapping_add_signed(by);
        self.epoch_max = self.epoch_max.max(self.epoch);
    }

    /// What it would show if it had never been set back. Others, which were not, are no further than that.
    #[inline]
    pub(super) const fn unbroken(&self, now: Nanos) -> u64 {
        self.epoch_max.wrapping_add(now.0)
    }

    /// Where a timestamp lies: as near to the present as it can.
    #[inline]
    pub(super) fn place(&self, timestamp: Timestamp, now: Nanos) -> u64 {
        let clock = self.read(now);
        clock.wrapping_add_signed(timestamp.distance(Timestamp::new(clock)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_goes_back_and_stamps_once() {
        let mut clock = Clock::new(Timestamp::new((1 << 48) - 10));
        let first = clock.stamp(Nanos(5));
        assert_eq!(Timestamp::new(first), Timestamp::new((1 << 48) - 5));
        assert_eq!(clock.stamp(Nanos(5)), first + 1, "no two scatterings have one timestamp");
        assert_eq!(clock.tell(Nanos(5)), first + 1);
        assert_eq!(clock.place(Timestamp::new(3), Nanos(5)), first + 8, "over the wrap");
        clock.set(Timestamp::new((1 << 48) - 105), Nanos(5));
        assert!(clock.stands(Nanos(5)));
        assert_eq!((clock.tell(Nanos(50)), clock.stamp(Nanos(50))), (first + 1, first + 2), "stands still");
        assert_eq!(clock.when_past(first + 2, Nanos(50)), Nanos(108));
        assert_eq!((clock.read(Nanos(107)), clock.read(Nanos(108))), (first + 2, first + 3));
        assert!(!clock.stands(Nanos(108)));
        assert_eq!(clock.unbroken(Nanos(108)), clock.shows(Nanos(208)), "others went on");
    }
}

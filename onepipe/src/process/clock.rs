//! Clock of a process, which never goes back (1Pipe, section 4.1).

use crate::clock::{ClockSample, Discipline};
use crate::header::Timestamp;
use switch::Nanos;

use super::bug::Bug;
use super::config::Config;

/// 1Pipe's time, unwrapped to 64 bits: the low 48 bits are the timestamp.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    discipline: Discipline,
    /// Latest time that was sent or returned
    issued: u64,
    /// Latest timestamp of a scattering. No two scatterings have the same
    stamped: u64,
    /// Planted bug
    bug: Option<Bug>,
}

impl Clock {
    /// Creates a clock that shows `config.clock` when the runner's clock is 0.
    pub(super) const fn new(config: &Config) -> Self {
        let discipline = Discipline::of(config.clock_source, config.clock);
        Self { discipline, issued: 0, stamped: 0, bug: config.bug }
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the disciplined time, which may be before what the clock has shown.
    pub(super) const fn unclamped(&self, now: Nanos) -> u64 {
        self.discipline.read(now)
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

    /// Returns the runner's time at which the clock will show more than `time`, which is ahead of it.
    pub(super) fn when_past(&self, time: u64, now: Nanos) -> Nanos {
        now + Nanos(time.saturating_sub(self.unclamped(now)) + 1)
    }

    /// Accounts for a sample of the machine's clock. Returns whether it is earlier than what this clock has
    /// shown.
    pub(super) fn sample(&mut self, mut sample: ClockSample, now: Nanos) -> bool {
        if self.has_bug(Bug::SampleAtArrival) {
            sample.read_at = now;
        }
        let is_behind = self.discipline.time_of(&sample, now) < self.issued;
        if self.has_bug(Bug::BelievesOutliers) {
            self.discipline.jump(&sample);
        } else {
            self.discipline.sample(&sample, now);
        }
        is_behind
    }

    /// Starts with a sample: sets the clock to it at once if it has shown no time yet.
    pub(super) fn start(&mut self, sample: ClockSample, now: Nanos) {
        if self.issued == 0 {
            self.discipline.jump(&sample);
        } else {
            self.sample(sample, now);
        }
    }

    /// Accounts for a sample by clock beacons.
    pub(super) fn follow(&mut self, sample: &ClockSample, now: Nanos) {
        if super::sync::steps_back(self.bug) {
            self.discipline.jump(sample);
            (self.issued, self.stamped) = (0, 0);
        }
        self.discipline.sample(sample, now);
    }

    /// Runs the clock slower, if it is ahead of the samples. To be called once per beacon interval.
    pub(super) fn advance(&mut self, now: Nanos) {
        self.discipline.advance(now);
    }

    /// Returns by how many nanoseconds the clock is behind the samples; negative if it is ahead.
    pub(super) const fn offset(&self) -> i64 {
        self.discipline.offset()
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
    use super::super::types::ProcessId;
    use super::super::{BeaconPeer, Peer};
    use super::*;
    use core::net::IpAddr;
    use rocev2::Qpn;
    use rocev2::ethernet::MacAddr;

    /// Returns a clock that wraps after 10 ns.
    fn clock(bug: Option<Bug>) -> Clock {
        let (mac, address, qpn) = (MacAddr([2; 6]), IpAddr::from([10, 0, 0, 1]), Qpn::new(2));
        let own = Peer { id: ProcessId(1), mac, address, qpn };
        let mut config = Config::new(own, BeaconPeer { mac, address, qpn, detour: Vec::new() });
        (config.clock, config.bug) = (Timestamp::new((1 << 48) - 10), bug);
        Clock::new(&config)
    }

    #[test]
    fn clock_never_goes_back_and_never_repeats_a_timestamp() {
        let mut clock = clock(None);
        let first = clock.stamp(Nanos(5));
        assert_eq!(Timestamp::new(first), Timestamp::new((1 << 48) - 5));
        assert_eq!(clock.stamp(Nanos(5)), first + 1, "no two scatterings have the same timestamp");
        assert_eq!(clock.issue(Nanos(5)), first + 1);
        assert_eq!(clock.unwrap_timestamp(Timestamp::new(3), Nanos(5)), first + 8, "across the wrap");
        // Set back by 640 ns: slower by 1/64, not back.
        let before = clock.issue(Nanos(1_000));
        for read_at in [1_000, 1_001, 1_002].map(Nanos) {
            let time = Timestamp::new((1 << 48) - 10 - 640).add(read_at.0);
            assert!(
                clock.sample(ClockSample::at(time, read_at), Nanos(1_002)),
                "it is before what was shown"
            );
        }
        assert_eq!(clock.offset(), -640);
        let mut last = before;
        for now in (1_002..100_000).step_by(10) {
            clock.advance(Nanos(now));
            let time = clock.issue(Nanos(now));
            assert!(last <= time && time <= before + now - 1_000, "{now}");
            last = time;
        }
        assert_eq!((clock.offset(), last), (0, before + 99_992 - 1_000 - 640));
        assert_eq!(clock.when_past(last + 2, Nanos(99_992)), Nanos(99_995));
        assert_eq!((clock.read(Nanos(99_994)), clock.read(Nanos(99_995))), (last + 2, last + 3));
    }

    /// Samples that wait in a queue, of which one is wrong; returns the clock's error after each.
    fn errors(bug: Option<Bug>) -> Vec<i64> {
        let mut clock = clock(bug);
        let right = clock.unclamped(Nanos::ZERO).cast_signed();
        let error = |n: u64| {
            let read_at = Nanos::from_millis(n);
            let time =
                Timestamp::new((1 << 48) - 10).add(read_at.0).add(u64::from(n == 5) * 3_600_000_000_000);
            clock.sample(ClockSample::at(time, read_at), read_at + Nanos::from_micros(100));
            clock.unclamped(Nanos::ZERO).cast_signed() - right
        };
        (1..10).map(error).collect()
    }

    #[test]
    fn queued_samples_and_an_outlier_leave_the_clock_right() {
        assert_eq!(errors(None), [0; 9]);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn planted_bugs_of_clocks_are_found() {
        for bug in [Bug::SampleAtArrival, Bug::BelievesOutliers] {
            assert_ne!(errors(Some(bug)), [0; 9], "{bug:?}");
        }
    }
}

//! 1Pipe's time of a node: samples of the machine's clock, which the node follows without jumping back.

use crate::header::Timestamp;
use switch::Nanos;

/// Share of the elapsed time by which a clock that is ahead runs slower, as a power of two
const SLEW: u32 = 6;
/// The same for a clock that follows clock beacons. The processes of a network get an earlier time within some hundred
/// microseconds, so their clocks differ by a 1024th of that while they follow it. It is more than two oscillators of
/// 100 ppm differ by
const SLOW_SLEW: u32 = 10;

/// What 1Pipe's clock of a node follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ClockSource {
    /// The machine's clock, which something else has to synchronise, such as PTP
    #[default]
    Host,
    /// Clock beacons of the neighbours ([`clock_sync`](crate::clock_sync)), and the machine's clock while there are
    /// none
    Beacons,
}

/// Reading of the machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// 1Pipe's time
    pub time: Timestamp,
    /// The runner's time at which it was read
    pub read_at: Nanos,
    /// Maximum error of `read_at`
    pub error: Nanos,
}

impl ClockSample {
    /// Returns a sample that was read at this time of the runner, exactly.
    pub const fn at(time: Timestamp, read_at: Nanos) -> Self {
        Self { time, read_at, error: Nanos::ZERO }
    }
}

/// 1Pipe's time of a node, unwrapped to 64 bits: the low 48 bits are the timestamp. It follows the median of
/// the last three samples, so a single wrong one has no effect. Two that are later set it forward at once: a
/// slow clock delays all receivers, and a jump forward breaks no promise. Where they are earlier, it runs
/// slower by 1/64.
#[derive(Clone, Copy, Debug)]
pub struct Discipline {
    /// Time shown when the runner's time is 0
    epoch: u64,
    /// Value of `epoch` by the samples
    target: u64,
    /// Values of `epoch` by each of the last three samples, the latest first
    recent: [u64; 3],
    /// Number of samples, at most 3
    samples: u8,
    /// Time up to which `epoch` follows `target`
    slewed_at: Nanos,
    /// Share of the elapsed time by which it runs slower while it is ahead, as a power of two
    slew: u32,
}

impl Discipline {
    /// Creates a clock that shows `clock` when the runner's time is 0, which counts as the first sample.
    pub const fn new(clock: Timestamp) -> Self {
        // One 48-bit period after 0, so that earlier times exist
        let epoch = (1 << 48) + clock.nanos();
        Self { epoch, target: epoch, recent: [epoch; 3], samples: 1, slewed_at: Nanos::ZERO, slew: SLEW }
    }

    /// Creates a clock as [`new`](Self::new) does, for this source of samples.
    pub const fn of(source: ClockSource, clock: Timestamp) -> Self {
        let slew = match source {
            ClockSource::Host => SLEW,
            ClockSource::Beacons => SLOW_SLEW,
        };
        Self { slew, ..Self::new(clock) }
    }

    /// Returns the time, which may be earlier than it was before the last [`advance`](Self::advance).
    #[inline]
    pub const fn read(&self, now: Nanos) -> u64 {
        self.epoch.wrapping_add(now.0)
    }

    /// Returns the time of a sample, now, unwrapped next to this clock's.
    pub const fn time_of(&self, sample: &ClockSample, now: Nanos) -> u64 {
        self.epoch_of(sample).wrapping_add(now.0)
    }

    /// Returns the time when the runner's time was 0, by a sample.
    const fn epoch_of(&self, sample: &ClockSample) -> u64 {
        let shown = self.read(sample.read_at);
        self.epoch.wrapping_add_signed(sample.time.distance(Timestamp::new(shown)))
    }

    /// Accounts for a sample, whenever it was read.
    pub fn sample(&mut self, sample: &ClockSample, now: Nanos) {
        // Up to now it follows the previous samples.
        self.advance(now);
        self.take(sample);
        self.epoch = self.epoch.max(self.target);
    }

    /// Accounts for a sample, and follows it to an earlier time at once as well: for a machine's clock, which keeps no
    /// promises.
    pub fn follow(&mut self, sample: &ClockSample) {
        self.take(sample);
        self.epoch = self.target;
    }

    /// Computes the time of the last three samples.
    fn take(&mut self, sample: &ClockSample) {
        let [latest, previous, _] = self.recent;
        self.recent = [self.epoch_of(sample), latest, previous];
        self.samples = (self.samples + 1).min(3);
        let [a, b, c] = self.recent;
        self.target = match self.samples {
            // Of two, the one that changes less
            ..=2 if a.abs_diff(self.epoch) <= b.abs_diff(self.epoch) => a,
            ..=2 => b,
            _ => a.max(b).min(a.min(b).max(c)),
        };
    }

    /// Sets the clock to a sample at once, without regard to earlier ones.
    pub fn jump(&mut self, sample: &ClockSample) {
        let epoch = self.epoch_of(sample);
        (self.epoch, self.target, self.recent) = (epoch, epoch, [epoch; 3]);
    }

    /// Runs the clock slower, if it is ahead of the samples. To be called once per beacon interval.
    pub fn advance(&mut self, now: Nanos) {
        let most = now.since(self.slewed_at).0 >> self.slew;
        if most > 0 {
            self.epoch -= (self.epoch - self.target.min(self.epoch)).min(most);
            // The rest of the division is kept for the next call.
            self.slewed_at = self.slewed_at + Nanos(most << self.slew);
        }
    }

    /// Returns by how many nanoseconds the clock is behind the samples; negative if it is ahead.
    pub const fn offset(&self) -> i64 {
        self.target.wrapping_sub(self.epoch).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = 3_600_000_000_000;
    const CLOCK: Timestamp = Timestamp::new((1 << 48) - 1_000);

    /// Returns a sample of a clock that is off by `by` nanoseconds.
    fn sample_at(now: Nanos, by: i64) -> ClockSample {
        ClockSample::at(CLOCK.add(now.0.wrapping_add_signed(by)), now)
    }

    /// Returns by how much a clock is off.
    fn error_of(clock: &Discipline) -> i64 {
        clock.read(Nanos::ZERO).cast_signed() - Discipline::new(CLOCK).read(Nanos::ZERO).cast_signed()
    }

    #[test]
    fn sample_counts_from_when_it_was_read() {
        let mut clock = Discipline::new(CLOCK);
        for n in 1..100 {
            let read_at = Nanos::from_micros(1_000 * n);
            clock.sample(&sample_at(read_at, 7), read_at + Nanos::from_micros(n));
        }
        assert_eq!((error_of(&clock), clock.offset()), (7, 0));
    }

    #[test]
    fn one_outlier_changes_nothing() {
        for by in [HOUR, -HOUR, 50, -50] {
            for place in 0..6 {
                let mut clock = Discipline::new(CLOCK);
                for n in 0..6 {
                    let now = Nanos::from_millis(n);
                    clock.sample(&sample_at(now, if n == place { by } else { 0 }), now);
                    clock.advance(now + Nanos::from_micros(500));
                    assert_eq!((error_of(&clock), clock.offset()), (0, 0), "{by} at {place}");
                }
            }
        }
    }

    #[test]
    fn clock_set_forward_is_followed_after_two_samples() {
        let mut clock = Discipline::new(CLOCK);
        for (n, error) in [(0, 0), (1, HOUR), (2, HOUR)] {
            clock.sample(&sample_at(Nanos::from_millis(n), HOUR), Nanos::from_millis(n));
            assert_eq!(error_of(&clock), error, "{n}");
        }
    }

    #[test]
    fn machine_clock_is_followed_in_both_directions_after_two_samples() {
        for by in [HOUR, -HOUR, -50] {
            let mut clock = Discipline::new(CLOCK);
            for (n, error) in [(0, 0), (1, by), (2, by)] {
                clock.follow(&sample_at(Nanos::from_millis(n), by));
                assert_eq!((error_of(&clock), clock.offset()), (error, 0), "{n}");
            }
            clock.follow(&sample_at(Nanos::from_millis(3), 0));
            assert_eq!(error_of(&clock), by, "one outlier");
        }
    }

    #[test]
    fn clock_set_back_runs_slower_by_a_64th() {
        let mut clock = Discipline::new(CLOCK);
        for n in 0..3 {
            clock.sample(&sample_at(Nanos(n), -20_000), Nanos(n));
        }
        assert_eq!((error_of(&clock), clock.offset()), (0, -20_000));
        clock.advance(Nanos::from_micros(640));
        assert_eq!((error_of(&clock), clock.offset()), (-10_000, -10_000));
        clock.advance(Nanos::from_micros(1_280));
        assert_eq!(error_of(&clock), -20_000);
        clock.advance(Nanos::from_millis(100));
        assert_eq!((error_of(&clock), clock.offset()), (-20_000, 0));
        // However often it is called.
        let mut often = Discipline::new(CLOCK);
        for n in 0..3 {
            often.sample(&sample_at(Nanos(n), -20_000), Nanos(n));
        }
        (0..=640_000).step_by(50).for_each(|ns| often.advance(Nanos(ns)));
        assert_eq!(error_of(&often), -10_000);
    }

    proptest! {
        #[test]
        fn clock_goes_back_by_a_64th_at_most_and_reaches_its_samples(
            samples in proptest::collection::vec((-HOUR..HOUR, 0u64..3_000_000, 0u64..100_000), 0..30),
            last in -1_000_000i64..1_000_000,
        ) {
            let (mut clock, mut now) = (Discipline::new(CLOCK), Nanos::ZERO);
            let mut before = (now, error_of(&clock));
            for (by, wait, queued) in samples {
                now = now + Nanos(wait);
                clock.sample(&sample_at(Nanos(now.0.saturating_sub(queued)), by), now);
                let back = before.1 - error_of(&clock);
                prop_assert!(back <= (now.since(before.0).0 / (1 << SLEW) + 1).cast_signed(), "{back}");
                before = (now, error_of(&clock));
            }
            for _ in 0..3 {
                clock.sample(&sample_at(now, last), now);
            }
            clock.advance(now + Nanos(2 * 64 * 3_600_000_000_000));
            prop_assert_eq!((error_of(&clock), clock.offset()), (last, 0));
        }
    }
}

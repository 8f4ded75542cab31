//! Clocks of nodes: each has an offset and a drift against the time of the world.

use switch::Nanos;

const NANOS_PER_SEC: i128 = 1_000_000_000;

/// Reading of every clock when the world begins, without its offset. It is not 0, so that a clock may be
/// behind.
pub const EPOCH: Nanos = Nanos::from_secs(1000);

/// A local clock with offset and drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Reading at `at`
    reading: i128,
    /// Time of the world at which the clock read `reading`
    at: Nanos,
    /// Drift in parts per billion; positive if the clock runs fast
    drift_ppb: i64,
}

impl Clock {
    /// Returns a clock that is ahead by `offset_ns` when the world begins, and runs fast by `drift_ppb` parts
    /// per billion. Negative values mean behind and slow.
    pub const fn new(offset_ns: i64, drift_ppb: i64) -> Self {
        Self { reading: EPOCH.0 as i128 + offset_ns as i128, at: Nanos::ZERO, drift_ppb }
    }

    /// Returns the reading at a time of the world.
    pub fn reading_at(&self, world: Nanos) -> Nanos {
        if self.drift_ppb == 0 {
            // The usual case, without the division, which is slow.
            return clamp(self.reading + i128::from(world.0) - i128::from(self.at.0));
        }
        let elapsed = i128::from(world.0) - i128::from(self.at.0);
        clamp(self.reading + elapsed * self.rate() / NANOS_PER_SEC)
    }

    /// Returns the first time of the world at which the clock reads `local`, or `from` if that is later.
    /// Exact without drift; up to 3 ns late with it.
    pub fn when(&self, local: Nanos, from: Nanos) -> Nanos {
        let elapsed = i128::from(local.0) - self.reading;
        let span =
            if self.drift_ppb == 0 { elapsed } else { (elapsed * NANOS_PER_SEC).div_euclid(self.rate()) + 1 };
        clamp(i128::from(self.at.0) + span).max(from)
    }

    /// Sets the clock ahead by `by_ns`, or back if that is negative.
    pub fn step(&mut self, world: Nanos, by_ns: i64) {
        self.reading = i128::from(self.reading_at(world).0) + i128::from(by_ns);
        self.at = world;
    }

    /// Sets the drift from `world` on; the reading does not jump.
    pub fn set_drift(&mut self, world: Nanos, drift_ppb: i64) {
        self.step(world, 0);
        self.drift_ppb = drift_ppb;
    }

    fn rate(&self) -> i128 {
        (NANOS_PER_SEC + i128::from(self.drift_ppb)).max(1)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(0, 0)
    }
}

fn clamp(nanos: i128) -> Nanos {
    Nanos(nanos.clamp(0, u64::MAX.into()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clocks_have_offset_drift_and_steps() {
        let mut clock = Clock::new(-5_000, 20_000);
        assert_eq!(clock.reading_at(Nanos::ZERO), Nanos(EPOCH.0 - 5_000));
        assert_eq!(clock.reading_at(Nanos::from_secs(1)), Nanos(EPOCH.0 - 5_000 + 1_000_020_000));
        clock.set_drift(Nanos::from_secs(1), 0);
        clock.step(Nanos::from_secs(1), -20_000);
        assert_eq!(clock.reading_at(Nanos::from_secs(2)), Nanos(EPOCH.0 - 5_000 + 2_000_000_000));
    }

    proptest! {
        #[test]
        fn when_returns_the_first_time_of_a_reading(
            offset in -1_000_000i64..1_000_000,
            drift in -200_000i64..200_000,
            local in 0u64..1 << 40,
        ) {
            let clock = Clock::new(offset, drift);
            let local = Nanos(EPOCH.0 + 2_000_000 + local);
            let at = clock.when(local, Nanos::ZERO);
            prop_assert!(clock.reading_at(at) >= local);
            prop_assert!(clock.reading_at(at).since(local) <= Nanos(3), "at most 3 ns late");
        }
    }
}

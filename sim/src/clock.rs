//! Clocks of hosts: each is off by something and runs a little too fast or too slow.

use switch::Nanos;

const NANOS_PER_SEC: i128 = 1_000_000_000;

/// What every clock shows when the world begins, apart from its offset: so that a clock may be behind.
pub const EPOCH: Nanos = Nanos::from_secs(1000);

/// A clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// What it shows
    shows: i128,
    /// and when
    at: Nanos,
    /// How much too fast it runs, in billionths
    drift_ppb: i64,
}

impl Clock {
    /// A clock that is ahead by `offset_ns` when the world begins, and runs too fast by `drift_ppb` billionths.
    pub const fn new(offset_ns: i64, drift_ppb: i64) -> Self {
        Self { shows: EPOCH.0 as i128 + offset_ns as i128, at: Nanos::ZERO, drift_ppb }
    }

    /// What it shows at a time of the world.
    pub fn shows(&self, world: Nanos) -> Nanos {
        if self.drift_ppb == 0 {
            // Nearly always, and division is slow.
            return clamp(self.shows + i128::from(world.0) - i128::from(self.at.0));
        }
        let gone = i128::from(world.0) - i128::from(self.at.0);
        clamp(self.shows + gone * self.rate() / NANOS_PER_SEC)
    }

    /// The first time of the world at which it shows `local`; `from` if it shows it already.
    pub fn when(&self, local: Nanos, from: Nanos) -> Nanos {
        let gone = i128::from(local.0) - self.shows;
        let span =
            if self.drift_ppb == 0 { gone } else { (gone * NANOS_PER_SEC).div_euclid(self.rate()) + 1 };
        clamp(i128::from(self.at.0) + span).max(from)
    }

    /// Sets it ahead, or back.
    pub fn step(&mut self, world: Nanos, by_ns: i64) {
        self.shows = i128::from(self.shows(world).0) + i128::from(by_ns);
        self.at = world;
    }

    /// Lets it run faster or slower from now on.
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
    fn clocks_are_off_and_drift() {
        let mut clock = Clock::new(-5_000, 20_000);
        assert_eq!(clock.shows(Nanos::ZERO), Nanos(EPOCH.0 - 5_000));
        assert_eq!(clock.shows(Nanos::from_secs(1)), Nanos(EPOCH.0 - 5_000 + 1_000_020_000));
        clock.set_drift(Nanos::from_secs(1), 0);
        clock.step(Nanos::from_secs(1), -20_000);
        assert_eq!(clock.shows(Nanos::from_secs(2)), Nanos(EPOCH.0 - 5_000 + 2_000_000_000));
    }

    proptest! {
        #[test]
        fn a_time_is_met(offset in -1_000_000i64..1_000_000, drift in -200_000i64..200_000, local in 0u64..1 << 40) {
            let clock = Clock::new(offset, drift);
            let local = Nanos(EPOCH.0 + 2_000_000 + local);
            let at = clock.when(local, Nanos::ZERO);
            prop_assert!(clock.shows(at) >= local);
            prop_assert!(clock.shows(at).since(local) <= Nanos(3), "not much later");
        }
    }
}

//! Random numbers from a seed: the same seed yields the same numbers on every machine, in every version.

use core::fmt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A seeded random number generator (xoshiro256++). Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// Returns the generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns one of many independent generators of the same seed: drawing from one does not affect the
    /// others.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(crate::table::mix(seed ^ crate::table::mix(stream.wrapping_add(1))))
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from `first` to `last`, both included.
    #[inline]
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below((last - first).saturating_add(1))
    }

    /// Returns `true` with probability `share`. Always draws one number, so that later numbers do not depend
    /// on the probability.
    #[inline]
    pub fn happens(&mut self, share: Probability) -> bool {
        (self.bits() >> 1) < share.0
    }

    /// Returns one of the elements.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// A probability, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Probability(u64);

const ALWAYS: u64 = 1 << 63;

impl Probability {
    /// Probability 0
    pub const NEVER: Self = Self(0);
    /// Probability 1
    pub const ALWAYS: Self = Self(ALWAYS);

    /// Returns the probability `share`, or `None` if `share` is not a number from 0 to 1.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self((share * ALWAYS as f64) as u64))
    }

    /// Returns `percent` percent as a probability; at most 1.
    pub const fn percent(percent: u64) -> Self {
        if percent < 100 { Self(ALWAYS / 100 * percent) } else { Self::ALWAYS }
    }

    /// Returns the probability as a number from 0 to 1.
    pub fn get(self) -> f64 {
        self.0 as f64 / ALWAYS as f64
    }

    /// Returns whether the probability is 0.
    pub const fn is_never(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.get() * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_yields_the_same_numbers_in_every_version() {
        let mut rng = Rng::new(7);
        let first = [rng.bits(), rng.below(1000), rng.between(5, 9)];
        assert_eq!(first, [1_021_219_803_524_665_661, 172, 8]);
        assert_ne!(Rng::stream(7, 0), Rng::stream(7, 1));
    }

    #[test]
    fn events_happen_with_the_given_probability() {
        let mut rng = Rng::new(1);
        for (share, least, most) in [(0.0, 0, 0), (0.1, 9_700, 10_300), (1.0, 100_000, 100_000)] {
            let share = Probability::new(share).unwrap();
            let times = (0..100_000).filter(|_| rng.happens(share)).count();
            assert!((least..=most).contains(&times), "{share}: {times} times");
        }
        assert_eq!(
            (Probability::new(1.5), Probability::new(f64::NAN), Probability::new(-0.1)),
            (None, None, None)
        );
        assert_eq!(
            (rng.below(0), Probability::percent(100), Probability::percent(250)),
            (0, Probability::ALWAYS, Probability::ALWAYS)
        );
    }
}

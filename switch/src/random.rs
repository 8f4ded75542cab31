//! Chance from a seed: the same seed gives the same numbers on every machine, in every version.

use core::fmt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A source of random numbers that a seed decides (xoshiro256++). Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chance(Xoshiro256PlusPlus);

impl Chance {
    /// The source of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// One of many independent sources of the same seed: who draws from one does not disturb the others.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(crate::table::mix(seed ^ crate::table::mix(stream.wrapping_add(1))))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`; 0 for 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`, both included.
    #[inline]
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below((last - first).saturating_add(1))
    }

    /// Whether something happens that happens this often. Draws a number in any case, so that what follows does not
    /// depend on the share.
    #[inline]
    pub fn happens(&mut self, share: Share) -> bool {
        (self.bits() >> 1) < share.0
    }

    /// One of the elements.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// How often something happens: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share(u64);

const ALWAYS: u64 = 1 << 63;

impl Share {
    /// It never happens.
    pub const NEVER: Self = Self(0);
    /// It always happens.
    pub const ALWAYS: Self = Self(ALWAYS);

    /// `share` of all times, from 0 to 1; `None` for what is no such number.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self((share * ALWAYS as f64) as u64))
    }

    /// `percent` of 100 times; all, if it is more.
    pub const fn percent(percent: u64) -> Self {
        if percent < 100 { Self(ALWAYS / 100 * percent) } else { Self::ALWAYS }
    }

    /// As a number from 0 to 1.
    pub fn get(self) -> f64 {
        self.0 as f64 / ALWAYS as f64
    }

    /// Whether it never happens.
    pub const fn is_never(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.get() * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_for_ever() {
        let mut chance = Chance::new(7);
        let first = [chance.bits(), chance.below(1000), chance.between(5, 9)];
        assert_eq!(first, [1_021_219_803_524_665_661, 172, 8]);
        assert_ne!(Chance::stream(7, 0), Chance::stream(7, 1));
    }

    #[test]
    fn shares_happen_as_often_as_they_say() {
        let mut chance = Chance::new(1);
        for (share, least, most) in [(0.0, 0, 0), (0.1, 9_700, 10_300), (1.0, 100_000, 100_000)] {
            let share = Share::new(share).unwrap();
            let times = (0..100_000).filter(|_| chance.happens(share)).count();
            assert!((least..=most).contains(&times), "{share}: {times} times");
        }
        assert_eq!((Share::new(1.5), Share::new(f64::NAN), Share::new(-0.1)), (None, None, None));
        assert_eq!(
            (chance.below(0), Share::percent(100), Share::percent(250)),
            (0, Share::ALWAYS, Share::ALWAYS)
        );
    }
}

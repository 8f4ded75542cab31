//! What clients ask for: the core workloads of YCSB (Cooper et al., SoCC 2010) as Clover and Swordbox are measured with, and
//! Zipf's law, by which some keys are asked for more often than others.

use std::sync::Arc;
use switch::Chance;
use switch::table::mix;

/// What Zipf's law says of `n` things: the k-th is drawn in proportion to `1 / k^theta`.
///
/// A table of `n` numbers, so that every theta is exact; clones share it.
#[derive(Clone, Debug)]
pub struct Zipf(Arc<[u64]>);

impl Zipf {
    /// The law for so many things. A theta of 0 draws all alike; YCSB's is 0.99.
    ///
    /// # Panics
    /// If there is nothing to draw, or theta is negative or no number.
    pub fn new(n: usize, theta: f64) -> Self {
        assert!(n > 0, "something to draw");
        assert!(theta >= 0.0, "what comes first is drawn no more seldom");
        let weights = (1..=n).map(|k| (k as f64).powf(-theta));
        let total: f64 = weights.clone().sum();
        let mut sum = 0.0;
        let cumulative = weights.map(|weight| {
            sum += weight;
            // Saturates at the end
            (sum / total * 2f64.powi(64)) as u64
        });
        Self(cumulative.collect())
    }

    /// How many things there are
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing to draw; never
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One of them, counted from 0, the most frequent first
    pub fn draw(&self, chance: &mut Chance) -> usize {
        let bits = chance.bits();
        self.0.partition_point(|below| *below <= bits).min(self.0.len() - 1)
    }
}

/// How many of a hundred operations are reads; the others are updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// 50: YCSB's update-heavy workload
    A,
    /// 95: YCSB's read-mostly workload
    B,
    /// 100: YCSB's read-only workload
    C,
    /// None: updates only, as Swordbox's authors measure beside them
    W,
    /// So many
    Reads(u8),
}

impl Mix {
    /// Reads of a hundred
    pub const fn reads_percent(self) -> u8 {
        match self {
            Self::A => 50,
            Self::B => 95,
            Self::C => 100,
            Self::W => 0,
            Self::Reads(percent) => percent,
        }
    }
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Reads and updates
    pub mix: Mix,
    /// Which keys
    pub keys: Zipf,
}

impl Workload {
    /// YCSB's: so many keys by Zipf's law with 0.99
    pub fn new(mix: Mix, keys: usize) -> Self {
        Self { mix, keys: Zipf::new(keys, 0.99) }
    }

    /// What one of many threads asks for: the seed and the thread's number decide.
    pub fn generator(&self, seed: u64, thread: u64) -> Generator {
        Generator { workload: self.clone(), chance: Chance::stream(seed, thread ^ 0x7963_7362) }
    }
}

/// An operation
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// The value of a key
    Read,
    /// A new value
    Update,
}

/// A stream of operations without end.
#[derive(Clone, Debug)]
pub struct Generator {
    workload: Workload,
    chance: Chance,
}

impl Iterator for Generator {
    type Item = (Ask, u64);

    /// The next operation, and its key: a number below that of keys, the most frequent first
    fn next(&mut self) -> Option<(Ask, u64)> {
        let percent = self.chance.below(100);
        let reads = u64::from(self.workload.mix.reads_percent());
        let ask = if percent < reads { Ask::Read } else { Ask::Update };
        Some((ask, self.workload.keys.draw(&mut self.chance) as u64))
    }
}

/// Spreads keys, so that those that are asked for often do not lie side by side: each has another number of 64 bits.
pub fn scattered(key: u64) -> u64 {
    mix(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(n: usize, theta: f64, draws: usize) -> Vec<usize> {
        let (zipf, mut chance) = (Zipf::new(n, theta), Chance::new(7));
        let mut counts = vec![0; n];
        for _ in 0..draws {
            counts[zipf.draw(&mut chance)] += 1;
        }
        counts
    }

    #[test]
    fn things_are_drawn_by_zipfs_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.5] {
            let counts = counts(1024, theta, 1_000_000);
            let total: f64 = (1..=1024).map(|k| f64::from(k).powf(-theta)).sum();
            for k in [1, 2, 3, 10] {
                let expected = 1e6 * f64::from(k).powf(-theta) / total;
                let is = counts[k as usize - 1] as f64;
                // Five times the standard deviation
                assert!((is - expected).abs() < 5.0 * expected.sqrt(), "{theta} {k}: {is}, not {expected}");
            }
        }
        assert_eq!(counts(1, 0.99, 10), [10]);
        assert!(!Zipf::new(1, 1.0).is_empty());
    }

    #[test]
    fn a_seed_and_a_thread_decide() {
        let take = |mix, seed, thread| {
            Workload::new(mix, 100).generator(seed, thread).take(1000).collect::<Vec<_>>()
        };
        assert_eq!(take(Mix::A, 1, 2), take(Mix::A, 1, 2));
        assert_ne!(take(Mix::A, 1, 2), take(Mix::A, 1, 3));
        assert_ne!(take(Mix::A, 1, 2), take(Mix::A, 2, 2));
        for mix in [Mix::A, Mix::B, Mix::C, Mix::W, Mix::Reads(20)] {
            let reads = take(mix, 1, 1).iter().filter(|(ask, _)| *ask == Ask::Read).count();
            assert!(reads.abs_diff(usize::from(mix.reads_percent()) * 10) < 50, "{mix:?}: {reads}");
        }
        let keys: std::collections::BTreeSet<_> = (0..1000).map(scattered).collect();
        assert_eq!(keys.len(), 1000);
    }
}

//! Workloads: the core workloads of YCSB (Cooper et al., SoCC 2010), with which Clover and Swordbox are
//! measured, and Zipf's law for the popularity of keys.

use std::sync::Arc;
use switch::Rng;
use switch::table::mix;

/// Zipf distribution over `n` items: the k-th is drawn with a probability proportional to `1 / k^theta`.
///
/// It is a table of `n` cumulative probabilities, so it is exact for every theta. Clones share it.
#[derive(Clone, Debug)]
pub struct Zipf(Arc<[u64]>);

impl Zipf {
    /// Returns the distribution over `n` items. A theta of 0 is uniform; YCSB uses 0.99.
    ///
    /// # Panics
    /// If `n` is 0, or theta is negative or not a number.
    pub fn new(n: usize, theta: f64) -> Self {
        assert!(n > 0, "n has to be at least 1");
        assert!(theta >= 0.0, "theta has to be at least 0");
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

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no items, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Draws an item, counted from 0; lower numbers are more frequent.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let bits = rng.bits();
        self.0.partition_point(|below| *below <= bits).min(self.0.len() - 1)
    }
}

/// Share of reads among the operations; the others are updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// 50 %: YCSB's update-heavy workload
    A,
    /// 95 %: YCSB's read-mostly workload
    B,
    /// 100 %: YCSB's read-only workload
    C,
    /// 0 %: updates only, measured in addition in the Swordbox paper
    W,
    /// This percentage
    Reads(u8),
}

impl Mix {
    /// Returns the percentage of reads.
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
    /// Share of reads and updates
    pub mix: Mix,
    /// Distribution of the keys
    pub keys: Zipf,
}

impl Workload {
    /// Returns YCSB's workload with this number of keys (Zipf with theta 0.99).
    pub fn new(mix: Mix, keys: usize) -> Self {
        Self { mix, keys: Zipf::new(keys, 0.99) }
    }

    /// Returns the operations of one thread, determined by the seed and the thread's number.
    pub fn generator(&self, seed: u64, thread: u64) -> Generator {
        Generator { workload: self.clone(), rng: Rng::stream(seed, thread ^ 0x7963_7362) }
    }
}

/// Kind of an operation
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Read of a key's value
    Read,
    /// Update of a key's value
    Update,
}

/// Endless stream of operations.
#[derive(Clone, Debug)]
pub struct Generator {
    workload: Workload,
    rng: Rng,
}

impl Iterator for Generator {
    type Item = (OperationKind, u64);

    /// Returns the next operation and its key. Keys are counted from 0; lower numbers are more frequent.
    fn next(&mut self) -> Option<(OperationKind, u64)> {
        let percent = self.rng.below(100);
        let reads = u64::from(self.workload.mix.reads_percent());
        let operation = if percent < reads { OperationKind::Read } else { OperationKind::Update };
        Some((operation, self.workload.keys.draw(&mut self.rng) as u64))
    }
}

/// Maps keys to distinct 64-bit numbers, so that popular keys are not adjacent.
pub fn scattered(key: u64) -> u64 {
    mix(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(n: usize, theta: f64, draws: usize) -> Vec<usize> {
        let (zipf, mut rng) = (Zipf::new(n, theta), Rng::new(7));
        let mut counts = vec![0; n];
        for _ in 0..draws {
            counts[zipf.draw(&mut rng)] += 1;
        }
        counts
    }

    #[test]
    fn items_are_drawn_by_zipfs_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.5] {
            let counts = counts(1024, theta, 1_000_000);
            let total: f64 = (1..=1024).map(|k| f64::from(k).powf(-theta)).sum();
            for k in [1, 2, 3, 10] {
                let expected = 1e6 * f64::from(k).powf(-theta) / total;
                let is = counts[k as usize - 1] as f64;
                // Five standard deviations
                assert!(
                    (is - expected).abs() < 5.0 * expected.sqrt(),
                    "theta {theta}, item {k}: drawn {is} times, expected {expected}"
                );
            }
        }
        assert_eq!(counts(1, 0.99, 10), [10]);
        assert!(!Zipf::new(1, 1.0).is_empty());
    }

    #[test]
    fn seed_and_thread_determine_the_operations() {
        let take = |mix, seed, thread| {
            Workload::new(mix, 100).generator(seed, thread).take(1000).collect::<Vec<_>>()
        };
        assert_eq!(take(Mix::A, 1, 2), take(Mix::A, 1, 2));
        assert_ne!(take(Mix::A, 1, 2), take(Mix::A, 1, 3));
        assert_ne!(take(Mix::A, 1, 2), take(Mix::A, 2, 2));
        for mix in [Mix::A, Mix::B, Mix::C, Mix::W, Mix::Reads(20)] {
            let reads =
                take(mix, 1, 1).iter().filter(|(operation, _)| *operation == OperationKind::Read).count();
            assert!(reads.abs_diff(usize::from(mix.reads_percent()) * 10) < 50, "{mix:?}: {reads}");
        }
        let keys: std::collections::BTreeSet<_> = (0..1000).map(scattered).collect();
        assert_eq!(keys.len(), 1000);
    }
}

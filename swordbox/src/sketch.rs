//! Detection of hot words: a count-min sketch (Cormode and Muthukrishnan, 2005), whose size does not depend
//! on the number of words. It may overestimate a count, but never underestimates it.

use switch::table::mix;

const ROWS: usize = 4;
const COLUMNS: usize = 4096;
/// Number of additions after which all counts are halved, so that words that are no longer hot cool down
const HALVE: u32 = 1 << 20;

/// Counts of keys.
#[derive(Debug)]
pub(crate) struct Sketch {
    counts: Box<[[u32; COLUMNS]]>,
    added: u32,
}

impl Sketch {
    pub(crate) const BYTES: usize = ROWS * COLUMNS * size_of::<u32>();

    pub(crate) fn new() -> Self {
        Self { counts: vec![[0; COLUMNS]; ROWS].into(), added: 0 }
    }

    /// Counts a key. Returns an upper bound of its count.
    pub(crate) fn add(&mut self, key: u64) -> u32 {
        let hash = mix(key);
        let mut least = u32::MAX;
        for (row, counts) in self.counts.iter_mut().enumerate() {
            let count = &mut counts[(hash >> (16 * row)) as usize % COLUMNS];
            *count = count.saturating_add(1);
            least = least.min(*count);
        }
        self.added += 1;
        if self.added == HALVE {
            self.added = 0;
            self.counts.iter_mut().flatten().for_each(|count| *count /= 2);
        }
        least
    }

    /// Returns an upper bound of a key's count.
    pub(crate) fn count(&self, key: u64) -> u32 {
        let hash = mix(key);
        let rows = self.counts.iter().enumerate();
        rows.map(|(row, counts)| counts[(hash >> (16 * row)) as usize % COLUMNS]).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_a_count_does_not_change_it() {
        let mut sketch = Sketch::new();
        assert_eq!((sketch.count(3), sketch.add(3), sketch.count(3), sketch.count(3)), (0, 1, 1, 1));
    }

    #[test]
    fn counts_are_never_too_low_and_rarely_much_too_high() {
        let mut sketch = Sketch::new();
        for _ in 0..100 {
            sketch.add(7);
        }
        for key in 1000..5000 {
            sketch.add(key);
        }
        assert!(sketch.add(7) >= 101);
        assert!(sketch.add(7) < 140);
        let wrong = (10_000..11_000).filter(|key| sketch.add(*key) > 10).count();
        assert!(wrong < 50, "{wrong}");
    }

    #[test]
    fn counts_are_halved_over_time() {
        let mut sketch = Sketch::new();
        for _ in 0..1000 {
            sketch.add(1);
        }
        for key in 0..HALVE {
            sketch.add(u64::from(key) | 1 << 40);
        }
        assert!(sketch.add(1) < 1000);
    }
}

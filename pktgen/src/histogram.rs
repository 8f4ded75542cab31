//! A histogram of times with HdrHistogram's buckets, as counters: one thread writes it, others read it at any
//! time.

use switch::Nanos;
use switch::counters::Counter;

/// Buckets of each power of two: a bucket is at most 1 / 128 of its times wide
const HALF: usize = 128;
/// Bits of the longest time, in nanoseconds: 18 minutes; longer times count as that
const BITS: usize = 40;

/// Histogram of times. [`record`](Self::record) is for one writing thread; the other methods are for any
/// thread.
#[derive(Debug)]
pub struct Histogram(Box<[Counter]>);

impl Default for Histogram {
    fn default() -> Self {
        Self((0..(BITS - 8 + 2) * HALF).map(|_| Counter::default()).collect())
    }
}

impl Histogram {
    /// Counts a time. Times above 18 minutes count as the longest.
    #[expect(clippy::inline_always, reason = "called once a packet")]
    #[inline(always)]
    pub fn record(&self, time: Nanos) {
        let time = time.0.min((1 << BITS) - 1);
        // Powers of two by which the time exceeds the first two rows, which are exact
        let shift = (u64::BITS - (time | (2 * HALF as u64 - 1)).leading_zeros() - 8) as usize;
        self.0[shift * HALF + (time >> shift) as usize].add(1);
    }

    /// Adds the times of another histogram.
    pub(crate) fn add(&self, other: &Self) {
        for (total, count) in self.0.iter().zip(&other.0) {
            total.add(count.get());
        }
    }

    /// Returns how many times were counted.
    pub fn count(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    /// Returns the non-empty buckets: the longest time of each, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> {
        self.0.iter().enumerate().filter(|(_, counter)| counter.get() > 0).map(|(index, counter)| {
            let shift = (index / HALF).saturating_sub(1);
            let longest = ((index - shift * HALF + 1) << shift) - 1;
            (Nanos(longest as u64), counter.get())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_hdrhistogram() {
        let histogram = Histogram::default();
        let mut hdr = hdrhistogram::Histogram::<u64>::new_with_bounds(1, (1 << BITS) - 1, 2).unwrap();
        let mut time = 1u64;
        for n in 0..20_000u64 {
            let value = n % 300 + time % ((1 << BITS) - 300);
            histogram.record(Nanos(value));
            hdr.record(value.max(1)).unwrap();
            time = time.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(n) >> (n % 50);
        }
        assert_eq!(histogram.count(), 20_000);
        let mut ours = hdrhistogram::Histogram::<u64>::new_with_bounds(1, (1 << BITS) - 1, 2).unwrap();
        for (longest, count) in histogram.buckets() {
            ours.record_n(longest.0.max(1), count).unwrap();
        }
        for quantile in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert_eq!(ours.value_at_quantile(quantile), hdr.value_at_quantile(quantile), "{quantile}");
        }
    }

    #[test]
    fn first_and_last_bucket_hold_the_extreme_times() {
        let histogram = Histogram::default();
        for time in [0, 255, 256, 257, u64::MAX] {
            histogram.record(Nanos(time));
        }
        let buckets: Vec<_> = histogram.buckets().map(|(time, count)| (time.0, count)).collect();
        assert_eq!(buckets, [(0, 1), (255, 1), (257, 2), ((1 << BITS) - 1, 1)]);
    }
}

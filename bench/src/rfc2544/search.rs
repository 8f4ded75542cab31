//! Binary search for the greatest value that passes: RFC 2544's throughput (26.1) and longest burst (26.4).

/// State of a search. It tries `most` first; then it bisects between the greatest value that passed and the
/// least that failed.
///
/// Try the value that [`next`](Self::next) returns, and report the result with [`report`](Self::report), until
/// `next` returns `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// Greatest value that passed
    passed: u64,
    /// Least value that failed
    failed: Option<u64>,
    most: u64,
    resolution: u64,
}

impl Search {
    /// Creates a search from 0 to `most`, with this resolution; both are raised to at least 1.
    pub fn new(most: u64, resolution: u64) -> Self {
        Self { passed: 0, failed: None, most: most.max(1), resolution: resolution.max(1) }
    }

    /// Returns the value to try next; `None` when the search is over.
    pub const fn next(&self) -> Option<u64> {
        match self.failed {
            None if self.passed == self.most => None,
            None => Some(self.most),
            Some(failed) if failed - self.passed <= self.resolution => None,
            Some(failed) => Some(self.passed + (failed - self.passed) / 2),
        }
    }

    /// Reports the result of the value that [`next`](Self::next) returned.
    pub const fn report(&mut self, at: u64, passed: bool) {
        if passed {
            self.passed = at;
        } else {
            self.failed = Some(at);
        }
    }

    /// Returns the greatest value that passed; 0 if none did.
    pub const fn found(&self) -> u64 {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a search with the predicate `passes`. Returns the result, and the number of trials.
    fn run(most: u64, resolution: u64, mut passes: impl FnMut(u64) -> bool) -> (u64, u32) {
        let mut search = Search::new(most, resolution);
        let mut trials = 0;
        while let Some(at) = search.next() {
            trials += 1;
            search.report(at, passes(at));
        }
        (search.found(), trials)
    }

    #[test]
    fn searches_end_at_their_bounds() {
        assert_eq!(run(1_000_000, 1_000, |_| true), (1_000_000, 1));
        assert_eq!(run(1_000_000, 1_000, |_| false).0, 0, "every trial fails");
        assert_eq!(run(1, 1, |_| false), (0, 1));
        assert_eq!(run(0, 0, |_| true), (1, 1), "a rate of 0 is raised to 1");
    }

    proptest! {
        #[test]
        fn finds_a_capacity(most in 1u64..1 << 40, capacity in 0u64..1 << 41, resolution in 1u64..1 << 30) {
            let (found, trials) = run(most, resolution, |at| at <= capacity);
            prop_assert!(found <= capacity);
            prop_assert!(found == most || capacity - found < resolution);
            prop_assert!(trials <= 2 + (most / resolution).checked_ilog2().unwrap_or(0) + 1);
        }

        /// Whatever the device does, the result has passed, and the search ends.
        #[test]
        fn the_result_has_passed(most in 1u64..1 << 40, resolution in 1u64..1 << 20, verdicts: u64) {
            let (mut passed, mut n) = (vec![0], 0);
            let (found, trials) = run(most, resolution, |at| {
                n += 1;
                let passes = verdicts >> (n % 64) & 1 == 1;
                if passes {
                    passed.push(at);
                }
                passes
            });
            prop_assert!(passed.contains(&found));
            prop_assert!(trials < 64);
        }
    }
}

//! Sums Swordbox counters over the seeds of a test, to check that each mechanism was exercised.

use std::collections::BTreeMap;
use switch::metrics::Metrics as _;
use swordbox::Counters;

/// Sums of counters over many runs, by counter name.
#[derive(Debug, Default)]
pub(crate) struct CounterTotals {
    counts: BTreeMap<&'static str, u64>,
    runs: u64,
}

/// Number of runs to which minima refer
const RUNS: u64 = 100;

impl CounterTotals {
    /// Adds the counters of one Swordbox.
    pub(crate) fn add(&mut self, counters: &Counters) {
        self.runs += 1;
        for (name, count) in counters.reported() {
            *self.counts.entry(name).or_default() += count;
        }
    }

    /// Adds the packets that a host refused because their queue pair does not exist or does not belong to
    /// their sender. These packets were forged.
    pub(crate) fn add_forged(&mut self, host: &rnic::Counters) {
        *self.counts.entry("forged").or_default() += host.no_qp;
    }

    /// Returns the counters that are below their minimum in `minima`, which is that of 100 runs. Fewer runs,
    /// whose counts differ more, need half of that in proportion, but at least 1.
    pub(crate) fn below_minimum<'a>(&self, minima: &[(&'a str, u64)]) -> Vec<&'a str> {
        let count = |name| self.counts.get(name).copied().unwrap_or(0);
        let least =
            |of_all: u64| if self.runs < RUNS { (of_all * self.runs / RUNS / 2).max(1) } else { of_all };
        minima.iter().filter(|(name, of_all)| count(name) < least(*of_all)).map(|(name, _)| *name).collect()
    }

    /// Checks that each counter has reached its minimum in `minima`, see [`Self::below_minimum`]. Checks nothing if
    /// the environment selects other seeds than the test's own.
    #[track_caller]
    pub(crate) fn check(&self, minima: &[(&str, u64)]) {
        println!("{self:?}");
        let below_minimum = self.below_minimum(minima);
        assert!(
            !crate::environment::selects_default_seeds() || below_minimum.is_empty(),
            "counters below their minimum: {below_minimum:?}, of {self:?}"
        );
    }
}

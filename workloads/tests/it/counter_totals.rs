//! Sums Swordbox counters over the seeds of a test, to check that each mechanism was exercised.

use std::collections::BTreeMap;
use switch::metrics::Metrics as _;
use swordbox::Counters;

/// Sums of counters over many runs, by counter name.
#[derive(Debug, Default)]
pub(crate) struct CounterTotals(BTreeMap<&'static str, u64>);

impl CounterTotals {
    /// Adds the counters of one Swordbox.
    pub(crate) fn add(&mut self, counters: &Counters) {
        for (name, count) in counters.reported() {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Adds the packets that a host refused because their queue pair does not exist or does not belong to
    /// their sender. These packets were forged.
    pub(crate) fn add_forged(&mut self, host: &rnic::Counters) {
        *self.0.entry("forged").or_default() += host.no_qp;
    }

    /// Returns the counters that are below their minimum in `minima`.
    pub(crate) fn below_minimum<'a>(&self, minima: &[(&'a str, u64)]) -> Vec<&'a str> {
        let count = |name| self.0.get(name).copied().unwrap_or(0);
        minima.iter().filter(|(name, minima)| count(name) < *minima).map(|(name, _)| *name).collect()
    }

    /// Checks that each counter has reached its minimum in `minima`. Checks nothing if the environment selects
    /// other seeds than the test's own.
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

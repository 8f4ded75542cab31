//! Whether the mechanisms of a Swordbox have acted in the seeds of a test.

use std::collections::BTreeMap;
use swordbox::Counters;

/// Counts of many runs, by counter.
#[derive(Debug, Default)]
pub(crate) struct Acted(BTreeMap<&'static str, u64>);

impl Acted {
    /// Adds what a Swordbox has counted.
    pub(crate) fn add(&mut self, counters: &Counters) {
        for (name, count) in counters.all() {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Adds packets that a host refused, as they name a queue pair that is not there or not their sender's: forged ones.
    pub(crate) fn add_forged(&mut self, host: &rnic::Counters) {
        *self.0.entry("forged").or_default() += host.no_qp;
    }

    /// Returns the counters that have not reached what they have to reach.
    pub(crate) fn idle<'a>(&self, least: &[(&'a str, u64)]) -> Vec<&'a str> {
        let count = |name| self.0.get(name).copied().unwrap_or(0);
        least.iter().filter(|(name, least)| count(name) < *least).map(|(name, _)| *name).collect()
    }

    /// Checks that each counter has reached what it has to reach, if these are all of the test's seeds.
    #[track_caller]
    pub(crate) fn check(&self, least: &[(&str, u64)]) {
        println!("{self:?}");
        let idle = self.idle(least);
        assert!(!crate::environment::are_default() || idle.is_empty(), "too few of {idle:?}: {self:?}");
    }
}

//! Barriers of a switch with several workers: that of one worker's links, and that of all workers.

use super::{Barrier, Gone, Limits};
use crate::plane::{ABSENT, AWAITED};
use onepipe::Timestamp;

impl Barrier {
    /// Creates a barrier whose inputs from `first` on stand for the workers of the switch. They never expire, and
    /// medians are of links alone.
    pub(crate) fn of_workers(first: usize, workers: usize, limits: Limits) -> Self {
        let mut barrier = Self { workers_from: first, ..Self::new(first + workers, limits, None) };
        (first..first + workers).for_each(|input| barrier.never_expire(input));
        barrier
    }

    /// Sets what the links of other workers have carried, which count for medians. While one of them `is_awaited`, the
    /// output does not begin.
    pub(crate) fn set_others(&mut self, carried: impl Iterator<Item = Timestamp>, is_awaited: bool) {
        self.others.clear();
        for at in carried {
            let time = self.unwrap(at);
            // What follows is placed next to it.
            self.latest = self.latest.max(time);
            self.others.push(time);
        }
        let begins = core::mem::replace(&mut self.awaits_others, is_awaited) && !is_awaited;
        if begins && !self.best_effort.is_started {
            self.begin();
        }
    }

    /// Lets the output stand still until the input carries a barrier.
    #[cold]
    pub(crate) fn wait_for(&mut self, input: usize) {
        if let Some(why) = self.links[input].gone.take() {
            self.left -= usize::from(why == Gone::Left);
        }
        self.links[input].behind_at = 0;
        self.best_effort.live += usize::from(self.best_effort.register(input) == ABSENT);
        self.best_effort.set_register(input, AWAITED);
    }

    /// Takes into account that another worker has announced this barrier: links that return are compared with it, and
    /// their registers are not below it. No link takes part.
    pub(crate) fn reach(&mut self, announced: Timestamp) {
        let time = self.unwrap(announced);
        self.latest = self.latest.max(time);
        self.best_effort.output = self.best_effort.output.max(time);
    }

    /// Returns whether a link that takes no part, and carries this barrier, would be waited for.
    pub(crate) fn would_join(&mut self, barrier: Timestamp) -> bool {
        let value = self.unwrap(barrier);
        !self.is_too_late(value)
    }

    /// Returns the barrier that a link has last carried; `None` if it has carried none, or takes no part.
    pub(crate) fn carried_by(&self, input: usize) -> Option<Timestamp> {
        let carried = self.carried(input);
        (carried != AWAITED && carried != ABSENT).then(|| Timestamp::new(carried))
    }
}

//! Links that are too far behind the others: when the output begins, and later.

use super::{Barrier, Gone, NEVER_EXPIRES};
use crate::bug::Bug;
use crate::plane::{ABSENT, AWAITED};

impl Barrier {
    /// Returns the lower median of what the links that take part have carried and, if it is compared, of this
    /// node's clock; 0 if there is none of these.
    fn reference(&mut self) -> u64 {
        self.scratch.clear();
        if let Some(clock) = self.clock {
            let clock = self.unwrap(clock);
            self.scratch.push(clock);
        }
        for input in 0..self.links.len().min(self.workers_from) {
            if !matches!(self.best_effort.register(input), ABSENT | AWAITED) {
                let carried = self.carried(input);
                self.scratch.push(carried);
            }
        }
        self.scratch.extend_from_slice(&self.others);
        let Some(middle) = self.scratch.len().checked_sub(1).map(|last| last / 2) else { return 0 };
        *self.scratch.select_nth_unstable(middle).1
    }

    /// Returns whether a time is too far behind the lower median of the links and this node's clock. Without the clock it
    /// counts as behind: all links may be as wrong as the output.
    #[cold]
    pub(super) fn is_behind_median(&mut self, value: u64) -> bool {
        self.clock.is_none() || value.saturating_add(self.limits.window_ns) < self.reference()
    }

    /// Begins the output if no link is waited for any more: removes the links that are too far behind. Twice
    /// the window, because a link's last barrier may be as old as a link that is about to be dead.
    #[cold]
    pub(super) fn begin(&mut self) {
        if matches!(self.best_effort.tree[1], AWAITED | ABSENT) || self.awaits_others {
            return;
        }
        let earliest = self.reference().saturating_sub(self.limits.window_ns.saturating_mul(2));
        for input in 0..self.links.len() {
            let is_behind = self.best_effort.register(input) < earliest && !self.has_bug(Bug::FirstWord);
            if is_behind && self.links[input].updated_at != NEVER_EXPIRES {
                self.evict(input);
            }
        }
        // An input is left, unless links of other workers are ahead of all.
        self.best_effort.start();
    }

    /// Removes links that have been too far behind the others for too long. A link that has carried no barrier
    /// while others have is behind as well.
    pub(super) fn check_lag(&mut self) {
        let is_heard = |input: usize| !matches!(self.best_effort.register(input), ABSENT | AWAITED);
        let has_heard = !self.others.is_empty() || (0..self.links.len()).any(is_heard);
        if self.limits.evict_after_ticks == 0 || !has_heard {
            return;
        }
        let earliest = self.reference().saturating_sub(self.limits.window_ns.saturating_mul(2));
        for input in 0..self.links.len() {
            if self.best_effort.register(input) == ABSENT || self.carried(input) >= earliest {
                self.links[input].lagging_since = 0;
                continue;
            }
            if self.links[input].lagging_since == 0 {
                self.links[input].lagging_since = self.ticks;
            }
            if self.lags(input) && self.links[input].updated_at != NEVER_EXPIRES {
                self.evict(input);
            }
        }
        if !self.best_effort.is_started {
            self.begin();
        }
    }

    /// Returns whether a link has been too far behind the others for too long.
    pub(crate) fn lags(&self, input: usize) -> bool {
        let since = self.links[input].lagging_since;
        since != 0 && self.ticks - since > self.limits.evict_after_ticks && !self.has_bug(Bug::NeverEvicts)
    }

    /// Removes the link that holds the best-effort barrier, because it is too far behind.
    pub(crate) fn evict_holder(&mut self) {
        if let Some(input) = self.best_effort.holder() {
            self.evict(input);
        }
    }

    /// Removes a link that is too far behind the others; [`expire`](Self::expire) returns it.
    fn evict(&mut self, input: usize) {
        self.best_effort.remove(input);
        self.links[input].gone = Some(Gone::Evicted);
        self.links[input].lagging_since = 0;
        self.links[input].is_unreported = true;
        self.unreported += 1;
        self.misses = true;
    }
}

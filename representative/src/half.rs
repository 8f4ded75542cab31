//! The two halves of a switch, each a node of the routing graph: one for routes up, one for routes down
//! (1Pipe, section 3.1, figure 3).

use crate::barrier::{Barrier, Limits};
use onepipe::Timestamp;

/// Index of the up half, whose inputs are the links below
pub(crate) const UP: usize = 0;
/// Index of the down half, whose inputs are the links above and the up half
pub(crate) const DOWN: usize = 1;

/// One of the two halves: its barrier, and the beacon instants that the barrier has passed.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) barrier: Barrier,
    /// Latest multiple of the beacon interval that the barrier has passed, unwrapped
    pub(crate) passed: u64,
    /// Next such multiple
    next: u64,
    /// Whether an input may be [doubted](onepipe::ends::Ends::is_doubted)
    pub(crate) doubts: bool,
}

/// Period of 48-bit timestamps, in nanoseconds
const PERIOD: u64 = 1 << 48;

impl Half {
    pub(crate) fn new(inputs: usize, limits: Limits, clock: Option<Timestamp>) -> Self {
        Self::with(Barrier::new(inputs, limits, clock))
    }

    /// Creates half number `half` of a switch with several workers, which are its inputs, and those of the lower half
    /// follow the upper one.
    pub(crate) fn of_workers(half: usize, workers: usize, limits: Limits) -> Self {
        Self::with(Barrier::of_workers(usize::from(half == DOWN), workers, limits))
    }

    fn with(barrier: Barrier) -> Self {
        Self { barrier, passed: 0, next: 1, doubts: false }
    }

    /// Returns whether the barrier has passed another instant since the last call. Where 48-bit timestamps
    /// wrap, an interval is cut short, because hosts whose clocks have more bits have an instant at that
    /// point, too.
    #[inline]
    pub(crate) fn pass_instant(&mut self, interval: u64) -> bool {
        let position = self.barrier.position();
        if position < self.next {
            return false;
        }
        let begin = position - position % PERIOD;
        self.passed = position - (position - begin) % interval;
        self.next = (self.passed + interval).min(begin + PERIOD);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_multiples_in_every_round() {
        let mut half = Half::new(
            1,
            Limits { dead_after_ticks: 10, window_ns: 1, stall_ns: 1, evict_after_ticks: 0 },
            None,
        );
        assert!(!half.pass_instant(1000), "no barrier yet");
        let begin = PERIOD - PERIOD % 1000 - 500;
        let mut passed = Vec::new();
        for by in (0..3000).step_by(100) {
            half.barrier.update(0, Some(Timestamp::new(begin + by)));
            if half.pass_instant(1000) {
                passed.push(Timestamp::new(half.passed).nanos());
            }
        }
        let last = PERIOD - PERIOD % 1000;
        assert_eq!(passed, [last - 1000, last, 0, 1000]);
    }
}

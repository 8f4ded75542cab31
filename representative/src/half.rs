//! A switch is two nodes of the routing graph, one for the way up and one for the way down (1Pipe, section 3.1, figure 3).

use crate::barrier::{Barrier, Limits};

/// What goes up, fed by the links to below
pub(crate) const UP: usize = 0;
/// What goes down, fed by the links to above and by what goes up
pub(crate) const DOWN: usize = 1;

/// One of the two: its barrier, and which instants it has passed.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) barrier: Barrier,
    /// The latest multiple of the beacon interval that the barrier has passed, on the barrier's line
    pub(crate) passed: u64,
    /// The next one
    next: u64,
}

/// One round of 48-bit timestamps
const ROUND: u64 = 1 << 48;

impl Half {
    pub(crate) fn new(inputs: usize, limits: Limits) -> Self {
        Self { barrier: Barrier::new(inputs, limits), passed: 0, next: 1 }
    }

    /// Whether the barrier has passed another instant. Where timestamps begin anew, an interval is cut short: hosts with
    /// longer clocks know no other place for it either.
    #[inline]
    pub(crate) fn pass(&mut self, interval: u64) -> bool {
        let position = self.barrier.position();
        if position < self.next {
            return false;
        }
        let begin = position - position % ROUND;
        self.passed = position - (position - begin) % interval;
        self.next = (self.passed + interval).min(begin + ROUND);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocev2::onepipe::Timestamp;

    #[test]
    fn instants_are_multiples_in_every_round() {
        let mut half = Half::new(1, Limits { dead_after_ticks: 10, window_ns: 1 });
        assert!(!half.pass(1000), "no barrier yet");
        let begin = ROUND - ROUND % 1000 - 500;
        let mut passed = Vec::new();
        for by in (0..3000).step_by(100) {
            half.barrier.update(0, Some(Timestamp::new(begin + by)), None);
            if half.pass(1000) {
                passed.push(Timestamp::new(half.passed).nanos());
            }
        }
        let last = ROUND - ROUND % 1000;
        assert_eq!(passed, [last - 1000, last, 0, 1000]);
    }
}

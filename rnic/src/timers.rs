//! When queue pairs have something to do by themselves. One entry a queue pair counts, others are stale: a deadline
//! that moves further away, as most do with every acknowledgement, costs nothing.

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use switch::Nanos;

/// The earliest deadlines first. Equal ones in the order of the slots, so that a run repeats.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Nanos, u32)>>,
}

impl Timers {
    /// Wakes the queue pair in `slot` at `deadline` or before; `at` is its entry that counts.
    #[inline]
    pub(crate) fn arm(&mut self, slot: u32, deadline: Nanos, at: &mut Option<Nanos>) {
        if at.is_none_or(|entry| deadline < entry) {
            *at = Some(deadline);
            self.heap.push(Reverse((deadline, slot)));
        }
    }

    /// The time of the first entry
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// An entry whose time has come
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        let &Reverse((at, slot)) = self.heap.peek()?;
        (at <= now).then(|| {
            self.heap.pop();
            (at, slot)
        })
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

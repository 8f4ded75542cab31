//! When queue pairs have something to do by themselves. A queue pair has one entry at most. A deadline that moves further
//! away, as most do with every acknowledgement, costs nothing: the entry stays, and finds out when its time comes.

use switch::Nanos;
use switch::heap::Heap;

/// The earliest deadlines first. Equal ones in the order of the slots, so that a run repeats.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Heap,
}

impl Timers {
    /// For so many slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self { heap: Heap::new(slots) }
    }

    /// Wakes the queue pair in `slot` at `deadline` or before.
    #[inline]
    pub(crate) fn arm(&mut self, slot: u32, deadline: Nanos) {
        if self.heap.key(slot).is_some_and(|(entry, _)| entry <= deadline.0) {
            return;
        }
        self.heap.remove(slot);
        self.heap.insert(slot, (deadline.0, slot.into()));
    }

    /// The time of the first entry
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.first().map(|(at, _)| Nanos(at))
    }

    /// A queue pair whose time has come
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u32> {
        if self.next()? > now { None } else { self.heap.pop() }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

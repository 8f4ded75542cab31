//! Deadlines of queue pairs. A queue pair has at most one entry in the heap. Postponing a deadline, as most
//! acknowledgements do, costs nothing: the entry stays, and the deadline is checked again when the entry
//! expires.

use switch::Nanos;
use switch::heap::Heap;

/// Timer heap, earliest deadline first. Equal deadlines expire in slot order, so that a run repeats.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Heap,
}

impl Timers {
    /// Creates a heap for `slots` slots.
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

    /// Returns the time of the first entry.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.first().map(|(at, _)| Nanos(at))
    }

    /// Removes and returns a slot whose deadline has passed.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u32> {
        if self.next()? > now { None } else { self.heap.pop() }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

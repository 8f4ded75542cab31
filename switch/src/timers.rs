//! Timers by slot, for deadlines that are postponed more often than they expire.

use crate::Nanos;
use crate::heap::Heap;

/// One timer for each slot, earliest first. Timers of equal time expire in slot order, so that a run repeats.
///
/// Postponing a deadline, as most acknowledgements do, costs nothing: the timer stays at the earlier time, and
/// its owner sets it again when it expires.
#[derive(Clone, Debug)]
pub struct Timers(Heap);

impl Timers {
    /// Creates the timers of slots below `slots`, none of which is set.
    pub fn new(slots: usize) -> Self {
        Self(Heap::new(slots))
    }

    /// Returns the earliest time to which a timer is set.
    #[inline]
    pub fn first(&self) -> Option<Nanos> {
        self.0.first().map(|(at, _)| Nanos(at))
    }

    /// Removes the next timer that is due. Returns its slot.
    #[inline]
    pub fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        if self.first()? <= now { self.0.pop() } else { None }
    }

    /// Sets a timer to `at`. A timer that is set to an earlier time stays.
    ///
    /// # Panics
    /// If `slot` is not below the count that the timers were created with.
    #[inline]
    pub fn arm(&mut self, slot: u32, at: Nanos) {
        if self.0.key(slot).is_none_or(|(entry, _)| entry > at.0) {
            self.rearm(slot, at);
        }
    }

    #[inline(never)]
    fn rearm(&mut self, slot: u32, at: Nanos) {
        self.0.remove(slot);
        self.0.insert(slot, (at.0, slot.into()));
    }

    /// Removes the timer of a slot, if it is set.
    pub fn remove(&mut self, slot: u32) {
        self.0.remove(slot);
    }

    /// Count of timers that are set
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no timer is set
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

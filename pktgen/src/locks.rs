//! Locks for which the queue pairs of a stream of compare and swap contend, one for each slot of memory.

use crate::counters::StreamCounters;

/// The lock that a queue pair holds or wants.
#[derive(Clone, Copy, Default)]
struct Lock {
    slot: u32,
    held: bool,
}

/// Locks by queue pair; empty for other verbs.
pub(crate) struct Locks(Box<[Lock]>);

/// A compare and swap of a lock.
#[derive(Clone, Copy)]
pub(crate) struct LockRequest {
    pub(crate) slot: u32,
    pub(crate) swap: u64,
    pub(crate) compare: u64,
}

impl Locks {
    /// Creates locks for this number of queue pairs.
    pub(crate) fn new(qps: u32) -> Self {
        Self(vec![Lock::default(); qps as usize].into())
    }

    /// Returns the next request of a queue pair: to take the lock of `slot`, or to release the one that it
    /// holds. `toggles` is for a stream without responses.
    #[inline]
    pub(crate) fn request(&mut self, qp: u32, owner: u64, slot: u32, toggles: bool) -> LockRequest {
        let lock = &mut self.0[qp as usize];
        let (swap, compare) = if lock.held { (0, owner) } else { (owner, 0) };
        if !lock.held {
            lock.slot = slot;
        }
        // Without responses it is unknown whether the lock is held, so the queue pair releases it with every
        // other request.
        lock.held ^= toggles;
        LockRequest { slot: lock.slot, swap, compare }
    }

    /// Handles the original value of the word.
    pub(crate) fn on_response(&mut self, qp: u32, original: u64, owner: u64, counters: &StreamCounters) {
        let lock = &mut self.0[qp as usize];
        let compare = if lock.held { owner } else { 0 };
        let swapped = original == compare;
        if swapped { &counters.swapped } else { &counters.not_swapped }.add(1);
        // The lock may have been taken by an earlier request whose response was lost.
        lock.held = !lock.held && (swapped || original == owner);
    }
}

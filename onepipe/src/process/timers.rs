//! Timers of the peers.

use switch::Nanos;
use switch::heap::Heap;

/// One timer for each peer, by index.
#[derive(Debug)]
pub(super) struct Timers(Heap);

impl Timers {
    /// Creates the timers of `count` peers, none of which is set.
    pub(super) fn new(count: usize) -> Self {
        Self(Heap::new(count))
    }

    /// Returns the earliest time to which a timer is set.
    #[inline]
    pub(super) fn first(&self) -> Option<Nanos> {
        self.0.first().map(|(at, _)| Nanos(at))
    }

    /// Removes the next timer that is due. Returns its peer.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        if self.first()? <= now { self.0.pop() } else { None }
    }

    /// Sets a timer to `at`. A timer that is set to an earlier time stays, and is set again when it expires.
    #[inline]
    pub(super) fn arm(&mut self, peer: u32, at: Nanos) {
        if self.0.key(peer).is_none_or(|(entry, _)| entry > at.0) {
            self.rearm(peer, at);
        }
    }

    #[inline(never)]
    fn rearm(&mut self, peer: u32, at: Nanos) {
        self.0.remove(peer);
        self.0.insert(peer, (at.0, peer.into()));
    }

    /// Removes the timer of a peer, if it is set.
    pub(super) fn remove(&mut self, peer: u32) {
        self.0.remove(peer);
    }
}

//! Incarnations of a server's memory: which one the cached state of its data structures belongs to.
//!
//! After a restart the same addresses, and possibly the same R_Keys, have different contents. No queue pair
//! outlives its server. So two queue pairs that existed at the same time belong to one incarnation, and so
//! does the memory that they reach.

use switch::Nanos;

/// Time span in which a queue pair or a memory is known to have existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub first: Nanos,
    pub last: Nanos,
}

impl Lifetime {
    const fn overlaps(self, other: Self) -> bool {
        self.first.0 <= other.last.0 && other.first.0 <= self.last.0
    }
}

/// Lifetime of the memory that the state belongs to; `None` while there is no state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incarnation(Option<Lifetime>);

impl Incarnation {
    /// Returns whether a queue pair with this lifetime reaches that memory.
    #[inline]
    pub(crate) fn includes(self, queue_pair: Lifetime) -> bool {
        self.0.is_some_and(|known| known.overlaps(queue_pair))
    }

    /// Updates the incarnation for a queue pair that was acknowledged. Returns true if the state now has to
    /// belong to a different memory: this queue pair is newer than all those that reached the old one, none
    /// of them was acknowledged for `grace`, and no node is pending (`is_free`).
    ///
    /// Responses may still be in flight when a connection is new, which is why `grace` is needed. The result
    /// may be true although the server has not restarted, if all older queue pairs have ended.
    #[inline]
    pub(crate) fn update(&mut self, queue_pair: Lifetime, grace: Nanos, is_free: bool) -> bool {
        match &mut self.0 {
            Some(known) if known.overlaps(queue_pair) => {
                known.first = known.first.min(queue_pair.first);
                known.last = known.last.max(queue_pair.last);
                false
            }
            Some(known) if queue_pair.last.since(known.last) <= grace || !is_free => false,
            known => known.replace(queue_pair).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Nanos = Nanos(100);

    fn lifetime(first: u64, last: u64) -> Lifetime {
        Lifetime { first: Nanos(first), last: Nanos(last) }
    }

    #[test]
    fn queue_pairs_with_overlapping_lifetimes_reach_the_same_memory() {
        let mut memory = Incarnation::default();
        assert!(!memory.includes(lifetime(5, 9)), "there is no state yet");
        assert!(!memory.update(lifetime(5, 9), GRACE, true));
        // The second queue pair overlaps the first, and the third overlaps the second.
        assert!(memory.includes(lifetime(9, 30)) && !memory.includes(lifetime(25, 40)));
        assert!(!memory.update(lifetime(9, 30), GRACE, true));
        assert!(
            memory.includes(lifetime(25, 40))
                && memory.includes(lifetime(1, 6))
                && !memory.includes(lifetime(1, 4))
        );
    }

    #[test]
    fn a_newer_queue_pair_reaches_another_memory_after_the_grace_time() {
        let mut memory = Incarnation::default();
        memory.update(lifetime(10, 50), GRACE, true);
        assert!(!memory.update(lifetime(60, 150), GRACE, true), "responses of the others may be in flight");
        assert!(!memory.update(lifetime(60, 151), GRACE, false), "a node is pending");
        assert!(!memory.includes(lifetime(60, 151)));
        assert!(memory.update(lifetime(60, 151), GRACE, true));
        assert!(memory.includes(lifetime(60, 151)) && !memory.includes(lifetime(10, 50)));
        // An older queue pair stays rejected, however late it is acknowledged.
        assert!(!memory.update(lifetime(10, 55), GRACE, true) && !memory.includes(lifetime(10, 55)));
    }

    #[test]
    fn an_older_queue_pair_that_is_acknowledged_again_joins_the_memory() {
        let mut memory = Incarnation::default();
        memory.update(lifetime(10, 50), GRACE, true);
        memory.update(lifetime(60, 300), GRACE, true);
        assert!(!memory.update(lifetime(10, 290), GRACE, true));
        assert!(memory.includes(lifetime(20, 40)), "the memory is the original one");
    }
}

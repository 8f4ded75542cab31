//! Invalidation of long ranges of a server's memory. An invalidation is stored in constant time, however many
//! lines are in the range, and applied to each line when that is next used.

use switch::Nanos;

/// Number of invalidations stored. Older ones are assumed to concern all lines
const KEPT: usize = 16;

/// Invalidation of a range of lines that a packet may write to.
#[derive(Clone, Copy, Debug)]
struct RangeInvalidation {
    first: u64,
    last: u64,
    /// The lines learn no value before this time
    until: Nanos,
    /// Epoch in which the invalidation was added. Operations resolved in this epoch or the previous one may
    /// concern the range
    epoch: u64,
}

const EMPTY_RANGE: RangeInvalidation = RangeInvalidation { first: 1, last: 0, until: Nanos::ZERO, epoch: 0 };

/// Range invalidations of a server's memory, and resolved operations in flight to it.
#[derive(Debug)]
pub(crate) struct RangeInvalidations {
    kept: [RangeInvalidation; KEPT],
    /// Number of invalidations so far
    pub count: u32,
    /// Latest `until` of the invalidations that are no longer stored
    lost_until: Nanos,
    /// Smallest and largest line number that was ever cached
    hull: (u64, u64),
    /// Current epoch. Resolved operations are counted by the epoch in which they are sent, modulo 2. The next
    /// epoch begins when no operation of the previous one is in flight, so everything in flight at some time
    /// has completed two epochs later.
    epoch: u64,
    in_flight: [u32; 2],
}

impl RangeInvalidations {
    pub(crate) fn new() -> Self {
        Self {
            kept: [EMPTY_RANGE; KEPT],
            count: 0,
            lost_until: Nanos::ZERO,
            hull: (u64::MAX, 0),
            epoch: 2,
            in_flight: [0; 2],
        }
    }

    /// Extends `hull` by a line number.
    pub(crate) fn extend_hull(&mut self, number: u64) {
        self.hull = (self.hull.0.min(number), self.hull.1.max(number));
    }

    /// Returns whether a range may contain cached lines.
    pub(crate) fn may_contain(&self, first: u64, last: u64) -> bool {
        first <= self.hull.1 && last >= self.hull.0
    }

    /// Counts a resolved operation that is sent. Returns the tag of its epoch.
    #[inline]
    pub(crate) fn begin(&mut self) -> u8 {
        let tag = (self.epoch & 1) as u8;
        self.in_flight[usize::from(tag)] += 1;
        tag
    }

    /// Counts the completion of a resolved operation.
    #[inline]
    pub(crate) fn end(&mut self, tag: u8) {
        self.in_flight[usize::from(tag)] -= 1;
    }

    /// Returns whether no resolved operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == [0; 2]
    }

    /// Begins the next epoch if no operation of the previous one is in flight.
    pub(crate) fn advance_epoch(&mut self) {
        if self.in_flight[(self.epoch & 1 ^ 1) as usize] == 0 {
            self.epoch += 1;
        }
    }

    /// Invalidates a range of lines, which learn no value before `until`. Returns whether the packet may be
    /// forwarded now: no operation that was resolved in the range before is in flight.
    pub(crate) fn add(&mut self, first: u64, last: u64, until: Nanos, now: Nanos) -> bool {
        if !self.may_contain(first, last) {
            return true;
        }
        self.advance_epoch();
        self.advance_epoch();
        // An earlier invalidation of the range, which all operations in flight at that time have outlasted
        let waited = |invalidation: &RangeInvalidation| {
            invalidation.first <= first
                && last <= invalidation.last
                && now < invalidation.until
                && self.epoch >= invalidation.epoch + 2
        };
        let passes = self.is_idle() || self.kept.iter().any(waited);
        let known = |invalidation: &RangeInvalidation| {
            invalidation.first <= first && last <= invalidation.last && until <= invalidation.until
        };
        if passes || !self.kept.iter().any(known) {
            let slot = &mut self.kept[self.count as usize % KEPT];
            self.lost_until = self.lost_until.max(slot.until);
            *slot = RangeInvalidation { first, last, until, epoch: self.epoch };
            self.count = self.count.wrapping_add(1);
        }
        passes
    }

    /// Returns the time before which a line learns no value because of the invalidations since there were
    /// `applied`; `None` if none of them concerns it.
    #[cold]
    pub(crate) fn since(&self, applied: u32, number: u64) -> Option<Nanos> {
        let new = self.count.wrapping_sub(applied) as usize;
        let concerned = |n: usize| {
            let invalidation = &self.kept[(self.count as usize).wrapping_sub(n) % KEPT];
            (invalidation.first <= number && number <= invalidation.last).then_some(invalidation.until)
        };
        let until = (1..=new.min(KEPT)).filter_map(concerned).max();
        if new > KEPT {
            Some(until.map_or(self.lost_until, |until| until.max(self.lost_until)))
        } else {
            until
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(1000);
    const UNTIL: Nanos = Nanos(2000);

    #[test]
    fn an_invalidation_concerns_only_its_range() {
        let mut invalidations = RangeInvalidations::new();
        (0..100).for_each(|number| invalidations.extend_hull(number));
        let before = invalidations.count;
        assert!(invalidations.add(10, 20, UNTIL, NOW));
        let concerned: Vec<_> =
            (0..100).filter(|number| invalidations.since(before, *number).is_some()).collect();
        assert_eq!(concerned, (10..=20).collect::<Vec<_>>());
        assert!(invalidations.add(200, 300, UNTIL, NOW));
        assert_eq!(invalidations.count, before + 1, "no line is in the range");
    }

    #[test]
    fn dropped_invalidations_concern_all_lines() {
        let mut invalidations = RangeInvalidations::new();
        (0..100).for_each(|number| invalidations.extend_hull(number));
        let before = invalidations.count;
        for n in 0..=KEPT as u64 {
            assert_eq!(invalidations.since(before, 99), None, "{n}");
            assert!(invalidations.add(n, n, Nanos(2000 + n), Nanos(n)));
        }
        assert_eq!(invalidations.since(before, 99), Some(Nanos(2000)));
        assert_eq!(invalidations.since(invalidations.count, 99), None);
    }

    #[test]
    fn an_invalidation_does_not_wait_for_operations_resolved_after_it() {
        let mut invalidations = RangeInvalidations::new();
        invalidations.extend_hull(5);
        let first = invalidations.begin();
        assert!(!invalidations.add(0, 9, UNTIL, NOW));
        // Other operations are resolved all the time.
        let mut in_flight = vec![first];
        for n in 0..20 {
            in_flight.push(invalidations.begin());
            let done = in_flight.remove(0);
            invalidations.end(done);
            if invalidations.add(0, 9, UNTIL, NOW) {
                assert!(n > 0, "the first operation is in flight");
                return;
            }
        }
        panic!("the invalidation never passes");
    }

    #[test]
    fn an_invalidation_waits_for_operations_resolved_before_it() {
        let mut invalidations = RangeInvalidations::new();
        invalidations.extend_hull(5);
        let first = invalidations.begin();
        for _ in 0..20 {
            let other = invalidations.begin();
            invalidations.end(other);
            invalidations.advance_epoch();
            assert!(!invalidations.add(0, 9, UNTIL, NOW));
        }
        invalidations.end(first);
        assert!(invalidations.add(0, 9, UNTIL, NOW));
    }
}

//! Invalidation of long ranges of a server's memory. An invalidation is stored in constant time, however many
//! lines are in the range, and applied to each line when that is next used.

use switch::Nanos;

/// Number of invalidations stored. Older ones are assumed to concern all lines
const KEPT: usize = 16;

/// Invalidation of a range of lines that a packet may write to.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    first: u64,
    last: u64,
    /// The lines learn no value before this time
    until: Nanos,
    /// Epoch in which the invalidation was added. Operations resolved in this epoch or the previous one may
    /// concern the range
    epoch: u64,
}

const NOWHERE: Doubt = Doubt { first: 1, last: 0, until: Nanos::ZERO, epoch: 0 };

/// Range invalidations of a server's memory, and resolved operations in flight to it.
#[derive(Debug)]
pub(crate) struct Doubts {
    kept: [Doubt; KEPT],
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
    under_way: [u32; 2],
}

impl Doubts {
    pub(crate) fn new() -> Self {
        Self {
            kept: [NOWHERE; KEPT],
            count: 0,
            lost_until: Nanos::ZERO,
            hull: (u64::MAX, 0),
            epoch: 2,
            under_way: [0; 2],
        }
    }

    /// Extends `hull` by a line number.
    pub(crate) fn reach(&mut self, number: u64) {
        self.hull = (self.hull.0.min(number), self.hull.1.max(number));
    }

    /// Returns whether a range may contain cached lines.
    pub(crate) fn may_have(&self, first: u64, last: u64) -> bool {
        first <= self.hull.1 && last >= self.hull.0
    }

    /// Counts a resolved operation that is sent. Returns the tag of its epoch.
    #[inline]
    pub(crate) fn begin(&mut self) -> u8 {
        let tag = (self.epoch & 1) as u8;
        self.under_way[usize::from(tag)] += 1;
        tag
    }

    /// Counts the completion of a resolved operation.
    #[inline]
    pub(crate) fn end(&mut self, tag: u8) {
        self.under_way[usize::from(tag)] -= 1;
    }

    /// Returns whether no resolved operation is in flight.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way == [0; 2]
    }

    /// Begins the next epoch if no operation of the previous one is in flight.
    pub(crate) fn turn(&mut self) {
        if self.under_way[(self.epoch & 1 ^ 1) as usize] == 0 {
            self.epoch += 1;
        }
    }

    /// Invalidates a range of lines, which learn no value before `until`. Returns whether the packet may be
    /// forwarded now: no operation that was resolved in the range before is in flight.
    pub(crate) fn add(&mut self, first: u64, last: u64, until: Nanos, now: Nanos) -> bool {
        if !self.may_have(first, last) {
            return true;
        }
        self.turn();
        self.turn();
        // An earlier invalidation of the range, which all operations in flight at that time have outlasted
        let waited = |doubt: &Doubt| {
            doubt.first <= first && last <= doubt.last && now < doubt.until && self.epoch >= doubt.epoch + 2
        };
        let passes = self.is_quiet() || self.kept.iter().any(waited);
        let known = |doubt: &Doubt| doubt.first <= first && last <= doubt.last && until <= doubt.until;
        if passes || !self.kept.iter().any(known) {
            let place = &mut self.kept[self.count as usize % KEPT];
            self.lost_until = self.lost_until.max(place.until);
            *place = Doubt { first, last, until, epoch: self.epoch };
            self.count = self.count.wrapping_add(1);
        }
        passes
    }

    /// Returns the time before which a line learns no value because of the invalidations since there were
    /// `checked`; `None` if none of them concerns it.
    #[cold]
    pub(crate) fn since(&self, checked: u32, number: u64) -> Option<Nanos> {
        let new = self.count.wrapping_sub(checked) as usize;
        let concerned = |n: usize| {
            let doubt = &self.kept[(self.count as usize).wrapping_sub(n) % KEPT];
            (doubt.first <= number && number <= doubt.last).then_some(doubt.until)
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
        let mut doubts = Doubts::new();
        (0..100).for_each(|number| doubts.reach(number));
        let before = doubts.count;
        assert!(doubts.add(10, 20, UNTIL, NOW));
        let concerned: Vec<_> = (0..100).filter(|number| doubts.since(before, *number).is_some()).collect();
        assert_eq!(concerned, (10..=20).collect::<Vec<_>>());
        assert!(doubts.add(200, 300, UNTIL, NOW));
        assert_eq!(doubts.count, before + 1, "no line is in the range");
    }

    #[test]
    fn dropped_invalidations_concern_all_lines() {
        let mut doubts = Doubts::new();
        (0..100).for_each(|number| doubts.reach(number));
        let before = doubts.count;
        for n in 0..=KEPT as u64 {
            assert_eq!(doubts.since(before, 99), None, "{n}");
            assert!(doubts.add(n, n, Nanos(2000 + n), Nanos(n)));
        }
        assert_eq!(doubts.since(before, 99), Some(Nanos(2000)));
        assert_eq!(doubts.since(doubts.count, 99), None);
    }

    #[test]
    fn an_invalidation_does_not_wait_for_operations_resolved_after_it() {
        let mut doubts = Doubts::new();
        doubts.reach(5);
        let first = doubts.begin();
        assert!(!doubts.add(0, 9, UNTIL, NOW));
        // Other operations are resolved all the time.
        let mut under_way = vec![first];
        for n in 0..20 {
            under_way.push(doubts.begin());
            let done = under_way.remove(0);
            doubts.end(done);
            if doubts.add(0, 9, UNTIL, NOW) {
                assert!(n > 0, "the first operation is in flight");
                return;
            }
        }
        panic!("the invalidation never passes");
    }

    #[test]
    fn an_invalidation_waits_for_operations_resolved_before_it() {
        let mut doubts = Doubts::new();
        doubts.reach(5);
        let first = doubts.begin();
        for _ in 0..20 {
            let other = doubts.begin();
            doubts.end(other);
            doubts.turn();
            assert!(!doubts.add(0, 9, UNTIL, NOW));
        }
        doubts.end(first);
        assert!(doubts.add(0, 9, UNTIL, NOW));
    }
}

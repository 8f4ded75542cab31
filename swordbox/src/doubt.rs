//! What may have been written to anywhere in a long range of a server's memory: noted down at once, however many lines lie there,
//! and applied to a line when that is looked at.

use switch::Nanos;

/// Doubts that are kept. What is older is taken to concern all lines
const KEPT: usize = 16;

/// A range of lines that something may be written to.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    first: u64,
    last: u64,
    /// Until then nothing is learnt of these lines
    until: Nanos,
    /// Decisions of this epoch, and of the one before, may be of these lines
    epoch: u64,
}

const NOWHERE: Doubt = Doubt { first: 1, last: 0, until: Nanos::ZERO, epoch: 0 };

/// What is doubtful of a server's memory, and operations under way there that were decided here.
#[derive(Debug)]
pub(crate) struct Doubts {
    kept: [Doubt; KEPT],
    /// How many there have been
    pub count: u32,
    /// The end of all that are not kept any more
    lost_until: Nanos,
    /// Lines that there have been lie between these
    hull: (u64, u64),
    /// Operations that were decided are counted by epoch: as soon as there are none of the epoch before, the next one begins.
    /// So what was under way at any time is over two epochs later.
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

    /// There is a line of this number.
    pub(crate) fn reach(&mut self, number: u64) {
        self.hull = (self.hull.0.min(number), self.hull.1.max(number));
    }

    /// Whether there may be lines in a range.
    pub(crate) fn may_have(&self, first: u64, last: u64) -> bool {
        first <= self.hull.1 && last >= self.hull.0
    }

    /// Counts an operation that was decided; returns what it is counted by.
    #[inline]
    pub(crate) fn begin(&mut self) -> u8 {
        let tag = (self.epoch & 1) as u8;
        self.under_way[usize::from(tag)] += 1;
        tag
    }

    /// It is done.
    #[inline]
    pub(crate) fn end(&mut self, tag: u8) {
        self.under_way[usize::from(tag)] -= 1;
    }

    /// Whether nothing that was decided is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way == [0; 2]
    }

    /// The next epoch begins if nothing of the one before is under way.
    pub(crate) fn turn(&mut self) {
        if self.under_way[(self.epoch & 1 ^ 1) as usize] == 0 {
            self.epoch += 1;
        }
    }

    /// Notes down that something may write to these lines: nothing is learnt of them from now on. Returns whether it may pass now,
    /// and no operations that were decided there are under way.
    pub(crate) fn add(&mut self, first: u64, last: u64, until: Nanos, now: Nanos) -> bool {
        if !self.may_have(first, last) {
            return true;
        }
        self.turn();
        self.turn();
        // One that has waited for them
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

    /// Until when nothing is learnt of a line because of what came since there were `checked` doubts; none if none concerns it.
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
    fn a_doubt_concerns_its_lines_only() {
        let mut doubts = Doubts::new();
        (0..100).for_each(|number| doubts.reach(number));
        let before = doubts.count;
        assert!(doubts.add(10, 20, UNTIL, NOW));
        let concerned: Vec<_> = (0..100).filter(|number| doubts.since(before, *number).is_some()).collect();
        assert_eq!(concerned, (10..=20).collect::<Vec<_>>());
        assert!(doubts.add(200, 300, UNTIL, NOW));
        assert_eq!(doubts.count, before + 1, "there are no lines");
    }

    #[test]
    fn what_is_not_kept_concerns_all_lines() {
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
    fn a_doubt_waits_for_what_was_decided_before_it_and_for_nothing_after() {
        let mut doubts = Doubts::new();
        doubts.reach(5);
        let first = doubts.begin();
        assert!(!doubts.add(0, 9, UNTIL, NOW));
        // Others go on all the time.
        let mut under_way = vec![first];
        for n in 0..20 {
            under_way.push(doubts.begin());
            let done = under_way.remove(0);
            doubts.end(done);
            if doubts.add(0, 9, UNTIL, NOW) {
                assert!(n > 0, "the first is under way");
                return;
            }
        }
        panic!("it waits for ever");
    }

    #[test]
    fn a_doubt_does_not_pass_before_what_was_decided_is_done() {
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

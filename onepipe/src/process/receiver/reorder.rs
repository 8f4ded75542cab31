//! Reorder buffer: messages that wait for the barrier, in the order of delivery (1Pipe, section 4.1), which
//! is by timestamp, then by sender, then as sent.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::types::ProcessId;
use super::inbound::Run;

/// Position in the order of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct DeliveryKey {
    /// Timestamp, unwrapped
    pub(in super::super) time: u64,
    /// Number of the arrival, compared before the sender if that bug is planted; 0 otherwise
    #[cfg(debug_assertions)]
    arrival: u64,
    pub(in super::super) sender: ProcessId,
    /// Position of its last packet among the sender's
    pub(in super::super) position: u64,
}

impl DeliveryKey {
    pub(in super::super) const fn new(time: u64, sender: ProcessId, position: u64) -> Self {
        Self {
            time,
            #[cfg(debug_assertions)]
            arrival: 0,
            sender,
            position,
        }
    }
}

/// Heap entry without a run
const NO_RUN: u32 = u32::MAX;

/// A run, or, without one, a mark where packets of a sender wait behind a gap.
#[derive(Clone, Debug)]
pub(in super::super) struct Waiting {
    pub(in super::super) key: DeliveryKey,
    /// Index of the sender among the peers
    pub(in super::super) peer: u32,
    pub(in super::super) run: Option<Run>,
}

/// Priority queue of runs, and of marks where packets wait behind a gap.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Reorder {
    /// Entries that arrived in order: each is later than all before it. Where messages of many senders arrive
    /// as they were sent, that is nearly all of them, and keeping them in order costs nothing
    in_order: VecDeque<Waiting>,
    /// Entries that arrived out of order: key, index of the run or [`NO_RUN`], index of the sender
    heap: BinaryHeap<Reverse<(DeliveryKey, u32, u32)>>,
    /// Runs of the heap's entries, so that the heap need not move them
    runs: Vec<Option<Run>>,
    free: Vec<u32>,
    /// Ties are broken by arrival (a planted bug)
    #[cfg(debug_assertions)]
    by_arrival: Option<u64>,
}

impl Reorder {
    /// Plants the bug that entries with equal timestamps are ordered by arrival. Has no effect without debug
    /// assertions.
    pub(in super::super) const fn order_by_arrival(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.by_arrival = Some(0);
        }
    }

    /// Adds a run of the sender with index `peer`, or a mark if `run` is `None`.
    #[expect(clippy::inline_always, reason = "a run has many words, which should be written only once")]
    #[inline(always)]
    pub(in super::super) fn push(&mut self, key: DeliveryKey, peer: u32, run: Option<Run>) {
        #[cfg(debug_assertions)]
        let key = match &mut self.by_arrival {
            Some(arrivals) => {
                *arrivals += 1;
                DeliveryKey { arrival: *arrivals, ..key }
            }
            None => key,
        };
        if self.in_order.back().is_none_or(|last| last.key <= key) {
            self.in_order.push_back(Waiting { key, peer, run });
        } else {
            self.push_out_of_order(key, peer, run);
        }
    }

    #[inline(never)]
    fn push_out_of_order(&mut self, key: DeliveryKey, peer: u32, run: Option<Run>) {
        let index = match run {
            None => NO_RUN,
            Some(run) => {
                let index = self.free.pop().unwrap_or(self.runs.len() as u32);
                if index as usize == self.runs.len() {
                    self.runs.push(None);
                }
                self.runs[index as usize] = Some(run);
                index
            }
        };
        self.heap.push(Reverse((key, index, peer)));
    }

    /// Returns the number of entries.
    #[inline]
    pub(in super::super) fn len(&self) -> usize {
        self.in_order.len() + self.heap.len()
    }

    /// Returns whether an entry is earlier than `time`.
    #[inline]
    pub(in super::super) fn has_before(&self, time: u64) -> bool {
        self.in_order.front().is_some_and(|first| first.key.time < time)
            || self.heap.peek().is_some_and(|Reverse((key, ..))| key.time < time)
    }

    /// Returns the key of the first entry.
    #[inline]
    pub(in super::super) fn first(&self) -> Option<DeliveryKey> {
        let next_in_order = self.in_order.front().map(|first| first.key);
        match self.heap.peek() {
            None => next_in_order,
            Some(Reverse((key, ..))) => Some(next_in_order.map_or(*key, |other| other.min(*key))),
        }
    }

    /// Removes and returns the first entry, if it is earlier than `time`.
    #[inline]
    pub(in super::super) fn pop_before(&mut self, time: u64) -> Option<Waiting> {
        let next_in_order = self.in_order.front().map(|first| first.key);
        if let Some(Reverse((key, ..))) = self.heap.peek()
            && next_in_order.is_none_or(|other| *key < other)
        {
            return if key.time < time { self.pop_out_of_order() } else { None };
        }
        if next_in_order?.time < time { self.in_order.pop_front() } else { None }
    }

    /// Removes the runs whose keys match. They keep their entries, without a run, until their turn. Returns
    /// the runs.
    pub(in super::super) fn remove_runs(&mut self, matches: impl Fn(&DeliveryKey) -> bool) -> Vec<Run> {
        let in_order = self.in_order.iter_mut().filter(|waiting| matches(&waiting.key));
        let mut removed: Vec<_> = in_order.filter_map(|waiting| waiting.run.take()).collect();
        // The indices stay in use until the entries are removed.
        for Reverse((_, index, _)) in self.heap.iter().filter(|Reverse((key, ..))| matches(key)) {
            removed.extend(self.runs.get_mut(*index as usize).and_then(Option::take));
        }
        removed
    }

    /// Returns the latest time of a run.
    pub(in super::super) fn latest(&self) -> Option<u64> {
        let in_order =
            self.in_order.iter().filter(|waiting| waiting.run.is_some()).map(|waiting| waiting.key.time);
        let has_run = |index: u32| self.runs.get(index as usize).is_some_and(Option::is_some);
        let heap = self.heap.iter().filter(|Reverse((_, index, _))| has_run(*index));
        in_order.chain(heap.map(|Reverse((key, ..))| key.time)).max()
    }

    #[inline(never)]
    fn pop_out_of_order(&mut self) -> Option<Waiting> {
        let Reverse((key, index, peer)) = self.heap.pop()?;
        let run = self.runs.get_mut(index as usize).and_then(Option::take);
        if index != NO_RUN {
            self.free.push(index);
        }
        Some(Waiting { key, peer, run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_ordered_by_time_then_sender_then_position() {
        let mut reorder = Reorder::default();
        let keys = [(7, 2, 1), (7, 1, 9), (5, 3, 2), (7, 2, 0), (5, 3, 1)];
        for (n, (time, sender, position)) in (0..).zip(keys) {
            let run = (n % 2 == 0).then(|| Run { time, position, data: vec![n], ends: Vec::new(), cost: 0 });
            reorder.push(DeliveryKey::new(time, ProcessId(sender), position), n.into(), run);
        }
        assert_eq!(reorder.first().map(|key| key.time), Some(5));
        let order: Vec<_> = core::iter::from_fn(|| reorder.pop_before(8))
            .map(|next| (next.peer, next.run.map(|run| run.data)))
            .collect();
        let run = |n: u8| (u32::from(n), Some(vec![n]));
        assert_eq!(order, [run(4), run(2), (1, None), (3, None), run(0)]);
    }

    #[test]
    fn removed_runs_leave_entries_without_a_run() {
        let mut reorder = Reorder::default();
        for (time, sender) in [(5, 1), (7, 1), (6, 2), (6, 1)] {
            let run = Run { time, position: 0, data: vec![time as u8], ends: Vec::new(), cost: 1 };
            reorder.push(DeliveryKey::new(time, ProcessId(sender), 0), sender, Some(run));
        }
        let removed = reorder.remove_runs(|key| key.time == 6 && key.sender == ProcessId(2) || key.time == 5);
        assert_eq!(removed.iter().map(|run| run.time).collect::<Vec<_>>(), [5, 6]);
        let left: Vec<_> =
            core::iter::from_fn(|| reorder.pop_before(9)).map(|next| next.run.is_some()).collect();
        assert_eq!(left, [false, true, false, true]);
        assert_eq!(reorder.free.len(), 2, "every index is free again");
    }

    /// Whatever the order of insertions and removals, the next entry is always the least.
    #[test]
    fn next_entry_is_the_least() {
        let mut reorder = Reorder::default();
        let mut waiting = std::collections::BTreeSet::new();
        let (mut seed, mut late) = (9u64, 0);
        for round in 0..20_000u64 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let draw = seed >> 33;
            if draw.is_multiple_of(2) || waiting.is_empty() {
                // Mostly in order, with some that arrive late
                let time = 1000 + round - if draw.is_multiple_of(7) { draw % 50 } else { 0 };
                let key = DeliveryKey::new(time, ProcessId(draw as u32 % 3), round);
                late += u32::from(waiting.last().is_some_and(|last| key < *last));
                waiting.insert(key);
                reorder.push(key, 0, None);
            } else {
                let least = waiting.pop_first();
                assert_eq!(reorder.first(), least);
                let time = least.map_or(0, |key| key.time);
                assert!(!reorder.has_before(time) && reorder.has_before(time + 1));
                assert!(reorder.pop_before(time).is_none());
                assert_eq!(reorder.pop_before(time + 1).map(|next| next.key), least);
            }
            assert_eq!(reorder.len(), waiting.len());
        }
        assert!(late > 100);
    }
}

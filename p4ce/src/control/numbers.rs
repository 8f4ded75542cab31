//! Allocation of numbers, and the ports of stations.

use crate::function::worker_of;
use core::ops::Range;
use rocev2::Qpn;
use rocev2::ethernet::{Ethernet, MacAddr};
use std::collections::{BTreeMap, VecDeque};
use switch::{Egress, Nanos, PortId};
use zerocopy::FromBytes;

/// Limit of remembered stations
const MAX_STATIONS: usize = 65_536;
/// Age up to which a station's port is used. A frame to a station with an older entry goes to all ports, in
/// case the station has moved. Shorter than the communication manager's retransmission timeout.
const FRESH_FOR: Nanos = Nanos::from_secs(2);
/// Queue pair numbers below this one are not assigned: 0 and 1 are special, and the others are reserved.
const FIRST: u32 = 16;

/// Slots, each with a number that is reused as late as possible, so that late packets to an old number match
/// nothing.
#[derive(Debug)]
pub(super) struct NumberPool {
    /// Slots of which no number was allocated yet
    fresh: Range<u32>,
    unused: VecDeque<u32>,
    /// Number of slots of all pools, by which consecutive numbers of a slot differ
    stride: u32,
    end: u32,
}

impl NumberPool {
    /// Creates a pool of all of `count` slots, with numbers below `end`.
    pub(super) fn new(count: usize, end: usize) -> Self {
        Self::of_slots(0..count as u32, count, end)
    }

    /// Creates a pool of some of `count` slots, with numbers below `end`.
    pub(super) fn of_slots(slots: Range<u32>, count: usize, end: usize) -> Self {
        Self { fresh: slots, unused: VecDeque::new(), stride: count as u32, end: end as u32 }
    }

    /// Allocates the number of a free slot.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let fresh = self.fresh.next().map(|slot| self.skip_reserved(slot));
        fresh.or_else(|| self.unused.pop_front())
    }

    /// Skips numbers that are too small, if there are others.
    fn skip_reserved(&self, number: u32) -> u32 {
        if number < FIRST && self.end > self.stride { number + self.stride.max(FIRST) } else { number }
    }

    /// Frees a slot. Its next number is a different one, if it has several.
    pub(super) fn free(&mut self, number: u32) {
        let next = number + self.stride;
        self.unused.push_back(if next < self.end { next } else { self.skip_reserved(number % self.stride) });
    }
}

/// The switch's queue pair numbers, in a pool for each worker.
#[derive(Debug)]
pub(super) struct QueuePairs {
    pools: Vec<Pool>,
    /// Number of queue pairs, a power of two
    count: usize,
}

/// Numbers of one worker.
#[derive(Debug)]
struct Pool {
    numbers: NumberPool,
    /// Groups that have some of them
    groups: usize,
}

impl QueuePairs {
    /// Creates pools for `count` queue pairs, a power of two, of which each worker has those that
    /// [`worker_of`] states.
    pub(super) fn new(count: usize, workers: usize) -> Self {
        assert!((1..=count).contains(&workers), "each worker has a queue pair");
        let first = |worker: usize| (worker * count).div_ceil(workers) as u32;
        let pool = |worker| {
            let numbers = NumberPool::of_slots(first(worker)..first(worker + 1), count, 1 << 24);
            Pool { numbers, groups: 0 }
        };
        Self { pools: (0..workers).map(pool).collect(), count }
    }

    /// Allocates the queue pairs of a group: the worker with the fewest groups that has enough of them, and their
    /// numbers.
    pub(super) fn allocate(&mut self, count: usize) -> Option<(usize, Vec<Qpn>)> {
        let mut workers: Vec<_> = (0..self.pools.len()).collect();
        workers.sort_by_key(|worker| self.pools[*worker].groups);
        workers.into_iter().find_map(|worker| Some((worker, self.allocate_at(worker, count)?)))
    }

    /// Allocates queue pairs of a group at a worker, if it has enough.
    fn allocate_at(&mut self, worker: usize, count: usize) -> Option<Vec<Qpn>> {
        let Pool { numbers, groups } = &mut self.pools[worker];
        let found: Vec<_> = (0..count).map_while(|_| numbers.allocate()).collect();
        if found.len() < count {
            for number in found {
                numbers.free(number);
            }
            return None;
        }
        *groups += 1;
        Some(found.into_iter().map(Qpn::new).collect())
    }

    /// Frees a queue pair.
    pub(super) fn free(&mut self, qpn: Qpn) {
        let worker = worker_of(qpn, self.count, self.pools.len());
        self.pools[worker].numbers.free(qpn.get());
    }

    /// Notes that a group of this worker has ended.
    pub(super) fn end_group(&mut self, worker: usize) {
        self.pools[worker].groups -= 1;
    }
}

/// Last known ports of stations.
#[derive(Debug, Default)]
pub(super) struct Stations {
    ports: BTreeMap<[u8; 6], (PortId, Nanos)>,
}

impl Stations {
    /// Learns the port of a frame's sender.
    pub(super) fn learn(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        let Ok((ethernet, _)) = Ethernet::ref_from_prefix(frame) else { return };
        let known = self.ports.contains_key(&ethernet.src.0);
        if !ethernet.src.is_group() && (known || self.ports.len() < MAX_STATIONS) {
            self.ports.insert(ethernet.src.0, (port, now));
        }
    }

    pub(super) fn port_of(&self, mac: MacAddr) -> Option<PortId> {
        self.ports.get(&mac.0).map(|(port, _)| *port)
    }

    /// Returns the port to which a frame has to be sent.
    pub(super) fn egress(&self, frame: &[u8], now: Nanos) -> Egress {
        let known = frame.first_chunk().and_then(|dst| self.ports.get::<[u8; 6]>(dst));
        let fresh = known.filter(|(_, learned_at)| now.since(*learned_at) < FRESH_FOR);
        fresh.map_or(Egress::All, |(port, _)| Egress::Port(*port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_late() {
        let mut pool = NumberPool::new(32, 100);
        let first: Vec<_> = core::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(first.len(), 32);
        assert!(first.iter().all(|number| (FIRST..100).contains(number)));
        let mut slots: Vec<_> = first.iter().map(|number| number % 32).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..32).collect::<Vec<_>>());
        let mut seen = vec![first[0]];
        for _ in 0..5 {
            let last = *seen.last().unwrap();
            pool.free(last);
            let next = pool.allocate().unwrap();
            assert_eq!(next % 32, last % 32);
            assert!((FIRST..100).contains(&next));
            seen.push(next);
        }
        assert_ne!(seen[0], seen[1]);
        // All group IDs are used, including the small ones.
        let mut ids = NumberPool::new(2, 2);
        assert_eq!((ids.allocate(), ids.allocate(), ids.allocate()), (Some(0), Some(1), None));
        ids.free(1);
        assert_eq!(ids.allocate(), Some(1));
    }

    #[test]
    fn each_worker_gets_the_numbers_that_it_owns_and_all_are_given_out() {
        for (count, workers) in [(16, 1), (16, 2), (64, 3), (64, 4), (128, 5), (1024, 7)] {
            let mut queue_pairs = QueuePairs::new(count, workers);
            let mut all = Vec::new();
            let mut groups = vec![0; workers];
            while let Some((worker, qpns)) = queue_pairs.allocate(3) {
                assert!(qpns.iter().all(|qpn| worker_of(*qpn, count, workers) == worker));
                groups[worker] += 1;
                all.extend(qpns);
            }
            let least = groups.iter().min().unwrap();
            assert!(groups.iter().all(|groups| groups - least <= 1), "{groups:?}");
            assert!(all.len() > count - 3 * workers, "{} of {count}", all.len());
            let mut slots: Vec<_> = all.iter().map(|qpn| qpn.get() as usize % count).collect();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), all.len());
            // A group that ends makes room at its worker, whose next group gets other numbers.
            let worker = worker_of(all[0], count, workers);
            for qpn in &all[..3] {
                queue_pairs.free(*qpn);
            }
            queue_pairs.end_group(worker);
            let (again, qpns) = queue_pairs.allocate(3).expect("three queue pairs are free");
            assert_eq!(again, worker);
            assert!(qpns.iter().all(|qpn| !all.contains(qpn)));
        }
    }
}

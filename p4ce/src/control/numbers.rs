//! Allocation of numbers, and the ports of stations.

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
    unused: VecDeque<u32>,
    /// Number of slots, by which consecutive numbers of a slot differ
    count: u32,
    end: u32,
    allocated: u32,
}

impl NumberPool {
    /// Creates `count` slots with numbers below `end`.
    pub(super) fn new(count: usize, end: usize) -> Self {
        Self { unused: VecDeque::new(), count: count as u32, end: end as u32, allocated: 0 }
    }

    /// Allocates the number of a free slot.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        if self.allocated < self.count {
            self.allocated += 1;
            return Some(self.skip_reserved(self.allocated - 1));
        }
        self.unused.pop_front()
    }

    /// Skips numbers that are too small, if there are others.
    fn skip_reserved(&self, number: u32) -> u32 {
        if number < FIRST && self.end > self.count { number + self.count.max(FIRST) } else { number }
    }

    /// Frees a slot. Its next number is a different one, if it has several.
    pub(super) fn free(&mut self, number: u32) {
        let next = number + self.count;
        self.unused.push_back(if next < self.end { next } else { self.skip_reserved(number % self.count) });
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
}

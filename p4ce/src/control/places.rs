//! Allocation of numbers, and the ports of stations.

use rocev2::ethernet::{Ethernet, MacAddr};
use std::collections::{BTreeMap, VecDeque};
use switch::{Egress, Nanos, PortId};
use zerocopy::FromBytes;

/// Limit of remembered stations
const MAX_STATIONS: usize = 65_536;
/// Age up to which a station's port is used. A frame to a station with an older entry goes to all ports, in
/// case the station has moved. Shorter than the communication manager's retransmission timeout.
const KNOWN_FOR: Nanos = Nanos::from_secs(2);
/// Queue pair numbers below this one are not assigned: 0 and 1 are special, and the others are reserved.
const FIRST: u32 = 16;

/// Slots, each with a number that is reused as late as possible, so that late packets to an old number match
/// nothing.
#[derive(Debug)]
pub(super) struct Places {
    free: VecDeque<u32>,
    /// Number of slots; consecutive numbers of a slot differ by it.
    count: u32,
    end: u32,
    begun: u32,
}

impl Places {
    /// Creates `count` slots with numbers below `end`.
    pub(super) fn new(count: usize, end: usize) -> Self {
        Self { free: VecDeque::new(), count: count as u32, end: end as u32, begun: 0 }
    }

    /// Allocates the number of a free slot.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.begun < self.count {
            self.begun += 1;
            return Some(self.at_least(self.begun - 1));
        }
        self.free.pop_front()
    }

    /// Skips numbers that are too small, if there are others.
    fn at_least(&self, number: u32) -> u32 {
        if number < FIRST && self.end > self.count { number + self.count.max(FIRST) } else { number }
    }

    /// Frees a slot. Its next number is a different one, if it has several.
    pub(super) fn give_back(&mut self, number: u32) {
        let next = number + self.count;
        self.free.push_back(if next < self.end { next } else { self.at_least(number % self.count) });
    }
}

/// Last known ports of stations.
#[derive(Debug, Default)]
pub(super) struct Stations {
    ports: BTreeMap<[u8; 6], (PortId, Nanos)>,
}

impl Stations {
    /// Learns the port of a frame's sender.
    pub(super) fn hear(&mut self, frame: &[u8], port: PortId, now: Nanos) {
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
        let lately = known.filter(|(_, heard)| now.since(*heard) < KNOWN_FOR);
        lately.map_or(Egress::All, |(port, _)| Egress::Port(*port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_late() {
        let mut places = Places::new(32, 100);
        let first: Vec<_> = core::iter::from_fn(|| places.take()).collect();
        assert_eq!(first.len(), 32);
        assert!(first.iter().all(|number| (FIRST..100).contains(number)));
        let mut slots: Vec<_> = first.iter().map(|number| number % 32).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..32).collect::<Vec<_>>());
        let mut seen = vec![first[0]];
        for _ in 0..5 {
            let last = *seen.last().unwrap();
            places.give_back(last);
            let next = places.take().unwrap();
            assert_eq!(next % 32, last % 32);
            assert!((FIRST..100).contains(&next));
            seen.push(next);
        }
        assert_ne!(seen[0], seen[1]);
        // All group IDs are used, including the small ones.
        let mut ids = Places::new(2, 2);
        assert_eq!((ids.take(), ids.take(), ids.take()), (Some(0), Some(1), None));
        ids.give_back(1);
        assert_eq!(ids.take(), Some(1));
    }
}

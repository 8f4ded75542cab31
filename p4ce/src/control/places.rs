//! Numbers that are given and given back, and where stations are.

use rocev2::ethernet::{Ethernet, MacAddr};
use std::collections::{BTreeMap, VecDeque};
use switch::{Egress, Nanos, PortId};
use zerocopy::FromBytes;

/// Stations that are remembered at most
const MAX_STATIONS: usize = 65_536;
/// How long a station is known to be at the port where it was heard: a frame for one not heard since goes to all ports, in case
/// it has moved. Shorter than the communication manager waits before it repeats a message.
const KNOWN_FOR: Nanos = Nanos::from_secs(2);
/// Queue pair numbers below this are not given: 0 and 1 have a meaning, and the rest of the first ones is kept.
const FIRST: u32 = 16;

/// Places, each with a number that is used again as late as possible: what is still under way to an old one finds nobody.
#[derive(Debug)]
pub(super) struct Places {
    free: VecDeque<u32>,
    /// Numbers of a place are so far apart.
    count: u32,
    end: u32,
    begun: u32,
}

impl Places {
    /// `count` places; numbers below `end`.
    pub(super) fn new(count: usize, end: usize) -> Self {
        Self { free: VecDeque::new(), count: count as u32, end: end as u32, begun: 0 }
    }

    /// The number of a free place
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.begun < self.count {
            self.begun += 1;
            return Some(self.at_least(self.begun - 1));
        }
        self.free.pop_front()
    }

    /// Numbers that are too small, where there are others, are passed over.
    fn at_least(&self, number: u32) -> u32 {
        if number < FIRST && self.end > self.count { number + self.count.max(FIRST) } else { number }
    }

    /// The place is free; its next number is another one, if there are several.
    pub(super) fn give_back(&mut self, number: u32) {
        let next = number + self.count;
        self.free.push_back(if next < self.end { next } else { self.at_least(number % self.count) });
    }
}

/// Where stations were heard last.
#[derive(Debug, Default)]
pub(super) struct Stations {
    ports: BTreeMap<[u8; 6], (PortId, Nanos)>,
}

impl Stations {
    /// A frame came in.
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

    /// Where a frame has to go.
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
    fn numbers_come_again_late() {
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
        // Ids are all there are.
        let mut ids = Places::new(2, 2);
        assert_eq!((ids.take(), ids.take(), ids.take()), (Some(0), Some(1), None));
        ids.give_back(1);
        assert_eq!(ids.take(), Some(1));
    }
}

//! MAC address table of a learning bridge (IEEE 802.1D 7.8, 7.9).

use super::config::MacTable;
use super::{Event, addresses};
use crate::table::{Index, Key, Salt};
use crate::{DropReason, Nanos, PortId, Verdict};
use rocev2::ethernet::MacAddr;
use std::collections::VecDeque;

impl Key for MacAddr {
    #[inline]
    fn hash(&self) -> u64 {
        self.to_u64()
    }
}

/// Maximum count of events that wait for the control plane. While the queue is full, no station is learnt;
/// the station's next frame tries again.
const EVENT_CAPACITY: usize = 64;
/// Count of entries that one call of [`age`](Stations::age) examines
const AGED_PER_CALL: u32 = 128;

/// The port of each station.
pub(super) struct Stations {
    index: Index<MacAddr>,
    /// Entries by the index's ID
    entries: Vec<Entry>,
    ageing: Nanos,
    /// Next ID to examine for its age
    next_aged: u32,
    /// Time of the next examination
    pub(super) next_ageing: Nanos,
    /// `None` if events are disabled
    events: Option<VecDeque<Event>>,
}

#[derive(Clone, Copy)]
struct Entry {
    port: PortId,
    last_seen: Nanos,
    last_reported: Nanos,
    /// Whether the port was reported at all
    is_reported: bool,
    fixed: bool,
}

impl Stations {
    pub(super) fn new(table: &MacTable, report: bool) -> Self {
        let capacity = table.capacity + table.fixed.len();
        let unused = Entry {
            port: PortId(0),
            last_seen: Nanos::ZERO,
            last_reported: Nanos::ZERO,
            is_reported: false,
            fixed: false,
        };
        let mut stations = Self {
            index: Index::with_capacity(capacity),
            entries: vec![unused; capacity],
            ageing: table.ageing,
            next_aged: 0,
            next_ageing: Nanos::ZERO,
            events: report.then(|| VecDeque::with_capacity(EVENT_CAPACITY)),
        };
        for &(mac, port) in &table.fixed {
            if let Ok(id) = stations.index.get_or_insert(mac) {
                stations.entries[id as usize] = Entry { port, fixed: true, ..unused };
            }
        }
        stations
    }

    /// Salts the hashes of stations' addresses, including those already in the table.
    pub(super) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
    }

    /// Learns the sender and returns the verdict; `None` if the frame is to be flooded.
    #[inline]
    pub(super) fn route(&mut self, bytes: &[u8], port: PortId, now: Nanos) -> Option<Verdict> {
        let (src, dst) = addresses(bytes)?;
        self.observe(src, port, now);
        if let [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f] = dst.0 {
            return Some(Verdict::Drop(DropReason::LinkLocal));
        }
        if dst.is_group() {
            return None;
        }
        match self.entries[self.index.get(&dst)? as usize].port {
            to if to == port => Some(Verdict::Drop(DropReason::SamePort)),
            to => Some(Verdict::Forward(to)),
        }
    }

    /// Learns a station that this worker has seen, whether or not there is room for an event; if there is none, the
    /// station's next frame is reported.
    pub(super) fn observe(&mut self, mac: MacAddr, port: PortId, now: Nanos) {
        if mac.is_group() {
            return;
        }
        if let Some(id) = self.index.get(&mac) {
            let entry = &mut self.entries[id as usize];
            // Other workers learn about a station only through events. An event every quarter of the ageing
            // time keeps their entries alive.
            let reported_recently = entry.is_reported
                && entry.port == port
                && now.since(entry.last_reported) < Nanos(self.ageing.0 / 4);
            if entry.fixed || reported_recently {
                entry.last_seen = now;
                return;
            }
        }
        let Some(id) = self.insert(mac, port, now) else { return };
        match &mut self.events {
            Some(events) if events.len() >= EVENT_CAPACITY => self.entries[id as usize].is_reported = false,
            Some(events) => events.push_back(Event::Learned(mac, port, now)),
            None => {}
        }
    }

    /// Returns the port on which a station was last seen.
    pub(super) fn find(&self, mac: MacAddr) -> Option<PortId> {
        self.index.get(&mac).map(|id| self.entries[id as usize].port)
    }

    /// Learns a station that another worker saw at `seen`, unless it was seen on another port since. All workers then
    /// agree, whatever the order in which they learn it.
    pub(super) fn learn(&mut self, mac: MacAddr, port: PortId, seen: Nanos) {
        if let Some(id) = self.index.get(&mac) {
            let entry = &mut self.entries[id as usize];
            if (entry.last_seen, entry.port) > (seen, port) {
                return;
            }
        }
        self.insert(mac, port, seen);
    }

    /// Inserts or updates an entry, and returns its index; `None` if there was no room.
    fn insert(&mut self, mac: MacAddr, port: PortId, now: Nanos) -> Option<u32> {
        let Ok(id) = self.index.get_or_insert(mac) else { return None };
        let entry = &mut self.entries[id as usize];
        if !entry.fixed {
            *entry = Entry { port, last_seen: now, last_reported: now, is_reported: true, fixed: false };
        }
        Some(id)
    }

    /// Removes stations that have sent nothing for the ageing time; examines some entries per call.
    pub(super) fn age(&mut self, now: Nanos) {
        let ids = self.index.ids();
        for _ in 0..AGED_PER_CALL.min(ids) {
            self.next_aged = (self.next_aged + 1) % ids;
            let entry = self.entries[self.next_aged as usize];
            if !entry.fixed
                && now.since(entry.last_seen) >= self.ageing
                && let Some(&mac) = self.index.key(self.next_aged)
            {
                self.index.remove(&mac);
            }
        }
        // The whole table is examined once in a quarter of the ageing time.
        let calls = ids.div_ceil(AGED_PER_CALL).max(1);
        self.next_ageing = now + Nanos((self.ageing.0 / 4 / u64::from(calls)).max(1));
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.events.as_mut()?.pop_front()
    }
}

//! Table of queue pairs. A packet to a known queue pair touches one slot of the hash table and one cache line
//! of the queue pair: its key, its counters, and what its next packet is expected to be.

use super::counters::HostQp;
use super::health::{MAX_JUMP, QpHealth, expected_psn};
use crate::Full;
use crate::counters::FrameCounter;
use crate::metrics;
use crate::metrics::{Group, Metric, Metrics, concat};
use crate::table::{Salt, Slots};
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rocev2::{Packet, Psn, Qpn};

/// No number: neither a QPN, nor a PSN, nor the ID of a queue pair
pub(super) const NONE: u32 = u32::MAX;
/// No PSN, because the queue pair at the other end is not known
pub(super) const SEARCHED: u32 = NONE - 1;

/// A number with one writing thread
#[derive(Debug)]
pub(super) struct Word(AtomicU32);

impl Word {
    const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A queue pair: what every packet to it needs, in one cache line. Written by one worker.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct QueuePair {
    address: [AtomicU64; 2],
    packets: FrameCounter,
    /// Time at which the request in `sample` was seen, in nanoseconds
    pub(super) sampled_at: AtomicU64,
    /// QPN, which is written last; [`NONE`] if the entry is not in use
    qpn: AtomicU32,
    /// Position of the request that is new and continues the sequence; [`NONE`] if every request has to be
    /// judged
    pub(super) expected: Word,
    /// PSN of a request in the other direction of the connection whose response is timed, or [`NONE`]; [`SEARCHED`]
    /// as long as there is no `peer`, so that an ACK is compared with one word
    pub(super) sample: Word,
    /// The queue pair at the other end of the connection, or [`NONE`]
    pub(super) peer: Word,
    /// PSN behind the latest response, or [`NONE`]; with a mark if its message goes on
    pub(super) responded: Word,
}

const _: () = assert!(size_of::<QueuePair>() == 64, "a queue pair has one cache line");

impl QueuePair {
    fn unused() -> Self {
        Self {
            address: Default::default(),
            packets: FrameCounter::default(),
            sampled_at: AtomicU64::new(0),
            qpn: AtomicU32::new(NONE),
            expected: Word::new(NONE),
            sample: Word::new(SEARCHED),
            peer: Word::new(NONE),
            responded: Word::new(NONE),
        }
    }

    fn set_key(&self, key: HostQp) {
        for (word, value) in self.address.iter().zip(key.address()) {
            word.store(value, Ordering::Relaxed);
        }
        self.qpn.store(key.qpn().get(), Ordering::Release);
    }

    /// Returns the key of an entry that is in use.
    pub(super) fn key(&self) -> Option<HostQp> {
        let qpn = self.qpn.load(Ordering::Acquire);
        let address = || [0, 1].map(|at: usize| self.address[at].load(Ordering::Relaxed));
        (qpn != NONE).then(|| HostQp::of_words(address(), Qpn::new(qpn)))
    }

    /// Returns the lower word of the host's address.
    #[inline]
    pub(super) fn low_address(&self) -> u64 {
        self.address[1].load(Ordering::Relaxed)
    }

    #[inline]
    fn is(&self, key: &HostQp) -> bool {
        let [high, low] = key.address();
        self.qpn.load(Ordering::Relaxed) == key.qpn().get()
            && self.address[1].load(Ordering::Relaxed) == low
            && self.address[0].load(Ordering::Relaxed) == high
    }
}

/// Packets by destination queue pair, in the order of the first packet of each. Read by any thread.
#[derive(Debug)]
pub struct QpCounters {
    pub(super) entries: Box<[QueuePair]>,
    /// Health of each queue pair; empty if it is not observed
    pub(super) health: Box<[QpHealth]>,
    /// Packets to queue pairs beyond those with counters of their own
    pub others: FrameCounter,
}

metrics! {
    /// Packets to one queue pair.
    #[derive(Debug, Default)]
    struct QpTraffic of queue_pair by [host, qpn] {
        packets: FrameCounter { frames: [frames], bytes: [bytes] },
    }
}

/// Counters of one queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpCounter<'a> {
    /// Address of the host
    pub host: IpAddr,
    /// Number of the queue pair
    pub qpn: Qpn,
    /// RoCEv2 packets to the queue pair, before the function rewrites them
    pub packets: &'a FrameCounter,
    /// Health, if it is observed
    pub health: Option<&'a QpHealth>,
    /// Where the sequence of requests is now, if there is one: PSN of the next
    pub(super) next: Option<u32>,
}

impl QpCounter<'_> {
    /// Returns whether the workers that counted this and `other` received parts of the same packets to a queue
    /// pair, so that neither knows which are missing.
    pub fn shares_sequence_with(&self, other: &Self) -> bool {
        let (Some(a), Some(b)) = (self.next, other.next) else { return false };
        Psn::new(a).distance(Psn::new(b)).unsigned_abs() <= MAX_JUMP
    }

    const FIELDS: [&'static [Metric]; 1 + QpHealth::FIELDS.len()] =
        concat(QpTraffic::GROUP.fields, &QpHealth::FIELDS);
    /// Metrics of a queue pair: packets, bytes, those of [`Health`](super::health::Health), round-trip times
    pub const GROUP: Group = Group { fields: &Self::FIELDS, ..QpTraffic::GROUP };
}

impl Metrics for QpCounter<'_> {
    const GROUP: Group = Self::GROUP;

    fn values(&self) -> Vec<u64> {
        let (frames, bytes) = self.packets.get();
        let health = || Some([self.health?.packets.values(), self.health?.round_trips.values()].concat());
        let none = || vec![0; QpHealth::FIELDS.iter().map(|field| field.len()).sum()];
        [vec![frames, bytes], health().unwrap_or_else(none)].concat()
    }
}

impl QpCounters {
    pub(super) fn new(count: usize, health: bool) -> Self {
        Self {
            entries: (0..count).map(|_| QueuePair::unused()).collect(),
            health: (0..if health { count } else { 0 }).map(|_| QpHealth::default()).collect(),
            others: FrameCounter::default(),
        }
    }

    #[inline]
    fn is(&self, id: u32, key: &HostQp) -> bool {
        self.entries.get(id as usize).is_some_and(|entry| entry.is(key))
    }

    /// Returns the queue pairs seen so far.
    pub fn iter(&self) -> impl Iterator<Item = QpCounter<'_>> {
        self.entries.iter().enumerate().map_while(|(id, entry)| {
            let key = entry.key()?;
            let next = Some(entry.expected.get()).filter(|&next| next != NONE).map(expected_psn);
            let (host, qpn, health) = (key.host(), key.qpn(), self.health.get(id));
            Some(QpCounter { host, qpn, packets: &entry.packets, health, next })
        })
    }
}

/// IDs of queue pairs by their key, which is in [`QpCounters`].
#[derive(Debug)]
pub(super) struct QpIndex {
    slots: Slots,
    count: u32,
}

impl QpIndex {
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: Slots::new(capacity, Salt::FIXED), count: 0 }
    }

    /// Returns the memory of an index for `capacity` queue pairs, and of their counters without their health, in
    /// bytes.
    pub(super) fn bytes(capacity: usize) -> usize {
        Slots::bytes(capacity) + capacity * size_of::<QueuePair>()
    }

    /// Hashes with `salt`. No queue pair may have been added.
    pub(super) fn set_salt(&mut self, salt: Salt) {
        self.slots.clear(salt);
    }

    /// Counts a packet to `key`. Returns the queue pair's ID, or `None` if the table is full.
    #[expect(
        clippy::inline_always,
        reason = "the call costs 24 instructions a frame; the caller exists in two copies"
    )]
    #[inline(always)]
    pub(super) fn count<'a>(
        &mut self,
        counters: &'a QpCounters,
        key: HostQp,
        len: usize,
    ) -> Option<(u32, &'a QueuePair)> {
        let hash = self.slots.hash(&key);
        // Most keys are in the first slot of their search.
        if let Some(id) = self.slots.first(hash)
            && let Some(entry) = counters.entries.get(id as usize)
            && entry.is(&key)
        {
            entry.packets.count(len);
            return Some((id, entry));
        }
        let [high, low] = key.address();
        self.search(counters, high, low, key.qpn(), len)
    }

    /// Counts a packet to a queue pair that is not in the first slot of its search, and adds it if there is room for
    /// it. Takes the parts of its key, which the caller need not store for that.
    #[inline(never)]
    fn search<'a>(
        &mut self,
        counters: &'a QpCounters,
        high: u64,
        low: u64,
        qpn: Qpn,
        len: usize,
    ) -> Option<(u32, &'a QueuePair)> {
        let found = self.find_or_add(counters, HostQp::of_words([high, low], qpn)).ok();
        let found = found.and_then(|id| Some((id, counters.entries.get(id as usize)?)));
        match found {
            Some((_, entry)) => entry.packets.count(len),
            None => counters.others.count(len),
        }
        found
    }

    /// Returns the ID of a queue pair, which is added if there is room for it.
    pub(super) fn find_or_add(&mut self, counters: &QpCounters, key: HostQp) -> Result<u32, Full> {
        let hash = self.slots.hash(&key);
        let found = self.slots.find(hash, |id| counters.is(id, &key));
        found.map_or_else(|| self.add(counters, key, hash), |(id, _)| Ok(id))
    }

    /// Adds a queue pair. Called once for each.
    #[cold]
    fn add(&mut self, counters: &QpCounters, key: HostQp, hash: u64) -> Result<u32, Full> {
        let entry = counters.entries.get(self.count as usize).ok_or(Full)?;
        let slot = self.slots.free_slot(hash)?;
        self.slots.fill(slot, hash, self.count);
        entry.set_key(key);
        self.count += 1;
        Ok(self.count - 1)
    }
}

/// Returns the address of the host that sent a packet, in the words of a [`HostQp`].
pub(super) fn source(packet: &Packet<'_>) -> [u64; 2] {
    HostQp::new(packet.src(), Qpn::new(0)).address()
}

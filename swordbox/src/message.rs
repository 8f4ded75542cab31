//! Target addresses of the Middle and Last packets of WRITEs, which have no RETH: tracked from the First
//! packet of each message.

use crate::address::bits_of;
use crate::op::memory_of;
use core::net::IpAddr;
use rocev2::{Packet, Psn, Qpn};
use switch::Nanos;
use switch::table::mix;

/// Length of the longest message in PSNs: 2 GiB at a path MTU of 256 bytes
pub(crate) const LONGEST: u32 = 1 << 23;
/// WRITEs that are tracked for each queue pair
const KNOWN: usize = 8;
/// Slots for queue pairs without a tracked connection
const SLOTS: usize = 1 << 10;

/// RDMA WRITE of several packets
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    first: Psn,
    /// Length in PSNs; 0 in a free slot
    count: u32,
    va: u64,
    /// Payload of each packet but the Last, in bytes
    packet: u16,
}

const FREE: Message = Message { first: Psn::ZERO, count: 0, va: 0, packet: 0 };

impl Message {
    /// Parses the First packet of a WRITE. Returns `None` without a RETH.
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        let (va, _, len) = memory_of(packet)?;
        let payload = packet.payload().len() as u16;
        let count = if payload == 0 { 1 } else { len.div_ceil(payload.into()).clamp(1, LONGEST - 1) };
        Some(Self { first: packet.bth().psn(), count, va, packet: payload })
    }

    /// Returns the address that the Middle or Last packet with this PSN writes to, if it belongs to this
    /// message.
    fn va_of(&self, psn: Psn) -> Option<u64> {
        let before = u32::try_from(psn.distance(self.first)).ok().filter(|n| (1..self.count).contains(n))?;
        Some(self.va.saturating_add(u64::from(before) * u64::from(self.packet)))
    }
}

/// Latest WRITEs of several packets to one queue pair. A forged First packet can only enlarge the range that
/// a packet may write to: packets before the end of an evicted message may write anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongWrites {
    known: [Message; KNOWN],
    /// Slot of the next message
    next: u8,
    /// Latest end of an evicted message
    evicted_end: Option<Psn>,
}

impl LongWrites {
    pub(crate) const NONE: Self = Self { known: [FREE; KNOWN], next: 0, evicted_end: None };

    /// Tracks a WRITE whose First packet is forwarded.
    pub(crate) fn begin(&mut self, message: Message) {
        if self.known.contains(&message) {
            return;
        }
        let oldest = core::mem::replace(&mut self.known[usize::from(self.next)], message);
        if oldest.count > 0 {
            let end = oldest.first.add(oldest.count);
            self.evicted_end = Some(self.evicted_end.map_or(end, |evicted| evicted.later(end)));
        }
        self.next = (self.next + 1) % KNOWN as u8;
    }

    /// Truncates all messages at the PSN of the next request. The server must have executed everything before
    /// it.
    pub(crate) fn end_at(&mut self, psn: Psn) {
        for message in &mut self.known {
            message.count = message.count.min(u32::try_from(psn.distance(message.first)).unwrap_or(0));
        }
        self.evicted_end = self.evicted_end.map(|end| if psn.precedes(end) { psn } else { end });
    }

    /// Returns only the newest message, for the planted bug `EarlierMessage`.
    pub(crate) fn newest_only(&self) -> Self {
        let newest = self.known[(usize::from(self.next) + KNOWN - 1) % KNOWN];
        let mut only = Self::NONE;
        only.begin(newest);
        only
    }

    /// Returns the address and the length in bytes of the range that a Middle or Last packet may write to;
    /// `None` if that is unknown.
    pub(crate) fn memory_of(&self, psn: Psn, len: usize) -> Option<(u64, u64)> {
        if self.evicted_end.is_some_and(|end| psn.precedes(end)) {
            return None;
        }
        let addresses = self.known.iter().filter_map(|message| message.va_of(psn));
        let (from, to) = addresses.fold((u64::MAX, 0), |(from, to), va| (from.min(va), to.max(va)));
        (from <= to).then(|| (from, (to - from).saturating_add(len as u64)))
    }
}

/// Long WRITEs to queue pairs without a tracked connection: a direct-mapped table
#[derive(Debug)]
pub(crate) struct Untracked {
    slots: Box<[Option<Slot>]>,
}

/// Source address, destination address and destination queue pair
type Requester = (IpAddr, IpAddr, Qpn);

#[derive(Clone, Copy, Debug)]
struct Slot {
    requester: Requester,
    writes: LongWrites,
    /// When the latest WRITE began
    at: Nanos,
}

impl Untracked {
    pub(crate) fn new() -> Self {
        Self { slots: vec![None; SLOTS].into() }
    }

    fn find(packet: &Packet<'_>) -> (Requester, usize) {
        let requester = (packet.src(), packet.dst(), packet.bth().dest_qp());
        let hosts = bits_of(requester.0) ^ bits_of(requester.1).rotate_left(32);
        let slot = mix((hosts >> 64) as u64 ^ hosts as u64 ^ u64::from(requester.2.get()));
        (requester, slot as usize % SLOTS)
    }

    /// Tracks a WRITE whose First packet is forwarded. A slot stays with its requester until the requester
    /// has begun no WRITE for `idle`. Otherwise another host could evict it, and then forge First packets in
    /// its name.
    pub(crate) fn begin(&mut self, packet: &Packet<'_>, message: Message, now: Nanos, idle: Nanos) {
        let (requester, slot) = Self::find(packet);
        let slot = &mut self.slots[slot];
        if slot.is_some_and(|slot| slot.requester != requester && now.since(slot.at) <= idle) {
            return;
        }
        let slot = match slot {
            Some(slot) if slot.requester == requester => slot,
            _ => slot.insert(Slot { requester, writes: LongWrites::NONE, at: now }),
        };
        slot.writes.begin(message);
        slot.at = now;
    }

    /// Returns the tracked WRITEs of a packet's requester.
    pub(crate) fn of(&self, packet: &Packet<'_>) -> Option<&LongWrites> {
        let (requester, slot) = Self::find(packet);
        self.slots[slot].as_ref().filter(|slot| slot.requester == requester).map(|slot| &slot.writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(first: u32, va: u64, len: u32) -> Message {
        Message { first: Psn::new(first), count: len.div_ceil(256), va, packet: 256 }
    }

    fn psn(psn: u32) -> Psn {
        Psn::new(psn)
    }

    #[test]
    fn middle_and_last_packets_get_addresses_from_their_first_packet() {
        let mut writes = LongWrites::NONE;
        assert_eq!(writes.memory_of(psn(1), 256), None);
        writes.begin(message(0, 0x1000, 1024));
        assert_eq!(writes.memory_of(psn(0), 256), None, "a First packet carries its address");
        assert_eq!(writes.memory_of(psn(3), 200), Some((0x1300, 200)));
        assert_eq!(writes.memory_of(psn(4), 256), None);
        writes.begin(message(6, 0x9000, 512));
        assert_eq!(writes.memory_of(psn(7), 256), Some((0x9100, 256)));
        assert_eq!(writes.memory_of(psn(1), 256), Some((0x1100, 256)));
        assert_eq!(writes.memory_of(psn(5), 256), None, "the PSN is between the two WRITEs");
    }

    #[test]
    fn packets_of_an_evicted_write_may_write_anywhere() {
        let mut writes = LongWrites::NONE;
        for n in 0..=KNOWN as u32 {
            writes.begin(message(4 * n, 0x1000, 1024));
        }
        assert_eq!(writes.memory_of(psn(1), 256), None);
        // Its First packet is repeated, and evicts another message.
        writes.begin(message(0, 0x1000, 1024));
        assert_eq!(writes.memory_of(psn(1), 256), None);
        assert_eq!(writes.memory_of(psn(4 * KNOWN as u32 + 1), 256), Some((0x1100, 256)));
        // A forged First packet far ahead, and one that covers the evicted WRITE
        for (first, va) in [(0x60_0000, 0x9000), (0, 0x8000)] {
            writes.begin(message(first, va, 4096));
        }
        assert_eq!(writes.memory_of(psn(1), 256), None);
    }

    #[test]
    fn forged_first_packets_only_enlarge_the_range() {
        let forged = [(103, 0x9_0000), (110, 0x8_0000), (0x80_0063, 0x7_0000), (0, 0), (101, 0x6_0000)];
        for most in 1..=10 {
            let mut writes = LongWrites::NONE;
            writes.begin(message(100, 0x1000, 4096));
            for (n, (first, va)) in (0..most).zip(forged.iter().cycle()) {
                writes.begin(message(first + n / 5, *va, 1 << 30));
            }
            if let Some((from, len)) = writes.memory_of(psn(105), 256) {
                assert!(from <= 0x1500 && from + len >= 0x1600, "{most}: {from:x} {len:x}");
            }
            // The next request in order bounds the forged messages.
            writes.end_at(psn(116));
            writes.begin(message(116, 0x3000, 512));
            assert_eq!(writes.memory_of(psn(117), 256), Some((0x3100, 256)), "{most}");
        }
    }

    #[test]
    fn writes_are_tracked_across_the_psn_wrap() {
        let mut writes = LongWrites::NONE;
        writes.begin(message(0xff_fffe, 0x1000, 1024));
        writes.begin(message(2, 0x9000, 512));
        assert_eq!(writes.memory_of(psn(1), 256), Some((0x1300, 256)));
        assert_eq!(writes.memory_of(psn(3), 256), Some((0x9100, 256)));
    }
}

//! Where packets behind the first of a WRITE write: they name no address.

use crate::function::bits_of;
use crate::op::memory_of;
use core::net::IpAddr;
use rocev2::{Packet, Psn, Qpn};
use switch::Nanos;
use switch::table::mix;

/// PSNs of the longest message: 2 GiB at the least path MTU
pub(crate) const LONGEST: u32 = 1 << 23;
/// WRITEs of one queue pair that are known at once
const KNOWN: usize = 8;
/// What is farther behind the newest WRITE, in PSNs, does not come again
const LONG_AGO: i32 = 1 << 22;
/// Places for queue pairs without a tracked connection
const PLACES: usize = 1 << 10;

/// A WRITE of several packets
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    first: Psn,
    /// PSNs that it takes; 0 in a place that is free
    count: u32,
    va: u64,
    /// Payload of each packet but the last, in bytes
    packet: u16,
}

const FREE: Message = Message { first: Psn::ZERO, count: 0, va: 0, packet: 0 };

impl Message {
    /// Reads the first packet of a WRITE.
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        let (va, _, len) = memory_of(packet)?;
        let payload = packet.payload().len() as u16;
        let count = if payload == 0 { 1 } else { len.div_ceil(payload.into()).clamp(1, LONGEST - 1) };
        Some(Self { first: packet.bth().psn(), count, va, packet: payload })
    }

    /// Returns where its packet with this PSN writes, if that is one of those behind the first.
    fn place_of(&self, psn: Psn) -> Option<u64> {
        let before = u32::try_from(psn.distance(self.first)).ok().filter(|n| (1..self.count).contains(n))?;
        Some(self.va.saturating_add(u64::from(before) * u64::from(self.packet)))
    }
}

/// The latest WRITEs of several packets to one queue pair. Forged first packets add memory to what a packet may write to; they take
/// none away, since a packet of a WRITE that is forgotten may write anywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongWrites {
    known: [Message; KNOWN],
    /// The place of the next one
    next: u8,
    /// Those that are forgotten end before this
    forgotten: Option<Psn>,
}

impl LongWrites {
    pub(crate) const NONE: Self = Self { known: [FREE; KNOWN], next: 0, forgotten: None };

    /// Notes down a WRITE whose first packet passes.
    pub(crate) fn begin(&mut self, message: Message) {
        if self.known.contains(&message) {
            return;
        }
        self.forgotten.take_if(|end| message.first.distance(*end) > LONG_AGO);
        let oldest = core::mem::replace(&mut self.known[usize::from(self.next)], message);
        if oldest.count > 0 {
            let end = oldest.first.add(oldest.count);
            self.forgotten = Some(self.forgotten.map_or(end, |forgotten| forgotten.later(end)));
        }
        self.next = (self.next + 1) % KNOWN as u8;
    }

    /// Ends all WRITEs: the server has everything before this PSN, which is that of the next request.
    pub(crate) fn end_at(&mut self, psn: Psn) {
        for message in &mut self.known {
            message.count = message.count.min(u32::try_from(psn.distance(message.first)).unwrap_or(0));
        }
        self.forgotten = self.forgotten.map(|end| if psn.precedes(end) { psn } else { end });
    }

    #[cfg(feature = "canary")]
    pub(crate) fn newest_only(&self) -> Self {
        let newest = self.known[(usize::from(self.next) + KNOWN - 1) % KNOWN];
        let mut only = Self::NONE;
        only.begin(newest);
        only
    }

    /// Returns what a packet behind the first of a WRITE may write to: where it begins, and bytes. Nothing if it may be anywhere.
    pub(crate) fn memory_of(&self, psn: Psn, len: usize) -> Option<(u64, u64)> {
        if self.forgotten.is_some_and(|end| psn.precedes(end)) {
            return None;
        }
        let places = self.known.iter().filter_map(|message| message.place_of(psn));
        let (from, to) = places.fold((u64::MAX, 0), |(from, to), va| (from.min(va), to.max(va)));
        (from <= to).then(|| (from, (to - from).saturating_add(len as u64)))
    }
}

/// The WRITEs of queue pairs without a tracked connection, as far as there is room for them
#[derive(Debug)]
pub(crate) struct Untracked {
    places: Box<[Option<Place>]>,
}

/// A host, and the queue pair to which it sends
type Requester = (IpAddr, IpAddr, Qpn);

#[derive(Clone, Copy, Debug)]
struct Place {
    requester: Requester,
    writes: LongWrites,
    /// When the latest one began
    at: Nanos,
}

impl Untracked {
    pub(crate) fn new() -> Self {
        Self { places: vec![None; PLACES].into() }
    }

    fn find(packet: &Packet<'_>) -> (Requester, usize) {
        let requester = (packet.src(), packet.dst(), packet.bth().dest_qp());
        let hosts = bits_of(requester.0) ^ bits_of(requester.1).rotate_left(32);
        let place = mix((hosts >> 64) as u64 ^ hosts as u64 ^ u64::from(requester.2.get()));
        (requester, place as usize % PLACES)
    }

    /// Notes down a WRITE whose first packet passes. A place belongs to one requester until that has begun none for so long: others
    /// could otherwise have it forgotten, and forge first packets in its name.
    pub(crate) fn begin(&mut self, packet: &Packet<'_>, message: Message, now: Nanos, idle: Nanos) {
        let (requester, place) = Self::find(packet);
        let place = &mut self.places[place];
        if place.is_some_and(|place| place.requester != requester && now.since(place.at) <= idle) {
            return;
        }
        let place = match place {
            Some(place) if place.requester == requester => place,
            _ => place.insert(Place { requester, writes: LongWrites::NONE, at: now }),
        };
        place.writes.begin(message);
        place.at = now;
    }

    /// Returns the WRITEs of a packet's sender to its queue pair.
    pub(crate) fn of(&self, packet: &Packet<'_>) -> Option<&LongWrites> {
        let (requester, place) = Self::find(packet);
        self.places[place].as_ref().filter(|place| place.requester == requester).map(|place| &place.writes)
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
    fn packets_behind_the_first_are_placed() {
        let mut writes = LongWrites::NONE;
        assert_eq!(writes.memory_of(psn(1), 256), None);
        writes.begin(message(0, 0x1000, 1024));
        assert_eq!(writes.memory_of(psn(0), 256), None, "the first names its address");
        assert_eq!(writes.memory_of(psn(3), 200), Some((0x1300, 200)));
        assert_eq!(writes.memory_of(psn(4), 256), None);
        writes.begin(message(6, 0x9000, 512));
        assert_eq!(writes.memory_of(psn(7), 256), Some((0x9100, 256)));
        assert_eq!(writes.memory_of(psn(1), 256), Some((0x1100, 256)));
        assert_eq!(writes.memory_of(psn(5), 256), None, "between them");
    }

    #[test]
    fn packets_of_what_is_forgotten_may_write_anywhere() {
        let mut writes = LongWrites::NONE;
        for n in 0..=KNOWN as u32 {
            writes.begin(message(4 * n, 0x1000, 1024));
        }
        assert_eq!(writes.memory_of(psn(1), 256), None);
        // It comes again: another one is forgotten for it.
        writes.begin(message(0, 0x1000, 1024));
        assert_eq!(writes.memory_of(psn(1), 256), None);
        assert_eq!(writes.memory_of(psn(4 * KNOWN as u32 + 1), 256), Some((0x1100, 256)));
    }

    #[test]
    fn forged_first_packets_only_add_memory() {
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
            // The next request in order bounds them.
            writes.end_at(psn(116));
            writes.begin(message(116, 0x3000, 512));
            assert_eq!(writes.memory_of(psn(117), 256), Some((0x3100, 256)), "{most}");
        }
    }

    #[test]
    fn psns_wrap() {
        let mut writes = LongWrites::NONE;
        writes.begin(message(0xff_fffe, 0x1000, 1024));
        writes.begin(message(2, 0x9000, 512));
        assert_eq!(writes.memory_of(psn(1), 256), Some((0x1300, 256)));
        assert_eq!(writes.memory_of(psn(3), 256), Some((0x9100, 256)));
    }
}

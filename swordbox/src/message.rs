//! Where packets behind the first of a WRITE write: they name no address.

use crate::flow::BEHIND;
use crate::function::bits_of;
use crate::op::memory_of;
use core::net::IpAddr;
use rocev2::{Packet, Psn, Qpn};
use switch::table::mix;

/// PSNs of the longest message: 2 GiB at the least path MTU
pub(crate) const LONGEST: u32 = 1 << 23;
/// WRITEs whose first PSN is farther behind the newest one's are forgotten
const LONG_AGO: i32 = 1 << 22;
/// Places for queue pairs without a tracked connection
const PLACES: usize = 1 << 10;

/// A WRITE of several packets
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    first: Psn,
    /// PSNs that it takes
    count: u32,
    va: u64,
    len: u32,
    /// Payload of each packet but the last, in bytes
    packet: u16,
}

impl Message {
    /// Reads the first packet of a WRITE.
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        let (va, _, len) = memory_of(packet)?;
        let payload = packet.payload().len() as u16;
        let count = if payload == 0 { 1 } else { len.div_ceil(payload.into()).clamp(1, LONGEST) };
        Some(Self { first: packet.bth().psn(), count, va, len, packet: payload })
    }

    /// Returns where its packet with this PSN writes, if that is one of those behind the first.
    fn place_of(&self, psn: Psn) -> Option<u64> {
        let before = u32::try_from(psn.distance(self.first)).ok().filter(|n| (1..self.count).contains(n))?;
        Some(self.va.saturating_add(u64::from(before) * u64::from(self.packet)))
    }

    fn span(&self) -> Span {
        let Self { first, count, va, len, .. } = *self;
        Span { first, count, from: va, to: va.saturating_add(len.into()) }
    }
}

/// PSNs and memory of WRITEs
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: Psn,
    count: u32,
    from: u64,
    to: u64,
}

impl Span {
    fn end(&self) -> Psn {
        self.first.add(self.count)
    }

    fn contains(&self, psn: Psn) -> bool {
        (0..self.count as i32).contains(&psn.distance(self.first))
    }

    /// Returns the least span of both.
    fn join(self, other: Self) -> Self {
        let first = if other.first.precedes(self.first) { other.first } else { self.first };
        let count = self.end().later(other.end()).distance(first).unsigned_abs().min(LONGEST - 1);
        Self { first, count, from: self.from.min(other.from), to: self.to.max(other.to) }
    }
}

/// WRITEs of several packets to one queue pair: the newest, and a span of earlier ones that may not be done. Forged first packets
/// add memory to what a packet may write to, and never take any away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongWrites {
    newest: Option<Message>,
    earlier: Option<Span>,
}

impl LongWrites {
    pub(crate) const NONE: Self = Self { newest: None, earlier: None };

    /// Notes down a WRITE whose first packet passes; everything before `done` is done.
    pub(crate) fn begin(&mut self, message: Message, done: Psn) {
        let Some(newest) = self.newest else {
            self.newest = Some(message);
            return;
        };
        if newest == message {
            return;
        }
        let is_repeated = message.first.precedes(newest.first);
        let (newest, other) = if is_repeated { (newest, message) } else { (message, newest) };
        let is_kept = |span: &Span| done.precedes(span.end()) && newest.first.distance(span.first) < LONG_AGO;
        let kept = self.earlier.filter(is_kept);
        self.newest = Some(newest);
        self.earlier = Some(kept.map_or(other.span(), |span| span.join(other.span())));
    }

    /// Ends all WRITEs: the next request in order has this PSN, and the server gets no other.
    pub(crate) fn end_at(&mut self, psn: Psn) {
        let left = |first: Psn, count: u32| count.min(u32::try_from(psn.distance(first)).unwrap_or(0));
        self.newest.take_if(|message| {
            message.count = left(message.first, message.count);
            message.count == 0
        });
        self.earlier.take_if(|span| {
            span.count = left(span.first, span.count);
            span.count == 0
        });
    }

    #[cfg(feature = "canary")]
    pub(crate) fn newest_only(&self) -> Self {
        Self { earlier: None, ..*self }
    }

    /// Returns what a packet behind the first of a WRITE may write to: where it begins, and bytes. Nothing if no WRITE is known to
    /// which it may belong.
    pub(crate) fn memory_of(&self, psn: Psn, len: usize) -> Option<(u64, u64)> {
        let newest = self.newest.and_then(|message| message.place_of(psn));
        let newest = newest.map(|va| (va, va.saturating_add(len as u64)));
        let earlier = self.earlier.filter(|span| span.contains(psn)).map(|span| (span.from, span.to));
        let (from, to) = match (newest, earlier) {
            (Some(one), Some(other)) => (one.0.min(other.0), one.1.max(other.1)),
            (one, other) => one.or(other)?,
        };
        Some((from, to - from))
    }
}

/// The WRITEs of queue pairs without a tracked connection, as far as there is room for them
#[derive(Debug)]
pub(crate) struct Untracked {
    places: Box<[Option<(Requester, LongWrites)>]>,
}

/// A host, and the queue pair to which it sends
type Requester = (IpAddr, IpAddr, Qpn);

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

    /// Notes down a WRITE whose first packet passes.
    pub(crate) fn begin(&mut self, packet: &Packet<'_>, message: Message) {
        let (requester, place) = Self::find(packet);
        let place = &mut self.places[place];
        let mut writes =
            place.filter(|(known, _)| *known == requester).map_or(LongWrites::NONE, |(_, writes)| writes);
        writes.begin(message, message.first.sub(BEHIND as u32));
        *place = Some((requester, writes));
    }

    /// Returns the WRITEs of a packet's sender to its queue pair.
    pub(crate) fn of(&self, packet: &Packet<'_>) -> Option<&LongWrites> {
        let (requester, place) = Self::find(packet);
        self.places[place].as_ref().filter(|(known, _)| *known == requester).map(|(_, writes)| writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(first: u32, va: u64, len: u32) -> Message {
        let (first, count) = (Psn::new(first), len.div_ceil(256));
        Message { first, count, va, len, packet: 256 }
    }

    fn psn(psn: u32) -> Psn {
        Psn::new(psn)
    }

    #[test]
    fn packets_of_the_newest_and_of_earlier_writes_are_placed() {
        let mut writes = LongWrites::NONE;
        assert_eq!(writes.memory_of(psn(1), 256), None);
        writes.begin(message(0, 0x1000, 1024), psn(0));
        assert_eq!(writes.memory_of(psn(0), 256), None, "the first names its address");
        assert_eq!(writes.memory_of(psn(3), 200), Some((0x1300, 200)));
        assert_eq!(writes.memory_of(psn(4), 256), None);
        writes.begin(message(4, 0x9000, 512), psn(0));
        assert_eq!(writes.memory_of(psn(5), 256), Some((0x9100, 256)));
        assert_eq!(writes.memory_of(psn(1), 256), Some((0x1000, 1024)));
        // The first of the two is repeated: the other stays the newest.
        writes.begin(message(0, 0x1000, 1024), psn(0));
        assert_eq!(writes.memory_of(psn(5), 256), Some((0x9100, 256)));
        writes.begin(message(6, 0x5000, 512), psn(0));
        assert_eq!(writes.memory_of(psn(5), 256), Some((0x1000, 0x8200)), "both");
        // Everything before is done.
        writes.begin(message(8, 0x5000, 512), psn(8));
        assert_eq!(writes.memory_of(psn(5), 256), None);
        assert_eq!(writes.memory_of(psn(7), 256), Some((0x5000, 512)));
    }

    #[test]
    fn forged_first_packets_only_add_memory() {
        let mut writes = LongWrites::NONE;
        writes.begin(message(100, 0x1000, 4096), psn(100));
        for (first, va) in [(103, 0x9_0000), (110, 0x8_0000), (60_000, 0x7_0000), (0, 0)] {
            writes.begin(message(first, va, 1 << 30), psn(100));
        }
        let (from, len) = writes.memory_of(psn(105), 256).unwrap();
        assert!(from <= 0x1500 && from + len >= 0x1600, "{from:x} {len:x}");
        // The next request in order bounds them.
        writes.end_at(psn(116));
        writes.begin(message(116, 0x3000, 512), psn(116));
        assert_eq!(writes.memory_of(psn(117), 256), Some((0x3100, 256)));
    }

    #[test]
    fn psns_wrap() {
        let mut writes = LongWrites::NONE;
        writes.begin(message(0xff_fffe, 0x1000, 1024), psn(0xff_fffe));
        writes.begin(message(2, 0x9000, 512), psn(0xff_fffe));
        assert_eq!(writes.memory_of(psn(1), 256), Some((0x1000, 1024)));
        assert_eq!(writes.memory_of(psn(3), 256), Some((0x9100, 256)));
    }
}

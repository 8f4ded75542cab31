//! The header of 1Pipe messages and beacons (1Pipe, section 6.1): 24 bytes at the start of a UD packet's
//! payload.
//!
//! The paper lists the fields (three timestamps of 48 bits, PSN, opcode, end-of-message flag) and their total
//! size, but not their offsets. This project chose the following:
//!
//! ```text
//!  0..6   timestamp of the message, nanoseconds
//!  6..12  best-effort barrier of the link
//! 12..18  commit barrier of the link
//! 18..21  packet sequence number
//! 21      opcode
//! 22      flags: 0x80 end of message, 0x40 nothing follows, 0x20 first packet, 0x10 timestamp follows
//!         of a beacon: 0x08 declares, 0x04 reads barriers, 0x02 writes barriers, 0x01 removed an input
//! 23      version, 0
//! ```
//!
//! A beacon's sender *declares* whether it takes barriers from messages that it receives on this link, and
//! whether messages that it sends on this link carry the link's barrier. A sender that declares also
//! announces that nothing follows only if that is so, not because it has heard nothing. A switch that has
//! removed an input for another reason than its leaving states so, until the input has returned and caught up
//! ([`ends`](crate::ends)). Senders of earlier versions declare nothing, and receivers of earlier versions
//! ignore the flags.
//!
//! The messages of a scattering for one receiver are sent as a *run* of packets: message after message, each
//! cut into packets. The timestamp of the messages is that of the run's last packet. Earlier packets of the
//! run carry the sender's clock and the flag "timestamp follows". A large message therefore does not hold
//! back any barrier while it is being sent.
//!
//! A barrier of 0 means "no barrier known": a switch without a barrier still has to overwrite the sender's
//! value. A barrier whose value happens to be 0 is written as the preceding nanosecond, which is a valid
//! barrier as well.

use core::fmt;
use rocev2::{Packet, Psn};
use zerocopy::byteorder::network_endian::{U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A point in time: 48 bits of nanoseconds, which wrap around after 78 hours.
///
/// There is no `Ord`, because values that wrap have no first element. [`precedes`](Self::precedes) orders two
/// points that are less than 2^47 ns apart, as TCP's PAWS does (RFC 7323).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    const BITS: u32 = 48;
    const MASK: u64 = (1 << Self::BITS) - 1;

    /// Returns the timestamp of the low 48 bits of `nanos`.
    #[inline]
    pub const fn new(nanos: u64) -> Self {
        Self(nanos & Self::MASK)
    }

    /// Nanoseconds, below 2^48
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Returns the timestamp `nanos` nanoseconds later.
    #[must_use]
    #[allow(
        clippy::should_implement_trait,
        reason = "`+` would suggest a total order, which wrapping values lack"
    )]
    pub const fn add(self, nanos: u64) -> Self {
        Self(self.0.wrapping_add(nanos) & Self::MASK)
    }

    /// Returns the nanoseconds from `earlier` to `self`: negative if `self` is the earlier, -2^47 if the two
    /// are opposite.
    pub const fn distance(self, earlier: Self) -> i64 {
        ((self.0.wrapping_sub(earlier.0) << (64 - Self::BITS)) as i64) >> (64 - Self::BITS)
    }

    /// Returns whether `self` is earlier than `other`: 0 < other - self < 2^47 modulo 2^48.
    pub const fn precedes(self, other: Self) -> bool {
        other.distance(self) > 0
    }

    /// Returns the earlier of the two; a barrier is the minimum by this order.
    #[must_use]
    pub const fn earlier(self, other: Self) -> Self {
        if other.precedes(self) { other } else { self }
    }

    /// Returns a barrier's value on the wire.
    #[inline]
    const fn barrier_to_number(barrier: Option<Self>) -> u64 {
        match barrier {
            None => 0,
            Some(Self(0)) => Self::MASK,
            Some(Self(barrier)) => barrier,
        }
    }

    #[inline]
    pub(crate) fn barrier_to_wire(barrier: Option<Self>) -> [u8; 6] {
        Self(Self::barrier_to_number(barrier)).to_wire()
    }

    #[inline]
    pub(crate) fn barrier_from_wire(wire: [u8; 6]) -> Option<Self> {
        let barrier = Self::from_wire(wire);
        (barrier.0 != 0).then_some(barrier)
    }

    fn to_wire(self) -> [u8; 6] {
        let [_, _, wire @ ..] = self.0.to_be_bytes();
        wire
    }

    fn from_wire([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({})", self.0)
    }
}

/// Kind of a 1Pipe packet. Switches forward unknown values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OnePipeOpcode(pub u8);

impl OnePipeOpcode {
    /// Part of a best-effort message
    pub const DATA: Self = Self(0);
    /// Part of a reliable message; its timestamp does not advance the best-effort barrier
    pub const RELIABLE_DATA: Self = Self(1);
    /// Beacon: barriers only, for one hop
    pub const BEACON: Self = Self(2);
    /// Acknowledgement, with the receiver's [`AckBody`]
    pub const ACK: Self = Self(3);
    /// Refusal of a message or a part of one, with [`NakBody`]
    pub const NAK: Self = Self(4);
    /// Recall: the receiver must not deliver the message
    pub const RECALL: Self = Self(5);
    /// Acknowledgement of reliable packets, with the receiver's [`ReliableAckBody`](crate::ReliableAckBody)
    pub const RELIABLE_ACK: Self = Self(6);
    /// Answer to a recall, with a [`RecallBody`](crate::RecallBody)
    pub const RECALL_ACK: Self = Self(7);
    /// Request for a [`RELIABLE_ACK`](Self::RELIABLE_ACK); no body
    pub const RELIABLE_PROBE: Self = Self(8);
    /// Clock beacon, for one hop, with a [`ClockBody`](crate::clock_sync::ClockBody)
    pub const CLOCK: Self = Self(9);

    /// Returns whether packets of this kind are from one neighbour to the other.
    #[inline]
    pub const fn is_for_one_hop(self) -> bool {
        matches!(self, Self::BEACON | Self::CLOCK)
    }

    /// Returns whether packets of this kind are those of the reliable service.
    #[inline]
    pub(crate) const fn is_reliable(self) -> bool {
        matches!(
            self,
            Self::RELIABLE_DATA | Self::RECALL | Self::RELIABLE_ACK | Self::RECALL_ACK | Self::RELIABLE_PROBE
        )
    }
}

/// The 1Pipe header, 24 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct OnePipe {
    timestamp: [u8; 6],
    barrier: [u8; 6],
    commit: [u8; 6],
    psn: [u8; 3],
    opcode: u8,
    flags: u8,
    /// Layout version; 0
    pub version: u8,
}

impl OnePipe {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// Version of this layout
    pub const VERSION: u8 = 0;
    /// Default Q_Key of 1Pipe queue pairs ("1Pip"), by which switches recognise datagrams that begin with
    /// this header
    pub const QKEY: u32 = 0x3150_6970;
    /// Offset of the two barriers, which are adjacent
    pub(crate) const BARRIERS: usize = 6;
    /// Offset of the four bytes whose last three are the PSN
    pub(crate) const PSN_WORD: usize = 17;
    /// Offset of the opcode, which is behind everything that differs between beacons
    pub(crate) const OPCODE: usize = 21;
    const END_OF_MESSAGE: u8 = 0x80;
    const NOTHING_FOLLOWS: u8 = 0x40;
    const FIRST: u8 = 0x20;
    const TIMESTAMP_FOLLOWS: u8 = 0x10;
    const DECLARES: u8 = 0x08;
    const READS_BARRIERS: u8 = 0x04;
    const WRITES_BARRIERS: u8 = 0x02;
    const REMOVED: u8 = 0x01;

    /// Returns the header that a sender sets: the timestamp is its best-effort barrier as well.
    pub fn new(opcode: OnePipeOpcode, timestamp: Timestamp, psn: Psn) -> Self {
        let mut header = Self { opcode: opcode.0, psn: psn.to_wire(), ..Self::default() };
        header.timestamp = timestamp.to_wire();
        header.set_barrier(Some(timestamp));
        header
    }

    /// Returns the start of the payload as a 1Pipe header, if the payload is long enough. The caller has to
    /// have identified the packet, by the Q_Key of a datagram or by the address of a WRITE.
    #[inline]
    pub fn of<'a>(packet: &Packet<'a>) -> Option<&'a Self> {
        Self::ref_from_prefix(packet.payload()).ok().map(|(header, _)| header)
    }

    /// Returns the timestamp of the message, the same for all messages of a scattering.
    pub fn timestamp(&self) -> Timestamp {
        Timestamp::from_wire(self.timestamp)
    }

    /// Returns the best-effort barrier: no best-effort message that follows on this link has an earlier
    /// timestamp. `None` if none is known.
    #[inline]
    pub fn barrier(&self) -> Option<Timestamp> {
        Timestamp::barrier_from_wire(self.barrier)
    }

    /// Sets the best-effort barrier.
    #[inline]
    pub fn set_barrier(&mut self, barrier: Option<Timestamp>) {
        self.barrier = Timestamp::barrier_to_wire(barrier);
    }

    /// Returns the commit barrier: every reliable message up to this timestamp is committed. `None` if none
    /// is known.
    #[inline]
    pub fn commit(&self) -> Option<Timestamp> {
        Timestamp::barrier_from_wire(self.commit)
    }

    /// Sets the commit barrier.
    #[inline]
    pub fn set_commit(&mut self, commit: Option<Timestamp>) {
        self.commit = Timestamp::barrier_to_wire(commit);
    }

    /// Returns the wire format of both barriers, in words.
    #[inline]
    pub(crate) fn barriers_to_wire(barrier: Option<Timestamp>, commit: Option<Timestamp>) -> [[u8; 4]; 3] {
        let [barrier, commit] = [barrier, commit].map(Timestamp::barrier_to_number);
        let words = [barrier >> 16, barrier << 16 | commit >> 32, commit];
        words.map(|word| (word as u32).to_be_bytes())
    }

    /// Returns the packet sequence number within the connection.
    pub const fn psn(&self) -> Psn {
        Psn::from_wire(self.psn)
    }

    /// Returns the kind of the packet.
    pub const fn opcode(&self) -> OnePipeOpcode {
        OnePipeOpcode(self.opcode)
    }

    const fn flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    const fn set_flag(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// Returns whether this is the last packet of a message.
    pub const fn end_of_message(&self) -> bool {
        self.flag(Self::END_OF_MESSAGE)
    }

    /// Sets the end-of-message flag.
    pub const fn set_end_of_message(&mut self, on: bool) {
        self.set_flag(Self::END_OF_MESSAGE, on);
    }

    /// Returns, for a beacon, whether no best-effort message follows on this link, so that no receiver has to
    /// wait for one.
    pub const fn nothing_follows(&self) -> bool {
        self.flag(Self::NOTHING_FOLLOWS)
    }

    /// Sets the flag "nothing follows".
    pub const fn set_nothing_follows(&mut self, on: bool) {
        self.set_flag(Self::NOTHING_FOLLOWS, on);
    }

    /// Returns whether this is the first packet of a run.
    pub const fn first(&self) -> bool {
        self.flag(Self::FIRST)
    }

    /// Sets the flag "first packet".
    pub const fn set_first(&mut self, on: bool) {
        self.set_flag(Self::FIRST, on);
    }

    /// Returns whether a later packet of the run carries the timestamp of its messages.
    pub const fn timestamp_follows(&self) -> bool {
        self.flag(Self::TIMESTAMP_FOLLOWS)
    }

    /// Sets the flag "timestamp follows".
    pub const fn set_timestamp_follows(&mut self, on: bool) {
        self.set_flag(Self::TIMESTAMP_FOLLOWS, on);
    }

    /// Returns, for a beacon, whether its sender declares what it reads and writes, and announces that
    /// nothing follows only if that is so.
    #[inline]
    pub const fn declares(&self) -> bool {
        self.flag(Self::DECLARES)
    }

    /// Returns, for a beacon, whether its sender declares that it takes barriers from messages that it
    /// receives on this link.
    #[inline]
    pub const fn reads_barriers(&self) -> bool {
        self.flags & (Self::DECLARES | Self::READS_BARRIERS) == Self::DECLARES | Self::READS_BARRIERS
    }

    /// Returns, for a beacon, whether its sender declares that messages which it puts on this link carry the
    /// link's barrier.
    #[inline]
    pub const fn writes_barriers(&self) -> bool {
        self.flags & (Self::DECLARES | Self::WRITES_BARRIERS) == Self::DECLARES | Self::WRITES_BARRIERS
    }

    /// Returns, for a beacon, whether its sender has removed an input that had not left: messages of that input
    /// may lie below the barrier.
    #[inline]
    pub const fn removed(&self) -> bool {
        self.flag(Self::REMOVED)
    }

    /// Sets whether the sender of a beacon has removed an input that had not left.
    pub const fn set_removed(&mut self, on: bool) {
        self.set_flag(Self::REMOVED, on);
    }

    /// Declares whether the sender of a beacon takes barriers from messages on this link, and whether it
    /// writes the link's barrier into messages.
    pub const fn declare(&mut self, reads: bool, writes: bool) {
        self.set_flag(Self::DECLARES, true);
        self.set_flag(Self::READS_BARRIERS, reads);
        self.set_flag(Self::WRITES_BARRIERS, writes);
    }
}

impl fmt::Display for OnePipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1pipe opcode {} at {}", self.opcode, self.timestamp())?;
        for (name, barrier) in [("barrier", self.barrier()), ("commit", self.commit())] {
            match barrier {
                Some(barrier) => write!(f, " {name} {barrier}")?,
                None => write!(f, " {name} none")?,
            }
        }
        write!(f, " psn {}{}", self.psn(), if self.end_of_message() { " end" } else { "" })
    }
}

/// Body of an ACK, 32 bytes: the receiver's state as of the highest PSN that it has received, which is the
/// PSN of the header. Every ACK carries the complete state, so that a lost one matters only if no other
/// follows.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AckBody {
    /// Bit n: the run that ended n packets before the highest PSN was accepted
    pub accepted: U128,
    /// Number of packets received since the connection began
    pub packets: U32,
    /// Number of received packets that a switch had marked "congestion experienced"
    pub marked: U32,
    /// Receive window from [`next`](Self::next) on, in bytes as the sender counts them
    pub window: U32,
    next: [u8; 3],
    /// Random incarnation number of the receiver. A change means that the receiver has restarted and has lost
    /// all earlier state
    pub incarnation: u8,
}

impl AckBody {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// Number of packets that [`accepted`](Self::accepted) covers
    pub const HISTORY: u32 = u128::BITS;

    /// Returns the PSN before which everything is decided: runs that ended earlier and are not set in
    /// [`accepted`](Self::accepted) were refused or lost.
    pub const fn next(&self) -> Psn {
        Psn::from_wire(self.next)
    }

    /// Sets the PSN before which everything is decided.
    pub const fn set_next(&mut self, psn: Psn) {
        self.next = psn.to_wire();
    }
}

/// Body of a NAK, 4 bytes. The PSN of the header is that of the packet that was refused or is missing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct NakBody {
    /// Reason: one of the constants
    pub reason: u8,
    reserved: [u8; 3],
}

impl NakBody {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// The barrier has passed the timestamp of the message (1Pipe, section 4.1)
    pub const LATE: u8 = 0;
    /// The receiver has no room for the message
    pub const NO_ROOM: u8 = 1;
    /// A part of the message was lost
    pub const INCOMPLETE: u8 = 2;

    /// Returns a body with this reason.
    pub const fn new(reason: u8) -> Self {
        Self { reason, reserved: [0; 3] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_has_the_documented_layout() {
        let mut header =
            OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(0x0102_0304_0506), Psn::new(0x1a_1b1c));
        header.set_barrier(Some(Timestamp::new(0x1112_1314_1516)));
        header.set_commit(Some(Timestamp::new(0x2122_2324_2526)));
        header.set_end_of_message(true);
        let mut wire = [
            1, 2, 3, 4, 5, 6, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x1a,
            0x1b, 0x1c, 2, 0x80, 0,
        ];
        assert_eq!(header.as_bytes(), wire);
        for (reads, writes, flags) in
            [(false, false, 0x88), (true, false, 0x8c), (false, true, 0x8a), (true, true, 0x8e)]
        {
            header.declare(reads, writes);
            wire[22] = flags;
            assert_eq!(header.as_bytes(), wire);
            assert_eq!(
                (header.declares(), header.reads_barriers(), header.writes_barriers()),
                (true, reads, writes)
            );
        }
        header.set_removed(true);
        wire[22] = 0x8f;
        assert_eq!((header.as_bytes(), header.removed()), (&wire[..], true));
        assert_eq!(OnePipe::LEN, 24);
    }

    #[test]
    fn bodies_of_acks_and_naks_have_the_documented_layout() {
        let mut arrivals =
            AckBody { accepted: 1.into(), packets: 2.into(), marked: 3.into(), ..AckBody::default() };
        arrivals.window = 4.into();
        arrivals.set_next(Psn::new(0x05_0607));
        let wire =
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 5, 6, 7, 0];
        assert_eq!((arrivals.as_bytes(), arrivals.next()), (&wire[..], Psn::new(0x05_0607)));
        assert_eq!(NakBody::new(NakBody::INCOMPLETE).as_bytes(), [2, 0, 0, 0]);
    }

    #[test]
    fn timestamps_wrap_around() {
        let last = Timestamp::new(u64::MAX);
        let first = Timestamp::new(0);
        assert_eq!(last.add(1), first);
        assert!(last.precedes(first) && !first.precedes(last) && !first.precedes(first));
        assert_eq!(last.earlier(first), last);
        let opposite = Timestamp::new(1 << 47);
        assert!(
            !first.precedes(opposite) && !opposite.precedes(first),
            "timestamps 2^47 apart have no order"
        );
    }

    #[test]
    fn barrier_of_zero_is_written_as_the_preceding_nanosecond() {
        let mut header = OnePipe::new(OnePipeOpcode::DATA, Timestamp::new(0), Psn::ZERO);
        assert_eq!(header.barrier(), Some(Timestamp::new(u64::MAX)), "an earlier barrier is valid as well");
        assert_eq!(header.commit(), None);
        assert!(header.to_string().ends_with("commit none psn 0"), "{header}");
        header.set_barrier(None);
        assert_eq!((header.barrier(), header.as_bytes()), (None, &[0; 24][..]));
    }

    proptest! {
        #[test]
        fn distance_undoes_add(start: u64, nanos in 0u64..(1 << 47)) {
            let start = Timestamp::new(start);
            let later = start.add(nanos);
            prop_assert_eq!(later.distance(start), nanos as i64);
            prop_assert_eq!(start.distance(later), -(nanos as i64));
            prop_assert_eq!(start.precedes(later), nanos > 0);
        }

        #[test]
        fn setters_change_only_their_own_fields(wire: [u8; 24], a in 1u64..1 << 48, b in 1u64..1 << 48, end: bool) {
            let before = OnePipe::read_from_bytes(&wire).unwrap();
            let mut header = before;
            let (a, b) = (Some(Timestamp::new(a)), Some(Timestamp::new(b)));
            header.set_barrier(a);
            header.set_commit(b);
            header.set_end_of_message(end);
            header.set_nothing_follows(!end);
            header.set_first(end);
            header.set_timestamp_follows(!end);
            header.declare(end, !end);
            header.set_removed(end);
            prop_assert_eq!((header.nothing_follows(), header.first(), header.timestamp_follows()), (!end, end, !end));
            prop_assert_eq!((header.barrier(), header.commit(), header.end_of_message()), (a, b, end));
            let words = OnePipe::barriers_to_wire(a, b);
            prop_assert_eq!(&header.as_bytes()[OnePipe::BARRIERS..][..12], words.as_flattened());
            prop_assert_eq!((header.timestamp(), header.psn(), header.opcode()), (before.timestamp(), before.psn(), before.opcode()));
            prop_assert_eq!((header.declares(), header.reads_barriers(), header.writes_barriers()), (true, end, !end));
            prop_assert_eq!(header.removed(), end);
        }
    }
}

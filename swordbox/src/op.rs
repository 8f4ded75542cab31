//! What an opcode is to a Swordbox.

use rocev2::aeth::Aeth;
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// What a packet's opcode asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SEND, of which the memory is the receiver's choice; a packet of a WRITE behind its first, too
    Body,
    /// The first packet of a WRITE, or the only one
    Write,
    /// READ
    Read,
    /// ATOMIC WRITE and FLUSH, which are answered like a READ of nothing
    Other,
    /// `CmpSwap` and `FetchAdd`
    Atomic,
    /// A response
    Response,
    /// An unreliable connection's
    Unreliable,
    /// A datagram, perhaps the connection manager's
    Datagram,
    /// A congestion notification
    Cnp,
    /// Not understood
    Unknown,
}

/// An opcode's place in its message, and its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub kind: Kind,
    /// It ends a message
    pub ends: bool,
}

static OPS: [Op; 256] = {
    let mut ops = [Op { kind: Kind::Unknown, ends: true }; 256];
    let mut at = 0;
    while at < ops.len() {
        let (kind, ends) = match Opcode(at as u8) {
            Opcode::RC_SEND_FIRST | Opcode::RC_SEND_MIDDLE | Opcode::RC_WRITE_MIDDLE => (Kind::Body, false),
            Opcode::RC_SEND_LAST
            | Opcode::RC_SEND_LAST_IMM
            | Opcode::RC_SEND_LAST_INVALIDATE
            | Opcode::RC_WRITE_LAST
            | Opcode::RC_WRITE_LAST_IMM
            | Opcode::RC_SEND_ONLY
            | Opcode::RC_SEND_ONLY_IMM
            | Opcode::RC_SEND_ONLY_INVALIDATE => (Kind::Body, true),
            Opcode::RC_WRITE_FIRST => (Kind::Write, false),
            Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_IMM => (Kind::Write, true),
            Opcode::RC_READ_REQUEST => (Kind::Read, true),
            Opcode::RC_FLUSH | Opcode::RC_ATOMIC_WRITE => (Kind::Other, true),
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => (Kind::Atomic, true),
            Opcode::RC_READ_RESPONSE_FIRST
            | Opcode::RC_READ_RESPONSE_MIDDLE
            | Opcode::RC_READ_RESPONSE_LAST
            | Opcode::RC_READ_RESPONSE_ONLY
            | Opcode::RC_ACKNOWLEDGE
            | Opcode::RC_ATOMIC_ACKNOWLEDGE => (Kind::Response, true),
            Opcode::UD_SEND_ONLY | Opcode::UD_SEND_ONLY_IMM => (Kind::Datagram, true),
            Opcode::CNP => (Kind::Cnp, true),
            Opcode(0x20..=0x3f) => (Kind::Unreliable, true),
            _ => (Kind::Unknown, true),
        };
        ops[at] = Op { kind, ends };
        at += 1;
    }
    ops
};

impl Op {
    #[inline]
    pub(crate) fn of(opcode: Opcode) -> Self {
        OPS[usize::from(opcode.0)]
    }
}

/// The extended header that comes first, behind the BTH
#[inline]
fn first<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(packet: &Packet<'a>) -> Option<&'a T> {
    let at = packet.layout().bth() + Bth::LEN;
    T::ref_from_prefix(packet.bytes().get(at..)?).ok().map(|(header, _)| header)
}

/// What an atomic asks for; nobody knows what of another request.
#[inline]
pub(crate) fn atomic_of<'a>(packet: &Packet<'a>) -> Option<&'a AtomicEth> {
    first(packet)
}

/// What an acknowledgement says; nobody knows what of another packet.
#[inline]
pub(crate) fn aeth_of<'a>(packet: &Packet<'a>) -> Option<&'a Aeth> {
    first(packet)
}

/// The memory that a request names: where it begins, its key and its length.
#[expect(clippy::inline_always, reason = "its callers know the kind")]
#[inline(always)]
pub(crate) fn memory_of(packet: &Packet<'_>) -> Option<(u64, u32, u32)> {
    match Op::of(packet.layout().opcode()).kind {
        Kind::Atomic => atomic_of(packet).map(|atomic| (atomic.va.get(), atomic.rkey.get(), 8)),
        Kind::Write | Kind::Read => {
            first(packet).map(|reth: &Reth| (reth.va.get(), reth.rkey.get(), reth.len.get()))
        }
        _ => packet.reth().map(|reth| (reth.va.get(), reth.rkey.get(), reth.len.get())),
    }
}

/// The word that an atomic leaves behind where `old` was.
#[inline]
pub(crate) const fn outcome(opcode: Opcode, swap_or_add: u64, compare: u64, old: u64) -> u64 {
    if opcode.0 == Opcode::RC_FETCH_ADD.0 {
        old.wrapping_add(swap_or_add)
    } else if old == compare {
        swap_or_add
    } else {
        old
    }
}

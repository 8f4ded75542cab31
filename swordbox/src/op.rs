//! Classification of opcodes, and access to the extended headers that Swordbox needs.

use rocev2::aeth::Aeth;
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Kind of a packet, by its opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SEND, whose target the receiver chooses, or a Middle or Last packet of a WRITE
    SendOrWriteRest,
    /// First or Only packet of a WRITE
    Write,
    /// READ
    Read,
    /// ATOMIC WRITE or FLUSH; the response is a READ response without payload
    AtomicWriteOrFlush,
    /// `CmpSwap` or `FetchAdd`
    Atomic,
    /// Response
    Response,
    /// Packet of an unreliable connection
    UnreliableConnection,
    /// Unreliable datagram, possibly of the connection manager
    UnreliableDatagram,
    /// Congestion notification packet
    Cnp,
    /// Unknown opcode
    Unknown,
}

/// Kind of an opcode, and its position in its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub kind: Kind,
    /// Whether the packet is the last one of its message
    pub is_last: bool,
}

static OPS: [Op; 256] = {
    let mut ops = [Op { kind: Kind::Unknown, is_last: true }; 256];
    let mut at = 0;
    while at < ops.len() {
        let (kind, is_last) = match Opcode(at as u8) {
            Opcode::RC_SEND_FIRST | Opcode::RC_SEND_MIDDLE | Opcode::RC_WRITE_MIDDLE => {
                (Kind::SendOrWriteRest, false)
            }
            Opcode::RC_SEND_LAST
            | Opcode::RC_SEND_LAST_IMM
            | Opcode::RC_SEND_LAST_INVALIDATE
            | Opcode::RC_WRITE_LAST
            | Opcode::RC_WRITE_LAST_IMM
            | Opcode::RC_SEND_ONLY
            | Opcode::RC_SEND_ONLY_IMM
            | Opcode::RC_SEND_ONLY_INVALIDATE => (Kind::SendOrWriteRest, true),
            Opcode::RC_WRITE_FIRST => (Kind::Write, false),
            Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_IMM => (Kind::Write, true),
            Opcode::RC_READ_REQUEST => (Kind::Read, true),
            Opcode::RC_FLUSH | Opcode::RC_ATOMIC_WRITE => (Kind::AtomicWriteOrFlush, true),
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => (Kind::Atomic, true),
            Opcode::RC_READ_RESPONSE_FIRST
            | Opcode::RC_READ_RESPONSE_MIDDLE
            | Opcode::RC_READ_RESPONSE_LAST
            | Opcode::RC_READ_RESPONSE_ONLY
            | Opcode::RC_ACKNOWLEDGE
            | Opcode::RC_ATOMIC_ACKNOWLEDGE => (Kind::Response, true),
            Opcode::UD_SEND_ONLY | Opcode::UD_SEND_ONLY_IMM => (Kind::UnreliableDatagram, true),
            Opcode::CNP => (Kind::Cnp, true),
            Opcode(0x20..=0x3f) => (Kind::UnreliableConnection, true),
            _ => (Kind::Unknown, true),
        };
        ops[at] = Op { kind, is_last };
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

/// Returns the first extended header behind the BTH.
#[inline]
fn first<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(packet: &Packet<'a>) -> Option<&'a T> {
    let at = packet.layout().bth() + Bth::LEN;
    T::ref_from_prefix(packet.bytes().get(at..)?).ok().map(|(header, _)| header)
}

/// Returns the AtomicETH of an atomic request. The result is meaningless for other requests.
#[inline]
pub(crate) fn atomic_of<'a>(packet: &Packet<'a>) -> Option<&'a AtomicEth> {
    first(packet)
}

/// Returns the AETH of an acknowledgement. The result is meaningless for other packets.
#[inline]
pub(crate) fn aeth_of<'a>(packet: &Packet<'a>) -> Option<&'a Aeth> {
    first(packet)
}

/// Returns the virtual address, the R_Key and the length in bytes of the memory that a request names.
#[expect(clippy::inline_always, reason = "the kind is a constant in the callers")]
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

/// Returns the value of a word after an atomic that found `old`.
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

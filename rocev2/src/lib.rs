//! RoCEv2 on the wire: Ethernet, IP and UDP as far as RoCEv2 needs them, every IB transport header of the
//! RC, UC and UD services, the ICRC, the CM's MADs and the 1Pipe header. No I/O, no allocation, no clock.
//!
//! # How to read this crate
//!
//! * One file a header. A header is a `#[repr(C)]` struct of bytes in wire order, so the same type is the
//!   zero-copy view (`&Bth` points into the frame), the mutable view (`&mut Bth`) and the value that is
//!   copied, printed and emitted. Bits that we do not understand stay where they are.
//! * [`classify`](packet::classify) decides once where the headers of a frame lie and whether they fit
//!   ([`Layout`]). Everything after that ([`Packet`], [`rewrite::Rewriter`], [`icrc`]) relies on it and cannot fail.
//! * [`Repr`](repr::Repr) is a whole frame as a value: made from a frame, changed at leisure, emitted again.
//!
//! # Panics
//!
//! No function panics on any bytes read from outside. A [`Layout`] used with another frame than the one it was
//! made from is a bug of the caller, and may panic on an index; it never reads outside the slice.
//!
//! Sources: InfiniBand Architecture Specification Volume 1, Release 1.4 ("IB" below): chapter 9 (transport),
//! annexes A16/A17 (RoCE, RoCEv2), chapter 12 (communication management), 13.4 (MADs).

#![deny(unsafe_code)] // `forbid` everywhere but in icrc::clmul, which has to allow it

pub mod aeth;
pub mod atomic;
pub mod beacon;
pub mod bth;
pub mod checksum;
pub mod cm;
pub mod datagram;
pub mod deth;
pub mod ethernet;
pub mod icrc;
pub mod immediate;
pub mod ipv4;
pub mod ipv6;
pub mod neighbour;
pub mod onepipe;
pub mod opcode;
pub mod packet;
pub mod redirect;
pub mod repr;
pub mod reth;
pub mod rewrite;
pub mod route;
pub mod serial;
pub mod udp;

pub use bth::Bth;
pub use opcode::Opcode;
pub use packet::{Class, Fault, Layout, Packet, classify};
pub use serial::{Msn, Psn, Qpn};

/// The UDP destination port of RoCEv2 (IB A17.4.5).
pub const UDP_PORT: u16 = 4791;
/// The largest payload of a packet: the largest path MTU, in bytes (IB 7.7.8).
pub const MAX_PAYLOAD: usize = 4096;

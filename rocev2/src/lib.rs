//! RoCEv2 wire formats: Ethernet, IP and UDP as far as RoCEv2 uses them, the IB transport headers of the RC,
//! UC and UD services, the ICRC, the MADs of the CM, and the 1Pipe header. The crate does no I/O, has no
//! clock, and its parsers do not allocate.
//!
//! # Structure
//!
//! * Each header has a file. A header is a `#[repr(C)]` struct of bytes in wire order, so that one type is
//!   the zero-copy view (`&Bth` points into the frame), the mutable view (`&mut Bth`), and the value that is
//!   copied, printed and emitted. Bits that this crate does not interpret are preserved.
//! * [`classify`] finds the headers of a frame and checks them once. Its result, [`Layout`], holds their
//!   offsets. Everything that works on a layout ([`Packet`], [`rewrite::Rewriter`], [`icrc`]) cannot fail.
//! * [`Repr`](repr::Repr) is the high-level representation of a whole frame: parsed from a frame, changed
//!   field by field, and emitted again.
//!
//! # Panics
//!
//! No function panics on bytes received from outside. Using a [`Layout`] with another frame than the one that
//! it was made from is a bug of the caller. It may panic with an index out of bounds, but never reads outside
//! the slice.
//!
//! Sources: InfiniBand Architecture Specification Volume 1, Release 1.4 ("IB" below): chapter 9 (transport),
//! annexes A16/A17 (RoCE, RoCEv2), chapter 12 (communication management), 13.4 (MADs).

#![deny(unsafe_code)] // not `forbid`, because icrc::clmul has to allow it

pub mod aeth;
pub mod atomic;
pub mod bth;
pub mod checksum;
pub mod cm;
pub mod deth;
pub mod ethernet;
pub mod icrc;
pub mod immediate;
pub mod ipv4;
pub mod ipv6;
mod layout;
pub mod neighbour;
pub mod opcode;
pub mod packet;
pub mod path_headers;
pub mod redirect;
pub mod repr;
pub mod reth;
pub mod rewrite;
pub mod serial;
pub mod template;
pub mod udp;

pub use bth::Bth;
pub use layout::{ICRC_LEN, Layout};
pub use opcode::Opcode;
pub use packet::{Class, Fault, Packet, classify, destination_qp, usual_bth};
pub use serial::{Msn, Psn, Qpn};

/// UDP destination port of RoCEv2 (IB A17.4.5)
pub const UDP_PORT: u16 = 4791;
/// Largest payload of a packet, in bytes: the largest path MTU (IB 7.7.8)
pub const MAX_PAYLOAD: usize = 4096;

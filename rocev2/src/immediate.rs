//! The 4-byte headers that end a message: immediate data, and the key to invalidate (IB 9.3.7, 9.3.8).

use core::fmt;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Immediate data: 4 bytes for the receiver's completion.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ImmDt {
    /// The application's bytes
    pub data: U32,
}

impl ImmDt {
    /// Bytes on the wire
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imm {:#010x}", self.data.get())
    }
}

/// The invalidate extended transport header of SEND with invalidate.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ieth {
    /// The `R_Key` that shall grant nothing any more
    pub rkey: U32,
}

impl Ieth {
    /// Bytes on the wire
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidate rkey {:#x}", self.rkey.get())
    }
}

//! The 4-byte headers of the last packet of a message: immediate data (ImmDt), and the R_Key to invalidate
//! (IETH) (IB 9.3.7, 9.3.8).

use core::fmt;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Immediate data: 4 bytes that the receiver's completion carries.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ImmDt {
    /// The application's immediate data
    pub data: U32,
}

impl ImmDt {
    /// Length on the wire, in bytes
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
    /// R_Key to invalidate
    pub rkey: U32,
}

impl Ieth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidate rkey {:#x}", self.rkey.get())
    }
}

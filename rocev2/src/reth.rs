//! The RDMA extended transport header (RETH) of WRITE and READ requests (IB 9.3.3).

use core::fmt;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The RDMA extended transport header, 16 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Reth {
    /// Virtual address of the first byte, at the responder
    pub va: U64,
    /// R_Key of the memory region
    pub rkey: U32,
    /// Length of the whole message in bytes, 0 to 2^31
    pub len: U32,
}

impl Reth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {:#x} len {}", self.va.get(), self.rkey.get(), self.len)
    }
}

//! Headers of atomic requests and their responses (IB 9.3.4, 9.3.6).

use core::fmt;
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The atomic extended transport header of `CMP_SWAP` and `FETCH_ADD`, 28 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AtomicEth {
    /// Virtual address of the 8-byte operand, which has to be aligned to 8 bytes
    pub va: U64,
    /// R_Key of the memory region
    pub rkey: U32,
    /// `CMP_SWAP`: the swap value; `FETCH_ADD`: the value to add
    pub swap_or_add: U64,
    /// `CMP_SWAP`: the compare value; `FETCH_ADD`: ignored
    pub compare: U64,
}

impl AtomicEth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (va, rkey) = (self.va.get(), self.rkey.get());
        write!(f, "va {va:#x} rkey {rkey:#x} swap_or_add {} compare {}", self.swap_or_add, self.compare)
    }
}

/// The atomic acknowledge extended transport header, 8 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AtomicAckEth {
    /// Value of the word before the operation
    pub original: U64,
}

impl AtomicAckEth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "original {}", self.original)
    }
}

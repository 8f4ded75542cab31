//! The UDP header (RFC 768).

use core::fmt;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol number of UDP in IPv4's `protocol` and IPv6's `next_header`
pub const PROTOCOL: u8 = 17;

/// The UDP header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Udp {
    /// Source port: the entropy for ECMP (IB A17.4.5.2); hosts choose one per queue pair
    pub src_port: U16,
    /// Destination port
    pub dst_port: U16,
    /// Length of the datagram including this header, in bytes
    pub len: U16,
    /// Checksum over the pseudo-header and the datagram; 0 means none (usual for RoCEv2). Not covered by the
    /// ICRC
    pub checksum: U16,
}

impl Udp {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// Offset of the length
    pub const LENGTH_OFFSET: usize = 4;
}

impl Default for Udp {
    /// Returns a header to port 4791, from the first source port of the range that RoCEv2 uses, without
    /// checksum.
    fn default() -> Self {
        Self {
            src_port: U16::new(0xc000),
            dst_port: U16::new(crate::UDP_PORT),
            len: U16::ZERO,
            checksum: U16::ZERO,
        }
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp {} > {}", self.src_port, self.dst_port)
    }
}

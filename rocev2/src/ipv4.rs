//! The IPv4 header (RFC 791), without options. Options are accepted on the wire and skipped.

use crate::checksum::Sum;
use core::fmt;
use core::net::Ipv4Addr;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol number of an encapsulated IPv4 packet (RFC 2003), in IPv4's `protocol` and IPv6's `next_header`
pub const PROTOCOL: u8 = 4;

/// The IPv4 header up to its options, 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    /// Version (4 bits) and header length in 32-bit words (4 bits)
    pub version_ihl: u8,
    /// DSCP (6 bits) and ECN (2 bits); not covered by the ICRC
    pub tos: u8,
    /// Length of the packet including this header, in bytes
    pub total_len: U16,
    /// Identification
    pub id: U16,
    /// Flags (reserved, don't fragment, more fragments) and fragment offset in units of 8 bytes (13 bits)
    pub flags_fragment: U16,
    /// Time to live; not covered by the ICRC
    pub ttl: u8,
    /// Protocol; 17 for UDP
    pub protocol: u8,
    /// Header checksum; not covered by the ICRC
    pub checksum: U16,
    /// Source address
    pub src: [u8; 4],
    /// Destination address
    pub dst: [u8; 4],
}

impl Ipv4 {
    /// Length on the wire without options, in bytes
    pub const LEN: usize = size_of::<Self>();

    /// Returns the announced header length in bytes, 0 to 60. Values below 20 are invalid.
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    /// Returns the version, the upper four bits; 4 in an IPv4 header.
    pub fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Returns whether this packet is a fragment: more fragments follow, or it is not the first.
    pub fn is_fragment(&self) -> bool {
        self.flags_fragment.get() & 0x3fff != 0
    }

    /// Returns whether this packet is a fragment other than the first, which has no transport header.
    pub fn is_later_fragment(&self) -> bool {
        self.flags_fragment.get() & 0x1fff != 0
    }

    /// Computes and writes the header checksum, which covers `options`.
    pub fn fill_checksum(&mut self, options: &[u8]) {
        self.checksum = U16::ZERO;
        self.checksum = U16::new(Sum::default().add(self.as_bytes()).add(options).checksum());
    }

    /// Returns the ECN field (RFC 3168): 0 not ECN-capable, 1 and 2 ECN-capable, 3 congestion experienced.
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.tos & 3
    }
}

impl Default for Ipv4 {
    /// Returns the header of a UDP packet with "don't fragment" set, TTL 64, lengths and checksum 0.
    fn default() -> Self {
        Self {
            version_ihl: 0x45,
            tos: 0,
            total_len: U16::ZERO,
            id: U16::ZERO,
            flags_fragment: U16::new(0x4000),
            ttl: 64,
            protocol: crate::udp::PROTOCOL,
            checksum: U16::ZERO,
            src: [0; 4],
            dst: [0; 4],
        }
    }
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {} tos {:#04x} ttl {}",
            Ipv4Addr::from(self.src),
            Ipv4Addr::from(self.dst),
            self.tos,
            self.ttl
        )
    }
}

//! The IPv6 header (RFC 8200).

use core::fmt;
use core::net::Ipv6Addr;
use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol number of an encapsulated IPv6 packet (RFC 2473), in IPv4's `protocol` and IPv6's `next_header`
pub const PROTOCOL: u8 = 41;

/// Values of `next_header` that announce an extension header instead of a transport header.
pub mod extension {
    /// Hop-by-hop options
    pub const HOP_BY_HOP: u8 = 0;
    /// Routing
    pub const ROUTING: u8 = 43;
    /// Fragment
    pub const FRAGMENT: u8 = 44;
    /// Destination options
    pub const DESTINATION: u8 = 60;
}

/// The IPv6 header, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    /// Version (4 bits), traffic class (8), flow label (20); the ICRC covers the version only
    pub version_class_flow: U32,
    /// Length of the packet behind this header, in bytes
    pub payload_len: U16,
    /// Next header; 17 for UDP
    pub next_header: u8,
    /// Hop limit; not covered by the ICRC
    pub hop_limit: u8,
    /// Source address
    pub src: [u8; 16],
    /// Destination address
    pub dst: [u8; 16],
}

impl Ipv6 {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();

    /// Returns the version, the upper four bits; 6 in an IPv6 header.
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// Returns the traffic class: DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Returns the ECN field (RFC 3168).
    #[inline]
    pub fn ecn(&self) -> u8 {
        self.traffic_class() & 3
    }

    /// Returns the flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000f_ffff
    }
}

impl Default for Ipv6 {
    /// Returns the header of a UDP packet with hop limit 64, length 0.
    fn default() -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: U16::ZERO,
            next_header: crate::udp::PROTOCOL,
            hop_limit: 64,
            src: [0; 16],
            dst: [0; 16],
        }
    }
}

impl fmt::Display for Ipv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (src, dst) = (Ipv6Addr::from(self.src), Ipv6Addr::from(self.dst));
        write!(f, "{src} > {dst} class {:#04x} hops {}", self.traffic_class(), self.hop_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_word_is_decoded() {
        let header = Ipv6 { version_class_flow: U32::new(0x6ab1_2345), ..Ipv6::default() };
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0xab, 0x1_2345));
    }
}

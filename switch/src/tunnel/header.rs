//! IP headers of either version, with the fields that tunnels use.

use core::net::IpAddr;
use rocev2::checksum::{Sum, update};
use rocev2::ethernet::ethertype;
use rocev2::ipv4::{self, Ipv4};
use rocev2::ipv6::{self, Ipv6};
use zerocopy::FromBytes;

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of_ethertype(kind: u16) -> Option<Self> {
        match kind {
            ethertype::IPV4 => Some(Self::V4),
            ethertype::IPV6 => Some(Self::V6),
            _ => None,
        }
    }

    /// Returns the version of the IP packet that a packet with this `protocol` or `next_header` carries, or
    /// `None` if it carries none.
    pub(super) fn of_protocol(protocol: u8) -> Option<Self> {
        match protocol {
            ipv4::PROTOCOL => Some(Self::V4),
            ipv6::PROTOCOL => Some(Self::V6),
            _ => None,
        }
    }

    /// Returns the `protocol` or `next_header` that announces an encapsulated packet of this version.
    pub(super) fn protocol(self) -> u8 {
        match self {
            Self::V4 => ipv4::PROTOCOL,
            Self::V6 => ipv6::PROTOCOL,
        }
    }

    pub(super) fn ethertype(self) -> u16 {
        match self {
            Self::V4 => ethertype::IPV4,
            Self::V6 => ethertype::IPV6,
        }
    }

    /// Sets the ECN field of the packet `ip`, whose header has been read.
    pub(super) fn set_ecn(self, ip: &mut [u8], ecn: u8) {
        match self {
            Self::V4 => change_word(ip, 0, |word| word & !(3 << 16) | u32::from(ecn) << 16),
            Self::V6 => ip[1] = ip[1] & !0x30 | ecn << 4,
        }
    }

    /// Decrements the TTL or hop limit of the packet `ip`, which must not be 0.
    pub(super) fn spend_hop(self, ip: &mut [u8]) {
        match self {
            Self::V4 => change_word(ip, 8, |word| word - (1 << 24)),
            Self::V6 => ip[7] -= 1,
        }
    }
}

/// Changes a 32-bit word of an IPv4 header and updates its checksum.
fn change_word(ip: &mut [u8], at: usize, change: impl Fn(u32) -> u32) {
    let word: &mut [u8; 4] = ip[at..].first_chunk_mut().expect("Header::read() has checked the header");
    let old = u32::from_be_bytes(*word);
    // The checksum is not in one of the words that are changed.
    let new = change(old);
    *word = new.to_be_bytes();
    let checksum: &mut [u8; 2] = ip[10..].first_chunk_mut().expect("Header::read() has checked the header");
    *checksum = update(u16::from_be_bytes(*checksum), old, new).to_be_bytes();
}

/// Fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) family: Family,
    /// Length of the header, in bytes
    pub(super) len: usize,
    /// Length of the packet, in bytes
    pub(super) total: usize,
    pub(super) protocol: u8,
    pub(super) ecn: u8,
    /// Time to live or hop limit
    pub(super) hops: u8,
    pub(super) is_fragment: bool,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

impl Header {
    /// Reads the header at the start of `bytes`. Returns `None` if it is not of this version or is truncated.
    pub(super) fn read(bytes: &[u8], family: Family) -> Option<Self> {
        match family {
            Family::V4 => {
                let (ip, _) = Ipv4::ref_from_prefix(bytes).ok()?;
                let len = ip.header_len();
                let whole = ip.version() == 4 && (Ipv4::LEN..=bytes.len()).contains(&len);
                whole.then(|| Self {
                    family,
                    len,
                    total: ip.total_len.get().into(),
                    protocol: ip.protocol,
                    ecn: ip.ecn(),
                    hops: ip.ttl,
                    is_fragment: ip.is_fragment(),
                    src: IpAddr::from(ip.src),
                    dst: IpAddr::from(ip.dst),
                })
            }
            Family::V6 => {
                let (ip, _) = Ipv6::ref_from_prefix(bytes).ok()?;
                (ip.version() == 6).then(|| Self {
                    family,
                    len: Ipv6::LEN,
                    total: Ipv6::LEN + usize::from(ip.payload_len.get()),
                    protocol: ip.next_header,
                    ecn: ip.traffic_class() & 3,
                    hops: ip.hop_limit,
                    // An IPv6 fragment has an extension header, and is therefore not taken for an
                    // encapsulated packet.
                    is_fragment: false,
                    src: IpAddr::from(ip.src),
                    dst: IpAddr::from(ip.dst),
                })
            }
        }
    }

    /// Returns whether the checksum of the header at the start of `bytes` is right. IPv6 headers have none.
    pub(super) fn is_checksum_right(&self, bytes: &[u8]) -> bool {
        self.family == Family::V6 || Sum::default().add(&bytes[..self.len]).folded() == 0xffff
    }
}

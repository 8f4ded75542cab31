//! IP headers of either version, as far as tunnels look at them.

use core::net::IpAddr;
use rocev2::checksum::{Sum, update};
use rocev2::ethernet::ethertype;
use rocev2::ipv4::{self, Ipv4};
use rocev2::ipv6::{self, Ipv6};
use zerocopy::FromBytes;

/// The version of IP.
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

    /// What an IP packet with this `protocol` or `next_header` carries, if it is another IP packet.
    pub(super) fn of_protocol(protocol: u8) -> Option<Self> {
        match protocol {
            ipv4::PROTOCOL => Some(Self::V4),
            ipv6::PROTOCOL => Some(Self::V6),
            _ => None,
        }
    }

    /// The other way round
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

    /// Sets the ECN field of the packet `ip`, whose header is there.
    pub(super) fn set_ecn(self, ip: &mut [u8], ecn: u8) {
        match self {
            Self::V4 => change_word(ip, 0, |word| word & !(3 << 16) | u32::from(ecn) << 16),
            Self::V6 => ip[1] = ip[1] & !0x30 | ecn << 4,
        }
    }

    /// Takes one from the hops that the packet `ip` has left, of which there are some.
    pub(super) fn spend_hop(self, ip: &mut [u8]) {
        match self {
            Self::V4 => change_word(ip, 8, |word| word - (1 << 24)),
            Self::V6 => ip[7] -= 1,
        }
    }
}

/// Changes a 32-bit word of an IPv4 header and its checksum with it.
fn change_word(ip: &mut [u8], at: usize, change: impl Fn(u32) -> u32) {
    let word: &mut [u8; 4] = ip[at..].first_chunk_mut().expect("a header was read");
    let old = u32::from_be_bytes(*word);
    // The checksum lies in another word than those that are changed.
    let new = change(old);
    *word = new.to_be_bytes();
    let checksum: &mut [u8; 2] = ip[10..].first_chunk_mut().expect("a header was read");
    *checksum = update(u16::from_be_bytes(*checksum), old, new).to_be_bytes();
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) family: Family,
    /// Bytes of it
    pub(super) len: usize,
    /// Bytes of the packet that it begins
    pub(super) total: usize,
    pub(super) protocol: u8,
    pub(super) ecn: u8,
    /// Time to live, or hop limit
    pub(super) hops: u8,
    pub(super) is_fragment: bool,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

impl Header {
    /// Reads the header that `bytes` begin with; `None` if it is none of this version, or not all there.
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
                    // A fragment says so in a header of its own.
                    is_fragment: false,
                    src: IpAddr::from(ip.src),
                    dst: IpAddr::from(ip.dst),
                })
            }
        }
    }

    /// Whether the checksum of the header, with which `bytes` begin, is right. IPv6 has none.
    pub(super) fn is_checksum_right(&self, bytes: &[u8]) -> bool {
        self.family == Family::V6 || Sum::default().add(&bytes[..self.len]).folded() == 0xffff
    }
}

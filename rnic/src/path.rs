//! Paths between two hosts, and their MTUs.

use core::net::IpAddr;
use rocev2::ethernet::MacAddr;

/// The path MTU: the maximum payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes
    B256,
    /// 512 bytes
    B512,
    /// 1,024 bytes
    B1024,
    /// 2,048 bytes
    B2048,
    /// 4,096 bytes
    B4096,
}

impl PathMtu {
    /// Every path MTU, ascending.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Returns the MTU in bytes.
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// Returns the MTU of `bytes` bytes, if there is one.
    pub const fn of_bytes(bytes: u16) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Returns the largest path MTU that fits an Ethernet port's MTU with all headers, as Linux computes it.
    pub fn for_port(port_mtu: usize) -> Self {
        // IPv6 40, UDP 8, BTH 12, the longest extended headers 28 and 4, ICRC 4
        let room = port_mtu.saturating_sub(96);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room).unwrap_or(Self::B256)
    }
}

/// Addresses and IP attributes of the packets that a queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Local address
    pub src: IpAddr,
    /// Remote address
    pub dst: IpAddr,
    /// MAC address of the next hop; `None` to resolve it
    pub mac: Option<MacAddr>,
    /// DSCP (6 bits) and ECN (2 bits)
    pub traffic_class: u8,
    /// TTL or hop limit
    pub hop_limit: u8,
}

impl Path {
    /// Returns a path with traffic class 0 and hop limit 64.
    pub fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self { src, dst, mac: None, traffic_class: 0, hop_limit: 64 }
    }
}

/// Returns the number of packets that `len` bytes take; 0 bytes take one.
pub(crate) const fn packets_of(len: usize, mtu: usize) -> u32 {
    if len == 0 { 1 } else { len.div_ceil(mtu) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_mtus_convert_from_and_to_bytes() {
        assert_eq!(PathMtu::ALL.map(PathMtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(PathMtu::for_port(1500), PathMtu::B1024);
        assert_eq!(PathMtu::for_port(9000), PathMtu::B4096);
        assert_eq!(PathMtu::of_bytes(2048), Some(PathMtu::B2048));
    }
}

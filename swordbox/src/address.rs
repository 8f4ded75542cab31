//! Addresses of hosts as 128 bits, and indices of servers.

use core::net::IpAddr;
use rocev2::Packet;

/// Server index of a host that is no configured server
pub(crate) const NO_SERVER: u8 = u8::MAX;

/// Returns the source address of a packet; IPv4 is mapped to ::ffff:0:0/96.
#[inline]
pub(crate) fn source_of(packet: &Packet<'_>) -> u128 {
    match packet.ipv4() {
        Some(ip) => 0xffff_0000_0000 | u128::from(u32::from_be_bytes(ip.src)),
        None => packet.ipv6().map_or(0, |ip| u128::from_be_bytes(ip.src)),
    }
}

pub(crate) fn bits_of(host: IpAddr) -> u128 {
    match host {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

//! Checks of frames that no parser accepts: whether they are damaged, and what their addresses are.

use core::net::IpAddr;
use rocev2::ICRC_LEN;
use rocev2::checksum::Sum;
use rocev2::ethernet::{Ethernet, VlanTag, ethertype};
use rocev2::ipv6::Ipv6;
use rocev2::udp::{PROTOCOL as UDP, Udp};
use rocev2::{Bth, Qpn};
use zerocopy::FromBytes;

/// Returns the offset of the network layer header, and its ethertype.
fn network_of(bytes: &[u8]) -> Option<(usize, u16)> {
    let mut l3 = Ethernet::LEN;
    loop {
        let kind = u16::from_be_bytes(*bytes.get(l3 - 2..)?.first_chunk()?);
        if !ethertype::is_tag(kind) {
            return Some((l3, kind));
        }
        l3 += VlanTag::LEN;
    }
}

/// Returns whether a frame is an IPv4 packet with a wrong header checksum.
pub(crate) fn has_wrong_checksum(bytes: &[u8]) -> bool {
    let Some((l3, ethertype::IPV4)) = network_of(bytes) else { return false };
    let len = bytes.get(l3).map_or(0, |first| usize::from(first & 0x0f) * 4);
    bytes.get(l3..l3 + len).is_none_or(|header| Sum::default().add(header).folded() != 0xffff)
}

/// Returns whether a packet with an unknown opcode, whose headers are valid otherwise, has a wrong ICRC.
pub(crate) fn has_wrong_icrc(bytes: &[u8]) -> bool {
    let Some((l3, kind)) = network_of(bytes) else { return false };
    let field = |at: usize| {
        bytes.get(l3 + at..).and_then(|bytes| bytes.first_chunk()).map(|len| u16::from_be_bytes(*len))
    };
    let (udp, len) = match kind {
        ethertype::IPV4 => (bytes.get(l3).map_or(0, |first| usize::from(first & 0x0f) * 4), field(2)),
        // Extension headers are not parsed here.
        ethertype::IPV6 if bytes.get(l3 + 6) == Some(&UDP) => {
            (Ipv6::LEN, field(4).map(|len| len + Ipv6::LEN as u16))
        }
        _ => return false,
    };
    let packet = len.and_then(|len| bytes.get(l3..l3 + usize::from(len)));
    let Some((packet, icrc)) = packet.and_then(|packet| packet.split_last_chunk::<ICRC_LEN>()) else {
        return false;
    };
    rocev2::icrc::compute_for(packet, kind == ethertype::IPV6, udp) != u32::from_le_bytes(*icrc)
}

/// Returns the source and destination address and the destination queue pair of a malformed packet, as far as
/// they can be parsed.
pub(crate) fn addresses_of(bytes: &[u8]) -> Option<(IpAddr, IpAddr, Qpn)> {
    fn address<const N: usize>(bytes: &[u8], at: usize) -> Option<IpAddr>
    where
        [u8; N]: Into<IpAddr>,
    {
        Some((*bytes.get(at..)?.first_chunk::<N>()?).into())
    }
    let (l3, kind) = network_of(bytes)?;
    let (from, host, l4) = match kind {
        ethertype::IPV4 => {
            let l4 = l3 + usize::from(bytes.get(l3)? & 0x0f) * 4;
            (address::<4>(bytes, l3 + 12)?, address::<4>(bytes, l3 + 16)?, l4)
        }
        ethertype::IPV6 => (address::<16>(bytes, l3 + 8)?, address::<16>(bytes, l3 + 24)?, l3 + Ipv6::LEN),
        _ => return None,
    };
    let bth: &[u8; Bth::LEN] = bytes.get(l4 + Udp::LEN..)?.first_chunk()?;
    Some((from, host, Bth::ref_from_bytes(bth).ok()?.dest_qp()))
}

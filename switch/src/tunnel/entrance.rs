//! The other end of tunnels: what is put in front of a packet.

use super::header::{Family, Header};
use core::net::IpAddr;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use zerocopy::IntoBytes;

/// Why a packet cannot be put into tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntranceError {
    /// It is no IP packet
    #[error("what is to go into the tunnel is no IP packet")]
    NoPacket,
    /// The ends of one of the tunnels have addresses of different versions
    #[error("a tunnel from {0} to {1}: the addresses are of different versions of IP")]
    Versions(IpAddr, IpAddr),
    /// An IP packet has less than 65,536 bytes
    #[error("the packet would be longer than IP can say")]
    TooLong,
}

/// Whether there can be such tunnels at all, from one address to another.
pub fn check(tunnels: &[(IpAddr, IpAddr)]) -> Result<(), EntranceError> {
    match tunnels.iter().find(|(src, dst)| src.is_ipv6() != dst.is_ipv6()) {
        Some(&(src, dst)) => Err(EntranceError::Versions(src, dst)),
        None => Ok(()),
    }
}

/// The headers that put the IP packet `packet` into tunnels from one address to another, the outermost first; they stand in
/// front of it in this order. Each has the packet's DSCP, so that it waits in the queues in which the packet itself would, and its
/// ECN field (RFC 6040, normal mode).
pub fn headers(tunnels: &[(IpAddr, IpAddr)], packet: &[u8]) -> Result<Vec<u8>, EntranceError> {
    let inner = [Family::V4, Family::V6].into_iter().find_map(|family| Header::read(packet, family));
    let inner = inner.ok_or(EntranceError::NoPacket)?;
    let class = match inner.family {
        Family::V4 => packet[1],
        Family::V6 => packet[0] << 4 | packet[1] >> 4,
    };
    let (mut protocol, mut total) = (inner.family.protocol(), inner.total);
    let mut inwards = Vec::with_capacity(tunnels.len());
    for &(src, dst) in tunnels.iter().rev() {
        let carried = u16::try_from(total).map_err(|_| EntranceError::TooLong)?;
        let header = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                total += Ipv4::LEN;
                let total_len = u16::try_from(total).map_err(|_| EntranceError::TooLong)?.into();
                let (src, dst) = (src.octets(), dst.octets());
                let mut ip = Ipv4 { tos: class, total_len, protocol, src, dst, ..Ipv4::default() };
                ip.fill_checksum(&[]);
                protocol = Family::V4.protocol();
                ip.as_bytes().to_vec()
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                total += Ipv6::LEN;
                let ip = Ipv6 {
                    version_class_flow: (6 << 28 | u32::from(class) << 20).into(),
                    payload_len: carried.into(),
                    next_header: protocol,
                    src: src.octets(),
                    dst: dst.octets(),
                    ..Ipv6::default()
                };
                protocol = Family::V6.protocol();
                ip.as_bytes().to_vec()
            }
            (src, dst) => return Err(EntranceError::Versions(src, dst)),
        };
        inwards.push(header);
    }
    inwards.reverse();
    Ok(inwards.concat())
}

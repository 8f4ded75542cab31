//! Tunnel ingress: the outer headers to put in front of a packet.

use super::header::{Family, Header};
use core::net::IpAddr;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use zerocopy::IntoBytes;

/// The reason why a packet cannot be encapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncapsulationError {
    /// The payload is not an IP packet
    #[error("the packet to encapsulate is not an IP packet")]
    NoPacket,
    /// The addresses of a tunnel are of different IP versions
    #[error("tunnel from {0} to {1}: the addresses are of different IP versions")]
    Versions(IpAddr, IpAddr),
    /// The IP packet would be longer than 65,535 bytes
    #[error("the encapsulated packet would be longer than 65,535 bytes")]
    TooLong,
}

/// Checks that both addresses of each tunnel (source, destination) are of the same IP version.
pub fn check_tunnels(tunnels: &[(IpAddr, IpAddr)]) -> Result<(), EncapsulationError> {
    match tunnels.iter().find(|(src, dst)| src.is_ipv6() != dst.is_ipv6()) {
        Some(&(src, dst)) => Err(EncapsulationError::Versions(src, dst)),
        None => Ok(()),
    }
}

/// Returns the headers that encapsulate the IP packet `packet` in tunnels (source, destination), the
/// outermost first, to be put in front of it. Each header copies the packet's DSCP, so that it is queued like
/// the packet itself, and its ECN field (RFC 6040, normal mode).
pub fn encapsulation_headers(
    tunnels: &[(IpAddr, IpAddr)],
    packet: &[u8],
) -> Result<Vec<u8>, EncapsulationError> {
    let inner = [Family::V4, Family::V6].into_iter().find_map(|family| Header::read(packet, family));
    let inner = inner.ok_or(EncapsulationError::NoPacket)?;
    let class = match inner.family {
        Family::V4 => packet[1],
        Family::V6 => packet[0] << 4 | packet[1] >> 4,
    };
    let (mut protocol, mut total) = (inner.family.protocol(), inner.total);
    let mut inwards = Vec::with_capacity(tunnels.len());
    for &(src, dst) in tunnels.iter().rev() {
        let carried = u16::try_from(total).map_err(|_| EncapsulationError::TooLong)?;
        let header = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                total += Ipv4::LEN;
                let total_len = u16::try_from(total).map_err(|_| EncapsulationError::TooLong)?.into();
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
            (src, dst) => return Err(EncapsulationError::Versions(src, dst)),
        };
        inwards.push(header);
    }
    inwards.reverse();
    Ok(inwards.concat())
}

//! Address resolution requests: ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861).

use crate::ethernet::{Ethernet, VlanTag, ethertype};
use crate::ipv6::Ipv6;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Offset of the target's address in an ARP packet for IPv4 on Ethernet
const ARP_TARGET: usize = 24;
const ICMPV6: u8 = 58;
const NEIGHBOUR_SOLICITATION: u8 = 135;

/// Returns the address to be resolved by an ARP packet or a neighbour solicitation, or `None` for any other
/// frame.
pub fn resolution_target(frame: &[u8]) -> Option<IpAddr> {
    let mut kind = u16::from_be_bytes(*frame.get(12..Ethernet::LEN)?.first_chunk()?);
    let mut rest = &frame[Ethernet::LEN..];
    if ethertype::is_tag(kind) {
        kind = u16::from_be_bytes(*rest.get(2..)?.first_chunk()?);
        rest = rest.get(VlanTag::LEN..)?;
    }
    match kind {
        ethertype::ARP => Some(Ipv4Addr::from(*rest.get(ARP_TARGET..)?.first_chunk::<4>()?).into()),
        ethertype::IPV6 if *rest.get(6)? == ICMPV6 && *rest.get(Ipv6::LEN)? == NEIGHBOUR_SOLICITATION => {
            Some(Ipv6Addr::from(*rest.get(Ipv6::LEN + 8..)?.first_chunk::<16>()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_arp_and_solicitations_are_found() {
        let arp: Vec<u8> = (0..28).collect();
        let mut solicitation = vec![0u8; Ipv6::LEN + 24];
        solicitation[6] = ICMPV6;
        solicitation[Ipv6::LEN] = NEIGHBOUR_SOLICITATION;
        solicitation[Ipv6::LEN + 23] = 9;
        let cases = [
            (ethertype::ARP, arp, IpAddr::from([24, 25, 26, 27])),
            (ethertype::IPV6, solicitation, Ipv6Addr::from(9).into()),
        ];
        for (kind, packet, expected) in cases {
            for tag in [&[][..], &[0x81, 0, 0, 7]] {
                let frame = [&[2; 12], tag, &kind.to_be_bytes(), &packet].concat();
                assert_eq!(resolution_target(&frame), Some(expected), "{tag:?}");
                for len in 0..frame.len() {
                    // The last bytes of a solicitation, if any, are options.
                    let target = resolution_target(&frame[..len]);
                    assert!(target.is_none() || target == Some(expected), "{len} bytes");
                }
                let other = [&[2; 12], tag, &[8, 0], &packet].concat();
                assert_eq!(resolution_target(&other), None);
            }
        }
    }
}

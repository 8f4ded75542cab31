//! Headers up to UDP that an endpoint builds once for each path to a peer, and emits with each packet.

use crate::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::layout::ICRC_LEN;
use crate::repr::Ip;
use crate::template::IpLengths;
use crate::udp::Udp;
use crate::{Bth, UDP_PORT, icrc};
use core::net::IpAddr;
use zerocopy::IntoBytes;
use zerocopy::byteorder::network_endian::U16;

/// Length of the longest headers: Ethernet, one VLAN tag, IPv6, UDP
const MAX: usize = Ethernet::LEN + VlanTag::LEN + Ipv6::LEN + Udp::LEN;

/// Headers in front of the BTH of all packets on one path, which differ in lengths and checksums only.
#[derive(Clone, Copy, Debug)]
pub struct PathHeaders {
    headers: [u8; MAX],
    len: u8,
    l3: u8,
    v6: bool,
    lengths: IpLengths,
}

/// Fields of the headers of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathHeaderFields {
    /// The sender's MAC address
    pub src_mac: MacAddr,
    /// MAC address of the next hop
    pub dst_mac: MacAddr,
    /// TCI (priority and VLAN) of the VLAN tag, if there is one
    pub vlan: Option<u16>,
    /// The sender's IP address
    pub src: IpAddr,
    /// The receiver's IP address, of the same family
    pub dst: IpAddr,
    /// DSCP (6 bits) and ECN (2 bits)
    pub traffic_class: u8,
    /// Hop limit (TTL)
    pub hop_limit: u8,
    /// UDP source port, from which switches select among equal-cost paths
    pub src_port: u16,
}

impl PathHeaders {
    /// Builds the headers. Returns `None` if the addresses are of different families.
    pub fn new(ends: &PathHeaderFields) -> Option<Self> {
        let mut headers = [0; MAX];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            headers[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        let v6 = ends.dst.is_ipv6();
        if ends.src.is_ipv6() != v6 {
            return None;
        }
        let ip = Ip::between(ends.src, ends.dst, ends.traffic_class);
        let kind = U16::new(ip.ethertype());
        let first = if ends.vlan.is_some() { U16::new(ethertype::VLAN) } else { kind };
        put(Ethernet { dst: ends.dst_mac, src: ends.src_mac, ethertype: first }.as_bytes());
        if let Some(tci) = ends.vlan {
            put(VlanTag { tci: U16::new(tci), ethertype: kind }.as_bytes());
        }
        let mut lengths = IpLengths::V6;
        match ip {
            Ip::V4(ip, _) => {
                let ip = Ipv4 { ttl: ends.hop_limit, ..ip };
                lengths = IpLengths::of(ip);
                put(ip.as_bytes());
            }
            Ip::V6(ip, _) => put(Ipv6 { hop_limit: ends.hop_limit, ..ip }.as_bytes()),
        }
        let udp = Udp { src_port: U16::new(ends.src_port), dst_port: U16::new(UDP_PORT), ..Udp::default() };
        put(udp.as_bytes());
        let len = at as u8;
        let ip_len = if v6 { Ipv6::LEN } else { Ipv4::LEN };
        Some(Self { headers, len, l3: len - (Udp::LEN + ip_len) as u8, v6, lengths })
    }

    /// Writes a packet into `frame`, whose contents are replaced: headers, BTH (with the pad count set),
    /// extended headers, payload, padding and ICRC.
    #[inline]
    pub fn emit(&mut self, frame: &mut Vec<u8>, mut bth: Bth, extended: &[&[u8]], payload: &[u8]) {
        let pad = payload.len().wrapping_neg() % 4;
        bth.set_pad_count(pad as u8);
        let (l3, headers) = (usize::from(self.l3), usize::from(self.len));
        let extended_len: usize = extended.iter().map(|header| header.len()).sum();
        let end = headers + Bth::LEN + extended_len + payload.len() + pad;
        // Resizes once: pushing piece by piece would check the capacity each time. Every byte is overwritten
        // below.
        frame.resize(end + ICRC_LEN, 0);
        frame[..headers].copy_from_slice(&self.headers[..headers]);
        let (field, mut rest) = frame[headers..end].split_at_mut(Bth::LEN);
        field.copy_from_slice(bth.as_bytes());
        for header in extended {
            let (field, behind) = rest.split_at_mut(header.len());
            field.copy_from_slice(header);
            rest = behind;
        }
        let (field, padding) = rest.split_at_mut(payload.len());
        field.copy_from_slice(payload);
        padding.fill(0);
        let udp = headers - Udp::LEN;
        let udp_len = (end + ICRC_LEN - udp) as u16;
        self.lengths.write(frame, self.v6, (l3, udp), udp_len);
        let icrc = icrc::compute_for(&frame[l3..end], self.v6, udp - l3);
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opcode, Packet, Psn, Qpn};

    #[test]
    fn emitted_frames_are_valid_for_every_payload_length() {
        let addresses = [["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]];
        for (pair, vlan) in addresses.into_iter().flat_map(|pair| [(pair, None), (pair, Some(0x6005))]) {
            let ends = PathHeaderFields {
                src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
                dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
                vlan,
                src: pair[0].parse().unwrap(),
                dst: pair[1].parse().unwrap(),
                traffic_class: 0x6a,
                hop_limit: 9,
                src_port: 0xc123,
            };
            let mut headers = PathHeaders::new(&ends).unwrap();
            let mut frame = vec![0xa5; 150];
            for len in 0..40u8 {
                let payload: Vec<u8> = (0..len).collect();
                let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x1234), Psn::new(7));
                headers.emit(&mut frame, bth, &[], &payload);
                let packet = Packet::parse(&frame).expect("a packet");
                assert!(packet.verify_icrc());
                let padding = frame.len() - 4 - usize::from(packet.bth().pad_count())..frame.len() - 4;
                assert!(frame[padding].iter().all(|&byte| byte == 0));
                assert_eq!(
                    (packet.payload(), packet.src(), packet.dst()),
                    (&payload[..], ends.src, ends.dst)
                );
                assert_eq!(packet.tags().first().map(|tag| tag.tci.get()), vlan);
                assert_eq!(packet.udp().src_port.get(), 0xc123);
                assert_eq!(packet.layout().end(), frame.len());
            }
        }
    }
}

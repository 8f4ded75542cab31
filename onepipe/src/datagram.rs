//! 1Pipe datagrams without options, to and from one queue pair: nearly everything that a process sends and
//! receives (1Pipe, section 6.1).
//!
//! Without VLAN tags, IPv4 options and IPv6 extension headers, the offset of every header is known in
//! advance. The headers are therefore copied in one piece when sending ([`Template`]), and checked with one
//! masked comparison when receiving ([`Expected`]).

use crate::header::OnePipe;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rocev2::checksum;
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::path_headers::PathHeaders;
use rocev2::template::IpLengths;
use rocev2::udp::{self, Udp};
use rocev2::{Bth, MAX_PAYLOAD, Opcode, Qpn, UDP_PORT, icrc};
use rocev2::{ICRC_LEN, Packet};
use zerocopy::{FromBytes, IntoBytes};

/// Returns the offset of the UDP header.
const fn udp_offset(v6: bool) -> usize {
    Ethernet::LEN + if v6 { Ipv6::LEN } else { Ipv4::LEN }
}

/// Returns the length of all headers in front of the payload, in bytes.
const fn headers_len(v6: bool) -> usize {
    udp_offset(v6) + Udp::LEN + Bth::LEN + Deth::LEN
}

const HEADERS_V4: usize = headers_len(false);
const HEADERS_V6: usize = headers_len(true);
/// Offset of the pad count's byte in the BTH, and its bits
const PAD: usize = 1;
const PAD_BITS: u8 = 0x30;
/// Offset of the PSN's three bytes in the BTH
const PSN: usize = 9;

/// Headers of the datagrams to one receiver. It is a [`PathHeaders`] for one opcode, with a copy of constant
/// length instead of one of each header: a process sends little else.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    headers: [u8; HEADERS_V6],
    v6: bool,
    lengths: IpLengths,
}

impl Template {
    /// Prepares datagrams from `src_qp` to `dest_qp`.
    pub fn new(mut path_headers: PathHeaders, dest_qp: Qpn, qkey: u32, src_qp: Qpn) -> Self {
        let bth = Bth::new(Opcode::UD_SEND_ONLY, dest_qp, rocev2::Psn::ZERO);
        let mut frame = Vec::new();
        path_headers.emit(&mut frame, bth, &[Deth::new(qkey, src_qp).as_bytes()], &[]);
        let packet = Packet::parse(&frame).expect("path headers emit valid packets");
        let v6 = packet.layout().is_ipv6();
        assert_eq!(packet.layout().payload(), headers_len(v6), "the headers have a VLAN tag");
        let lengths = packet.ipv4().copied().map_or(IpLengths::V6, IpLengths::of);
        let mut template = Self { headers: [0; HEADERS_V6], v6, lengths };
        template.headers[..headers_len(v6)].copy_from_slice(&frame[..headers_len(v6)]);
        template
    }

    /// Writes a datagram into `frame`, whose contents are replaced. Emitting is faster if `frame` already has
    /// the right length.
    #[inline]
    pub fn emit(&mut self, frame: &mut Vec<u8>, header: &OnePipe, payload: &[u8]) {
        if self.v6 {
            self.write::<true, HEADERS_V6>(frame, header, payload);
        } else {
            self.write::<false, HEADERS_V4>(frame, header, payload);
        }
    }

    #[inline]
    fn write<const IS_V6: bool, const LEN: usize>(
        &mut self,
        frame: &mut Vec<u8>,
        header: &OnePipe,
        payload: &[u8],
    ) {
        let pad = payload.len().wrapping_neg() % 4;
        let end = LEN + OnePipe::LEN + payload.len() + pad;
        if frame.len() != end + ICRC_LEN {
            frame.resize(end + ICRC_LEN, 0);
        }
        let (head, rest) = frame.split_first_chunk_mut::<LEN>().expect("it is longer");
        head.copy_from_slice(&self.headers[..LEN]);
        let (field, rest) = rest.split_first_chunk_mut::<{ OnePipe::LEN }>().expect("it is longer");
        field.copy_from_slice(header.as_bytes());
        let (field, rest) = rest.split_at_mut(payload.len());
        field.copy_from_slice(payload);
        rest[..pad].fill(0);
        let (udp, bth) = (const { udp_offset(IS_V6) }, const { udp_offset(IS_V6) + Udp::LEN });
        head[bth + PAD] |= (pad as u8) << PAD_BITS.trailing_zeros();
        head[bth + PSN..bth + PSN + 3].copy_from_slice(&header.psn().to_wire());
        let udp_len = (end + ICRC_LEN - udp) as u16;
        self.lengths.write(head, IS_V6, (Ethernet::LEN, udp), udp_len);
        let icrc = icrc_of::<IS_V6>(&frame[Ethernet::LEN..end]);
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
    }
}

/// Returns the ICRC of a packet without IPv4 options and IPv6 extension headers.
#[inline]
fn icrc_of<const IS_V6: bool>(packet: &[u8]) -> u32 {
    icrc::compute_inline(packet, IS_V6, const { udp_offset(IS_V6) - Ethernet::LEN })
}

/// A received datagram whose ICRC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source address
    pub src: IpAddr,
    /// Source queue pair
    pub src_qp: Qpn,
    /// Destination queue pair
    pub dest_qp: Qpn,
    /// ECN field of the IP header (RFC 3168)
    pub ecn: u8,
    /// 1Pipe header at the start of the payload
    pub header: &'a OnePipe,
    /// Payload behind the 1Pipe header
    pub payload: &'a [u8],
}

/// Number of 64-bit words that are compared: up to and including the Q_Key
const WORDS: usize = (HEADERS_V6 - 4).div_ceil(8);
const WORDS_V4: usize = (HEADERS_V4 - 4).div_ceil(8);
type Words = [u64; WORDS];

/// The header bytes that all datagrams for an address have in common, and its queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    words: Words,
    mask: Words,
    qpns: [Qpn; 2],
    v6: bool,
}

impl Expected {
    /// Expects datagrams to this queue pair, with this Q_Key.
    pub fn new(mac: MacAddr, address: IpAddr, qpn: Qpn, qkey: u32) -> Self {
        let v6 = address.is_ipv6();
        let (mut bytes, mut mask) = ([0; WORDS * 8], [0; WORDS * 8]);
        let mut expect = |at: usize, expected: &[u8], ones: &[u8]| {
            bytes[at..at + expected.len()].copy_from_slice(expected);
            mask[at..at + ones.len()].copy_from_slice(ones);
        };
        let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let ip = Ethernet::LEN;
        expect(0, &mac.0, &[0xff; 6]);
        expect(ip - 2, &kind.to_be_bytes(), &[0xff; 2]);
        match address {
            IpAddr::V4(address) => {
                expect(ip, &[0x45], &[0xff]);
                // Not a fragment
                expect(ip + 6, &[0, 0], &[0x3f, 0xff]);
                expect(ip + 9, &[udp::PROTOCOL], &[0xff]);
                expect(ip + 16, &address.octets(), &[0xff; 4]);
            }
            IpAddr::V6(address) => {
                expect(ip, &[0x60], &[0xf0]);
                expect(ip + 6, &[udp::PROTOCOL], &[0xff]);
                expect(ip + 24, &address.octets(), &[0xff; 16]);
            }
        }
        let bth = udp_offset(v6) + Udp::LEN;
        expect(udp_offset(v6) + 2, &UDP_PORT.to_be_bytes(), &[0xff; 2]);
        expect(bth, &[Opcode::UD_SEND_ONLY.0], &[0xff]);
        // Transport header version 0
        expect(bth + PAD, &[0], &[0x0f]);
        expect(bth + Bth::LEN, &qkey.to_be_bytes(), &[0xff; 4]);
        let words = |bytes: [u8; WORDS * 8]| {
            core::array::from_fn(|n| {
                u64::from_ne_bytes(*bytes[8 * n..].first_chunk().expect("bytes holds WORDS words"))
            })
        };
        Self { words: words(bytes), mask: words(mask), qpns: [qpn; 2], v6 }
    }

    /// Expects datagrams to another queue pair, too, in place of any other one but the first.
    pub const fn set_other(&mut self, qpn: Qpn) {
        self.qpns[1] = qpn;
    }

    /// Reads a datagram for one of the queue pairs and verifies its checksums. `None` means only that the frame has
    /// to be parsed and checked in full.
    #[expect(clippy::inline_always, reason = "a call would pass the datagram through memory")]
    #[inline(always)]
    pub fn read<'a>(&self, frame: &'a [u8]) -> Option<Datagram<'a>> {
        if self.v6 {
            self.read_as::<true, HEADERS_V6, WORDS>(frame)
        } else {
            self.read_as::<false, HEADERS_V4, WORDS_V4>(frame)
        }
    }

    #[expect(clippy::inline_always, reason = "part of `read`")]
    #[inline(always)]
    fn read_as<'a, const IS_V6: bool, const LEN: usize, const COMPARED: usize>(
        &self,
        frame: &'a [u8],
    ) -> Option<Datagram<'a>> {
        let (head, rest) = frame.split_first_chunk::<LEN>()?;
        let (header, _) = OnePipe::ref_from_prefix(rest).ok()?;
        let words = frame.as_chunks::<8>().0.first_chunk::<COMPARED>()?;
        let mut differs = 0;
        for (n, &word) in words.iter().enumerate() {
            differs |= (u64::from_ne_bytes(word) ^ self.words[n]) & self.mask[n];
        }
        let at = |n: usize| u16::from_be_bytes([head[n], head[n + 1]]);
        let (udp, bth) = (const { udp_offset(IS_V6) }, const { udp_offset(IS_V6) + Udp::LEN });
        let dest_qp = Qpn::from_wire([head[bth + 5], head[bth + 6], head[bth + 7]]);
        let udp_len = at(udp + Udp::LENGTH_OFFSET);
        let lengths_fit = if IS_V6 {
            udp_len == at(Ethernet::LEN + 4)
        } else {
            let ip: &[u8; Ipv4::LEN] = head[Ethernet::LEN..].first_chunk()?;
            at(Ethernet::LEN + 2) == udp_len.wrapping_add(Ipv4::LEN as u16) && checksum::is_valid(ip)
        };
        let pad = usize::from((head[bth + PAD] & PAD_BITS) >> PAD_BITS.trailing_zeros());
        // Length of the payload behind the DETH, and of the message behind the 1Pipe header
        let icrc = (udp + usize::from(udp_len)).checked_sub(ICRC_LEN)?;
        let payload = icrc.checked_sub(LEN)?;
        let message = payload.checked_sub(OnePipe::LEN + pad)?;
        let is_ours = dest_qp == self.qpns[0] || dest_qp == self.qpns[1];
        if differs != 0 || !is_ours || !lengths_fit || !payload.is_multiple_of(4) || payload > MAX_PAYLOAD {
            return None;
        }
        let packet = frame.get(Ethernet::LEN..icrc)?;
        let carried = frame.get(icrc..)?.first_chunk::<ICRC_LEN>()?;
        if icrc_of::<IS_V6>(packet) != u32::from_le_bytes(*carried) {
            return None;
        }
        let from = |at: usize| &head[Ethernet::LEN + at..];
        let (src, ecn) = if IS_V6 {
            (Ipv6Addr::from(*from(8).first_chunk::<16>()?).into(), from(1)[0] >> 4)
        } else {
            (Ipv4Addr::from(*from(12).first_chunk::<4>()?).into(), from(1)[0])
        };
        let src_qp = Qpn::from_wire(*head[LEN - 3..].first_chunk()?);
        Some(Datagram {
            src,
            src_qp,
            dest_qp,
            ecn: ecn & 3,
            header,
            payload: rest.get(OnePipe::LEN..)?.get(..message)?,
        })
    }
}

#[cfg(test)]
mod tests;

//! Classification of a frame: finds the headers once and checks them, so that all later access cannot fail.
//! [`classify`] is the entry point; [`Packet`] gives access to the headers.

use crate::aeth::Aeth;
use crate::atomic::{AtomicAckEth, AtomicEth};
use crate::checksum::{self, Sum};
use crate::deth::Deth;
use crate::ethernet::{Ethernet, VlanTag, ethertype};
use crate::immediate::{Ieth, ImmDt};
use crate::ipv4::Ipv4;
use crate::ipv6::{Ipv6, extension};
use crate::layout::{ICRC_LEN, Layout};
use crate::opcode::Headers;
use crate::reth::Reth;
use crate::udp::{self, Udp};
use crate::{Bth, MAX_PAYLOAD, Opcode, UDP_PORT, icrc};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Maximum number of VLAN tags that [`classify`] skips; frames with more than a service and a customer tag do
/// not occur in practice
pub const MAX_TAGS: usize = 3;
/// Maximum number of IPv6 extension headers that [`classify`] skips
const MAX_EXTENSIONS: usize = 4;

/// Classification of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A RoCEv2 packet with valid headers
    Roce(Layout),
    /// Any other protocol: ARP, TCP, another UDP port
    Other,
    /// A malformed IP packet, or a RoCEv2 packet that fails a check
    Malformed(Fault),
}

/// The reason why a frame does not parse or fails a check. A test covers each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Fault {
    /// The frame is shorter than its headers, or than the length in its IP header
    #[error("the frame is shorter than its headers announce")]
    Truncated,
    /// The IP version does not match the EtherType, or the IPv4 header length is below 20
    #[error("wrong IP version or header length")]
    IpHeader,
    /// The IP length is too short for the headers that follow
    #[error("the IP length is too short for the headers that follow")]
    IpLength,
    /// The IPv4 header checksum is wrong
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// The packet is an IP fragment; RoCEv2 is never fragmented (IB A17.4.4)
    #[error("IP fragment")]
    Fragment,
    /// The UDP length does not match the IP length
    #[error("the UDP length does not match the IP length")]
    UdpLength,
    /// The UDP checksum is present and wrong
    #[error("wrong UDP checksum")]
    UdpChecksum,
    /// The transport header version is not 0
    #[error("transport header version is not 0")]
    TransportVersion,
    /// The opcode is neither of RC, UC or UD nor the CNP
    #[error("unknown opcode")]
    UnknownOpcode,
    /// The packet is too short for the opcode's headers, or has a payload that the opcode does not allow
    #[error("the length does not match the opcode")]
    OpcodeLength,
    /// Payload and padding are not a multiple of four bytes, or the padding is longer than the payload
    #[error("payload and padding are not a multiple of four bytes")]
    Unaligned,
    /// The payload is longer than the largest path MTU, 4,096 bytes
    #[error("the payload is longer than 4096 bytes")]
    Oversized,
    /// The ICRC is wrong
    #[error("wrong ICRC")]
    Icrc,
}

impl Fault {
    /// Every fault, in the order of the checks.
    pub const ALL: [Self; 13] = [
        Self::Truncated,
        Self::IpHeader,
        Self::IpLength,
        Self::IpChecksum,
        Self::Fragment,
        Self::UdpLength,
        Self::UdpChecksum,
        Self::TransportVersion,
        Self::UnknownOpcode,
        Self::OpcodeLength,
        Self::Unaligned,
        Self::Oversized,
        Self::Icrc,
    ];

    /// Returns the name used for counters: `truncated`, `ip_checksum`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::IpHeader => "ip_header",
            Self::IpLength => "ip_length",
            Self::IpChecksum => "ip_checksum",
            Self::Fragment => "fragment",
            Self::UdpLength => "udp_length",
            Self::UdpChecksum => "udp_checksum",
            Self::TransportVersion => "transport_version",
            Self::UnknownOpcode => "unknown_opcode",
            Self::OpcodeLength => "opcode_length",
            Self::Unaligned => "unaligned",
            Self::Oversized => "oversized",
            Self::Icrc => "icrc",
        }
    }
}

/// Returns a view of a `T` at offset `at`, or `None` beyond the end.
#[inline]
fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8], at: usize) -> Option<&T> {
    T::ref_from_bytes(bytes.get(at..at + size_of::<T>())?).ok()
}

/// Finds the headers of an Ethernet frame and checks that they are consistent. The IPv4 header checksum is
/// verified. The UDP checksum and the ICRC, which need the whole packet, are not: see
/// [`Packet::verify_udp_checksum`] and [`Packet::verify_icrc`].
#[inline(always)]
pub fn classify(frame: &[u8]) -> Class {
    // By far the most frames have no tag and IPv4 without options. Their offsets are constants.
    const PLAIN: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN + Bth::LEN;
    match frame.first_chunk::<PLAIN>() {
        Some(head) if head[12..15] == [0x08, 0x00, 0x45] => classify_udp(frame, Ethernet::LEN, Ipv4::LEN),
        _ => classify_any(frame),
    }
}

/// Returns the offset of the BTH of a RoCEv2 frame without VLAN tags, IPv4 options and IPv6 extension headers, without
/// any check: a quick look at fields of nearly all packets, before [`classify`] finds those that are malformed. Returns
/// `None` for all other frames.
#[inline]
pub fn usual_bth(frame: &[u8]) -> Option<usize> {
    const IP: usize = Ethernet::LEN;
    let head = frame.first_chunk::<{ IP + Ipv4::LEN + Udp::LEN + Bth::LEN }>()?;
    let (l4, protocol) = match head[12..15] {
        [0x08, 0x00, 0x45] => (IP + Ipv4::LEN, head[IP + 9]),
        [0x86, 0xdd, 0x60..=0x6f] => (IP + Ipv6::LEN, head[IP + 6]),
        _ => return None,
    };
    let bth = l4 + Udp::LEN;
    let is_long_enough = frame.len() >= bth + Bth::LEN;
    let is_roce =
        is_long_enough && protocol == udp::PROTOCOL && frame[l4 + 2..l4 + 4] == UDP_PORT.to_be_bytes();
    is_roce.then_some(bth)
}

/// Returns the destination queue pair of a RoCEv2 packet; that of one with the usual headers, also if it is malformed.
#[inline]
pub fn destination_qp(frame: &[u8]) -> Option<crate::Qpn> {
    if let Some(bth) = usual_bth(frame) {
        let word = frame.get(bth + Bth::DEST_QP_WORD..)?.first_chunk()?;
        return Some(crate::Qpn::new(u32::from_be_bytes(*word)));
    }
    let Class::Roce(layout) = classify(frame) else { return None };
    Some(Packet::new(frame, layout).bth().dest_qp())
}

#[inline(never)]
fn classify_any(frame: &[u8]) -> Class {
    let mut l3 = Ethernet::LEN;
    if frame.len() < l3 {
        return Class::Malformed(Fault::Truncated);
    }
    for _ in 0..=MAX_TAGS {
        // The EtherType is the last field of both the Ethernet header and a tag.
        let kind = u16::from_be_bytes([frame[l3 - 2], frame[l3 - 1]]);
        if !ethertype::is_tag(kind) {
            return classify_ip(frame, l3, kind);
        }
        l3 += VlanTag::LEN;
        if frame.len() < l3 {
            return Class::Malformed(Fault::Truncated);
        }
    }
    Class::Other
}

/// Classifies an IP packet without regard to an Ethernet header. The packet begins at offset `l3` and has
/// this EtherType.
pub fn classify_ip(frame: &[u8], l3: usize, kind: u16) -> Class {
    match kind {
        ethertype::IPV4 => classify_ipv4(frame, l3),
        ethertype::IPV6 => classify_ipv6(frame, l3),
        _ => Class::Other,
    }
}

fn classify_ipv4(frame: &[u8], l3: usize) -> Class {
    let Some(ip) = view::<Ipv4>(frame, l3) else { return Class::Malformed(Fault::Truncated) };
    if ip.version() != 4 || ip.header_len() < Ipv4::LEN {
        return Class::Malformed(Fault::IpHeader);
    }
    classify_udp(frame, l3, ip.header_len())
}

/// Classifies an IPv4 packet with a header of `header_len` bytes.
#[expect(clippy::inline_always, reason = "constant offsets need no bounds checks")]
#[inline(always)]
fn classify_udp(frame: &[u8], l3: usize, header_len: usize) -> Class {
    let Some(ip) = view::<Ipv4>(frame, l3) else { return Class::Malformed(Fault::Truncated) };
    if ip.protocol != udp::PROTOCOL || ip.is_later_fragment() {
        return Class::Other;
    }
    let l4 = l3 + header_len;
    let Some(udp) = view::<Udp>(frame, l4) else { return Class::Malformed(Fault::Truncated) };
    if udp.dst_port.get() != UDP_PORT {
        return Class::Other;
    }
    // Almost all headers have this length, and a constant length is faster.
    let right = match frame[l3..l4].first_chunk::<{ Ipv4::LEN }>() {
        Some(header) if header_len == Ipv4::LEN => checksum::is_valid(header),
        _ => Sum::default().add(&frame[l3..l4]).folded() == 0xffff,
    };
    if !right {
        return Class::Malformed(Fault::IpChecksum);
    }
    if ip.is_fragment() {
        return Class::Malformed(Fault::Fragment);
    }
    transport(frame, l3, l4, l3 + usize::from(ip.total_len.get()), false)
}

#[inline(never)]
fn classify_ipv6(frame: &[u8], l3: usize) -> Class {
    let Some(ip) = view::<Ipv6>(frame, l3) else { return Class::Malformed(Fault::Truncated) };
    if ip.version() != 6 {
        return Class::Malformed(Fault::IpHeader);
    }
    let mut l4 = l3 + Ipv6::LEN;
    let mut next = ip.next_header;
    let mut fragment = false;
    for _ in 0..=MAX_EXTENSIONS {
        if next == udp::PROTOCOL {
            let Some(udp) = view::<Udp>(frame, l4) else { return Class::Malformed(Fault::Truncated) };
            if udp.dst_port.get() != UDP_PORT {
                return Class::Other;
            }
            if fragment {
                return Class::Malformed(Fault::Fragment);
            }
            return transport(frame, l3, l4, l3 + Ipv6::LEN + usize::from(ip.payload_len.get()), true);
        }
        let Some(&[following, len, offset_high, offset_low]) = view::<[u8; 4]>(frame, l4) else {
            return Class::Malformed(Fault::Truncated);
        };
        l4 += match next {
            extension::HOP_BY_HOP | extension::ROUTING | extension::DESTINATION => (usize::from(len) + 1) * 8,
            extension::FRAGMENT if u16::from_be_bytes([offset_high, offset_low]) & 0xfff8 == 0 => {
                fragment = true;
                8
            }
            _ => return Class::Other,
        };
        next = following;
    }
    Class::Other
}

/// Checks UDP and the transport headers. `l4` is the offset of the UDP header, which has to lie within the
/// frame; `end` is the end of the IP packet by its length field.
#[expect(clippy::inline_always, reason = "constant offsets need no bounds checks")]
#[inline(always)]
fn transport(frame: &[u8], l3: usize, l4: usize, end: usize, v6: bool) -> Class {
    let bth_at = l4 + Udp::LEN;
    if frame.len() < end {
        return Class::Malformed(Fault::Truncated);
    }
    if end < bth_at + Bth::LEN + ICRC_LEN {
        return Class::Malformed(Fault::IpLength);
    }
    let udp_len = usize::from(u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]));
    if l4 + udp_len != end {
        return Class::Malformed(Fault::UdpLength);
    }
    let Some(bth) = view::<Bth>(frame, bth_at) else { return Class::Malformed(Fault::Truncated) };
    if bth.version() != 0 {
        return Class::Malformed(Fault::TransportVersion);
    }
    let opcode = bth.opcode();
    let Some((headers_len, has_payload)) = opcode.shape() else {
        return Class::Malformed(Fault::UnknownOpcode);
    };
    let payload = bth_at + Bth::LEN + headers_len;
    let icrc = end - ICRC_LEN;
    if icrc < payload || (!has_payload && icrc != payload) {
        return Class::Malformed(Fault::OpcodeLength);
    }
    let padded = icrc - payload;
    if !padded.is_multiple_of(4) || padded < usize::from(bth.pad_count()) {
        return Class::Malformed(Fault::Unaligned);
    }
    if padded > MAX_PAYLOAD {
        return Class::Malformed(Fault::Oversized);
    }
    // An IP packet is shorter than 65,536 + 40 bytes, but tags and extension headers can push its end beyond
    // 16 bits. No port's MTU admits such a frame, and the check of `padded` rejects all but those.
    let (Ok(bth), Ok(icrc)) = (u16::try_from(bth_at), u16::try_from(icrc)) else {
        return Class::Malformed(Fault::Oversized);
    };
    Class::Roce(Layout::new(opcode, v6, headers_len as u8, l3 as u16, bth, icrc))
}

/// Returns the ICRC of an IPv4 packet without options that has `N` bytes behind its BTH.
#[expect(clippy::inline_always, reason = "part of its caller")]
#[inline(always)]
fn of_parts<const N: usize>(packet: &[u8]) -> u32 {
    let (words, _) = packet.as_chunks();
    let head = words.first_chunk().map(|words| words.map(u32::from_le_bytes));
    match (head, packet.last_chunk()) {
        (Some(head), Some(behind)) => icrc::of_parts::<N>(head, behind),
        _ => unreachable!("classify() has checked the layout"),
    }
}

/// A RoCEv2 frame with its layout. Access to the headers cannot fail.
///
/// # Panics
/// If the layout is not that of the frame.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

impl<'a> Packet<'a> {
    /// Classifies `frame` and returns the packet if it is a RoCEv2 packet.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        match classify(frame) {
            Class::Roce(layout) => Some(Self { bytes: frame, layout }),
            Class::Other | Class::Malformed(_) => None,
        }
    }

    /// Joins a frame and the layout that [`classify`] returned for it.
    #[inline]
    pub const fn new(frame: &'a [u8], layout: Layout) -> Self {
        Self { bytes: frame, layout }
    }

    /// Offsets of the headers
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the whole frame.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    fn at<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, at: usize) -> &'a T {
        view(self.bytes, at).expect("the layout is not that of this frame")
    }

    #[inline]
    fn extended<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, header: Headers) -> Option<&'a T> {
        let headers = self.layout.opcode().headers();
        headers.contains(header).then(|| self.at(self.layout.bth() + Bth::LEN + headers.before(header)))
    }

    /// Returns the Ethernet header.
    pub fn ethernet(&self) -> &'a Ethernet {
        self.at(0)
    }

    /// Returns the VLAN tags, outermost first.
    pub fn tags(&self) -> &'a [VlanTag] {
        <[VlanTag]>::ref_from_bytes(&self.bytes[Ethernet::LEN..self.layout.l3()])
            .expect("the layout is not that of this frame")
    }

    /// Returns the IPv4 header, if the packet is IPv4.
    #[inline]
    pub fn ipv4(&self) -> Option<&'a Ipv4> {
        (!self.layout.is_ipv6()).then(|| self.at(self.layout.l3()))
    }

    /// Returns the IPv6 header, if the packet is IPv6.
    #[inline]
    pub fn ipv6(&self) -> Option<&'a Ipv6> {
        self.layout.is_ipv6().then(|| self.at(self.layout.l3()))
    }

    /// Returns the source address.
    #[inline]
    pub fn src(&self) -> IpAddr {
        match self.ipv4() {
            Some(ip) => Ipv4Addr::from(ip.src).into(),
            None => Ipv6Addr::from(self.at::<Ipv6>(self.layout.l3()).src).into(),
        }
    }

    /// Returns the destination address.
    #[inline]
    pub fn dst(&self) -> IpAddr {
        match self.ipv4() {
            Some(ip) => Ipv4Addr::from(ip.dst).into(),
            None => Ipv6Addr::from(self.at::<Ipv6>(self.layout.l3()).dst).into(),
        }
    }

    /// Returns the ECN field (RFC 3168): 0 not ECN-capable, 1 and 2 ECN-capable, 3 congestion experienced.
    #[inline]
    pub fn ecn(&self) -> u8 {
        match self.ipv4() {
            Some(ip) => ip.ecn(),
            None => self.at::<Ipv6>(self.layout.l3()).ecn(),
        }
    }

    /// Returns the UDP header.
    #[inline]
    pub fn udp(&self) -> &'a Udp {
        self.at(self.layout.udp())
    }

    /// Returns the base transport header.
    #[inline]
    pub fn bth(&self) -> &'a Bth {
        self.at(self.layout.bth())
    }

    /// Returns the three words of the BTH, of which the second ends with the destination QPN and the third with the
    /// PSN, and the word behind it: the AETH of an acknowledgement, the start of other headers or of the payload, or
    /// the ICRC. Takes one check of the frame's length, and a load for each word that is used.
    #[inline]
    pub fn transport_words(&self) -> [u32; 4] {
        self.at::<[[u8; 4]; 4]>(self.layout.bth()).map(u32::from_be_bytes)
    }

    /// Returns the RETH of WRITE First and Only, READ Request, FLUSH and ATOMIC WRITE.
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.extended(Headers::RETH)
    }

    /// Returns the AETH of acknowledgements and of READ Response First, Last and Only.
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.extended(Headers::AETH)
    }

    /// Returns the `AtomicETH` of `CmpSwap` and `FetchAdd`.
    #[inline]
    pub fn atomic(&self) -> Option<&'a AtomicEth> {
        self.extended(Headers::ATOMIC)
    }

    /// Returns the `AtomicAckETH` of ATOMIC Acknowledge.
    #[inline]
    pub fn atomic_ack(&self) -> Option<&'a AtomicAckEth> {
        self.extended(Headers::ATOMIC_ACK)
    }

    /// Returns the DETH of UD packets.
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.extended(Headers::DETH)
    }

    /// Returns the immediate data.
    pub fn immediate(&self) -> Option<&'a ImmDt> {
        self.extended(Headers::IMM)
    }

    /// Returns the IETH of SEND with invalidate.
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.extended(Headers::IETH)
    }

    /// Returns the payload without its padding.
    #[expect(clippy::inline_always, reason = "a few additions")]
    #[inline(always)]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.layout.payload()..self.layout.icrc() - usize::from(self.bth().pad_count())]
    }

    /// Returns the ICRC that the packet carries, right or wrong.
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.at(self.layout.icrc()))
    }

    /// Returns whether the packet carries the right ICRC.
    #[inline]
    pub fn verify_icrc(&self) -> bool {
        self.icrc() == icrc::compute(self.bytes, &self.layout)
    }

    /// Returns whether the packet carries the right ICRC; for callers whose layout is a compile-time constant
    /// but for the payload's length.
    #[expect(clippy::inline_always, reason = "a constant length needs no loop")]
    #[inline(always)]
    pub fn verify_icrc_inline(&self) -> bool {
        let packet = &self.bytes[self.layout.l3()..self.layout.icrc()];
        let udp = self.layout.udp() - self.layout.l3();
        let icrc = match self.layout.opcode() {
            _ if self.layout.is_ipv6() || udp != Ipv4::LEN => {
                icrc::compute_for(packet, self.layout.is_ipv6(), udp)
            }
            Opcode::RC_ACKNOWLEDGE => of_parts::<{ Aeth::LEN }>(packet),
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => of_parts::<{ AtomicEth::LEN }>(packet),
            _ => icrc::compute_inline(packet, false, udp),
        };
        self.icrc() == icrc
    }

    /// Returns whether the UDP checksum is right or absent. IPv6 permits tunnels to omit it (RFC 6935), and
    /// RoCEv2 makes use of that.
    pub fn verify_udp_checksum(&self) -> bool {
        if self.udp().checksum.get() == 0 {
            return true;
        }
        let datagram = &self.bytes[self.layout.udp()..self.layout.end()];
        self.pseudo_header_sum().add(datagram).folded() == 0xffff
    }

    /// Returns the sum over the pseudo-header of the UDP checksum.
    pub fn pseudo_header_sum(&self) -> Sum {
        // Source and destination are adjacent, at the end of the IPv4 and the IPv6 header.
        let l3 = self.layout.l3();
        let addresses = if self.layout.is_ipv6() { l3 + 8..l3 + Ipv6::LEN } else { l3 + 12..l3 + Ipv4::LEN };
        let sum = Sum::default().add(&self.bytes[addresses]);
        sum.add_word(u32::from(udp::PROTOCOL)).add_word(u32::from(self.udp().len.get()))
    }
}

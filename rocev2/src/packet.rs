//! Where the headers of a frame lie: found and checked once, relied on afterwards.

use crate::aeth::Aeth;
use crate::atomic::{AtomicAckEth, AtomicEth};
use crate::checksum::{self, Sum};
use crate::deth::Deth;
use crate::ethernet::{Ethernet, VlanTag, ethertype};
use crate::immediate::{Ieth, ImmDt};
use crate::ipv4::Ipv4;
use crate::ipv6::{Ipv6, extension};
use crate::onepipe::OnePipe;
use crate::opcode::Headers;
use crate::reth::Reth;
use crate::udp::{self, Udp};
use crate::{Bth, MAX_PAYLOAD, Opcode, UDP_PORT, icrc};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Bytes of the ICRC at the end of every packet
pub const ICRC_LEN: usize = 4;
/// VLAN tags that are looked through; more than service and customer tag nobody sends
pub const MAX_TAGS: usize = 3;
/// IPv6 extension headers that are looked through
const MAX_EXTENSIONS: usize = 4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A RoCEv2 packet whose headers lie here and fit
    Roce(Layout),
    /// Something else: ARP, TCP, another UDP port
    Other,
    /// An IP packet that does not parse, or a RoCEv2 packet that breaks a rule
    Malformed(Fault),
}

/// Why a frame does not parse, or fails a check. Each reason is reached by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Fault {
    /// The frame ends before its headers, or before the length that the IP header announces
    #[error("the frame ends before what its headers announce")]
    Truncated,
    /// The IP version is not the ethertype's, or the IPv4 header length is below 20
    #[error("wrong IP version or header length")]
    IpHeader,
    /// The IP length leaves no room for the headers that follow
    #[error("the IP length has no room for the headers behind it")]
    IpLength,
    /// The IPv4 header checksum is wrong
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// An IP fragment; RoCEv2 is never fragmented (IB A17.4.4)
    #[error("an IP fragment")]
    Fragment,
    /// The UDP length is not what the IP length leaves
    #[error("the UDP length contradicts the IP length")]
    UdpLength,
    /// The UDP checksum is present and wrong
    #[error("wrong UDP checksum")]
    UdpChecksum,
    /// The transport header version is not 0
    #[error("transport header version is not 0")]
    TransportVersion,
    /// The opcode is not of RC, UC or UD and not the CNP
    #[error("unknown opcode")]
    UnknownOpcode,
    /// No room for the opcode's headers, or a payload where it has none
    #[error("the length contradicts the opcode")]
    OpcodeLength,
    /// Payload and padding are no multiple of four bytes, or there is more padding than payload
    #[error("payload and padding are no multiple of four bytes")]
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

    /// A word for it, as in counters: `truncated`, `ip_checksum`, ...
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

/// Where the headers of one RoCEv2 frame lie, in bytes from its start.
///
/// One word: what is put together in memory field by field, and read as a whole at once, costs more than the checks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout(u64);

impl Layout {
    /// `headers` is the length of the extended headers: 28 bytes at most.
    const fn new(opcode: Opcode, v6: bool, headers: u8, l3: u16, bth: u16, icrc: u16) -> Self {
        let ends = (icrc as u64) << 48 | (bth as u64) << 32 | (l3 as u64) << 16;
        Self(ends | (headers as u64) << 9 | (v6 as u64) << 8 | opcode.0 as u64)
    }

    /// That of a packet of IPv4 with neither tags nor options, of this opcode, which has so many bytes of extended headers and no
    /// payload. To compare with: whoever finds that it is this one need not look at it again, and a check of an offset that is
    /// known when it is compiled takes no instruction.
    pub const fn plain(opcode: Opcode, headers: usize) -> Self {
        const BTH: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN;
        let icrc = BTH + Bth::LEN + headers;
        Self::new(opcode, false, headers as u8, Ethernet::LEN as u16, BTH as u16, icrc as u16)
    }

    /// This one with a payload as long as that in `frame`, if `layout`, which is that of `frame`, is so.
    #[inline]
    pub fn with_payload_of(self, frame: &[u8], layout: Self) -> Option<Self> {
        const ICRC: u64 = 0xffff << 48;
        if (self.0 ^ layout.0) & !ICRC != 0 {
            return None;
        }
        // Read once more: of the other's own bits a compiler finds that they make the same word, and forgets what is known of it.
        let len = u16::from_be_bytes(*frame.get(Ethernet::LEN + 2..)?.first_chunk()?);
        let icrc = len.wrapping_add((Ethernet::LEN - ICRC_LEN) as u16);
        Some(Self(self.0 & !ICRC | u64::from(icrc) << 48))
    }

    /// The operation
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.0 as u8)
    }

    /// Whether the packet is IPv6 rather than IPv4
    pub const fn is_ipv6(&self) -> bool {
        self.0 & 1 << 8 != 0
    }

    /// Where the IP header begins
    pub const fn l3(&self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    /// Where the UDP header begins
    pub const fn udp(&self) -> usize {
        self.bth() - Udp::LEN
    }

    /// Where the BTH begins
    pub const fn bth(&self) -> usize {
        (self.0 >> 32) as u16 as usize
    }

    /// Where the extended headers end and the payload begins
    pub const fn payload(&self) -> usize {
        self.bth() + Bth::LEN + (self.0 >> 9 & 0x7f) as usize
    }

    /// Where payload and padding end and the ICRC begins
    pub const fn icrc(&self) -> usize {
        (self.0 >> 48) as usize
    }

    /// Where the packet ends; Ethernet padding may follow
    pub const fn end(&self) -> usize {
        self.icrc() + ICRC_LEN
    }

    /// Bytes of an IP packet from its first header on; what an Ethernet frame with this packet's tags carries.
    pub const fn ip_len(&self) -> usize {
        self.end() - self.l3()
    }

    /// VLAN tags between the Ethernet header and the IP header
    pub const fn tags(&self) -> usize {
        (self.l3() - Ethernet::LEN) / VlanTag::LEN
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("opcode", &self.opcode())
            .field("l3", &self.l3())
            .field("bth", &self.bth())
            .field("payload", &self.payload())
            .field("icrc", &self.icrc())
            .finish()
    }
}

/// A view of `T` at `at`, or `None` past the end.
#[inline]
fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8], at: usize) -> Option<&T> {
    T::ref_from_bytes(bytes.get(at..at + size_of::<T>())?).ok()
}

/// Finds the headers of an Ethernet frame and checks that they fit together. The IPv4 header checksum is verified;
/// the UDP checksum and the ICRC, which need the whole packet, are not: see [`Packet::verify_udp_checksum`] and
/// [`Packet::verify_icrc`].
#[inline(always)]
pub fn classify(frame: &[u8]) -> Class {
    // Most frames by far: no tag, IPv4 without options. Their offsets are known when this is compiled.
    const PLAIN: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN + Bth::LEN;
    match frame.first_chunk::<PLAIN>() {
        Some(head) if head[12..15] == [0x08, 0x00, 0x45] => classify_udp(frame, Ethernet::LEN, Ipv4::LEN),
        _ => classify_any(frame),
    }
}

#[inline(never)]
fn classify_any(frame: &[u8]) -> Class {
    let mut l3 = Ethernet::LEN;
    if frame.len() < l3 {
        return Class::Malformed(Fault::Truncated);
    }
    for _ in 0..=MAX_TAGS {
        // The ethertype is the last field of Ethernet header and tag alike.
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

/// Like [`classify`] for a frame without Ethernet header: an IP packet that begins at `l3`, of this ethertype.
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

/// An IPv4 packet with a header of this length.
#[expect(clippy::inline_always, reason = "offsets that are known when it is compiled need no checks")]
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
    // Almost always of this length, and faster if that is known.
    let right = match frame[l3..l4].first_chunk::<{ Ipv4::LEN }>() {
        Some(header) if header_len == Ipv4::LEN => checksum::is_right(header),
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

/// UDP and what it carries: `l4` is where the UDP header begins, `end` where the IP packet says that it ends. The
/// UDP header is known to lie within the frame.
#[expect(clippy::inline_always, reason = "offsets that are known when it is compiled need no checks")]
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
    // An IP packet ends below 65,536 + 40, but tags and extension headers can push it beyond 16 bits; no port's MTU
    // lets such a frame in, and `padded` bounds all but those.
    let (Ok(bth), Ok(icrc)) = (u16::try_from(bth_at), u16::try_from(icrc)) else {
        return Class::Malformed(Fault::Oversized);
    };
    Class::Roce(Layout::new(opcode, v6, headers_len as u8, l3 as u16, bth, icrc))
}

/// The ICRC of a packet of IPv4 without options that has `N` bytes behind its BTH.
#[expect(clippy::inline_always, reason = "it is part of its caller")]
#[inline(always)]
fn of_parts<const N: usize>(packet: &[u8]) -> u32 {
    let (words, _) = packet.as_chunks();
    let head = words.first_chunk().map(|words| words.map(u32::from_le_bytes));
    match (head, packet.last_chunk()) {
        (Some(head), Some(behind)) => icrc::of_parts::<N>(head, behind),
        _ => unreachable!("its layout was checked"),
    }
}

/// A RoCEv2 frame together with its layout.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

impl<'a> Packet<'a> {
    /// Classifies `frame`; `Some` if it is a RoCEv2 packet.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        match classify(frame) {
            Class::Roce(layout) => Some(Self { bytes: frame, layout }),
            Class::Other | Class::Malformed(_) => None,
        }
    }

    /// The frame with the layout that [`classify`] found for it.
    #[inline]
    pub const fn new(frame: &'a [u8], layout: Layout) -> Self {
        Self { bytes: frame, layout }
    }

    /// Where the headers lie
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The whole frame
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    fn at<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, at: usize) -> &'a T {
        view(self.bytes, at).expect("the layout was checked against this frame")
    }

    #[inline]
    fn extended<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self, header: Headers) -> Option<&'a T> {
        let headers = self.layout.opcode().headers();
        headers.has(header).then(|| self.at(self.layout.bth() + Bth::LEN + headers.before(header)))
    }

    /// The Ethernet header
    pub fn ethernet(&self) -> &'a Ethernet {
        self.at(0)
    }

    /// The VLAN tags, outermost first
    pub fn tags(&self) -> &'a [VlanTag] {
        <[VlanTag]>::ref_from_bytes(&self.bytes[Ethernet::LEN..self.layout.l3()])
            .expect("the layout was checked against this frame")
    }

    /// The IPv4 header, if the packet is IPv4
    #[inline]
    pub fn ipv4(&self) -> Option<&'a Ipv4> {
        (!self.layout.is_ipv6()).then(|| self.at(self.layout.l3()))
    }

    /// The IPv6 header, if the packet is IPv6
    #[inline]
    pub fn ipv6(&self) -> Option<&'a Ipv6> {
        self.layout.is_ipv6().then(|| self.at(self.layout.l3()))
    }

    /// Source address
    pub fn src(&self) -> IpAddr {
        match self.ipv4() {
            Some(ip) => Ipv4Addr::from(ip.src).into(),
            None => Ipv6Addr::from(self.at::<Ipv6>(self.layout.l3()).src).into(),
        }
    }

    /// Destination address
    pub fn dst(&self) -> IpAddr {
        match self.ipv4() {
            Some(ip) => Ipv4Addr::from(ip.dst).into(),
            None => Ipv6Addr::from(self.at::<Ipv6>(self.layout.l3()).dst).into(),
        }
    }

    /// ECN field (RFC 3168): 0 not capable, 1 and 2 capable, 3 congestion experienced
    pub fn ecn(&self) -> u8 {
        let at = self.layout.l3() + 1;
        let shift = if self.layout.is_ipv6() { 4 } else { 0 };
        self.bytes[at] >> shift & 3
    }

    /// The UDP header
    #[inline]
    pub fn udp(&self) -> &'a Udp {
        self.at(self.layout.udp())
    }

    /// The base transport header
    #[inline]
    pub fn bth(&self) -> &'a Bth {
        self.at(self.layout.bth())
    }

    /// RETH, of WRITE First and Only, READ Request, FLUSH and ATOMIC WRITE
    #[inline]
    pub fn reth(&self) -> Option<&'a Reth> {
        self.extended(Headers::RETH)
    }

    /// AETH, of acknowledgements and of READ Response First, Last and Only
    #[inline]
    pub fn aeth(&self) -> Option<&'a Aeth> {
        self.extended(Headers::AETH)
    }

    /// `AtomicETH`, of `CmpSwap` and `FetchAdd`
    #[inline]
    pub fn atomic(&self) -> Option<&'a AtomicEth> {
        self.extended(Headers::ATOMIC)
    }

    /// `AtomicAckETH`, of ATOMIC Acknowledge
    #[inline]
    pub fn atomic_ack(&self) -> Option<&'a AtomicAckEth> {
        self.extended(Headers::ATOMIC_ACK)
    }

    /// DETH, of UD
    #[inline]
    pub fn deth(&self) -> Option<&'a Deth> {
        self.extended(Headers::DETH)
    }

    /// The 1Pipe header that the payload begins with, if it is long enough. Whether it is one is for the caller to know:
    /// by the `Q_Key` of a datagram, or the place that a WRITE goes to.
    #[inline]
    pub fn onepipe(&self) -> Option<&'a OnePipe> {
        OnePipe::ref_from_prefix(self.payload()).ok().map(|(header, _)| header)
    }

    /// Immediate data
    pub fn immediate(&self) -> Option<&'a ImmDt> {
        self.extended(Headers::IMM)
    }

    /// IETH, of SEND with invalidate
    pub fn ieth(&self) -> Option<&'a Ieth> {
        self.extended(Headers::IETH)
    }

    /// The payload without its padding
    #[expect(clippy::inline_always, reason = "a few additions")]
    #[inline(always)]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.layout.payload()..self.layout.icrc() - usize::from(self.bth().pad_count())]
    }

    /// The ICRC as it stands in the packet
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.at(self.layout.icrc()))
    }

    /// Whether the ICRC is the one that the packet's bytes call for.
    #[inline]
    pub fn verify_icrc(&self) -> bool {
        self.icrc() == icrc::compute(self.bytes, &self.layout)
    }

    /// The same for callers that know the layout when they are compiled, but for the length of a payload.
    #[expect(clippy::inline_always, reason = "a length that is known needs no loop")]
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

    /// Whether the UDP checksum is right or absent. IPv6 allows it to be absent for tunnels (RFC 6935), and
    /// RoCEv2 makes use of that.
    pub fn verify_udp_checksum(&self) -> bool {
        if self.udp().checksum.get() == 0 {
            return true;
        }
        let datagram = &self.bytes[self.layout.udp()..self.layout.end()];
        self.pseudo_header_sum().add(datagram).folded() == 0xffff
    }

    /// The sum over the pseudo-header of the UDP checksum.
    pub(crate) fn pseudo_header_sum(&self) -> Sum {
        // Source and destination stand side by side, at the end of either header.
        let l3 = self.layout.l3();
        let addresses = if self.layout.is_ipv6() { l3 + 8..l3 + Ipv6::LEN } else { l3 + 12..l3 + Ipv4::LEN };
        let sum = Sum::default().add(&self.bytes[addresses]);
        sum.add_word(u32::from(udp::PROTOCOL)).add_word(u32::from(self.udp().len.get()))
    }
}

//! Headers of the frames to an endpoint, from Ethernet to UDP, and construction of frames with them.
//!
//! This is not a [`rocev2::template::Template`]: lengths, opcode and traffic class differ from frame to
//! frame, so nearly every header word does. They are assembled in registers, and the ICRC is computed from
//! these ([`icrc::of_parts`], [`icrc::change_of_head`]), because words that have just been stored one by one
//! cannot be loaded in larger blocks without a stall.

use rocev2::ICRC_LEN;
use rocev2::checksum::Sum;
use rocev2::ethernet::{Ethernet, VlanTag};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::packet::MAX_TAGS;
use rocev2::udp::Udp;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn, icrc};
use switch::{Frame, NoRoom};

/// Bytes of the UDP source port, the only stored field of the UDP header
const SRC_PORT: usize = 2;
/// Maximum length in bytes: tags and IPv6, without options or extension headers
const MAX: usize = Ethernet::LEN + MAX_TAGS * VlanTag::LEN + Ipv6::LEN + SRC_PORT;
/// Offsets of the IP header and of the BTH in an untagged IPv4 packet without options
const PLAIN: (usize, usize) = (Ethernet::LEN, Ethernet::LEN + Ipv4::LEN + Udp::LEN);

/// Ethernet, VLAN, IP and UDP headers of the frames to one endpoint, and the constant fields of their BTHs.
/// Those of untagged IPv4 packets take 44 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Headers {
    /// IPv4: one's complement sum of the header without length and TOS, not inverted
    sum: u16,
    /// Migration state, version and partition key of the BTH; a queue pair drops packets with other values
    bth: [u8; 3],
    /// Offset of the IP header
    l3: u8,
    /// Offset of the BTH; 0 while no packet has been seen
    bth_at: u8,
    v6: bool,
    /// Bytes from the Ethernet header to the UDP source port
    bytes: [u8; MAX],
}

/// Bits of the BTH's second byte that belong to the connection: all but solicited event and pad count
const CONNECTION_BITS: u8 = 0x4f;
const SOLICITED: u8 = 0x80;
/// ECN field of the IPv4 TOS byte and of the IPv6 traffic class
const ECN: u8 = 0x03;

/// BTH fields that differ between packets of a connection. Passed by value, to be assembled in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BthFields {
    pub opcode: Opcode,
    pub qpn: Qpn,
    pub psn: Psn,
    pub ack_req: bool,
    pub solicited: bool,
    /// Backward congestion notification
    pub becn: bool,
}

impl BthFields {
    pub(crate) const fn new(opcode: Opcode, qpn: Qpn, psn: Psn) -> Self {
        Self { opcode, qpn, psn, ack_req: false, solicited: false, becn: false }
    }
}

/// Payload behind the extended headers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Bytes to be copied, and padded
    Copied(&'a [u8]),
    /// Payload of this length that is already in the frame, behind the same extended headers and without
    /// padding, in a packet with a valid ICRC
    InPlace(usize),
}

impl Payload<'_> {
    pub(crate) const NONE: Self = Self::Copied(&[]);

    const fn len(self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::InPlace(len) => len,
        }
    }
}

/// Traffic class and ECN (IPv4: TOS; IPv6: traffic class), preserved when a packet changes its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TrafficClass(pub(crate) u8);

impl TrafficClass {
    /// Returns the traffic class of a packet.
    #[expect(clippy::inline_always, reason = "is a single load")]
    #[inline(always)]
    pub(crate) fn of(packet: &Packet<'_>) -> Self {
        let at = &packet.bytes()[packet.layout().l3()..];
        Self(if packet.layout().is_ipv6() { at[0] << 4 | at[1] >> 4 } else { at[1] })
    }
}

impl Headers {
    /// No packet has been seen
    pub(crate) const NONE: Self = Self { l3: 0, bth_at: 0, v6: false, sum: 0, bth: [0; 3], bytes: [0; MAX] };

    /// Returns the headers of `packet`, or `None` if it has IP options or extension headers.
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        let layout = packet.layout();
        let (l3, bth, v6) = (layout.l3(), layout.bth(), layout.is_ipv6());
        let kept = bth - Udp::LEN + SRC_PORT;
        if l3 + if v6 { Ipv6::LEN } else { Ipv4::LEN } + Udp::LEN != bth || kept > MAX {
            return None;
        }
        let mut headers = Self { l3: l3 as u8, bth_at: bth as u8, v6, ..Self::NONE };
        let [flags, high, low]: [u8; 3] = *packet.bytes()[bth + 1..].first_chunk()?;
        headers.bth = [flags & CONNECTION_BITS, high, low];
        headers.bytes[..kept].copy_from_slice(&packet.bytes()[..kept]);
        // An ECN mark concerns the path of this packet only (RFC 3168, section 5).
        headers.bytes[l3 + 1] &= if v6 { !(ECN << 4) } else { !ECN };
        if !v6 {
            let mut ip = [0; Ipv4::LEN];
            ip.copy_from_slice(&headers.bytes[l3..l3 + Ipv4::LEN]);
            for at in [1, 2, 3, 10, 11] {
                ip[at] = 0;
            }
            headers.sum = Sum::default().add(&ip).folded();
        }
        Some(headers)
    }

    /// Returns whether no packet has been seen.
    pub(crate) const fn is_none(&self) -> bool {
        self.bth_at == 0
    }

    /// Returns whether `packet` has the same Ethernet header, source address and UDP source port. The
    /// destination is assumed to be the same.
    #[expect(clippy::inline_always, reason = "consists of a few comparisons")]
    #[inline(always)]
    pub(crate) fn has_path_of(&self, packet: &Packet<'_>) -> bool {
        /// Returns whether two frames have the same `N` bytes at `at`.
        #[inline(always)]
        fn same<const N: usize>(a: &[u8], b: &[u8], at: usize) -> bool {
            let [a, b] = [a, b].map(|bytes| bytes.get(at..).and_then(<[u8]>::first_chunk::<N>));
            a.is_some() && a == b
        }
        let (bytes, layout) = (packet.bytes(), packet.layout());
        let own = &self.bytes[..];
        usize::from(self.bth_at) == layout.bth()
            && same::<{ Ethernet::LEN }>(bytes, own, 0)
            && if layout.is_ipv6() {
                same::<16>(bytes, own, layout.l3() + 8)
            } else {
                same::<4>(bytes, own, layout.l3() + 12)
            }
            && same::<SRC_PORT>(bytes, own, layout.udp())
    }

    /// Returns whether `packet` has a different UDP source port.
    pub(crate) fn has_other_port(&self, packet: &Packet<'_>) -> bool {
        let at = usize::from(self.bth_at).saturating_sub(Udp::LEN);
        !self.is_none() && self.bytes[at..at + SRC_PORT] != packet.udp().src_port.get().to_be_bytes()
    }

    /// Returns the length in bytes of a frame with `behind` bytes between its BTH and its ICRC.
    pub(crate) const fn frame_len(&self, behind: usize) -> usize {
        self.bth_at as usize + Bth::LEN + behind + ICRC_LEN
    }

    /// Builds a frame with these headers, a BTH and the bytes `behind` it. `class` replaces the traffic class
    /// if given. Checksums and ICRC are valid; there is no UDP checksum.
    #[expect(clippy::inline_always, reason = "the caller has the packet fields in registers")]
    #[inline(always)]
    pub(crate) fn build<F: Frame, const N: usize>(
        &self,
        frame: &mut F,
        class: Option<TrafficClass>,
        base: BthFields,
        behind: &[u8; N],
    ) -> Result<(), NoRoom> {
        self.build_with(frame, class, base, behind, Payload::NONE)
    }

    /// Builds a frame as [`build`](Self::build) does, with a payload.
    #[expect(clippy::inline_always, reason = "the caller has the packet fields in registers")]
    #[inline(always)]
    pub(crate) fn build_with<F: Frame, const N: usize>(
        &self,
        frame: &mut F,
        class: Option<TrafficClass>,
        base: BthFields,
        behind: &[u8; N],
        payload: Payload<'_>,
    ) -> Result<(), NoRoom> {
        const { assert!(N.is_multiple_of(4)) }
        frame.resize(self.frame_len(N + payload.len().next_multiple_of(4)))?;
        let bytes = frame.bytes_mut();
        // Headers and ICRCs of most packets are computed without reading the bytes just written.
        match payload {
            Payload::InPlace(len) if self.is_plain() => self.replace(bytes, class, base, N + len),
            Payload::Copied([]) if self.is_plain() => self.write_plain(bytes, class, base, behind),
            _ => self.write_any(bytes, class, base, behind, payload),
        }
        debug_assert!(
            Packet::parse(frame.bytes()).is_some_and(|packet| packet.verify_icrc()),
            "the built frame has to be a valid packet"
        );
        Ok(())
    }

    /// Returns whether the headers are those of untagged IPv4 packets.
    const fn is_plain(&self) -> bool {
        !self.v6 && self.bth_at as usize == PLAIN.1
    }

    /// Returns the IP header, UDP header and BTH of an untagged IPv4 packet with `behind` bytes between BTH
    /// and ICRC, as little-endian words.
    #[expect(clippy::inline_always, reason = "the result stays in registers")]
    #[inline(always)]
    fn head(&self, class: Option<TrafficClass>, base: BthFields, behind: usize) -> [u32; icrc::HEAD] {
        let own = |at: usize| {
            let at = PLAIN.0 + at;
            u32::from_le_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
        };
        let class = class.map_or(self.bytes[PLAIN.0 + 1], |TrafficClass(class)| class);
        let udp_len = (Udp::LEN + Bth::LEN + behind + ICRC_LEN) as u16;
        let len = udp_len + Ipv4::LEN as u16;
        let sum = u32::from(self.sum) + u32::from(len) + u32::from(class);
        let checksum = Sum::default().add_word(sum).checksum();
        let big = |half: u16| u32::from(half.swap_bytes());
        let [operation, queue_pair, psn] = self.bth_words(base, 0);
        [
            own(0) & 0xff | u32::from(class) << 8 | big(len) << 16,
            own(4),
            own(8) & 0xffff | big(checksum) << 16,
            own(12),
            own(16),
            own(20) & 0xffff | big(rocev2::UDP_PORT) << 16,
            // No UDP checksum
            big(udp_len),
            operation,
            queue_pair,
            psn,
        ]
    }

    /// Returns a BTH as little-endian words.
    #[expect(clippy::inline_always, reason = "the result stays in registers")]
    #[inline(always)]
    const fn bth_words(&self, base: BthFields, padding: usize) -> [u32; Bth::LEN / 4] {
        let [flags, high, low] = self.bth;
        let flags = flags | (padding as u8) << 4 | if base.solicited { SOLICITED } else { 0 };
        [
            u32::from_le_bytes([base.opcode.0, flags, high, low]),
            ((base.becn as u32) << 30 | base.qpn.get()).swap_bytes(),
            ((base.ack_req as u32) << 31 | base.psn.get()).swap_bytes(),
        ]
    }

    /// Writes the Ethernet header and `head` of an untagged IPv4 packet.
    #[expect(clippy::inline_always, reason = "the written words are in registers")]
    #[inline(always)]
    fn put_head(&self, bytes: &mut [u8], head: [u32; icrc::HEAD]) {
        let (ethernet, rest) = bytes.split_at_mut(PLAIN.0);
        ethernet.copy_from_slice(&self.bytes[..PLAIN.0]);
        for (target, word) in rest.as_chunks_mut().0.iter_mut().zip(head) {
            *target = word.to_le_bytes();
        }
    }

    /// Writes an untagged IPv4 packet without payload.
    #[expect(clippy::inline_always, reason = "the caller has the bytes behind the BTH in registers")]
    #[inline(always)]
    fn write_plain<const N: usize>(
        &self,
        bytes: &mut [u8],
        class: Option<TrafficClass>,
        base: BthFields,
        behind: &[u8; N],
    ) {
        let at = PLAIN.1 + Bth::LEN;
        let bytes = &mut bytes[..at + N + ICRC_LEN];
        let head = self.head(class, base, N);
        self.put_head(bytes, head);
        bytes[at..at + N].copy_from_slice(behind);
        bytes[at + N..].copy_from_slice(&icrc::of_parts(head, behind).to_le_bytes());
    }

    /// Replaces the Ethernet header and the head of an untagged IPv4 packet, and keeps the `behind` bytes
    /// after the BTH. The ICRC is updated incrementally.
    #[expect(clippy::inline_always, reason = "the call is the tail of its caller")]
    #[inline(always)]
    fn replace(&self, bytes: &mut [u8], class: Option<TrafficClass>, base: BthFields, behind: usize) {
        let at = PLAIN.1 + Bth::LEN;
        let bytes = &mut bytes[..at + behind + ICRC_LEN];
        let mut xor = self.head(class, base, behind);
        let head = xor;
        for (word, old) in xor.iter_mut().zip(bytes[PLAIN.0..at].as_chunks().0) {
            *word ^= u32::from_le_bytes(*old);
        }
        self.put_head(bytes, head);
        if let Some(target) = bytes.last_chunk_mut() {
            let icrc = u32::from_le_bytes(*target) ^ icrc::change_of_head(xor, behind);
            *target = icrc.to_le_bytes();
        }
    }

    /// Writes a packet of any shape.
    #[inline(never)]
    fn write_any<const N: usize>(
        &self,
        bytes: &mut [u8],
        class: Option<TrafficClass>,
        base: BthFields,
        behind: &[u8; N],
        payload: Payload<'_>,
    ) {
        let (l3, head, v6) = (usize::from(self.l3), usize::from(self.bth_at), self.v6);
        let padding = payload.len().wrapping_neg() % 4;
        let len = head + Bth::LEN + N + payload.len() + padding + ICRC_LEN;
        let bytes = &mut bytes[..len];
        let udp = head - Udp::LEN;
        bytes[..udp + SRC_PORT].copy_from_slice(&self.bytes[..udp + SRC_PORT]);
        let udp_len = (len - udp) as u16;
        bytes[udp + 2..udp + 4].copy_from_slice(&rocev2::UDP_PORT.to_be_bytes());
        bytes[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        // No UDP checksum
        bytes[udp + 6..head].fill(0);
        if v6 {
            bytes[l3 + 4..l3 + 6].copy_from_slice(&udp_len.to_be_bytes());
            if let Some(TrafficClass(class)) = class {
                bytes[l3] = bytes[l3] & 0xf0 | class >> 4;
                bytes[l3 + 1] = bytes[l3 + 1] & 0x0f | class << 4;
            }
        } else {
            let ip_len = udp_len + Ipv4::LEN as u16;
            let class = class.map_or(self.bytes[l3 + 1], |TrafficClass(class)| class);
            let words = u32::from(self.sum) + u32::from(ip_len) + u32::from(class);
            bytes[l3 + 1] = class;
            bytes[l3 + 2..l3 + 4].copy_from_slice(&ip_len.to_be_bytes());
            bytes[l3 + 10..l3 + 12].copy_from_slice(&Sum::default().add_word(words).checksum().to_be_bytes());
        }
        let at = head + Bth::LEN;
        let words = self.bth_words(base, padding);
        for (target, word) in bytes[head..at].as_chunks_mut().0.iter_mut().zip(words) {
            *target = word.to_le_bytes();
        }
        bytes[at..at + N].copy_from_slice(behind);
        let end = at + N + payload.len();
        if let Payload::Copied(payload) = payload {
            bytes[at + N..end].copy_from_slice(payload);
        }
        let icrc = end + padding;
        if padding > 0 {
            bytes[end..icrc].fill(0);
        }
        let crc = icrc::compute_for(&bytes[l3..icrc], v6, udp - l3);
        bytes[icrc..].copy_from_slice(&crc.to_le_bytes());
    }
}

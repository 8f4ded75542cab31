//! High-level representation of a whole frame: parsed or built field by field, changed, printed and emitted.

use crate::aeth::Aeth;
use crate::atomic::{AtomicAckEth, AtomicEth};
use crate::checksum::Sum;
use crate::deth::Deth;
use crate::ethernet::{Ethernet, VlanTag, ethertype};
use crate::immediate::{Ieth, ImmDt};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::layout::ICRC_LEN;
use crate::opcode::Headers;
use crate::packet::MAX_TAGS;
use crate::reth::Reth;
use crate::udp::Udp;
use crate::{Bth, Class, Packet, classify, icrc};
use core::fmt;
use core::net::IpAddr;
use zerocopy::{Immutable, IntoBytes};

/// High-level representation of a RoCEv2 frame. [`emit`](Self::emit) writes the fields unchanged, right or
/// wrong; [`build`](Self::build) first sets lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Ethernet header
    pub ethernet: Ethernet,
    /// VLAN tags, outermost first; the first `tag_count` are valid
    pub tags: [VlanTag; MAX_TAGS],
    /// Number of VLAN tags, at most [`MAX_TAGS`]
    pub tag_count: usize,
    /// IP header
    pub ip: Ip<'a>,
    /// UDP header
    pub udp: Udp,
    /// Base transport header
    pub bth: Bth,
    /// Extended headers, of which the BTH's opcode selects those that are emitted
    pub extended: Extended,
    /// Payload
    pub payload: &'a [u8],
    /// Padding of the payload to a multiple of four bytes
    pub padding: &'a [u8],
    /// ICRC, read in little-endian order
    pub icrc: u32,
    /// Bytes behind the packet: padding of the Ethernet frame
    pub trailer: &'a [u8],
}

/// IP header of either version, with everything between it and the UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip<'a> {
    /// IPv4 header and its options
    V4(Ipv4, &'a [u8]),
    /// IPv6 header and its extension headers
    V6(Ipv6, &'a [u8]),
}

impl Ip<'_> {
    /// Returns a header with these addresses and this traffic class (DSCP and ECN), without options or
    /// extension headers. If only one of the addresses is IPv4, it is mapped to IPv6 (RFC 4291, 2.5.5.2).
    pub fn between(src: IpAddr, dst: IpAddr, traffic_class: u8) -> Self {
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (src, dst) {
            let (src, dst) = (src.octets(), dst.octets());
            return Self::V4(Ipv4 { tos: traffic_class, src, dst, ..Ipv4::default() }, &[]);
        }
        let [src, dst] = [src, dst].map(|ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        });
        let version_class_flow = (6 << 28 | u32::from(traffic_class) << 20).into();
        Self::V6(Ipv6 { version_class_flow, src, dst, ..Ipv6::default() }, &[])
    }

    /// Returns the Ethernet type of the packet.
    pub const fn ethertype(&self) -> u16 {
        match self {
            Self::V4(..) => ethertype::IPV4,
            Self::V6(..) => ethertype::IPV6,
        }
    }
}

/// Headers between BTH and payload. The opcode determines which of them a packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "fields are named like their types")]
pub struct Extended {
    pub feth: [u8; 4],
    pub deth: Deth,
    pub reth: Reth,
    pub atomic: AtomicEth,
    pub aeth: [u8; Aeth::LEN],
    pub atomic_ack: AtomicAckEth,
    pub immediate: ImmDt,
    pub ieth: Ieth,
    /// The CNP's reserved bytes
    pub cnp: [u8; 16],
}

impl Extended {
    /// Returns each header with its bytes, in wire order.
    fn in_order(&self) -> [(Headers, &[u8]); 9] {
        [
            (Headers::FETH, &self.feth),
            (Headers::DETH, self.deth.as_bytes()),
            (Headers::RETH, self.reth.as_bytes()),
            (Headers::ATOMIC, self.atomic.as_bytes()),
            (Headers::AETH, &self.aeth),
            (Headers::ATOMIC_ACK, self.atomic_ack.as_bytes()),
            (Headers::IMM, self.immediate.as_bytes()),
            (Headers::IETH, self.ieth.as_bytes()),
            (Headers::CNP, &self.cnp),
        ]
    }
}

/// The buffer is too short for the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the buffer is too short for the frame")]
pub struct TooShort;

/// The reason why a frame cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The buffer is too short for the frame
    #[error(transparent)]
    TooShort(#[from] TooShort),
    /// The IP packet would be longer than 65,535 bytes
    #[error("the packet is longer than 65,535 bytes")]
    TooLong,
}

impl<'a> Repr<'a> {
    /// Returns an untagged packet without payload; all other fields have the values that a host sends.
    pub fn new(ethernet: Ethernet, ip: Ip<'a>, bth: Bth) -> Self {
        Self {
            ethernet,
            tags: [VlanTag::default(); MAX_TAGS],
            tag_count: 0,
            ip,
            udp: Udp::default(),
            bth,
            extended: Extended::default(),
            payload: &[],
            padding: &[],
            icrc: 0,
            trailer: &[],
        }
    }

    /// Parses a frame. Returns `None` if it is not a RoCEv2 packet or is malformed.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let Class::Roce(layout) = classify(frame) else { return None };
        let packet = Packet::new(frame, layout);
        let (l3, udp) = (layout.l3(), layout.udp());
        let ip = match packet.ipv4() {
            Some(ip) => Ip::V4(*ip, &frame[l3 + Ipv4::LEN..udp]),
            None => Ip::V6(*packet.ipv6()?, &frame[l3 + Ipv6::LEN..udp]),
        };
        let headers = layout.opcode().headers();
        let raw = |header: Headers| {
            headers.contains(header).then(|| &frame[layout.bth() + Bth::LEN + headers.before(header)..])
        };
        let extended = Extended {
            feth: raw(Headers::FETH).and_then(|b| b.first_chunk()).copied().unwrap_or_default(),
            deth: packet.deth().copied().unwrap_or_default(),
            reth: packet.reth().copied().unwrap_or_default(),
            atomic: packet.atomic().copied().unwrap_or_default(),
            aeth: raw(Headers::AETH).and_then(|b| b.first_chunk()).copied().unwrap_or_default(),
            atomic_ack: packet.atomic_ack().copied().unwrap_or_default(),
            immediate: packet.immediate().copied().unwrap_or_default(),
            ieth: packet.ieth().copied().unwrap_or_default(),
            cnp: raw(Headers::CNP).and_then(|b| b.first_chunk()).copied().unwrap_or_default(),
        };
        let mut tags = [VlanTag::default(); MAX_TAGS];
        let tag_count = packet.tags().len();
        tags.get_mut(..tag_count)?.copy_from_slice(packet.tags());
        let payload = packet.payload();
        Some(Self {
            ethernet: *packet.ethernet(),
            tags,
            tag_count,
            ip,
            udp: *packet.udp(),
            bth: *packet.bth(),
            extended,
            payload,
            padding: &frame[layout.payload() + payload.len()..layout.icrc()],
            icrc: packet.icrc(),
            trailer: &frame[layout.end()..],
        })
    }

    fn headers(&self) -> Headers {
        self.bth.opcode().headers()
    }

    fn tags(&self) -> &[VlanTag] {
        &self.tags[..self.tag_count.min(MAX_TAGS)]
    }

    /// Returns the length from the UDP header to the ICRC, in bytes.
    fn udp_len(&self) -> usize {
        Udp::LEN + Bth::LEN + self.headers().len() + self.payload.len() + self.padding.len() + ICRC_LEN
    }

    /// Returns the length of the frame, in bytes.
    pub fn frame_len(&self) -> usize {
        let ip = match self.ip {
            Ip::V4(_, options) => Ipv4::LEN + options.len(),
            Ip::V6(_, extensions) => Ipv6::LEN + extensions.len(),
        };
        Ethernet::LEN + self.tags().len() * VlanTag::LEN + ip + self.udp_len() + self.trailer.len()
    }

    /// Writes the frame with the fields unchanged, and returns its length in bytes.
    ///
    /// # Errors
    /// [`TooShort`] if the frame does not fit into `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, TooShort> {
        let mut out = Writer { buffer, at: 0 };
        out.put(&self.ethernet)?;
        out.put(self.tags())?;
        match &self.ip {
            Ip::V4(header, options) => {
                out.put(header)?;
                out.put(*options)?;
            }
            Ip::V6(header, extensions) => {
                out.put(header)?;
                out.put(*extensions)?;
            }
        }
        out.put(&self.udp)?;
        out.put(&self.bth)?;
        for (header, bytes) in self.extended.in_order() {
            if self.headers().contains(header) {
                out.put(bytes)?;
            }
        }
        out.put(self.payload)?;
        out.put(self.padding)?;
        out.put(&self.icrc.to_le_bytes())?;
        out.put(self.trailer)?;
        Ok(out.at)
    }

    /// Computes all derived fields (padding and pad count, lengths, checksums, ICRC), writes the frame, and
    /// returns its length in bytes. A UDP checksum of 0 stays 0; any other value is computed.
    ///
    /// # Errors
    /// [`BuildError`] if the frame does not fit into `buffer`, or is too long for IP.
    pub fn build(&mut self, buffer: &mut [u8]) -> Result<usize, BuildError> {
        let pad = self.payload.len().wrapping_neg() % 4;
        self.padding = &[0; 3][..pad];
        self.bth.set_pad_count(pad as u8);
        let udp_len = u16::try_from(self.udp_len()).map_err(|_| BuildError::TooLong)?;
        self.udp.len = udp_len.into();
        let longer = |by: usize| u16::try_from(usize::from(udp_len) + by).map_err(|_| BuildError::TooLong);
        match &mut self.ip {
            Ip::V4(header, options) => {
                let len = Ipv4::LEN + options.len();
                header.version_ihl = 0x40 | (len / 4) as u8;
                header.total_len = longer(len)?.into();
                header.fill_checksum(options);
            }
            Ip::V6(header, extensions) => header.payload_len = longer(extensions.len())?.into(),
        }
        let len = self.emit(buffer)?;
        // A frame that `classify` does not accept (because of a wrong EtherType, for example) gets no ICRC.
        if let Class::Roce(layout) = classify(&buffer[..len]) {
            self.icrc = icrc::compute(&buffer[..len], &layout);
            buffer[layout.icrc()..layout.end()].copy_from_slice(&self.icrc.to_le_bytes());
            if self.udp.checksum.get() != 0 {
                let at = layout.udp() + 6;
                buffer[at..at + 2].fill(0);
                let packet = Packet::new(&buffer[..len], layout);
                let sum: Sum = packet.pseudo_header_sum().add(&buffer[layout.udp()..layout.end()]);
                // A checksum of 0 would mean "no checksum" (RFC 768).
                self.udp.checksum = (if sum.checksum() == 0 { 0xffff } else { sum.checksum() }).into();
                buffer[at..at + 2].copy_from_slice(self.udp.checksum.as_bytes());
            }
        }
        Ok(len)
    }
}

struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, part: &(impl IntoBytes + Immutable + ?Sized)) -> Result<(), TooShort> {
        let bytes = part.as_bytes();
        let end = self.at + bytes.len();
        self.buffer.get_mut(self.at..end).ok_or(TooShort)?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tag in self.tags() {
            write!(f, "{tag} ")?;
        }
        match &self.ip {
            Ip::V4(header, _) => write!(f, "{header}")?,
            Ip::V6(header, _) => write!(f, "{header}")?,
        }
        write!(f, " {}", self.bth)?;
        let headers = self.headers();
        let extended = &self.extended;
        if headers.contains(Headers::DETH) {
            write!(f, " {}", extended.deth)?;
        }
        if headers.contains(Headers::RETH) {
            write!(f, " {}", extended.reth)?;
        }
        if headers.contains(Headers::ATOMIC) {
            write!(f, " {}", extended.atomic)?;
        }
        if headers.contains(Headers::AETH) {
            let [syndrome, msn @ ..] = extended.aeth;
            write!(f, " {} msn {}", crate::aeth::Syndrome::from_wire(syndrome), crate::Msn::from_wire(msn))?;
        }
        if headers.contains(Headers::ATOMIC_ACK) {
            write!(f, " {}", extended.atomic_ack)?;
        }
        if headers.contains(Headers::IMM) {
            write!(f, " {}", extended.immediate)?;
        }
        if headers.contains(Headers::IETH) {
            write!(f, " {}", extended.ieth)?;
        }
        write!(f, " payload {} B", self.payload.len())
    }
}

#[cfg(test)]
mod tests;

//! The headers that frames to an end of a connection have, from Ethernet to UDP, and frames made with them.

use rocev2::ethernet::{Ethernet, VlanTag};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::packet::{ICRC_LEN, MAX_TAGS};
use rocev2::udp::Udp;
use rocev2::{Bth, Class, Packet, classify, icrc};
use switch::{Frame, NoRoom};
use zerocopy::IntoBytes;

/// The longest: tags, IPv6, and neither options nor extension headers
const MAX: usize = Ethernet::LEN + MAX_TAGS * VlanTag::LEN + Ipv6::LEN + Udp::LEN;

/// Ethernet, VLAN tags, IP and UDP of the frames that go to one end of a connection, and what their BTHs have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    len: u8,
    l3: u8,
    v6: bool,
    /// Path migration state and version, and the partition key: a queue pair drops what has others
    bth: [u8; 3],
    bytes: [u8; MAX],
}

/// What belongs to the connection in a BTH's second byte: all but solicited event and padding
const KEPT: u8 = 0x4f;

/// Traffic class and ECN (IPv4: the TOS byte; IPv6: the traffic class), kept when a packet changes its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class8(pub(crate) u8);

impl Class8 {
    /// That of a packet.
    pub(crate) fn of(packet: &Packet<'_>) -> Self {
        let at = &packet.bytes()[packet.layout().l3()..];
        Self(if packet.layout().is_ipv6() { at[0] << 4 | at[1] >> 4 } else { at[1] })
    }
}

impl Headers {
    /// None: nothing has been seen yet.
    pub(crate) const NONE: Self = Self { len: 0, l3: 0, v6: false, bth: [0; 3], bytes: [0; MAX] };

    /// Those of `packet`; `None` if it has IP options or extension headers.
    #[inline]
    pub(crate) fn of(packet: &Packet<'_>) -> Option<Self> {
        let layout = packet.layout();
        let (l3, len, v6) = (layout.l3(), layout.bth(), layout.is_ipv6());
        let ip = if v6 { Ipv6::LEN } else { Ipv4::LEN };
        if l3 + ip + Udp::LEN != len || len > MAX {
            return None;
        }
        let [flags, high, low]: [u8; 3] = *packet.bytes()[len + 1..].first_chunk()?;
        let bth = [flags & KEPT, high, low];
        let mut headers = Self { len: len as u8, l3: l3 as u8, v6, bth, bytes: [0; MAX] };
        headers.bytes[..len].copy_from_slice(&packet.bytes()[..len]);
        Some(headers)
    }

    /// Whether none were seen yet.
    pub(crate) const fn is_none(&self) -> bool {
        self.len == 0
    }

    /// Whether `packet` has the same MAC addresses and UDP source port; addresses and queue pair are taken to be the same.
    #[inline]
    pub(crate) fn leads_like(&self, packet: &Packet<'_>) -> bool {
        let (bytes, udp) = (packet.bytes(), packet.layout().udp());
        self.len != 0
            && usize::from(self.len) == packet.layout().bth()
            && bytes[..12] == self.bytes[..12]
            && bytes[udp..udp + 2] == self.bytes[udp..udp + 2]
    }

    /// Whether `packet` comes from another queue pair: a queue pair keeps its UDP source port (IB A17.4.5.2).
    #[inline]
    pub(crate) fn is_of_another(&self, packet: &Packet<'_>) -> bool {
        let (bytes, udp) = (packet.bytes(), packet.layout().udp());
        let own = usize::from(self.len).saturating_sub(Udp::LEN);
        self.len != 0 && bytes[udp..udp + 2] != self.bytes[own..own + 2]
    }

    /// The UDP source port; 0 if nothing has been seen yet
    pub(crate) fn src_port(&self) -> u16 {
        let at = usize::from(self.len).saturating_sub(Udp::LEN);
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Bytes of a frame with them, a BTH, and so many bytes behind it (without the ICRC).
    pub(crate) const fn frame_len(&self, behind: usize) -> usize {
        self.len as usize + Bth::LEN + behind + ICRC_LEN
    }

    /// Makes `frame` one with these headers, `bth` and what comes behind it, of a length that is a multiple of four, with
    /// this traffic class if one is given, and with right checksums and ICRC (no UDP checksum).
    pub(crate) fn build<F: Frame>(
        &self,
        frame: &mut F,
        class: Option<Class8>,
        bth: &Bth,
        behind: &[&[u8]],
    ) -> Result<(), NoRoom> {
        let body: usize = behind.iter().map(|part| part.len()).sum();
        debug_assert!(body.is_multiple_of(4), "{body} bytes behind the BTH");
        let (l3, head, len) = (usize::from(self.l3), usize::from(self.len), self.frame_len(body));
        frame.resize(len)?;
        let bytes = frame.bytes_mut();
        bytes[..head].copy_from_slice(&self.bytes[..head]);
        let udp_len = (len - head + Udp::LEN) as u16;
        if self.v6 {
            bytes[l3 + 4..l3 + 6].copy_from_slice(&udp_len.to_be_bytes());
            if let Some(Class8(class)) = class {
                bytes[l3] = bytes[l3] & 0xf0 | class >> 4;
                bytes[l3 + 1] = bytes[l3 + 1] & 0x0f | class << 4;
            }
        } else {
            bytes[l3 + 2..l3 + 4].copy_from_slice(&(udp_len + Ipv4::LEN as u16).to_be_bytes());
            if let Some(Class8(class)) = class {
                bytes[l3 + 1] = class;
            }
            bytes[l3 + 10..l3 + 12].fill(0);
            let sum = rocev2::checksum::Sum::default().add(&bytes[l3..l3 + Ipv4::LEN]).checksum();
            bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        bytes[head - 4..head - 2].copy_from_slice(&udp_len.to_be_bytes());
        bytes[head - 2..head].fill(0);
        bytes[head..head + Bth::LEN].copy_from_slice(bth.as_bytes());
        let [flags, key @ ..] = self.bth;
        bytes[head + 1] = bytes[head + 1] & !KEPT | flags;
        bytes[head + 2..head + 4].copy_from_slice(&key);
        let mut at = head + Bth::LEN;
        for part in behind {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let crc = icrc::compute_for(&bytes[l3..at], self.v6, head - Udp::LEN - l3);
        bytes[at..at + ICRC_LEN].copy_from_slice(&crc.to_le_bytes());
        debug_assert!(matches!(classify(bytes), Class::Roce(_)), "a packet");
        Ok(())
    }
}

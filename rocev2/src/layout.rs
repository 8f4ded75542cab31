//! Layout of a frame: where its headers are.

use crate::ethernet::{Ethernet, VlanTag};
use crate::ipv4::Ipv4;
use crate::udp::Udp;
use crate::{Bth, Opcode};
use core::fmt;

/// Length of the ICRC at the end of every packet, in bytes
pub const ICRC_LEN: usize = 4;

/// Offsets of the headers of one RoCEv2 frame, in bytes from its start.
///
/// All offsets are packed into one word. A struct that is assembled in memory field by field and then loaded
/// as a whole would cost more than the checks themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Layout(u64);

impl Layout {
    /// Packs a layout. `headers` is the length of the extended headers, at most 28 bytes.
    pub(crate) const fn new(opcode: Opcode, v6: bool, headers: u8, l3: u16, bth: u16, icrc: u16) -> Self {
        let ends = (icrc as u64) << 48 | (bth as u64) << 32 | (l3 as u64) << 16;
        Self(ends | (headers as u64) << 9 | (v6 as u64) << 8 | opcode.0 as u64)
    }

    /// Returns the layout of an IPv4 packet without VLAN tags and options, with this opcode, `headers` bytes
    /// of extended headers and no payload. Compare a packet's layout with it, and use the constant if they
    /// are equal: the compiler removes bounds checks on constant offsets.
    pub const fn ipv4_without_options(opcode: Opcode, headers: usize) -> Self {
        const BTH: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN;
        let icrc = BTH + Bth::LEN + headers;
        Self::new(opcode, false, headers as u8, Ethernet::LEN as u16, BTH as u16, icrc as u16)
    }

    /// Returns this layout with `frame`'s payload length if `layout` otherwise matches. `layout` has to be
    /// that of `frame`.
    #[inline]
    pub fn with_payload_of(self, frame: &[u8], layout: Self) -> Option<Self> {
        const ICRC: u64 = 0xffff << 48;
        if (self.0 ^ layout.0) & !ICRC != 0 {
            return None;
        }
        // Reads the length again from the frame. If it were taken from `layout`, the compiler would see that
        // the result equals `layout`, and lose the constants of `self`.
        let len = u16::from_be_bytes(*frame.get(Ethernet::LEN + 2..)?.first_chunk()?);
        let icrc = len.wrapping_add((Ethernet::LEN - ICRC_LEN) as u16);
        Some(Self(self.0 & !ICRC | u64::from(icrc) << 48))
    }

    /// Returns the opcode.
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.0 as u8)
    }

    /// Returns whether the packet is IPv6; otherwise it is IPv4.
    pub const fn is_ipv6(&self) -> bool {
        self.0 & 1 << 8 != 0
    }

    /// Returns the offset of the IP header.
    pub const fn l3(&self) -> usize {
        (self.0 >> 16) as u16 as usize
    }

    /// Returns the offset of the UDP header.
    pub const fn udp(&self) -> usize {
        self.bth() - Udp::LEN
    }

    /// Returns the offset of the BTH.
    pub const fn bth(&self) -> usize {
        (self.0 >> 32) as u16 as usize
    }

    /// Returns the offset of the payload, where the extended headers end.
    pub const fn payload(&self) -> usize {
        self.bth() + Bth::LEN + (self.0 >> 9 & 0x7f) as usize
    }

    /// Returns the offset of the ICRC, where payload and padding end.
    pub const fn icrc(&self) -> usize {
        (self.0 >> 48) as usize
    }

    /// Returns the offset of the packet's end; Ethernet padding may follow.
    pub const fn end(&self) -> usize {
        self.icrc() + ICRC_LEN
    }

    /// Returns the length of the IP packet, in bytes.
    pub const fn ip_len(&self) -> usize {
        self.end() - self.l3()
    }

    /// Returns the number of VLAN tags between the Ethernet header and the IP header.
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

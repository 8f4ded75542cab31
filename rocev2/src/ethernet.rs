//! Ethernet II frames and 802.1Q tags.

use core::fmt;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A MAC address.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// Broadcast address, ff:ff:ff:ff:ff:ff
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether this is a group address (multicast or broadcast), which is never the address of a
    /// single station.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns the address as the low 48 bits of an integer.
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not six hexadecimal bytes, separated by colons or dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a MAC address: write six hexadecimal bytes with colons, such as 52:54:00:00:00:01")]
pub struct ParseMacError;

impl core::str::FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().ok_or(ParseMacError)?;
            if part.len() != 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(ParseMacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        if parts.next().is_some() { Err(ParseMacError) } else { Ok(Self(bytes)) }
    }
}

/// EtherType values of Ethernet frames and VLAN tags.
pub mod ethertype {
    /// IPv4
    pub const IPV4: u16 = 0x0800;
    /// ARP
    pub const ARP: u16 = 0x0806;
    /// 802.1Q customer tag
    pub const VLAN: u16 = 0x8100;
    /// IPv6
    pub const IPV6: u16 = 0x86dd;
    /// 802.1ad service tag
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// `QinQ` service tag that predates 802.1ad
    pub const OLD_SERVICE_VLAN: u16 = 0x9100;

    /// Returns whether a VLAN tag follows.
    pub const fn is_tag(ethertype: u16) -> bool {
        matches!(ethertype, VLAN | SERVICE_VLAN | OLD_SERVICE_VLAN)
    }
}

/// The Ethernet header, 14 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ethernet {
    /// Destination address
    pub dst: MacAddr,
    /// Source address
    pub src: MacAddr,
    /// EtherType of the payload: see [`ethertype`]
    pub ethertype: U16,
}

impl Ethernet {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
}

impl fmt::Display for Ethernet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} type {:#06x}", self.src, self.dst, self.ethertype.get())
    }
}

/// An 802.1Q tag, 4 bytes, without the EtherType in front that announces it: control information, then the
/// EtherType of the payload.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1), VLAN identifier (12)
    pub tci: U16,
    /// EtherType of the payload
    pub ethertype: U16,
}

impl VlanTag {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();

    /// Returns the VLAN identifier, 0 to 4095. 0 means that the tag carries a priority only.
    pub fn id(&self) -> u16 {
        self.tci.get() & 0x0fff
    }

    /// Returns the priority code point, 0 to 7: the traffic class to which PFC applies.
    pub fn priority(&self) -> u8 {
        (self.tci.get() >> 13) as u8
    }
}

impl fmt::Display for VlanTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vlan {} priority {}", self.id(), self.priority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_parsed_and_printed() {
        let mac = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
        assert_eq!(mac.to_string(), "52:54:00:00:00:01");
        assert_eq!("52-54-00-00-00-01".parse(), Ok(mac));
        for wrong in ["", "52:54:00:00:00", "52:54:00:00:00:01:02", "5:54:00:00:00:01", "+1:54:00:00:00:01"] {
            assert_eq!(wrong.parse::<MacAddr>(), Err(ParseMacError), "{wrong}");
        }
        assert!(MacAddr::BROADCAST.is_group() && !mac.is_group());
    }

    #[test]
    fn vlan_tag_fields_are_decoded() {
        let tag = VlanTag::ref_from_bytes(&[0x60, 0x05, 0x08, 0x00]).unwrap();
        assert_eq!((tag.id(), tag.priority(), tag.ethertype.get()), (5, 3, ethertype::IPV4));
    }
}

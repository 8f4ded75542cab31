//! Frames that are copies of one frame and differ from it in a few fields.
//!
//! All fields that vary are 0 in the frame that a [`Template`] is made of. A CRC is linear, so the value that
//! is written into a copy changes the ICRC by a contribution that depends on the value and its offset alone:
//! one multiplication a word, whatever the frame's length. [`Fields`] writes fields and records their
//! contributions. A contribution that several copies have in common, such as that of a destination, is
//! computed once and added to each.
//!
//! A receiver of such copies needs no parser either. It compares the bytes that do not vary
//! ([`differences`]), and compares the ICRC in the frame with the one computed from the varying fields.
//!
//! To change received packets of any content, use [`Rewriter`](crate::rewrite::Rewriter).

use crate::checksum::Sum;
use crate::icrc::{self, Changes, Weight};
use crate::ipv4::Ipv4;
use crate::layout::{ICRC_LEN, Layout};
use crate::udp::Udp;
use zerocopy::IntoBytes;

/// Position of the ICRC in all copies of a frame, and its value while all fields that vary are 0. The frame
/// itself stays with the caller.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    icrc: u32,
    icrc_at: usize,
}

impl Template {
    /// Makes a template of `frame`, in which all fields that vary have to be 0. Its ICRC is computed, not
    /// read.
    pub fn new(frame: &[u8], layout: &Layout) -> Self {
        Self { icrc: icrc::compute(frame, layout), icrc_at: layout.icrc() }
    }

    /// Returns the ICRC of the frame whose varying fields are 0.
    #[inline]
    pub const fn icrc(&self) -> u32 {
        self.icrc
    }

    /// Returns the weight of the four bytes at offset `at`.
    #[inline]
    pub fn weight(&self, at: usize) -> Weight {
        Weight::of(self.icrc_at - at - 4)
    }

    /// Returns the contribution of eight bytes at offset `at` to the ICRC.
    #[inline]
    pub fn effect_of_u64(&self, at: usize, value: u64) -> u32 {
        let mut changes = Changes::new();
        changes.add_u64(value, self.icrc_at - at - 8);
        changes.effect()
    }

    /// Adds a contribution to the ICRC of all further copies, for a field of the frame that the caller
    /// changes.
    #[inline]
    pub fn add_effect(&mut self, effect: u32) {
        self.icrc ^= effect;
    }

    /// Begins to fill in `copy`. Each field that varies has to be written, or has to be 0 in `copy`.
    #[inline]
    pub fn begin<'a>(&self, copy: &'a mut [u8]) -> Fields<'a> {
        Fields { bytes: copy, template: *self, changes: Changes::new() }
    }
}

/// A copy of a frame whose fields are being filled in.
#[derive(Debug)]
#[must_use = "the ICRC is wrong until `finish` is called"]
pub struct Fields<'a> {
    bytes: &'a mut [u8],
    template: Template,
    changes: Changes,
}

impl Fields<'_> {
    /// Returns the copy, to write fields whose contributions are known.
    /// [`add_weighted`](Self::add_weighted) has to add these.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Adds the contribution of `word`, read in little-endian order, whose weight is known.
    #[inline]
    pub fn add_weighted(&mut self, word: u32, weight: Weight) {
        self.changes.add_weighted(word, weight);
    }

    /// Writes eight bytes.
    #[inline]
    pub fn set_u64(&mut self, at: usize, value: u64) {
        self.bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        self.changes.add_u64(value, self.template.icrc_at - at - 8);
    }

    /// Writes four bytes, whose weight is known.
    #[inline]
    pub fn set_u32_weighted(&mut self, at: usize, value: u32, weight: Weight) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self.changes.add_weighted(value.swap_bytes(), weight);
    }

    /// Writes the low three bytes of a word, the first byte of which does not vary.
    #[inline]
    pub fn set_u24(&mut self, at: usize, value: u32) {
        self.bytes[at + 1..at + 4].copy_from_slice(&value.to_be_bytes()[1..]);
        self.changes.add_word(value.swap_bytes(), self.template.icrc_at - at - 4);
    }

    /// Writes bytes, whose number has to be a multiple of four.
    #[inline]
    pub fn set_words(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
        for (n, word) in value.as_chunks::<4>().0.iter().enumerate() {
            self.changes.add_word(u32::from_le_bytes(*word), self.template.icrc_at - at - 4 * n - 4);
        }
    }

    /// Writes the ICRC.
    #[inline]
    pub fn finish(self) {
        let Template { icrc, icrc_at } = self.template;
        let icrc = icrc ^ self.changes.effect();
        self.bytes[icrc_at..icrc_at + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    }
}

/// Number of bytes that [`differences`] compares at once
pub const BLOCK: usize = 32;

/// Returns the bits in which `frame` differs from `expected` and that `mask` contains, as four words. All
/// other bits of `expected` have to be 0.
#[inline]
pub fn differences(frame: &[u8; BLOCK], expected: &[u8; BLOCK], mask: &[u8; BLOCK]) -> [u64; BLOCK / 8] {
    let words = |block: &[u8; BLOCK]| -> [u64; BLOCK / 8] { zerocopy::transmute!(*block) };
    let (frame, expected, mask) = (words(frame), words(expected), words(mask));
    [0, 1, 2, 3].map(|n| (frame[n] & mask[n]) ^ expected[n])
}

/// Lengths, identification and header checksum of IP packets whose other header fields do not vary.
#[derive(Clone, Copy, Debug)]
pub struct IpLengths {
    /// Sum of the IPv4 header's words, without length and identification
    sum: u32,
    id: u16,
}

impl IpLengths {
    /// IPv6 has neither an identification nor a header checksum
    pub const V6: Self = Self { sum: 0, id: 0 };

    /// Returns the value for packets with the IPv4 header `ip`, numbered from 1 on.
    pub fn of(ip: Ipv4) -> Self {
        let ip = Ipv4 { total_len: 0.into(), id: 0.into(), checksum: 0.into(), ..ip };
        Self { sum: Sum::default().add(ip.as_bytes()).folded().into(), id: 0 }
    }

    /// Writes the fields of the next packet, which has `udp_len` bytes from the UDP header to the ICRC, into
    /// its headers. `l3` and `udp` are the offsets of the IP and of the UDP header.
    #[expect(clippy::inline_always, reason = "some callers pass constants for all but the length")]
    #[inline(always)]
    pub fn write(&mut self, headers: &mut [u8], v6: bool, (l3, udp): (usize, usize), udp_len: u16) {
        headers[udp + Udp::LENGTH_OFFSET..udp + Udp::LENGTH_OFFSET + 2]
            .copy_from_slice(&udp_len.to_be_bytes());
        if v6 {
            headers[l3 + 4..l3 + 6].copy_from_slice(&udp_len.to_be_bytes());
            return;
        }
        let total = udp_len + Ipv4::LEN as u16;
        self.id = self.id.wrapping_add(1);
        let sum = self.sum + u32::from(total) + u32::from(self.id);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        headers[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
        headers[l3 + 4..l3 + 6].copy_from_slice(&self.id.to_be_bytes());
        headers[l3 + 10..l3 + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::Ethernet;
    use crate::repr::{Ip, Repr};
    use crate::{Bth, Class, Opcode, Packet, Psn, Qpn, classify};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_way_to_write_a_field_leads_to_a_valid_icrc(
            v6: bool,
            len in 8usize..300,
            long: u64,
            word: u32,
            low in 0u32..1 << 24,
            constant: [u8; 8],
        ) {
            let ends = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
            let [src, dst] = ends.map(|address| address.parse().unwrap());
            let ip = Ip::between(src, dst, 0x6a);
            let ethernet = Ethernet { ethertype: ip.ethertype().into(), ..Ethernet::default() };
            let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(9));
            let mut repr = Repr::new(ethernet, ip, bth);
            let payload = vec![0; 4 * len];
            repr.payload = &payload;
            let mut frame = vec![0; repr.frame_len()];
            repr.build(&mut frame).unwrap();
            let Class::Roce(layout) = classify(&frame) else { panic!("a RoCEv2 packet") };
            let at = layout.payload();
            let mut template = Template::new(&frame, &layout);
            frame[at + 24..at + 32].copy_from_slice(&constant);
            template.add_effect(template.effect_of_u64(at + 24, u64::from_be_bytes(constant)));
            let mut fields = template.begin(&mut frame);
            fields.set_u64(at, long);
            fields.set_u32_weighted(at + 8, word, template.weight(at + 8));
            fields.set_u24(at + 12, low);
            fields.set_words(at + 16, &long.to_le_bytes()[..4]);
            fields.bytes_mut()[at + 20..at + 24].copy_from_slice(&word.to_le_bytes());
            fields.add_weighted(word, template.weight(at + 20));
            fields.finish();
            let packet = Packet::parse(&frame).expect("a packet");
            prop_assert!(packet.verify_icrc());
            let written = [
                &long.to_be_bytes()[..], &word.to_be_bytes(), &low.to_be_bytes(), &long.to_le_bytes()[..4],
                &word.to_le_bytes(), &constant,
            ];
            prop_assert_eq!(&packet.payload()[..32], &written.concat()[..]);
        }

        #[test]
        fn differences_are_the_masked_bits_that_differ(
            frame: [u8; BLOCK],
            bytes: [u8; BLOCK],
            mask: [u8; BLOCK],
        ) {
            let expected: [u8; BLOCK] = core::array::from_fn(|n| bytes[n] & mask[n]);
            let found: Vec<u8> =
                differences(&frame, &expected, &mask).into_iter().flat_map(u64::to_ne_bytes).collect();
            for n in 0..BLOCK {
                prop_assert_eq!(found[n], (frame[n] ^ bytes[n]) & mask[n]);
            }
        }
    }
}

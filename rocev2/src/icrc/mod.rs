//! The invariant CRC at the end of every packet (IB 7.8.1, for RoCEv2 A17.3.3): whole, and kept right while
//! single words of the packet change.
//!
//! It is the CRC-32 of Ethernet, least significant byte first on the wire, over eight bytes of ones (in place of
//! the link's header), the packet from the IP header to the end of the padding, with the fields that routers may
//! change read as ones: IPv4 TOS, TTL and header checksum; IPv6 traffic class, flow label and hop limit; the UDP
//! checksum; and all of BTH byte 4 (FECN, BECN and six reserved bits).
//!
//! A CRC is linear, so a change of a word changes it by the CRC of that change alone, multiplied by x^(8n) mod P
//! for the n bytes that follow: a few carry-less multiplications whatever the packet's length. A packet that came
//! in with a wrong ICRC leaves with a wrong one, and its receiver sees the damage.

use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::packet::Layout;
use crate::udp::Udp;

#[cfg(target_arch = "x86_64")]
mod clmul;
mod table;

/// CRC register after the eight bytes of ones.
const AFTER_LINK_HEADER: u32 = 0xdebb_20e3;
/// Bytes from the IP header on among which are all that the ICRC leaves out, in whole blocks of 16: IPv6, UDP and BTH
const MASKED: usize = (Ipv6::LEN + Udp::LEN + crate::Bth::LEN).next_multiple_of(16);
/// The same with IPv4
const MASKED_V4: usize = (Ipv4::LEN + Udp::LEN + crate::Bth::LEN).next_multiple_of(16);
/// Ones where the ICRC reads ones whatever the packet says, from the IP header on; zeros behind.
type Masks = [u8; MASKED + 16];

/// Offsets from the IP header, in packets without IPv4 options and IPv6 extension headers
const fn masks(ip: &[(usize, u8)], ip_len: usize) -> Masks {
    let mut masks = [0; MASKED + 16];
    let mut n = 0;
    while n < ip.len() {
        masks[ip[n].0] = ip[n].1;
        n += 1;
    }
    // UDP checksum
    masks[ip_len + 6] = 0xff;
    masks[ip_len + 7] = 0xff;
    masks[ip_len + Udp::LEN + crate::Bth::MASKED_BYTE] = 0xff;
    masks
}

/// TOS, TTL, header checksum
const IPV4_FIELDS: [(usize, u8); 4] = [(1, 0xff), (8, 0xff), (10, 0xff), (11, 0xff)];
/// Traffic class and flow label, hop limit
const IPV6_FIELDS: [(usize, u8); 5] = [(0, 0x0f), (1, 0xff), (2, 0xff), (3, 0xff), (7, 0xff)];
const fn masks_v4() -> Masks {
    masks(&IPV4_FIELDS, Ipv4::LEN)
}
static IPV4_MASKS: Masks = masks_v4();
static IPV6_MASKS: Masks = masks(&IPV6_FIELDS, Ipv6::LEN);

/// The ICRC that the packet's bytes call for.
#[inline]
pub fn compute(frame: &[u8], layout: &Layout) -> u32 {
    let packet = &frame[layout.l3()..layout.icrc()];
    compute_for(packet, layout.is_ipv6(), layout.udp() - layout.l3())
}

/// The same for a packet that has no layout because its transport header is not understood: `packet` reaches from the
/// IP header to the ICRC, and its UDP header begins `udp` bytes on.
#[inline]
pub fn compute_for(packet: &[u8], v6: bool, udp: usize) -> u32 {
    compute_inline(packet, v6, udp)
}

#[expect(clippy::inline_always, reason = "some callers know all but the bytes")]
#[inline(always)]
pub(crate) fn compute_inline(packet: &[u8], v6: bool, udp: usize) -> u32 {
    let (masks, ip_len) = if v6 { (&IPV6_MASKS, Ipv6::LEN) } else { (&IPV4_MASKS, Ipv4::LEN) };
    if udp != ip_len || packet.len() < 16 {
        return compute_with_options(packet, v6, udp);
    }
    #[cfg(target_arch = "x86_64")]
    {
        let crc = if v6 {
            clmul::update::<{ MASKED / 16 }>(AFTER_LINK_HEADER, packet, masks)
        } else {
            clmul::update::<{ MASKED_V4 / 16 }>(AFTER_LINK_HEADER, packet, masks)
        };
        if let Some(crc) = crc {
            return !crc;
        }
    }
    !table::update_masked(AFTER_LINK_HEADER, packet, masks)
}

/// Packets with IPv4 options or IPv6 extension headers: seldom, and of any header length.
#[cold]
fn compute_with_options(packet: &[u8], v6: bool, udp: usize) -> u32 {
    let fields = if v6 { &IPV6_FIELDS[..] } else { &IPV4_FIELDS[..] };
    let mut crc = AFTER_LINK_HEADER;
    for (at, &byte) in packet.iter().enumerate() {
        let in_udp = at.wrapping_sub(udp);
        let mask = if matches!(in_udp, 6 | 7) || in_udp == Udp::LEN + crate::Bth::MASKED_BYTE {
            0xff
        } else {
            fields.iter().find(|field| field.0 == at).map_or(0, |field| field.1)
        };
        crc = table::update(crc, &[byte | mask]);
    }
    !crc
}

/// What four bytes at a place count for in the ICRC: for those who change the same places of many packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    /// Of what never changes: whatever stands there, it counts for nothing
    pub const NONE: Self = Self(0);

    /// Of four bytes between whose end and the ICRC `follow` bytes stand.
    pub fn of(follow: usize) -> Self {
        Self(power(follow + 4))
    }
}

/// Changed words of a packet, added up to correct its ICRC in one go. Words that the ICRC leaves out must not be told,
/// nor their masked bytes within a word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// The sum of the words' products with their powers of x: 64 bits in the CRC's bit order, not yet reduced mod P
    sum: u64,
}

impl Changes {
    /// None yet.
    pub const fn new() -> Self {
        Self { sum: 0 }
    }

    /// Tells that four bytes changed. `xor` is old XOR new, both read in little-endian order; `follow` is the number
    /// of bytes between their end and the ICRC.
    #[inline]
    pub fn word(&mut self, xor: u32, follow: usize) {
        self.add(xor, power(follow + 4));
    }

    /// The same for a place whose weight is known.
    #[inline]
    pub fn weighted(&mut self, xor: u32, weight: Weight) {
        self.add(xor, weight.0);
    }

    /// The same with the power itself, out of [`powers`].
    #[inline]
    pub(crate) fn add(&mut self, xor: u32, power: u32) {
        #[cfg(target_arch = "x86_64")]
        if let Some(product) = clmul::multiply([(xor, power)]) {
            self.sum ^= product;
            return;
        }
        self.sum ^= u64::from(table::multiply(xor, power)) << 32;
    }

    /// Tells that a run of words changed, each as [`word`](Self::word) has it; `follow` is counted from the end of the last.
    #[inline]
    pub(crate) fn words<const N: usize>(&mut self, xors: [u32; N], follow: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(powers) =
            POWER.get(follow + 4..).and_then(|powers| powers.as_chunks::<4>().0.first_chunk::<N>())
            && let Some(sum) = clmul::multiply::<N>(core::array::from_fn(|n| (xors[n], powers[N - 1 - n][0])))
        {
            self.sum ^= sum;
            return;
        }
        for (n, xor) in xors.into_iter().enumerate() {
            self.word(xor, follow + 4 * (N - 1 - n));
        }
    }

    /// What the ICRC, read in little-endian order, has to be XORed with.
    #[inline]
    pub fn effect(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(effect) = clmul::reduce_product(self.sum) {
            return effect;
        }
        // Products of tables are reduced already.
        (self.sum >> 32) as u32
    }
}

/// What changes of four bytes that `follow` others come behind (28 at least), and of the last 24 bytes of a packet, change its ICRC
/// by; each read in little-endian order.
#[inline]
pub(crate) fn end(word: u32, follow: usize, end: &[u8; 24]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(effect) = clmul::end(word, follow, end) {
        return effect;
    }
    end_by_words(word, follow, end)
}

fn end_by_words(word: u32, follow: usize, end: &[u8; 24]) -> u32 {
    let mut changes = Changes::new();
    changes.word(word, follow);
    for (n, &word) in end.as_chunks::<4>().0.iter().enumerate() {
        changes.word(u32::from_le_bytes(word), end.len() - 4 * (n + 1));
    }
    changes.effect()
}

/// Words of a packet of IPv4 without options from its first byte to the end of its BTH
pub const HEAD: usize = (Ipv4::LEN + Udp::LEN + crate::Bth::LEN) / 4;

/// The bits of these that the ICRC reads as ones, the words read in little-endian order
const HEAD_MASKS: [u32; HEAD] = {
    let mut masks = [0; HEAD];
    let mut n = 0;
    while n < HEAD {
        let bytes = masks_v4();
        masks[n] = u32::from_le_bytes([bytes[4 * n], bytes[4 * n + 1], bytes[4 * n + 2], bytes[4 * n + 3]]);
        n += 1;
    }
    masks
};

/// The ICRC of a packet of IPv4 without options, for those who have it in registers: the words from its first byte to the end
/// of its BTH, each read in little-endian order, and the bytes behind, a multiple of four.
#[expect(
    clippy::inline_always,
    reason = "words that its caller has in registers would go through memory, in other sizes"
)]
#[inline(always)]
pub fn of_parts<const N: usize>(mut head: [u32; HEAD], behind: &[u8; N]) -> u32 {
    for (word, mask) in head.iter_mut().zip(HEAD_MASKS) {
        *word |= mask;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = clmul::of_words(AFTER_LINK_HEADER, head, behind) {
        return !crc;
    }
    let crc = head.iter().fold(AFTER_LINK_HEADER, |crc, word| table::update(crc, &word.to_le_bytes()));
    !table::update(crc, behind)
}

/// What the ICRC of a packet of IPv4 without options changes by, if the words from its first byte to the end of its BTH change
/// by these (old XOR new, each read in little-endian order), and nothing in the `follow` bytes between them and the ICRC, of
/// which there are at least four.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
pub fn change_of_head(mut xor: [u32; HEAD], follow: usize) -> u32 {
    for (word, mask) in xor.iter_mut().zip(HEAD_MASKS) {
        *word &= !mask;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(change) = clmul::change_of_words(xor, follow) {
        return change;
    }
    let mut changes = Changes::new();
    for (n, word) in xor.into_iter().enumerate() {
        changes.word(word, follow + 4 * (HEAD - 1 - n));
    }
    changes.effect()
}

/// What becomes of a change when `bytes` more follow it.
pub(crate) fn advance(change: u32, bytes: usize) -> u32 {
    table::multiply(change, power(bytes))
}

/// Powers x^(8n) mod P for n below this are in a table: enough for any packet of the largest path MTU.
const POWERS: usize = 4352;

/// x^(8n) mod P by n, in the CRC's bit order (x^0 is the highest bit).
static POWER: [u32; POWERS] = {
    let mut table = [0; POWERS];
    let mut power = 1 << 31;
    let mut n = 0;
    while n < POWERS {
        table[n] = power;
        power = table::append_zero_byte(power);
        n += 1;
    }
    table
};

/// x^(8n) mod P for n from `first` on, unless that is beyond any path MTU: a change of four bytes that end `follow`
/// bytes before the ICRC is to be multiplied by that for `follow + 4`.
#[inline]
pub(crate) fn powers<const N: usize>(first: usize) -> Option<&'static [u32; N]> {
    POWER.get(first..)?.first_chunk()
}

/// x^(8n) mod P.
#[inline]
pub(crate) fn power(n: usize) -> u32 {
    match POWER.get(n) {
        Some(&power) => power,
        None => power_of_a_giant(n),
    }
}

#[cold]
fn power_of_a_giant(mut n: usize) -> u32 {
    let mut power = POWER[0];
    while n >= POWERS {
        power = table::multiply(power, POWER[POWERS - 1]);
        n -= POWERS - 1;
    }
    table::multiply(power, POWER[n])
}

#[cfg(test)]
mod tests;

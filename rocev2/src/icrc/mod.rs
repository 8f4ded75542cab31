//! The invariant CRC (ICRC) at the end of every packet (IB 7.8.1, for RoCEv2 A17.3.3): computed over a whole
//! packet, or updated for changes of single words.
//!
//! The ICRC is Ethernet's CRC-32, least significant byte first on the wire. It covers eight bytes of ones (in
//! place of the link header) and the packet from the IP header to the end of the padding. Fields that routers
//! may change are read as ones: IPv4 TOS, TTL and header checksum; IPv6 traffic class, flow label and hop
//! limit; the UDP checksum; and all of BTH byte 4 (FECN, BECN and six reserved bits).
//!
//! A CRC is linear. Changing a word therefore changes the ICRC by the CRC of the XOR difference, multiplied
//! by x^(8n) mod P for the n bytes that follow: a few carry-less multiplications, whatever the packet's
//! length. A packet that arrives with a wrong ICRC also leaves with a wrong one, so that its receiver still
//! detects the damage.

use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::layout::Layout;
use crate::udp::Udp;

#[cfg(target_arch = "x86_64")]
mod clmul;
mod table;

/// CRC register after the eight bytes of ones
const AFTER_LINK_HEADER: u32 = 0xdebb_20e3;
/// Length of the region behind the start of the IP header that contains all masked fields: IPv6, UDP and BTH
const MASKED: usize = last_masked(true) + 1;
/// Offset from the IP header of the last masked byte
const fn last_masked(v6: bool) -> usize {
    (if v6 { Ipv6::LEN } else { Ipv4::LEN }) + Udp::LEN + crate::Bth::MASKED_BYTE
}
/// Masks from the IP header on: ones in the fields that the ICRC reads as ones, zeros elsewhere. The length
/// allows blocks of 16 and 32 bytes to be read from any offset within the last block that has a masked byte.
type Masks = [u8; 96];

/// Returns the masks of packets without IPv4 options and IPv6 extension headers, by offset from the IP
/// header.
const fn masks(ip: &[(usize, u8)], ip_len: usize) -> Masks {
    let mut masks = [0; 96];
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

/// Computes the ICRC of a packet.
#[inline]
pub fn compute(frame: &[u8], layout: &Layout) -> u32 {
    let packet = &frame[layout.l3()..layout.icrc()];
    compute_for(packet, layout.is_ipv6(), layout.udp() - layout.l3())
}

/// Computes the ICRC of a packet that has no layout because its transport header is not understood. `packet`
/// reaches from the IP header to the ICRC; its UDP header begins at offset `udp`.
#[inline]
pub fn compute_for(packet: &[u8], v6: bool, udp: usize) -> u32 {
    compute_inline(packet, v6, udp)
}

/// Computes the ICRC as [`compute_for`] does, inlined: for callers that pass constants for all but the bytes.
#[expect(clippy::inline_always, reason = "some callers pass constants for all but the bytes")]
#[inline(always)]
pub fn compute_inline(packet: &[u8], v6: bool, udp: usize) -> u32 {
    let (masks, ip_len) = if v6 { (&IPV6_MASKS, Ipv6::LEN) } else { (&IPV4_MASKS, Ipv4::LEN) };
    if udp != ip_len {
        return compute_with_options(packet, v6, udp);
    }
    #[cfg(target_arch = "x86_64")]
    {
        let crc = if v6 {
            clmul::update::<true>(AFTER_LINK_HEADER, packet, masks)
        } else {
            clmul::update::<false>(AFTER_LINK_HEADER, packet, masks)
        };
        if let Some(crc) = crc {
            return !crc;
        }
    }
    compute_in_pieces(packet, masks)
}

/// Computes the ICRC on CPUs without carry-less multiplication, and that of packets that are shorter or longer than
/// RoCEv2's.
#[cold]
fn compute_in_pieces(packet: &[u8], masks: &Masks) -> u32 {
    let mut crc = AFTER_LINK_HEADER;
    for (n, piece) in packet.chunks(POWERS - 256).enumerate() {
        let masks = if n == 0 { masks } else { &[0; _] };
        #[cfg(target_arch = "x86_64")]
        if let Some(updated) = clmul::update::<true>(crc, piece, masks) {
            crc = updated;
            continue;
        }
        crc = table::update_masked(crc, piece, masks);
    }
    !crc
}

/// Computes the ICRC of packets with IPv4 options or IPv6 extension headers, which are rare and whose headers
/// may have any length.
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

/// Factor by which four bytes at one offset contribute to the ICRC, precomputed for callers that change the
/// same offsets of many packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    /// Weight of bytes that never change: changes there do not affect the ICRC
    pub const NONE: Self = Self(0);

    /// Returns the weight of four bytes that end `follow` bytes before the ICRC.
    pub fn of(follow: usize) -> Self {
        Self(power(follow + 4))
    }

    /// Returns the weight of the same four bytes at two offsets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }
}

/// Changed words of a packet, accumulated to correct its ICRC in one step. Fields that the ICRC does not
/// cover must not be added; their bits within a word have to be masked to zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Sum of the products of each XOR difference and its power of x: 64 bits in the CRC's bit order, not yet
    /// reduced mod P
    sum: u64,
}

impl Changes {
    /// Returns an empty set of changes.
    pub const fn new() -> Self {
        Self { sum: 0 }
    }

    /// Adds a change of four bytes. `xor` is old XOR new, both read in little-endian order; `follow` is the
    /// number of bytes between their end and the ICRC.
    #[inline]
    pub fn add_word(&mut self, xor: u32, follow: usize) {
        self.add(xor, power(follow + 4));
    }

    /// Adds a change of four bytes whose [`Weight`] is known.
    #[inline]
    pub fn add_weighted(&mut self, xor: u32, weight: Weight) {
        self.add(xor, weight.0);
    }

    /// Adds a change of eight bytes, given as a number in network byte order; `follow` is the number of bytes
    /// between their end and the ICRC.
    #[inline]
    pub fn add_u64(&mut self, xor: u64, follow: usize) {
        self.words([((xor >> 32) as u32).swap_bytes(), (xor as u32).swap_bytes()], follow);
    }

    /// Adds a change of four bytes with its power of x, as [`power`] returns it.
    #[inline]
    pub fn add(&mut self, xor: u32, power: u32) {
        #[cfg(target_arch = "x86_64")]
        if let Some(product) = clmul::multiply([(xor, power)]) {
            self.sum ^= product;
            return;
        }
        self.sum ^= u64::from(table::multiply(xor, power)) << 32;
    }

    /// Adds a change of consecutive words, each as for [`add_word`](Self::add_word); `follow` is counted from the end
    /// of the last word.
    #[inline]
    pub fn words<const N: usize>(&mut self, xors: [u32; N], follow: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(powers) =
            POWER.get(follow + 4..).and_then(|powers| powers.as_chunks::<4>().0.first_chunk::<N>())
            && let Some(sum) = clmul::multiply::<N>(core::array::from_fn(|n| (xors[n], powers[N - 1 - n][0])))
        {
            self.sum ^= sum;
            return;
        }
        for (n, xor) in xors.into_iter().enumerate() {
            self.add_word(xor, follow + 4 * (N - 1 - n));
        }
    }

    /// Returns the value to XOR into the ICRC, read in little-endian order.
    #[inline]
    pub fn effect(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(effect) = clmul::reduce_product(self.sum) {
            return effect;
        }
        // Products from the tables are already reduced.
        (self.sum >> 32) as u32
    }
}

/// Returns the change of the ICRC for XOR differences of four bytes with `follow` bytes behind them (at least
/// 28) and of the last 24 bytes of a packet, both read in little-endian order.
#[inline]
pub fn end(word: u32, follow: usize, end: &[u8; 24]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(effect) = clmul::end(word, follow, end) {
        return effect;
    }
    end_by_words(word, follow, end)
}

fn end_by_words(word: u32, follow: usize, end: &[u8; 24]) -> u32 {
    let mut changes = Changes::new();
    changes.add_word(word, follow);
    for (n, &word) in end.as_chunks::<4>().0.iter().enumerate() {
        changes.add_word(u32::from_le_bytes(word), end.len() - 4 * (n + 1));
    }
    changes.effect()
}

/// Number of 32-bit words from the first byte of an IPv4 packet without options to the end of its BTH
pub const HEAD: usize = (Ipv4::LEN + Udp::LEN + crate::Bth::LEN) / 4;

/// Bits of these words that the ICRC reads as ones; words are read in little-endian order
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

/// Computes the ICRC of an IPv4 packet without options whose headers the caller has in registers: `head`
/// holds the words from its first byte to the end of its BTH, each read in little-endian order; `behind`
/// holds the remaining bytes, a multiple of four.
#[expect(
    clippy::inline_always,
    reason = "a call would pass the caller's words through memory and reload them in other sizes"
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

/// Returns the change of the ICRC of an IPv4 packet without options if the words from its first byte to the
/// end of its BTH change by `xor` (old XOR new, each read in little-endian order) and the `follow` bytes
/// between them and the ICRC do not change.
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
        changes.add_word(word, follow + 4 * (HEAD - 1 - n));
    }
    changes.effect()
}

/// Returns the change of the ICRC if `bytes` more bytes follow the changed field: `change` times x^(8 *
/// bytes).
pub(crate) fn advance(change: u32, bytes: usize) -> u32 {
    table::multiply(change, power(bytes))
}

/// Size of the table of powers x^(8n) mod P: enough for any packet of the largest path MTU
const POWERS: usize = 4352;

/// x^(8n) mod P, indexed by n, in the CRC's bit order (x^0 is the highest bit)
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

/// Returns x^(8n) mod P for n from `first` on, or `None` beyond the largest path MTU. The multiplier of a
/// change of four bytes that end `follow` bytes before the ICRC is the power for n = `follow + 4`.
#[inline]
pub(crate) fn powers<const N: usize>(first: usize) -> Option<&'static [u32; N]> {
    POWER.get(first..)?.first_chunk()
}

/// Returns x^(8n) mod P.
#[inline]
pub fn power(n: usize) -> u32 {
    match POWER.get(n) {
        Some(&power) => power,
        None => power_beyond_table(n),
    }
}

#[cold]
fn power_beyond_table(mut n: usize) -> u32 {
    let mut power = POWER[0];
    while n >= POWERS {
        power = table::multiply(power, POWER[POWERS - 1]);
        n -= POWERS - 1;
    }
    table::multiply(power, POWER[n])
}

#[cfg(test)]
mod tests;

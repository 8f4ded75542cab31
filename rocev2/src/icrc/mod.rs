//! The invariant CRC at the end of every packet (IB 7.8.1, for `RoCEv2` A17.3.3): whole, and kept right while
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
/// Longest head (IP header without options, UDP, BTH) that is masked in one go: IPv6's.
const MAX_HEAD: usize = Ipv6::LEN + Udp::LEN + crate::Bth::LEN;

/// The ICRC that the packet's bytes call for.
pub fn compute(frame: &[u8], layout: &Layout) -> u32 {
    let (l3, body_at) = (layout.l3(), layout.bth() + crate::Bth::LEN);
    let head_len = if layout.is_ipv6() { MAX_HEAD } else { Ipv4::LEN + Udp::LEN + crate::Bth::LEN };
    if body_at - l3 != head_len {
        return compute_with_options(frame, layout);
    }
    let mut head = [0; MAX_HEAD];
    let head = &mut head[..head_len];
    head.copy_from_slice(&frame[l3..body_at]);
    mask(head, layout.is_ipv6());
    let body = &frame[body_at..layout.icrc()];
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = clmul::head_and_body(AFTER_LINK_HEADER, head, body) {
        return !crc;
    }
    !table::update(table::update(AFTER_LINK_HEADER, head), body)
}

/// Packets with IPv4 options or IPv6 extension headers: seldom, and of any header length.
#[cold]
fn compute_with_options(frame: &[u8], layout: &Layout) -> u32 {
    let masks: &[usize] =
        if layout.is_ipv6() { &[0, 1, 2, 3, 7] } else { &[1, 8, 10, 11] };
    let mut crc = AFTER_LINK_HEADER;
    for (at, &byte) in frame[layout.l3()..layout.icrc()].iter().enumerate() {
        let from_udp = (at + layout.l3()).wrapping_sub(layout.udp());
        let masked = if layout.is_ipv6() && at == 0 {
            byte | 0x0f
        } else if masks.contains(&at) || matches!(from_udp, 6 | 7 | 12) {
            0xff
        } else {
            byte
        };
        crc = table::update(crc, &[masked]);
    }
    !crc
}

/// Sets the fields that the ICRC leaves out to ones. `head` is IP header without options, UDP header, BTH.
fn mask(head: &mut [u8], v6: bool) {
    let bth = if v6 {
        head[0] |= 0x0f;
        head[1..4].fill(0xff);
        head[7] = 0xff;
        48
    } else {
        head[1] = 0xff;
        head[8] = 0xff;
        head[10..12].fill(0xff);
        28
    };
    head[bth - 2..bth].fill(0xff);
    head[bth + crate::Bth::MASKED_BYTE] = 0xff;
}

/// Changed words of a packet, gathered to correct its ICRC in one go. Words that the ICRC leaves out must not be
/// told, nor their masked bytes within a word.
#[derive(Clone, Copy, Debug)]
pub struct Changes {
    words: [(u32, u16); Self::ROOM],
    len: usize,
    /// The effect of words told earlier, when there were more than `ROOM`
    effect: u32,
}

impl Changes {
    const ROOM: usize = 16;

    /// None yet.
    #[inline]
    pub const fn new() -> Self {
        Self { words: [(0, 0); Self::ROOM], len: 0, effect: 0 }
    }

    /// Tells that four bytes changed. `xor` is old XOR new, both read in little-endian order; `follow` is the number
    /// of bytes between their end and the ICRC.
    #[inline]
    pub fn word(&mut self, xor: u32, follow: usize) {
        if self.len == Self::ROOM {
            self.effect = self.effect();
            self.len = 0;
        }
        self.words[self.len] = (xor, follow as u16);
        self.len += 1;
    }

    /// What the ICRC, read in little-endian order, has to be XORed with.
    #[inline]
    pub fn effect(&self) -> u32 {
        let words = &self.words[..self.len];
        #[cfg(target_arch = "x86_64")]
        if let Some(effect) = clmul::effect(words) {
            return self.effect ^ effect;
        }
        self.effect ^ table::effect(words)
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
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

/// x^(8n) mod P.
#[inline]
fn power(n: usize) -> u32 {
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

//! CRC-32 arithmetic with x86-64's carry-less multiplication (PCLMULQDQ). This is the only module of the
//! crate with `unsafe` code: it calls its own functions that require CPU features, after checking for these
//! features.
//!
//! A CRC is linear: 64 bits with n bytes behind them contribute their product with x^(8n + 32) mod P to that of the
//! packet, whatever the other bits are. (The CRC of a message M is M x^32 mod P.) So each 64 bits are multiplied by
//! their own factor, no multiplication waits for another one, and the sum is reduced once. Folding (V. Gopal et al., "Fast
//! CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009) needs as many multiplications, but
//! each one waits for the one before.
//!
//! [`narrow`] and [`double`] compute a packet's CRC in blocks of 16 and 32 bytes, which are aligned to the packet's end.
//! The block with b blocks behind it has the same factors in packets of all lengths ([`FACTORS`]), and no odd bytes are
//! left at the end. The first block begins with the packet, so its factors depend on the packet's length. The second
//! block overlaps it, unless the length is a multiple of the block's, and is cleared there ([`KEEP`]):
//!
//! ```text
//! packet  |0                32|          |len - 64       |len - 32       |len
//! first   [###################]
//! second       [00000000000###############]
//! others                                  [##############][##############]
//! ```
//!
//! Each load is of one block within the packet.
#![allow(unsafe_code)]

use super::{HEAD, Masks, POWER, table};
use core::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
    _mm_extract_epi32, _mm_set_epi64x, _mm_setzero_si128, _mm_slli_si128, _mm_xor_si128,
};
use core::ops::RangeInclusive;

mod double;
mod narrow;
mod wide;

/// P including x^32, bit-reflected, 33 bits
const P: i64 = 0x1_db71_0641;
/// Quotient of x^96 by P without its lowest bit, bit-reflected, for Barrett reduction of 96 bits
const QUOTIENT: i64 = {
    // 1 is the quotient of x^32, and the rest of P the remainder. Its highest power of x is in its lowest bit.
    let (mut quotient, mut remainder, mut n) = (1, (P >> 1) as u32, 1);
    while n < 64 {
        quotient |= ((remainder & 1) as i64) << n;
        remainder = table::append_zero_bit(remainder);
        n += 1;
    }
    quotient
};
// The upper 33 bits are the quotient of x^64 by P, which Gopal et al. give.
const _: () = assert!(QUOTIENT & 0x1_ffff_ffff == 0x1_f701_1641);

/// Length of the longest block that [`FACTORS`] serves
const LONGEST_BLOCK: usize = 32;
/// Number of blocks of 16 bytes in [`FACTORS`]
const BLOCKS: usize = 264;
/// Lengths of the packets for which there are factors: all RoCEv2 packets
const LENGTHS: RangeInclusive<usize> = LONGEST_BLOCK + 1..=16 * BLOCKS;

/// Factors of both halves of each block of 16 bytes that is aligned to the packet's end, in the order of blocks
static FACTORS: Factors = {
    let mut table = [[0; 2]; BLOCKS];
    let mut n = 0;
    while n < BLOCKS {
        let behind = 16 * (BLOCKS - 1 - n);
        table[n] = [factor(behind + 8), factor(behind)];
        n += 1;
    }
    Factors(table)
};

/// A table that no block crosses a cache line of
#[repr(align(32))]
struct Factors([[u64; 2]; BLOCKS]);

/// Returns the factor of 64 bits with `behind` bytes behind them. A bit-reflected product is one bit short, hence
/// the shift.
const fn factor(behind: usize) -> u64 {
    (POWER[behind + 4] as u64) << 1
}

/// The [`LONGEST_BLOCK`] bytes from n on are a mask that keeps the last n bytes of a block.
static KEEP: [u8; 2 * LONGEST_BLOCK] = {
    let mut table = [0; 2 * LONGEST_BLOCK];
    let mut n = LONGEST_BLOCK;
    while n < table.len() {
        table[n] = 0xff;
        n += 1;
    }
    table
};

/// Returns how many blocks of this length contain masked bytes, whatever the length of the packet: the second block may
/// overlap the first one in all but a byte.
const fn masked_blocks(block: usize, v6: bool) -> usize {
    1 + super::last_masked(v6).div_ceil(block)
}

fn available() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// Runs `packet` through the CRC register, with `masks` ORed into its start. Returns `None` if the CPU lacks the
/// instructions, or if the length is not one of [`LENGTHS`].
#[inline]
pub(super) fn update<const V6: bool>(crc: u32, packet: &[u8], masks: &Masks) -> Option<u32> {
    if double::available() && (packet.len() < wide::MIN_LEN || !wide::available()) {
        // SAFETY: `double::available` has found the CPU features that the function is compiled for.
        return unsafe { double::update::<V6>(crc, packet, masks) };
    }
    let fold = if packet.len() < wide::MIN_LEN { None } else { wide::available_fold() };
    // SAFETY: `available` has found the CPU features that the function is compiled for, as has `wide::available_fold`.
    available().then(|| unsafe { narrow::update::<V6>(crc, packet, masks, fold) }).flatten()
}

/// Returns the unreduced sum of the products of pairs of polynomials, or `None` if the CPU lacks the
/// instructions.
#[inline]
pub(super) fn multiply<const N: usize>(pairs: [(u32, u32); N]) -> Option<u64> {
    // SAFETY: `available` has found the CPU features that the function is compiled for.
    available().then(|| unsafe { products(pairs) })
}

/// Reduces a sum of products mod P. Returns `None` if the CPU lacks the instructions.
#[inline]
pub(super) fn reduce_product(sum: u64) -> Option<u32> {
    // SAFETY: `available` has found the CPU features that the function is compiled for.
    available().then(|| unsafe { reduce(sum) })
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn products<const N: usize>(pairs: [(u32, u32); N]) -> u64 {
    let sum = pairs.into_iter().fold(_mm_setzero_si128(), |sum, (a, b)| {
        let product = _mm_clmulepi64_si128::<0>(_mm_cvtsi32_si128(a as i32), _mm_cvtsi32_si128(b as i32));
        _mm_xor_si128(sum, product)
    });
    // A bit-reflected product of 32 by 32 bits is one bit short of 64.
    (_mm_cvtsi128_si64(sum) as u64) << 1
}

/// Reduces 64 bits, whose lower half holds the higher powers of x, mod P.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn reduce(x: u64) -> u32 {
    reduce_sum(_mm_slli_si128::<4>(_mm_cvtsi64_si128(x as i64)))
}

/// Reduces a sum of products of 64 bits with a power of x, 96 bits in all, mod P.
///
/// This is Barrett's reduction: the upper 64 bits, times the quotient of x^96 by P, over x^64, are the quotient by P, of
/// which a multiple of P follows. In bit-reflected form, the upper 64 bits of both products are in the lower half of a
/// register. It depends on the lower halves of the factors alone, so nothing has to be masked.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn reduce_sum(x: __m128i) -> u32 {
    let constants = _mm_set_epi64x(P, QUOTIENT);
    let quotient = _mm_clmulepi64_si128::<0x00>(x, constants);
    let multiple = _mm_clmulepi64_si128::<0x10>(quotient, constants);
    _mm_extract_epi32::<2>(_mm_xor_si128(x, multiple)) as u32
}

/// Returns the contribution to the ICRC of a four-byte word with `follow` bytes behind it (at least 12), and
/// of the last 24 bytes of a packet. Returns `None` if the CPU lacks the instructions.
#[inline]
pub(super) fn end(word: u32, follow: usize, end: &[u8; 24]) -> Option<u32> {
    // SAFETY: `available` has found the CPU features that the function is compiled for.
    available().then(|| unsafe { fold_end(word, follow, end) })
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn fold_end(word: u32, follow: usize, end: &[u8; 24]) -> u32 {
    let mut sum = add(_mm_setzero_si128(), pair(0, word), POWER[follow + 4]);
    for (n, bits) in end.as_chunks().0.iter().enumerate() {
        sum = add(sum, u64::from_le_bytes(*bits), POWER[end.len() - 8 * (n + 1) + 4]);
    }
    reduce_sum(sum)
}

/// Runs a packet that consists of `head` and `tail` through the CRC register. Returns `None` if the CPU lacks
/// the instructions.
///
/// Each pair of words is multiplied independently, so that no pair waits for another, as it would if blocks
/// were folded into one another. The function is inlined: words that were passed in memory, written one by
/// one, could not be loaded as pairs without a store-forwarding stall.
#[expect(clippy::inline_always, reason = "the caller has the words in registers")]
#[inline(always)]
pub(super) fn of_words<const N: usize>(crc: u32, mut head: [u32; HEAD], tail: &[u8; N]) -> Option<u32> {
    const { assert!(N.is_multiple_of(4)) }
    if !available() {
        return None;
    }
    head[0] ^= crc;
    if N.is_multiple_of(8) {
        let pairs: [u64; HEAD / 2] = core::array::from_fn(|n| pair(head[2 * n], head[2 * n + 1]));
        return Some(sum_pairs(pairs, tail));
    }
    // A leading zero word does not change the CRC.
    let (next, tail) = tail.split_first_chunk()?;
    let next = u32::from_le_bytes(*next);
    let pairs: [u64; HEAD / 2 + 1] = core::array::from_fn(|n| {
        pair(if n == 0 { 0 } else { head[2 * n - 1] }, if 2 * n == HEAD { next } else { head[2 * n] })
    });
    Some(sum_pairs(pairs, tail))
}

/// Returns the CRC of a packet that consists of pairs of words and of `tail`, a multiple of eight bytes. The
/// caller has to have checked `available`.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn sum_pairs<const N: usize>(pairs: [u64; N], tail: &[u8]) -> u32 {
    let tail = tail.as_chunks().0;
    let all = N + tail.len();
    // SAFETY: the caller has checked `available`: the CPU has the features that the functions are compiled
    // for.
    let mut sum = unsafe { zero() };
    for (n, bits) in pairs.into_iter().enumerate() {
        // SAFETY: as above.
        sum = unsafe { add(sum, bits, POWER[8 * (all - 1 - n) + 4]) };
    }
    for (n, bits) in tail.iter().enumerate() {
        // SAFETY: as above.
        sum = unsafe { add(sum, u64::from_le_bytes(*bits), POWER[8 * (tail.len() - 1 - n) + 4]) };
    }
    // SAFETY: as above.
    unsafe { reduce_sum(sum) }
}

/// Returns the change of the CRC for a change of a packet's head with `follow` bytes behind it. Returns `None` if the
/// CPU lacks the instructions, or if `follow` is beyond the table of powers.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
pub(super) fn change_of_words(xor: [u32; HEAD], follow: usize) -> Option<u32> {
    let powers: &[u32; 4 * HEAD - 7] = POWER.get(follow + 4..)?.first_chunk()?;
    if !available() {
        return None;
    }
    // SAFETY: `available` has found the CPU features that the functions are compiled for.
    let mut sum = unsafe { zero() };
    for n in (0..HEAD).step_by(2) {
        // SAFETY: as above.
        sum = unsafe { add(sum, pair(xor[n], xor[n + 1]), powers[4 * (HEAD - 2 - n)]) };
    }
    // SAFETY: as above.
    Some(unsafe { reduce_sum(sum) })
}

/// Joins two words; the first is the earlier in the packet.
#[inline]
const fn pair(first: u32, second: u32) -> u64 {
    (second as u64) << 32 | first as u64
}

/// Returns an empty sum.
#[inline]
#[target_feature(enable = "sse2")]
fn zero() -> __m128i {
    _mm_setzero_si128()
}

/// Adds the contribution of 64 bits to a sum. `power` is x^(8(n + 4)) mod P, where n is the number of bytes behind
/// them.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn add(sum: __m128i, bits: u64, power: u32) -> __m128i {
    let power = _mm_cvtsi64_si128(i64::from(power) << 1);
    _mm_xor_si128(sum, _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(bits as i64), power))
}

#[cfg(test)]
mod tests;

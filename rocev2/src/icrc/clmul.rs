//! CRC-32 arithmetic with x86-64's carry-less multiplication (PCLMULQDQ). This is the only module of the
//! crate with `unsafe` code: it calls its own functions that require CPU features, after checking for these
//! features.
//!
//! Method and constants: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", Intel, 2009, in its bit-reflected form.
#![allow(unsafe_code)]

use super::{HEAD, MASKED, Masks, POWER};
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_blendv_epi8, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_cvtsi64_si128,
    _mm_cvtsi128_si64, _mm_extract_epi32, _mm_loadu_si128, _mm_or_si128, _mm_set_epi32, _mm_set_epi64x,
    _mm_setzero_si128, _mm_shuffle_epi8, _mm_srli_si128, _mm_xor_si128,
};

/// P including x^32, and the quotient of x^64 by P for Barrett reduction; both bit-reflected, 33 bits
const P: i64 = 0x1_db71_0641;
const QUOTIENT: i64 = 0x1_f701_1641;
/// Bit-reflected powers of x mod P that fold 64 bits over 512 and 128 bits, and reduce to 96 and 64 bits
const FOLD_512: (i64, i64) = (0x1_5444_2bd4, 0x1_c6e4_1596);
const FOLD_128: (i64, i64) = (0x1_7519_97d0, 0x0_ccaa_009e);
const FOLD_64: i64 = 0x1_63cd_6124;

mod wide;

fn available() -> bool {
    is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
}

/// Runs `bytes` (at least 16) through the CRC register, with `masks` ORed into the first `BLOCKS` blocks of
/// 16 bytes. Returns `None` if the CPU lacks the instructions.
#[inline]
pub(super) fn update<const BLOCKS: usize>(crc: u32, bytes: &[u8], masks: &Masks) -> Option<u32> {
    // SAFETY: `available` has found the CPU features that the function is compiled for.
    available().then(|| unsafe { fold::<BLOCKS>(crc, bytes, masks) })
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
    available().then(|| unsafe { reduce(_mm_cvtsi64_si128(sum as i64)) })
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
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
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn reduce(x: __m128i) -> u32 {
    let low = _mm_set_epi32(0, 0, 0, -1);
    let constants = _mm_set_epi64x(P, QUOTIENT);
    let quotient = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(x, low), constants);
    let multiple = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(quotient, low), constants);
    _mm_extract_epi32::<1>(_mm_xor_si128(x, multiple)) as u32
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn load(block: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes that are read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

/// Folds `x` forward by multiplying it by the power of x in `powers`, and adds `next`.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn fold_into(x: __m128i, powers: __m128i, next: __m128i) -> __m128i {
    let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(x, powers), _mm_clmulepi64_si128::<0x11>(x, powers));
    _mm_xor_si128(sum, next)
}

/// Shuffle masks: `SHIFT[16 + n..]` moves a block's bytes down by n, `SHIFT[n..]` up by 16 - n; 0x80 shifts
/// in zeros.
static SHIFT: [u8; 48] = {
    let mut table = [0x80; 48];
    let mut n = 0;
    while n < 16 {
        table[16 + n] = n as u8;
        n += 1;
    }
    table
};

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn load_at(bytes: &[u8], at: usize) -> __m128i {
    match bytes[at..].first_chunk() {
        Some(block) => load(block),
        None => unreachable!("16 bytes from {at} on"),
    }
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn fold<const BLOCKS: usize>(crc: u32, bytes: &[u8], masks: &Masks) -> u32 {
    let by_128 = _mm_set_epi64x(FOLD_128.1, FOLD_128.0);
    let (blocks, odd) = bytes.as_chunks::<16>();
    // Loads the blocks from the packet and masks them in registers. A 16-byte load of a masked copy, which
    // has just been written byte by byte, would stall on store forwarding.
    let masked = |first: &[[u8; 16]]| {
        let block = |n: usize| _mm_or_si128(load(&first[n]), load_at(masks, 16 * n));
        let start = _mm_xor_si128(block(0), _mm_cvtsi32_si128(crc as i32));
        (1..first.len()).fold(start, |x, n| fold_into(x, by_128, block(n)))
    };
    // A constant number of blocks in all but the shortest packets
    let (mut x, blocks) = if let Some((first, others)) = blocks.split_first_chunk::<BLOCKS>() {
        (masked(first), others)
    } else {
        (masked(blocks), &[][..])
    };
    let blocks = if blocks.len() >= wide::MIN_BLOCKS && wide::available() {
        // SAFETY: `wide::available` has found the CPU features that the function is compiled for.
        let (folded, rest) = unsafe { wide::fold_all(x, blocks) };
        x = folded;
        rest
    } else {
        blocks
    };
    let (fours, blocks) = blocks.as_chunks::<4>();
    if let Some((first, fours)) = fours.split_first() {
        // Four independent lanes, so that the multiplications of a payload overlap.
        let by_512 = _mm_set_epi64x(FOLD_512.1, FOLD_512.0);
        let mut lanes =
            [fold_into(x, by_128, load(&first[0])), load(&first[1]), load(&first[2]), load(&first[3])];
        for four in fours {
            for (lane, block) in lanes.iter_mut().zip(four) {
                *lane = fold_into(*lane, by_512, load(block));
            }
        }
        x = lanes[0];
        for &lane in &lanes[1..] {
            x = fold_into(x, by_128, lane);
        }
    }
    for block in blocks {
        x = fold_into(x, by_128, load(block));
    }
    if !odd.is_empty() {
        // The folded value and the odd bytes form two blocks, the first of which is short and padded with
        // leading zeros.
        let last = bytes.len() - 16;
        let last = _mm_or_si128(load_at(bytes, last), load_at(masks, last.min(MASKED)));
        let up = load_at(&SHIFT, odd.len());
        let down = load_at(&SHIFT, 16 + odd.len());
        let second = _mm_blendv_epi8(last, _mm_shuffle_epi8(x, down), up);
        x = fold_into(_mm_shuffle_epi8(x, up), by_128, second);
    }

    reduce_block(x)
}

/// Returns the contribution to the ICRC of a four-byte word with `follow` bytes behind it (at least 12), and
/// of the last 24 bytes of a packet. Returns `None` if the CPU lacks the instructions.
#[inline]
pub(super) fn end(word: u32, follow: usize, end: &[u8; 24]) -> Option<u32> {
    // SAFETY: `available` has found the CPU features that the function is compiled for.
    available().then(|| unsafe { fold_end(word, follow, end) })
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn fold_end(word: u32, follow: usize, end: &[u8; 24]) -> u32 {
    let (first, last) = end.split_first_chunk::<8>().expect("more than 8 bytes");
    let x = load(last.first_chunk().expect("16 bytes"));
    let x = add(x, u64::from_le_bytes(*first), POWER[16 - 4]);
    reduce_block(add(x, pair(0, word), POWER[follow - 4]))
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
    let (first, last) = match tail {
        [.., before, last] => (u64::from_le_bytes(*before), u64::from_le_bytes(*last)),
        [last] => (pairs[N - 1], u64::from_le_bytes(*last)),
        [] => (pairs[N - 2], pairs[N - 1]),
    };
    // SAFETY: the caller has checked `available`: the CPU has the features that the functions are compiled
    // for.
    let mut sum = unsafe { last_block(first, last) };
    let all = N + tail.len();
    for (n, bits) in pairs.into_iter().enumerate() {
        if n + 2 < all {
            // SAFETY: as above.
            sum = unsafe { add(sum, bits, POWER[8 * (all - 1 - n) - 4]) };
        }
    }
    for (n, bits) in tail.iter().enumerate() {
        if N + n + 2 < all {
            // SAFETY: as above.
            sum = unsafe { add(sum, u64::from_le_bytes(*bits), POWER[8 * (tail.len() - 1 - n) - 4]) };
        }
    }
    // SAFETY: as above.
    unsafe { reduce_block(sum) }
}

/// Returns the change of the CRC for a change of a packet's head with `follow` bytes behind it (at least
/// four). Returns `None` if the CPU lacks the instructions, or if `follow` is beyond the table of powers.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
pub(super) fn change_of_words(xor: [u32; HEAD], follow: usize) -> Option<u32> {
    let powers: &[u32; 4 * HEAD - 7] = POWER.get(follow.checked_sub(4)?..)?.first_chunk()?;
    if !available() {
        return None;
    }
    // SAFETY: `available` has found the CPU features that the functions are compiled for.
    let mut sum = unsafe { last_block(0, 0) };
    for n in (0..HEAD).step_by(2) {
        // SAFETY: as above.
        sum = unsafe { add(sum, pair(xor[n], xor[n + 1]), powers[4 * (HEAD - 2 - n)]) };
    }
    // SAFETY: as above.
    Some(unsafe { reduce_block(sum) })
}

/// Joins two words; the first is the earlier in the packet.
#[inline]
const fn pair(first: u32, second: u32) -> u64 {
    (second as u64) << 32 | first as u64
}

/// Returns the last 128 bits of a packet as a block.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn last_block(first: u64, second: u64) -> __m128i {
    _mm_set_epi64x(second as i64, first as i64)
}

/// Adds the contribution of 64 bits to the last block. `power` is x^(8(n - 4)) mod P, where n is the number
/// of bytes behind them.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn add(sum: __m128i, bits: u64, power: u32) -> __m128i {
    let power = _mm_cvtsi64_si128(i64::from(power) << 1);
    _mm_xor_si128(sum, _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(bits as i64), power))
}

/// Reduces the last block of a packet: 128 bits to 96, to 64, to 32.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2,ssse3,sse4.1")]
fn reduce_block(x: __m128i) -> u32 {
    let by_128 = _mm_set_epi64x(FOLD_128.1, FOLD_128.0);
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(x, by_128), _mm_srli_si128::<8>(x));
    let low = _mm_and_si128(x, _mm_set_epi32(0, 0, 0, -1));
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0>(low, _mm_set_epi64x(0, FOLD_64)), _mm_srli_si128::<4>(x));
    reduce(x)
}

//! CRC-32 arithmetic with the carry-less multiplication of x86-64 (PCLMULQDQ). The only module of this crate that
//! may use `unsafe`, and it does so to call functions of its own that need a CPU feature, after asking for it.
//!
//! Method and constants: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", Intel, 2009, in its bit-reflected form.
#![allow(unsafe_code)]

use super::{MAX_HEAD, power};
use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_cvtsi32_si128, _mm_extract_epi32,
    _mm_loadu_si128, _mm_set_epi32, _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128,
};

/// P with its x^32, and the quotient of x^64 by P for Barrett's reduction; both reflected, 33 bits
const P: i64 = 0x1_db71_0641;
const QUOTIENT: i64 = 0x1_f701_1641;
/// Reflected powers of x mod P by which 64 bits are folded over 512 and 128 bits, and to 96 and 64
const FOLD_512: (i64, i64) = (0x1_5444_2bd4, 0x1_c6e4_1596);
const FOLD_128: (i64, i64) = (0x1_7519_97d0, 0x0_ccaa_009e);
const FOLD_64: i64 = 0x1_63cd_6124;

fn available() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1")
}

/// Runs `head`, then `body`, through the CRC register; `None` if the CPU cannot.
#[inline]
pub(super) fn head_and_body(crc: u32, head: &[u8], body: &[u8]) -> Option<u32> {
    // SAFETY: the CPU features that the function is compiled for are there.
    available().then(|| unsafe { fold(crc, head, body) })
}

/// See [`Changes::effect`](super::Changes::effect); `None` if the CPU cannot.
#[inline]
pub(super) fn effect(words: &[(u32, u16)]) -> Option<u32> {
    // SAFETY: the CPU features that the function is compiled for are there.
    available().then(|| unsafe { multiply_add(words) })
}

/// The sum of the products of all words with their powers of x, reduced once.
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn multiply_add(words: &[(u32, u16)]) -> u32 {
    let mut sum = _mm_cvtsi32_si128(0);
    for &(xor, follow) in words {
        let power = power(usize::from(follow) + 4);
        let product =
            _mm_clmulepi64_si128::<0>(_mm_cvtsi32_si128(xor as i32), _mm_cvtsi32_si128(power as i32));
        sum = _mm_xor_si128(sum, product);
    }
    // A reflected product of 32 by 32 bits is one bit short of 64.
    let product = (_mm_cvtsi128_si64(sum) as u64) << 1;
    reduce(product as u32, (product >> 32) as u32)
}

/// Reduces 64 bits, of which `high` are the higher powers of x, mod P.
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn reduce(high: u32, low: u32) -> u32 {
    let quotient = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, i64::from(high)), _mm_set_epi64x(0, QUOTIENT));
    let quotient = _mm_and_si128(quotient, _mm_set_epi32(0, 0, 0, -1));
    let multiple = _mm_clmulepi64_si128::<0>(quotient, _mm_set_epi64x(0, P));
    low ^ (_mm_cvtsi128_si64(multiple) as u64 >> 32) as u32
}

#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn load(block: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes that are read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

/// Moves `x` on by the distance that `powers` stand for and adds `next`.
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn fold_into(x: __m128i, powers: __m128i, next: __m128i) -> __m128i {
    let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(x, powers), _mm_clmulepi64_si128::<0x11>(x, powers));
    _mm_xor_si128(sum, next)
}

/// Blocks that the start of a packet is copied to: the head, up to 15 bytes in front to make the whole a multiple of
/// 16, up to 15 of the body behind, and slack for copying 16 bytes where fewer are wanted.
const START: usize = 112;

#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
fn fold(crc: u32, head: &[u8], body: &[u8]) -> u32 {
    const { assert!(START >= 15 + MAX_HEAD + 15 + 16) }
    // Zeros in front of a message do not change a CRC whose register starts at 0, so the packet is aligned at its
    // end, where alignment saves the odd bytes' arithmetic; the register's start is added to the first four bytes.
    let odd = body.len() % 16;
    let lead = (head.len() + odd).wrapping_neg() % 16;
    let mut start = [0u8; START];
    start[lead..lead + head.len()].copy_from_slice(head);
    for (byte, initial) in start[lead..].iter_mut().zip(crc.to_le_bytes()) {
        *byte ^= initial;
    }
    let behind = lead + head.len();
    if let Some(sixteen) = body.first_chunk::<16>() {
        start[behind..behind + 16].copy_from_slice(sixteen);
    } else {
        start[behind..behind + odd].copy_from_slice(body);
    }
    let (start, _) = start[..behind + odd].as_chunks::<16>();
    let (blocks, _) = body[odd..].as_chunks::<16>();

    let by_128 = _mm_set_epi64x(FOLD_128.1, FOLD_128.0);
    let mut x = load(&start[0]);
    for block in &start[1..] {
        x = fold_into(x, by_128, load(block));
    }
    let (fours, blocks) = blocks.as_chunks::<4>();
    if let Some((first, fours)) = fours.split_first() {
        // Four lanes, so that the multiplications of a payload overlap.
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

    // 128 bits to 96, to 64, to 32.
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(x, by_128), _mm_srli_si128::<8>(x));
    let low = _mm_and_si128(x, _mm_set_epi32(0, 0, 0, -1));
    let x = _mm_xor_si128(_mm_clmulepi64_si128::<0>(low, _mm_set_epi64x(0, FOLD_64)), _mm_srli_si128::<4>(x));
    reduce(_mm_extract_epi32::<0>(x) as u32, _mm_extract_epi32::<1>(x) as u32)
}

//! CRC of a packet with two blocks per register (VPCLMULQDQ with AVX2), in half the number of multiplications.

use super::{BLOCKS, FACTORS, KEEP, LENGTHS, Masks, POWER, masked_blocks, reduce_sum};
use core::arch::x86_64::{
    __m256i, _mm_add_epi64, _mm_cvtsi32_si128, _mm_unpacklo_epi64, _mm_xor_si128, _mm256_and_si256,
    _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_loadu_si256,
    _mm256_or_si256, _mm256_set_m128i, _mm256_setzero_si256, _mm256_xor_si256, _mm256_zextsi128_si256,
};

/// Length of a block
const BLOCK: usize = super::LONGEST_BLOCK;

/// Returns whether the CPU has the instructions.
#[inline]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2") && super::available()
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(block: &[u8; BLOCK]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes that are read, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_at(bytes: &[u8], at: usize) -> __m256i {
    match bytes[at..].first_chunk() {
        Some(block) => load(block),
        None => unreachable!("a block from there on"),
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_factors(factors: &[[u64; 2]; 2]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes that are read, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(factors.as_ptr().cast()) }
}

/// Returns the factors of a block with `behind` bytes behind it.
#[inline]
#[target_feature(enable = "avx2")]
fn factors_at(behind: usize) -> __m256i {
    let Some(powers) = POWER.get(behind + 4..).and_then(|powers| powers.first_chunk::<25>()) else {
        unreachable!("the table is longer than packets")
    };
    let pair = |first: usize, second: usize| {
        let word = |n: usize| _mm_cvtsi32_si128(powers[n] as i32);
        let pair = _mm_unpacklo_epi64(word(first), word(second));
        _mm_add_epi64(pair, pair)
    };
    _mm256_set_m128i(pair(8, 0), pair(24, 16))
}

/// Adds the products of a block's four times 64 bits and their factors to two sums.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn add(sums: __m256i, block: __m256i, factors: __m256i) -> __m256i {
    let first = _mm256_clmulepi64_epi128::<0x00>(block, factors);
    let second = _mm256_clmulepi64_epi128::<0x11>(block, factors);
    _mm256_xor_si256(sums, _mm256_xor_si256(first, second))
}

/// Runs `packet` through the CRC register, with `masks` ORed into its start. Returns `None` if the length is not one of
/// [`LENGTHS`].
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1")]
pub(super) fn update<const V6: bool>(crc: u32, packet: &[u8], masks: &Masks) -> Option<u32> {
    if !LENGTHS.contains(&packet.len()) {
        return None;
    }
    // Offset of the second block: the number of its bytes, 1 to 32, that are not in the first one
    let kept = (packet.len() - BLOCK - 1) % BLOCK + 1;
    let blocks = (packet.len() - kept) / BLOCK;
    let mut rest = &packet[kept..];
    let mut factors = FACTORS.0.as_chunks().0[BLOCKS / 2 - blocks..].iter();

    let start = _mm256_zextsi128_si256(_mm_cvtsi32_si128(crc as i32));
    let block = _mm256_xor_si256(_mm256_or_si256(load_at(packet, 0), load_at(masks, 0)), start);
    let mut sums = add(_mm256_setzero_si256(), block, factors_at(packet.len() - BLOCK));
    for n in 1..const { masked_blocks(BLOCK, V6) } {
        if let Some((block, others)) = rest.split_first_chunk()
            && let Some(factor) = factors.next()
        {
            let block = _mm256_or_si256(load(block), load_at(masks, BLOCK * (n - 1) + kept));
            let block = if n == 1 { _mm256_and_si256(block, load_at(&KEEP, kept)) } else { block };
            sums = add(sums, block, load_factors(factor));
            rest = others;
        }
    }
    // One at a time: the compiler's preparations for several would take as long as a packet's few blocks.
    while let Some((block, others)) = rest.split_first_chunk()
        && let Some(factor) = factors.next()
    {
        sums = add(sums, load(block), load_factors(factor));
        rest = others;
    }
    Some(reduce_sum(_mm_xor_si128(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums))))
}

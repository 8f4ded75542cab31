//! CRC of a packet with a block of 16 bytes per register (PCLMULQDQ), for CPUs without VPCLMULQDQ, and of the blocks
//! that AVX-512 leaves.

use super::{BLOCKS, FACTORS, KEEP, LENGTHS, Masks, POWER, factor, masked_blocks, reduce_sum};
use core::arch::x86_64::{
    __m128i, _mm_add_epi64, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128, _mm_loadu_si128,
    _mm_or_si128, _mm_setzero_si128, _mm_unpacklo_epi64, _mm_xor_si128,
};

/// Length of a block
const BLOCK: usize = super::LONGEST_BLOCK / 2;
/// Number of blocks that are folded in parallel
const LANES: usize = 4;
/// Number of bytes from which on folding is worth it; packets of [`wide::MIN_LEN`](super::wide::MIN_LEN) have as many
const MIN_FOLDED: usize = 256;

/// A function that folds the first of many blocks into one. Returns it, and the remaining blocks. The one contributes to
/// the CRC what the folded ones would, if it stands where the last of them stood.
pub(super) type Fold = unsafe fn(&[[u8; BLOCK]]) -> (__m128i, &[[u8; BLOCK]]);

#[inline]
#[target_feature(enable = "sse2")]
pub(super) fn load(block: &[u8; BLOCK]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes that are read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_at(bytes: &[u8], at: usize) -> __m128i {
    match bytes[at..].first_chunk() {
        Some(block) => load(block),
        None => unreachable!("a block from there on"),
    }
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_factors(factors: &[u64; 2]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes that are read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(factors.as_ptr().cast()) }
}

/// Returns the factors of a block with `behind` bytes behind it.
#[inline]
#[target_feature(enable = "sse2")]
fn factors_at(behind: usize) -> __m128i {
    let Some(powers) = POWER.get(behind + 4..).and_then(|powers| powers.first_chunk::<9>()) else {
        unreachable!("the table is longer than packets")
    };
    let pair = _mm_unpacklo_epi64(_mm_cvtsi32_si128(powers[8] as i32), _mm_cvtsi32_si128(powers[0] as i32));
    _mm_add_epi64(pair, pair)
}

/// Adds the products of a block's halves and their factors to a sum.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2")]
fn add(sum: __m128i, block: __m128i, factors: __m128i) -> __m128i {
    let first = _mm_clmulepi64_si128::<0x00>(block, factors);
    let second = _mm_clmulepi64_si128::<0x11>(block, factors);
    _mm_xor_si128(sum, _mm_xor_si128(first, second))
}

/// Blocks that are not in the sum yet, and their factors
type Remaining<'a> = (&'a [u8], core::slice::Iter<'a, [u64; 2]>);

/// Adds all but a few of many blocks: those that `fold` folds into one, and lanes.
///
/// # Safety
/// As for [`update`].
#[inline(never)]
#[target_feature(enable = "pclmulqdq,sse2")]
unsafe fn add_many(
    mut sum: __m128i,
    (mut rest, mut factors): Remaining<'_>,
    fold: Option<Fold>,
) -> (__m128i, Remaining<'_>) {
    if let Some(fold) = fold {
        let (blocks, _) = rest.as_chunks();
        // SAFETY: the caller vouches for the CPU's features and for the number of blocks.
        let (block, others) = unsafe { fold(blocks) };
        let folded = blocks.len() - others.len();
        let Some(factor) = factors.nth(folded - 1) else { unreachable!("each block has factors") };
        sum = add(sum, block, load_factors(factor));
        rest = others.as_flattened();
    }
    add_lanes(sum, (rest, factors))
}

/// Adds all but up to three blocks. Four lanes are folded into the last four blocks, each of which is multiplied by its
/// own factors: the factors of folding stay in a register, those of a sum have to be loaded for each block.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2")]
fn add_lanes(mut sum: __m128i, (rest, factors): Remaining<'_>) -> (__m128i, Remaining<'_>) {
    let (fours, others) = rest.as_chunks::<{ LANES * BLOCK }>();
    let (own, factors_of_others) = factors.as_slice().split_at(LANES * fours.len());
    let (Some((first, fours)), Some(own)) = (fours.split_first(), own.last_chunk::<LANES>()) else {
        return (sum, (rest, factors));
    };
    // A product of 96 bits at the start of a block is x^32 times as large as one in a sum.
    let by_all = load_factors(const { &[factor(BLOCK * LANES), factor(BLOCK * LANES - 8)] });
    let mut lanes = [load_at(first, 0), load_at(first, 16), load_at(first, 32), load_at(first, 48)];
    for four in fours {
        for (n, lane) in lanes.iter_mut().enumerate() {
            *lane = add(load_at(four, BLOCK * n), *lane, by_all);
        }
    }
    for (lane, factors) in lanes.into_iter().zip(own) {
        sum = add(sum, lane, load_factors(factors));
    }
    (sum, (others, factors_of_others.iter()))
}

/// Runs `packet` through the CRC register, with `masks` ORed into its start. `fold` takes the blocks behind those with
/// masks. Returns `None` if the length is not one of [`LENGTHS`].
///
/// # Safety
/// The CPU has the features that `fold` is compiled for, and there are as many blocks as it needs.
#[inline(never)]
#[target_feature(enable = "pclmulqdq,sse2,sse4.1")]
pub(super) unsafe fn update<const V6: bool>(
    crc: u32,
    packet: &[u8],
    masks: &Masks,
    fold: Option<Fold>,
) -> Option<u32> {
    if !LENGTHS.contains(&packet.len()) {
        return None;
    }
    // Offset of the second block: the number of its bytes, 1 to 16, that are not in the first one
    let kept = (packet.len() - BLOCK - 1) % BLOCK + 1;
    let blocks = (packet.len() - kept) / BLOCK;
    let mut rest = &packet[kept..];
    let mut factors = FACTORS.0[BLOCKS - blocks..].iter();

    let block = _mm_or_si128(load_at(packet, 0), load_at(masks, 0));
    let block = _mm_xor_si128(block, _mm_cvtsi32_si128(crc as i32));
    let mut sum = add(_mm_setzero_si128(), block, factors_at(packet.len() - BLOCK));
    for n in 1..const { masked_blocks(BLOCK, V6) } {
        if let Some((block, others)) = rest.split_first_chunk()
            && let Some(factor) = factors.next()
        {
            let block = _mm_or_si128(load(block), load_at(masks, BLOCK * (n - 1) + kept));
            let block = if n == 1 { _mm_and_si128(block, load_at(&KEEP, BLOCK + kept)) } else { block };
            sum = add(sum, block, load_factors(factor));
            rest = others;
        }
    }
    if rest.len() >= MIN_FOLDED {
        // SAFETY: the caller vouches for what `fold` needs.
        (sum, (rest, factors)) = unsafe { add_many(sum, (rest, factors), fold) };
    }
    while let Some((block, others)) = rest.split_first_chunk()
        && let Some(factor) = factors.next()
    {
        sum = add(sum, load(block), load_factors(factor));
        rest = others;
    }
    Some(reduce_sum(sum))
}

//! CRC folding of long packets with four blocks per register (VPCLMULQDQ with AVX-512), in less than half the
//! time of [`narrow`](super::narrow) for 1 KiB.

use super::narrow::Fold;
use crate::icrc::POWER;
use core::arch::x86_64::{
    __m128i, __m512i, _mm_clmulepi64_si128, _mm_set_epi64x, _mm_xor_si128, _mm512_broadcast_i32x4,
    _mm512_castsi512_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
    _mm512_ternarylogic_epi64,
};

/// Minimum length of packets that have enough blocks behind those with masks
pub(super) const MIN_LEN: usize = 16 * (super::masked_blocks(16, true) + MIN_BLOCKS);
/// Minimum number of blocks
const MIN_BLOCKS: usize = 4 * LANES;
/// Number of registers that are folded in parallel, so that their multiplications overlap
const LANES: usize = 4;

/// Returns the multipliers that fold 64 bits over `bytes`: for the lower half of a block, and for the upper
/// half.
const fn fold(bytes: usize) -> (i64, i64) {
    ((POWER[bytes + 4] as i64) << 1, (POWER[bytes - 4] as i64) << 1)
}

const BY_ALL: (i64, i64) = fold(64 * LANES);
const BY_512: (i64, i64) = fold(64);
const BY_384: (i64, i64) = fold(48);
const BY_256: (i64, i64) = fold(32);
const BY_128: (i64, i64) = fold(16);
// These constants are in Gopal et al.
const _: () = assert!(BY_512.0 == 0x1_5444_2bd4 && BY_512.1 == 0x1_c6e4_1596);
const _: () = assert!(BY_128.0 == 0x1_7519_97d0 && BY_128.1 == 0x0_ccaa_009e);

/// Returns whether the CPU has the instructions.
#[inline]
pub(super) fn available() -> bool {
    is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512f")
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn load(block: &[[u8; 16]; 4]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes that are read, and the load needs no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq")]
fn powers((low, high): (i64, i64)) -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi64x(high, low))
}

/// Folds each block of `x` forward by multiplying it by the power of x in `powers`, and adds `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_into(x: __m512i, powers: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(x, powers);
    let high = _mm512_clmulepi64_epi128::<0x11>(x, powers);
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq")]
fn multiply_block(x: __m128i, (low, high): (i64, i64)) -> __m128i {
    let powers = _mm_set_epi64x(high, low);
    _mm_xor_si128(_mm_clmulepi64_si128::<0x00>(x, powers), _mm_clmulepi64_si128::<0x11>(x, powers))
}

/// Returns [`fold_all`] if the CPU has the instructions.
#[inline]
pub(super) fn available_fold() -> Option<Fold> {
    available().then_some(fold_all as Fold)
}

/// Folds those of `blocks` (at least [`MIN_BLOCKS`]) that fill whole registers into one. Returns the
/// resulting block, and the remaining blocks.
///
/// # Panics
/// If there are fewer than [`LANES`] whole registers.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
fn fold_all(blocks: &[[u8; 16]]) -> (__m128i, &[[u8; 16]]) {
    let (fours, rest) = blocks.as_chunks::<4>();
    let (first, others) = fours.split_first_chunk::<LANES>().expect("at least MIN_BLOCKS blocks");
    let mut lanes = [load(&first[0]), load(&first[1]), load(&first[2]), load(&first[3])];
    let (turns, fours) = others.as_chunks::<LANES>();
    let by_all = powers(BY_ALL);
    for turn in turns {
        for (lane, four) in lanes.iter_mut().zip(turn) {
            *lane = fold_into(*lane, by_all, load(four));
        }
    }
    let by_512 = powers(BY_512);
    let [first, others @ ..] = lanes;
    let mut x = first;
    for lane in others {
        x = fold_into(x, by_512, lane);
    }
    for four in fours {
        x = fold_into(x, by_512, load(four));
    }
    let one = multiply_block(_mm512_castsi512_si128(x), BY_384);
    let two = multiply_block(_mm512_extracti32x4_epi32::<1>(x), BY_256);
    let three = multiply_block(_mm512_extracti32x4_epi32::<2>(x), BY_128);
    let all = _mm_xor_si128(_mm_xor_si128(one, two), _mm_xor_si128(three, _mm512_extracti32x4_epi32::<3>(x)));
    (all, rest)
}

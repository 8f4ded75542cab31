use super::super::{IPV4_MASKS, IPV6_MASKS};
use super::*;
use core::arch::x86_64::_mm_set_epi32;
use core::iter;

/// Runs bytes through the CRC register bit by bit; shares no code with the module.
fn bitwise(mut crc: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    crc
}

/// Stands for [`wide::available_fold`] on other CPUs: all but up to three blocks become 96 zero bits and their remainder.
fn fold_bitwise(blocks: &[[u8; 16]]) -> (__m128i, &[[u8; 16]]) {
    let (folded, others) = blocks.split_at(blocks.len() - blocks.len() % 4);
    let (before, last) = folded.as_flattened().split_last_chunk().expect("several blocks");
    let remainder = bitwise(0, before.iter().copied()) ^ u32::from_le_bytes(*last);
    // SAFETY: all x86-64 CPUs have SSE2.
    (unsafe { _mm_set_epi32(remainder as i32, 0, 0, 0) }, others)
}

/// Returns the results of all of a packet's ways through the register that this CPU has, with their names.
fn all_ways<const V6: bool>(crc: u32, packet: &[u8], masks: &Masks) -> Vec<(&'static str, Option<u32>)> {
    let mut ways = vec![("selected", update::<V6>(crc, packet, masks))];
    let mut add_narrow = |name, fold| {
        // SAFETY: the CPU has the features, of which `available` and `wide::available_fold` have been asked.
        ways.push((name, unsafe { narrow::update::<V6>(crc, packet, masks, fold) }));
    };
    assert!(available(), "the tests of this crate need PCLMULQDQ");
    add_narrow("narrow", None);
    if packet.len() >= wide::MIN_LEN {
        add_narrow("narrow, folded by another function", Some(fold_bitwise));
        add_narrow("narrow, folded with AVX-512 if it is there", wide::available_fold());
    }
    if double::available() {
        // SAFETY: the CPU has the features.
        ways.push(("double", unsafe { double::update::<V6>(crc, packet, masks) }));
    }
    ways
}

fn check_all_ways<const V6: bool>(crc: u32, packet: &[u8], masks: &Masks) {
    let masked = packet.iter().zip(masks.iter().chain(iter::repeat(&0))).map(|(byte, mask)| byte | mask);
    let expected = LENGTHS.contains(&packet.len()).then(|| bitwise(crc, masked));
    for (name, found) in all_ways::<V6>(crc, packet, masks) {
        assert_eq!(found, expected, "{name}, IPv6 {V6}, {} bytes", packet.len());
    }
}

/// Returns bytes that look random.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    iter::repeat_with(next).take(len).collect()
}

#[test]
fn all_ways_agree_with_a_bitwise_crc_at_every_length() {
    let bytes = noise(LENGTHS.end() + 200);
    let (end, longest) = (bytes.len(), *LENGTHS.end());
    for len in (0..=2000).chain(longest - 300..=longest + 64) {
        // Ends at the buffer's end, and begins at every alignment.
        let packet = &bytes[end - len..];
        check_all_ways::<false>(!(len as u32), packet, &IPV4_MASKS);
        check_all_ways::<true>(!(len as u32), packet, &IPV6_MASKS);
    }
}

#[test]
fn each_single_bit_contributes_its_own_value() {
    for len in [33, 44, 64, 65, 120, 350, 1080, 4152] {
        for bit in 0..8 * len {
            let mut packet = vec![0; len];
            packet[bit / 8] = 1 << (bit % 8);
            check_all_ways::<false>(0, &packet, &[0; _]);
        }
    }
}

#[test]
fn masks_cover_every_masked_byte_wherever_blocks_begin() {
    let bytes = noise(300);
    for (at, len) in (0..53).flat_map(|at| (54..300).map(move |len| (at, len))) {
        let mut masks = [0; _];
        masks[at] = 0xa5;
        if at <= super::super::last_masked(false) {
            check_all_ways::<false>(1, &bytes[..len], &masks);
        }
        check_all_ways::<true>(1, &bytes[..len], &masks);
    }
}

#[test]
fn sums_are_reduced_as_by_long_division() {
    for bytes in noise(12 * 500).as_chunks::<12>().0 {
        let mut block = [0; 16];
        block[..12].copy_from_slice(bytes);
        // The remainder of 96 bits: those of the first 64, over the register's width, and the last 32
        let (before, last) = bytes.split_last_chunk().expect("12 bytes");
        let expected = bitwise(0, before.iter().copied()) ^ u32::from_le_bytes(*last);
        // SAFETY: the CPU has the features, as the other tests check.
        let found = unsafe { reduce_sum(narrow::load(&block)) };
        assert_eq!(found, expected);
    }
}

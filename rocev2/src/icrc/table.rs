//! CRC-32 arithmetic with tables, for processors without carry-less multiplication and for constants.
//! Polynomials are in the CRC's bit order: the highest bit is the coefficient of x^0.

use super::{MASKED, Masks};

/// Polynomial of Ethernet's CRC-32, without x^32
const POLYNOMIAL: u32 = 0xedb8_8320;

/// `SLICES[k][b]` is the CRC of the byte `b` followed by `k` zero bytes.
static SLICES: [[u32; 256]; 8] = {
    let mut slices = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut slice = 0;
        while slice < 8 {
            crc = append_zero_byte(crc);
            slices[slice][byte] = crc;
            slice += 1;
        }
        byte += 1;
    }
    slices
};

/// Multiplies by x.
pub(super) const fn append_zero_bit(crc: u32) -> u32 {
    (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// Multiplies by x^8.
pub(super) const fn append_zero_byte(mut crc: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        crc = append_zero_bit(crc);
        bit += 1;
    }
    crc
}

/// Runs `bytes` through the CRC register, eight bytes at a time.
pub(super) fn update(mut crc: u32, bytes: &[u8]) -> u32 {
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut next = 0;
        for (at, &byte) in chunk.iter().enumerate() {
            let byte = if at < 4 { byte ^ (crc >> (8 * at)) as u8 } else { byte };
            next ^= SLICES[7 - at][usize::from(byte)];
        }
        crc = next;
    }
    for &byte in chunks.remainder() {
        crc = (crc >> 8) ^ SLICES[0][usize::from(byte ^ crc as u8)];
    }
    crc
}

/// Runs a packet through the CRC register, with `masks` ORed into its start.
pub(super) fn update_masked(crc: u32, packet: &[u8], masks: &Masks) -> u32 {
    let (head, body) = packet.split_at(packet.len().min(MASKED));
    let mut masked = [0; MASKED];
    for ((masked, byte), mask) in masked.iter_mut().zip(head).zip(masks) {
        *masked = byte | mask;
    }
    update(update(crc, &masked[..head.len()]), body)
}

/// Multiplies two polynomials mod P, four bits of `b` at a time.
pub(super) fn multiply(a: u32, b: u32) -> u32 {
    // Products of `a` and each polynomial of degree below four; the index has x^0 in its highest bit, as all
    // polynomials here
    let mut products = [0u32; 16];
    let mut shifted = a;
    for bit in (0..4).rev() {
        products[1 << bit] = shifted;
        shifted = (shifted >> 1) ^ if shifted & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    for index in 0..16usize {
        let lowest = index & index.wrapping_neg();
        products[index] = products[index ^ lowest] ^ products[lowest];
    }
    let mut product = 0u32;
    for nibble in 0..8 {
        // Horner's rule, from the highest power of x, which is in the lowest bits
        product = (product >> 4) ^ SLICES_OF_FOUR[(product & 0xf) as usize];
        product ^= products[((b >> (4 * nibble)) & 0xf) as usize];
    }
    product
}

/// Reduction of the four bits that x^4 shifts out of the register
static SLICES_OF_FOUR: [u32; 16] = {
    let mut table = [0; 16];
    let mut nibble = 0;
    while nibble < 16 {
        let mut crc = nibble as u32;
        let mut bit = 0;
        while bit < 4 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[nibble] = crc;
        nibble += 1;
    }
    table
};

//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// One's complement sum of 16-bit words in network byte order, neither folded nor inverted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds `bytes`. An odd last byte counts as the high half of a word (RFC 1071).
    #[must_use]
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "adds bytes to a sum, not two sums")]
    pub fn add(mut self, bytes: &[u8]) -> Self {
        // The sum may be taken over 32-bit words in either byte order if it is folded and swapped at the end.
        // Big-endian words need no swap.
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            self.0 += u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        }
        match *words.remainder() {
            [a] => self.0 += u64::from(u16::from_be_bytes([a, 0])),
            [a, b] => self.0 += u64::from(u16::from_be_bytes([a, b])),
            [a, b, c] => {
                self.0 += u64::from(u16::from_be_bytes([a, b])) + u64::from(u16::from_be_bytes([c, 0]));
            }
            _ => {}
        }
        self
    }

    /// Adds a number of up to 32 bits, such as a length or a protocol number of a pseudo-header.
    #[must_use]
    pub const fn add_word(self, word: u32) -> Self {
        Self(self.0 + word as u64)
    }

    /// Folds the sum to 16 bits. The result is 0xffff over a header with a right checksum.
    pub const fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// Returns the checksum to write into a header that was summed with a checksum field of 0.
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Returns whether the checksum of an IPv4 header without options is right.
#[inline]
pub fn is_valid(header: &[u8; 20]) -> bool {
    let (words, last) = header.as_chunks::<8>();
    let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
    let mut sum = last.first_chunk().map_or(0, |last| u64::from(u32::from_ne_bytes(*last)));
    for word in words {
        sum += halves(u64::from_ne_bytes(*word));
    }
    // Folding computes the remainder modulo 0xffff, in either byte order, because 2^16 is 1 modulo 0xffff.
    sum != 0 && sum.is_multiple_of(0xffff)
}

/// Returns the checksum after a 32-bit aligned word changed from `old` to `new` (RFC 1624, equation 3).
pub const fn update(checksum: u16, old: u32, new: u32) -> u16 {
    let mut sum = (!checksum) as u64 + (!old) as u64 + new as u64;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rfc_1071_example_has_the_published_sum() {
        let sum = Sum::default().add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        assert_eq!(sum.checksum(), 0x220d);
    }

    proptest! {
        #[test]
        fn sum_equals_that_of_sixteen_bit_words(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut sum = 0u32;
            for word in bytes.chunks(2) {
                sum += u32::from(u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
            }
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            prop_assert_eq!(Sum::default().add(&bytes).folded(), sum as u16);
        }

        #[test]
        fn right_checksums_are_recognised(mut header: [u8; 20], wrong: u16, set: bool) {
            let checksum = if set {
                header[10..12].fill(0);
                Sum::default().add(&header).checksum()
            } else {
                wrong
            };
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            prop_assert_eq!(is_valid(&header), Sum::default().add(&header).folded() == 0xffff);
        }

        #[test]
        fn update_equals_recomputation(mut header: [u8; 20], new: u32, word in 0usize..4) {
            header[10..12].fill(0);
            // A header is never all zero (it begins with a version). RFC 1624's equation 3 depends on that.
            header[0] |= 0x40;
            let at = [0, 4, 12, 16][word];
            let new = if at == 0 { new | 0x4000_0000 } else { new };
            let before = Sum::default().add(&header).checksum();
            let old = u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            header[at..at + 4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), Sum::default().add(&header).checksum());
        }
    }
}

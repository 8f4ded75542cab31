//! Arrays that may be larger than what the machine has got: who asks for too much is told, and nobody is ended for it.

/// `len` times `value`; or how many MB there are not for them.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, u64> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| mb((len as u64).saturating_mul(size_of::<T>() as u64)))?;
    all.resize(len, value);
    Ok(all)
}

/// So many bytes in MB, rounded up.
pub(crate) const fn mb(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_refused() {
        assert_eq!(filled(3, 7u64), Ok(vec![7; 3]));
        // More than addresses have bits, and more than there are addresses
        assert_eq!(filled(1 << 50, 0u64), Err(9_007_199_255));
        assert!(filled(usize::MAX, 0u64).is_err());
    }
}

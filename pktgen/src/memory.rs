//! Fallible allocation of arrays that may be larger than the machine's memory.

/// Returns `len` times `value`.
///
/// # Errors
///
/// The size in MB, if it could not be allocated.
pub(crate) fn try_filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>, u64> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| mb((len as u64).saturating_mul(size_of::<T>() as u64)))?;
    all.resize(len, value);
    Ok(all)
}

/// Converts bytes to MB, rounded up.
pub(crate) const fn mb(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_beyond_the_address_space_fail() {
        assert_eq!(try_filled(3, 7u64), Ok(vec![7; 3]));
        // More bytes than an address space has, and more than `usize` counts
        assert_eq!(try_filled(1 << 50, 0u64), Err(9_007_199_255));
        assert!(try_filled(usize::MAX, 0u64).is_err());
    }
}

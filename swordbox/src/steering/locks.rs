//! Table of locks, such as Sherman's (Wang et al., SIGMOD 2022).
//!
//! Locks are not steered. In addition to what a [`WordTable`](crate::WordTable) does, *every* operation on a
//! lock is tracked, not only atomics. Sherman releases a lock by a WRITE of 0, so the first release makes the
//! value known, and the next CAS is resolved without an atomic at the server. The initial values are unknown,
//! because clients may have used the locks before.

use super::{Append, Cas, StructureCache};
use core::ops::Range;

/// Location of a table of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocksConfig {
    /// Virtual addresses
    pub range: Range<u64>,
    /// R_Key of the region, if known in advance
    pub rkey: Option<u32>,
    /// Distance between two locks in bytes; a multiple of 8
    pub stride: u64,
}

/// Table of locks.
#[derive(Debug)]
pub struct Locks {
    config: LocksConfig,
}

impl Locks {
    /// Returns a table with this configuration.
    ///
    /// # Panics
    /// If the stride is 0 or not a multiple of 8.
    pub fn new(config: LocksConfig) -> Self {
        assert!(
            config.stride > 0 && config.stride.is_multiple_of(8),
            "stride = {} is not a positive multiple of 8",
            config.stride
        );
        Self { config }
    }
}

impl StructureCache for Locks {
    fn covers(&self, _va: u64) -> bool {
        false
    }

    fn on_write(&mut self, _va: u64, _bytes: &[u8]) {}

    fn on_unverified_write(&mut self, _va: u64, _bytes: &[u8]) {}

    fn on_cas(&mut self, _cas: &Cas, _written: bool, _followed: bool, _steer: bool) -> Option<Append> {
        None
    }

    fn on_read(&mut self, _va: u64, _rkey: u32, _len: u32) -> Option<u64> {
        None
    }

    fn on_read_response(&mut self, _node: u64, _bytes: &[u8]) {}

    fn on_linked(&mut self, _append: &Append, _followed: bool) {}

    fn invalidate(&mut self, _key: u64) {}

    fn forget(&mut self) {}

    fn forget_all(&mut self) {}

    fn is_contended_word(&self, va: u64, rkey: u32) -> bool {
        let Range { start, end } = self.config.range;
        self.config.range.contains(&va)
            && end - va >= 8
            && (va - start).is_multiple_of(self.config.stride)
            && self.config.rkey.is_none_or(|own| own == rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_table_words_are_locks_and_none_is_steered() {
        let config = LocksConfig { range: 0x1000..0x1024, rkey: Some(7), stride: 16 };
        let mut locks = Locks::new(config.clone());
        let is = |va| locks.is_contended_word(va, 7);
        assert!(is(0x1000) && is(0x1010));
        assert!(!is(0x1008), "the address is between two locks");
        assert!(!is(0x1020), "the word ends outside of the table");
        assert!(!is(0xff0) && !is(0x1030) && !locks.is_contended_word(0x1000, 8));
        let any = Locks::new(LocksConfig { rkey: None, ..config });
        assert!(any.is_contended_word(0x1000, 8));
        let cas = Cas { va: 0x1000, rkey: 7, compare: 0, swap: 1 };
        assert_eq!(locks.on_cas(&cas, true, false, true), None);
        assert_eq!(locks.on_read(0x1000, 7, 8), None);
        assert!(!locks.covers(0x1000));
    }
}

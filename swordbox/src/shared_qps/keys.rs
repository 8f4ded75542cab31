//! R_Keys that are known to work, or not to work, on switch-owned QPs.

use switch::Nanos;

/// Keys remembered per shared QP; a power of two
const KEYS: usize = 256;
/// Time for which a refused key is not probed again
const REFUSED_FOR: Nanos = Nanos::from_secs(10);

/// Keys that are known to work: a direct-mapped table.
#[derive(Debug)]
pub(crate) struct Keys(Box<[(u32, u8); KEYS]>);

fn slot_of(rkey: u32) -> usize {
    switch::table::mix(rkey.into()) as usize % KEYS
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self(Box::new([(0, 0); KEYS]))
    }

    /// Returns whether a key is known to work for all of `rights`.
    #[inline]
    pub(crate) fn has(&self, rkey: u32, rights: u8) -> bool {
        let (stored, rights_known) = self.0[slot_of(rkey)];
        stored == rkey && rights_known & rights == rights
    }

    /// Notes that a key works for `rights`.
    pub(crate) fn add(&mut self, rkey: u32, rights: u8) {
        let slot = &mut self.0[slot_of(rkey)];
        *slot = (rkey, if slot.0 == rkey { slot.1 | rights } else { rights });
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill((0, 0));
    }
}

/// Keys that a server refused on a switch-owned QP, and the time until which they are not probed again.
#[derive(Debug)]
pub(crate) struct RefusedKeys(Box<[(u32, Nanos); KEYS]>);

impl Default for RefusedKeys {
    fn default() -> Self {
        Self(Box::new([(0, Nanos::ZERO); KEYS]))
    }
}

impl RefusedKeys {
    pub(crate) fn has(&self, rkey: u32, now: Nanos) -> bool {
        let (stored, until) = self.0[slot_of(rkey)];
        stored == rkey && now < until
    }

    pub(crate) fn add(&mut self, rkey: u32, now: Nanos) {
        self.0[slot_of(rkey)] = (rkey, now + REFUSED_FOR);
    }
}

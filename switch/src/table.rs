//! Tables for the packet path: of fixed size, allocated on creation, with small dense IDs.
//!
//! IDs that this process assigns index an array ([`DenseTable`]). Keys that others assign (a client's QPN, a
//! MAC address) are looked up in an [`Index`], which assigns a dense ID to each; the data of a key is in
//! arrays indexed by that ID.

use crate::Full;

/// Up to `capacity` values under the smallest possible IDs; freed IDs are reused.
#[derive(Clone, Debug)]
pub struct DenseTable<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> DenseTable<T> {
    /// Returns an empty table.
    ///
    /// # Panics
    /// If `capacity` does not fit into 32 bits.
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(u32::try_from(capacity).is_ok(), "IDs have 32 bits");
        Self { slots: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity), capacity }
    }

    /// Stores `value` and returns its ID.
    pub fn insert(&mut self, value: T) -> Result<u32, Full> {
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = Some(value);
            return Ok(id);
        }
        if self.slots.len() == self.capacity {
            return Err(Full);
        }
        self.slots.push(Some(value));
        Ok(self.slots.len() as u32 - 1)
    }

    /// Removes a value, whose ID may be reused.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(value)
    }

    /// Returns the value under `id`.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    /// Returns the value under `id` for modification.
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    /// Count of values in the table
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the table is empty
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a number that every ID assigned so far is below: the required length of arrays indexed by ID.
    pub fn ids(&self) -> u32 {
        self.slots.len() as u32
    }
}

/// A key of an [`Index`].
pub trait Key: Copy + Eq {
    /// Returns the key's bits, or a hash of them, without a salt.
    fn hash(&self) -> u64;

    /// Returns the hash by which an [`Index`] places the key. A key of more than 64 bits has to override it
    /// with a call of [`Salt::hash`] on all of them: keys whose unsalted hashes are equal collide under every
    /// salt.
    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.hash().into(), 0)
    }
}

/// A secret that an [`Index`] mixes into the hashes of its keys, so that a host cannot choose keys that
/// collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt {
    xor: u64,
    /// Multiplier; odd
    by: u64,
}

impl Salt {
    /// Salt of tables whose keys come from the configuration, and of tests and simulations
    pub const FIXED: Self = Self::new(0);

    /// Returns the salt of a seed. The seed of a table whose keys come from packets has to be random (from
    /// the operating system), and known to this process only.
    pub const fn new(seed: u64) -> Self {
        let xor = mix(mix(seed ^ 0x3c6e_f372_fe94_f82a).wrapping_add(seed));
        Self { xor, by: mix(mix(xor ^ 0xdaa6_6d2c_7ddf_743f).wrapping_add(seed)) | 1 }
    }

    /// Hashes `bits` and `number` together.
    ///
    /// The product of two halves, each combined with a secret word, is folded as in wyhash. One such product
    /// is not enough for consecutive numbers: with 1 salt in 10, some of 65,536 found no slot in an index for
    /// as many. A multiplication by a constant and a rotation, which selects the middle of the product, avoid
    /// that.
    #[inline]
    pub const fn hash(self, bits: u128, number: u64) -> u64 {
        let low = bits as u64 ^ self.xor;
        let high = ((bits >> 64) as u64).wrapping_add((number << 1 | 1).wrapping_mul(self.by));
        let product = low as u128 * high as u128;
        let folded = product as u64 ^ (product >> 64) as u64;
        folded.wrapping_mul(GOLDEN).rotate_right(32)
    }
}

/// 2^64 / golden ratio
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads `value` over 64 bits.
#[inline]
pub const fn mix(value: u64) -> u64 {
    // Folding the high half into the low one spreads the low bits as well.
    let product = value as u128 * GOLDEN as u128;
    (product as u64) ^ (product >> 64) as u64
}

/// Slots of a hash table that maps keys to IDs: open addressing, at most half full. The keys are elsewhere: a
/// search calls `is` with the ID of each slot that may be the key's. It examines at most
/// [`MAX_PROBES`](Self::MAX_PROBES) slots.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    entries: Vec<Slot>,
    mask: usize,
    salt: Salt,
}

/// A part of the hash, which avoids most key comparisons, and the key's ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    tag: u32,
    id: u32,
}

const EMPTY: Slot = Slot { tag: 0, id: u32::MAX };

impl Slots {
    const MAX_PROBES: usize = 64;

    /// Returns slots for up to `capacity` keys, hashed with `salt`.
    pub(crate) fn new(capacity: usize, salt: Salt) -> Self {
        let slots = Self::count(capacity);
        Self { entries: vec![EMPTY; slots], mask: slots - 1, salt }
    }

    fn count(capacity: usize) -> usize {
        (capacity * 2).next_power_of_two().max(Self::MAX_PROBES)
    }

    /// Returns the memory of slots for up to `capacity` keys, in bytes.
    pub(crate) fn bytes(capacity: usize) -> usize {
        Self::count(capacity) * size_of::<Slot>()
    }

    /// Removes all keys and hashes with `salt` from now on.
    pub(crate) fn clear(&mut self, salt: Salt) {
        self.salt = salt;
        self.entries.fill(EMPTY);
    }

    #[inline]
    pub(crate) fn hash(&self, key: &impl Key) -> u64 {
        key.salted(self.salt)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }

    #[inline]
    fn tag(hash: u64) -> u32 {
        (hash >> 32) as u32
    }

    /// Returns the ID in the first slot of a search, if its tag is that of this hash.
    #[inline]
    pub(crate) fn first(&self, hash: u64) -> Option<u32> {
        let slot = self.entries[self.home(hash)];
        (slot.tag == Self::tag(hash)).then_some(slot.id)
    }

    /// Returns the ID of the key with this hash.
    #[expect(clippy::inline_always, reason = "a call costs as much as the search")]
    #[inline(always)]
    pub(crate) fn get(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        // Most keys are in the first slot of their search.
        if let Some(id) = self.first(hash)
            && is(id)
        {
            return Some(id);
        }
        self.find(hash, is).map(|(id, _)| id)
    }

    /// Returns the ID of the key with this hash and its slot.
    #[inline(never)]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<(u32, usize)> {
        let (home, tag) = (self.home(hash), Self::tag(hash));
        for probe in 0..Self::MAX_PROBES {
            let at = (home + probe) & self.mask;
            let slot = self.entries[at];
            if slot.tag == tag && is(slot.id) {
                return Some((slot.id, at));
            }
            if slot == EMPTY {
                return None;
            }
        }
        None
    }

    /// Returns the first empty slot of a search for `hash`.
    ///
    /// # Errors
    /// [`Full`] if none of the slots of the search is empty.
    pub(crate) fn free_slot(&self, hash: u64) -> Result<usize, Full> {
        let home = self.home(hash);
        let mut probed = (0..Self::MAX_PROBES).map(|probe| (home + probe) & self.mask);
        probed.find(|&at| self.entries[at] == EMPTY).ok_or(Full)
    }

    /// Fills a [free slot](Self::free_slot).
    pub(crate) fn fill(&mut self, at: usize, hash: u64, id: u32) {
        self.entries[at] = Slot { tag: Self::tag(hash), id };
    }

    /// Empties a slot. Moves entries that were displaced past it back into it, so that searches can stop at the
    /// first empty slot. `hash_of` returns the hash of an ID's key.
    fn empty(&mut self, mut hole: usize, hash_of: impl Fn(u32) -> Option<u64>) {
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.entries[at];
            if slot == EMPTY || at == hole {
                break;
            }
            let Some(hash) = hash_of(slot.id) else { break };
            let wanted = self.home(hash);
            if (at.wrapping_sub(wanted) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.entries[hole] = slot;
                hole = at;
            }
        }
        self.entries[hole] = EMPTY;
    }

    /// Returns the address of the first slot of a search, for prefetching.
    #[inline]
    pub(crate) fn address(&self, hash: u64) -> *const u8 {
        self.entries.as_ptr().wrapping_add(self.home(hash)).cast()
    }

    /// Returns the ID in the first slot of a search.
    #[inline]
    pub(crate) fn first_id(&self, hash: u64) -> u32 {
        self.entries[self.home(hash)].id
    }
}

/// A map from keys to dense IDs: open addressing, at most half full, no allocation after creation. A search
/// examines at most [`MAX_PROBES`](Self::MAX_PROBES) slots, whatever the keys. A key for which none of them
/// is free is refused, as if the table were full.
#[derive(Clone, Debug)]
pub struct Index<K> {
    slots: Slots,
    keys: DenseTable<K>,
}

impl<K: Key> Index<K> {
    /// Maximum count of slots that a search examines
    pub const MAX_PROBES: usize = Slots::MAX_PROBES;

    /// Returns a map for up to `capacity` keys that do not come from packets: its salt is [`Salt::FIXED`].
    pub fn with_capacity(capacity: usize) -> Self {
        Self::salted(capacity, Salt::FIXED)
    }

    /// Returns a map for up to `capacity` keys, hashed with `salt`.
    pub fn salted(capacity: usize, salt: Salt) -> Self {
        Self { slots: Slots::new(capacity, salt), keys: DenseTable::with_capacity(capacity) }
    }

    /// Rehashes with `salt`. Keys keep their IDs; a key for which no slot is free under the new salt is
    /// removed. Takes time in proportion to the capacity: call it before the map is in use.
    pub fn set_salt(&mut self, salt: Salt) {
        self.slots.clear(salt);
        for id in 0..self.keys.ids() {
            let Some(key) = self.keys.get(id) else { continue };
            let hash = key.salted(salt);
            match self.slots.free_slot(hash) {
                Ok(at) => self.slots.fill(at, hash, id),
                Err(Full) => _ = self.keys.remove(id),
            }
        }
    }

    /// Returns the maximum memory of a map for up to `capacity` keys, in bytes.
    pub fn bytes(capacity: usize) -> usize {
        Slots::bytes(capacity) + capacity * (size_of::<Option<K>>() + size_of::<u32>())
    }

    /// Returns the ID of `key`.
    #[expect(clippy::inline_always, reason = "a call costs as much as the search")]
    #[inline(always)]
    pub fn get(&self, key: &K) -> Option<u32> {
        self.slots.get(self.slots.hash(key), |id| self.keys.get(id) == Some(key))
    }

    /// Returns the address of the first slot of a search for `key`, for prefetching.
    #[inline]
    pub fn slot_address(&self, key: &K) -> *const u8 {
        self.slots.address(self.slots.hash(key))
    }

    /// Returns the ID in the first slot of a search for `key`, which most often is that of `key`, if it has
    /// one. For prefetching the data of a key.
    #[inline]
    pub fn likely_id(&self, key: &K) -> u32 {
        self.slots.first_id(self.slots.hash(key))
    }

    /// Returns the address of the key with `id`, for prefetching.
    #[inline]
    pub fn key_address(&self, id: u32) -> *const u8 {
        self.keys.slots.as_ptr().wrapping_add(id as usize).cast()
    }

    /// Returns the ID of `key`, and assigns one if it has none.
    ///
    /// # Errors
    /// [`Full`] if there is no free ID or slot for the key.
    pub fn get_or_insert(&mut self, key: K) -> Result<u32, Full> {
        let hash = self.slots.hash(&key);
        if let Some((id, _)) = self.slots.find(hash, |id| self.keys.get(id) == Some(&key)) {
            return Ok(id);
        }
        let at = self.slots.free_slot(hash)?;
        let id = self.keys.insert(key)?;
        self.slots.fill(at, hash, id);
        Ok(id)
    }

    /// Removes `key` and returns the ID that it had.
    pub fn remove(&mut self, key: &K) -> Option<u32> {
        let found = self.slots.find(self.slots.hash(key), |id| self.keys.get(id) == Some(key));
        let (id, slot) = found?;
        self.keys.remove(id);
        let salt = self.slots.salt;
        self.slots.empty(slot, |id| Some(self.keys.get(id)?.salted(salt)));
        Some(id)
    }

    /// Returns the key with `id`.
    pub fn key(&self, id: u32) -> Option<&K> {
        self.keys.get(id)
    }

    /// Count of keys in the map
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether the map is empty
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns a number that every ID assigned so far is below.
    pub fn ids(&self) -> u32 {
        self.keys.ids()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct CollidingKey(u16);

    impl Key for CollidingKey {
        fn hash(&self) -> u64 {
            u64::from(self.0 % 7) << 32 | u64::from(self.0 % 11)
        }

        /// Collides often, both in the slot and in the tag.
        fn salted(&self, _: Salt) -> u64 {
            self.hash()
        }
    }

    proptest! {
        #[test]
        fn index_equals_a_map(operations in proptest::collection::vec((any::<bool>(), 0u16..60), 0..400)) {
            let mut index = Index::with_capacity(24);
            let mut model: HashMap<CollidingKey, u32> = HashMap::new();
            for (insert, key) in operations {
                let key = CollidingKey(key);
                if insert {
                    let got = index.get_or_insert(key);
                    if let Some(&id) = model.get(&key) {
                        prop_assert_eq!(got, Ok(id));
                    } else if let Ok(id) = got {
                        prop_assert!((id as usize) < 24 && model.values().all(|&other| other != id), "ID {} was in use", id);
                        model.insert(key, id);
                    } else {
                        prop_assert_eq!(model.len(), 24, "a key was refused although the index was not full");
                    }
                } else {
                    prop_assert_eq!(index.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(index.len(), model.len());
                for key in (0..60).map(CollidingKey) {
                    prop_assert_eq!(index.get(&key), model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn colliding_keys_are_refused_after_max_probes() {
        #[derive(Clone, Copy, PartialEq, Eq)]
        struct Same(u32);
        impl Key for Same {
            fn hash(&self) -> u64 {
                42
            }
        }
        let mut index = Index::with_capacity(1000);
        let inserted = (0..1000).filter(|&n| index.get_or_insert(Same(n)).is_ok()).count();
        assert_eq!(inserted, Index::<Same>::MAX_PROBES);
        assert_eq!(index.get(&Same(999)), None);
    }

    impl Key for u64 {
        fn hash(&self) -> u64 {
            *self
        }
    }

    /// Returns the first slots of searches for `keys` under `salt`, without duplicates.
    fn homes(keys: &[u64], salt: Salt) -> std::collections::HashSet<usize> {
        let index = Index::<u64>::salted(1000, salt);
        keys.iter().map(|key| index.slot_address(key) as usize - index.slots.address(0) as usize).collect()
    }

    #[test]
    fn keys_that_collide_under_one_salt_spread_under_others() {
        let known = Salt::new(1);
        let mut index = Index::salted(1000, known);
        let first = index.slot_address(&0);
        let crafted: Vec<u64> = (0..).filter(|key| index.slot_address(key) == first).take(500).collect();
        let inserted = crafted.iter().filter(|key| index.get_or_insert(**key).is_ok()).count();
        assert_eq!((inserted, homes(&crafted, known).len()), (Index::<u64>::MAX_PROBES, 1));
        for seed in 2..100 {
            let salt = Salt::new(seed);
            let mut index = Index::salted(1000, salt);
            let inserted = crafted.iter().filter(|key| index.get_or_insert(**key).is_ok()).count();
            assert_eq!(inserted, crafted.len(), "salt {seed}");
            // 500 balls in 2048 bins occupy 444 bins on average.
            assert!(homes(&crafted, salt).len() > 400, "salt {seed}");
        }
    }

    #[test]
    fn consecutive_keys_are_indexed_under_every_salt() {
        for seed in 0..50 {
            for step in [1, 8, 256] {
                let mut index = Index::salted(65_536, Salt::new(seed));
                for key in (0..65_536).map(|n| n * step) {
                    assert!(index.get_or_insert(key).is_ok(), "salt {seed}, key {key}");
                }
            }
        }
    }

    #[test]
    fn keys_keep_their_ids_under_a_new_salt() {
        let mut index = Index::with_capacity(1000);
        let ids: Vec<_> = (0..1000_u64).map(|key| index.get_or_insert(key).unwrap()).collect();
        assert_eq!(index.remove(&7), Some(ids[7]));
        index.set_salt(Salt::new(1));
        for (key, id) in (0..).zip(ids) {
            assert_eq!(index.get(&key), (key != 7).then_some(id));
        }
        assert_eq!((index.len(), index.get_or_insert(1000)), (999, Ok(7)));
    }

    #[test]
    fn dense_ids_are_reused() {
        let mut table = DenseTable::with_capacity(2);
        assert_eq!((table.insert('a'), table.insert('b'), table.insert('c')), (Ok(0), Ok(1), Err(Full)));
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!((table.remove(0), table.get(0), table.len()), (None, None, 1));
        assert_eq!(table.insert('d'), Ok(0));
        assert_eq!((table.get(0), table.get(7), table.ids()), (Some(&'d'), None, 2));
    }
}

//! Tables for the path of a packet: of a fixed size, allocated once, with small dense ids.
//!
//! Ids that we hand out index an array ([`DenseTable`]). Keys that others chose (a client's QPN, a MAC address) are
//! looked up in an [`Index`], which gives each a dense id of its own; what belongs to the key lies in arrays by that
//! id.

use crate::Full;

/// Up to `capacity` values under ids that are as small as possible; freed ids are given again.
#[derive(Clone, Debug)]
pub struct DenseTable<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    capacity: usize,
}

impl<T> DenseTable<T> {
    /// An empty table.
    ///
    /// # Panics
    /// If `capacity` does not fit into 32 bits.
    pub fn with_capacity(capacity: usize) -> Self {
        assert!(u32::try_from(capacity).is_ok(), "ids are 32 bits");
        Self { slots: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity), capacity }
    }

    /// Stores `value` and gives its id.
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

    /// Takes the value out; its id may be given again.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        Some(value)
    }

    /// The value under `id`
    #[inline]
    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref()
    }

    /// The value under `id`, to be changed
    #[inline]
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    /// Values in the table
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every id was below this at all times: the arrays beside the table need no more room.
    pub fn ids(&self) -> u32 {
        self.slots.len() as u32
    }
}

/// A key of an [`Index`].
pub trait Key: Copy + Eq {
    /// Returns the key's bits, or a hash of them, without a salt.
    fn hash(&self) -> u64;

    /// Returns the hash by which an [`Index`] places the key. A key of more than 64 bits overrides it with a call of
    /// [`Salt::hash`] on all of them: keys whose unsalted hashes are equal collide under each salt.
    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.hash().into(), 0)
    }
}

/// Secret that an [`Index`] hashes its keys with: without it, a host cannot choose keys that collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt {
    xor: u64,
    /// Odd
    by: u64,
}

impl Salt {
    /// Salt of tables whose keys come from the configuration, and of tests and simulations
    pub const FIXED: Self = Self::new(0);

    /// Returns the salt of a seed. The seed of a table whose keys come from packets has to be random (from the operating
    /// system), and known to this process alone.
    pub const fn new(seed: u64) -> Self {
        let xor = mix(mix(seed ^ 0x3c6e_f372_fe94_f82a).wrapping_add(seed));
        Self { xor, by: mix(mix(xor ^ 0xdaa6_6d2c_7ddf_743f).wrapping_add(seed)) | 1 }
    }

    /// Hashes `bits` and `number` together.
    ///
    /// The product of two halves, each combined with a secret word, is folded as wyhash does. One such product is not
    /// enough for numbers in a row: with 1 salt in 10, some of 65,536 found no place in an index for as many. A
    /// multiplication by a constant and a rotation, which takes the product's middle, remove that.
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
    // Folding the high half in makes the low bits good too.
    let product = value as u128 * GOLDEN as u128;
    (product as u64) ^ (product >> 64) as u64
}

/// A map from keys to dense ids: open addressing, at most half full, no allocation after construction. A search looks
/// at [`MAX_PROBES`](Self::MAX_PROBES) slots at most, whoever chose the keys; a key that finds no place within them is
/// refused like one that comes when the table is full.
#[derive(Clone, Debug)]
pub struct Index<K> {
    slots: Vec<Slot>,
    keys: DenseTable<K>,
    mask: usize,
    salt: Salt,
}

/// A part of the hash, to spare most comparisons with a key, and the id of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    tag: u32,
    id: u32,
}

const EMPTY: Slot = Slot { tag: 0, id: u32::MAX };

impl<K: Key> Index<K> {
    /// Slots that a search looks at
    pub const MAX_PROBES: usize = 64;

    /// A map for up to `capacity` keys that do not come from packets: its salt is [`Salt::FIXED`].
    pub fn with_capacity(capacity: usize) -> Self {
        Self::salted(capacity, Salt::FIXED)
    }

    /// A map for up to `capacity` keys, hashed with `salt`.
    pub fn salted(capacity: usize, salt: Salt) -> Self {
        let slots = (capacity * 2).next_power_of_two().max(Self::MAX_PROBES);
        Self { slots: vec![EMPTY; slots], keys: DenseTable::with_capacity(capacity), mask: slots - 1, salt }
    }

    /// Hashes with `salt` from now on. Keys keep their ids; one that finds no place under the new salt is removed. Takes
    /// time in proportion to the capacity: it is for a map that is not in use yet.
    pub fn set_salt(&mut self, salt: Salt) {
        self.salt = salt;
        self.slots.fill(EMPTY);
        for id in 0..self.keys.ids() {
            let Some(key) = self.keys.get(id) else { continue };
            let hash = key.salted(salt);
            match self.vacancy(hash) {
                Some(at) => self.slots[at] = Slot { tag: Self::tag(hash), id },
                None => _ = self.keys.remove(id),
            }
        }
    }

    /// What a map for up to `capacity` keys takes, at most.
    pub fn bytes(capacity: usize) -> usize {
        let slots = (capacity * 2).next_power_of_two().max(Self::MAX_PROBES);
        slots * size_of::<Slot>() + capacity * (size_of::<Option<K>>() + size_of::<u32>())
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & self.mask
    }

    #[inline]
    fn tag(hash: u64) -> u32 {
        (hash >> 32) as u32
    }

    /// The id of `key`
    #[expect(clippy::inline_always, reason = "a call costs as much as the search")]
    #[inline(always)]
    pub fn get(&self, key: &K) -> Option<u32> {
        // Most stand where the search begins.
        let hash = key.salted(self.salt);
        let slot = self.slots[self.home(hash)];
        if slot.tag == Self::tag(hash) && self.keys.get(slot.id) == Some(key) {
            return Some(slot.id);
        }
        self.find(key, hash).map(|(id, _)| id)
    }

    /// Where the search for `key` begins
    #[inline]
    pub fn home_of(&self, key: &K) -> *const u8 {
        self.slots.as_ptr().wrapping_add(self.home(key.salted(self.salt))).cast()
    }

    /// The id that stands where the search for `key` begins: most often its own, if it has one. To fetch what belongs to it
    /// before it is needed.
    #[inline]
    pub fn likely(&self, key: &K) -> u32 {
        self.slots[self.home(key.salted(self.salt))].id
    }

    /// Where the key that has `id` lies, if one has.
    #[inline]
    pub fn place_of(&self, id: u32) -> *const u8 {
        self.keys.slots.as_ptr().wrapping_add(id as usize).cast()
    }

    /// The id of `key` and the slot where it stands.
    #[inline(never)]
    fn find(&self, key: &K, hash: u64) -> Option<(u32, usize)> {
        let (home, tag) = (self.home(hash), Self::tag(hash));
        for probe in 0..Self::MAX_PROBES {
            let at = (home + probe) & self.mask;
            let slot = self.slots[at];
            if slot.tag == tag && self.keys.get(slot.id) == Some(key) {
                return Some((slot.id, at));
            }
            if slot == EMPTY {
                return None;
            }
        }
        None
    }

    /// Returns the first empty slot that a search for `hash` looks at.
    fn vacancy(&self, hash: u64) -> Option<usize> {
        let home = self.home(hash);
        (0..Self::MAX_PROBES).map(|probe| (home + probe) & self.mask).find(|&at| self.slots[at] == EMPTY)
    }

    /// The id of `key`, given to it now if it had none.
    pub fn get_or_insert(&mut self, key: K) -> Result<u32, Full> {
        let hash = key.salted(self.salt);
        if let Some((id, _)) = self.find(&key, hash) {
            return Ok(id);
        }
        let at = self.vacancy(hash).ok_or(Full)?;
        let id = self.keys.insert(key)?;
        self.slots[at] = Slot { tag: Self::tag(hash), id };
        Ok(id)
    }

    /// Forgets `key`; gives the id that it had.
    pub fn remove(&mut self, key: &K) -> Option<u32> {
        let (id, mut hole) = self.find(key, key.salted(self.salt))?;
        self.keys.remove(id);
        // Closes the gap: what was pushed on from a slot at or before the hole moves back into it, so that searches
        // may go on stopping at the first empty slot.
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slots[at];
            if slot == EMPTY || at == hole {
                break;
            }
            let Some(pushed) = self.keys.get(slot.id) else { break };
            let wanted = self.home(pushed.salted(self.salt));
            if (at.wrapping_sub(wanted) & self.mask) >= (at.wrapping_sub(hole) & self.mask) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        Some(id)
    }

    /// The key that has `id`
    pub fn key(&self, id: u32) -> Option<&K> {
        self.keys.get(id)
    }

    /// Keys in the map
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Every id was below this at all times.
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
    struct Clumsy(u16);

    impl Key for Clumsy {
        fn hash(&self) -> u64 {
            u64::from(self.0 % 7) << 32 | u64::from(self.0 % 11)
        }

        /// Collides often, in the slot and in the tag.
        fn salted(&self, _: Salt) -> u64 {
            self.hash()
        }
    }

    proptest! {
        #[test]
        fn index_is_a_map(operations in proptest::collection::vec((any::<bool>(), 0u16..60), 0..400)) {
            let mut index = Index::with_capacity(24);
            let mut model: HashMap<Clumsy, u32> = HashMap::new();
            for (insert, key) in operations {
                let key = Clumsy(key);
                if insert {
                    let got = index.get_or_insert(key);
                    if let Some(&id) = model.get(&key) {
                        prop_assert_eq!(got, Ok(id));
                    } else if let Ok(id) = got {
                        prop_assert!((id as usize) < 24 && model.values().all(|&other| other != id), "id {} is free", id);
                        model.insert(key, id);
                    } else {
                        prop_assert_eq!(model.len(), 24, "refused only when full");
                    }
                } else {
                    prop_assert_eq!(index.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(index.len(), model.len());
                for key in (0..60).map(Clumsy) {
                    prop_assert_eq!(index.get(&key), model.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn chosen_collisions_are_refused_not_searched() {
        #[derive(Clone, Copy, PartialEq, Eq)]
        struct Same(u32);
        impl Key for Same {
            fn hash(&self) -> u64 {
                42
            }
        }
        let mut index = Index::with_capacity(1000);
        let taken = (0..1000).filter(|&n| index.get_or_insert(Same(n)).is_ok()).count();
        assert_eq!(taken, Index::<Same>::MAX_PROBES);
        assert_eq!(index.get(&Same(999)), None);
    }

    impl Key for u64 {
        fn hash(&self) -> u64 {
            *self
        }
    }

    /// Returns the slots at which a search for each of `keys` begins, each slot once, under `salt`.
    fn homes(keys: &[u64], salt: Salt) -> std::collections::HashSet<usize> {
        let index = Index::<u64>::salted(1000, salt);
        keys.iter().map(|key| index.home_of(key) as usize - index.slots.as_ptr() as usize).collect()
    }

    #[test]
    fn keys_that_collide_under_one_salt_do_not_under_another() {
        let known = Salt::new(1);
        let mut index = Index::salted(1000, known);
        let first = index.home_of(&0);
        let crafted: Vec<u64> = (0..).filter(|key| index.home_of(key) == first).take(500).collect();
        let taken = crafted.iter().filter(|key| index.get_or_insert(**key).is_ok()).count();
        assert_eq!((taken, homes(&crafted, known).len()), (Index::<u64>::MAX_PROBES, 1));
        for seed in 2..100 {
            let salt = Salt::new(seed);
            let mut index = Index::salted(1000, salt);
            let taken = crafted.iter().filter(|key| index.get_or_insert(**key).is_ok()).count();
            assert_eq!(taken, crafted.len(), "salt {seed}");
            // 500 balls in 2048 bins occupy 444 on average.
            assert!(homes(&crafted, salt).len() > 400, "salt {seed}");
        }
    }

    #[test]
    fn keys_in_a_row_find_places_under_every_salt() {
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
    fn dense_ids_are_given_again() {
        let mut table = DenseTable::with_capacity(2);
        assert_eq!((table.insert('a'), table.insert('b'), table.insert('c')), (Ok(0), Ok(1), Err(Full)));
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!((table.remove(0), table.get(0), table.len()), (None, None, 1));
        assert_eq!(table.insert('d'), Ok(0));
        assert_eq!((table.get(0), table.get(7), table.ids()), (Some(&'d'), None, 2));
    }
}

//! An indexed binary min-heap: each slot is in it at most once and can be removed.

/// Sort key of a slot; no two are equal.
pub type Key = (u64, u64);

/// Slots by key, smallest first. The heap records the position of each slot, so that any can be removed in
/// logarithmic time. It allocates only on creation.
#[derive(Clone, Debug)]
pub struct Heap {
    entries: Vec<(Key, u32)>,
    /// Position of each slot in `entries`, or `ABSENT`
    positions: Box<[u32]>,
}

/// Position of a slot that is not in the heap
const ABSENT: u32 = u32::MAX;

impl Heap {
    /// Returns an empty heap for slot numbers below `slots`.
    pub fn new(slots: usize) -> Self {
        Self { entries: Vec::with_capacity(slots), positions: vec![ABSENT; slots].into() }
    }

    /// Returns the smallest key.
    #[inline]
    pub fn first(&self) -> Option<Key> {
        self.entries.first().map(|&(key, _)| key)
    }

    /// Returns the slot with the smallest key.
    pub fn slot(&self) -> Option<u32> {
        self.entries.first().map(|&(_, slot)| slot)
    }

    /// Removes and returns the slot with the smallest key.
    pub fn pop(&mut self) -> Option<u32> {
        let slot = self.slot()?;
        self.remove(slot);
        Some(slot)
    }

    /// Returns the key of a slot, or `None` if the slot is not in the heap.
    #[inline]
    pub fn key(&self, slot: u32) -> Option<Key> {
        let at = *self.positions.get(slot as usize)?;
        self.entries.get(at as usize).map(|&(key, _)| key)
    }

    /// Count of slots in the heap
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the heap is empty
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a slot, which must not be in the heap.
    ///
    /// # Panics
    /// If `slot` is not below the count that the heap was created with.
    pub fn insert(&mut self, slot: u32, key: Key) {
        let at = self.entries.len();
        self.entries.push((key, slot));
        self.positions[slot as usize] = at as u32;
        self.sift_up(at);
    }

    /// Removes a slot, if it is in the heap.
    ///
    /// # Panics
    /// If `slot` is not below the count that the heap was created with.
    pub fn remove(&mut self, slot: u32) {
        let at = core::mem::replace(&mut self.positions[slot as usize], ABSENT);
        if at == ABSENT {
            return;
        }
        let at = at as usize;
        self.entries.swap_remove(at);
        if let Some(&(_, moved)) = self.entries.get(at) {
            self.positions[moved as usize] = at as u32;
            self.sift_up(at);
            self.sift_down(self.positions[moved as usize] as usize);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        for at in [a, b] {
            self.positions[self.entries[at].1 as usize] = at as u32;
        }
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 && self.entries[at].0 < self.entries[(at - 1) / 2].0 {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.entries.len());
            let Some(least) = children.min_by_key(|&child| self.entries[child].0) else { return };
            if self.entries[at].0 <= self.entries[least].0 {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn heap_equals_a_sorted_map(operations in proptest::collection::vec((0u32..24, 0u64..50, any::<bool>()), 0..300)) {
            let mut heap = Heap::new(24);
            let mut model: BTreeMap<Key, u32> = BTreeMap::new();
            for (order, (slot, due, remove)) in operations.into_iter().enumerate() {
                let known = model.iter().find(|&(_, &other)| other == slot).map(|(&key, _)| key);
                if let Some(key) = known {
                    heap.remove(slot);
                    model.remove(&key);
                } else if remove {
                    prop_assert_eq!(heap.pop(), model.pop_first().map(|(_, slot)| slot));
                } else {
                    let key = (due, order as u64);
                    heap.insert(slot, key);
                    model.insert(key, slot);
                }
                prop_assert_eq!(heap.key(slot), model.iter().find(|&(_, &other)| other == slot).map(|(&key, _)| key));
                prop_assert_eq!((heap.len(), heap.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!((heap.first(), heap.slot()), (model.keys().next().copied(), model.values().next().copied()));
            }
            while let Some((_, slot)) = model.pop_first() {
                prop_assert_eq!(heap.pop(), Some(slot));
            }
            prop_assert_eq!(heap.pop(), None);
        }
    }
}

//! Store of append-only lists, such as Clover (Tsai et al., USENIX ATC 2020). Each key has a list of its values. A client writes a node,
//! appends it by CAS(0 -> node) to the `next` word of the node that it takes for the last one, and reads the
//! node that it takes for the last one.
//!
//! As in the paper, the switch caches the last node of each hot key, and the keys of written nodes, because a
//! READ carries only an address. Both tables have a fixed size. The keys of the most recently used nodes are
//! kept. A key is hot by the number of its appends.

use super::{Append, Cas, StructureCache};
use crate::sketch::Sketch;
use core::ops::Range;
use switch::table::{Index, Key, Salt, mix};

/// Bytes of a node before its value
pub const HEADER: usize = 24;
/// Offset in a node of the address of the next one
pub const NEXT: usize = 0;
/// Offset in a node of its key
pub const KEY: usize = 8;

/// Location of a store of lists, and size of its cached state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListsConfig {
    /// Number of keys, counted from 0
    pub keys: u64,
    /// Length of a node in bytes: the address of the next node ([`NEXT`]) or 0, the key ([`KEY`]), the length of
    /// the value, and the value from [`HEADER`] on
    pub node_len: usize,
    /// Virtual addresses of the nodes
    pub nodes: Range<u64>,
    /// Number of nodes at the beginning of `nodes` that are the first nodes of keys 0, 1, ...
    pub first_nodes: u64,
    /// Nodes whose key is cached; the paper's read cache has three times as many entries as there are keys
    pub cached_nodes: usize,
    /// Keys whose last node is cached
    pub tracked_keys: usize,
    /// Number of appends that make a key hot
    pub hot: u32,
}

impl ListsConfig {
    /// Returns a configuration that caches all keys from their first append on, and three nodes per key.
    pub fn new(keys: u64, node_len: usize, nodes: Range<u64>) -> Self {
        let tracked_keys = keys as usize;
        Self {
            keys,
            node_len,
            nodes,
            first_nodes: keys,
            cached_nodes: tracked_keys * 3,
            tracked_keys,
            hot: 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListKey(u64);

impl Key for ListKey {
    #[inline]
    fn hash(&self) -> u64 {
        self.0
    }
}

/// Last node of a key.
#[derive(Clone, Copy, Debug)]
struct Tail {
    node: u64,
    /// R_Key of the node. Another one belongs to another incarnation of the server's memory
    rkey: u32,
    /// Whether the node's WRITE is known to have completed
    ready: bool,
}

const NO_TAIL: Tail = Tail { node: 0, rkey: 0, ready: false };

/// A value that is valid in one epoch: the next epoch invalidates all values at once.
#[derive(Clone, Copy, Debug)]
struct Epoched<T> {
    epoch: u64,
    value: T,
}

/// A node, and the key that it belongs to
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyedNode {
    number: u32,
    key: u32,
}

/// No node
const NO_NODE: KeyedNode = KeyedNode { number: u32::MAX, key: 0 };
/// Set of a set-associative table of nodes, the most recently used first
type NodeSet = [KeyedNode; 7];
/// Number of keys examined for one that is colder
const EXAMINED: u32 = 8;

/// Cached state of a store of lists.
#[derive(Debug)]
pub struct Lists {
    config: ListsConfig,
    /// Keys of nodes; one cache line per set
    node_keys: Box<[Epoched<NodeSet>]>,
    keys: Index<ListKey>,
    /// Last nodes, by the index of the key. A key whose last node has been forgotten keeps its entry until
    /// that is needed
    tails: Box<[Epoched<Tail>]>,
    /// Current epochs of `node_keys` and of `tails`
    node_keys_epoch: u64,
    tails_epoch: u64,
    sketch: Sketch,
    hand: u32,
}

impl Lists {
    /// Returns the empty state of a store.
    ///
    /// # Panics
    /// If there are 2^32 - 1 or more nodes or keys, or `cached_nodes` or `tracked_keys` is 0.
    pub fn new(config: ListsConfig) -> Self {
        let len = config.node_len as u64;
        let nodes = (config.nodes.end - config.nodes.start) / len;
        assert!(
            nodes < u64::from(u32::MAX) && config.keys < u64::from(u32::MAX),
            "the store has too many nodes or keys for 32-bit numbers"
        );
        assert!(
            config.cached_nodes > 0 && config.tracked_keys > 0,
            "cached_nodes = {} and tracked_keys = {} have to be at least 1",
            config.cached_nodes,
            config.tracked_keys
        );
        Self {
            node_keys: vec![
                Epoched { epoch: 0, value: [NO_NODE; 7] };
                config.cached_nodes.min(nodes as usize).div_ceil(7).max(1)
            ]
            .into(),
            keys: Index::with_capacity(config.tracked_keys),
            tails: vec![Epoched { epoch: 0, value: NO_TAIL }; config.tracked_keys].into(),
            node_keys_epoch: 0,
            tails_epoch: 1,
            sketch: Sketch::new(),
            hand: 0,
            config,
        }
    }

    /// Salts the hashes of keys.
    pub(super) fn set_salt(&mut self, salt: Salt) {
        self.keys.set_salt(salt);
    }

    /// Returns the maximum memory in bytes of the cached state.
    pub(crate) fn bytes(config: &ListsConfig) -> usize {
        let nodes = (config.nodes.end - config.nodes.start) / config.node_len as u64;
        let node_keys = config.cached_nodes.min(nodes as usize).div_ceil(7).max(1);
        node_keys * size_of::<Epoched<NodeSet>>()
            + Index::<ListKey>::bytes(config.tracked_keys)
            + config.tracked_keys * size_of::<Epoched<Tail>>()
            + Sketch::BYTES
    }

    /// Returns the number of keys whose last node is known.
    pub fn tracked(&self) -> usize {
        let is_known = |id: &u32| self.keys.key(*id).is_some_and(|key| self.tail_of(key.0).is_some());
        (0..self.keys.ids()).filter(is_known).count()
    }

    /// Returns the number of the node that begins at this address.
    #[inline]
    fn number_of(&self, va: u64) -> Option<u32> {
        let (nodes, len) = (&self.config.nodes, self.config.node_len as u64);
        let offset = va.checked_sub(nodes.start)?;
        (offset.is_multiple_of(len) && va.checked_add(len)? <= nodes.end).then(|| (offset / len) as u32)
    }

    #[inline]
    fn set_of(&mut self, number: u32) -> &mut NodeSet {
        // Multiplication by the number of sets maps the hash to a set (Lemire, 2019).
        let set = (u128::from(mix(u64::from(number))) * self.node_keys.len() as u128) >> 64;
        let set = &mut self.node_keys[set as usize];
        if set.epoch != self.node_keys_epoch {
            *set = Epoched { epoch: self.node_keys_epoch, value: [NO_NODE; 7] };
        }
        &mut set.value
    }

    /// Returns the key of a node, if it is known.
    #[inline]
    fn key_of(&mut self, number: u32) -> Option<u64> {
        let set = self.set_of(number);
        if let Some(at) = set.iter().position(|keyed| keyed.number == number) {
            set[..=at].rotate_right(1);
            return Some(u64::from(set[0].key));
        }
        (u64::from(number) < self.config.first_nodes).then_some(u64::from(number))
    }

    fn note_key(&mut self, number: u32, key: u64) {
        let set = self.set_of(number);
        let at = set.iter().position(|keyed| keyed.number == number).unwrap_or(set.len() - 1);
        set[..=at].rotate_right(1);
        set[0] = KeyedNode { number, key: key as u32 };
    }

    fn forget_node(&mut self, number: u32) {
        if let Some(keyed) = self.set_of(number).iter_mut().find(|keyed| keyed.number == number) {
            *keyed = NO_NODE;
        }
    }

    fn tail_of(&self, key: u64) -> Option<&Tail> {
        let tail = &self.tails[self.keys.get(&ListKey(key))? as usize];
        (tail.epoch == self.tails_epoch).then_some(&tail.value)
    }

    fn tail_mut(&mut self, key: u64) -> Option<&mut Tail> {
        let tail = &mut self.tails[self.keys.get(&ListKey(key))? as usize];
        (tail.epoch == self.tails_epoch).then_some(&mut tail.value)
    }

    /// Caches the last node of a key if the key is hot, and, when the table is full, hotter than one of a few
    /// keys in it.
    fn learn(&mut self, key: u64, tail: Tail) {
        let count = self.sketch.count(key);
        if count < self.config.hot {
            return;
        }
        let is_new = self.keys.get(&ListKey(key)).is_none();
        if is_new && self.keys.len() == self.config.tracked_keys && !self.make_room(count) {
            return;
        }
        if let Ok(id) = self.keys.get_or_insert(ListKey(key)) {
            self.tails[id as usize] = Epoched { epoch: self.tails_epoch, value: tail };
        }
    }

    /// Removes the coldest of a few keys, if it is colder than `count`.
    fn make_room(&mut self, count: u32) -> bool {
        let mut coldest: Option<(u32, ListKey)> = None;
        for _ in 0..EXAMINED {
            self.hand = (self.hand + 1) % self.keys.ids().max(1);
            let Some(key) = self.keys.key(self.hand).copied() else { continue };
            let is_known = self.tails[self.hand as usize].epoch == self.tails_epoch;
            let other = if is_known { self.sketch.count(key.0) } else { 0 };
            if coldest.is_none_or(|(least, _)| other < least) {
                coldest = Some((other, key));
            }
        }
        match coldest {
            Some((least, key)) if least < count => self.keys.remove(&key).is_some(),
            _ => false,
        }
    }
}

impl StructureCache for Lists {
    #[inline]
    fn covers(&self, va: u64) -> bool {
        self.config.nodes.contains(&va)
    }

    fn on_write(&mut self, va: u64, bytes: &[u8]) {
        let Some(number) = self.number_of(va) else { return };
        let [Some(next), Some(key)] = [NEXT, KEY].map(|at| word_at(bytes, at)) else { return };
        if next != 0 || key >= self.config.keys || bytes.len() < HEADER {
            return;
        }
        // The node is being reused and is no longer the last one of its list.
        if let Some(before) = self.key_of(number)
            && self.tail_of(before).is_some_and(|tail| tail.node == va)
        {
            self.invalidate(before);
        }
        self.note_key(number, key);
    }

    fn on_unverified_write(&mut self, va: u64, bytes: &[u8]) {
        let Some(number) = self.number_of(va) else { return };
        let Some(before) = self.key_of(number) else { return };
        if self.tail_of(before).is_some_and(|tail| tail.node == va) {
            self.invalidate(before);
        }
        if word_at(bytes, KEY) != Some(before) {
            self.forget_node(number);
        }
    }

    fn on_cas(&mut self, cas: &Cas, written: bool, followed: bool, steer: bool) -> Option<Append> {
        if cas.compare != 0 {
            return None;
        }
        let to = cas.va.checked_sub(NEXT as u64)?;
        let (last, new) = (self.number_of(to)?, self.number_of(cas.swap)?);
        // The CAS shows that both nodes belong to one key.
        let key = match (self.key_of(last), self.key_of(new)) {
            (Some(key), Some(other)) if key != other => return None,
            (Some(key), _) | (None, Some(key)) => key,
            (None, None) => return None,
        };
        if last == new {
            return None;
        }
        self.note_key(last, key);
        self.note_key(new, key);
        self.sketch.add(key);
        let node = cas.swap;
        let mut append = Append { va: cas.va, to, node, key, rkey: cas.rkey, steered: false };
        if steer
            && let Some(tail) = self.tail_mut(key)
            && tail.rkey == cas.rkey
            && tail.ready
            && tail.node != node
        {
            append.to = tail.node;
            append.va = tail.node + NEXT as u64;
            append.steered = true;
            *tail = Tail { node, rkey: cas.rkey, ready: written };
            if followed {
                // The last node behind it will be known when all of them are linked.
                self.invalidate(key);
            }
        }
        Some(append)
    }

    fn on_read(&mut self, va: u64, rkey: u32, len: u32) -> Option<u64> {
        let number = self.number_of(va)?;
        // The response has to include the key and `next`: otherwise it would not show that the node is
        // outdated.
        if (len as usize) < KEY + 8 || len as usize > self.config.node_len {
            return None;
        }
        let tail = self.key_of(number).and_then(|key| self.tail_of(key));
        let tail = tail.filter(|tail| tail.ready && tail.rkey == rkey);
        // If the last node is unknown, the response will show the next one.
        Some(tail.map_or(va, |tail| tail.node))
    }

    fn on_read_response(&mut self, node: u64, bytes: &[u8]) {
        let [Some(next), Some(key)] = [NEXT, KEY].map(|at| word_at(bytes, at)) else { return };
        let Some(number) = self.number_of(node).filter(|_| key < self.config.keys) else { return };
        self.note_key(number, key);
        if next == 0 {
            return;
        }
        let number = self.number_of(next);
        // Its client will read this node next.
        if let Some(number) = number {
            self.note_key(number, key);
        }
        if let Some(tail) = self.tail_mut(key)
            && tail.node == node
        {
            // A client appended a node unseen by the switch. Readers of that node must not be redirected
            // backwards.
            match number {
                Some(_) => *tail = Tail { node: next, ready: true, ..*tail },
                None => self.invalidate(key),
            }
        }
    }

    fn on_linked(&mut self, append: &Append, followed: bool) {
        let &Append { to, node, key, rkey, steered, .. } = append;
        let linked = Tail { node, rkey, ready: true };
        match self.tail_mut(key) {
            Some(tail) if tail.node == node => *tail = linked,
            Some(tail) if !steered && tail.node == to => *tail = linked,
            Some(_) => {}
            None if followed => {}
            None => self.learn(key, linked),
        }
    }

    fn invalidate(&mut self, key: u64) {
        self.keys.remove(&ListKey(key));
    }

    fn forget(&mut self) {
        self.tails_epoch += 1;
    }

    fn forget_all(&mut self) {
        self.forget();
        self.node_keys_epoch += 1;
    }

    fn is_contended_word(&self, _va: u64, _rkey: u32) -> bool {
        false
    }
}

/// Returns the little-endian word at an offset.
fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests;

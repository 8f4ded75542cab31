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
mod tests {
    use super::*;

    const VA: u64 = 0x7000_0000_0000;
    const LEN: u64 = 128;

    fn va(node: u64) -> u64 {
        VA + node * LEN
    }

    fn lists(change: impl FnOnce(&mut ListsConfig)) -> Lists {
        let mut config =
            ListsConfig { cached_nodes: 64, ..ListsConfig::new(8, LEN as usize, VA..VA + 1000 * LEN) };
        change(&mut config);
        Lists::new(config)
    }

    fn write(lists: &mut Lists, node: u64, key: u64) {
        let mut bytes = vec![0; LEN as usize];
        bytes[KEY..KEY + 8].copy_from_slice(&key.to_le_bytes());
        lists.on_write(va(node), &bytes);
    }

    fn cas_of(to: u64, node: u64) -> Cas {
        Cas { va: va(to), rkey: 7, compare: 0, swap: va(node) }
    }

    /// Appends a node to another, as a client's CAS. Returns the append with its actual predecessor.
    fn cas(lists: &mut Lists, to: u64, node: u64) -> Append {
        lists.on_cas(&cas_of(to, node), true, false, true).unwrap()
    }

    /// Appends a node successfully. Returns the number of its actual predecessor.
    fn append(lists: &mut Lists, to: u64, node: u64) -> u64 {
        let append = cas(lists, to, node);
        lists.on_linked(&append, false);
        (append.to - VA) / LEN
    }

    /// Returns the node that a READ is forwarded to, if that differs or is known to be current.
    fn read(lists: &mut Lists, node: u64) -> Option<u64> {
        let to = lists.on_read(va(node), 7, LEN as u32).map(|to| (to - VA) / LEN);
        to.filter(|to| {
            *to != node
                || lists.tails.iter().any(|tail| tail.value.node == va(node) && tail.value.ready)
                    && lists.tracked() > 0
        })
    }

    #[test]
    fn stale_cas_and_reads_are_redirected_to_the_last_node() {
        let mut lists = lists(|_| {});
        for node in 10..20 {
            write(&mut lists, node, 3);
        }
        assert_eq!(read(&mut lists, 3), None, "the last node is unknown");
        assert_eq!(append(&mut lists, 3, 10), 3);
        assert_eq!(read(&mut lists, 3), Some(10));
        assert_eq!(append(&mut lists, 3, 11), 10);
        // The next node is appended behind it before its response arrives.
        let next = cas(&mut lists, 3, 12);
        assert_eq!((next.va, next.to, next.node, next.key), (va(11) + NEXT as u64, va(11), va(12), 3));
        assert!(next.steered);
        assert_eq!(append(&mut lists, 10, 13), 12);
        for node in [3, 10, 11, 12, 13] {
            assert_eq!(read(&mut lists, node), Some(13));
        }
        assert_eq!(lists.tracked(), 1);
        assert_eq!(read(&mut lists, 4), None, "node 4 belongs to another key");
    }

    #[test]
    fn uncertain_requests_are_not_steered() {
        let mut lists = lists(|_| {});
        for node in 10..20 {
            write(&mut lists, node, 3);
        }
        write(&mut lists, 20, 4);
        append(&mut lists, 3, 10);
        // Another incarnation of the memory
        let other = Cas { rkey: 8, ..cas_of(3, 11) };
        assert!(!lists.on_cas(&other, true, false, true).unwrap().steered);
        assert_eq!(lists.on_read(va(3), 8, LEN as u32), Some(va(3)));
        // CAS that append no node
        for (to, swap, compare) in [(va(3) + 8, va(11), 0), (va(3), va(11), 1), (va(3), va(11) + 8, 0)] {
            let cas = Cas { va: to, rkey: 7, compare, swap };
            assert_eq!(lists.on_cas(&cas, true, false, true), None, "{cas:x?}");
        }
        assert_eq!(lists.on_cas(&cas_of(3, 20), true, false, true), None, "the node belongs to another key");
        assert_eq!(lists.on_cas(&cas_of(31, 30), true, false, true), None, "the nodes were never written");
        assert_eq!(
            lists.on_cas(&cas_of(11, 11), true, false, true),
            None,
            "a node cannot be appended to itself"
        );
        // A READ of the word alone does not include the key; a READ of two nodes is not a READ of a node.
        assert_eq!(lists.on_read(va(3), 7, 8), None);
        assert_eq!(lists.on_read(va(3), 7, 2 * LEN as u32), None);
        assert_eq!(lists.on_read(va(3) + 8, 7, 64), None);
        assert_eq!(lists.on_read(va(1000), 7, 64), None);
        // A node that may not be written yet becomes the last one only when it is linked.
        let ahead = lists.on_cas(&cas_of(3, 11), false, false, true).unwrap();
        assert_eq!(ahead.to, va(10));
        assert_eq!((read(&mut lists, 3), cas(&mut lists, 10, 12).steered), (None, false));
        lists.on_linked(&ahead, false);
        assert_eq!(read(&mut lists, 3), Some(11));
        lists.invalidate(3);
        assert_eq!((read(&mut lists, 3), lists.tracked()), (None, 0));
        append(&mut lists, 11, 13);
        assert_eq!(read(&mut lists, 3), Some(13));
        lists.forget();
        assert_eq!((read(&mut lists, 3), lists.tracked()), (None, 0));
    }

    #[test]
    fn without_write_steering_the_last_node_follows_successful_cas() {
        let mut lists = lists(|_| {});
        for node in 10..20 {
            write(&mut lists, node, 3);
        }
        append(&mut lists, 3, 10);
        let next = lists.on_cas(&cas_of(10, 11), true, false, false).unwrap();
        assert!(!next.steered && read(&mut lists, 3) == Some(10));
        lists.on_linked(&next, false);
        assert_eq!(read(&mut lists, 3), Some(11));
    }

    #[test]
    fn a_read_that_shows_a_successor_updates_the_last_node() {
        let mut lists = lists(|_| {});
        write(&mut lists, 10, 3);
        append(&mut lists, 3, 10);
        let mut found = vec![0; LEN as usize];
        found[KEY..KEY + 8].copy_from_slice(&3u64.to_le_bytes());
        lists.on_read_response(va(10), &found);
        assert_eq!(read(&mut lists, 3), Some(10));
        found[NEXT..NEXT + 8].copy_from_slice(&va(50).to_le_bytes());
        lists.on_read_response(va(3), &found);
        assert_eq!(read(&mut lists, 3), Some(10), "an older node always has a successor");
        lists.on_read_response(va(10), &found);
        assert_eq!((read(&mut lists, 3), read(&mut lists, 50)), (Some(50), Some(50)));
        found[NEXT..NEXT + 8].copy_from_slice(&1u64.to_le_bytes());
        lists.on_read_response(va(50), &found);
        assert_eq!(read(&mut lists, 3), None, "the address is not that of a node");
    }

    #[test]
    fn a_rewritten_node_is_not_the_last_one() {
        let mut lists = lists(|_| {});
        write(&mut lists, 10, 3);
        append(&mut lists, 3, 10);
        write(&mut lists, 10, 5);
        assert_eq!((read(&mut lists, 3), read(&mut lists, 10)), (None, None));
    }

    #[test]
    fn only_first_nodes_are_known_after_forget_all() {
        let mut lists = lists(|config| config.tracked_keys = 1);
        for node in 10..12 {
            write(&mut lists, node, 3);
        }
        append(&mut lists, 3, 10);
        assert_eq!((read(&mut lists, 3), lists.tracked()), (Some(10), 1));
        lists.forget_all();
        assert_eq!((read(&mut lists, 3), read(&mut lists, 10), lists.tracked()), (None, None, 0));
        assert_eq!(
            lists.on_cas(&cas_of(10, 11), true, false, true),
            None,
            "the keys of the nodes are unknown"
        );
        // Another key takes the entry of the tracked one.
        write(&mut lists, 11, 4);
        assert_eq!(append(&mut lists, 4, 11), 4);
        assert_eq!((read(&mut lists, 4), lists.tracked()), (Some(11), 1));
    }

    #[test]
    fn unverified_writes_add_no_state_and_invalidate_what_they_contradict() {
        let mut lists = lists(|_| {});
        write(&mut lists, 10, 3);
        append(&mut lists, 3, 10);
        let mut bytes = vec![0; LEN as usize];
        bytes[KEY..KEY + 8].copy_from_slice(&5u64.to_le_bytes());
        lists.on_unverified_write(va(11), &bytes);
        assert_eq!(lists.on_cas(&cas_of(50, 11), true, false, true), None, "the nodes are unknown");
        lists.on_unverified_write(va(10), &bytes);
        assert_eq!((read(&mut lists, 3), read(&mut lists, 10)), (None, None));
    }

    #[test]
    fn old_nodes_are_evicted_but_first_nodes_are_not() {
        let mut lists = lists(|config| config.cached_nodes = 4);
        for node in 10..20 {
            write(&mut lists, node, 3);
        }
        append(&mut lists, 3, 19);
        let known: Vec<_> = (0..20).filter(|node| read(&mut lists, *node).is_some()).collect();
        assert_eq!(known, [3, 14, 15, 16, 17, 18, 19], "one set of seven nodes, and the first node");
        // A node that is still read stays in the table.
        for node in 20..26 {
            write(&mut lists, node, 3);
            assert_eq!(read(&mut lists, 14), Some(19));
        }
        assert_eq!(read(&mut lists, 18), None);
        // The response of a READ of an unknown node shows the key of that node and of the next one.
        let mut found = vec![0; LEN as usize];
        found[KEY..KEY + 8].copy_from_slice(&3u64.to_le_bytes());
        found[NEXT..NEXT + 8].copy_from_slice(&va(11).to_le_bytes());
        assert_eq!(lists.on_read(va(10), 7, LEN as u32), Some(va(10)));
        lists.on_read_response(va(10), &found);
        assert_eq!((read(&mut lists, 10), read(&mut lists, 11)), (Some(19), Some(19)));
        let mut lists = self::lists(|config| config.first_nodes = 0);
        write(&mut lists, 10, 3);
        assert_eq!(read(&mut lists, 3), None);
        append(&mut lists, 3, 10);
        assert_eq!(read(&mut lists, 3), Some(10), "the CAS shows the key");
    }

    #[test]
    fn hot_keys_replace_colder_ones() {
        let mut lists = lists(|config| (config.tracked_keys, config.hot) = (2, 3));
        let mut next = 20;
        let mut times = |lists: &mut Lists, key: u64, times: u64| {
            for _ in 0..times {
                write(lists, next, key);
                append(lists, key, next);
                next += 1;
            }
        };
        times(&mut lists, 1, 2);
        assert_eq!(lists.tracked(), 0, "the key is not hot yet");
        times(&mut lists, 1, 10);
        times(&mut lists, 2, 5);
        assert!(lists.tail_of(1).is_some() && lists.tail_of(2).is_some());
        times(&mut lists, 3, 4);
        assert!(lists.tail_of(3).is_none(), "key 3 is no hotter than the cached keys");
        times(&mut lists, 3, 4);
        assert!(lists.tail_of(3).is_some() && lists.tail_of(1).is_some() && lists.tail_of(2).is_none());
        assert_eq!(lists.tracked(), 2);
    }
}

//! Node of the tree, and its layout in memory.

use crate::clients::verbs::word;

/// Length of a node in bytes
pub const NODE_LEN: usize = 1024;
/// Bytes before the entries
const HEADER: usize = 48;
const ENTRY: usize = 16;
const REAR: usize = NODE_LEN - 8;
/// Maximum number of keys of a node
pub const FANOUT: usize = (REAR - HEADER) / ENTRY;
/// Upper bound of all keys
pub const NO_LIMIT: u64 = u64::MAX;

/// A node.
///
/// ```text
///   byte 0         8       10      16    24     32        40         48           1008    1016
///   | version | level | count | low | high | sibling | leftmost | key | value | ... | ... | version |
/// ```
///
/// Numbers are little-endian. The level (two bytes) is 0 for leaves. The node has keys from `low` to `high`
/// exclusive. Keys from `high` on are in the node at `sibling`, whose `low` is this `high`. In an inner node,
/// a value is the address of the child for keys from its key on, and `leftmost` is the child for keys before
/// the first one. The keys ascend. The two versions differ only while the node is being written: a READ that
/// sees different versions is torn, and is repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of times that the node was written
    pub version: u64,
    /// Height above the leaves
    pub level: u16,
    /// Smallest key of the node's range
    pub low: u64,
    /// End of the node's range (exclusive); [`NO_LIMIT`] for none
    pub high: u64,
    /// Address of the node for keys from `high` on, or 0
    pub sibling: u64,
    /// Address of the child for keys before the first one, in an inner node
    pub leftmost: u64,
    /// Keys in ascending order, with their values or children
    pub entries: Vec<(u64, u64)>,
}

/// Reason why bytes are not a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotANode {
    /// The versions differ: the node is being written
    Torn,
    /// The contents are invalid
    Other,
}

impl Node {
    /// Returns an empty node for all keys.
    pub const fn empty(level: u16) -> Self {
        Self { version: 1, level, low: 0, high: NO_LIMIT, sibling: 0, leftmost: 0, entries: Vec::new() }
    }

    /// Returns the node's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; NODE_LEN];
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(0, self.version);
        put(8, u64::from(self.level) | (self.entries.len() as u64) << 16);
        put(16, self.low);
        put(24, self.high);
        put(32, self.sibling);
        put(40, self.leftmost);
        for (n, (key, value)) in self.entries.iter().take(FANOUT).enumerate() {
            put(HEADER + n * ENTRY, *key);
            put(HEADER + n * ENTRY + 8, *value);
        }
        put(REAR, self.version);
        bytes
    }

    /// Parses a node.
    ///
    /// # Errors
    /// The bytes are torn or invalid.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NotANode> {
        if bytes.len() < NODE_LEN {
            return Err(NotANode::Other);
        }
        if word(bytes, 0) != word(bytes, REAR) {
            return Err(NotANode::Torn);
        }
        let count = (word(bytes, 8) >> 16) as u16 as usize;
        let (low, high) = (word(bytes, 16), word(bytes, 24));
        if count > FANOUT || low >= high {
            return Err(NotANode::Other);
        }
        let entry = |n| {
            let at = HEADER + n * ENTRY;
            (word(bytes, at), word(bytes, at + 8))
        };
        Ok(Self {
            version: word(bytes, 0),
            level: word(bytes, 8) as u16,
            low,
            high,
            sibling: word(bytes, 32),
            leftmost: word(bytes, 40),
            entries: (0..count).map(entry).collect(),
        })
    }

    /// Returns the value of a key, in a leaf.
    pub fn get(&self, key: u64) -> Option<u64> {
        let at = self.entries.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.entries[at].1)
    }

    /// Returns the address of the child for a key, in an inner node.
    pub fn child(&self, key: u64) -> u64 {
        match self.entries.partition_point(|(first, _)| *first <= key) {
            0 => self.leftmost,
            after => self.entries[after - 1].1,
        }
    }

    /// Sets the value of a key within the node's range. Returns the previous value. Afterwards the node may
    /// have one key too many.
    pub fn set(&mut self, key: u64, value: u64) -> Option<u64> {
        match self.entries.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) => Some(core::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Returns whether the node has more than [`FANOUT`] keys.
    pub fn is_too_full(&self) -> bool {
        self.entries.len() > FANOUT
    }

    /// Moves the upper half of the keys to a new node at `right_at`, which becomes the sibling. Returns the
    /// new node.
    #[must_use]
    pub fn split(&mut self, right_at: u64) -> Self {
        let mut entries = self.entries.split_off(self.entries.len() / 2);
        let low = entries[0].0;
        // The separator moves up: its child becomes the new node's leftmost child.
        let leftmost = if self.level > 0 { entries.remove(0).1 } else { 0 };
        let right = Self {
            version: 1,
            level: self.level,
            low,
            high: self.high,
            sibling: self.sibling,
            leftmost,
            entries,
        };
        (self.high, self.sibling) = (low, right_at);
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_survives_a_round_trip() {
        let mut node = Node { version: 7, level: 3, low: 5, high: 1 << 60, sibling: 9, ..Node::empty(0) };
        node.entries = (0..FANOUT as u64).map(|n| (n * 10 + 5, n)).collect();
        let bytes = node.to_bytes();
        assert_eq!((FANOUT, bytes.len()), (60, NODE_LEN));
        assert_eq!(Node::from_bytes(&bytes), Ok(node));
        for at in [0, NODE_LEN - 8] {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(Node::from_bytes(&torn), Err(NotANode::Torn));
        }
        assert_eq!(Node::from_bytes(&bytes[1..]), Err(NotANode::Other));
        assert_eq!(Node::from_bytes(&[0; NODE_LEN]), Err(NotANode::Other), "the bytes were never written");
    }

    #[test]
    fn a_split_leaf_keeps_all_keys() {
        let mut left = Node::empty(0);
        for key in 0..=FANOUT as u64 {
            assert_eq!(left.set(key * 2, key), None);
        }
        assert_eq!(left.set(4, 100), Some(2));
        assert!(left.is_too_full());
        let right = left.split(0x400);
        assert_eq!((left.low, left.high, left.sibling, right.low), (0, 60, 0x400, 60));
        assert_eq!(
            (right.high, right.sibling, left.entries.len(), right.entries.len()),
            (NO_LIMIT, 0, 30, 31)
        );
        assert_eq!(
            (left.get(4), left.get(60), right.get(60), right.get(61)),
            (Some(100), None, Some(30), None)
        );
    }

    #[test]
    fn a_split_inner_node_moves_the_separator_up() {
        let mut left = Node { leftmost: 1000, ..Node::empty(1) };
        for n in 1..=4 {
            left.set(n * 10, 1000 + n);
        }
        assert_eq!([0, 9, 10, 19, 40, 99].map(|key| left.child(key)), [1000, 1000, 1001, 1001, 1004, 1004]);
        let right = left.split(0x400);
        assert_eq!((left.high, right.low, right.leftmost), (30, 30, 1003));
        assert_eq!([30, 39, 40].map(|key| right.child(key)), [1003, 1003, 1004]);
        assert_eq!([0, 29].map(|key| left.child(key)), [1000, 1002]);
    }
}

//! Client of the tree: lookups without locks, insertions with one lock at a time.

use super::node::{NO_LIMIT, NODE_LEN, Node, NotANode};
use super::{BUMP, ROOT};
use crate::clients::lock::{LockTable, Unlock};
use crate::clients::region::Region;
use crate::clients::verbs::{Stopped, Verbs};
use rnic::Remote;
use std::collections::HashMap;
use switch::table::mix;

/// Maximum number of cached inner nodes; then the cache is cleared
const CACHED: usize = 1 << 16;

/// Client of a tree, used by one thread.
#[derive(Debug)]
pub struct Tree {
    verbs: Verbs,
    locks: LockTable,
    memory: Region,
    tag: u64,
    unlock: Unlock,
    /// Inner nodes as last read. Outdated ones are corrected by following siblings
    cache: HashMap<u64, Node>,
    /// Address of the root, as last read
    root: Option<u64>,
    /// Allocated space for nodes: begin and end as offsets in the region
    space: (u64, u64),
    nodes_at_once: u64,
}

/// Address of a node, and the node
type LocatedNode = (u64, Node);

impl Tree {
    /// Returns a client that uses this tag for its locks. Region 0 has the locks, `stride` bytes apart;
    /// region 1 has the tree.
    ///
    /// # Errors
    /// The regions do not fit a tree.
    pub fn new(
        verbs: Verbs,
        regions: &[Region],
        stride: u64,
        tag: u64,
        unlock: Unlock,
    ) -> Result<Self, Stopped> {
        let &[locks, memory, ..] = regions else { return Err(Stopped::Regions) };
        let locks = LockTable::new(locks, stride)?;
        let (cache, root) = (HashMap::new(), None);
        Ok(Self { verbs, locks, memory, tag, unlock, cache, root, space: (0, 0), nodes_at_once: 16 })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The connection ended, or the memory has no valid tree.
    pub async fn get(&mut self, key: u64) -> Result<Option<u64>, Stopped> {
        let (_, leaf) = self.find(key, 0).await?;
        Ok(leaf.get(key))
    }

    /// Returns up to `count` entries from `from` on. Entries inserted concurrently may or may not be
    /// included.
    ///
    /// # Errors
    /// The connection ended, or the memory has no valid tree.
    pub async fn scan(&mut self, from: u64, count: usize) -> Result<Vec<(u64, u64)>, Stopped> {
        let (_, mut leaf) = self.find(from, 0).await?;
        let mut entries: Vec<_> = leaf.entries.iter().copied().filter(|(key, _)| *key >= from).collect();
        while entries.len() < count && leaf.sibling != 0 {
            leaf = self.fetch(leaf.sibling).await?;
            entries.extend(&leaf.entries);
        }
        entries.truncate(count);
        Ok(entries)
    }

    /// Sets the value of a key. Returns the previous value.
    ///
    /// # Errors
    /// The connection ended, the memory is exhausted, or it has no valid tree.
    ///
    /// # Panics
    /// If the key is `u64::MAX`, which is reserved.
    pub async fn put(&mut self, key: u64, value: u64) -> Result<Option<u64>, Stopped> {
        assert!(key < NO_LIMIT, "the key u64::MAX is reserved");
        let (at, _) = self.find(key, 0).await?;
        let (before, split) = self.set(at, key, value).await?;
        let mut level = 0;
        let mut separator = split;
        while let Some((key, right_at)) = separator {
            level += 1;
            separator = self.set_above(level, key, right_at).await?;
        }
        Ok(before)
    }

    /// Sets an entry of the node at this address, or of one to its right. Returns the previous value and,
    /// after a split, the entry for the parent: the first key of the new node, and its address.
    async fn set(
        &mut self,
        mut at: u64,
        key: u64,
        value: u64,
    ) -> Result<(Option<u64>, Option<(u64, u64)>), Stopped> {
        // Before the lock is acquired, so that other clients do not wait for it.
        self.reserve().await?;
        let mut node = self.lock(at).await?;
        while key >= node.high {
            self.unlock(at).await?;
            at = node.sibling;
            node = self.lock(at).await?;
        }
        let before = node.set(key, value);
        let mut split = None;
        if node.is_too_full() {
            let right_at = self.allocate_node();
            let right = node.split(right_at);
            split = Some((right.low, right_at));
            // The new node is unreachable until the sibling pointer is written, which happens afterwards.
            self.write(right_at, &right)?;
        }
        node.version += 1;
        self.write(at, &node)?;
        self.remember(at, node);
        self.unlock(at).await?;
        Ok((before, split))
    }

    /// Inserts the entry of a new child into a node of this level. Returns the entry for the next level after
    /// a split.
    async fn set_above(&mut self, level: u16, key: u64, child: u64) -> Result<Option<(u64, u64)>, Stopped> {
        loop {
            let root_at = self.verbs.read_word(self.memory.at(ROOT)).await?;
            self.root = Some(root_at);
            let root = self.fetch(root_at).await?;
            if root.level >= level {
                let (at, _) = self.find(key, level).await?;
                return Ok(self.set(at, key, child).await?.1);
            }
            // The level does not exist yet. Nodes to the right of the old root are found through siblings.
            self.reserve().await?;
            let at = self.allocate_node();
            let root = Node { leftmost: root_at, entries: vec![(key, child)], ..Node::empty(level) };
            self.write(at, &root)?;
            if self.verbs.compare_swap(self.memory.at(ROOT), root_at, at).await? == root_at {
                self.root = Some(at);
                self.remember(at, root);
                return Ok(None);
            }
            // Another client was faster; the space stays unused.
        }
    }

    /// Returns the current node of this level for a key.
    async fn find(&mut self, key: u64, level: u16) -> Result<LocatedNode, Stopped> {
        let mut at = match self.root {
            Some(at) => at,
            None => self.verbs.read_word(self.memory.at(ROOT)).await?,
        };
        self.root = Some(at);
        let mut parent = None;
        loop {
            // The node itself is always read; inner nodes on the way are taken from the cache.
            let remembered = self.cache.get(&at).filter(|node| node.level > level).cloned();
            let node = match remembered {
                Some(node) => node,
                None => self.fetch(at).await?,
            };
            if node.level < level || key < node.low {
                return Err(Stopped::Corrupt("a child pointer leads to a node of another key range"));
            }
            if key >= node.high {
                // The cached parent or root is older than the split that created the sibling.
                match parent {
                    Some(parent) => _ = self.cache.remove(&parent),
                    None => self.root = None,
                }
                self.cache.remove(&at);
                at = node.sibling;
            } else if node.level == level {
                return Ok((at, node));
            } else {
                parent = Some(at);
                at = node.child(key);
            }
        }
    }

    /// Reads a node until it is not torn.
    async fn fetch(&mut self, at: u64) -> Result<Node, Stopped> {
        loop {
            let bytes = self.verbs.read(self.remote_of(at)?, NODE_LEN as u32).await?;
            match Node::from_bytes(&bytes) {
                Ok(node) => {
                    self.remember(at, node.clone());
                    return Ok(node);
                }
                Err(NotANode::Torn) => self.verbs.account().tried(false),
                Err(NotANode::Other) => {
                    return Err(Stopped::Corrupt("a pointer leads to an invalid node"));
                }
            }
        }
    }

    fn remember(&mut self, at: u64, node: Node) {
        if node.level > 0 {
            if self.cache.len() >= CACHED {
                self.cache.clear();
            }
            self.cache.insert(at, node);
        }
    }

    fn remote_of(&self, at: u64) -> Result<Remote, Stopped> {
        let inside = self.memory.offset_of(at, NODE_LEN as u64);
        inside.ok_or(Stopped::Corrupt("a pointer is outside of the region"))?;
        Ok(Remote { va: at, rkey: self.memory.rkey })
    }

    /// Posts the write of a node. The release of its lock is ordered behind it.
    fn write(&self, at: u64, node: &Node) -> Result<(), Stopped> {
        self.verbs.write_ahead(self.remote_of(at)?, node.to_bytes());
        Ok(())
    }

    /// Returns the lock of a node. Several nodes may share a lock, so a thread holds one at a time.
    fn lock_of(at: u64) -> u64 {
        mix(at)
    }

    async fn lock(&mut self, at: u64) -> Result<Node, Stopped> {
        self.locks.lock(&self.verbs, Self::lock_of(at), self.tag).await?;
        self.fetch(at).await
    }

    async fn unlock(&self, at: u64) -> Result<(), Stopped> {
        self.locks.unlock(&self.verbs, Self::lock_of(at), self.tag, self.unlock).await
    }

    /// Allocates space for nodes if none is left.
    async fn reserve(&mut self) -> Result<(), Stopped> {
        let node = NODE_LEN as u64;
        if self.space.0 + node > self.space.1 {
            let len = self.nodes_at_once * node;
            let begin = self.verbs.fetch_add(self.memory.at(BUMP), len).await?;
            self.space = (begin, begin.saturating_add(len).min(self.memory.len));
            if begin.saturating_add(node) > self.space.1 {
                return Err(Stopped::Full);
            }
        }
        Ok(())
    }

    /// Returns the address of allocated space for one node.
    fn allocate_node(&mut self) -> u64 {
        let at = self.memory.va + self.space.0;
        self.space.0 += NODE_LEN as u64;
        at
    }
}

//! Client of the store.

use super::{Addresses, HEADER, KEY, Layout, NEXT, value_of};
use crate::clients::region::Region;
use crate::clients::verbs::{Stopped, Verbs, word};
use std::sync::{Arc, Mutex, PoisonError};

/// Options of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether the threads of a machine share the last nodes that they found
    pub shared_tails: bool,
    /// Whether an update posts its CAS right behind its WRITE, without waiting for the WRITE as Clover does
    pub pipelined: bool,
    /// Number of nodes to follow before the shortcut is read, once per operation; `u32::MAX` for never
    pub shortcut_after: u32,
    /// Number of nodes that a client allocates at once
    pub nodes_at_once: u64,
}

impl Default for Options {
    /// Returns Clover's options: a CAS follows its acknowledged WRITE.
    ///
    /// `shortcut_after` is fitted, not known. Of seven combinations that were tried (2 to 64 and never, tails
    /// shared or not), 64 without shared tails comes closest to the measurement in the Swordbox paper at 240
    /// threads (3.8 %, paper 3.7 %). With fewer threads it is too low (13 % at 24 threads, paper 18 %). The
    /// other combinations gave 1.9 to 6.1 % at 240 threads. So the collapse of the success rate does not
    /// depend on this option; its extent does.
    fn default() -> Self {
        Self { shared_tails: false, pipelined: false, shortcut_after: 64, nodes_at_once: 64 }
    }
}

/// Last known node of each key; 0 if unknown. Clones share it.
#[derive(Clone, Debug)]
pub struct Tails(Arc<Mutex<Vec<u64>>>);

impl Tails {
    /// Returns a table for `keys` keys without known nodes.
    pub fn new(keys: u64) -> Self {
        Self(Arc::new(Mutex::new(vec![0; keys as usize])))
    }

    fn get(&self, key: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[key as usize]
    }

    fn set(&self, key: u64, tail: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[key as usize] = tail;
    }
}

/// Client of the store, used by one thread.
#[derive(Debug)]
pub struct Store {
    verbs: Verbs,
    addresses: Addresses,
    options: Options,
    tails: Tails,
    /// Allocated space for nodes: begin and end as offsets in region 1
    space: (u64, u64),
}

impl Store {
    /// Returns a client that starts from the last nodes in `tails`.
    ///
    /// # Errors
    /// The server's regions are too small.
    pub fn new(
        verbs: Verbs,
        regions: &[Region],
        layout: Layout,
        options: Options,
        tails: Tails,
    ) -> Result<Self, Stopped> {
        let &[index, nodes, ..] = regions else { return Err(Stopped::Regions) };
        if index.len < layout.index_len() as u64 {
            return Err(Stopped::Regions);
        }
        let addresses = Addresses { layout, index, nodes };
        Ok(Self { verbs, addresses, options, tails, space: (0, 0) })
    }

    /// Returns the newest value of a key.
    ///
    /// # Errors
    /// The connection ended, or the memory has invalid nodes.
    ///
    /// # Panics
    /// If there is no such key.
    pub async fn get(&mut self, key: u64) -> Result<Vec<u8>, Stopped> {
        let mut at = self.tail(key).await?;
        let mut followed = 0;
        loop {
            let node =
                self.verbs.read(self.addresses.node(at, 0)?, self.addresses.layout.node_len as u32).await?;
            let next = word(&node, NEXT);
            self.verbs.account().tried(next == 0);
            let value = value_of(&node, key).ok_or(Stopped::Corrupt("the list has a node of another key"))?;
            if next == 0 {
                self.tails.set(key, at);
                return Ok(value.to_vec());
            }
            followed += 1;
            at = self.follow(key, next, followed).await?;
        }
    }

    /// Appends a new value of a key.
    ///
    /// # Errors
    /// The connection ended, the memory is exhausted, or it has invalid nodes.
    ///
    /// # Panics
    /// If there is no such key, or the value is longer than the layout permits.
    pub async fn put(&mut self, key: u64, value: &[u8]) -> Result<(), Stopped> {
        assert!(
            value.len() <= self.addresses.layout.max_value(),
            "the value is longer than the layout permits"
        );
        let new_node = self.allocate_node().await?;
        let (to, node) = (self.addresses.node(new_node, 0)?, self.addresses.layout.node(key, value));
        if self.options.pipelined {
            self.verbs.write_ahead(to, node);
        } else {
            self.verbs.write(to, node).await?;
        }
        let mut at = self.tail(key).await?;
        let mut followed = 0;
        loop {
            let next = self.verbs.compare_swap(self.addresses.node(at, NEXT)?, 0, new_node).await?;
            self.verbs.account().tried(next == 0);
            if next == 0 {
                break;
            }
            followed += 1;
            at = self.follow(key, next, followed).await?;
            at = self.last(key, at, &mut followed).await?;
        }
        self.tails.set(key, new_node);
        if followed > 0 && self.options.shortcut_after < u32::MAX {
            // A hint, so its completion is not awaited.
            self.verbs.write_ahead(self.addresses.shortcut(key), new_node.to_le_bytes().into());
        }
        Ok(())
    }

    /// Follows a key's list from a node. Returns the last node.
    async fn last(&self, key: u64, mut at: u64, followed: &mut u32) -> Result<u64, Stopped> {
        loop {
            let header = self.verbs.read(self.addresses.node(at, 0)?, HEADER as u32).await?;
            if word(&header, KEY) != key {
                return Err(Stopped::Corrupt("the list has a node of another key"));
            }
            let next = word(&header, NEXT);
            // Not counted as a hit, since nothing has been appended yet.
            if next == 0 {
                return Ok(at);
            }
            self.verbs.account().tried(false);
            *followed += 1;
            at = self.follow(key, next, *followed).await?;
        }
    }

    /// Returns the node to try next after `followed` nodes: the next one, or the shortcut once the threshold
    /// is reached.
    async fn follow(&self, key: u64, next: u64, followed: u32) -> Result<u64, Stopped> {
        if followed != self.options.shortcut_after {
            return Ok(next);
        }
        match self.verbs.read_word(self.addresses.shortcut(key)).await? {
            0 => Ok(next),
            shortcut => Ok(shortcut),
        }
    }

    /// Returns the node that the client assumes to be the last one.
    async fn tail(&self, key: u64) -> Result<u64, Stopped> {
        match self.tails.get(key) {
            0 => {
                let entry = self.verbs.read(self.addresses.entry(key), 16).await?;
                let (first, shortcut) = (word(&entry, 0), word(&entry, 8));
                Ok(if shortcut == 0 { first } else { shortcut })
            }
            tail => Ok(tail),
        }
    }

    /// Allocates space for a node. Returns its address.
    async fn allocate_node(&mut self) -> Result<u64, Stopped> {
        let node = self.addresses.layout.node_len as u64;
        if self.space.0 + node > self.space.1 {
            let len = self.options.nodes_at_once.max(1) * node;
            let begin = self.verbs.fetch_add(self.addresses.bump(), len).await?;
            self.space = (begin, begin.saturating_add(len).min(self.addresses.nodes.len));
            if begin.saturating_add(node) > self.space.1 {
                return Err(Stopped::Full);
            }
        }
        let at = self.addresses.nodes.va + self.space.0;
        self.space.0 += node;
        Ok(at)
    }
}

//! A store of lists, as Clover is one (Tsai et al., USENIX ATC 2020; [`clients::clover`](crate::clients::clover) is laid out
//! like this): a key is a list of its values, a client writes a node, then appends it by CAS(0 -> node) on the `next` word of
//! what it believes to be the last one, and reads what it believes to be the last one.
//!
//! Kept are, as in the paper, the last node of each key that is hot, and for nodes that were written whose they are, because
//! a READ names nothing but an address. Both are of a fixed size. Nodes are remembered by their number: the table is as a
//! ring for those who take space in order, so that those written last are remembered. Which keys are hot is counted by
//! their appends.

use super::{Append, Cas, Knowledge};
use crate::clients::clover::{HEADER, KEY, Layout, NEXT};
use crate::sketch::Sketch;
use core::ops::Range;
use switch::table::{Index, Key, mix};

/// Where a store of lists lies, and how much of it is kept here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListsConfig {
    /// Its keys, and the length of its nodes
    pub layout: Layout,
    /// Virtual addresses of nodes
    pub nodes: Range<u64>,
    /// So many nodes at the beginning are the first ones of keys 0, 1, ...
    pub firsts: u64,
    /// Nodes of which it is remembered whose they are; the paper's read cache has three times as many as there are keys
    pub remembered: usize,
    /// Keys whose last nodes are kept at once
    pub tracked: usize,
    /// Appends that make a key hot
    pub hot: u32,
}

impl ListsConfig {
    /// All keys are kept, with three nodes each, from their first append on.
    pub fn new(layout: Layout, nodes: Range<u64>) -> Self {
        let keys = layout.keys as usize;
        Self { layout, nodes, firsts: layout.keys, remembered: keys * 3, tracked: keys, hot: 1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number(u64);

impl Key for Number {
    #[inline]
    fn hash(&self) -> u64 {
        mix(self.0)
    }
}

/// The last node of a key.
#[derive(Clone, Copy, Debug)]
struct Tail {
    node: u64,
    /// The key by which it is reached: another one is of another life of the server's memory
    rkey: u32,
    /// What it holds is there for sure
    ready: bool,
}

const NO_TAIL: Tail = Tail { node: 0, rkey: 0, ready: false };

/// Whose a node is: its number, and the key
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owned {
    number: u32,
    key: u32,
}

/// The number of no node
const NOBODY: Owned = Owned { number: u32::MAX, key: 0 };
/// Keys that are looked at to find one that is colder
const LOOKED_AT: u32 = 8;

/// A store of lists.
#[derive(Debug)]
pub struct Lists {
    config: ListsConfig,
    owners: Box<[Owned]>,
    keys: Index<Number>,
    tails: Box<[Tail]>,
    sketch: Sketch,
    hand: u32,
}

impl Lists {
    /// A store of which nothing has been seen.
    ///
    /// # Panics
    /// If there are more than 2^32 - 1 nodes or keys, or no place to remember any.
    pub fn new(config: ListsConfig) -> Self {
        let len = config.layout.node_len as u64;
        let nodes = (config.nodes.end - config.nodes.start) / len;
        assert!(
            nodes < u64::from(u32::MAX) && config.layout.keys < u64::from(u32::MAX),
            "numbers of 32 bits"
        );
        assert!(config.remembered > 0 && config.tracked > 0, "places to remember something");
        Self {
            owners: vec![NOBODY; config.remembered.min(nodes as usize).max(1)].into(),
            keys: Index::with_capacity(config.tracked),
            tails: vec![NO_TAIL; config.tracked].into(),
            sketch: Sketch::new(),
            hand: 0,
            config,
        }
    }

    /// What such a store takes at most.
    pub(crate) fn bytes(config: &ListsConfig) -> usize {
        let nodes = (config.nodes.end - config.nodes.start) / config.layout.node_len as u64;
        let owners = config.remembered.min(nodes as usize).max(1);
        owners * size_of::<Owned>()
            + Index::<Number>::bytes(config.tracked)
            + config.tracked * size_of::<Tail>()
            + Sketch::BYTES
    }

    /// Keys whose last node is known
    pub fn tracked(&self) -> usize {
        self.keys.len()
    }

    /// The number of the node that begins at this address
    #[inline]
    fn number_of(&self, va: u64) -> Option<u32> {
        let (nodes, len) = (&self.config.nodes, self.config.layout.node_len as u64);
        let offset = va.checked_sub(nodes.start)?;
        (offset.is_multiple_of(len) && va.checked_add(len)? <= nodes.end).then(|| (offset / len) as u32)
    }

    /// Whose a node is, if that is known
    #[inline]
    fn owner_of(&self, number: u32) -> Option<u64> {
        let owned = self.owners[number as usize % self.owners.len()];
        match owned.number == number {
            true => Some(u64::from(owned.key)),
            false if u64::from(number) < self.config.firsts => Some(u64::from(number)),
            false => None,
        }
    }

    fn remember(&mut self, number: u32, key: u64) {
        let place = number as usize % self.owners.len();
        self.owners[place] = Owned { number, key: key as u32 };
    }

    fn tail_of(&self, key: u64) -> Option<&Tail> {
        self.keys.get(&Number(key)).map(|id| &self.tails[id as usize])
    }

    fn tail_mut(&mut self, key: u64) -> Option<&mut Tail> {
        self.keys.get(&Number(key)).map(|id| &mut self.tails[id as usize])
    }

    /// A key's last node is known. It is kept if the key is hot, and hotter than another one if there is no room.
    fn learn(&mut self, key: u64, tail: Tail) {
        let count = self.sketch.count(key);
        if count < self.config.hot {
            return;
        }
        if self.keys.len() == self.config.tracked && !self.make_room(count) {
            return;
        }
        if let Ok(id) = self.keys.get_or_insert(Number(key)) {
            self.tails[id as usize] = tail;
        }
    }

    /// Forgets the coldest of a few keys, if it is colder than this.
    fn make_room(&mut self, count: u32) -> bool {
        let mut coldest: Option<(u32, Number)> = None;
        for _ in 0..LOOKED_AT {
            self.hand = (self.hand + 1) % self.keys.ids().max(1);
            let Some(key) = self.keys.key(self.hand).copied() else { continue };
            let other = self.sketch.count(key.0);
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

impl Knowledge for Lists {
    #[inline]
    fn covers(&self, va: u64) -> bool {
        self.config.nodes.contains(&va)
    }

    fn on_write(&mut self, va: u64, bytes: &[u8]) {
        let Some(number) = self.number_of(va) else { return };
        let [Some(next), Some(key)] = [NEXT, KEY].map(|at| word_at(bytes, at)) else { return };
        if next != 0 || key >= self.config.layout.keys || bytes.len() < HEADER {
            return;
        }
        // Written anew, it is not what it was.
        if let Some(before) = self.owner_of(number)
            && self.tail_of(before).is_some_and(|tail| tail.node == va)
        {
            self.doubt(before);
        }
        self.remember(number, key);
    }

    fn on_cas(&mut self, cas: &Cas, written: bool, followed: bool, steer: bool) -> Option<Append> {
        if cas.compare != 0 {
            return None;
        }
        let to = cas.va.checked_sub(NEXT as u64)?;
        let (last, new) = (self.number_of(to)?, self.number_of(cas.swap)?);
        let key = self.owner_of(new)?;
        if last == new {
            return None;
        }
        match self.owner_of(last) {
            Some(other) if other != key => return None,
            Some(_) => {}
            // Its client says so.
            None => self.remember(last, key),
        }
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
                // Which one is the last behind it will be known when they all are part of the list.
                self.doubt(key);
            }
        }
        Some(append)
    }

    fn on_read(&mut self, va: u64, rkey: u32, len: u32) -> Option<u64> {
        let number = self.number_of(va)?;
        // The answer has to tell whose the node is, or it could not be known that it is not the last one any more.
        if (len as usize) < KEY + 8 || len as usize > self.config.layout.node_len {
            return None;
        }
        let tail = self.tail_of(self.owner_of(number)?)?;
        (tail.ready && tail.rkey == rkey).then_some(tail.node)
    }

    fn on_found(&mut self, node: u64, bytes: &[u8]) {
        let [Some(next), Some(key)] = [NEXT, KEY].map(|at| word_at(bytes, at)) else { return };
        if next == 0 {
            return;
        }
        let number = self.number_of(next);
        if let Some(tail) = self.tail_mut(key)
            && tail.node == node
        {
            // Somebody appended to it without us. Whoever reads on must not be sent back.
            match number {
                Some(number) => {
                    *tail = Tail { node: next, ready: true, ..*tail };
                    self.remember(number, key);
                }
                None => self.doubt(key),
            }
        }
    }

    fn on_published(&mut self, append: &Append, followed: bool) {
        let &Append { to, node, key, rkey, steered, .. } = append;
        let published = Tail { node, rkey, ready: true };
        match self.tail_mut(key) {
            Some(tail) if tail.node == node => *tail = published,
            Some(tail) if !steered && tail.node == to => *tail = published,
            Some(_) => {}
            None if followed => {}
            None => self.learn(key, published),
        }
    }

    fn doubt(&mut self, key: u64) {
        self.keys.remove(&Number(key));
    }

    fn forget(&mut self) {
        for id in 0..self.keys.ids() {
            if let Some(key) = self.keys.key(id).copied() {
                self.keys.remove(&key);
            }
        }
    }

    fn is_word(&self, _va: u64, _rkey: u32) -> bool {
        false
    }
}

/// The word at an offset, as the server's processor has it
fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|word| u64::from_le_bytes(*word))
}

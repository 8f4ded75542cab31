//! Key-value store in remote memory after Clover (Tsai et al., USENIX ATC 2020): each key has a list of its
//! values, the newest last, and no operation takes a lock.
//!
//! An update writes a node into unused memory, then appends it by CAS(0 -> the node's address) to the `next`
//! word of the node that it assumes to be the last one. If that fails, it follows the `next` words to the
//! last node and tries again. A read reads the node that it assumes to be the last one, and follows its
//! `next` words as well. A client remembers the last node that it found. With more clients, that is more
//! often outdated, and most requests fail ([`Tally::hits`](super::Tally) and `misses` count them).
//!
//! A switch that knows the [`Layout`] can redirect a CAS or a READ of an outdated node to the last one. The
//! client only sees that its request succeeds.
//!
//! # Memory
//!
//! Region 0 is the index:
//!
//! ```text
//!   byte 0            8            64        72         80        88
//!   | bump | unused ... | first | shortcut | first | shortcut | ...
//!                         `---- key 0 ----'  `---- key 1 ----'
//! ```
//!
//! `bump` is the number of bytes of region 1 that are allocated: a client allocates space for several nodes
//! by FETCH_ADD. `first` is the constant address of a key's first node. `shortcut`, if not 0, is the address
//! of a later node: a hint by which clients with an outdated last node skip most of the list. A client that
//! had to follow the list writes it.
//!
//! Region 1 has nodes of one size, at multiples of eight bytes:
//!
//! ```text
//!   byte 0      8     16    20      24
//!   | next | key | len | zeros | value ... |
//! ```
//!
//! `next` is the address of the next node, or 0; `len` is the length of the value in bytes. Numbers are
//! little-endian, like the NIC's atomics on little-endian machines. A node is written by one WRITE with
//! `next` = 0. Afterwards only `next` changes, once.
//!
//! Differences to Clover: Clover collects garbage, replicates, and has metadata servers. Here memory is never
//! reused, and the index is ordinary memory. Clover's clients read shortcuts along with other requests; here
//! they are read after a given number of nodes.

mod store;

pub use store::{Options, Store, Tails};

use super::account::Kind;
use super::lock::tag;
use super::region::Region;
use super::server::ServerMemory;
use super::threads::{Program, Start, Thread};
use super::verbs::{Stopped, word};
use super::ycsb::{OperationKind, Workload};
use rnic::Remote;
pub use swordbox::steering::{HEADER, KEY, NEXT};

/// Offset in a node of the length of its value (four bytes)
pub const LEN: usize = 16;
/// Offset in region 0 of the index, and length in bytes of an entry
const ENTRIES: u64 = 64;
const ENTRY: u64 = 16;

/// Layout of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of keys, counted from 0
    pub keys: u64,
    /// Length of a node in bytes, transferred by one WRITE or READ: 128 to 1,024 in the papers; a multiple of
    /// 8, and more than [`HEADER`]
    pub node_len: usize,
}

impl Layout {
    /// Returns the maximum length of a value in bytes.
    pub const fn max_value(&self) -> usize {
        self.node_len - HEADER
    }

    /// Returns the length of region 0 in bytes.
    pub const fn index_len(&self) -> usize {
        (ENTRIES + self.keys * ENTRY) as usize
    }

    /// Returns a server's memory: the index, and `nodes` nodes, one of which each key has with an empty
    /// value.
    ///
    /// # Panics
    /// If there are fewer nodes than keys, or the length of a node is invalid.
    pub fn memory(self, index_va: u64, nodes_va: u64, nodes: usize) -> Vec<ServerMemory> {
        let keys = self.keys as usize;
        assert!(nodes >= keys, "fewer nodes than keys");
        assert!(
            self.node_len.is_multiple_of(8) && self.node_len > HEADER,
            "node_len has to be a multiple of 8 and more than HEADER"
        );
        let index = ServerMemory::filled(index_va, self.index_len(), move |bytes| {
            put_word(bytes, 0, (keys * self.node_len) as u64);
            for key in 0..keys {
                let first = nodes_va + (key * self.node_len) as u64;
                put_word(bytes, (ENTRIES + key as u64 * ENTRY) as usize, first);
            }
        });
        let nodes = ServerMemory::filled(nodes_va, nodes * self.node_len, move |bytes| {
            for key in 0..keys {
                put_word(bytes, key * self.node_len + KEY, key as u64);
            }
        });
        vec![index, nodes]
    }

    /// Returns the values of a key in a server's memory, oldest first. The first one is the initial empty
    /// value.
    ///
    /// # Errors
    /// The description of an inconsistency of the list.
    pub fn list(&self, index: &[u8], nodes: &[u8], nodes_va: u64, key: u64) -> Result<Vec<Vec<u8>>, String> {
        let mut at = word(index, (ENTRIES + key * ENTRY) as usize);
        let mut values = Vec::new();
        while at != 0 {
            let offset = at.checked_sub(nodes_va).map(|offset| offset as usize);
            let node = offset.and_then(|offset| nodes.get(offset..offset + self.node_len));
            let node =
                node.ok_or_else(|| format!("key {key} has a node at {at:#x}, outside of the region"))?;
            if values.len() > nodes.len() / self.node_len {
                return Err(format!("the list of key {key} is cyclic"));
            }
            let value = value_of(node, key)
                .ok_or_else(|| format!("the list of key {key} has a node of another key"))?;
            values.push(value.to_vec());
            at = word(node, NEXT);
        }
        Ok(values)
    }

    fn node(&self, key: u64, value: &[u8]) -> Vec<u8> {
        let mut node = vec![0; self.node_len];
        put_word(&mut node, KEY, key);
        // The upper half of the word is the zeros behind the length.
        put_word(&mut node, LEN, value.len() as u64);
        node[HEADER..HEADER + value.len()].copy_from_slice(value);
        node
    }
}

fn put_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Returns the value of a node, if it belongs to this key.
fn value_of(node: &[u8], key: u64) -> Option<&[u8]> {
    let len = word(node, LEN) as u32 as usize;
    if word(node, KEY) == key { node.get(HEADER..HEADER + len) } else { None }
}

/// Layout and regions of the server's memory.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    layout: Layout,
    index: Region,
    nodes: Region,
}

impl Addresses {
    fn bump(&self) -> Remote {
        self.index.at(0)
    }

    fn entry(&self, key: u64) -> Remote {
        self.index.at(ENTRIES + key * ENTRY)
    }

    fn shortcut(&self, key: u64) -> Remote {
        self.index.at(ENTRIES + key * ENTRY + 8)
    }

    /// Returns the remote address at `offset` in the node at this address, if a node can be there.
    fn node(&self, at: u64, offset: usize) -> Result<Remote, Stopped> {
        let inside = self.nodes.offset_of(at, self.layout.node_len as u64);
        inside.ok_or(Stopped::Corrupt("a pointer is outside of the region"))?;
        Ok(Remote { va: at + offset as u64, rkey: self.nodes.rkey })
    }
}

/// Program that reads and updates keys according to a workload.
#[derive(Clone, Debug)]
pub struct Clover {
    /// Layout of the store
    pub layout: Layout,
    /// Workload
    pub workload: Workload,
    /// Client options
    pub options: Options,
    /// Operations per thread
    pub times: u64,
    /// Number of this machine, which distinguishes its threads from those of other machines
    pub machine: u64,
    /// Seed of the random numbers
    pub seed: u64,
    /// Last nodes that the threads of this machine share
    pub tails: Tails,
}

impl Clover {
    /// Returns a program that runs without end.
    pub fn new(layout: Layout, workload: Workload, machine: u64, seed: u64) -> Self {
        let tails = Tails::new(layout.keys);
        Self { layout, workload, options: Options::default(), times: u64::MAX, machine, seed, tails }
    }
}

impl Program for Clover {
    fn thread(&mut self, start: Start) -> Thread {
        let clover = self.clone();
        Box::pin(async move {
            let Start { number, incarnation, verbs, regions } = start;
            let tails =
                if clover.options.shared_tails { clover.tails } else { Tails::new(clover.layout.keys) };
            let mut store = Store::new(verbs.clone(), &regions, clover.layout, clover.options, tails)?;
            let name = tag(clover.machine, number, incarnation);
            let mut operations = clover.workload.generator(clover.seed, name);
            for time in 0..clover.times {
                let Some((operation, key)) = operations.next() else { return Ok(()) };
                let began = verbs.now();
                let kind = match operation {
                    OperationKind::Read => {
                        store.get(key).await?;
                        Kind::Read
                    }
                    OperationKind::Update => {
                        let mut value = vec![0x5a; clover.layout.max_value()];
                        put_word(&mut value, 0, name);
                        put_word(&mut value, 8, time);
                        store.put(key, &value).await?;
                        Kind::Write
                    }
                };
                verbs.account().record(kind, verbs.now().since(began));
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_initially_has_an_empty_value() {
        let layout = Layout { keys: 3, node_len: 128 };
        let memory = layout.memory(0x1000, 0x10_0000, 10);
        let image = |n: usize| {
            let mut bytes = vec![0; memory[n].len];
            memory[n].fill(&mut bytes);
            bytes
        };
        let (index, mut nodes) = (image(0), image(1));
        assert_eq!((index.len(), nodes.len()), (64 + 3 * 16, 1280));
        assert_eq!(word(&index, 0), 3 * 128);
        for key in 0..3 {
            assert_eq!(layout.list(&index, &nodes, 0x10_0000, key), Ok(vec![vec![]]));
        }
        // Key 1 gets a value, in node 5.
        nodes[5 * 128..6 * 128].copy_from_slice(&layout.node(1, b"value"));
        put_word(&mut nodes, 128 + NEXT, 0x10_0000 + 5 * 128);
        assert_eq!(layout.list(&index, &nodes, 0x10_0000, 1), Ok(vec![vec![], b"value".to_vec()]));
        put_word(&mut nodes, 5 * 128, 0x10_0000 + 128);
        assert!(layout.list(&index, &nodes, 0x10_0000, 1).unwrap_err().contains("is cyclic"));
        put_word(&mut nodes, 5 * 128, 0x10_0000);
        assert!(layout.list(&index, &nodes, 0x10_0000, 1).unwrap_err().contains("of another key"));
    }
}

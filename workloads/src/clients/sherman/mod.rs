//! B-link tree in remote memory after Sherman (Wang et al., SIGMOD 2022). Lookups read nodes and take no
//! lock. An insertion acquires the lock of a leaf, reads it, writes it, and releases the lock without waiting
//! for the write. A full node is split: the new half is written first, then the old one, whose sibling
//! pointer refers to the new one. Then the separator is inserted into the parent, under the parent's lock.
//!
//! # Memory
//!
//! Region 0 is the table of [locks](super::lock), in NIC memory on servers that have it. A node's lock is
//! chosen by a hash of its address, so some nodes share one; a thread holds one lock at a time.
//!
//! Region 1 is the tree:
//!
//! ```text
//!   byte 0      8      16           1024       2048
//!   | root | bump | unused ... | node | node | ...
//! ```
//!
//! `root` is the address of the root, which is changed by CAS. `bump` is the number of bytes of the region
//! that are allocated: a client allocates space for several nodes by FETCH_ADD. [`Node`] describes the layout
//! of a node.
//!
//! Differences to Sherman: Sherman writes single entries of unsorted leaves, hands locks over between the
//! threads of a machine, and has its own kind of cache. Here whole nodes are written, and each thread caches
//! inner nodes for itself. Keys are not removed, and memory is not reused.

mod image;
mod node;
mod tree;

pub use image::{build, image_len, walk};
pub use node::{FANOUT, NO_LIMIT, NODE_LEN, Node, NotANode};
pub use tree::Tree;

use super::account::Kind;
use super::lock::{Unlock, tag};
use super::server::ServerMemory;
use super::threads::{Program, Start, Thread};
use super::ycsb::{OperationKind, Workload, scattered};

/// Offset in region 1 of the address of the root
pub const ROOT: u64 = 0;
/// Offset in region 1 of the number of allocated bytes
pub const BUMP: u64 = 8;
/// Offset in region 1 of the first node
pub const FIRST_NODE: u64 = NODE_LEN as u64;

/// Returns a server's memory: `locks` locks of eight bytes, and a tree of these entries in ascending order of
/// their keys, with room for `nodes` more nodes.
pub fn memory(
    locks_va: u64,
    locks: usize,
    tree_va: u64,
    entries: Vec<(u64, u64)>,
    nodes: usize,
) -> Vec<ServerMemory> {
    let len = image_len(entries.len()) + nodes * NODE_LEN;
    let tree = ServerMemory::filled(tree_va, len, move |memory| build(memory, tree_va, &entries));
    vec![ServerMemory::zeroed(locks_va, locks * 8), tree]
}

/// Program that reads, writes and scans keys according to a workload. The keys are [scattered].
#[derive(Clone, Debug)]
pub struct Sherman {
    /// Workload
    pub workload: Workload,
    /// Method of releasing locks
    pub unlock: Unlock,
    /// Number of keys that a read covers: 1 for a lookup, more for an ordered scan
    pub scan: usize,
    /// Operations per thread
    pub times: u64,
    /// Number of this machine, below 2^31, which distinguishes its threads from those of other machines
    pub machine: u64,
    /// Seed of the random numbers
    pub seed: u64,
}

impl Sherman {
    /// Returns a program that looks up and inserts single keys without end.
    pub const fn new(workload: Workload, machine: u64, seed: u64) -> Self {
        Self { workload, unlock: Unlock::Write, scan: 1, times: u64::MAX, machine, seed }
    }
}

impl Program for Sherman {
    fn thread(&mut self, start: Start) -> Thread {
        let sherman = self.clone();
        Box::pin(async move {
            let Start { number, incarnation, verbs, regions } = start;
            let tag = tag(sherman.machine, number, incarnation);
            let mut tree = Tree::new(verbs.clone(), &regions, 8, tag, sherman.unlock)?;
            let mut operations = sherman.workload.generator(sherman.seed, tag);
            for time in 0..sherman.times {
                let Some((operation, key)) = operations.next() else { return Ok(()) };
                let key = scattered(key).min(NO_LIMIT - 1);
                let began = verbs.now();
                let kind = match operation {
                    OperationKind::Read if sherman.scan > 1 => {
                        tree.scan(key, sherman.scan).await?;
                        Kind::Scan
                    }
                    OperationKind::Read => {
                        tree.get(key).await?;
                        Kind::Read
                    }
                    OperationKind::Update => {
                        tree.put(key, time).await?;
                        Kind::Write
                    }
                };
                verbs.account().record(kind, verbs.now().since(began));
            }
            Ok(())
        })
    }
}

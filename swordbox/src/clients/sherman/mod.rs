//! A B-link tree in remote memory after Sherman (Wang et al., SIGMOD 2022): lookups read nodes and take no lock;
//! an insertion takes the lock of a leaf, reads it, writes it, and releases the lock right behind that without waiting in
//! between. A node that is full is split: the new half is written first, then the old one, which leads to it by its
//! sibling pointer, then the parent is told, under its own lock.
//!
//! # Memory
//!
//! Region 0 is the table of [locks](super::lock): on a server that has such, memory of the NIC. A node's lock is chosen by
//! a hash of its address, so some nodes share one; a thread holds one lock at a time.
//!
//! Region 1 is the tree:
//!
//! ```text
//!   byte 0      8      16           1024       2048
//!   | root | bump | unused ... | node | node | ...
//! ```
//!
//! `root` is the address of the root, which changes by CAS; `bump` how much of the region is given away (bytes): a client takes
//! space for some nodes by FETCH_ADD. [`Node`] says how a node lies in memory.
//!
//! Sherman writes single entries of leaves and leaves them unsorted, hands locks over between threads of a machine, and has a
//! cache of its own kind; here whole nodes are written, and each thread remembers inner nodes for itself. Keys are not
//! removed, and memory not used again.

mod image;
mod node;
mod tree;

pub use image::{build, image_len, walk};
pub use node::{FANOUT, NO_LIMIT, NODE_LEN, Node, NotANode};
pub use tree::Tree;

use super::account::Kind;
use super::lock::{Unlock, tag};
use super::server::Memory;
use super::threads::{Program, Start, Thread};
use super::ycsb::{Ask, Workload, scattered};

/// Where in region 1 the address of the root stands
pub const ROOT: u64 = 0;
/// Where in region 1 stands how much of it is given away
pub const BUMP: u64 = 8;
/// Where in region 1 nodes begin
pub const FIRST_NODE: u64 = NODE_LEN as u64;

/// A server's memory: so many locks of eight bytes, and a tree of these keys and values, which ascend, with room for so many
/// nodes more.
pub fn memory(
    locks_va: u64,
    locks: usize,
    tree_va: u64,
    entries: Vec<(u64, u64)>,
    nodes: usize,
) -> Vec<Memory> {
    let len = image_len(entries.len()) + nodes * NODE_LEN;
    let tree = Memory::filled(tree_va, len, move |memory| build(memory, tree_va, &entries));
    vec![Memory::zeroed(locks_va, locks * 8), tree]
}

/// A program: reads, writes and scans keys as a workload says. The keys are [scattered].
#[derive(Clone, Debug)]
pub struct Sherman {
    /// What is asked for
    pub workload: Workload,
    /// How locks are released
    pub unlock: Unlock,
    /// Keys that a read reads: one, or more in order, by a scan
    pub scan: usize,
    /// Operations of each thread
    pub times: u64,
    /// What makes this machine's threads others than those of another: below 2^31
    pub machine: u64,
    /// For what is drawn
    pub seed: u64,
}

impl Sherman {
    /// Threads that look up and insert single keys, without end.
    pub const fn new(workload: Workload, machine: u64, seed: u64) -> Self {
        Self { workload, unlock: Unlock::Write, scan: 1, times: u64::MAX, machine, seed }
    }
}

impl Program for Sherman {
    fn thread(&mut self, start: Start) -> Thread {
        let sherman = self.clone();
        Box::pin(async move {
            let Start { number, life, verbs, regions } = start;
            let tag = tag(sherman.machine, number, life);
            let mut tree = Tree::new(verbs.clone(), &regions, 8, tag, sherman.unlock)?;
            let mut asks = sherman.workload.generator(sherman.seed, tag);
            for time in 0..sherman.times {
                let Some((ask, key)) = asks.next() else { return Ok(()) };
                let key = scattered(key).min(NO_LIMIT - 1);
                let began = verbs.now();
                let kind = match ask {
                    Ask::Read if sherman.scan > 1 => {
                        tree.scan(key, sherman.scan).await?;
                        Kind::Scan
                    }
                    Ask::Read => {
                        tree.get(key).await?;
                        Kind::Read
                    }
                    Ask::Update => {
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

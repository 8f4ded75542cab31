//! Who sends which block to whom at which step: a pure function of the algorithm, the number of nodes, the number of
//! blocks, the node and the step (paper 4.3, 4.4).
//!
//! Node 0 is the root. At each step a node sends at most one block and receives at most one. Nothing is exchanged to come
//! to this: every node computes its own part.
//!
//! | algorithm | steps for n nodes and k blocks |
//! |---|---|
//! | sequential | k (n - 1) |
//! | chain | k + n - 2 |
//! | binomial tree | k ceil(log2 n) |
//! | binomial pipeline | k + ceil(log2 n) - 1 |
//! | hybrid | that of a pipeline over the racks, and that of one within the largest rack |
//! | in-network | k |
//!
//! In-network, a step is a block for all. Where they are more than a switch [copies to at once](crate::copied_at_once), the
//! root sends it several times.

mod hybrid;
mod pipeline;
mod simple;

pub use hybrid::Racks;
use pipeline::Pipeline;

/// How blocks get from the root to everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// The root sends the whole object to one node after the other.
    Sequential,
    /// Each node passes every block on to the next one.
    Chain,
    /// Who has the whole object sends it to somebody who has nothing.
    Tree,
    /// A hypercube in which every node exchanges a block with a neighbour at each step (Ganesan and Seshadri)
    Pipeline,
    /// A pipeline over one node of each rack, then one within each rack
    Hybrid(Racks),
    /// The root sends each block once, and a P4CE switch copies it.
    InNetwork,
}

impl Algorithm {
    /// Its name
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Chain => "chain",
            Self::Tree => "tree",
            Self::Pipeline => "pipeline",
            Self::Hybrid(_) => "hybrid",
            Self::InNetwork => "in-network",
        }
    }
}

/// To whom a block is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// A node
    Node(u32),
    /// All nodes but the root, through a switch that copies
    All,
}

/// A block that a node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Send {
    /// To whom
    pub to: To,
    /// Which one, counted from 0
    pub block: u32,
}

/// A block that a node receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receive {
    /// From which node
    pub from: u32,
    /// Which one, counted from 0
    pub block: u32,
}

/// Why there is no such schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Nobody to send to
    #[error("a group of {0} has nobody to send to: two members at least")]
    Nodes(u32),
    /// More nodes than are dealt with
    #[error("{0} members are more than {max}", max = Schedule::MAX_NODES)]
    TooManyNodes(u32),
    /// Nothing to send
    #[error("an object has one block at least")]
    Blocks,
    /// The racks are of another number of nodes
    #[error("the racks are of {racks} nodes, the group has {nodes}")]
    Racks {
        /// Nodes whose racks are said
        racks: usize,
        /// Nodes of the group
        nodes: u32,
    },
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    algorithm: Algorithm,
    nodes: u32,
    blocks: u32,
}

impl Schedule {
    /// Nodes at most
    pub const MAX_NODES: u32 = 1 << 16;

    /// The schedule by which `blocks` blocks get from node 0 to `nodes - 1` others.
    ///
    /// # Errors
    /// If there is nobody or nothing to send, or the racks are of other nodes.
    pub fn new(algorithm: Algorithm, nodes: u32, blocks: u32) -> Result<Self, ScheduleError> {
        if nodes < 2 {
            return Err(ScheduleError::Nodes(nodes));
        }
        if nodes > Self::MAX_NODES {
            return Err(ScheduleError::TooManyNodes(nodes));
        }
        if blocks == 0 {
            return Err(ScheduleError::Blocks);
        }
        match &algorithm {
            Algorithm::Hybrid(racks) if racks.nodes() != nodes as usize => {
                Err(ScheduleError::Racks { racks: racks.nodes(), nodes })
            }
            _ => Ok(Self { algorithm, nodes, blocks }),
        }
    }

    /// How blocks get around
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Nodes, the root among them
    pub const fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Blocks
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Steps; they are counted from 0.
    pub fn steps(&self) -> u64 {
        let (n, k) = (self.nodes, self.blocks);
        match &self.algorithm {
            Algorithm::Sequential => simple::sequential_steps(n, k),
            Algorithm::Chain => simple::chain_steps(n, k),
            Algorithm::Tree => simple::tree_steps(n, k),
            Algorithm::Pipeline => Pipeline::new(n, k).steps(),
            Algorithm::Hybrid(racks) => racks.steps(k),
            Algorithm::InNetwork => k.into(),
        }
    }

    /// What `node` sends at `step`
    pub fn send(&self, node: u32, step: u64) -> Option<Send> {
        let (n, k) = (self.nodes, self.blocks);
        if node >= n || step >= self.steps() {
            return None;
        }
        let to_node = |(to, block)| Send { to: To::Node(to), block };
        match &self.algorithm {
            Algorithm::Sequential => simple::sequential_send(k, node, step).map(to_node),
            Algorithm::Chain => simple::chain_send(n, k, node, step).map(to_node),
            Algorithm::Tree => simple::tree_send(n, k, node, step).map(to_node),
            Algorithm::Pipeline => Pipeline::new(n, k).send(node, step).map(to_node),
            Algorithm::Hybrid(racks) => racks.send(k, node, step).map(to_node),
            Algorithm::InNetwork => (node == 0).then_some(Send { to: To::All, block: step as u32 }),
        }
    }

    /// What `node` receives at `step`
    pub fn receive(&self, node: u32, step: u64) -> Option<Receive> {
        let (n, k) = (self.nodes, self.blocks);
        if node >= n || step >= self.steps() {
            return None;
        }
        let from_node = |(from, block)| Receive { from, block };
        match &self.algorithm {
            Algorithm::Sequential => simple::sequential_receive(k, node, step).map(from_node),
            Algorithm::Chain => simple::chain_receive(k, node, step).map(from_node),
            Algorithm::Tree => simple::tree_receive(k, node, step).map(from_node),
            Algorithm::Pipeline => Pipeline::new(n, k).receive(node, step).map(from_node),
            Algorithm::Hybrid(racks) => racks.receive(k, node, step).map(from_node),
            Algorithm::InNetwork => (node != 0).then_some(Receive { from: 0, block: step as u32 }),
        }
    }

    /// Everything that `node` sends, with the step at which it does
    pub fn sends(&self, node: u32) -> impl Iterator<Item = (u64, Send)> + '_ {
        (0..self.steps()).filter_map(move |step| Some((step, self.send(node, step)?)))
    }

    /// Everything that `node` receives, with the step at which it does
    pub fn receives(&self, node: u32) -> impl Iterator<Item = (u64, Receive)> + '_ {
        let k = u64::from(self.blocks);
        let steps = match &self.algorithm {
            // Nearly all steps are others' here.
            Algorithm::Sequential => {
                (u64::from(node.max(1)) - 1) * k..(u64::from(node) * k).min(self.steps())
            }
            _ => 0..self.steps(),
        };
        steps.filter_map(move |step| Some((step, self.receive(node, step)?)))
    }

    /// With whom `node` exchanges blocks, whatever number of blocks an object has, in ascending order
    pub fn neighbours(algorithm: &Algorithm, nodes: u32, node: u32) -> Vec<u32> {
        let mut all = std::collections::BTreeSet::new();
        // Who sends to whom in a pipeline repeats after twice the hypercube's dimension, 16 at most.
        for blocks in [1, 4 * 16 + 8] {
            let Ok(schedule) = Self::new(algorithm.clone(), nodes, blocks) else { continue };
            all.extend(schedule.receives(node).map(|(_, one)| one.from));
            for (_, send) in schedule.sends(node) {
                match send.to {
                    To::Node(to) => _ = all.insert(to),
                    To::All => all.extend(1..nodes),
                }
            }
        }
        all.into_iter().collect()
    }

    /// From whom the first block of an object may come, whatever number of blocks it has: where a receiver that does not
    /// know the number yet has to be ready. At most two.
    ///
    /// Only the second node of a pipeline's vertex has two: an object of one block it gets from the other node of its
    /// vertex, a longer one from outside.
    pub fn first_senders(algorithm: &Algorithm, nodes: u32, node: u32) -> Vec<u32> {
        let mut senders = Vec::with_capacity(2);
        for blocks in [1, 2] {
            let Ok(schedule) = Self::new(algorithm.clone(), nodes, blocks) else { continue };
            if let Some((_, first)) = schedule.receives(node).next()
                && !senders.contains(&first.from)
            {
                senders.push(first.from);
            }
        }
        senders
    }
}

//! Schedules: which node sends which block to which node at which step. A schedule is a pure function of the
//! algorithm, the number of nodes, the number of blocks, the node and the step (RDMC, sections 4.3 and 4.4).
//!
//! Node 0 is the root. At each step a node sends at most one block and receives at most one. Nodes exchange
//! nothing to agree on a schedule: every node computes its own part.
//!
//! | algorithm | steps for n nodes and k blocks |
//! |---|---|
//! | sequential | k (n - 1) |
//! | chain | k + n - 2 |
//! | binomial tree | k ceil(log2 n) |
//! | binomial pipeline | k + ceil(log2 n) - 1 |
//! | hybrid | sum of a pipeline's over the racks and a pipeline's within the largest rack |
//! | in-network | k |
//!
//! In-network, one step brings a block to all nodes. If there are more receivers than a switch [copies to at
//! once](crate::switch_fanout), the root sends each block several times.

mod error;
mod hybrid;
mod pipeline;
mod simple;

pub use error::ScheduleError;
pub use hybrid::Racks;
use pipeline::Pipeline;

/// Algorithm that distributes blocks from the root to all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// The root sends the whole object to one node after another.
    Sequential,
    /// Each node relays every block to the next node.
    Chain,
    /// Binomial tree: each node that has the whole object sends it to a node that has nothing.
    Tree,
    /// Binomial pipeline: a hypercube in which every node exchanges a block with a neighbour at each step
    /// (Ganesan and Seshadri).
    Pipeline,
    /// A pipeline over one node of each rack, then a pipeline within each rack.
    Hybrid(Racks),
    /// The root sends each block once, and a P4CE switch copies it.
    InNetwork,
}

impl Algorithm {
    /// Returns the name of the algorithm.
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

/// Destination of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum To {
    /// One node.
    Node(u32),
    /// All nodes but the root, through a switch that copies.
    All,
}

/// Block that a node sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Send {
    /// Destination.
    pub to: To,
    /// Index of the block, from 0.
    pub block: u32,
}

/// Block that a node receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receive {
    /// Node that sends the block.
    pub from: u32,
    /// Index of the block, from 0.
    pub block: u32,
}

/// Schedule of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    algorithm: Algorithm,
    nodes: u32,
    blocks: u32,
}

impl Schedule {
    /// Maximum number of nodes.
    pub const MAX_NODES: u32 = error::MAX_NODES;

    /// Returns the schedule that distributes `blocks` blocks from node 0 to the other `nodes - 1` nodes.
    ///
    /// # Errors
    /// If there is no receiver or no block, if there are too many nodes, or if the racks were made for
    /// another number of nodes.
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

    /// Returns the algorithm.
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Returns the number of nodes, including the root.
    pub const fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of blocks.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the number of steps.
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

    /// Returns the block that `node` sends at `step`.
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

    /// Returns the block that `node` receives at `step`.
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

    /// Returns all blocks that `node` sends, each with its step.
    pub fn sends(&self, node: u32) -> impl Iterator<Item = (u64, Send)> + '_ {
        (0..self.steps()).filter_map(move |step| Some((step, self.send(node, step)?)))
    }

    /// Returns all blocks that `node` receives, each with its step.
    pub fn receives(&self, node: u32) -> impl Iterator<Item = (u64, Receive)> + '_ {
        let k = u64::from(self.blocks);
        let steps = match &self.algorithm {
            // In nearly all steps another node receives.
            Algorithm::Sequential => {
                (u64::from(node.max(1)) - 1) * k..(u64::from(node) * k).min(self.steps())
            }
            _ => 0..self.steps(),
        };
        steps.filter_map(move |step| Some((step, self.receive(node, step)?)))
    }

    /// Returns the nodes with which `node` exchanges blocks for any number of blocks of an object, in
    /// ascending order.
    pub fn neighbours(algorithm: &Algorithm, nodes: u32, node: u32) -> Vec<u32> {
        let mut all = std::collections::BTreeSet::new();
        // The pairs of a pipeline repeat after twice the hypercube's dimension, which is at most 16.
        for blocks in [1, 4 * 16 + 8] {
            let Ok(schedule) = Self::new(algorithm.clone(), nodes, blocks) else { continue };
            all.extend(schedule.receives(node).map(|(_, receive)| receive.from));
            for (_, send) in schedule.sends(node) {
                match send.to {
                    To::Node(to) => _ = all.insert(to),
                    To::All => all.extend(1..nodes),
                }
            }
        }
        all.into_iter().collect()
    }

    /// Returns the nodes that may send the first block of an object to `node`, for any number of blocks. A
    /// receiver that does not know that number yet has to be ready for each of them. There are at most two.
    ///
    /// Only the second node of a pipeline's vertex has two: it receives an object of one block from the other
    /// node of its vertex, and the first block of a longer object from another vertex.
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

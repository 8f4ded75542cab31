//! The hybrid algorithm (RDMC, section 4.3): a binomial pipeline over one node of each rack, then one within
//! each rack.
//!
//! The leader of the root's rack is the root; the leader of any other rack is its node with the lowest
//! number. A block crosses the links between racks once for each rack but the root's. A rack begins when the
//! pipeline over the leaders has ended: a leader relays about as many blocks to other leaders as it sends
//! within its rack, so an earlier start would give it two blocks to send at a time.

use super::error::{MAX_NODES, ScheduleError};
use super::pipeline::Pipeline;

type Pair = Option<(u32, u32)>;

/// Assignment of nodes to racks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Racks {
    /// By node: its rack, and its index there.
    positions: Vec<(u32, u32)>,
    /// By rack: its nodes, the leader first. The root's rack is the first one.
    racks: Vec<Vec<u32>>,
}

impl Racks {
    /// Returns the racks of nodes 0, 1, ..., where `of` holds the rack of each node. Rack names may be of any
    /// ordered type.
    ///
    /// # Errors
    /// If there are fewer than two nodes, or more than [`Schedule::MAX_NODES`](super::Schedule::MAX_NODES).
    pub fn new<T: Ord>(of: &[T]) -> Result<Self, ScheduleError> {
        match of.len() {
            nodes @ (0 | 1) => return Err(ScheduleError::Nodes(nodes as u32)),
            nodes if nodes > MAX_NODES as usize => {
                return Err(ScheduleError::TooManyNodes(nodes as u32));
            }
            _ => {}
        }
        let mut numbers = std::collections::BTreeMap::new();
        let mut racks: Vec<Vec<u32>> = Vec::new();
        let mut positions = Vec::with_capacity(of.len());
        for (node, name) in (0..).zip(of) {
            let rack = *numbers.entry(name).or_insert_with(|| {
                racks.push(Vec::new());
                racks.len() - 1
            });
            positions.push((rack as u32, racks[rack].len() as u32));
            racks[rack].push(node);
        }
        Ok(Self { positions, racks })
    }

    /// Returns the number of nodes in all racks.
    pub fn nodes(&self) -> usize {
        self.positions.len()
    }

    /// Returns the rack of `node`, numbered in the order of their first nodes.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn rack(&self, node: u32) -> u32 {
        self.positions[node as usize].0
    }

    fn pipeline(nodes: usize, k: u32) -> Option<Pipeline> {
        (nodes > 1).then(|| Pipeline::new(nodes as u32, k))
    }

    /// Returns the number of steps of the pipeline over the leaders.
    fn leader_steps(&self, k: u32) -> u64 {
        Self::pipeline(self.racks.len(), k).map_or(0, Pipeline::steps)
    }

    pub(super) fn steps(&self, k: u32) -> u64 {
        // A pipeline never has zero nodes: each rack has at least one node, and only a rack with more has
        // steps.
        let within = |rack: &Vec<u32>| Self::pipeline(rack.len(), k).map_or(0, Pipeline::steps);
        self.leader_steps(k) + self.racks.iter().map(within).max().unwrap_or(0)
    }

    fn step_of(&self, k: u32, node: u32, step: u64, of: impl Fn(Pipeline, u32, u64) -> Pair) -> Pair {
        let (rack, position) = self.positions[node as usize];
        match step.checked_sub(self.leader_steps(k)) {
            None if position == 0 => {
                let (other, block) = of(Self::pipeline(self.racks.len(), k)?, rack, step)?;
                Some((self.racks[other as usize][0], block))
            }
            None => None,
            Some(step) => {
                let nodes = &self.racks[rack as usize];
                let (other, block) = of(Self::pipeline(nodes.len(), k)?, position, step)?;
                Some((nodes[other as usize], block))
            }
        }
    }

    pub(super) fn send(&self, k: u32, node: u32, step: u64) -> Pair {
        self.step_of(k, node, step, Pipeline::send)
    }

    pub(super) fn receive(&self, k: u32, node: u32, step: u64) -> Pair {
        self.step_of(k, node, step, Pipeline::receive)
    }
}

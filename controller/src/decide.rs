//! Decisions about failures, as functions of acknowledged values: what has to stand still, up to which time
//! the messages of a failed process count, and which receivers could not be stopped.
//!
//! A link is *relied* if everything that its keeper has sent is bounded by what came over it; so every barrier
//! at the end of a path of relied links from a process is one that this process has announced.

use crate::graph::{Graph, LinkId, Node, NodeId};
use crate::record::FenceRecord;
use onepipe::ProcessId;
use std::collections::{BTreeMap, BTreeSet};

/// What has to stand still while a failure is decided.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Fence {
    /// Inputs whose registers stand still: those that lead out of the suspected nodes
    pub frozen: BTreeSet<LinkId>,
    /// Outputs without a commit barrier: those that lead into them, and down
    pub muted: BTreeSet<LinkId>,
    /// Processes whose barrier stands still
    pub held: BTreeSet<ProcessId>,
}

impl Fence {
    /// Returns the fence around suspected nodes.
    pub fn around(graph: &Graph, counted: &BTreeSet<LinkId>, suspects: &BTreeSet<NodeId>) -> Self {
        let mut fence = Self::default();
        for &node in suspects {
            // A process keeps the register of its input: it is held instead.
            let keeps = |link: LinkId| {
                let to = graph.ends(link).to;
                !suspects.contains(&to) && !matches!(graph.at(to), Node::Process(_))
            };
            let frozen = graph.outputs(node).iter().filter(|&&link| counted.contains(&link));
            fence.frozen.extend(frozen.filter(|&&link| keeps(link)));
            match graph.at(node) {
                Node::Process(id) => {
                    fence.held.insert(id);
                    fence.muted.insert(graph.place(id).expect("a node of the graph").down);
                }
                Node::Up(_) => {}
                Node::Down(_) => {
                    let loopback = |link: LinkId| matches!(graph.at(graph.ends(link).from), Node::Up(_));
                    let muted = graph.inputs(node).iter().filter(|&&link| !loopback(link));
                    fence.muted.extend(muted);
                }
            }
            if let Some(switch) = graph.at(node).switch() {
                let below = graph.processes().filter(|(_, process)| process.switch == switch);
                fence.held.extend(below.map(|(id, _)| id));
            }
        }
        fence
    }

    /// Returns what stands still in either.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        self.frozen.extend(&other.frozen);
        self.muted.extend(&other.muted);
        self.held.extend(&other.held);
        self
    }

    /// Returns the record of this fence.
    pub fn record(&self) -> FenceRecord {
        let numbers = |links: &BTreeSet<LinkId>| links.iter().map(|link| link.0).collect();
        FenceRecord {
            frozen: numbers(&self.frozen),
            muted: numbers(&self.muted),
            held: self.held.iter().copied().collect(),
        }
    }

    /// Returns the fence of a record.
    pub fn of(record: &FenceRecord) -> Self {
        let links = |numbers: &[u32]| numbers.iter().copied().map(LinkId).collect();
        Self {
            frozen: links(&record.frozen),
            muted: links(&record.muted),
            held: record.held.iter().copied().collect(),
        }
    }
}

/// Values that nodes acknowledged together with what stands still.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Acknowledged {
    /// For each frozen input: the greater one of its register and of its keeper's floor
    pub frozen: BTreeMap<LinkId, u64>,
    /// For each muted output: what its sender has sent at most
    pub muted: BTreeMap<LinkId, u64>,
    /// For each held process: its barrier
    pub held: BTreeMap<ProcessId, u64>,
    /// For each input from a switch whose representative was replaced meanwhile: its register
    pub replaced: BTreeMap<LinkId, u64>,
}

/// Process that failed earlier, and may still recover; or that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Case in which it failed, or number of its departure
    pub case: u64,
    /// Upper bound of what it has delivered
    pub delivered: u64,
}

/// The state of a decision.
#[derive(Clone, Copy)]
pub struct Decision<'a> {
    /// Routing graph
    pub graph: &'a Graph,
    /// Relied links
    pub relied: &'a BTreeSet<LinkId>,
    /// What nodes acknowledged
    pub acknowledged: &'a Acknowledged,
    /// Combines two values of which the time of a failure must not be below either: the maximum. Another
    /// function is a planted bug
    pub combine: fn(u64, u64) -> u64,
}

impl Decision<'_> {
    fn relied_from(&self, process: ProcessId) -> Vec<bool> {
        let node = self.graph.place(process).expect("a process of the graph").node;
        self.graph.reach([node], |link| self.relied.contains(&link))
    }

    /// Returns whether a relied path from a process leads to the beginning of a link. A link that begins at
    /// another process is none: nothing passes through a process.
    fn is_sent_from(&self, process: ProcessId, reached: &[bool], link: LinkId) -> bool {
        let from = self.graph.ends(link).from;
        reached[from.0 as usize] && !matches!(self.graph.at(from), Node::Process(id) if id != process)
    }

    /// Returns the time up to which the messages of a failed process count: at least every barrier that a
    /// process may have, and at most what the failed one has announced. `joined` is the time after which it
    /// sent, `since` the first case that was decided while it was a member.
    pub fn time(&self, process: ProcessId, joined: u64, since: u64, earlier: &[Earlier]) -> u64 {
        let reached = self.relied_from(process);
        let at = |node: NodeId| reached[node.0 as usize];
        let from = |link: &LinkId| self.is_sent_from(process, &reached, *link);
        let over = |link: &LinkId| from(link) && self.relied.contains(link);
        let Acknowledged { frozen, muted, held, replaced } = self.acknowledged;
        let inputs = frozen.iter().chain(replaced).filter(|(link, _)| over(link)).map(|(_, &raw)| raw);
        let outputs = muted.iter().filter(|(link, _)| from(link)).map(|(_, &sent)| sent);
        let place = |id: &ProcessId| self.graph.place(*id).expect("a process of the graph").node;
        let held =
            held.iter().filter(|(id, _)| at(place(id)) && **id != process).map(|(_, &barrier)| barrier);
        let own = self.acknowledged.held.get(&process).copied().filter(|_| self.returns(process));
        let earlier = earlier.iter().filter(|earlier| since <= earlier.case).map(|earlier| earlier.delivered);
        let values = inputs.chain(outputs).chain(held).chain(own).chain(earlier);
        values.reduce(self.combine).map_or(joined, |value| value.max(joined))
    }

    /// Returns whether a path of relied links leads from a process back to it.
    fn returns(&self, process: ProcessId) -> bool {
        let place = self.graph.place(process).expect("a process of the graph");
        let first = Some(self.graph.ends(place.up).to).filter(|_| self.relied.contains(&place.up));
        self.graph.reach(first, |link| self.relied.contains(&link))[place.node.0 as usize]
    }

    /// Returns an upper bound of what a failed process delivers before it recovers, or `None` if nothing that
    /// answered stops it.
    pub fn delivered(&self, process: ProcessId) -> Option<u64> {
        let place = self.graph.place(process).expect("a process of the graph");
        let Acknowledged { muted, held, .. } = self.acknowledged;
        if let Some(&barrier) = held.get(&process) {
            return Some(barrier);
        }
        if let Some(&sent) = muted.get(&place.down) {
            return Some(sent);
        }
        // All inputs of its switch's lower node that come from other switches.
        let down = self.graph.ends(place.down).from;
        let other = |link: &&LinkId| !matches!(self.graph.at(self.graph.ends(**link).from), Node::Up(_));
        let inputs = self.graph.inputs(down).iter().filter(other).filter(|link| self.relied.contains(link));
        let sent: Option<Vec<u64>> = inputs.map(|link| muted.get(link).copied()).collect();
        sent?.into_iter().min()
    }

    /// Returns whether the barrier of a receiver stays at or below the time of a failed process: it stands
    /// still, or a relied path from that process leads over something that stands still.
    pub fn is_fenced(&self, receiver: ProcessId, from: ProcessId) -> bool {
        self.fenced_in(receiver, &self.behind_fence(from))
    }

    /// Returns the same, with what [`behind_fence`](Self::behind_fence) returns for the failed process.
    pub fn fenced_in(&self, receiver: ProcessId, behind_fence: &[bool]) -> bool {
        let node = self.graph.place(receiver).expect("a process of the graph").node;
        self.acknowledged.held.contains_key(&receiver) || behind_fence[node.0 as usize]
    }

    /// Returns, by node, whether a relied path from a failed process leads there over something that stands
    /// still.
    pub fn behind_fence(&self, from: ProcessId) -> Vec<bool> {
        let Acknowledged { frozen, muted, .. } = self.acknowledged;
        let reached = self.relied_from(from);
        let still = frozen
            .keys()
            .chain(muted.keys())
            .filter(|link| self.relied.contains(link) && self.is_sent_from(from, &reached, **link));
        let behind = still.map(|&link| self.graph.ends(link).to);
        self.graph.reach(behind, |link| self.relied.contains(&link))
    }
}

#[cfg(test)]
mod tests;

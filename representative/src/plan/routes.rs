//! Shortest paths between switches, as routing protocols compute them: all of equal cost are used (ECMP).

use super::topology::{Node, Topology};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

/// Cost of an unreachable switch
const UNREACHABLE: u64 = u64::MAX;
/// Cost of the last hop, from a switch to a host. All routes to a host end with one
const TO_HOST: u64 = 1;

/// Graph of the switches.
pub(super) struct Graph {
    /// By switch: neighbours, and the costs of the links to them
    edges: Vec<Vec<(usize, u64)>>,
}

/// Whether routes lead over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crossing {
    /// All routes do
    Always,
    /// Some of several routes of equal cost do
    Sometimes,
    /// No route does
    Never,
}

impl Graph {
    pub(super) fn new(topology: &Topology) -> Self {
        let mut edges = vec![Vec::new(); topology.switches.len()];
        for link in &topology.links {
            let [a, b] = link.ends;
            edges[a].push((b, link.cost.into()));
            edges[b].push((a, link.cost.into()));
        }
        Self { edges }
    }

    /// Returns the neighbours of a switch.
    pub(super) fn neighbours(&self, switch: usize) -> impl Iterator<Item = usize> + '_ {
        self.edges[switch].iter().map(|&(next, _)| next)
    }

    /// Returns the costs of the routes from each switch to a destination; `ends` are the last switches, with
    /// the cost of the rest.
    pub(super) fn costs(&self, ends: &[(usize, u64)]) -> Costs {
        let mut costs = vec![UNREACHABLE; self.edges.len()];
        let mut open: BinaryHeap<_> = ends.iter().map(|&(end, cost)| Reverse((cost, end))).collect();
        while let Some(Reverse((cost, at))) = open.pop() {
            if cost >= costs[at] {
                continue;
            }
            costs[at] = cost;
            // Links have the same cost in both directions.
            open.extend(self.edges[at].iter().map(|&(next, more)| Reverse((cost + more, next))));
        }
        Costs { costs, ends: ends.into() }
    }

    /// Returns the costs of the routes to a host.
    pub(super) fn costs_to_host(&self, topology: &Topology, host: usize) -> Costs {
        let ends: Vec<_> = topology.hosts[host].switches.iter().map(|&at| (at, TO_HOST)).collect();
        self.costs(&ends)
    }

    /// Returns the next hops from a switch to a destination. Hosts forward nothing.
    pub(super) fn next<'a>(&'a self, to: &'a Costs, at: usize) -> impl Iterator<Item = usize> + 'a {
        let here = to.costs[at];
        let near = move |&&(next, cost): &&(usize, u64)| to.costs[next].checked_add(cost) == Some(here);
        self.edges[at].iter().filter(near).map(|&(next, _)| next)
    }

    /// Returns whether the routes from a switch to a host lead from `near` to its neighbour `far`.
    pub(super) fn crossing(&self, to: &Costs, from: usize, near: usize, far: Node) -> Crossing {
        let mut seen = vec![false; self.edges.len()];
        let mut open = vec![from];
        let (mut crosses, mut avoids) = (false, false);
        while let Some(at) = open.pop() {
            if core::mem::replace(&mut seen[at], true) {
                continue;
            }
            if to.ends_at(at) {
                if at == near && matches!(far, Node::Host(_)) {
                    crosses = true;
                } else {
                    avoids = true;
                }
            }
            for next in self.next(to, at) {
                if (at, Node::Switch(next)) == (near, far) {
                    crosses = true;
                } else {
                    open.push(next);
                }
            }
        }
        match (crosses, avoids) {
            (true, false) => Crossing::Always,
            (true, true) => Crossing::Sometimes,
            (false, _) => Crossing::Never,
        }
    }

    /// Returns whether the link between two neighbours is the only shortest path from the one to the other:
    /// any other path costs more.
    pub(super) fn is_direct(&self, from: usize, to: usize) -> bool {
        let link = self.edges[from].iter().find(|&&(next, _)| next == to);
        let Some(&(_, most)) = link else { return false };
        let mut seen = BTreeSet::new();
        let mut open = BinaryHeap::from([Reverse((0, from))]);
        while let Some(Reverse((cost, at))) = open.pop() {
            if at == to {
                return false;
            }
            if seen.insert(at) {
                let next = self.edges[at].iter().map(|&(next, more)| (cost + more, next));
                let near = next.filter(|&(cost, next)| cost <= most && (at, next) != (from, to));
                open.extend(near.map(Reverse));
            }
        }
        true
    }

    /// Returns a shortest path in hops between two switches, without the link between them, over links for
    /// which `may` is true.
    pub(super) fn path_around(
        &self,
        from: usize,
        to: usize,
        may: impl Fn(usize, usize) -> bool,
    ) -> Option<Vec<usize>> {
        let mut before = vec![None; self.edges.len()];
        let mut open = VecDeque::from([from]);
        while let Some(at) = open.pop_front() {
            for &(next, _) in &self.edges[at] {
                if next != from && before[next].is_none() && (at, next) != (from, to) && may(at, next) {
                    before[next] = Some(at);
                    open.push_back(next);
                }
            }
        }
        before[to]?;
        let mut path: Vec<_> = core::iter::successors(Some(to), |&at| before[at]).collect();
        path.reverse();
        Some(path)
    }
}

/// Costs of the routes to one destination.
pub(super) struct Costs {
    costs: Vec<u64>,
    ends: Vec<(usize, u64)>,
}

impl Costs {
    /// Returns the cost from a switch; `None` if there is no route.
    pub(super) fn from(&self, switch: usize) -> Option<u64> {
        Some(self.costs[switch]).filter(|&cost| cost != UNREACHABLE)
    }

    /// Returns whether a route leaves the switches here.
    fn ends_at(&self, switch: usize) -> bool {
        self.ends.contains(&(switch, self.costs[switch]))
    }
}

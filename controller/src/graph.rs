//! The routing graph (1Pipe, section 3.1, figure 3): processes, and two nodes for each switch. Its links are
//! directed; the *keeper* of a link is the node at its end, which holds the link's register.

use onepipe::ProcessId;
use representative::Side;
use representative::plan::{self, Plan, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Index of a node of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Number of a link of a [`Graph`]; stored, so it depends on nothing but the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A node of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    /// A process
    Process(ProcessId),
    /// The node of a switch that is fed from below
    Up(u16),
    /// The node of a switch that is fed from above and by its upper node
    Down(u16),
}

impl Node {
    /// Returns the switch of the node; `None` for a process.
    pub const fn switch(self) -> Option<u16> {
        match self {
            Self::Process(_) => None,
            Self::Up(switch) | Self::Down(switch) => Some(switch),
        }
    }
}

/// A directed link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it begins
    pub from: NodeId,
    /// Where it ends: its keeper
    pub to: NodeId,
}

/// Both directions of one of a switch's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Link that ends at the switch
    pub input: LinkId,
    /// Link that begins at the switch
    pub output: LinkId,
}

/// A switch's links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The node that is fed from below
    pub up: NodeId,
    /// The node that is fed from above
    pub down: NodeId,
    /// Link from the one to the other
    pub loopback: LinkId,
    /// Links in the order of the representative's configuration. `None`: a second link of a host, whose
    /// process uses the first
    pub ports: Vec<Option<Port>>,
    /// Whether it may have two representatives
    pub standby: bool,
}

/// The place of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its node
    pub node: NodeId,
    /// Its switch
    pub switch: u16,
    /// Link that begins at the process
    pub up: LinkId,
    /// Link that ends at the process
    pub down: LinkId,
}

/// A switch of a network that [`Graph::new`] builds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Layout {
    /// Processes below; `None`: a link that no process uses
    pub processes: Vec<Option<ProcessId>>,
    /// Switches below
    pub below: Vec<u16>,
    /// Switches above
    pub above: Vec<u16>,
    /// Whether it may have two representatives
    pub standby: bool,
}

/// The routing graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    nodes: Vec<Node>,
    links: Vec<Link>,
    inputs: Vec<Vec<LinkId>>,
    outputs: Vec<Vec<LinkId>>,
    switches: Vec<Switch>,
    processes: BTreeMap<ProcessId, Process>,
}

impl Graph {
    /// Returns the graph of a planned topology. `id` returns the process of a host.
    pub fn of(topology: &Topology, plan: &Plan, id: impl Fn(usize) -> ProcessId) -> Self {
        let layout = |(number, switch): (usize, &plan::PlannedSwitch)| {
            let mut layout = Layout { standby: switch.standby.is_some(), ..Layout::default() };
            for link in &switch.links {
                match link.to {
                    plan::Node::Host(host) => {
                        let first = topology.hosts[host].switches.first() == Some(&number);
                        layout.processes.push(first.then(|| id(host)));
                    }
                    plan::Node::Switch(other) if link.side == Side::Below => layout.below.push(other as u16),
                    plan::Node::Switch(other) => layout.above.push(other as u16),
                }
            }
            layout
        };
        let layouts: Vec<_> = plan.switches.iter().enumerate().map(layout).collect();
        Self::new(&layouts)
    }

    /// Returns the graph of switches whose links are in the order: processes, switches below, switches above.
    ///
    /// # Panics
    /// If a link between switches is stated at one end only.
    pub fn new(layouts: &[Layout]) -> Self {
        let mut graph = Self {
            nodes: Vec::new(),
            links: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            switches: Vec::new(),
            processes: BTreeMap::new(),
        };
        for (switch, layout) in (0..).zip(layouts) {
            let (up, down) = (graph.node(Node::Up(switch)), graph.node(Node::Down(switch)));
            let loopback = graph.link(up, down);
            let standby = layout.standby;
            graph.switches.push(Switch { up, down, loopback, ports: Vec::new(), standby });
        }
        let mut between = BTreeMap::new();
        for (number, layout) in layouts.iter().enumerate() {
            let (up, down) = (graph.switches[number].up, graph.switches[number].down);
            for &process in &layout.processes {
                let port = process.map(|id| graph.process(id, number as u16));
                graph.switches[number].ports.push(port);
            }
            for &below in &layout.below {
                let Switch { up: from, down: to, .. } = graph.switches[usize::from(below)];
                let port = Port { input: graph.link(from, up), output: graph.link(down, to) };
                graph.switches[number].ports.push(Some(port));
                between.insert((below, number as u16), port);
            }
        }
        for (number, layout) in layouts.iter().enumerate() {
            for &above in &layout.above {
                let Port { input, output } = between[&(number as u16, above)];
                graph.switches[number].ports.push(Some(Port { input: output, output: input }));
            }
        }
        graph
    }

    fn node(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.inputs.push(Vec::new());
        self.outputs.push(Vec::new());
        NodeId(self.nodes.len() as u32 - 1)
    }

    fn link(&mut self, from: NodeId, to: NodeId) -> LinkId {
        let link = LinkId(self.links.len() as u32);
        self.links.push(Link { from, to });
        self.outputs[from.0 as usize].push(link);
        self.inputs[to.0 as usize].push(link);
        link
    }

    fn process(&mut self, id: ProcessId, switch: u16) -> Port {
        let node = self.node(Node::Process(id));
        let Switch { up, down, .. } = self.switches[usize::from(switch)];
        let port = Port { input: self.link(node, up), output: self.link(down, node) };
        self.processes.insert(id, Process { node, switch, up: port.input, down: port.output });
        port
    }

    /// Returns a node.
    pub fn at(&self, node: NodeId) -> Node {
        self.nodes[node.0 as usize]
    }

    /// Returns the ends of a link.
    pub fn ends(&self, link: LinkId) -> Link {
        self.links[link.0 as usize]
    }

    /// Returns all links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.links.len() as u32).map(LinkId)
    }

    /// Returns the links that end at a node.
    pub fn inputs(&self, node: NodeId) -> &[LinkId] {
        &self.inputs[node.0 as usize]
    }

    /// Returns the links that begin at a node.
    pub fn outputs(&self, node: NodeId) -> &[LinkId] {
        &self.outputs[node.0 as usize]
    }

    /// Returns all switches, by number.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// Returns a switch.
    pub fn switch(&self, number: u16) -> &Switch {
        &self.switches[usize::from(number)]
    }

    /// Returns the place of a process, if there is such a process.
    pub fn place(&self, id: ProcessId) -> Option<Process> {
        self.processes.get(&id).copied()
    }

    /// Returns all processes.
    pub fn processes(&self) -> impl Iterator<Item = (ProcessId, Process)> + '_ {
        self.processes.iter().map(|(&id, &process)| (id, process))
    }

    /// Returns the links that count for commit: those that begin at a process that takes part, or at a node
    /// with an input that counts, except for `absent` ones.
    pub fn counted(
        &self,
        takes_part: impl Fn(ProcessId) -> bool,
        absent: impl Fn(LinkId) -> bool,
    ) -> BTreeSet<LinkId> {
        let starts = self.processes().filter(|&(id, _)| takes_part(id)).map(|(_, process)| process.node);
        let reached = self.reach(starts, |link| !absent(link));
        self.links()
            .filter(|&link| {
                let from = self.ends(link).from;
                let fed = match self.at(from) {
                    Node::Process(id) => takes_part(id),
                    Node::Up(_) | Node::Down(_) => reached[from.0 as usize],
                };
                fed && !absent(link)
            })
            .collect()
    }

    /// Returns, by node, whether a path of usable links leads there from one of the starts, at which none
    /// are needed. No path passes through a process.
    pub fn reach(
        &self,
        starts: impl IntoIterator<Item = NodeId>,
        usable: impl Fn(LinkId) -> bool,
    ) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let mut open: Vec<_> = starts.into_iter().collect();
        let starts: BTreeSet<_> = open.iter().copied().collect();
        while let Some(node) = open.pop() {
            if core::mem::replace(&mut reached[node.0 as usize], true) {
                continue;
            }
            if !starts.contains(&node) && matches!(self.at(node), Node::Process(_)) {
                continue;
            }
            let next = self.outputs(node).iter().filter(|&&link| usable(link));
            open.extend(next.map(|&link| self.ends(link).to));
        }
        reached
    }

    /// Returns, for each of the processes, which of them it reaches over usable links, in the same order.
    fn reachable(&self, processes: &[ProcessId], usable: &impl Fn(LinkId) -> bool) -> Vec<Vec<bool>> {
        let places: Vec<_> = processes.iter().map(|id| self.processes[id]).collect();
        // The processes of a switch reach the same ones.
        let mut rows: BTreeMap<Option<NodeId>, Vec<bool>> = BTreeMap::new();
        let row = |from: &Process| {
            // A path to oneself has to leave the process.
            let first = Some(self.ends(from.up).to).filter(|_| usable(from.up));
            let row = rows.entry(first).or_insert_with(|| {
                let reached = self.reach(first, usable);
                places.iter().map(|to| reached[to.node.0 as usize]).collect()
            });
            row.clone()
        };
        places.iter().map(row).collect()
    }

    /// Returns an ordered pair of processes, the first of which does not reach the second over usable links.
    pub fn unconnected_pair(
        &self,
        processes: &[ProcessId],
        usable: impl Fn(LinkId) -> bool,
    ) -> Option<(ProcessId, ProcessId)> {
        let reachable = self.reachable(processes, &usable);
        let row = |(from, row): (usize, &Vec<bool>)| {
            let to = row.iter().position(|&reached| !reached)?;
            Some((processes[from], processes[to]))
        };
        reachable.iter().enumerate().find_map(row)
    }

    /// Returns which of the processes failed, if `usable` links are left: a largest set by greed of processes
    /// each two of which reach each other stays. One that does not reach itself never stays.
    pub fn failed(&self, processes: &[ProcessId], usable: impl Fn(LinkId) -> bool) -> Vec<ProcessId> {
        let reachable = self.reachable(processes, &usable);
        let mutual = |a: usize, b: usize| reachable[a][b] && reachable[b][a];
        let all = 0..processes.len();
        let mut order: Vec<_> = all.clone().filter(|&n| reachable[n][n]).collect();
        let partners = |n: usize| all.clone().filter(|&other| mutual(n, other)).count();
        order.sort_by_cached_key(|&n| (core::cmp::Reverse(partners(n)), processes[n]));
        let mut kept: Vec<usize> = Vec::new();
        for n in order {
            if kept.iter().all(|&other| mutual(n, other)) {
                kept.push(n);
            }
        }
        all.filter(|n| !kept.contains(n)).map(|n| processes[n]).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;

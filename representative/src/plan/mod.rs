//! Who stands for which switch, and how their beacons get onto the links that they speak of (1Pipe, sections 3.1 and 6.2.3).
//!
//! A [`Topology`] in, a [`Plan`] out, or everything that is wrong with it. Routes are taken to be shortest paths, all of equal cost in
//! use. Every switch is two nodes of the routing graph (figure 3): *up*, fed from below, and *down*, fed from above and by what turns
//! round; so a link has to lead up or down, and a route must not go up again once it went down.

mod layers;
mod problem;
mod routes;
#[cfg(test)]
mod tests;
mod topology;

pub use problem::{About, Problem};
pub use routes::Crossing;
pub use topology::{Host, Link, Node, Settings, Switch, Topology};

use crate::config::{self, BeaconForm, Config, Detour, Incarnation, Pace, Registers, Side};
use crate::process::{self, Peer, ProcessId};
use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::{OnePipe, Timestamp};
use routes::{Costs, Graph};
use std::collections::{BTreeMap, BTreeSet};
use switch::{Nanos, PortId, forward};

/// What is to be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// By switch
    pub switches: Vec<PlannedSwitch>,
    /// By host: where its own beacons go, a switch each. None for hosts that send no messages
    pub hosts: Vec<Vec<(usize, Beacons)>>,
}

/// A switch and its representative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSwitch {
    /// How far it is from the hosts
    pub layer: u32,
    /// The host that keeps its barriers
    pub representative: usize,
    /// The representative's queue pair for the first link; those of the others follow
    pub first_qp: Qpn,
    /// Its memory for beacons
    pub registers: Registers,
    /// The links, in the order of their queue pairs: to hosts, then to switches below, then to switches above
    pub links: Vec<PlannedLink>,
    /// Whose tunnels end at this switch, in order; none if it terminates none
    pub tunnel_sources: BTreeSet<IpAddr>,
    /// Whether any host that sends messages is at it or below it
    pub has_hosts: bool,
}

/// A link of a switch: both directions, of which beacons go out on one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLink {
    /// Who is at the other end
    pub to: Node,
    /// Where that is
    pub side: Side,
    /// What is sent over it
    pub beacons: Beacons,
}

/// Where somebody's beacons for a link go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beacons {
    /// Whether routes would lead them over the link
    pub crossing: Crossing,
    /// Around, where they would not, or not always
    pub detour: Detour,
    /// The MAC address that the frame is sent to
    pub next_hop: MacAddr,
    /// The neighbour, or its representative
    pub address: IpAddr,
    /// Its queue pair
    pub qpn: Qpn,
    /// As what they are sent
    pub form: BeaconForm,
}

/// Between the two ends of a link, as one of them sees it
#[derive(Clone, Copy)]
struct Way {
    /// The host that sends the beacons
    from: usize,
    /// The switch that it sends them to
    via: usize,
    /// Where the link begins
    near: Node,
    /// and where it ends
    far: Node,
    /// The host that gets them
    to: usize,
}

struct Planner<'a> {
    topology: &'a Topology,
    graph: Graph,
    /// What the ways to hosts cost, by the switches that these are at
    costs: BTreeMap<Vec<usize>, Costs>,
    plan: Plan,
    problems: Vec<Problem>,
}

/// Plans, or says what is wrong: all that can be found before the first thing that makes no sense.
pub fn plan(topology: &Topology) -> Result<Plan, Vec<Problem>> {
    problem::check(topology)?;
    let graph = Graph::new(topology);
    let layers = layers::layers(topology, &graph)?;
    layers::check_routes(topology, &graph, &layers)?;
    let representatives = representatives(topology, &graph)?;
    let mut planner = Planner {
        topology,
        graph,
        costs: BTreeMap::new(),
        plan: skeleton(topology, &layers, &representatives),
        problems: Vec::new(),
    };
    planner.send_beacons();
    if planner.problems.is_empty() { Ok(planner.plan) } else { Err(planner.problems) }
}

/// Each switch's representative: the one that was named, or the nearest host, and of several the one with the fewest switches.
fn representatives(topology: &Topology, graph: &Graph) -> Result<Vec<usize>, Vec<Problem>> {
    let mut switches_of = vec![0; topology.hosts.len()];
    for switch in &topology.switches {
        if let Some(host) = switch.representative {
            switches_of[host] += 1;
        }
    }
    let mut problems = Vec::new();
    let mut representatives = Vec::new();
    for (number, switch) in topology.switches.iter().enumerate() {
        let costs = graph.costs(&[(number, 0)]);
        // It sends through the first of its switches, and is reached through any.
        let cost = |host: &Host| {
            costs.from(host.switches[0])?;
            host.switches.iter().filter_map(|&at| costs.from(at)).min()
        };
        if let Some(host) = switch.representative.filter(|&host| cost(&topology.hosts[host]).is_none()) {
            problems.push(Problem::Disconnected { switch: number, host });
            continue;
        }
        let nearest = || {
            let hosts = topology.hosts.iter().enumerate().filter(|(_, host)| host.represents);
            // One that does nothing else is the better one.
            let hosts =
                hosts.filter_map(|(at, host)| Some((cost(host)?, host.messages, switches_of[at], at)));
            hosts.min().map(|(.., host)| host)
        };
        match switch.representative.or_else(nearest) {
            Some(host) => {
                switches_of[host] += usize::from(switch.representative.is_none());
                representatives.push(host);
            }
            None => problems.push(Problem::NoRepresentative(number)),
        }
    }
    if problems.is_empty() { Ok(representatives) } else { Err(problems) }
}

/// The plan without beacons: what is numbered how.
fn skeleton(topology: &Topology, layers: &[u32], representatives: &[usize]) -> Plan {
    let nowhere = Beacons {
        crossing: Crossing::Always,
        detour: Vec::new(),
        next_hop: MacAddr::default(),
        address: IpAddr::from([0; 4]),
        qpn: topology.settings.host_qp,
        form: BeaconForm::Datagram,
    };
    let link = |to, side| PlannedLink { to, side, beacons: nowhere.clone() };
    let mut links: Vec<Vec<PlannedLink>> = vec![Vec::new(); topology.switches.len()];
    for (host, at) in
        topology.senders().flat_map(|(number, host)| host.switches.iter().map(move |&at| (number, at)))
    {
        links[at].push(link(Node::Host(host), Side::Below));
    }
    let up = topology.links.iter().map(|link| match link.ends {
        [a, b] if layers[a] < layers[b] => (a, b),
        [a, b] => (b, a),
    });
    for (below, above) in up.clone() {
        links[above].push(link(Node::Switch(below), Side::Below));
    }
    for (below, above) in up.clone() {
        links[below].push(link(Node::Switch(above), Side::Above));
    }
    let has_hosts = layers::with_hosts(topology, layers, up);
    let mut used = vec![0u32; topology.hosts.len()];
    let Settings { first_qp, registers, .. } = topology.settings;
    let switches = links.into_iter().enumerate().map(|(number, links)| {
        let representative = representatives[number];
        let before = used[representative];
        used[representative] += links.len() as u32;
        PlannedSwitch {
            layer: layers[number],
            representative,
            first_qp: Qpn::new(first_qp.get() + before),
            registers: Registers { va: registers.va + Registers::SIZE * u64::from(before), ..registers },
            links,
            tunnel_sources: BTreeSet::new(),
            has_hosts: has_hosts[number],
        }
    });
    Plan { switches: switches.collect(), hosts: vec![Vec::new(); topology.hosts.len()] }
}

impl Planner<'_> {
    fn send_beacons(&mut self) {
        for switch in 0..self.topology.switches.len() {
            for number in 0..self.plan.switches[switch].links.len() {
                let from = self.plan.switches[switch].representative;
                let via = self.topology.hosts[from].switches[0];
                let far = self.plan.switches[switch].links[number].to;
                let to = match far {
                    Node::Host(host) => host,
                    Node::Switch(other) => self.plan.switches[other].representative,
                };
                let beacons = self.beacons(Way { from, via, near: Node::Switch(switch), far, to });
                self.plan.switches[switch].links[number].beacons = beacons;
            }
        }
        let uplinks: Vec<_> = self
            .topology
            .senders()
            .flat_map(|(number, host)| host.switches.iter().map(move |&switch| (number, switch)))
            .collect();
        for (from, switch) in uplinks {
            let to = self.plan.switches[switch].representative;
            let way = Way { from, via: switch, near: Node::Host(from), far: Node::Switch(switch), to };
            let beacons = self.beacons(way);
            self.plan.hosts[from].push((switch, beacons));
        }
    }

    /// How beacons get from the one end of a link to the other.
    fn beacons(&mut self, way: Way) -> Beacons {
        let crossing = self.crossing(way);
        let detour = if crossing == Crossing::Always { Vec::new() } else { self.detour(way) };
        let to = &self.topology.hosts[way.to];
        let (qpn, form) = match way.far {
            Node::Host(_) => (self.topology.settings.host_qp, BeaconForm::Datagram),
            Node::Switch(switch) => {
                let there = &self.plan.switches[switch];
                let number =
                    there.links.iter().position(|link| link.to == way.near).expect("links have two ends");
                let Registers { rkey, .. } = there.registers;
                let va = there.registers.va_of(number as u16);
                (Qpn::new(there.first_qp.get() + number as u32), BeaconForm::Write { va, rkey })
            }
        };
        let next_hop = self.next_hop(way, !detour.is_empty());
        Beacons { crossing, detour, next_hop, address: to.address, qpn, form }
    }

    fn crossing(&mut self, way: Way) -> Crossing {
        let Way { from, via, near, far, to } = way;
        if from == to {
            // A host sends nothing to itself that anybody else sees.
            return Crossing::Never;
        }
        let Node::Switch(near) = near else { return Crossing::Always };
        let at = &self.topology.hosts[to].switches;
        if !self.costs.contains_key(at) {
            self.costs.insert(at.clone(), self.graph.costs_to_host(self.topology, to));
        }
        self.graph.crossing(&self.costs[at], via, near, far)
    }

    /// The switches at the ends of the link, whose tunnels lead over it.
    fn detour(&mut self, way: Way) -> Detour {
        if let (Node::Switch(near), Node::Switch(far)) = (way.near, way.far)
            && !self.graph.is_direct(near, far)
        {
            self.problems.push(Problem::NotDirect(near, far));
        }
        let mut detour = Detour::new();
        let mut source = self.topology.hosts[way.from].address;
        for end in [way.near, way.far] {
            let Node::Switch(switch) = end else { continue };
            let Some(address) = self.topology.switches[switch].tunnel else {
                self.problems.push(Problem::NoTunnel { switch, near: way.near, far: way.far });
                continue;
            };
            self.plan.switches[switch].tunnel_sources.insert(source);
            source = address;
            detour.push(address);
        }
        detour
    }

    /// The station that a host sends to: a neighbour in its own subnet, or its switch, which routes.
    fn next_hop(&mut self, way: Way, goes_around: bool) -> MacAddr {
        self.topology.next_hop_via(way.from, way.via, way.to, goes_around).unwrap_or_else(|| {
            let missing = Problem::NoMac { switch: way.via, host: way.from };
            if !self.problems.contains(&missing) {
                self.problems.push(missing);
            }
            MacAddr::default()
        })
    }
}

impl Host {
    /// Whether an address is in its own subnet.
    pub(super) fn is_neighbour(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.leading_zeros() >= self.prefix.into()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.leading_zeros() >= self.prefix.into()
            }
            _ => false,
        }
    }
}

impl Plan {
    /// The number of the process on a host: hosts are counted from 0, processes from 1.
    pub const fn process_id(host: usize) -> ProcessId {
        ProcessId(host as u32 + 1)
    }

    /// The process on a host, as far as the plan decides it, and the switch of its link: the first, if the host is at several. `None`
    /// for a host that sends no messages, and for one whose next hop to a peer is not known.
    pub fn process(&self, topology: &Topology, number: usize) -> Option<(usize, process::Config)> {
        let (switch, beacons) = self.hosts[number].first()?;
        let settings = &topology.settings;
        let peer = |host: usize, mac| Peer {
            id: Self::process_id(host),
            mac,
            address: topology.hosts[host].address,
            qpn: settings.host_qp,
        };
        let tor = process::Beacons {
            mac: beacons.next_hop,
            address: beacons.address,
            qpn: beacons.qpn,
            detour: beacons.detour.clone(),
        };
        let mut config = process::Config::new(peer(number, topology.hosts[number].mac), tor);
        let peers = topology.senders().filter(|(other, _)| *other != number);
        let peers = peers.map(|(other, _)| Some(peer(other, topology.next_hop(number, other)?)));
        config.peers = peers.collect::<Option<_>>()?;
        (config.beacon_interval, config.traffic_class) = (settings.beacon_interval, settings.traffic_class);
        (config.ahead_max, config.timeout) = (settings.ahead_max, settings.timeout);
        config.barriers_in_messages = false;
        Some((*switch, config))
    }

    /// The configuration of a switch's representative, whose host has one port.
    pub fn config(&self, topology: &Topology, switch: usize) -> Config {
        let planned = &self.switches[switch];
        let host = &topology.hosts[planned.representative];
        let link = |link: &PlannedLink| config::Link {
            side: link.side,
            port: PortId(0),
            mac: link.beacons.next_hop,
            address: link.beacons.address,
            detour: link.beacons.detour.clone(),
            qpn: link.beacons.qpn,
            beacon: link.beacons.form,
            barriers_in_messages: false,
        };
        let Settings { beacon_interval, dead_after_intervals, traffic_class, ahead_max, .. } =
            topology.settings;
        Config {
            forward: forward::Config::bridge(1, 64),
            incarnation: Incarnation::Host,
            pace: Pace::Passing,
            mac: host.mac,
            addresses: vec![host.address],
            qkey: OnePipe::QKEY,
            first_qp: planned.first_qp,
            registers: planned.registers,
            beacon_interval,
            dead_after_intervals,
            join_window: Nanos(10 * u64::from(dead_after_intervals) * beacon_interval.0),
            ahead_max,
            clock: Timestamp::default(),
            traffic_class,
            links: planned.links.iter().map(link).collect(),
            #[cfg(debug_assertions)]
            bug: None,
        }
    }
}

//! Plans which host represents which switch, and how beacons get onto the links whose barriers they carry
//! (1Pipe, sections 3.1 and 6.2.3).
//!
//! [`plan`] turns a [`Topology`] into a [`Plan`], or returns everything that is wrong with it. Routes are
//! assumed to be shortest paths, with all paths of equal cost in use. Every switch is two nodes of the
//! routing graph (figure 3): *up*, fed from below, and *down*, fed from above and by routes that turn round
//! at the switch; so a link has to lead up or down, and a route must not go up after it has gone down.

mod hash;
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
use core::net::IpAddr;
use onepipe::control::FIRST_INCARNATION_QP;
use onepipe::process::{self, Peer};
use onepipe::{ClockSource, OnePipe, Timestamp};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use routes::{Costs, Graph};
use std::collections::{BTreeMap, BTreeSet};
use switch::{Nanos, PortId, forward};

/// Configuration of all representatives and hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// By switch
    pub switches: Vec<PlannedSwitch>,
    /// By host: destination of its own beacons, for each of its switches. Empty for hosts that send no
    /// messages
    pub hosts: Vec<Vec<Uplink>>,
}

/// Link of a host that sends messages to one of its switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// The switch
    pub switch: usize,
    /// Beacons to the switch's representative
    pub beacons: Beacons,
    /// Beacons to its standby
    pub standby: Option<Beacons>,
}

/// A switch and its representative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSwitch {
    /// Distance from the hosts
    pub layer: u32,
    /// Host that keeps the switch's barriers
    pub representative: usize,
    /// The representative's queue pair for the first link; those of the other links follow
    pub first_qp: Qpn,
    /// The representative's memory for beacons
    pub registers: Registers,
    /// Links, in the order of their queue pairs: to hosts, then to switches below, then to switches above
    pub links: Vec<PlannedLink>,
    /// Second host that keeps the switch's barriers
    pub standby: Option<Standby>,
    /// Sources of the tunnels that end at this switch, in order; empty if it terminates none
    pub tunnel_sources: BTreeSet<IpAddr>,
    /// Whether any host that sends messages is at the switch or below it
    pub has_hosts: bool,
}

/// Second host that keeps a switch's barriers, with queue pairs and memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// The host
    pub host: usize,
    /// Its queue pair for the first link; those of the other links follow
    pub first_qp: Qpn,
    /// Its memory for beacons
    pub registers: Registers,
    /// Links, in the order of those of the switch
    pub links: Vec<PlannedLink>,
}

/// Link of a switch: both directions, on one of which the switch's beacons are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedLink {
    /// Node at the other end
    pub to: Node,
    /// Side of the switch that this node is on
    pub side: Side,
    /// Beacons sent on the link
    pub beacons: Beacons,
    /// Beacons sent on the link to the standby of the switch at the other end
    pub standby: Option<Beacons>,
}

/// One of the hosts that keep a switch's barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Representative,
    Standby,
}

impl Seat {
    const ALL: [Self; 2] = [Self::Representative, Self::Standby];
}

impl PlannedSwitch {
    /// Returns the hosts that keep the switch's barriers: the representative, and its standby.
    pub fn hosts(&self) -> impl Iterator<Item = usize> {
        core::iter::once(self.representative).chain(self.standby.as_ref().map(|standby| standby.host))
    }

    /// Returns the host of a seat, its first queue pair and its memory, if the switch has it.
    fn seat(&self, seat: Seat) -> Option<(usize, Qpn, Registers)> {
        match seat {
            Seat::Representative => Some((self.representative, self.first_qp, self.registers)),
            Seat::Standby => {
                self.standby.as_ref().map(|standby| (standby.host, standby.first_qp, standby.registers))
            }
        }
    }
}

/// Destination of the beacons for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beacons {
    /// Whether routes lead the beacons over the link
    pub crossing: Crossing,
    /// Detour that leads them over the link, unless all routes do
    pub detour: Detour,
    /// Destination MAC address of the frames
    pub next_hop: MacAddr,
    /// Address of the neighbour, or of its representative
    pub address: IpAddr,
    /// Queue pair there
    pub qpn: Qpn,
    /// Form of the beacons
    pub form: BeaconForm,
}

/// Route of the beacons of one direction of a link
#[derive(Clone, Copy)]
struct BeaconPath {
    /// Host that sends the beacons
    from: usize,
    /// Switch that this host sends them to
    via: usize,
    /// Node at which the link begins
    near: Node,
    /// Node at which the link ends
    far: Node,
    /// Host that receives the beacons
    to: usize,
    /// Seat of this host, if a switch is there
    seat: Seat,
}

struct Planner<'a> {
    topology: &'a Topology,
    graph: Graph,
    /// Costs of routes to hosts, by the switches that the hosts are at
    costs: BTreeMap<Vec<usize>, Costs>,
    plan: Plan,
    problems: Vec<Problem>,
}

/// Plans a topology.
///
/// # Errors
/// All problems found by the first check that fails.
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
    planner.check_queue_pairs();
    planner.send_beacons();
    if planner.problems.is_empty() { Ok(planner.plan) } else { Err(planner.problems) }
}

/// Returns each switch's representative: the host that was named, or the nearest one; among equally near
/// ones, the one that sends no messages and represents the fewest switches.
fn representatives(topology: &Topology, graph: &Graph) -> Result<Vec<usize>, Vec<Problem>> {
    let mut switches_of = vec![0; topology.hosts.len()];
    for host in topology.switches.iter().flat_map(|switch| [switch.representative, switch.standby]).flatten()
    {
        switches_of[host] += 1;
    }
    let mut problems = Vec::new();
    let mut representatives = Vec::new();
    for (number, switch) in topology.switches.iter().enumerate() {
        let costs = graph.costs(&[(number, 0)]);
        // The host sends through the first of its switches, and is reached through any.
        let cost = |host: &Host| {
            costs.from(host.switches[0])?;
            host.switches.iter().filter_map(|&at| costs.from(at)).min()
        };
        let named = [switch.representative, switch.standby].into_iter().flatten();
        let mut disconnected = named.filter(|&host| cost(&topology.hosts[host]).is_none()).peekable();
        if disconnected.peek().is_some() {
            problems.extend(disconnected.map(|host| Problem::Disconnected { switch: number, host }));
            continue;
        }
        let nearest = || {
            let hosts = topology.hosts.iter().enumerate();
            let hosts = hosts.filter(|&(at, host)| host.represents && switch.standby != Some(at));
            // Prefer a host that sends no messages.
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

/// Returns the plan without beacons, with layers, representatives, links and numbers.
fn skeleton(topology: &Topology, layers: &[u32], representatives: &[usize]) -> Plan {
    let placeholder = Beacons {
        crossing: Crossing::Always,
        detour: Vec::new(),
        next_hop: MacAddr::default(),
        address: IpAddr::from([0; 4]),
        qpn: topology.settings.host_qp,
        form: BeaconForm::Datagram,
    };
    let link = |to, side| PlannedLink { to, side, beacons: placeholder.clone(), standby: None };
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
    let mut take = |host: usize, links: usize| {
        let before = used[host];
        used[host] += links as u32;
        let va = registers.va + Registers::SIZE * u64::from(before);
        (Qpn::new(first_qp.get() + before), Registers { va, ..registers })
    };
    let switches = links.into_iter().enumerate().map(|(number, links)| {
        let representative = representatives[number];
        let (first_qp, registers) = take(representative, links.len());
        let standby = topology.switches[number].standby.map(|host| {
            let (first_qp, registers) = take(host, links.len());
            Standby { host, first_qp, registers, links: links.clone() }
        });
        PlannedSwitch {
            layer: layers[number],
            representative,
            first_qp,
            registers,
            links,
            standby,
            tunnel_sources: BTreeSet::new(),
            has_hosts: has_hosts[number],
        }
    });
    Plan { switches: switches.collect(), hosts: vec![Vec::new(); topology.hosts.len()] }
}

impl Planner<'_> {
    /// Refuses queue pairs that the controller gives to incarnations, and standbys where nodes exchange clock beacons.
    fn check_queue_pairs(&mut self) {
        if self.topology.settings.clock_source == ClockSource::Beacons {
            let switches = (0..).zip(&self.plan.switches);
            let with_standby = switches.filter(|(_, planned)| planned.standby.is_some());
            self.problems.extend(with_standby.map(|(n, _)| Problem::StandbyWithClocks(n)));
        }
        if self.topology.settings.fail_after_intervals.is_none() {
            return;
        }
        let last = |planned: &PlannedSwitch| {
            let standby = planned.standby.as_ref().map_or(0, |standby| standby.first_qp.get());
            planned.first_qp.get().max(standby) + planned.links.len() as u32 - 1
        };
        let last = self.plan.switches.iter().map(last).enumerate();
        let above = last.filter(|&(_, last)| last >= FIRST_INCARNATION_QP);
        self.problems.extend(above.map(|(switch, last)| Problem::QueuePairs { switch, last }));
    }

    fn send_beacons(&mut self) {
        for switch in 0..self.topology.switches.len() {
            for seat in Seat::ALL {
                self.send_beacons_of(switch, seat);
            }
        }
        let uplinks: Vec<_> = self
            .topology
            .senders()
            .flat_map(|(number, host)| host.switches.iter().map(move |&switch| (number, switch)))
            .collect();
        for (from, switch) in uplinks {
            let [beacons, standby] =
                self.beacons_to_both((from, switch), Node::Host(from), Node::Switch(switch));
            let beacons = beacons.expect("every switch has a representative");
            self.plan.hosts[from].push(Uplink { switch, beacons, standby });
        }
    }

    /// Plans the beacons of a switch's representative, or of its standby.
    fn send_beacons_of(&mut self, switch: usize, seat: Seat) {
        let Some((from, ..)) = self.plan.switches[switch].seat(seat) else { return };
        let via = self.topology.hosts[from].switches[0];
        for number in 0..self.plan.switches[switch].links.len() {
            let far = self.plan.switches[switch].links[number].to;
            let [beacons, standby] = self.beacons_to_both((from, via), Node::Switch(switch), far);
            let planned = &mut self.plan.switches[switch];
            let links = match (seat, &mut planned.standby) {
                (Seat::Standby, Some(standby)) => &mut standby.links,
                _ => &mut planned.links,
            };
            links[number].beacons = beacons.expect("every link has two ends");
            links[number].standby = standby;
        }
    }

    /// Returns the destinations of the beacons from one end of a link to each seat of the other end. They leave
    /// through the switch `via`.
    fn beacons_to_both(
        &mut self,
        (from, via): (usize, usize),
        near: Node,
        far: Node,
    ) -> [Option<Beacons>; 2] {
        Seat::ALL.map(|seat| {
            let to = match far {
                Node::Host(host) => (seat == Seat::Representative).then_some(host)?,
                Node::Switch(other) => self.plan.switches[other].seat(seat)?.0,
            };
            Some(self.beacons(BeaconPath { from, via, near, far, to, seat }))
        })
    }

    /// Returns the destination of the beacons from one end of a link to the other.
    fn beacons(&mut self, path: BeaconPath) -> Beacons {
        let crossing = self.crossing(path);
        let detour = if crossing == Crossing::Always { Vec::new() } else { self.detour(path) };
        let to = &self.topology.hosts[path.to];
        let (qpn, form) = match path.far {
            Node::Host(_) => (self.topology.settings.host_qp, BeaconForm::Datagram),
            Node::Switch(switch) => {
                let there = &self.plan.switches[switch];
                let number =
                    there.links.iter().position(|link| link.to == path.near).expect("links have two ends");
                let (_, first_qp, registers) = there.seat(path.seat).expect("the path ends there");
                let (va, rkey) = (registers.va_of(number as u16), registers.rkey);
                // A WRITE does not name the incarnation of its sender.
                let form = match self.topology.settings.fail_after_intervals {
                    Some(_) => BeaconForm::Datagram,
                    None => BeaconForm::Write { va, rkey },
                };
                (Qpn::new(first_qp.get() + number as u32), form)
            }
        };
        let next_hop = self.next_hop(path, !detour.is_empty());
        Beacons { crossing, detour, next_hop, address: to.address, qpn, form }
    }

    fn crossing(&mut self, path: BeaconPath) -> Crossing {
        let BeaconPath { from, via, near, far, to, .. } = path;
        if from == to {
            // What a host sends to itself passes no link.
            return Crossing::Never;
        }
        let Node::Switch(near) = near else { return Crossing::Always };
        let at = &self.topology.hosts[to].switches;
        if !self.costs.contains_key(at) {
            self.costs.insert(at.clone(), self.graph.costs_to_host(self.topology, to));
        }
        self.graph.crossing(&self.costs[at], via, near, far)
    }

    /// Returns the switches at the ends of the link, whose tunnels lead over it.
    fn detour(&mut self, path: BeaconPath) -> Detour {
        if let (Node::Switch(near), Node::Switch(far)) = (path.near, path.far)
            && !self.graph.is_direct(near, far)
        {
            self.problems.push(Problem::NotDirect(near, far));
        }
        let mut detour = Detour::new();
        let mut source = self.topology.hosts[path.from].address;
        for end in [path.near, path.far] {
            let Node::Switch(switch) = end else { continue };
            let Some(address) = self.topology.switches[switch].tunnel else {
                self.problems.push(Problem::NoTunnel { switch, near: path.near, far: path.far });
                continue;
            };
            self.plan.switches[switch].tunnel_sources.insert(source);
            source = address;
            detour.push(address);
        }
        detour
    }

    /// Returns the destination MAC address of a host's frames: a neighbour in the same subnet, or the switch,
    /// which routes.
    fn next_hop(&mut self, path: BeaconPath, has_detour: bool) -> MacAddr {
        self.topology.next_hop_via(path.from, path.via, path.to, has_detour).unwrap_or_else(|| {
            let missing = Problem::NoMac { switch: path.via, host: path.from };
            if !self.problems.contains(&missing) {
                self.problems.push(missing);
            }
            MacAddr::default()
        })
    }
}

impl Host {
    /// Returns whether an address is in the host's own subnet.
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
    /// Returns the configuration of the process on a host, as far as the plan determines it, and the switch
    /// of its link: the first one, if the host is at several. `None` for a host that sends no messages, if a
    /// host that does has no number, and for one whose next hop to a peer is unknown.
    pub fn process(&self, topology: &Topology, number: usize) -> Option<(usize, process::Config)> {
        let Uplink { switch, beacons, standby } = self.hosts[number].first()?;
        let settings = &topology.settings;
        let peer = |host: usize, mac| {
            let Host { id, address, .. } = topology.hosts[host];
            Some(Peer { id: id?, mac, address, qpn: settings.host_qp })
        };
        let end = |beacons: &Beacons| process::BeaconPeer {
            mac: beacons.next_hop,
            address: beacons.address,
            qpn: beacons.qpn,
            detour: beacons.detour.clone(),
        };
        let mut config = process::Config::new(peer(number, topology.hosts[number].mac)?, end(beacons));
        config.standby = standby.as_ref().map(end);
        let peers = topology.senders().filter(|(other, _)| *other != number);
        let peers = peers.map(|(other, _)| peer(other, topology.next_hop(number, other)?));
        config.peers = peers.collect::<Option<_>>()?;
        (config.beacon_interval, config.traffic_class) = (settings.beacon_interval, settings.traffic_class);
        (config.ahead_max, config.timeout) = (settings.ahead_max, settings.timeout);
        (config.clock_error, config.clock_source) = (settings.clock_error, settings.clock_source);
        config.stall_after = Nanos(100 * settings.beacon_interval.0);
        Some((*switch, config))
    }

    /// Returns the configuration of a switch's representative, whose host has one port.
    pub fn config(&self, topology: &Topology, switch: usize) -> Config {
        let PlannedSwitch { representative, first_qp, registers, links, .. } = &self.switches[switch];
        self.config_of(topology, switch, (*representative, *first_qp, *registers), links)
    }

    /// Returns the configuration of the standby of a switch's representative, if it has one.
    pub fn standby_config(&self, topology: &Topology, switch: usize) -> Option<Config> {
        let Standby { host, first_qp, registers, links } = self.switches[switch].standby.as_ref()?;
        Some(self.config_of(topology, switch, (*host, *first_qp, *registers), links))
    }

    fn config_of(
        &self,
        topology: &Topology,
        switch: usize,
        (host, first_qp, registers): (usize, Qpn, Registers),
        links: &[PlannedLink],
    ) -> Config {
        let (planned, host) = (&self.switches[switch], &topology.hosts[host]);
        let link = |link: &PlannedLink| config::Link {
            side: link.side,
            port: PortId(0),
            mac: link.beacons.next_hop,
            address: link.beacons.address,
            detour: link.beacons.detour.clone(),
            qpn: link.beacons.qpn,
            beacon: link.beacons.form,
            standby: link.standby.as_ref().map(|beacons| config::End {
                mac: beacons.next_hop,
                address: beacons.address,
                detour: beacons.detour.clone(),
                qpn: beacons.qpn,
                beacon: beacons.form,
            }),
        };
        let Settings { beacon_interval, dead_after_intervals, traffic_class, ahead_max, .. } =
            topology.settings;
        let join_window = Nanos(10 * u64::from(dead_after_intervals) * beacon_interval.0);
        Config {
            forward: forward::Config::bridge(1, 64),
            incarnation: Incarnation::Host,
            pace: Pace::Passing,
            mac: host.mac,
            addresses: vec![host.address],
            qkey: OnePipe::QKEY,
            first_qp,
            registers,
            beacon_interval,
            dead_after_intervals,
            fail_after_intervals: topology.settings.fail_after_intervals,
            join_window,
            ahead_max,
            clock_source: topology.settings.clock_source,
            clock: Timestamp::default(),
            traffic_class,
            links: links.iter().map(link).collect(),
            evict_after: Nanos(10 * join_window.0),
            layer: planned.layer,
            declares: true,
            bug: None,
        }
    }
}

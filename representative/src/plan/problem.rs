//! What is wrong with a topology.

use super::topology::{Node, Topology};
use core::net::IpAddr;
use std::collections::BTreeMap;

/// Why there is no plan. [`describe`](Self::describe) says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No host sends messages
    NoHosts,
    /// A host is at no switch, or at one twice
    NotAtOneSwitch(usize),
    /// A link joins a switch with itself
    ToItself(usize),
    /// Two links join the same switches
    Parallel(usize, usize),
    /// Two have the same address
    SameAddress(Node, Node, IpAddr),
    /// A host has the MAC address of another host, or of a switch
    SameMac(Node, Node),
    /// One has an address of another version of IP than the first host
    Version(Node),
    /// No way leads to a switch from hosts that send messages
    Unreached(usize),
    /// A link joins switches of the same layer
    Level {
        /// The link
        link: usize,
        /// Their layer
        layer: u32,
        /// If there is another way between the two: the loop, with the first switch at both ends
        cycle: Option<Vec<usize>>,
    },
    /// A route goes down and up again
    Valley {
        /// The host that it begins at
        from: usize,
        /// The switches up to the place
        way: Vec<usize>,
        /// The host that it leads to
        to: usize,
    },
    /// No host could stand for a switch
    NoRepresentative(usize),
    /// No way leads between a switch and the first switch of the host that is to stand for it
    Disconnected {
        /// The switch
        switch: usize,
        /// The host that was named
        host: usize,
    },
    /// Beacons need a router, and its MAC address is not known
    NoMac {
        /// The router
        switch: usize,
        /// A host that is at it
        host: usize,
    },
    /// Beacons for a link need a detour, and a switch has no address at which tunnels end
    NoTunnel {
        /// The switch
        switch: usize,
        /// The link, from here
        near: Node,
        /// to there
        far: Node,
    },
    /// Beacons for a link need a detour, and not even its own ends use it to get to each other
    NotDirect(usize, usize),
}

/// What can be seen without looking at routes.
pub(super) fn check(topology: &Topology) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    if topology.senders().next().is_none() {
        problems.push(Problem::NoHosts);
    }
    for (number, host) in topology.hosts.iter().enumerate() {
        let mut switches = host.switches.clone();
        switches.sort_unstable();
        switches.dedup();
        if switches.is_empty() || switches.len() < host.switches.len() {
            problems.push(Problem::NotAtOneSwitch(number));
        }
    }
    let mut joined = BTreeMap::new();
    for (number, link) in topology.links.iter().enumerate() {
        let [a, b] = link.ends;
        if a == b {
            problems.push(Problem::ToItself(number));
        } else if let Some(&first) = joined.get(&(a.min(b), a.max(b))) {
            problems.push(Problem::Parallel(first, number));
        } else {
            joined.insert((a.min(b), a.max(b)), number);
        }
    }
    let mut addresses = BTreeMap::new();
    let hosts = topology.hosts.iter().enumerate().map(|(number, host)| (Node::Host(number), host.address));
    let switches = topology.switches.iter().enumerate();
    let tunnels = switches.filter_map(|(number, switch)| Some((Node::Switch(number), switch.tunnel?)));
    for (node, address) in hosts.chain(tunnels) {
        if topology.hosts.first().is_some_and(|first| first.address.is_ipv6() != address.is_ipv6()) {
            problems.push(Problem::Version(node));
        }
        if let Some(&first) = addresses.get(&address) {
            problems.push(Problem::SameAddress(first, node, address));
        } else {
            addresses.insert(address, node);
        }
    }
    // Switches may share one, as those do that are each the gateway of their hosts.
    let switches = topology.switches.iter().enumerate();
    let mut macs: BTreeMap<_, _> =
        switches.filter_map(|(number, switch)| Some((switch.mac?.0, Node::Switch(number)))).collect();
    for (number, host) in topology.hosts.iter().enumerate() {
        if let Some(&first) = macs.get(&host.mac.0) {
            problems.push(Problem::SameMac(first, Node::Host(number)));
        } else {
            macs.insert(host.mac.0, Node::Host(number));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// What of a topology a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// All of it
    Topology,
    /// A host or a switch
    Node(Node),
    /// A link between switches
    Link(usize),
}

impl Problem {
    /// What it is about, and what else belongs to it.
    pub fn about(&self) -> (About, Option<About>) {
        let node = |node| (About::Node(node), None);
        match *self {
            Self::NoHosts => (About::Topology, None),
            Self::NotAtOneSwitch(host) | Self::Valley { from: host, .. } => node(Node::Host(host)),
            Self::ToItself(link) | Self::Level { link, .. } => (About::Link(link), None),
            Self::Parallel(first, link) => (About::Link(link), Some(About::Link(first))),
            Self::SameAddress(first, second, _) | Self::SameMac(first, second) => {
                (About::Node(second), Some(About::Node(first)))
            }
            Self::Version(of) => node(of),
            Self::Unreached(switch)
            | Self::NoRepresentative(switch)
            | Self::NoMac { switch, .. }
            | Self::NoTunnel { switch, .. } => node(Node::Switch(switch)),
            Self::Disconnected { switch, host } => {
                (About::Node(Node::Switch(switch)), Some(About::Node(Node::Host(host))))
            }
            Self::NotDirect(near, far) => {
                (About::Node(Node::Switch(near)), Some(About::Node(Node::Switch(far))))
            }
        }
    }

    /// What is wrong, and what to do about it.
    pub fn describe(&self, topology: &Topology) -> (String, String) {
        let name = |node| format!("`{}`", topology.name(node));
        let switch = |number| name(Node::Switch(number));
        let host = |number| name(Node::Host(number));
        let way = |switches: &[usize]| switches.iter().map(|&at| switch(at)).collect::<Vec<_>>().join(" - ");
        match self {
            Self::NoHosts => (
                "no host sends messages".into(),
                "add hosts: without messages there is nothing to order".into(),
            ),
            Self::NotAtOneSwitch(number) => {
                (format!("{} is at no switch, or at one twice", host(*number)), "name each of its switches once".into())
            }
            Self::ToItself(link) => {
                (format!("a link from {} to itself", switch(topology.links[*link].ends[0])), "name two switches".into())
            }
            Self::Parallel(_, link) => {
                let [a, b] = topology.links[*link].ends;
                (
                    format!("{} and {} are joined twice", switch(a), switch(b)),
                    "leave one away: between two links, messages and beacons do not keep their order".into(),
                )
            }
            Self::SameAddress(first, second, address) => (
                format!("{} and {} have the same address, {address}", name(*first), name(*second)),
                "give each its own".into(),
            ),
            Self::SameMac(first, second) => (
                format!("{} and {} have the same MAC address", name(*first), name(*second)),
                "give each its own".into(),
            ),
            Self::Version(node) => (
                format!("{} has an address of another version of IP than the first host", name(*node)),
                "give all IPv4 addresses, or all IPv6 addresses".into(),
            ),
            Self::Unreached(number) => (
                format!("no links lead from {} to a host that sends messages", switch(*number)),
                "add the links, or leave the switch out".into(),
            ),
            Self::Level { link, layer, cycle } => {
                let [a, b] = topology.links[*link].ends;
                let message = match cycle {
                    Some(cycle) => format!("a loop: {}", way(cycle)),
                    None => format!("neither of {} and {} is above the other", switch(a), switch(b)),
                };
                let help = format!(
                    "{} and {} are both in layer {layer}, and a barrier would wait for itself: take the link away, or say with \
                     `layer` which is nearer to the hosts, if it is routes up and down that use it",
                    switch(a),
                    switch(b)
                );
                (message, help)
            }
            Self::Valley { from, way: through, to } => (
                format!("a route from {} to {} goes down and up again: {}", host(*from), host(*to), way(through)),
                "no barrier speaks of such messages, and they are dropped: change the costs or the layers, so that shortest paths \
                 go up and then down"
                    .into(),
            ),
            Self::NoRepresentative(number) => {
                let joined = topology.links.iter().filter_map(|link| match link.ends {
                    [a, b] if a == *number => Some(switch(b)),
                    [a, b] if b == *number => Some(switch(a)),
                    _ => None,
                });
                let joined: Vec<_> = joined.collect();
                let links = if joined.is_empty() { "its hosts".into() } else { joined.join(", ") };
                (
                    format!("{} has no representative, and so its links have none: to {links}", switch(*number)),
                    "name one with `representative = \"...\"`, or let hosts be chosen: do not forbid it to all".into(),
                )
            }
            Self::Disconnected { switch: at, host: who } => (
                format!("{} is to stand for {}, and no links lead from there to it", host(*who), switch(*at)),
                "name a host in the switch's own part of the network, or add the links that join the two: no tunnel leads where \
                 nothing is routed. A host sends through the first of its switches"
                    .into(),
            ),
            Self::NoMac { switch: at, host: who } => (
                format!("{} has no `mac`, and {} sends beacons through it", switch(*at), host(*who)),
                "add the switch's MAC address as a router, such as `mac = \"02:00:00:00:01:01\"`".into(),
            ),
            Self::NoTunnel { switch: at, near, far } => (
                format!("{} has no `tunnel`, and beacons from {} to {} need a detour", switch(*at), name(*near), name(*far)),
                "add an address of the switch at which tunnels end, such as `tunnel = \"10.255.0.1\"`; or put the \
                 representatives next to their switches"
                    .into(),
            ),
            Self::NotDirect(near, far) => (
                format!("routes from {} to {} do not use the link between them, or not only", switch(*near), switch(*far)),
                "beacons for the link need a detour, and cannot get onto it: make the link's `cost` lower than that of any way \
                 around it"
                    .into(),
            ),
        }
    }
}

//! Problems of a topology.

use super::topology::{Node, Topology};
use core::net::IpAddr;
use onepipe::control::FIRST_INCARNATION_QP;
use std::collections::BTreeMap;

/// Reason why there is no plan. [`describe`](Self::describe) returns a message.
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
    /// Two nodes have the same address
    SameAddress(Node, Node, IpAddr),
    /// A host has the MAC address of another host, or of a switch
    SameMac(Node, Node),
    /// A host sends messages, but its process has no number; see
    /// [`missing_ids`](Topology::missing_ids)
    NoId(usize),
    /// The processes of two hosts have the same number
    SameId(usize, usize),
    /// A node has an address of another IP version than the first host
    Version(Node),
    /// No links lead to a switch from hosts that send messages
    Unreached(usize),
    /// A link joins switches of the same layer
    Level {
        /// The link
        link: usize,
        /// Layer of both switches
        layer: u32,
        /// The loop, with the first switch at both ends, if there is another path between the two switches
        cycle: Option<Vec<usize>>,
    },
    /// A route goes down and up again
    Valley {
        /// Host at which the route begins
        from: usize,
        /// Switches of the route, up to the one where it goes up again
        path: Vec<usize>,
        /// Host to which the route leads
        to: usize,
    },
    /// No host can represent a switch
    NoRepresentative(usize),
    /// No links lead between a switch and the first switch of the host that is to represent it
    Disconnected {
        /// The switch
        switch: usize,
        /// Host that was named
        host: usize,
    },
    /// A switch's standby is its representative
    SameHost {
        /// The switch
        switch: usize,
        /// The host
        host: usize,
    },
    /// A switch has a standby, and clocks follow clock beacons, which have one sender for each switch
    StandbyWithClocks(usize),
    /// Beacons need a router whose MAC address is unknown
    NoMac {
        /// The router
        switch: usize,
        /// A host at the router
        host: usize,
    },
    /// Beacons for a link need a detour, and a switch has no address at which tunnels end
    NoTunnel {
        /// The switch
        switch: usize,
        /// Beginning of the link
        near: Node,
        /// End of the link
        far: Node,
    },
    /// Beacons for a link need a detour, but even the routes between the link's own ends do not use the link
    /// alone
    NotDirect(usize, usize),
    /// The queue pairs of a switch's representative reach those of incarnations, which the controller gives out
    QueuePairs {
        /// The switch
        switch: usize,
        /// Its last queue pair
        last: u32,
    },
}

/// Checks everything that does not depend on routes.
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
    for (number, switch) in topology.switches.iter().enumerate() {
        if let Some(host) = switch.standby.filter(|_| switch.standby == switch.representative) {
            problems.push(Problem::SameHost { switch: number, host });
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
    // Switches may share a MAC address, as gateways with one virtual address do.
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
    let mut ids = BTreeMap::new();
    for (number, host) in topology.hosts.iter().enumerate() {
        let Some(id) = host.id else { continue };
        if let Some(&first) = ids.get(&id) {
            problems.push(Problem::SameId(first, number));
        } else {
            ids.insert(id, number);
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Part of a topology that a problem is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The whole topology
    Topology,
    /// A host or a switch
    Node(Node),
    /// A link between switches
    Link(usize),
}

impl Problem {
    /// Returns the part of the topology that has the problem, and a second part that is involved.
    pub fn about(&self) -> (About, Option<About>) {
        let node = |node| (About::Node(node), None);
        match *self {
            Self::NoHosts => (About::Topology, None),
            Self::NotAtOneSwitch(host) | Self::NoId(host) | Self::Valley { from: host, .. } => {
                node(Node::Host(host))
            }
            Self::SameId(first, second) => {
                (About::Node(Node::Host(second)), Some(About::Node(Node::Host(first))))
            }
            Self::ToItself(link) | Self::Level { link, .. } => (About::Link(link), None),
            Self::Parallel(first, link) => (About::Link(link), Some(About::Link(first))),
            Self::SameAddress(first, second, _) | Self::SameMac(first, second) => {
                (About::Node(second), Some(About::Node(first)))
            }
            Self::Version(of) => node(of),
            Self::Unreached(switch)
            | Self::NoRepresentative(switch)
            | Self::NoMac { switch, .. }
            | Self::QueuePairs { switch, .. }
            | Self::StandbyWithClocks(switch)
            | Self::NoTunnel { switch, .. } => node(Node::Switch(switch)),
            Self::Disconnected { switch, host } | Self::SameHost { switch, host } => {
                (About::Node(Node::Switch(switch)), Some(About::Node(Node::Host(host))))
            }
            Self::NotDirect(near, far) => {
                (About::Node(Node::Switch(near)), Some(About::Node(Node::Switch(far))))
            }
        }
    }

    /// Returns a description of the problem, and a remedy.
    pub fn describe(&self, topology: &Topology) -> (String, String) {
        let name = |node| format!("`{}`", topology.name(node));
        let switch = |number| name(Node::Switch(number));
        let host = |number| name(Node::Host(number));
        let path = |switches: &[usize]| switches.iter().map(|&at| switch(at)).collect::<Vec<_>>().join(" - ");
        match self {
            Self::NoHosts => (
                "no host sends messages".into(),
                "add a host with `messages = true`, which is the default".into(),
            ),
            Self::NotAtOneSwitch(number) => {
                (format!("{} is at no switch, or at the same one twice", host(*number)), "name each of its switches once".into())
            }
            Self::ToItself(link) => {
                (format!("a link from {} to itself", switch(topology.links[*link].ends[0])), "name two switches".into())
            }
            Self::Parallel(_, link) => {
                let [a, b] = topology.links[*link].ends;
                (
                    format!("{} and {} are joined twice", switch(a), switch(b)),
                    "remove one: across two links, messages and beacons do not keep their order".into(),
                )
            }
            Self::SameAddress(first, second, address) => (
                format!("{} and {} have the same address, {address}", name(*first), name(*second)),
                "give each its own address".into(),
            ),
            Self::SameMac(first, second) => (
                format!("{} and {} have the same MAC address", name(*first), name(*second)),
                "give each its own address".into(),
            ),
            Self::NoId(number) => no_id(topology, *number),
            Self::SameId(first, second) => same_id(topology, *first, *second),
            Self::Version(node) => (
                format!("{} has an address of another IP version than the first host", name(*node)),
                "use IPv4 addresses for all nodes, or IPv6 addresses for all".into(),
            ),
            Self::Unreached(number) => (
                format!("no links lead from {} to a host that sends messages", switch(*number)),
                "add the links, or remove the switch".into(),
            ),
            Self::Level { link, layer, cycle } => {
                let [a, b] = topology.links[*link].ends;
                let message = match cycle {
                    Some(cycle) => format!("a loop: {}", path(cycle)),
                    None => format!("neither of {} and {} is above the other", switch(a), switch(b)),
                };
                let help = format!(
                    "{} and {} are both in layer {layer}, and a barrier would wait for itself: remove the link, or set \
                     `layer` of the switch farther from the hosts to a higher number, if routes use the link up and down",
                    switch(a),
                    switch(b)
                );
                (message, help)
            }
            Self::Valley { from, path: through, to } => (
                format!("a route from {} to {} goes down and up again: {}", host(*from), host(*to), path(through)),
                "no barrier covers such messages, so they are dropped: change the costs or the layers so that shortest paths \
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
                    format!("{} has no representative, so its links have none: to {links}", switch(*number)),
                    "name a host with `representative = \"...\"`, or set `represents = true` for at least one host".into(),
                )
            }
            Self::Disconnected { switch: at, host: index } => (
                format!("{} is to represent {}, but no links connect the two", host(*index), switch(*at)),
                "name a host in the switch's own part of the network, or add links between the parts: a tunnel needs a route. \
                 A host sends through the first of its switches"
                    .into(),
            ),
            Self::SameHost { switch: at, host: index } => same_host(&switch(*at), &host(*index)),
            Self::StandbyWithClocks(at) => standby_with_clocks(&switch(*at)),
            Self::QueuePairs { switch: at, last } => queue_pairs(&switch(*at), *last),
            Self::NoMac { switch: at, host: index } => (
                format!("{} has no `mac`, but {} sends beacons through it", switch(*at), host(*index)),
                "add the switch's MAC address as a router, such as `mac = \"02:00:00:00:01:01\"`".into(),
            ),
            Self::NoTunnel { switch: at, near, far } => (
                format!("{} has no `tunnel`, but beacons from {} to {} need a detour", switch(*at), name(*near), name(*far)),
                "add an address of the switch at which tunnels end, such as `tunnel = \"10.255.0.1\"`; or put the \
                 representatives next to their switches"
                    .into(),
            ),
            Self::NotDirect(near, far) => (
                format!("routes from {} to {} do not use the link between them, or not that link alone", switch(*near), switch(*far)),
                "beacons for the link need a detour, but cannot get onto it: make the link's `cost` lower than that of any path \
                 around it"
                    .into(),
            ),
        }
    }
}

/// Describes a host that is both the representative and the standby of a switch.
fn same_host(switch: &str, host: &str) -> (String, String) {
    (
        format!("{host} is both the representative and the standby of {switch}"),
        "name another host with `standby = \"...\"`, or remove it: what ends one of the two must not end the other"
            .into(),
    )
}

/// Describes a switch with a standby in a network whose clocks follow clock beacons.
fn standby_with_clocks(switch: &str) -> (String, String) {
    (
        format!("{switch} has a standby, and `clock_from` is \"beacons\""),
        "remove `standby`, or write `clock_from = \"host\"`: nodes exchange clock beacons with one representative of \
         each switch"
            .into(),
    )
}

fn queue_pairs(switch: &str, last: u32) -> (String, String) {
    (
        format!("the representative of {switch} would have queue pair {last:#x}"),
        format!(
            "lower `first_qp`, or give the host fewer switches: with a controller, queue pairs from \
             {FIRST_INCARNATION_QP:#x} on are those of incarnations"
        ),
    )
}

/// Describes a host that sends messages and whose process has no number.
fn no_id(topology: &Topology, host: usize) -> (String, String) {
    let free = topology.numbering().into_iter().find(|&(at, _)| at == host).map_or(0, |(_, id)| id.0);
    let help =
        format!("write `id = {free}`, or run `understudy plan` with `--number`, which numbers all hosts");
    (format!("`{}` sends messages but has no `id`", topology.hosts[host].name), help)
}

/// Describes two hosts whose processes have the same number.
fn same_id(topology: &Topology, first: usize, second: usize) -> (String, String) {
    let [first, second] = [first, second].map(|host| &topology.hosts[host]);
    let message = format!(
        "`{}` and `{}` have the same `id`, {}",
        first.name,
        second.name,
        second.id.unwrap_or_default()
    );
    (message, "give each host its own: equal timestamps are ordered by it".into())
}

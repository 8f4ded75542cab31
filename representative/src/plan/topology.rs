//! A network as its operator knows it: what a plan is made of.

use crate::config::Registers;
use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::OnePipe;
use switch::Nanos;

/// A network of hosts and switches. Things are named by their places in these lists.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Topology {
    /// What holds for all
    pub settings: Settings,
    /// The switches
    pub switches: Vec<Switch>,
    /// The hosts
    pub hosts: Vec<Host>,
    /// The links between switches
    pub links: Vec<Link>,
}

/// What holds for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between beacons
    pub beacon_interval: Nanos,
    /// A link that is silent for more intervals than this is dead
    pub dead_after_intervals: u32,
    /// DSCP and ECN of beacons, those of the messages
    pub traffic_class: u8,
    /// The queue pair of every host for beacons
    pub host_qp: Qpn,
    /// The first queue pair of the first representative at a host, and where its registers are; those of a second one follow
    pub first_qp: Qpn,
    /// See `first_qp`
    pub registers: Registers,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            beacon_interval: Nanos::from_micros(3),
            dead_after_intervals: 10,
            traffic_class: 0,
            host_qp: Qpn::new(0x11),
            first_qp: Qpn::new(0x100),
            registers: Registers { va: 0x10_0000, rkey: OnePipe::QKEY },
        }
    }
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Switch {
    /// What it is called
    pub name: String,
    /// How far it is from the hosts: 1 is a top of rack. If not said, one more than the nearest switch with hosts is away
    pub layer: Option<u32>,
    /// Where its tunnels end. Detours need it
    pub tunnel: Option<IpAddr>,
    /// Its MAC address as a router, where its hosts send what is not for their own subnet
    pub mac: Option<MacAddr>,
    /// The host that keeps its barriers; the nearest one if not said
    pub representative: Option<usize>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// What it is called
    pub name: String,
    /// Its address
    pub address: IpAddr,
    /// Length of the prefix of its subnet
    pub prefix: u8,
    /// Its MAC address
    pub mac: MacAddr,
    /// The switches that it is at. What it sends as a representative leaves through the first
    pub switches: Vec<usize>,
    /// Whether it sends messages: if not, its link is none that barriers wait for
    pub messages: bool,
    /// Whether it may be made a representative without having been named
    pub represents: bool,
}

/// A link between switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The switches that it joins
    pub ends: [usize; 2],
    /// What the routing protocol counts for it, 1 at least
    pub cost: u32,
}

/// A host or a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A host
    Host(usize),
    /// A switch
    Switch(usize),
}

impl Topology {
    /// What a node is called
    pub fn name(&self, node: Node) -> &str {
        match node {
            Node::Host(host) => &self.hosts[host].name,
            Node::Switch(switch) => &self.switches[switch].name,
        }
    }

    /// The station that a host sends to, for another host: a neighbour in its own subnet, or its switch, which routes, if that
    /// one's MAC address is known.
    pub fn next_hop(&self, from: usize, to: usize) -> Option<MacAddr> {
        self.next_hop_via(from, self.hosts[from].switches[0], to, false)
    }

    pub(super) fn next_hop_via(
        &self,
        from: usize,
        via: usize,
        to: usize,
        goes_around: bool,
    ) -> Option<MacAddr> {
        let (from, to) = (&self.hosts[from], &self.hosts[to]);
        if !goes_around && from.switches.len() == 1 && from.is_neighbour(to.address) {
            return Some(to.mac);
        }
        self.switches[via].mac
    }

    /// The hosts that send messages
    pub fn senders(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.hosts.iter().enumerate().filter(|(_, host)| host.messages)
    }
}

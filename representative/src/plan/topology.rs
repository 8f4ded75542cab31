//! A network as described by its operator: the input of a plan.

use super::problem::Problem;
use crate::config::Registers;
use core::net::IpAddr;
use onepipe::{ClockSource, OnePipe, ProcessId};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::collections::BTreeSet;
use switch::Nanos;

/// A network of hosts and switches, which are referred to by their indices in these lists.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Topology {
    /// Settings of the whole network
    pub settings: Settings,
    /// Switches
    pub switches: Vec<Switch>,
    /// Hosts
    pub hosts: Vec<Host>,
    /// Links between switches
    pub links: Vec<Link>,
}

/// Settings of the whole network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Interval between beacons, 1 us to 1 ms
    pub beacon_interval: Nanos,
    /// Number of beacon intervals after which a silent link is dead
    pub dead_after_intervals: u32,
    /// Number of beacon intervals after which representatives report a silent link to the controller; `None`:
    /// there is no controller
    pub fail_after_intervals: Option<u32>,
    /// DSCP and ECN of beacons. The DSCP has to be that of the messages
    pub traffic_class: u8,
    /// Barriers and timestamps that are ahead of a node's clock by more than this are refused there
    pub ahead_max: Nanos,
    /// Largest difference between the clocks of two processes, at most `ahead_max`; see
    /// [`process::Config::clock_error`](onepipe::process::Config::clock_error)
    pub clock_error: Nanos,
    /// What the clocks of all nodes follow
    pub clock_source: ClockSource,
    /// Time after which a message that has not been acknowledged has failed. Longer than a process's
    /// `ack_delay`
    pub timeout: Nanos,
    /// Queue pair of every host for beacons
    pub host_qp: Qpn,
    /// First queue pair of the first representative at a host. Its registers begin at `registers`; those of
    /// further representatives follow
    pub first_qp: Qpn,
    /// Registers of the first representative at a host; see [`first_qp`](Self::first_qp)
    pub registers: Registers,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            beacon_interval: Nanos::from_micros(3),
            dead_after_intervals: 10,
            fail_after_intervals: None,
            traffic_class: 0,
            ahead_max: Nanos::from_millis(10),
            clock_error: Nanos::from_micros(100),
            clock_source: ClockSource::Host,
            timeout: Nanos::from_millis(1),
            host_qp: Qpn::new(0x11),
            first_qp: Qpn::new(0x100),
            registers: Registers { va: 0x10_0000, rkey: OnePipe::QKEY },
        }
    }
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Switch {
    /// Name
    pub name: String,
    /// Distance from the hosts, in links: 1 for a ToR switch. If `None`, one more than the distance to the
    /// nearest switch with hosts
    pub layer: Option<u32>,
    /// Address at which its tunnels end. Needed for detours
    pub tunnel: Option<IpAddr>,
    /// MAC address as a router, to which its hosts send packets for other subnets
    pub mac: Option<MacAddr>,
    /// Host that keeps the switch's barriers; the nearest one if `None`
    pub representative: Option<usize>,
    /// Second host that keeps them, another one; none if `None`
    pub standby: Option<usize>,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name
    pub name: String,
    /// Number of its process, which orders equal timestamps. It never changes while processes run
    pub id: Option<ProcessId>,
    /// IP address
    pub address: IpAddr,
    /// Prefix length of its subnet
    pub prefix: u8,
    /// MAC address
    pub mac: MacAddr,
    /// Switches that it is connected to. What it sends as a representative leaves through the first
    pub switches: Vec<usize>,
    /// Whether the host sends messages; if not, no barrier waits for its link
    pub messages: bool,
    /// Whether the host may be chosen as a representative without having been named
    pub represents: bool,
}

/// A link between switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The switches that it joins
    pub ends: [usize; 2],
    /// Cost in the routing protocol, at least 1
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
    /// Returns a number for each host that has none, with the host's index. If no host has a number, it is the
    /// host's place in the list, from 1, as it was before numbers were configured; otherwise one above all.
    pub fn numbering(&self) -> Vec<(usize, ProcessId)> {
        let mut used: BTreeSet<u32> = self.hosts.iter().filter_map(|host| Some(host.id?.0)).collect();
        let mut last = used.last().copied().unwrap_or(0);
        let missing = self.hosts.iter().enumerate().filter(|(_, host)| host.id.is_none());
        let number = |(index, _)| {
            // After the last number, the first that is free.
            last = last.checked_add(1).unwrap_or(1);
            while !used.insert(last) {
                last += 1;
            }
            (index, ProcessId(last))
        };
        missing.map(number).collect()
    }

    /// Returns a problem for each host that sends messages and has no number.
    pub fn missing_ids(&self) -> Vec<Problem> {
        let missing = self.senders().filter(|(_, host)| host.id.is_none());
        missing.map(|(index, _)| Problem::NoId(index)).collect()
    }

    /// Returns the name of a node.
    pub fn name(&self, node: Node) -> &str {
        match node {
            Node::Host(host) => &self.hosts[host].name,
            Node::Switch(switch) => &self.switches[switch].name,
        }
    }

    /// Returns the destination MAC address of frames from one host to another: the other host's in the same
    /// subnet, otherwise that of the first switch, which routes; `None` if that switch has none.
    pub fn next_hop(&self, from: usize, to: usize) -> Option<MacAddr> {
        self.next_hop_via(from, self.hosts[from].switches[0], to, false)
    }

    pub(super) fn next_hop_via(
        &self,
        from: usize,
        via: usize,
        to: usize,
        has_detour: bool,
    ) -> Option<MacAddr> {
        let (from, to) = (&self.hosts[from], &self.hosts[to]);
        if !has_detour && from.switches.len() == 1 && from.is_neighbour(to.address) {
            return Some(to.mac);
        }
        self.switches[via].mac
    }

    /// Returns the hosts that send messages, with their indices.
    pub fn senders(&self) -> impl Iterator<Item = (usize, &Host)> {
        self.hosts.iter().enumerate().filter(|(_, host)| host.messages)
    }
}

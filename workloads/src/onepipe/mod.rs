//! 1Pipe's barriers in trees of switches: hosts that scatter messages at random and deliver below the
//! barrier, with switches of any of the paper's three incarnations between them (1Pipe, sections 4 and 6.2).

mod addresses;
mod behaviour;
mod clocks;
mod commit;
mod fat_tree;
mod host;
mod incarnations;
mod latency;
mod losses;
mod oracle;
mod outages;
mod outsider;
pub mod reliable;
mod seats;
mod traffic;
mod triangle;
mod variation;

pub use addresses::BEACON_INTERVAL;
pub use behaviour::Behaviour;
pub use clocks::ClockCost;
pub use commit::{Controller, Counts};
pub use fat_tree::FatTree;
pub use host::{Arrival, Host, Message, Sent};
pub use incarnations::HostIncarnation;
pub use latency::{Latency, Span};
pub use losses::{Conditions, Explained};
pub use oracle::{Change, ChangeKind, Eligible, Record};
pub use outages::{Failing, Outage, Part, Removal, Trial, Wiring};
pub use outsider::Outsider;
pub use seats::Seat;
pub use triangle::Triangle;

use addresses::{Addresses, CLOCK, FIRST_QP, REGISTERS, host_addresses, shifted_clock, switch_addresses};
use host::Position;
use onepipe::OnePipe;
use onepipe::process::Failure;
use outsider::Forger;
use representative::config::{BeaconForm, Config, Incarnation, Link, Pace, Side};
use representative::{Counters, Refusal, Representative};
use rocev2::ethernet::MacAddr;
use sim::{Clock, EPOCH, Link as Wire, LinkId, Node, NodeId, Switch, Workers, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use switch::forward::config::ForwardingMode;
use switch::forward::{self, Forward};
use switch::{Nanos, PortId, Rng};
use variation::clock_source;

/// Number of intervals after which a silent link is dead
const DEAD_AFTER_INTERVALS: u32 = 10;

/// Returns the configuration of a node that keeps the barriers of a switch, as all networks here have it.
fn representative_config(
    incarnation: Incarnation,
    pace: Pace,
    own: Addresses,
    forward: forward::Config,
    links: Vec<Link>,
) -> Config {
    Config {
        forward,
        incarnation,
        pace,
        mac: own.mac,
        addresses: vec![own.ip.into()],
        qkey: OnePipe::QKEY,
        first_qp: FIRST_QP,
        registers: REGISTERS,
        beacon_interval: BEACON_INTERVAL,
        dead_after_intervals: DEAD_AFTER_INTERVALS,
        fail_after_intervals: None,
        join_window: Nanos::from_micros(300),
        ahead_max: Nanos::from_millis(10),
        clock_source: onepipe::ClockSource::Host,
        clock: CLOCK,
        traffic_class: 0,
        links,
        evict_after: Nanos::from_millis(3),
        layer: 1,
        declares: true,
        bug: None,
    }
}

/// Neighbour at a link of a switch.
struct Neighbour {
    at: Addresses,
    /// The switch; `None` for a host
    switch: Option<NeighbourSwitch>,
}

/// Switch at the other end of a link.
#[derive(Clone, Copy)]
struct NeighbourSwitch {
    number: usize,
    /// Number of the link at that switch
    link: usize,
    incarnation: Incarnation,
}

/// Parameters of a tree of switches with hosts at its leaves.
#[derive(Clone, Copy, Debug)]
pub struct Tree {
    /// Where barriers are kept
    pub incarnation: Incarnation,
    /// Seed from which each switch draws an incarnation of its own; `None` if all have `incarnation`
    pub incarnations: Option<u64>,
    /// Seed from which it is drawn which hosts and switches declare nothing in their beacons, as those of
    /// earlier versions; `None` if all declare
    pub old: Option<u64>,
    /// When switches send beacons
    pub pace: Pace,
    /// Levels of switches
    pub levels: u32,
    /// Switches or hosts below each switch
    pub fanout: usize,
    /// Parameters of every link
    pub link: Wire,
    /// Largest offset of the hosts' clocks (ns). Clocks of switches are off by up to a thousand times as much
    pub skew_ns: u64,
    /// Largest drift of all clocks, in parts per billion
    pub drift_ppb: u64,
    /// Mean time between two scatterings of a host
    pub every: Nanos,
    /// Time for which hosts send
    pub lasts: Nanos,
    /// Behaviour of the hosts
    pub behaviour: Behaviour,
    /// A host outside of the tree that sends forged packets, if any
    pub outsider: Option<Outsider>,
    /// Longest time by which a returning link may be behind
    pub join_window: Nanos,
    /// Host whose 1Pipe clock is wrong from the beginning, and by how many nanoseconds
    pub wrong_host: Option<(usize, i64)>,
    /// Host whose link delays frames by more than all others
    pub far_host: Option<(usize, Nanos)>,
    /// Host whose oscillator is wrong, and by how many parts per billion
    pub wrong_rate: Option<(usize, i64)>,
    /// Seed and largest error (ns) of 1Pipe clocks at switches, half of which are wrong from the beginning
    pub wrong_keepers: Option<(u64, u64)>,
    /// Seed from which a switch that restarts draws its incarnation anew, `Chip` or `SwitchCpu`. It has to be
    /// down for longer than a link without a beacon lives
    pub reincarnate: Option<u64>,
    /// Whether each switch whose barriers a host keeps has a second one, a standby
    pub standby: bool,
    /// Whether a controller gives the representatives incarnations
    pub controlled: bool,
    /// Seed and largest error (ns) of the machines' clocks of all hosts and switches, which follow clock beacons;
    /// `None` if nothing exchanges clock beacons
    pub beacon_clocks: Option<(u64, u64)>,
    /// Workers of each switch that keeps its barriers itself
    pub workers: Workers,
    /// Bug to plant into the switches, to test whether the checks find it
    pub bug: Option<representative::Bug>,
}

impl Tree {
    /// Returns a tree with perfect links and clocks.
    pub fn new(incarnation: Incarnation, levels: u32, fanout: usize) -> Self {
        Self {
            incarnation,
            incarnations: None,
            old: None,
            pace: Pace::Passing,
            levels,
            fanout,
            link: Wire { delay: Nanos(500), ..Wire::default() },
            skew_ns: 0,
            drift_ppb: 0,
            every: Nanos::from_micros(2),
            lasts: Nanos::from_micros(300),
            behaviour: Behaviour::default(),
            outsider: None,
            join_window: Nanos::from_micros(300),
            wrong_host: None,
            far_host: None,
            wrong_rate: None,
            wrong_keepers: None,
            reincarnate: None,
            standby: false,
            controlled: false,
            beacon_clocks: None,
            workers: Workers::ONE,
            bug: None,
        }
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.fanout.pow(self.levels)
    }

    /// Returns the incarnation of switch `n`.
    pub fn incarnation_of(&self, n: usize) -> Incarnation {
        const ALL: [Incarnation; 3] = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];
        self.incarnations.map_or(self.incarnation, |seed| *Rng::stream(seed, n as u64).pick(&ALL))
    }

    /// Returns whether a node is drawn as one of an earlier version.
    fn is_old(&self, node: u64) -> bool {
        self.old.is_some_and(|seed| Rng::stream(seed, 1 << 36 | node).below(2) == 0)
    }

    /// Returns whether switch `n` is a plain bridge, whose barriers a host beside it keeps.
    pub fn is_bridge(&self, n: usize) -> bool {
        self.incarnation_of(n) == Incarnation::Host
    }

    /// Returns the number of switches.
    pub fn switches(&self) -> usize {
        self.first_of(self.levels)
    }

    /// Returns the number of a level's first switch. Switches are numbered level by level, with the root
    /// last.
    fn first_of(&self, level: u32) -> usize {
        (0..level).map(|level| self.fanout.pow(self.levels - 1 - level)).sum()
    }

    /// Returns the switch above switch `n` of a level, and the number of the link to `n` there; `None` for
    /// the root.
    fn parent(&self, level: u32, n: usize) -> Option<(usize, usize)> {
        let index = n - self.first_of(level);
        (level + 1 < self.levels)
            .then(|| (self.first_of(level + 1) + index / self.fanout, index % self.fanout))
    }

    /// Returns the neighbours at the links of a switch: those below in order, then the one above.
    fn neighbours(&self, level: u32, n: usize) -> Vec<Neighbour> {
        let index = n - self.first_of(level);
        let switch = |number, link| {
            let incarnation = self.incarnation_of(number);
            Neighbour {
                at: switch_addresses(number, link),
                switch: Some(NeighbourSwitch { number, link, incarnation }),
            }
        };
        let below = (0..self.fanout).map(|child| index * self.fanout + child).map(|child| {
            match level.checked_sub(1) {
                None => Neighbour { at: host_addresses(child), switch: None },
                Some(below) => switch(self.first_of(below) + child, self.fanout),
            }
        });
        let above = self.parent(level, n).map(|(parent, link)| switch(parent, link));
        below.chain(above).collect()
    }

    /// Returns the configuration of a switch as a bridge, with the ports of hosts, neighbouring
    /// representatives and its own.
    fn bridge(&self, level: u32, n: usize) -> forward::Config {
        let first_child = (n - self.first_of(level)) * self.fanout;
        let neighbours = self.neighbours(level, n);
        let own = if self.is_bridge(n) { 1 + usize::from(self.standby) } else { 0 };
        let ports = neighbours.len() + own;
        let outsider_ports = usize::from(self.outsider.is_some_and(|outsider| outsider.switch == n));
        let mut bridge = forward::Config::bridge((ports + outsider_ports) as u16, 8);
        let towards = |host: usize| {
            let child = (host / self.fanout.pow(level)).checked_sub(first_child);
            child.filter(|&child| child < self.fanout).unwrap_or(self.fanout)
        };
        let hosts = (0..self.hosts()).map(|host| (host_addresses(host).mac, PortId(towards(host) as u16)));
        let others = neighbours.iter().zip(0..).filter(|(neighbour, _)| neighbour.switch.is_some());
        let others = others.map(|(neighbour, port)| (neighbour.at.mac, PortId(port)));
        let own = Self::own_ports(n, neighbours.len()).take(own);
        let standbys = self.standby_ports(&neighbours);
        if let ForwardingMode::Mac(table) = &mut bridge.mode {
            table.fixed = hosts.chain(others).chain(standbys).chain(own).collect();
        }
        bridge
    }

    fn config(&self, level: u32, n: usize) -> Config {
        let beside = self.is_bridge(n);
        let has_controller = self.controlled || self.behaviour.commits.is_some();
        let links =
            self.neighbours(level, n).into_iter().zip(0u16..).map(|(Neighbour { at, switch }, number)| {
                let standby = self.standby_end(switch);
                let is_a = |incarnation| switch.is_some_and(|switch| switch.incarnation == incarnation);
                Link {
                    side: if usize::from(number) < self.fanout { Side::Below } else { Side::Above },
                    port: PortId(if beside { 0 } else { number }),
                    mac: at.mac,
                    address: at.ip.into(),
                    detour: Vec::new(),
                    qpn: at.qpn,
                    beacon: match switch {
                        // A WRITE does not name its sender's incarnation.
                        Some(NeighbourSwitch { link, .. }) if is_a(Incarnation::Host) && !has_controller => {
                            BeaconForm::Write { va: REGISTERS.va_of(link as u16), rkey: REGISTERS.rkey }
                        }
                        _ => BeaconForm::Datagram,
                    },
                    standby,
                }
            });
        let forward = if beside { forward::Config::bridge(1, 1) } else { self.bridge(level, n) };
        let (incarnation, own) = (self.incarnation_of(n), switch_addresses(n, 0));
        let config = representative_config(incarnation, self.pace, own, forward, links.collect());
        Config {
            layer: level + 1,
            fail_after_intervals: has_controller.then_some(DEAD_AFTER_INTERVALS),
            bug: self.bug,
            join_window: self.join_window,
            declares: !self.is_old(1 << 32 | n as u64),
            clock: shifted_clock(self.keeper_off_by(n).wrapping_add(self.drawn_error(1 << 32 | n as u64))),
            clock_source: clock_source(self.beacon_clocks.is_some()),
            ahead_max: self.ahead_max(),
            ..config
        }
    }

    /// Builds the network.
    pub fn build(&self, seed: u64) -> Network {
        self.build_with(seed, |n, position| Host::new(n, position, self.behaviour, seed))
    }

    /// Builds the network with hosts of any kind.
    fn build_with<H: Node>(&self, seed: u64, mut host: impl FnMut(usize, Position) -> H) -> Network {
        let mut world = World::new(seed);
        let mut rng = Rng::stream(seed, 1 << 33);
        let mut clock = |by: u64| {
            let mut symmetric = |by: u64| rng.below(2 * by + 1) as i64 - by as i64;
            Clock::new(symmetric(by), symmetric(self.drift_ppb))
        };
        let mut hosts = Vec::new();
        for n in 0..self.hosts() {
            let position = Position {
                hosts: self.hosts(),
                tor: switch_addresses(n / self.fanout, n % self.fanout),
                standby: self.standby_of(n),
                every: self.every,
                clock_error: self.clock_error(),
                clock_off_by: self
                    .wrong_host
                    .filter(|&(wrong, _)| wrong == n)
                    .map_or_else(|| self.drawn_error(n as u64), |(_, by_ns)| by_ns),
                beacon_clock: self.beacon_clocks.is_some(),
                until: EPOCH + self.lasts,
                barriers_in_messages: self.reincarnate.is_none()
                    && self.incarnation_of(n / self.fanout) == Incarnation::Chip,
                is_old: self.is_old(n as u64),
            };
            let host = host(n, position);
            let clock = match self.wrong_rate {
                Some((wrong, ppb)) if wrong == n => Clock::new(0, ppb),
                _ => clock(self.skew_ns),
            };
            hosts.push(world.add(&format!("host {n}"), host, clock));
        }
        let all = |level: u32| (self.first_of(level)..self.first_of(level + 1)).map(move |n| (level, n));
        let sites: Vec<_> = (0..self.levels).flat_map(all).collect();
        let mut switches = Vec::new();
        for &(level, n) in &sites {
            let (name, clock) = (format!("switch {n}"), clock(1000 * self.skew_ns));
            switches.push(if self.is_bridge(n) {
                let bridge = self.bridge(level, n);
                world.add(&name, Switch::new(move || Forward::new(&bridge)), clock)
            } else {
                world.add(&name, self.representative(self.config(level, n), n), clock)
            });
        }
        // Ports are numbered in this order: below, above, beside.
        let connect = |(n, &host): (usize, &NodeId)| {
            world.connect(switches[n / self.fanout], host, self.link_of_host(n))
        };
        let access = hosts.iter().enumerate().map(connect).collect();
        let mut uplinks = Vec::new();
        for &(level, n) in &sites {
            if let Some((parent, _)) = self.parent(level, n) {
                uplinks.push(world.connect(switches[parent], switches[n], self.link));
            }
        }
        let mut representatives = switches.clone();
        for &(level, n) in sites.iter().filter(|&&(_, n)| self.is_bridge(n)) {
            let (name, clock) = (format!("representative {n}"), clock(1000 * self.skew_ns));
            let node = world.add(&name, self.representative(self.config(level, n), n), clock);
            let switch = core::mem::replace(&mut representatives[n], node);
            world.connect(switch, node, self.link);
        }
        let standbys = self.add_standbys(&mut world, &switches, &sites, || clock(1000 * self.skew_ns));
        if let Some(outsider) = self.outsider {
            let all_see = !(0..representatives.len()).any(|n| self.is_bridge(n));
            let sees_ports =
                |n: usize| if n < hosts.len() { !self.is_bridge(n / self.fanout) } else { all_see };
            let forger = Forger {
                rng: Rng::stream(seed, 0x6c69_6172),
                left: outsider.forged_packets,
                switch: outsider.switch,
                next: EPOCH,
                hosts: hosts.len(),
                all: (0..hosts.len())
                    .map(host_addresses)
                    .chain((0..representatives.len()).map(|n| switch_addresses(n, 0)))
                    .collect(),
                sees_ports: (0..hosts.len() + representatives.len()).map(sees_ports).collect(),
                flooded: outsider.floods.then(|| seed as usize % hosts.len()),
            };
            let node = world.add("outsider", forger, Clock::default());
            world.connect(switches[outsider.switch], node, self.link);
        }
        let record = Record::default();
        Network { world, hosts, switches, representatives, standbys, access, uplinks, record }
    }
}

/// A network that was built.
pub struct Network {
    /// The simulated network
    pub world: World,
    /// Nodes of the hosts, as [`Host`]s
    pub hosts: Vec<NodeId>,
    /// Nodes of the switches, from the hosts up
    pub switches: Vec<NodeId>,
    /// Nodes that keep the barriers: switches or their representatives, as [`Switch<Representative>`]
    pub representatives: Vec<NodeId>,
    /// Nodes of the standbys, by switch
    pub standbys: BTreeMap<usize, NodeId>,
    /// Links of the hosts
    pub access: Vec<LinkId>,
    /// Links from the switches to those above them, by the number of the lower switch
    pub uplinks: Vec<LinkId>,
    /// What happened so far, as the [oracle](Self::check_late) needs it
    pub record: Record,
}

impl Network {
    /// Returns the hosts.
    pub fn each_host(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().map(|&host| self.world.node::<Host>(host))
    }

    /// Returns the MAC addresses of the hosts, then of the nodes that keep barriers.
    pub fn interfaces(&self) -> Vec<MacAddr> {
        let representatives = (0..self.representatives.len()).map(|n| switch_addresses(n, 0).mac);
        (0..self.hosts.len()).map(|n| host_addresses(n).mac).chain(representatives).collect()
    }

    /// Returns the links of a switch in the order of its configuration: those below in order, then the one
    /// above.
    pub fn links_of(&self, switch: usize) -> impl Iterator<Item = LinkId> {
        let switch = self.switches[switch];
        let is_its = move |&link: &LinkId| self.world.ends(link).contains(&switch);
        self.access.iter().chain(&self.uplinks).copied().filter(is_its)
    }

    /// Returns the counters of a representative, on its first worker.
    pub fn counters(&self, representative: usize) -> Arc<Counters> {
        self.world.node::<Switch<Representative>>(self.representatives[representative]).functions[0]
            .counters()
    }

    /// Returns how often all representatives refused a packet for this reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        let nodes = self.representatives.iter().map(|&node| self.world.node::<Switch<Representative>>(node));
        nodes.flat_map(|node| &node.functions).map(|function| function.counters().refused(why)).sum()
    }

    /// Checks what has to hold if links keep the order of frames, whichever frames are lost: barriers never
    /// go back, are never above a message that arrives later, and are never ahead of a clock; and [the order
    /// of deliveries](Self::check_order). A host that was cut off may send late when it comes back: messages
    /// of host `returned` are ignored.
    pub fn check(&self, returned: Option<usize>) -> Result<(), String> {
        for host in self.each_host() {
            let number = host.number();
            let mut late = host.arrivals.iter().filter(|arrival| arrival.late);
            if let Some(arrival) = late.find(|arrival| Some(arrival.from) != returned) {
                return Err(format!(
                    "host {number}: a packet of host {} arrived below the barrier",
                    arrival.from
                ));
            }
            if host.ahead > 0 {
                return Err(format!("host {number}: a barrier was ahead of its own clock"));
            }
        }
        self.check_rising()?;
        self.check_order()
    }

    /// Checks what has to hold if links keep the order of frames and switches keep their state: no barrier
    /// goes back.
    pub fn check_rising(&self) -> Result<(), String> {
        match self.each_host().find(|host| host.went_back > 0) {
            Some(host) => Err(format!("host {}: a barrier went back", host.number())),
            None => Ok(()),
        }
    }

    /// Checks what has to hold under all conditions: deliveries in one order everywhere, in the order of each
    /// sender, as they were sent, not before their timestamp has passed, and once.
    pub fn check_order(&self) -> Result<(), String> {
        // Hosts that delivered a scattering, with the position of its last message there
        let mut positions: BTreeMap<(usize, u64), Vec<(usize, usize)>> = BTreeMap::new();
        for host in self.each_host() {
            let number = host.number();
            if let Some(wrong) = &host.wrong {
                return Err(format!("host {number}: {wrong}"));
            }
            if host.broken > 0 {
                return Err(format!("host {number} sent a message below a barrier that it had sent"));
            }
            let mut last = BTreeMap::new();
            for (at, &(ns, from, message)) in host.delivered.iter().enumerate() {
                let what = format!("host {number}: message {message} of host {from}");
                let sender: &Host = self.world.node(self.hosts[from]);
                match sender.sent.get(message as usize) {
                    Some(sent) if sent.to != number => return Err(format!("{what} is for another host")),
                    Some(Sent { timestamp: Some(stamp), .. }) if *stamp != ns => {
                        return Err(format!("{what} was delivered with another timestamp"));
                    }
                    Some(_) => {}
                    None => return Err(format!("{what} was never sent")),
                }
                if last.insert(from, message).is_some_and(|before| before >= message) {
                    return Err(format!("{what} was delivered twice, or after a later message"));
                }
                let of = positions.entry((from, sender.scattering_of(message))).or_default();
                match of.last_mut() {
                    Some((there, position)) if *there == number => *position = at,
                    _ => of.push((number, at)),
                }
            }
            if !host.delivered.is_sorted() {
                return Err(format!("host {number}: deliveries are not in the order of timestamps"));
            }
        }
        // Scatterings that two hosts have in common have to be in the same order at both.
        let mut common: BTreeMap<(usize, usize), Vec<(usize, usize)>> = BTreeMap::new();
        for of in positions.values() {
            for (n, &(other, there)) in of.iter().enumerate() {
                for &(host, here) in &of[n + 1..] {
                    common.entry((other, host)).or_default().push((here, there));
                }
            }
        }
        for ((other, host), mut common) in common {
            common.sort_unstable();
            if !common.is_sorted_by_key(|&(_, there)| there) {
                return Err(format!("hosts {other} and {host} delivered scatterings in different orders"));
            }
        }
        Ok(())
    }

    /// Checks the end of a run: each message was delivered, or its sender knows that it failed. Returns the
    /// number of messages that were delivered although the sender got no acknowledgement.
    pub fn check_fates(&self) -> Result<usize, String> {
        self.check_fates_except(&[])
    }

    /// [Checks the outcomes](Self::check_fates) of messages between hosts that are not in `excused`.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_fates_except(&self, excused: &[usize]) -> Result<usize, String> {
        let mut delivered = BTreeSet::new();
        for host in self.each_host() {
            delivered.extend(host.delivered.iter().map(|&(_, from, message)| (from, message)));
        }
        let mut ambiguous = 0;
        for host in self.each_host() {
            for (number, sent) in (0..).zip(&host.sent) {
                if excused.contains(&host.number()) || excused.contains(&sent.to) {
                    continue;
                }
                let what = format!("message {number} of host {} to {}", host.number(), sent.to);
                let received = delivered.contains(&(host.number(), number));
                match sent.fate {
                    None if sent.abandoned => {}
                    None => return Err(format!("{what} has no outcome at its sender")),
                    Some(Ok(())) if !received => {
                        let to: &Host = self.world.node(self.hosts[sent.to]);
                        if sent.timestamp.is_some_and(|time| to.may_have_lost(time)) {
                            continue;
                        }
                        return Err(format!("{what}: acknowledged but not delivered"));
                    }
                    Some(Err(Failure::NotAcknowledged)) => ambiguous += usize::from(received),
                    // It may have been in flight when its sender left.
                    Some(Err(Failure::Left)) => {}
                    Some(Err(why)) if received => {
                        return Err(format!("{what}: delivered, but failed: {why}"));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(ambiguous)
    }
}

//! A fat tree: racks in pods with several paths between them, of which each flow takes one (ECMP). The
//! paper's testbed is such a tree of 32 hosts, 4 `ToR`, 4 spine and 2 core switches (1Pipe, section 7.1).

use super::Behaviour;
use super::addresses::{
    Addresses, REGISTERS, host_addresses, shifted_clock, standby_addresses, switch_addresses,
};
use super::host::{Host, Position};
use super::incarnations::clock_error;
use super::seats::{standby_config, standby_end};
use super::variation::{clock_source, drawn_error};
use super::{Network, Record};
use controller::graph::{Graph, Layout};
use core::net::{IpAddr, Ipv4Addr};
use onepipe::ProcessId;
use representative::Representative;
use representative::config::{BeaconForm, Config, Incarnation, Link, Pace, Side};
use rocev2::ethernet::MacAddr;
use sim::{Clock, EPOCH, Link as Wire, Node, NodeId, Switch, World};
use std::collections::BTreeMap;
use switch::forward::config::{ForwardingMode, NextHop, Prefix, Route, RouteTable, Ttl};
use switch::forward::{self, Forward};
use switch::{Nanos, PortId, Rng};

/// Parameters of a fat tree. All sizes are powers of two, so that networks are prefixes.
#[derive(Clone, Copy, Debug)]
pub struct FatTree {
    /// Where barriers are kept
    pub incarnation: Incarnation,
    /// When switches send beacons
    pub pace: Pace,
    /// Number of pods
    pub pods: usize,
    /// Racks of a pod, each with a `ToR` switch
    pub racks: usize,
    /// Hosts of a rack
    pub hosts: usize,
    /// Spine switches of a pod, each with a link to every rack of the pod; 0 for a single rack
    pub spines: usize,
    /// Core switches, each with a link to one spine switch of every pod, and the same number of them per
    /// spine switch; 0 for a single pod
    pub cores: usize,
    /// Parameters of every link
    pub link: Wire,
    /// Largest offset of the hosts' clocks (ns). Clocks of switches are off by up to a thousand times as much
    pub skew_ns: u64,
    /// Mean time between two scatterings of a host
    pub every: Nanos,
    /// Time for which hosts send
    pub lasts: Nanos,
    /// Behaviour of the hosts
    pub behaviour: Behaviour,
    /// Largest drift of all clocks, in parts per billion
    pub drift_ppb: u64,
    /// Seed and largest error (ns) of the machines' clocks of all hosts and switches, which follow clock beacons;
    /// `None` if nothing exchanges clock beacons
    pub beacon_clocks: Option<(u64, u64)>,
    /// Whether a controller gives the representatives incarnations
    pub controlled: bool,
    /// Switch whose barriers a second host keeps as well, if any; for [`Incarnation::Host`]
    pub standby: Option<usize>,
}

/// A switch and its links: those below in order, then those above. A link has the number of its port.
struct Site {
    below: Vec<Neighbour>,
    above: Vec<Neighbour>,
    /// Routes to the hosts
    routes: Vec<Route>,
}

/// Neighbour at a link
#[derive(Clone, Copy)]
enum Neighbour {
    Host(usize),
    /// A switch, and the number of the link there
    Switch(usize, usize),
}

impl Neighbour {
    fn at(self) -> Addresses {
        match self {
            Self::Host(n) => host_addresses(n),
            Self::Switch(n, link) => switch_addresses(n, link),
        }
    }
}

/// Returns the prefix of `hosts` hosts from `first` on.
fn network(first: usize, hosts: usize) -> Prefix {
    Prefix::new(host_addresses(first).ip.into(), 32 - hosts.ilog2() as u8).expect("sizes are powers of two")
}

/// Returns a route through any of these ports.
fn towards(to: Prefix, ports: impl IntoIterator<Item = usize>) -> Route {
    let hop = |port| NextHop { port: PortId(port as u16), mac: None };
    Route { to, via: ports.into_iter().map(hop).collect() }
}

impl FatTree {
    /// Returns the paper's testbed, with perfect links and clocks.
    pub fn testbed(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            pace: Pace::Passing,
            pods: 2,
            racks: 2,
            hosts: 8,
            spines: 2,
            cores: 2,
            link: Wire { delay: Nanos(500), ..Wire::default() },
            skew_ns: 0,
            every: Nanos::from_micros(4),
            lasts: Nanos::from_micros(200),
            behaviour: Behaviour::default(),
            drift_ppb: 0,
            beacon_clocks: None,
            controlled: false,
            standby: None,
        }
    }

    /// Numbers of hosts for which [`of_hosts`](Self::of_hosts) has trees
    pub const SIZES: [usize; 6] = [8, 32, 256, 2048, 8192, 32_768];

    /// Returns the testbed, or a similar fat tree of three levels with this number of hosts, in which every
    /// switch has as many links up as down, or half as many. 8 hosts are a single rack. Returns `None` for
    /// numbers other than [`SIZES`](Self::SIZES).
    pub fn of_hosts(incarnation: Incarnation, hosts: usize) -> Option<Self> {
        let (pods, racks, in_rack, spines, cores) = match hosts {
            8 => return Some(Self::of_hops(incarnation, 1)),
            32 => return Some(Self::testbed(incarnation)),
            256 => (4, 4, 16, 4, 16),
            2048 => (8, 8, 32, 8, 64),
            8192 => (16, 16, 32, 16, 256),
            32_768 => (32, 32, 32, 32, 1024),
            _ => return None,
        };
        Some(Self { pods, racks, hosts: in_rack, spines, cores, ..Self::testbed(incarnation) })
    }

    /// Returns one rack of the testbed (1 switch between two hosts), one pod (3), or all of it (5).
    ///
    /// # Panics
    /// If `hops` is not 1, 3 or 5.
    pub fn of_hops(incarnation: Incarnation, hops: u32) -> Self {
        let whole = Self::testbed(incarnation);
        match hops {
            1 => Self { pods: 1, racks: 1, spines: 0, cores: 0, ..whole },
            3 => Self { pods: 1, cores: 0, ..whole },
            5 => whole,
            _ => panic!("a fat tree has 1, 3 or 5 hops, not {hops}"),
        }
    }

    /// Returns the number of hosts.
    pub const fn all_hosts(&self) -> usize {
        self.pods * self.racks * self.hosts
    }

    /// Returns the number of levels of switches.
    pub const fn levels(&self) -> u32 {
        1 + (self.spines > 0) as u32 + (self.cores > 0) as u32
    }

    /// Returns the switches: those of racks by pod, then spines by pod, then cores.
    fn sites(&self) -> Vec<Site> {
        let &Self { pods, racks, hosts, spines, cores, .. } = self;
        let (first_spine, first_core) = (pods * racks, pods * racks + pods * spines);
        let ups = cores.checked_div(spines).unwrap_or(0);
        let upwards = |from: usize, count: usize| towards(network(0, self.all_hosts()), from..from + count);
        let tor = |rack: usize| {
            let first = rack * hosts;
            let own = (0..hosts).map(|host| towards(network(first + host, 1), [host]));
            Site {
                below: (0..hosts).map(|host| Neighbour::Host(first + host)).collect(),
                above: (0..spines)
                    .map(|spine| Neighbour::Switch(first_spine + rack / racks * spines + spine, rack % racks))
                    .collect(),
                routes: own.chain((spines > 0).then(|| upwards(hosts, spines))).collect(),
            }
        };
        let spine = |number: usize| {
            let (pod, spine) = (number / spines, number % spines);
            let below = (0..racks).map(|rack| pod * racks + rack);
            let own = below.clone().enumerate();
            let own = own.map(|(port, rack)| towards(network(rack * hosts, hosts), [port]));
            Site {
                routes: own.chain((ups > 0).then(|| upwards(racks, ups))).collect(),
                below: below.map(|rack| Neighbour::Switch(rack, hosts + spine)).collect(),
                above: (0..ups).map(|up| Neighbour::Switch(first_core + up * spines + spine, pod)).collect(),
            }
        };
        let core = |core: usize| {
            let own = (0..pods).map(|pod| towards(network(pod * racks * hosts, racks * hosts), [pod]));
            let below =
                |pod| Neighbour::Switch(first_spine + pod * spines + core % spines, racks + core / spines);
            Site { below: (0..pods).map(below).collect(), above: Vec::new(), routes: own.collect() }
        };
        let tors = (0..first_spine).map(tor);
        tors.chain((0..pods * spines).map(spine)).chain((0..cores).map(core)).collect()
    }

    /// Returns the configuration of a switch as a router, with the ports of hosts, neighbouring
    /// representatives and its own.
    fn router(&self, number: usize, site: &Site, seed: u64) -> forward::Config {
        let beside = usize::from(self.incarnation == Incarnation::Host);
        let links = site.below.len() + site.above.len();
        let alone = |ip: Ipv4Addr| Prefix::new(IpAddr::V4(ip), 32).expect("a prefix of 32 bits is valid");
        let others = site.below.iter().chain(&site.above).enumerate().filter_map(|(port, &neighbour)| {
            let Neighbour::Switch(..) = neighbour else { return None };
            Some(towards(alone(neighbour.at().ip), [port]))
        });
        let own = towards(alone(switch_addresses(number, 0).ip), [links]);
        let second = self.standby.and_then(|standby| {
            let is_it = |neighbour: &Neighbour| matches!(neighbour, Neighbour::Switch(n, _) if *n == standby);
            let port = site.below.iter().chain(&site.above).position(is_it);
            let port = if standby == number { Some(links + 1) } else { port };
            port.map(|port| towards(alone(standby_addresses(standby, 0).ip), [port]))
        });
        let beacons = others.chain([own]).chain(second).filter(|_| beside > 0);
        let routes = RouteTable {
            mac: MacAddr([0; 6]),
            ttl: Ttl::Keep,
            seed: seed ^ number as u64,
            routes: site.routes.iter().cloned().chain(beacons).collect(),
        };
        let ports = (links + beside + usize::from(self.standby == Some(number))) as u16;
        forward::Config { mode: ForwardingMode::Routes(routes), ..forward::Config::bridge(ports, 1) }
    }

    fn config(&self, number: usize, site: &Site, seed: u64) -> Config {
        let beside = self.incarnation == Incarnation::Host;
        let below = site.below.iter().map(|&neighbour| (Side::Below, neighbour));
        let above = site.above.iter().map(|&neighbour| (Side::Above, neighbour));
        let links = below.chain(above).enumerate().map(|(number, (side, neighbour))| {
            let Addresses { mac, ip, qpn } = neighbour.at();
            let beacon = match neighbour {
                // A WRITE does not name its sender's incarnation.
                Neighbour::Switch(_, link) if beside && !self.controlled => {
                    BeaconForm::Write { va: REGISTERS.va_of(link as u16), rkey: REGISTERS.rkey }
                }
                _ => BeaconForm::Datagram,
            };
            let port = PortId(if beside { 0 } else { number as u16 });
            let standby = match neighbour {
                Neighbour::Switch(n, link) if self.standby == Some(n) => Some(standby_end(n, link)),
                _ => None,
            };
            Link { side, port, mac, address: ip.into(), qpn, beacon, detour: Vec::new(), standby }
        });
        let forward = if beside { forward::Config::bridge(1, 1) } else { self.router(number, site, seed) };
        let own = switch_addresses(number, 0);
        let config = super::representative_config(self.incarnation, self.pace, own, forward, links.collect());
        Config {
            fail_after_intervals: self.controlled.then_some(super::DEAD_AFTER_INTERVALS),
            layer: self.layer(number),
            clock: shifted_clock(self.drawn_error(1 << 32 | number as u64)),
            clock_source: clock_source(self.beacon_clocks.is_some()),
            ..config
        }
    }

    /// Returns by how many nanoseconds the machine's clock of a node is wrong.
    fn drawn_error(&self, node: u64) -> i64 {
        self.beacon_clocks.map_or(0, |(seed, most)| drawn_error(seed, most, node))
    }

    /// Returns the layer of a switch, from the hosts up.
    const fn layer(&self, switch: usize) -> u32 {
        let tors = self.pods * self.racks;
        1 + (switch >= tors) as u32 + (switch >= tors + self.pods * self.spines) as u32
    }

    /// Returns the configuration of each switch's representative.
    pub(super) fn configs(&self, seed: u64) -> Vec<Config> {
        self.sites().iter().enumerate().map(|(n, site)| self.config(n, site, seed)).collect()
    }

    /// Returns the configuration of the standby, if there is one.
    pub(super) fn standby_configs(&self, seed: u64) -> BTreeMap<usize, Config> {
        let sites = self.sites();
        let config = |n: usize| (n, standby_config(n, self.config(n, &sites[n], seed)));
        self.standby.into_iter().map(config).collect()
    }

    /// Returns the routing graph of the tree, as the controller has it.
    pub(super) fn graph(&self) -> Graph {
        let layout = |(n, site): (usize, Site)| {
            let mut layout = Layout { standby: self.standby == Some(n), ..Layout::default() };
            for neighbour in site.below {
                match neighbour {
                    Neighbour::Host(host) => layout.processes.push(Some(ProcessId(host as u32))),
                    Neighbour::Switch(below, _) => layout.below.push(below as u16),
                }
            }
            let above = site.above.iter().filter_map(|neighbour| match *neighbour {
                Neighbour::Switch(above, _) => Some(above as u16),
                Neighbour::Host(_) => None,
            });
            layout.above = above.collect();
            layout
        };
        Graph::new(&self.sites().into_iter().enumerate().map(layout).collect::<Vec<_>>())
    }

    /// Returns the rack switches, each as a router that sends nothing through spine switch `avoided` of its pod
    /// but what is for that switch itself: routes after a failure above. Barriers are kept on hosts.
    pub(super) fn detour_routers(&self, avoided: usize, seed: u64) -> Vec<(usize, Forward)> {
        assert!(self.incarnation == Incarnation::Host, "the router is the representative");
        let router = |(number, mut site): (usize, Site)| {
            for route in &mut site.routes {
                route.via.retain(|hop| usize::from(hop.port.0) != self.hosts + avoided);
            }
            (number, Forward::new(&self.router(number, &site, seed)))
        };
        self.sites().into_iter().enumerate().take(self.pods * self.racks).map(router).collect()
    }

    /// Builds the network.
    ///
    /// # Panics
    /// If a size is not a power of two, sizes do not fit each other, there are more than 65,536 hosts, or a switch that
    /// keeps its barriers itself has a standby.
    pub fn build(&self, seed: u64) -> Network {
        self.build_with(seed, |n, position| Host::new(n, position, self.behaviour, seed))
    }

    /// Builds the network with hosts of any kind.
    pub(super) fn build_with<H: Node>(
        &self,
        seed: u64,
        mut host: impl FnMut(usize, Position) -> H,
    ) -> Network {
        let &Self { racks, hosts, spines, cores, pods, .. } = self;
        assert!([pods, racks, hosts].iter().all(|n| n.is_power_of_two()) && self.all_hosts() <= 1 << 16);
        assert!(
            (spines > 0 || racks * pods == 1) && (cores > 0 || pods == 1),
            "several racks need spines, and several pods need cores"
        );
        assert!(cores == 0 || cores.is_multiple_of(spines), "cores is no multiple of spines");
        assert!(self.standby.is_none() || self.incarnation == Incarnation::Host, "only hosts are standbys");
        let mut world = World::new(seed);
        let mut rng = Rng::stream(seed, 1 << 33);
        let mut clock = |by: u64| {
            let offset = rng.below(2 * by + 1) as i64 - by as i64;
            // No draw without drift, so that all other draws of a seed stay the same
            let most = self.drift_ppb;
            let drift = if most == 0 { 0 } else { rng.below(2 * most + 1) as i64 - most as i64 };
            Clock::new(offset, drift)
        };
        let mut ends = Vec::new();
        for n in 0..self.all_hosts() {
            let position = Position {
                hosts: self.all_hosts(),
                tor: switch_addresses(n / hosts, n % hosts),
                standby: (self.standby == Some(n / hosts)).then(|| standby_addresses(n / hosts, n % hosts)),
                every: self.every,
                clock_error: clock_error(self.skew_ns, self.behaviour.step_ns),
                clock_off_by: self.drawn_error(n as u64),
                beacon_clock: self.beacon_clocks.is_some(),
                until: EPOCH + self.lasts,
                barriers_in_messages: self.incarnation == Incarnation::Chip,
                is_old: false,
            };
            ends.push(world.add(&format!("host {n}"), host(n, position), clock(self.skew_ns)));
        }
        let sites = self.sites();
        let keeper = |n: usize, site: &Site| {
            let config = self.config(n, site, seed);
            Switch::new(move || Representative::new(config.clone()).expect("the configuration is valid"))
        };
        let mut switches: Vec<NodeId> = Vec::new();
        for (n, site) in sites.iter().enumerate() {
            let (name, clock) = (format!("switch {n}"), clock(1000 * self.skew_ns));
            switches.push(if self.incarnation == Incarnation::Host {
                let router = self.router(n, site, seed);
                world.add(&name, Switch::new(move || Forward::new(&router)), clock)
            } else {
                world.add(&name, keeper(n, site), clock)
            });
        }
        // Ports are numbered in the order in which links are made: first those below, from the hosts up, then
        // those above, then the one beside. A switch's links up are made when the switches above it are
        // processed, in the order of its own numbering.
        let (mut access, mut uplinks) = (Vec::new(), Vec::new());
        for (n, site) in sites.iter().enumerate() {
            for &neighbour in &site.below {
                match neighbour {
                    Neighbour::Host(host) => access.push(world.connect(switches[n], ends[host], self.link)),
                    Neighbour::Switch(below, _) => {
                        uplinks.push(world.connect(switches[n], switches[below], self.link));
                    }
                }
            }
        }
        let mut representatives = switches.clone();
        if self.incarnation == Incarnation::Host {
            for (n, site) in sites.iter().enumerate() {
                let (name, clock) = (format!("representative {n}"), clock(1000 * self.skew_ns));
                let node = world.add(&name, keeper(n, site), clock);
                let switch = core::mem::replace(&mut representatives[n], node);
                world.connect(switch, node, self.link);
            }
        }
        let standby = |(n, config): (usize, Config)| {
            let standby =
                Switch::new(move || Representative::new(config.clone()).expect("the configuration is valid"));
            let node = world.add(&format!("standby {n}"), standby, clock(1000 * self.skew_ns));
            world.connect(switches[n], node, self.link);
            (n, node)
        };
        let standbys = self.standby_configs(seed).into_iter().map(standby).collect();
        Network {
            world,
            hosts: ends,
            switches,
            representatives,
            standbys,
            access,
            uplinks,
            record: Record::default(),
        }
    }
}

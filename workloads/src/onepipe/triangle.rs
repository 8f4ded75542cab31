//! Representatives that are not beside their switches (1Pipe, section 6.2.3): two switches with hosts and a
//! link between them, and a third switch, which messages do not pass, with the representatives of both:
//!
//! ```text
//!   hosts -- switch 0 ------ switch 1 -- hosts
//!                  \        /
//!                   switch 2 -- representatives 0 and 1
//! ```
//!
//! The routes between the representatives pass switch 2. Their beacons about the link between 0 and 1 have to
//! pass that link.

use super::Behaviour;
use super::addresses::{Addresses, HOST_QP, REGISTERS, host_addresses, switch_addresses};
use super::host::{Host, Position};
use super::incarnations::clock_error;
use super::{Network, Record};
use core::net::Ipv4Addr;
use representative::Representative;
use representative::config::{BeaconForm, Config, Incarnation, Link, Pace, Side};
use rocev2::ethernet::MacAddr;
use sim::{Clock, EPOCH, Link as Wire, Switch, World};
use switch::forward::config::ForwardingMode;
use switch::forward::{self, Forward};
use switch::tunnel::{self, InnerForwarding, Tunnel};
use switch::{Nanos, PortId, Rng};

/// Hosts at each of switches 0 and 1
const HOSTS: usize = 2;

/// Parameters of the network.
#[derive(Clone, Copy, Debug)]
pub struct Triangle {
    /// Whether beacons take detours over the link that they are about, or the shortest path, which is wrong
    pub detours: bool,
    /// Link between switches 0 and 1
    pub between: Wire,
    /// All other links
    pub link: Wire,
    /// Largest offset of the hosts' clocks (ns)
    pub skew_ns: u64,
    /// Mean time between two scatterings of a host
    pub every: Nanos,
    /// Time for which hosts send
    pub lasts: Nanos,
}

/// Returns the addresses of a switch's tunnel endpoint.
fn tunnel_addresses(n: usize) -> Addresses {
    let [high, low] = (n as u16).to_be_bytes();
    let representative = switch_addresses(n, 0);
    Addresses { mac: MacAddr([2, 0, 0, 2, high, low]), ip: Ipv4Addr::new(10, 2, high, low), ..representative }
}

/// Returns the hosts at switch `n`.
fn hosts_of(n: usize) -> impl Iterator<Item = usize> + Clone {
    n * HOSTS..(n + 1) * HOSTS
}

fn bridge(ports: usize, stations: impl Iterator<Item = (Addresses, usize)>) -> Forward {
    let mut bridge = forward::Config::bridge(ports as u16, 1);
    if let ForwardingMode::Mac(table) = &mut bridge.mode {
        table.fixed = stations.map(|(at, port)| (at.mac, PortId(port as u16))).collect();
    }
    Forward::new(&bridge)
}

/// Returns switch 0 or 1: first the ports of its hosts, then the port to the other one, then that to switch
/// 2.
fn switch_with_hosts(n: usize) -> Tunnel<Forward> {
    let own = hosts_of(n).zip(0..);
    let others = hosts_of(1 - n).map(|host| (host, HOSTS));
    let hosts = own.chain(others).map(|(host, port)| (host_addresses(host), port));
    let representatives = [0, 1].map(|other| (switch_addresses(other, 0), HOSTS + 1));
    let stations = hosts.chain([(tunnel_addresses(1 - n), HOSTS)]).chain(representatives);
    let next = [switch_addresses(0, 0), switch_addresses(1, 0), tunnel_addresses(1 - n)];
    let config = tunnel::Config {
        mac: tunnel_addresses(n).mac,
        endpoints: vec![tunnel_addresses(n).ip.into()],
        sources: vec![switch_addresses(n, 0).ip.into(), tunnel_addresses(1 - n).ip.into()],
        inner_forwarding: InnerForwarding::NextHops(next.map(|at| (at.ip.into(), at.mac)).into()),
    };
    Tunnel::new(&config, bridge(HOSTS + 2, stations))
}

/// Returns switch 2: first the ports to switches 0 and 1, then those of their representatives.
fn switch_between() -> Forward {
    let hosts = [0, 1].into_iter().flat_map(|n| hosts_of(n).map(move |host| (host_addresses(host), n)));
    let rest = [0, 1].into_iter().flat_map(|n| [(tunnel_addresses(n), n), (switch_addresses(n, 0), 2 + n)]);
    bridge(4, hosts.chain(rest))
}

impl Triangle {
    /// Returns the network with perfect clocks and links, of which the one between switches 0 and 1 is slow.
    pub fn new(detours: bool) -> Self {
        Self {
            detours,
            between: Wire { delay: Nanos::from_micros(8), ..Wire::default() },
            link: Wire { delay: Nanos(500), ..Wire::default() },
            skew_ns: 0,
            every: Nanos::from_micros(2),
            lasts: Nanos::from_micros(200),
        }
    }

    /// Returns the configuration of representative `n`: first the links to the switch's hosts, then the one
    /// to the other switch. Switch 1 is above switch 0.
    fn config(&self, n: usize) -> Config {
        let to_host = |host| {
            let Addresses { mac, ip, .. } = host_addresses(host);
            Link {
                side: Side::Below,
                port: PortId(0),
                mac,
                address: ip.into(),
                detour: Vec::new(),
                qpn: HOST_QP,
                beacon: BeaconForm::Datagram,
                standby: None,
            }
        };
        let other = switch_addresses(1 - n, HOSTS);
        let detour = [tunnel_addresses(n), tunnel_addresses(1 - n)].map(|at| at.ip.into());
        let across = Link {
            side: if n == 0 { Side::Above } else { Side::Below },
            mac: if self.detours { tunnel_addresses(n).mac } else { other.mac },
            address: other.ip.into(),
            detour: if self.detours { detour.into() } else { Vec::new() },
            qpn: other.qpn,
            beacon: BeaconForm::Write { va: REGISTERS.va_of(HOSTS as u16), rkey: REGISTERS.rkey },
            ..to_host(0)
        };
        let links = hosts_of(n).map(to_host).chain([across]).collect();
        let bridge = forward::Config::bridge(1, 1);
        let config = super::representative_config(
            Incarnation::Host,
            Pace::Passing,
            switch_addresses(n, 0),
            bridge,
            links,
        );
        Config { dead_after_intervals: 20, ..config }
    }

    /// Builds the network. The only link in `uplinks` is that between switches 0 and 1.
    pub fn build(&self, seed: u64) -> Network {
        let mut world = World::new(seed);
        let mut rng = Rng::stream(seed, 1 << 33);
        let mut clock = || Clock::new(rng.below(2 * self.skew_ns + 1) as i64 - self.skew_ns as i64, 0);
        let (mut hosts, mut switches) = (Vec::new(), Vec::new());
        for n in [0, 1] {
            for host in hosts_of(n) {
                let position = Position {
                    hosts: 2 * HOSTS,
                    tor: switch_addresses(n, host % HOSTS),
                    standby: None,
                    every: self.every,
                    clock_error: clock_error(self.skew_ns, 0),
                    clock_off_by: 0,
                    beacon_clock: false,
                    until: EPOCH + self.lasts,
                    barriers_in_messages: false,
                    is_old: false,
                };
                hosts.push(world.add(
                    &format!("host {host}"),
                    Host::new(host, position, Behaviour::default(), seed),
                    clock(),
                ));
            }
            switches.push(world.add(
                &format!("switch {n}"),
                Switch::new(move || switch_with_hosts(n)),
                clock(),
            ));
        }
        let third = world.add("switch 2", Switch::new(switch_between), clock());
        let representatives = [0, 1].map(|n| {
            let config = self.config(n);
            let make = move || Representative::new(config.clone()).expect("the configuration is valid");
            world.add(&format!("representative {n}"), Switch::new(make), clock())
        });
        let connect = |(n, &host): (usize, &_)| world.connect(switches[n / HOSTS], host, self.link);
        let access = hosts.iter().enumerate().map(connect).collect();
        let between = world.connect(switches[0], switches[1], self.between);
        for node in [switches[0], switches[1], representatives[0], representatives[1]] {
            world.connect(third, node, self.link);
        }
        switches.push(third);
        Network {
            world,
            hosts,
            switches,
            representatives: representatives.into(),
            standbys: std::collections::BTreeMap::new(),
            access,
            uplinks: vec![between],
            record: Record::default(),
        }
    }
}

//! The two representatives of a switch that has a standby.

use super::addresses::{Addresses, standby_addresses, switch_addresses};
use super::{Neighbour, NeighbourSwitch, Network, Tree};
use representative::config::{BeaconForm, Config, End, Incarnation};
use representative::{Representative, SharedWords};
use rocev2::ethernet::MacAddr;
use sim::{Clock, LinkId, NodeId, Switch, Workers, World};
use std::collections::BTreeMap;
use switch::{PortId, Rng};

/// Returns the standby of a switch, as a neighbour at its link `link` has it.
pub(super) fn standby_end(n: usize, link: usize) -> End {
    let Addresses { mac, ip, qpn } = standby_addresses(n, link);
    End { mac, address: ip.into(), detour: Vec::new(), qpn, beacon: BeaconForm::Datagram }
}

/// Returns the configuration of a switch's standby, from that of its first representative.
pub(super) fn standby_config(n: usize, first: Config) -> Config {
    let own = standby_addresses(n, 0);
    Config { mac: own.mac, addresses: vec![own.ip.into()], ..first }
}

impl Tree {
    /// Returns the addresses of the standby of a host's switch, if it has one.
    pub(super) fn standby_of(&self, host: usize) -> Option<Addresses> {
        let switch = host / self.fanout;
        let has = self.standby && self.is_bridge(switch);
        has.then(|| standby_addresses(switch, host % self.fanout))
    }

    /// Returns the second end of a link to a switch.
    pub(super) fn standby_end(&self, neighbour: Option<NeighbourSwitch>) -> Option<End> {
        let of = neighbour.filter(|switch| self.standby && switch.incarnation == Incarnation::Host)?;
        Some(standby_end(of.number, of.link))
    }

    /// Returns the interfaces of the neighbouring switches' standbys, with the ports that lead there.
    pub(super) fn standby_ports(&self, neighbours: &[Neighbour]) -> impl Iterator<Item = (MacAddr, PortId)> {
        let switches = neighbours.iter().zip(0..).filter(|_| self.standby);
        switches.filter_map(|(neighbour, port)| {
            Some((standby_addresses(neighbour.switch?.number, 0).mac, PortId(port)))
        })
    }

    /// Returns the interfaces of a switch's own representatives, with their ports, which follow its `links`.
    pub(super) fn own_ports(n: usize, links: usize) -> impl Iterator<Item = (MacAddr, PortId)> {
        let beside = [switch_addresses(n, 0).mac, standby_addresses(n, 0).mac].into_iter();
        beside.zip((links as u16..).map(PortId))
    }

    /// Returns the interfaces of the nodes at the other end of each link of a switch: of a host, or of a
    /// switch's representative and its standby.
    pub fn interfaces_at(&self, switch: usize) -> Vec<Vec<MacAddr>> {
        let neighbours = self.neighbours(self.level_of(switch), switch);
        let interfaces = |Neighbour { at, switch }: &Neighbour| {
            let standby = switch.filter(|_| self.standby).map(|of| standby_addresses(of.number, of.link).mac);
            core::iter::once(at.mac).chain(standby).collect()
        };
        neighbours.iter().map(interfaces).collect()
    }

    /// Returns the switch above a switch; `None` for the root.
    pub fn switch_above(&self, switch: usize) -> Option<usize> {
        self.parent(self.level_of(switch), switch).map(|(parent, _)| parent)
    }

    /// Returns the configurations of the standbys of all switches; none if the tree has none.
    pub(super) fn standby_configs(&self) -> BTreeMap<usize, Config> {
        let switches = (0..self.switches()).filter(|_| self.standby);
        switches.map(|n| (n, standby_config(n, self.config(self.level_of(n), n)))).collect()
    }

    /// Returns the node that keeps the barriers of a switch.
    pub(super) fn representative(&self, config: Config, n: usize) -> Switch<Representative> {
        let drawn = self.reincarnate.filter(|_| !self.is_bridge(n));
        let mut incarnations = drawn.map(|seed| Rng::stream(seed, 1 << 38 | n as u64));
        let mut incarnation = config.incarnation;
        let (tree, mut restarts) = (*self, 0);
        // Earlier versions have one worker.
        let is_single = !config.declares || config.check_several_workers().is_err();
        let workers = if is_single { Workers::ONE } else { self.workers };
        let mut shared = (config.clone(), SharedWords::new(&config, workers.count));
        Switch::with_workers(workers, move |worker| {
            if worker == 0 {
                let clock = tree.clock_after(n, restarts).unwrap_or(config.clock);
                restarts += 1;
                shared.0 = Config { incarnation, clock, ..config.clone() };
                shared.1 = SharedWords::new(&config, workers.count);
                if let Some(rng) = &mut incarnations {
                    incarnation = *rng.pick(&[Incarnation::Chip, Incarnation::SwitchCpu]);
                }
            }
            let (config, words) = &shared;
            Representative::on_worker(config.clone(), worker, words).expect("the configuration is valid")
        })
    }

    /// Adds the standbys of all switches, which are given with their levels, if the tree has any.
    ///
    /// # Panics
    /// If the tree has standbys, and a switch keeps its barriers itself.
    pub(super) fn add_standbys(
        &self,
        world: &mut World,
        switches: &[NodeId],
        sites: &[(u32, usize)],
        mut clock: impl FnMut() -> Clock,
    ) -> BTreeMap<usize, NodeId> {
        let mut standbys = BTreeMap::new();
        for &(level, n) in sites.iter().filter(|_| self.standby) {
            assert!(self.is_bridge(n), "switch {n} keeps its barriers itself, and has no standby");
            let standby = self.representative(standby_config(n, self.config(level, n)), n);
            let node = world.add(&format!("standby {n}"), standby, clock());
            world.connect(switches[n], node, self.link);
            standbys.insert(n, node);
        }
        standbys
    }
}

/// One of the two representatives of a switch.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Its node
    pub node: NodeId,
    /// Its link to the switch
    pub link: LinkId,
    /// Its interface
    pub mac: MacAddr,
}

impl Network {
    /// Returns the first representative of a switch, or its standby.
    ///
    /// # Panics
    /// If no host beside the switch keeps its barriers, or it has no standby.
    pub fn seat(&self, switch: usize, standby: bool) -> Seat {
        let (node, at) = if standby {
            (self.standbys[&switch], standby_addresses(switch, 0))
        } else {
            (self.representatives[switch], switch_addresses(switch, 0))
        };
        let link = self.world.links().find(|&link| self.world.ends(link).contains(&node));
        Seat { node, link: link.expect("a representative has a link"), mac: at.mac }
    }
}

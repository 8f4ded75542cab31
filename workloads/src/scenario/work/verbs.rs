//! The workload of all verbs between each two hosts.

use super::workload::{Workload, clock_of};
use crate::scenario::{HostSpec, Scenario, SwitchKind, VerbsSpec};
use crate::verbs::{self, Shared, Verb, Verbs, VerbsApp};
use core::net::IpAddr;
use rnic::{Config, Rnic};
use sim::{Host, NodeId, World};
use std::sync::Arc;

pub(super) struct Work {
    workload: Verbs,
    seed: u64,
    may_fail: bool,
    /// Applications of hosts that are not added yet
    apps: std::vec::IntoIter<VerbsApp>,
    hosts: Vec<(NodeId, IpAddr)>,
    /// Upper bound of the connections of each host
    connections: usize,
    shared: Arc<Shared>,
}

impl Work {
    pub(super) fn new(spec: &VerbsSpec, scenario: &Scenario, seed: u64) -> Self {
        let workload = spec.workload();
        let may_fail = scenario.may_fail();
        let (apps, shared) = verbs::apps(&workload, seed, scenario.hosts.len(), may_fail);
        let connections = (workload.connections + workload.unreliable) as usize * scenario.hosts.len();
        let apps = apps.into_iter();
        Self { workload, seed, may_fail, apps, hosts: Vec::new(), connections, shared }
    }

    fn hosts<'a>(&self, world: &'a World) -> impl Iterator<Item = &'a Host<VerbsApp>> {
        self.hosts.iter().map(|(node, _)| world.node(*node))
    }
}

impl Workload for Work {
    fn add_host(&mut self, world: &mut World, host: &HostSpec, nic: Config) -> NodeId {
        let nic = Config {
            max_qps: self.connections,
            // Target, landing zone and receive requests of each connection; pattern, words, shared receive
            // requests, and the replacement of a deregistered region
            max_regions: self.connections * 3 + 4,
            ..nic
        };
        let app = self.apps.next().expect("there is an application for each host");
        let node = world.add(&host.name, Host::new(sim::nic(nic), app), clock_of(host));
        self.hosts.push((node, host.address.0));
        node
    }

    fn begin(&mut self, world: &mut World) {
        verbs::connect(world, &self.hosts, &self.workload, self.seed);
        verbs::begin(world, &self.hosts);
    }

    fn is_done(&self) -> bool {
        self.shared.is_done()
    }

    fn is_wrong(&mut self, _world: &World) -> bool {
        self.shared.is_wrong()
    }

    fn notify_broken(&mut self, world: &mut World) {
        if self.may_fail {
            for (host, _) in &self.hosts {
                world
                    .with(*host, |host: &mut Host<VerbsApp>, now| host.app.notify_broken(&mut host.nic, now));
            }
        }
    }

    fn check(&mut self, world: &World, _switches: &[(NodeId, SwitchKind)]) -> Option<String> {
        verbs::check(world, &self.hosts)
    }

    fn nic<'a>(&self, world: &'a World, number: usize) -> &'a Rnic {
        &world.node::<Host<VerbsApp>>(self.hosts[number].0).nic
    }

    fn operations(&self, world: &World) -> Vec<(&'static str, u64)> {
        let mut operations = Verb::ALL.map(|verb| (verb.name(), 0));
        for host in self.hosts(world) {
            operations.iter_mut().zip(host.app.totals()).for_each(|((_, sum), count)| *sum += count);
        }
        operations.into()
    }

    fn broken(&self, world: &World) -> u64 {
        self.hosts(world).map(|host| host.app.broken() as u64).sum()
    }
}

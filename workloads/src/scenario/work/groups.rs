//! The workload of P4CE's groups: leaders and replicas.

use super::workload::{Workload, clock_of};
use crate::groups::{self, Groups, LeaderApp, Outcome, ReplicaApp, SharedGroups};
use crate::scenario::{GroupsSpec, HostSpec, Scenario, SwitchKind};
use core::net::IpAddr;
use p4ce::Control;
use rnic::{Config, Rnic};
use sim::{Controlled, Host, NodeId, World};
use std::sync::Arc;

pub(super) struct Work {
    groups: Groups,
    seed: u64,
    may_fail: bool,
    /// Address of the switch that replicates
    switch: IpAddr,
    /// Names of leaders; the other hosts are replicas
    leader_names: Vec<String>,
    replica_addresses: Vec<IpAddr>,
    hosts: Vec<Role>,
    shared: Arc<SharedGroups>,
    /// First violation during the run
    wrong: Option<String>,
}

/// Role of a host.
#[derive(Clone, Copy)]
enum Role {
    Leader(NodeId),
    Replica(NodeId),
}

impl Work {
    pub(super) fn new(spec: &GroupsSpec, scenario: &Scenario, seed: u64) -> Self {
        let switch = scenario.switches.iter().find_map(|switch| match switch.kind {
            SwitchKind::P4ce { address, .. } => Some(address.0),
            SwitchKind::Bridge => None,
        });
        let replicas = scenario.hosts.iter().filter(|host| !spec.leaders.contains(&host.name));
        Self {
            groups: spec.workload(),
            seed,
            may_fail: scenario.may_fail(),
            switch: switch.unwrap_or(IpAddr::from([0; 4])),
            leader_names: spec.leaders.clone(),
            replica_addresses: replicas.map(|host| host.address.0).collect(),
            hosts: Vec::new(),
            shared: Arc::default(),
            wrong: None,
        }
    }

    fn leaders<'a>(&self, world: &'a World) -> impl Iterator<Item = &'a Host<LeaderApp>> {
        self.hosts.iter().filter_map(|role| match role {
            Role::Leader(node) => Some(world.node(*node)),
            Role::Replica(_) => None,
        })
    }

    fn replicas<'a>(&self, world: &'a World) -> impl Iterator<Item = &'a Host<ReplicaApp>> {
        self.hosts.iter().filter_map(|role| match role {
            Role::Replica(node) => Some(world.node(*node)),
            Role::Leader(_) => None,
        })
    }

    /// Reports an acknowledged operation that no quorum holds, or a violation that a host found.
    fn check_acknowledged(&self, world: &World) -> Option<String> {
        let replicas: Vec<_> = self.replicas(world).collect();
        let wrong = self.shared.wrong().map(str::to_owned);
        wrong.or_else(|| self.leaders(world).find_map(|leader| leader.app.check(&replicas)))
    }

    /// Reports an operation that a replica in an open group of this switch lacks although the switch counts
    /// it as held there.
    fn check_groups(&self, world: &World, switch: NodeId) -> Option<String> {
        let node = world.node::<Controlled<Control>>(switch);
        let leaders: Vec<_> = self.leaders(world).collect();
        let replicas: Vec<_> = self.replicas(world).collect();
        groups::check_open(&node.control, &[&node.switch.functions[0]], &leaders, &replicas)
    }
}

impl Workload for Work {
    fn add_host(&mut self, world: &mut World, host: &HostSpec, nic: Config) -> NodeId {
        let nic = Config { mtu: self.groups.mtu, ..nic };
        let make = sim::nic(nic);
        if self.leader_names.contains(&host.name) {
            let replicas = &self.replica_addresses;
            let own = host.address.0;
            let app = groups::leader(&self.groups, self.seed, own, self.switch, replicas, &self.shared);
            let node = world.add(&host.name, Host::new(make, app), clock_of(host));
            self.hosts.push(Role::Leader(node));
            node
        } else {
            let app = ReplicaApp::new(self.groups.clone(), self.seed, self.shared.clone());
            let node = world.add(&host.name, Host::new(make, app), clock_of(host));
            self.hosts.push(Role::Replica(node));
            node
        }
    }

    fn begin(&mut self, _world: &mut World) {
        // Leaders request their groups when they start.
    }

    fn is_done(&self) -> bool {
        self.shared.is_done()
    }

    fn is_wrong(&mut self, world: &World) -> bool {
        // Checked at once, because further replicas may receive the operation later.
        if self.wrong.is_none() && self.shared.take_check_needed() {
            self.wrong = self.check_acknowledged(world);
        }
        self.wrong.is_some()
    }

    fn notify_broken(&mut self, _world: &mut World) {
        // Nothing to do: the switch notifies leaders of failed replicas, and groups do not depend on each
        // other.
    }

    fn check(&mut self, world: &World, switches: &[(NodeId, SwitchKind)]) -> Option<String> {
        let mut p4ce = switches.iter().filter(|(_, kind)| matches!(kind, SwitchKind::P4ce { .. }));
        let unread = |replica: &Host<ReplicaApp>| replica.app.check_memory(&replica.nic);
        let failed = |leader: &Host<LeaderApp>| {
            let outcome = leader.app.outcomes().find(|outcome| **outcome != Outcome::Done)?;
            (!self.may_fail).then(|| format!("a group did not finish: {outcome:?}"))
        };
        self.wrong
            .clone()
            .or_else(|| self.check_acknowledged(world))
            .or_else(|| self.replicas(world).find_map(unread))
            .or_else(|| p4ce.find_map(|(switch, _)| self.check_groups(world, *switch)))
            .or_else(|| self.leaders(world).find_map(failed))
    }

    fn nic<'a>(&self, world: &'a World, number: usize) -> &'a Rnic {
        match self.hosts[number] {
            Role::Leader(node) => &world.node::<Host<LeaderApp>>(node).nic,
            Role::Replica(node) => &world.node::<Host<ReplicaApp>>(node).nic,
        }
    }

    fn operations(&self, world: &World) -> Vec<(&'static str, u64)> {
        vec![("replicated", self.leaders(world).map(|leader| leader.app.done()).sum())]
    }

    fn broken(&self, world: &World) -> u64 {
        let groups = self.leaders(world).flat_map(|leader| leader.app.outcomes());
        groups.filter(|outcome| **outcome != Outcome::Done).count() as u64
    }
}

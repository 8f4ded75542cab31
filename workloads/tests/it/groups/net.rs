//! The network of these tests: leaders, a switch and replicas, with its checks and faults.

use super::{LIMIT, revoking};
use crate::environment;
use core::net::IpAddr;
use p4ce::wire::Refusal;
use p4ce::{Control, ControlConfig, Limits, P4ce};
use rnic::{Config, Interface};
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use sim::{Clock, Controlled, Fault, Host, Link, NodeId, Queues, Workers, World};
use std::sync::Arc;
use switch::forward::Config as ForwardConfig;
use switch::{Nanos, Probability, Rng};
use workloads::groups::audit::{AuditedControl, AuditedSwitch, SharedFindings};
use workloads::groups::{Groups, LeaderApp, Outcome, ReplicaApp, SharedGroups, check_open};

/// Configuration of the switch and of the hosts
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) groups: usize,
    pub(super) queue_pairs: usize,
    pub(super) max_replicas: usize,
    pub(super) silent_after: Nanos,
    pub(super) connect_timeout: Nanos,
    pub(super) first_psn: Option<Psn>,
    /// Share of NAKs to leaders that are lost
    pub(super) lose_naks: Probability,
    pub(super) max_lag: u32,
    /// Number of groups that a hostile host requests, which ignores limits; 0 if there is no such host
    pub(super) hostile: u32,
    /// Time by which all leaders have to be done
    pub(super) limit: Nanos,
    pub(super) queues: Queues,
    pub(super) workers: Workers,
    /// Whether NICs assign the same R_keys after a restart
    pub(super) same_keys_after_restart: bool,
    pub(super) bug: Option<p4ce::Bug>,
    /// A bug planted into every NIC
    pub(super) nic_bug: Option<rnic::Bug>,
}

pub(super) const SETUP: Setup = Setup {
    groups: 16,
    queue_pairs: 64,
    max_replicas: 12,
    silent_after: Nanos::ZERO,
    connect_timeout: Nanos::from_secs(60),
    first_psn: None,
    lose_naks: Probability::NEVER,
    max_lag: p4ce::gather::MAX_LAG,
    hostile: 0,
    limit: LIMIT,
    queues: Queues::USUAL,
    workers: Workers::ONE,
    same_keys_after_restart: false,
    bug: None,
    nic_bug: None,
};

/// How a leader's group may fail after a replica revoked its right to write: its queue pair allows no WRITE
pub(super) const REFUSED: [&str; 2] = ["RemoteInvalidRequest", "Disconnected"];
/// Interval of the check whether the remaining leaders can make progress. Lost responses of the switch's
/// communication manager are retransmitted after four seconds.
pub(super) const WAIT_CHECK_INTERVAL: Nanos = Nanos::from_secs(5);
/// The longest delay of a late frame
pub(super) const MAX_LATENESS: Nanos = Nanos::from_millis(4);

/// One in this many requests of the hostile host, beginning with the first, uses another version of the
/// protocol.
pub(super) const OTHER_VERSIONS: u32 = 4;
/// Limit of a leader's requests per second, and of its groups
pub(super) const PER_LEADER: usize = 4;

pub(super) struct Net {
    pub(super) world: World,
    pub(super) leaders: Vec<NodeId>,
    pub(super) replicas: Vec<NodeId>,
    pub(super) switch: NodeId,
    pub(super) shared: Arc<SharedGroups>,
    pub(super) seen: SharedFindings,
    /// Number of the leaders' groups, without those of the hostile host
    pub(super) regular_groups: usize,
    limit: Nanos,
}

pub(super) fn ip(v6: bool, n: u8) -> IpAddr {
    if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into() } else { [10, 0, 0, n].into() }
}

pub(super) fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n])
}

pub(super) fn prefix(v6: bool) -> u8 {
    if v6 { 64 } else { 24 }
}

impl Net {
    pub(super) fn new(seed: u64, v6: bool, groups: &Groups, leaders: u8, replicas: u8, link: Link) -> Self {
        Self::with(SETUP, seed, v6, groups, leaders, replicas, link)
    }

    pub(super) fn with(
        setup: Setup,
        seed: u64,
        v6: bool,
        groups: &Groups,
        leaders: u8,
        replicas: u8,
        link: Link,
    ) -> Self {
        let mut world = World::new(seed);
        let shared = Arc::new(SharedGroups::default());
        let own = ip(v6, 254);
        let audit = SharedFindings::default();
        // The hostile host is the last leader.
        let regular_groups = usize::from(leaders) * groups.groups as usize;
        let leaders = leaders + u8::from(setup.hostile > 0);
        // Each worker has room for a group of any size.
        let queue_pairs = setup.queue_pairs * setup.workers.count.next_power_of_two();
        let forward = ForwardConfig::bridge(u16::from(leaders + replicas), 64);
        let config = p4ce::Config {
            forward,
            mac: mac(254),
            addresses: vec![own],
            groups: setup.groups,
            queue_pairs,
            workers: setup.workers.count,
            silent_after: setup.silent_after,
            bug: setup.bug,
        };
        let addresses: Vec<IpAddr> = (1..=replicas).map(|n| ip(v6, n)).collect();
        let list = addresses.clone();
        let (control_audit, switch_audit) = (Arc::clone(&audit), Arc::clone(&audit));
        let limited =
            Limits { requests_per_leader: PER_LEADER, groups_per_leader: PER_LEADER, ..Limits::default() };
        let mut limits = if setup.hostile > 0 { limited } else { Limits::default() };
        limits.bug = setup.bug;
        let control = move |incarnation| {
            let control = Control::new(ControlConfig {
                interface: Interface::new(mac(254), own, prefix(v6)),
                port: workloads::groups::SWITCH_PORT,
                groups: setup.groups,
                queue_pairs,
                workers: setup.workers.count,
                max_replicas: setup.max_replicas,
                lists: [(workloads::groups::LIST, list.clone())].into(),
                limits: limits.clone(),
                secret: None,
                setup_timeout: setup.connect_timeout,
                max_lag: setup.max_lag,
                seed: seed ^ incarnation << 32,
                first_psn: setup.first_psn,
            });
            AuditedControl::new(control, Arc::clone(&control_audit))
        };
        let function = move |worker| {
            AuditedSwitch::new(
                P4ce::new(config.clone()),
                Rng::stream(seed, 0x6e61_6b73 + worker as u64),
                setup.lose_naks,
                Arc::clone(&switch_audit),
            )
        };
        let switch = world.add(
            "switch",
            Controlled::with_workers(setup.workers, function, control).with_queues(setup.queues),
            Clock::default(),
        );
        let nic = |n: u8| {
            let mut config = Config::new(Interface::new(mac(n), ip(v6, n), prefix(v6)));
            config.seed = seed ^ u64::from(n);
            config.key_seed = setup.same_keys_after_restart.then_some(config.seed);
            config.mtu = groups.mtu;
            config.bug = setup.nic_bug;
            sim::nic(config)
        };
        let replicas: Vec<_> = (1..=replicas)
            .map(|n| {
                let app = ReplicaApp::new(groups.clone(), seed, shared.clone());
                world.add(&format!("replica {n}"), Host::new(nic(n), app), Clock::default())
            })
            .collect();
        let leaders: Vec<_> = (101..101 + leaders)
            .map(|n| {
                let is_hostile = setup.hostile > 0 && n == 100 + leaders;
                let count = if is_hostile { setup.hostile } else { groups.groups };
                let other_versions = if is_hostile { OTHER_VERSIONS } else { 0 };
                let groups = Groups { groups: count, other_versions, ..groups.clone() };
                let app = workloads::groups::leader(&groups, seed, ip(v6, n), own, &addresses, &shared);
                world.add(&format!("leader {n}"), Host::new(nic(n), app), Clock::default())
            })
            .collect();
        for node in leaders.iter().chain(&replicas) {
            world.connect(*node, switch, link);
        }
        let limit = setup.limit;
        Self { world, leaders, replicas, switch, shared, seen: audit, regular_groups, limit }
    }

    /// Returns whether the switch has closed the group to which this queue pair of a leader belongs.
    pub(super) fn is_closed(&self, leader: (IpAddr, Qpn)) -> bool {
        !self.control().groups().any(|status| status.peers.contains(&leader))
    }

    /// Returns whether the only leaders that are not done cannot detect that their groups are closed: a right
    /// to write was revoked, and the REJ that reports it was lost. Only a limit of retries, which these
    /// leaders do not have, would end their wait.
    pub(super) fn remaining_leaders_are_stuck(&self) -> bool {
        let (leaders, replicas) = self.hosts();
        let mut groups = leaders.iter().flat_map(|leader| leader.app.outcomes_and_rights(&replicas));
        groups.all(|(leader, outcome, revoked)| match outcome {
            Outcome::Requested => false,
            Outcome::Open => revoked && self.is_closed(leader),
            _ => true,
        })
    }

    /// Runs the world until all leaders are done. Returns the first violation as an error.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let mut next_check = WAIT_CHECK_INTERVAL;
        while !self.shared.is_done() {
            if self.world.now() >= next_check {
                next_check = self.world.now() + WAIT_CHECK_INTERVAL;
                if self.remaining_leaders_are_stuck() {
                    break;
                }
            }
            if !self.world.step(self.limit) {
                let done: u64 = self.hosts().0.iter().map(|leader| leader.app.done()).sum();
                return Err(format!("not done: outcomes {:?}, {done} operations completed", self.outcomes()));
            }
            if self.shared.take_check_needed() {
                self.check()?;
            }
        }
        self.check()?;
        let (leaders, replicas) = self.hosts();
        let wrong = replicas.iter().find_map(|replica| replica.app.check_memory(&replica.nic));
        let functions: Vec<_> = self.node().switch.functions.iter().map(AuditedSwitch::function).collect();
        let wrong = wrong.or_else(|| check_open(self.control(), &functions, &leaders, &replicas));
        wrong.map_or(Ok(()), Err)
    }

    /// Returns all leaders and replicas.
    pub(super) fn hosts(&self) -> (Vec<&Host<LeaderApp>>, Vec<&Host<ReplicaApp>>) {
        let leaders = self.leaders.iter().map(|leader| self.world.node(*leader));
        (leaders.collect(), self.replicas.iter().map(|replica| self.world.node(*replica)).collect())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let (leaders, replicas) = self.hosts();
        let wrong = self.seen.lock().unwrap().wrong.clone();
        let wrong = wrong.or_else(|| self.shared.wrong().map(str::to_owned));
        let find_violation = || leaders.iter().find_map(|leader| leader.app.check(&replicas));
        wrong.or_else(find_violation).map_or(Ok(()), Err)
    }

    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        self.leaders
            .iter()
            .flat_map(|leader| {
                self.world.node::<Host<LeaderApp>>(*leader).app.outcomes().cloned().collect::<Vec<_>>()
            })
            .collect()
    }

    pub(super) fn node(&self) -> &Controlled<AuditedControl> {
        self.world.node(self.switch)
    }

    pub(super) fn control(&self) -> &Control {
        &self.node().control.control
    }

    /// Returns the counters of the first worker.
    pub(super) fn counted(&self) -> Arc<p4ce::Counters> {
        self.node().switch.functions[0].function().counters()
    }

    /// Checks that the groups of all regular leaders are done, and that the hostile host caused no more
    /// requests to replicas than allowed. A group whose right to write was revoked may fail: its leader gets
    /// a refusal, or is disconnected.
    pub(super) fn check_outcomes(&self) -> Result<(), String> {
        let (leaders, replicas) = self.hosts();
        let outcomes: Vec<_> =
            leaders.iter().flat_map(|leader| leader.app.outcomes_and_rights(&replicas)).collect();
        let (regular_groups, hostile) = outcomes.split_at(self.regular_groups);
        let is_refused = |leader, outcome: &Outcome| match outcome {
            Outcome::Failed(why) => REFUSED.iter().any(|how| why.starts_with(how)),
            // A switch that has not yet received the leader's RTU sends a REJ instead of a DREQ.
            Outcome::Refused(None) => true,
            outcome => *outcome == Outcome::Open && self.is_closed(leader),
        };
        let is_allowed = |(leader, outcome, revoked): &&((IpAddr, Qpn), &Outcome, bool)| {
            **outcome == Outcome::Done || *revoked && is_refused(*leader, outcome)
        };
        if let Some((_, outcome, revoked)) = regular_groups.iter().find(|group| !is_allowed(group)) {
            return Err(format!("a group ended as {outcome:?}, rights revoked: {revoked}"));
        }
        for (number, group) in hostile.iter().enumerate() {
            let is_other_version = (number as u32).is_multiple_of(OTHER_VERSIONS);
            let is_refused = is_other_version && *group.1 == Outcome::Refused(Some(Refusal::Request));
            let is_busy = *group.1 == Outcome::Refused(Some(Refusal::Busy));
            if !(is_refused || is_busy || !is_other_version && is_allowed(&group)) {
                return Err(format!("group {number} of the hostile host: {:?}", group.1));
            }
        }
        // The switch counts seconds by its own clock.
        let seconds = self.world.clock(self.switch).since(sim::EPOCH).0 as usize / 1_000_000_000 + 1;
        let max = self.replicas.len() * (self.regular_groups + PER_LEADER * seconds);
        let request_count = self.seen.lock().unwrap().requests.len();
        if !hostile.is_empty() && request_count > max {
            return Err(format!("replicas received {request_count} requests, {max} are allowed"));
        }
        Ok(())
    }

    /// Swaps the switch ports of two hosts, which then announce themselves.
    pub(super) fn swap(&mut self, at: Nanos, a: usize, b: usize) {
        let links: Vec<_> = self.world.links().collect();
        self.world.schedule(at, Fault::Swap(links[a], links[b]));
        for host in [a, b] {
            let node = self.world.ends(links[host])[0];
            let n = if host < self.leaders.len() { 101 + host } else { 1 + host - self.leaders.len() };
            // Gratuitous ARP, sent eight times because frames may be lost
            let mut frame = [MacAddr::BROADCAST.0, mac(n as u8).0].concat();
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend([&mac(n as u8).0[..], &[10, 0, 0, n as u8], &[0; 6], &[10, 0, 0, n as u8]].concat());
            frame.resize(60, 0);
            for later in 1..=8 {
                let at = at + Nanos::from_micros(100 * later);
                self.world.schedule(at, Fault::Send(node, frame.clone()));
            }
        }
    }

    /// In a quarter of the seeds, the switch and one host cannot reach each other for a while, whereas all
    /// other paths work.
    pub(super) fn partition(&mut self, seed: u64) {
        let mut rng = Rng::stream(seed, 0x7061_7274);
        if rng.below(4) == 0 {
            let at = Nanos::from_micros(rng.between(0, 3000));
            let until = at + Nanos::from_micros(rng.between(10, 20_000));
            let (leaders, replicas) = (self.leaders.len() as u8, self.replicas.len() as u8);
            let host = rng.below(u64::from(leaders + replicas)) as u8;
            let host = mac(if host < leaders { 101 + host } else { 1 + host - leaders });
            self.world.schedule(at, Fault::PartitionPair(host, mac(254)));
            self.world.schedule(until, Fault::HealPair(host, mac(254)));
        }
    }

    /// Makes clocks drift and UDP source ports change in some seeds.
    pub(super) fn drift_and_rehash(&mut self, seed: u64) {
        let hosts = [&self.leaders[..], &self.replicas].concat();
        let within = Nanos::from_millis(3);
        environment::rehash(&mut self.world, &hosts, seed, within);
        environment::drift(&mut self.world, &[&hosts[..], &[self.switch]].concat(), seed, within);
    }

    /// In seeds that revoke, makes a replica revoke a group's right to write in the middle of its writes.
    pub(super) fn revoke(&mut self, seed: u64) {
        if let Some(mut rng) = revoking(seed) {
            let replica = *rng.pick(&self.replicas);
            let max = rng.between(4, 14);
            let after = rng.between(1, 1 << max);
            self.world.with(replica, |replica: &mut Host<ReplicaApp>, _| {
                replica.app.revoke_after = Some(after);
            });
        }
    }

    pub(super) fn counters(&self) -> p4ce::ControlCounters {
        self.control().counters()
    }
}

//! P4CE's groups in the simulator: leaders, a switch, replicas.

use crate::environment;
use core::net::IpAddr;
use p4ce::wire::Refusal;
use p4ce::{Control, ControlConfig, Limits, P4ce};
use rnic::{Config, Interface, PathMtu};
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use sim::{Clock, Controlled, Fault, Host, Link, NodeId, Queues, World};
use std::sync::Arc;
use switch::forward::Config as ForwardConfig;
use switch::{Nanos, Probability, Rng};
use workloads::groups::audit::{AuditedControl, AuditedSwitch, SharedFindings};
use workloads::groups::{Groups, JoinReply, LeaderApp, Outcome, ReplicaApp, SharedGroups, check_open};

const LIMIT: Nanos = Nanos::from_secs(100);

/// Configuration of the switch and of the hosts
#[derive(Clone, Copy)]
struct Setup {
    groups: usize,
    queue_pairs: usize,
    max_replicas: usize,
    silent_after: Nanos,
    connect_timeout: Nanos,
    first_psn: Option<Psn>,
    /// Share of NAKs to leaders that are lost
    lose_naks: Probability,
    max_lag: u32,
    /// Number of groups that a hostile host requests, which ignores limits; 0 if there is no such host
    hostile: u32,
    queues: Queues,
    /// Whether NICs assign the same R_keys after a restart
    same_keys_after_restart: bool,
    bug: Option<p4ce::Bug>,
    /// A bug planted into every NIC
    nic_bug: Option<rnic::Bug>,
}

const SETUP: Setup = Setup {
    groups: 16,
    queue_pairs: 64,
    max_replicas: 12,
    silent_after: Nanos::ZERO,
    connect_timeout: Nanos::from_secs(60),
    first_psn: None,
    lose_naks: Probability::NEVER,
    max_lag: p4ce::gather::MAX_LAG,
    hostile: 0,
    queues: Queues::USUAL,
    same_keys_after_restart: false,
    bug: None,
    nic_bug: None,
};

/// How a leader's group may fail after a replica revoked its right to write: its queue pair allows no WRITE
const REFUSED: [&str; 2] = ["RemoteInvalidRequest", "Disconnected"];
/// Interval of the check whether the remaining leaders can make progress. Lost responses of the switch's
/// communication manager are retransmitted after four seconds.
const WAIT_CHECK_INTERVAL: Nanos = Nanos::from_secs(5);
/// The longest delay of a late frame
const MAX_LATENESS: Nanos = Nanos::from_millis(4);

/// One in this many requests of the hostile host, beginning with the first, uses another version of the
/// protocol.
const OTHER_VERSIONS: u32 = 4;
/// Limit of a leader's requests per second, and of its groups
const PER_LEADER: usize = 4;

struct Net {
    world: World,
    leaders: Vec<NodeId>,
    replicas: Vec<NodeId>,
    switch: NodeId,
    shared: Arc<SharedGroups>,
    seen: SharedFindings,
    /// Number of the leaders' groups, without those of the hostile host
    regular_groups: usize,
}

fn ip(v6: bool, n: u8) -> IpAddr {
    if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into() } else { [10, 0, 0, n].into() }
}

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n])
}

fn prefix(v6: bool) -> u8 {
    if v6 { 64 } else { 24 }
}

impl Net {
    fn new(seed: u64, v6: bool, groups: &Groups, leaders: u8, replicas: u8, link: Link) -> Self {
        Self::with(SETUP, seed, v6, groups, leaders, replicas, link)
    }

    fn with(
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
        let forward = ForwardConfig::bridge(u16::from(leaders + replicas), 64);
        let config = p4ce::Config {
            forward,
            mac: mac(254),
            addresses: vec![own],
            groups: setup.groups,
            queue_pairs: setup.queue_pairs,
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
                queue_pairs: setup.queue_pairs,
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
        let function = move || {
            AuditedSwitch::new(
                P4ce::new(config.clone()),
                Rng::stream(seed, 0x6e61_6b73),
                setup.lose_naks,
                Arc::clone(&switch_audit),
            )
        };
        let switch = world.add(
            "switch",
            Controlled::new(function, control).with_queues(setup.queues),
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
        Self { world, leaders, replicas, switch, shared, seen: audit, regular_groups }
    }

    /// Returns whether the switch has closed the group to which this queue pair of a leader belongs.
    fn is_closed(&self, leader: (IpAddr, Qpn)) -> bool {
        !self.control().groups().any(|status| status.peers.contains(&leader))
    }

    /// Returns whether the only leaders that are not done cannot detect that their groups are closed: a right
    /// to write was revoked, and the REJ that reports it was lost. Only a limit of retries, which these
    /// leaders do not have, would end their wait.
    fn remaining_leaders_are_stuck(&self) -> bool {
        let (leaders, replicas) = self.hosts();
        let mut groups = leaders.iter().flat_map(|leader| leader.app.outcomes_and_rights(&replicas));
        groups.all(|(leader, outcome, revoked)| match outcome {
            Outcome::Requested => false,
            Outcome::Open => revoked && self.is_closed(leader),
            _ => true,
        })
    }

    /// Runs the world until all leaders are done. Returns the first violation as an error.
    fn run(&mut self) -> Result<(), String> {
        let mut next_check = WAIT_CHECK_INTERVAL;
        while !self.shared.is_done() {
            if self.world.now() >= next_check {
                next_check = self.world.now() + WAIT_CHECK_INTERVAL;
                if self.remaining_leaders_are_stuck() {
                    break;
                }
            }
            if !self.world.step(LIMIT) {
                let leader: &Host<LeaderApp> = self.world.node(self.leaders[0]);
                return Err(format!(
                    "not done: outcomes {:?}, {} operations of the first leader completed",
                    leader.app.outcomes().collect::<Vec<_>>(),
                    leader.app.done()
                ));
            }
            if self.shared.take_check_needed() {
                self.check()?;
            }
        }
        self.check()?;
        let (leaders, replicas) = self.hosts();
        let wrong = replicas.iter().find_map(|replica| replica.app.check_memory(&replica.nic));
        let function = self.node().switch.function.function();
        let wrong = wrong.or_else(|| check_open(self.control(), function, &leaders, &replicas));
        wrong.map_or(Ok(()), Err)
    }

    /// Returns all leaders and replicas.
    fn hosts(&self) -> (Vec<&Host<LeaderApp>>, Vec<&Host<ReplicaApp>>) {
        let leaders = self.leaders.iter().map(|leader| self.world.node(*leader));
        (leaders.collect(), self.replicas.iter().map(|replica| self.world.node(*replica)).collect())
    }

    fn check(&self) -> Result<(), String> {
        let (leaders, replicas) = self.hosts();
        let wrong = self.seen.lock().unwrap().wrong.clone();
        let wrong = wrong.or_else(|| self.shared.wrong().map(str::to_owned));
        let find_violation = || leaders.iter().find_map(|leader| leader.app.check(&replicas));
        wrong.or_else(find_violation).map_or(Ok(()), Err)
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.leaders
            .iter()
            .flat_map(|leader| {
                self.world.node::<Host<LeaderApp>>(*leader).app.outcomes().cloned().collect::<Vec<_>>()
            })
            .collect()
    }

    fn node(&self) -> &Controlled<AuditedControl> {
        self.world.node(self.switch)
    }

    fn control(&self) -> &Control {
        &self.node().control.control
    }

    fn counted(&self) -> Arc<p4ce::Counters> {
        self.node().switch.function.function().counters()
    }

    /// Checks that the groups of all regular leaders are done, and that the hostile host caused no more
    /// requests to replicas than allowed. A group whose right to write was revoked may fail: its leader gets
    /// a refusal, or is disconnected.
    fn check_outcomes(&self) -> Result<(), String> {
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
    fn swap(&mut self, at: Nanos, a: usize, b: usize) {
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
    fn partition(&mut self, seed: u64) {
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
    fn drift_and_rehash(&mut self, seed: u64) {
        let hosts = [&self.leaders[..], &self.replicas].concat();
        let within = Nanos::from_millis(3);
        environment::rehash(&mut self.world, &hosts, seed, within);
        environment::drift(&mut self.world, &[&hosts[..], &[self.switch]].concat(), seed, within);
    }

    /// In seeds that revoke, makes a replica revoke a group's right to write in the middle of its writes.
    fn revoke(&mut self, seed: u64) {
        if let Some(mut rng) = revoking(seed) {
            let replica = *rng.pick(&self.replicas);
            let max = rng.between(4, 14);
            let after = rng.between(1, 1 << max);
            self.world.with(replica, |replica: &mut Host<ReplicaApp>, _| {
                replica.app.revoke_after = Some(after);
            });
        }
    }

    fn counters(&self) -> p4ce::ControlCounters {
        self.control().counters()
    }
}

#[test]
fn a_leader_writes_once_and_all_replicas_have_the_data() {
    for v6 in [false, true] {
        let mut net = Net::new(1, v6, &Groups::default(), 1, 3, Link::default());
        net.run().unwrap();
        assert_eq!(net.outcomes(), [Outcome::Done]);
        let counters = net.counted();
        let requests = counters.requests.get();
        assert_eq!(counters.copies.get(), 3 * requests);
        assert!(counters.acks.get() <= requests, "at most one ACK per request that asks for it");
        // After the disconnect, no state of the group is left.
        let leader = net.leaders[0];
        net.world
            .with(leader, |leader: &mut Host<LeaderApp>, now| leader.app.disconnect(&mut leader.nic, now));
        net.world.run_until(LIMIT);
        assert_eq!(net.control().groups().count(), 0);
        assert_eq!(
            net.counters(),
            p4ce::ControlCounters { requested: 1, opened: 1, closed: 1, ..Default::default() }
        );
    }
}

/// Returns the stream from which revocations are drawn, in a quarter of the seeds.
fn revoking(seed: u64) -> Option<Rng> {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7269_6768);
    (rng.below(4) == 0).then_some(rng)
}

/// Draws a path MTU, with which the longest messages are 4, 8 or 16 packets.
fn drawn_mtu(seed: u64) -> PathMtu {
    // A separate stream, so that all other draws of the seed stay the same.
    *Rng::stream(seed, 0x006d_7475).pick(&[PathMtu::B256, PathMtu::B512, PathMtu::B1024])
}

/// Draws a link on which each of four impairments affects a share of up to `max` of all frames.
fn draw_link(rng: &mut Rng, max: f64) -> Link {
    let mut share = || Probability::new(rng.below(1000) as f64 / 1000.0 * max).unwrap();
    Link { loss: share(), duplicate: share(), reorder: share(), corrupt: share(), ..Link::default() }
}

/// Runs one seed on lossy links. All operations that were posted have to complete.
fn on_lossy_links(setup: Setup, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut link = draw_link(&mut rng, 0.1);
    environment::late(&mut link, seed, MAX_LATENESS);
    environment::short_queue(&mut link, seed);
    let replicas = rng.between(1, 5) as u8;
    let groups = Groups {
        groups: rng.between(1, 3) as u32,
        operations: rng.between(1, 50) as u32,
        depth: rng.between(1, 16) as u32,
        quorum: rng.between(0, replicas.into()) as u8,
        outvote: rng.below(2) == 0,
        receives: rng.between(1, 16) as u32,
        messages: rng.below(6) as u32,
        mtu: drawn_mtu(seed),
        ..Groups::default()
    };
    // A replica that misses an entry that the leader counts as held does not get it again, and is excluded
    // only if the switch has a limit of silence. Without that limit, a group that has lost a replica may
    // hang, unless its quorum is all replicas, so that it ends.
    let groups = Groups { quorum: if revoking(seed).is_some() { replicas } else { groups.quorum }, ..groups };
    let leaders = rng.between(1, 2) as u8;
    // Half of the seeds begin just before the PSN wraps, where errors are likely.
    let near = Psn::new(0u32.wrapping_sub(rng.between(1, 64) as u32));
    let setup = Setup { first_psn: (rng.below(2) == 0).then_some(near), ..setup };
    let v6 = rng.below(2) == 0;
    let setup = Setup {
        // NAKs that leaders do not receive, so that they do not go back
        lose_naks: if rng.below(3) == 0 { Probability::new(0.5).unwrap() } else { Probability::NEVER },
        hostile: if rng.below(4) == 0 { rng.between(10, 30) as u32 } else { 0 },
        queue_pairs: 128,
        queues: Queues::drawn(seed),
        ..setup
    };
    let mut net = Net::with(setup, seed, v6, &groups, leaders, replicas, link);
    net.drift_and_rehash(seed);
    net.revoke(seed);
    if rng.below(3) == 0 {
        let hosts = net.leaders.len() + net.replicas.len();
        for _ in 0..rng.between(1, 3) {
            let (a, b) = (rng.below(hosts as u64) as usize, rng.below(hosts as u64) as usize);
            if a != b {
                net.swap(Nanos::from_micros(rng.between(1, 3000)), a, b);
            }
        }
    }
    net.run()?;
    net.check_outcomes()
}

/// Checks that replicas too far behind a quorum are excluded: the switch writes to them no more, and reports
/// them to the control plane.
fn far_behind(setup: Setup, seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 0x6c61_6721);
    let link = draw_link(&mut rng, 0.05);
    let replicas = rng.between(2, 5) as u8;
    let groups = Groups {
        operations: rng.between(50, 150) as u32,
        quorum: rng.between(1, u64::from(replicas) - 1) as u8,
        outvote: true,
        messages: 0,
        retry_count: 5,
        ..Groups::default()
    };
    let setup = Setup { max_lag: rng.between(1, 40) as u32, ..setup };
    let mut net = Net::with(setup, seed, false, &groups, 1, replicas, link);
    net.drift_and_rehash(seed);
    net.run()?;
    net.world.run_until(net.world.now() + Nanos::from_millis(1));
    net.check()?;
    let dropped = net.counted().excluded.get();
    if net.counters().excluded < dropped {
        return Err(format!("{dropped} replicas were excluded, but {} reported", net.counters().excluded));
    }
    Ok(())
}

#[test]
fn replicas_far_behind_are_excluded_and_reported() {
    for seed in environment::seeds("groups", 300) {
        far_behind(SETUP, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn lossy_links_stop_no_group() {
    for seed in environment::seeds("groups", 1000) {
        on_lossy_links(SETUP, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in p4ce::Bug::ALL {
        let found = (1..=1000).find_map(|seed| {
            let setup = Setup { bug: Some(bug), ..SETUP };
            let wrong = on_lossy_links(setup, seed).and_then(|()| far_behind(setup, seed)).err()?;
            Some((seed, wrong))
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {wrong}");
    }
}

/// A host requests 30 groups at once, with tables that have room for all of them.
#[cfg(debug_assertions)]
fn run_with_hostile_host(bug: Option<p4ce::Bug>, seed: u64) -> Result<(), String> {
    let setup = Setup { groups: 64, queue_pairs: 1024, hostile: 30, bug, ..SETUP };
    let mut net = Net::with(setup, seed, false, &Groups::default(), 1, 3, Link::default());
    net.run()?;
    net.check_outcomes()
}

/// With the bug, a replica's NIC accepts WRITEs of a leader whose right to write was revoked.
#[cfg(debug_assertions)]
#[test]
fn planted_writes_without_a_right_are_found() {
    let setup = Setup { nic_bug: Some(rnic::Bug::AnyAccess), ..SETUP };
    let found = (1..=1000).find_map(|seed| {
        let wrong = on_lossy_links(setup, seed).err()?;
        on_lossy_links(SETUP, seed).is_ok().then_some((seed, wrong))
    });
    let (seed, wrong) = found.expect("the bug is found within 1,000 seeds");
    println!("AnyAccess: seed {seed}: {wrong}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_missing_request_limit_is_found() {
    assert_eq!(run_with_hostile_host(None, 1), Ok(()));
    let wrong = run_with_hostile_host(Some(p4ce::Bug::UnlimitedRequests), 1).unwrap_err();
    assert!(wrong.ends_with("15 are allowed"), "{wrong}");
}

/// Only what a replica held when it crashed counts. The replica restarts before the leader has written
/// anything.
#[cfg(debug_assertions)]
#[test]
fn planted_minority_quorum_is_found_after_a_replica_restarts() {
    let run = |bug| {
        let setup = Setup { bug, ..SETUP };
        let groups = Groups { quorum: 2, retry_count: 5, ..Groups::default() };
        let mut net = Net::with(setup, 1, false, &groups, 1, 2, Link::default());
        while net.node().switch.function.function().group(p4ce::GroupId(0)).is_none() {
            assert!(net.world.step(LIMIT));
        }
        let now = net.world.now();
        net.world.schedule(now, Fault::Crash(net.replicas[1]));
        net.world.schedule(now, Fault::Restart(net.replicas[1]));
        net.run()
    };
    assert_eq!(run(None), Ok(()));
    let wrong = run(Some(p4ce::Bug::Minority)).unwrap_err();
    assert!(wrong.ends_with("held by 1 of 2"), "{wrong}");
}

/// The quorum holds everything, and one more replica misses what was sent while its link was cut.
#[cfg(debug_assertions)]
#[test]
fn planted_wrong_progress_is_found_at_a_replica_outside_the_quorum() {
    let run = |bug| {
        let setup = Setup { bug, ..SETUP };
        let groups = Groups { quorum: 1, outvote: true, messages: 0, ..Groups::default() };
        let mut net = Net::with(setup, 1, false, &groups, 1, 2, Link::default());
        while net.world.node::<Host<LeaderApp>>(net.leaders[0]).app.done() < 10 {
            assert!(net.world.step(LIMIT));
        }
        let (now, link) = (net.world.now(), net.world.links().skip(2).collect::<Vec<_>>());
        net.world.schedule(now, Fault::Cut(link.clone()));
        net.world.schedule(now + Nanos::from_micros(20), Fault::Heal(link));
        net.run()
    };
    assert_eq!(run(None), Ok(()));
    let wrong = run(Some(p4ce::Bug::LagIgnored)).unwrap_err();
    assert!(wrong.starts_with("replica 1 is taken to hold"), "{wrong}");
}

/// Draws adverse conditions for the switch other than crashes, from a separate stream.
fn draw_adverse_setup(seed: u64) -> Setup {
    let mut rng = Rng::stream(seed, 0x6861_7264);
    let near = Psn::new(0u32.wrapping_sub(rng.between(1, 64) as u32));
    Setup {
        first_psn: (rng.below(2) == 0).then_some(near),
        lose_naks: if rng.below(3) == 0 { Probability::new(0.5).unwrap() } else { Probability::NEVER },
        hostile: if rng.below(4) == 0 { rng.between(10, 30) as u32 } else { 0 },
        queue_pairs: 128,
        queues: Queues::drawn(seed),
        same_keys_after_restart: environment::same_keys_after_restart(seed),
        ..SETUP
    }
}

#[test]
fn crashes_and_partitions_lose_no_acknowledged_write() {
    let (mut done, mut failed) = (0, 0);
    for seed in environment::seeds("groups", 1000) {
        let mut rng = Rng::new(seed);
        let mut link = draw_link(&mut rng, 0.02);
        environment::late(&mut link, seed, MAX_LATENESS);
        environment::short_queue(&mut link, seed);
        let replicas = rng.between(2, 5) as u8;
        let groups = Groups {
            operations: rng.between(20, 100) as u32,
            quorum: rng.between(0, replicas.into()) as u8,
            outvote: rng.below(2) == 0,
            retry_count: 5,
            mtu: drawn_mtu(seed),
            ..Groups::default()
        };
        let setup = Setup { silent_after: Nanos::from_millis(5), ..draw_adverse_setup(seed) };
        let mut net = Net::with(setup, seed, false, &groups, rng.between(1, 2) as u8, replicas, link);
        net.partition(seed);
        net.drift_and_rehash(seed);
        net.revoke(seed);
        let links: Vec<_> = net.world.links().collect();
        for _ in 0..rng.between(1, 3) {
            let at = Nanos::from_micros(rng.between(0, 3000));
            let until = at + Nanos::from_micros(rng.between(10, 20_000));
            let replica = net.replicas[rng.below(net.replicas.len() as u64) as usize];
            let leader = net.leaders[rng.below(net.leaders.len() as u64) as usize];
            let link = links[rng.below(links.len() as u64) as usize];
            let (first, then) = match rng.below(6) {
                0 => (Fault::Crash(replica), Fault::Restart(replica)),
                1 => (Fault::Crash(leader), Fault::Restart(leader)),
                2 => (Fault::Crash(net.switch), Fault::Restart(net.switch)),
                3 => (Fault::Pause(replica), Fault::Resume(replica)),
                4 => (Fault::Pause(net.switch), Fault::Resume(net.switch)),
                _ => environment::cut(&net.world, link, at),
            };
            net.world.schedule(at, first);
            net.world.schedule(until, then);
        }
        net.run().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        for outcome in net.outcomes().into_iter().take(net.regular_groups) {
            *if outcome == Outcome::Done { &mut done } else { &mut failed } += 1;
        }
    }
    assert!(
        !environment::selects_default_seeds() || done.min(failed) > 100,
        "too few of one kind: {done} groups done, {failed} failed"
    );
}

#[test]
fn a_switch_failure_after_any_packet_loses_no_acknowledged_write() {
    let groups = Groups { operations: 6, retry_count: 2, messages: 3, ..Groups::default() };
    let mut whole = Net::new(1, false, &groups, 1, 2, Link::default());
    whole.run().unwrap();
    let (steps, _) = whole.world.events();
    for stop in 0..steps {
        let mut net = Net::new(1, false, &groups, 1, 2, Link::default());
        while net.world.events().0 < stop {
            assert!(net.world.step(LIMIT));
        }
        let now = net.world.now();
        net.world.schedule(now, Fault::Crash(net.switch));
        net.run().unwrap_or_else(|wrong| panic!("switch failure after event {stop}: {wrong}"));
    }
}

/// Returns the outcome of the leader's only group in this network, and the network.
fn outcome_of(setup: Setup, groups: &Groups, replicas: u8, change: impl FnOnce(&mut Net)) -> (Outcome, Net) {
    let mut net = Net::with(setup, 1, false, groups, 1, replicas, Link::default());
    change(&mut net);
    net.run().unwrap();
    (net.outcomes().remove(0), net)
}

fn refusal(setup: Setup, groups: &Groups, replicas: u8, change: impl FnOnce(&mut Net)) -> Refusal {
    let (outcome, mut net) = outcome_of(setup, groups, replicas, change);
    let Outcome::Refused(Some(refusal)) = outcome else { panic!("{outcome:?}") };
    // No state of the group is left, at the switch or at any replica.
    net.world.run_until(LIMIT);
    assert_eq!(net.control().groups().count(), 0);
    assert_eq!((net.counters().opened, net.counters().refused), (0, 1));
    for replica in &net.replicas {
        assert_eq!(net.world.node::<Host<ReplicaApp>>(*replica).app.open(), 0);
    }
    refusal
}

#[test]
fn an_invalid_group_is_refused_with_the_reason() {
    let groups = Groups::default();
    let replies = |reply| {
        move |net: &mut Net| {
            let last = *net.replicas.last().unwrap();
            net.world.with(last, |replica: &mut Host<ReplicaApp>, _| replica.app.join_reply = reply);
        }
    };
    let last: IpAddr = ip(false, 2);
    let rejected = Refusal::Rejected { replica: last, reason: rocev2::cm::RejReason::CONSUMER };
    assert_eq!(refusal(SETUP, &groups, 2, replies(JoinReply::Reject)), rejected);
    assert_eq!(refusal(SETUP, &groups, 2, replies(JoinReply::NoMemory)), Refusal::NoMemory(last));
    assert_eq!(refusal(SETUP, &groups, 2, replies(JoinReply::ExtraByte)), Refusal::Size(last));
    let absent = |net: &mut Net| {
        let last = *net.replicas.last().unwrap();
        net.world.schedule(Nanos::ZERO, Fault::Crash(last));
    };
    let soon = Setup { connect_timeout: Nanos::from_secs(3), ..SETUP };
    assert_eq!(refusal(soon, &groups, 2, absent), Refusal::Unreachable(last));
    let none = |_: &mut Net| {};
    let few = Setup { max_replicas: 2, ..SETUP };
    assert_eq!(refusal(few, &groups, 3, none), Refusal::Count);
    assert_eq!(refusal(Setup { queue_pairs: 2, ..SETUP }, &groups, 2, none), Refusal::Full);
    assert_eq!(refusal(Setup { groups: 0, ..SETUP }, &groups, 2, none), Refusal::Full);
    assert_eq!(refusal(SETUP, &Groups { quorum: 3, ..groups.clone() }, 2, none), Refusal::Quorum);
    assert_eq!(refusal(SETUP, &groups, 0, none), Refusal::Count);
}

#[test]
fn a_group_survives_the_crash_of_a_replica() {
    let groups = Groups { operations: 400, ..Groups::default() };
    let setup = Setup { silent_after: Nanos::from_millis(1), ..SETUP };
    let slow = Link { rate_bps: 1_000_000_000, ..Link::default() };
    let mut net = Net::with(setup, 1, false, &groups, 1, 2, slow);
    net.world.schedule(Nanos::from_micros(600), Fault::Crash(net.replicas[1]));
    net.run().unwrap();
    assert_eq!(net.outcomes(), [Outcome::Done]);
    assert_eq!(net.counters().excluded, 1);
    let status = net.control().groups().next().unwrap();
    assert_eq!(status.replicas, [(ip(false, 1), true), (ip(false, 2), false)]);
}

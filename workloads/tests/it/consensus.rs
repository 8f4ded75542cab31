//! Consensus in the simulator: servers, a bridge between them, and values that are proposed wherever a server
//! leads.

mod exhaustive;
mod majorities;
mod seeds;

use crate::environment;
use consensus::{Membership, WaitReason};
use sim::{Fault, Host, Link, LinkId};
use switch::{Nanos, Probability};
use workloads::consensus::{Cluster, ClusterConfig, Outsider};

#[test]
fn values_are_decided_at_all_servers() {
    let mut net = Cluster::new(&ClusterConfig { max_proposals: 500, ..ClusterConfig::default() });
    net.run_until(Nanos::from_millis(20));
    net.check().unwrap();
    assert!(net.app(0).server().is_leader(), "server 0 does not lead, although it has the lowest number");
    for app in net.apps() {
        assert_eq!(app.next(), 500);
    }
}

#[test]
fn a_leader_replicates_through_the_switch_and_without_it_when_it_fails() {
    let mut net = Cluster::new(&ClusterConfig { through_switch: true, ..ClusterConfig::default() });
    net.run_until(Nanos::from_millis(20));
    assert!(net.app(0).server().replicates_through_switch());
    let before = net.app(0).next();
    let copies_before = net.copies();
    net.run_until(Nanos::from_millis(30));
    let decided = net.app(0).next() - before;
    assert!(decided > 1000, "{decided}");
    assert!(net.copies() - copies_before >= 2 * decided);
    // The switch restarts with empty state.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.switch));
    net.world.schedule(Nanos::from_micros(30_050), Fault::Restart(net.switch));
    net.run_until(Nanos::from_millis(40));
    assert!(!net.app(0).server().replicates_through_switch());
    let before = net.app(0).next();
    net.run_until(Nanos::from_millis(45));
    assert!(net.app(0).next() > before + 500);
    net.run_until(Nanos::from_millis(200));
    assert!(net.app(0).server().replicates_through_switch());
    net.check().unwrap();
}

#[test]
fn the_next_server_leads_after_the_leader_crashes() {
    let mut net = Cluster::new(&ClusterConfig { servers: 5, ..ClusterConfig::default() });
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.run_until(Nanos::from_millis(10));
    let before = net.app(1).next();
    assert!(before > 100, "{before}");
    net.run_until(Nanos::from_millis(30));
    net.check().unwrap();
    let app = net.app(1);
    assert!(app.server().is_leader() && app.next() > before + 100, "{} after {before}", app.next());
}

#[test]
fn a_server_that_lost_its_memory_becomes_a_member_again() {
    let mut net = Cluster::new(&ClusterConfig::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[2]));
    net.world.schedule(Nanos::from_millis(12), Fault::Restart(net.servers[2]));
    net.run_until(Nanos::from_millis(11));
    let before = net.app(0).next();
    assert!(before > 1000, "too few entries to exceed the log: {before}");
    net.run_until(Nanos::from_millis(30));
    assert_eq!((net.app(2).server().membership(), net.app(2).installed()), (Membership::Member, 1));
    // The server counts: there is no majority without it.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.servers[1]));
    net.run_until(Nanos::from_millis(32));
    let before = net.app(2).next();
    net.run_until(Nanos::from_millis(40));
    assert!(net.app(2).next() > before + 500, "{} after {before}", net.app(2).next());
    net.check().unwrap();
}

#[test]
fn a_server_that_lost_its_memory_rejoins_the_switch_group() {
    let mut net = Cluster::new(&ClusterConfig { through_switch: true, ..ClusterConfig::default() });
    net.world.schedule(Nanos::from_millis(20), Fault::Crash(net.servers[2]));
    net.world.schedule(Nanos::from_millis(25), Fault::Restart(net.servers[2]));
    net.run_until(Nanos::from_millis(24));
    assert!(
        net.app(0).server().replicates_through_switch(),
        "the leader should replicate through the switch to one replica"
    );
    net.run_until(Nanos::from_millis(60));
    assert_eq!(net.app(2).server().membership(), Membership::Member);
    assert!(net.app(0).server().replicates_through_switch());
    // The group includes the restarted server: two copies of each packet.
    let (copies, entries) = (net.copies(), net.entries());
    net.run_until(Nanos::from_millis(61));
    assert!(net.copies() - copies >= 2 * (net.entries() - entries).saturating_sub(16));
    net.check().unwrap();
}

#[test]
fn a_server_that_lost_its_memory_becomes_a_member_again_through_a_switch() {
    let mut net = Cluster::new(&ClusterConfig { through_switch: true, ..ClusterConfig::default() });
    // One server whose absence is detected while it is down, and one that restarts before that
    for (n, down_us) in [(1, 2000), (2, 300)] {
        let at = Nanos::from_millis(100 * n as u64 - 80);
        net.world.schedule(at, Fault::Crash(net.servers[n]));
        net.world.schedule(at + Nanos::from_micros(down_us), Fault::Restart(net.servers[n]));
        net.run_until(at);
        assert!(net.app(0).server().replicates_through_switch());
        net.run_until(at + Nanos::from_millis(60));
        assert_eq!(net.app(n).server().membership(), Membership::Member, "server {n}");
    }
    net.check().unwrap();
}

#[test]
fn a_leader_that_restarts_leads_again() {
    let mut net = Cluster::new(&ClusterConfig::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.world.schedule(Nanos::from_millis(15), Fault::Restart(net.servers[0]));
    net.run_until(Nanos::from_millis(14));
    assert!(net.app(1).server().is_leader());
    net.run_until(Nanos::from_millis(60));
    assert!(net.app(0).server().is_leader());
    assert_eq!(net.app(0).installed(), 1);
    assert_eq!(net.app(1).server().leader(), Some(0));
    net.check().unwrap();
}

#[test]
fn a_server_that_lost_its_memory_does_not_count_for_a_majority() {
    let mut net = Cluster::new(&ClusterConfig::default());
    let cut_links: Vec<_> = net.world.links().skip(2).take(1).collect();
    net.world.schedule(Nanos::from_millis(10), Fault::Cut(cut_links.clone()));
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[1]));
    net.world.schedule(Nanos::from_millis(11), Fault::Restart(net.servers[1]));
    net.run_until(Nanos::from_millis(20));
    let before = net.app(0).next();
    net.run_until(Nanos::from_millis(50));
    assert_eq!(net.app(0).next(), before, "one member and a blank server are no majority of three");
    assert_eq!(net.app(1).server().membership(), Membership::Blank);
    net.world.schedule(Nanos::from_millis(50), Fault::Heal(cut_links));
    net.run_until(Nanos::from_millis(90));
    assert!(net.app(0).next() > before + 1000, "{} after {before}", net.app(0).next());
    assert_eq!(net.app(1).server().membership(), Membership::Member);
    net.check().unwrap();
}

/// Returns the links of the given servers, in the same order.
fn links_of(net: &Cluster, servers: &[usize]) -> Vec<LinkId> {
    let links: Vec<_> = net.world.links().collect();
    servers.iter().map(|server| links[*server]).collect()
}

#[test]
fn entries_before_a_snapshot_are_not_considered_decided() {
    let mut installed = 0;
    for (phase, max_proposals) in
        (0..12).flat_map(|phase| [57, 58, 59].map(|max_proposals| (phase, max_proposals)))
    {
        let config = ClusterConfig { servers: 5, window: 16, max_proposals, ..ClusterConfig::default() };
        let mut net = Cluster::new(&config);
        let change = |net: &mut Cluster, at: Nanos, cut: &[usize], heal: &[usize]| {
            let (cut, heal) = (links_of(net, cut), links_of(net, heal));
            net.world.schedule(at, Fault::Cut(cut));
            net.world.schedule(at, Fault::Heal(heal));
        };
        let mut at = Nanos::from_micros(500);
        while net.app(0).next() < 20 {
            at = at + Nanos(500);
            net.run_until(at);
        }
        // Server 0 writes entries to server 3 only, so they are not decided, ...
        change(&mut net, at, &[1, 2, 4], &[]);
        at = at + Nanos::from_micros(300);
        // ... and servers 1, 2 and 4 decide other values for these slots.
        change(&mut net, at, &[0, 3], &[1, 2, 4]);
        while net.app(2).next() < 38 && at < Nanos::from_millis(60) {
            at = at + Nanos(50);
            net.run_until(at);
        }
        // Server 2 misses the following entries, and server 3 gets a snapshot when it is reconnected.
        change(&mut net, at, &[2], &[0]);
        at = at + Nanos::from_millis(50);
        change(&mut net, at, &[], &[3]);
        at = at + Nanos::from_millis(40) + Nanos::from_micros(100 * phase);
        // Server 2 leads, and must not consider decided what server 3 held before.
        change(&mut net, at, &[], &[2]);
        for server in [0, 1] {
            net.world.schedule(at, Fault::Crash(net.servers[server]));
        }
        net.run_until(at + Nanos::from_millis(40));
        installed += net.app(3).installed();
        net.check().unwrap_or_else(|wrong| panic!("{phase}, {max_proposals}: {wrong}"));
    }
    assert!(installed > 10, "only {installed} snapshots were installed");
}

#[test]
fn a_reconnected_candidate_catches_up_in_a_later_term() {
    for us in (0..16_000).step_by(2000) {
        let mut net = Cluster::new(&ClusterConfig::default());
        let link = links_of(&net, &[2]);
        net.world.schedule(Nanos::from_millis(10), Fault::Cut(link.clone()));
        let heal = Nanos::from_micros(20_000 + us);
        net.world.schedule(heal, Fault::Heal(link));
        net.run_until(heal + Nanos::from_millis(20));
        let missing_entries = net.app(0).next() - net.app(2).next();
        assert!(missing_entries < 200, "healed after {us} us, it lacks {missing_entries} entries");
        net.check().unwrap();
    }
}

#[test]
fn a_flapping_link_leaks_no_queue_pairs() {
    let mut net = Cluster::new(&ClusterConfig { max_proposals: 10, ..ClusterConfig::default() });
    let mut at = Nanos::from_millis(10);
    for _ in 0..60 {
        let link = links_of(&net, &[2]);
        net.world.schedule(at, Fault::Cut(link.clone()));
        net.world.schedule(at + Nanos::from_millis(3), Fault::Heal(link));
        at = at + Nanos::from_millis(6);
        net.run_until(at);
    }
    for app in net.apps() {
        let queue_pairs = app.server().queue_pairs();
        assert!(queue_pairs < 20, "{queue_pairs}");
    }
}

#[test]
fn a_copy_lost_after_the_switch_does_not_stop_the_group() {
    for (loss, servers) in [(0.01, 3), (0.0001, 3), (0.0001, 5)] {
        let link = Link { loss: Probability::new(loss).unwrap(), ..Link::default() };
        let config =
            ClusterConfig { seed: 7, through_switch: true, link, servers, ..ClusterConfig::default() };
        let mut net = Cluster::new(&config);
        net.run_until(Nanos::from_millis(10));
        let mut before = net.entries();
        for ms in (20..=60).step_by(10) {
            net.run_until(Nanos::from_millis(ms));
            assert!(
                net.entries() > before,
                "{loss}, {servers} servers: no entry decided since {} ms",
                ms - 10
            );
            before = net.entries();
        }
        net.check().unwrap();
    }
}

#[test]
fn requests_of_a_host_that_is_not_a_server_change_nothing() {
    for through_switch in [false, true] {
        let config = ClusterConfig {
            through_switch,
            outsider: Some(Nanos::from_micros(50)),
            ..ClusterConfig::default()
        };
        let mut net = Cluster::new(&config);
        net.run_until(Nanos::from_millis(20));
        let before = net.entries();
        let terms: Vec<_> = net.apps().map(|app| app.server().term()).collect();
        net.run_until(Nanos::from_millis(60));
        net.check().unwrap();
        assert!(net.entries() > before + 2000, "{} after {before}", net.entries());
        assert_eq!(
            net.apps().map(|app| app.server().term()).collect::<Vec<_>>(),
            terms,
            "the leader has changed"
        );
        assert!(
            net.app(0).server().is_leader()
                && net.app(0).server().replicates_through_switch() == through_switch
        );
        let refused: u64 = net.apps().map(|app| app.server().refused()).sum();
        let node = net.outsider.expect("the cluster has an outsider");
        let request_count = net.world.node::<Host<Outsider>>(node).app.requests;
        assert!(request_count > 500 && refused > request_count / 2, "{refused} of {request_count} requests");
    }
}

#[test]
fn servers_and_switch_that_share_a_secret_work_together() {
    let config = ClusterConfig { through_switch: true, secret: true, ..ClusterConfig::default() };
    let mut net = Cluster::new(&config);
    net.run_until(Nanos::from_millis(30));
    net.check().unwrap();
    assert!(net.app(0).server().replicates_through_switch() && net.entries() > 1000, "{}", net.entries());
    assert!(net.apps().all(|app| app.server().refused() == 0));
}

#[test]
fn a_server_with_another_secret_is_refused_and_reports_it() {
    let config =
        ClusterConfig { secret: true, server_with_other_secret: Some(1), ..ClusterConfig::default() };
    let mut net = Cluster::new(&config);
    net.run_until(Nanos::from_millis(30));
    assert_eq!((net.bootstrap_count(), net.entries()), (0, 0));
    assert_eq!(net.app(0).server().waits_for(), Some(WaitReason::Refused(1)));
    assert_eq!(net.app(1).server().waits_for(), Some(WaitReason::Refused(0)));
    assert!(net.app(1).server().refused() > 0);
}

#[test]
fn servers_that_all_lost_their_memory_wait_for_the_operator() {
    let mut net = Cluster::new(&ClusterConfig::default());
    net.run_until(Nanos::from_millis(20));
    let before = net.entries();
    assert!(before > 100 && net.bootstrap_count() == 1);
    for (n, node) in net.servers.clone().into_iter().enumerate() {
        let at = Nanos::from_millis(20) + Nanos::from_micros(300 * n as u64);
        net.world.schedule(at, Fault::Crash(node));
        net.world.schedule(at + Nanos::from_millis(1), Fault::Restart(node));
    }
    net.run_until(Nanos::from_millis(200));
    net.check().unwrap();
    let after = net.entries();
    assert!(after < before + 100, "more entries than could be decided before the last crash");
    for app in net.apps() {
        assert_eq!((app.server().membership(), app.next()), (Membership::Blank, 0));
        assert_eq!(app.server().waits_for(), Some(WaitReason::Bootstrap));
    }
    // The operator's bootstrap, at any server or at two at once
    net.bootstrap(1);
    net.bootstrap(2);
    net.run_until(Nanos::from_millis(240));
    net.check().unwrap();
    assert_eq!(net.bootstrap_count(), 2);
    assert!(net.app(0).server().is_leader() && net.entries() > 100);
    assert_eq!(net.app(0).server().waits_for(), None);
}

#[test]
fn servers_bootstrap_only_on_command() {
    let mut net = Cluster::new(&ClusterConfig { bootstraps: false, ..ClusterConfig::default() });
    net.world.schedule(Nanos::ZERO, Fault::Crash(net.servers[2]));
    net.run_until(Nanos::from_millis(20));
    assert_eq!(net.app(0).server().waits_for(), Some(WaitReason::Server(2)));
    // The bootstrap command is kept until all servers run.
    net.bootstrap(0);
    net.run_until(Nanos::from_millis(30));
    assert_eq!((net.bootstrap_count(), net.app(0).server().membership()), (0, Membership::Blank));
    net.world.schedule(Nanos::from_millis(30), Fault::Restart(net.servers[2]));
    net.run_until(Nanos::from_millis(50));
    net.check().unwrap();
    assert!(net.bootstrap_count() == 1 && net.entries() > 100);
}

#[test]
fn a_bootstrap_command_has_no_effect_while_a_member_is_live() {
    let mut net = Cluster::new(&ClusterConfig::default());
    let crash = |net: &mut Cluster, servers: &[usize], at: Nanos| {
        for server in servers {
            net.world.schedule(at, Fault::Crash(net.servers[*server]));
            net.world.schedule(at + Nanos::from_millis(1), Fault::Restart(net.servers[*server]));
        }
    };
    crash(&mut net, &[1, 2], Nanos::from_millis(10));
    net.run_until(Nanos::from_millis(30));
    assert_eq!(net.app(1).server().waits_for(), Some(WaitReason::Admission(0)));
    net.bootstrap(1);
    net.run_until(Nanos::from_millis(40));
    // The last server with entries crashes, and the bootstrap command was not kept.
    crash(&mut net, &[0], Nanos::from_millis(40));
    net.run_until(Nanos::from_millis(80));
    net.check().unwrap();
    assert_eq!(net.bootstrap_count(), 1);
    // The last member had permission to write to the other servers.
    let waits: Vec<_> = net.apps().map(|app| app.server().waits_for()).collect();
    assert_eq!(waits, [1, 1, 2].map(|server| Some(WaitReason::Restart(server))));
}

/// Runs until this server's NIC has sent `frames` more frames, or until `end`.
fn run_for_frames(net: &mut Cluster, server: usize, frames: u64, end: Nanos) {
    let sent = |net: &Cluster| net.nic_counters(server).sent;
    let until = sent(net) + frames;
    while sent(net) < until && net.step(end) {}
}

/// Returns the server that has promised itself the highest term: it leads, or has just become a candidate or
/// leader.
fn candidate(net: &Cluster) -> Option<usize> {
    let term = net.apps().map(|app| app.server().term()).max()?;
    (0..net.servers.len())
        .find(|server| net.app(*server).server().term() == term && usize::from(term.server()) == *server)
}

//! RDMC in the simulator: groups of hosts around a switch, and objects that are sent to all members.

mod costs;
mod deliveries;
mod delivery;
mod seeds;

use p4ce::SwitchAddress;
use rdmc::{Algorithm, CallError, Failure, GroupConfig, Racks};
use sim::{Fault, Link};
use switch::Nanos;
use workloads::rdmc::{Cluster, GroupState, SWITCH_MAC, Setup, ip, mac};

/// Time by which every test is over
const END: Nanos = Nanos::from_secs(5);

fn group(number: u32, algorithm: Algorithm, block_bytes: u32) -> GroupConfig {
    GroupConfig { algorithm, block_bytes, ..GroupConfig::new(number, Vec::new()) }
}

fn algorithms(n: u16) -> Vec<Algorithm> {
    let racks: Vec<u16> = (0..n).map(|host| host / 3).collect();
    vec![
        Algorithm::Sequential,
        Algorithm::Chain,
        Algorithm::Tree,
        Algorithm::Pipeline,
        Algorithm::Hybrid(Racks::new(&racks).unwrap()),
        Algorithm::InNetwork,
    ]
}

/// Runs every algorithm with groups of many sizes and messages of all kinds of lengths. All messages arrive
/// in order, once, and unchanged. No RNR NAK is ever sent, as a receive is always posted. Queue pairs,
/// regions, memory and words are released.
#[test]
fn messages_arrive_and_groups_close() {
    for n in [2, 3, 4, 5, 7, 8, 11, 16] {
        for algorithm in algorithms(n) {
            let mut cluster = Cluster::new(&Setup { hosts: n, ..Setup::default() });
            let hosts: Vec<u16> = (0..n).collect();
            let name = format!("{} of {n}", algorithm.name());
            cluster.create(&group(7, algorithm, 3000), &hosts).unwrap();
            let lengths = [1, 2999, 3000, 3001, 6000, 40_000, 7, 100_001];
            for len in lengths {
                cluster.send(0, 7, len).unwrap();
            }
            cluster.destroy(7, &hosts);
            assert!(cluster.run_until_ended(END, 7, &hosts), "{name}: {:?}", cluster.group_state(0, 7));
            cluster.check().unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            cluster.check_memory(&hosts).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            for host in hosts {
                assert_eq!(cluster.group_state(host, 7), GroupState::Closed, "{name}, host {host}");
                assert_eq!(cluster.member(host).seen().complete[&7], lengths, "{name}, host {host}");
                assert_eq!(cluster.nic(host).rnr_naks_sent, 0, "{name}, host {host}");
                assert_eq!(cluster.nic(host).retransmitted, 0, "{name}, host {host}");
            }
        }
    }
}

#[test]
fn invalid_calls_are_refused_with_the_reason() {
    let mut cluster = Cluster::new(&Setup { hosts: 3, ..Setup::default() });
    let base = GroupConfig::new(1, vec![ip(0), ip(1)]);
    let mut refused = |config: GroupConfig| {
        cluster.with(0, |member, nic, now| member.create(nic, config, now)).unwrap_err()
    };
    assert_eq!(
        refused(GroupConfig { members: vec![ip(0)], ..base.clone() }).to_string(),
        "a group of 1 has no receiver; use at least 2 members"
    );
    let duplicated = GroupConfig { members: vec![ip(0), ip(1), ip(1)], ..base.clone() };
    assert_eq!(refused(duplicated), CallError::Twice(ip(1)));
    let without_self = GroupConfig { members: vec![ip(1), ip(2)], ..base.clone() };
    assert_eq!(refused(without_self), CallError::NotAMember(ip(0)));
    let v6 = "fd00::1".parse().unwrap();
    assert_eq!(refused(GroupConfig { members: vec![ip(0), v6], ..base.clone() }), CallError::Family(v6));
    assert_eq!(refused(GroupConfig { block_bytes: 0, ..base.clone() }), CallError::Block(0));
    let huge = GroupConfig::MAX_BLOCK + 1;
    assert_eq!(refused(GroupConfig { block_bytes: huge, ..base.clone() }), CallError::Block(huge));
    assert_eq!(refused(GroupConfig { max_in_flight: 0, ..base.clone() }), CallError::InFlight(0));
    let copied = GroupConfig { algorithm: Algorithm::InNetwork, ..base.clone() };
    assert_eq!(refused(copied.clone()), CallError::NoSwitch);
    let number = GroupConfig {
        number: 0x1_0000,
        switch: Some(SwitchAddress { address: ip(2), port: 18_515 }),
        ..copied
    };
    assert_eq!(refused(number), CallError::Number(0x1_0000));
    let racks = Racks::new(&[1, 2, 3]).unwrap();
    assert!(matches!(
        refused(GroupConfig { algorithm: Algorithm::Hybrid(racks), ..base }),
        CallError::Schedule(_)
    ));
    cluster.create(&group(1, Algorithm::Chain, 1000), &[0, 1]).unwrap();
    let again = cluster.create(&group(1, Algorithm::Chain, 1000), &[0, 1]);
    assert_eq!(again, Err(CallError::Exists(1)));
    assert_eq!(cluster.send(0, 2, 10), Err(CallError::Unknown(2)));
    assert_eq!(cluster.send(1, 1, 10), Err(CallError::NotRoot(1)));
    assert_eq!(cluster.send(0, 1, 0), Err(CallError::Empty));
    cluster.create(&group(5, Algorithm::Chain, 1), &[0, 1]).unwrap();
    let blocks = GroupConfig::MAX_BLOCKS + 1;
    assert_eq!(cluster.send(0, 5, blocks), Err(CallError::Blocks(blocks)));
    cluster.with(0, |member, nic, _| {
        let memory = rdmc::MessageMemory { mr: rnic::Mr(77), va: 0 };
        assert_eq!(member.node.send(nic, 1, memory, 1), Err(CallError::NotRegistered));
        member.destroy(1).unwrap();
    });
    assert_eq!(cluster.send(0, 1, 10), Err(CallError::Closing(1)));
    assert!(cluster.run_until_ended(END, 1, &[0, 1]));
    assert_eq!(
        (cluster.group_state(0, 1), cluster.group_state(1, 1)),
        (GroupState::Closed, GroupState::Closed)
    );
    cluster.check().unwrap();
}

/// One member never creates the group, one has another configuration of it, and one has no memory.
#[test]
fn members_that_do_not_join_are_named() {
    let hosts = [0, 1, 2, 3];
    let mut cluster = Cluster::new(&Setup { max_message_bytes: 5000, ..Setup::default() });
    let members: Vec<_> = hosts.iter().map(|host| ip(*host)).collect();
    let config = GroupConfig { members: members.clone(), ..group(1, Algorithm::Pipeline, 1000) };
    for host in [0, 1, 3] {
        cluster.with(host, |member, nic, now| member.create(nic, config.clone(), now)).unwrap();
    }
    assert!(cluster.run_until_ended(END, 1, &[0, 1, 3]));
    for host in [0, 1, 3] {
        assert_eq!(
            cluster.group_state(host, 1),
            GroupState::Failed(Failure::NotCreated(ip(2))),
            "host {host}"
        );
    }
    // The group is created too late: the other members have already failed.
    cluster.with(2, |member, nic, now| member.create(nic, config, now)).unwrap();
    assert!(cluster.run_until_ended(END, 1, &[2]));
    assert!(
        matches!(cluster.group_state(2, 1), GroupState::Failed(Failure::NotCreated(_))),
        "{:?}",
        cluster.group_state(2, 1)
    );

    let mut config = GroupConfig { members, ..group(2, Algorithm::Pipeline, 1000) };
    for host in hosts {
        config.block_bytes = if host == 3 { 2000 } else { 1000 };
        cluster.with(host, |member, nic, now| member.create(nic, config.clone(), now)).unwrap();
    }
    assert!(cluster.run_until_ended(END, 2, &hosts));
    for host in hosts {
        assert!(
            matches!(cluster.group_state(host, 2), GroupState::Failed(Failure::Mismatch(_))),
            "host {host}"
        );
    }

    cluster.create(&group(3, Algorithm::Pipeline, 1000), &hosts).unwrap();
    cluster.send(0, 3, 5000).unwrap();
    cluster.send(0, 3, 5001).unwrap();
    assert!(cluster.run_until_ended(END, 3, &hosts));
    for host in hosts {
        let GroupState::Failed(Failure::NoMemory(named)) = cluster.group_state(host, 3) else {
            panic!("{host}")
        };
        assert_ne!(named, ip(0));
        assert_eq!(cluster.member(host).seen().complete[&3], [5000], "host {host}");
        assert_eq!(cluster.member(host).buffers(), 0);
        // Destroying the group also returns the failure, and removes it.
        let destroyed = cluster.with(host, |member, _, _| member.destroy(3));
        assert_eq!(destroyed, Err(CallError::Failed(Failure::NoMemory(named))));
        assert_eq!(cluster.with(host, |member, _, _| member.destroy(3)), Err(CallError::Unknown(3)));
    }
    // A group of the same number can be created again.
    cluster.create(&group(3, Algorithm::Chain, 1000), &hosts).unwrap();
    cluster.send(0, 3, 4000).unwrap();
    cluster.destroy(3, &[0]);
    assert!(cluster.run_until_ended(END, 3, &hosts));
    assert!(hosts.iter().all(|host| cluster.group_state(*host, 3) == GroupState::Closed));
    cluster.check().unwrap();
}

/// Survivors are notified even if there is nothing to send.
#[test]
fn an_idle_group_detects_that_a_member_has_crashed() {
    for victim in 0..5 {
        let hosts = [0, 1, 2, 3, 4];
        let mut cluster = Cluster::new(&Setup { hosts: 5, ..Setup::default() });
        cluster.create(&group(1, Algorithm::Pipeline, 1000), &hosts).unwrap();
        assert!(cluster.run_while(END, |cluster| {
            hosts.iter().any(|host| cluster.group_state(*host, 1) != GroupState::Open)
        }));
        let now = cluster.world.now();
        cluster.world.schedule(now, sim::Fault::Crash(cluster.hosts[victim as usize]));
        let survivors: Vec<_> = hosts.into_iter().filter(|host| *host != victim).collect();
        assert!(cluster.run_until_ended(now + Nanos::from_millis(100), 1, &survivors), "without {victim}");
        for host in survivors {
            assert_eq!(
                cluster.group_state(host, 1),
                GroupState::Failed(Failure::Gone(ip(victim))),
                "host {host}"
            );
        }
        cluster.check().unwrap();
    }
}

/// Crashes a member at any moment, from before the group is open until after it is closed. All other members
/// learn how the group ended, complete messages are correct, and a group is closed only if all members have
/// all messages. The survivors create a new group at once. Moments are one event in `every`; a step of the
/// schedule has more events than that.
fn crash_at_moments(algorithm: &Algorithm, every: u64) {
    let hosts = [0, 1, 2, 3, 4];
    let begin = |number| {
        let mut cluster = Cluster::new(&Setup { hosts: 5, ..Setup::default() });
        cluster.create(&group(number, algorithm.clone(), 1000), &hosts).unwrap();
        for len in [3500, 900] {
            cluster.send(0, number, len).unwrap();
        }
        cluster.destroy(number, &hosts);
        cluster
    };
    let mut whole = begin(1);
    assert!(whole.run_until_ended(END, 1, &hosts));
    let (events, _) = whole.world.events();
    let (mut closed, mut failed) = (0, 0);
    for at in (1..=events + 1).step_by(every as usize) {
        for victim in hosts {
            let mut cluster = begin(1);
            while cluster.world.events().0 < at && cluster.world.step(END) {}
            let now = cluster.world.now();
            cluster.world.schedule(now, sim::Fault::Crash(cluster.hosts[usize::from(victim)]));
            let context = format!("{}: {victim} crashes at event {at}", algorithm.name());
            let survivors: Vec<_> = hosts.into_iter().filter(|host| *host != victim).collect();
            cluster.run_until_ended(now + Nanos::from_millis(400), 1, &survivors);
            cluster.check_end(1, &hosts, &[victim], 2).unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
            if survivors.iter().any(|host| cluster.group_state(*host, 1) == GroupState::Closed) {
                closed += 1;
            } else {
                failed += 1;
            }
            let root = survivors[0];
            for host in &survivors {
                cluster.with(*host, |member, _, _| _ = member.destroy(1));
            }
            cluster.create(&group(1, Algorithm::Chain, 1000), &survivors).unwrap();
            cluster.send(root, 1, 2000).unwrap();
            cluster.destroy(1, &survivors);
            assert!(cluster.run_until_ended(now + Nanos::from_secs(1), 1, &survivors), "{context}");
            let again = survivors.iter().all(|host| cluster.group_state(*host, 1) == GroupState::Closed);
            assert!(again, "{context}: the survivors' group is {:?}", cluster.group_state(root, 1));
            let checked = cluster.check().and_then(|()| cluster.check_memory(&survivors));
            checked.unwrap_or_else(|wrong| panic!("{context}: {wrong}"));
        }
    }
    println!("{}: {events} events, {closed} closed, {failed} failed", algorithm.name());
    assert!(closed > 0 && failed > closed, "{closed} closed, {failed} failed");
}

#[test]
fn survivors_agree_after_a_crash_at_any_moment_of_a_pipeline() {
    crash_at_moments(&Algorithm::Pipeline, 17);
}

#[test]
fn survivors_agree_after_a_crash_at_any_moment_of_a_chain() {
    crash_at_moments(&Algorithm::Chain, 29);
}

#[test]
fn survivors_agree_after_a_crash_at_any_moment_of_a_sequential_send() {
    crash_at_moments(&Algorithm::Sequential, 41);
}

#[test]
fn survivors_agree_after_a_crash_at_any_moment_of_a_hybrid_of_racks() {
    let racks = Racks::new(&["a", "a", "b", "b", "b"]).unwrap();
    crash_at_moments(&Algorithm::Hybrid(racks), 41);
}

#[test]
fn survivors_agree_after_a_crash_at_any_moment_of_a_tree() {
    crash_at_moments(&Algorithm::Tree, 29);
}

#[test]
fn survivors_agree_after_a_crash_at_any_moment_behind_a_copying_switch() {
    crash_at_moments(&Algorithm::InNetwork, 29);
}

/// A host behind a slow link relays its part of a short message late, when the other members are done with
/// it. A later message never overtakes an earlier one, although the two come from different members where two
/// nodes share a vertex of the pipeline.
#[test]
fn messages_keep_their_order_behind_a_slow_link() {
    for n in [6, 7, 10] {
        let hosts: Vec<u16> = (0..n).collect();
        for slow in 1..n {
            let link = Link { rate_bps: 20_000_000, ..Link::default() };
            let mut cluster =
                Cluster::new(&Setup { hosts: n, links: vec![(slow, link)], ..Setup::default() });
            cluster.create(&group(1, Algorithm::Pipeline, 300), &hosts).unwrap();
            let lengths = [1, 600, 1, 2, 900, 3];
            for len in lengths {
                cluster.send(0, 1, len).unwrap();
            }
            cluster.destroy(1, &hosts);
            assert!(cluster.run_until_ended(END, 1, &hosts));
            for host in &hosts {
                let context = format!("{host} of {n}, {slow} is slow");
                assert_eq!(cluster.group_state(*host, 1), GroupState::Closed, "{context}");
                assert_eq!(cluster.member(*host).seen().complete[&1], lengths, "{context}");
            }
            cluster.check().unwrap();
        }
    }
}

/// No host has the switch's address: the failure names the switch, and no member.
#[test]
fn an_absent_switch_is_named() {
    let hosts = [0, 1, 2, 3];
    let mut cluster = Cluster::new(&Setup { switch_address: ip(99), ..Setup::default() });
    cluster.create(&group(1, Algorithm::InNetwork, 1000), &hosts).unwrap();
    assert!(cluster.run_until_ended(END, 1, &hosts));
    for host in hosts {
        assert_eq!(cluster.group_state(host, 1), GroupState::Failed(Failure::Switch(ip(0))), "host {host}");
    }
    cluster.check().unwrap();
}

/// The switch connects all members but one. The root and that member wait for the switch, so neither of them
/// is named.
#[test]
fn a_switch_that_cannot_reach_a_member_is_named() {
    let hosts = [0, 1, 2, 3];
    for apart in hosts {
        let mut cluster = Cluster::new(&Setup::default());
        cluster.world.schedule(Nanos::ZERO, Fault::PartitionPair(SWITCH_MAC, mac(apart)));
        cluster.create(&group(1, Algorithm::InNetwork, 1000), &hosts).unwrap();
        assert!(cluster.run_until_ended(END, 1, &hosts));
        for host in hosts {
            let now = cluster.group_state(host, 1);
            assert_eq!(now, GroupState::Failed(Failure::Switch(ip(0))), "{apart} is apart; host {host}");
        }
        cluster.check().unwrap();
    }
}

/// Two members that cannot reach each other name each other. No member names a third one.
#[test]
fn members_that_cannot_reach_each_other_are_named() {
    for (a, b) in [(1, 3), (3, 4), (2, 4)] {
        let hosts = [0, 1, 2, 3, 4];
        let mut cluster =
            Cluster::new(&Setup { hosts: 5, unreachable_pairs: vec![(a, b)], ..Setup::default() });
        cluster.create(&group(1, Algorithm::Pipeline, 1000), &hosts).unwrap();
        assert!(cluster.run_until_ended(END, 1, &hosts));
        for host in hosts {
            let now = cluster.group_state(host, 1);
            let GroupState::Failed(Failure::NotCreated(named) | Failure::NotJoined(named)) = now else {
                panic!("{a} and {b} are apart; {host}: {now:?}");
            };
            assert!([ip(a), ip(b)].contains(&named), "{a} and {b} are apart; {host}: {now:?}");
        }
        cluster.check().unwrap();
    }
}

/// A group that another member gave up long ago does not make the next group of the same number fail.
#[test]
fn a_failure_long_ago_does_not_affect_a_new_group() {
    let mut cluster = Cluster::new(&Setup { hosts: 2, ..Setup::default() });
    let config = GroupConfig { members: vec![ip(0), ip(1)], ..group(1, Algorithm::Chain, 1000) };
    cluster.with(0, |member, nic, now| member.create(nic, config.clone(), now)).unwrap();
    assert!(cluster.run_until_ended(END, 1, &[0]));
    cluster.world.run_until(cluster.world.now() + Nanos::from_millis(300));
    for host in [1, 0] {
        cluster.with(host, |member, nic, now| member.create(nic, config.clone(), now)).unwrap();
        cluster.world.run_until(cluster.world.now() + Nanos::from_millis(20));
    }
    assert_eq!((cluster.group_state(0, 1), cluster.group_state(1, 1)), (GroupState::Open, GroupState::Open));
    assert_eq!(cluster.member(1).counters().forgotten, 0);
}

/// The switch that copies restarts with empty state. The group fails, and the next one is created without the
/// switch.
#[test]
fn members_agree_on_the_end_after_a_crash_of_the_switch() {
    let hosts = [0, 1, 2, 3];
    for at in [2_u64, 20, 60, 100, 200, 400] {
        // A lost ARP request is repeated after half a second.
        let mut cluster = Cluster::new(&Setup { create_timeout: Nanos::from_secs(3), ..Setup::default() });
        cluster.create(&group(1, Algorithm::InNetwork, 1000), &hosts).unwrap();
        for _ in 0..20 {
            cluster.send(0, 1, 100_000).unwrap();
        }
        cluster.destroy(1, &hosts);
        let at = Nanos::from_micros(at);
        cluster.world.schedule(at, sim::Fault::Crash(cluster.switch));
        cluster.world.schedule(at + Nanos::from_micros(300), sim::Fault::Restart(cluster.switch));
        assert!(cluster.run_until_ended(at + Nanos::from_secs(4), 1, &hosts), "{at:?}");
        cluster.check_end(1, &hosts, &[], 20).unwrap();
        cluster.destroy(1, &hosts);
        cluster.create(&group(1, Algorithm::Pipeline, 1000), &hosts).unwrap();
        cluster.send(0, 1, 100_000).unwrap();
        cluster.destroy(1, &hosts);
        let end = cluster.world.now() + Nanos::from_secs(4);
        assert!(cluster.run_until_ended(end, 1, &hosts));
        for host in hosts {
            assert_eq!(cluster.group_state(host, 1), GroupState::Closed, "host {host}, {at:?}");
        }
        cluster.check().and_then(|()| cluster.check_memory(&hosts)).unwrap();
    }
}

/// One process is in a thousand groups at once, and is the root of a third of them. 15 other processes are in
/// some of them each.
#[test]
fn a_thousand_overlapping_groups_complete() {
    let mut cluster = Cluster::new(&Setup { hosts: 16, groups: 1100, ..Setup::default() });
    let mut rng = switch::Rng::new(5);
    let mut groups = Vec::new();
    for number in 1..=1000 {
        let mut hosts = vec![0];
        while hosts.len() < 4 {
            let host = rng.between(1, 15) as u16;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts.rotate_left(number as usize % 3);
        cluster.create(&group(number, Algorithm::Pipeline, 2048), &hosts).unwrap();
        groups.push((number, hosts));
    }
    for (number, hosts) in &groups {
        for message in 0..2 {
            cluster.send(hosts[0], *number, workloads::rdmc::len_of(*number, message, 12_000)).unwrap();
        }
        cluster.destroy(*number, hosts);
    }
    for (number, hosts) in &groups {
        assert!(
            cluster.run_until_ended(END, *number, hosts),
            "group {number}: {:?}",
            cluster.group_state(0, *number)
        );
        assert!(
            hosts.iter().all(|host| cluster.group_state(*host, *number) == GroupState::Closed),
            "group {number}"
        );
        assert!(hosts.iter().all(|host| cluster.member(*host).messages(*number) == 2), "group {number}");
    }
    assert_eq!(cluster.member(0).counters().messages, 2000);
    assert_eq!((0..16).map(|host| cluster.nic(host).rnr_naks_sent).sum::<u64>(), 0);
    let all: Vec<u16> = (0..16).collect();
    cluster.check().and_then(|()| cluster.check_memory(&all)).unwrap();
}

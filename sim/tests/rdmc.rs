//! RDMC in the simulator: groups of hosts around a switch, and objects for all of them.

use rdmc::{Algorithm, CallError, Failure, GroupConfig, Racks};
use sim::rdmc::{Cluster, Now, Setup, ip};
use switch::Nanos;

/// By then everything is over.
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

/// Every algorithm, groups of many sizes, messages of all kinds of lengths: all arrive in order, once, bit by bit; nobody is
/// ever told to wait because a receive was missing; everything that was taken of the NIC is given back.
#[test]
fn messages_arrive_and_groups_close() {
    for n in [2, 3, 4, 5, 7, 8, 11, 16] {
        for algorithm in algorithms(n) {
            let mut cluster = Cluster::new(&Setup { hosts: n, ..Setup::default() });
            let hosts: Vec<u16> = (0..n).collect();
            let name = format!("{} of {n}", algorithm.name());
            cluster.create(&group(7, algorithm, 3000), &hosts).unwrap();
            let lens = [1, 2999, 3000, 3001, 6000, 40_000, 7, 100_001];
            for len in lens {
                cluster.send(0, 7, len).unwrap();
            }
            cluster.destroy(7, &hosts);
            assert!(cluster.settle(END, 7, &hosts), "{name}: {:?}", cluster.now(0, 7));
            cluster.check().unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
            for host in hosts {
                assert_eq!(cluster.now(host, 7), Now::Closed, "{name}, host {host}");
                assert_eq!(cluster.member(host).seen().complete[&7], lens, "{name}, host {host}");
                assert_eq!(cluster.member(host).buffers(), 0, "{name}, host {host}");
                assert_eq!(cluster.nic(host).rnr_naks_sent, 0, "{name}, host {host}");
                assert_eq!(cluster.nic(host).retransmitted, 0, "{name}, host {host}");
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut cluster = Cluster::new(&Setup { hosts: 3, ..Setup::default() });
    let base = GroupConfig::new(1, vec![ip(0), ip(1)]);
    let mut refused = |config: GroupConfig| {
        cluster.with(0, |member, nic, now| member.create(nic, config, now)).unwrap_err()
    };
    assert_eq!(
        refused(GroupConfig { members: vec![ip(0)], ..base.clone() }).to_string(),
        "a group of 1 has nobody to send to: two members at least"
    );
    let twice = GroupConfig { members: vec![ip(0), ip(1), ip(1)], ..base.clone() };
    assert_eq!(refused(twice), CallError::Twice(ip(1)));
    let others = GroupConfig { members: vec![ip(1), ip(2)], ..base.clone() };
    assert_eq!(refused(others), CallError::NotAMember(ip(0)));
    let v6 = "fd00::1".parse().unwrap();
    assert_eq!(refused(GroupConfig { members: vec![ip(0), v6], ..base.clone() }), CallError::Family(v6));
    assert_eq!(refused(GroupConfig { block_bytes: 0, ..base.clone() }), CallError::Block(0));
    let huge = GroupConfig::MAX_BLOCK + 1;
    assert_eq!(refused(GroupConfig { block_bytes: huge, ..base.clone() }), CallError::Block(huge));
    assert_eq!(refused(GroupConfig { ahead: 0, ..base.clone() }), CallError::Ahead(0));
    let number = GroupConfig { algorithm: Algorithm::InNetwork, number: 0x1_0000, ..base.clone() };
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
    cluster.with(0, |member, nic, _| {
        let memory = rdmc::Memory { mr: rnic::Mr(77), va: 0 };
        assert_eq!(member.node.send(nic, 1, memory, 1), Err(CallError::NotRegistered));
        member.destroy(1).unwrap();
    });
    assert_eq!(cluster.send(0, 1, 10), Err(CallError::Closing(1)));
    assert!(cluster.settle(END, 1, &[0, 1]));
    assert_eq!((cluster.now(0, 1), cluster.now(1, 1)), (Now::Closed, Now::Closed));
    cluster.check().unwrap();
}

/// A member that never creates the group; one that has another idea of it; one that has no memory.
#[test]
fn members_that_do_not_play_their_part_are_named() {
    let hosts = [0, 1, 2, 3];
    let mut cluster = Cluster::new(&Setup { room: 5000, ..Setup::default() });
    let members: Vec<_> = hosts.iter().map(|host| ip(*host)).collect();
    let config = GroupConfig { members: members.clone(), ..group(1, Algorithm::Pipeline, 1000) };
    for host in [0, 1, 3] {
        cluster.with(host, |member, nic, now| member.create(nic, config.clone(), now)).unwrap();
    }
    assert!(cluster.settle(END, 1, &[0, 1, 3]));
    for host in [0, 1, 3] {
        assert_eq!(cluster.now(host, 1), Now::Failed(Failure::Silent(ip(2))), "host {host}");
    }
    // Too late: it hears that there is nothing left.
    cluster.with(2, |member, nic, now| member.create(nic, config, now)).unwrap();
    assert!(cluster.settle(END, 1, &[2]));
    assert!(matches!(cluster.now(2, 1), Now::Failed(Failure::Silent(_))), "{:?}", cluster.now(2, 1));

    let mut config = GroupConfig { members, ..group(2, Algorithm::Pipeline, 1000) };
    for host in hosts {
        config.block_bytes = if host == 3 { 2000 } else { 1000 };
        cluster.with(host, |member, nic, now| member.create(nic, config.clone(), now)).unwrap();
    }
    assert!(cluster.settle(END, 2, &hosts));
    for host in hosts {
        assert!(matches!(cluster.now(host, 2), Now::Failed(Failure::Mismatch(_))), "host {host}");
    }

    cluster.create(&group(3, Algorithm::Pipeline, 1000), &hosts).unwrap();
    cluster.send(0, 3, 5000).unwrap();
    cluster.send(0, 3, 5001).unwrap();
    assert!(cluster.settle(END, 3, &hosts));
    for host in hosts {
        let Now::Failed(Failure::NoMemory(who)) = cluster.now(host, 3) else { panic!("{host}") };
        assert_ne!(who, ip(0));
        assert_eq!(cluster.member(host).seen().complete[&3], [5000], "host {host}");
        assert_eq!(cluster.member(host).buffers(), 0);
        // The failure is told when the group is destroyed, too; after that it is forgotten.
        let destroyed = cluster.with(host, |member, _, _| member.destroy(3));
        assert_eq!(destroyed, Err(CallError::Failed(Failure::NoMemory(who))));
        assert_eq!(cluster.with(host, |member, _, _| member.destroy(3)), Err(CallError::Unknown(3)));
    }
    // A group of the same number can be made anew.
    cluster.create(&group(3, Algorithm::Chain, 1000), &hosts).unwrap();
    cluster.send(0, 3, 4000).unwrap();
    cluster.destroy(3, &[0]);
    assert!(cluster.settle(END, 3, &hosts));
    assert!(hosts.iter().all(|host| cluster.now(*host, 3) == Now::Closed));
    cluster.check().unwrap();
}

/// Nobody has anything to send: the survivors learn of it all the same.
#[test]
fn an_idle_group_notices_that_a_member_is_gone() {
    for victim in 0..5 {
        let hosts = [0, 1, 2, 3, 4];
        let mut cluster = Cluster::new(&Setup { hosts: 5, ..Setup::default() });
        cluster.create(&group(1, Algorithm::Pipeline, 1000), &hosts).unwrap();
        assert!(
            cluster.run_while(END, |cluster| hosts.iter().any(|host| cluster.now(*host, 1) != Now::Open))
        );
        let now = cluster.world.now();
        cluster.world.schedule(now, sim::Fault::Crash(cluster.hosts[victim as usize]));
        let survivors: Vec<_> = hosts.into_iter().filter(|host| *host != victim).collect();
        assert!(cluster.settle(now + Nanos::from_millis(100), 1, &survivors), "without {victim}");
        for host in survivors {
            assert_eq!(cluster.now(host, 1), Now::Failed(Failure::Gone(ip(victim))), "host {host}");
        }
        cluster.check().unwrap();
    }
}

//! Servers and their application in the simulator.

use super::*;
use consensus::Membership;
use rnic::{HostFunction, PathMtu, Rnic};
use rocev2::ethernet::MacAddr;
use sim::{Clock, Fault, Link, NodeId, Switch, World};
use std::sync::{Arc, Mutex};
use switch::forward::{Config as ForwardConfig, Forward};

type Host = Switch<HostFunction<Replica>>;

fn config(id: u8, load: Load) -> ConsensusConfig {
    let address = |id: u8| IpAddr::from([10, 0, 0, id + 1]);
    let host = HostConfig {
        mac: Some(MacAddr([2, 0, 0, 0, 0, id + 1])),
        addresses: vec![(address(id), 24)],
        gateways: Vec::new(),
        vlan: None,
        mtu: PathMtu::B1024,
        window: 64,
        ack: rnic::AckPolicy::OnRequest,
        credits: false,
        max_qps: 256,
        seed: Some(id.into()),
        services: Vec::new(),
        perftests: Vec::new(),
        workers: 1,
    };
    ConsensusConfig {
        host,
        id,
        servers: (0..3).map(address).collect(),
        port: 7000,
        switch: None,
        secret: None,
        heartbeat: Nanos::from_micros(100),
        layout: Layout::new(1024, 64, 16),
        window: 8,
        load: Some(load),
    }
}

/// Three servers on a bridge, and the published state of each server's newest incarnation
struct Cluster {
    world: World,
    servers: Vec<NodeId>,
    status: Vec<Arc<Mutex<Arc<Mutex<ReplicaStatus>>>>>,
}

impl Cluster {
    fn new(load: Load) -> Self {
        let mut world = World::new(1);
        let bridge = world.add(
            "bridge",
            Switch::new(|| Forward::new(&ForwardConfig::bridge(3, 16))),
            Clock::default(),
        );
        let (mut servers, mut status) = (Vec::new(), Vec::new());
        for id in 0..3 {
            let config = config(id, load);
            let newest = Arc::new(Mutex::new(Replica::new(&config, 1, false).published()));
            let slot = newest.clone();
            let mut incarnation = u64::from(id) << 32;
            let make = move || {
                incarnation += 1;
                // Only the first incarnation is to bootstrap the group: after a restart, the server does not
                // have the request.
                let replica = Replica::new(&config, incarnation, id == 0 && incarnation == 1);
                *slot.lock().unwrap() = replica.published();
                HostFunction::new(Rnic::new(config.host.nic([0; 6])), replica)
            };
            let node = world.add(&id.to_string(), Host::new(make), Clock::default());
            world.connect(node, bridge, Link::default());
            servers.push(node);
            status.push(newest);
        }
        Self { world, servers, status }
    }

    fn status(&self, server: usize) -> ReplicaStatus {
        let newest = self.status[server].lock().unwrap().clone();
        let status = newest.lock().unwrap();
        status.clone()
    }
}

#[test]
fn a_state_depends_on_every_value_and_their_order() {
    let state = |values: &[&[u8]]| {
        let mut state = AppState::default();
        for value in values {
            state.apply(value);
        }
        state
    };
    let rows: [&[&[u8]]; 9] = [
        &[],
        &[b""],
        &[b"", b""],
        &[b"one"],
        &[b"one", b"two"],
        &[b"two", b"one"],
        &[b"onetwo"],
        &[b"12345678"],
        &[b"12345678\0"],
    ];
    let all = rows.map(state);
    for (n, one) in all.iter().enumerate() {
        assert!(all[..n].iter().all(|other| other != one), "{n}");
    }
}

#[test]
fn a_leader_proposes_at_its_rate_and_all_come_to_the_same_state() {
    let mut net = Cluster::new(Load { size: 40, rate: Some(100_000) });
    net.world.run_until(Nanos::from_millis(50));
    let before = net.status(0);
    net.world.run_until(Nanos::from_millis(150));
    let leader = net.status(0);
    assert_eq!(
        (leader.membership, leader.leader, leader.path),
        (Membership::Member, Some(0), Some(ReplicationPath::Direct))
    );
    let led = leader.direct.since(&before.direct);
    assert!((9900..=10_100).contains(&led.decided), "{led:?}");
    assert_eq!((led.bytes, led.latency.len()), (led.decided * 40, led.decided));
    // Two writes for each value, and eight packets a heartbeat: a READ of each of the other two servers, a
    // response to each of their READs, and to each follower the commit index and a check that it still
    // follows.
    let heartbeats = 1000;
    let sent = 2 * led.decided + 8 * heartbeats;
    assert!(led.sent >= 2 * led.decided && led.sent <= sent + 20, "{} and not {sent}", led.sent);
    assert_eq!(leader.switch.time, Nanos::ZERO);
    assert!(leader.pause < Nanos::from_millis(60), "{:?}", leader.pause);
    for server in 1..3 {
        let status = net.status(server);
        assert_eq!((status.leader, status.path), (Some(0), None));
        assert!(status.checkpoints.len() > 8);
        for state in &status.checkpoints {
            assert!(leader.checkpoints.contains(state) || state.count > leader.state.count, "{state:?}");
        }
        assert!(
            status.state.count + 200 > leader.state.count,
            "{} of {}",
            status.state.count,
            leader.state.count
        );
    }
}

#[test]
fn a_restarted_server_recovers_the_state_of_the_group() {
    let mut net = Cluster::new(Load { size: 8, rate: None });
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.servers[0]));
    net.world.schedule(Nanos::from_millis(60), Fault::Restart(net.servers[0]));
    net.world.run_until(Nanos::from_millis(50));
    assert_eq!((net.status(1).leader, net.status(1).path), (Some(1), Some(ReplicationPath::Direct)));
    assert!(net.status(1).pause > Nanos::from_micros(500), "{:?}", net.status(1).pause);
    net.world.run_until(Nanos::from_millis(160));
    let [back, other] = [0, 2].map(|server| net.status(server));
    assert_eq!((back.membership, back.leader, other.leader), (Membership::Member, Some(0), Some(0)));
    assert!(back.applied < back.state.count, "the restarted server began with a snapshot");
    let newest = back.checkpoints.iter().find(|state| other.checkpoints.contains(state));
    assert!(newest.is_some(), "{:?}, {:?}", back.checkpoints, other.checkpoints);
}

//! Requests of a leader to a switch, and writes through it. The switch in these tests is a NIC that responds
//! as each test determines: it acknowledges writes, and forwards nothing by itself.

use super::{Net, heartbeats, ip};
use crate::log::{DECIDED, HEAD};
use crate::{Membership, SwitchAddress};
use core::net::IpAddr;
use p4ce::wire::{GroupRequest, MemberRequest, Refusal, Region, Replicas};
use rnic::{Access, Buffer, ConnParam, Cq, Pd, QpInit};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use switch::Nanos;

const SWITCH: u8 = 3;
const PORT: u16 = 18_515;

fn init(pd: Pd, cq: Cq) -> QpInit {
    QpInit::rc(pd, cq, 16, 1)
}

impl Net {
    /// Returns three servers and a switch. The first server leads, and has requested a group.
    fn with_switch() -> Self {
        let through = SwitchAddress { address: ip(SWITCH), port: PORT };
        let mut net = Self::new(3, |config| config.switch = Some(through));
        net.add_nic(SWITCH, PORT);
        net.run_heartbeats(3);
        net.servers[0].bootstrap().unwrap();
        net.run_until("requested", |net| !net.requests.is_empty());
        net
    }

    /// Returns the same after the switch has accepted: entries go through the switch from now on.
    fn open() -> (Self, Buffer) {
        let mut net = Self::with_switch();
        let memory = net.accept_group();
        net.deliver_all();
        assert!(net.servers[0].replicates_through_switch());
        (net, memory)
    }

    /// Accepts the last request. Returns the memory that the leader writes.
    fn accept_group(&mut self) -> Buffer {
        let len = self.config.layout.memory_len();
        self.accept_group_with(0, len as u64)
    }

    /// Accepts the last request with memory at this address and of this size.
    fn accept_group_with(&mut self, va: u64, size: u64) -> Buffer {
        let (nic, conn) = (&mut self.nics[usize::from(SWITCH)], self.requests.last().unwrap().conn);
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(16).unwrap();
        let (memory, mr) = nic.register_new(pd, size as usize, va, Access::REMOTE_WRITE).unwrap();
        let private_data = Region::new(va, mr.0, size).to_bytes();
        let param = ConnParam { access: Access::REMOTE_WRITE, private_data, ..ConnParam::default() };
        nic.accept_new(conn, init(pd, cq), param, self.now).unwrap();
        memory
    }

    /// Rejects the last request.
    fn reject_group(&mut self) {
        let (nic, conn) = (&mut self.nics[usize::from(SWITCH)], self.requests.last().unwrap().conn);
        nic.reject(conn, RejReason::CONSUMER, &Refusal::Full.to_bytes(), self.now).unwrap();
    }

    /// Copies what was written through the switch to a server's memory: entries, and the number of decided
    /// ones.
    fn copy_to_server(&mut self, memory: Buffer, to: usize) {
        let written = self.nics[usize::from(SWITCH)].bytes(memory).to_vec();
        let layout = self.servers[to].config.layout;
        let log = self.servers[to].resources.as_ref().unwrap().log.0;
        let log = self.nics[to].bytes_mut(log);
        log[DECIDED..][..8].copy_from_slice(&written[DECIDED..][..8]);
        for index in (0..100).filter(|index| layout.entry(*index, &written).is_some()) {
            let (at, len) = (layout.at(index), layout.stored_len(index, &written).unwrap());
            log[at..at + len].copy_from_slice(&written[at..at + len]);
        }
    }

    /// Returns the time between the last two requests.
    fn between_requests(&self) -> Nanos {
        let [.., before, last] = &self.requests[..] else {
            panic!("the switch received fewer than two requests")
        };
        last.at.since(before.at)
    }

    fn value(&self, server: usize, index: u64) -> Option<&[u8]> {
        self.servers[server].entry_value(&self.nics[server], index)
    }
}

/// Returns the queue pairs on which the leader writes to the other servers.
fn links(net: &Net) -> [Qpn; 2] {
    let followers = &net.servers[0].leadership.as_ref().unwrap().followers;
    [1, 2].map(|server: usize| followers[server].link.unwrap().qpn)
}

#[test]
fn a_leader_requests_a_group_as_soon_as_all_servers_count() {
    let net = Net::with_switch();
    assert!(net.servers[0].is_leader() && !net.servers[0].replicates_through_switch());
    let expected = GroupRequest {
        replicas: Replicas::Listed(vec![ip(1), ip(2)]),
        quorum: 1,
        port: 7000,
        outvote: false,
    };
    assert_eq!(net.requests.len(), 1);
    // It starts a candidacy at the twentieth heartbeat, and both other servers follow at once.
    assert_eq!(net.requests[0].at, heartbeats(20));
    assert_eq!(net.requests[0].from, ip(0));
    assert_eq!(GroupRequest::from_bytes(&net.requests[0].private_data), Ok(expected));
}

#[test]
fn an_entry_through_the_switch_is_decided_when_it_is_acknowledged() {
    let (mut net, memory) = Net::open();
    net.propose_and_decide(3, 40);
    net.run_heartbeats(2);
    assert_eq!(net.servers[0].decided(), 3);
    let layout = net.servers[0].config.layout;
    for index in 0..3 {
        assert_eq!([1, 2].map(|at: usize| net.value(at, index)), [None; 2]);
        let written = net.nics[usize::from(SWITCH)].bytes(memory);
        assert_eq!(layout.entry(index, written).map(|entry| entry.value), Some(&[index as u8; 40][..]));
    }
    net.copy_to_server(memory, 1);
    net.run_heartbeats(1);
    assert_eq!(net.delivered[1], net.delivered[0]);
}

#[test]
fn entries_go_through_the_switch_after_all_members_hold_the_earlier_ones() {
    let mut net = Net::with_switch();
    net.partitioned = vec![2];
    net.propose_and_decide(2, 40);
    let memory = net.accept_group();
    net.deliver_all();
    assert!(!net.servers[0].replicates_through_switch());
    net.propose_and_decide(1, 40);
    assert_eq!(net.servers[0].decided(), 2, "written neither through the switch nor directly");
    net.partitioned.clear();
    net.run_heartbeats(2);
    assert!(net.servers[0].replicates_through_switch());
    assert_eq!((net.servers[0].decided(), net.value(1, 1), net.value(1, 2)), (3, Some(&[1; 40][..]), None));
    net.copy_to_server(memory, 1);
    assert_eq!(net.value(1, 2), Some(&[0; 40][..]));
}

#[test]
fn a_torn_entry_of_an_earlier_leader_does_not_go_through_the_switch() {
    let mut net = Net::with_switch();
    let log = net.servers[0].resources.as_ref().unwrap().log.0;
    // The header of an entry of 40 bytes, without the rest
    let header = [1u64, 0, 40].map(u64::to_le_bytes).concat();
    net.nics[0].bytes_mut(log)[HEAD..][..24].copy_from_slice(&header);
    let memory = net.accept_group();
    net.deliver_all();
    assert!(net.servers[0].replicates_through_switch());
    net.propose_and_decide(1, 40);
    let (layout, written) = (net.servers[0].config.layout, net.nics[usize::from(SWITCH)].bytes(memory));
    assert_eq!(layout.entry(0, written).map(|entry| entry.value), Some(&[0; 40][..]));
}

#[test]
fn an_idle_group_stays_open() {
    let (mut net, memory) = Net::open();
    net.propose_and_decide(3, 40);
    net.run_heartbeats(1);
    for to in [1, 2] {
        net.copy_to_server(memory, to);
    }
    net.run_heartbeats(1);
    let sent = net.nics[usize::from(SWITCH)].counters().sent;
    net.run_heartbeats(200);
    assert!(net.servers[0].replicates_through_switch());
    assert_eq!(net.requests.len(), 1);
    assert_eq!(net.nics[usize::from(SWITCH)].counters().sent, sent, "the switch has nothing to acknowledge");
}

#[test]
fn an_unresponsive_switch_is_given_up_and_contacted_again() {
    let mut net = Net::with_switch();
    // Meanwhile entries are written directly.
    net.propose_and_decide(3, 40);
    net.run_heartbeats(1);
    assert_eq!((net.delivered[1].len(), net.delivered[2].len()), (3, 3));
    net.run_heartbeats(400);
    net.run_until("requested again", |net| net.requests.len() == 2);
    // More than 200 heartbeats for a response, and 300 until the next request
    let span = net.between_requests();
    assert!(span > heartbeats(500) && span < heartbeats(501), "{span:?}");
    assert!(!net.servers[0].replicates_through_switch());
}

#[test]
fn entries_that_the_switch_loses_are_written_directly() {
    let (mut net, memory) = Net::open();
    net.propose_and_decide(2, 40);
    net.run_heartbeats(1);
    net.copy_to_server(memory, 1);
    let since = net.now;
    net.run_heartbeats(19);
    assert!(net.servers[0].replicates_through_switch() && net.delivered[2].is_empty());
    net.run_until("requested again", |net| net.requests.len() == 2);
    let span = net.now.since(since);
    assert!(span > heartbeats(20) && span < heartbeats(21), "{span:?}");
    net.run_heartbeats(3);
    assert_eq!(net.delivered[2], net.delivered[0]);
}

#[test]
fn a_region_of_another_size_or_address_is_not_used() {
    let len = Net::new(1, |_| {}).config.layout.memory_len() as u64;
    for (va, size) in [(0, len + 8), (0, len - 8), (64, len), (64, len + 8)] {
        let mut net = Net::with_switch();
        net.accept_group_with(va, size);
        net.run_heartbeats(2);
        assert!(!net.servers[0].replicates_through_switch(), "{size} bytes at {va}");
        net.run_heartbeats(150);
        net.run_until("requested again", |net| net.requests.len() == 2);
        assert_eq!(net.between_requests(), heartbeats(300), "{size} bytes at {va}");
    }
}

#[test]
fn a_rejection_by_the_switch_does_not_affect_followers() {
    let mut net = Net::with_switch();
    let before = links(&net);
    net.reject_group();
    net.run_heartbeats(2);
    assert_eq!(links(&net), before);
    net.run_heartbeats(150);
    net.run_until("requested again", |net| net.requests.len() == 2);
    assert_eq!(net.between_requests(), heartbeats(300));
}

/// Lets the switch request permission from a server on behalf of `leader`. Returns whether it is granted.
fn is_granted(net: &mut Net, to: usize, leader: u8) -> bool {
    let before = net.servers[to].queue_pairs();
    let nic = &mut net.nics[usize::from(SWITCH)];
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(16).unwrap();
    let private_data = MemberRequest { leader: ip(leader), port: 1000 }.to_bytes();
    let param = ConnParam { access: Access::LOCAL_READ, private_data, ..ConnParam::default() };
    nic.connect_new(init(pd, cq), (ip(to as u8), 7000), param, net.now).unwrap();
    net.deliver_all();
    net.servers[to].queue_pairs() > before
}

#[test]
fn a_follower_grants_permission_to_the_switch_only_for_its_leader() {
    let mut net = Net::with_switch();
    net.run_heartbeats(1);
    assert!(!is_granted(&mut net, 1, 1) && !is_granted(&mut net, 1, 2), "on behalf of another server");
    assert!(!is_granted(&mut net, 0, 0), "a leader follows no server");
    net.propose_and_decide(3, 40);
    net.run_heartbeats(1);
    net.restart(2);
    assert!(!is_granted(&mut net, 2, 0), "it follows no server yet");
    net.run_until("up to date", |net| net.delivered[2].len() == 3);
    assert_eq!((net.servers[2].membership(), net.servers[2].leader()), (Membership::Blank, Some(0)));
    assert!(!is_granted(&mut net, 2, 0), "a blank server does not count");
    net.run_heartbeats(3);
    assert!(is_granted(&mut net, 2, 0));
    assert!(is_granted(&mut net, 1, 0));
}

#[test]
fn a_new_leader_revokes_the_permission_of_the_group() {
    let mut net = Net::with_switch();
    net.run_heartbeats(1);
    let usual = net.servers[2].queue_pairs();
    assert!(is_granted(&mut net, 2, 0));
    assert!(net.servers[2].joined.is_some());
    net.partitioned = vec![0];
    net.run_until("led by another server", |net| net.servers[2].leader() == Some(1));
    assert!(net.servers[2].joined.is_none());
    net.run_heartbeats(100);
    net.partitioned.clear();
    net.run_heartbeats(200);
    assert_eq!((net.servers[2].leader(), net.servers[2].queue_pairs()), (Some(0), usual));
}

/// Returns the replicas in the last request.
fn replicas(net: &Net) -> Vec<IpAddr> {
    let request = GroupRequest::from_bytes(&net.requests.last().unwrap().private_data).unwrap();
    let Replicas::Listed(replicas) = request.replicas else { panic!("expected a list of replicas") };
    replicas
}

#[test]
fn a_group_waits_fifty_heartbeats_for_a_server_that_is_about_to_count() {
    let mut net = Net::with_switch();
    net.partitioned = vec![2];
    net.run_heartbeats(20);
    for _ in 0..3 {
        net.propose_and_decide(5, 40);
        net.run_heartbeats(3);
    }
    net.partitioned.clear();
    // Server 2 has promised itself a higher term meanwhile.
    let term = net.servers[0].term();
    net.run_until("leading in a later term", |net| {
        net.servers[0].term() > term && net.servers[0].is_leader()
    });
    let (leads, request_count) = (net.now, net.requests.len());
    net.run_until("requested", |net| net.requests.len() > request_count);
    assert!(net.servers[0].wants_snapshot(), "for server 2");
    assert_eq!((net.now.since(leads), replicas(&net)), (heartbeats(50), vec![ip(1)]));
    // One replica is a majority together with the leader.
    let memory = net.accept_group();
    net.run_heartbeats(60);
    net.propose_and_decide(1, 40);
    assert!(net.servers[0].replicates_through_switch());
    assert_eq!((net.servers[0].decided(), net.value(1, 15)), (16, None));
    net.run_heartbeats(1);
    net.copy_to_server(memory, 1);
    net.run_heartbeats(3);
    // Server 2 joins a group when it has counted for the same time.
    let (given, state) = (net.now, b"state");
    net.give_snapshot(state).unwrap();
    net.run_until("requested for both", |net| net.requests.len() > request_count + 1);
    assert_eq!(replicas(&net), [ip(1), ip(2)]);
    assert_eq!(net.now.since(given), heartbeats(50));
}

#[test]
fn a_leader_that_loses_the_switch_requests_permissions_again() {
    let (mut net, _) = Net::open();
    net.propose_and_decide(3, 40);
    let before = links(&net);
    net.partitioned = vec![SWITCH];
    net.propose(0, b"a value").unwrap();
    net.run_heartbeats(20);
    assert!(!net.servers[0].replicates_through_switch());
    assert!(links(&net).iter().all(|link| !before.contains(link)));
    assert_eq!((net.servers[0].decided(), net.delivered[1].len(), net.delivered[2].len()), (4, 4, 4));
    net.partitioned.clear();
    net.run_heartbeats(180);
    net.run_until("requested again", |net| net.requests.len() == 2);
    let span = net.between_requests();
    assert!(span > heartbeats(300) && span < heartbeats(320), "{span:?}");
}

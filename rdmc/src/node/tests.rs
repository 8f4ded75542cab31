//! What a node takes of its NIC is enough, whatever ends at once.

use super::*;
use crate::config::Failure;
use crate::group::Neighbour;
use crate::group::transfer::{Links, Posted};
use crate::schedule::Algorithm;
use crate::wire::{Create, Message};
use core::net::Ipv4Addr;
use p4ce::consensus::SwitchAddress;
use rnic::{
    Completion, CompletionOpcode, Data, Interface, Modify, Operation, Path, PathMtu, ReadyToReceive,
    ReadyToSend, RecvRequest, SendRequest, Status,
};
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn ip(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    Ipv4Addr::new(10, 0, high, low).into()
}

/// A node that has started, with the highest address of all: it asks others for connections
fn started(links: usize, connections: usize) -> (Node, Rnic) {
    let own = ip(u16::MAX - 1);
    let nic = rnic::Config {
        max_qps: links + connections + 16,
        max_regions: links + connections + 16,
        ..rnic::Config::new(Interface::new(MacAddr([2; 6]), own, 16))
    };
    let mut nic = Rnic::new(nic);
    let mut node = Node::new(Config { connections, links, ..Config::new(own) });
    node.start(&mut nic).unwrap();
    (node, nic)
}

/// Every queue pair fails at once; how many completions that makes
fn fail_all(node: &Node, nic: &mut Rnic) -> u64 {
    let before = nic.counters().completions;
    let resources = node.resources.as_ref().unwrap();
    for qpn in resources.uses.keys().chain(node.mesh.queue_pairs()) {
        nic.modify_qp(Qpn::new(*qpn), Modify::Error).unwrap();
    }
    assert!(!nic.cq_overrun(resources.cq));
    nic.counters().completions - before
}

/// More links than a queue of 65,536 would have room for: a switch dies, and all of them with it.
#[test]
fn all_links_may_fail_at_once() {
    let links = 2_100;
    let (mut node, mut nic) = started(links, 1);
    for peer in 0..links as u16 {
        node.call(&mut nic, ip(peer), Nanos::ZERO).unwrap();
    }
    assert_eq!(node.held().queue_pairs, links);
    let completions = fail_all(&node, &mut nic);
    assert!(completions > 1 << 16, "{completions}");
    node.run(&mut nic, Nanos(1));
    assert!(!nic.cq_has_completions(node.resources.as_ref().unwrap().cq));
}

/// Attempts that are given up leave nothing in the queue that nobody waits for.
#[test]
fn attempts_that_are_given_up_complete_nothing() {
    let (mut node, mut nic) = started(100, 1);
    for peer in 0..100 {
        node.call(&mut nic, ip(peer), Nanos::ZERO).unwrap();
    }
    for ms in 1..3_000 {
        node.run(&mut nic, Nanos::from_millis(ms));
    }
    assert_eq!((node.held().queue_pairs, nic.counters().completions), (100, 0));
}

/// Whatever can be posted to the queue pairs of groups is posted.
#[test]
fn all_blocks_may_fail_at_once() {
    let own = ip(u16::MAX - 1);
    let (groups, receivers) = (5, 20);
    let (mut node, mut nic) = started(receivers.into(), usize::from(groups * receivers));
    for number in 0..groups.into() {
        let config = GroupConfig {
            algorithm: Algorithm::Sequential,
            ahead: GroupConfig::MAX_AHEAD,
            block_bytes: 1,
            ..GroupConfig::new(number, [own].into_iter().chain((0..receivers).map(ip)).collect())
        };
        let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
        node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    }
    let uses = node.resources.as_ref().unwrap().uses.keys().copied().collect::<Vec<_>>();
    assert_eq!((uses.len(), node.words()), (100, 100), "as many as there is room for");
    let mut posted = 0;
    for qpn in uses.iter().copied().chain(node.mesh.queue_pairs().copied().collect::<Vec<_>>()).map(Qpn::new)
    {
        while nic.post_recv(qpn, RecvRequest { id: 0, data: None }).is_ok() {
            posted += 1;
        }
        connect(&mut nic, qpn);
        while nic.post_send(qpn, SendRequest::new(0, Operation::Send, Data::Inline(vec![0]))).is_ok() {
            posted += 1;
        }
    }
    assert_eq!(fail_all(&node, &mut nic), posted + 32 * u64::from(receivers), "receives of links were there");
    assert!(posted > 30_000 && posted < node.config.completions() as u64, "{posted}");
}

/// A WRITE with an immediate value takes the receive of a block as well, and was never acknowledged by anybody.
#[test]
fn a_write_in_the_place_of_a_block_is_a_violation() {
    let (mut node, mut nic) = started(1, 1);
    let config = GroupConfig {
        algorithm: Algorithm::Chain,
        ..GroupConfig::new(1, [ip(u16::MAX - 1), ip(7)].into_iter().collect())
    };
    let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    let qpn = *node.resources.as_ref().unwrap().uses.keys().next().unwrap();
    let done = Completion { opcode: CompletionOpcode::RecvWriteImm, ..block(qpn, 5, 0) };
    node.on_completion(&mut nic, &done, Nanos(1));
    let event = node.poll_event();
    let is_violation =
        matches!(event, Some(Event::Failed { failure: Failure::Violation(who), .. }) if who == ip(7));
    assert!(is_violation, "{event:?}");
    assert_eq!(node.counters().blocks_sent, 0);
}

#[test]
fn peer_may_create_a_bounded_number_of_groups_first() {
    let (mut node, mut nic) = started(1, 1);
    for number in 0..=MAX_AHEAD as u32 {
        let create = Message::Create(Create { life: 1, agreement: 1, end: None });
        node.on_message(&mut nic, ip(7), number, create, Nanos::ZERO);
    }
    assert_eq!((node.ahead[&ip(7)].len(), node.counters().forgotten), (MAX_AHEAD, 1));
}

/// A block of `len` bytes, of a message of `total` bytes, has come at a queue pair.
fn block(qpn: u32, total: u32, len: u32) -> Completion {
    Completion {
        id: 0,
        qpn: Qpn::new(qpn),
        status: Status::Success,
        opcode: CompletionOpcode::Recv,
        len,
        immediate: Some(total),
        invalidated: None,
        from: None,
        solicited: false,
    }
}

/// A node and its group of two with blocks of two bytes, of which it is the receiver; and its queue pair there
fn receiver() -> (Node, Rnic, u32) {
    let (mut node, mut nic) = started(1, 1);
    let config = GroupConfig {
        algorithm: Algorithm::Chain,
        block_bytes: 2,
        ..GroupConfig::new(1, [ip(7), ip(u16::MAX - 1)].into())
    };
    let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    let qpn = *node.resources.as_ref().unwrap().uses.keys().next().unwrap();
    (node, nic, qpn)
}

/// Says which memory the application has for messages.
fn give(node: &mut Node, incoming: impl FnMut(&mut Rnic, u32) -> Option<Memory> + Send + 'static) {
    node.groups.get_mut(&1).unwrap().incoming = Box::new(incoming);
}

/// A block comes that lies aside. Returns what failed.
fn take_aside(node: &mut Node, nic: &mut Rnic, done: &Completion) -> Option<Failure> {
    node.groups.get_mut(&1).unwrap().neighbours[0].posted.push_back(Posted::Aside);
    node.on_completion(nic, done, Nanos(1));
    match node.poll_event() {
        Some(Event::Failed { failure, .. }) => Some(failure),
        _ => None,
    }
}

/// The application is not asked for memory for a message that is too long, or empty.
#[test]
fn message_of_no_blocks_or_of_too_many_is_a_violation() {
    let most = 2 * GroupConfig::MAX_BLOCKS;
    // The last block is half a block.
    for (total, is_violation) in [(0, true), (most - 1, false), (most, false), (most + 1, true)] {
        let asked = Arc::new(AtomicU32::new(u32::MAX));
        let requested = Arc::clone(&asked);
        let (mut node, mut nic, qpn) = receiver();
        give(&mut node, move |_, len| {
            requested.store(len, Ordering::Relaxed);
            None
        });
        let failure = take_aside(&mut node, &mut nic, &block(qpn, total, 2));
        let (expected, memory) = if is_violation {
            (Failure::Violation(ip(7)), u32::MAX)
        } else {
            (Failure::NoMemory(ip(u16::MAX - 1)), total)
        };
        assert_eq!((failure, asked.load(Ordering::Relaxed)), (Some(expected), memory), "{total} bytes");
    }
}

/// The sender was told of no message beyond this one.
#[test]
fn a_block_beyond_a_message_is_a_violation() {
    let asked = Arc::new(AtomicU32::new(0));
    let requested = Arc::clone(&asked);
    let (mut node, mut nic, qpn) = receiver();
    let (_, mr) = nic.register_new(node.pd().unwrap(), 4, 0x1000, Access::LOCAL_WRITE).unwrap();
    give(&mut node, move |_, _| {
        requested.fetch_add(1, Ordering::Relaxed);
        Some(Memory { mr, va: 0x1000 })
    });
    let failures: Vec<_> = (0..3).map(|_| take_aside(&mut node, &mut nic, &block(qpn, 4, 2))).collect();
    assert_eq!(failures, [None, None, Some(Failure::Violation(ip(7)))]);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// A receiver gets the first block of a message of `total` bytes, itself of `len` bytes. The application gives memory of `access`, in
/// the node's protection domain or in another, for `room` bytes. Returns what failed.
fn first_block(total: u32, len: u32, access: Access, is_foreign: bool, room: usize) -> Option<Failure> {
    let (mut node, mut nic, qpn) = receiver();
    let pd = if is_foreign { nic.alloc_pd() } else { node.pd().unwrap() };
    let (_, mr) = nic.register_new(pd, room, 0x1000, access).unwrap();
    give(&mut node, move |_, _| Some(Memory { mr, va: 0x1000 }));
    take_aside(&mut node, &mut nic, &block(qpn, total, len))
}

#[test]
fn first_block_has_the_length_of_a_block() {
    let violation = Some(Failure::Violation(ip(7)));
    for (total, len, failure) in [
        (3, 2, None),
        (3, 1, violation),
        (3, 3, violation),
        (1, 1, None),
        (1, 2, violation),
        (0, 0, violation),
    ] {
        assert_eq!(first_block(total, len, Access::LOCAL_WRITE, false, 8), failure, "{len} of {total} bytes");
    }
}

#[test]
fn memory_of_a_message_is_writable_large_enough_and_in_the_domain() {
    let none = Some(Failure::NoMemory(ip(u16::MAX - 1)));
    assert_eq!(first_block(3, 2, Access::LOCAL_WRITE, false, 3), None);
    assert_eq!(first_block(3, 2, Access::LOCAL_WRITE, false, 2), none);
    assert_eq!(first_block(3, 2, Access::LOCAL_WRITE, true, 3), none);
    assert_eq!(first_block(3, 2, Access::LOCAL_READ, false, 3), none);
}

/// Makes a queue pair one that is connected.
fn connect(nic: &mut Rnic, qpn: Qpn) {
    let ready = ReadyToReceive {
        path: Path::new(ip(u16::MAX - 1), ip(0)),
        dest_qp: Qpn::new(0x99),
        mtu: PathMtu::B1024,
        rq_psn: Psn::ZERO,
        max_dest_rd_atomic: 0,
        min_rnr_timer: RnrTimer(1),
    };
    let send = ReadyToSend {
        sq_psn: Psn::ZERO,
        max_rd_atomic: 0,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        flow_control: false,
    };
    nic.modify_qp(qpn, Modify::Rtr(ready)).unwrap();
    nic.modify_qp(qpn, Modify::Rts(send)).unwrap();
}

/// The root has a message of five blocks for a member that is ready for so many. Returns how many leave before one is acknowledged,
/// and whether the root waits for the member to be ready then.
fn leaves_at_once(algorithm: Algorithm, ready: u64) -> (u64, bool) {
    let (mut node, mut nic) = started(1, 1);
    let config = GroupConfig {
        algorithm,
        block_bytes: 2,
        ahead: 3,
        through: Some(SwitchAddress { address: ip(9), port: 1 }),
        ..GroupConfig::new(1, [ip(u16::MAX - 1), ip(7)].into())
    };
    let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    let (_, mr) = nic.register_new(node.pd().unwrap(), 10, 0x1000, Access::LOCAL_READ).unwrap();
    node.send(&nic, 1, Memory { mr, va: 0x1000 }, 10).unwrap();
    let resources = node.resources.as_ref().unwrap();
    let group = node.groups.get_mut(&1).unwrap();
    let Neighbour { qpn, word, .. } = group.neighbours[0];
    connect(&mut nic, qpn);
    // What the member would write there
    let at = word as usize * WORD;
    nic.bytes_mut(resources.ready.0)[at..at + WORD].copy_from_slice(&(ready << 24).to_be_bytes());
    let mut links = Links { group, nic: &mut nic, resources };
    links.begin().unwrap();
    let waits = links.advance().unwrap();
    (group.neighbours[0].sent, waits)
}

#[test]
fn blocks_leave_as_far_as_their_receiver_is_ready_and_no_more_than_ahead_at_once() {
    for algorithm in [Algorithm::Chain, Algorithm::InNetwork] {
        for (ready, left) in
            [(0, (0, true)), (1, (1, true)), (2, (2, true)), (3, (3, false)), (5, (3, false))]
        {
            assert_eq!(leaves_at_once(algorithm.clone(), ready), left, "{algorithm:?}: ready for {ready}");
        }
    }
}

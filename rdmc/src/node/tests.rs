//! What a node takes of its NIC is enough, whatever ends at once.

use super::*;
use crate::config::Failure;
use crate::group::transfer::Posted;
use crate::schedule::Algorithm;
use crate::wire::{Create, Message};
use core::net::Ipv4Addr;
use rnic::{
    Completed, Completion, Data, Interface, Modify, Operation, Path, PathMtu, ReadyToReceive, ReadyToSend,
    RecvRequest, SendRequest, Status,
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
    assert!(!nic.cq_has_some(node.resources.as_ref().unwrap().cq));
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
        let ready = ReadyToReceive {
            path: Path::new(own, ip(0)),
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
    let done = Completion {
        id: 0,
        qpn: Qpn::new(qpn),
        status: Status::Success,
        of: Completed::RecvWriteImm,
        len: 0,
        immediate: Some(5),
        invalidated: None,
        from: None,
        solicited: false,
    };
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

/// The application is not asked for memory for a message that is too long.
#[test]
fn message_of_too_many_blocks_is_a_violation() {
    for blocks in [GroupConfig::MAX_BLOCKS, GroupConfig::MAX_BLOCKS + 1] {
        let (mut node, mut nic) = started(1, 1);
        let config = GroupConfig {
            algorithm: Algorithm::Chain,
            block_bytes: 2,
            ..GroupConfig::new(1, [ip(7), ip(u16::MAX - 1)].into())
        };
        let asked = Arc::new(AtomicU32::new(0));
        let requested = Arc::clone(&asked);
        let incoming = move |_: &mut Rnic, len| {
            requested.store(len, Ordering::Relaxed);
            None
        };
        let complete = Box::new(|_: &mut Rnic, _, _| ());
        node.create_group(&mut nic, config, Box::new(incoming), complete, Nanos::ZERO).unwrap();
        let qpn = *node.resources.as_ref().unwrap().uses.keys().next().unwrap();
        let group = node.groups.get_mut(&1).unwrap();
        group.neighbours[0].posted.push_back(Posted::Aside);
        // The last block is half a block.
        let len = 2 * blocks - 1;
        let done = Completion {
            id: 0,
            qpn: Qpn::new(qpn),
            status: Status::Success,
            of: Completed::Recv,
            len: 2,
            immediate: Some(len),
            invalidated: None,
            from: None,
            solicited: false,
        };
        node.on_completion(&mut nic, &done, Nanos(1));
        let Some(Event::Failed { failure, .. }) = node.poll_event() else { panic!("{blocks} blocks") };
        let (expected, memory) = if blocks > GroupConfig::MAX_BLOCKS {
            (Failure::Violation(ip(7)), 0)
        } else {
            (Failure::NoMemory(ip(u16::MAX - 1)), len)
        };
        assert_eq!((failure, asked.load(Ordering::Relaxed)), (expected, memory));
    }
}

/// A receiver whose group's blocks have two bytes gets the first block of a message of `total` bytes, itself of `len` bytes. The
/// application gives memory of `access`, in the node's protection domain or in another, for `room` bytes. Returns what failed.
fn first_block(total: u32, len: u32, access: Access, is_foreign: bool, room: usize) -> Option<Failure> {
    let (mut node, mut nic) = started(1, 1);
    let config = GroupConfig {
        algorithm: Algorithm::Chain,
        block_bytes: 2,
        ..GroupConfig::new(1, [ip(7), ip(u16::MAX - 1)].into())
    };
    let pd = if is_foreign { nic.alloc_pd() } else { node.resources.as_ref().unwrap().pd };
    let (_, mr) = nic.register_new(pd, room, 0x1000, access).unwrap();
    let incoming = Box::new(move |_: &mut Rnic, _| Some(Memory { mr, va: 0x1000 }));
    let complete = Box::new(|_: &mut Rnic, _, _| ());
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    let qpn = *node.resources.as_ref().unwrap().uses.keys().next().unwrap();
    node.groups.get_mut(&1).unwrap().neighbours[0].posted.push_back(Posted::Aside);
    let done = Completion {
        id: 0,
        qpn: Qpn::new(qpn),
        status: Status::Success,
        of: Completed::Recv,
        len,
        immediate: Some(total),
        invalidated: None,
        from: None,
        solicited: false,
    };
    node.on_completion(&mut nic, &done, Nanos(1));
    match node.poll_event() {
        Some(Event::Failed { failure, .. }) => Some(failure),
        _ => None,
    }
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

//! Tests of a node: its completion queue has room for all completions, however many queue pairs fail at once;
//! limits and violations.

use super::*;
use crate::config::Failure;
use crate::group::Neighbour;
use crate::group::transfer::{ReceiveTarget, TransferContext};
use crate::schedule::Algorithm;
use crate::wire::{Create, Message};
use core::net::Ipv4Addr;
use p4ce::SwitchAddress;
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

/// Returns a node that has started. Its address is the highest of all, so it requests the connections.
fn started_node(links: usize, connections: usize) -> (Node, Rnic) {
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

/// Moves every queue pair to the error state. Returns the number of completions.
fn fail_all(node: &Node, nic: &mut Rnic) -> u64 {
    let before = nic.counters().completions;
    let resources = node.resources.as_ref().unwrap();
    for qpn in resources.uses.keys().chain(node.mesh.queue_pairs()) {
        nic.modify_qp(Qpn::new(*qpn), Modify::Error).unwrap();
    }
    assert!(!nic.cq_overrun(resources.cq));
    nic.counters().completions - before
}

/// A switch fails, and with it more links than a completion queue of 65,536 entries would have room for.
#[test]
fn completion_queue_has_room_when_all_links_fail_at_once() {
    let links = 2_100;
    let (mut node, mut nic) = started_node(links, 1);
    for peer in 0..links as u16 {
        node.request_link(&mut nic, ip(peer), Nanos::ZERO).unwrap();
    }
    assert_eq!(node.resource_counts().queue_pairs, links);
    let completions = fail_all(&node, &mut nic);
    assert!(completions > 1 << 16, "{completions}");
    node.run(&mut nic, Nanos(1));
    assert!(!nic.cq_has_completions(node.resources.as_ref().unwrap().cq));
}

/// Attempts that time out leave no completions in the queue.
#[test]
fn connection_attempts_that_time_out_leave_no_completions() {
    let (mut node, mut nic) = started_node(100, 1);
    for peer in 0..100 {
        node.request_link(&mut nic, ip(peer), Nanos::ZERO).unwrap();
    }
    for ms in 1..3_000 {
        node.run(&mut nic, Nanos::from_millis(ms));
    }
    assert_eq!((node.resource_counts().queue_pairs, nic.counters().completions), (100, 0));
}

/// Every request that groups' queue pairs have room for is posted.
#[test]
fn completion_queue_has_room_when_all_blocks_fail_at_once() {
    let own = ip(u16::MAX - 1);
    let (groups, receivers) = (5, 20);
    let (mut node, mut nic) = started_node(receivers.into(), usize::from(groups * receivers));
    for number in 0..groups.into() {
        let config = GroupConfig {
            algorithm: Algorithm::Sequential,
            max_in_flight: GroupConfig::MAX_IN_FLIGHT,
            block_bytes: 1,
            ..GroupConfig::new(number, [own].into_iter().chain((0..receivers).map(ip)).collect())
        };
        let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
        node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    }
    let uses = node.resources.as_ref().unwrap().uses.keys().copied().collect::<Vec<_>>();
    assert_eq!(
        (uses.len(), node.ready_words_in_use()),
        (100, 100),
        "all queue pairs and ready words are in use"
    );
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
    assert_eq!(
        fail_all(&node, &mut nic),
        posted + 32 * u64::from(receivers),
        "the links' receives were posted before"
    );
    assert!(posted > 30_000 && posted < node.config.completions() as u64, "{posted}");
}

/// A WRITE with immediate data consumes the receive of a block, too. It must not count as an acknowledged
/// block.
#[test]
fn a_write_in_place_of_a_block_is_a_violation() {
    let (mut node, mut nic) = started_node(1, 1);
    let config = GroupConfig {
        algorithm: Algorithm::Chain,
        ..GroupConfig::new(1, [ip(u16::MAX - 1), ip(7)].into_iter().collect())
    };
    let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    let qpn = *node.resources.as_ref().unwrap().uses.keys().next().unwrap();
    let done = Completion { opcode: CompletionOpcode::RecvWriteImm, ..block_completion(qpn, 5, 0) };
    node.on_completion(&mut nic, &done, Nanos(1));
    let event = node.poll_event();
    let is_violation =
        matches!(event, Some(Event::Failed { failure: Failure::Violation(who), .. }) if who == ip(7));
    assert!(is_violation, "{event:?}");
    assert_eq!(node.counters().blocks_sent, 0);
}

#[test]
fn peer_may_create_a_bounded_number_of_groups_first() {
    let (mut node, mut nic) = started_node(2, 2);
    for number in 0..=MAX_EARLY as u32 {
        let create = Message::Create(Create { incarnation: 1, config_hash: 1, end: None });
        node.on_message(&mut nic, ip(7), number, create, Nanos::ZERO);
    }
    assert_eq!((node.early[&ip(7)].len(), node.counters().forgotten), (MAX_EARLY, 1));
    assert!(!node.send_note(&mut nic, ip(7), [0; Node::NOTE]), "there is no link");
    assert_eq!(node.counters().notes_dropped, 1);
    // The group that was dropped fails here by this node's fault, and another one by that of its peer.
    let own = ip(u16::MAX - 1);
    for (number, other, expected) in
        [(MAX_EARLY as u32, 7, Failure::NoRoom(own)), (5, 8, Failure::NotCreated(ip(8)))]
    {
        let config = GroupConfig {
            algorithm: Algorithm::Chain,
            ..GroupConfig::new(number, [own, ip(other)].into_iter().collect())
        };
        let callbacks = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
        node.create_group(&mut nic, config, callbacks.0, callbacks.1, Nanos::ZERO).unwrap();
        let late = node.config.create_timeout + Nanos(1);
        node.on_deadline(&mut nic, late);
        let event = node.poll_event();
        assert!(matches!(&event, Some(Event::Failed { failure, .. }) if *failure == expected), "{event:?}");
    }
}

/// A peer that has no room for this node's group reports itself, without an index among the members.
#[test]
fn refusal_of_a_group_names_its_sender() {
    let (mut node, mut nic) = started_node(1, 1);
    let config = GroupConfig {
        algorithm: Algorithm::Chain,
        ..GroupConfig::new(1, [ip(u16::MAX - 1), ip(7)].into_iter().collect())
    };
    let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    // What the peer announces is what this node announces to it.
    let group = &node.groups[&1];
    let create = group.create_for(&nic, node.resources.as_ref().unwrap(), 1);
    node.on_message(&mut nic, ip(7), 1, create, Nanos::ZERO);
    let refusal = Message::Failed { code: Failure::NoRoom(ip(7)).code(), member: Message::SENDER };
    node.on_message(&mut nic, ip(7), 1, refusal, Nanos::ZERO);
    let event = node.poll_event();
    assert!(
        matches!(&event, Some(Event::Failed { failure, .. }) if *failure == Failure::NoRoom(ip(7))),
        "{event:?}"
    );
}

/// Returns the completion of a received block of `len` bytes, of a message of `total` bytes.
fn block_completion(qpn: u32, total: u32, len: u32) -> Completion {
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

/// Returns a node that is the receiver of a group of two with blocks of two bytes, and its queue pair in that
/// group.
fn receiver() -> (Node, Rnic, u32) {
    let (mut node, mut nic) = started_node(1, 1);
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

/// Sets the callback that provides memory for messages.
fn set_memory_callback(
    node: &mut Node,
    incoming: impl FnMut(&mut Rnic, u32) -> Option<MessageMemory> + Send + 'static,
) {
    node.groups.get_mut(&1).unwrap().incoming = Box::new(incoming);
}

/// Receives a block in the staging buffer. Returns the failure of the group, if any.
fn receive_staged(node: &mut Node, nic: &mut Rnic, done: &Completion) -> Option<Failure> {
    node.groups.get_mut(&1).unwrap().neighbours[0].receive_targets.push_back(ReceiveTarget::Staging);
    node.on_completion(nic, done, Nanos(1));
    match node.poll_event() {
        Some(Event::Failed { failure, .. }) => Some(failure),
        _ => None,
    }
}

/// The application is not asked for memory for an invalid length.
#[test]
fn message_without_blocks_or_with_too_many_is_a_violation() {
    let most = 2 * GroupConfig::MAX_BLOCKS;
    // The last block of a message of `most - 1` bytes has one byte.
    for (total, is_violation) in [(0, true), (most - 1, false), (most, false), (most + 1, true)] {
        let requested_len = Arc::new(AtomicU32::new(u32::MAX));
        let reported = Arc::clone(&requested_len);
        let (mut node, mut nic, qpn) = receiver();
        set_memory_callback(&mut node, move |_, len| {
            reported.store(len, Ordering::Relaxed);
            None
        });
        let failure = receive_staged(&mut node, &mut nic, &block_completion(qpn, total, 2));
        let (expected, memory) = if is_violation {
            (Failure::Violation(ip(7)), u32::MAX)
        } else {
            (Failure::NoMemory(ip(u16::MAX - 1)), total)
        };
        assert_eq!(
            (failure, requested_len.load(Ordering::Relaxed)),
            (Some(expected), memory),
            "{total} bytes"
        );
    }
}

/// No ready word has permitted a block of a later message.
#[test]
fn a_block_beyond_a_message_is_a_violation() {
    let requested_len = Arc::new(AtomicU32::new(0));
    let reported = Arc::clone(&requested_len);
    let (mut node, mut nic, qpn) = receiver();
    let (_, mr) = nic.register_new(node.pd().unwrap(), 4, 0x1000, Access::LOCAL_WRITE).unwrap();
    set_memory_callback(&mut node, move |_, _| {
        reported.fetch_add(1, Ordering::Relaxed);
        Some(MessageMemory { mr, va: 0x1000 })
    });
    let failures: Vec<_> =
        (0..3).map(|_| receive_staged(&mut node, &mut nic, &block_completion(qpn, 4, 2))).collect();
    assert_eq!(failures, [None, None, Some(Failure::Violation(ip(7)))]);
    assert_eq!(requested_len.load(Ordering::Relaxed), 1);
}

/// Receives the first block, of `len` bytes, of a message of `total` bytes. The application provides memory
/// for `room` bytes with `access`, in the node's protection domain or in another. Returns the failure of the
/// group, if any.
fn first_block(total: u32, len: u32, access: Access, is_foreign: bool, room: usize) -> Option<Failure> {
    let (mut node, mut nic, qpn) = receiver();
    let pd = if is_foreign { nic.alloc_pd() } else { node.pd().unwrap() };
    let (_, mr) = nic.register_new(pd, room, 0x1000, access).unwrap();
    set_memory_callback(&mut node, move |_, _| Some(MessageMemory { mr, va: 0x1000 }));
    receive_staged(&mut node, &mut nic, &block_completion(qpn, total, len))
}

#[test]
fn first_block_of_wrong_length_is_a_violation() {
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
fn message_memory_has_to_be_writable_large_enough_and_in_the_domain() {
    let none = Some(Failure::NoMemory(ip(u16::MAX - 1)));
    assert_eq!(first_block(3, 2, Access::LOCAL_WRITE, false, 3), None);
    assert_eq!(first_block(3, 2, Access::LOCAL_WRITE, false, 2), none);
    assert_eq!(first_block(3, 2, Access::LOCAL_WRITE, true, 3), none);
    assert_eq!(first_block(3, 2, Access::LOCAL_READ, false, 3), none);
}

/// Moves a queue pair to the connected state (RTS).
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

/// Starts a message of five blocks to a member that is ready for `ready` blocks. Returns how many blocks
/// leave before the first acknowledgement, and whether the root waits for a ready word then.
fn sent_before_acknowledgement(algorithm: Algorithm, ready: u64) -> (u64, bool) {
    let (mut node, mut nic) = started_node(1, 1);
    let config = GroupConfig {
        algorithm,
        block_bytes: 2,
        max_in_flight: 3,
        switch: Some(SwitchAddress { address: ip(9), port: 1 }),
        ..GroupConfig::new(1, [ip(u16::MAX - 1), ip(7)].into())
    };
    let (incoming, complete) = (Box::new(|_: &mut Rnic, _| None), Box::new(|_: &mut Rnic, _, _| ()));
    node.create_group(&mut nic, config, incoming, complete, Nanos::ZERO).unwrap();
    let (_, mr) = nic.register_new(node.pd().unwrap(), 10, 0x1000, Access::LOCAL_READ).unwrap();
    node.send(&nic, 1, MessageMemory { mr, va: 0x1000 }, 10).unwrap();
    let resources = node.resources.as_ref().unwrap();
    let group = node.groups.get_mut(&1).unwrap();
    let Neighbour { qpn, ready_word, .. } = group.neighbours[0];
    connect(&mut nic, qpn);
    // The ready word that the member would write.
    let at = ready_word as usize * READY_WORD_LEN;
    nic.bytes_mut(resources.ready_words.0)[at..at + READY_WORD_LEN]
        .copy_from_slice(&(ready << 24).to_be_bytes());
    let mut context = TransferContext { group, nic: &mut nic, resources };
    context.begin().unwrap();
    let waits = context.advance().unwrap();
    (group.neighbours[0].sent, waits)
}

#[test]
fn blocks_leave_up_to_the_ready_word_and_the_limit_in_flight() {
    for algorithm in [Algorithm::Chain, Algorithm::InNetwork] {
        for (ready, left) in
            [(0, (0, true)), (1, (1, true)), (2, (2, true)), (3, (3, false)), (5, (3, false))]
        {
            assert_eq!(
                sent_before_acknowledgement(algorithm.clone(), ready),
                left,
                "{algorithm:?}: ready for {ready}"
            );
        }
    }
}

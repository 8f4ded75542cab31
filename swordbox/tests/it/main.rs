//! Frame-by-frame tests of Swordbox, with packets that no simulated host would send, or would send only after
//! ten minutes. The comment of a test describes its scenario; its name states the expected result.

mod adverse_conditions;
mod congestion;
mod identity;
mod learning;
mod long_writes;
mod many_connections;
mod net;
mod random;
mod reads;
mod restart;
mod rights;
mod shared_qps;
mod steering;
mod switch_owned;
mod untrusted;

use net::*;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use rocev2::atomic::AtomicEth;
use rocev2::checksum::Sum;
use rocev2::repr::Repr;
use rocev2::reth::Reth;
use rocev2::{Bth, Fault, Opcode, Packet, Psn, Qpn};
use std::net::IpAddr;
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{DropReason, Function, Nanos, Verdict};
use swordbox::{Config, Connection, Event, WordTable};

#[test]
fn a_contended_lock_is_resolved_by_the_switch() {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let owner = a;
    let sent = resolve_cas(&mut net, &mut b, &owner, 0, 5);
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_ATOMIC_ACKNOWLEDGE, b.qpn));
    let sent = resolve_cas(&mut net, &mut a, &owner, 0, 6);
    let found = Packet::parse(&sent[0].0).unwrap().atomic_ack().unwrap().original.get();
    assert_eq!(found, 5);
}

/// All requests of a client use another connection. The client receives no frames on its own, but is not
/// idle.
#[test]
fn a_client_that_only_uses_a_shared_qp_is_not_forgotten() {
    let (mut net, a, mut b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    for n in 0..40 {
        net.advance_time(Nanos::from_millis(100));
        let sent = resolve_cas(&mut net, &mut b, &owner, n, n + 1);
        assert_eq!((sent.len(), dest(&sent[0].0)), (1, b.qpn), "round {n}");
    }
}

/// The owner of a shared QP sends nothing itself, while other clients use the QP.
#[test]
fn an_idle_owner_of_a_shared_qp_is_not_forgotten() {
    let (mut net, a, mut b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    for n in 0..40 {
        let sent = net.up(&b.cas(b.psn, TABLE, n, n + 1));
        assert_eq!(sent.len(), 1, "round {n}");
        // The operation is still in flight when connections are aged.
        net.advance_time(Nanos::from_millis(100));
        b.psn += 1;
        let responses = net.down(&owner.ack(psn(&sent[0].0)));
        assert_eq!(responses.len(), 1, "round {n}");
    }
}

/// The server responds only after the owner of the shared QP has been idle for longer than `ageing`.
#[test]
fn an_owner_is_not_forgotten_while_operations_are_in_flight_on_its_qp() {
    let (mut net, a, b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 1));
    net.advance_time(Nanos::from_millis(1900));
    let responses = net.down(&owner.ack(psn(&sent[0].0)));
    assert_eq!((responses.len(), dest(&responses[0].0), psn(&responses[0].0)), (1, b.qpn, b.psn));
    assert_eq!(net.count("lanes_lost"), 0);
}

/// A request to a client's queue pair, as from another queue pair of the server.
#[test]
fn a_stray_request_to_a_client_causes_no_panic() {
    let (mut net, a, b) = two_clients(|_| {});
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(b.qpn), Psn::new(1));
    net.down(&frame(SERVER, b.ip, 0xffff, bth, |_| {}, &[0; 8]));
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    for (sent, _) in sent {
        net.down(&a.ack(psn(&sent)));
    }
}

#[test]
fn a_write_to_the_end_of_the_address_space_passes() {
    let (mut net, mut a, _) = two_clients(|_| {});
    for (va, len) in [(u64::MAX - 63, 64), (u64::MAX, 1), (u64::MAX - 7, 8)] {
        assert_eq!(net.up(&a.write(a.psn, va, &vec![1; len])).len(), 1);
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
}

/// A packet with an unknown opcode would take a PSN at the server that the switch does not account for.
#[test]
fn an_unknown_opcode_does_not_pass_on_a_translated_connection() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut bytes = a.write(a.psn, TABLE, &[1; 8]);
    bytes[14 + 20 + 8] = 0x15;
    let sent = net.up(&bytes);
    assert_eq!(sent.len(), 0, "the packet would take an assigned PSN");
}

/// A second bit error could make a damaged frame valid again. Its receiver would then have a state that the
/// switch does not know.
#[test]
fn damaged_packets_are_dropped() {
    let mut net = Net::new(|_| {});
    let response = new_client(1).response(0, Syndrome::Ack(Credit(0x1f)), Some(5));
    let damage = |at: usize| {
        let mut bytes = response.clone();
        bytes[at] ^= 2;
        bytes
    };
    // IP length, protocol (which makes it another protocol's packet), client's address, UDP length, transport
    // header version
    for (at, fault) in [
        (17, Fault::IpChecksum),
        (23, Fault::IpChecksum),
        (33, Fault::IpChecksum),
        (39, Fault::UdpLength),
        (43, Fault::TransportVersion),
        // Opcode (another response), queue pair, value
        (42, Fault::Icrc),
        (49, Fault::Icrc),
        (60, Fault::Icrc),
    ] {
        let (verdict, sent) = net.run(&damage(at), SERVERS);
        assert_eq!((verdict, sent.len()), (Verdict::Drop(DropReason::Malformed(fault)), 0), "byte {at}");
    }
    assert_eq!(net.count("damaged"), 8);
    // A valid packet that is not RoCEv2 passes, and so does the response.
    let mut ping = damage(23);
    ping[24..26].fill(0);
    let sum = Sum::default().add(&ping[14..34]).checksum();
    ping[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(net.down(&ping).len(), 1);
    let mut arp = response.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(net.down(&arp).len(), 1);
    assert_eq!(net.down(&response).len(), 1);
}

/// On an untranslated connection, a packet with an unknown opcode passes, and may have written anywhere.
#[test]
fn an_unknown_opcode_invalidates_all_words() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut bytes = new_client(9).write(0, TABLE, &[1; 8]);
    bytes[14 + 20 + 8] = 0x15;
    assert_eq!(net.up(&bytes).len(), 0, "the ICRC is wrong");
    let end = bytes.len() - 4;
    let icrc = rocev2::icrc::compute_for(&bytes[14..end], false, 20);
    bytes[end..].copy_from_slice(&icrc.to_le_bytes());
    assert_eq!(net.up(&bytes).len(), 1);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
}

/// Later packets of a message may arrive long after its First packet.
#[test]
fn the_last_packet_of_a_write_is_a_detour() {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let owner = a;
    // The message begins before the word, and its second packet covers it.
    let reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: 2048.into() };
    let first = b.request(Opcode::RC_WRITE_FIRST, b.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    assert_eq!(net.up(&first).len(), 1);
    net.down(&b.ack(b.psn));
    b.psn += 1;
    let mut owner_now = owner;
    net.learn_word(&mut a, &mut owner_now, TABLE);
    assert_eq!(net.count("learnt"), 2);
    let last = b.request(Opcode::RC_WRITE_LAST, b.psn, |_| {}, &[9; 1024]);
    assert_eq!(net.up(&last).len(), 1);
    net.down(&b.ack(b.psn));
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "the word has been overwritten");
}

/// On an untranslated connection, a lost Last packet may be retransmitted long after its First packet.
#[test]
fn a_retransmitted_last_packet_of_a_write_is_a_detour() {
    let (mut net, mut a, _) = two_clients(|_| {});
    let (mut owner, mut c) = (a, new_client(3));
    let reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: 2048.into() };
    let first = c.request(Opcode::RC_WRITE_FIRST, c.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    assert_eq!(net.up(&first).len(), 1);
    c.psn += 1;
    let last = c.request(Opcode::RC_WRITE_LAST, c.psn, |_| {}, &[9; 1024]);
    assert_eq!(net.up(&last).len(), 1);
    net.learn_word(&mut a, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 2);
    assert_eq!(net.up(&last).len(), 1);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "the word has been overwritten");
}

/// A packet that arrives too early in the middle of a message does not block the rest, although the server
/// sends no NAK.
#[test]
fn a_message_with_a_lost_packet_continues() {
    let (mut net, _, b) = two_clients(|_| {});
    let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 3072.into() };
    let first = b.request(Opcode::RC_WRITE_FIRST, b.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    let middle = b.request(Opcode::RC_WRITE_MIDDLE, b.psn + 1, |_| {}, &[9; 1024]);
    let last = b.request(Opcode::RC_WRITE_LAST, b.psn + 2, |_| {}, &[9; 1024]);
    let passed = [&first, &last, &first, &middle, &last].map(|frame| net.up(frame).len());
    assert_eq!(passed, [1, 0, 1, 1, 1]);
}

/// No buffer is free when a held request could be forwarded. The switch retries it.
#[test]
fn a_held_request_survives_a_shortage_of_buffers() {
    let (mut net, owner, b) = two_clients(|_| {});
    // A WRITE on its own connection, and then an operation that has to wait for it
    assert_eq!(net.up(&b.write(b.psn, 0x8000_0000, &[0; 8])).len(), 1);
    assert_eq!(net.up(&b.cas(b.psn + 1, TABLE, 0, 5)).len(), 0);
    let mut none = FrameCollector::with_room(0);
    let mut ack = MemoryFrame::new(b.ack(b.psn));
    net.now = net.now + Nanos(1000);
    net.swordbox.on_frame(&mut ack, SERVERS, net.now, &mut none);
    let sent = net.advance_time(Nanos::from_millis(100));
    assert!(sent.iter().any(|(sent, _)| dest(sent) == owner.server_qpn), "{} frames", sent.len());
}

/// A shared QP fails; one of its clients owns another shared QP with operations of other clients in flight.
#[test]
fn a_failed_shared_qp_leaves_other_shared_qps_intact() {
    let (mut net, [a, b, c], [on_a, on_b]) = two_shared_qps();
    // B has an operation in flight on A's connection, which the server refuses.
    let sent = net.up(&b.cas(b.psn, on_a, 1, 1));
    assert_eq!(dest(&sent[0].0), a.server_qpn);
    net.down(&a.response(psn(&sent[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    // C uses B's connection, or its own if B's is not shared any more.
    let mut sent = net.up(&c.cas(c.psn, on_b, 1, 1));
    if sent.is_empty() {
        sent = net.advance_time(Nanos::from_millis(20));
    }
    let owner_qpn = dest(&sent[0].0);
    let owner = [a, b, c].into_iter().find(|end| end.server_qpn == owner_qpn).unwrap();
    let responses = net.down(&owner.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    assert_eq!(responses.len(), 1, "C gets one response");
    net.advance_time(Nanos::from_secs(5));
    assert_eq!(net.count("lanes_lost"), 1);
}

/// The owner of a shared QP sends a frame too long to be held, while another client keeps the QP busy.
#[test]
fn an_owner_gets_a_turn_on_its_shared_qp() {
    let (mut net, a, mut b) = two_clients(|_| {});
    let owner = a;
    let page = [7; 1024];
    let mut value = 0;
    let mut in_flight = net.up(&b.cas(b.psn, TABLE, value, value + 1));
    b.psn += 1;
    for round in 0..20 {
        // The page arrives while an operation of B is in flight, and B sends the next one as soon as that is
        // complete.
        let passed = net.up(&a.write(a.psn, 0x9000_0000, &page));
        if !passed.is_empty() {
            return;
        }
        value += 1;
        net.down(&owner.ack(psn(&in_flight[0].0)));
        in_flight = net.up(&b.cas(b.psn, TABLE, value, value + 1));
        b.psn += 1;
        if in_flight.is_empty() {
            assert_eq!(net.up(&a.write(a.psn, 0x9000_0000, &page)).len(), 1, "round {round}");
            return;
        }
    }
    panic!("the owner got {} NAKs and no turn", net.count("naks"));
}

/// Each NAK consumes one of the client's retries. The owner of a shared QP gets one when no other client has
/// operations in flight there.
#[test]
fn a_long_message_of_a_shared_qps_owner_costs_one_retry() {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let owner = a;
    let mut in_flight = Vec::new();
    for value in 0..8 {
        in_flight.extend(net.up(&b.cas(b.psn, TABLE, value, value + 1)));
        b.psn += 1;
    }
    assert_eq!(in_flight.len(), 8);
    // An operation of the owner on the shared QP, and a page behind it
    in_flight.extend(net.up(&a.cas(a.psn, TABLE, 8, 9)));
    a.psn += 1;
    let page = a.write(a.psn, 0x9000_0000, &[7; 1024]);
    assert!(net.up(&page).is_empty());
    for (n, (sent, _)) in in_flight.iter().enumerate() {
        assert_eq!(net.count("naks"), 0, "{n} of 9 operations are complete");
        net.down(&owner.ack(psn(sent)));
        net.advance_time(Nanos::from_micros(60));
    }
    assert_eq!(net.count("naks"), 1);
    assert!(net.up(&b.cas(b.psn, TABLE, 9, 10)).is_empty(), "the shared QP is reserved for the page");
    assert_eq!(net.up(&page).len(), 1);
    assert_eq!((net.count("naks"), net.count("overflowed")), (1, 1));
}

/// A client whose message covers shared words gets one NAK, when the resolved operations on them are
/// complete.
#[test]
fn a_long_message_over_resolved_words_costs_one_retry() {
    let (mut net, a, b) = two_clients(|_| {});
    let owner = a;
    let mut in_flight: Vec<_> =
        (0..8).flat_map(|n| net.up(&a.cas(a.psn + n, TABLE, n.into(), 1 + u64::from(n)))).collect();
    assert_eq!(in_flight.len(), 8);
    let page = b.write(b.psn, TABLE, &[7; 1024]);
    assert!(net.up(&page).is_empty());
    // The shared QP is never empty, because of operations on other words.
    let mut c = new_client(3);
    net.connect(&mut c);
    for n in 0..8 {
        assert_eq!(net.count("naks"), 0, "{n} of 8 operations are complete");
        in_flight.extend(net.up(&c.cas(c.psn, TABLE + 2048, 1, 1)));
        c.psn += 1;
        let done = in_flight.remove(0).0;
        let found = (opcode(&done) == Opcode::RC_COMPARE_SWAP).then_some(0);
        net.down(&owner.response(psn(&done), Syndrome::Ack(Credit(0x1f)), found));
        net.advance_time(Nanos::from_micros(60));
    }
    assert!(!in_flight.is_empty());
    assert_eq!(net.count("naks"), 1);
    assert_eq!(net.up(&page).len(), 1);
    assert_eq!((net.count("naks"), net.count("overflowed")), (1, 1));
}

/// A request that finds no free slot is forwarded on its client's own connection, since each NAK would
/// consume a retry.
#[test]
fn a_request_without_a_free_slot_uses_its_own_connection() {
    let (mut net, a, b) = two_clients(|config| {
        config.held = 1;
        config.servers[0].rd_atomic = 1;
    });
    let owner = a;
    // Unresolved, since the word's value is unknown. The server accepts one at a time.
    let first = net.up(&a.cas(a.psn, TABLE + 512, 1, 1));
    assert_eq!((first.len(), dest(&first[0].0)), (1, owner.server_qpn));
    assert!(net.up(&b.cas(b.psn, TABLE + 512, 1, 1)).is_empty(), "the CAS has to wait");
    let mut c = new_client(3);
    net.connect(&mut c);
    let sent = net.up(&c.cas(c.psn, TABLE + 512, 1, 1));
    assert_eq!((sent.len(), dest(&sent[0].0)), (1, c.server_qpn));
    assert_eq!((net.count("naks"), net.count("overflowed")), (0, 0));
    let responses = net.down(&c.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    assert_eq!((responses.len(), dest(&responses[0].0), psn(&responses[0].0)), (1, c.qpn, c.psn));
}

/// A lost request on a client's own connection is retransmitted while other clients use the word all the
/// time.
#[test]
fn a_retransmitted_write_passes_despite_contention() {
    let (mut net, mut a, b) = two_clients(|_| {});
    let mut owner = a;
    // Too long for a shared QP; its second half covers the word
    let page = b.write(b.psn, TABLE - 64, &[7; 128]);
    assert_eq!(net.up(&page).len(), 1);
    net.learn_word(&mut a, &mut owner, TABLE);
    let resolved = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&resolved[0].0), Opcode::RC_WRITE_ONLY);
    a.psn += 1;
    assert_eq!(net.up(&page).len(), 0, "a resolved operation is in flight");
    net.down(&owner.ack(psn(&resolved[0].0)));
    for _ in 0..5 {
        net.advance_time(Nanos::from_millis(100));
        let sent = net.up(&a.cas(a.psn, TABLE, 5, 5));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "resolution is suspended");
        net.down(&owner.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(5)));
        a.psn += 1;
    }
    assert_eq!(net.up(&page).len(), 1);
    assert_eq!(net.count("delayed"), 1);
    // The client may also never retransmit.
    net.advance_time(Nanos::from_secs(2));
    net.learn_word(&mut a, &mut owner, TABLE);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 6));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
}

/// A client's first atomic on a word has a key that the server refuses.
#[test]
fn a_refused_key_does_not_block_a_word() {
    let mut net = Net::new(|_| {});
    let (mut a, mut b) = (new_client(1), new_client(2));
    net.connect(&mut a);
    net.connect(&mut b);
    // A key that the client was never given
    let atomic = AtomicEth { va: TABLE.into(), rkey: 0xbad.into(), swap_or_add: 1.into(), compare: 0.into() };
    net.up(&b.request(Opcode::RC_COMPARE_SWAP, b.psn, |repr| repr.extended.atomic = atomic, &[]));
    net.down(&b.response(b.psn, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    for _ in 0..3 {
        net.advance_time(Nanos::from_millis(50));
        let sent = net.up(&a.cas(a.psn, TABLE, 1, 1));
        let found = (opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP).then_some(0);
        net.down(&a.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), found));
        a.psn += 1;
    }
    assert!(net.count("decided") > 0);
}

/// A WRITE with a long range is handled in constant time.
#[test]
fn long_ranges_take_constant_time() {
    let (mut net, a, _) = two_clients(|_| {});
    let reth = Reth { va: 0x10_0000_0000.into(), rkey: KEY.into(), len: u32::MAX.into() };
    // If each line of the range were visited, this test would exceed its time limit.
    for _ in 0..20_000 {
        // Retransmitted by the client
        net.up(&a.request(Opcode::RC_WRITE_FIRST, a.psn, |repr| repr.extended.reth = reth, &[9; 1024]));
    }
}

/// A connection is disconnected, so the journal has to drop it.
#[test]
fn a_disconnected_connection_is_reported_as_ended() {
    let (mut net, _, b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    assert_eq!(net.up(&dreq(b.ip, SERVER, b.server_qpn)).len(), 1);
    // A late packet is dropped.
    assert_eq!(net.up(&b.write(b.psn, 0x8000_0000, &[1; 8])).len(), 0);
    net.advance_time(Nanos::from_secs(3));
    let over =
        |event: &Event| matches!(event, Event::ConnectionEnded(old) if old.client.1 == Qpn::new(b.qpn));
    assert_eq!(net.events.iter().filter(|event| over(event)).count(), 1);
}

/// A DREQ comes from a host that is neither the client nor the server of the connection.
#[test]
fn a_dreq_from_another_host_ends_nothing() {
    let (mut net, a, mut b) = two_clients(|_| {});
    net.up(&dreq(a.ip, SERVER, b.server_qpn));
    assert_eq!(resolve_cas(&mut net, &mut b, &a, 0, 5).len(), 1);
}

/// A restarted server registers its memory with another key.
#[test]
fn a_word_is_cached_under_its_new_key() {
    let (mut net, _, _) = two_clients(|config| config.servers[0].client_owned_qps = 2);
    let mut c = new_client(3);
    let cas = |end: &Client, va: u64, compare: u64| {
        let atomic =
            AtomicEth { va: va.into(), rkey: 8.into(), swap_or_add: 1.into(), compare: compare.into() };
        end.request(Opcode::RC_COMPARE_SWAP, end.psn, |repr| repr.extended.atomic = atomic, &[])
    };
    for _ in 0..6 {
        net.up(&c.write(c.psn, 0x8000_0000, &[0; 8]));
        net.down(&c.ack(c.psn));
        c.psn += 1;
    }
    for _ in 0..4 {
        net.advance_time(Nanos::from_millis(50));
        let sent = net.up(&cas(&c, TABLE, 1));
        net.down(&c.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
        c.psn += 1;
    }
    let sent = net.up(&cas(&c, TABLE, 0));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
}

/// A request with another partition key is forwarded on the shared QP.
#[test]
fn a_forwarded_request_has_the_partition_key_of_its_connection() {
    let (mut net, a, b) = two_clients(|_| {});
    let cas = b.cas(b.psn, TABLE, 0, 5);
    let mut repr = Repr::parse(&cas).unwrap();
    repr.bth.pkey = 0x8001.into();
    let mut other = vec![0; cas.len()];
    repr.build(&mut other).unwrap();
    let sent = net.up(&other);
    let bth = *Packet::parse(&sent[0].0).unwrap().bth();
    assert_eq!((bth.dest_qp().get(), bth.pkey.get()), (a.server_qpn, 0xffff));
}

/// While a client is silent, another host sends to its queue pair at the server.
#[test]
fn another_host_does_not_take_over_a_translated_connection() {
    let (mut net, a, b) = two_clients(|_| {});
    let owner = a;
    // The server's expected PSN differs from A's next one.
    let mut b = b;
    resolve_cas(&mut net, &mut b, &owner, 0, 5);
    net.advance_time(Nanos::from_secs(3));
    let forger = Client { server_qpn: a.server_qpn, ..new_client(4) };
    for psn in [77, a.psn, a.psn + 1] {
        assert_eq!(net.up(&forger.write(psn, 0x8000_0000, &[0; 8])).len(), 0);
    }
    let sent = net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, a.psn + 1));
}

/// Client and server have new queue pairs with their old numbers.
#[test]
fn a_write_of_a_new_queue_pair_is_not_acknowledged_without_execution() {
    let (mut net, a, _) = two_clients(|_| {});
    let sent = net.up(&a.write(a.psn.wrapping_sub(0x40_0000) & 0xff_ffff, 0x8000_0000, &[1; 8]));
    assert!(sent.is_empty() || sent[0].1 == SERVERS, "the WRITE is acknowledged, but not forwarded");
}

/// A shared QP fails whose owner has an operation in flight on another one.
#[test]
fn a_shared_qp_can_fail_while_its_owner_uses_another_one() {
    let mut net = Net::new(|config| config.servers[0].client_owned_qps = 2);
    let mut ends = [new_client(1), new_client(2)];
    for end in &mut ends {
        net.connect(end);
    }
    let [mut a, mut b] = ends;
    let mut words = [None; 2];
    for word in 0..64 {
        let va = TABLE + 64 * (word % 32);
        let client = if word % 2 == 0 { &mut a } else { &mut b };
        let sent = net.up(&client.cas(client.psn, va, 1, 1));
        client.psn += 1;
        let on_b = dest(&sent[0].0) == b.server_qpn;
        let owner = if on_b { b } else { a };
        net.down(&owner.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
        words[usize::from(on_b)] = Some(va);
    }
    let [on_a, on_b] = words.map(Option::unwrap);
    let elsewhere = net.up(&a.cas(a.psn, on_b, 1, 1));
    let refused = net.up(&b.cas(b.psn, on_a, 1, 1));
    net.down(&a.response(psn(&refused[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    net.down(&b.response(psn(&elsewhere[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
}

/// The connection table is full while responses arrive.
#[test]
fn confirmations_do_not_overflow_while_the_table_is_full() {
    let mut net = Net::new(|config| config.connections = 2);
    let mut a = new_client(1);
    for n in 0..300 {
        if n == 1 {
            (2..6).for_each(|n| drop(net.up(&new_client(n).write(0, 0x8000_0000, &[0; 8]))));
        }
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
}

/// The first request of a connection may arrive behind later ones.
#[test]
fn the_first_request_may_arrive_late() {
    let mut net = Net::new(|_| ());
    let a = Client { psn: 0, ..new_client(1) };
    let b = Client { qpn: a.qpn + 1, server_qpn: a.server_qpn + 1, port: a.port + 1, ..a };
    (0..10).for_each(|psn| drop(net.up(&b.write(psn, 0x8000_0000, &[0; 8]))));
    for psn in [5, 0, 1, 2, 3, 4] {
        net.up(&a.write(psn, 0x8000_0000, &[0; 8]));
    }
    (0..5).for_each(|psn| drop(net.down(&a.ack(psn))));
    assert_eq!(net.count("paired"), 0);
}

/// A misaligned atomic is left for the server to refuse, and counted once.
#[test]
fn an_unaligned_atomic_passes_and_is_counted() {
    let (mut net, _, b) = two_clients(|_| ());
    let sent = net.up(&b.cas(b.psn, TABLE + 4, 0, 1));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, b.server_qpn));
    assert_eq!(net.count("misplaced"), 1);
}

/// Configures a lock table of which only the first words of a line are declared, and more words farther on.
fn half_a_line(config: &mut Config) {
    let table = config.servers[0].tables[0].clone();
    let ranges = [TABLE..TABLE + 32, TABLE + 1024..TABLE + 4096];
    config.servers[0].tables = ranges.map(|range| WordTable { range, ..table.clone() }).into();
}

/// If a region ends within a line, an access beyond its end is refused on its client's own connection.
#[test]
fn an_access_beyond_a_region_fails_no_shared_qp() {
    let (mut net, mut a, b) = two_clients(half_a_line);
    let sent = net.up(&b.write(b.psn, TABLE + 32, &[1; 8]));
    assert_eq!(dest(&sent[0].0), b.server_qpn);
    net.down(&b.response(psn(&sent[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    let mut owner = a;
    net.learn_word(&mut a, &mut owner, TABLE);
    resolve_cas(&mut net, &mut a, &owner, 0, 1);
    assert_eq!(net.count("lanes_lost"), 0);
}

/// Undeclared words are shared like the rest of their line once an operation on them has succeeded.
#[test]
fn words_beside_a_table_are_shared_once_they_are_known_to_exist() {
    let (mut net, a, mut b) = two_clients(half_a_line);
    for owner in [b, a] {
        let sent = net.up(&b.write(b.psn, TABLE + 32, &[1; 8]));
        assert_eq!(dest(&sent[0].0), owner.server_qpn);
        net.down(&owner.ack(psn(&sent[0].0)));
        b.psn += 1;
    }
}

/// A host with many connections that were set up without the connection manager.
#[test]
fn a_hundred_connections_between_two_hosts_are_paired() {
    let mut net = Net::new(|config| config.connections = 256);
    let mut ends: Vec<Client> = (0..100)
        .map(|n| Client {
            qpn: 0x1000 + n,
            server_qpn: 0x2000 + n,
            port: 0xc000 + n as u16,
            psn: n * 0x2_0000,
            ..new_client(1)
        })
        .collect();
    for _ in 0..8 {
        for end in &ends {
            net.up(&end.write(end.psn, 0x8000_0000, &[0; 8]));
        }
        for end in &mut ends {
            net.down(&end.ack(end.psn));
            end.psn += 1;
        }
    }
    assert_eq!(net.count("paired"), 100);
}

/// The connection table was full for some time before.
#[test]
fn connections_are_paired_after_the_table_was_full() {
    let mut net = Net::new(|config| {
        config.connections = 4;
        config.ageing = Nanos::from_secs(1);
    });
    (10..20).for_each(|n| drop(net.up(&new_client(n).write(0, 0x8000_0000, &[0; 8]))));
    net.advance_time(Nanos::from_secs(5));
    assert_eq!(net.swordbox.usage()[0], 0);
    let mut a = new_client(1);
    for _ in 0..6 {
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
    assert_eq!(net.count("paired"), 1);
}

/// A server reuses a queue pair number, for the same host, long after the previous connection became idle.
#[test]
fn a_queue_pair_number_can_be_reused_after_ageing() {
    let (mut net, a, _) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    net.advance_time(Nanos::from_secs(5));
    let new = Client { qpn: 0x777, port: 0xc777, psn: 0x12_3456, ..a };
    assert_eq!(net.up(&new.write(new.psn, 0x8000_0000, &[0; 8])).len(), 1);
}

/// After the switch's restart, the server responds to operations of other clients on a client's connection.
#[test]
fn late_responses_do_not_reach_clients_whose_connections_ended_with_a_restart() {
    let a = new_client(1);
    let (server, client) =
        ((IpAddr::from(SERVER), Qpn::new(a.server_qpn)), (IpAddr::from(a.ip), Qpn::new(a.qpn)));
    let mut net = Net::new(|config| config.ended = vec![Connection { server, client }]);
    assert_eq!(net.down(&a.ack(a.psn)).len(), 0);
    let other = new_client(2);
    assert_eq!(net.down(&other.ack(other.psn)).len(), 1);
}

/// `IBV_ACCESS_RELAXED_ORDERING` permits WRITEs of one connection to take effect in another order.
#[test]
fn share_false_leaves_every_connection_unchanged() {
    let mut net = Net::new(|config| config.servers[0].share = false);
    let mut a = new_client(1);
    for n in 0..12 {
        let request = if n % 2 == 0 { a.write(a.psn, TABLE, &[0; 8]) } else { a.cas(a.psn, TABLE, 0, 0) };
        assert!(net.up(&request) == [(request, SERVERS)], "the request is forwarded unchanged");
        let found = (n % 2 == 1).then_some(0);
        assert_eq!(net.down(&a.response(a.psn, Syndrome::Ack(Credit(0x1f)), found)).len(), 1);
        a.psn += 1;
    }
    assert!(net.events.is_empty() && net.count("paired") == 1);
}

//! Requests that bypass the cached words (detours): parts of long messages, and retransmissions.

use super::net::*;
use rocev2::Opcode;
use rocev2::aeth::{Credit, Syndrome};
use rocev2::reth::Reth;
use switch::Nanos;

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

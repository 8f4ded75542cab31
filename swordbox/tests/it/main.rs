//! Frame-by-frame tests of Swordbox, with packets that no simulated host would send, or would send only after
//! ten minutes. The comment of a test describes its scenario; its name states the expected result.

mod adverse_conditions;
mod congestion;
mod connections;
mod detours;
mod identity;
mod invalid_packets;
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
use rocev2::repr::Repr;
use rocev2::{Opcode, Packet};
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{Function, Nanos};
use swordbox::{Config, WordTable};

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

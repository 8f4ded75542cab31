//! Adverse conditions: forged packets, partly retransmitted messages, and clients that are remote, slow or
//! greedy.

use super::net::*;
use rocev2::aeth::{Credit, NakCode, RnrTimer, Syndrome};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn};
use switch::Nanos;

fn is_nak(frame: &[u8]) -> bool {
    Packet::parse(frame)
        .unwrap()
        .aeth()
        .is_some_and(|aeth| matches!(aeth.kind(), Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)))
}

/// A lost Middle packet of an earlier long WRITE is retransmitted after the First packet of the next long
/// WRITE.
#[test]
fn a_retransmitted_packet_of_an_earlier_write_is_a_detour() {
    let mut net = Net::new(|config| config.servers[0].client_owned_qps = 1);
    let (mut a, mut b, mut c) = (new_client(1), new_client(2), new_client(3));
    for end in [&mut a, &mut b, &mut c] {
        net.connect(end);
    }
    let reth = |va: u64| Reth { va: va.into(), rkey: KEY.into(), len: 2048.into() };
    let first =
        |psn, va| a.request(Opcode::RC_WRITE_FIRST, psn, |repr| repr.extended.reth = reth(va), &[9; 1024]);
    let last = |psn| a.request(Opcode::RC_WRITE_LAST, psn, |_| {}, &[9; 1024]);
    // The word is not cached yet. The second packet covers it, and is lost behind the switch; another message
    // follows.
    for frame in [first(a.psn, TABLE - 1024), last(a.psn + 1), first(a.psn + 2, 0x9000_0000), last(a.psn + 3)]
    {
        assert_eq!(net.up(&frame).len(), 1);
    }
    net.down(&a.ack(a.psn));
    // Other clients use the word.
    let sent = net.up(&b.cas(b.psn, TABLE, 1, 1));
    assert_eq!(dest(&sent[0].0), b.server_qpn);
    net.down(&b.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    b.psn += 1;
    let mut owner = b;
    net.learn_word(&mut b, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 1);
    // A's timeout: it retransmits unacknowledged packets.
    let sent = net.up(&last(a.psn + 1));
    assert_eq!(sent.len(), 1, "the packet reaches the server and overwrites the word");
    assert_eq!(net.up(&first(a.psn + 2, 0x9000_0000)).len(), 1);
    assert_eq!(net.up(&last(a.psn + 3)).len(), 1);
    net.down(&a.ack(a.psn + 3));
    // A's WRITE is acknowledged.
    let sent = net.up(&c.cas(c.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "the word has been overwritten");
}

/// Packets of a message whose First packet passed before the switch started, passed untracked, or has not
/// passed yet.
#[test]
fn the_rest_of_an_untracked_write_is_a_detour_unless_it_is_early() {
    let rest = |end: &Client, psn| end.request(Opcode::RC_WRITE_LAST, psn, |_| {}, &[9; 1024]);
    let (mut net, owner, mut b) = two_clients(|_| {});
    assert!(is_resolved(&mut net, &mut b, &owner));
    // The first tracked packet of its client, and one without a connection
    for (n, outsider) in
        [new_client(5), Client { ip: [10, 0, 1, 99], ..new_client(6) }].into_iter().enumerate()
    {
        net.now = net.now + Nanos::from_secs(1);
        assert_eq!(net.up(&rest(&outsider, outsider.psn)).len(), 1);
        assert!(!is_resolved(&mut net, &mut b, &owner), "{n}");
        net.advance_time(Nanos::from_millis(50));
        is_resolved(&mut net, &mut b, &owner);
        assert!(is_resolved(&mut net, &mut b, &owner), "{n}");
    }
    let mut c = new_client(3);
    net.connect(&mut c);
    let first = c.request(
        Opcode::RC_WRITE_FIRST,
        c.psn,
        |repr| repr.extended.reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: 2048.into() },
        &[9; 1024],
    );
    // The First packet is lost before the switch: the server refuses the second one.
    assert_eq!(net.up(&rest(&c, c.psn + 1)).len(), 1);
    assert!(is_resolved(&mut net, &mut b, &owner));
    // The client retransmits. The message is still known when only its second packet is retransmitted.
    assert_eq!(net.up(&first).len(), 1);
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, c.psn + 1)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner));
}

/// A forged First packet in the middle of a message does not hide where the message's packets write.
#[test]
fn a_forged_first_packet_does_not_hide_where_a_write_goes() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    net.connect(&mut c);
    let first = |psn, va: u64, len: u32| {
        let reth = Reth { va: va.into(), rkey: KEY.into(), len: len.into() };
        c.request(Opcode::RC_WRITE_FIRST, psn, |repr| repr.extended.reth = reth, &[9; 1024])
    };
    let middle = |psn| c.request(Opcode::RC_WRITE_MIDDLE, psn, |_| {}, &[9; 1024]);
    // The tenth of sixteen packets writes to the word.
    assert_eq!(net.up(&first(c.psn, TABLE - 9 * 1024, 16 * 1024)).len(), 1);
    for n in 1..8 {
        assert_eq!(net.up(&middle(c.psn + n)).len(), 1);
    }
    for forged in [c.psn + 3, c.psn + 8, c.psn + 4, c.psn + 100] {
        net.up(&first(forged, 0x9000_0000, 4096));
    }
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    net.up(&middle(c.psn + 9));
    assert!(!is_resolved(&mut net, &mut b, &owner));
}

/// The owner's round trip is longer than its reservation of the shared QP.
#[test]
fn a_remote_owner_gets_a_turn_or_its_connection_back() {
    let (mut net, a, mut b) = two_clients(|_| {});
    let owner = a;
    let mut value = 0;
    let page = a.write(a.psn, 0x9000_0000, &[7; 1024]);
    let mut in_flight = net.up(&b.cas(b.psn, TABLE, value, value + 1));
    b.psn += 1;
    for _ in 0..20 {
        let passed = net.up(&page);
        if !passed.is_empty() {
            assert!(net.count("naks") <= 2);
            return;
        }
        // The NAK reaches the client, and the page arrives again, within 200 us.
        value += 1;
        let replies = net.down(&owner.ack(psn(&in_flight[0].0)));
        assert!(replies.iter().any(|(frame, _)| is_nak(frame)));
        // B continues meanwhile.
        let waits = net.up(&b.cas(b.psn, TABLE, value, value + 1));
        b.psn += 1;
        let later = net.advance_time(Nanos::from_micros(200));
        in_flight = if waits.is_empty() { later } else { waits };
        in_flight.retain(|(frame, _)| dest(frame) == owner.server_qpn);
        if in_flight.is_empty() {
            assert!(net.count("naks") <= 2);
            assert_eq!(net.up(&page).len(), 1, "B uses another connection");
            return;
        }
    }
    panic!("the owner got {} NAKs and no turn", net.count("naks"));
}

/// A long WRITE waits for an operation resolved on one shared QP, while another one is in use.
#[test]
fn a_long_write_waits_for_the_shared_qp_that_blocks_it() {
    let (mut net, [mut a, b, c], [on_a, on_b]) = two_shared_qps();
    learn_words(&mut net, &mut a, &b, [on_a, on_b]);
    // Resolved on A's connection and never acknowledged; resolved on B's connection and completed
    let lost = net.up(&a.cas(a.psn, on_a, 0, 5));
    assert_eq!((opcode(&lost[0].0), dest(&lost[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    let sent = net.up(&b.cas(b.psn, on_b, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, b.server_qpn));
    net.down(&b.ack(psn(&sent[0].0)));
    let reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: (1 << 20).into() };
    let long = c.request(Opcode::RC_WRITE_FIRST, c.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    let started = net.now;
    let mut naks = 0;
    let mut first = net.up(&long).len();
    while first == 0 && net.now.since(started) < Nanos::from_micros(600) {
        let sent = net.advance_time(Nanos::from_micros(10));
        if sent.iter().any(|(frame, _)| is_nak(frame)) {
            naks += 1;
            first = net.up(&long).len();
        }
    }
    assert!(naks <= 1, "{naks} NAKs in {:?}", net.now.since(started));
}

/// The owner of a shared QP sends a very long WRITE, while another client waits for the QP.
#[test]
fn clients_do_not_wait_for_a_very_long_message_of_another_client() {
    let (mut net, a, b) = two_clients(|config| config.servers[0].client_owned_qps = 2);
    let owner = a;
    let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: (1 << 30).into() };
    let first = a.request(Opcode::RC_WRITE_FIRST, a.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    assert_eq!(net.up(&first).len(), 1);
    assert!(net.up(&b.cas(b.psn, TABLE, 0, 5)).is_empty(), "the shared QP is busy with its owner");
    let started = net.now;
    for n in 1..20_000 {
        let middle = a.request(Opcode::RC_WRITE_MIDDLE, a.psn + n, |_| {}, &[9; 1024]);
        assert_eq!(net.up(&middle).len(), 1);
        if n % 8 == 0 {
            net.down(&owner.ack(a.psn + n));
        }
        let sent = net.advance_time(Nanos::from_micros(9));
        if sent.iter().any(|(frame, _)| opcode(frame) == Opcode::RC_COMPARE_SWAP) {
            return;
        }
    }
    panic!("B has waited for {:?}; lanes_left = {}", net.now.since(started), net.count("lanes_left"));
}

/// A forged handshake announces a path MTU that is too small.
#[test]
fn a_forged_handshake_does_not_set_a_path_mtu_that_is_too_small() {
    let mut net = Net::new(|config| config.servers[0].client_owned_qps = 1);
    let mut a = new_client(1);
    // Only the PSN has to be close; everything else is forged.
    let [req, rep] = handshake_with_mtu(&Client { psn: a.psn - 100, ..a }, 1);
    net.up(&req);
    net.down(&rep);
    let (mut b, reth) = (new_client(2), Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 1024.into() });
    net.connect(&mut b);
    net.connect(&mut a);
    let sent = net.up(&b.cas(b.psn, TABLE, 1, 1));
    net.down(&b.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    // A READ of 1,024 bytes takes one PSN.
    let read = a.request(Opcode::RC_READ_REQUEST, a.psn, |repr| repr.extended.reth = reth, &[]);
    assert_eq!(net.up(&read).len(), 1);
    let bth = Bth::new(Opcode::RC_READ_RESPONSE_ONLY, Qpn::new(a.qpn), Psn::new(a.psn));
    let response = frame(SERVER, a.ip, 0xd000 + a.port % 100, bth, |_| {}, &[3; 1024]);
    assert_eq!(net.down(&response).len(), 1);
    a.psn += 1;
    for _ in 0..5 {
        assert_eq!(net.up(&a.write(a.psn, 0x9000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&a.ack(a.psn)).len(), 1);
        a.psn += 1;
    }
    let cas = a.cas(a.psn, TABLE, 1, 1);
    let mut sent = net.up(&cas);
    for _ in 0..7 {
        // The client's retransmission timer
        sent.extend(net.advance_time(Nanos::from_millis(67)));
        sent.extend(net.up(&cas));
    }
    assert!(
        sent.iter().any(|(frame, _)| opcode(frame) == Opcode::RC_COMPARE_SWAP),
        "the CAS is not forwarded"
    );
}

fn handshake_with_mtu(end: &Client, code: u8) -> [Vec<u8>; 2] {
    super::identity::handshake_of(end, |req| req.mtu_rnr = code << 4)
}

/// A connection that is in the journal but never became translated is removed from the journal when it is
/// forgotten.
#[test]
fn a_forgotten_connection_is_removed_from_the_journal() {
    let mut net = Net::new(|_| {});
    let mut a = new_client(1);
    for _ in 0..6 {
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
    // The connection is in the journal, but the permission arrives after a request that shows a loss.
    net.now = net.now + Nanos(1000);
    let cas = a.cas(a.psn, TABLE + 2048, 1, 0);
    switch::memory::run_frame(&mut net.swordbox, &cas, CLIENTS, net.now);
    let late = a.write(a.psn + 2, 0x8000_0000, &[0; 8]);
    switch::memory::run_frame(&mut net.swordbox, &late, CLIENTS, net.now);
    net.permit();
    assert!(net.events.iter().any(|event| matches!(event, swordbox::Event::TranslationRequested(_))));
    for _ in 0..100 {
        net.advance_time(Nanos::from_secs(20));
    }
    assert_eq!(net.swordbox.usage()[0], 0);
    assert!(
        net.events.iter().any(|event| matches!(event, swordbox::Event::ConnectionEnded(_))),
        "the connection is still in the journal"
    );
}

/// A forged handshake announces a path MTU that is too large: requests on the shared QP would get PSNs that
/// the server has assigned to READ responses.
#[test]
fn a_forged_handshake_does_not_set_a_path_mtu_that_is_too_large() {
    let mut net = Net::new(|config| config.servers[0].client_owned_qps = 1);
    let (a, b) = (new_client(1), new_client(2));
    let [req, rep] = handshake_with_mtu(&Client { psn: a.psn - 100, ..a }, 5);
    net.up(&req);
    net.down(&rep);
    let (mut net, mut a, b) = with_learnt_word(net, a, b);
    let owner = a;
    // The path MTU is 1,024, so the server sends four packets.
    let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 4096.into() };
    let read = a.request(Opcode::RC_READ_REQUEST, a.psn, |repr| repr.extended.reth = reth, &[]);
    let sent = net.up(&read);
    let own = psn(&sent[0].0);
    a.psn += 4;
    let response = |opcode, n| {
        let bth = Bth::new(opcode, Qpn::new(a.qpn), Psn::new(own + n));
        frame(SERVER, a.ip, 0xd000 + a.port % 100, bth, |_| {}, &[3; 1024])
    };
    assert_eq!(net.down(&response(Opcode::RC_READ_RESPONSE_FIRST, 0)).len(), 1);
    let mut responses = Vec::new();
    for n in 0..3 {
        net.up(&b.cas(b.psn + n, TABLE, n.into(), 1 + u64::from(n)));
    }
    // The server takes these for duplicates and acknowledges its latest PSN (rxe: `duplicate_request`).
    responses.extend(net.down(&owner.ack(own + 3)));
    responses.retain(|(frame, _)| dest(frame) == b.qpn);
    assert!(responses.is_empty(), "{} CAS are answered that were not executed", responses.len());
}

/// A forged REP announces a number of READs and atomics that the server accepts at once.
#[test]
fn a_forged_handshake_does_not_set_the_number_of_atomics() {
    let mut net = Net::new(|config| {
        config.servers[0].client_owned_qps = 1;
        config.servers[0].rd_atomic = 1;
    });
    let (mut a, mut b) = (new_client(1), new_client(2));
    let [req, rep] = super::identity::handshake_of_both(
        &Client { psn: a.psn - 100, ..a },
        |_| {},
        |rep| rep.responder_resources = 255,
    );
    net.up(&req);
    net.down(&rep);
    net.connect(&mut a);
    net.connect(&mut b);
    let mut count = net.up(&a.cas(a.psn, TABLE, 1, 1)).len();
    for n in 0..32 {
        let sent = net.up(&b.cas(b.psn + n, TABLE + 8, 1, 1));
        count += sent.iter().filter(|(frame, _)| dest(frame) == a.server_qpn).count();
    }
    assert_eq!(count, 1, "atomics in flight on the shared QP");
}

/// One client would use all slots for held frames, for as long as the server's program posts no receive.
#[test]
fn one_client_cannot_use_all_slots_for_held_frames() {
    let (mut net, a, mut b) = two_clients(|config| config.held = 64);
    let owner = a;
    let mut c = new_client(3);
    net.connect(&mut c);
    // C's SEND waits for a receive, its CAS waits for the SEND, and its other requests wait for the CAS.
    let sent = net.up(&c.request(Opcode::RC_SEND_ONLY, c.psn, |_| {}, &[0; 8]));
    net.down(&c.response(psn(&sent[0].0), Syndrome::RnrNak(RnrTimer(1)), None));
    assert!(net.up(&c.cas(c.psn + 1, TABLE, 0, 1)).is_empty());
    for n in 2..100 {
        net.up(&c.write(c.psn + n, 0x9000_0000, &[0; 8]));
    }
    let _ = net.advance_time(Nanos::from_secs(3));
    // B repeatedly acquires a lock and posts a READ behind it.
    let mut naks = 0;
    for n in 0..10 {
        let sent = net.up(&b.cas(b.psn, TABLE, n, n + 1));
        let owner = if dest(&sent[0].0) == b.server_qpn { b } else { owner };
        b.psn += 1;
        let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 64.into() };
        let read = b.request(Opcode::RC_READ_REQUEST, b.psn, |repr| repr.extended.reth = reth, &[]);
        let early = net.up(&read);
        let found = (opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP).then_some(n);
        let mut replies = net.down(&owner.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), found));
        replies.extend(net.advance_time(Nanos::from_micros(60)));
        naks += replies.iter().filter(|(frame, _)| dest(frame) == b.qpn && is_nak(frame)).count();
        let sent = if early.is_empty() {
            replies.into_iter().filter(|(frame, _)| opcode(frame) == Opcode::RC_READ_REQUEST).collect()
        } else {
            early
        };
        let sent = if sent.is_empty() { net.up(&read) } else { sent };
        let bth = Bth::new(Opcode::RC_READ_RESPONSE_ONLY, Qpn::new(b.qpn), Psn::new(psn(&sent[0].0)));
        net.down(&frame(SERVER, b.ip, 0xd000 + b.port % 100, bth, |_| {}, &[3; 64]));
        b.psn += 1;
    }
    assert_eq!(naks, 0, "NAKs to B");
}

/// A packet in the name of a shared QP's owner, with a PSN within the window, and with wrong headers.
#[test]
fn a_forged_packet_does_not_divert_operations_of_other_clients() {
    let (mut net, a, b) = two_clients(|_| {});
    // The owner is silent. One of 128 guessed PSNs is within the window.
    let mut forged = a.write(a.psn + 50_000, 0x8000_0000, &[0; 8]);
    forged[..6].copy_from_slice(&[2, 0xba, 0xd0, 0, 0, 1]);
    assert!(net.up(&forged).iter().all(|(frame, _)| is_nak(frame)), "the packet is not forwarded");
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    assert_eq!(sent[0].0[..6], b.write(0, 0, &[])[..6], "the server's address");
}

/// A packet in the name of a client that waits for a response, from another port.
#[test]
fn a_forged_packet_does_not_divert_responses() {
    let (mut net, a, b) = two_clients(|_| {});
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert!(
        net.run(&b.write(b.psn + 50_000, 0x8000_0000, &[0; 8]), SERVERS).1.is_empty(),
        "the packet is not forwarded"
    );
    let responses = net.down(&a.ack(psn(&sent[0].0)));
    assert_eq!(opcode(&responses[0].0), Opcode::RC_ATOMIC_ACKNOWLEDGE);
    assert_eq!(responses[0].1, CLIENTS, "the response goes to the client");
}

/// Two forged DREQs: one before the connection may be translated, and one afterwards.
#[test]
fn two_forged_dreqs_end_nothing() {
    let (mut net, ..) = two_clients(|_| {});
    let mut c = new_client(3);
    for _ in 0..6 {
        net.up(&c.write(c.psn, 0x9000_0000, &[0; 8]));
        net.down(&c.ack(c.psn));
        c.psn += 1;
    }
    net.now = net.now + Nanos(1000);
    let forged = dreq(c.ip, SERVER, c.server_qpn);
    // The control plane has not replied yet.
    let cas = c.cas(c.psn, TABLE + 2048, 1, 0);
    switch::memory::run_frame(&mut net.swordbox, &cas, CLIENTS, net.now);
    net.run(&forged, SERVERS);
    net.permit();
    net.down(&c.response(c.psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
    net.run(&forged, SERVERS);
    c.psn += 1;
    for n in 0..10 {
        let sent = net.up(&c.write(c.psn, 0x9000_0000, &[0; 8]));
        assert_eq!(sent.len(), 1, "request {n}: ended = {}", net.count("ended"));
        net.down(&c.ack(psn(&sent[0].0)));
        net.run(&forged, SERVERS);
        c.psn += 1;
    }
    assert_eq!(net.count("ended"), 0);
}

/// Owner and other clients take turns, and ticks fall into the turns of both.
#[test]
fn an_owner_with_short_turns_keeps_sharing() {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let owner = a;
    for n in 0..400 {
        // The owner's turn: 60 us
        let sent = net.up(&a.write(a.psn, 0x9000_0000, &[7; 8]));
        a.psn += 1;
        assert_eq!(sent.len(), 1);
        assert!(net.up(&b.cas(b.psn, TABLE, n, n + 1)).is_empty(), "{n}");
        b.psn += 1;
        net.advance_time(Nanos::from_micros(60));
        // The other clients' turn: 60 us
        let replies = net.down(&owner.ack(psn(&sent[0].0)));
        let cas = replies.iter().find(|(frame, _)| opcode(frame) == Opcode::RC_WRITE_ONLY);
        let own = psn(&cas.expect("B's CAS is forwarded").0);
        net.advance_time(Nanos::from_micros(60));
        net.down(&owner.ack(own));
        assert_eq!(net.count("lanes_left"), 0, "turn {n}, at {:?}", net.now);
    }
}

/// A short WRITE waits for the operation resolved on its line; another shared QP is slow.
#[test]
fn a_short_write_waits_only_for_the_shared_qp_of_its_line() {
    let (mut net, [mut a, b, c], [on_a, on_b]) = two_shared_qps();
    learn_words(&mut net, &mut a, &b, [on_a, on_b]);
    // In flight on B's connection, and slow
    let slow = net.up(&b.cas(b.psn, on_b, 0, 5));
    assert_eq!((opcode(&slow[0].0), dest(&slow[0].0)), (Opcode::RC_WRITE_ONLY, b.server_qpn));
    let sent = net.up(&a.cas(a.psn, on_a, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    assert!(net.up(&c.write(c.psn, on_a + 32, &[1; 40])).is_empty(), "the WRITE waits for A's CAS");
    let replies = net.down(&a.ack(psn(&sent[0].0)));
    assert!(
        replies.iter().any(|(frame, _)| dest(frame) == c.server_qpn),
        "the WRITE is forwarded after that"
    );
}

/// An owner whose requests find no free slot twice, and which retransmits in time both times, keeps sharing.
#[test]
fn an_owner_that_retransmits_in_time_keeps_sharing() {
    let mut net = Net::new(|config| {
        config.held = 64;
        config.servers[0].client_owned_qps = 1;
        config.servers[0].rd_atomic = 1;
        config.layers.cas_to_write = false;
    });
    let mut a = new_client(1);
    net.connect(&mut a);
    let found = |psn| a.response(psn, Syndrome::Ack(Credit(0x1f)), Some(0));
    let mut psn_of_a = a.psn;
    for round in 0..3 {
        // Two atomics, the second of which waits for the first, and WRITEs to shared words: 16 find room in
        // total.
        let first = net.up(&a.cas(psn_of_a, TABLE, 1, 1));
        assert_eq!(first.len(), 1);
        assert!(net.up(&a.cas(psn_of_a + 1, TABLE, 1, 1)).is_empty());
        let behind: Vec<_> = (2..=17).map(|n| a.write(psn_of_a + n, TABLE, &[7; 8])).collect();
        assert!(behind.iter().all(|frame| net.up(frame).is_empty()));
        let second = net.down(&found(psn(&first[0].0)));
        let second = second.iter().find(|(frame, _)| opcode(frame) == Opcode::RC_COMPARE_SWAP).unwrap();
        let own = psn(&second.0);
        net.down(&found(own));
        let replies = net.down(&a.ack(own + 15));
        assert!(replies.iter().any(|(frame, _)| dest(frame) == a.qpn));
        let sent = net.up(&behind[15]);
        assert_eq!(sent.len(), 1, "the retransmission is forwarded at once");
        net.down(&a.ack(psn(&sent[0].0)));
        psn_of_a += 18;
        assert_eq!(net.count("lanes_left"), 0, "round {round}");
    }
}

/// One acknowledgement covers the first two requests of a connection, which confirms the parameters of its
/// handshake.
#[test]
fn an_acknowledgement_of_the_first_two_requests_confirms_a_handshake() {
    let atomics = |together: bool| {
        let mut net = Net::new(|config| {
            config.servers[0].client_owned_qps = 1;
            config.servers[0].rd_atomic = 1;
        });
        let (mut a, mut b) = (new_client(1), new_client(2));
        let [req, rep] = super::identity::handshake_of_both(&a, |_| {}, |rep| rep.responder_resources = 16);
        net.up(&req);
        net.down(&rep);
        for n in 0..2 {
            assert_eq!(net.up(&a.write(a.psn + n, 0x8000_0000, &[0; 8])).len(), 1);
            if !together || n == 1 {
                net.down(&a.ack(a.psn + n));
            }
        }
        a.psn += 2;
        net.connect(&mut a);
        net.connect(&mut b);
        let mut count = net.up(&a.cas(a.psn, TABLE, 1, 1)).len();
        for n in 0..32 {
            let sent = net.up(&b.cas(b.psn + n, TABLE + 8, 1, 1));
            count += sent.iter().filter(|(frame, _)| dest(frame) == a.server_qpn).count();
        }
        count
    };
    assert_eq!(atomics(true), atomics(false), "atomics in flight on the shared QP");
}

//! Forged packets, messages that come again in parts, and clients that are far away, slow or greedy.

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

/// A lost Middle of an earlier long WRITE comes again, after the first packet of the next long WRITE.
#[test]
fn the_rest_of_an_earlier_message_is_a_detour_too() {
    let mut net = Net::new(|config| config.servers[0].lanes = 1);
    let (mut a, mut b, mut c) = (end(1), end(2), end(3));
    for end in [&mut a, &mut b, &mut c] {
        net.connect(end);
    }
    let reth = |va: u64| Reth { va: va.into(), rkey: KEY.into(), len: 2048.into() };
    let first =
        |psn, va| a.request(Opcode::RC_WRITE_FIRST, psn, |repr| repr.extended.reth = reth(va), &[9; 1024]);
    let last = |psn| a.request(Opcode::RC_WRITE_LAST, psn, |_| {}, &[9; 1024]);
    // Nothing is known of the word yet. The second packet covers it, and is lost behind here; another message follows.
    for frame in [first(a.psn, TABLE - 1024), last(a.psn + 1), first(a.psn + 2, 0x9000_0000), last(a.psn + 3)]
    {
        assert_eq!(net.up(&frame).len(), 1);
    }
    net.down(&a.ack(a.psn));
    // Others use the word
    let sent = net.up(&b.cas(b.psn, TABLE, 1, 1));
    assert_eq!(dest(&sent[0].0), b.server_qpn);
    net.down(&b.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    b.psn += 1;
    let mut owner = b;
    net.teach(&mut b, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 1);
    // A's timer: it goes back to what is not acknowledged
    let sent = net.up(&last(a.psn + 1));
    assert_eq!(sent.len(), 1, "it goes to the server, and overwrites the word with nines");
    assert_eq!(net.up(&first(a.psn + 2, 0x9000_0000)).len(), 1);
    assert_eq!(net.up(&last(a.psn + 3)).len(), 1);
    net.down(&a.ack(a.psn + 3));
    // A's WRITE is acknowledged.
    let sent = net.up(&c.cas(c.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP, "the word holds something else now");
}

/// Packets of a message whose beginning passed before the switch was there, or passed as nobody's, or has not passed yet.
#[test]
fn the_rest_of_a_message_that_was_not_seen_to_begin_is_a_detour_unless_it_is_too_early() {
    let rest = |end: &End, psn| end.request(Opcode::RC_WRITE_LAST, psn, |_| {}, &[9; 1024]);
    let (mut net, owner, mut b) = two(|_| {});
    assert!(is_decided(&mut net, &mut b, &owner));
    // The first packet of its client that is seen; and one of no connection at all
    for (n, stranger) in [end(5), End { ip: [10, 0, 1, 99], ..end(6) }].into_iter().enumerate() {
        net.now = net.now + Nanos::from_secs(1);
        assert_eq!(net.up(&rest(&stranger, stranger.psn)).len(), 1);
        assert!(!is_decided(&mut net, &mut b, &owner), "{n}");
        net.pass(Nanos::from_millis(50));
        is_decided(&mut net, &mut b, &owner);
        assert!(is_decided(&mut net, &mut b, &owner), "{n}");
    }
    let mut c = end(3);
    net.connect(&mut c);
    let first = c.request(
        Opcode::RC_WRITE_FIRST,
        c.psn,
        |repr| repr.extended.reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: 2048.into() },
        &[9; 1024],
    );
    // The first packet is lost before here: the server refuses the second.
    assert_eq!(net.up(&rest(&c, c.psn + 1)).len(), 1);
    assert!(is_decided(&mut net, &mut b, &owner));
    // It goes back, and what it had begun long ago is known when only the second comes again.
    assert_eq!(net.up(&first).len(), 1);
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, c.psn + 1)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner));
}

/// A forged first packet in the middle of a message does not lead away from where its packets write.
#[test]
fn a_forged_beginning_does_not_hide_where_a_message_writes() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    net.connect(&mut c);
    let first = |psn, va: u64, len: u32| {
        let reth = Reth { va: va.into(), rkey: KEY.into(), len: len.into() };
        c.request(Opcode::RC_WRITE_FIRST, psn, |repr| repr.extended.reth = reth, &[9; 1024])
    };
    let middle = |psn| c.request(Opcode::RC_WRITE_MIDDLE, psn, |_| {}, &[9; 1024]);
    // The tenth packet of sixteen writes to the word.
    assert_eq!(net.up(&first(c.psn, TABLE - 9 * 1024, 16 * 1024)).len(), 1);
    for n in 1..8 {
        assert_eq!(net.up(&middle(c.psn + n)).len(), 1);
    }
    for lie in [c.psn + 3, c.psn + 8, c.psn + 4, c.psn + 100] {
        net.up(&first(lie, 0x9000_0000, 4096));
    }
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    net.up(&middle(c.psn + 9));
    assert!(!is_decided(&mut net, &mut b, &owner));
}

/// The owner's round trip is longer than its reservation.
#[test]
fn an_owner_that_is_far_away_gets_a_turn_or_its_connection_back() {
    let (mut net, a, mut b) = two(|_| {});
    let owner = a;
    let mut value = 0;
    let page = a.write(a.psn, 0x9000_0000, &[7; 1024]);
    let mut under_way = net.up(&b.cas(b.psn, TABLE, value, value + 1));
    b.psn += 1;
    for _ in 0..20 {
        let passed = net.up(&page);
        if !passed.is_empty() {
            assert!(net.count("naks") <= 2);
            return;
        }
        // The NAK goes to the client, and the page comes back, in 200 us.
        value += 1;
        let told = net.down(&owner.ack(psn(&under_way[0].0)));
        assert!(told.iter().any(|(frame, _)| is_nak(frame)));
        // B goes on meanwhile.
        let waits = net.up(&b.cas(b.psn, TABLE, value, value + 1));
        b.psn += 1;
        let later = net.pass(Nanos::from_micros(200));
        under_way = if waits.is_empty() { later } else { waits };
        under_way.retain(|(frame, _)| dest(frame) == owner.server_qpn);
        if under_way.is_empty() {
            assert!(net.count("naks") <= 2);
            assert_eq!(net.up(&page).len(), 1, "B has gone another way");
            return;
        }
    }
    panic!("{} NAKs and no turn", net.count("naks"));
}

/// A long WRITE waits for what was decided on one lane, while another is used.
#[test]
fn a_long_range_waits_for_the_lane_that_keeps_it() {
    let (mut net, [mut a, b, c], [on_a, on_b]) = two_lanes();
    learn(&mut net, &mut a, &b, [on_a, on_b]);
    // Decided on A's lane, and never acknowledged; decided on B's lane, and done
    let lost = net.up(&a.cas(a.psn, on_a, 0, 5));
    assert_eq!((opcode(&lost[0].0), dest(&lost[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    let sent = net.up(&b.cas(b.psn, on_b, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, b.server_qpn));
    net.down(&b.ack(psn(&sent[0].0)));
    let reth = Reth { va: (TABLE - 1024).into(), rkey: KEY.into(), len: (1 << 20).into() };
    let long = c.request(Opcode::RC_WRITE_FIRST, c.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    let begun = net.now;
    let mut naks = 0;
    let mut first = net.up(&long).len();
    while first == 0 && net.now.since(begun) < Nanos::from_micros(600) {
        let sent = net.pass(Nanos::from_micros(10));
        if sent.iter().any(|(frame, _)| is_nak(frame)) {
            naks += 1;
            first = net.up(&long).len();
        }
    }
    assert!(naks <= 1, "{naks} NAKs in {:?}", net.now.since(begun));
}

/// The owner of a lane writes something very long; another waits for its lane all the time.
#[test]
fn nobody_waits_for_a_very_long_message_of_another_client() {
    let (mut net, a, b) = two(|config| config.servers[0].lanes = 2);
    let owner = a;
    let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: (1 << 30).into() };
    let first = a.request(Opcode::RC_WRITE_FIRST, a.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    assert_eq!(net.up(&first).len(), 1);
    assert!(net.up(&b.cas(b.psn, TABLE, 0, 5)).is_empty(), "the lane is its owner's");
    let begun = net.now;
    for n in 1..20_000 {
        let middle = a.request(Opcode::RC_WRITE_MIDDLE, a.psn + n, |_| {}, &[9; 1024]);
        assert_eq!(net.up(&middle).len(), 1);
        if n % 8 == 0 {
            net.down(&owner.ack(a.psn + n));
        }
        let sent = net.pass(Nanos::from_micros(9));
        if sent.iter().any(|(frame, _)| opcode(frame) == Opcode::RC_COMPARE_SWAP) {
            return;
        }
    }
    panic!("B has waited for {:?}, {} lanes left", net.now.since(begun), net.count("lanes_left"));
}

/// A forged handshake names a path MTU that is too small.
#[test]
fn a_forged_handshake_tells_no_path_mtu_that_is_too_small() {
    let mut net = Net::new(|config| config.servers[0].lanes = 1);
    let mut a = end(1);
    // All but the PSN is a lie, or it is near enough.
    let [req, rep] = handshake_with_mtu(&End { psn: a.psn - 100, ..a }, 1);
    net.up(&req);
    net.down(&rep);
    let (mut b, reth) = (end(2), Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 1024.into() });
    net.connect(&mut b);
    net.connect(&mut a);
    let sent = net.up(&b.cas(b.psn, TABLE, 1, 1));
    net.down(&b.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    // A READ of 1024 bytes takes one PSN.
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
        // Its client's timer
        sent.extend(net.pass(Nanos::from_millis(67)));
        sent.extend(net.up(&cas));
    }
    assert!(sent.iter().any(|(frame, _)| opcode(frame) == Opcode::RC_COMPARE_SWAP), "the CAS goes nowhere");
}

fn handshake_with_mtu(end: &End, code: u8) -> [Vec<u8>; 2] {
    super::identity::handshake_of(end, |req| req.mtu_rnr = code << 4)
}

/// What was written down and never came to differ is not over when it is forgotten.
#[test]
fn what_is_in_the_journal_is_over_when_it_is_forgotten() {
    let mut net = Net::new(|_| {});
    let mut a = end(1);
    for _ in 0..6 {
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
    // Written down, but the answer comes only after a request that shows that another was lost.
    net.now = net.now + Nanos(1000);
    let cas = a.cas(a.psn, TABLE + 2048, 1, 0);
    switch::memory::run_frame(&mut net.swordbox, &cas, CLIENTS, net.now);
    let late = a.write(a.psn + 2, 0x8000_0000, &[0; 8]);
    switch::memory::run_frame(&mut net.swordbox, &late, CLIENTS, net.now);
    net.permit();
    assert!(net.events.iter().any(|event| matches!(event, swordbox::Event::Diverging(_))));
    for _ in 0..100 {
        net.pass(Nanos::from_secs(20));
    }
    assert_eq!(net.swordbox.usage()[0], 0);
    assert!(
        net.events.iter().any(|event| matches!(event, swordbox::Event::Over(_))),
        "it stays in the journal"
    );
}

/// A forged handshake names a path MTU that is too great: what others send on the lane has PSNs that the server has used.
#[test]
fn a_forged_handshake_tells_no_path_mtu_that_is_too_great() {
    let mut net = Net::new(|config| config.servers[0].lanes = 1);
    let (a, b) = (end(1), end(2));
    let [req, rep] = handshake_with_mtu(&End { psn: a.psn - 100, ..a }, 5);
    net.up(&req);
    net.down(&rep);
    let (mut net, mut a, b) = taught(net, a, b);
    let owner = a;
    // The path MTU is 1024: the server sends four packets.
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
    let mut answers = Vec::new();
    for n in 0..3 {
        net.up(&b.cas(b.psn + n, TABLE, n.into(), 1 + u64::from(n)));
    }
    // To the server these are repeated: it acknowledges the last that it has done (rxe: duplicate_request).
    answers.extend(net.down(&owner.ack(own + 3)));
    answers.retain(|(frame, _)| dest(frame) == b.qpn);
    assert!(answers.is_empty(), "{} CASes are answered that were not done", answers.len());
}

/// A forged REP names READs and atomics that the server takes at once.
#[test]
fn a_forged_handshake_does_not_tell_how_many_atomics_the_server_takes() {
    let mut net = Net::new(|config| {
        config.servers[0].lanes = 1;
        config.servers[0].rd_atomic = 1;
    });
    let (mut a, mut b) = (end(1), end(2));
    let [req, rep] = super::identity::handshake_of_both(
        &End { psn: a.psn - 100, ..a },
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
    assert_eq!(count, 1, "atomics at once on the lane");
}

/// One client takes all places for frames that wait, for as long as the server's program likes.
#[test]
fn one_client_does_not_take_all_places_for_frames_that_wait() {
    let (mut net, a, mut b) = two(|config| config.held = 64);
    let owner = a;
    let mut c = end(3);
    net.connect(&mut c);
    // Its SEND waits for a receive; a CAS waits for that, and all the rest for the CAS.
    let sent = net.up(&c.request(Opcode::RC_SEND_ONLY, c.psn, |_| {}, &[0; 8]));
    net.down(&c.answer(psn(&sent[0].0), Syndrome::RnrNak(RnrTimer(1)), None));
    assert!(net.up(&c.cas(c.psn + 1, TABLE, 0, 1)).is_empty());
    for n in 2..100 {
        net.up(&c.write(c.psn + n, 0x9000_0000, &[0; 8]));
    }
    let _ = net.pass(Nanos::from_secs(3));
    // B takes a lock and reads behind it, again and again.
    let mut naks = 0;
    for n in 0..10 {
        let sent = net.up(&b.cas(b.psn, TABLE, n, n + 1));
        let owner = if dest(&sent[0].0) == b.server_qpn { b } else { owner };
        b.psn += 1;
        let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 64.into() };
        let read = b.request(Opcode::RC_READ_REQUEST, b.psn, |repr| repr.extended.reth = reth, &[]);
        let early = net.up(&read);
        let found = (opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP).then_some(n);
        let mut told = net.down(&owner.answer(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), found));
        told.extend(net.pass(Nanos::from_micros(60)));
        naks += told.iter().filter(|(frame, _)| dest(frame) == b.qpn && is_nak(frame)).count();
        let sent = if early.is_empty() {
            told.into_iter().filter(|(frame, _)| opcode(frame) == Opcode::RC_READ_REQUEST).collect()
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

/// A packet in the name of a lane's owner, whose PSN is only near enough, and whose headers lead nowhere.
#[test]
fn a_forged_packet_does_not_lead_others_operations_astray() {
    let (mut net, a, b) = two(|_| {});
    // The owner is silent. One of 128 guessed PSNs is near enough.
    let mut lie = a.write(a.psn + 50_000, 0x8000_0000, &[0; 8]);
    lie[..6].copy_from_slice(&[2, 0xba, 0xd0, 0, 0, 1]);
    assert!(net.up(&lie).iter().all(|(frame, _)| is_nak(frame)), "it goes nowhere");
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    assert_eq!(sent[0].0[..6], b.write(0, 0, &[])[..6], "the server's address");
}

/// The same in the name of a client that waits for an answer, through another port.
#[test]
fn a_forged_packet_does_not_lead_answers_astray() {
    let (mut net, a, b) = two(|_| {});
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert!(net.run(&b.write(b.psn + 50_000, 0x8000_0000, &[0; 8]), SERVERS).1.is_empty(), "it goes nowhere");
    let answers = net.down(&a.ack(psn(&sent[0].0)));
    assert_eq!(opcode(&answers[0].0), Opcode::RC_ATOMIC_ACKNOWLEDGE);
    assert_eq!(answers[0].1, CLIENTS, "to the client");
}

/// Two forged disconnections: one before it is written down that a connection's sides may differ, and one after.
#[test]
fn two_forged_disconnections_end_nothing() {
    let (mut net, ..) = two(|_| {});
    let mut c = end(3);
    for _ in 0..6 {
        net.up(&c.write(c.psn, 0x9000_0000, &[0; 8]));
        net.down(&c.ack(c.psn));
        c.psn += 1;
    }
    net.now = net.now + Nanos(1000);
    let lie = dreq(c.ip, SERVER, c.server_qpn);
    // What the control plane is asked is not answered yet.
    let cas = c.cas(c.psn, TABLE + 2048, 1, 0);
    switch::memory::run_frame(&mut net.swordbox, &cas, CLIENTS, net.now);
    net.run(&lie, SERVERS);
    net.permit();
    net.down(&c.answer(c.psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
    net.run(&lie, SERVERS);
    c.psn += 1;
    for n in 0..10 {
        let sent = net.up(&c.write(c.psn, 0x9000_0000, &[0; 8]));
        assert_eq!(sent.len(), 1, "{n}: {} ended", net.count("ended"));
        net.down(&c.ack(psn(&sent[0].0)));
        net.run(&lie, SERVERS);
        c.psn += 1;
    }
    assert_eq!(net.count("ended"), 0);
}

/// Owner and others take turns, as they should, and ticks find each at work.
#[test]
fn an_owner_that_takes_short_turns_keeps_its_lane() {
    let (mut net, mut a, mut b) = two(|_| {});
    let owner = a;
    for n in 0..400 {
        // The owner's turn: 60 us
        let sent = net.up(&a.write(a.psn, 0x9000_0000, &[7; 8]));
        a.psn += 1;
        assert_eq!(sent.len(), 1);
        assert!(net.up(&b.cas(b.psn, TABLE, n, n + 1)).is_empty(), "{n}");
        b.psn += 1;
        net.pass(Nanos::from_micros(60));
        // The others' turn: 60 us
        let told = net.down(&owner.ack(psn(&sent[0].0)));
        let cas = told.iter().find(|(frame, _)| opcode(frame) == Opcode::RC_WRITE_ONLY);
        let own = psn(&cas.expect("B's turn").0);
        net.pass(Nanos::from_micros(60));
        net.down(&owner.ack(own));
        assert_eq!(net.count("lanes_left"), 0, "turn {n}, at {:?}", net.now);
    }
}

/// A short WRITE waits for what was decided on its line; another lane is slow.
#[test]
fn a_short_write_waits_for_its_own_lines_lane() {
    let (mut net, [mut a, b, c], [on_a, on_b]) = two_lanes();
    learn(&mut net, &mut a, &b, [on_a, on_b]);
    // Under way on B's lane, and slow
    let slow = net.up(&b.cas(b.psn, on_b, 0, 5));
    assert_eq!((opcode(&slow[0].0), dest(&slow[0].0)), (Opcode::RC_WRITE_ONLY, b.server_qpn));
    let sent = net.up(&a.cas(a.psn, on_a, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    assert!(net.up(&c.write(c.psn, on_a + 32, &[1; 40])).is_empty(), "it waits for A's CAS");
    let told = net.down(&a.ack(psn(&sent[0].0)));
    assert!(told.iter().any(|(frame, _)| dest(frame) == c.server_qpn), "nothing keeps it any more");
}

/// An owner is turned away twice, as too much waits, and comes in time both times: it keeps its lane.
#[test]
fn an_owner_that_comes_in_time_keeps_its_lane() {
    let mut net = Net::new(|config| {
        config.held = 64;
        config.servers[0].lanes = 1;
        config.servers[0].rd_atomic = 1;
        config.layers.cas_to_write = false;
    });
    let mut a = end(1);
    net.connect(&mut a);
    let found = |psn| a.answer(psn, Syndrome::Ack(Credit(0x1f)), Some(0));
    let mut psn_of_a = a.psn;
    for round in 0..3 {
        // Two atomics, of which the second waits for the first, and WRITEs to shared words behind it: 16 find room in all.
        let first = net.up(&a.cas(psn_of_a, TABLE, 1, 1));
        assert_eq!(first.len(), 1);
        assert!(net.up(&a.cas(psn_of_a + 1, TABLE, 1, 1)).is_empty());
        let behind: Vec<_> = (2..=17).map(|n| a.write(psn_of_a + n, TABLE, &[7; 8])).collect();
        assert!(behind.iter().all(|frame| net.up(frame).is_empty()));
        let second = net.down(&found(psn(&first[0].0)));
        let second = second.iter().find(|(frame, _)| opcode(frame) == Opcode::RC_COMPARE_SWAP).unwrap();
        let own = psn(&second.0);
        net.down(&found(own));
        let told = net.down(&a.ack(own + 15));
        assert!(told.iter().any(|(frame, _)| dest(frame) == a.qpn));
        let sent = net.up(&behind[15]);
        assert_eq!(sent.len(), 1, "it comes at once");
        net.down(&a.ack(psn(&sent[0].0)));
        psn_of_a += 18;
        assert_eq!(net.count("lanes_left"), 0, "round {round}");
    }
}

/// The first two requests of a connection are acknowledged at once: what the handshake told counts.
#[test]
fn a_first_acknowledgement_of_two_confirms_a_handshake() {
    let atomics = |together: bool| {
        let mut net = Net::new(|config| {
            config.servers[0].lanes = 1;
            config.servers[0].rd_atomic = 1;
        });
        let (mut a, mut b) = (end(1), end(2));
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
    assert_eq!(atomics(true), atomics(false), "atomics at once on the lane");
}

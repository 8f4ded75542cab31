//! WRITEs of several packets: where those behind the first one write.

use super::net::*;
use rocev2::Opcode;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::reth::Reth;
use switch::Nanos;

const FIRST: Opcode = Opcode::RC_WRITE_FIRST;
const LAST: Opcode = Opcode::RC_WRITE_LAST;
/// Memory without words
const A: u64 = 0x9000_0000;

fn message(c: &End, opcode: Opcode, psn: u32, va: u64, len: u32) -> Vec<u8> {
    let reth = Reth { va: va.into(), rkey: KEY.into(), len: len.into() };
    c.request(opcode, psn, |repr| repr.extended.reth = reth, &[9; 1024])
}

fn rest(c: &End, opcode: Opcode, psn: u32) -> Vec<u8> {
    c.request(opcode, psn, |_| {}, &[9; 1024])
}

/// The switch was restarted in the middle of a long WRITE; its client goes back (an ACK was lost), and one of the repeated
/// packets is lost. The server has that one already, so it goes on.
#[test]
fn what_is_missing_here_may_have_passed_before_the_switch_started() {
    let (mut net, owner, mut b) = two(|_| {});
    assert!(is_decided(&mut net, &mut b, &owner));
    let c = end(5);
    net.now = net.now + Nanos::from_secs(1);
    // The server has everything before psn + 3.
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_MIDDLE, c.psn)).len(), 1);
    // psn + 1 is lost before here: a duplicate
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_MIDDLE, c.psn + 2)).len(), 1);
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    // New to the server: it executes this, wherever it writes.
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 3)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

/// What is missing passes as nobody's, since two packets (forged, or behind two losses) moved the window on.
#[test]
fn what_was_missing_may_pass_as_a_strays_packet() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    for _ in 0..6 {
        assert_eq!(net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
        c.psn += 1;
    }
    for ahead in [1, 65537] {
        assert_eq!(net.up(&c.write(c.psn + ahead, 0x8000_0000, &[0; 8])).len(), 1);
    }
    // Now the client begins its message of two packets: the first is behind the window, and passes as a stray.
    assert_eq!(net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, TABLE - 1024, 2048)).len(), 1);
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

/// A forged handshake begins a little before the client: its first packet is taken to come behind one that is missing, and
/// nothing ever is that one. Then a packet of a message that is not the newest comes late.
#[test]
fn nothing_is_missing_that_only_a_handshake_told_of() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut proven = end(3);
    net.connect(&mut proven);
    let c = End { ip: proven.ip, ..end(4) };
    let [req, rep] = super::identity::handshake(&End { psn: c.psn - 100, ..c });
    net.up(&req);
    net.down(&rep);
    for frame in [
        message(&c, Opcode::RC_WRITE_FIRST, c.psn, TABLE - 1024, 2048),
        // c.psn + 1 is lost before here, once
        message(&c, Opcode::RC_WRITE_FIRST, c.psn + 2, 0x9000_0000, 2048),
    ] {
        assert_eq!(net.up(&frame).len(), 1);
    }
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

/// UC messages of a host that does nothing else, to memory without words, on clean wires.
#[test]
fn uc_messages_to_other_memory_pass() {
    let (mut net, ..) = two(|_| {});
    let c = End { ip: [10, 0, 1, 99], ..end(6) };
    let mut lost = 0;
    for n in 0..400 {
        net.pass(Nanos::from_millis(1));
        let first = message(&c, Opcode::UC_WRITE_FIRST, c.psn + 2 * n, 0x9000_0000, 2048);
        assert_eq!(net.up(&first).len(), 1);
        lost += 1 - net.up(&rest(&c, Opcode::UC_WRITE_LAST, c.psn + 2 * n + 1)).len();
    }
    assert_eq!(lost, 0, "messages of 400 without their ends");
}

/// The same of a host that the server knows, while a CAS is under way.
#[test]
fn uc_messages_of_a_known_host_pass() {
    let (mut net, _, b) = two(|_| {});
    assert_eq!(opcode(&net.up(&b.cas(b.psn, TABLE, 0, 5))[0].0), Opcode::RC_WRITE_ONLY);
    let c = End { server_qpn: 0x777, ..b };
    assert_eq!(net.up(&message(&c, Opcode::UC_WRITE_FIRST, 0, 0x9000_0000, 2048)).len(), 1);
    assert_eq!(net.up(&rest(&c, Opcode::UC_WRITE_LAST, 1)).len(), 1, "its end is dropped");
}

/// A connection that does not fit into the table "passes untouched".
#[test]
fn long_writes_of_untracked_connections_pass() {
    let (mut net, ..) = two(|config| config.connections = 2);
    let c = End { ip: [10, 0, 1, 99], ..end(6) };
    let mut lost = 0;
    for n in 0..400 {
        net.pass(Nanos::from_millis(1));
        let first = message(&c, Opcode::RC_WRITE_FIRST, c.psn + 2 * n, 0x9000_0000, 2048);
        assert_eq!(net.up(&first).len(), 1);
        lost += 1 - net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 2 * n + 1)).len();
    }
    assert!(net.count("untracked") > 0, "it is tracked");
    assert_eq!(lost, 0, "messages of 400 without their ends");
}

/// Two long WRITEs under way to memory without words; a packet of the first is lost behind here.
#[test]
fn a_repeated_long_write_elsewhere_stops_nobody() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    net.connect(&mut c);
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    let first = |psn| message(&c, Opcode::RC_WRITE_FIRST, psn, 0x9000_0000, 2048);
    let last = |psn| rest(&c, Opcode::RC_WRITE_LAST, psn);
    let all = [first(c.psn), last(c.psn + 1), first(c.psn + 2), last(c.psn + 3)];
    for frame in &all {
        assert_eq!(net.up(frame).len(), 1);
    }
    assert_eq!(opcode(&net.up(&b.cas(b.psn, TABLE, 0, 5))[0].0), Opcode::RC_WRITE_ONLY);
    let nak = c.answer(c.psn, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR), None);
    assert_eq!(net.down(&nak).len(), 1);
    // It goes back.
    let passed: Vec<_> = all.iter().map(|frame| net.up(frame).len()).collect();
    net.down(&owner.ack(owner.psn));
    assert_eq!(passed, [1; 4], "what its client sends again is dropped");
}

/// The same; how long no word of the server is decided for it.
#[test]
fn a_repeated_long_write_elsewhere_stops_deciding_for_a_short_time() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    net.connect(&mut c);
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    let first = |psn| message(&c, Opcode::RC_WRITE_FIRST, psn, 0x9000_0000, 2048);
    let last = |psn| rest(&c, Opcode::RC_WRITE_LAST, psn);
    for frame in [first(c.psn), last(c.psn + 1), first(c.psn + 2), last(c.psn + 3)] {
        assert_eq!(net.up(&frame).len(), 1);
    }
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    b.psn += 1;
    net.up(&last(c.psn + 1));
    net.down(&owner.ack(psn(&sent[0].0)));
    let begun = net.now;
    while !is_decided(&mut net, &mut b, &owner) {
        net.pass(Nanos::from_millis(10));
    }
    assert!(
        net.now.since(begun) < Nanos::from_millis(100),
        "nothing was decided for {:?}",
        net.now.since(begun)
    );
}

/// One forged first packet has the PSN of a message that is under way: later long WRITEs of that client are known as before.
#[test]
fn a_forged_beginning_is_forgotten_with_the_message() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    net.connect(&mut c);
    for forged in [true, false] {
        assert_eq!(net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, 0x9000_0000, 2048)).len(), 1);
        if forged {
            net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, 0xa000_0000, 1 << 31));
        }
        // (This one may wait: nothing was decided.)
        assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
        net.down(&c.ack(c.psn + 1));
        c.psn += 2;
    }
    net.pass(Nanos::from_millis(50));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    // Much later, elsewhere
    assert_eq!(net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, 0x9000_0000, 2048)).len(), 1);
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
    assert!(is_decided(&mut net, &mut b, &owner), "all that is known of the server is doubtful");
}

/// Returns a first packet of another host, of a very long WRITE with a key that is not known.
fn forged(c: &End, psn: u32) -> Vec<u8> {
    let reth = Reth { va: A.into(), rkey: 0xbad.into(), len: (1u32 << 31).into() };
    let c = End { ip: [10, 0, 1, 77], ..*c };
    c.request(Opcode::UC_WRITE_FIRST, psn, |repr| repr.extended.reth = reth, &[9; 256])
}

/// Two packets are lost before here, and the server's NAK: the client repeats one WRITE, and the rest of another.
#[test]
fn the_rest_of_a_write_between_others_is_a_detour() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    for _ in 0..6 {
        assert_eq!(net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
        c.psn += 1;
    }
    let p = c.psn;
    let w = |n: u32, va| message(&c, FIRST, p + 2 * n, va, 2048);
    let l = |n: u32| rest(&c, LAST, p + 2 * n + 1);
    net.up(&w(0, A));
    net.up(&l(0));
    net.up(&w(1, TABLE - 1024));
    // p + 3 is lost before here
    for n in 2..4 {
        net.up(&w(n, A + 0x1000));
        net.up(&l(n));
    }
    // The server's NAK is lost; timeout
    net.pass(Nanos::from_millis(100));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&w(0, A)).len(), 1);
    assert_eq!(net.up(&l(0)).len(), 1);
    // p + 2 is lost before here: a duplicate
    let sent = net.up(&l(1)).len();
    assert_eq!(sent, 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

/// First packets over UC, which another host sends to a client's queue pair, hide nothing.
fn check_forged(strict: bool) {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    if strict {
        net.connect(&mut c);
    } else {
        for _ in 0..6 {
            assert_eq!(net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).len(), 1);
            assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
            c.psn += 1;
        }
    }
    net.pass(Nanos::from_millis(50));
    let p = c.psn;
    let f = forged(&c, p.wrapping_sub(0x50_0000) & 0xff_ffff);
    let w = |n: u32, va| message(&c, FIRST, p + 2 * n, va, 2048);
    let l = |n: u32| rest(&c, LAST, p + 2 * n + 1);
    assert_eq!(net.up(&w(0, TABLE - 1024)).len(), 1);
    assert_eq!(net.down(&c.ack(p)).len(), 1);
    // lost behind here, as all that follows
    assert_eq!(net.up(&l(0)).len(), 1);
    for n in 1..3 {
        assert_eq!(net.up(&w(n, A + 0x1000)).len(), 1);
        assert_eq!(net.up(&l(n)).len(), 1);
        assert_eq!(net.up(&f).len(), 1, "forged");
    }
    net.pass(Nanos::from_millis(100));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    // timeout: from the first that was not acknowledged
    assert_eq!(net.up(&l(0)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

#[test]
fn another_hosts_first_packets_hide_nothing_of_a_translated_connection() {
    check_forged(true);
}

#[test]
fn another_hosts_first_packets_hide_nothing_of_a_connection() {
    check_forged(false);
}

/// Others want all places, and a first packet comes in the client's name.
#[test]
fn a_place_in_use_is_not_given_to_others() {
    let (mut net, owner, mut b) = two(|_| {});
    let c = End { server_qpn: 0x777, ..b };
    let m = |c: &End, psn, va, len| message(c, Opcode::UC_WRITE_FIRST, psn, va, len);
    assert_eq!(net.up(&m(&c, 10, TABLE - 1024, 2048)).len(), 1);
    for n in 0..16384 {
        net.up(&m(&End { ip: [10, 0, 1, 77], server_qpn: 0x1000 + n, ..c }, 10, A, 2048));
    }
    net.up(&m(&c, 9, A, 1 << 31));
    net.pass(Nanos::from_millis(100));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, Opcode::UC_WRITE_LAST, 11)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

/// Two forged packets have the client's next PSNs, and the server's NIC drops them (P_Key, MAC address).
#[test]
fn a_forged_end_cuts_no_message_short() {
    let (mut net, owner, mut b) = two(|_| {});
    let mut c = end(3);
    net.connect(&mut c);
    net.pass(Nanos::from_millis(50));
    let p = c.psn;
    let middle = Opcode::RC_WRITE_MIDDLE;
    assert_eq!(net.up(&message(&c, FIRST, p, TABLE - 4096, 5120)).len(), 1);
    assert_eq!(net.up(&rest(&c, middle, p + 1)).len(), 1);
    // forged
    assert_eq!(net.up(&rest(&c, LAST, p + 2)).len(), 1);
    assert_eq!(net.up(&message(&c, FIRST, p + 3, A, 0x10_0000)).len(), 1);
    // its own
    assert_eq!(net.up(&rest(&c, middle, p + 2)).len(), 1);
    assert_eq!(net.up(&rest(&c, middle, p + 3)).len(), 1);
    net.pass(Nanos::from_millis(100));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, LAST, p + 4)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

/// The switch has been restarted behind the first packet of the second message.
#[test]
fn the_rest_of_a_write_that_passed_before_a_restart_is_a_detour() {
    let (mut net, owner, mut b) = two(|_| {});
    let c = end(5);
    let p = c.psn;
    let w = |n: u32, va| message(&c, FIRST, p + 2 * n, va, 2048);
    let l = |n: u32| rest(&c, LAST, p + 2 * n + 1);
    // W0 (p, p+1) and the first of W1 (p+2) passed before; p + 3 is lost
    for n in 2..4 {
        assert_eq!(net.up(&w(n, A + 0x1000)).len(), 1);
        assert_eq!(net.up(&l(n)).len(), 1);
    }
    net.pass(Nanos::from_millis(100));
    is_decided(&mut net, &mut b, &owner);
    assert!(is_decided(&mut net, &mut b, &owner));
    assert_eq!(net.up(&w(0, A)).len(), 1);
    assert_eq!(net.up(&l(0)).len(), 1);
    // p + 2 is lost before here: a duplicate
    assert_eq!(net.up(&l(1)).len(), 1);
    assert!(!is_decided(&mut net, &mut b, &owner), "decided from a value that was overwritten");
}

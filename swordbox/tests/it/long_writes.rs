//! WRITEs of several packets: target addresses of their Middle and Last packets.

use super::net::*;
use rocev2::Opcode;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::reth::Reth;
use switch::Nanos;

const FIRST: Opcode = Opcode::RC_WRITE_FIRST;
const LAST: Opcode = Opcode::RC_WRITE_LAST;
/// Memory without tracked words
const A: u64 = 0x9000_0000;

fn message(c: &Client, opcode: Opcode, psn: u32, va: u64, len: u32) -> Vec<u8> {
    let reth = Reth { va: va.into(), rkey: KEY.into(), len: len.into() };
    c.request(opcode, psn, |repr| repr.extended.reth = reth, &[9; 1024])
}

fn rest(c: &Client, opcode: Opcode, psn: u32) -> Vec<u8> {
    c.request(opcode, psn, |_| {}, &[9; 1024])
}

/// The switch was restarted in the middle of a long WRITE. Its client retransmits because an ACK was lost,
/// and one retransmitted packet is lost. The server has that packet already, so it continues.
#[test]
fn a_missing_packet_may_have_passed_before_the_switch_started() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    assert!(is_resolved(&mut net, &mut b, &owner));
    let c = new_client(5);
    net.now = net.now + Nanos::from_secs(1);
    // The server has everything before psn + 3.
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_MIDDLE, c.psn)).len(), 1);
    // psn + 1, a duplicate, is lost before the switch.
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_MIDDLE, c.psn + 2)).len(), 1);
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    // New to the server, which executes it wherever it writes.
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 3)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

/// A missing packet passes untracked, since two packets (forged, or behind two losses) moved the window.
#[test]
fn a_first_packet_outside_the_window_is_tracked() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    for _ in 0..6 {
        assert_eq!(net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
        c.psn += 1;
    }
    for ahead in [1, 65537] {
        assert_eq!(net.up(&c.write(c.psn + ahead, 0x8000_0000, &[0; 8])).len(), 1);
    }
    // The client begins a message of two packets. The First is behind the window, and passes untracked.
    assert_eq!(net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, TABLE - 1024, 2048)).len(), 1);
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

/// A forged handshake announces a starting PSN a little before the client's. Its first packet seems to follow
/// a missing one, which never arrives. Then a packet of a message that is not the newest arrives late.
#[test]
fn a_forged_starting_psn_does_not_hide_a_late_packet() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut proven = new_client(3);
    net.connect(&mut proven);
    let c = Client { ip: proven.ip, ..new_client(4) };
    let [req, rep] = super::identity::handshake(&Client { psn: c.psn - 100, ..c });
    net.up(&req);
    net.down(&rep);
    for frame in [
        message(&c, Opcode::RC_WRITE_FIRST, c.psn, TABLE - 1024, 2048),
        // c.psn + 1 is lost before the switch once.
        message(&c, Opcode::RC_WRITE_FIRST, c.psn + 2, 0x9000_0000, 2048),
    ] {
        assert_eq!(net.up(&frame).len(), 1);
    }
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

/// UC messages of a host without other traffic, to memory without tracked words, without losses.
#[test]
fn uc_messages_to_other_memory_pass() {
    let (mut net, ..) = two_clients(|_| {});
    let c = Client { ip: [10, 0, 1, 99], ..new_client(6) };
    let mut lost = 0;
    for n in 0..400 {
        net.advance_time(Nanos::from_millis(1));
        let first = message(&c, Opcode::UC_WRITE_FIRST, c.psn + 2 * n, 0x9000_0000, 2048);
        assert_eq!(net.up(&first).len(), 1);
        lost += 1 - net.up(&rest(&c, Opcode::UC_WRITE_LAST, c.psn + 2 * n + 1)).len();
    }
    assert_eq!(lost, 0, "messages of 400 whose Last packet was dropped");
}

/// UC messages of a trusted host, while a CAS is in flight.
#[test]
fn uc_messages_of_a_trusted_host_pass() {
    let (mut net, _, b) = two_clients(|_| {});
    assert_eq!(opcode(&net.up(&b.cas(b.psn, TABLE, 0, 5))[0].0), Opcode::RC_WRITE_ONLY);
    let c = Client { server_qpn: 0x777, ..b };
    assert_eq!(net.up(&message(&c, Opcode::UC_WRITE_FIRST, 0, 0x9000_0000, 2048)).len(), 1);
    assert_eq!(net.up(&rest(&c, Opcode::UC_WRITE_LAST, 1)).len(), 1, "the Last packet is dropped");
}

/// Long WRITEs of a connection that found no free table entry.
#[test]
fn long_writes_of_untracked_connections_pass() {
    let (mut net, ..) = two_clients(|config| config.connections = 2);
    let c = Client { ip: [10, 0, 1, 99], ..new_client(6) };
    let mut lost = 0;
    for n in 0..400 {
        net.advance_time(Nanos::from_millis(1));
        let first = message(&c, Opcode::RC_WRITE_FIRST, c.psn + 2 * n, 0x9000_0000, 2048);
        assert_eq!(net.up(&first).len(), 1);
        lost += 1 - net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 2 * n + 1)).len();
    }
    assert!(net.count("untracked") > 0, "the connection is tracked");
    assert_eq!(lost, 0, "messages of 400 whose Last packet was dropped");
}

/// Two long WRITEs in flight to memory without tracked words; a packet of the first is lost behind the
/// switch.
#[test]
fn a_retransmitted_long_write_to_other_memory_passes() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    net.connect(&mut c);
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    let first = |psn| message(&c, Opcode::RC_WRITE_FIRST, psn, 0x9000_0000, 2048);
    let last = |psn| rest(&c, Opcode::RC_WRITE_LAST, psn);
    let all = [first(c.psn), last(c.psn + 1), first(c.psn + 2), last(c.psn + 3)];
    for frame in &all {
        assert_eq!(net.up(frame).len(), 1);
    }
    assert_eq!(opcode(&net.up(&b.cas(b.psn, TABLE, 0, 5))[0].0), Opcode::RC_WRITE_ONLY);
    let nak = c.response(c.psn, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR), None);
    assert_eq!(net.down(&nak).len(), 1);
    // The client retransmits.
    let passed: Vec<_> = all.iter().map(|frame| net.up(frame).len()).collect();
    net.down(&owner.ack(owner.psn));
    assert_eq!(passed, [1; 4], "the client's retransmission is dropped");
}

/// The same two WRITEs; measures for how long no word of the server is resolved.
#[test]
fn a_retransmitted_long_write_to_other_memory_suspends_resolution_briefly() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    net.connect(&mut c);
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    let first = |psn| message(&c, Opcode::RC_WRITE_FIRST, psn, 0x9000_0000, 2048);
    let last = |psn| rest(&c, Opcode::RC_WRITE_LAST, psn);
    for frame in [first(c.psn), last(c.psn + 1), first(c.psn + 2), last(c.psn + 3)] {
        assert_eq!(net.up(&frame).len(), 1);
    }
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    b.psn += 1;
    net.up(&last(c.psn + 1));
    net.down(&owner.ack(psn(&sent[0].0)));
    let started = net.now;
    while !is_resolved(&mut net, &mut b, &owner) {
        net.advance_time(Nanos::from_millis(10));
    }
    assert!(
        net.now.since(started) < Nanos::from_millis(100),
        "nothing was resolved for {:?}",
        net.now.since(started)
    );
}

/// A forged First packet has the PSN of a message in flight. It does not affect later long WRITEs of that
/// client.
#[test]
fn a_forged_first_packet_is_forgotten_with_its_message() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    net.connect(&mut c);
    for forged in [true, false] {
        assert_eq!(net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, 0x9000_0000, 2048)).len(), 1);
        if forged {
            net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, 0xa000_0000, 1 << 31));
        }
        // This one may have to wait; nothing was resolved.
        assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
        net.down(&c.ack(c.psn + 1));
        c.psn += 2;
    }
    net.advance_time(Nanos::from_millis(50));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    // A later message to other memory
    assert_eq!(net.up(&message(&c, Opcode::RC_WRITE_FIRST, c.psn, 0x9000_0000, 2048)).len(), 1);
    assert_eq!(net.up(&rest(&c, Opcode::RC_WRITE_LAST, c.psn + 1)).len(), 1);
    assert!(is_resolved(&mut net, &mut b, &owner), "all cached words were invalidated");
}

/// Returns a First packet of another host, of a very long WRITE with an unknown key.
fn forged(c: &Client, psn: u32) -> Vec<u8> {
    let reth = Reth { va: A.into(), rkey: 0xbad.into(), len: (1u32 << 31).into() };
    let c = Client { ip: [10, 0, 1, 77], ..*c };
    c.request(Opcode::UC_WRITE_FIRST, psn, |repr| repr.extended.reth = reth, &[9; 256])
}

/// Two packets and the server's NAK are lost: the client retransmits one WRITE, and the rest of another.
#[test]
fn the_rest_of_a_write_between_two_others_is_a_detour() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
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
    // p + 3 is lost before the switch.
    for n in 2..4 {
        net.up(&w(n, A + 0x1000));
        net.up(&l(n));
    }
    // The server's NAK is lost; the client's timeout expires.
    net.advance_time(Nanos::from_millis(100));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&w(0, A)).len(), 1);
    assert_eq!(net.up(&l(0)).len(), 1);
    // p + 2, a duplicate, is lost before the switch.
    let sent = net.up(&l(1)).len();
    assert_eq!(sent, 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

/// Checks that First packets over UC from another host to a client's queue pair do not hide where its
/// messages write.
fn check_forged(strict: bool) {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    if strict {
        net.connect(&mut c);
    } else {
        for _ in 0..6 {
            assert_eq!(net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).len(), 1);
            assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
            c.psn += 1;
        }
    }
    net.advance_time(Nanos::from_millis(50));
    let p = c.psn;
    let f = forged(&c, p.wrapping_sub(0x50_0000) & 0xff_ffff);
    let w = |n: u32, va| message(&c, FIRST, p + 2 * n, va, 2048);
    let l = |n: u32| rest(&c, LAST, p + 2 * n + 1);
    assert_eq!(net.up(&w(0, TABLE - 1024)).len(), 1);
    assert_eq!(net.down(&c.ack(p)).len(), 1);
    // Lost behind the switch, like all that follows
    assert_eq!(net.up(&l(0)).len(), 1);
    for n in 1..3 {
        assert_eq!(net.up(&w(n, A + 0x1000)).len(), 1);
        assert_eq!(net.up(&l(n)).len(), 1);
        assert_eq!(net.up(&f).len(), 1, "the forged packet passes");
    }
    net.advance_time(Nanos::from_millis(100));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    // Timeout: the client retransmits from the first unacknowledged packet on.
    assert_eq!(net.up(&l(0)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

#[test]
fn forged_uc_packets_do_not_hide_writes_of_a_translated_connection() {
    check_forged(true);
}

#[test]
fn forged_uc_packets_do_not_hide_writes_of_an_untranslated_connection() {
    check_forged(false);
}

/// Many requesters compete for all slots, and a First packet is sent in the client's name.
#[test]
fn a_slot_in_use_is_not_evicted() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let c = Client { server_qpn: 0x777, ..b };
    let m = |c: &Client, psn, va, len| message(c, Opcode::UC_WRITE_FIRST, psn, va, len);
    assert_eq!(net.up(&m(&c, 10, TABLE - 1024, 2048)).len(), 1);
    for n in 0..16384 {
        net.up(&m(&Client { ip: [10, 0, 1, 77], server_qpn: 0x1000 + n, ..c }, 10, A, 2048));
    }
    net.up(&m(&c, 9, A, 1 << 31));
    net.advance_time(Nanos::from_millis(100));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, Opcode::UC_WRITE_LAST, 11)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

/// Two forged packets have the client's next PSNs, and the server's NIC drops them (P_Key, MAC address).
#[test]
fn a_forged_last_packet_does_not_truncate_a_message() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let mut c = new_client(3);
    net.connect(&mut c);
    net.advance_time(Nanos::from_millis(50));
    let p = c.psn;
    let middle = Opcode::RC_WRITE_MIDDLE;
    assert_eq!(net.up(&message(&c, FIRST, p, TABLE - 4096, 5120)).len(), 1);
    assert_eq!(net.up(&rest(&c, middle, p + 1)).len(), 1);
    // Forged
    assert_eq!(net.up(&rest(&c, LAST, p + 2)).len(), 1);
    assert_eq!(net.up(&message(&c, FIRST, p + 3, A, 0x10_0000)).len(), 1);
    // The client's own
    assert_eq!(net.up(&rest(&c, middle, p + 2)).len(), 1);
    assert_eq!(net.up(&rest(&c, middle, p + 3)).len(), 1);
    net.advance_time(Nanos::from_millis(100));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&rest(&c, LAST, p + 4)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

/// The switch was restarted behind the First packet of the second message.
#[test]
fn the_rest_of_a_write_that_passed_before_a_restart_is_a_detour() {
    let (mut net, owner, mut b) = two_clients(|_| {});
    let c = new_client(5);
    let p = c.psn;
    let w = |n: u32, va| message(&c, FIRST, p + 2 * n, va, 2048);
    let l = |n: u32| rest(&c, LAST, p + 2 * n + 1);
    // W0 (p, p + 1) and the First packet of W1 (p + 2) passed before; p + 3 is lost.
    for n in 2..4 {
        assert_eq!(net.up(&w(n, A + 0x1000)).len(), 1);
        assert_eq!(net.up(&l(n)).len(), 1);
    }
    net.advance_time(Nanos::from_millis(100));
    is_resolved(&mut net, &mut b, &owner);
    assert!(is_resolved(&mut net, &mut b, &owner));
    assert_eq!(net.up(&w(0, A)).len(), 1);
    assert_eq!(net.up(&l(0)).len(), 1);
    // p + 2, a duplicate, is lost before the switch.
    assert_eq!(net.up(&l(1)).len(), 1);
    assert!(!is_resolved(&mut net, &mut b, &owner), "resolved from an overwritten value");
}

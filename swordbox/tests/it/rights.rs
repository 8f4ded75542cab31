//! Rights of clients, which a server may revoke without the switch seeing it.

use super::net::*;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::Nanos;

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));

/// Sends a CAS of `whose` to the word at `TABLE`. Returns the server's queue pair, the opcode and the PSN
/// with which it is forwarded.
fn send_cas(net: &mut Net, whose: &mut Client, compare: u64, swap: u64) -> (u32, Opcode, u32) {
    let sent = net.up(&whose.cas(whose.psn, TABLE, compare, swap));
    whose.psn += 1;
    (dest(&sent[0].0), opcode(&sent[0].0), psn(&sent[0].0))
}

/// A client whose operations use another connection proves its rights on its own one from time to time.
#[test]
fn a_right_is_proven_again_on_the_clients_own_connection() {
    let (mut net, a, mut b) = two_clients(|_| {});
    let mut own = Vec::new();
    for n in 0..100 {
        net.advance_time(Nanos::from_millis(500));
        let (to, what, at) = send_cas(&mut net, &mut b, n, n + 1);
        if to == b.server_qpn {
            own.push(n);
            assert_eq!(what, Opcode::RC_COMPARE_SWAP);
            net.down(&b.response(at, ACK, Some(n)));
            continue;
        }
        assert_eq!(to, a.server_qpn);
        let found = (what == Opcode::RC_COMPARE_SWAP).then_some(n);
        net.down(&a.response(at, ACK, found));
    }
    // Ten seconds are twenty of these at most.
    let gaps: Vec<_> = [0].iter().chain(&own).zip(&own).map(|(a, b)| b - a).collect();
    assert!((4..10).contains(&own.len()) && gaps.iter().all(|gap| *gap <= 20), "{own:?}");
}

/// The detour of the client's own operation ends with its completion.
#[test]
fn proving_a_right_suspends_resolution_only_until_it_completes() {
    let (mut net, a, mut b) = two_clients(|_| {});
    net.advance_time(Nanos::from_secs(11));
    let (to, what, at) = send_cas(&mut net, &mut b, 0, 1);
    assert_eq!((to, what), (b.server_qpn, Opcode::RC_COMPARE_SWAP));
    net.down(&b.response(at, ACK, Some(0)));
    let (to, what, at) = send_cas(&mut net, &mut b, 1, 2);
    assert_eq!((to, what), (a.server_qpn, Opcode::RC_COMPARE_SWAP));
    net.down(&a.response(at, ACK, Some(1)));
    let (to, what, _) = send_cas(&mut net, &mut b, 2, 3);
    assert_eq!((to, what), (a.server_qpn, Opcode::RC_WRITE_ONLY));
}

/// Nothing is learnt while the client's own operation is in flight, until it must have reached the server.
#[test]
fn nothing_is_learnt_during_an_operation_on_a_clients_own_connection() {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    net.advance_time(Nanos::from_secs(11));
    let (to, _, at) = send_cas(&mut net, &mut a, 9, 9);
    assert_eq!(to, a.server_qpn);
    net.down(&a.response(at, ACK, Some(0)));
    let (to, _, own) = send_cas(&mut net, &mut b, 0, 1);
    assert_eq!(to, b.server_qpn);
    for (ms, then) in [
        (1, Opcode::RC_COMPARE_SWAP),
        (1, Opcode::RC_COMPARE_SWAP),
        (20, Opcode::RC_COMPARE_SWAP),
        (1, Opcode::RC_WRITE_ONLY),
    ] {
        net.advance_time(Nanos::from_millis(ms));
        let (to, what, at) = send_cas(&mut net, &mut a, 9, 9);
        assert_eq!((to, what), (a.server_qpn, then));
        net.down(&a.response(at, ACK, Some(0)));
    }
    net.down(&b.response(own, ACK, Some(0)));
}

/// The server refuses an operation that it has permitted before.
#[test]
fn a_refusal_expires_the_proofs_of_all_clients() {
    let (mut net, a, mut b) = two_clients(|config| config.servers[0].client_owned_qps = 1);
    let mut c = new_client(3);
    net.connect(&mut c);
    let sent = net.up(&c.write(c.psn, 0x8000_0000, &[0; 8]));
    assert_eq!(sent.len(), 1);
    net.down(&c.response(c.psn, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    let (to, what, at) = send_cas(&mut net, &mut b, 0, 1);
    assert_eq!((to, what), (b.server_qpn, Opcode::RC_COMPARE_SWAP));
    net.down(&b.response(at, ACK, Some(0)));
    let (to, ..) = send_cas(&mut net, &mut b, 1, 2);
    assert_eq!(to, a.server_qpn);
}

/// The refusal of a client without the right does not concern other clients.
#[test]
fn a_refusal_of_an_unproven_right_changes_nothing() {
    let (mut net, a, mut b) = two_clients(|_| {});
    let c = new_client(3);
    net.up(&c.write(c.psn, 0x8000_0000, &[0; 8]));
    net.down(&c.response(c.psn, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    assert_eq!(resolve_cas(&mut net, &mut b, &a, 0, 1).len(), 1);
}

/// The only key to which the client of these tests has a right
const OTHER: u32 = 9;

fn write_with(c: &Client, psn: u32, va: u64, rkey: u32) -> Vec<u8> {
    let reth = Reth { va: va.into(), rkey: rkey.into(), len: 8.into() };
    c.request(Opcode::RC_WRITE_ONLY, psn, |repr| repr.extended.reth = reth, &[6; 8])
}

/// Writes with the other key successfully, `times` times.
fn write_with_other_key(net: &mut Net, c: &mut Client, times: u32) {
    for _ in 0..times {
        assert_eq!(net.up(&write_with(c, c.psn, 0x8000_0000, OTHER)).len(), 1);
        assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
        c.psn += 1;
    }
}

/// Sends a READ of `len` bytes with the other key.
fn read_with_other_key(net: &mut Net, c: &Client, len: u32) {
    let reth = Reth { va: 0x8000_0000.into(), rkey: OTHER.into(), len: len.into() };
    let read = c.request(Opcode::RC_READ_REQUEST, c.psn, |repr| repr.extended.reth = reth, &[]);
    assert_eq!(net.up(&read).len(), 1);
}

/// Makes the client share a word of its own, and then write to a word without having the right: it must not
/// use the right of `owner`.
fn check_right(net: &mut Net, c: &mut Client, owner: &Client) {
    write_with_other_key(net, c, 2);
    let atomic =
        AtomicEth { va: (TABLE + 2048).into(), rkey: OTHER.into(), swap_or_add: 1.into(), compare: 1.into() };
    let cas = c.request(Opcode::RC_COMPARE_SWAP, c.psn, |repr| repr.extended.atomic = atomic, &[]);
    assert_eq!(net.up(&cas).len(), 1);
    net.down(&c.response(c.psn, Syndrome::Ack(Credit(0x1f)), Some(0)));
    let sent = net.up(&write_with(c, c.psn + 1, TABLE, KEY));
    assert_eq!(sent.len(), 1);
    assert_ne!(dest(&sent[0].0), owner.server_qpn, "the WRITE uses another client's right");
}

/// A WRITE arrives too early, and the server drops it. Then a harmless request has its PSN, and is
/// acknowledged.
#[test]
fn a_right_is_not_proven_by_a_dropped_request() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut c = new_client(3);
    write_with_other_key(&mut net, &mut c, 6);
    assert_eq!(net.up(&write_with(&c, c.psn + 1, TABLE, KEY)).len(), 1);
    assert_eq!(net.down(&c.response(c.psn, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR), None)).len(), 1);
    check_right(&mut net, &mut c, &a);
}

/// A READ takes more PSNs than is known. The server takes a WRITE with one of them for a duplicate, and does
/// not check its key.
#[test]
fn a_right_is_not_proven_by_a_psn_that_a_read_has_taken() {
    // The client continues with the PSN behind the READ's first one, or behind its last one.
    for (behind, on) in [(1, 2), (3, 16)] {
        let (mut net, a, _) = two_clients(|_| {});
        let mut c = new_client(3);
        write_with_other_key(&mut net, &mut c, 6);
        // The READ takes 16 PSNs, at a path MTU of 256.
        read_with_other_key(&mut net, &c, 4096);
        assert_eq!(net.up(&write_with(&c, c.psn + behind, TABLE, KEY)).len(), 1);
        for n in 0..16 {
            let opcode = match n {
                0 => Opcode::RC_READ_RESPONSE_FIRST,
                15 => Opcode::RC_READ_RESPONSE_LAST,
                _ => Opcode::RC_READ_RESPONSE_MIDDLE,
            };
            let bth = Bth::new(opcode, Qpn::new(c.qpn), Psn::new(c.psn + n));
            net.down(&frame(SERVER, c.ip, 0xd000 + c.port % 100, bth, |_| {}, &[3; 256]));
        }
        // The server acknowledges a duplicate WRITE with its latest PSN.
        net.down(&c.ack(c.psn + on - 1));
        c.psn += on;
        check_right(&mut net, &mut c, &a);
    }
}

/// The READ arrives late, behind a request that is too early, and takes PSNs of later requests.
#[test]
fn a_right_is_not_proven_by_a_psn_that_a_late_read_has_taken() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut c = new_client(3);
    write_with_other_key(&mut net, &mut c, 6);
    assert_eq!(net.up(&write_with(&c, c.psn + 1, 0x8000_0000, OTHER)).len(), 1);
    // 16 PSNs
    read_with_other_key(&mut net, &c, 4096);
    // A duplicate
    assert_eq!(net.up(&write_with(&c, c.psn + 2, TABLE, KEY)).len(), 1);
    net.down(&c.ack(c.psn + 15));
    c.psn += 16;
    check_right(&mut net, &mut c, &a);
}

/// The harmless request with the same PSN passes untracked, behind the window.
#[test]
fn a_right_is_not_proven_by_an_untracked_request() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut c = new_client(3);
    write_with_other_key(&mut net, &mut c, 6);
    // Both are too early for the server.
    assert_eq!(net.up(&write_with(&c, c.psn + 1, TABLE, KEY)).len(), 1);
    assert_eq!(net.up(&write_with(&c, c.psn + 65537, 0x8000_0000, OTHER)).len(), 1);
    // A READ of 65,537 packets, behind the window: the server executes it.
    read_with_other_key(&mut net, &c, 65537 * 256);
    c.psn += 65537;
    check_right(&mut net, &mut c, &a);
}

/// Returns whether a client shares words after half of the PSN space, with or without a READ that was
/// retransmitted before.
fn shares_after_half_of_all_psns(repeated: bool) -> bool {
    let (mut net, owner, _) = two_clients(|_| {});
    let mut c = new_client(3);
    let write = |net: &mut Net, c: &mut Client| {
        assert_eq!(net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&c.ack(c.psn)).len(), 1);
        c.psn += 1;
    };
    (0..6).for_each(|_| write(&mut net, &mut c));
    if repeated {
        // A READ with an old PSN, retransmitted
        let reth = Reth { va: 0x9000_0000.into(), rkey: KEY.into(), len: 4096.into() };
        let read = c.request(Opcode::RC_READ_REQUEST, c.psn - 1, |repr| repr.extended.reth = reth, &[]);
        net.up(&read);
    }
    for _ in 0..140 {
        c.psn = (c.psn + 60_000) & 0xff_ffff;
        write(&mut net, &mut c);
        write(&mut net, &mut c);
    }
    net.connect(&mut c);
    let mut shared = false;
    for _ in 0..20 {
        net.advance_time(Nanos::from_millis(50));
        let sent = net.up(&c.cas(c.psn, TABLE, 1, 1));
        shared |= dest(&sent[0].0) == owner.server_qpn;
        let from = if dest(&sent[0].0) == owner.server_qpn { owner } else { c };
        let found = (opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP).then_some(0);
        net.down(&from.response(psn(&sent[0].0), ACK, found));
        c.psn += 1;
    }
    shared
}

#[test]
fn a_retransmitted_read_does_not_prevent_proofs_forever() {
    assert!(shares_after_half_of_all_psns(false));
    assert!(shares_after_half_of_all_psns(true));
}

//! Rights of clients, which a server may revoke: that is not seen here.

use super::net::*;
use rocev2::Opcode;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use switch::Nanos;

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));

/// A CAS of `whose` at the word at `TABLE`; the queue pair of the server's that it goes to, and what as.
fn asked(net: &mut Net, whose: &mut End, compare: u64, swap: u64) -> (u32, Opcode, u32) {
    let sent = net.up(&whose.cas(whose.psn, TABLE, compare, swap));
    whose.psn += 1;
    (dest(&sent[0].0), opcode(&sent[0].0), psn(&sent[0].0))
}

/// A client whose operations take another's connection proves now and then on its own that it may still do them.
#[test]
fn a_right_is_proven_again_on_the_clients_own_connection() {
    let (mut net, a, mut b) = two(|_| {});
    let mut own = Vec::new();
    for n in 0..100 {
        net.pass(Nanos::from_millis(500));
        let (to, what, at) = asked(&mut net, &mut b, n, n + 1);
        if to == b.server_qpn {
            own.push(n);
            assert_eq!(what, Opcode::RC_COMPARE_SWAP);
            net.down(&b.answer(at, ACK, Some(n)));
            continue;
        }
        assert_eq!(to, a.server_qpn);
        let found = (what == Opcode::RC_COMPARE_SWAP).then_some(n);
        net.down(&a.answer(at, ACK, found));
    }
    // Ten seconds are twenty of these at most.
    let gaps: Vec<_> = [0].iter().chain(&own).zip(&own).map(|(a, b)| b - a).collect();
    assert!((4..10).contains(&own.len()) && gaps.iter().all(|gap| *gap <= 20), "{own:?}");
}

/// The client's own operation is no longer a detour than until it is done.
#[test]
fn a_proof_keeps_nothing_from_being_decided_for_longer_than_it_takes() {
    let (mut net, a, mut b) = two(|_| {});
    net.pass(Nanos::from_secs(11));
    let (to, what, at) = asked(&mut net, &mut b, 0, 1);
    assert_eq!((to, what), (b.server_qpn, Opcode::RC_COMPARE_SWAP));
    net.down(&b.answer(at, ACK, Some(0)));
    let (to, what, at) = asked(&mut net, &mut b, 1, 2);
    assert_eq!((to, what), (a.server_qpn, Opcode::RC_COMPARE_SWAP));
    net.down(&a.answer(at, ACK, Some(1)));
    let (to, what, _) = asked(&mut net, &mut b, 2, 3);
    assert_eq!((to, what), (a.server_qpn, Opcode::RC_WRITE_ONLY));
}

/// Nothing is learnt while the client's own operation is under way, until it must have come to the server.
#[test]
fn nothing_is_learnt_beside_an_operation_on_a_clients_own_connection() {
    let (mut net, mut a, mut b) = two(|_| {});
    net.pass(Nanos::from_secs(11));
    let (to, _, at) = asked(&mut net, &mut a, 9, 9);
    assert_eq!(to, a.server_qpn);
    net.down(&a.answer(at, ACK, Some(0)));
    let (to, _, own) = asked(&mut net, &mut b, 0, 1);
    assert_eq!(to, b.server_qpn);
    for (ms, then) in [
        (1, Opcode::RC_COMPARE_SWAP),
        (1, Opcode::RC_COMPARE_SWAP),
        (20, Opcode::RC_COMPARE_SWAP),
        (1, Opcode::RC_WRITE_ONLY),
    ] {
        net.pass(Nanos::from_millis(ms));
        let (to, what, at) = asked(&mut net, &mut a, 9, 9);
        assert_eq!((to, what), (a.server_qpn, then));
        net.down(&a.answer(at, ACK, Some(0)));
    }
    net.down(&b.answer(own, ACK, Some(0)));
}

/// The server refuses a client what it has let it do before.
#[test]
fn a_refusal_has_all_prove_their_rights_again() {
    let (mut net, a, mut b) = two(|config| config.servers[0].lanes = 1);
    let mut c = end(3);
    net.connect(&mut c);
    let sent = net.up(&c.write(c.psn, 0x8000_0000, &[0; 8]));
    assert_eq!(sent.len(), 1);
    net.down(&c.answer(c.psn, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    let (to, what, at) = asked(&mut net, &mut b, 0, 1);
    assert_eq!((to, what), (b.server_qpn, Opcode::RC_COMPARE_SWAP));
    net.down(&b.answer(at, ACK, Some(0)));
    let (to, ..) = asked(&mut net, &mut b, 1, 2);
    assert_eq!(to, a.server_qpn);
}

/// A client that never had the right is refused: that says nothing about others.
#[test]
fn a_refusal_of_what_was_never_allowed_changes_nothing() {
    let (mut net, a, mut b) = two(|_| {});
    let c = end(3);
    net.up(&c.write(c.psn, 0x8000_0000, &[0; 8]));
    net.down(&c.answer(c.psn, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    assert_eq!(locked(&mut net, &mut b, &a, 0, 1).len(), 1);
}

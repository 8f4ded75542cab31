//! A server that restarts: what was known of its memory is true of it no more.

use super::identity::handshake;
use super::net::*;
use rocev2::Opcode;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use switch::Nanos;
use swordbox::FailedCas;

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));
const VA: u64 = TABLE + 64;

/// A word that is known to hold 5, on the connection of the first of two clients; nothing is under way.
fn known() -> (Net, End, End) {
    let (mut net, mut a, mut b) = two(|_| {});
    let mut owner = a;
    let sent = net.up(&a.cas(a.psn, VA, 1, 1));
    net.down(&a.answer(psn(&sent[0].0), ACK, Some(0)));
    a.psn += 1;
    net.teach(&mut a, &mut owner, VA);
    let sent = net.up(&b.cas(b.psn, VA, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
    net.down(&a.ack(psn(&sent[0].0)));
    b.psn += 1;
    (net, a, b)
}

/// What a new client's CAS of the word leaves as.
fn asked_anew(net: &mut Net) -> Opcode {
    let mut c = end(3);
    net.connect(&mut c);
    net.pass(Nanos::from_millis(50));
    opcode(&net.up(&c.cas(c.psn, VA, 0, 7))[0].0)
}

/// The lane that the word's value was learnt on was silent for too long, while another word was operated on.
#[test]
fn values_are_forgotten_with_the_lane_that_was_silent() {
    let (mut net, _, b) = known();
    net.up(&b.cas(b.psn, TABLE, 0, 9));
    net.pass(Nanos::from_secs(3));
    assert_eq!(net.count("lanes_lost"), 1);
    assert_eq!(asked_anew(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// It was refused there.
#[test]
fn values_are_forgotten_with_the_lane_that_was_refused() {
    let (mut net, a, b) = known();
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 9));
    net.down(&a.answer(psn(&sent[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    assert_eq!(net.count("lanes_lost"), 1);
    assert_eq!(asked_anew(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// Its owner was disconnected.
#[test]
fn values_are_forgotten_with_the_lane_that_was_disconnected() {
    let (mut net, a, _) = known();
    net.up(&dreq(a.ip, SERVER, a.server_qpn));
    assert_eq!(asked_anew(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// Its owner was silent for so long that it was forgotten.
#[test]
fn values_are_forgotten_with_the_lane_that_aged() {
    let (mut net, ..) = known();
    net.pass(Nanos::from_secs(700));
    net.pass(Nanos::from_secs(700));
    assert_eq!(asked_anew(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// Both ends made their queue pairs anew.
#[test]
fn values_are_forgotten_with_the_lane_that_has_a_successor() {
    let (mut net, a, _) = known();
    let new = End { psn: 0x50_0000, ..a };
    let [req, rep] = handshake(&new);
    net.up(&req);
    net.down(&rep);
    net.up(&new.write(new.psn, 0x8000_0000, &[0; 8]));
    net.down(&new.ack(new.psn));
    assert_eq!(asked_anew(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// A server restarts, unnoticed: whatever was decided goes to a queue pair that is not there any more.
#[test]
fn what_is_decided_leaves_on_the_connection_that_the_value_was_learnt_on() {
    let (mut net, a, mut b) = known();
    for n in 5..10 {
        let sent = net.up(&b.cas(b.psn, VA, n, n + 1));
        assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
        b.psn += 1;
    }
}

/// Where failed CAS are answered here, they are as long as the server was heard of on the lane not long ago.
#[test]
fn failed_cas_are_answered_only_while_the_server_is_heard_of() {
    let (mut net, a, mut b) = two(|config| config.failed_cas = FailedCas::Answer);
    let sent = locked(&mut net, &mut b, &a, 0, 5);
    assert_eq!(dest(&sent[0].0), b.qpn);
    let sent = net.up(&b.cas(b.psn, TABLE, 7, 8));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_ATOMIC_ACKNOWLEDGE, b.qpn));
    b.psn += 1;
    net.pass(Nanos::from_millis(50));
    let sent = net.up(&b.cas(b.psn, TABLE, 7, 8));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
}

/// An answer acknowledges what its connection has under way before it, too.
#[test]
fn failed_cas_behind_another_request_is_not_answered() {
    let (mut net, a, mut b) = two(|config| config.failed_cas = FailedCas::Answer);
    let (mut owner, other) = (a, TABLE + 64);
    for _ in 0..2 {
        net.teach(&mut b, &mut owner, other);
    }
    locked(&mut net, &mut b, &a, 0, 5);
    let first = net.up(&b.cas(b.psn, other, 0, 1));
    assert_eq!(opcode(&first[0].0), Opcode::RC_WRITE_ONLY);
    b.psn += 1;
    let sent = net.up(&b.cas(b.psn, TABLE, 7, 8));
    assert!(sent.iter().all(|(frame, _)| dest(frame) != b.qpn), "{} frames", sent.len());
    let answers = net.down(&a.ack(psn(&first[0].0)));
    assert_eq!(psn(&answers[0].0), b.psn - 1);
}

/// A server that makes new connections, and answers nothing on a lane, has restarted.
#[test]
fn lanes_of_a_server_that_restarted_are_given_up_soon() {
    let (mut net, _, b) = known();
    net.up(&b.cas(b.psn, VA, 5, 6));
    let mut c = end(3);
    let [req, rep] = handshake(&c);
    net.up(&req);
    net.down(&rep);
    net.pass(Nanos::from_millis(1));
    net.connect(&mut c);
    // It does not take the lane that does not answer.
    assert_eq!(net.up(&c.cas(c.psn, VA, 0, 7)).len(), 0);
    let sent = net.pass(Nanos::from_millis(20));
    assert_eq!(net.count("lanes_lost"), 1);
    let own = sent.iter().find(|(sent, _)| dest(sent) == c.server_qpn).unwrap();
    assert_eq!(opcode(&own.0), Opcode::RC_COMPARE_SWAP);
}

/// Those on which nothing is under way are left without harm to anybody.
#[test]
fn idle_lanes_of_a_server_that_makes_new_connections_are_left() {
    let (mut net, a, b) = known();
    net.pass(Nanos::from_millis(50));
    let mut c = end(3);
    let [req, rep] = handshake(&c);
    net.up(&req);
    net.down(&rep);
    net.connect(&mut c);
    let sent = net.up(&c.cas(c.psn, VA, 0, 7));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, c.server_qpn));
    assert_eq!(net.count("lanes_lost"), 0);
    for end in [a, b] {
        let sent = net.up(&end.write(end.psn, 0x8000_0000, &[0; 8]));
        assert_eq!((sent.len(), dest(&sent[0].0)), (1, end.server_qpn));
    }
}

/// Its own queue pair is gone: what the restarted server would refuse there must not be done on another connection.
#[test]
fn client_from_before_a_restart_shares_no_lane_to_the_restarted_server() {
    let (mut net, a, mut b) = known();
    // The lane goes with its owner, and a new client lends its connection to the restarted server.
    net.up(&dreq(a.ip, SERVER, a.server_qpn));
    let mut c = end(3);
    net.connect(&mut c);
    net.pass(Nanos::from_millis(50));
    let sent = net.up(&c.cas(c.psn, VA, 0, 7));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, c.server_qpn));
    net.down(&c.answer(psn(&sent[0].0), ACK, Some(0)));
    c.psn += 1;
    let mut asked = 0;
    for _ in 0..3 {
        let sent = net.up(&b.cas(b.psn, VA, 7, 8));
        assert_eq!((sent.len(), dest(&sent[0].0)), (1, b.server_qpn), "only its own queue pair may answer");
        asked = psn(&sent[0].0);
        net.pass(Nanos::from_millis(1));
    }
    // It is there after all, and answers: the client shares again.
    net.down(&b.answer(asked, ACK, Some(7)));
    b.psn += 1;
    net.pass(Nanos::from_millis(50));
    let sent = net.up(&b.cas(b.psn, VA, 8, 9));
    assert_eq!(dest(&sent[0].0), c.server_qpn);
}

//! Restart of the server: cached values of its memory are not used afterwards.

use super::identity::handshake;
use super::net::*;
use rocev2::Opcode;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use switch::Nanos;
use swordbox::FailedCas;

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));
const VA: u64 = TABLE + 64;

/// Returns a word that is known to be 5, on the connection of the first of two clients; nothing is in flight.
fn known() -> (Net, Client, Client) {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let mut owner = a;
    let sent = net.up(&a.cas(a.psn, VA, 1, 1));
    net.down(&a.response(psn(&sent[0].0), ACK, Some(0)));
    a.psn += 1;
    net.learn_word(&mut a, &mut owner, VA);
    let sent = net.up(&b.cas(b.psn, VA, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
    net.down(&a.ack(psn(&sent[0].0)));
    b.psn += 1;
    (net, a, b)
}

/// Returns the opcode with which a new client's CAS of the word is forwarded.
fn new_cas_opcode(net: &mut Net) -> Opcode {
    let mut c = new_client(3);
    net.connect(&mut c);
    net.advance_time(Nanos::from_millis(50));
    opcode(&net.up(&c.cas(c.psn, VA, 0, 7))[0].0)
}

/// The shared QP of the word got no acknowledgement for too long, while another word was in use.
#[test]
fn values_are_discarded_with_a_silent_shared_qp() {
    let (mut net, _, b) = known();
    net.up(&b.cas(b.psn, TABLE, 0, 9));
    net.advance_time(Nanos::from_secs(3));
    assert_eq!(net.count("lanes_lost"), 1);
    assert_eq!(new_cas_opcode(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// The server refused an operation.
#[test]
fn values_are_discarded_with_a_refused_shared_qp() {
    let (mut net, a, b) = known();
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 9));
    net.down(&a.response(psn(&sent[0].0), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), None));
    assert_eq!(net.count("lanes_lost"), 1);
    assert_eq!(new_cas_opcode(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// The owner disconnected.
#[test]
fn values_are_discarded_with_a_disconnected_shared_qp() {
    let (mut net, a, _) = known();
    net.up(&dreq(a.ip, SERVER, a.server_qpn));
    assert_eq!(new_cas_opcode(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// The owner was idle for so long that it was forgotten.
#[test]
fn values_are_discarded_with_an_aged_shared_qp() {
    let (mut net, ..) = known();
    net.advance_time(Nanos::from_secs(700));
    net.advance_time(Nanos::from_secs(700));
    assert_eq!(new_cas_opcode(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// Both sides have new queue pairs.
#[test]
fn values_are_discarded_with_a_succeeded_shared_qp() {
    let (mut net, a, _) = known();
    let new = Client { psn: 0x50_0000, ..a };
    let [req, rep] = handshake(&new);
    net.up(&req);
    net.down(&rep);
    net.up(&new.write(new.psn, 0x8000_0000, &[0; 8]));
    net.down(&new.ack(new.psn));
    assert_eq!(new_cas_opcode(&mut net), Opcode::RC_COMPARE_SWAP);
}

/// After an unnoticed restart of the server, resolved operations go to a queue pair that no longer exists.
#[test]
fn resolved_operations_leave_on_the_connection_that_the_value_was_learnt_on() {
    let (mut net, a, mut b) = known();
    for n in 5..10 {
        let sent = net.up(&b.cas(b.psn, VA, n, n + 1));
        assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
        b.psn += 1;
    }
}

/// The switch answers failing CAS only shortly after an acknowledgement of the server on the shared QP.
#[test]
fn failing_cas_are_answered_only_shortly_after_an_acknowledgement() {
    let (mut net, a, mut b) = two_clients(|config| config.failed_cas = FailedCas::Respond);
    let sent = resolve_cas(&mut net, &mut b, &a, 0, 5);
    assert_eq!(dest(&sent[0].0), b.qpn);
    let sent = net.up(&b.cas(b.psn, TABLE, 7, 8));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_ATOMIC_ACKNOWLEDGE, b.qpn));
    b.psn += 1;
    net.advance_time(Nanos::from_millis(50));
    let sent = net.up(&b.cas(b.psn, TABLE, 7, 8));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
}

/// A response acknowledges all earlier requests of its connection, too.
#[test]
fn a_failing_cas_behind_another_request_is_not_answered_by_the_switch() {
    let (mut net, a, mut b) = two_clients(|config| config.failed_cas = FailedCas::Respond);
    let (mut owner, other) = (a, TABLE + 64);
    for _ in 0..2 {
        net.learn_word(&mut b, &mut owner, other);
    }
    resolve_cas(&mut net, &mut b, &a, 0, 5);
    let first = net.up(&b.cas(b.psn, other, 0, 1));
    assert_eq!(opcode(&first[0].0), Opcode::RC_WRITE_ONLY);
    b.psn += 1;
    let sent = net.up(&b.cas(b.psn, TABLE, 7, 8));
    assert!(sent.iter().all(|(frame, _)| dest(frame) != b.qpn), "{} frames", sent.len());
    let responses = net.down(&a.ack(psn(&first[0].0)));
    assert_eq!(psn(&responses[0].0), b.psn - 1);
}

/// A server that accepts new connections, and does not answer on a shared QP, has restarted.
#[test]
fn shared_qps_of_a_restarted_server_are_given_up_soon() {
    let (mut net, _, b) = known();
    net.up(&b.cas(b.psn, VA, 5, 6));
    let mut c = new_client(3);
    let [req, rep] = handshake(&c);
    net.up(&req);
    net.down(&rep);
    net.advance_time(Nanos::from_millis(1));
    net.connect(&mut c);
    // The CAS does not use the shared QP that gets no answer.
    assert_eq!(net.up(&c.cas(c.psn, VA, 0, 7)).len(), 0);
    let sent = net.advance_time(Nanos::from_millis(20));
    assert_eq!(net.count("lanes_lost"), 1);
    let own = sent.iter().find(|(sent, _)| dest(sent) == c.server_qpn).unwrap();
    assert_eq!(opcode(&own.0), Opcode::RC_COMPARE_SWAP);
}

/// Shared QPs with nothing in flight are returned without harm to their clients.
#[test]
fn idle_shared_qps_of_a_server_that_accepts_connections_are_returned() {
    let (mut net, a, b) = known();
    net.advance_time(Nanos::from_millis(50));
    let mut c = new_client(3);
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

/// The client's own queue pair is gone: an operation that the restarted server would refuse there must not be
/// executed on another connection.
#[test]
fn a_client_from_before_a_restart_uses_no_shared_qp_to_the_restarted_server() {
    let (mut net, a, mut b) = known();
    // The shared QP ends with its owner, and a new client's connection to the restarted server becomes
    // shared.
    net.up(&dreq(a.ip, SERVER, a.server_qpn));
    let mut c = new_client(3);
    net.connect(&mut c);
    net.advance_time(Nanos::from_millis(50));
    let sent = net.up(&c.cas(c.psn, VA, 0, 7));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, c.server_qpn));
    net.down(&c.response(psn(&sent[0].0), ACK, Some(0)));
    c.psn += 1;
    let mut last_psn = 0;
    for _ in 0..3 {
        let sent = net.up(&b.cas(b.psn, VA, 7, 8));
        assert_eq!(
            (sent.len(), dest(&sent[0].0)),
            (1, b.server_qpn),
            "only the client's own queue pair may be used"
        );
        last_psn = psn(&sent[0].0);
        net.advance_time(Nanos::from_millis(1));
    }
    // The queue pair exists after all, and the server responds: the client shares again.
    net.down(&b.response(last_psn, ACK, Some(7)));
    b.psn += 1;
    net.advance_time(Nanos::from_millis(50));
    let sent = net.up(&b.cas(b.psn, VA, 8, 9));
    assert_eq!(dest(&sent[0].0), c.server_qpn);
}

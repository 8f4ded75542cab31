//! Cached value of a word after an atomic whose response arrives when later operations are in flight.

use super::*;
use swordbox::FailedCas;

const WORD: u64 = TABLE + 8;
const FOUND: u64 = 0x1111_2222_3333_4444;

/// Sends a request. Returns its opcode and its PSN on the shared QP.
fn send(net: &mut Net, request: &[u8]) -> (Opcode, u32) {
    let sent = net.up(request);
    assert_eq!(sent.len(), 1);
    (opcode(&sent[0].0), psn(&sent[0].0))
}

/// Sends a CAS of a word with unknown value, and then operations that do not change the word.
fn in_flight() -> (Net, Client, Client, u32) {
    let (mut net, mut a, mut b) = two_clients(|_| {});
    let (first, shared_psn) = send(&mut net, &a.cas(a.psn, WORD, FOUND, 0x5555_6666_7777_8888));
    assert_eq!(first, Opcode::RC_COMPARE_SWAP);
    assert_eq!(
        send(&mut net, &b.cas(b.psn, TABLE, 0, 5)).0,
        Opcode::RC_WRITE_ONLY,
        "a resolved operation on another word"
    );
    // This CAS would change the word if its address were the same.
    let other = b.cas(b.psn + 1, TABLE + 16, 0x5555_6666_7777_8888, 6);
    assert_eq!(send(&mut net, &other).0, Opcode::RC_COMPARE_SWAP);
    send(&mut net, &a.write(a.psn + 1, TABLE + 24, &[9; 8]));
    (a.psn, b.psn) = (a.psn + 2, b.psn + 2);
    (net, a, b, shared_psn)
}

/// Delivers the response, and checks that a CAS that expects `value` is resolved as successful.
fn assert_known(net: &mut Net, owner: &Client, shared_psn: u32, b: &Client, value: u64) {
    net.down(&owner.response(shared_psn, Syndrome::Ack(Credit(0x1f)), Some(FOUND)));
    let sent = net.up(&b.cas(b.psn, WORD, value, 0x99));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
    assert_eq!(Packet::parse(&sent[0].0).unwrap().payload(), 0x99u64.to_le_bytes(), "the word is {value:x}");
}

#[test]
fn operations_on_other_words_do_not_change_the_learnt_value() {
    let (mut net, a, b, shared_psn) = in_flight();
    assert_known(&mut net, &a, shared_psn, &b, 0x5555_6666_7777_8888);
}

#[test]
fn writes_behind_an_atomic_change_the_learnt_value() {
    let (mut net, a, mut b, shared_psn) = in_flight();
    send(&mut net, &a.write(a.psn, WORD + 2, &[0xaa, 0xab, 0xac]));
    send(&mut net, &b.write(b.psn, WORD + 6, &[0xb6, 0xb7, 0xb8, 0xb9]));
    send(&mut net, &b.write(b.psn + 1, WORD - 1, &[0xc7, 0xc0]));
    b.psn += 2;
    assert_known(&mut net, &a, shared_psn, &b, 0xb7b6_66ac_abaa_88c0);
}

#[test]
fn an_atomic_behind_an_atomic_changes_the_learnt_value() {
    let (mut net, a, mut b, shared_psn) = in_flight();
    let (second, _) = send(&mut net, &b.cas(b.psn, WORD, 0x5555_6666_7777_8888, 0x77));
    assert_eq!(second, Opcode::RC_COMPARE_SWAP);
    b.psn += 1;
    assert_known(&mut net, &a, shared_psn, &b, 0x77);
}

#[test]
fn a_resolved_atomic_behind_an_atomic_sets_the_learnt_value() {
    let (mut net, a, mut b, shared_psn) = in_flight();
    send(&mut net, &a.write(a.psn, WORD, &0x33u64.to_le_bytes()));
    assert_eq!(send(&mut net, &b.cas(b.psn, WORD, 0x33, 0x44)).0, Opcode::RC_WRITE_ONLY);
    b.psn += 1;
    assert_known(&mut net, &a, shared_psn, &b, 0x44);
}

/// A client that lost its response retransmits, and gets the same response.
#[test]
fn a_retransmitted_atomic_gets_its_first_response_again() {
    let found = |b: &Client, sent: Frames| {
        assert_eq!((sent.len(), dest(&sent[0].0), psn(&sent[0].0)), (1, b.qpn, b.psn));
        Packet::parse(&sent[0].0).unwrap().atomic_ack().unwrap().original.get()
    };
    // A resolved atomic, and one that the server executes
    for (va, compare, value) in [(TABLE, 0, 0), (WORD, FOUND, FOUND)] {
        let (mut net, a, b) = two_clients(|_| {});
        let repeated = b.cas(b.psn, va, compare, 3);
        let (sent, shared_psn) = send(&mut net, &repeated);
        let response = (sent == Opcode::RC_COMPARE_SWAP).then_some(value);
        assert_eq!(
            found(&b, net.down(&a.response(shared_psn, Syndrome::Ack(Credit(0x1f)), response))),
            value
        );
        assert_eq!(found(&b, net.up(&repeated)), value, "the retransmission");
    }
    // A failing CAS that the switch answers
    let (mut net, owner, mut b) = two_clients(|config| config.failed_cas = FailedCas::Respond);
    resolve_cas(&mut net, &mut b, &owner, 0, 7);
    let failing = b.cas(b.psn, TABLE, 1, 2);
    for _ in 0..2 {
        assert_eq!(found(&b, net.up(&failing)), 7);
    }
}

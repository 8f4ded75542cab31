//! Traffic class and ECN of frames that the switch generates.

use super::net::*;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn};

/// DSCP 26, of the server's responses
const ANSWERS: u8 = 26 << 2;
/// DSCP 48, of CNPs
const CNPS: u8 = 48 << 2;
const CE: u8 = 3;

fn tos(frame: &[u8]) -> u8 {
    Packet::parse(frame).unwrap().ipv4().unwrap().tos
}

/// Returns two connections as [`two_clients`] does. All responses of the server have class [`ANSWERS`] and a
/// congestion mark.
fn two_marked() -> (Net, Client, Client) {
    let marked = |n| Client { tos: ANSWERS | CE, ..new_client(n) };
    with_learnt_word(Net::new(|config| config.servers[0].client_owned_qps = 1), marked(1), marked(2))
}

#[test]
fn generated_responses_do_not_copy_the_ecn_mark() {
    let (mut net, a, mut b) = two_marked();
    let sent = resolve_cas(&mut net, &mut b, &a, 0, 5);
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_ATOMIC_ACKNOWLEDGE, b.qpn));
    assert_eq!(tos(&sent[0].0), ANSWERS);
}

#[test]
fn cnps_copied_to_users_of_a_shared_qp_keep_their_traffic_class() {
    let (mut net, a, b) = two_marked();
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_WRITE_ONLY, a.server_qpn));
    let mut bth = Bth::new(Opcode::CNP, Qpn::new(a.qpn), Psn::ZERO);
    bth.set_becn(true);
    let cnp = frame(SERVER, a.ip, 0xd000, bth, |repr| set_tos(repr, CNPS), &[]);
    let mut sent = net.down(&cnp);
    sent.sort_by_key(|(frame, _)| dest(frame));
    assert_eq!(sent.len(), 2);
    assert!(sent[0] == (cnp, CLIENTS), "the owner of the shared QP gets the CNP unchanged");
    let (copy, port) = &sent[1];
    assert_eq!((opcode(copy), dest(copy), *port), (Opcode::CNP, b.qpn, CLIENTS));
    assert_eq!(tos(copy), CNPS);
    let packet = Packet::parse(copy).unwrap();
    assert!(packet.verify_icrc() && packet.bth().becn());
}

//! Switch-owned QPs, and client-owned shared QPs whose owners are stuck.

use super::net::*;
use rnic::Interface;
use rocev2::aeth::{Credit, NakCode, RnrTimer, Syndrome};
use rocev2::ethernet::MacAddr;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::{Function, Nanos, Verdict};
use swordbox::{Command, Config, Event, OpenSharedQp, SwitchOwnedQps};

/// The switch's own queue pair
const SWITCH_QP: Client =
    Client { ip: [10, 0, 9, 9], qpn: 0x900, server_qpn: 0x950, port: 0xc900, psn: 0x77_0000, tos: 0 };

fn with_switch_qp(config: &mut Config) {
    let mac = MacAddr([2, 0, SWITCH_QP.ip[0], SWITCH_QP.ip[1], SWITCH_QP.ip[2], SWITCH_QP.ip[3]]);
    config.interface = Some(Interface::new(mac, SWITCH_QP.ip.into(), 16));
    config.servers[0].client_owned_qps = 1;
    config.servers[0].connect = Some(SwitchOwnedQps { service: 1, private_data: Vec::new(), qps: 1 });
}

fn open(net: &mut Net) {
    let template = SWITCH_QP.request(Opcode::RC_WRITE_ONLY, 0, |_| {}, &[]);
    let params = OpenSharedQp {
        shared_qp: 0,
        qpn: Qpn::new(SWITCH_QP.qpn),
        template,
        port: SERVERS,
        psn: Psn::new(SWITCH_QP.psn),
        rd_atomic: 4,
    };
    net.swordbox.on_command(Command::OpenSharedQp(Box::new(params)), net.now);
    net.permit();
    assert_eq!(
        net.events.last(),
        Some(&Event::SharedQpOpened { shared_qp: 0, qpn: Qpn::new(SWITCH_QP.qpn), opened: true })
    );
}

fn read_response(end: &Client, psn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_READ_RESPONSE_ONLY, Qpn::new(end.qpn), Psn::new(psn));
    frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &[0; 8])
}

/// Returns two connections whose words use the switch-owned QP: the key was probed, and the word at `TABLE`
/// is 0.
fn ready() -> (Net, Client, Client) {
    let mut net = Net::new(with_switch_qp);
    open(&mut net);
    let (mut a, mut b) = (new_client(1), new_client(2));
    net.connect(&mut a);
    net.connect(&mut b);
    assert!(net.up(&a.cas(a.psn, TABLE, 1, 1)).is_empty(), "the CAS waits for the probe of the key");
    let probe = net.advance_time(Nanos::from_micros(60));
    assert_eq!(probe.len(), 1);
    assert_eq!((opcode(&probe[0].0), dest(&probe[0].0)), (Opcode::RC_READ_REQUEST, SWITCH_QP.server_qpn));
    assert_eq!(psn(&probe[0].0), SWITCH_QP.psn);
    let sent = net.down(&read_response(&SWITCH_QP, SWITCH_QP.psn));
    assert_eq!(sent.len(), 1);
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, SWITCH_QP.server_qpn));
    let responses = net.down(&SWITCH_QP.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    assert_eq!((responses.len(), dest(&responses[0].0), psn(&responses[0].0)), (1, a.qpn, a.psn));
    a.psn += 1;
    let mut owner = SWITCH_QP;
    net.learn_word(&mut a, &mut owner, TABLE);
    assert_eq!(net.count("learnt"), 1);
    (net, a, b)
}

#[test]
fn a_switch_owned_qp_outlives_its_clients() {
    let (mut net, mut a, mut b) = ready();
    assert_eq!(resolve_cas(&mut net, &mut b, &SWITCH_QP, 0, 5).len(), 1);
    assert_eq!(resolve_cas(&mut net, &mut a, &SWITCH_QP, 5, 6).len(), 1);
    // The first client disconnects while an operation of the other one is in flight, which is not delayed.
    let sent = net.up(&b.cas(b.psn, TABLE, 6, 7));
    assert_eq!(net.up(&dreq(a.ip, SERVER, a.server_qpn)).len(), 1, "the client owns no shared QP");
    b.psn += 1;
    assert_eq!(net.down(&SWITCH_QP.ack(psn(&sent[0].0))).len(), 1);
    assert_eq!(resolve_cas(&mut net, &mut b, &SWITCH_QP, 7, 8).len(), 1);
    assert_eq!((net.count("lanes"), net.count("own_lanes"), net.count("own_lanes_lost")), (0, 1, 0));
}

/// The key belongs to another protection domain than the QP. No other operation is in flight when the server
/// refuses it.
#[test]
fn a_key_refused_on_a_switch_owned_qp_uses_a_client_owned_one() {
    let mut net = Net::new(with_switch_qp);
    open(&mut net);
    let (mut a, mut b) = (new_client(1), new_client(2));
    net.connect(&mut a);
    net.connect(&mut b);
    assert!(net.up(&a.cas(a.psn, TABLE, 1, 1)).is_empty());
    let probe = net.advance_time(Nanos::from_micros(60));
    let refused = Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR);
    let sent = net.down(&SWITCH_QP.response(psn(&probe[0].0), refused, None));
    assert_eq!(
        (sent.len(), dest(&sent[0].0)),
        (1, a.server_qpn),
        "the CAS leaves on its client's connection"
    );
    assert_eq!(net.events.last(), Some(&Event::SharedQpLost { shared_qp: 0, qpn: Qpn::new(SWITCH_QP.qpn) }));
    net.down(&a.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    a.psn += 1;
    // The QP is connected again, but the key is not probed so soon.
    open(&mut net);
    let mut owner = a;
    net.learn_word(&mut a, &mut owner, TABLE);
    let owner = a;
    assert_eq!(resolve_cas(&mut net, &mut b, &owner, 0, 5).len(), 1);
    assert_eq!((net.count("keys_refused"), net.count("ended"), net.count("lanes_lost")), (1, 0, 1));
}

#[test]
fn an_idle_switch_owned_qp_is_probed_and_given_up_without_a_response() {
    let (mut net, a, mut b) = ready();
    let probe = net.advance_time(Nanos::from_millis(520));
    assert_eq!((opcode(&probe[0].0), dest(&probe[0].0)), (Opcode::RC_WRITE_ONLY, SWITCH_QP.server_qpn));
    assert!(net.down(&SWITCH_QP.ack(psn(&probe[0].0))).is_empty());
    assert_eq!(resolve_cas(&mut net, &mut b, &SWITCH_QP, 0, 5).len(), 1, "the shared QP works as before");
    let probe = net.advance_time(Nanos::from_millis(1200));
    assert!(probe.len() > 3, "{} probes", probe.len());
    assert_eq!(net.events.last(), Some(&Event::SharedQpLost { shared_qp: 0, qpn: Qpn::new(SWITCH_QP.qpn) }));
    // The next operation uses a client's connection.
    let sent = net.up(&a.cas(a.psn, TABLE, 5, 6));
    assert_eq!((sent.len(), dest(&sent[0].0), net.count("lanes")), (1, a.server_qpn, 1));
}

/// The server has restarted unnoticed, and a key is probed on a QP that no longer exists. Operations with the
/// key continue meanwhile; otherwise clients with short timeouts would lose their connections repeatedly.
#[test]
fn operations_do_not_wait_for_an_unanswered_probe() {
    let mut net = Net::new(with_switch_qp);
    open(&mut net);
    let (mut a, mut b) = (new_client(1), new_client(2));
    net.connect(&mut a);
    net.connect(&mut b);
    assert!(net.up(&a.cas(a.psn, TABLE, 1, 1)).is_empty(), "the CAS waits for the probe of the key");
    let probe = net.advance_time(Nanos::from_micros(60));
    assert_eq!((probe.len(), opcode(&probe[0].0)), (1, Opcode::RC_READ_REQUEST));
    let sent = net.advance_time(Nanos::from_micros(150));
    let cas =
        sent.iter().find(|(sent, _)| opcode(sent) == Opcode::RC_COMPARE_SWAP).expect("the CAS is forwarded");
    assert_eq!(dest(&cas.0), a.server_qpn);
    let sent = net.up(&b.cas(b.psn, TABLE + 8, 1, 1));
    assert!(
        sent.is_empty() || dest(&sent[0].0) != SWITCH_QP.server_qpn,
        "other operations do not wait for the probe, either"
    );
    assert_eq!(net.down(&a.response(psn(&cas.0), Syndrome::Ack(Credit(0x1f)), Some(0))).len(), 1);
    // The response was only late: operations use the QP again.
    net.down(&read_response(&SWITCH_QP, SWITCH_QP.psn));
    a.psn += 1;
    let sent = net.up(&a.cas(a.psn, TABLE + 512, 1, 1));
    assert_eq!(dest(&sent[0].0), SWITCH_QP.server_qpn);
}

#[test]
fn client_owned_qps_are_returned_when_the_switch_has_its_own() {
    let mut net = Net::new(with_switch_qp);
    let mut a = new_client(1);
    net.connect(&mut a);
    let sent = net.up(&a.cas(a.psn, TABLE, 1, 1));
    assert_eq!(dest(&sent[0].0), a.server_qpn);
    open(&mut net);
    net.down(&a.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    a.psn += 1;
    let sent = net.up(&a.cas(a.psn, TABLE, 1, 1));
    assert_eq!(
        dest(&sent[0].0),
        a.server_qpn,
        "the server may have restarted before the shared QP was connected"
    );
    net.down(&a.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    a.psn += 1;
    assert!(net.up(&a.cas(a.psn, TABLE, 1, 1)).is_empty(), "the key is probed on the new shared QP");
    let probe = net.advance_time(Nanos::from_micros(60));
    assert_eq!(dest(&probe[0].0), SWITCH_QP.server_qpn);
    let sent = net.down(&read_response(&SWITCH_QP, psn(&probe[0].0)));
    assert_eq!(dest(&sent[0].0), SWITCH_QP.server_qpn);
}

#[test]
fn frames_to_the_switch_are_punted_or_dropped() {
    let (mut net, a, _) = ready();
    let bth = |opcode, qpn| Bth::new(opcode, Qpn::new(qpn), Psn::ZERO);
    let to_us = |bth| frame(SERVER, SWITCH_QP.ip, 0xd000, bth, |_| {}, &[]);
    let mad = frame(SERVER, SWITCH_QP.ip, 0xd000, bth(Opcode::UD_SEND_ONLY, 1), |_| {}, &[0; 256]);
    assert_eq!(net.run(&mad, SERVERS).0, Verdict::Punt);
    for frame in [
        to_us(bth(Opcode::RC_ACKNOWLEDGE, 0x999)),
        to_us(bth(Opcode::RC_SEND_ONLY, SWITCH_QP.qpn)),
        // As if another host were connected to that queue pair
        frame(a.ip, SERVER, a.port, bth(Opcode::RC_SEND_ONLY, SWITCH_QP.server_qpn), |_| {}, &[]),
    ] {
        let (verdict, sent) = net.run(&frame, SERVERS);
        assert!(matches!(verdict, Verdict::Drop(_)) && sent.is_empty(), "{verdict:?}");
    }
}

/// A SEND that waits for a receive is in flight for as long as the server's program posts none.
#[test]
fn an_owner_whose_send_waits_for_a_receive_stalls_no_client_and_keeps_its_connection() {
    let (mut net, mut a, b) = two_clients(|config| config.servers[0].client_owned_qps = 2);
    let owner = a;
    let message = a.request(Opcode::RC_SEND_ONLY, a.psn, |_| {}, &[0; 8]);
    let sent = net.up(&message);
    assert_eq!(sent.len(), 1);
    let own = psn(&sent[0].0);
    assert_eq!(net.down(&owner.response(own, Syndrome::RnrNak(RnrTimer(1)), None)).len(), 1);
    assert!(net.up(&b.cas(b.psn, TABLE, 0, 5)).is_empty(), "the shared QP is busy with its owner");
    let sent = net.advance_time(Nanos::from_millis(2));
    let cas = sent
        .iter()
        .find(|(frame, _)| dest(frame) == b.server_qpn)
        .expect("the CAS leaves on another shared QP");
    assert_eq!(opcode(&cas.0), Opcode::RC_COMPARE_SWAP, "the word's value is learnt again");
    let new_owner = b;
    let responses = net.down(&new_owner.response(psn(&cas.0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    assert_eq!((responses.len(), dest(&responses[0].0)), (1, b.qpn));
    // The receive is posted at last.
    assert_eq!(net.up(&message).len(), 1);
    let responses = net.down(&owner.ack(own));
    assert_eq!((responses.len(), dest(&responses[0].0), psn(&responses[0].0)), (1, a.qpn, a.psn));
    a.psn += 1;
    assert_eq!(resolve_cas(&mut net, &mut a, &new_owner, 5, 6).len(), 1);
    assert_eq!((net.count("lanes_left"), net.count("lanes_lost"), net.count("ended")), (1, 0, 0));
}

/// The owner's SEND has waited for a receive since long before another client needs the shared QP. That
/// client's timeouts may be shorter than the time after which an owner counts as stuck.
#[test]
fn a_shared_qp_whose_owner_has_been_stuck_for_long_is_returned_at_once() {
    let (mut net, a, b) = two_clients(|config| config.servers[0].client_owned_qps = 2);
    let sent = net.up(&a.request(Opcode::RC_SEND_ONLY, a.psn, |_| {}, &[0; 8]));
    assert_eq!(net.down(&a.response(psn(&sent[0].0), Syndrome::RnrNak(RnrTimer(1)), None)).len(), 1);
    net.advance_time(Nanos::from_millis(30));
    assert_eq!(net.count("lanes_left"), 0, "no other client needs the shared QP");
    assert!(net.up(&b.cas(b.psn, TABLE, 0, 5)).is_empty(), "the shared QP is busy with its owner");
    let sent = net.advance_time(Nanos::from_micros(60));
    assert!(sent.iter().any(|(frame, _)| dest(frame) == b.server_qpn), "the CAS leaves on another shared QP");
}

/// One packet is lost: words return to the switch-owned QP when the late response to its probe arrives.
#[test]
fn words_return_to_the_switch_owned_qp_after_a_late_probe_response() {
    let mut net = Net::new(with_switch_qp);
    open(&mut net);
    let (mut a, mut b) = (new_client(1), new_client(2));
    net.connect(&mut a);
    net.connect(&mut b);
    assert!(net.up(&a.cas(a.psn, TABLE, 1, 1)).is_empty());
    let probe = net.advance_time(Nanos::from_micros(60));
    assert_eq!((probe.len(), opcode(&probe[0].0)), (1, Opcode::RC_READ_REQUEST));
    // The probe is lost.
    let sent = net.advance_time(Nanos::from_micros(150));
    let cas =
        sent.iter().find(|(sent, _)| opcode(sent) == Opcode::RC_COMPARE_SWAP).expect("the CAS is forwarded");
    assert_eq!(dest(&cas.0), a.server_qpn);
    net.down(&a.response(psn(&cas.0), Syndrome::Ack(Credit(0x1f)), Some(0)));
    a.psn += 1;
    net.down(&read_response(&SWITCH_QP, SWITCH_QP.psn));
    for _ in 0..20 {
        net.advance_time(Nanos::from_millis(100));
        // Later probes are answered.
        let sent = net.up(&b.cas(b.psn, TABLE, 1, 1));
        assert!(!sent.is_empty(), "the CAS is not held");
        if dest(&sent[0].0) == SWITCH_QP.server_qpn {
            return;
        }
        net.down(&a.response(
            psn(&sent[0].0),
            Syndrome::Ack(Credit(0x1f)),
            (opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP).then_some(0),
        ));
        b.psn += 1;
        for (frame, _) in net.advance_time(Nanos::from_millis(1)) {
            if dest(&frame) == SWITCH_QP.server_qpn {
                net.down(&SWITCH_QP.ack(psn(&frame)));
            }
        }
    }
    panic!("still on a client's connection; lanes = {}", net.count("lanes"));
}

/// The server has restarted, and gives a client the queue pair number of its endpoint of the switch-owned QP.
#[test]
fn a_client_can_reuse_the_number_of_a_lost_switch_owned_qp() {
    let (mut net, _, _) = ready();
    net.advance_time(Nanos::from_millis(100));
    let c = Client { server_qpn: SWITCH_QP.server_qpn, ..new_client(3) };
    let [req, rep] = super::identity::handshake(&c);
    net.up(&req);
    net.down(&rep);
    let started = net.now;
    let mut tries = 0;
    while net.up(&c.write(c.psn, 0x8000_0000, &[0; 8])).is_empty() {
        tries += 1;
        net.advance_time(Nanos::from_millis(10));
    }
    assert!(
        tries < 8,
        "{tries} transmissions were dropped in {:?}, {} as spoofed",
        net.now.since(started),
        net.count("spoofed")
    );
}

/// After a path change, the server's responses arrive on another port. The QP is idle, and the response to
/// its probe is the first one.
#[test]
fn a_probe_response_updates_the_servers_port() {
    let (mut net, _, b) = ready();
    let probe = net.advance_time(Nanos::from_millis(520));
    assert_eq!((opcode(&probe[0].0), dest(&probe[0].0)), (Opcode::RC_WRITE_ONLY, SWITCH_QP.server_qpn));
    assert!(net.up(&SWITCH_QP.ack(psn(&probe[0].0))).is_empty());
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert_eq!((dest(&sent[0].0), sent[0].1), (SWITCH_QP.server_qpn, CLIENTS));
}

//! Packets on a shared QP to the server, and the responses to clients.

use super::net::*;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use rocev2::repr::Repr;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet};
use switch::{Function, Nanos};

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));

/// Returns a WRITE of the first word by a client, with bits of its BTH set.
fn write(client: &Client, set: impl FnOnce(&mut Bth)) -> Vec<u8> {
    let change = |repr: &mut Repr<'_>| {
        set(&mut repr.bth);
        repr.extended.reth = Reth { va: TABLE.into(), rkey: KEY.into(), len: 8.into() };
    };
    client.request(Opcode::RC_WRITE_ONLY, client.psn, change, &[1; 8])
}

/// Returns the same frame with a VLAN tag.
fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    frame
}

/// The client's frames are untagged. Those of the QP's owner may be tagged, which makes a WRITE of one byte
/// as long as the client's, whose padding has three bytes.
#[test]
fn a_write_on_a_shared_qp_keeps_its_payload() {
    for tags in [0, 1] {
        let (mut net, mut a, mut b) = two_clients(|_| {});
        let frame = a.write(a.psn, 0x8000_0000, &[0; 8]);
        assert_eq!(net.up(&if tags == 1 { tagged(frame) } else { frame }).len(), 1);
        net.down(&a.ack(a.psn));
        a.psn += 1;
        for len in 1..=64 {
            let bytes: Vec<_> = (1..=len).collect();
            let sent = net.up(&b.write(b.psn, TABLE, &bytes));
            let packet = Packet::parse(&sent[0].0).unwrap();
            assert_eq!((dest(&sent[0].0), packet.tags().len()), (a.server_qpn, tags), "{len} bytes");
            assert_eq!((packet.payload(), packet.verify_icrc()), (&bytes[..], true), "{tags} tags");
            assert_eq!(packet.reth().unwrap().len.get(), len.into());
            assert_eq!(net.down(&a.ack(psn(&sent[0].0))).len(), 1);
            b.psn += 1;
        }
    }
}

#[test]
fn a_request_on_a_shared_qp_keeps_its_solicited_event_bit() {
    for solicited in [false, true] {
        let (mut net, a, b) = two_clients(|_| {});
        let sent = net.up(&write(&b, |bth| bth.set_solicited(solicited)));
        assert_eq!(dest(&sent[0].0), a.server_qpn);
        assert_eq!(Packet::parse(&sent[0].0).unwrap().bth().solicited(), solicited);
    }
}

#[test]
fn a_write_on_a_shared_qp_is_acknowledged_if_its_client_requests_it() {
    for ack_req in [false, true] {
        let (mut net, a, b) = two_clients(|_| {});
        let sent = net.up(&write(&b, |bth| bth.set_ack_req(ack_req)));
        assert_eq!(dest(&sent[0].0), a.server_qpn);
        let responses = net.down(&a.ack(psn(&sent[0].0)));
        let acks: Vec<_> = responses.iter().map(|(ack, _)| (opcode(ack), dest(ack), psn(ack))).collect();
        let expected = (Opcode::RC_ACKNOWLEDGE, b.qpn, b.psn);
        assert_eq!(acks, if ack_req { vec![expected] } else { vec![] });
    }
}

/// Returns a WRITE, a resolved atomic, and an unresolved one, in flight on the first client's connection.
fn three_in_flight() -> (Net, Client, Client, Frames) {
    let (mut net, a, b) = two_clients(|_| {});
    let requests =
        [a.write(a.psn, TABLE + 8, b"abcde"), b.cas(b.psn, TABLE, 0, 5), b.cas(b.psn + 1, TABLE + 16, 1, 2)];
    let sent: Frames = requests.iter().flat_map(|request| net.up(request)).collect();
    let opcodes: Vec<_> = sent.iter().map(|(sent, _)| opcode(sent)).collect();
    assert_eq!(opcodes, [Opcode::RC_WRITE_ONLY, Opcode::RC_WRITE_ONLY, Opcode::RC_COMPARE_SWAP]);
    (net, a, b, sent)
}

#[test]
fn unacknowledged_operations_are_retransmitted_unchanged() {
    let (mut net, _, _, sent) = three_in_flight();
    let again = net.advance_time(Nanos::from_millis(1));
    assert!(again.len() >= 3 && again.chunks(3).all(|round| round == sent), "{} frames", again.len());
}

#[test]
fn a_nak_retransmits_at_once() {
    let (mut net, a, b, sent) = three_in_flight();
    let second = psn(&sent[1].0);
    let frames = net.down(&a.response(second, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR), None));
    let (again, replies): (Frames, Frames) = frames.into_iter().partition(|(_, port)| *port == SERVERS);
    assert_eq!(again, sent[1..]);
    assert_eq!(
        (replies.len(), dest(&replies[0].0), psn(&replies[0].0)),
        (1, a.qpn, a.psn),
        "the first operation is complete"
    );
    assert_eq!(net.down(&a.ack(second)).len(), 1);
    let responses = net.down(&a.response(second + 1, ACK, Some(1)));
    assert_eq!((responses.len(), dest(&responses[0].0), psn(&responses[0].0)), (1, b.qpn, b.psn + 1));
}

/// Returns the interval of the timer.
fn timer_interval(net: &mut Net) -> Nanos {
    let at = net.swordbox.next_timer().unwrap();
    net.advance_time(at.since(net.now));
    net.swordbox.next_timer().unwrap().since(at)
}

/// Timers cost the worker time.
#[test]
fn the_timer_slows_down_when_nothing_is_in_flight() {
    let (mut net, a, b) = two_clients(|_| {});
    let before = timer_interval(&mut net);
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    assert!(timer_interval(&mut net) < before, "a retransmission may be necessary");
    net.down(&a.ack(psn(&sent[0].0)));
    timer_interval(&mut net);
    assert_eq!(timer_interval(&mut net), before);
}

/// The server accepts one atomic at a time. One client waits for that, and then another client that has
/// WRITEs in flight.
#[test]
fn a_client_with_operations_in_flight_does_not_overtake_waiting_clients() {
    let (mut net, a, b) = two_clients(|config| config.servers[0].rd_atomic = 1);
    let mut c = new_client(3);
    net.connect(&mut c);
    let word = TABLE + 512;
    let sent: Frames = [
        b.write(b.psn, TABLE, &[1; 8]),
        a.cas(a.psn, word, 1, 1),
        b.write(b.psn + 1, TABLE, &[2; 8]),
        c.cas(c.psn, word, 3, 3),
        b.cas(b.psn + 2, word, 2, 2),
    ]
    .iter()
    .flat_map(|request| net.up(request))
    .collect();
    assert_eq!(sent.len(), 3);
    let frames = net.down(&a.response(psn(&sent[1].0), ACK, Some(0)));
    let sent: Vec<_> = frames.iter().filter(|(_, port)| *port == SERVERS).collect();
    let compare = Packet::parse(&sent[0].0).unwrap().atomic().unwrap().compare.get();
    assert_eq!((sent.len(), compare), (1, 3));
}

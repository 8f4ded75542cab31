//! Assignment of packets to connections: by queue pair and PSN, independent of the UDP source port.

use super::net::*;
use rocev2::aeth::{Credit, Syndrome};
use rocev2::cm::{self, Kind, MAD_LEN, MadHeader, Rep, Req};
use rocev2::deth::Deth;
use rocev2::repr::Repr;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn};
use switch::{Nanos, PortId, Verdict};
use swordbox::Event;
use zerocopy::FromZeros;

/// Returns the owner of a shared QP that another client has used, the other client, and the PSN that the
/// server expects, which differs from the owner's.
fn translated() -> (Net, Client, Client, u32) {
    let (mut net, a, mut b) = two_clients(|_| {});
    for n in 0..5 {
        resolve_cas(&mut net, &mut b, &a, n, n + 1);
    }
    let expected = a.psn + 5;
    (net, a, b, expected)
}

/// A network may reroute a connection's packets at any time, and a NIC may change its source port for that.
#[test]
fn a_translated_connection_survives_a_new_source_port() {
    let (mut net, a, _, expected) = translated();
    let moved = Client { port: a.port + 1, ..a };
    let sent = net.up(&moved.write(a.psn, 0x8000_0000, &[1; 8]));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, expected));
    let sent = net.down(&a.ack(expected));
    assert_eq!((psn(&sent[0].0), dest(&sent[0].0)), (a.psn, a.qpn));
    let sent = net.up(&a.write(a.psn + 1, 0x8000_0000, &[1; 8]));
    assert_eq!(psn(&sent[0].0), expected + 1);
}

/// The server's source port may change as well.
#[test]
fn a_translated_connection_survives_a_new_source_port_of_the_server() {
    let (mut net, a, mut b, _) = translated();
    for n in 5..10 {
        let sent = net.up(&b.cas(b.psn, TABLE, n, n + 1));
        b.psn += 1;
        let mut ack = a.ack(psn(&sent[0].0));
        ack[35] ^= n as u8;
        let end = ack.len() - 4;
        let icrc = rocev2::icrc::compute_for(&ack[14..end], false, 20);
        ack[end..].copy_from_slice(&icrc.to_le_bytes());
        let sent = net.down(&ack);
        assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_ATOMIC_ACKNOWLEDGE, b.qpn));
    }
}

/// A packet with a client's forged address and a guessed PSN.
#[test]
fn a_forged_packet_does_not_change_a_translated_connection() {
    let (mut net, a, _, expected) = translated();
    for psn in [77, 0x80_0000, 0xff_ffff] {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(a.server_qpn), Psn::new(psn));
        let forged = frame(a.ip, SERVER, 0xbeef, bth, |_| {}, &[0; 8]);
        assert_eq!(net.up(&forged).len(), 0);
    }
    assert_eq!(net.count("strays"), 3);
    let sent = net.up(&a.write(a.psn, 0x8000_0000, &[7; 8]));
    assert_eq!(psn(&sent[0].0), expected);
    // After an idle time, too
    net.down(&a.ack(expected));
    net.advance_time(Nanos::from_secs(5));
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(a.server_qpn), Psn::new(77));
    assert_eq!(net.up(&frame(a.ip, SERVER, 0xbeef, bth, |_| {}, &[0; 8])).len(), 0);
    assert_eq!(net.up(&frame([10, 0, 1, 99], SERVER, 0xbeef, bth, |_| {}, &[0; 8])).len(), 0);
    let sent = net.up(&a.write(a.psn + 1, 0x8000_0000, &[7; 8]));
    assert_eq!(psn(&sent[0].0), expected + 1);
}

/// The client has a new queue pair with its old number, connected to a new queue pair of the server.
#[test]
fn a_client_that_reuses_its_queue_pair_number_gets_responses() {
    let (mut net, a, b, _) = translated();
    let mut new = Client { server_qpn: 0x777, psn: 0x80_0000, ..a };
    for _ in 0..12 {
        assert_eq!(net.up(&new.write(new.psn, 0x8000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&new.ack(new.psn)).len(), 1, "PSN {:#x}", new.psn);
        new.psn += 1;
    }
    let cas = new.cas(new.psn, TABLE + 2048, 1, 0);
    net.up(&cas);
    let diverging =
        |event: &Event| matches!(event, Event::TranslationRequested(new) if new.server.1 == Qpn::new(0x777));
    assert!(net.events.iter().any(diverging), "the connection becomes translated");
    // The old connection is over, and its packets are dropped.
    assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[0; 8])).len(), 0);
    // Other clients use another shared QP.
    let sent = net.up(&b.cas(b.psn, TABLE, 5, 6));
    assert_ne!(dest(&sent[0].0), a.server_qpn);
}

fn datagram(from: [u8; 4], to: [u8; 4], mad: &[u8]) -> Vec<u8> {
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO);
    let change = |repr: &mut Repr<'_>| repr.extended.deth = Deth::new(Deth::GSI_QKEY, Qpn::GSI);
    frame(from, to, 0xc123, bth, change, mad)
}

/// Returns the REQ and the REP of a connection.
pub(crate) fn handshake(end: &Client) -> [Vec<u8>; 2] {
    handshake_of(end, |_| {})
}

pub(crate) fn handshake_of(end: &Client, change: impl FnOnce(&mut Req)) -> [Vec<u8>; 2] {
    handshake_of_both(end, change, |_| {})
}

pub(crate) fn handshake_of_both(
    end: &Client,
    change: impl FnOnce(&mut Req),
    change_rep: impl FnOnce(&mut Rep),
) -> [Vec<u8>; 2] {
    let mut req = Req::new_zeroed();
    req.local_comm_id = 5.into();
    req.set_qpn(Qpn::new(end.qpn));
    req.set_starting_psn(Psn::new(0x1234));
    change(&mut req);
    let mut rep = Rep::new_zeroed();
    rep.remote_comm_id = 5.into();
    rep.set_qpn(Qpn::new(end.server_qpn));
    rep.set_starting_psn(Psn::new(end.psn));
    change_rep(&mut rep);
    let mut mads = [[0; MAD_LEN]; 2];
    cm::emit(&MadHeader::new(Kind::Req, 1), &req, &mut mads[0]);
    cm::emit(&MadHeader::new(Kind::Rep, 1), &rep, &mut mads[1]);
    [datagram(end.ip, SERVER, &mads[0]), datagram(SERVER, end.ip, &mads[1])]
}

/// A forged REQ and REP with the addresses of both hosts.
#[test]
fn a_forged_handshake_does_not_change_a_translated_connection() {
    for port in [CLIENTS, SERVERS] {
        let (mut net, a, mut b, expected) = translated();
        let [req, rep] = handshake(&Client { psn: 0x50_0000, ..a });
        net.up(&req);
        net.run(&rep, port);
        let sent = net.up(&a.write(a.psn, 0x8000_0000, &[7; 8]));
        assert_eq!((sent.len(), psn(&sent[0].0)), (1, expected), "{port:?}");
        net.down(&a.ack(expected));
        assert_eq!(resolve_cas(&mut net, &mut b, &a, 5, 6).len(), 1);
    }
}

/// Both sides have new queue pairs with their old numbers.
#[test]
fn a_handshake_replaces_a_translated_connection_when_both_ends_have_sent_packets() {
    let (mut net, a, _, _) = translated();
    let mut new = Client { psn: 0x50_0000, ..a };
    let [req, rep] = handshake(&new);
    net.up(&req);
    net.down(&rep);
    assert_eq!(
        net.up(&new.write(new.psn, 0x8000_0000, &[7; 8])).len(),
        1,
        "the request is forwarded unchanged"
    );
    let over = |net: &Net| net.events.iter().any(|event| matches!(event, Event::ConnectionEnded(_)));
    assert!(!over(&net));
    let sent = net.down(&new.ack(new.psn));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, new.psn));
    assert!(over(&net));
    new.psn += 1;
    net.events.clear();
    net.connect(&mut new);
}

/// After a restart, only the connection manager can announce the successor of an ended connection.
#[test]
fn a_handshake_replaces_a_connection_that_ended_before_a_restart() {
    let a = Client { psn: 0x50_0000, ..new_client(1) };
    let connection = swordbox::Connection {
        server: (std::net::IpAddr::from(SERVER), Qpn::new(a.server_qpn)),
        client: (std::net::IpAddr::from(a.ip), Qpn::new(a.qpn)),
    };
    let mut net = Net::new(|config| config.ended = vec![connection]);
    net.advance_time(Nanos::from_secs(3));
    assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[7; 8])).len(), 0);
    let [req, rep] = handshake(&a);
    net.up(&req);
    net.down(&rep);
    assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[7; 8])).len(), 1);
    assert_eq!(net.down(&a.ack(a.psn)).len(), 1);
    assert_eq!(net.up(&a.write(a.psn + 1, 0x8000_0000, &[7; 8])).len(), 1);
    assert_eq!(net.events, [Event::ConnectionEnded(connection)]);
}

/// A DREQ that does not arrive from the client's direction.
#[test]
fn a_dreq_on_the_wrong_port_ends_nothing() {
    let (mut net, a, mut b, _) = translated();
    let (verdict, sent) = net.run(&dreq(b.ip, SERVER, b.server_qpn), SERVERS);
    assert_eq!(sent.len(), usize::from(matches!(verdict, Verdict::Forward(PortId(_)))));
    assert_eq!(resolve_cas(&mut net, &mut b, &a, 5, 6).len(), 1);
}

/// Packets of ended connections are dropped even if the table is full.
#[test]
fn an_ended_connection_does_not_pass_while_the_table_is_full() {
    let a = new_client(1);
    let connection = swordbox::Connection {
        server: (std::net::IpAddr::from(SERVER), Qpn::new(a.server_qpn)),
        client: (std::net::IpAddr::from(a.ip), Qpn::new(a.qpn)),
    };
    let mut net = Net::new(|config| {
        config.ended = vec![connection];
        config.connections = 2;
    });
    (10..20).for_each(|n| drop(net.up(&new_client(n).write(0, 0x8000_0000, &[0; 8]))));
    assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[7; 8])).len(), 0);
}

/// A response to no request of the connection: the client ignores it, and the tables do not change.
#[test]
fn a_stray_response_does_not_change_a_translated_connection() {
    let (mut net, a, mut b, _) = translated();
    for n in 0..5 {
        net.down(&a.response(0x80_0000 + n, Syndrome::Ack(Credit(0x1f)), None));
    }
    assert_eq!(net.count("strays"), 5);
    assert_eq!(resolve_cas(&mut net, &mut b, &a, 5, 6).len(), 1);
}

/// A forged response from another port does not change where requests are sent. Its PSN is close to those of
/// the connection, which would be harmless without a switch.
#[test]
fn a_forged_response_does_not_divert_a_translated_connection() {
    for distance in [-1000, -1, 1000] {
        let (mut net, a, b, expected) = translated();
        net.up(&a.ack(expected.wrapping_add_signed(distance)));
        for request in [b.cas(b.psn, TABLE, 5, 6), a.write(a.psn, 0x8000_0000, &[7; 8])] {
            let ports: Vec<_> = net.up(&request).iter().map(|sent| sent.1).collect();
            assert!(ports.iter().all(|port| *port == SERVERS), "{distance}: {ports:?}");
        }
        assert!(net.advance_time(Nanos::from_millis(1)).iter().all(|sent| sent.1 == SERVERS), "{distance}");
    }
}

/// A forged REQ and REP name a client's queue pair before its first packet, with another server.
#[test]
fn responses_reach_a_client_despite_a_forged_handshake_with_another_server() {
    let other: [u8; 4] = [10, 0, 0, 2];
    let mut net = Net::new(|config| config.servers.push(swordbox::Server::new(other.into())));
    let mut a = new_client(1);
    for mut forged in handshake(&a) {
        // The same datagrams, to and from the other server
        for at in [26, 30] {
            if forged[at..at + 4] == SERVER {
                forged[at..at + 4].copy_from_slice(&other);
            }
        }
        forged[24..26].fill(0);
        let sum = rocev2::checksum::Sum::default().add(&forged[14..34]).checksum();
        forged[24..26].copy_from_slice(&sum.to_be_bytes());
        let end = forged.len() - 4;
        let icrc = rocev2::icrc::compute_for(&forged[14..end], false, 20);
        forged[end..].copy_from_slice(&icrc.to_le_bytes());
        net.up(&forged);
    }
    assert_eq!(net.count("paired_by_cm"), 1);
    for _ in 0..12 {
        assert_eq!(net.up(&a.write(a.psn, 0x8000_0000, &[0; 8])).len(), 1);
        assert_eq!(net.down(&a.ack(a.psn)).len(), 1, "PSN {:#x}", a.psn);
        a.psn += 1;
    }
    net.up(&a.cas(a.psn, TABLE + 2048, 1, 0));
    assert!(
        net.events.iter().any(|event| matches!(event, Event::TranslationRequested(_))),
        "the connection becomes translated"
    );
}

/// The server's endpoint of a connection from before a restart of client and switch still answers to a reused
/// queue pair number.
#[test]
fn late_responses_of_an_earlier_connection_do_not_affect_the_next() {
    let mut net = Net::new(|_| {});
    let mut a = new_client(1);
    for late in 0..3 {
        assert_eq!(net.down(&a.ack(a.psn + 40_000 + late)).len(), 1);
    }
    net.connect(&mut a);
    for found in 0..3 {
        let sent = net.up(&a.cas(a.psn, 0x8000_0000, 1, 1));
        assert_eq!(sent.len(), 1);
        let response = a.response(psn(&sent[0].0), Syndrome::Ack(Credit(0x1f)), Some(found));
        let replies = net.down(&response);
        assert_eq!((replies.len(), psn(&replies[0].0)), (1, a.psn), "the response is not stale");
        // A retransmission gets the same response.
        let replies = net.up(&a.cas(a.psn, 0x8000_0000, 1, 1));
        let value = Packet::parse(&replies[0].0).unwrap().atomic_ack().map(|ack| ack.original.get());
        assert_eq!((replies.len(), value), (1, Some(found)));
        a.psn += 1;
    }
}

/// A client gets the table index of a forgotten client that had the same starting PSN. The response to its
/// CAS is lost behind the switch before the connection is paired.
#[test]
fn a_client_does_not_get_the_response_of_a_forgotten_client() {
    let mut net = Net::new(|_| {});
    let a = new_client(1);
    net.up(&a.cas(a.psn, TABLE + 2048, 0, 1));
    net.down(&a.response(a.psn, Syndrome::Ack(Credit(0x1f)), Some(77)));
    for _ in 0..100 {
        net.advance_time(Nanos::from_secs(20));
    }
    assert_eq!(net.swordbox.usage()[0], 0);
    let mut b = Client { psn: a.psn, ..new_client(2) };
    let cas = b.cas(b.psn, TABLE + 2048, 0, 1);
    net.up(&cas);
    for _ in 0..8 {
        b.psn += 1;
        net.up(&b.write(b.psn, 0x8000_0000, &[0; 8]));
        net.down(&b.ack(b.psn));
    }
    // The connection is translated from here on.
    b.psn += 1;
    net.up(&b.cas(b.psn, TABLE + 2048, 1, 1));
    net.down(&b.response(b.psn, Syndrome::Ack(Credit(0x1f)), Some(1)));
    let sent = net.up(&cas);
    assert!(sent.iter().all(|(frame, _)| dest(frame) == b.server_qpn), "only the server answers");
}

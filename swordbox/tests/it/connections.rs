//! Connections in the table: pairing, ageing, end, and reuse of their numbers.

use super::net::*;
use rocev2::Qpn;
use std::net::IpAddr;
use switch::Nanos;
use swordbox::{Connection, Event};

/// All requests of a client use another connection. The client receives no frames on its own, but is not
/// idle.
#[test]
fn a_client_that_only_uses_a_shared_qp_is_not_forgotten() {
    let (mut net, a, mut b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    for n in 0..40 {
        net.advance_time(Nanos::from_millis(100));
        let sent = resolve_cas(&mut net, &mut b, &owner, n, n + 1);
        assert_eq!((sent.len(), dest(&sent[0].0)), (1, b.qpn), "round {n}");
    }
}

/// The owner of a shared QP sends nothing itself, while other clients use the QP.
#[test]
fn an_idle_owner_of_a_shared_qp_is_not_forgotten() {
    let (mut net, a, mut b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    for n in 0..40 {
        let sent = net.up(&b.cas(b.psn, TABLE, n, n + 1));
        assert_eq!(sent.len(), 1, "round {n}");
        // The operation is still in flight when connections are aged.
        net.advance_time(Nanos::from_millis(100));
        b.psn += 1;
        let responses = net.down(&owner.ack(psn(&sent[0].0)));
        assert_eq!(responses.len(), 1, "round {n}");
    }
}

/// The server responds only after the owner of the shared QP has been idle for longer than `ageing`.
#[test]
fn an_owner_is_not_forgotten_while_operations_are_in_flight_on_its_qp() {
    let (mut net, a, b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    let owner = a;
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 1));
    net.advance_time(Nanos::from_millis(1900));
    let responses = net.down(&owner.ack(psn(&sent[0].0)));
    assert_eq!((responses.len(), dest(&responses[0].0), psn(&responses[0].0)), (1, b.qpn, b.psn));
    assert_eq!(net.count("lanes_lost"), 0);
}

/// A connection is disconnected, so the journal has to drop it.
#[test]
fn a_disconnected_connection_is_reported_as_ended() {
    let (mut net, _, b) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    assert_eq!(net.up(&dreq(b.ip, SERVER, b.server_qpn)).len(), 1);
    // A late packet is dropped.
    assert_eq!(net.up(&b.write(b.psn, 0x8000_0000, &[1; 8])).len(), 0);
    net.advance_time(Nanos::from_secs(3));
    let over =
        |event: &Event| matches!(event, Event::ConnectionEnded(old) if old.client.1 == Qpn::new(b.qpn));
    assert_eq!(net.events.iter().filter(|event| over(event)).count(), 1);
}

/// A DREQ comes from a host that is neither the client nor the server of the connection.
#[test]
fn a_dreq_from_another_host_ends_nothing() {
    let (mut net, a, mut b) = two_clients(|_| {});
    net.up(&dreq(a.ip, SERVER, b.server_qpn));
    assert_eq!(resolve_cas(&mut net, &mut b, &a, 0, 5).len(), 1);
}

/// While a client is silent, another host sends to its queue pair at the server.
#[test]
fn another_host_does_not_take_over_a_translated_connection() {
    let (mut net, a, b) = two_clients(|_| {});
    let owner = a;
    // The server's expected PSN differs from A's next one.
    let mut b = b;
    resolve_cas(&mut net, &mut b, &owner, 0, 5);
    net.advance_time(Nanos::from_secs(3));
    let forger = Client { server_qpn: a.server_qpn, ..new_client(4) };
    for psn in [77, a.psn, a.psn + 1] {
        assert_eq!(net.up(&forger.write(psn, 0x8000_0000, &[0; 8])).len(), 0);
    }
    let sent = net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
    assert_eq!((sent.len(), psn(&sent[0].0)), (1, a.psn + 1));
}

/// A host with many connections that were set up without the connection manager.
#[test]
fn a_hundred_connections_between_two_hosts_are_paired() {
    let mut net = Net::new(|config| config.connections = 256);
    let mut ends: Vec<Client> = (0..100)
        .map(|n| Client {
            qpn: 0x1000 + n,
            server_qpn: 0x2000 + n,
            port: 0xc000 + n as u16,
            psn: n * 0x2_0000,
            ..new_client(1)
        })
        .collect();
    for _ in 0..8 {
        for end in &ends {
            net.up(&end.write(end.psn, 0x8000_0000, &[0; 8]));
        }
        for end in &mut ends {
            net.down(&end.ack(end.psn));
            end.psn += 1;
        }
    }
    assert_eq!(net.count("paired"), 100);
}

/// The connection table was full for some time before.
#[test]
fn connections_are_paired_after_the_table_was_full() {
    let mut net = Net::new(|config| {
        config.connections = 4;
        config.ageing = Nanos::from_secs(1);
    });
    (10..20).for_each(|n| drop(net.up(&new_client(n).write(0, 0x8000_0000, &[0; 8]))));
    net.advance_time(Nanos::from_secs(5));
    assert_eq!(net.swordbox.usage()[0], 0);
    let mut a = new_client(1);
    for _ in 0..6 {
        net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
    assert_eq!(net.count("paired"), 1);
}

/// A server reuses a queue pair number, for the same host, long after the previous connection became idle.
#[test]
fn a_queue_pair_number_can_be_reused_after_ageing() {
    let (mut net, a, _) = two_clients(|config| config.ageing = Nanos::from_secs(1));
    net.advance_time(Nanos::from_secs(5));
    let new = Client { qpn: 0x777, port: 0xc777, psn: 0x12_3456, ..a };
    assert_eq!(net.up(&new.write(new.psn, 0x8000_0000, &[0; 8])).len(), 1);
}

/// After the switch's restart, the server responds to operations of other clients on a client's connection.
#[test]
fn late_responses_do_not_reach_clients_whose_connections_ended_with_a_restart() {
    let a = new_client(1);
    let (server, client) =
        ((IpAddr::from(SERVER), Qpn::new(a.server_qpn)), (IpAddr::from(a.ip), Qpn::new(a.qpn)));
    let mut net = Net::new(|config| config.ended = vec![Connection { server, client }]);
    assert_eq!(net.down(&a.ack(a.psn)).len(), 0);
    let other = new_client(2);
    assert_eq!(net.down(&other.ack(other.psn)).len(), 1);
}

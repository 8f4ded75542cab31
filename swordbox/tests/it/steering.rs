//! Steering across a restart of the server.

use super::net::*;
use rocev2::Packet;
use rocev2::aeth::{Credit, Syndrome};
use switch::Nanos;
use swordbox::Layers;
use swordbox::steering::{KEY as KEY_AT, NEXT};
use swordbox::steering::{ListsConfig, Structure};

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));
const NODES: u64 = 0x7000_0000_0000;

fn node(n: u64) -> u64 {
    NODES + n * 128
}

fn va(frame: &[u8]) -> u64 {
    Packet::parse(frame).unwrap().atomic().unwrap().va.get()
}

fn steering() -> Net {
    Net::new(|config| {
        config.servers[0].tables.clear();
        config.servers[0].structures =
            vec![Structure::Lists(ListsConfig::new(4, 128, NODES..NODES + 128 * 1000))];
        config.layers = Layers::STEER;
    })
}

fn write(net: &mut Net, end: &mut Client, va: u64, bytes: &[u8]) {
    assert_eq!(net.up(&end.write(end.psn, va, bytes)).len(), 1);
    assert_eq!(net.down(&end.ack(end.psn)).len(), 1);
    end.psn += 1;
}

/// Writes a node of key 0 and appends it to the first one. Returns the node that the CAS is forwarded to.
fn append(net: &mut Net, end: &mut Client, n: u64) -> u64 {
    let mut bytes = [0; 128];
    bytes[KEY_AT..KEY_AT + 8].copy_from_slice(&0u64.to_le_bytes());
    write(net, end, node(n), &bytes);
    let sent = net.up(&end.cas(end.psn, node(0) + NEXT as u64, 0, node(n)));
    net.down(&end.response(end.psn, ACK, Some(0)));
    end.psn += 1;
    (va(&sent[0].0) - NEXT as u64 - NODES) / 128
}

/// A connection appends nodes 10 and 11 to key 0.
fn known() -> (Net, Client) {
    let (mut net, mut a) = (steering(), new_client(1));
    for _ in 0..6 {
        write(&mut net, &mut a, 0x8000_0000, &[0; 8]);
    }
    write(&mut net, &mut a, node(9), &[0; 128]);
    assert_eq!(append(&mut net, &mut a, 10), 0);
    assert_eq!(append(&mut net, &mut a, 11), 10);
    (net, a)
}

#[test]
fn new_memory_is_not_steered_by_old_state() {
    let (mut net, _) = known();
    net.advance_time(Nanos::from_secs(1));
    let mut b = new_client(2);
    for _ in 0..8 {
        write(&mut net, &mut b, 0x8000_0000, &[0; 8]);
    }
    assert_eq!(append(&mut net, &mut b, 20), 0);
}

/// The process that has the lists restarts; another process on the same host continues.
#[test]
fn another_process_of_the_server_does_not_bridge_a_restart() {
    let (mut net, mut a) = known();
    let mut c = new_client(3);
    for _ in 0..6 {
        write(&mut net, &mut c, 0x9000_0000, &[0; 8]);
    }
    write(&mut net, &mut a, 0x8000_0000, &[0; 8]);
    // The first process restarts.
    for _ in 0..100 {
        net.advance_time(Nanos::from_millis(10));
        write(&mut net, &mut c, 0x9000_0000, &[0; 8]);
    }
    let mut b = new_client(2);
    for _ in 0..8 {
        write(&mut net, &mut b, 0x8000_0000, &[0; 8]);
        write(&mut net, &mut c, 0x9000_0000, &[0; 8]);
    }
    assert_eq!(append(&mut net, &mut b, 20), 0);
}

/// A connection sends `requests` requests, and its server restarts. Another connection with the same server QPN,
/// this client QPN, and PSNs ahead by `later` appends node 20. Returns the node that its CAS is forwarded to.
fn reused_numbers(requests: u32, later: u32, qpn: u32) -> u64 {
    let (mut net, mut a) = known();
    let mut d = new_client(4);
    for _ in 0..requests {
        write(&mut net, &mut d, 0x8000_0000, &[0; 8]);
    }
    write(&mut net, &mut a, 0x8000_0000, &[0; 8]);
    net.advance_time(Nanos::from_secs(1));
    // The server's host has restarted: queue pairs have the same numbers.
    let mut new = Client { qpn, psn: new_client(4).psn + later, ..new_client(4) };
    for _ in 0..10 {
        write(&mut net, &mut new, 0x8000_0000, &[0; 8]);
    }
    write(&mut net, &mut new, node(30), &[0; 128]);
    append(&mut net, &mut new, 20)
}

/// Programs that exchange QPNs out of band often begin with a fixed PSN.
#[test]
fn a_reused_server_qpn_and_psn_reach_new_memory() {
    assert_eq!(reused_numbers(1, 0, 0x150), 0);
}

#[test]
fn a_reused_server_qpn_and_a_close_psn_reach_new_memory() {
    assert_eq!(reused_numbers(1, 30_000, 0x150), 0);
}

#[test]
fn reused_qpns_and_a_close_psn_reach_new_memory() {
    assert_eq!(reused_numbers(6, 30_000, new_client(4).qpn), 0);
}

#[test]
fn reused_qpns_and_the_same_psn_reach_new_memory() {
    assert_eq!(reused_numbers(6, 0, new_client(4).qpn), 0);
}

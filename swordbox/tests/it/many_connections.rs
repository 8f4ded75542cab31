//! Very many connections, real or forged.

use super::net::*;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::Nanos;

const OUTSIDER: [u8; 4] = [10, 0, 1, 99];

/// Returns a packet of an unknown host, to a queue pair that may not exist.
fn outsider(from: [u8; 4], qpn: u32, psn: u32) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(qpn), Psn::new(psn));
    frame(from, SERVER, 0xc001, bth, |_| {}, &[0; 8])
}

/// The oldest of very many unpaired endpoints is forgotten, repeatedly, and in the end all of them.
#[test]
fn forgetting_one_of_very_many_endpoints_takes_constant_time() {
    let mut net = Net::new(|config| {
        config.connections = 65_536;
        config.per_host = 65_536;
        config.ageing = Nanos::from_secs(1);
    });
    for qpn in 0..40_000 {
        net.up(&outsider(OUTSIDER, 0x1000 + qpn, 1));
    }
    // If each step examined all unpaired endpoints, this would take 1.6 billion steps.
    for qpn in 0..40_000 {
        net.up(&outsider(OUTSIDER, 0x1000 + qpn, 0x80_0000));
    }
    assert_eq!(net.count("forgotten"), 40_000);
    net.advance_time(Nanos::from_secs(30));
    assert_eq!(net.count("forgotten"), 80_000);
    assert_eq!(net.swordbox.usage()[0], 0);
}

/// A host that sends to very many queue pairs occupies a part of the table only, and other hosts' connections
/// are paired.
#[test]
fn a_host_cannot_fill_the_connection_table() {
    let mut net = Net::new(|config| config.per_host = 16);
    (0..500).for_each(|qpn| drop(net.up(&outsider(OUTSIDER, 0x1000 + qpn, 1))));
    assert_eq!(net.swordbox.usage()[0], 8);
    assert_eq!(net.count("untracked"), 484);
    let mut a = new_client(1);
    net.connect(&mut a);
    // Forgotten connections make room.
    net.advance_time(Nanos::from_secs(1300));
    assert_eq!(net.swordbox.usage()[0], 0);
    (500..508).for_each(|qpn| drop(net.up(&outsider(OUTSIDER, 0x1000 + qpn, 1))));
    assert_eq!(net.count("untracked"), 484);
}

/// Connections to hosts that are no servers take no table entry.
#[test]
fn only_connections_to_servers_are_tracked() {
    let mut net = Net::new(|_| {});
    for qpn in 0..500 {
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(qpn), Psn::new(1));
        let sent = net.up(&frame(OUTSIDER, [10, 0, 1, 98], 0xc001, bth, |_| {}, &[0; 8]));
        assert_eq!(sent.len(), 1);
    }
    assert_eq!((net.swordbox.usage()[0], net.count("untracked")), (0, 0));
}

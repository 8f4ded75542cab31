//! Packets that may write to long ranges, or whose sender has no known right.

use super::net::*;
use rocev2::aeth::{Credit, Syndrome};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::Nanos;
use swordbox::WordTable;

const ACK: Syndrome = Syndrome::Ack(Credit(0x1f));
const OUTSIDER: [u8; 4] = [10, 0, 1, 99];

/// Returns a long WRITE with a key that the server never issued.
fn long_write(qpn: u32, psn: u32) -> Vec<u8> {
    let reth = Reth { va: 0.into(), rkey: 0xdead.into(), len: 0x7fff_ffffu32.into() };
    let bth = Bth::new(Opcode::RC_WRITE_FIRST, Qpn::new(qpn), Psn::new(psn));
    frame(OUTSIDER, SERVER, 0xc123, bth, |repr| repr.extended.reth = reth, &[9; 1024])
}

/// Returns a packet with an unknown opcode.
fn unknown(from: [u8; 4]) -> Vec<u8> {
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x999), Psn::new(1));
    let mut bytes = frame(from, SERVER, 0xc123, bth, |_| {}, &[9; 16]);
    bytes[14 + 20 + 8] = 0xc4;
    let at = bytes.len() - 4;
    let icrc = rocev2::icrc::compute_for(&bytes[14..at], false, 20);
    bytes[at..].copy_from_slice(&icrc.to_le_bytes());
    bytes
}

/// Returns the number of CAS, out of 1,000 at intervals of ten milliseconds, that are resolved while `forged`
/// precedes each.
fn resolved_beside(forged: impl Fn(u32) -> Vec<u8>) -> usize {
    let (mut net, mut a, _) = two_clients(|config| config.proof = Nanos::from_secs(1_000_000));
    let owner = a;
    // The burst at the beginning is not counted.
    let mut resolved = 0;
    for n in 0..4_000u32 {
        let sent = net.up(&a.cas(a.psn, TABLE, 9, 9));
        a.psn += 1;
        net.up(&forged(n));
        let at = psn(&sent[0].0);
        if opcode(&sent[0].0) == Opcode::RC_COMPARE_SWAP {
            net.down(&owner.response(at, ACK, Some(0)));
        } else {
            resolved += usize::from(n >= 3_000);
            net.down(&owner.ack(at));
        }
        net.advance_time(Nanos::from_millis(10));
    }
    resolved
}

/// A host without rights or connections sends packets that the server will refuse.
#[test]
fn packets_of_untrusted_hosts_suspend_resolution_for_a_part_of_the_time() {
    assert_eq!(resolved_beside(|_| new_client(9).write(0, 0x8000_0000, &[0; 8])), 1000);
    for resolved in [
        resolved_beside(|_| long_write(0xabc, 1)),
        resolved_beside(|n| long_write(0x1000 + n, n)),
        resolved_beside(|_| unknown(OUTSIDER)),
        resolved_beside(|n| Client { ip: OUTSIDER, ..new_client(9) }.write(n, TABLE, &[1; 8])),
        resolved_beside(|n| {
            Client { ip: OUTSIDER, server_qpn: 0x1000 + n, ..new_client(9) }.cas(n, TABLE, 0, 1)
        }),
    ] {
        assert!(resolved >= 500, "{resolved} of 1000 CAS resolved");
    }
}

/// An untrusted packet may write, so nothing may be resolved while it is in flight.
#[test]
fn a_packet_of_an_untrusted_host_passes_only_without_resolved_operations() {
    for forged in [
        long_write(0xabc, 1),
        unknown(OUTSIDER),
        Client { ip: OUTSIDER, ..new_client(9) }.write(1, TABLE, &[1; 8]),
    ] {
        let (mut net, mut a, _) = two_clients(|_| {});
        let owner = a;
        let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
        a.psn += 1;
        assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
        assert_eq!(net.up(&forged).len(), 0);
        net.down(&owner.ack(psn(&sent[0].0)));
        // Now the packet passes, and nothing is resolved for some time.
        let sent = net.up(&a.cas(a.psn, TABLE, 5, 6));
        a.psn += 1;
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
        assert_eq!(net.up(&forged).len(), 1);
        net.down(&owner.response(psn(&sent[0].0), ACK, Some(5)));
        let sent = net.up(&a.cas(a.psn, TABLE, 6, 7));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
    }
}

/// If each packet visited every line, this would take more than a billion steps.
#[test]
fn packets_that_may_write_anywhere_take_constant_time() {
    let (mut net, mut a, b) = two_clients(|config| {
        let all = TABLE..TABLE + 64 * 16_384;
        config.servers[0].tables = vec![WordTable { rkey: None, range: all, stride: 8, writable: true }];
        config.proof = Nanos::from_secs(1_000_000);
    });
    let owner = a;
    for n in 64..16_000 {
        let sent = net.up(&a.cas(a.psn, TABLE + 64 * n, 1, 1));
        net.down(&owner.response(psn(&sent[0].0), ACK, Some(0)));
        a.psn += 1;
    }
    assert!(net.swordbox.usage()[2] > 15_000);
    let reth = Reth { va: 0.into(), rkey: KEY.into(), len: u32::MAX.into() };
    let long = b.request(Opcode::RC_WRITE_FIRST, b.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    for _ in 0..50_000 {
        assert_eq!(net.up(&unknown(b.ip)).len(), 1);
        assert_eq!(net.up(&long).len(), 1);
    }
}

/// A client's long WRITE covers one word, while other words are being resolved all the time.
#[test]
fn a_long_write_does_not_wait_for_operations_on_other_words() {
    let (mut net, mut a, mut b) = two_clients(|config| {
        config.servers[0].tables[0].range = TABLE..TABLE + (64 << 20);
        config.in_flight = 64;
    });
    let mut owner = a;
    let (inside, outside) = (TABLE + 64, TABLE + (32 << 20));
    for va in [inside, outside] {
        for _ in 0..2 {
            net.learn_word(&mut a, &mut owner, va);
        }
    }
    let sent = net.up(&a.cas(a.psn, inside, 0, 1));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY);
    a.psn += 1;
    let mut in_flight: std::collections::VecDeque<u32> = [psn(&sent[0].0)].into();
    let reth = Reth { va: TABLE.into(), rkey: KEY.into(), len: (1 << 20).into() };
    let long = b.request(Opcode::RC_WRITE_FIRST, b.psn, |repr| repr.extended.reth = reth, &[9; 1024]);
    b.psn += 1;
    let mut passed = net.up(&long).iter().any(|(sent, _)| dest(sent) == b.server_qpn);
    assert!(!passed, "a resolved operation is in flight");
    for n in 0..20 {
        let sent = net.up(&a.cas(a.psn, outside, n, n + 1));
        assert_eq!(opcode(&sent[0].0), Opcode::RC_WRITE_ONLY, "round {n}");
        a.psn += 1;
        in_flight.push_back(psn(&sent[0].0));
        let mut sent = net.down(&owner.ack(in_flight.pop_front().unwrap()));
        sent.extend(net.up(&long));
        sent.extend(net.advance_time(Nanos::from_micros(200)));
        passed |= sent.iter().any(|(sent, _)| dest(sent) == b.server_qpn);
    }
    assert!(passed);
    let sent = net.up(&a.cas(a.psn, inside, 1, 2));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
}

/// Returns how many of four CAS of `va` by the second client leave on the first client's connection.
fn shared(net: &mut Net, client: &mut Client, va: u64) -> usize {
    let shared = |_| {
        let sent = net.up(&client.cas(client.psn, va, 9, 9));
        let (at, is_shared) = (psn(&sent[0].0), dest(&sent[0].0) != client.server_qpn);
        if !is_shared {
            net.down(&client.response(at, ACK, Some(0)));
        } else if opcode(&sent[0].0) == Opcode::RC_WRITE_ONLY {
            net.down(&new_client(1).ack(at));
        } else {
            net.down(&new_client(1).response(at, ACK, Some(0)));
        }
        client.psn += 1;
        net.advance_time(Nanos::from_millis(10));
        is_shared
    };
    (0..4).map(shared).filter(|is_shared| *is_shared).count()
}

/// Programs on the server write to this word.
#[test]
fn a_word_that_must_not_be_cached_is_not_shared() {
    let never = TABLE + 64..TABLE + 72;
    let (mut net, _, mut b) = two_clients(|config| config.servers[0].never_cached = vec![never.clone()]);
    assert_eq!(shared(&mut net, &mut b, never.start), 0);
    assert!(shared(&mut net, &mut b, never.end) > 0, "the next word is shared");
}

//! Packets that are damaged, unaligned, of an unknown opcode, or to unknown addresses.

use super::net::*;
use rocev2::aeth::{Credit, Syndrome};
use rocev2::checksum::Sum;
use rocev2::{Bth, Fault, Opcode, Psn, Qpn};
use switch::{DropReason, Verdict};

/// A request to a client's queue pair, as from another queue pair of the server.
#[test]
fn a_stray_request_to_a_client_causes_no_panic() {
    let (mut net, a, b) = two_clients(|_| {});
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(b.qpn), Psn::new(1));
    net.down(&frame(SERVER, b.ip, 0xffff, bth, |_| {}, &[0; 8]));
    let sent = net.up(&b.cas(b.psn, TABLE, 0, 5));
    for (sent, _) in sent {
        net.down(&a.ack(psn(&sent)));
    }
}

#[test]
fn a_write_to_the_end_of_the_address_space_passes() {
    let (mut net, mut a, _) = two_clients(|_| {});
    for (va, len) in [(u64::MAX - 63, 64), (u64::MAX, 1), (u64::MAX - 7, 8)] {
        assert_eq!(net.up(&a.write(a.psn, va, &vec![1; len])).len(), 1);
        net.down(&a.ack(a.psn));
        a.psn += 1;
    }
}

/// A packet with an unknown opcode would take a PSN at the server that the switch does not account for.
#[test]
fn an_unknown_opcode_does_not_pass_on_a_translated_connection() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut bytes = a.write(a.psn, TABLE, &[1; 8]);
    bytes[14 + 20 + 8] = 0x15;
    let sent = net.up(&bytes);
    assert_eq!(sent.len(), 0, "the packet would take an assigned PSN");
}

/// A second bit error could make a damaged frame valid again. Its receiver would then have a state that the
/// switch does not know.
#[test]
fn damaged_packets_are_dropped() {
    let mut net = Net::new(|_| {});
    let response = new_client(1).response(0, Syndrome::Ack(Credit(0x1f)), Some(5));
    let damage = |at: usize| {
        let mut bytes = response.clone();
        bytes[at] ^= 2;
        bytes
    };
    // IP length, protocol (which makes it another protocol's packet), client's address, UDP length, transport
    // header version
    for (at, fault) in [
        (17, Fault::IpChecksum),
        (23, Fault::IpChecksum),
        (33, Fault::IpChecksum),
        (39, Fault::UdpLength),
        (43, Fault::TransportVersion),
        // Opcode (another response), queue pair, value
        (42, Fault::Icrc),
        (49, Fault::Icrc),
        (60, Fault::Icrc),
    ] {
        let (verdict, sent) = net.run(&damage(at), SERVERS);
        assert_eq!((verdict, sent.len()), (Verdict::Drop(DropReason::Malformed(fault)), 0), "byte {at}");
    }
    assert_eq!(net.count("damaged"), 8);
    // A valid packet that is not RoCEv2 passes, and so does the response.
    let mut ping = damage(23);
    ping[24..26].fill(0);
    let sum = Sum::default().add(&ping[14..34]).checksum();
    ping[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(net.down(&ping).len(), 1);
    let mut arp = response.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(net.down(&arp).len(), 1);
    assert_eq!(net.down(&response).len(), 1);
}

/// On an untranslated connection, a packet with an unknown opcode passes, and may have written anywhere.
#[test]
fn an_unknown_opcode_invalidates_all_words() {
    let (mut net, a, _) = two_clients(|_| {});
    let mut bytes = new_client(9).write(0, TABLE, &[1; 8]);
    bytes[14 + 20 + 8] = 0x15;
    assert_eq!(net.up(&bytes).len(), 0, "the ICRC is wrong");
    let end = bytes.len() - 4;
    let icrc = rocev2::icrc::compute_for(&bytes[14..end], false, 20);
    bytes[end..].copy_from_slice(&icrc.to_le_bytes());
    assert_eq!(net.up(&bytes).len(), 1);
    let sent = net.up(&a.cas(a.psn, TABLE, 0, 5));
    assert_eq!(opcode(&sent[0].0), Opcode::RC_COMPARE_SWAP);
}

/// A misaligned atomic is left for the server to refuse, and counted once.
#[test]
fn an_unaligned_atomic_passes_and_is_counted() {
    let (mut net, _, b) = two_clients(|_| ());
    let sent = net.up(&b.cas(b.psn, TABLE + 4, 0, 1));
    assert_eq!((opcode(&sent[0].0), dest(&sent[0].0)), (Opcode::RC_COMPARE_SWAP, b.server_qpn));
    assert_eq!(net.count("misplaced"), 1);
}

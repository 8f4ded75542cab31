//! READs, whose responses take as many PSNs as the path MTU says, which nobody has told.

use super::net::*;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn, Qpn};

/// A response on a client's own connection
fn response(end: &End, opcode: Opcode, psn: u32, len: usize) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(end.qpn), Psn::new(psn));
    frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &vec![0; len])
}

/// Two connections between the same two hosts, with equal PSNs; one asks for a READ of which nobody knows how many PSNs it takes,
/// after more atomics than are remembered. Its response is not taken for answers to the other's.
#[test]
fn the_end_of_a_read_stays_unknown_behind_many_atomics() {
    let mut net = Net::new(|config| config.rd_atomic = 4);
    let a = End { psn: 0, ..end(1) };
    let b = End { qpn: a.qpn + 1, server_qpn: a.server_qpn + 1, port: a.port + 1, ..a };
    for psn in 0..4 {
        net.up(&a.cas(psn, 0x8000_0000, 0, 1));
        net.up(&b.cas(psn, 0x8000_0000, 0, 1));
    }
    let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: 1600.into() };
    net.up(&a.request(Opcode::RC_READ_REQUEST, 4, |repr| repr.extended.reth = reth, &[]));
    (4..12).for_each(|psn| drop(net.up(&b.write(psn, 0x8000_0000, &[0; 8]))));
    for psn in 5..10 {
        let bth = Bth::new(Opcode::RC_READ_RESPONSE_MIDDLE, Qpn::new(a.qpn), Psn::new(psn));
        net.down(&frame(SERVER, a.ip, 0xd001, bth, |_| {}, &[0; 256]));
    }
    assert_eq!(net.count("paired"), 0);
}

/// Of two connections with equal PSNs one has long READs outstanding: their responses, far behind its newest request, are not
/// taken for answers to the other's.
#[test]
fn answers_to_long_reads_are_far_behind() {
    let mut net = Net::new(|_| ());
    let a = End { psn: 0, ..end(1) };
    let b = End { qpn: a.qpn + 1, server_qpn: a.server_qpn + 1, port: a.port + 1, ..a };
    let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: (8 << 20).into() };
    for psn in [0, 2048, 4096, 6144] {
        net.up(&a.request(Opcode::RC_READ_REQUEST, psn, |repr| repr.extended.reth = reth, &[]));
    }
    (0..10).for_each(|psn| drop(net.up(&b.write(psn, 0x8000_0000, &[0; 8]))));
    for psn in 1..6 {
        let bth = Bth::new(Opcode::RC_READ_RESPONSE_MIDDLE, Qpn::new(a.qpn), Psn::new(psn));
        net.down(&frame(SERVER, a.ip, 0xd001, bth, |_| {}, &[0; 4096]));
    }
    assert_eq!(net.count("paired"), 0);
}

/// The wire before has the responses change places, and the wire behind has them change back: the client gets all of a READ of
/// which nobody knew how many packets it takes, and does not ask again. It is done here, too.
#[test]
fn responses_that_changed_places_end_a_read_as_well() {
    for lengths in [&[1024, 576][..], &[4096, 1], &[256, 256, 256, 256]] {
        for stage in [0, 1] {
            let mut net = Net::new(|config| config.servers[0].lanes = 1);
            let (mut a, b) = (end(1), end(2));
            if stage == 0 {
                for _ in 0..6 {
                    net.up(&a.write(a.psn, 0x8000_0000, &[0; 8]));
                    net.down(&a.ack(a.psn));
                    a.psn += 1;
                }
            } else {
                net.connect(&mut a);
            }
            let len = lengths.iter().sum::<usize>();
            let reth = Reth { va: 0x8000_0000.into(), rkey: KEY.into(), len: (len as u32).into() };
            net.up(&a.request(Opcode::RC_READ_REQUEST, a.psn, |repr| repr.extended.reth = reth, &[]));
            for (n, &len) in lengths.iter().enumerate().rev() {
                let opcode = match n {
                    0 => Opcode::RC_READ_RESPONSE_FIRST,
                    _ if n + 1 == lengths.len() => Opcode::RC_READ_RESPONSE_LAST,
                    _ => Opcode::RC_READ_RESPONSE_MIDDLE,
                };
                let sent = net.down(&response(&a, opcode, a.psn + n as u32, len));
                assert_eq!(sent.len(), 1, "stage {stage}: {n} of {lengths:?}");
            }
            a.psn += lengths.len() as u32;
            let (mut net, mut a, _) = taught(net, a, b);
            let owner = a;
            assert_eq!(locked(&mut net, &mut a, &owner, 0, 5).len(), 1, "stage {stage}: {lengths:?}");
        }
    }
}

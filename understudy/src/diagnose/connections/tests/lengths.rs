//! Lengths that do not match the path MTU, and marks of congestion.

use super::*;

#[test]
fn lengths_that_are_no_path_mtu_are_found() {
    // 1500 is the MTU of a link, 2048 differs from the packet before it.
    for lens in [[1500, 1500], [1024, 2048], [2048, 1024]] {
        let mut wire = Wire::new();
        wire.request(Opcode::RC_SEND_FIRST, 1, lens[0]);
        wire.request(Opcode::RC_SEND_MIDDLE, 2, lens[1]);
        assert_eq!(wire.found()[0].0, Kind::MtuExceeded, "{lens:?}");
    }
    // A shorter last packet is right.
    let mut wire = Wire::new();
    wire.request(Opcode::RC_SEND_FIRST, 1, 1024);
    wire.request(Opcode::RC_SEND_LAST, 2, 1);
    wire.ack(2);
    assert_eq!(wire.found(), []);
}

#[test]
fn the_agreed_path_mtu_is_compared() {
    let mut wire = Wire::new();
    wire.connections.connect(&Established {
        client: (CLIENT, CLIENT_QP),
        server: (SERVER, SERVER_QP),
        psns: (Psn::new(1), Psn::new(500)),
        mtu: 1024,
    });
    wire.request(Opcode::RC_SEND_ONLY, 1, 1024);
    wire.request(Opcode::RC_SEND_ONLY, 2, 1028);
    wire.ack(2);
    assert_eq!(wire.found(), [(Kind::MtuExceeded, 1)]);
}

#[test]
fn ends_with_different_path_mtus_are_found_once() {
    let mut wire = Wire::new();
    wire.request(Opcode::RC_SEND_FIRST, 1, 1024);
    wire.request(Opcode::RC_READ_REQUEST, 2, 1024);
    wire.response(Opcode::RC_READ_RESPONSE_FIRST, 2, Syndrome::Ack(Credit(1)), 512);
    assert!(wire.found().contains(&(Kind::MtuDiffers, 1)));
}

#[test]
fn only_long_packets_without_acknowledgement_are_a_black_hole() {
    let mut wire = Wire::new();
    wire.request(Opcode::RC_SEND_ONLY, 1, 64);
    wire.ack(1);
    for _ in 0..3 {
        wire.request(Opcode::RC_SEND_ONLY, 2, 4096);
        wire.wait(60 * MS);
    }
    assert_eq!(wire.found(), [(Kind::MtuBlackHole, 2)]);
}

fn marked(cnp: bool, wait: u64) -> Vec<(Kind, u64)> {
    let mut wire = Wire::new();
    for psn in 1..4 {
        wire.pass(|p| (p.psn, p.ce) = (Psn::new(psn), true));
        wire.ack(psn);
    }
    if cnp {
        wire.pass(|p| {
            p.key = FlowKey { src: SERVER, dst: CLIENT, qpn: CLIENT_QP };
            p.opcode = Opcode::CNP;
        });
    }
    wire.wait(wait);
    wire.pass(|p| p.psn = Psn::new(4));
    wire.found()
}

#[test]
fn marks_without_notifications_are_found() {
    assert_eq!(marked(false, 2 * MS), [(Kind::CeWithoutCnp, 3)]);
    assert_eq!(marked(true, 2 * MS), []);
    // The notification may still come.
    assert_eq!(marked(false, 0), []);
}

#[test]
fn notifications_without_marks_come_from_behind() {
    let mut wire = Wire::new();
    wire.send(1);
    wire.ack(1);
    wire.pass(|p| {
        p.key = FlowKey { src: SERVER, dst: CLIENT, qpn: CLIENT_QP };
        p.opcode = Opcode::CNP;
    });
    assert_eq!(wire.found(), [(Kind::CnpWithoutCe, 1)]);
}

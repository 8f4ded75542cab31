//! Classifies arbitrary bytes as a frame, calls every accessor, emits the same bytes again, and rewrites
//! them.

use rocev2::repr::Repr;
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Packet, Psn, Qpn, classify};

/// Runs one input.
pub(crate) fn run(frame: &[u8]) {
    let Class::Roce(layout) = classify(frame) else { return };
    assert!(layout.end() <= frame.len() && layout.payload() <= layout.icrc());
    let packet = Packet::new(frame, layout);
    _ = (
        packet.ethernet(),
        packet.tags(),
        packet.src(),
        packet.dst(),
        packet.udp(),
        packet.bth(),
        packet.payload(),
    );
    _ = (
        packet.reth(),
        packet.aeth(),
        packet.atomic(),
        packet.atomic_ack(),
        packet.deth(),
        packet.immediate(),
        packet.ieth(),
    );
    let (icrc, udp) = (packet.verify_icrc(), packet.verify_udp_checksum());

    let repr = Repr::parse(frame).expect("a packet has a representation");
    let mut out = vec![0xa5; frame.len()];
    assert_eq!(repr.emit(&mut out), Ok(frame.len()));
    assert_eq!(out, frame);
    assert!(!repr.to_string().is_empty());

    // Checksums that were correct stay correct, and wrong ones stay wrong.
    let mut rewriter = Rewriter::new(&mut out, layout);
    _ = rewriter.set_ipv4_addresses([1, 2, 3, 4], [5, 6, 7, 8]);
    _ = rewriter.set_ipv6_addresses([0x11; 16], [0x22; 16]);
    rewriter.set_src_port(0xc123);
    rewriter.set_dest_qp(Qpn::new(0x77_8899));
    rewriter.set_psn(Psn::new(0xff_0001));
    _ = rewriter.set_remote_memory(0x1234_5678_9abc_def0, 0x4321);
    rewriter.finish();
    let rewritten =
        Packet::parse(&out).expect("the rewritten frame still parses, with a correct IPv4 header checksum");
    assert_eq!(
        (rewritten.layout(), rewritten.verify_icrc(), rewritten.verify_udp_checksum()),
        (layout, icrc, udp)
    );
}

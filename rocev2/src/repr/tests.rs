use super::*;
use crate::ethernet::{MacAddr, ethertype};
use crate::{MAX_PAYLOAD, Opcode, Psn, Qpn};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

fn repr(v6: bool, tags: usize, opcode: Opcode, payload: &[u8]) -> Repr<'_> {
    let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let mut ethernet = Ethernet {
        dst: MacAddr([2, 0, 0, 0, 0, 1]),
        src: MacAddr([2, 0, 0, 0, 0, 2]),
        ethertype: kind.into(),
    };
    let ip = if v6 {
        Ip::V6(Ipv6 { src: [0x20; 16], dst: [0x21; 16], ..Ipv6::default() }, &[])
    } else {
        Ip::V4(Ipv4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2], ..Ipv4::default() }, &[])
    };
    let tag = |following: u16| VlanTag { tci: 0x6005.into(), ethertype: following.into() };
    let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, Qpn::new(0x11), Psn::new(7)));
    if tags > 0 {
        ethernet.ethertype = ethertype::VLAN.into();
        repr.tags = core::array::from_fn(|n| tag(if n + 1 == tags { kind } else { ethertype::VLAN }));
        repr.tag_count = tags;
    }
    repr.ethernet = ethernet;
    if opcode.info().is_some_and(|info| info.payload) {
        repr.payload = payload;
    }
    repr
}

proptest! {
    #[test]
    fn built_frames_parse_to_the_same_fields(
        v6: bool,
        tags in 0..=MAX_TAGS,
        opcode in prop::sample::select(Opcode::KNOWN),
        payload in proptest::collection::vec(any::<u8>(), 0..MAX_PAYLOAD),
        reth: [u8; 16],
        atomic: [u8; 28],
        aeth: [u8; 4],
        small: [u8; 8],
        udp_checksum: bool,
    ) {
        let mut value = repr(v6, tags, opcode, &payload);
        value.extended = Extended {
            feth: [small[0]; 4],
            deth: zerocopy::transmute!(small),
            reth: zerocopy::transmute!(reth),
            atomic: zerocopy::transmute!(atomic),
            aeth,
            atomic_ack: zerocopy::transmute!(small),
            immediate: zerocopy::transmute!(aeth),
            ieth: zerocopy::transmute!(aeth),
            cnp: reth,
        };
        value.udp.checksum = u16::from(udp_checksum).into();
        let mut buffer = vec![0xa5; value.frame_len() + 3 + 9];
        let len = value.build(&mut buffer).unwrap();
        prop_assert_eq!(&buffer[len..], &vec![0xa5; buffer.len() - len][..], "bytes behind the frame are unchanged");
        let frame = &buffer[..len];
        let packet = Packet::parse(frame).expect("a well-formed packet");
        prop_assert!(packet.verify_icrc() && packet.verify_udp_checksum());
        prop_assert_eq!(packet.payload(), value.payload);
        prop_assert_eq!(packet.tags().len(), tags);

        let parsed = Repr::parse(frame).unwrap();
        let mut again = vec![0xa5; len];
        prop_assert_eq!(parsed.emit(&mut again), Ok(len));
        prop_assert_eq!(&again[..], frame);
        prop_assert_eq!((parsed.bth, parsed.udp, parsed.icrc), (value.bth, value.udp, value.icrc));
        prop_assert!(parsed.to_string().contains("payload"));
        prop_assert_eq!(parsed.emit(&mut again[..len - 1]), Err(TooShort));

        // An independent parser of the layers below.
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        prop_assert_eq!(sliced.vlan_ids().len(), tags);
        match sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                prop_assert!(!v6);
                prop_assert_eq!(ip.header().to_header().calc_header_checksum(), ip.header().header_checksum());
            }
            Some(NetSlice::Ipv6(_)) => prop_assert!(v6),
            other => prop_assert!(false, "{:?}", other),
        }
        match sliced.transport {
            Some(TransportSlice::Udp(udp)) => {
                prop_assert_eq!((udp.destination_port(), udp.payload().len()), (4791, len - packet.layout().bth()));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

#[test]
fn captured_packets_round_trip() {
    let mut packets = 0;
    for path in understudy_tests::captures::all() {
        let damaged = path.file_stem().unwrap() == "damaged";
        for frame in understudy_tests::captures::frames(&path) {
            let (frame, len) = (&frame[..], frame.len());
            let Some(repr) = Repr::parse(frame) else {
                assert!(damaged, "{}: {:?}", path.display(), classify(frame));
                continue;
            };
            packets += 1;
            let mut out = vec![0xa5; len];
            assert_eq!(repr.emit(&mut out), Ok(len));
            assert_eq!(out, frame, "{}", path.display());
            let packet = Packet::parse(frame).unwrap();
            assert!(damaged || packet.verify_icrc(), "{}: {repr}", path.display());
            // Rebuilding all derived fields yields the same packet.
            if !damaged {
                let mut built = repr;
                let mut out = vec![0xa5; len];
                assert_eq!(built.build(&mut out), Ok(len));
                assert_eq!(out, frame, "{}: {repr}", path.display());
            }
        }
    }
    assert!(packets > 2000, "{packets}");
}

#[test]
fn packets_too_long_for_ip_are_rejected() {
    let payload = vec![0; 70_000];
    let mut value = repr(false, 0, Opcode::RC_SEND_ONLY, &payload);
    assert_eq!(value.build(&mut vec![0; 80_000]), Err(BuildError::TooLong));
}

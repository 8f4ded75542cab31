use super::*;
use crate::{Class, classify};
use proptest::prelude::*;
use std::net::IpAddr;
use understudy_tests::captures;

/// Returns the frames of a capture file of the repository.
fn frames(name: &str) -> Vec<Vec<u8>> {
    captures::frames(&captures::path(name))
}

/// Returns the MADs of a capture file, each with its sender's address.
fn mads(name: &str) -> Vec<(IpAddr, Vec<u8>)> {
    let mad_with_source = |frame: &Vec<u8>| {
        let packet = Packet::parse(frame)?;
        Some((packet.src(), mad_of(&packet)?.to_vec()))
    };
    frames(name).iter().filter_map(mad_with_source).collect()
}

#[test]
fn rping_handshake_is_decoded() {
    let mads = mads("cm_rping.pcap");
    let messages: Vec<_> = mads.iter().map(|(_, mad)| Message::parse(mad).unwrap()).collect();
    let kinds: Vec<_> = messages.iter().map(|m| m.kind().name()).collect();
    assert_eq!(kinds, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let (Body::Req(req), Body::Rep(rep), Body::Rtu(rtu)) =
        (messages[0].body, messages[1].body, messages[2].body)
    else {
        panic!("{messages:?}")
    };
    assert_eq!((rep.remote_comm_id, rtu.remote_comm_id), (req.local_comm_id, rep.local_comm_id));
    assert_eq!(messages[0].header.transaction_id, messages[1].header.transaction_id);
    assert_eq!(req.path_mtu(), Some(1024));
    let cma = req.cma_header().expect("rping uses rdma_cm");
    assert_eq!(cma.src_addr(), mads[0].0);
    let Body::Dreq(dreq) = messages[3].body else { panic!("{:?}", messages[3]) };
    // Each side begins with the PSN that its peer chose for it.
    let data: Vec<_> = frames("cm_rping.pcap");
    let data: Vec<_> = data.iter().filter_map(|f| Packet::parse(f)).filter(|p| p.deth().is_none()).collect();
    let first_from =
        |src: IpAddr| data.iter().find(|p| p.src() == src && p.layout().opcode().0 < 0x0d).unwrap();
    let first = first_from(mads[0].0);
    assert_eq!((first.bth().dest_qp(), first.bth().psn()), (rep.qpn(), rep.starting_psn()));
    let first = first_from(mads[1].0);
    assert_eq!((first.bth().dest_qp(), first.bth().psn()), (req.qpn(), req.starting_psn()));
    assert!([req.qpn(), rep.qpn()].contains(&dreq.remote_qpn()));
}

#[test]
fn captured_messages_round_trip() {
    for name in ["cm_rping.pcap", "cm_ucmatose.pcap", "ipv6_cm_rping.pcap"] {
        let mads = mads(name);
        assert!(mads.len() >= 5, "{name}");
        for (_, mad) in mads {
            let message = Message::parse(&mad).unwrap();
            let mut out = [0xa5; MAD_LEN];
            match message.body {
                Body::Req(m) => emit(message.header, m, &mut out),
                Body::Mra(m) => emit(message.header, m, &mut out),
                Body::Rej(m) => emit(message.header, m, &mut out),
                Body::Rep(m) => emit(message.header, m, &mut out),
                Body::Rtu(m) => emit(message.header, m, &mut out),
                Body::Dreq(m) => emit(message.header, m, &mut out),
                Body::Drep(m) => emit(message.header, m, &mut out),
                Body::Opaque(_, m) => emit(message.header, m, &mut out),
            }
            assert_eq!(out[..], mad[..], "{name}: {message}");
            let kind = message.kind();
            assert_eq!(
                *message.header,
                MadHeader::new(kind, message.header.transaction_id.get()),
                "{name}: {message}"
            );
        }
    }
}

#[test]
fn rdma_cm_header_has_ipv6_addresses() {
    let mads = mads("ipv6_cm_rping.pcap");
    let Body::Req(req) = Message::parse(&mads[0].1).unwrap().body else { panic!("no REQ first") };
    let cma = req.cma_header().expect("rping uses rdma_cm");
    assert_eq!(cma.src_addr(), mads[0].0);
    assert!(cma.dst_addr().is_ipv6());
}

#[test]
fn built_messages_are_parsed() {
    let mut req = Req::zeroed();
    req.set_qpn(Qpn::new(0x12_3456));
    req.set_starting_psn(crate::Psn::new(0xff_ffff));
    req.mtu_rnr = 5 << 4 | 7;
    let mut rep = Rep::zeroed();
    rep.set_qpn(Qpn::new(7));
    rep.set_starting_psn(crate::Psn::new(9));
    let rej = Rej::of_req(1, 2, RejReason::CONSUMER);
    let mut mad = [0xa5; MAD_LEN];
    emit(&MadHeader::new(Kind::Req, 3), &req, &mut mad);
    assert_eq!(
        Message::parse(&mad).unwrap().to_string(),
        "REQ 0x0 qp 0x123456 psn 16777215 service 0x0 mtu 4096"
    );
    assert!(req.cma_header().is_none());
    emit(&MadHeader::new(Kind::Rep, 3), &rep, &mut mad);
    assert_eq!(Message::parse(&mad).unwrap().to_string(), "REP 0x0 to 0x0 qp 0x7 psn 9");
    emit(&MadHeader::new(Kind::Rej, 3), &rej, &mut mad);
    assert_eq!(Message::parse(&mad).unwrap().to_string(), "REJ 0x1 to 0x2 consumer (28)");
    // Offsets in the specification
    assert_eq!((mad[24 + 3], mad[24 + 7], mad[24 + 11]), (1, 2, 28));
}

#[test]
fn other_mads_are_rejected() {
    let mut mad = [0; MAD_LEN];
    assert_eq!(Message::parse(&mad[1..]).unwrap_err(), CmError::Length);
    assert_eq!(Message::parse(&mad).unwrap_err(), CmError::Class);
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = 0x44;
    assert_eq!(Message::parse(&mad).unwrap_err(), CmError::Attribute(0x44));
    // An ordinary datagram carries no MAD.
    let frame = &frames("ud_send_512.pcap")[0];
    let Class::Roce(layout) = classify(frame) else { panic!("a packet") };
    assert!(mad_of(&Packet::new(frame, layout)).is_none());
}

proptest! {
    #[test]
    fn parsing_arbitrary_bytes_does_not_panic(mut mad in proptest::collection::vec(any::<u8>(), 250..260), kind in 0u8..32, fix: bool) {
        if fix {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, kind]);
        }
        if let Ok(message) = Message::parse(&mad) {
            prop_assert!(!message.to_string().is_empty());
            if let Body::Req(req) = message.body
                && let Some(cma) = req.cma_header() {
                    _ = (cma.src_addr(), cma.dst_addr());
                }
        }
    }
}

//! Sent messages are byte for byte those of Linux.

use super::*;
use std::path::Path;

/// Returns the MADs of a capture in the repository, in order. The frames end with the MAD and the ICRC.
fn mads(name: &str) -> Vec<[u8; MAD_LEN]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures").join(name);
    let file = std::fs::read(path).expect("a capture");
    let (mut rest, mut mads) = (&file[24..], Vec::new());
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let frame = &rest[16..16 + len];
        if let Some(mad) = frame.len().checked_sub(MAD_LEN + 4).map(|at| &frame[at..at + MAD_LEN])
            && Message::parse(mad).is_ok()
        {
            mads.push(mad.try_into().unwrap());
        }
        rest = &rest[16 + len..];
    }
    mads
}

/// Replaces the IDs in `mad` by those of `like`: the transaction ID (bytes 8 to 15) and the communication IDs
/// (24 to 31; only the first 4 bytes of a REQ, whose other bytes are reserved).
fn with_ids_of(mut mad: [u8; MAD_LEN], like: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
    let ids = if mad[17] == 0x10 { 24..28 } else { 24..32 };
    for range in [8..16, ids] {
        mad[range.clone()].copy_from_slice(&like[range]);
    }
    mad
}

const LINUX: Config = Config {
    ids: IdSpace::ALL,
    ca_guid: 0x5054_00ff_fe00_0002,
    response_timeout: 20,
    max_retries: 15,
    ack_delay: 15,
    capacity: 8,
    time_wait: Nanos::from_secs(2),
    max_response_timeout: Nanos::from_secs(60),
};

/// Replays a captured connection with a manager on both sides: every message is the same except for the IDs.
fn replay(
    capture: &str,
    addresses: AddressPair,
    request: &ConnectRequest,
    reply: &Accept,
    passive_disconnects: bool,
) {
    let captured = mads(capture);
    let mut a = Cm::new(LINUX, 1);
    let mut b = Cm::new(Config { ca_guid: 0x5054_00ff_fe00_0001, ..LINUX }, 2);
    b.listen(request.service_id).unwrap();
    let mut log = Vec::new();
    let mut over = |from: &mut Cm, to: &mut Cm| {
        let (sent_by, mad) = from.poll_transmit().unwrap();
        to.on_mad(reversed(sent_by), &mad, T0);
        log.push(mad);
    };
    let ours = a.connect(request, T0).unwrap();
    over(&mut a, &mut b);
    let Event::Requested { conn: theirs, request: seen, .. } = event(&mut b) else { panic!() };
    b.accept(theirs, reply, T0).unwrap();
    over(&mut b, &mut a);
    let Event::Replied { reply: answered, .. } = event(&mut a) else { panic!() };
    a.confirm(ours, &[]).unwrap();
    over(&mut a, &mut b);
    if passive_disconnects {
        b.disconnect(theirs, &[], T0).unwrap();
        over(&mut b, &mut a);
        over(&mut a, &mut b);
    } else {
        a.disconnect(ours, &[], T0).unwrap();
        over(&mut a, &mut b);
        over(&mut b, &mut a);
    }
    assert_eq!(log.len(), captured.len());
    for (mad, captured) in log.iter().zip(&captured) {
        let name = Message::parse(captured).unwrap();
        assert_eq!(with_ids_of(*mad, captured), *captured, "{capture}: {name}");
        assert_ne!(mad[8..16], [0; 8]);
        assert_ne!(mad[24..28], [0; 4]);
    }
    // Responses carry the transaction ID of their request.
    assert!(log[..3].iter().all(|mad| mad[8..16] == log[0][8..16]) && log[3][8..16] == log[4][8..16]);
    // The decoded contents match what was sent.
    assert_eq!(
        (seen.addresses, seen.service_id, seen.ca_guid),
        (reversed(addresses), request.service_id, LINUX.ca_guid)
    );
    assert_eq!((seen.qpn, seen.starting_psn), (request.qpn, request.starting_psn));
    assert_eq!((seen.path_mtu, seen.flow_label, seen.hop_limit), (request.path_mtu, request.flow_label, 64));
    assert_eq!((seen.retry_count, seen.rnr_retry_count, seen.ack_timeout), (7, request.rnr_retry_count, 19));
    assert_eq!((seen.our_response_timeout, seen.response_timeout, seen.max_cm_retries), (20, 20, 15));
    assert_eq!(
        (seen.responder_resources, seen.initiator_depth),
        (request.responder_resources, request.initiator_depth)
    );
    let cma = seen.cma.unwrap();
    assert_eq!((cma.src_addr(), cma.dst_addr()), (addresses.local, addresses.remote));
    assert_eq!(Some(cma.src_port.get()), request.cma_src_port);
    assert_eq!(seen.private_data[..request.private_data.len()], request.private_data);
    assert_eq!(seen.private_data.len(), private_data::REQ_CMA);
    assert_eq!((answered.qpn, answered.starting_psn), (reply.qpn, reply.starting_psn));
    assert_eq!((answered.target_ack_delay, answered.rnr_retry_count), (15, reply.rnr_retry_count));
    assert_eq!(answered.ca_guid, 0x5054_00ff_fe00_0001);
}

#[test]
fn messages_match_a_capture_of_rping() {
    let request = ConnectRequest {
        cma_src_port: Some(0xad6e),
        flow_label: 0x51c58,
        ..ConnectRequest::new(A_TO_B, SERVICE, Qpn::new(0x11), Psn::new(0x01_564a))
    };
    replay("cm_rping.pcap", A_TO_B, &request, &Accept::new(Qpn::new(0x11), Psn::new(0x1f_683b)), false);
}

#[test]
fn messages_match_a_capture_of_rping_over_ipv6() {
    let addresses = AddressPair { local: "fd00::2".parse().unwrap(), remote: "fd00::1".parse().unwrap() };
    let request = ConnectRequest {
        cma_src_port: Some(0xb338),
        flow_label: 0x5cfce,
        ..ConnectRequest::new(addresses, SERVICE, Qpn::new(0x16), Psn::new(0x9e_735f))
    };
    replay(
        "ipv6_cm_rping.pcap",
        addresses,
        &request,
        &Accept::new(Qpn::new(0x16), Psn::new(0xf8_d751)),
        false,
    );
}

#[test]
fn messages_match_a_capture_of_rstream_with_private_data() {
    let captured = mads("rc_write_imm_rstream.pcap");
    let (req, rep) = (captured[0], captured[1]);
    let request = ConnectRequest {
        cma_src_port: Some(0xac5d),
        flow_label: 0x4fc72,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: true,
        private_data: req[24 + 140 + 36..].to_vec(),
        ..ConnectRequest::new(
            A_TO_B,
            service_id_of(PortSpace::Tcp, 0x1d2f),
            Qpn::new(0x1d),
            Psn::new(0x0b_5c04),
        )
    };
    let reply = Accept {
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: true,
        private_data: rep[24 + 36..].to_vec(),
        ..Accept::new(Qpn::new(0x1d), Psn::new(0x23_b54b))
    };
    replay("rc_write_imm_rstream.pcap", A_TO_B, &request, &reply, true);
}

#[test]
fn requests_that_do_not_fit_a_req_are_refused() {
    let mut cm = cm(1);
    let with = |change: fn(&mut ConnectRequest)| {
        let mut request = request(17);
        change(&mut request);
        request
    };
    for (len, port, max) in [
        (56, Some(1), None),
        (57, Some(1), Some(56)),
        (92, None, None),
        (93, None, Some(92)),
        (0, None, None),
    ] {
        let request = ConnectRequest { cma_src_port: port, private_data: vec![7; len], ..request(17) };
        let error = cm.connect(&request, T0).err();
        assert_eq!(error, max.map(|max| ConnectError::PrivateData { len, max }));
    }
    for (request, message) in [
        (with(|r| r.path_mtu = 1500), "path_mtu is 1500 bytes; use 256, 512, 1024, 2048 or 4096"),
        (with(|r| r.retry_count = 8), "retry_count is 8; use at most 7"),
        (with(|r| r.rnr_retry_count = 8), "rnr_retry_count is 8; use at most 7"),
        (with(|r| r.ack_timeout = 32), "ack_timeout is 32; use at most 31"),
        (with(|r| r.flow_label = 1 << 20), "flow_label is 1048576; use at most 1048575"),
        (with(|r| r.service_level = 16), "service_level is 16; use at most 15"),
        (
            with(|r| r.addresses.local = "fd00::2".parse().unwrap()),
            "fd00::2 and 10.0.0.1 are of different address families; use two of the same family",
        ),
    ] {
        assert_eq!(cm.connect(&request, T0).unwrap_err().to_string(), message);
    }
    assert_eq!(cm.len(), 3);
}

#[test]
fn private_data_that_does_not_fit_is_refused() {
    let (mut a, mut b) = two();
    let (ours, _) = established(&mut a, &mut b, 17);
    let too_much = |max: usize| Err(CallError::PrivateData { len: max + 1, max });
    assert_eq!(a.disconnect(ours, &[0; 221], T0), too_much(private_data::DREQ));
    let ours = a.connect(&request(19), T0).unwrap();
    pass(&mut a, &mut b, T0);
    let theirs = event(&mut b).conn();
    assert_eq!(b.reject(theirs, RejReason::CONSUMER, &[0; 149], T0), too_much(private_data::REJ));
    let reply = Accept { private_data: vec![1; 197], ..answer(20) };
    assert_eq!(b.accept(theirs, &reply, T0), too_much(private_data::REP));
    assert_eq!(b.state(theirs), Some(State::ReqReceived), "the state is unchanged");
    assert_eq!(b.info(theirs).unwrap().local_qpn, None);
    let reply = Accept { private_data: vec![1; 196], srq: true, ..answer(20) };
    b.accept(theirs, &reply, T0).unwrap();
    pass(&mut b, &mut a, T0);
    let Event::Replied { reply, .. } = event(&mut a) else { panic!() };
    assert_eq!((reply.private_data, reply.srq), (vec![1; 196], true));
    assert_eq!(a.confirm(ours, &[0; 225]), too_much(private_data::RTU));
    a.confirm(ours, &[9; 224]).unwrap();
    pass(&mut a, &mut b, T0);
    assert_eq!(event(&mut b), Event::Established { conn: theirs, private_data: vec![9; 224] });
}

#[test]
fn ports_convert_to_service_ids_and_back() {
    assert_eq!(service_id_of(PortSpace::Tcp, 0x1c06), 0x0000_0000_0106_1c06);
    assert_eq!(service_id_of(PortSpace::Udp, 1), 0x0000_0000_0111_0001);
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        assert_eq!(port_of(service_id_of(space, 65535)), Some((space, 65535)));
    }
    assert_eq!((port_of(7), port_of(0x1_0000_0106_0001)), (None, None));
}

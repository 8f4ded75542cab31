use super::*;
use crate::header::{OnePipeOpcode, Timestamp};
use proptest::prelude::*;
use rocev2::Psn;
use rocev2::path_headers::PathHeaderFields;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
const QPN: Qpn = Qpn::new(0x12_3456);
const OTHER: Qpn = Qpn::new(0x65_4321);

fn ends(v6: bool) -> PathHeaderFields {
    let addresses = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    let [src, dst] = addresses.map(|address| address.parse().unwrap());
    PathHeaderFields {
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MAC,
        vlan: None,
        src,
        dst,
        traffic_class: 0x6a,
        hop_limit: 9,
        src_port: 0xc123,
    }
}

fn expected(v6: bool) -> Expected {
    Expected::new(MAC, ends(v6).dst, QPN, OnePipe::QKEY)
}

fn header(psn: u32) -> OnePipe {
    OnePipe::new(OnePipeOpcode::DATA, Timestamp::new(0x1234_5678_9abc), Psn::new(psn))
}

/// Parses and checks every header, as a process without `Expected` would.
fn read_with_parser(frame: &[u8], v6: bool) -> Option<Datagram<'_>> {
    let packet = Packet::parse(frame)?;
    let deth = packet.deth()?;
    let matches = packet.layout().opcode() == Opcode::UD_SEND_ONLY
        && packet.bth().dest_qp() == QPN
        && packet.ethernet().dst == MAC
        && packet.dst() == ends(v6).dst
        && deth.qkey.get() == OnePipe::QKEY
        && packet.verify_icrc();
    let header = OnePipe::of(&packet).filter(|_| matches)?;
    let payload = &packet.payload()[OnePipe::LEN..];
    let (src_qp, dest_qp) = (deth.src_qp(), packet.bth().dest_qp());
    Some(Datagram { src: packet.src(), src_qp, dest_qp, ecn: packet.ecn(), header, payload })
}

fn frames(v6: bool, payload: &[u8], times: u32) -> Vec<Vec<u8>> {
    let route = PathHeaders::new(&ends(v6)).unwrap();
    let mut template = Template::new(route, QPN, OnePipe::QKEY, OTHER);
    let mut frame = vec![0xa5; payload.len() % 7 * 30];
    (0..times)
        .map(|n| {
            template.emit(&mut frame, &header(n), payload);
            frame.clone()
        })
        .collect()
}

/// Every emitted frame equals the one that a route would have emitted, and is read back unchanged.
#[test]
fn template_emits_what_a_route_emits() {
    for v6 in [false, true] {
        for len in (0..80).chain([999, 1000, 4072]) {
            let payload: Vec<u8> = (0..len).map(|n: usize| n as u8).collect();
            let mut route = PathHeaders::new(&ends(v6)).unwrap();
            for (n, frame) in (0..).zip(frames(v6, &payload, 3)) {
                let mut expected_frame = Vec::new();
                let bth = Bth::new(Opcode::UD_SEND_ONLY, QPN, Psn::new(n));
                let deth = Deth::new(OnePipe::QKEY, OTHER);
                route.emit(&mut expected_frame, bth, &[deth.as_bytes(), header(n).as_bytes()], &payload);
                // The template numbers its packets from 1 on, as the route does.
                assert_eq!(frame, expected_frame, "{len} bytes, IPv6 {v6}");
                let read = expected(v6).read(&frame).expect("a datagram for this queue pair");
                assert_eq!((read.header, read.payload), (&header(n), &payload[..]));
                assert_eq!((read.src, read.src_qp, read.ecn), (ends(v6).src, OTHER, 2));
            }
        }
    }
}

/// Corrects the ICRC if the frame can be parsed.
fn correct_icrc(frame: &mut [u8]) {
    if let Some(packet) = Packet::parse(frame) {
        let layout = packet.layout();
        let icrc = icrc::compute(frame, &layout);
        frame[layout.icrc()..layout.end()].copy_from_slice(&icrc.to_le_bytes());
    }
}

proptest! {
    /// Whichever bytes of a frame are changed: a datagram that `Expected::read` returns is the one that the
    /// full parser returns, and no valid datagram without options is missed.
    #[test]
    fn fast_path_agrees_with_the_full_parser(
        v6 in any::<bool>(),
        len in 0usize..60,
        changes in proptest::collection::vec((0usize..130, any::<u8>()), 0..4),
        cut in 0usize..40,
        corrected in any::<bool>(),
    ) {
        let mut frame = frames(v6, &vec![7; len], 1).remove(0);
        for (at, by) in changes {
            let at = at % frame.len();
            frame[at] ^= by;
        }
        if cut > 30 {
            frame.truncate(frame.len() - (cut - 30));
        } else if cut > 25 {
            frame.resize(frame.len() + cut, 0);
        }
        if !v6 {
            // Corrects the IP checksum: a wrong one would hide the other changes.
            let mut ip = Ipv4::read_from_prefix(&frame[Ethernet::LEN..]).unwrap().0;
            ip.fill_checksum(&[]);
            frame[Ethernet::LEN..Ethernet::LEN + Ipv4::LEN].copy_from_slice(ip.as_bytes());
        }
        if corrected {
            correct_icrc(&mut frame);
        }
        let (fast, parsed) = (expected(v6).read(&frame), read_with_parser(&frame, v6));
        if let Some(fast) = fast {
            prop_assert_eq!(Some(fast), parsed);
        } else if let Some(parsed) = parsed {
            let plain = Packet::parse(&frame).unwrap().layout().payload() == headers_len(v6);
            prop_assert!(!plain, "{parsed:?} was missed");
        }
    }
}

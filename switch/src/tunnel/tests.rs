use super::*;
use crate::forward::config::ForwardingMode;
use crate::forward::{self, Forward};
use crate::memory::{FrameCollector, MemoryFrame, run_frame};
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;
use rocev2::checksum::Sum;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use zerocopy::{FromBytes, IntoBytes};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const NEIGHBOUR: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn v4(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn v6(n: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into()
}

/// Representatives at both ends, and the switches between them
const H1: u8 = 1;
const S1: u8 = 101;
const S2: u8 = 102;
const H2: u8 = 2;

fn config(inner_forwarding: InnerForwarding) -> Config {
    Config { mac: OWN, endpoints: vec![v6(S1), v4(S1)], sources: vec![v6(H1), v4(H1)], inner_forwarding }
}

fn next_hops() -> InnerForwarding {
    InnerForwarding::NextHops(vec![(v4(S2), NEIGHBOUR), (v6(S2), NEIGHBOUR), (v4(H2), HOST), (v6(H2), HOST)])
}

/// Returns a bridge with the host on port 0 and the neighbour on port 1.
fn tunnel(inner_forwarding: InnerForwarding) -> Tunnel<Forward> {
    let mut bridge = forward::Config::bridge(2, 4);
    if let ForwardingMode::Mac(table) = &mut bridge.mode {
        table.fixed = vec![(HOST, PortId(0)), (NEIGHBOUR, PortId(1))];
    }
    Tunnel::new(&config(inner_forwarding), Forward::new(&bridge))
}

/// Returns an IP packet whose payload is not IP.
fn packet(src: IpAddr, dst: IpAddr, class: u8) -> Vec<u8> {
    let payload = *b"what is in it";
    let header = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total_len = ((Ipv4::LEN + payload.len()) as u16).into();
            let (src, dst) = (src.octets(), dst.octets());
            let mut ip = Ipv4 { tos: class, total_len, src, dst, ..Ipv4::default() };
            ip.fill_checksum(&[]);
            ip.as_bytes().to_vec()
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let payload_len = (payload.len() as u16).into();
            let version_class_flow = (6 << 28 | u32::from(class) << 20).into();
            let (src, dst) = (src.octets(), dst.octets());
            Ipv6 { version_class_flow, payload_len, src, dst, ..Ipv6::default() }.as_bytes().to_vec()
        }
        _ => unreachable!(),
    };
    [&header[..], &payload].concat()
}

/// Returns a frame with `packet`, addressed to the switch.
fn frame(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
    let ethernet = Ethernet { dst: OWN, src: HOST, ethertype: kind.into() };
    [ethernet.as_bytes(), packet].concat()
}

fn encapsulated(tunnels: &[(IpAddr, IpAddr)], packet: &[u8]) -> Vec<u8> {
    [&encapsulation_headers(tunnels, packet).unwrap()[..], packet].concat()
}

/// Returns the frame that left and its port, or the reason why the frame was dropped.
fn run(tunnel: &mut Tunnel<Forward>, frame: &[u8]) -> Result<(Vec<u8>, PortId), DropReason> {
    let (verdict, mut frames) = run_frame(tunnel, frame, PortId(0), Nanos::ZERO);
    match verdict {
        Verdict::Drop(reason) => {
            assert!(frames.is_empty());
            Err(reason)
        }
        Verdict::Forward(_) => {
            assert_eq!(frames.len(), 1);
            Ok(frames.remove(0))
        }
        Verdict::Punt | Verdict::Consume => panic!("{verdict:?}"),
    }
}

#[track_caller]
fn refused(frame: &[u8], expected: Refusal) {
    let mut tunnel = tunnel(next_hops());
    assert_eq!(run(&mut tunnel, frame), Err(expected.into()), "{expected:?}");
    let counters = tunnel.counters();
    for reason in Refusal::ALL {
        assert_eq!(counters.refused(reason), u64::from(reason == expected), "{reason:?}");
    }
    assert_eq!(counters.terminated.get(), (0, 0));
}

/// Corrects the checksum of the IPv4 header at `at`.
fn correct_checksum(frame: &mut [u8], at: usize) {
    frame[at + 10..at + 12].fill(0);
    let sum = Sum::default().add(&frame[at..at + Ipv4::LEN]).checksum();
    frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn outer_header_is_removed_and_the_packet_goes_to_the_next_hop() {
    for (ip, other) in [(v4 as fn(u8) -> IpAddr, v6 as fn(u8) -> IpAddr), (v6, v4)] {
        for inner in [ip, other] {
            let innermost = packet(inner(H1), inner(H2), 0x68);
            let second = encapsulated(&[(ip(S1), ip(S2))], &innermost);
            let sent = frame(&encapsulated(&[(ip(H1), ip(S1))], &second));
            let mut tunnel = tunnel(next_hops());
            let (output, port) = run(&mut tunnel, &sent).unwrap();
            assert_eq!(port, PortId(1));
            let ethernet = Ethernet::ref_from_prefix(&output).unwrap().0;
            assert_eq!((ethernet.dst, ethernet.src), (NEIGHBOUR, OWN));
            let mut expected = frame(&second);
            // The TTL is decremented, and nothing else changes.
            let family = Family::of_ethertype(ethernet.ethertype.get()).unwrap();
            family.spend_hop(&mut expected[Ethernet::LEN..]);
            assert_eq!(output[12..], expected[12..]);
            assert_eq!(tunnel.counters().terminated.get(), (1, output.len() as u64));
            let header = Header::read(&output[Ethernet::LEN..], family).unwrap();
            assert!(header.is_checksum_right(&output[Ethernet::LEN..]) && header.hops == 63);
        }
    }
}

#[test]
fn last_decapsulation_restores_the_packet() {
    // At the neighbour: the packet comes from the other switch.
    let config =
        Config { endpoints: vec![v4(S2)], sources: vec![v4(S1)], ..config(InnerForwarding::Function) };
    let Tunnel { function, .. } = tunnel(next_hops());
    let mut tunnel = Tunnel::new(&config, function);
    let innermost = packet(v4(H1), v4(H2), 0x68);
    let mut sent = MemoryFrame::new(frame(&encapsulated(&[(v4(S1), v4(S2))], &innermost)));
    _ = tunnel.on_frame(&mut sent, PortId(1), Nanos::ZERO, &mut FrameCollector::with_room(2));
    assert_eq!(
        sent.into_bytes(),
        frame(&innermost),
        "a function that routes gets its own address and an unchanged TTL"
    );
}

#[test]
fn tags_options_and_ethernet_padding_are_handled() {
    let innermost = packet(v4(H1), v4(S2), 0);
    let mut outer = encapsulation_headers(&[(v4(H1), v4(S1))], &innermost).unwrap();
    // Four bytes of options: "no operation"
    outer[0] = 0x46;
    outer[3] += 4;
    outer.extend([1; 4]);
    outer[10..12].fill(0);
    let sum = Sum::default().add(&outer).checksum();
    outer[10..12].copy_from_slice(&sum.to_be_bytes());
    let packet = [&outer[..], &innermost, &[0xee; 7]].concat();
    let mut sent = frame(&packet);
    sent.splice(12..12, [0x88, 0xa8, 0x20, 0x05, 0x81, 0x00, 0x60, 0x0a]);
    let mut tunnel = tunnel(next_hops());
    let (output, port) = run(&mut tunnel, &sent).unwrap();
    assert_eq!(port, PortId(1));
    assert_eq!(output[12..22], [0x88, 0xa8, 0x20, 0x05, 0x81, 0x00, 0x60, 0x0a, 0x08, 0x00]);
    assert_eq!(output.len(), sent.len() - 24);
    assert_eq!(&output[22 + Ipv4::LEN..], &[&innermost[Ipv4::LEN..], &[0xee; 7]].concat());
}

#[test]
fn frames_for_other_destinations_pass_unchanged() {
    let innermost = packet(v4(H1), v4(H2), 0);
    let to_switch = encapsulated(&[(v4(H1), v4(S1))], &innermost);
    let mut for_another = frame(&to_switch);
    for_another[..6].copy_from_slice(&NEIGHBOUR.0);
    let elsewhere = frame(&encapsulated(&[(v4(H1), v4(S2))], &innermost));
    let mut tcp = frame(&to_switch);
    tcp[14 + 9] = 6;
    for bytes in
        [for_another, elsewhere, tcp, frame(&innermost), frame(&to_switch)[..30].to_vec(), OWN.0.to_vec()]
    {
        let mut tunnel = tunnel(next_hops());
        let mut sent = MemoryFrame::new(bytes.clone());
        _ = tunnel.on_frame(&mut sent, PortId(0), Nanos::ZERO, &mut FrameCollector::with_room(2));
        assert_eq!(sent.into_bytes(), bytes);
        assert_eq!(tunnel.counters().terminated.get(), (0, 0));
        assert!(Refusal::ALL.iter().all(|&reason| tunnel.counters().refused(reason) == 0));
    }
}

#[test]
fn each_reason_for_dropping_is_reached() {
    const IP: usize = Ethernet::LEN;
    const INNER: usize = IP + Ipv4::LEN;
    let innermost = packet(v4(H1), v4(H2), 0);
    let valid = frame(&encapsulated(&[(v4(H1), v4(S1))], &innermost));
    assert!(run(&mut tunnel(next_hops()), &valid).is_err_and(|reason| reason == DropReason::SamePort));
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = valid.clone();
        change(&mut frame);
        frame
    };
    refused(&changed(&|frame| frame.truncate(valid.len() - 1)), Refusal::OuterLength);
    refused(&changed(&|frame| frame[IP + 3] = 19), Refusal::OuterLength);
    refused(&changed(&|frame| frame[IP + 10] ^= 1), Refusal::OuterChecksum);
    for flags in [0x20, 0x01] {
        let fragment = changed(&|frame| {
            frame[IP + 6] = flags;
            correct_checksum(frame, IP);
        });
        refused(&fragment, Refusal::Fragment);
    }
    refused(&frame(&encapsulated(&[(v4(H2), v4(S1))], &innermost)), Refusal::Source);
    refused(&changed(&|frame| frame[INNER] = 0x65), Refusal::Inner);
    refused(&changed(&|frame| frame[INNER] = 0x44), Refusal::Inner);
    refused(&changed(&|frame| frame[INNER + 10] ^= 1), Refusal::Inner);
    let longer = changed(&|frame| {
        frame[INNER + 3] += 1;
        correct_checksum(frame, INNER);
    });
    refused(&longer, Refusal::Inner);
    let short = changed(&|frame| {
        frame.truncate(INNER + Ipv4::LEN - 1);
        frame[IP + 3] = (2 * Ipv4::LEN - 1) as u8;
        correct_checksum(frame, IP);
    });
    refused(&short, Refusal::Inner);
    let tunnels = [(v4(H1), v4(S1)), (v4(S1), v4(S2)), (v4(S2), v4(103))];
    refused(&frame(&encapsulated(&tunnels, &innermost)), Refusal::TooDeep);
    refused(&frame(&encapsulated(&[(v4(H1), v4(S1)); 2], &innermost)), Refusal::Returning);
    refused(
        &frame(&encapsulated(&[(v4(H1), v4(S1)), (v4(S1), v4(S2))], &packet(v4(H1), v4(S1), 0))),
        Refusal::Returning,
    );
    for hops in [0, 1] {
        let expired = changed(&|frame| {
            frame[INNER + 8] = hops;
            correct_checksum(frame, INNER);
        });
        refused(&expired, Refusal::Expired);
    }
    let marked = changed(&|frame| {
        frame[IP + 1] |= 3;
        correct_checksum(frame, IP);
    });
    refused(&marked, Refusal::Congested);
    refused(&frame(&encapsulated(&[(v4(H1), v4(S1))], &packet(v4(H1), v4(77), 0))), Refusal::NoNextHop);
    let mut tunnel = tunnel(next_hops());
    let mut beginning = MemoryFrame::truncated(valid);
    let verdict = tunnel.on_frame(&mut beginning, PortId(0), Nanos::ZERO, &mut FrameCollector::with_room(0));
    assert_eq!(verdict, Verdict::Drop(Refusal::OuterLength.into()));
}

#[test]
fn congestion_marks_survive_decapsulation() {
    // RFC 6040, figure 4: result by inner and outer ECN field
    let table = [
        (0, [Some(0), Some(0), Some(0), None]),
        (1, [Some(1), Some(1), Some(1), Some(3)]),
        (2, [Some(2), Some(1), Some(2), Some(3)]),
        (3, [Some(3), Some(3), Some(3), Some(3)]),
    ];
    for (inner, row) in table {
        for (outer, expected) in (0..).zip(row) {
            assert_eq!(ecn_of(inner, outer), expected, "{inner} in {outer}");
        }
    }
    for ip in [v4 as fn(u8) -> IpAddr, v6] {
        let mut sent = frame(&encapsulated(&[(ip(H1), ip(S1))], &packet(ip(H1), ip(S2), 0x6a)));
        // The outer header is marked on its way.
        let family = network_layer(&sent).unwrap().1;
        family.set_ecn(&mut sent[Ethernet::LEN..], 3);
        let (output, _) = run(&mut tunnel(next_hops()), &sent).unwrap();
        let (ip, header) =
            (&output[Ethernet::LEN..], Header::read(&output[Ethernet::LEN..], family).unwrap());
        assert!(header.is_checksum_right(ip));
        let class = if family == Family::V4 { ip[1] } else { ip[0] << 4 | ip[1] >> 4 };
        assert_eq!(class, 0x6b, "the DSCP is that of the inner header");
    }
}

#[test]
fn headers_describe_the_packets_that_follow() {
    let innermost = packet(v4(H1), v4(H2), 0x6a);
    let all = encapsulated(&[(v6(H1), v6(S1)), (v4(S1), v4(S2))], &innermost);
    let outer = Header::read(&all, Family::V6).unwrap();
    assert_eq!((outer.total, outer.protocol, outer.hops), (all.len(), 4, 64));
    assert_eq!(all[0] << 4 | all[1] >> 4, 0x6a);
    let second = &all[outer.len..];
    let header = Header::read(second, Family::V4).unwrap();
    assert_eq!((header.total, header.protocol, header.src, header.dst), (second.len(), 4, v4(S1), v4(S2)));
    assert!(header.is_checksum_right(second) && second[1] == 0x6a);
    assert_eq!(second[header.len..], innermost);
    assert_eq!(encapsulation_headers(&[], &innermost), Ok(Vec::new()));
    assert_eq!(
        encapsulation_headers(&[(v4(1), v6(2))], &innermost),
        Err(EncapsulationError::Versions(v4(1), v6(2)))
    );
    assert_eq!(encapsulation_headers(&[(v4(1), v4(2))], b"nothing"), Err(EncapsulationError::NoPacket));
    let mut longest = innermost;
    longest[2..4].copy_from_slice(&0xffffu16.to_be_bytes());
    assert_eq!(encapsulation_headers(&[(v4(1), v4(2))], &longest), Err(EncapsulationError::TooLong));
}

/// Generates almost valid frames: valid ones with some bytes changed, some of them truncated.
fn nearly_right() -> impl Strategy<Value = Vec<u8>> {
    let innermost = packet(v4(H1), v4(H2), 0x6a);
    let sixth = packet(v6(H1), v6(H2), 0x6a);
    let frames = vec![
        frame(&encapsulated(&[(v4(H1), v4(S1)), (v4(S1), v4(S2))], &innermost)),
        frame(&encapsulated(&[(v6(H1), v6(S1)), (v6(S1), v6(S2))], &sixth)),
        frame(&encapsulated(&[(v4(H1), v4(S1))], &sixth)),
    ];
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::sample::select(frames), changes, any::<bool>(), any::<prop::sample::Index>()).prop_map(
        |(mut frame, changes, cut, at)| {
            for (position, byte) in changes {
                let position = position.index(frame.len());
                frame[position] = byte;
            }
            if frame[Ethernet::LEN] == 0x45 {
                correct_checksum(&mut frame, Ethernet::LEN);
            }
            if cut {
                frame.truncate(at.index(frame.len()));
            }
            frame
        },
    )
}

proptest! {
    #[test]
    fn arbitrary_bytes_pass_unchanged_or_lose_one_header(
        frame in prop_oneof![nearly_right(), proptest::collection::vec(any::<u8>(), 0..120)],
        routed: bool,
    ) {
        let mut tunnel = tunnel(if routed { InnerForwarding::Function } else { next_hops() });
        let mut sent = MemoryFrame::new(frame.clone());
        let verdict = tunnel.on_frame(&mut sent, PortId(0), Nanos::ZERO, &mut FrameCollector::with_room(2));
        let counters = tunnel.counters();
        let refused: u64 = Refusal::ALL.iter().map(|&reason| counters.refused(reason)).sum();
        let (terminated, _) = counters.terminated.get();
        prop_assert!(refused + terminated <= 1);
        let output = sent.into_bytes();
        if terminated == 1 {
            // The bytes behind the inner header are unchanged, and were inside.
            prop_assert!(output.len() + Ipv4::LEN <= frame.len());
            let (at, family) = network_layer(&output).unwrap();
            let header = Header::read(&output[at..], family).unwrap();
            prop_assert!(header.is_checksum_right(&output[at..]) && header.total <= output.len() - at);
            prop_assert!(frame.ends_with(&output[at + header.len..]));
        } else {
            prop_assert_eq!(output, frame);
            prop_assert!(refused == 0 || matches!(verdict, Verdict::Drop(_)));
        }
    }
}

use super::*;
use crate::gather::MAX_LAG;
use crate::group::{GroupConfig, Peer, Replica};
use core::net::{Ipv4Addr, Ipv6Addr};
use rocev2::aeth::{Aeth, Credit};
use rocev2::ethernet::ethertype;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Msn};
use switch::Full;
use switch::memory::{FrameCollector, MemoryFrame, run_frame};
use zerocopy::IntoBytes;

pub(super) const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xff]);
const LEADER_QP: Qpn = Qpn::new(0x100);
const RKEY: u32 = 0x7777;
const SIZE: u64 = 0x10000;
/// The leader's first PSN, just before the wrap
const FIRST: Psn = Psn::new(0xff_ffff);

/// Host `n` of the network: 0 is the leader, 1 and above are replicas.
fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n])
}

fn ip(v6: bool, n: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, n).into()
    }
}

fn own_ip(v6: bool) -> IpAddr {
    ip(v6, 254)
}

pub(super) fn peer(v6: bool, n: u8) -> Peer {
    Peer {
        local: own_ip(v6),
        remote: ip(v6, n),
        mac: mac(n),
        port: PortId(n.into()),
        local_qp: Qpn::new(LEADER_QP.get() + u32::from(n)),
        remote_qp: Qpn::new(0x11 + u32::from(n)),
        first: if n == 0 { FIRST } else { Psn::new(1000 * u32::from(n)) },
    }
}

fn group(v6: bool, replicas: u8, quorum: usize, outvote: bool) -> Box<Group> {
    let replica = |n| Replica { peer: peer(v6, n), va: 0x10_0000 * u64::from(n), rkey: 0x100 + u32::from(n) };
    Group::new(GroupConfig {
        id: GroupId(3),
        own: OWN,
        leader: peer(v6, 0),
        rkey: RKEY,
        size: SIZE,
        replicas: (1..=replicas).map(replica).collect(),
        quorum,
        outvote,
        max_lag: MAX_LAG,
    })
    .expect("a valid group")
}

fn empty() -> P4ce {
    P4ce::new(Config {
        forward: forward::Config::bridge(6, 16),
        mac: OWN,
        addresses: vec![own_ip(false), own_ip(true)],
        groups: 8,
        queue_pairs: 64,
        workers: 1,
        silent_after: Nanos::ZERO,
        bug: None,
    })
}

fn p4ce(v6: bool, replicas: u8, quorum: usize) -> P4ce {
    let mut function = empty();
    function.on_command(Command::Open(group(v6, replicas, quorum, false)), Nanos::ZERO);
    assert!(matches!(function.poll_event(), Some(Event::Opened(GroupId(3), true))));
    function
}

/// Returns a packet from host `n` to the switch.
pub(super) fn packet(
    v6: bool,
    n: u8,
    opcode: Opcode,
    qpn: Qpn,
    psn: Psn,
    change: impl FnOnce(&mut Repr<'_>),
) -> Vec<u8> {
    let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let ethernet = Ethernet { dst: OWN, src: mac(n), ethertype: kind.into() };
    let ip = match (ip(v6, n), own_ip(v6)) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Ip::V4(Ipv4 { tos: 0x6a, src: src.octets(), dst: dst.octets(), ..Ipv4::default() }, &[])
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let version_class_flow = (6 << 28 | 0x6a << 20).into();
            Ip::V6(Ipv6 { version_class_flow, src: src.octets(), dst: dst.octets(), ..Ipv6::default() }, &[])
        }
        _ => unreachable!("one family"),
    };
    let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, qpn, psn));
    repr.udp.src_port = 0xc123.into();
    repr.udp.dst_port = rocev2::UDP_PORT.into();
    repr.bth.set_ack_req(true);
    change(&mut repr);
    let mut frame = vec![0; repr.frame_len() + 4];
    let len = repr.build(&mut frame).unwrap();
    frame.truncate(len);
    frame
}

/// Returns a WRITE of the leader.
fn write(v6: bool, psn: Psn, va: u64, rkey: u32, payload: &[u8]) -> Vec<u8> {
    packet(v6, 0, Opcode::RC_WRITE_ONLY, LEADER_QP, psn, |repr| {
        repr.extended.reth.va = va.into();
        repr.extended.reth.rkey = rkey.into();
        repr.extended.reth.len = (payload.len() as u32).into();
        // The payload is leaked, because it has to outlive the closure.
        repr.payload = payload.to_vec().leak();
    })
}

/// Returns an acknowledgement of replica `n`; `psn` counts from the first packet.
fn ack(v6: bool, n: u8, psn: u32, syndrome: Syndrome, msn: u32) -> Vec<u8> {
    let at = peer(v6, n);
    packet(v6, n, Opcode::RC_ACKNOWLEDGE, at.local_qp, at.first.add(psn), |repr| {
        repr.bth.set_ack_req(false);
        repr.extended.aeth.copy_from_slice(Aeth::new(syndrome, Msn::new(msn)).as_bytes());
    })
}

const ACK: Syndrome = Syndrome::Ack(Credit::UNLIMITED);

fn run(function: &mut P4ce, frame: &[u8], port: u16) -> (Verdict, Vec<(Vec<u8>, PortId)>) {
    run_frame(function, frame, PortId(port), Nanos::ZERO)
}

#[test]
fn a_write_is_copied_to_each_replica() {
    for (v6, tagged) in [(false, false), (true, false), (false, true)] {
        let mut function = p4ce(v6, 3, 2);
        let mut frame = write(v6, FIRST.add(1), 0x40, RKEY, b"what is to be replicated");
        if tagged {
            frame.splice(12..12, [0x81, 0, 0x60, 5]);
        }
        let sent = Repr::parse(&frame).unwrap();
        let (verdict, copies) = run(&mut function, &frame, 0);
        assert_eq!(verdict, Verdict::Forward(PortId(3)), "the last copy uses the packet's buffer");
        assert_eq!(copies.len(), 3);
        for (n, (copy, port)) in (1u8..).zip(&copies) {
            let at = peer(v6, n);
            assert_eq!(*port, at.port);
            let packet = Packet::parse(copy).expect("a valid packet");
            assert!(packet.verify_icrc());
            assert_eq!((packet.src(), packet.dst()), (at.local, at.remote));
            let repr = Repr::parse(copy).unwrap();
            assert_eq!((repr.ethernet.src, repr.ethernet.dst), (OWN, at.mac));
            // The second packet: its PSN is the replica's first one plus 1.
            assert_eq!((repr.bth.dest_qp(), repr.bth.psn()), (at.remote_qp, at.first.add(1)));
            let reth = repr.extended.reth;
            assert_eq!(
                (reth.va.get(), reth.rkey.get(), reth.len),
                (0x10_0000 * u64::from(n) + 0x40, 0x100 + u32::from(n), sent.extended.reth.len)
            );
            // Everything else is the leader's: payload, tag, DSCP and ECN, source port, AckReq.
            assert_eq!(
                (repr.payload, repr.udp.src_port, repr.tag_count),
                (sent.payload, sent.udp.src_port, usize::from(tagged))
            );
            assert!(repr.bth.ack_req());
            if let (Ip::V4(copy, _), Ip::V4(sent, _)) = (repr.ip, sent.ip) {
                assert_eq!((copy.tos, copy.ttl, copy.id), (sent.tos, sent.ttl, sent.id));
            }
        }
    }
}

#[test]
fn every_supported_opcode_is_copied_to_each_replica() {
    let mut function = p4ce(false, 2, 1);
    for (n, opcode) in (0..).zip([
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_WRITE_MIDDLE,
        Opcode::RC_WRITE_LAST,
        Opcode::RC_WRITE_LAST_IMM,
        Opcode::RC_WRITE_ONLY_IMM,
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST,
        Opcode::RC_SEND_LAST_IMM,
        Opcode::RC_SEND_ONLY,
        Opcode::RC_SEND_ONLY_IMM,
    ]) {
        let frame = packet(false, 0, opcode, LEADER_QP, FIRST.add(n), |repr| {
            repr.extended.reth.rkey = RKEY.into();
            repr.extended.reth.len = 8.into();
            repr.extended.immediate.data = 0x1234_5678.into();
            repr.payload = b"01234567";
        });
        let (verdict, copies) = run(&mut function, &frame, 0);
        assert_eq!((verdict, copies.len()), (Verdict::Forward(PortId(2)), 2), "{opcode}");
        for (n, (copy, _)) in (1u8..).zip(&copies) {
            let (packet, repr) = (Packet::parse(copy).unwrap(), Repr::parse(copy).unwrap());
            assert!(packet.verify_icrc());
            assert_eq!(
                (repr.payload, repr.extended.immediate),
                (&b"01234567"[..], Repr::parse(&frame).unwrap().extended.immediate)
            );
            let has_reth = packet.reth().is_some();
            assert_eq!(packet.reth().map(|reth| reth.rkey.get()), has_reth.then_some(0x100 + u32::from(n)));
        }
    }
}

/// An output whose copies share the payload of the leader's packet, between `head` and `tail`.
struct Sharing(FrameCollector);

impl Output for Sharing {
    type Frame = MemoryFrame;

    fn make(&mut self, len: usize) -> Result<MemoryFrame, Full> {
        self.0.make(len)
    }

    fn room(&self, port: PortId) -> usize {
        self.0.room(port)
    }

    fn copy(&mut self, _frame: &MemoryFrame) -> Result<MemoryFrame, Full> {
        panic!("every copy should share the payload")
    }

    fn prefers_sharing(&self, _port: PortId, len: usize) -> bool {
        assert_eq!(len, 256);
        true
    }

    fn share(&mut self, frame: &mut MemoryFrame, head: usize, tail: usize) -> Result<MemoryFrame, Full> {
        assert_eq!((frame.bytes().len() - head - tail, tail), (256, ICRC_LEN));
        Ok(frame.clone())
    }

    fn send(&mut self, frame: MemoryFrame, port: PortId) -> Result<(), Full> {
        self.0.send(frame, port)
    }
}

#[test]
fn shared_payloads_give_the_same_frames_as_copies() {
    for v6 in [false, true] {
        let (mut copying, mut sharing) = (p4ce(v6, 4, 2), p4ce(v6, 4, 2));
        let mut request = write(v6, FIRST, 0x40, RKEY, &[0x5a; 256]);
        for damage in [0, 1] {
            *request.last_mut().unwrap() ^= damage;
            let expected = run(&mut copying, &request, 0);
            let mut out = Sharing(FrameCollector::with_room(8));
            let mut frame = MemoryFrame::new(request.clone());
            let verdict = sharing.on_frame(&mut frame, PortId(0), Nanos::ZERO, &mut out);
            let Verdict::Forward(port) = verdict else { panic!("{verdict:?}") };
            out.0.frames.push((frame, port));
            let frames: Vec<_> =
                out.0.frames.into_iter().map(|(frame, port)| (frame.into_bytes(), port)).collect();
            assert_eq!((verdict, frames), expected);
        }
    }
}

#[test]
fn a_damaged_packet_still_has_a_wrong_icrc_after_scatter() {
    let mut function = p4ce(false, 2, 1);
    let mut frame = write(false, FIRST, 0, RKEY, b"damaged on the way");
    let at = frame.len() - 8;
    frame[at] ^= 1;
    let (_, copies) = run(&mut function, &frame, 0);
    assert!(copies.iter().all(|(copy, _)| !Packet::parse(copy).unwrap().verify_icrc()));
}

#[test]
fn the_leader_gets_one_acknowledgement_per_quorum() {
    for v6 in [false, true] {
        let mut function = p4ce(v6, 3, 2);
        run(&mut function, &write(v6, FIRST, 0, RKEY, b"a"), 0);
        run(&mut function, &write(v6, FIRST.add(1), 0, RKEY, b"b"), 0);
        let (verdict, _) = run(&mut function, &ack(v6, 2, 1, ACK, 2), 2);
        assert_eq!(verdict, Verdict::Consume);
        let (verdict, frames) = run(&mut function, &ack(v6, 1, 1, ACK, 2), 1);
        assert_eq!(verdict, Verdict::Forward(PortId(0)));
        let packet = Packet::parse(&frames[0].0).unwrap();
        assert!(packet.verify_icrc());
        assert_eq!((packet.src(), packet.dst()), (own_ip(v6), ip(v6, 0)));
        let bth = packet.bth();
        assert_eq!(
            (bth.opcode(), bth.dest_qp(), bth.psn()),
            (Opcode::RC_ACKNOWLEDGE, peer(v6, 0).remote_qp, FIRST.add(1))
        );
        assert_eq!(packet.aeth(), Some(&Aeth::new(ACK, Msn::new(2))));
        assert_eq!((packet.ethernet().src, packet.ethernet().dst), (OWN, mac(0)));
        let (verdict, _) = run(&mut function, &ack(v6, 3, 1, ACK, 2), 3);
        assert_eq!(verdict, Verdict::Consume);
        let counters = function.counters();
        assert_eq!((counters.requests.get(), counters.copies.get()), (2, 6));
        assert_eq!((counters.responses.get(), counters.acks.get()), (3, 1));
    }
}

#[test]
fn a_retransmission_is_acknowledged_again() {
    for v6 in [false, true] {
        let mut function = p4ce(v6, 2, 1);
        let frame = write(v6, FIRST, 0, RKEY, b"a");
        run(&mut function, &frame, 0);
        run(&mut function, &ack(v6, 2, 0, ACK, 1), 2);
        let (verdict, frames) = run(&mut function, &frame, 0);
        // The packet is copied to all replicas again: one of them may have missed it.
        assert_eq!((verdict, frames.len()), (Verdict::Forward(PortId(2)), 3));
        let packet = Packet::parse(&frames[0].0).unwrap();
        assert!(packet.verify_icrc());
        assert_eq!((frames[0].1, packet.bth().opcode()), (PortId(0), Opcode::RC_ACKNOWLEDGE));
        assert_eq!(
            (packet.bth().psn(), packet.bth().dest_qp(), packet.dst()),
            (FIRST, peer(v6, 0).remote_qp, ip(v6, 0))
        );
        assert_eq!(packet.aeth(), Some(&Aeth::new(ACK, Msn::new(1))));
        // The request is ECN-capable. The response is not, because no queue pair would slow down for it.
        let class = packet.ipv4().map_or_else(|| packet.ipv6().unwrap().traffic_class(), |ip| ip.tos);
        assert_eq!(class, 0x68);
    }
}

#[test]
fn unsupported_requests_are_refused_with_a_nak() {
    let nak = |code| Some(Aeth::new(Syndrome::Nak(code), Msn::ZERO));
    let read = packet(false, 0, Opcode::RC_READ_REQUEST, LEADER_QP, FIRST, |_| {});
    let atomic = packet(false, 0, Opcode::RC_FETCH_ADD, LEADER_QP, FIRST, |_| {});
    let invalidate = packet(false, 0, Opcode::RC_SEND_ONLY_INVALIDATE, LEADER_QP, FIRST, |_| {});
    for (frame, code) in [
        (read, NakCode::INVALID_REQUEST),
        (atomic, NakCode::INVALID_REQUEST),
        (invalidate, NakCode::INVALID_REQUEST),
        (write(false, FIRST, 0, RKEY + 1, b"x"), NakCode::REMOTE_ACCESS_ERROR),
        (write(false, FIRST, SIZE, RKEY, b"x"), NakCode::REMOTE_ACCESS_ERROR),
        (write(false, FIRST, u64::MAX, RKEY, b"xy"), NakCode::REMOTE_ACCESS_ERROR),
    ] {
        let mut function = p4ce(false, 2, 1);
        let (verdict, frames) = run(&mut function, &frame, 0);
        assert_eq!(verdict, Verdict::Drop(DropReason::Refused));
        assert_eq!(frames.len(), 1);
        let packet = Packet::parse(&frames[0].0).unwrap();
        assert!(packet.verify_icrc());
        assert_eq!((packet.bth().psn(), packet.aeth().copied(), frames[0].1), (FIRST, nak(code), PortId(0)));
        // A damaged packet causes no NAK.
        let mut damaged = frame.clone();
        let at = damaged.len() - 1;
        damaged[at] ^= 1;
        assert_eq!(
            run(&mut function, &damaged, 0),
            (Verdict::Drop(DropReason::Malformed(Fault::Icrc)), vec![])
        );
    }
    // The last byte of the memory is valid, and 0 bytes are valid at any address.
    let mut function = p4ce(false, 2, 1);
    assert_eq!(run(&mut function, &write(false, FIRST, SIZE - 1, RKEY, b"x"), 0).1.len(), 2);
    assert_eq!(run(&mut function, &write(false, FIRST.add(1), SIZE + 9, 0, b""), 0).1.len(), 2);
}

#[test]
fn packets_from_outsiders_are_dropped() {
    let mut function = p4ce(false, 2, 1);
    let mut frame = packet(false, 9, Opcode::RC_SEND_ONLY, LEADER_QP, FIRST, |_| {});
    assert_eq!(run(&mut function, &frame, 0), (Verdict::Drop(DropReason::WrongSource), vec![]));
    frame = packet(false, 0, Opcode::RC_SEND_ONLY, Qpn::new(0x140), FIRST, |_| {});
    assert_eq!(run(&mut function, &frame, 0).0, Verdict::Drop(DropReason::NoQueuePair));
    // A replica on another replica's queue pair
    let mut other = ack(false, 1, 0, ACK, 1);
    other = packet(
        false,
        2,
        Opcode::RC_ACKNOWLEDGE,
        Packet::parse(&other).unwrap().bth().dest_qp(),
        FIRST,
        |_| {},
    );
    assert_eq!(run(&mut function, &other, 2).0, Verdict::Drop(DropReason::WrongSource));
    // A damaged response, a request, and an implausible acknowledgement
    run(&mut function, &write(false, FIRST, 0, RKEY, b"a"), 0);
    let mut damaged = ack(false, 1, 0, ACK, 1);
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(run(&mut function, &damaged, 1).0, Verdict::Drop(DropReason::Malformed(Fault::Icrc)));
    let asks = packet(false, 1, Opcode::RC_SEND_ONLY, peer(false, 1).local_qp, Psn::ZERO, |_| {});
    assert_eq!(run(&mut function, &asks, 1).0, Verdict::Drop(DropReason::Unexpected));
    assert_eq!(run(&mut function, &ack(false, 1, 5, ACK, 6), 1).0, Verdict::Drop(DropReason::Stale));
    // A packet far ahead has to be intact, because it makes later acknowledgements plausible.
    let mut ahead = write(false, FIRST.add(7), 0, RKEY, b"a");
    *ahead.last_mut().unwrap() ^= 1;
    assert_eq!(run(&mut function, &ahead, 0).0, Verdict::Drop(DropReason::Malformed(Fault::Icrc)));
}

#[test]
fn cnps_are_passed_to_the_leader() {
    let mut function = p4ce(false, 2, 1);
    let cnp = packet(false, 2, Opcode::CNP, peer(false, 2).local_qp, Psn::ZERO, |repr| {
        repr.bth.set_becn(true);
        repr.bth.set_ack_req(false);
    });
    let (verdict, frames) = run(&mut function, &cnp, 2);
    assert_eq!(verdict, Verdict::Forward(PortId(0)));
    let packet = Packet::parse(&frames[0].0).unwrap();
    assert!(packet.verify_icrc() && packet.bth().becn());
    assert_eq!((packet.bth().dest_qp(), packet.dst()), (peer(false, 0).remote_qp, ip(false, 0)));
}

#[test]
fn excluded_replicas_are_no_longer_written_to() {
    let mut function = p4ce(false, 3, 1);
    function.on_command(Command::Exclude(GroupId(3), 1), Nanos::ZERO);
    let (_, copies) = run(&mut function, &write(false, FIRST, 0, RKEY, b"a"), 0);
    let ports: Vec<_> = copies.iter().map(|(_, port)| port.0).collect();
    assert_eq!(ports, [1, 3]);
    assert_eq!(run(&mut function, &ack(false, 2, 0, ACK, 1), 2).0, Verdict::Drop(DropReason::Stale));
    for member in [0, 2] {
        function.on_command(Command::Exclude(GroupId(3), member), Nanos::ZERO);
    }
    let verdict = run(&mut function, &write(false, FIRST.add(1), 0, RKEY, b"a"), 0).0;
    assert_eq!(verdict, Verdict::Drop(DropReason::NoQueuePair));
}

#[test]
fn an_outvoted_replica_that_fails_is_excluded() {
    let mut function = empty();
    function.on_command(Command::Open(group(false, 2, 1, true)), Nanos::ZERO);
    function.poll_event();
    run(&mut function, &write(false, FIRST, 0, RKEY, b"a"), 0);
    let nak = ack(false, 2, 0, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), 0);
    assert_eq!(run(&mut function, &nak, 2).0, Verdict::Consume);
    assert!(matches!(function.poll_event(), Some(Event::Excluded(GroupId(3), 1))));
    let nak = ack(false, 1, 0, Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR), 0);
    assert_eq!(run(&mut function, &nak, 1).0, Verdict::Forward(PortId(0)), "the last replica is needed");
}

#[test]
fn groups_are_opened_and_closed() {
    let mut function = p4ce(false, 2, 1);
    function.on_command(Command::Open(group(false, 1, 1, false)), Nanos::ZERO);
    assert!(matches!(function.poll_event(), Some(Event::Opened(GroupId(3), false))), "its slot is taken");
    assert_eq!(function.group(GroupId(3)).unwrap().gather().members(), 2);
    function.on_command(Command::Close(GroupId(3)), Nanos::ZERO);
    assert!(matches!(function.poll_event(), Some(Event::Closed(GroupId(3), Some(_)))));
    let verdict = run(&mut function, &write(false, FIRST, 0, RKEY, b"a"), 0).0;
    assert_eq!(verdict, Verdict::Drop(DropReason::NoQueuePair));
    function.on_command(Command::Close(GroupId(3)), Nanos::ZERO);
    assert!(matches!(function.poll_event(), Some(Event::Closed(GroupId(3), None))));
    function.on_command(Command::Open(group(false, 1, 1, false)), Nanos::ZERO);
    assert!(matches!(function.poll_event(), Some(Event::Opened(GroupId(3), true))));
    let mixed = Replica { peer: peer(true, 2), va: 0, rkey: 1 };
    let mut config = group(false, 1, 1, false).config().clone();
    config.replicas.push(mixed);
    assert!(Group::new(config.clone()).is_none(), "two address families");
    config.replicas.clear();
    assert!(Group::new(config).is_none(), "no replica");
}

#[test]
fn replicas_without_progress_are_excluded_in_time() {
    let mut function = empty();
    function.config.silent_after = Nanos::from_millis(40);
    function.on_command(Command::Open(group(false, 2, 1, false)), Nanos::ZERO);
    function.poll_event();
    run(&mut function, &write(false, FIRST, 0, RKEY, b"a"), 0);
    run(&mut function, &ack(false, 1, 0, ACK, 1), 1);
    let mut out = switch::memory::FrameCollector::with_room(0);
    for ms in [10, 20, 30, 40] {
        function.on_timer(Nanos::from_millis(ms), &mut out);
        assert!(function.poll_event().is_none(), "{ms} ms");
    }
    function.on_timer(Nanos::from_millis(50), &mut out);
    assert!(matches!(function.poll_event(), Some(Event::Excluded(GroupId(3), 1))));
}

#[test]
fn control_frames_are_punted() {
    let mut function = empty();
    let mad = packet(false, 0, Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO, |repr| repr.payload = &[0; 256]);
    assert_eq!(run(&mut function, &mad, 0).0, Verdict::Punt);
    let arp = |dst: MacAddr, target: [u8; 4]| {
        let mut frame = [&dst.0[..], &mac(0).0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend([&mac(0).0[..], &[10, 0, 0, 1], &[0; 6], &target].concat());
        frame
    };
    assert_eq!(run(&mut function, &arp(MacAddr::BROADCAST, [10, 0, 0, 254]), 0).0, Verdict::Punt);
    assert_eq!(run(&mut function, &arp(OWN, [10, 0, 0, 254]), 0).0, Verdict::Punt);
    // Requests for other hosts are flooded, and frames to other hosts are bridged.
    assert_eq!(run(&mut function, &arp(MacAddr::BROADCAST, [10, 0, 0, 2]), 0).1.len(), 5);
    let mut solicitation = [&[0x33, 0x33, 0xff, 0, 0, 0xfe][..], &mac(0).0, &[0x86, 0xdd]].concat();
    solicitation.extend([0x60, 0, 0, 0, 0, 24, 58, 255]);
    solicitation.extend([0; 32]);
    solicitation.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    let IpAddr::V6(target) = own_ip(true) else { unreachable!("it is IPv6") };
    let ours = [&solicitation[..], &target.octets()].concat();
    assert_eq!(run(&mut function, &ours, 0).0, Verdict::Punt);
    let others = [&solicitation[..], &[0xfd; 16]].concat();
    assert_eq!(run(&mut function, &others, 0).1.len(), 5);
    assert_eq!(run(&mut function, &ours[..40], 0).1.len(), 5, "truncated: not for the switch");
}

#[test]
fn moved_leaders_and_replicas_are_found_by_their_packets() {
    let mut function = p4ce(false, 2, 1);
    run(&mut function, &write(false, FIRST, 0, RKEY, b"a"), 0);
    // The leader is on port 4 now, replica 2 on port 5.
    run(&mut function, &write(false, FIRST.add(1), 0, RKEY, b"b"), 4);
    let (verdict, _) = run(&mut function, &ack(false, 2, 0, ACK, 1), 5);
    assert_eq!(verdict, Verdict::Forward(PortId(4)));
    let (_, copies) = run(&mut function, &write(false, FIRST.add(2), 0, RKEY, b"c"), 4);
    assert_eq!(copies.iter().map(|(_, port)| port.0).collect::<Vec<_>>(), [1, 5]);
    // A routed packet, or a damaged one, does not move the leader.
    let mut routed = write(false, FIRST.add(3), 0, RKEY, b"d");
    routed[6..12].copy_from_slice(&mac(9).0);
    run(&mut function, &routed, 3);
    let mut damaged = write(false, FIRST.add(4), 0, RKEY, b"e");
    *damaged.last_mut().unwrap() ^= 1;
    run(&mut function, &damaged, 3);
    assert_eq!(run(&mut function, &ack(false, 2, 1, ACK, 2), 5).0, Verdict::Forward(PortId(4)));
    assert_eq!(function.counters().moved.get(), 2);
}

/// A replica may send only responses to the switch: the bridge learns its new port from its other frames.
#[test]
fn a_moved_replica_is_found_when_the_leader_retransmits() {
    let mut function = p4ce(false, 2, 2);
    let request = write(false, FIRST, 0, RKEY, b"a");
    run(&mut function, &request, 0);
    let mut announcement = [MacAddr::BROADCAST.0, mac(2).0].concat();
    announcement.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    announcement.extend([&mac(2).0[..], &[10, 0, 0, 2], &[0; 6], &[10, 0, 0, 2]].concat());
    run(&mut function, &announcement, 5);
    let (_, copies) = run(&mut function, &request, 0);
    assert_eq!(copies.iter().map(|(_, port)| port.0).collect::<Vec<_>>(), [1, 5]);
    // The bridge's entry is outdated once the replica responded from another port.
    run(&mut function, &ack(false, 2, 0, ACK, 1), 2);
    let (_, copies) = run(&mut function, &request, 0);
    assert_eq!(copies.iter().map(|(_, port)| port.0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_replica_dropped_for_its_lag_is_reported_and_no_longer_written_to() {
    let mut function = empty();
    let config = GroupConfig { max_lag: 4, ..group(false, 2, 1, false).config().clone() };
    function.on_command(Command::Open(Group::new(config).unwrap()), Nanos::ZERO);
    function.poll_event();
    for n in 0..6 {
        run(&mut function, &write(false, FIRST.add(n), 0, RKEY, b"a"), 0);
        run(&mut function, &ack(false, 1, n, ACK, n + 1), 1);
    }
    assert!(matches!(function.poll_event(), Some(Event::Excluded(GroupId(3), 1))));
    let (_, copies) = run(&mut function, &write(false, FIRST.add(6), 0, RKEY, b"a"), 0);
    assert_eq!(copies.iter().map(|(_, port)| port.0).collect::<Vec<_>>(), [1]);
    assert_eq!(function.counters().excluded.get(), 1);
}

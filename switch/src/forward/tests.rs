use super::config::MacTable;
use super::*;
use crate::memory::{FrameCollector, MemoryFrame, run_frame};
use crate::table::{Index, Key};
use rocev2::Qpn;
use std::net::IpAddr;

const LEFT: PortId = PortId(0);
const RIGHT: PortId = PortId(1);

fn wire() -> Config {
    Config {
        ports: 2,
        mode: ForwardingMode::Pairs(vec![(LEFT, RIGHT)]),
        drop: FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 0,
        health: false,
    }
}

fn bridge(ports: u16, capacity: usize) -> Config {
    let table =
        MacTable { capacity, ageing: Nanos::from_secs(300), fixed: vec![(mac(99), PortId(ports - 1))] };
    Config { ports, mode: ForwardingMode::Mac(table), ..wire() }
}

fn mac(n: u16) -> MacAddr {
    let [a, b] = n.to_be_bytes();
    MacAddr([2, 0, 0, 0, a, b])
}

/// Returns a frame between two stations that is not RoCE.
fn frame(dst: MacAddr, src: MacAddr) -> Vec<u8> {
    [&dst.0[..], &src.0, &[0x08, 0x06], &[0; 46]].concat()
}

/// Returns an acknowledgement of a ConnectX NIC, to QP 0x6ca9 at 192.168.1.13.
fn acknowledgement() -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0, 0x45, 2, 0, 0x30, 0x2a, 0x2b, 0x40, 0, 0x40, 0x11, 0, 0]);
    frame.extend([192, 168, 1, 12, 192, 168, 1, 13, 0xcf, 0x15, 0x12, 0xb7, 0, 0x1c, 0, 0]);
    frame.extend([
        0x11, 0x40, 0xff, 0xff, 0, 0, 0x6c, 0xa9, 0, 0, 0x0c, 0x71, 0x0d, 0, 0, 1, 0xdc, 0x97, 0x84, 0x42,
    ]);
    let sum = rocev2::checksum::Sum::default().add(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn run(forward: &mut Forward, frame: &[u8], port: PortId) -> (Verdict, Vec<PortId>) {
    let (verdict, frames) = run_frame(forward, frame, port, Nanos::ZERO);
    assert!(frames.iter().all(|(bytes, _)| bytes == frame), "forwarding leaves the frame unchanged");
    (verdict, frames.into_iter().map(|(_, port)| port).collect())
}

#[test]
fn bridge_without_events_keeps_learning() {
    let mut forward = Forward::embedded(&bridge(3, 1000), 1);
    for n in 100..600 {
        run(&mut forward, &frame(mac(99), mac(n)), RIGHT);
    }
    for n in 100..600 {
        assert_eq!(
            run(&mut forward, &frame(mac(n), mac(98)), LEFT).0,
            Verdict::Forward(RIGHT),
            "station {n}"
        );
    }
    assert_eq!(forward.poll_event(), None);
}

#[test]
fn wire_forwards_to_the_other_port_of_its_pair() {
    let mut forward = Forward::new(&wire());
    assert_eq!(run(&mut forward, &acknowledgement(), LEFT).0, Verdict::Forward(RIGHT));
    assert_eq!(
        run(&mut forward, &[], RIGHT).0,
        Verdict::Forward(LEFT),
        "an empty frame is forwarded as well"
    );
    let mut mirror =
        Forward::new(&Config { ports: 1, mode: ForwardingMode::Pairs(vec![(LEFT, LEFT)]), ..wire() });
    assert_eq!(run(&mut mirror, &acknowledgement(), LEFT).0, Verdict::Forward(LEFT));
}

#[test]
fn frames_are_counted_by_kind_opcode_and_queue_pair() {
    let mut forward =
        Forward::new(&Config { counted_qps: 1, verify_icrc: true, verify_udp_checksum: true, ..wire() });
    let ack = acknowledgement();
    let mut other_qp = ack.clone();
    other_qp[49] ^= 1; // which also makes the ICRC wrong
    for (frame, port) in
        [(&ack, LEFT), (&ack, RIGHT), (&other_qp, RIGHT), (&frame(mac(1), mac(2)), LEFT), (&vec![0; 9], LEFT)]
    {
        run(&mut forward, frame, port);
    }
    let counters = forward.counters();
    let len = ack.len() as u64;
    assert_eq!((counters.ports[0].roce.get(), counters.ports[1].roce.get()), ((1, len), (2, 2 * len)));
    assert_eq!((counters.ports[0].other.get(), counters.ports[0].malformed.get()), ((1, 60), (1, 9)));
    assert_eq!(counters.opcodes[0x11].get(), (3, 3 * len));
    let host: IpAddr = [192, 168, 1, 13].into();
    let counted: Vec<_> = counters.qps.iter().map(|qp| (qp.host, qp.qpn, qp.packets.get())).collect();
    assert_eq!(counted, [(host, Qpn::new(0x6ca9), (2, 2 * len))]);
    assert_eq!(counters.qps.others.get(), (1, len), "only one queue pair has a counter of its own");
    assert_eq!(counters.faults[Fault::Icrc as usize].get(), 1);
    assert_eq!(counters.faults[Fault::Truncated as usize].get(), 1);
}

#[test]
fn malformed_frames_are_dropped_only_if_configured() {
    let mut bad_icrc = acknowledgement();
    *bad_icrc.last_mut().unwrap() ^= 1;
    let mut bad_udp_checksum = acknowledgement();
    bad_udp_checksum[41] = 1;
    let drop = FaultSet::NONE.with(Fault::Icrc).with(Fault::UdpChecksum);
    let mut forward = Forward::new(&Config { drop, verify_icrc: true, verify_udp_checksum: true, ..wire() });
    let malformed = |fault| Verdict::Drop(DropReason::Malformed(fault));
    assert_eq!(run(&mut forward, &bad_icrc, LEFT).0, malformed(Fault::Icrc));
    assert_eq!(run(&mut forward, &bad_udp_checksum, LEFT).0, malformed(Fault::UdpChecksum));
    assert_eq!(
        run(&mut forward, &bad_icrc[..50], LEFT).0,
        Verdict::Forward(RIGHT),
        "truncated frames are not configured to be dropped"
    );
    let mut unverified = Forward::new(&Config { drop: FaultSet::ALL, ..wire() });
    assert_eq!(run(&mut unverified, &bad_icrc, LEFT).0, Verdict::Forward(RIGHT), "the ICRC is not verified");
}

#[test]
fn embedded_forwarding_drops_packets_that_fail_verification() {
    let mut bad_udp_checksum = acknowledgement();
    bad_udp_checksum[41] = 1;
    let verified = Config { verify_icrc: true, verify_udp_checksum: true, ..wire() };
    let malformed = Verdict::Drop(DropReason::Malformed(Fault::UdpChecksum));
    assert_eq!(run(&mut Forward::embedded(&verified, 1), &bad_udp_checksum, LEFT).0, malformed);
    assert_eq!(run(&mut Forward::embedded(&wire(), 1), &bad_udp_checksum, LEFT).0, Verdict::Forward(RIGHT));
}

#[test]
fn truncated_buffer_of_a_long_frame_counts_as_oversized() {
    let mut forward = Forward::new(&Config { drop: FaultSet::ALL, ..wire() });
    let mut frame = MemoryFrame::truncated(&acknowledgement()[..60]);
    let verdict = forward.on_frame(&mut frame, LEFT, Nanos::ZERO, &mut FrameCollector::with_room(0));
    assert_eq!(verdict, Verdict::Drop(DropReason::Malformed(Fault::Oversized)));
}

#[test]
fn bridge_learns_and_floods() {
    let mut forward = Forward::new(&bridge(4, 16));
    let out = |ports: &[u16]| ports.iter().map(|&p| PortId(p)).collect::<Vec<_>>();
    assert_eq!(
        run(&mut forward, &frame(mac(2), mac(1)), PortId(0)).1,
        out(&[1, 2, 3]),
        "an unknown destination is flooded"
    );
    assert_eq!(run(&mut forward, &frame(mac(1), mac(2)), PortId(2)).1, out(&[0]), "learnt");
    assert_eq!(run(&mut forward, &frame(mac(2), mac(1)), PortId(0)).1, out(&[2]));
    assert_eq!(run(&mut forward, &frame(MacAddr::BROADCAST, mac(1)), PortId(0)).1, out(&[1, 2, 3]));
    assert_eq!(run(&mut forward, &frame(mac(1), mac(3)), PortId(0)).0, Verdict::Drop(DropReason::SamePort));
    assert_eq!(run(&mut forward, &frame(mac(1), mac(2)), PortId(1)).1, out(&[0]), "moved");
    assert_eq!(run(&mut forward, &frame(mac(2), mac(1)), PortId(0)).1, out(&[1]));
    assert_eq!(run(&mut forward, &frame(mac(9), mac(99)), PortId(0)).1, out(&[1, 2, 3]));
    assert_eq!(
        run(&mut forward, &frame(mac(99), mac(1)), PortId(0)).1,
        out(&[3]),
        "static entries do not move"
    );
    let bpdu = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0]);
    assert_eq!(run(&mut forward, &frame(bpdu, mac(1)), PortId(0)).0, Verdict::Drop(DropReason::LinkLocal));
    assert_eq!(
        run(&mut forward, &[1, 2, 3], PortId(0)).1,
        out(&[1, 2, 3]),
        "a frame without addresses is flooded"
    );
}

#[test]
fn flooding_without_buffers_drops_with_no_buffer() {
    let mut forward = Forward::new(&bridge(3, 4));
    let mut frame = MemoryFrame::new(frame(mac(1), mac(2)));
    let verdict = forward.on_frame(&mut frame, LEFT, Nanos::ZERO, &mut FrameCollector::with_room(0));
    assert_eq!(verdict, Verdict::Drop(DropReason::NoBuffer));
}

#[test]
fn flooding_with_one_port_drops_with_same_port() {
    let mut forward = Forward::new(&bridge(1, 4));
    assert_eq!(run(&mut forward, &frame(mac(1), mac(2)), LEFT).0, Verdict::Drop(DropReason::SamePort));
}

#[test]
fn silent_stations_age_out() {
    let mut forward = Forward::new(&bridge(3, 1000));
    let mut out = FrameCollector::with_room(10);
    for n in 0..500 {
        run_frame(&mut forward, &frame(MacAddr::BROADCAST, mac(1000 + n)), LEFT, Nanos::ZERO);
        while forward.poll_event().is_some() {}
    }
    // One station continues to send.
    forward.on_timer(Nanos::ZERO, &mut out);
    let mut timer = forward.next_timer().expect("a bridge ages");
    while timer < Nanos::from_secs(299) {
        run_frame(&mut forward, &frame(MacAddr::BROADCAST, mac(1007)), LEFT, timer);
        forward.on_timer(timer, &mut out);
        timer = forward.next_timer().unwrap();
    }
    assert_eq!(run(&mut forward, &frame(mac(1001), mac(3)), RIGHT).1, [LEFT], "not aged out yet");
    while timer < Nanos::from_secs(400) {
        forward.on_timer(timer, &mut out);
        timer = forward.next_timer().unwrap();
    }
    assert_eq!(run(&mut forward, &frame(mac(1001), mac(3)), RIGHT).1.len(), 2, "aged out");
    assert_eq!(run(&mut forward, &frame(mac(1007), mac(3)), RIGHT).1, [LEFT], "seen recently");
    assert_eq!(run(&mut forward, &frame(mac(99), mac(3)), RIGHT).1, [PortId(2)], "static");
}

#[test]
fn events_teach_other_workers() {
    let (mut one, mut two) = (Forward::new(&bridge(3, 16)), Forward::new(&bridge(3, 16)));
    let hello = frame(MacAddr::BROADCAST, mac(1));
    run_frame(&mut one, &hello, LEFT, Nanos::ZERO);
    let event = one.poll_event();
    assert_eq!(event, Some(Event::Learned(mac(1), LEFT, Nanos::ZERO)));
    assert_eq!(one.poll_event(), None);
    two.on_command(Command::Learn(mac(1), LEFT, Nanos::ZERO), Nanos::ZERO);
    assert_eq!(run(&mut two, &frame(mac(1), mac(2)), RIGHT).1, [LEFT]);
    // Reported again only after a quarter of the ageing time, so that other workers keep the entry.
    run_frame(&mut one, &hello, LEFT, Nanos::from_secs(74));
    assert_eq!(one.poll_event(), None);
    run_frame(&mut one, &hello, LEFT, Nanos::from_secs(75));
    assert_eq!(one.poll_event(), Some(Event::Learned(mac(1), LEFT, Nanos::from_secs(75))));
}

/// A station moves, and each worker sees it on one port. They agree, whatever the order in which they learn it.
#[test]
fn workers_agree_on_the_port_of_a_station_that_moves() {
    for (left_at, right_at, expected) in [(1, 2, RIGHT), (2, 1, LEFT), (3, 3, RIGHT)] {
        let mut workers = [Forward::new(&bridge(3, 16)), Forward::new(&bridge(3, 16))];
        let hello = frame(MacAddr::BROADCAST, mac(1));
        run_frame(&mut workers[0], &hello, LEFT, Nanos(left_at));
        run_frame(&mut workers[1], &hello, RIGHT, Nanos(right_at));
        let learned: Vec<_> = workers.iter_mut().filter_map(Forward::poll_event).collect();
        for order in [[0, 1], [1, 0]] {
            for worker in &mut workers {
                for Event::Learned(mac, port, seen) in order.map(|at| learned[at]) {
                    worker.on_command(Command::Learn(mac, port, seen), Nanos(9));
                }
                assert_eq!(worker.find_station(mac(1)), Some(expected));
            }
        }
    }
}

#[test]
fn stations_beyond_the_event_queue_are_reported_later() {
    let mut forward = Forward::new(&bridge(3, 1000));
    for n in 0..200 {
        run_frame(&mut forward, &frame(MacAddr::BROADCAST, mac(1000 + n)), LEFT, Nanos::ZERO);
    }
    // This worker knows them, also those that move, and those that it had reported before.
    run_frame(&mut forward, &frame(MacAddr::BROADCAST, mac(1000)), RIGHT, Nanos(1));
    assert_eq!((forward.find_station(mac(1000)), forward.find_station(mac(1199))), (Some(RIGHT), Some(LEFT)));
    let reported = std::iter::from_fn(|| forward.poll_event()).count();
    assert!(reported < 200);
    run_frame(&mut forward, &frame(MacAddr::BROADCAST, mac(1000)), RIGHT, Nanos(2));
    assert_eq!(forward.poll_event(), Some(Event::Learned(mac(1000), RIGHT, Nanos(2))));
    run_frame(&mut forward, &frame(MacAddr::BROADCAST, mac(1199)), LEFT, Nanos::ZERO);
    assert_eq!(forward.poll_event(), Some(Event::Learned(mac(1199), LEFT, Nanos::ZERO)));
}

#[test]
fn chosen_colliding_queue_pairs_are_indexed_under_every_salt() {
    // The change of the address cancels that of the number.
    let chosen = |n: u32| HostQp::new(IpAddr::V6((u128::from(n) << 40 | 0xfd << 120).into()), Qpn::new(n));
    assert!((1..1000).all(|n| chosen(n).hash() == chosen(0).hash()), "they collide without a salt");
    for seed in 0..100 {
        let mut index = Index::salted(1000, Salt::new(seed));
        assert!((0..1000).all(|n| index.get_or_insert(chosen(n)).is_ok()), "seed {seed}");
        assert!((0..1000).all(|n| index.get(&chosen(n)).is_some()), "seed {seed}");
    }
}

#[test]
fn static_stations_survive_salting() {
    let config = Config {
        mode: ForwardingMode::Mac(MacTable {
            capacity: 4,
            ageing: Nanos::from_secs(300),
            fixed: (0..100).map(|n| (mac(n), RIGHT)).collect(),
        }),
        ..Config::bridge(3, 4)
    };
    let mut forward = Forward::new(&config).salted(7);
    for n in 0..100 {
        let (verdict, _) = run_frame(&mut forward, &frame(mac(n), mac(1000)), LEFT, Nanos::ZERO);
        assert_eq!(verdict, Verdict::Forward(RIGHT), "station {n}");
    }
}

#[test]
fn queue_pairs_of_different_hosts_hash_apart() {
    let mut index = Index::with_capacity(65_536);
    let packet = acknowledgement();
    for host in 0..=255u8 {
        for qpn in 0..=255u8 {
            let mut packet = packet.clone();
            packet[33] = host;
            packet[49] = qpn;
            let sum = {
                packet[24..26].fill(0);
                rocev2::checksum::Sum::default().add(&packet[14..34]).checksum()
            };
            packet[24..26].copy_from_slice(&sum.to_be_bytes());
            let key = HostQp::destination_of(&Packet::parse(&packet).unwrap());
            assert_eq!(key.host(), IpAddr::from([192, 168, 1, host]));
            index.get_or_insert(key).expect("no cluster of 64 keys at half load");
            assert_ne!(key.hash(), 0);
        }
    }
    assert_eq!(index.len(), 65_536);
}

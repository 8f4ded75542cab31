use super::*;
use crate::config::{BeaconForm, Incarnation, Link, Pace, Registers};
use crate::counters::Refusal;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use onepipe::{OnePipe, OnePipeOpcode};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::repr::{Ip, Repr};
use rocev2::reth::Reth;
use rocev2::{Bth, Psn};
use switch::DropReason;
use switch::forward::config::ForwardingMode;
use switch::memory::{FrameCollector, run_frame};
use zerocopy::{FromBytes, IntoBytes};

mod beacons;
mod clock_beacons;
mod clocks;
mod commit;
mod detours;
mod expected;
mod halves;
mod routed;
mod seen;
mod workers;

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xff]);
/// Last byte of the switch's addresses
const OWN_IP: u8 = 254;
const RKEY: u32 = 0x5555;
const VA: u64 = 0x7f00_0000_0000;
const FIRST_QP: Qpn = Qpn::new(0x200);
/// Beacon interval, in nanoseconds
const T: u64 = 3_000;
/// 1Pipe's time when the runner's time is 0: an instant, and not far from the end of the 48-bit period
const EPOCH: u64 = (1 << 48) - (1 << 48) % T - 1000 * T;

/// MAC address of neighbour `n`, which is at port `n` in the incarnations where links are ports.
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

/// Returns 1Pipe's time `ns` after the beginning.
fn at(ns: u64) -> Timestamp {
    Timestamp::new(EPOCH).add(ns)
}

fn link(n: u8, side: Side) -> Link {
    Link {
        side,
        port: PortId(n.into()),
        mac: mac(n),
        address: ip(false, n),
        detour: Vec::new(),
        qpn: Qpn::new(0x30 + u32::from(n)),
        beacon: BeaconForm::Datagram,
        standby: None,
    }
}

/// Returns a configuration: links 0 and 1 lead down, 2 and 3 up; port 4 has no link of 1Pipe's.
fn config(incarnation: Incarnation) -> Config {
    let mut forward = forward::Config::bridge(5, 16);
    if let ForwardingMode::Mac(table) = &mut forward.mode {
        table.fixed = (0..5).map(|n| (mac(n), PortId(n.into()))).collect();
    }
    Config {
        forward,
        incarnation,
        pace: Pace::Passing,
        mac: OWN,
        addresses: vec![ip(false, OWN_IP), ip(true, OWN_IP)],
        qkey: OnePipe::QKEY,
        first_qp: FIRST_QP,
        registers: Registers { va: VA, rkey: RKEY },
        beacon_interval: Nanos(T),
        dead_after_intervals: 10,
        fail_after_intervals: None,
        join_window: Nanos(10 * T),
        ahead_max: Nanos::from_millis(1),
        clock_source: onepipe::ClockSource::Host,
        clock: at(0),
        traffic_class: 0x6a,
        links: vec![link(0, Side::Below), link(1, Side::Below), link(2, Side::Above), link(3, Side::Above)],
        evict_after: Nanos(100 * T),
        layer: 1,
        declares: true,
        bug: None,
    }
}

fn representative(incarnation: Incarnation) -> Representative {
    Representative::new(config(incarnation)).expect("a valid configuration")
}

/// Builds a packet from station `from` to `to`.
fn packet(
    (v6, from, to): (bool, u8, MacAddr),
    opcode: Opcode,
    qpn: Qpn,
    payload: &[u8],
    change: impl FnOnce(&mut Repr<'_>),
) -> Vec<u8> {
    let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
    let ethernet = Ethernet { dst: to, src: mac(from), ethertype: kind.into() };
    let ip = match (ip(v6, from), ip(v6, 77)) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Ip::V4(Ipv4 { src: src.octets(), dst: dst.octets(), ..Ipv4::default() }, &[])
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Ip::V6(Ipv6 { src: src.octets(), dst: dst.octets(), ..Ipv6::default() }, &[])
        }
        _ => unreachable!("both addresses are of one IP version"),
    };
    let payload = payload.to_vec();
    let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, qpn, Psn::new(7)));
    repr.payload = &payload;
    repr.extended.deth = Deth::new(OnePipe::QKEY, Qpn::new(0x42));
    change(&mut repr);
    let mut frame = vec![0; repr.frame_len() + 4];
    let len = repr.build(&mut frame).unwrap();
    frame.truncate(len);
    frame
}

fn header(opcode: OnePipeOpcode, timestamp: Timestamp, barrier: Option<Timestamp>) -> OnePipe {
    let mut header = OnePipe::new(opcode, timestamp, Psn::new(3));
    header.set_barrier(barrier);
    header
}

fn message(from: u8, to: MacAddr, header: OnePipe) -> Vec<u8> {
    let mut payload = header.as_bytes().to_vec();
    payload.extend(b"some message");
    packet((false, from, to), Opcode::UD_SEND_ONLY, Qpn::new(0x99), &payload, |_| ())
}

fn data(from: u8, to: u8, ns: u64) -> Vec<u8> {
    message(from, mac(to), header(OnePipeOpcode::DATA, at(ns), Some(at(ns))))
}

/// Builds a beacon of a neighbour that reads and writes barriers in messages.
fn beacon(from: u8, barrier: Option<Timestamp>) -> Vec<u8> {
    let mut header = header(OnePipeOpcode::BEACON, barrier.unwrap_or_default(), barrier);
    header.declare(true, true);
    beacon_with(from, header)
}

/// Builds a beacon of a neighbour that declares nothing.
fn undeclared(from: u8, barrier: Timestamp) -> Vec<u8> {
    beacon_with(from, header(OnePipeOpcode::BEACON, barrier, Some(barrier)))
}

/// Builds a beacon that announces at this time that nothing follows.
fn final_beacon(from: u8, ns: u64) -> Vec<u8> {
    let mut header = header(OnePipeOpcode::BEACON, at(ns), None);
    header.declare(false, false);
    header.set_nothing_follows(true);
    beacon_with(from, header)
}

fn beacon_with(from: u8, header: OnePipe) -> Vec<u8> {
    let qpn = Qpn::new(FIRST_QP.get() + u32::from(from));
    packet((false, from, OWN), Opcode::UD_SEND_ONLY, qpn, header.as_bytes(), |_| ())
}

/// Builds a beacon that is a WRITE to the register of link `to`.
fn write(from: u8, to: u8, barrier: Timestamp, change: impl FnOnce(&mut Repr<'_>)) -> Vec<u8> {
    let header = header(OnePipeOpcode::BEACON, barrier, Some(barrier));
    let qpn = Qpn::new(FIRST_QP.get() + u32::from(to));
    packet((false, from, OWN), Opcode::UC_WRITE_ONLY, qpn, header.as_bytes(), |repr| {
        let va = (VA + u64::from(to) * Registers::SIZE).into();
        repr.extended.reth = Reth { va, rkey: RKEY.into(), len: 24.into() };
        change(repr);
    })
}

/// Runs a frame that is forwarded to one port, and returns the frame sent.
fn forwarded(function: &mut Representative, frame: &[u8], port: u16, ns: u64) -> (Vec<u8>, PortId) {
    let (verdict, mut frames) = run_frame(function, frame, PortId(port), Nanos(ns));
    assert!(matches!(verdict, Verdict::Forward(_)) && frames.len() == 1, "{verdict:?}");
    frames.pop().unwrap()
}

fn verdict(function: &mut Representative, frame: &[u8], port: u16, ns: u64) -> Verdict {
    let (verdict, frames) = run_frame(function, frame, PortId(port), Nanos(ns));
    assert_eq!(frames.len(), usize::from(matches!(verdict, Verdict::Forward(_))));
    verdict
}

/// Runs the timer as a worker does, if it is due. Returns the beacons sent.
fn timer(function: &mut Representative, ns: u64) -> Vec<(OnePipe, PortId)> {
    let mut out = FrameCollector::with_room(64);
    if function.next_timer().is_some_and(|at| at <= Nanos(ns)) {
        function.on_timer(Nanos(ns), &mut out);
    }
    let check = |(frame, port): (switch::memory::MemoryFrame, PortId)| {
        let bytes = frame.into_bytes();
        let packet = Packet::parse(&bytes).expect("a packet");
        assert!(packet.verify_icrc());
        let header = *OnePipe::of(&packet).expect("with a header");
        assert_eq!((header.opcode(), header.timestamp()), (OnePipeOpcode::BEACON, at(ns)));
        assert_eq!(header.psn(), packet.bth().psn());
        (header, port)
    };
    out.frames.into_iter().map(check).collect()
}

fn header_of(frame: &[u8]) -> OnePipe {
    let packet = Packet::parse(frame).expect("a packet");
    assert!(packet.verify_icrc(), "the ICRC is updated");
    *OnePipe::of(&packet).expect("with a header")
}

/// Receives a beacon on each of the four links with a barrier `ns` after the beginning.
fn update_all(function: &mut Representative, ns: u64) {
    for n in 0..4 {
        assert_eq!(verdict(function, &beacon(n, Some(at(ns))), n.into(), ns), Verdict::Consume);
    }
}

fn refused(function: &Representative) -> Vec<(&'static str, u64)> {
    let counters = function.counters();
    let all = Refusal::ALL.into_iter().map(|why| (why.name(), counters.refused(why)));
    all.filter(|&(_, count)| count > 0).collect()
}

#[test]
fn message_leaves_with_the_barrier_of_its_output_link() {
    let mut function = representative(Incarnation::Chip);
    for n in 0..4 {
        verdict(&mut function, &beacon(n, None), n.into(), 0);
    }
    // The other inputs have no barriers yet, so the message leaves without one.
    let (frame, port) = forwarded(&mut function, &data(0, 2, 100), 0, 100);
    assert_eq!((header_of(&frame).barrier(), port), (None, PortId(2)));
    let (frame, _) = forwarded(&mut function, &data(1, 2, 150), 1, 150);
    assert_eq!(header_of(&frame).barrier(), Some(at(100)), "upwards: both links below have carried barriers");
    let (frame, _) = forwarded(&mut function, &data(1, 0, 160), 1, 160);
    assert_eq!(header_of(&frame).barrier(), None, "downwards: the links above have not");
    forwarded(&mut function, &data(2, 0, 90), 2, 170);
    let (frame, port) = forwarded(&mut function, &data(3, 0, 120), 3, 170);
    assert_eq!((header_of(&frame).barrier(), port), (Some(at(90)), PortId(0)));
    // The up half is an input of the down half, too: all inputs are at 100 at least, and 0 goes on to 300.
    forwarded(&mut function, &data(2, 1, 250), 2, 250);
    let (frame, _) = forwarded(&mut function, &data(3, 1, 250), 3, 250);
    assert_eq!(header_of(&frame).barrier(), Some(at(100)));
    let (frame, _) = forwarded(&mut function, &data(0, 1, 300), 0, 300);
    assert_eq!(header_of(&frame).barrier(), Some(at(160)));
    assert_eq!(function.barriers(Side::Above).0, Some(at(160)));
    let (frame, _) = forwarded(&mut function, &data(1, 0, 400), 1, 400);
    let stamped = header_of(&frame);
    assert_eq!((stamped.barrier(), stamped.timestamp()), (Some(at(250)), at(400)));
    assert_eq!((stamped.psn(), stamped.commit()), (Psn::new(3), None));
    assert_eq!(function.counters().late.get(), 0);
    assert_eq!(refused(&function), []);
}

#[test]
fn only_barriers_in_best_effort_messages_count() {
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 1000);
    for opcode in [OnePipeOpcode::RELIABLE_DATA, OnePipeOpcode::ACK, OnePipeOpcode::NAK, OnePipeOpcode(77)] {
        for from in 0..4 {
            let frame = message(from, mac(0), header(opcode, at(2000), Some(at(2000))));
            let (after, _) = forwarded(&mut function, &frame, if from == 0 { 1 } else { from.into() }, 2000);
            assert_eq!(after, frame, "untouched");
        }
    }
    assert_eq!(function.barriers(Side::Below).0, Some(at(1000)));
    // A neighbour that does not write barriers into messages: only its beacons count.
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 1000);
    verdict(&mut function, &undeclared(0, at(1000)), 0, 1000);
    forwarded(&mut function, &data(1, 2, 2000), 1, 2000);
    let (frame, _) = forwarded(&mut function, &data(0, 2, 2000), 0, 2000);
    assert_eq!(header_of(&frame).barrier(), Some(at(1000)));
    assert_eq!(function.counters().messages.get(), 2);
}

#[test]
fn link_that_is_removed_by_command_has_left() {
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 50);
    function.on_command(Command::Remove(LinkId(0)), Nanos(60));
    assert_eq!(function.poll_event(), Some(Event::Left(LinkId(0))));
    verdict(&mut function, &beacon(1, Some(at(70))), 1, 70);
    assert_eq!(function.barriers(Side::Above), (Some(at(70)), None));
    function.on_command(Command::Remove(LinkId(9)), Nanos(70));
    assert_eq!(
        (function.poll_event(), function.is_live(LinkId(0)), function.is_live(LinkId(9))),
        (None, false, false)
    );
}

#[test]
fn messages_pass_unchanged_except_in_the_chip() {
    for incarnation in [Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        update_all(&mut function, 1000);
        let frame = data(0, 2, 2000);
        assert_eq!(forwarded(&mut function, &frame, 0, 2000), (frame, PortId(2)));
        assert_eq!(function.barriers(Side::Above).0, Some(at(1000)));
        // Every output gets a beacon, busy or idle.
        assert_eq!(timer(&mut function, 2000).len(), 4);
        let mut other = header(OnePipeOpcode::DATA, at(1), None);
        other.version = 1;
        let frame = message(0, mac(1), other);
        assert_eq!(forwarded(&mut function, &frame, 0, 2000), (frame, PortId(1)));
        assert_eq!(refused(&function), []);
    }
}

#[test]
fn forged_damaged_and_misdirected_beacons_change_no_barrier() {
    let mut function = representative(Incarnation::Host);
    update_all(&mut function, 1000);
    let late = at(2000);
    let version = |frame: &mut Vec<u8>| {
        let mut header = header(OnePipeOpcode::BEACON, late, Some(late));
        header.version = 1;
        *frame = packet((false, 1, OWN), Opcode::UD_SEND_ONLY, Qpn::new(0x201), header.as_bytes(), |_| ());
    };
    let mut other = Vec::new();
    version(&mut other);
    let mut damaged = beacon(1, Some(late));
    let end = damaged.len();
    damaged[end - 8] ^= 1;
    let data = header(OnePipeOpcode::DATA, late, Some(late));
    let reth = |change: fn(&mut Reth)| write(1, 1, late, |repr| change(&mut repr.extended.reth));
    let cases = [
        (
            "unknown_link",
            packet(
                (false, 1, OWN),
                Opcode::UD_SEND_ONLY,
                Qpn::new(0x1ff),
                beacon_bytes(late).as_bytes(),
                |_| (),
            ),
            1,
        ),
        (
            "unknown_link",
            packet(
                (false, 1, OWN),
                Opcode::UD_SEND_ONLY,
                Qpn::new(0x204),
                beacon_bytes(late).as_bytes(),
                |_| (),
            ),
            1,
        ),
        ("wrong_source", beacon(1, Some(late)), 2),
        ("wrong_source", write(2, 1, late, |_| ()), 1),
        ("wrong_memory", reth(|reth| reth.rkey = 1.into()), 1),
        ("wrong_memory", reth(|reth| reth.va = (VA + 64).into()), 1),
        ("wrong_memory", reth(|reth| reth.len = 20.into()), 1),
        ("no_header", write(1, 1, late, |repr| repr.payload = &[0; 24]), 1),
        ("no_header", packet((false, 1, OWN), Opcode::UD_SEND_ONLY, Qpn::new(0x201), &[0; 20], |_| ()), 1),
        (
            "no_header",
            packet((false, 1, OWN), Opcode::UD_SEND_ONLY, Qpn::new(0x201), data.as_bytes(), |_| ()),
            1,
        ),
        ("other_version", other, 1),
        ("damaged", damaged, 1),
        ("stale", beacon(1, Some(at(999))), 1),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (why, frame, port) in cases {
        let verdict = verdict(&mut function, &frame, port, 3000);
        assert!(matches!(verdict, Verdict::Drop(_)), "{why}: {verdict:?}");
        *expected.entry(why).or_insert(0) += 1;
        assert_eq!(refused(&function).into_iter().collect::<std::collections::BTreeMap<_, _>>(), expected);
    }
    assert_eq!(function.barriers(Side::Below).0, Some(at(1000)));
    assert_eq!(function.counters().datagrams.get(), 4 + 1, "counted before the barrier is checked");
}

/// What holds for a barrier holds for every earlier one.
#[test]
fn barrier_that_is_too_far_ahead_is_lowered() {
    const MOST: u64 = 1_000_000;
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        update_all(&mut function, 1000);
        // Two links from below would be believed.
        function.on_command(Command::Remove(LinkId(1)), Nanos(1000));
        let mut send = |ns: u64, barrier: u64| {
            let mut header = header(OnePipeOpcode::BEACON, at(barrier), Some(at(barrier)));
            header.set_commit(Some(at(barrier)));
            assert_eq!(verdict(&mut function, &beacon_with(0, header), 0, ns), Verdict::Consume);
            (function.barriers(Side::Above).0, function.counters().lowered.get())
        };
        assert_eq!(send(3000, 3000 + MOST), (Some(at(3000 + MOST)), 0), "as far as is valid");
        assert_eq!(send(3010, 3010 + MOST + 1), (Some(at(3010 + MOST)), 1));
        assert_eq!(send(3020, 3_600_000_000_000), (Some(at(3020 + MOST)), 2), "an hour");
        // A clock that ran fast, and is right again, is below its register until the others have caught up.
        assert_eq!(
            verdict(&mut function, &beacon(0, Some(at(3100))), 0, 3100),
            Verdict::Drop(DropReason::Stale)
        );
        assert!(function.is_live(LinkId(0)));
        assert_eq!(refused(&function), [("stale", 1)]);
    }
}

fn beacon_bytes(barrier: Timestamp) -> OnePipe {
    header(OnePipeOpcode::BEACON, barrier, Some(barrier))
}

/// A host that represents another switch sends beacons through this one, too.
#[test]
fn beacon_for_another_node_is_forwarded() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu] {
        let mut function = representative(incarnation);
        update_all(&mut function, 1000);
        let header = beacon_bytes(at(2000));
        let qpn = Qpn::new(FIRST_QP.get());
        let frame = packet((false, 0, mac(2)), Opcode::UD_SEND_ONLY, qpn, header.as_bytes(), |_| ());
        assert_eq!(forwarded(&mut function, &frame, 0, 2000), (frame, PortId(2)), "untouched");
        // To this switch, but for another link, which is at another port
        let frame = beacon_with(1, beacon_bytes(at(2000)));
        assert_eq!(verdict(&mut function, &frame, 0, 2000), Verdict::Drop(DropReason::WrongSource));
        verdict(&mut function, &beacon(1, Some(at(2000))), 1, 2000);
        assert_eq!(function.barriers(Side::Above).0, Some(at(1000)), "link 0 was not updated");
        assert_eq!(refused(&function), [("wrong_source", 1)]);
    }
}

#[test]
fn messages_from_above_are_flooded_downwards_alone() {
    let unknown = MacAddr([2, 0, 0, 0, 9, 9]);
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu] {
        let ports = |from: u8| {
            let mut function = representative(incarnation);
            update_all(&mut function, 1000);
            let frame = message(from, unknown, header(OnePipeOpcode::DATA, at(2000), Some(at(2000))));
            let (verdict, frames) = run_frame(&mut function, &frame, PortId(from.into()), Nanos(2000));
            assert!(matches!(verdict, Verdict::Forward(_)));
            frames.into_iter().map(|(_, port)| port.0).collect::<Vec<_>>()
        };
        assert_eq!(ports(2), [0, 1, 4], "not to 3, whose barrier does not cover messages from above");
        assert_eq!(ports(0), [1, 2, 3, 4]);
        let mut function = representative(incarnation);
        assert_eq!(verdict(&mut function, &data(2, 3, 2000), 2, 2000), Verdict::Drop(DropReason::Unexpected));
        assert_eq!(refused(&function), [("valley", 1)]);
    }
}

#[test]
fn messages_that_break_the_order_are_refused() {
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 1000);
    let drop = |function: &mut Representative, frame: &[u8], port| {
        assert!(matches!(verdict(function, frame, port, 2000), Verdict::Drop(_)));
    };
    drop(&mut function, &data(4, 0, 2000), 4);
    drop(&mut function, &data(2, 3, 2000), 2);
    let mut damaged = data(0, 1, 1500);
    let end = damaged.len();
    damaged[end - 6] ^= 1;
    drop(&mut function, &damaged, 0);
    let mut other = header(OnePipeOpcode::DATA, at(2000), None);
    other.version = 9;
    drop(&mut function, &message(0, mac(1), other), 0);
    // A message that was overtaken or repeated is forwarded: its receiver detects whether it is late.
    forwarded(&mut function, &data(0, 1, 1800), 0, 2000);
    let (frame, _) = forwarded(&mut function, &data(0, 1, 900), 0, 2000);
    assert_eq!(header_of(&frame).barrier(), Some(at(1000)));
    let counters = function.counters();
    assert_eq!(counters.late.get(), 1);
    let expected = [("unknown_link", 1), ("other_version", 1), ("damaged", 1), ("stale", 1), ("valley", 1)];
    assert_eq!(refused(&function), expected);
    // To an unknown destination, or to a port without a link: without a barrier.
    let (verdict, frames) = run_frame(
        &mut function,
        &message(0, mac(9), header(OnePipeOpcode::DATA, at(2100), Some(at(2100)))),
        PortId(0),
        Nanos(2100),
    );
    assert!(matches!(verdict, Verdict::Forward(_)) && frames.len() == 4);
    assert!(frames.iter().all(|(frame, _)| header_of(frame).barrier().is_none()));
    let (frame, port) = forwarded(&mut function, &data(0, 4, 2200), 0, 2200);
    assert_eq!((header_of(&frame).barrier(), port), (None, PortId(4)));
    assert_eq!((counters.flooded.get(), function.barriers(Side::Above).0), (1, Some(at(1000))));
}

#[test]
fn other_traffic_is_forwarded_or_punted() {
    let mut function = representative(Incarnation::Chip);
    let other = packet((false, 0, mac(1)), Opcode::UD_SEND_ONLY, Qpn::new(5), &[7; 64], |repr| {
        repr.extended.deth = Deth::new(0x1111, Qpn::new(5));
    });
    assert_eq!(forwarded(&mut function, &other, 4, 0), (other, PortId(1)));
    let write = packet((false, 0, mac(1)), Opcode::UC_WRITE_ONLY, FIRST_QP, &[7; 64], |_| ());
    assert_eq!(forwarded(&mut function, &write, 4, 0), (write, PortId(1)));
    let mut arp = vec![0; 60];
    arp[..6].copy_from_slice(&OWN.0);
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(verdict(&mut function, &arp, 0, 0), Verdict::Punt);
    let ours = packet((false, 0, OWN), Opcode::RC_SEND_ONLY, Qpn::GSI, &[7; 64], |_| ());
    assert_eq!(verdict(&mut function, &ours, 0, 0), Verdict::Punt);
}

/// Change to a valid configuration, and the expected error
type Case = (fn(&mut Config), ConfigError);

#[test]
fn invalid_configurations_are_refused() {
    let cases: [Case; 8] = [
        (|config| config.links = vec![link(0, Side::Below); 65_535], ConfigError::TooManyLinks(65_535)),
        (|config| config.first_qp = Qpn::new(1), ConfigError::QueuePairs { first: Qpn::new(1), links: 4 }),
        (|config| config.beacon_interval = Nanos(999), ConfigError::Interval(Nanos(999))),
        (|config| config.dead_after_intervals = 4, ConfigError::DeadAfter(4)),
        (|config| config.join_window = Nanos(10 * T - 1), ConfigError::JoinWindow(Nanos(10 * T - 1))),
        (|config| config.links[2].port = PortId(5), ConfigError::NoSuchPort(2)),
        (|config| config.links[2].port = PortId(0), ConfigError::SharedPort(2)),
        (|config| config.addresses.truncate(0), ConfigError::NoOwnAddress(0)),
    ];
    for (change, error) in cases {
        let mut config = config(Incarnation::Chip);
        change(&mut config);
        assert_eq!(Representative::new(config).err(), Some(error));
        assert!(!error.to_string().is_empty());
    }
}

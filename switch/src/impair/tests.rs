use super::*;
use crate::Share;
use crate::drop::FaultSet;
use crate::forward::config::{Config as ForwardConfig, Topology};
use crate::memory::{MemoryFrame, Sent};
use rocev2::repr::Repr;
use rocev2::{Opcode, Qpn};

const A: PortId = PortId(0);
const B: PortId = PortId(1);

fn impair(rules: Vec<Rule>) -> Impair {
    impair_with(rules, 1, 64)
}

fn impair_with(rules: Vec<Rule>, seed: u64, held: usize) -> Impair {
    let forward = ForwardConfig {
        ports: 2,
        topology: Topology::Pairs(vec![(A, B)]),
        drop: FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 16,
    };
    Impair::new(&Config { forward, rules, seed, held, max_frame: 1600 })
}

fn rule(action: Action) -> Rule {
    Rule { name: String::new(), of: Match::default(), skip: 0, times: None, share: Share::ALWAYS, action }
}

fn matching(of: Match, action: Action) -> Rule {
    Rule { of, ..rule(action) }
}

/// A WRITE Only, from 10.0.0.1 (or fd00::1) to the other end's QP 0x77.
fn write(psn: u32, payload: usize, v6: bool) -> Vec<u8> {
    let mut frame = vec![0; 12];
    let pad = payload.wrapping_neg() % 4;
    let udp_len = (8 + 12 + 16 + payload + pad + 4) as u16;
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0x20, 0, 0]);
        frame.extend(udp_len.to_be_bytes());
        frame.extend([17, 64]);
        for last in [1, 2] {
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
    } else {
        frame.extend([0x08, 0, 0x45, 2]);
        frame.extend((udp_len + 20).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = rocev2::checksum::Sum::default().add(&frame[14..]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame.extend([0xc0, 0, 0x12, 0xb7]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0, Opcode::RC_WRITE_ONLY.0, 0x40 | (pad as u8) << 4, 0xff, 0xff, 0, 0, 0, 0x77, 0x80]);
    frame.extend(&psn.to_be_bytes()[1..]);
    frame.extend([0; 12]);
    frame.extend((payload as u32).to_be_bytes());
    frame.extend((0..payload).map(|at| at as u8));
    frame.extend(vec![0; pad + 4]);
    // Checksums and ICRC as they have to be.
    let mut repr = Repr::parse(&frame).expect("a packet");
    let mut built = vec![0; repr.frame_len()];
    repr.build(&mut built).unwrap();
    assert!(Packet::parse(&built).unwrap().verify_icrc());
    built
}

/// What leaves when a frame comes in, in order; and what became of it.
fn pass(impair: &mut Impair, frame: &[u8], port: PortId, now: u64) -> (Verdict, Vec<Vec<u8>>) {
    let mut out = Sent::with_room(100);
    let mut frame = MemoryFrame::new(frame);
    let verdict = impair.on_frame(&mut frame, port, Nanos(now), &mut out);
    if let Verdict::Forward(to) = verdict {
        out.frames.push((frame, to));
    }
    assert!(out.frames.iter().all(|(_, to)| *to != port), "a wire has two ends");
    (verdict, out.frames.into_iter().map(|(frame, _)| frame.into_bytes()).collect())
}

fn timer(impair: &mut Impair, now: u64, room: usize) -> Vec<Vec<u8>> {
    let mut out = Sent::with_room(room);
    impair.on_timer(Nanos(now), &mut out);
    out.frames.into_iter().map(|(frame, _)| frame.into_bytes()).collect()
}

fn psns(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| Packet::parse(frame).unwrap().bth().psn().get()).collect()
}

fn acted(impair: &Impair) -> Vec<(u64, u64)> {
    impair.counters().rules.iter().map(|rule| (rule.matched.get(), rule.acted.get())).collect()
}

#[test]
fn matches() {
    let net = |text: &str, prefix| Some(Network { address: text.parse().unwrap(), prefix });
    let of = Match::default;
    let range = |first, last| Some((Psn::new(first), Psn::new(last)));
    let cases = [
        (of(), true),
        (Match { port: Some(A), ..of() }, true),
        (Match { port: Some(B), ..of() }, false),
        (Match { opcodes: Some(OpcodeSet::of(|op| op == Opcode::RC_WRITE_ONLY)), ..of() }, true),
        (Match { opcodes: Some(OpcodeSet::of(|op| op == Opcode::RC_SEND_ONLY)), ..of() }, false),
        (Match { qpn: Some(Qpn::new(0x77)), ..of() }, true),
        (Match { qpn: Some(Qpn::new(0x78)), ..of() }, false),
        (Match { psn: range(100, 100), ..of() }, true),
        (Match { psn: range(101, 200), ..of() }, false),
        (Match { psn: range(0xff_ff00, 100), ..of() }, true),
        (Match { psn: range(0xff_ff00, 99), ..of() }, false),
        (Match { psn_offset: Some((0, 0)), ..of() }, true),
        (Match { psn_offset: Some((1, 5)), ..of() }, false),
        (Match { src: net("10.0.0.1", 32), dst: net("10.0.0.0", 24), ..of() }, true),
        (Match { src: net("10.0.0.2", 32), ..of() }, false),
        (Match { src: net("fd00::", 64), ..of() }, false),
        (Match { src: net("0.0.0.0", 0), ..of() }, true),
    ];
    for (of, expected) in cases {
        let mut impair = impair(vec![matching(of.clone(), Action::Drop)]);
        let (verdict, frames) = pass(&mut impair, &write(100, 10, false), A, 0);
        assert_eq!(verdict == Verdict::Drop(DropReason::Impaired), expected, "{of:?}");
        assert_eq!(frames.is_empty(), expected);
    }
    let mut v6 = impair(vec![matching(Match { dst: net("fd00::2", 128), ..of() }, Action::Drop)]);
    assert!(pass(&mut v6, &write(1, 1, true), A, 0).1.is_empty());
    // What is no RoCE packet passes.
    let mut all = impair(vec![rule(Action::Drop)]);
    assert_eq!(pass(&mut all, &[0; 60], A, 0).0, Verdict::Forward(B));
    assert_eq!(acted(&all), [(0, 0)]);
}

#[test]
fn offsets_count_from_the_first_packet_to_a_queue_pair() {
    let second = Match { psn_offset: Some((1, 1)), ..Match::default() };
    let mut impair = impair(vec![matching(second, Action::Drop)]);
    let went: Vec<_> =
        [0xff_ffff, 0, 1, 0].map(|psn| pass(&mut impair, &write(psn, 8, false), A, 0).1.len()).to_vec();
    assert_eq!(went, [1, 0, 1, 0]);
}

#[test]
fn skip_times_and_share() {
    let mut some = impair(vec![Rule { skip: 2, times: Some(3), ..rule(Action::Drop) }]);
    let went: Vec<_> = (0..8).map(|psn| pass(&mut some, &write(psn, 0, false), A, 0).1.len()).collect();
    assert_eq!(went, [1, 1, 0, 0, 0, 1, 1, 1]);
    assert_eq!(acted(&some), [(8, 3)]);
    let lost = |seed| {
        let share = Share::percent(10);
        let mut impair = impair_with(vec![Rule { share, ..rule(Action::Drop) }], seed, 1);
        (0..10_000).map(|psn| pass(&mut impair, &write(psn, 0, false), A, 0).1.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(lost(1), lost(1));
    assert_ne!(lost(1), lost(2));
    let count = lost(1).iter().filter(|lost| **lost).count();
    assert!((900..1100).contains(&count), "{count}");
}

#[test]
fn a_rule_more_changes_nothing_for_those_before_it() {
    let half = |action| Rule { share: Share::percent(50), ..rule(action) };
    let run = |rules| {
        let mut impair = impair(rules);
        for psn in 0..100 {
            pass(&mut impair, &write(psn, 0, false), A, 0);
        }
        acted(&impair)[0]
    };
    let mark = half(Action::Mark { force: false });
    assert_eq!(run(vec![mark.clone()]), run(vec![mark, half(Action::Drop)]));
}

#[test]
fn delays_are_exact_and_keep_what_comes_first_in_front() {
    let delay = Action::Delay { base: Nanos(1000), jitter: Nanos::ZERO };
    let even = Match { psn: Some((Psn::new(0), Psn::new(1))), ..Match::default() };
    let mut impair = impair(vec![matching(even, delay)]);
    assert_eq!(impair.next_timer(), None);
    for (psn, now) in [(0, 10), (1, 10), (2, 20)] {
        let (verdict, frames) = pass(&mut impair, &write(psn, 4, psn == 1), A, now);
        assert_eq!((verdict == Verdict::Consume, frames.len()), if psn < 2 { (true, 0) } else { (false, 1) });
    }
    assert_eq!((impair.next_timer(), impair.held()), (Some(Nanos(1010)), 2));
    assert!(timer(&mut impair, 1009, 9).is_empty());
    // No room: later.
    assert!(timer(&mut impair, 1010, 0).is_empty());
    assert_eq!(impair.next_timer(), Some(Nanos(1010)));
    let frames = timer(&mut impair, 1010, 9);
    assert_eq!(frames, [write(0, 4, false), write(1, 4, true)]);
    assert_eq!((impair.next_timer(), impair.held()), (None, 0));
    let jitter = Action::Delay { base: Nanos(1000), jitter: Nanos(500) };
    let mut impair = super::tests::impair(vec![rule(jitter)]);
    let mut times = Vec::new();
    for psn in 0..50 {
        pass(&mut impair, &write(psn, 0, false), A, 0);
        let at = impair.next_timer().unwrap();
        times.push(at.0);
        assert_eq!(psns(&timer(&mut impair, at.0, 9)), [psn]);
    }
    assert!(times.iter().all(|at| (1000..=1500).contains(at)));
    assert!(times.iter().min() < Some(&1100) && times.iter().max() > Some(&1400));
}

#[test]
fn reordered_packets_come_behind_as_many_as_said() {
    let action = Action::Reorder { behind: 2, at_most: Nanos(100) };
    let first = Match { psn_offset: Some((0, 0)), ..Match::default() };
    let mut impair = impair(vec![matching(first, action)]);
    let mut order = Vec::new();
    for psn in 0..4 {
        order.extend(psns(&pass(&mut impair, &write(psn, 4, false), A, 5).1));
    }
    assert_eq!(order, [1, 2, 0, 3]);
    // Its place is free when its time has passed.
    assert!(timer(&mut impair, 105, 9).is_empty());
    assert_eq!((impair.held(), impair.next_timer()), (0, None));
    // Nobody overtakes it: it goes in the end.
    pass(&mut impair, &write(0, 4, false), A, 200);
    // The other direction does not count.
    pass(&mut impair, &[0; 60], B, 200);
    pass(&mut impair, &[0; 60], B, 200);
    assert!(timer(&mut impair, 299, 9).is_empty());
    assert_eq!(psns(&timer(&mut impair, 300, 9)), [0]);
}

#[test]
fn duplicates_are_the_same() {
    let mut impair = impair(vec![rule(Action::Duplicate { copies: 2 })]);
    let frame = write(9, 33, true);
    assert_eq!(pass(&mut impair, &frame, B, 0).1, vec![frame; 3]);
}

#[test]
fn damage_is_one_bit_of_the_part_said() {
    for v6 in [false, true] {
        for (part, payload, range) in [
            (Part::Payload, 21, 28..49),
            (Part::Payload, 0, 28..32),
            (Part::Header, 21, 0..12),
            (Part::Icrc, 21, 52..56),
        ] {
            let mut places = std::collections::BTreeSet::new();
            let mut impair = impair(vec![rule(Action::Corrupt(part))]);
            for psn in 0..200 {
                let whole = write(psn, payload, v6);
                let (_, damaged) = pass(&mut impair, &whole, A, 0);
                let bth = Packet::parse(&whole).unwrap().layout().bth();
                let differ: Vec<_> = (0..whole.len()).filter(|at| whole[*at] != damaged[0][*at]).collect();
                let [at] = differ[..] else { panic!("{differ:?}") };
                assert_eq!((whole[at] ^ damaged[0][at]).count_ones(), 1);
                assert!(range.contains(&(at - bth)), "{part:?} {}", at - bth);
                places.insert(at);
                let wrong = Packet::parse(&damaged[0]).is_none_or(|packet| !packet.verify_icrc());
                // The reserved byte of the BTH is not covered.
                assert!(wrong || at - bth == 4);
            }
            assert!(places.len() > range.len() / 2, "{part:?}: everywhere");
        }
    }
}

#[test]
fn marks_are_not_covered_by_the_icrc() {
    let mut impair = impair(vec![rule(Action::Mark { force: false })]);
    for v6 in [false, true] {
        let (_, marked) = pass(&mut impair, &write(1, 8, v6), A, 0);
        let packet = Packet::parse(&marked[0]).unwrap();
        assert!(packet.verify_icrc());
        let ecn =
            packet.ipv4().map_or_else(|| packet.ipv6().unwrap().traffic_class() & 3, rocev2::ipv4::Ipv4::ecn);
        assert_eq!(ecn, 3);
    }
}

#[test]
fn several_rules_act_until_one_takes_the_packet() {
    let mark = rule(Action::Mark { force: true });
    let twice = rule(Action::Duplicate { copies: 1 });
    let mut impair = impair(vec![mark, twice, rule(Action::Drop), rule(Action::Corrupt(Part::Icrc))]);
    let (verdict, frames) = pass(&mut impair, &write(3, 8, false), A, 0);
    assert_eq!((verdict, frames.len()), (Verdict::Drop(DropReason::Impaired), 1), "the copy was sent before");
    assert_eq!(Packet::parse(&frames[0]).unwrap().ipv4().unwrap().ecn(), 3);
    assert_eq!(acted(&impair), [(1, 1), (1, 1), (1, 1), (0, 0)]);
}

#[test]
fn what_finds_no_room_goes_on() {
    let delay = Action::Delay { base: Nanos(1000), jitter: Nanos::ZERO };
    let mut impair = impair_with(vec![rule(delay)], 1, 2);
    let went: Vec<_> = (0..4).map(|psn| pass(&mut impair, &write(psn, 0, false), A, 0).1.len()).collect();
    assert_eq!(went, [0, 0, 1, 1]);
    assert_eq!((impair.counters().not_held.get(), impair.held()), (2, 2));
    assert_eq!(psns(&timer(&mut impair, 1000, 9)), [0, 1]);
    // Longer than a place.
    assert_eq!(pass(&mut impair, &write(0, 1590, false), A, 0).1.len(), 1);
}

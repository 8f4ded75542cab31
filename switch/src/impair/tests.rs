mod changes;

use super::*;
use crate::Probability;
use crate::memory::{FrameCollector, MemoryFrame, run_frame};
use core::net::IpAddr;
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::repr::{Ip, Repr};
use rocev2::{Class, Qpn, classify};

const A: PortId = PortId(0);
const B: PortId = PortId(1);

/// Specification of a test packet.
#[derive(Clone, Copy)]
struct PacketSpec {
    opcode: Opcode,
    qpn: u32,
    psn: u32,
    v6: bool,
    tags: usize,
    ecn: u8,
    payload: usize,
}

const WRITE: PacketSpec =
    PacketSpec { opcode: Opcode::RC_WRITE_ONLY, qpn: 0x11, psn: 0, v6: false, tags: 0, ecn: 2, payload: 61 };

/// IPv4 and IPv6, with and without tags
const SHAPES: [(bool, usize); 4] = [(false, 0), (true, 0), (false, 1), (true, 2)];

impl PacketSpec {
    fn psn(psn: u32) -> Vec<u8> {
        Self { psn, ..WRITE }.frame()
    }

    fn frame(self) -> Vec<u8> {
        let kind = if self.v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let outer = if self.tags == 0 { kind } else { ethertype::VLAN };
        let ethernet = Ethernet { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), ethertype: outer.into() };
        let class = 0x6000_0000 | u32::from(self.ecn) << 20;
        let ip = if self.v6 {
            let ip = Ipv6 { version_class_flow: class.into(), ..Ipv6::default() };
            Ip::V6(Ipv6 { src: [0xfd; 16], dst: [0xfc; 16], ..ip }, &[])
        } else {
            Ip::V4(Ipv4 { tos: self.ecn, src: [10, 0, 0, 1], dst: [10, 0, 1, 2], ..Ipv4::default() }, &[])
        };
        let mut repr = Repr::new(ethernet, ip, Bth::new(self.opcode, Qpn::new(self.qpn), Psn::new(self.psn)));
        for (n, tag) in repr.tags.iter_mut().take(self.tags).enumerate() {
            let following = if n + 1 == self.tags { kind } else { ethertype::VLAN };
            *tag = VlanTag { tci: 0x6001.into(), ethertype: following.into() };
        }
        repr.tag_count = self.tags;
        let payload = vec![0x5a; self.payload];
        if self.opcode.info().is_some_and(|info| info.payload) {
            repr.payload = &payload;
        }
        let mut frame = vec![0; repr.frame_len() + 3];
        let len = repr.build(&mut frame).unwrap();
        frame.truncate(len);
        frame
    }
}

fn rule(action: Action) -> Rule {
    Rule {
        name: "it".into(),
        matching: Match::default(),
        share: Probability::ALWAYS,
        skip: 0,
        times: u64::MAX,
        action,
    }
}

fn config(rules: Vec<Rule>) -> Config {
    Config {
        ports: 2,
        pairs: vec![(A, B)],
        seed: 1,
        held: 8,
        frame_len: 1600,
        flows: 2,
        counted_qps: 4,
        health: true,
        rules,
    }
}

fn impair(rules: Vec<Rule>) -> Impair {
    Impair::new(&config(rules), 0)
}

/// Returns the verdict for a frame, and the frames that leave.
fn run(impair: &mut Impair, frame: &[u8], now: u64) -> (Verdict, Vec<Vec<u8>>) {
    let (verdict, frames) = run_frame(impair, frame, A, Nanos(now));
    assert!(frames.iter().all(|(_, port)| *port == B));
    (verdict, frames.into_iter().map(|(bytes, _)| bytes).collect())
}

/// Returns the PSNs of the frames that leave.
fn psns(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|frame| Packet::parse(frame).expect("a packet").bth().psn().get()).collect()
}

/// Returns the frames that leave when the timer expires.
fn tick(impair: &mut Impair, now: u64, room: usize) -> Vec<Vec<u8>> {
    let mut out = FrameCollector::with_room(room);
    impair.on_timer(Nanos(now), &mut out);
    out.frames.into_iter().map(|(frame, _)| frame.bytes().to_vec()).collect()
}

fn counts(impair: &Impair, rule: usize) -> (u64, u64, u64) {
    let counters = impair.rule_counters().nth(rule).expect("a rule");
    (counters.matched.get(), counters.acted.get(), counters.unable.get())
}

/// Returns those of `psns` whose packets are dropped.
fn dropped(impair: &mut Impair, psns: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let lost = |psn: &u32| run(impair, &PacketSpec::psn(*psn), 0).0 == Verdict::Drop(DropReason::Impaired);
    psns.into_iter().filter(lost).collect()
}

/// Returns whether a rule with this condition matches the packet.
fn matches(matching: Match, spec: PacketSpec) -> bool {
    let mut impair = impair(vec![Rule { matching, ..rule(Action::Drop) }]);
    run(&mut impair, &spec.frame(), 0).0 == Verdict::Drop(DropReason::Impaired)
}

#[test]
fn without_rules_frames_pass_unchanged() {
    let mut wire = impair(vec![]);
    let other = vec![7; 60];
    for frame in [PacketSpec::psn(3), other.clone(), vec![], PacketSpec::psn(4)[..50].to_vec()] {
        assert_eq!(run(&mut wire, &frame, 5), (Verdict::Forward(B), vec![frame]));
    }
    assert_eq!(run_frame(&mut wire, &other, B, Nanos::ZERO).0, Verdict::Forward(A));
    let counters = wire.counters();
    let seen = &counters.forward.ports[0];
    assert_eq!((seen.roce.frames.get(), seen.other.frames.get(), seen.malformed.frames.get()), (1, 1, 2));
    assert!(wire.next_timer().is_none() && wire.poll_event().is_none());
}

#[test]
fn rules_apply_only_to_rocev2_packets() {
    let mut impair = impair(vec![rule(Action::Drop)]);
    let cut = PacketSpec::psn(4)[..50].to_vec();
    for frame in [vec![7; 60], vec![], cut] {
        assert_eq!(run(&mut impair, &frame, 0).0, Verdict::Forward(B));
    }
    for (v6, tags) in SHAPES {
        let frame = PacketSpec { v6, tags, ..WRITE }.frame();
        assert_eq!(run(&mut impair, &frame, 0).0, Verdict::Drop(DropReason::Impaired));
    }
    assert_eq!(counts(&impair, 0), (4, 4, 0));
}

#[test]
fn networks_match_their_hosts() {
    let net = |text: &str, prefix| IpPrefix::new(text.parse().unwrap(), prefix);
    let v6 = PacketSpec { v6: true, ..WRITE };
    let fc = "fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc";
    for (dst, spec, expected) in [
        (net("10.0.1.2", 32), WRITE, true),
        (net("10.0.1.3", 32), WRITE, false),
        (net("10.0.1.0", 24), WRITE, true),
        (net("10.0.0.0", 24), WRITE, false),
        (net("0.0.0.0", 0), WRITE, true),
        (net("0.0.0.0", 0), v6, false),
        (net("::", 0), v6, true),
        (net(fc, 128), v6, true),
        (net("fcfc::", 16), v6, true),
        (net("fcfd::", 16), v6, false),
    ] {
        let dst = Some(dst.expect("a network"));
        assert_eq!(matches(Match { dst, ..Match::default() }, spec), expected, "{dst:?}");
    }
    let src = Some(IpPrefix::host("10.0.0.1".parse().unwrap()));
    assert!(matches(Match { src, ..Match::default() }, WRITE));
    assert!(!matches(Match { src, ..Match::default() }, v6));
    assert_eq!((net("10.0.0.0", 33), net("::", 129)), (None, None));
    let ten: IpAddr = [10, 0, 0, 0].into();
    assert_eq!(net("10.0.0.9", 24).unwrap().first(), ten);
    assert!(net("10.0.0.9", 24).unwrap().has(ten));
}

#[test]
fn queue_pairs_and_ports_match() {
    let to = |qpns: &[u32]| Match { qpns: qpns.iter().map(|&n| Qpn::new(n)).collect(), ..Match::default() };
    assert!(matches(to(&[]), WRITE) && matches(to(&[0x11]), WRITE) && matches(to(&[5, 0x11]), WRITE));
    assert!(!matches(to(&[5, 0x12]), WRITE));
    assert!(matches(Match { port: Some(A), ..Match::default() }, WRITE));
    assert!(!matches(Match { port: Some(B), ..Match::default() }, WRITE));
}

#[test]
fn operation_classes_match_their_opcodes() {
    let of = |operations: Operations, spec: PacketSpec| {
        matches(Match { operations: Some(operations), ..Match::default() }, spec)
    };
    let class = |word: &str| Operations::class(word).expect("a class");
    for (opcode, words) in [
        (Opcode::RC_WRITE_ONLY, &["request", "write"][..]),
        (Opcode::UC_WRITE_MIDDLE, &["request", "write"]),
        (Opcode::RC_SEND_LAST_INVALIDATE, &["request", "send"]),
        (Opcode::UD_SEND_ONLY, &["request", "send"]),
        (Opcode::RC_READ_REQUEST, &["request", "read"]),
        (Opcode::RC_READ_RESPONSE_MIDDLE, &["response", "read"]),
        (Opcode::RC_ACKNOWLEDGE, &["response", "ack"]),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, &["response", "ack", "atomic"]),
        (Opcode::RC_FETCH_ADD, &["request", "atomic"]),
        (Opcode::RC_ATOMIC_WRITE, &["request", "atomic"]),
        (Opcode::RC_FLUSH, &["request"]),
        (Opcode::CNP, &[]),
    ] {
        let spec = PacketSpec { opcode, ..WRITE };
        for word in Operations::CLASSES {
            assert_eq!(of(class(word), spec), words.contains(&word), "{opcode} as {word}");
        }
        assert!(of(Operations::only(opcode), spec));
        assert!(of(Operations::only(Opcode::RC_SEND_FIRST).and(Operations::only(opcode)), spec));
        assert!(!of(Operations::only(Opcode::RC_SEND_FIRST), spec));
    }
    assert_eq!(Operations::class("writes"), None);
    // CM messages are matched only by `cm` or their opcode.
    let cm = PacketSpec { opcode: Opcode::UD_SEND_ONLY, qpn: 1, ..WRITE };
    for word in Operations::CLASSES {
        assert_eq!(of(class(word), cm), word == "cm", "{word}");
    }
    assert!(of(Operations::only(Opcode::UD_SEND_ONLY), cm));
    assert!(of(class("send").and(class("cm")), cm));
}

#[test]
fn psn_ranges_wrap_around() {
    let range = |first, last| Some(PsnRange { first: Psn::new(first), last: Psn::new(last) });
    let with = |psn| vec![Rule { matching: Match { psn, ..Match::default() }, ..rule(Action::Drop) }];
    let around = [0xff_fffe, 0xff_ffff, 0, 1, 2, 3];
    assert_eq!(dropped(&mut impair(with(range(1, 2))), around), [1, 2]);
    assert_eq!(dropped(&mut impair(with(range(2, 2))), around), [2]);
    assert_eq!(dropped(&mut impair(with(range(0xff_ffff, 1))), around), [0xff_ffff, 0, 1]);
    assert_eq!(dropped(&mut impair(with(range(0, 0xff_ffff))), around), around);
}

#[test]
fn psn_offsets_count_from_the_first_packet_of_a_flow() {
    let psn_offset = Some(PsnRange { first: Psn::new(1), last: Psn::new(2) });
    let rules = vec![Rule { matching: Match { psn_offset, ..Match::default() }, ..rule(Action::Drop) }];
    let mut impair = impair(rules);
    assert_eq!(
        dropped(&mut impair, [0xff_ffff, 0, 1, 2, 0, 0xff_fffe]),
        [0, 1, 0],
        "a repeated PSN matches again"
    );
    let lost = |impair: &mut Impair, spec: PacketSpec| {
        run(impair, &spec.frame(), 0).0 == Verdict::Drop(DropReason::Impaired)
    };
    // Responses to the same queue pair have PSNs of their own, and CNPs have none.
    let ack = PacketSpec { opcode: Opcode::RC_ACKNOWLEDGE, psn: 500, ..WRITE };
    assert!(!lost(&mut impair, ack) && lost(&mut impair, PacketSpec { psn: 501, ..ack }));
    assert!(!lost(&mut impair, PacketSpec { opcode: Opcode::CNP, psn: 0, ..WRITE }));
    let other = PacketSpec { qpn: 0x12, psn: 0, ..WRITE };
    assert!(!lost(&mut impair, other) && lost(&mut impair, PacketSpec { psn: 2, ..other }));
    assert!(!lost(&mut impair, PacketSpec { psn: 3, ..other }));
    // The table has room for two flows.
    let third = PacketSpec { qpn: 0x13, psn: 0, ..WRITE };
    assert!(!lost(&mut impair, third) && !lost(&mut impair, PacketSpec { psn: 1, ..third }));
    assert_eq!(impair.counters().flows_full.get(), 2);
}

#[test]
fn skip_and_times_limit_a_rule() {
    let mut impair = impair(vec![Rule { skip: 5, times: 2, ..rule(Action::Drop) }]);
    assert_eq!(dropped(&mut impair, 0..20), [5, 6]);
    assert_eq!(counts(&impair, 0), (20, 2, 0));
}

#[test]
fn choices_depend_on_seed_worker_and_rule_only() {
    let share = |share| Probability::new(share).unwrap();
    let lose = |share| Rule { share, ..rule(Action::Drop) };
    let first = dropped(&mut impair(vec![lose(share(0.1))]), 0..10_000);
    // Five standard deviations of a binomial distribution: 5 * sqrt(10000 * 0.1 * 0.9) = 150
    assert!((850..=1150).contains(&first.len()), "{}", first.len());
    assert_eq!(dropped(&mut impair(vec![lose(share(0.1))]), 0..10_000), first, "the same seed");
    let other = Config { seed: 2, ..config(vec![lose(share(0.1))]) };
    assert_ne!(dropped(&mut Impair::new(&other, 0), 0..10_000), first, "another seed");
    let second_worker = &mut Impair::new(&config(vec![lose(share(0.1))]), 1);
    assert_ne!(dropped(second_worker, 0..10_000), first, "another worker");
    assert_eq!(dropped(&mut impair(vec![lose(Probability::NEVER)]), 0..100), []);
    // Other rules, wherever they are, do not change the choices of this rule.
    let marks = Rule { name: "marks".into(), share: share(0.5), ..rule(Action::Mark { force: true }) };
    assert_eq!(dropped(&mut impair(vec![marks.clone(), lose(share(0.1)), marks]), 0..10_000), first);
    // Nor do the random numbers that an action draws.
    let damage = Rule { share: share(0.1), ..rule(Action::Corrupt(Field::Payload)) };
    let mut impair = impair(vec![damage]);
    let damaged =
        (0..10_000).filter(|&psn| run(&mut impair, &PacketSpec::psn(psn), 0).1 != [PacketSpec::psn(psn)]);
    assert_eq!(damaged.collect::<Vec<_>>(), first);
}

#[test]
fn delays_are_exact() {
    let delay = Action::Delay { by: Nanos(700), jitter: Nanos::ZERO };
    let mut impair = impair(vec![Rule { times: 2, ..rule(delay) }]);
    assert_eq!(run(&mut impair, &PacketSpec::psn(0), 1000), (Verdict::Consume, vec![]));
    assert_eq!(run(&mut impair, &PacketSpec::psn(1), 1000), (Verdict::Consume, vec![]));
    assert_eq!(
        run(&mut impair, &PacketSpec::psn(2), 1500).1,
        [PacketSpec::psn(2)],
        "a later packet overtakes"
    );
    assert_eq!(impair.next_timer(), Some(Nanos(1700)));
    assert!(tick(&mut impair, 1699, 9).is_empty());
    assert_eq!(tick(&mut impair, 1700, 9), [PacketSpec::psn(0), PacketSpec::psn(1)], "in order of arrival");
    assert_eq!(impair.next_timer(), None);
    let counters = impair.counters();
    assert_eq!((counters.held.get(), counters.held_now(), counters.held_peak.get()), (2, 0, 2));
    assert_eq!(counts(&impair, 0), (3, 2, 0));
}

#[test]
fn jitter_is_within_bounds_and_releases_by_time() {
    let delay = Action::Delay { by: Nanos(100), jitter: Nanos(50) };
    let mut impair = Impair::new(&Config { held: 1000, ..config(vec![rule(delay)]) }, 0);
    for psn in 0..1000 {
        assert_eq!(run(&mut impair, &PacketSpec::psn(psn), 0).0, Verdict::Consume);
    }
    let mut spans = vec![];
    let mut sent = vec![];
    while let Some(Nanos(at)) = impair.next_timer() {
        let frames = psns(&tick(&mut impair, at, 1000));
        assert!(frames.is_sorted() && !frames.is_empty(), "ties leave in order of arrival");
        sent.extend(frames);
        spans.push(at);
    }
    assert_eq!(spans, (100..=150).collect::<Vec<_>>(), "every delay within the bounds occurs");
    sent.sort_unstable();
    assert_eq!(sent, (0..1000).collect::<Vec<_>>());
}

#[test]
fn due_frames_leave_before_the_next_frame() {
    let mut impair =
        impair(vec![Rule { times: 1, ..rule(Action::Delay { by: Nanos(10), jitter: Nanos(0) }) }]);
    run(&mut impair, &PacketSpec::psn(0), 0);
    assert_eq!(psns(&run(&mut impair, &PacketSpec::psn(1), 9).1), [1]);
    assert_eq!(psns(&run(&mut impair, &PacketSpec::psn(2), 10).1), [0, 2]);
}

#[test]
fn due_frames_without_room_are_kept() {
    let mut impair = impair(vec![rule(Action::Delay { by: Nanos(10), jitter: Nanos(0) })]);
    for psn in 0..3 {
        run(&mut impair, &PacketSpec::psn(psn), 0);
    }
    assert_eq!(psns(&tick(&mut impair, 10, 2)), [0, 1]);
    assert_eq!(impair.next_timer(), Some(Nanos(1010)), "retried soon, but not immediately, which would loop");
    assert_eq!(psns(&tick(&mut impair, 1010, 0)), []);
    assert_eq!(impair.counters().held_now(), 1);
    assert_eq!(psns(&tick(&mut impair, 2010, 1)), [2]);
    assert_eq!((impair.counters().held_now(), impair.next_timer()), (0, None));
}

#[test]
fn slots_run_out_and_are_reused() {
    let mut impair = impair(vec![rule(Action::Delay { by: Nanos(10), jitter: Nanos(0) })]);
    for psn in 0..8 {
        assert_eq!(run(&mut impair, &PacketSpec::psn(psn), 0).0, Verdict::Consume);
    }
    assert_eq!(run(&mut impair, &PacketSpec::psn(8), 0).1, [PacketSpec::psn(8)], "there are eight slots");
    assert_eq!((counts(&impair, 0), impair.counters().held_full.get()), ((9, 8, 1), 1));
    assert_eq!(tick(&mut impair, 10, 99).len(), 8);
    assert_eq!(run(&mut impair, &PacketSpec::psn(9), 10).0, Verdict::Consume);
    // No slot is long enough for this frame.
    let long = PacketSpec { payload: 1600, ..WRITE }.frame();
    assert_eq!(run(&mut impair, &long, 11).1, [long]);
    assert_eq!((impair.counters().held_full.get(), impair.counters().held_peak.get()), (2, 8));
}

#[test]
fn reordered_frames_wait_for_others() {
    let reorder = Action::Reorder { behind: 3, at_most: Nanos::from_millis(10) };
    let mut impair = impair(vec![Rule { skip: 1, times: 2, ..rule(reorder) }]);
    let mut sent = vec![];
    for psn in 0..8 {
        sent.extend(run(&mut impair, &PacketSpec::psn(psn), u64::from(psn)).1);
    }
    assert_eq!(psns(&sent), [0, 3, 4, 5, 1, 2, 6, 7]);
    assert_eq!((impair.next_timer(), impair.counters().held_now()), (None, 0));
}

#[test]
fn reordering_ends_by_timeout_or_between_bursts() {
    let at_most = Nanos::from_millis(10);
    let mut impair = impair(vec![Rule { times: 2, ..rule(Action::Reorder { behind: 1, at_most }) }]);
    run(&mut impair, &PacketSpec::psn(0), 5);
    assert_eq!(impair.next_timer(), Some(Nanos(10_000_005)), "no later packet arrived");
    assert_eq!(psns(&tick(&mut impair, 10_000_005, 9)), [0]);
    run(&mut impair, &PacketSpec::psn(1), 20_000_000);
    // Packets in the other direction, and frames that are not RoCEv2 packets, do not count.
    run_frame(&mut impair, &PacketSpec::psn(7), B, Nanos(20_000_000));
    run(&mut impair, &[7; 60], 20_000_000);
    assert_eq!(impair.next_timer(), Some(Nanos(30_000_000)));
    run(&mut impair, &PacketSpec::psn(2), 20_000_001);
    assert_eq!(impair.next_timer(), Some(Nanos(20_000_001)), "due after another packet has passed");
    assert_eq!(psns(&tick(&mut impair, 20_000_001, 9)), [1]);
}

#[test]
fn duplicates_are_sent_if_there_is_room_for_all() {
    let mut impair = impair(vec![rule(Action::Duplicate { copies: 2 })]);
    let frame = PacketSpec { v6: true, tags: 1, ..WRITE }.frame();
    assert_eq!(run(&mut impair, &frame, 0), (Verdict::Forward(B), vec![frame.clone(); 3]));
    // There has to be room for the packet itself as well.
    for (room, copies) in [(3, 2), (2, 0)] {
        let mut out = FrameCollector::with_room(room);
        let verdict = impair.on_frame(&mut MemoryFrame::new(&frame[..]), A, Nanos::ZERO, &mut out);
        assert_eq!((verdict, out.frames.len()), (Verdict::Forward(B), copies));
    }
    assert_eq!(counts(&impair, 0), (3, 2, 1));
}

#[test]
fn corruption_flips_one_bit_and_leaves_the_icrc_wrong() {
    for (v6, tags) in SHAPES {
        let frame = PacketSpec { v6, tags, ..WRITE }.frame();
        let Class::Roce(layout) = classify(&frame) else { panic!("a packet") };
        let payload = layout.payload()..layout.payload() + WRITE.payload;
        let header = layout.bth()..layout.bth() + Bth::LEN;
        let icrc = layout.icrc()..layout.end();
        for (field, range) in [(Field::Payload, payload), (Field::Header, header), (Field::Icrc, icrc)] {
            let mut impair = impair(vec![rule(Action::Corrupt(field))]);
            let mut hit = std::collections::BTreeSet::new();
            for _ in 0..2000 {
                let (verdict, sent) = run(&mut impair, &frame, 0);
                assert_eq!(verdict, Verdict::Forward(B));
                assert!(!Packet::new(&sent[0], layout).verify_icrc());
                let mut differing = (0..frame.len()).filter(|&at| frame[at] != sent[0][at]);
                let at = differing.next().expect("something is damaged");
                assert_eq!(differing.next(), None);
                assert_eq!((frame[at] ^ sent[0][at]).count_ones(), 1);
                assert!(range.contains(&at));
                hit.insert(at);
            }
            let all = range.filter(|&at| at != layout.bth() + Bth::MASKED_BYTE);
            assert_eq!(
                hit.into_iter().collect::<Vec<_>>(),
                all.collect::<Vec<_>>(),
                "every byte is corrupted at some time"
            );
        }
    }
}

#[test]
fn packets_without_payload_are_not_corrupted() {
    let mut impair = impair(vec![rule(Action::Corrupt(Field::Payload))]);
    let ack = PacketSpec { opcode: Opcode::RC_ACKNOWLEDGE, ..WRITE }.frame();
    assert_eq!(run(&mut impair, &ack, 0).1, [ack]);
    assert_eq!(counts(&impair, 0), (1, 0, 1));
}

#[test]
fn marking_sets_congestion_experienced() {
    for (v6, tags) in SHAPES {
        for (ecn, force, marked) in
            [(0, false, false), (1, false, true), (2, false, true), (3, false, false), (0, true, true)]
        {
            let spec = PacketSpec { v6, tags, ecn, ..WRITE };
            let mut impair = impair(vec![rule(Action::Mark { force })]);
            let (_, sent) = run(&mut impair, &spec.frame(), 0);
            // An equal packet built from scratch: the IPv4 header checksum is right, and the ICRC is
            // unchanged.
            let expected = PacketSpec { ecn: if marked { 3 } else { ecn }, ..spec }.frame();
            assert_eq!(sent, [expected]);
            assert!(Packet::parse(&sent[0]).unwrap().verify_icrc());
            assert_eq!(counts(&impair, 0), (1, u64::from(marked), u64::from(!marked)));
        }
    }
}

#[test]
fn rules_apply_in_order_until_one_keeps_the_packet() {
    let named = |name: &str, action| Rule { name: name.into(), ..rule(action) };
    let mut impair = impair(vec![
        named("copy", Action::Duplicate { copies: 1 }),
        named("mark", Action::Mark { force: false }),
        named("hold", Action::Delay { by: Nanos(10), jitter: Nanos::ZERO }),
        named("lose", Action::Drop),
    ]);
    let (verdict, sent) = run(&mut impair, &PacketSpec::psn(0), 0);
    assert_eq!((verdict, sent), (Verdict::Consume, vec![PacketSpec::psn(0)]), "the copy is not marked");
    assert_eq!(tick(&mut impair, 10, 9), [PacketSpec { ecn: 3, ..WRITE }.frame()], "the packet is marked");
    assert_eq!(counts(&impair, 3), (0, 0, 0), "an earlier rule held it back");
    // Without a free slot it continues with the next rule.
    for psn in 0..8 {
        run(&mut impair, &PacketSpec::psn(psn), 20);
    }
    assert_eq!(run(&mut impair, &PacketSpec::psn(9), 20).0, Verdict::Drop(DropReason::Impaired));
    assert_eq!(counts(&impair, 3), (1, 1, 0));
}

#[test]
fn rules_match_the_packet_as_received() {
    let operations = Operations::class("write");
    let last = Rule {
        name: "lose".into(),
        matching: Match { operations, qpns: vec![Qpn::new(0x11)], ..Match::default() },
        ..rule(Action::Drop)
    };
    let mut impair = impair(vec![rule(Action::Corrupt(Field::Header)), last]);
    assert_eq!(dropped(&mut impair, 0..500), (0..500).collect::<Vec<_>>());
}

#[test]
fn truncated_frames_are_not_held_back() {
    let mut impair = impair(vec![rule(Action::Delay { by: Nanos(10), jitter: Nanos::ZERO })]);
    let mut out = FrameCollector::with_room(9);
    let mut frame = MemoryFrame::truncated(PacketSpec::psn(0));
    assert_eq!(impair.on_frame(&mut frame, A, Nanos::ZERO, &mut out), Verdict::Forward(B));
    assert_eq!(counts(&impair, 0), (1, 0, 1));
}

//! Several workers: each sends and checks what is on its queue pairs.

use super::world::Faults;
use super::*;
use crate::RateHistory;
use proptest::prelude::*;
use rocev2::ethernet::{VlanTag, ethertype};
use rocev2::repr::{Ip, Repr};

/// Rings and pauses that are short beside the timeouts of requests
const SHORT: Faults =
    Faults { seed: 1, in_ring: Nanos(2_000), pause: Nanos(20_000), every: 50, ring: usize::MAX };

#[test]
fn workers_receive_all_that_they_send() {
    for workers in 1..=4 {
        let profile = profile(1, mix());
        let mut world = World::of_workers(&profile, Vec::new(), workers, SHORT);
        world.run();
        assert_true(&world, &profile, 2_000, &format!("{workers} workers"));
        for (stream, c) in profile.streams.iter().zip(&world.counters().streams) {
            let counts = [c.sent.frames.get(), c.received.frames.get(), c.skipped.get()];
            assert_eq!(counts, [2_000, 2_000, 0], "{}, {workers} workers", stream.name);
        }
        for worker in &world.workers {
            assert!(worker.pktgen.counters.streams.iter().all(|c| c.sent.frames.get() > 100));
        }
        assert_eq!(world.dispatched > 0, workers > 1);
    }
}

/// The packets are the same as with one worker, in another order.
#[test]
fn first_psns_do_not_depend_on_the_workers() {
    let mut writes = stream(Verb::Write, 0x10, 12);
    (writes.pick, writes.packets) = (Choice::RoundRobin, Some(1_200));
    let profile = profile(4, vec![writes]);
    let identities = |workers| {
        let mut world = World::of_workers(&profile, Vec::new(), workers, SHORT);
        world.run();
        let identity = |frame: &Vec<u8>| {
            let bth = Packet::parse(frame).unwrap().bth();
            (bth.dest_qp().get(), bth.psn().get())
        };
        let mut all: Vec<_> = world.left_a.iter().map(identity).collect();
        all.sort_unstable();
        all
    };
    let one = identities(1);
    for workers in [2, 3, 4] {
        assert!(identities(workers) == one, "{workers} workers");
    }
}

#[test]
fn workers_count_what_was_done_to_their_packets() {
    let (mut dropped, mut late) = (0, 0);
    for seed in 0..60 {
        let workers = 2 + seed as usize % 3;
        let mut profile = profile(seed, mix());
        for stream in &mut profile.streams {
            stream.packets = Some(300);
        }
        let share = 0.01 * (seed % 10) as f64;
        let rules = vec![
            rule("lose", share, Action::Drop),
            rule("double", share, Action::Duplicate { copies: 2 }),
            rule("damage", share / 2.0, Action::Corrupt(Field::Icrc)),
            rule("swap", share, Action::Reorder { behind: 1 + seed % 20, at_most: Nanos::from_micros(200) }),
        ];
        let faults = Faults {
            seed,
            in_ring: Nanos(seed * 97 % 5_000),
            pause: Nanos(1 + seed * 7919 % 100_000),
            every: 10 + seed * 13 % 90,
            ring: 4 << (seed % 8),
        };
        let mut world = World::of_workers(&profile, rules, workers, faults);
        world.run();
        let (truths, _) = assert_true(&world, &profile, 300, &format!("seed {seed}"));
        dropped += world.dropped;
        late += truths.iter().map(|truth| truth.late).sum::<u64>();
    }
    assert!(dropped > 500 && late > 1_000, "{dropped} dropped by full rings, {late} late");
}

#[test]
fn requests_of_workers_are_answered() {
    for workers in [2, 3] {
        let mut streams = mix();
        streams.truncate(5);
        for stream in &mut streams {
            stream.outstanding = Some(if stream.verb == Verb::CompareSwap { 1 } else { 4 });
            (stream.ack_every, stream.packets) = (2, Some(1_200));
        }
        let mut profile = profile(3, streams);
        profile.respond = true;
        for stream in &mut profile.streams {
            stream.timeout = Nanos::from_millis(1);
        }
        let mut world = World::of_workers(&profile, Vec::new(), workers, SHORT);
        world.run();
        assert_true(&world, &profile, 1_200, &format!("{workers} workers"));
        for (stream, c) in profile.streams.iter().zip(&world.counters().streams) {
            let wrong = [c.unanswered.get(), c.unable.get(), c.stale_responses.get(), c.reflected.get()];
            assert_eq!(wrong, [0; 4], "{}", stream.name);
            assert_eq!(c.responses.get(), c.replies.get(), "{}", stream.name);
            assert_eq!(c.swapped.get() > 100, stream.verb == Verb::CompareSwap);
        }
        assert_eq!(world.counters().drain_expired.get(), 0);
    }
}

/// A worker that has nothing more to send receives damaged packets of the others.
#[test]
fn a_worker_counts_until_all_are_done() {
    let mut short = stream(Verb::Write, 0x10, 1);
    short.packets = Some(20);
    let long =
        Stream { packets: Some(3_000), first_qpn: Qpn::new(0x20), name: "long".into(), ..short.clone() };
    let profile = Profile { drain: Nanos::from_micros(50), ..profile(1, vec![short, long]) };
    let damage = rule("damage", 0.2, Action::Corrupt(Field::Header));
    let mut world = World::of_workers(&profile, vec![damage], 2, SHORT);
    world.run();
    assert_adds_up(&world, &profile);
    let (_, damaged) = truth(&profile, &world.arrived_at_b);
    let faults = |worker: usize| {
        world.workers[worker].pktgen.counters.faults.iter().map(switch::counters::Counter::get).sum::<u64>()
    };
    assert_eq!(faults(0) + faults(1), damaged);
    assert!(faults(0) > 50 && faults(1) > 50, "{} {}", faults(0), faults(1));
    assert_eq!(world.counters().too_late.get(), 0);
}

/// One worker alone begins when it can: what came due before is not made up for.
#[test]
fn one_worker_begins_when_it_gets_the_command() {
    let profile = profile(1, vec![stream(Verb::Write, 0x10, 1)]);
    let mut pktgen = Pktgen::new(&profile).unwrap();
    let now = Nanos::from_millis(50);
    pktgen.on_command(Command::Begin { at: Nanos::from_millis(1) }, now);
    let mut out = FrameCollector::with_room(512);
    pktgen.on_timer(now, &mut out);
    pktgen.on_timer(now + Nanos::from_micros(2), &mut out);
    let counters = pktgen.counters();
    assert_eq!((out.frames.len(), counters.streams[0].forfeited.get()), (8, 0));
    assert!(counters.longest_away_ns.get() < 2_000);
}

#[test]
fn a_rate_that_is_set_before_the_beginning_begins_with_it() {
    let mut writes = stream(Verb::Write, 0x10, 2);
    (writes.packets, writes.burst) = (None, Some(1));
    let profile = Profile { duration: Some(Nanos::from_millis(2)), ..profile(1, vec![writes]) };
    let mut pktgen = Pktgen::of_worker(&profile, 0, 2).unwrap();
    let begin = Nanos::from_millis(5);
    pktgen.on_command(Command::Begin { at: begin }, Nanos::ZERO);
    let rate = Rate::Steady { unit: Unit::Packets, per_second: 2_000_000 };
    pktgen.on_command(Command::SetRate { stream: 0, rate }, Nanos::from_millis(4));
    assert!(pktgen.next_timer() >= Some(begin));
    let mut out = FrameCollector::with_room(512);
    pktgen.on_timer(begin + Nanos::from_micros(10), &mut out);
    // Half of 20 packets
    assert_eq!((out.frames.len(), pktgen.counters().streams[0].forfeited.get()), (10, 0));
}

/// Together, workers send each packet when one worker would.
#[test]
fn workers_keep_the_rate_of_their_stream() {
    for (unit, per_second) in [
        (Unit::Packets, 10_000),
        (Unit::Packets, 999_983),
        (Unit::Bits, 10_000_000),
        (Unit::Bits, 1_000_000_000),
    ] {
        for (workers, qps) in [(1, 8), (2, 8), (4, 8), (2, 3), (3, 7), (4, 4)] {
            let mut writes = stream(Verb::Write, 0x10, qps);
            (writes.rate, writes.packets, writes.burst) = (Rate::Steady { unit, per_second }, None, Some(1));
            let mut profile = profile(1, vec![writes]);
            profile.duration = Some(Nanos::from_millis(20));
            let pauses = Faults { pause: Nanos(1), ..SHORT };
            let mut world = World::of_workers(&profile, Vec::new(), workers, pauses);
            world.run();
            let packet_bits = world.workers[0].pktgen.packet_bits(0).unwrap();
            let packet = if unit == Unit::Bits { packet_bits } else { 1 };
            let what = format!("{per_second} {unit:?}, {workers} workers, {qps} queue pairs");
            // A command reaches the last worker within 5 us, and a turn follows.
            let rate = profile.streams[0].rate;
            let off = 1 + per_second * 6 / 1_000_000 / packet;
            for (n, at) in (1..).zip(&world.left_a_at) {
                let due = (rate.earned(at.since(Nanos(777))) / u128::from(packet)) as u64;
                let uneven = if qps.is_multiple_of(workers as u32) { 0 } else { workers as u64 - 1 };
                // In bits, the last packet of a turn may be due in part.
                let uneven = uneven + if unit == Unit::Bits { workers as u64 } else { 0 };
                assert!(n <= due + uneven && due <= n + off + uneven, "{what}: {n} sent, {due} due");
            }
            let sent = world.counters().streams[0].sent.frames.get();
            assert_eq!(sent, world.left_a.len() as u64);
            assert_eq!(world.counters().streams[0].forfeited.get(), 0, "{what}");
            assert_eq!(world.counters().streams[0].part_of_rate(&profile.streams[0]), Some(1.0), "{what}");
        }
    }
}

#[test]
fn ramps_and_totals_are_those_of_one_worker() {
    let ramp = Rate::Ramp { unit: Unit::Packets, from: 0, to: 10_000, over: Nanos::from_millis(10) };
    for (workers, qps) in [(1, 8), (2, 8), (4, 5), (3, 3)] {
        let mut writes = stream(Verb::Write, 0x10, qps);
        (writes.rate, writes.packets, writes.burst) = (ramp, None, Some(1));
        let mut profile = profile(1, vec![writes]);
        profile.duration = Some(Nanos::from_millis(10));
        let mut world = World::of_workers(&profile, Vec::new(), workers, SHORT);
        world.run();
        let sent = world.counters().streams[0].sent.frames.get();
        assert!(sent.abs_diff(50) < workers as u64, "{workers} workers, {qps} queue pairs: {sent} packets");
    }
}

#[test]
fn a_rate_changes_at_all_workers() {
    let steady = |per_second| Rate::Steady { unit: Unit::Packets, per_second };
    let mut writes = stream(Verb::Write, 0x10, 3);
    (writes.rate, writes.packets, writes.burst) = (steady(100_000), None, Some(1));
    let single = Stream { qps: 1, first_qpn: Qpn::new(0x20), rate: steady(10_000), ..writes.clone() };
    let mut profile = profile(1, vec![writes, single]);
    profile.duration = Some(Nanos::from_millis(40));
    for workers in [1, 2, 3] {
        let mut world = World::of_workers(&profile, Vec::new(), workers, Faults { pause: Nanos(1), ..SHORT });
        let rates = [
            (0, 10, steady(1_000_000)),
            (1, 15, steady(300_000)),
            (0, 20, steady(7)),
            (0, 30, Rate::Max),
            (0, 31, steady(50_000)),
        ];
        let command = |&(stream, ms, rate)| (Nanos::from_millis(ms), Command::SetRate { stream, rate });
        world.commands = rates.iter().map(command).collect();
        world.run();
        assert_adds_up(&world, &profile);
        let counters = world.counters();
        let mut histories: Vec<_> = (profile.streams.iter().zip([workers.min(3), 1]))
            .map(|(stream, parts)| RateHistory::new(stream, parts))
            .collect();
        let found: Vec<_> = world.marks.iter().map(|(stream, _)| *stream).collect();
        assert_eq!(found, [0, 1, 0, 0, 0]);
        for ((stream, mark), (_, _, rate)) in world.marks.iter().zip(rates) {
            histories[*stream].change(rate, *mark);
        }
        let sent = |stream: usize| {
            let rates = histories[stream].rates(&counters.streams[stream]);
            rates.map(|at| (at.sent.packets, at.part.unwrap_or(1.0))).collect::<Vec<_>>()
        };
        for (stream, expected) in [(0, vec![1_000, 10_000, 0, 0, 450]), (1, vec![150, 7_500])] {
            for (n, ((packets, part), expected)) in sent(stream).into_iter().zip(expected).enumerate() {
                // As much as the port takes at the maximum
                let is_max = (stream, n) == (0, 3);
                assert!(
                    is_max || packets.abs_diff(expected) < 12,
                    "{workers} workers, {stream}, {n}: {packets}"
                );
                assert!((part - 1.0).abs() < 1e-9, "{workers} workers, stream {stream}, rate {n}: {part}");
            }
        }
    }
}

#[test]
fn every_worker_has_to_have_work() {
    let one = |verb, qps| profile(1, vec![stream(verb, 0x10, qps)]);
    let message =
        |profile: &Profile, workers| profile.check_workers(workers).err().map(|error| error.to_string());
    let too_many = |most: usize, workers: usize| {
        Some(format!(
            "the streams give {most} of {workers} workers something to send; use {most}, or more queue pairs of \
             streams that are divided"
        ))
    };
    assert_eq!(message(&one(Verb::Write, 3), 3), None);
    assert_eq!(message(&one(Verb::Write, 3), 4), too_many(3, 4));
    assert_eq!(message(&one(Verb::OnePipeMessage, 9), 2), too_many(1, 2));
    let mut zipf = one(Verb::Read, 9);
    zipf.streams[0].pick = Choice::Zipf { thousandths: 990 };
    assert_eq!(message(&zipf, 2), too_many(1, 2));
    let mut locks = one(Verb::CompareSwap, 9);
    assert_eq!(message(&locks, 4), None);
    assert_eq!(locks.undivided(2).count(), 0);
    locks.respond = true;
    let why = "one responder has the words of its atomics";
    assert_eq!(locks.undivided(2).collect::<Vec<_>>(), [(0, 0, why)]);
    assert_eq!(message(&locks, 4), too_many(1, 4));
    assert!(Pktgen::of_worker(&locks, 0, 4).is_err());
    let beside = profile(1, vec![stream(Verb::OnePipeBeacon, 0x10, 9), stream(Verb::Write, 0x20, 1)]);
    assert_eq!(message(&beside, 1), None);
    // Both are at the first worker.
    assert_eq!(message(&beside, 2), too_many(1, 2));
}

/// Returns a request of a stream to a queue pair, as it is, in other headers, and as a response.
fn frames_to(stream: &Stream, qpn: u32) -> Vec<Vec<u8>> {
    let profile = profile(1, vec![Stream { packets: Some(1), ..stream.clone() }]);
    let mut world = World::new(&profile, Vec::new());
    world.run();
    let frame = world.left_a.pop().unwrap();
    let build = |change: &dyn Fn(&mut Repr<'_>)| {
        let mut repr = Repr::parse(&frame).unwrap();
        repr.bth.set_dest_qp(Qpn::new(qpn));
        change(&mut repr);
        let mut bytes = vec![0; repr.frame_len()];
        repr.build(&mut bytes).unwrap();
        bytes
    };
    let to_source = |repr: &mut Repr<'_>| match &mut repr.ip {
        Ip::V4(header, _) => core::mem::swap(&mut header.src, &mut header.dst),
        Ip::V6(header, _) => core::mem::swap(&mut header.src, &mut header.dst),
    };
    let tagged = |repr: &mut Repr<'_>| {
        repr.tags[0] = VlanTag { tci: 7.into(), ethertype: repr.ethernet.ethertype };
        (repr.ethernet.ethertype, repr.tag_count) = (ethertype::VLAN.into(), 1);
    };
    let with_options = |repr: &mut Repr<'_>| {
        if let Ip::V4(header, options) = &mut repr.ip {
            (header.version_ihl, *options) = (0x46, &[1; 4]);
        }
    };
    vec![build(&|_| {}), build(&to_source), build(&tagged), build(&with_options)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_queue_pair_belongs_to_one_worker(
        qps in proptest::collection::vec(1u32..60, 1..6),
        workers in 1usize..9,
        packets in 1u64..10_000,
        burst in 1u16..=256,
        size in 1u32..5_000,
        are_numbers_shared: bool,
    ) {
        let of = |(qps, n): (&u32, u32)| {
            let mut stream = stream(Verb::Write, if are_numbers_shared { 0x1000 + n } else { n << 12 }, *qps);
            let hosts = 2 * n as u8;
            (stream.src, stream.dst) = (host(hosts, n.is_multiple_of(2)), host(hosts + 1, n.is_multiple_of(2)));
            Stream { packets: Some(packets), burst: Some(burst), sizes: vec![size], stamp: false, ..stream }
        };
        let profile = profile(1, qps.iter().zip(1..).map(of).collect());
        let division = Division::new(&profile, workers);
        let parts: Vec<Vec<_>> = (0..workers).map(|worker| division.parts(&profile, worker)).collect();
        let mut found = HashSet::new();
        for (worker, parts) in parts.iter().enumerate() {
            for part in parts {
                let whole = &profile.streams[part.index];
                let first = part.stream.first_qpn.get();
                prop_assert_eq!(first, whole.first_qpn.get() + part.first_qp);
                for qpn in first..first + part.stream.qps {
                    prop_assert!(found.insert((part.index, qpn)));
                }
                for qpn in [first, first + part.stream.qps - 1] {
                    for frame in frames_to(whole, qpn) {
                        prop_assert_eq!(division.owner(&frame), Some(worker));
                    }
                }
            }
        }
        prop_assert_eq!(found.len() as u32, qps.iter().sum::<u32>());
        for outside in frames_to(&profile.streams[0], 0xff_fffe) {
            prop_assert_eq!(division.owner(&outside), None);
        }
        for (index, qps) in qps.iter().enumerate() {
            let parts: Vec<_> = parts.iter().flatten().filter(|part| part.index == index).collect();
            prop_assert_eq!(parts.len(), workers.min(*qps as usize));
            let sum: u64 = parts.iter().map(|part| part.stream.packets.unwrap()).sum();
            prop_assert_eq!(sum, packets);
            // One part has the packets of a last, incomplete message.
            let length = u64::from(profile.streams[index].packets_of(size));
            let whole = |part: &&&crate::part::Part| part.stream.packets.unwrap().is_multiple_of(length);
            prop_assert!(parts.iter().filter(whole).count() + 1 >= parts.len());
            let bursts: u32 = parts.iter().map(|part| u32::from(part.stream.burst.unwrap())).sum();
            prop_assert!(bursts >= u32::from(burst) && bursts < u32::from(burst) + workers as u32);
        }
    }
}

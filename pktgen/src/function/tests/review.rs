//! What a review found: streams that starve others, answers that are none, packets told as answered that were lost, and PSNs on the
//! other half of their circle.

use super::*;
use crate::template::Template;
use rocev2::aeth::{Aeth, NakCode, RnrTimer, Syndrome};
use rocev2::repr::Extended;
use rocev2::{Bth, Msn};
use zerocopy::IntoBytes as _;

/// Turns of a generator on a port that has so much room in each.
fn turns(pktgen: &mut Pktgen, turns: u64, room: impl Fn(u64) -> usize) {
    for turn in 0..turns {
        pktgen.on_timer(Nanos(turn * 10_000), &mut FrameCollector::with_room(room(turn)));
    }
}

#[test]
fn streams_share_a_full_port() {
    let fast = |first_qpn| Stream { packets: None, ..stream(Verb::Write, first_qpn, 1) };
    let mut slow = fast(0x30);
    slow.rate = Rate::Steady { unit: Unit::Packets, per_second: 100_000 };
    // Room for a part of what is due, for less than there are streams, and every other time only
    let rooms: [fn(u64) -> usize; 4] = [|_| 32, |_| 1, |_| 3, |turn| if turn % 2 == 0 { 7 } else { 0 }];
    for (n, room) in rooms.into_iter().enumerate() {
        let profile = profile(1, vec![fast(0x10), fast(0x20), fast(0x40), slow.clone()]);
        let mut pktgen = begun(&profile, Nanos::ZERO);
        turns(&mut pktgen, 6_000, room);
        let sent: Vec<_> = pktgen.counters.streams.iter().map(|c| c.sent.frames.get()).collect();
        let (least, most) = (sent[..3].iter().min().unwrap(), sent[..3].iter().max().unwrap());
        assert!(most - least <= most / 50, "those that want the same get the same, {n}: {sent:?}");
        // It wants less than its part of the first port, and of the third and fourth, and gets that; of the second a quarter.
        let wanted = if n == 1 { 1_490 } else { 4_400 };
        assert!(sent[3] >= wanted, "who wants little gets it, {n}: {sent:?}");
    }
}

#[test]
fn what_never_ends_is_refused() {
    let mut profile = profile(1, mix());
    profile.streams[1].malformed = Probability::ALWAYS;
    let error = profile.check().unwrap_err().to_string();
    assert!(error.contains("malformed") && error.contains("2000"), "{error}");
    profile.streams[1].packets = None;
    assert_eq!(profile.check(), Ok(()), "as long as there is time, it may");
}

/// A packet to a requester: an acknowledgement with this syndrome, or one of another opcode.
fn answer(opcode: Opcode, syndrome: Syndrome, qpn: u32, psn: Psn) -> MemoryFrame {
    let mut extended = Extended::default();
    extended.aeth.copy_from_slice(Aeth::new(syndrome, Msn::ZERO).as_bytes());
    let template = Template::new(host(2, false), host(1, false), opcode, extended, 0, 0);
    let mut repr = rocev2::repr::Repr::parse(&template.bytes).unwrap();
    repr.bth = Bth::new(opcode, Qpn::new(qpn), psn);
    let mut bytes = vec![0; repr.frame_len() + 8];
    let len = repr.build(&mut bytes).unwrap();
    MemoryFrame::new(&bytes[..len])
}

#[test]
fn a_nak_refuses_a_request_and_a_cnp_answers_none() {
    let mut writes = stream(Verb::Write, 0x10, 1);
    (writes.outstanding, writes.packets, writes.sizes) = (Some(8), Some(14), vec![3000]);
    writes.first_psn = Some(Psn::new(0xff_fffc));
    let profile = profile(1, vec![writes]);
    let mut pktgen = begun(&profile, Nanos::ZERO);
    let mut out = FrameCollector::with_room(512);
    pktgen.on_timer(Nanos(10_000), &mut out);
    assert_eq!(out.frames.len(), 14, "four messages of three packets, and two of the fifth");
    let first = Psn::new(0xff_fffc);
    let counters = pktgen.counters();
    let c = &counters.streams[0];
    let mut see = |opcode, syndrome, psn| {
        let mut frame = answer(opcode, syndrome, 0x10, psn);
        pktgen.on_frame(&mut frame, A, Nanos(20_000), &mut FrameCollector::with_room(9));
        (c.answered.get(), c.unanswered.get(), c.stale_responses.get())
    };
    let ack = Syndrome::Ack(rocev2::aeth::Credit::UNLIMITED);
    let sequence = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(see(Opcode::CNP, ack, first.add(8)), (0, 0, 0), "congestion is no answer");
    assert_eq!(see(Opcode::RC_ACKNOWLEDGE, sequence, first.add(4)), (1, 1, 0), "before it, and that one");
    assert_eq!(see(Opcode::RC_ACKNOWLEDGE, sequence, first.add(4)), (1, 1, 1), "once");
    assert_eq!(see(Opcode::RC_ACKNOWLEDGE, Syndrome::RnrNak(RnrTimer(1)), first.add(6)), (1, 2, 1));
    assert_eq!(see(Opcode::RC_READ_RESPONSE_ONLY, ack, first.add(11)), (1, 2, 2), "of another kind");
    assert_eq!(see(Opcode::RC_ACKNOWLEDGE, ack, first.add(11)), (2, 2, 2));
    assert_eq!(see(Opcode::RC_ACKNOWLEDGE, ack, first.add(13)), (2, 2, 3), "of a message that is not whole");
    assert_eq!((c.responses.get(), c.naks.get(), c.cnps.get()), (7, 3, 1));
}

/// Of the messages of each stream, those of which all packets came.
fn whole(world: &World, profile: &Profile) -> Vec<u64> {
    let mut came = HashSet::new();
    for frame in &world.came {
        let packet = Packet::parse(frame).unwrap();
        came.insert((packet.bth().dest_qp(), packet.bth().psn()));
    }
    let mut whole = vec![0; profile.streams.len()];
    let mut so_far = HashMap::new();
    for frame in &world.left {
        let packet = Packet::parse(frame).unwrap();
        let (qpn, psn) = (packet.bth().dest_qp(), packet.bth().psn());
        let good = so_far.entry(qpn).or_insert(true);
        *good &= came.contains(&(qpn, psn));
        let opcode = packet.layout().opcode();
        if !matches!(opcode, Opcode::RC_WRITE_FIRST | Opcode::RC_WRITE_MIDDLE) {
            let is_in = |s: &Stream| (s.first_qpn.get()..s.first_qpn.get() + s.qps).contains(&qpn.get());
            whole[profile.streams.iter().position(is_in).unwrap()] += u64::from(*good);
            *good = true;
        }
    }
    whole
}

#[test]
fn what_was_lost_is_not_answered() {
    let mut told = 0;
    for seed in 0..12 {
        let mut streams =
            vec![stream(Verb::Write, 0x10, 2), stream(Verb::Write, 0x20, 2), stream(Verb::Write, 0x30, 2)];
        for (n, stream) in streams.iter_mut().enumerate() {
            (stream.outstanding, stream.packets) = (Some(8), Some(600));
            stream.ack_every = [1, 4, 1][n];
            stream.sizes = vec![[64, 64, 2500][n]];
        }
        let mut profile = profile(seed, streams);
        profile.respond = true;
        let mut world = World::new(&profile, vec![rule("lose", 0.05, Action::Drop)]);
        world.run();
        let whole = whole(&world, &profile);
        for ((stream, c), whole) in profile.streams.iter().zip(&world.pktgen.counters.streams).zip(whole) {
            let said = c.answered.get();
            assert!(said <= whole, "{}, seed {seed}: {said} answered, {whole} arrived", stream.name);
            assert_eq!(c.waiting.get(), c.under_way(), "{}: in their rings", stream.name);
            told += said;
        }
    }
    assert!(told > 6_000, "{told}");
}

#[test]
fn a_read_whose_response_has_a_hole_is_not_answered() {
    let mut reads = stream(Verb::Read, 0x10, 1);
    (reads.outstanding, reads.packets, reads.sizes) = (Some(4), Some(3), vec![2500]);
    let mut profile = profile(1, vec![reads]);
    profile.respond = true;
    let mut pktgen = begun(&profile, Nanos::ZERO);
    let mut out = FrameCollector::with_room(512);
    pktgen.on_timer(Nanos(10_000), &mut out);
    let mut answers = FrameCollector::with_room(512);
    for (mut request, _) in out.frames {
        pktgen.on_frame(&mut request, B, Nanos(20_000), &mut answers);
    }
    assert_eq!(answers.frames.len(), 9);
    for (n, (mut packet, _)) in answers.frames.into_iter().enumerate() {
        // A middle one of the first response, and the last of the second
        if n != 1 && n != 5 {
            pktgen.on_frame(&mut packet, A, Nanos(30_000), &mut FrameCollector::with_room(9));
        }
    }
    let c = &pktgen.counters.streams[0];
    assert_eq!((c.answered.get(), c.unanswered.get(), c.responses.get()), (1, 2, 7));
}

#[test]
fn long_steps_do_not_reach_the_other_half_of_the_circle() {
    // 1,100 acknowledgements in a row are lost, of 8,000 PSNs each: more than half of all PSNs
    let mut acks = stream(Verb::Ack { coalesce: 8_000 }, 0x10, 1);
    acks.packets = Some(2_000);
    let mut profile = profile(1, vec![acks]);
    profile.window = 64;
    let lose = Rule { skip: 100, times: 1_100, ..rule("lose", 1.0, Action::Drop) };
    let mut world = World::new(&profile, vec![lose]);
    world.run();
    adds_up(&world, &profile);
    let c = &world.pktgen.counters.streams[0];
    assert_eq!((c.received.frames.get(), c.lost(), c.unseen(), c.stale.get()), (900, 1_100, 0, 0));

    // What a window has to tell apart may not be half of all.
    profile.window = 2048;
    let error = profile.check().unwrap_err().to_string();
    assert!(error.contains("2048 packets of a queue pair, of 8000 PSNs each"), "{error}");
    assert!(error.contains("half"), "{error}");
}

#[test]
fn each_datagram_names_its_own_queue_pair() {
    for verb in [Verb::OnePipeMessage, Verb::OnePipeBeacon] {
        let mut profile = profile(1, vec![stream(verb, 0x100, 7)]);
        profile.streams[0].packets = Some(50);
        let mut world = World::new(&profile, Vec::new());
        world.run();
        let mut named = HashSet::new();
        for frame in &world.came {
            let packet = Packet::parse(frame).unwrap();
            assert!(packet.verify_icrc());
            assert_eq!(packet.deth().unwrap().src_qp(), packet.bth().dest_qp(), "{}", verb.name());
            named.insert(packet.bth().dest_qp());
        }
        assert_eq!(named.len(), 7);
    }
}

/// Runs a generator that a worker looks after every so often: what left, and when.
fn paced(profile: &Profile, every: Nanos, room: usize) -> (Pktgen, Vec<Nanos>) {
    let mut pktgen = begun(profile, Nanos::ZERO);
    let (mut now, mut left) = (Nanos::ZERO, Vec::new());
    while let Some(next) = pktgen.next_timer() {
        now = next.max(now + every);
        let mut out = FrameCollector::with_room(room);
        pktgen.on_timer(now, &mut out);
        left.extend(out.frames.iter().map(|_| now));
    }
    (pktgen, left)
}

#[test]
fn slow_rates_are_exact_and_even() {
    // By packets a second: how many leave in 2.05 s, and the longest time between two
    for (per_second, packets, gap_ns) in
        [(1, 2, 1_000_200_000), (10, 20, 100_200_000), (1_000, 2_050, 1_200_000), (60_000, 123_000, 20_000)]
    {
        let mut slow = stream(Verb::Write, 0x10, 3);
        (slow.rate, slow.burst, slow.packets) =
            (Rate::Steady { unit: Unit::Packets, per_second }, None, None);
        let mut profile = profile(1, vec![slow]);
        (profile.duration, profile.receive, profile.drain) =
            (Some(Nanos::from_millis(2_050)), None, Nanos::ZERO);
        let (pktgen, left) = paced(&profile, Nanos(300), 512);
        assert_eq!(left.len(), packets, "{per_second} a second");
        let longest = left.windows(2).map(|two| two[1].since(two[0]).0).max().unwrap();
        assert!(longest <= gap_ns, "{per_second} a second: {longest} ns without one");
        assert_eq!(pktgen.counters.streams[0].part_of_rate(&profile.streams[0]), Some(1.0));
    }
    // What is due at the end leaves, though it is not a whole burst; and a ramp from nothing is even from the beginning.
    let mut bursts = stream(Verb::Write, 0x10, 3);
    (bursts.rate, bursts.burst) = (Rate::Steady { unit: Unit::Packets, per_second: 1_000 }, Some(64));
    bursts.packets = None;
    let mut ramp = Stream { burst: None, ..bursts.clone() };
    ramp.first_qpn = Qpn::new(0x20);
    ramp.rate = Rate::Ramp { unit: Unit::Packets, from: 0, to: 10_000_000, over: Nanos::from_secs(100) };
    let mut profile = profile(1, vec![bursts, ramp]);
    (profile.duration, profile.receive, profile.drain) = (Some(Nanos::from_millis(20)), None, Nanos::ZERO);
    let (pktgen, _) = paced(&profile, Nanos(300), 512);
    let sent: Vec<_> = pktgen.counters.streams.iter().map(|c| c.sent.frames.get()).collect();
    assert_eq!(sent, [20, 20]);
}

#[test]
fn a_rate_that_is_not_reached_is_seen_however_much_was_to_be_sent() {
    let part = |packets: Option<u64>, duration: Option<Nanos>, per_second, outstanding: Option<u16>| {
        let mut fast = stream(Verb::Write, 0x10, 1);
        (fast.packets, fast.burst, fast.outstanding) = (packets, None, outstanding);
        fast.rate = Rate::Steady { unit: Unit::Packets, per_second };
        let mut profile = profile(1, vec![fast]);
        (profile.duration, profile.drain) = (duration, Nanos::ZERO);
        // A million a second, 20 every 20 us
        let (pktgen, _) = paced(&profile, Nanos::from_micros(20), 20);
        pktgen.counters.streams[0].part_of_rate(&profile.streams[0]).unwrap()
    };
    let ms = Nanos::from_millis;
    for (packets, duration) in
        [(Some(8_000), None), (None, Some(ms(8))), (Some(100_000), None), (None, Some(ms(100)))]
    {
        let slow = part(packets, duration, 2_000_000, None);
        assert!((0.45..0.6).contains(&slow), "{packets:?}, {duration:?}: {slow}");
        assert!(part(packets, duration, 900_000, None) >= 1.0, "{packets:?}, {duration:?}");
    }
    // Nobody answers, and requests are given up after 100 us.
    let waits = part(Some(1_000), None, 100_000, Some(1));
    assert!((0.05..0.15).contains(&waits), "{waits}");
}

#[test]
fn what_was_overtaken_is_waited_for() {
    let mut writes = stream(Verb::Write, 0x10, 1);
    (writes.packets, writes.burst) = (Some(100), Some(1));
    let profile = profile(1, vec![writes]);
    let late = Rule {
        skip: 50,
        times: 1,
        ..rule("late", 1.0, Action::Delay { by: Nanos::from_millis(2), jitter: Nanos::ZERO })
    };
    let mut world = World::new(&profile, vec![late]);
    world.run();
    adds_up(&world, &profile);
    let c = &world.pktgen.counters.streams[0];
    assert_eq!(
        (c.received.frames.get(), c.lost(), c.late.get()),
        (100, 0, 1),
        "the last one came, and one was late"
    );
    // What comes when all was told changes nothing, and is counted.
    let frame = world.came.last().unwrap().clone();
    world.pktgen.on_frame(&mut MemoryFrame::new(frame), B, world.now, &mut FrameCollector::with_room(1));
    let counters = &world.pktgen.counters;
    assert_eq!((counters.too_late.get(), counters.streams[0].duplicates.get()), (1, 0));
}

#[test]
fn how_long_nobody_looked_is_known() {
    for per_second in [100, 5_000_000] {
        let mut writes = stream(Verb::Write, 0x10, 1);
        (writes.packets, writes.rate) = (None, Rate::Steady { unit: Unit::Packets, per_second });
        let profile = profile(1, vec![writes]);
        let mut pktgen = begun(&profile, Nanos::ZERO);
        let mut now = Nanos::ZERO;
        for turn in 0..1_000 {
            // In time, but for once
            now = pktgen.next_timer().unwrap().max(now + Nanos(40));
            now = now + Nanos(if turn == 500 { 3_000_000 } else { 100 });
            pktgen.on_timer(now, &mut FrameCollector::with_room(512));
        }
        let away = pktgen.counters.longest_away_ns.get();
        assert!((3_000_000..3_001_000).contains(&away), "{per_second} a second: {away} ns");
    }
}

/// However small the window: what our own queues hold is not to be half of all PSNs, or what comes would be taken for what is still to
/// come.
#[test]
fn what_is_under_way_is_never_half_of_all() {
    let with = |verb, size: u32, outstanding: Option<u16>| {
        let mut long = stream(verb, 0x10, 1);
        (long.packets, long.outstanding) = (Some(1_500), outstanding);
        if verb == Verb::Read {
            long.sizes = vec![size];
        }
        Profile { window: 64, ..profile(1, vec![long]) }
    };
    let acks = |coalesce| with(Verb::Ack { coalesce }, 0, None);
    let half = |profile: &Profile| {
        let error = profile.check().unwrap_err();
        assert!(matches!(error, ProfileError::HalfTheCircle { .. }), "{error}");
    };
    assert_eq!(acks(8_191).check(), Ok(()));
    half(&acks(8_192));
    assert_eq!(with(Verb::Read, 8_191 * 1024, None).check(), Ok(()));
    half(&with(Verb::Read, 8_192 * 1024, None));
    // Who waits for answers has no more under way than that.
    assert_eq!(with(Verb::Read, 131_071 * 1024, Some(64)).check(), Ok(()));
    half(&with(Verb::Read, 131_072 * 1024, Some(64)));
    half(&with(Verb::Read, 131_071 * 1024, Some(65)));

    // As much as the queues hold leaves before anything comes.
    let profile = acks(8_191);
    let mut pktgen = begun(&profile, Nanos::ZERO);
    let mut out = FrameCollector::with_room(1_024);
    for turn in 1.. {
        pktgen.on_timer(Nanos(turn * 1_000_000), &mut out);
        if out.frames.len() == 1_024 {
            break;
        }
    }
    for (mut frame, _) in out.frames {
        pktgen.on_frame(&mut frame, B, Nanos(5_000_000), &mut FrameCollector::with_room(0));
    }
    let c = &pktgen.counters.streams[0];
    assert_eq!((c.received.frames.get(), c.unexpected.get()), (1_024, 0));
}

#[test]
fn an_answer_to_what_was_never_asked_is_not_believed() {
    let ack = Syndrome::Ack(rocev2::aeth::Credit::UNLIMITED);
    let sequence = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
    let first = Psn::new(0xff_fffc);
    for (verb, size, answers) in [
        (Verb::Write, 3000, Opcode::RC_ACKNOWLEDGE),
        (Verb::Read, 3000, Opcode::RC_READ_RESPONSE_ONLY),
        (Verb::FetchAdd, 8, Opcode::RC_ATOMIC_ACKNOWLEDGE),
    ] {
        let mut asked = stream(verb, 0x10, 1);
        let is_sized = verb != Verb::FetchAdd;
        (asked.outstanding, asked.packets) = (Some(4), Some(12));
        (asked.first_psn, asked.sizes) = (Some(first), if is_sized { vec![size] } else { Vec::new() });
        let profile = profile(1, vec![asked]);
        let mut pktgen = begun(&profile, Nanos::ZERO);
        let mut out = FrameCollector::with_room(512);
        pktgen.on_timer(Nanos(10_000), &mut out);
        let counters = pktgen.counters();
        let c = &counters.streams[0];
        let under_way = c.under_way();
        assert_eq!(under_way, 4);
        // Four messages or responses of three packets each, or four words
        let next = first.add(if is_sized { 12 } else { 4 });
        let mut see = |opcode, syndrome, psn| {
            let mut frame = answer(opcode, syndrome, 0x10, psn);
            pktgen.on_frame(&mut frame, A, Nanos(20_000), &mut FrameCollector::with_room(9));
        };
        let mut unexpected = 0;
        for psn in [next, next.add(1), next.add(1 << 20), next.add((1 << 23) - 1)] {
            for (opcode, syndrome) in [(answers, ack), (Opcode::RC_ACKNOWLEDGE, sequence)] {
                see(opcode, syndrome, psn);
                unexpected += 1;
                assert_eq!(c.unexpected_responses.get(), unexpected, "{verb:?} {opcode:?} {psn:?}");
                assert_eq!(c.under_way(), under_way, "{verb:?} {opcode:?} {psn:?}");
            }
        }
        assert_eq!((c.responses.get(), c.naks.get(), c.round_trip.count()), (0, 0, 0));
        // The last that was sent
        see(answers, ack, next.sub(1));
        assert_eq!(c.under_way(), 0);
        // An acknowledgement covers what is before it, a response answers its own request alone, and has to be whole.
        let answered = [(Verb::Write, 4), (Verb::Read, 0), (Verb::FetchAdd, 1)];
        assert!(answered.contains(&(verb, c.answered.get())), "{verb:?}: {}", c.answered.get());
        assert_eq!((c.responses.get(), c.unexpected_responses.get()), (1, unexpected));
        // A notification of congestion has no PSN of anybody's.
        see(Opcode::CNP, ack, next.add(7));
        assert_eq!((c.cnps.get(), c.responses.get(), c.unexpected_responses.get()), (1, 2, unexpected));
    }
    // To what nobody answers
    let asked = Stream { outstanding: Some(1), ..stream(Verb::Write, 0x20, 1) };
    let profile = profile(1, vec![stream(Verb::Ack { coalesce: 1 }, 0x10, 1), asked]);
    let mut pktgen = begun(&profile, Nanos::ZERO);
    pktgen.on_timer(Nanos(10_000), &mut FrameCollector::with_room(512));
    let mut frame = answer(Opcode::RC_ACKNOWLEDGE, ack, 0x10, Psn::ZERO);
    pktgen.on_frame(&mut frame, A, Nanos(20_000), &mut FrameCollector::with_room(9));
    let c = &pktgen.counters.streams[0];
    assert_eq!((c.unexpected.get(), c.responses.get()), (1, 0));
}

/// A device that floods sends requests back to where they came from.
#[test]
fn what_comes_back_to_the_port_that_sends_is_not_received() {
    let verbs = [Verb::Write, Verb::Read, Verb::CompareSwap];
    for receive in [Some(B), None] {
        let mut streams: Vec<_> =
            verbs.into_iter().zip([0x10, 0x20, 0x30]).map(|(verb, qpn)| stream(verb, qpn, 2)).collect();
        for stream in &mut streams {
            // One that is known at a glance, and others
            (stream.outstanding, stream.packets) = (Some(1), Some(40));
        }
        streams.push(Stream { packets: Some(40), ..stream(Verb::Send, 0x40, 2) });
        let mut profile = profile(1, streams);
        (profile.receive, profile.respond) = (receive, receive.is_some());
        let mut pktgen = begun(&profile, Nanos::ZERO);
        let (mut sent, mut replies, mut now) = (0, 0, Nanos::ZERO);
        for _ in 0..400 {
            now = now + Nanos::from_micros(20);
            let mut out = FrameCollector::with_room(512);
            pktgen.on_timer(now, &mut out);
            let mut answers = FrameCollector::with_room(512);
            for (mut frame, port) in out.frames {
                assert_eq!(port, A);
                sent += 1;
                let mut again = frame.clone();
                if receive.is_some() {
                    pktgen.on_frame(&mut frame, B, now, &mut answers);
                }
                let before = answers.frames.len();
                pktgen.on_frame(&mut again, A, now, &mut answers);
                assert_eq!(answers.frames.len(), before, "it is not answered");
            }
            for (mut frame, _) in answers.frames {
                // First to where it came from
                replies += 1;
                let mut again = frame.clone();
                pktgen.on_frame(&mut again, B, now, &mut FrameCollector::with_room(9));
                pktgen.on_frame(&mut frame, A, now, &mut FrameCollector::with_room(9));
            }
        }
        let counters = pktgen.counters();
        let all = |count: fn(&crate::counters::StreamCounters) -> u64| -> Vec<u64> {
            counters.streams.iter().map(count).collect()
        };
        let answered = if receive.is_some() { 40 } else { 0 };
        assert_eq!((sent, all(|c| c.reflected.get())), (160, vec![40 + answered; 4]));
        assert_eq!((replies, all(|c| c.stale_responses.get())), (4 * answered, vec![0; 4]));
        assert_eq!(all(|c| c.received.frames.get()), vec![if receive.is_some() { 40 } else { 0 }; 4]);
        let wrong = |c: &crate::counters::StreamCounters| {
            c.duplicates.get() + c.stale.get() + c.unexpected.get() + c.unexpected_responses.get()
        };
        assert_eq!(counters.streams.iter().map(wrong).sum::<u64>(), 0);
        assert_eq!(all(|c| c.latency.count())[0], if receive.is_some() { 40 } else { 0 });
    }
}

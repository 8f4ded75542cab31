//! Regression tests: fairness of streams on a full port, packets that are no valid responses, lost packets
//! that must not count as answered, and PSNs in the other half of the PSN space.

use super::*;
use crate::template::Template;
use rocev2::aeth::{Aeth, NakCode, RnrTimer, Syndrome};
use rocev2::repr::Extended;
use rocev2::{Bth, Msn};
use zerocopy::IntoBytes as _;

/// Runs turns of a generator on a port that has `room` frames of room in each.
fn run_turns(pktgen: &mut Pktgen, turns: u64, room: impl Fn(u64) -> usize) {
    for turn in 0..turns {
        pktgen.on_timer(Nanos(turn * 10_000), &mut FrameCollector::with_room(room(turn)));
    }
}

#[test]
fn streams_share_a_full_port() {
    let fast = |first_qpn| Stream { packets: None, ..stream(Verb::Write, first_qpn, 1) };
    let mut slow = fast(0x30);
    slow.rate = Rate::Steady { unit: Unit::Packets, per_second: 100_000 };
    // Room for a part of what is due, for fewer packets than there are streams, and only in every other turn
    let rooms: [fn(u64) -> usize; 4] = [|_| 32, |_| 1, |_| 3, |turn| if turn % 2 == 0 { 7 } else { 0 }];
    for (n, room) in rooms.into_iter().enumerate() {
        let profile = profile(1, vec![fast(0x10), fast(0x20), fast(0x40), slow.clone()]);
        let mut pktgen = begin(&profile, Nanos::ZERO);
        run_turns(&mut pktgen, 6_000, room);
        let sent: Vec<_> = pktgen.counters.streams.iter().map(|c| c.sent.frames.get()).collect();
        let (least, most) = (sent[..3].iter().min().unwrap(), sent[..3].iter().max().unwrap());
        assert!(most - least <= most / 50, "streams with equal demand send equally, room {n}: {sent:?}");
        // It demands less than its share of the first, third and fourth port, and gets that; of the second it
        // gets a quarter.
        let wanted = if n == 1 { 1_490 } else { 4_400 };
        assert!(sent[3] >= wanted, "a stream with little demand is served in full, room {n}: {sent:?}");
    }
}

#[test]
fn a_run_that_would_never_end_is_refused() {
    let mut profile = profile(1, mix());
    profile.streams[1].malformed = Probability::ALWAYS;
    let error = profile.check().unwrap_err().to_string();
    assert!(error.contains("malformed") && error.contains("2000"), "{error}");
    profile.streams[1].packets = None;
    assert_eq!(profile.check(), Ok(()), "without `packets` the run ends by time");
}

/// Returns a packet to a requester: an acknowledgement with this syndrome, or one of another opcode.
fn response(opcode: Opcode, syndrome: Syndrome, qpn: u32, psn: Psn) -> MemoryFrame {
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
    let mut pktgen = begin(&profile, Nanos::ZERO);
    let mut out = FrameCollector::with_room(512);
    pktgen.on_timer(Nanos(10_000), &mut out);
    assert_eq!(out.frames.len(), 14, "four messages of three packets, and two of the fifth");
    let first = Psn::new(0xff_fffc);
    let counters = pktgen.counters();
    let c = &counters.streams[0];
    let mut receive = |opcode, syndrome, psn| {
        let mut frame = response(opcode, syndrome, 0x10, psn);
        pktgen.on_frame(&mut frame, A, Nanos(20_000), &mut FrameCollector::with_room(9));
        (c.answered.get(), c.unanswered.get(), c.stale_responses.get())
    };
    let ack = Syndrome::Ack(rocev2::aeth::Credit::UNLIMITED);
    let sequence = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
    assert_eq!(receive(Opcode::CNP, ack, first.add(8)), (0, 0, 0), "a CNP is no response");
    assert_eq!(
        receive(Opcode::RC_ACKNOWLEDGE, sequence, first.add(4)),
        (1, 1, 0),
        "covers the one before, refuses that one"
    );
    assert_eq!(receive(Opcode::RC_ACKNOWLEDGE, sequence, first.add(4)), (1, 1, 1), "refused only once");
    assert_eq!(receive(Opcode::RC_ACKNOWLEDGE, Syndrome::RnrNak(RnrTimer(1)), first.add(6)), (1, 2, 1));
    assert_eq!(
        receive(Opcode::RC_READ_RESPONSE_ONLY, ack, first.add(11)),
        (1, 2, 2),
        "a response of another opcode"
    );
    assert_eq!(receive(Opcode::RC_ACKNOWLEDGE, ack, first.add(11)), (2, 2, 2));
    assert_eq!(
        receive(Opcode::RC_ACKNOWLEDGE, ack, first.add(13)),
        (2, 2, 3),
        "of a message that is not sent in full"
    );
    assert_eq!((c.responses.get(), c.naks.get(), c.cnps.get()), (7, 3, 1));
}

/// Returns for each stream the number of messages of which all packets arrived.
fn whole(world: &World, profile: &Profile) -> Vec<u64> {
    let mut came = HashSet::new();
    for frame in &world.arrived_at_b {
        let packet = Packet::parse(frame).unwrap();
        came.insert((packet.bth().dest_qp(), packet.bth().psn()));
    }
    let mut whole = vec![0; profile.streams.len()];
    let mut all_arrived = HashMap::new();
    for frame in &world.left_a {
        let packet = Packet::parse(frame).unwrap();
        let (qpn, psn) = (packet.bth().dest_qp(), packet.bth().psn());
        let good = all_arrived.entry(qpn).or_insert(true);
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
fn a_lost_message_is_not_counted_as_answered() {
    let mut answered_total = 0;
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
        for ((stream, c), whole) in profile.streams.iter().zip(&world.counters().streams).zip(whole) {
            let counted = c.answered.get();
            assert!(counted <= whole, "{}, seed {seed}: {counted} answered, {whole} arrived", stream.name);
            assert_eq!(c.waiting.get(), c.under_way(), "{}: requests in rings", stream.name);
            answered_total += counted;
        }
    }
    assert!(answered_total > 6_000, "{answered_total}");
}

#[test]
fn a_read_whose_response_has_a_gap_is_not_answered() {
    let mut reads = stream(Verb::Read, 0x10, 1);
    (reads.outstanding, reads.packets, reads.sizes) = (Some(4), Some(3), vec![2500]);
    let mut profile = profile(1, vec![reads]);
    profile.respond = true;
    let mut pktgen = begin(&profile, Nanos::ZERO);
    let mut out = FrameCollector::with_room(512);
    pktgen.on_timer(Nanos(10_000), &mut out);
    let mut responses = FrameCollector::with_room(512);
    for (mut request, _) in out.frames {
        pktgen.on_frame(&mut request, B, Nanos(20_000), &mut responses);
    }
    assert_eq!(responses.frames.len(), 9);
    for (n, (mut packet, _)) in responses.frames.into_iter().enumerate() {
        // A middle packet of the first response, and the last of the second
        if n != 1 && n != 5 {
            pktgen.on_frame(&mut packet, A, Nanos(30_000), &mut FrameCollector::with_room(9));
        }
    }
    let c = &pktgen.counters.streams[0];
    assert_eq!((c.answered.get(), c.unanswered.get(), c.responses.get()), (1, 2, 7));
}

#[test]
fn long_steps_do_not_reach_the_other_half_of_the_psn_space() {
    // 1,100 consecutive acknowledgements of 8,000 PSNs each are lost: more than half of all PSNs
    let mut acks = stream(Verb::Ack { coalesce: 8_000 }, 0x10, 1);
    acks.packets = Some(2_000);
    let mut profile = profile(1, vec![acks]);
    profile.window = 64;
    let lose = Rule { skip: 100, times: 1_100, ..rule("lose", 1.0, Action::Drop) };
    let mut world = World::new(&profile, vec![lose]);
    world.run();
    assert_adds_up(&world, &profile);
    let counters = world.counters();
    let c = &counters.streams[0];
    assert_eq!((c.received.frames.get(), c.lost(), c.unseen(), c.stale.get()), (900, 1_100, 0, 0));

    // A window must not span half of the PSN space.
    profile.window = 2048;
    let error = profile.check().unwrap_err().to_string();
    assert!(error.contains("2048 packets of a queue pair, of 8000 PSNs each"), "{error}");
    assert!(error.contains("half"), "{error}");
}

#[test]
fn each_datagram_carries_its_source_queue_pair() {
    for verb in [Verb::OnePipeMessage, Verb::OnePipeBeacon] {
        let mut profile = profile(1, vec![stream(verb, 0x100, 7)]);
        profile.streams[0].packets = Some(50);
        let mut world = World::new(&profile, Vec::new());
        world.run();
        let mut named = HashSet::new();
        for frame in &world.arrived_at_b {
            let packet = Packet::parse(frame).unwrap();
            assert!(packet.verify_icrc());
            assert_eq!(packet.deth().unwrap().src_qp(), packet.bth().dest_qp(), "{}", verb.name());
            named.insert(packet.bth().dest_qp());
        }
        assert_eq!(named.len(), 7);
    }
}

/// Runs a generator whose worker calls the timer every `every` at most. Returns the generator, and when
/// packets left.
fn run_paced(profile: &Profile, every: Nanos, room: usize) -> (Pktgen, Vec<Nanos>) {
    let mut pktgen = begin(profile, Nanos::ZERO);
    let (mut now, mut departures) = (Nanos::ZERO, Vec::new());
    while let Some(next) = pktgen.next_timer() {
        now = next.max(now + every);
        let mut out = FrameCollector::with_room(room);
        pktgen.on_timer(now, &mut out);
        departures.extend(out.frames.iter().map(|_| now));
    }
    (pktgen, departures)
}

#[test]
fn slow_rates_are_exact_and_even() {
    // Packets a second, packets that leave in 2.05 s, and the longest time between two
    for (per_second, packets, gap_ns) in
        [(1, 2, 1_000_200_000), (10, 20, 100_200_000), (1_000, 2_050, 1_200_000), (60_000, 123_000, 20_000)]
    {
        let mut slow = stream(Verb::Write, 0x10, 3);
        (slow.rate, slow.burst, slow.packets) =
            (Rate::Steady { unit: Unit::Packets, per_second }, None, None);
        let mut profile = profile(1, vec![slow]);
        (profile.duration, profile.receive, profile.drain) =
            (Some(Nanos::from_millis(2_050)), None, Nanos::ZERO);
        let (pktgen, departures) = run_paced(&profile, Nanos(300), 512);
        assert_eq!(departures.len(), packets, "{per_second} a second");
        let longest = departures.windows(2).map(|two| two[1].since(two[0]).0).max().unwrap();
        assert!(longest <= gap_ns, "{per_second} a second: gap of {longest} ns");
        assert_eq!(pktgen.counters.streams[0].part_of_rate(&profile.streams[0]), Some(1.0));
    }
    // What is due at the end leaves even if it is not a whole burst; and a ramp from 0 is even from the
    // beginning.
    let mut bursts = stream(Verb::Write, 0x10, 3);
    (bursts.rate, bursts.burst) = (Rate::Steady { unit: Unit::Packets, per_second: 1_000 }, Some(64));
    bursts.packets = None;
    let mut ramp = Stream { burst: None, ..bursts.clone() };
    ramp.first_qpn = Qpn::new(0x20);
    ramp.rate = Rate::Ramp { unit: Unit::Packets, from: 0, to: 10_000_000, over: Nanos::from_secs(100) };
    let mut profile = profile(1, vec![bursts, ramp]);
    (profile.duration, profile.receive, profile.drain) = (Some(Nanos::from_millis(20)), None, Nanos::ZERO);
    let (pktgen, _) = run_paced(&profile, Nanos(300), 512);
    let sent: Vec<_> = pktgen.counters.streams.iter().map(|c| c.sent.frames.get()).collect();
    assert_eq!(sent, [20, 20]);
}

#[test]
fn a_missed_rate_is_detected_for_any_length_of_run() {
    let part = |packets: Option<u64>, duration: Option<Nanos>, per_second, outstanding: Option<u16>| {
        let mut fast = stream(Verb::Write, 0x10, 1);
        (fast.packets, fast.burst, fast.outstanding) = (packets, None, outstanding);
        fast.rate = Rate::Steady { unit: Unit::Packets, per_second };
        let mut profile = profile(1, vec![fast]);
        (profile.duration, profile.drain) = (duration, Nanos::ZERO);
        // The port takes a million packets a second, 20 every 20 us.
        let (pktgen, _) = run_paced(&profile, Nanos::from_micros(20), 20);
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
    // Requests are not answered, and are given up after 100 us.
    let waits = part(Some(1_000), None, 100_000, Some(1));
    assert!((0.05..0.15).contains(&waits), "{waits}");
}

#[test]
fn the_drain_waits_for_overtaken_packets() {
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
    assert_adds_up(&world, &profile);
    let counters = world.counters();
    let c = &counters.streams[0];
    assert_eq!(
        (c.received.frames.get(), c.lost(), c.late.get()),
        (100, 0, 1),
        "all arrived, one of them late"
    );
    // A packet that arrives after the end changes no other counter.
    let frame = world.arrived_at_b.last().unwrap().clone();
    world.workers[0].pktgen.on_frame(
        &mut MemoryFrame::new(frame),
        B,
        world.now,
        &mut FrameCollector::with_room(1),
    );
    let counters = world.counters();
    assert_eq!((counters.too_late.get(), counters.streams[0].duplicates.get()), (1, 0));
}

#[test]
fn the_longest_absence_of_the_worker_is_recorded() {
    for per_second in [100, 5_000_000] {
        let mut writes = stream(Verb::Write, 0x10, 1);
        (writes.packets, writes.rate) = (None, Rate::Steady { unit: Unit::Packets, per_second });
        let profile = profile(1, vec![writes]);
        let mut pktgen = begin(&profile, Nanos::ZERO);
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

/// However small the window: what this machine's queues hold must not span half of the PSN space, or received
/// packets would be taken for future ones.
#[test]
fn packets_in_flight_never_span_half_of_the_psn_space() {
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
        assert!(matches!(error, ProfileError::PsnRangeTooLarge { .. }), "{error}");
    };
    assert_eq!(acks(8_191).check(), Ok(()));
    half(&acks(8_192));
    assert_eq!(with(Verb::Read, 8_191 * 1024, None).check(), Ok(()));
    half(&with(Verb::Read, 8_192 * 1024, None));
    // A stream that waits for responses has at most `outstanding` requests in flight.
    assert_eq!(with(Verb::Read, 131_071 * 1024, Some(64)).check(), Ok(()));
    half(&with(Verb::Read, 131_072 * 1024, Some(64)));
    half(&with(Verb::Read, 131_071 * 1024, Some(65)));

    // As many packets leave as the queues hold before any arrives.
    let profile = acks(8_191);
    let mut pktgen = begin(&profile, Nanos::ZERO);
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
fn a_response_to_an_unsent_psn_is_ignored_and_counted() {
    let ack = Syndrome::Ack(rocev2::aeth::Credit::UNLIMITED);
    let sequence = Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR);
    let first = Psn::new(0xff_fffc);
    for (verb, size, response_opcode) in [
        (Verb::Write, 3000, Opcode::RC_ACKNOWLEDGE),
        (Verb::Read, 3000, Opcode::RC_READ_RESPONSE_ONLY),
        (Verb::FetchAdd, 8, Opcode::RC_ATOMIC_ACKNOWLEDGE),
    ] {
        let mut requests = stream(verb, 0x10, 1);
        let is_sized = verb != Verb::FetchAdd;
        (requests.outstanding, requests.packets) = (Some(4), Some(12));
        (requests.first_psn, requests.sizes) = (Some(first), if is_sized { vec![size] } else { Vec::new() });
        let profile = profile(1, vec![requests]);
        let mut pktgen = begin(&profile, Nanos::ZERO);
        let mut out = FrameCollector::with_room(512);
        pktgen.on_timer(Nanos(10_000), &mut out);
        let counters = pktgen.counters();
        let c = &counters.streams[0];
        let in_flight = c.under_way();
        assert_eq!(in_flight, 4);
        // Four messages or responses of three packets each, or four words
        let next = first.add(if is_sized { 12 } else { 4 });
        let mut receive = |opcode, syndrome, psn| {
            let mut frame = response(opcode, syndrome, 0x10, psn);
            pktgen.on_frame(&mut frame, A, Nanos(20_000), &mut FrameCollector::with_room(9));
        };
        let mut unexpected = 0;
        for psn in [next, next.add(1), next.add(1 << 20), next.add((1 << 23) - 1)] {
            for (opcode, syndrome) in [(response_opcode, ack), (Opcode::RC_ACKNOWLEDGE, sequence)] {
                receive(opcode, syndrome, psn);
                unexpected += 1;
                assert_eq!(c.unexpected_responses.get(), unexpected, "{verb:?} {opcode:?} {psn:?}");
                assert_eq!(c.under_way(), in_flight, "{verb:?} {opcode:?} {psn:?}");
            }
        }
        assert_eq!((c.responses.get(), c.naks.get(), c.round_trip.count()), (0, 0, 0));
        // The last PSN that was sent
        receive(response_opcode, ack, next.sub(1));
        assert_eq!(c.under_way(), 0);
        // An acknowledgement covers all requests before it; a response only its own request, and has to be
        // complete.
        let answered = [(Verb::Write, 4), (Verb::Read, 0), (Verb::FetchAdd, 1)];
        assert!(answered.contains(&(verb, c.answered.get())), "{verb:?}: {}", c.answered.get());
        assert_eq!((c.responses.get(), c.unexpected_responses.get()), (1, unexpected));
        // The PSN of a congestion notification has no meaning.
        receive(Opcode::CNP, ack, next.add(7));
        assert_eq!((c.cnps.get(), c.responses.get(), c.unexpected_responses.get()), (1, 2, unexpected));
    }
    // To a verb that has no responses
    let requests = Stream { outstanding: Some(1), ..stream(Verb::Write, 0x20, 1) };
    let profile = profile(1, vec![stream(Verb::Ack { coalesce: 1 }, 0x10, 1), requests]);
    let mut pktgen = begin(&profile, Nanos::ZERO);
    pktgen.on_timer(Nanos(10_000), &mut FrameCollector::with_room(512));
    let mut frame = response(Opcode::RC_ACKNOWLEDGE, ack, 0x10, Psn::ZERO);
    pktgen.on_frame(&mut frame, A, Nanos(20_000), &mut FrameCollector::with_room(9));
    let c = &pktgen.counters.streams[0];
    assert_eq!((c.unexpected.get(), c.responses.get()), (1, 0));
}

/// A device that floods returns requests to the port that sent them.
#[test]
fn a_frame_reflected_to_the_sending_port_is_not_received() {
    let verbs = [Verb::Write, Verb::Read, Verb::CompareSwap];
    for receive in [Some(B), None] {
        let mut streams: Vec<_> =
            verbs.into_iter().zip([0x10, 0x20, 0x30]).map(|(verb, qpn)| stream(verb, qpn, 2)).collect();
        for stream in &mut streams {
            // One verb that takes the receiver's fast path, and others
            (stream.outstanding, stream.packets) = (Some(1), Some(40));
        }
        streams.push(Stream { packets: Some(40), ..stream(Verb::Send, 0x40, 2) });
        let mut profile = profile(1, streams);
        (profile.receive, profile.respond) = (receive, receive.is_some());
        let mut pktgen = begin(&profile, Nanos::ZERO);
        let (mut sent, mut replies, mut now) = (0, 0, Nanos::ZERO);
        for _ in 0..400 {
            now = now + Nanos::from_micros(20);
            let mut out = FrameCollector::with_room(512);
            pktgen.on_timer(now, &mut out);
            let mut responses = FrameCollector::with_room(512);
            for (mut frame, port) in out.frames {
                assert_eq!(port, A);
                sent += 1;
                let mut again = frame.clone();
                if receive.is_some() {
                    pktgen.on_frame(&mut frame, B, now, &mut responses);
                }
                let before = responses.frames.len();
                pktgen.on_frame(&mut again, A, now, &mut responses);
                assert_eq!(responses.frames.len(), before, "a reflected request is not answered");
            }
            for (mut frame, _) in responses.frames {
                // First reflected to the port that sent it
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

#[test]
fn state_bytes_counts_windows_requests_and_words() {
    let mut adds = stream(Verb::FetchAdd, 0x100, 1_000);
    (adds.outstanding, adds.memory.slots) = (Some(16), 500);
    let mut profile = profile(1, vec![adds]);
    (profile.respond, profile.window) = (true, 65_536);
    let qp = size_of::<crate::uniform::Qp>() as u64;
    assert_eq!(Pktgen::state_bytes(&profile), 1_000 * (qp + 8 + 65_536 / 8 + 8 + 16 * 24) + 500 * 8);
    (profile.respond, profile.receive) = (false, None);
    assert_eq!(
        Pktgen::state_bytes(&profile),
        1_000 * (qp + 8 + 8 + 16 * 24),
        "without a receiver no window is needed"
    );
    profile.streams[0].outstanding = None;
    assert_eq!(Pktgen::state_bytes(&profile), 1_000 * (qp + 8));
    let error = ProfileError::Memory { stream: 0, mb: 6_600, what: "requests", key: "outstanding" };
    let words = "cannot allocate 6600 MB for the requests of stream 1; lower `outstanding` or `qps`";
    assert_eq!(error.to_string(), words);
}

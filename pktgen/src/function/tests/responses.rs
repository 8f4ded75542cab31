//! Requests and their responses.

use super::*;

#[test]
fn requests_are_answered() {
    let mut streams = mix();
    streams.truncate(5);
    for stream in &mut streams {
        stream.outstanding = Some(if stream.verb == Verb::CompareSwap { 1 } else { 4 });
        stream.ack_every = 2;
        stream.packets = Some(1_200);
    }
    let mut profile = profile(3, streams);
    profile.respond = true;
    let mut world = World::new(&profile, Vec::new());
    world.run();
    assert_adds_up(&world, &profile);
    for (stream, c) in profile.streams.iter().zip(&world.counters().streams) {
        assert_eq!((c.sent.frames.get(), c.lost(), c.unseen()), (1_200, 0, 0), "{}", stream.name);
        assert_eq!(
            (c.unanswered.get(), c.unable.get(), c.stale_responses.get()),
            (0, 0, 0),
            "{}",
            stream.name
        );
        assert_eq!(c.responses.get(), c.replies.get(), "{}", stream.name);
        // The last messages of a queue pair need not request an acknowledgement.
        let requests_ack = matches!(stream.verb, Verb::Write | Verb::Send);
        assert!(c.under_way() <= if requests_ack { 7 } else { 0 }, "{}: {}", stream.name, c.under_way());
        assert!(c.round_trip.buckets().all(|(time, _)| time >= DELAY + DELAY), "{}", stream.name);
        assert_eq!(
            c.round_trip.count() == c.answered.get(),
            !requests_ack,
            "each response of these verbs is for one request"
        );
        if stream.verb == Verb::Read {
            assert_eq!(c.replies.get(), 3 * 1_200);
        }
        if stream.verb == Verb::CompareSwap {
            assert_eq!(c.swapped.get() + c.not_swapped.get(), c.answered.get());
            assert!(c.swapped.get() > 100 && c.not_swapped.get() > 100, "queue pairs contend: {c:?}");
        }
    }
}

/// The original values of the words follow one another, as if each atomic had been executed alone.
#[test]
fn atomics_are_executed_one_after_the_other() {
    let mut add = stream(Verb::FetchAdd, 0x20, 3);
    add.memory.slots = 1;
    let mut profile = profile(5, vec![add]);
    profile.respond = true;
    let mut pktgen = begin(&profile, Nanos::ZERO);
    let mut found = Vec::new();
    let mut now = Nanos::ZERO;
    while found.len() < 100 {
        let mut out = FrameCollector::with_room(512);
        pktgen.on_timer(now, &mut out);
        for (mut frame, _) in out.frames {
            let mut responses = FrameCollector::with_room(1);
            pktgen.on_frame(&mut frame, B, now, &mut responses);
            let (response, port) = responses.frames.pop().unwrap();
            let packet = Packet::parse(response.bytes()).unwrap();
            assert!(packet.verify_icrc() && port == B);
            assert_eq!(packet.bth().dest_qp(), Packet::parse(frame.bytes()).unwrap().bth().dest_qp());
            found.push(packet.atomic_ack().unwrap().original.get());
        }
        now = now + Nanos::from_micros(10);
    }
    found.truncate(100);
    assert!(found.into_iter().eq(0..100));
}

/// Also where no request waits for a response, and where the last requests do not request one.
#[test]
fn the_drain_waits_for_the_last_responses() {
    for (verb, outstanding, ack_every) in [
        (Verb::Write, None, 1),
        (Verb::Read, None, 1),
        (Verb::FetchAdd, None, 1),
        (Verb::Write, Some(8), 3),
        (Verb::Ack { coalesce: 1 }, None, 1),
    ] {
        let mut requests = stream(verb, 0x10, 2);
        (requests.outstanding, requests.ack_every, requests.packets) = (outstanding, ack_every, Some(400));
        requests.timeout = Nanos::from_millis(1);
        let mut profile = profile(1, vec![requests]);
        (profile.respond, profile.drain) = (true, Nanos::from_millis(50));
        let drain = |profile: &Profile, rules| {
            let mut world = World::new(profile, rules);
            world.run();
            assert_adds_up(&world, profile);
            let State::Done = world.workers[0].pktgen.state else { panic!("the run is over") };
            let all = world.counters();
            (
                all.streams[0].replies.get() - all.streams[0].responses.get(),
                all.drain_expired.get(),
                world.now,
            )
        };
        let on_responses = |action| Rule {
            matching: Match { port: Some(B), ..Match::default() },
            ..rule("answers", 1.0, action)
        };
        let late = on_responses(Action::Delay { by: Nanos::from_micros(300), jitter: Nanos::ZERO });
        let (missing, expired, ended) = drain(&profile, vec![late]);
        assert_eq!((missing, expired), (0, 0), "{}", verb.name());
        let most = if outstanding.is_some() { 12 } else { 2 };
        assert!(ended < Nanos::from_millis(most), "the drain ends with the last response: {ended:?}");
        if verb == Verb::Read {
            // The last response is lost, which is not detected before the drain ends.
            let last = Rule { skip: 399, ..on_responses(Action::Drop) };
            let (missing, expired, ended) = drain(&profile, vec![last]);
            assert_eq!((missing, expired), (1, 1));
            assert!(ended > profile.drain, "{ended:?}");
        }
    }
}

#[test]
fn requests_whose_responses_are_lost_are_given_up() {
    let mut streams =
        vec![stream(Verb::Write, 0x10, 3), stream(Verb::Read, 0x20, 3), stream(Verb::CompareSwap, 0x30, 3)];
    for stream in &mut streams {
        stream.outstanding = Some(1);
        stream.packets = Some(600);
    }
    let mut profile = profile(9, streams);
    profile.respond = true;
    let mut world = World::new(&profile, vec![rule("lose", 0.1, Action::Drop)]);
    world.run();
    let counters = world.counters();
    for (stream, c) in profile.streams.iter().zip(&counters.streams) {
        assert_eq!(c.sent.frames.get(), 600, "no queue pair waits for ever");
        assert_eq!(c.sent.frames.get(), c.received.frames.get() + c.lost() + c.unseen());
        assert_eq!(c.waiting.get(), c.under_way(), "{}: requests in rings", stream.name);
        assert!(c.unanswered.get() > 60 && c.under_way() <= 3, "{}: {c:?}", stream.name);
    }
}

//! A worker that is kept from its CPU: what it did not see in that time is not blamed on others.

use super::*;

/// A lossless loop of which each turn of a worker takes a step, as the runtime does: what has come, then what is due. `pause` says how
/// long the worker is away before a turn, by the number of the turn and whether requests are under way.
fn looped(profile: &Profile, turns: u64, pause: impl Fn(u64, bool) -> Nanos) -> Pktgen {
    let mut pktgen = begun(profile, Nanos::ZERO);
    let (mut now, mut under_way) = (Nanos::ZERO, Vec::<(MemoryFrame, PortId)>::new());
    for turn in 0..turns {
        now = now + Nanos::from_micros(5) + pause(turn, under_way.iter().any(|(_, from)| *from == A));
        let mut out = FrameCollector::with_room(512);
        for (mut frame, from) in core::mem::take(&mut under_way) {
            pktgen.on_frame(&mut frame, if from == A { B } else { A }, now, &mut out);
        }
        if pktgen.next_timer().is_some_and(|at| at <= now) {
            pktgen.on_timer(now, &mut out);
        }
        under_way = out.frames;
    }
    pktgen
}

#[test]
fn who_was_away_gives_up_nothing() {
    let long = |turn: u64, asked: bool, slow: bool| {
        Nanos(if if slow { asked } else { turn % 97 == 40 } { 8_500_000 } else { 0 })
    };
    for (verb, outstanding, ack_every, per_second, timeout_us) in [
        (Verb::Write, 4, 1, 5_000_000, 1_000),
        (Verb::Write, 4, 4, 5_000_000, 1_000),
        // Each request is followed by a pause, in which the next one comes due
        (Verb::Write, 1, 1, 150, 500),
        (Verb::Read, 4, 1, 5_000_000, 1_000),
        (Verb::FetchAdd, 4, 1, 5_000_000, 1_000),
        (Verb::CompareSwap, 1, 1, 5_000_000, 1_000),
    ] {
        let mut asks = stream(verb, 0x10, 2);
        (asks.outstanding, asks.ack_every, asks.packets, asks.burst) =
            (Some(outstanding), ack_every, None, Some(1));
        (asks.rate, asks.timeout) =
            (Rate::Steady { unit: Unit::Packets, per_second }, Nanos::from_micros(timeout_us));
        let mut profile = profile(1, vec![asks]);
        profile.respond = true;
        let pktgen = looped(&profile, 3_000, |turn, asked| long(turn, asked, per_second == 150));
        let c = &pktgen.counters.streams[0];
        let what = format!("{}, {per_second} a second, {ack_every}", verb.name());
        assert!(c.answered.get() > 30, "{what}: {}", c.answered.get());
        assert_eq!((c.unanswered.get(), c.stale_responses.get()), (0, 0), "{what}");
    }
}

/// What came due in time is sent, and was sent in time: a rate that was met was met, however late the worker sees the end.
#[test]
fn who_comes_late_to_the_end_has_met_its_rate() {
    for (unit, per_second, burst) in [
        (Unit::Packets, 1_000_000, None),
        (Unit::Packets, 1_000_000, Some(1)),
        (Unit::Bits, 1_000_000_000, None),
    ] {
        let mut steady = stream(Verb::Write, 0x10, 1);
        (steady.packets, steady.burst, steady.rate) = (None, burst, Rate::Steady { unit, per_second });
        let mut profile = profile(1, vec![steady]);
        (profile.receive, profile.drain) = (None, Nanos::ZERO);
        profile.duration = Some(Nanos::from_millis(300));
        // Away from 5 ms before the end until 4 ms behind it
        let pktgen = looped(&profile, 80_000, |turn, _| Nanos(if turn == 59_000 { 9_000_000 } else { 0 }));
        let c = &pktgen.counters.streams[0];
        assert_eq!(c.part_of_rate(&profile.streams[0]), Some(1.0), "{unit:?}, {burst:?}");
        assert_eq!((c.sending_ns.get(), c.forfeited.get()), (300_000_000, 0), "{unit:?}, {burst:?}");
        let (packets, bits) = c.units();
        let sent = if unit == Unit::Bits { bits } else { packets };
        assert!(sent.abs_diff(per_second * 3 / 10) < 2_000, "{sent}");
    }
}

/// Nobody is to wait for ever because turns are long.
#[test]
fn who_is_slow_gives_up_later() {
    let mut asks = stream(Verb::Write, 0x10, 1);
    (asks.outstanding, asks.packets, asks.timeout) = (Some(1), None, Nanos::from_micros(100));
    let mut profile = profile(1, vec![asks]);
    profile.receive = None;
    let given_up = |pause| {
        let pktgen = looped(&profile, 1_000, |_, _| pause);
        pktgen.counters.streams[0].unanswered.get()
    };
    // A turn of 5 us counts as that, and one of 65 us as 20
    assert!((43..=48).contains(&given_up(Nanos::ZERO)), "{}", given_up(Nanos::ZERO));
    let slow = given_up(Nanos::from_micros(60));
    assert!((155..=200).contains(&slow), "{slow}");
}

/// A message that asks for no acknowledgement is answered with the next one that does, however late that is sent.
#[test]
fn what_did_not_ask_is_not_given_up_before_somebody_asked() {
    let mut asks = stream(Verb::Write, 0x10, 1);
    (asks.outstanding, asks.ack_every, asks.packets, asks.burst) = (Some(4), 4, None, Some(5));
    (asks.rate, asks.timeout) =
        (Rate::Steady { unit: Unit::Packets, per_second: 1_000 }, Nanos::from_micros(2_500));
    let mut profile = profile(1, vec![asks]);
    profile.respond = true;
    // Of the five that are due every 5 ms, one may have been sent with those before; and the last waits for the one that asks.
    let pktgen = looped(&profile, 20_000, |_, _| Nanos::ZERO);
    let c = &pktgen.counters.streams[0];
    assert!(c.answered.get() > 90 && c.unanswered.get() == 0, "{} {}", c.answered.get(), c.unanswered.get());
}

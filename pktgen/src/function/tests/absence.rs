//! A worker that is kept from its CPU: what it did not see in that time is not blamed on the network or the
//! responder.

use super::*;

/// Runs a lossless loop. Each turn of the worker takes one step, as in the runtime: first what was received,
/// then what is due. `pause` returns how long the worker is away before a turn, from the number of the turn
/// and whether requests are in flight.
fn run_loop(profile: &Profile, turns: u64, pause: impl Fn(u64, bool) -> Nanos) -> Pktgen {
    let mut pktgen = begin(profile, Nanos::ZERO);
    let (mut now, mut in_flight) = (Nanos::ZERO, Vec::<(MemoryFrame, PortId)>::new());
    for turn in 0..turns {
        now = now + Nanos::from_micros(5) + pause(turn, in_flight.iter().any(|(_, from)| *from == A));
        let mut out = FrameCollector::with_room(512);
        for (mut frame, from) in core::mem::take(&mut in_flight) {
            pktgen.on_frame(&mut frame, if from == A { B } else { A }, now, &mut out);
        }
        if pktgen.next_timer().is_some_and(|at| at <= now) {
            pktgen.on_timer(now, &mut out);
        }
        in_flight = out.frames;
    }
    pktgen
}

#[test]
fn an_absence_of_the_worker_times_out_no_request() {
    let long = |turn: u64, requests_in_flight: bool, slow: bool| {
        Nanos(if if slow { requests_in_flight } else { turn % 97 == 40 } { 8_500_000 } else { 0 })
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
        let mut writes = stream(verb, 0x10, 2);
        (writes.outstanding, writes.ack_every, writes.packets, writes.burst) =
            (Some(outstanding), ack_every, None, Some(1));
        (writes.rate, writes.timeout) =
            (Rate::Steady { unit: Unit::Packets, per_second }, Nanos::from_micros(timeout_us));
        let mut profile = profile(1, vec![writes]);
        profile.respond = true;
        let pktgen = run_loop(&profile, 3_000, |turn, requests_in_flight| {
            long(turn, requests_in_flight, per_second == 150)
        });
        let c = &pktgen.counters.streams[0];
        let what = format!("{}, {per_second} a second, {ack_every}", verb.name());
        assert!(c.answered.get() > 30, "{what}: {}", c.answered.get());
        assert_eq!((c.unanswered.get(), c.stale_responses.get()), (0, 0), "{what}");
    }
}

/// What came due in time is sent, and counts as sent in time: a rate that was met stays met, however late the
/// worker notices the end.
#[test]
fn a_late_look_at_the_end_does_not_lower_the_rate() {
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
        // Away from 5 ms before the end until 4 ms after it
        let pktgen = run_loop(&profile, 80_000, |turn, _| Nanos(if turn == 59_000 { 9_000_000 } else { 0 }));
        let c = &pktgen.counters.streams[0];
        assert_eq!(c.part_of_rate(&profile.streams[0]), Some(1.0), "{unit:?}, {burst:?}");
        assert_eq!((c.sending_ns.get(), c.forfeited.get()), (300_000_000, 0), "{unit:?}, {burst:?}");
        let (packets, bits) = c.units();
        let sent = if unit == Unit::Bits { bits } else { packets };
        assert!(sent.abs_diff(per_second * 3 / 10) < 2_000, "{sent}");
    }
}

/// Requests time out even if every turn is long.
#[test]
fn long_turns_postpone_timeouts_but_do_not_prevent_them() {
    let mut writes = stream(Verb::Write, 0x10, 1);
    (writes.outstanding, writes.packets, writes.timeout) = (Some(1), None, Nanos::from_micros(100));
    let mut profile = profile(1, vec![writes]);
    profile.receive = None;
    let given_up = |pause| {
        let pktgen = run_loop(&profile, 1_000, |_, _| pause);
        pktgen.counters.streams[0].unanswered.get()
    };
    // A turn of 5 us counts in full, and one of 65 us as 20
    assert!((43..=48).contains(&given_up(Nanos::ZERO)), "{}", given_up(Nanos::ZERO));
    let slow = given_up(Nanos::from_micros(60));
    assert!((155..=200).contains(&slow), "{slow}");
}

/// A message that requests no acknowledgement is covered by the next one that does, however late that is
/// sent.
#[test]
fn a_silent_message_does_not_time_out_before_the_next_ack_request() {
    let mut writes = stream(Verb::Write, 0x10, 1);
    (writes.outstanding, writes.ack_every, writes.packets, writes.burst) = (Some(4), 4, None, Some(5));
    (writes.rate, writes.timeout) =
        (Rate::Steady { unit: Unit::Packets, per_second: 1_000 }, Nanos::from_micros(2_500));
    let mut profile = profile(1, vec![writes]);
    profile.respond = true;
    // Of the five that are due every 5 ms, one may have been sent with the previous five; and the last waits
    // for the next one that requests an acknowledgement.
    let pktgen = run_loop(&profile, 20_000, |_, _| Nanos::ZERO);
    let c = &pktgen.counters.streams[0];
    assert!(c.answered.get() > 90 && c.unanswered.get() == 0, "{} {}", c.answered.get(), c.unanswered.get());
}

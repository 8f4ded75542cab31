//! Rates that change during a run.

use super::*;
use crate::{AtRate, RateHistory};

fn steady(unit: Unit, per_second: u64) -> Rate {
    Rate::Steady { unit, per_second }
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Runs a stream whose rate changes at these times, over a link with rules. Returns the world, and the history of
/// the first stream.
fn run(profile: &Profile, changes: &[(Nanos, Rate)], rules: Vec<Rule>) -> (World, RateHistory) {
    let mut world = World::new(profile, rules);
    let began = world.now;
    let command = |&(at, rate): &(Nanos, Rate)| (began + at, Command::SetRate { stream: 0, rate });
    world.commands = changes.iter().map(command).collect();
    world.run();
    let mut history = RateHistory::new(&profile.streams[0], 1);
    assert_eq!(world.marks.len(), changes.len());
    for ((_, rate), (stream, mark)) in changes.iter().zip(&world.marks) {
        assert_eq!(*stream, 0);
        history.change(*rate, *mark);
    }
    (world, history)
}

fn writes(rate: Rate, duration: Nanos) -> Profile {
    let mut stream = stream(Verb::Write, 0x10, 3);
    (stream.rate, stream.packets) = (rate, None);
    let mut profile = profile(1, vec![stream]);
    profile.duration = Some(duration);
    profile
}

#[test]
fn a_stream_sends_at_each_rate_for_its_time() {
    let profile = writes(steady(Unit::Packets, 100_000), ms(100));
    let changes = [
        (ms(10), steady(Unit::Packets, 1_000_000)),
        (ms(30), steady(Unit::Packets, 7)),
        (ms(50), steady(Unit::Bits, 1_000_000_000)),
        (ms(80), steady(Unit::Packets, 50_000)),
    ];
    let (world, history) = run(&profile, &changes, vec![]);
    let counters = world.counters();
    let c = &counters.streams[0];
    let bits = world.workers[0].pktgen.packet_bits(0).unwrap();
    let expected = [(10, 1_000), (20, 20_000), (20, 0), (30, 30_000_000 / bits), (20, 1_000)];
    let rates: Vec<AtRate> = history.rates(c).collect();
    assert_eq!(rates.len(), expected.len());
    for (at, (time, packets)) in rates.iter().zip(expected) {
        assert!(at.sent.sending.0.abs_diff(time * 1_000_000) < 1_000, "{at:?}");
        assert!(at.sent.packets.abs_diff(packets) <= 10, "{packets}: {at:?}");
        assert_eq!(at.part, Some(1.0), "{at:?}");
    }
    assert_eq!(history.part(c), Some(1.0));
    // The whole is the sum of the parts, and is that of no single rate.
    assert_eq!(rates.iter().map(|at| at.sent.packets).sum::<u64>(), c.units().0);
    assert_eq!(rates.iter().map(|at| at.sent.sending.0).sum::<u64>(), c.sending_ns.get());
    assert_ne!(c.part_of_rate(&profile.streams[0]), Some(1.0));
}

#[test]
fn losses_and_latency_are_counted_over_changes() {
    let profile = writes(steady(Unit::Packets, 200_000), ms(40));
    let changes: Vec<_> = (1..40)
        .map(|at| (ms(at), steady(Unit::Packets, if at % 3 == 0 { 5_000_000 } else { 100_000 * at })))
        .collect();
    let rules = vec![
        rule("lose", 0.1, Action::Drop),
        rule("late", 0.05, Action::Delay { by: Nanos::from_micros(20), jitter: Nanos::ZERO }),
    ];
    let (world, history) = run(&profile, &changes, rules);
    assert_adds_up(&world, &profile);
    let counters = world.counters();
    let c = &counters.streams[0];
    let dropped = world.link.rule_counters().next().unwrap().acted.get();
    assert_eq!(c.sent.frames.get(), c.received.frames.get() + dropped);
    assert_eq!(c.lost() + c.unseen(), dropped);
    // No packet is slower than the link, its turn and the delay.
    assert_eq!(c.latency.count(), c.received.frames.get());
    let slowest = c.latency.buckets().map(|(time, _)| time).max().unwrap();
    assert!(slowest < Nanos::from_micros(40), "{slowest:?}");
    assert_eq!(history.rates(c).count(), 40);
}

#[test]
fn a_rate_that_is_not_reached_lowers_the_whole_by_its_time() {
    let stream = stream(Verb::Write, 0x10, 1);
    let stream = Stream { rate: steady(Unit::Packets, 1000), ..stream };
    let mut history = RateHistory::new(&stream, 1);
    // Half of what was due in 1 s, then all in 3 s, then 5 s as fast as possible
    let mark = |s: u64, packets| RateMark { sending: Nanos::from_secs(s), packets, bits: packets * 800 };
    history.change(steady(Unit::Packets, 2000), mark(1, 500));
    history.change(Rate::Max, mark(4, 6500));
    let counters = StreamCounters::default();
    counters.sending_ns.add(9_000_000_000);
    counters.sent.count_many(1_000_000, 76_000_000);
    assert_eq!(history.part(&counters), Some(0.875));
    // Many changes: the sum keeps all, and the list the latest.
    for change in 0..1000_u64 {
        let sent = 1_000_000 + 1000 * (change + 1);
        history.change(steady(Unit::Packets, 1000), mark(9 + change, sent));
    }
    assert_eq!((history.omitted(), history.has_changed()), (1002 - 64, true));
}

/// What a change leaves to the new rate is not more than came due.
#[test]
fn a_packet_that_is_left_to_the_next_rate_is_no_deviation() {
    let stream = stream(Verb::Write, 0x10, 1);
    let stream = Stream { rate: steady(Unit::Packets, 1000), burst: Some(1), ..stream };
    let mut history = RateHistory::new(&stream, 1);
    let mark = |s: u64, packets| RateMark { sending: Nanos::from_secs(s), packets, bits: packets * 800 };
    history.change(steady(Unit::Packets, 10), mark(1, 1000));
    let counters = StreamCounters::default();
    counters.sending_ns.add(2_000_000_000);
    counters.sent.count_many(1013, 76_988);
    assert_eq!(history.part(&counters), Some(1.0));
    counters.sent.count_many(1, 76);
    assert_eq!(history.part(&counters), Some(1.2));
}

#[test]
fn a_rate_that_is_set_before_the_start_is_the_first() {
    let profile = writes(steady(Unit::Packets, 10), ms(10));
    let mut pktgen = Pktgen::new(&profile).unwrap();
    let rate = steady(Unit::Packets, 1_000_000);
    pktgen.on_command(Command::SetRate { stream: 0, rate }, Nanos::ZERO);
    pktgen.on_command(Command::SetRate { stream: 1, rate }, Nanos::ZERO);
    let Some(Event::RateChanged { stream: 0, mark }) = pktgen.poll_event() else { panic!("a mark") };
    assert_eq!((mark, pktgen.poll_event()), (RateMark::default(), None));
    let mut history = RateHistory::new(&profile.streams[0], 1);
    history.change(rate, mark);
    pktgen.on_command(Command::Begin { at: Nanos(5) }, Nanos(5));
    let mut now = Nanos(5);
    while let Some(next) = pktgen.next_timer() {
        now = now.max(next);
        pktgen.on_timer(now, &mut FrameCollector::with_room(512));
    }
    let c = &pktgen.counters.streams[0];
    assert_eq!((c.sent.frames.get(), history.part(c), history.has_changed()), (10_000, Some(1.0), false));
}

/// A change while a stream's packets are all sent, or after the end, sends nothing more.
#[test]
fn a_stream_that_is_over_stays_so() {
    let mut profile = writes(steady(Unit::Packets, 1_000_000), ms(10));
    profile.streams[0].packets = Some(50);
    let (world, history) = run(&profile, &[(Nanos::from_micros(60), Rate::Max)], vec![]);
    let counters = world.counters();
    let c = &counters.streams[0];
    assert_eq!((c.sent.frames.get(), history.part(c)), (50, Some(1.0)));
}

//! A switch whose clock is wrong.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Returns a switch with three links from below and one from above.
fn three_below() -> Representative {
    let mut config = config(Incarnation::Chip);
    config.links[2].side = Side::Below;
    Representative::new(config).unwrap()
}

#[test]
fn switch_whose_clock_is_slow_believes_its_links_from_below() {
    let mut function = three_below();
    timer(&mut function, 0);
    for (n, ahead) in [(0, 3 * SECOND), (1, SECOND), (2, 2 * SECOND)] {
        assert_eq!(function.barriers(Side::Above).0, None, "one link has carried no barrier");
        verdict(&mut function, &beacon(n, Some(at(100 + ahead))), n.into(), 100);
    }
    assert_eq!(function.counters().distrusted.get(), 1);
    assert_eq!(function.barriers(Side::Above).0, Some(at(100 + SECOND)), "no output was below the barriers");
    // From now on nothing but the fast clock is lowered.
    let lowered = function.counters().lowered.get();
    verdict(&mut function, &beacon(1, Some(at(200 + SECOND))), 1, 200);
    verdict(&mut function, &beacon(2, Some(at(200 + 2 * SECOND))), 2, 200);
    assert_eq!((function.counters().lowered.get(), function.counters().distrusted.get()), (lowered, 1));
    verdict(&mut function, &beacon(0, Some(at(200 + 3 * SECOND))), 0, 200);
    assert_eq!((function.counters().lowered.get(), function.counters().distrusted.get()), (lowered + 1, 1));
    // A clock that stays slow is not the reference again.
    super::beacons::set_clock(&mut function, 300, 300);
    verdict(&mut function, &beacon(1, Some(at(300 + SECOND))), 1, 300);
    assert_eq!(function.counters().lowered.get(), lowered + 1);
}

#[test]
fn fast_links_are_not_believed_while_another_is_right() {
    let mut function = three_below();
    timer(&mut function, 0);
    for tick in 0..20 {
        for (n, ahead) in [(0, SECOND), (1, SECOND), (2, 0), (3, SECOND)] {
            verdict(&mut function, &beacon(n, Some(at(tick * T + 100 + ahead))), n.into(), tick * T + 100);
        }
        timer(&mut function, tick * T + 200);
    }
    assert_eq!((function.counters().distrusted.get(), function.counters().lowered.get()), (0, 60));
    assert_eq!(function.barriers(Side::Above).0, Some(at(19 * T + 100)));
    // Nor is a single link.
    for n in [1, 2] {
        function.on_command(Command::Remove(LinkId(n)), Nanos(20 * T));
    }
    verdict(&mut function, &beacon(0, Some(at(20 * T + SECOND))), 0, 20 * T);
    assert_eq!(function.counters().distrusted.get(), 0);
}

/// The rack's own barrier is an hour old, but the links from above have gone on.
#[test]
fn rack_that_was_silent_for_an_hour_does_not_wait_for_a_slow_host() {
    let mut function = representative(Incarnation::SwitchCpu);
    timer(&mut function, 0);
    update_all(&mut function, 100);
    let above = |function: &mut Representative, tick: u64| {
        for n in 2..4 {
            verdict(function, &beacon(n, Some(at(tick * T + 5))), n.into(), tick * T + 5);
        }
        timer(function, tick * T + 6);
    };
    for tick in (1..30).chain(1_000_000..1_000_003) {
        above(&mut function, tick);
    }
    assert_eq!(function.counters().dead.get(), 2);
    let now = 1_000_003 * T;
    let slow = verdict(&mut function, &beacon(0, Some(at(500))), 0, now);
    assert_eq!(slow, Verdict::Drop(DropReason::Stale));
    assert_eq!(verdict(&mut function, &beacon(1, Some(at(now))), 1, now), Verdict::Consume);
    assert_eq!((function.barriers(Side::Above).0, function.is_live(LinkId(0))), (Some(at(now)), false));
    assert_eq!(refused(&function), [("too_far_behind", 1)]);
}

/// Messages that turn round at the switch have to be covered by what it sends down.
#[test]
fn up_half_joins_the_down_half_whatever_it_carries() {
    let mut config = config(Incarnation::SwitchCpu);
    config.links.truncate(3);
    let mut function = Representative::new(config).unwrap();
    timer(&mut function, 0);
    for n in 0..3 {
        verdict(&mut function, &beacon(n, Some(at(100))), n.into(), 100);
    }
    for tick in 1..40 {
        verdict(&mut function, &beacon(2, Some(at(tick * T))), 2, tick * T);
        timer(&mut function, tick * T);
    }
    assert_eq!((function.counters().dead.get(), function.barriers(Side::Below).0), (2, Some(at(39 * T))));
    // A link from below returns inside the window of the last tick, but no longer of the down half's barrier.
    verdict(&mut function, &beacon(2, Some(at(41 * T))), 2, 39 * T + 10);
    verdict(&mut function, &beacon(0, Some(at(29 * T))), 0, 39 * T + 20);
    assert!(function.is_live(LinkId(0)));
    verdict(&mut function, &beacon(2, Some(at(42 * T))), 2, 39 * T + 30);
    assert_eq!(function.barriers(Side::Below).0, Some(at(41 * T)), "it waits for the link from below");
}

#[test]
fn first_barrier_that_is_far_behind_is_left_out_and_reported() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        let now = 100 * T;
        timer(&mut function, now);
        for (n, ns) in [(2, now), (3, now), (0, now), (1, 5)] {
            verdict(&mut function, &beacon(n, Some(at(ns))), n.into(), now);
        }
        assert_eq!(function.barriers(Side::Above).0, Some(at(now)));
        timer(&mut function, now + T);
        assert_eq!(function.poll_event(), Some(Event::Evicted(LinkId(1))));
        let counters = function.counters();
        assert_eq!((counters.evicted.get(), counters.dead.get(), function.poll_event()), (1, 0, None));
        function.on_command(Command::PublishGauges, Nanos(now + 10));
        assert_eq!(function.gauges().read().unwrap().link(LinkId(1)).state, crate::LinkState::Evicted);
        assert_eq!(verdict(&mut function, &beacon(1, Some(at(now))), 1, now + 20), Verdict::Consume);
        assert_eq!(function.poll_event(), Some(Event::Joined(LinkId(1))));
    }
}

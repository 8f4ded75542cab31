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
    function.on_command(Command::Clock(at(300)), Nanos(300));
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

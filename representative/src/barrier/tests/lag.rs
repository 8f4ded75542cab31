//! Links that are too far behind the others.

use super::*;

/// Sends the first barriers of all links, by how much they are ahead of an hour. Returns the output and the
/// links that were left out.
fn first_barriers(clock: Option<i64>, links: &[i64]) -> (i64, Vec<usize>) {
    let time = |by: i64| HOUR.wrapping_add_signed(by);
    let mut barrier = Barrier::new(links.len(), LIMITS, clock.map(|by| at(time(by))));
    for (input, &by) in links.iter().enumerate() {
        assert_eq!(barrier.best_effort(), None);
        update(&mut barrier, input, time(by));
    }
    let left_out = core::iter::from_fn(|| {
        let (input, why) = barrier.expire()?;
        assert_eq!(why, Gone::Evicted);
        Some(input)
    });
    let left_out = left_out.collect();
    (barrier.best_effort().unwrap().distance(at(HOUR)), left_out)
}

#[test]
fn first_barrier_an_hour_behind_is_not_waited_for() {
    let slow = -(HOUR as i64) + 1;
    for clock in [None, Some(0), Some(-9_000)] {
        assert_eq!(first_barriers(clock, &[0, 5, slow, 7]), (0, vec![2]));
    }
    let mut barrier = Barrier::new(2, LIMITS, Some(at(HOUR)));
    update(&mut barrier, 0, HOUR);
    assert_eq!(update(&mut barrier, 1, 1), UpdateResult::Raised, "both are compared when both are known");
    assert_eq!((barrier.best_effort(), barrier.expire()), (Some(at(HOUR)), Some((1, Gone::Evicted))));
    assert_eq!((barrier.expire(), barrier.inputs()), (None, Inputs::Live));
    assert_eq!(update(&mut barrier, 1, 10), UpdateResult::TooFarBehind);
    assert_eq!(update(&mut barrier, 1, HOUR - 5_000), UpdateResult::Joined);
    assert_eq!(update(&mut barrier, 0, HOUR + 9), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), Some(at(HOUR)), "it is waited for");
}

#[test]
fn one_fast_link_or_clock_excludes_no_other() {
    const MS: i64 = 1_000_000;
    assert_eq!(first_barriers(Some(0), &[10 * MS, 0, 0]), (0, vec![]));
    assert_eq!(first_barriers(Some(2 * MS), &[0, 100]), (0, vec![]));
    assert_eq!(first_barriers(Some(-2 * MS), &[0, 100]), (0, vec![]));
    assert_eq!(first_barriers(Some(2 * MS), &[7]), (7, vec![]), "a single link is believed");
    assert_eq!(first_barriers(None, &[0, 10 * MS]), (0, vec![]), "two links, of which either may be right");
    assert_eq!(first_barriers(Some(10 * MS), &[0, 10 * MS]), (10 * MS, vec![0]), "the clock decides");
    assert_eq!(first_barriers(Some(0), &[0, 10 * MS]), (0, vec![]));
    // Just inside twice the window, and just outside
    assert_eq!(first_barriers(None, &[-10_000, 0, 0]), (-10_000, vec![]));
    assert_eq!(first_barriers(None, &[-10_001, 0, 0]), (0, vec![0]));
}

#[test]
fn links_are_compared_when_the_last_one_is_known_or_gone() {
    for leaves in [true, false] {
        let mut barrier = Barrier::new(4, LIMITS, None);
        for (input, nanos) in [(0, HOUR), (1, HOUR), (2, 9)] {
            update(&mut barrier, input, nanos);
        }
        assert_eq!((barrier.best_effort(), barrier.expire()), (None, None));
        if leaves {
            barrier.leave(3);
        } else {
            barrier.lose(3);
        }
        assert_eq!((barrier.best_effort(), barrier.expire()), (Some(at(HOUR)), Some((2, Gone::Evicted))));
        // A link inside this node is never left out.
        let mut barrier = Barrier::new(3, LIMITS, None);
        barrier.never_expire(0);
        for (input, nanos) in [(0, 9), (1, HOUR), (2, HOUR)] {
            update(&mut barrier, input, nanos);
        }
        assert_eq!((barrier.best_effort(), barrier.expire()), (Some(at(9)), None));
        barrier.lose(0);
        update(&mut barrier, 1, HOUR + 5);
        assert_eq!(update(&mut barrier, 0, 10), UpdateResult::Joined, "however far it is behind");
    }
}

#[test]
fn link_behind_the_other_half_does_not_join() {
    let mut barrier = Barrier::new(2, LIMITS, None);
    update(&mut barrier, 0, 100);
    update(&mut barrier, 1, 100);
    assert!(barrier.lose(0) && barrier.lose(1));
    barrier.set_floor(Some(at(HOUR)));
    assert_eq!(update(&mut barrier, 0, 200), UpdateResult::TooFarBehind, "nothing has held the output, but");
    assert_eq!(update(&mut barrier, 0, HOUR - 5_001), UpdateResult::TooFarBehind);
    assert_eq!(update(&mut barrier, 1, HOUR - 5_000), UpdateResult::Joined);
    assert_eq!(barrier.best_effort(), Some(at(HOUR - 5_000)));
}

/// Limits with which a link that lags is removed
const EVICTING: Limits = Limits { evict_after_ticks: 40, ..LIMITS };

/// Returns after how many ticks a link is evicted whose barrier is behind those of two others by so much; `None`
/// if it is not in 200.
fn evicted_after(limits: Limits, by: u64) -> Option<u64> {
    let mut barrier = Barrier::new(3, limits, None);
    for tick in 1..=200 {
        let time = 100_000 + tick * 3_000;
        // A barrier does not go back, so the link first stands still.
        let slow = (time - by).max(100_000 + tick.min(4) * 3_000);
        for (input, time) in [(0, time), (1, slow), (2, time)] {
            update(&mut barrier, input, time);
        }
        barrier.tick(at(time));
        if let Some(removed) = barrier.expire() {
            assert_eq!((removed, barrier.inputs()), ((1, Gone::Evicted), Inputs::Live));
            assert_eq!(barrier.best_effort(), Some(at(time)), "the others go on");
            assert_eq!(update(&mut barrier, 1, time - by), UpdateResult::TooFarBehind);
            assert_eq!(update(&mut barrier, 1, time - 5_000), UpdateResult::Joined);
            return Some(tick);
        }
    }
    None
}

#[test]
fn link_that_lags_for_long_is_evicted() {
    assert_eq!(evicted_after(LIMITS, 50_000), None, "never, if so configured");
    assert_eq!(evicted_after(EVICTING, 10_000), None, "twice the window");
    // The lag builds up first, and it is checked in every eighth tick.
    let after = evicted_after(EVICTING, 10_001);
    assert!(after.is_some_and(|tick| (45..=64).contains(&tick)), "{after:?}");
    let after = evicted_after(EVICTING, 50_000);
    assert!(after.is_some_and(|tick| (45..=64).contains(&tick)), "{after:?}");
}

#[test]
fn link_that_carries_no_barrier_while_others_do_is_evicted() {
    let mut barrier = Barrier::new(3, EVICTING, None);
    barrier.never_expire(2);
    for tick in 1..=60 {
        update(&mut barrier, 0, 100_000 + tick * 3_000);
        assert_eq!(barrier.update(1, None), UpdateResult::NoBarrier);
        update(&mut barrier, 2, 100_000);
        barrier.tick(at(100_000 + tick * 3_000));
        if let Some(removed) = barrier.expire() {
            assert_eq!(removed, (1, Gone::Evicted));
            assert!(tick > 40);
            assert_eq!(barrier.best_effort(), Some(at(100_000)), "the output begins; the inner link stays");
            return;
        }
        assert_eq!(barrier.best_effort(), None);
    }
    panic!("it was waited for");
}

#[test]
fn short_lag_and_lag_of_all_evict_no_link() {
    let mut barrier = Barrier::new(3, EVICTING, None);
    for tick in 1..=200u64 {
        let time = 100_000 + tick * 3_000;
        // Link 1 stands still for 30 ticks and catches up; then all stand still.
        let shown = if tick > 120 { 100_000 + 120 * 3_000 } else { time };
        let slow = if (40..70).contains(&tick) { 100_000 + 40 * 3_000 } else { shown };
        for (input, time) in [(0, shown), (1, slow), (2, shown)] {
            update(&mut barrier, input, time);
        }
        barrier.tick(at(time));
        assert_eq!(barrier.expire(), None, "tick {tick}");
    }
}

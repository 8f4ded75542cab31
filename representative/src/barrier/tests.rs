use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits { dead_after_ticks: 10, window_ns: 5_000, evict_after_ticks: 0 };

fn at(nanos: u64) -> Timestamp {
    Timestamp::new(nanos)
}

fn update(barrier: &mut Barrier, input: usize, nanos: u64) -> UpdateResult {
    barrier.update(input, Some(at(nanos)), None)
}

/// Returns a barrier over these inputs, all of which are members of the commit barrier.
fn with_members(inputs: usize) -> Barrier {
    let mut barrier = Barrier::new(inputs, LIMITS, None);
    for input in 0..inputs {
        assert!(barrier.add_commit(input));
    }
    barrier.open_commit();
    barrier
}

#[test]
fn barrier_is_the_minimum_once_all_links_have_carried_one() {
    let mut barrier = with_members(3);
    assert_eq!((barrier.best_effort(), barrier.commit(), barrier.position()), (None, None, 0));
    assert_eq!(update(&mut barrier, 0, 300), UpdateResult::Raised);
    assert_eq!(update(&mut barrier, 1, 100), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), None, "one link has carried no barrier");
    assert_eq!(update(&mut barrier, 2, 200), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), Some(at(100)));
    assert_eq!(update(&mut barrier, 1, 100), UpdateResult::Unchanged);
    assert_eq!(update(&mut barrier, 1, 99), UpdateResult::Stale);
    assert_eq!(update(&mut barrier, 1, 500), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), Some(at(200)));
    assert_eq!(barrier.update(2, None, Some(at(50))), UpdateResult::NoBarrier);
    assert_eq!((barrier.best_effort(), barrier.commit()), (Some(at(200)), None));
    assert_eq!(barrier.committed(2), Some(at(50)));
    for input in 0..2 {
        barrier.update(input, None, Some(at(60)));
    }
    assert_eq!(barrier.commit(), Some(at(50)));
}

#[test]
fn returning_link_is_waited_for() {
    let mut barrier = Barrier::new(2, LIMITS, None);
    update(&mut barrier, 0, 10_000);
    update(&mut barrier, 1, 10_000);
    assert!(barrier.leave(1) && !barrier.leave(1));
    assert_eq!((barrier.live(), barrier.is_live(1)), (1, false));
    update(&mut barrier, 0, 20_000);
    assert_eq!(barrier.best_effort(), Some(at(20_000)));
    assert_eq!(update(&mut barrier, 1, 14_999), UpdateResult::TooFarBehind);
    assert!(!barrier.is_live(1));
    assert_eq!(update(&mut barrier, 1, 15_000), UpdateResult::Joined);
    update(&mut barrier, 0, 30_000);
    assert_eq!(barrier.best_effort(), Some(at(20_000)), "suspended");
    assert_eq!(update(&mut barrier, 1, 14_999), UpdateResult::Stale);
    for tick in 0..20 {
        barrier.tick(at(30_000));
        assert_eq!(update(&mut barrier, 1, 19_000 + tick), UpdateResult::Behind);
        assert_eq!(barrier.expire(), None, "it is catching up");
    }
    assert_eq!(update(&mut barrier, 1, 20_000), UpdateResult::Unchanged);
    assert_eq!(update(&mut barrier, 1, 19_999), UpdateResult::Stale, "it has caught up");
    assert_eq!(update(&mut barrier, 1, 25_000), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), Some(at(25_000)));
    // A returning link that is ahead does not hold the output back.
    barrier.leave(0);
    assert_eq!(update(&mut barrier, 0, 26_000), UpdateResult::Joined);
    update(&mut barrier, 1, 40_000);
    assert_eq!(barrier.best_effort(), Some(at(26_000)));
}

#[test]
fn dead_link_is_removed_from_the_best_effort_barrier_alone() {
    let mut barrier = with_members(3);
    barrier.never_expire(2);
    for input in 0..3 {
        barrier.update(input, Some(at(100)), Some(at(50)));
    }
    for tick in 1..=10 {
        barrier.tick(at(100));
        // The barrier of link 0 does not rise, as that link waits for other links; link 1 is silent; link 2
        // is inside the node.
        barrier.update(0, Some(at(100)), Some(at(50 + tick)));
        barrier.update(2, None, Some(at(50 + tick)));
        assert_eq!(barrier.expire(), None, "dead after more than ten intervals only");
    }
    barrier.tick(at(100));
    assert_eq!(barrier.expire(), None, "a link that is alive holds the barrier as well");
    update(&mut barrier, 0, 200);
    assert_eq!(barrier.expire(), Some((1, Gone::Silent)));
    assert_eq!(barrier.expire(), None);
    assert_eq!(barrier.best_effort(), Some(at(100)), "held by the link that does not expire");
    update(&mut barrier, 2, 300);
    assert_eq!((barrier.best_effort(), barrier.commit()), (Some(at(200)), Some(at(50))));
    assert!(barrier.remove_commit(1) && !barrier.remove_commit(1));
    assert_eq!((barrier.commit(), barrier.committed(1)), (Some(at(60)), None));
    barrier.update(1, Some(at(250)), Some(at(70)));
    assert_eq!(
        (barrier.live(), barrier.committed(1)),
        (3, None),
        "an update does not rejoin the commit barrier"
    );
    assert!(barrier.add_commit(1) && !barrier.add_commit(1));
    assert_eq!((barrier.commit(), barrier.committed(1)), (Some(at(60)), Some(at(60))));
}

#[test]
fn only_links_that_left_end_a_barrier() {
    assert_eq!(Barrier::new(0, LIMITS, None).inputs(), Inputs::Left, "there is nothing to wait for");
    let mut barrier = Barrier::new(2, LIMITS, None);
    assert_eq!(barrier.inputs(), Inputs::Live, "both are waited for");
    assert!(barrier.lose(0) && !barrier.lose(0));
    assert_eq!(barrier.inputs(), Inputs::Live);
    assert!(barrier.leave(1) && !barrier.lose(1), "a link that has left is not lost");
    assert_eq!(barrier.inputs(), Inputs::Lost);
    assert!(barrier.leave(0) && !barrier.leave(0), "a link that was lost may leave");
    assert_eq!(barrier.inputs(), Inputs::Left);
    assert_eq!(update(&mut barrier, 0, 100), UpdateResult::Joined);
    assert_eq!(barrier.inputs(), Inputs::Live);
    for _ in 0..11 {
        barrier.tick(at(100));
    }
    assert_eq!(barrier.expire(), Some((0, Gone::Silent)));
    assert_eq!(barrier.inputs(), Inputs::Lost);
}

/// An hour, in nanoseconds
const HOUR: u64 = 3_600_000_000_000;

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

#[test]
fn register_does_not_rise_after_the_report_of_death() {
    let mut barrier = with_members(2);
    for input in 0..2 {
        barrier.update(input, Some(at(100)), Some(at(50)));
    }
    for _ in 0..11 {
        barrier.tick(at(100));
        barrier.update(0, Some(at(200)), Some(at(90)));
    }
    assert_eq!((barrier.expire(), barrier.committed(1)), (Some((1, Gone::Silent)), Some(at(50))));
    // Whatever the link carries now, also when it takes part again
    assert_eq!(barrier.update(1, Some(at(300)), Some(at(80))), UpdateResult::Joined);
    barrier.update(1, Some(at(310)), Some(at(81)));
    assert_eq!((barrier.committed(1), barrier.commit()), (Some(at(50)), Some(at(50))));
    barrier.thaw_commit(1);
    barrier.update(1, Some(at(320)), Some(at(82)));
    assert_eq!(barrier.commit(), Some(at(82)), "its neighbour has not failed");
    assert_eq!(barrier.freeze_commit(1), Some(at(82)));
    barrier.update(1, Some(at(330)), Some(at(85)));
    assert!(barrier.remove_commit(1));
    assert_eq!((barrier.commit(), barrier.commit_members()), (Some(at(90)), 1));
    assert!(barrier.add_commit(1), "an admission ends the freeze");
    barrier.update(1, Some(at(340)), Some(at(95)));
    assert_eq!((barrier.commit(), barrier.committed(1)), (Some(at(90)), Some(at(95))));
}

#[test]
fn half_of_the_members_state_no_commit() {
    let mut barrier = Barrier::new(3, LIMITS, None);
    let update = |barrier: &mut Barrier, input, commit| {
        barrier.update(input, Some(at(1000)), Some(at(commit)));
    };
    barrier.add_commit(0);
    update(&mut barrier, 0, 500);
    assert_eq!((barrier.commit(), barrier.commit_position()), (None, 0), "the list is not complete");
    barrier.add_commit(1);
    update(&mut barrier, 1, 200);
    update(&mut barrier, 2, 100);
    assert_eq!(barrier.commit(), None);
    barrier.open_commit();
    assert_eq!(barrier.commit(), Some(at(200)), "the minimum over the members");
    // A link that is no member holds nothing; one that is added later is waited for.
    update(&mut barrier, 0, 600);
    update(&mut barrier, 1, 550);
    assert_eq!((barrier.commit(), barrier.committed(2)), (Some(at(550)), None));
    barrier.add_commit(2);
    update(&mut barrier, 1, 700);
    assert_eq!(barrier.commit(), Some(at(550)));
    update(&mut barrier, 2, 580);
    assert_eq!(barrier.commit(), Some(at(580)));
    // Opened without members, a barrier waits for the first.
    let mut barrier = Barrier::new(1, LIMITS, None);
    barrier.open_commit();
    assert_eq!(barrier.commit(), None);
    barrier.add_commit(0);
    update(&mut barrier, 0, 7);
    assert_eq!(barrier.commit(), Some(at(7)));
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
        assert_eq!(barrier.update(1, None, None), UpdateResult::NoBarrier);
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

#[test]
fn kept_link_does_not_expire() {
    let mut barrier = Barrier::new(2, LIMITS, None);
    barrier.never_expire(0);
    for n in 1..=20 {
        barrier.tick(at(100));
        update(&mut barrier, 1, 100 + n);
        assert_eq!(barrier.expire(), None);
    }
    assert_eq!(barrier.live(), 2);
    // Nor after it has carried a barrier once.
    update(&mut barrier, 0, 110);
    for n in 21..=40 {
        barrier.tick(at(100));
        update(&mut barrier, 1, 100 + n);
        assert_eq!(barrier.expire(), None);
    }
}

#[test]
fn link_that_is_behind_may_repeat_its_barrier() {
    let mut barrier = Barrier::new(2, LIMITS, None);
    update(&mut barrier, 0, 10_000);
    barrier.leave(1);
    update(&mut barrier, 0, 20_000);
    assert_eq!(update(&mut barrier, 1, 17_000), UpdateResult::Joined);
    assert_eq!(update(&mut barrier, 1, 17_000), UpdateResult::Behind);
    assert_eq!(update(&mut barrier, 1, 16_999), UpdateResult::Stale);
}

#[test]
fn both_barriers_are_unwrapped_alike() {
    let mut barrier = with_members(1);
    assert_eq!((barrier.position(), barrier.commit_position()), (0, 0));
    barrier.update(0, Some(at(300)), Some(at(200)));
    assert_eq!(barrier.position() - barrier.commit_position(), 100);
    assert_eq!(Timestamp::new(barrier.commit_position()), at(200));
}

#[test]
fn link_that_was_silent_for_days_joins_again() {
    for hours in [1, 30, 50, 70, 100, 1000] {
        let mut barrier = Barrier::new(1, LIMITS, None);
        update(&mut barrier, 0, 7);
        for hour in 0..=hours {
            barrier.tick(at(hour * HOUR));
        }
        assert!(barrier.leave(0));
        assert_eq!(update(&mut barrier, 0, hours * HOUR + 9), UpdateResult::Joined, "{hours}");
        assert_eq!(barrier.best_effort(), Some(at(hours * HOUR + 9)));
    }
}

#[test]
fn links_that_never_carried_a_barrier_expire_until_none_is_left() {
    let mut barrier = Barrier::new(2, LIMITS, None);
    for _ in 0..11 {
        barrier.tick(at(7));
        update(&mut barrier, 1, 7);
    }
    assert_eq!((barrier.expire(), barrier.best_effort()), (Some((0, Gone::Silent)), Some(at(7))));
    barrier.leave(1);
    assert_eq!((barrier.live(), barrier.expire(), barrier.best_effort()), (0, None, Some(at(7))));
    assert_eq!(update(&mut barrier, 0, 8), UpdateResult::Joined);
    assert_eq!(barrier.best_effort(), Some(at(8)));
    // A barrier without inputs, and one with a single input.
    assert_eq!((Barrier::new(0, LIMITS, None).live(), Barrier::new(0, LIMITS, None).expire()), (0, None));
    let mut alone = Barrier::new(1, LIMITS, None);
    update(&mut alone, 0, 9);
    assert_eq!(alone.best_effort(), Some(at(9)));
}

#[test]
fn registers_may_be_days_apart_while_time_wraps() {
    let mut barrier = Barrier::new(2, LIMITS, None);
    let start = (1 << 48) - 1000;
    update(&mut barrier, 0, start);
    update(&mut barrier, 1, start);
    // Link 1 is silent for a week, which is two periods of the 48-bit clock.
    for hour in 0..24 * 7 {
        assert_eq!(update(&mut barrier, 0, start + (hour + 1) * HOUR), UpdateResult::Raised);
        assert_eq!(barrier.best_effort(), Some(at(start)));
    }
    barrier.leave(1);
    assert_eq!(barrier.best_effort(), Some(at(start + 24 * 7 * HOUR)));
    assert_eq!(barrier.position() & ((1 << 48) - 1), at(start + 24 * 7 * HOUR).nanos());
}

/// Action on a barrier.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A link carries a barrier, in nanoseconds relative to the latest one (ahead, behind)
    Update {
        input: usize,
        offset: i64,
        commit: Option<i64>,
    },
    /// A link has no barrier yet
    NoBarrier(usize),
    Leave(usize),
    Lose(usize),
    RemoveCommit(usize),
    AddCommit(usize),
    Open,
    Freeze(usize),
    Thaw(usize),
    Tick,
    /// All links are silent for a while
    Jump(u64),
}

fn act(inputs: usize) -> impl Strategy<Value = Act> {
    let offset = prop_oneof![6 => -20i64..2_000, 2 => -10_000i64..10_000, 1 => -(1i64 << 45)..0];
    prop_oneof![
        24 => (0..inputs, offset, prop::option::of(-500i64..500))
            .prop_map(|(input, offset, commit)| Act::Update { input, offset, commit }),
        2 => (0..inputs).prop_map(Act::NoBarrier),
        2 => (0..inputs).prop_map(Act::Leave),
        1 => (0..inputs).prop_map(Act::Lose),
        1 => (0..inputs).prop_map(Act::RemoveCommit),
        2 => (0..inputs).prop_map(Act::AddCommit),
        1 => Just(Act::Open),
        1 => (0..inputs).prop_map(Act::Freeze),
        1 => (0..inputs).prop_map(Act::Thaw),
        4 => Just(Act::Tick),
        1 => (0u64..1 << 45).prop_map(Act::Jump),
    ]
}

/// Reference implementation: unwrapped integers, and a minimum over all links every time.
struct Oracle {
    best_effort: Vec<Option<i128>>,
    commit: Vec<Option<i128>>,
    /// Last barriers of links that have returned and not caught up
    behind: Vec<Option<i128>>,
    updated_at: Vec<u64>,
    /// Reason why a link takes no part
    gone: Vec<Option<Gone>>,
    /// Links that were evicted and not reported
    unreported: Vec<bool>,
    is_started: bool,
    is_open: bool,
    /// Links whose commit register does not rise
    frozen: Vec<bool>,
    clock: Option<i128>,
    /// Latest time received
    latest: Option<i128>,
    outputs: [Option<i128>; 2],
    ticks: u64,
}

/// Register of a link that has carried no barrier yet
const NEVER: i128 = -1;

impl Oracle {
    fn new(inputs: usize, clock: Option<i128>) -> Self {
        Self {
            unreported: vec![false; inputs],
            is_started: false,
            is_open: false,
            frozen: vec![false; inputs],
            clock,
            latest: None,
            best_effort: vec![Some(NEVER); inputs],
            commit: vec![None; inputs],
            behind: vec![None; inputs],
            updated_at: vec![0; inputs],
            gone: vec![None; inputs],
            outputs: [None; 2],
            ticks: 0,
        }
    }

    fn settle(&mut self) {
        self.begin();
        let planes = [(&self.best_effort, self.is_started), (&self.commit, self.is_open)];
        for (output, (registers, is_started)) in self.outputs.iter_mut().zip(planes) {
            let least = registers.iter().flatten().min().copied().filter(|&least| least != NEVER);
            *output = (*output).max(least.filter(|_| is_started));
        }
    }

    /// Returns the lower median of the links that take part and the clock, less twice the window.
    fn earliest(&self) -> i128 {
        let carried = |input: usize| self.behind[input].or(self.best_effort[input]);
        let links = (0..self.best_effort.len()).filter(|&input| self.best_effort[input].is_some());
        let mut voters: Vec<_> = links.filter_map(carried).filter(|&carried| carried != NEVER).collect();
        if let Some(clock) = self.clock {
            let latest = self.latest.unwrap();
            let half = 1 << 47;
            voters.push(latest + (clock - latest + half).rem_euclid(2 * half) - half);
        }
        voters.sort_unstable();
        voters[(voters.len() - 1) / 2] - 2 * 5_000
    }

    fn begin(&mut self) {
        let is_complete = self.best_effort.iter().flatten().all(|&register| register != NEVER);
        if self.is_started || !is_complete || self.best_effort.iter().all(Option::is_none) {
            return;
        }
        self.is_started = true;
        let earliest = self.earliest();
        for input in 0..self.best_effort.len() {
            if self.best_effort[input].is_some_and(|register| register < earliest) {
                self.take_out(input, Gone::Evicted);
            }
        }
    }

    fn update(&mut self, input: usize, value: i128, commit: Option<i128>) -> UpdateResult {
        if let (Some(register), Some(value), false) = (&mut self.commit[input], commit, self.frozen[input]) {
            *register = value.max(*register);
        }
        let output = self.outputs[0].unwrap_or(NEVER);
        let result = match self.best_effort[input] {
            None if value + 5_000 < output => UpdateResult::TooFarBehind,
            None => {
                self.behind[input] = (value < output).then_some(value);
                UpdateResult::Joined
            }
            Some(register)
                if value < register && self.behind[input].is_some_and(|carried| value >= carried) =>
            {
                self.behind[input] = Some(value);
                self.updated_at[input] = self.ticks;
                UpdateResult::Behind
            }
            Some(register) if value < register => UpdateResult::Stale,
            Some(register) if value == register => UpdateResult::Unchanged,
            Some(_) => UpdateResult::Raised,
        };
        if matches!(result, UpdateResult::Raised | UpdateResult::Unchanged | UpdateResult::Joined) {
            self.best_effort[input] = Some(value.max(output));
            self.latest = self.latest.max(Some(value));
            (self.gone[input], self.unreported[input]) = (None, false);
            self.updated_at[input] = self.ticks;
            self.behind[input] = self.behind[input].filter(|_| result == UpdateResult::Joined);
        }
        self.settle();
        result
    }

    /// Removes a link for this reason.
    fn take_out(&mut self, input: usize, why: Gone) {
        self.best_effort[input] = None;
        self.behind[input] = None;
        self.gone[input] = Some(why);
        self.unreported[input] = why == Gone::Evicted;
        self.frozen[input] |= why != Gone::Evicted;
    }

    fn inputs(&self) -> Inputs {
        match () {
            () if self.best_effort.iter().any(Option::is_some) => Inputs::Live,
            () if self.gone.iter().all(|gone| *gone == Some(Gone::Left)) => Inputs::Left,
            () => Inputs::Lost,
        }
    }

    /// Returns the links that hold the output and are dead.
    fn dead(&self) -> Vec<usize> {
        let least = self.best_effort.iter().flatten().min();
        let dead = |&input: &usize| {
            self.best_effort[input].as_ref() == least && self.ticks - self.updated_at[input] > 10
        };
        (0..self.updated_at.len()).filter(|&input| self.best_effort[input].is_some()).filter(dead).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Compares the barrier with the reference implementation, and checks the invariants.
    #[test]
    fn barrier_equals_that_of_the_reference_implementation(
        start in 0i128..1 << 48,
        has_clock in any::<bool>(),
        (inputs, acts) in (1usize..20).prop_flat_map(|n| (Just(n), proptest::collection::vec(act(n), 0..300))),
    ) {
        // True time is an unwrapped integer; links carry 48 bits of it.
        let mut time = start + (1 << 60);
        let wire = |time: i128| Timestamp::new(time as u64);
        let clock = has_clock.then_some(time);
        let mut barrier = Barrier::new(inputs, LIMITS, clock.map(wire));
        let mut oracle = Oracle::new(inputs, clock);
        let (mut last, mut latest) = (0, time);
        for act in acts {
            match act {
                Act::Update { input, offset, commit } => {
                    time += i128::from(offset.max(0));
                    let value = time + i128::from(offset.min(0));
                    latest = latest.max(value);
                    let commit = commit.map(|offset| value + i128::from(offset));
                    let result = barrier.update(input, Some(wire(value)), commit.map(wire));
                    prop_assert_eq!(result, oracle.update(input, value, commit));
                }
                Act::NoBarrier(input) => {
                    prop_assert_eq!(barrier.update(input, None, None), UpdateResult::NoBarrier);
                    oracle.updated_at[input] = oracle.ticks;
                }
                Act::Leave(input) => {
                    prop_assert_eq!(barrier.leave(input), oracle.gone[input] != Some(Gone::Left));
                    if oracle.gone[input] != Some(Gone::Left) {
                        oracle.take_out(input, Gone::Left);
                    }
                }
                Act::Lose(input) => {
                    prop_assert_eq!(barrier.lose(input), oracle.gone[input].is_none());
                    if oracle.gone[input].is_none() {
                        oracle.take_out(input, Gone::Silent);
                    }
                }
                Act::RemoveCommit(input) => {
                    prop_assert_eq!(barrier.remove_commit(input), oracle.commit[input].take().is_some());
                }
                Act::AddCommit(input) => {
                    let added = oracle.commit[input].is_none();
                    prop_assert_eq!(barrier.add_commit(input), added);
                    if added {
                        oracle.commit[input] = Some(oracle.outputs[1].unwrap_or(NEVER));
                        oracle.frozen[input] = false;
                    }
                }
                Act::Open => {
                    barrier.open_commit();
                    oracle.is_open = true;
                }
                Act::Freeze(input) => {
                    let register = oracle.commit[input].filter(|&register| register != NEVER);
                    prop_assert_eq!(barrier.freeze_commit(input), register.map(wire));
                    oracle.frozen[input] = true;
                }
                Act::Thaw(input) => {
                    barrier.thaw_commit(input);
                    oracle.frozen[input] = false;
                }
                Act::Tick => {
                    barrier.tick(wire(time));
                    latest = latest.max(time);
                    oracle.ticks += 1;
                    oracle.clock = oracle.clock.and(Some(time));
                    oracle.latest = oracle.latest.map(|latest| latest.max(time));
                    while let Some((input, why)) = barrier.expire() {
                        if why == Gone::Evicted {
                            prop_assert!(core::mem::take(&mut oracle.unreported[input]), "link {} was not evicted", input);
                            continue;
                        }
                        prop_assert!(oracle.dead().contains(&input), "link {} is not dead", input);
                        oracle.take_out(input, Gone::Silent);
                        oracle.settle();
                    }
                    prop_assert!(!oracle.unreported.contains(&true));
                }
                // Time may go on indefinitely if a link is updated or the clock is read at least once a day.
                Act::Jump(by) => time = (time + i128::from(by)).min(latest + (1 << 46)),
            }
            oracle.settle();
            prop_assert_eq!(barrier.best_effort(), oracle.outputs[0].map(wire));
            prop_assert_eq!(barrier.commit(), oracle.outputs[1].map(wire));
            prop_assert!(barrier.position() >= last, "the barrier went back");
            last = barrier.position();
            prop_assert_eq!(barrier.live(), oracle.best_effort.iter().flatten().count());
            prop_assert_eq!(barrier.inputs(), oracle.inputs());
        }
    }

    /// As many links as a large switch has: the tree against a minimum over all of them.
    #[test]
    fn minimum_over_a_thousand_inputs_is_right(
        inputs in 1usize..1500,
        updates in proptest::collection::vec((any::<prop::sample::Index>(), 0u64..1000), 0..200),
    ) {
        let mut barrier = Barrier::new(inputs, LIMITS, None);
        let mut registers: Vec<_> = (0..inputs as u64).map(|input| 5000 + input * 7919 % 1000).collect();
        for (input, &register) in registers.iter().enumerate() {
            update(&mut barrier, input, register);
        }
        for (input, by) in updates {
            let input = input.index(inputs);
            registers[input] += by;
            update(&mut barrier, input, registers[input]);
            prop_assert_eq!(barrier.best_effort(), registers.iter().min().map(|&least| at(least)));
        }
    }
}

use super::*;
use proptest::prelude::*;

mod lag;

/// An hour, in nanoseconds
const HOUR: u64 = 3_600_000_000_000;

const LIMITS: Limits =
    Limits { dead_after_ticks: 10, window_ns: 5_000, stall_ns: 20_000, evict_after_ticks: 0 };

fn at(nanos: u64) -> Timestamp {
    Timestamp::new(nanos)
}

fn update(barrier: &mut Barrier, input: usize, nanos: u64) -> UpdateResult {
    barrier.update(input, Some(at(nanos)))
}

#[test]
fn barrier_is_the_minimum_once_all_links_have_carried_one() {
    let mut barrier = Barrier::new(3, LIMITS, None);
    assert_eq!((barrier.best_effort(), barrier.position()), (None, 0));
    assert_eq!(update(&mut barrier, 0, 300), UpdateResult::Raised);
    assert_eq!(update(&mut barrier, 1, 100), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), None, "one link has carried no barrier");
    assert_eq!(update(&mut barrier, 2, 200), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), Some(at(100)));
    assert_eq!(update(&mut barrier, 1, 100), UpdateResult::Unchanged);
    assert_eq!(update(&mut barrier, 1, 99), UpdateResult::Stale);
    assert_eq!(update(&mut barrier, 1, 500), UpdateResult::Raised);
    assert_eq!(barrier.best_effort(), Some(at(200)));
    assert_eq!(barrier.update(2, None), UpdateResult::NoBarrier);
    assert_eq!(barrier.best_effort(), Some(at(200)));
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
fn dead_link_is_removed() {
    let mut barrier = Barrier::new(3, LIMITS, None);
    barrier.never_expire(2);
    for input in 0..3 {
        update(&mut barrier, input, 100);
    }
    for _ in 1..=10 {
        barrier.tick(at(100));
        // The barrier of link 0 does not rise, as that link waits for other links; link 1 is silent; link 2
        // is inside the node.
        update(&mut barrier, 0, 100);
        assert_eq!(barrier.expire(), None, "dead after more than ten intervals only");
    }
    barrier.tick(at(100));
    assert_eq!(barrier.expire(), None, "a link that is alive holds the barrier as well");
    update(&mut barrier, 0, 200);
    assert_eq!(barrier.expire(), Some((1, Gone::Silent)));
    assert_eq!(barrier.expire(), None);
    assert_eq!(barrier.best_effort(), Some(at(100)), "held by the link that does not expire");
    update(&mut barrier, 2, 300);
    assert_eq!(barrier.best_effort(), Some(at(200)));
    update(&mut barrier, 1, 250);
    assert_eq!(barrier.live(), 3);
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
    },
    /// A link has no barrier yet
    NoBarrier(usize),
    Leave(usize),
    Lose(usize),
    Tick,
    /// All links are silent for a while
    Jump(u64),
}

fn act(inputs: usize) -> impl Strategy<Value = Act> {
    let offset = prop_oneof![6 => -20i64..2_000, 2 => -10_000i64..10_000, 1 => -(1i64 << 45)..0];
    prop_oneof![
        24 => (0..inputs, offset).prop_map(|(input, offset)| Act::Update { input, offset }),
        2 => (0..inputs).prop_map(Act::NoBarrier),
        2 => (0..inputs).prop_map(Act::Leave),
        1 => (0..inputs).prop_map(Act::Lose),
        4 => Just(Act::Tick),
        1 => (0u64..1 << 45).prop_map(Act::Jump),
    ]
}

/// Reference implementation: unwrapped integers, and a minimum over all links every time.
struct Oracle {
    best_effort: Vec<Option<i128>>,
    /// Last barriers of links that have returned and not caught up
    behind: Vec<Option<i128>>,
    updated_at: Vec<u64>,
    /// Reason why a link takes no part
    gone: Vec<Option<Gone>>,
    /// Links that were evicted and not reported
    unreported: Vec<bool>,
    is_started: bool,
    clock: Option<i128>,
    /// Latest time received
    latest: Option<i128>,
    output: Option<i128>,
    ticks: u64,
}

/// Register of a link that has carried no barrier yet
const NEVER: i128 = -1;

impl Oracle {
    fn new(inputs: usize, clock: Option<i128>) -> Self {
        Self {
            unreported: vec![false; inputs],
            is_started: false,
            clock,
            latest: None,
            best_effort: vec![Some(NEVER); inputs],
            behind: vec![None; inputs],
            updated_at: vec![0; inputs],
            gone: vec![None; inputs],
            output: None,
            ticks: 0,
        }
    }

    fn settle(&mut self) {
        self.begin();
        let least = self.best_effort.iter().flatten().min().copied().filter(|&least| least != NEVER);
        self.output = self.output.max(least.filter(|_| self.is_started));
    }

    /// Returns the lower median of the links that take part and the clock.
    fn median(&self) -> i128 {
        let carried = |input: usize| self.behind[input].or(self.best_effort[input]);
        let links = (0..self.best_effort.len()).filter(|&input| self.best_effort[input].is_some());
        let mut voters: Vec<_> = links.filter_map(carried).filter(|&carried| carried != NEVER).collect();
        if let Some(clock) = self.clock {
            let latest = self.latest.unwrap();
            let half = 1 << 47;
            voters.push(latest + (clock - latest + half).rem_euclid(2 * half) - half);
        }
        voters.sort_unstable();
        voters[(voters.len() - 1) / 2]
    }

    fn begin(&mut self) {
        let is_complete = self.best_effort.iter().flatten().all(|&register| register != NEVER);
        if self.is_started || !is_complete || self.best_effort.iter().all(Option::is_none) {
            return;
        }
        self.is_started = true;
        let earliest = self.median() - 2 * 5_000;
        for input in 0..self.best_effort.len() {
            if self.best_effort[input].is_some_and(|register| register < earliest) {
                self.take_out(input, Gone::Evicted);
            }
        }
    }

    fn update(&mut self, input: usize, value: i128) -> UpdateResult {
        let output = self.output.unwrap_or(NEVER);
        let result = match self.best_effort[input] {
            None if value + 5_000 < output
                && (value + 20_000 < output || self.clock.is_none() || value + 5_000 < self.median()) =>
            {
                UpdateResult::TooFarBehind
            }
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
                Act::Update { input, offset } => {
                    time += i128::from(offset.max(0));
                    let value = time + i128::from(offset.min(0));
                    latest = latest.max(value);
                    let result = barrier.update(input, Some(wire(value)));
                    prop_assert_eq!(result, oracle.update(input, value));
                }
                Act::NoBarrier(input) => {
                    prop_assert_eq!(barrier.update(input, None), UpdateResult::NoBarrier);
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
            prop_assert_eq!(barrier.best_effort(), oracle.output.map(wire));
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

/// Returns whether a link is missing: after it was lost, when it is back and behind, and when it has caught up;
/// each at the next tick.
fn missing(bug: Option<Bug>) -> [bool; 4] {
    let mut barrier = Barrier::new(2, LIMITS, None);
    barrier.plant(bug);
    (0..2).for_each(|input| _ = update(&mut barrier, input, 10_000));
    let at_first = barrier.misses();
    assert!(barrier.lose(1));
    update(&mut barrier, 0, 20_000);
    let lost = barrier.misses();
    assert_eq!(update(&mut barrier, 1, 18_000), UpdateResult::Joined);
    barrier.tick(at(20_000));
    let behind = barrier.misses();
    update(&mut barrier, 1, 20_000);
    barrier.tick(at(20_000));
    [at_first, lost, behind, barrier.misses()]
}

#[test]
fn lost_link_is_missing_until_it_has_caught_up() {
    assert_eq!(missing(None), [false, true, true, false]);
    let mut barrier = Barrier::new(2, LIMITS, None);
    assert!(barrier.leave(1) && !barrier.misses(), "nothing follows on it");
    assert!(barrier.lose(0) && barrier.misses());
    assert!(barrier.leave(0) && barrier.misses());
    barrier.tick(at(1));
    assert!(!barrier.misses(), "it has left after all");
}

#[cfg(debug_assertions)]
#[test]
fn link_that_counts_as_returned_at_once_is_found() {
    assert_ne!(missing(Some(Bug::ReturnedAtOnce)), [false, true, true, false]);
}

//! Tests of the checker against an oracle that tries every order, and against histories that were made wrong
//! on purpose.

use super::{Action, Done, Op, Rules, check};
use proptest::prelude::*;
use switch::Rng;

const NO_RULES: Rules = Rules { reads_in_order: false };

fn op(connection: u32, invoked: u64, done: Option<(u64, u64)>, action: Action) -> Op {
    let done = done.map(|(at, fetched)| Done { at, fetched });
    Op { connection, invoked, done, until: u64::MAX, fence: false, action }
}

fn read(connection: u32, invoked: u64, at: u64, fetched: u64) -> Op {
    op(connection, invoked, Some((at, fetched)), Action::Read)
}

fn write(connection: u32, invoked: u64, at: u64, value: u64) -> Op {
    op(connection, invoked, Some((at, 0)), Action::Write(value))
}

fn swap(connection: u32, invoked: u64, at: u64, fetched: u64, (compare, swap): (u64, u64)) -> Op {
    op(connection, invoked, Some((at, fetched)), Action::CompareSwap { compare, swap })
}

fn add(connection: u32, invoked: u64, at: u64, fetched: u64, add: u64) -> Op {
    op(connection, invoked, Some((at, fetched)), Action::FetchAdd(add))
}

/// Returns whether one operation has to precede another one, by the definition.
fn precedes(ops: &[Op], a: usize, b: usize, rules: Rules) -> bool {
    let (first, second) = (&ops[a], &ops[b]);
    if first.done.is_some_and(|done| done.at < second.invoked) {
        return true;
    }
    if first.connection != second.connection || first.invoked > second.invoked || a == b {
        return false;
    }
    let both_read = first.action == Action::Read && second.action == Action::Read;
    first.action != Action::Read || second.fence || (both_read && rules.reads_in_order)
}

/// Returns whether there is an order, by trying all.
fn oracle(ops: &[Op], first: u64, last: u64, rules: Rules) -> bool {
    fn go(ops: &[Op], taken: &mut Vec<bool>, value: u64, last: u64, rules: Rules) -> bool {
        let all = taken.iter().zip(ops).all(|(taken, op)| *taken || op.done.is_none());
        if all && value == last {
            return true;
        }
        for next in 0..ops.len() {
            let waits = |other: usize| !taken[other] && precedes(ops, other, next, rules);
            let op = &ops[next];
            let late = |other: usize| taken[other] && op.done.is_none() && op.until < ops[other].invoked;
            if taken[next] || (0..ops.len()).any(|other| waits(other) || late(other)) {
                continue;
            }
            let fits =
                matches!(op.action, Action::Write(_)) || op.done.is_none_or(|done| done.fetched == value);
            if !fits {
                continue;
            }
            taken[next] = true;
            let found = go(ops, taken, op.after(value), last, rules);
            taken[next] = false;
            if found {
                return true;
            }
        }
        false
    }
    let ops: Vec<Op> =
        ops.iter().copied().filter(|op| op.done.is_some() || op.action != Action::Read).collect();
    go(&ops, &mut vec![false; ops.len()], first, last, rules)
}

/// Generates a linearizable history: operations take effect at a random moment. Either values are few and
/// repeat, or each is written once (`unique`). Also returns the final value of the word.
fn history(rng: &mut Rng, count: u64, connections: u64, unique: bool, unknown: u64) -> (Vec<Op>, u64) {
    let mut open: Vec<(u64, usize)> = Vec::new();
    let mut ops: Vec<Op> = Vec::new();
    let (mut clock, mut value) = (0, 0);
    let mut happened: Vec<Option<u64>> = Vec::new();
    let mut seen = vec![0];
    while (ops.len() as u64) < count || !open.is_empty() {
        clock += 1;
        let begin = (ops.len() as u64) < count && (open.is_empty() || rng.below(2) == 0);
        if begin {
            let connection = rng.below(connections);
            let fresh = if unique { 1000 + ops.len() as u64 } else { rng.below(3) };
            let guess = *rng.pick(&seen);
            let action = match rng.below(4) {
                0 => Action::Read,
                1 => Action::Write(fresh),
                2 => Action::CompareSwap { compare: guess, swap: fresh },
                _ => Action::FetchAdd(if unique { rng.bits() >> 24 } else { rng.below(3) }),
            };
            open.push((connection, ops.len()));
            ops.push(op(connection as u32, clock, None, action));
            happened.push(None);
            continue;
        }
        // Of a random connection, either the oldest pending operation takes effect, or the oldest effective
        // one completes.
        let (connection, _) = *rng.pick(&open);
        let of: Vec<usize> =
            open.iter().filter(|(other, _)| *other == connection).map(|(_, op)| *op).collect();
        let next = of.iter().find(|op| happened[**op].is_none()).copied();
        let end = happened[of[0]].is_some() && (next.is_none() || rng.below(2) == 0);
        if let (false, Some(next)) = (end, next) {
            happened[next] = Some(value);
            value = ops[next].after(value);
            seen.push(value);
        } else {
            ops[of[0]].done = happened[of[0]].map(|fetched| Done { at: clock, fetched });
            open.retain(|(_, op)| *op != of[0]);
        }
    }
    // The outcomes of the last operations of a connection become unknown.
    for connection in 0..connections as u32 {
        if rng.below(100) < unknown {
            let of: Vec<usize> = (0..ops.len()).filter(|op| ops[*op].connection == connection).collect();
            let ends = rng.below(2) == 0;
            for op in of.iter().rev().take(rng.below(4) as usize) {
                let done = ops[*op].done.take().filter(|_| ends);
                ops[*op].until = done.map_or(u64::MAX, |done| done.at + rng.below(4));
            }
        }
    }
    (ops, value)
}

/// Makes a random change to a history, which may make it wrong.
fn corrupt(rng: &mut Rng, ops: &mut [Op], last: &mut u64) {
    let values: Vec<u64> = ops.iter().filter_map(|op| op.done).map(|done| done.fetched).collect();
    if values.is_empty() || rng.below(8) == 0 {
        *last = last.wrapping_add(rng.below(3));
        return;
    }
    let value = *rng.pick(&values);
    let index = rng.below(ops.len() as u64) as usize;
    let op = &mut ops[index];
    match (rng.below(3), &mut op.done) {
        (0, Some(done)) => done.at = done.at.saturating_sub(rng.below(6)).max(op.invoked),
        (1, done) => *done = None,
        (_, Some(done)) => done.fetched = value,
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn check_agrees_with_the_oracle(
        seed: u64, count in 1u64..8, connections in 1u64..5, unique: bool, fences: bool, reads_in_order: bool,
        corruptions in 0u64..3, unknown in prop::sample::select(vec![0u64, 0, 50, 100]),
    ) {
        let mut rng = Rng::new(seed);
        let (mut ops, mut last) = history(&mut rng, count, connections, unique, unknown);
        for _ in 0..corruptions {
            corrupt(&mut rng, &mut ops, &mut last);
        }
        if fences {
            for op in &mut ops {
                op.fence = rng.below(3) == 0;
            }
        }
        let rules = Rules { reads_in_order };
        let result = check(&ops, 0, last, rules);
        prop_assert_eq!(result.is_ok(), oracle(&ops, 0, last, rules), "{:#?}, {}: {:?}", ops, last, result);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_generated_history_is_accepted(
        seed: u64, count in 1u64..400, connections in 1u64..40, unique: bool,
        unknown in prop::sample::select(vec![0u64, 0, 20]),
    ) {
        let mut rng = Rng::new(seed);
        // Few values that repeat, and unknown writers, take exponential time.
        let count = if unique { count } else { count.min(12) };
        let (ops, last) = history(&mut rng, count, connections, unique, unknown);
        let result = check(&ops, 0, last, Rules { reads_in_order: true });
        prop_assert_eq!(result, Ok(()), "{:#?}", ops);
    }
}

#[test]
fn non_linearizable_histories_are_rejected() {
    let wrong = |ops: &[Op], last| check(ops, 0, last, NO_RULES).unwrap_err();
    let fine = |ops: &[Op], last| assert_eq!(check(ops, 0, last, NO_RULES), Ok(()));
    // A stale READ
    fine(&[write(1, 0, 1, 5), read(2, 2, 3, 5)], 5);
    wrong(&[write(1, 0, 1, 5), read(2, 2, 3, 0)], 5);
    fine(&[write(1, 0, 3, 5), read(2, 1, 2, 0)], 5);
    // READs that go back in time
    let back = [write(1, 0, 9, 5), read(2, 1, 2, 5), read(2, 3, 4, 0)];
    wrong(&back, 5);
    // A lock with two holders
    let locked = [swap(1, 0, 4, 0, (0, 1)), swap(2, 1, 5, 0, (0, 2))];
    wrong(&locked, 2);
    fine(&[locked[0], write(1, 2, 6, 0), locked[1]], 2);
    wrong(&[locked[0], write(1, 7, 8, 0), locked[1]], 0);
    // Executed twice, lost, never executed
    wrong(&[add(1, 0, 1, 0, 7)], 14);
    wrong(&[add(1, 0, 1, 0, 7)], 0);
    wrong(&[add(1, 0, 5, 0, 7), add(2, 1, 4, 0, 9)], 9);
    wrong(&[read(1, 0, 1, 3)], 0);
    // A failed `CmpSwap` that changed the word, and one that should have succeeded
    wrong(&[swap(1, 0, 1, 0, (9, 1))], 1);
    wrong(&[swap(1, 0, 1, 0, (0, 1))], 0);
    // A release that overtakes an earlier WRITE of its connection
    let overtaken = [write(1, 0, 5, 7), write(1, 1, 6, 0)];
    fine(&overtaken, 0);
    wrong(&overtaken, 7);
    // The memory at the end
    fine(&[write(1, 0, 5, 7), write(2, 1, 6, 8)], 7);
    wrong(&[write(1, 0, 5, 7), write(2, 1, 6, 8)], 0);
}

#[test]
fn operations_of_a_connection_keep_their_order() {
    // A WRITE and a later operation
    let ops = [write(1, 0, 5, 7), read(1, 1, 6, 0)];
    assert!(check(&ops, 0, 7, NO_RULES).is_err());
    assert_eq!(check(&[ops[0], Op { connection: 2, ..ops[1] }], 0, 7, NO_RULES), Ok(()));
    // A READ may return what a later operation wrote, unless there is a fence.
    let ops = [read(1, 0, 5, 7), write(1, 1, 6, 7)];
    assert_eq!(check(&ops, 0, 7, NO_RULES), Ok(()));
    assert!(check(&[ops[0], Op { fence: true, ..ops[1] }], 0, 7, NO_RULES).is_err());
    // The fence of an operation without any effect counts, too.
    let nothing = Op { fence: true, ..op(1, 1, None, Action::CompareSwap { compare: 9, swap: 9 }) };
    let ops = [read(1, 0, 5, 7), nothing, write(1, 2, 6, 7)];
    assert!(check(&ops, 0, 7, NO_RULES).is_err());
    assert_eq!(check(&[ops[0], Op { fence: false, ..nothing }, ops[2]], 0, 7, NO_RULES), Ok(()));
    // Two READs
    let ops = [write(2, 0, 9, 7), read(1, 1, 5, 7), read(1, 2, 6, 0)];
    assert_eq!(check(&ops, 0, 7, NO_RULES), Ok(()));
    assert!(check(&ops, 0, 7, Rules { reads_in_order: true }).is_err());
}

#[test]
fn operations_with_unknown_outcomes_may_take_effect_once_or_never() {
    let maybe = |connection, invoked, action| op(connection, invoked, None, action);
    let swap = Action::CompareSwap { compare: 0, swap: 5 };
    for last in [0, 5] {
        assert_eq!(check(&[maybe(1, 0, swap)], 0, last, NO_RULES), Ok(()));
        assert_eq!(check(&[maybe(1, 0, Action::Write(5))], 0, last, NO_RULES), Ok(()));
        assert_eq!(check(&[maybe(1, 0, Action::FetchAdd(5))], 0, last, NO_RULES), Ok(()));
    }
    assert!(check(&[maybe(1, 0, swap)], 0, 10, NO_RULES).is_err());
    assert!(
        check(&[maybe(1, 0, Action::FetchAdd(5))], 0, 10, NO_RULES).is_err(),
        "the addition took effect twice"
    );
    // Not before it was posted
    assert!(check(&[read(2, 0, 1, 5), maybe(1, 2, swap)], 0, 5, NO_RULES).is_err());
    // Long afterwards, unless its connection was gone by then
    let late = [maybe(1, 0, swap), read(2, 1, 3, 0), read(2, 4, 5, 5)];
    assert_eq!(check(&late, 0, 5, NO_RULES), Ok(()));
    let over_at = |until| [Op { until, ..late[0] }, late[1], late[2]];
    assert_eq!(check(&over_at(2), 0, 5, NO_RULES), Ok(()));
    let late = [maybe(1, 0, swap), read(2, 3, 4, 0), read(2, 5, 6, 5)];
    assert!(check(&[Op { until: 2, ..late[0] }, late[1], late[2]], 0, 5, NO_RULES).is_err());
    // The second took effect, so the first did.
    let both = [maybe(1, 0, Action::FetchAdd(1)), maybe(1, 1, Action::FetchAdd(10))];
    assert_eq!(check(&both, 0, 11, NO_RULES), Ok(()));
    assert_eq!(check(&both, 0, 1, NO_RULES), Ok(()));
    assert!(check(&both, 0, 10, NO_RULES).is_err());
    // An operation with an unknown outcome explains only its own effect.
    assert!(check(&[maybe(1, 0, Action::FetchAdd(5)), add(2, 1, 2, 3, 1)], 0, 4, NO_RULES).is_err());
    assert!(check(&[maybe(1, 0, Action::FetchAdd(5)), add(2, 1, 2, 0, 1)], 0, 9, NO_RULES).is_err());
    // Sums of several additions
    let adds: Vec<Op> = (0..12).map(|n| maybe(n, n.into(), Action::FetchAdd(1 << n))).collect();
    for last in [0, 1, 0b101, 0b1010_0101, 0xfff] {
        assert_eq!(check(&adds, 0, last, NO_RULES), Ok(()), "{last}");
    }
}

/// An addition that was posted last has to come first; otherwise the second `CmpSwap` would have succeeded.
#[test]
fn unknown_operations_may_take_effect_in_any_order_across_connections() {
    let maybe = |connection, invoked, action| op(connection, invoked, None, action);
    let swap = |compare, swap| Action::CompareSwap { compare, swap };
    let [a, b, c] = [1 << 56, 2 << 56, 3 << 56];
    let mut ops = vec![
        maybe(1, 0, Action::Write(a)),
        maybe(1, 1, swap(a, b)),
        maybe(1, 2, swap(b, c)),
        maybe(1, 3, Action::FetchAdd(0x8)),
        maybe(2, 4, Action::FetchAdd(0x40)),
        maybe(2, 5, Action::FetchAdd(0x100)),
    ];
    // Many other operations without observed effects
    for n in 0..60 {
        let connection = 3 + n / 4;
        let at = 10 + 2 * u64::from(n);
        ops.push(maybe(connection, at, Action::Write((u64::from(n) + 4) << 56)));
        ops.push(maybe(connection, at + 1, Action::FetchAdd(1 << (12 + n % 30))));
    }
    assert_eq!(check(&ops, 0, b + 0x148, NO_RULES), Ok(()));
    assert!(check(&ops[..4], 0, b + 0x8, NO_RULES).is_err(), "the other additions are missing");
}

#[test]
fn long_histories_of_one_word_are_checked_quickly() {
    for (seed, unknown) in [(1, 0), (2, 10)] {
        let mut rng = Rng::new(seed);
        let (mut ops, last) = history(&mut rng, 10_000, 256, true, unknown);
        assert_eq!(check(&ops, 0, last, NO_RULES), Ok(()));
        // One wrong value
        let seen: Vec<usize> =
            (0..ops.len()).filter(|op| ops[*op].action == Action::Read && ops[*op].done.is_some()).collect();
        let (a, b) = (seen[seen.len() / 2], seen[seen.len() / 4]);
        ops[a].done = ops[a].done.map(|done| Done { fetched: ops[b].done.unwrap().fetched, ..done });
        check(&ops, 0, last, NO_RULES).unwrap_err();
    }
}

#[test]
fn long_histories_of_one_lock_are_checked_quickly() {
    // The holder releases the lock while all others try to take it, and everything overlaps.
    let mut rng = Rng::new(3);
    let (mut clock, mut ops, mut holder) = (0, Vec::new(), 0);
    for section in 1..3000 {
        let from = clock;
        let tries = rng.below(60);
        ops.push(swap(
            section as u32 % 64,
            from + rng.below(50),
            from + 300 + rng.below(50),
            0,
            (0, section),
        ));
        holder = section;
        for _ in 0..tries {
            let other = 64 + rng.below(64);
            let (at, end) = (from + rng.below(150), from + 350 + rng.below(100));
            ops.push(swap(other as u32, at, end, section, (0, 1 << 40 | clock)));
            clock += 1;
        }
        ops.push(write(section as u32 % 64, from + 360, from + 700, 0));
        clock = from + 500;
    }
    assert_eq!(check(&ops, 0, 0, NO_RULES), Ok(()), "{holder}");
    let middle =
        ops.iter().position(|op| op.action == Action::CompareSwap { compare: 0, swap: 1500 }).unwrap();
    ops[middle].done = ops[middle].done.map(|done| Done { fetched: 7, ..done });
    check(&ops, 0, 0, NO_RULES).unwrap_err();
}

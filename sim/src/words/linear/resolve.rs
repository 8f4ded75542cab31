//! What became of operations with an unknown outcome, as far as others have seen it.

use super::items::{Effect, Item};
use std::collections::{BTreeMap, BTreeSet};
use switch::table::mix;

/// Additions whose sum is looked for, at most
const SUM: usize = 4;
/// Bits of a sum of powers of two
const POWERS: u32 = 40;
/// Sums that are looked at, at most
const SUMS: u32 = 20_000;

/// Decides for each operation with an unknown outcome whether it happened, and what it found. What comes of it is one
/// possibility, and the likely one: values that were written once say who wrote them.
pub(super) fn resolve(items: &[Item], first: u64) -> Vec<Item> {
    let mut items = items.to_vec();
    if items.iter().all(|item| item.must) {
        return items;
    }
    while settle(&mut items) || sum_up(&mut items, first) {}
    leave_out(items)
}

/// How many may leave each value
fn writers(items: &[Item]) -> BTreeMap<u64, u32> {
    let mut writers = BTreeMap::new();
    for value in items.iter().filter_map(Item::leaves) {
        *writers.entry(value).or_insert(0) += 1;
    }
    writers
}

/// Values that somebody has found
fn found(items: &[Item]) -> BTreeSet<u64> {
    items.iter().filter(|item| item.must).filter_map(Item::finds).collect()
}

/// Those happened whose value was found, and is nobody else's. Whether there was one more.
fn settle(items: &mut [Item]) -> bool {
    let (writers, found) = (writers(items), found(items));
    let mut any = false;
    for item in items.iter_mut().filter(|item| !item.must) {
        if !item.leaves().is_some_and(|value| found.contains(&value) && writers.get(&value) == Some(&1)) {
            continue;
        }
        if let Effect::MaybeSwap(compare, swap) = item.effect {
            item.effect = Effect::Swap(compare, swap);
        }
        item.must = true;
        any = true;
    }
    any
}

/// Values that were found and that nobody left come from additions. Whether there was one.
fn sum_up(items: &mut [Item], first: u64) -> bool {
    let mut left: BTreeSet<u64> = writers(items).into_keys().collect();
    left.insert(first);
    let adds: Vec<(usize, u64)> = items
        .iter()
        .enumerate()
        .filter_map(|(number, item)| match item.effect {
            Effect::MaybeAdd(add) => Some((number, add)),
            _ => None,
        })
        .collect();
    if adds.is_empty() {
        return false;
    }
    let strange: Vec<u64> = found(items).into_iter().filter(|value| !left.contains(value)).collect();
    let single = strange.iter().filter_map(|value| Some((*value, powers(&adds, *value, &left)?)));
    // The fewest first: between the others may be values that these lead to.
    let chosen = single.min_by_key(|(_, chosen)| chosen.len()).or_else(|| {
        let counts = 1..=SUM.min(adds.len());
        let mut tries = counts.flat_map(|count| strange.iter().map(move |value| (count, *value)));
        tries.find_map(|(count, value)| {
            let mut chosen = Vec::new();
            choose(&adds, count, value, &left, &mut chosen, &mut 0).then_some((value, chosen))
        })
    });
    let Some((mut value, chosen)) = chosen else { return false };
    for (number, add) in chosen.into_iter().rev() {
        let before = value.wrapping_sub(add);
        (items[number].effect, items[number].must) = (Effect::Swap(before, value), true);
        value = before;
    }
    true
}

/// Where additions are powers of two, their sum says which they are: the fewest that lead to `value` from one that
/// somebody left, in the order in which they were posted.
fn powers(adds: &[(usize, u64)], value: u64, left: &BTreeSet<u64>) -> Option<Vec<(usize, u64)>> {
    let of_bit = |bit: u32| adds.iter().find(|(_, add)| *add == 1 << bit).copied();
    let near = left.range(..value).rev().take_while(|from| (value - *from) >> POWERS == 0);
    let chosen = near.filter_map(|from| {
        let sum = value - from;
        let mut chosen: Vec<(usize, u64)> =
            (0..POWERS).filter(|bit| sum >> bit & 1 == 1).map(of_bit).collect::<Option<_>>()?;
        chosen.sort_unstable();
        Some(chosen)
    });
    chosen.min_by_key(Vec::len)
}

/// So many of the additions that lead to `value` from one that somebody left; in the order in which they were posted.
fn choose(
    adds: &[(usize, u64)],
    count: usize,
    value: u64,
    left: &BTreeSet<u64>,
    chosen: &mut Vec<(usize, u64)>,
    tried: &mut u32,
) -> bool {
    if count == 0 {
        return left.contains(&value);
    }
    for (at, add) in adds.iter().enumerate() {
        *tried += 1;
        if *tried > SUMS {
            return false;
        }
        chosen.push(*add);
        if choose(&adds[at + 1..], count - 1, value.wrapping_sub(add.1), left, chosen, tried) {
            return true;
        }
        chosen.pop();
    }
    false
}

/// Leaves out what nobody has seen, unless something that its connection posted later was seen.
fn leave_out(items: Vec<Item>) -> Vec<Item> {
    let mut kept = vec![false; items.len()];
    for number in (0..items.len()).rev() {
        let item = &items[number];
        kept[number] = item.must || item.after.iter().any(|after| kept[*after as usize]);
    }
    let mut numbers = vec![0; items.len()];
    let mut count = 0;
    for (number, kept) in numbers.iter_mut().zip(&kept) {
        *number = count;
        count += u32::from(*kept);
    }
    let mut known: BTreeSet<u64> = items.iter().filter_map(Item::leaves).collect();
    known.extend(found(&items));
    let mut nothing = 0;
    let mut fresh = || {
        loop {
            nothing += 1;
            let value = mix(mix(nothing));
            if known.insert(value) {
                return value;
            }
        }
    };
    let of_kept = |(_, item): (usize, Item)| Item {
        after: item
            .after
            .iter()
            .filter(|after| kept[**after as usize])
            .map(|after| numbers[*after as usize])
            .collect(),
        must: true,
        effect: match item.effect {
            // Nobody has found what it leaves: any value is as good.
            Effect::MaybeAdd(_) => Effect::Write(fresh()),
            Effect::MaybeSwap(compare, _) => Effect::Unseen(compare),
            effect => effect,
        },
        ..item
    };
    let items: Vec<Item> =
        items.into_iter().enumerate().filter(|(number, _)| kept[*number]).map(of_kept).collect();
    let mut linked = items.clone();
    for (item, of) in linked.iter_mut().zip(&items) {
        // What has no place of its own in the order passes on what it waits for.
        let mut unseen: Vec<u32> = of.after.clone();
        while let Some(after) = unseen.pop() {
            let after = &items[after as usize];
            if matches!(after.effect, Effect::Unseen(_)) {
                item.after.extend(&after.after);
                unseen.extend(&after.after);
            }
        }
    }
    linked
}

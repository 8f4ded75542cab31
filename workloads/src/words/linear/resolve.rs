//! Outcomes of operations with unknown outcomes, as far as other operations reveal them.

use super::items::{Effect, Item};
use std::collections::{BTreeMap, BTreeSet};
use switch::table::mix;

/// Number of additions in a sum at most, if they are not powers of two
const MAX_ADDENDS: usize = 4;
/// Bits of a sum of powers of two
const POWER_BITS: u32 = 45;
/// Number of sums tried at most
const MAX_SUMS: u32 = 20_000;

/// Decides for each operation with an unknown outcome whether it took effect, and what it found. Returns one
/// possible history, the likely one: a value that was written once identifies its writer. If several
/// operations qualify, or several orders, higher `attempt`s decide differently. Also returns whether there
/// was such an ambiguity.
pub(super) fn resolve(items: &[Item], first: u64, attempt: u64) -> (Vec<Item>, bool) {
    let mut items = items.to_vec();
    if items.iter().all(|item| item.required) {
        return (items, false);
    }
    let mut ambiguous = false;
    while mark_observed(&mut items) || explain_by_additions(&mut items, first, attempt, &mut ambiguous) {}
    (drop_unobserved(items), ambiguous)
}

/// Returns how many operations may leave each value.
fn writers(items: &[Item]) -> BTreeMap<u64, u32> {
    let mut writers = BTreeMap::new();
    for value in items.iter().filter_map(Item::leaves) {
        *writers.entry(value).or_insert(0) += 1;
    }
    writers
}

/// Returns the values that operations have found.
fn found(items: &[Item]) -> BTreeSet<u64> {
    items.iter().filter(|item| item.required).filter_map(Item::finds).collect()
}

/// Marks operations that took effect because their value was found and no other operation leaves it. Returns
/// whether there was one.
fn mark_observed(items: &mut [Item]) -> bool {
    let (writers, found) = (writers(items), found(items));
    let mut any = false;
    for item in items.iter_mut().filter(|item| !item.required) {
        if !item.leaves().is_some_and(|value| found.contains(&value) && writers.get(&value) == Some(&1)) {
            continue;
        }
        if let Effect::MaybeSwap(compare, swap) = item.effect {
            item.effect = Effect::Swap(compare, swap);
        }
        item.required = true;
        any = true;
    }
    any
}

/// Returns which items took effect because a later item of their connection did.
fn forced(items: &[Item]) -> Vec<bool> {
    let mut forced = vec![false; items.len()];
    for number in (0..items.len()).rev() {
        let item = &items[number];
        forced[number] = item.required || item.after.iter().any(|after| forced[*after as usize]);
    }
    forced
}

/// Explains a value that was found but that no operation leaves as a sum of additions. Returns whether there
/// was one.
fn explain_by_additions(items: &mut [Item], first: u64, attempt: u64, ambiguous: &mut bool) -> bool {
    let mut left: BTreeSet<u64> = writers(items).into_keys().collect();
    left.insert(first);
    let forced = forced(items);
    let mut adds: Vec<Addition> = Vec::new();
    for (item, prepared) in items.iter().enumerate() {
        if let Effect::MaybeAdd(add) = prepared.effect {
            adds.push(Addition { item, add, invoked: prepared.invoked, forced: forced[item] });
        }
    }
    if adds.is_empty() {
        return false;
    }
    let unwritten: Vec<u64> = found(items).into_iter().filter(|value| !left.contains(value)).collect();
    // A value that another operation has replaced cannot be added to any more.
    for item in items.iter().filter(|item| item.required) {
        if let Effect::Swap(found, _) = item.effect {
            left.remove(&found);
        }
    }
    let powers = unwritten.iter().filter_map(|value| {
        let of_value = items.iter().filter(|item| item.required && item.finds() == Some(*value));
        let seen_at = of_value.map(|item| item.returned).min().unwrap_or(u64::MAX);
        let adds: Vec<_> = adds.iter().copied().filter(|add| add.invoked < seen_at).collect();
        let (chosen, choices) = powers(&adds, *value, &left, attempt)?;
        Some((choices, *value, chosen))
    });
    // Unambiguous sums first, then the shortest ones: they may produce intermediate values for the others.
    let chosen = powers.min_by_key(|(choices, _, chosen)| (*choices, chosen.len())).or_else(|| {
        let counts = 1..=MAX_ADDENDS.min(adds.len());
        let mut tries = counts.flat_map(|count| unwritten.iter().map(move |value| (count, *value)));
        tries.find_map(|(count, value)| {
            let mut chosen = Vec::new();
            choose(&adds, count, value, &left, &mut chosen, &mut 0).then_some((0, value, chosen))
        })
    });
    let Some((choices, mut value, mut chosen)) = chosen else { return false };
    *ambiguous |= choices > 0 || chosen.len() > 1;
    if attempt > 0 {
        // They need not have taken effect in the order in which they were posted; another order may be right.
        chosen.sort_by_key(|addition| mix(mix(value ^ attempt << 16 | addition.item as u64)));
    }
    for addition in chosen.into_iter().rev() {
        let before = value.wrapping_sub(addition.add);
        let item = &mut items[addition.item];
        (item.effect, item.required) = (Effect::Swap(before, value), true);
        value = before;
    }
    true
}

/// An addition with an unknown outcome.
#[derive(Clone, Copy, Debug)]
struct Addition {
    item: usize,
    add: u64,
    invoked: u64,
    forced: bool,
}

/// Explains `value` by additions of powers of two, whose sum identifies them. Returns the fewest that lead to
/// `value` from a value that was left, in the order in which they were posted, and the number of bits for
/// which there was a choice.
fn powers(
    adds: &[Addition],
    value: u64,
    left: &BTreeSet<u64>,
    attempt: u64,
) -> Option<(Vec<Addition>, usize)> {
    let near = left.range(..value).rev().take_while(|from| (value - *from) >> POWER_BITS == 0);
    let sum = near.map(|from| value - from).min_by_key(|sum| sum.count_ones())?;
    let (mut chosen, mut choices) = (Vec::new(), 0);
    for bit in (0..POWER_BITS).filter(|bit| sum >> bit & 1 == 1) {
        let of_bit: Vec<&Addition> = adds.iter().filter(|add| add.add == 1 << bit).collect();
        choices += usize::from(of_bit.len() > 1);
        let likely = of_bit.iter().position(|add| add.forced).unwrap_or(0);
        let draw = mix(mix(value ^ attempt << 8 | u64::from(bit)));
        let other = attempt > 0 && draw & 1 == 1;
        let index = if other { (draw >> 8) as usize % of_bit.len().max(1) } else { likely };
        chosen.push(**of_bit.get(index)?);
    }
    chosen.sort_unstable_by_key(|addition| addition.item);
    Some((chosen, choices))
}

/// Finds `count` additions that lead to `value` from a value that was left, in the order in which they were
/// posted. Returns whether there are any.
fn choose(
    adds: &[Addition],
    count: usize,
    value: u64,
    left: &BTreeSet<u64>,
    chosen: &mut Vec<Addition>,
    tried: &mut u32,
) -> bool {
    if count == 0 {
        return left.contains(&value);
    }
    for (at, add) in adds.iter().enumerate() {
        *tried += 1;
        if *tried > MAX_SUMS {
            return false;
        }
        chosen.push(*add);
        if choose(&adds[at + 1..], count - 1, value.wrapping_sub(add.add), left, chosen, tried) {
            return true;
        }
        chosen.pop();
    }
    false
}

/// Removes operations whose effects were not observed, unless a later operation of the same connection was.
fn drop_unobserved(items: Vec<Item>) -> Vec<Item> {
    let kept = forced(&items);
    let mut numbers = vec![0; items.len()];
    let mut count = 0;
    for (number, kept) in numbers.iter_mut().zip(&kept) {
        *number = count;
        count += u32::from(*kept);
    }
    let mut known: BTreeSet<u64> = items.iter().filter_map(Item::leaves).collect();
    known.extend(found(&items));
    let mut counter = 0;
    let mut fresh = || {
        loop {
            counter += 1;
            let value = mix(mix(counter));
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
        required: true,
        effect: match item.effect {
            // No operation has found what it leaves, so any unused value will do.
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
        // An item without a position of its own passes its successors on to its predecessors.
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

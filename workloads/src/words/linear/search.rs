//! The search for an order.

use super::clusters::Clusters;
use super::items::{Effect, Item};
use super::stuck::Stuck;
use std::collections::{BTreeMap, HashSet};
use switch::table::mix;

/// Steps per item, and steps for any history, before the search gives up
const STEPS_PER_ITEM: u64 = 4;
const MIN_STEPS: u64 = 20_000;
/// Number of operations that an error message lists
const LISTED: usize = 6;
/// Number of a value that no item finds or leaves by itself
const OTHER: u32 = u32::MAX;

/// Result of a search.
#[derive(Debug)]
pub(super) enum Found {
    /// There is an order
    Order,
    /// There is no order
    None(Stuck),
    /// The search was given up
    Undecided(Stuck),
}

/// A possible next item, and the word's value after it. The smallest choice is tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Choice {
    rank: u8,
    first_return: u64,
    item: u32,
    value: u64,
    /// Whether the item is assumed not to have taken effect
    dropped: bool,
}

/// A state to which the search can backtrack.
#[derive(Debug)]
struct Fork {
    done: usize,
    /// Untried choices; the next one is the last
    choices: Vec<Choice>,
}

/// Doubly linked list of items, which are removed and restored in opposite order. The last entry is the head.
#[derive(Debug)]
struct List {
    next: Vec<u32>,
    prev: Vec<u32>,
}

impl List {
    fn new(len: usize, items: impl Iterator<Item = u32>) -> Self {
        let mut list = Self { next: vec![0; len + 1], prev: vec![0; len + 1] };
        let mut end = len as u32;
        for item in items {
            (list.next[end as usize], list.prev[item as usize]) = (item, end);
            end = item;
        }
        (list.next[end as usize], list.prev[len]) = (len as u32, end);
        list
    }

    fn head(&self) -> u32 {
        self.next.len() as u32 - 1
    }

    fn first(&self) -> u32 {
        self.next[self.head() as usize]
    }

    fn take(&mut self, item: u32) {
        let (prev, next) = (self.prev[item as usize], self.next[item as usize]);
        (self.next[prev as usize], self.prev[next as usize]) = (next, prev);
    }

    fn put_back(&mut self, item: u32) {
        let (prev, next) = (self.prev[item as usize], self.next[item as usize]);
        (self.next[prev as usize], self.prev[next as usize]) = (item, item);
    }
}

/// State of a search.
#[derive(Debug)]
pub(super) struct Search<'a> {
    items: &'a [Item],
    /// Remaining items, by posting time
    posted: List,
    /// Remaining items with a latest moment, by that moment
    returned: List,
    /// Number of remaining items that have to precede each item
    waits: Vec<u32>,
    clusters: Clusters,
    /// Numbers of values
    values: BTreeMap<u64, u32>,
    /// Number of the value that each item has to find
    finds: Vec<u32>,
    leaves: Vec<u32>,
    /// Number of remaining items that have to find each value
    wanted: Vec<u32>,
    writers: Vec<u32>,
    /// Number of remaining additions, which may leave any value
    adders: u32,
    /// Number of remaining items that have to be in the order
    remaining: usize,
    value: u64,
    number: u32,
    /// Placed items: the item, the word's value before it with its number, and whether the item was dropped
    /// instead
    trail: Vec<(u32, u64, u32, bool)>,
    /// Hash of the set of placed items
    hash: [u64; 2],
    seen: HashSet<([u64; 2], u64)>,
    /// Whether every value is left once and all outcomes are known: only the order of clusters is to be
    /// chosen, and any choice is right
    is_deterministic: bool,
    stuck: Stuck,
    /// A value that no item finds or leaves
    unused_value: u64,
    /// Items that may change the value next; kept for its capacity
    changes: Vec<u32>,
}

impl<'a> Search<'a> {
    pub(super) fn new(items: &'a [Item], first: u64) -> Self {
        let len = items.len();
        let mut values: BTreeMap<u64, u32> = BTreeMap::from([(first, 0)]);
        let mut number = |value: Option<u64>| {
            value.map_or(OTHER, |value| {
                let next = values.len() as u32;
                *values.entry(value).or_insert(next)
            })
        };
        let finds: Vec<u32> =
            items.iter().map(|item| number(item.finds().filter(|_| item.required))).collect();
        let leaves: Vec<u32> = items.iter().map(|item| number(item.leaves())).collect();
        let (mut wanted, mut writers) = (vec![0; values.len()], vec![0; values.len()]);
        finds.iter().filter(|value| **value != OTHER).for_each(|value| wanted[*value as usize] += 1);
        leaves.iter().filter(|value| **value != OTHER).for_each(|value| writers[*value as usize] += 1);
        let mut waits = vec![0; len];
        items.iter().flat_map(|item| &item.after).for_each(|after| waits[*after as usize] += 1);
        let mut by_return: Vec<u32> =
            (0..len as u32).filter(|item| items[*item as usize].returned != u64::MAX).collect();
        by_return.sort_by_key(|item| items[*item as usize].returned);
        let adders = items.iter().filter(|item| matches!(item.effect, Effect::MaybeAdd(_))).count() as u32;
        let is_deterministic = writers[0] == 0
            && writers.iter().all(|writers| *writers <= 1)
            && items.iter().all(|item| item.required && !matches!(item.effect, Effect::MaybeSwap(..)))
            && adders == 0;
        let mut unused_value = mix(len as u64);
        let compared = |item: &Item, value| item.effect == Effect::Unseen(value);
        while values.contains_key(&unused_value) || items.iter().any(|item| compared(item, unused_value)) {
            unused_value = unused_value.wrapping_add(1);
        }
        Self {
            items,
            posted: List::new(len, 0..len as u32),
            returned: List::new(len, by_return.into_iter()),
            waits,
            clusters: Clusters::new(items, first),
            values,
            finds,
            leaves,
            wanted,
            writers,
            adders,
            remaining: items.iter().filter(|item| item.required).count(),
            value: first,
            number: 0,
            trail: Vec::new(),
            hash: [0; 2],
            seen: HashSet::new(),
            is_deterministic,
            stuck: Stuck { value: first, ..Stuck::default() },
            unused_value,
            changes: Vec::new(),
        }
    }

    /// Searches for an order.
    pub(super) fn run(mut self) -> Found {
        let unwritten = |item: &usize| {
            let value = self.finds[*item];
            value != OTHER && value != 0 && self.writers[value as usize] == 0
        };
        if self.adders == 0
            && let Some(item) = (0..self.items.len()).find(unwritten)
        {
            // No operation wrote the value that this item found.
            (self.stuck.next, self.stuck.unwritten) = (Some(item as u32), true);
            return Found::None(self.stuck);
        }
        let mut steps_left = MIN_STEPS + STEPS_PER_ITEM * self.items.len() as u64;
        let mut forks: Vec<Fork> = Vec::new();
        loop {
            let mut choices = self.place_reads();
            if self.remaining == 0 {
                return Found::Order;
            }
            if choices.len() > 1 && !self.seen.insert((self.hash, self.value)) {
                choices.clear();
            }
            if choices.len() > 1 {
                choices.sort_by(|a, b| b.cmp(a));
            }
            let mut next = choices.pop();
            if next.is_some() && !choices.is_empty() {
                forks.push(Fork { done: self.trail.len(), choices });
            }
            if next.is_none() || steps_left == 1 {
                self.record_progress();
            }
            while next.is_none() {
                let Some(fork) = forks.last_mut() else { return Found::None(self.stuck) };
                let done = fork.done;
                next = fork.choices.pop();
                if fork.choices.is_empty() {
                    forks.pop();
                }
                self.back_to(done);
            }
            let Some(choice) = next else { return Found::None(self.stuck) };
            steps_left -= 1;
            if steps_left == 0 {
                return Found::Undecided(self.stuck);
            }
            self.take(choice.item, choice.value, choice.dropped);
        }
    }

    /// Passes once over all items that may come next: places READs of the present value, and returns all
    /// others as choices.
    fn place_reads(&mut self) -> Vec<Choice> {
        let mut changes = core::mem::take(&mut self.changes);
        let mut at = self.posted.first();
        while at != self.posted.head() {
            let item = &self.items[at as usize];
            let earliest = self.returned.first();
            if earliest != self.returned.head() && item.invoked > self.items[earliest as usize].returned {
                break;
            }
            let next = self.posted.next[at as usize];
            if self.waits[at as usize] == 0 {
                match item.effect {
                    Effect::Read(found) if found == self.value => self.take(at, self.value, false),
                    Effect::Unseen(compare) if compare != self.value => self.take(at, self.value, false),
                    Effect::Read(_) => {}
                    Effect::Swap(found, _) if found != self.value => {}
                    _ => changes.push(at),
                }
            }
            at = next;
        }
        // Evaluated only now, because the items placed meanwhile do not need their values any more.
        let mut choices: Vec<Choice> = changes
            .drain(..)
            .filter_map(|item| self.choice(item))
            .filter(|choice| self.may_change(choice))
            .chain(self.drop_next())
            .collect();
        self.changes = changes;
        if self.is_deterministic {
            self.keep_best_choice(&mut choices);
        }
        choices
    }

    /// Returns the choice to drop the next item with a latest moment, if its outcome is unknown and no later
    /// item of its connection took effect.
    fn drop_next(&self) -> Option<Choice> {
        let item = self.items.get(self.returned.first() as usize).filter(|item| !item.required)?;
        let wanted = |leaves: u32| leaves != OTHER && self.wanted[leaves as usize] > 0;
        let rank = if wanted(self.leaves[self.returned.first() as usize]) { 5 } else { 3 };
        let forced = item.after.iter().any(|after| self.items[*after as usize].required);
        let choice =
            Choice { rank, first_return: 0, item: self.returned.first(), value: self.value, dropped: true };
        (!forced).then_some(choice)
    }

    fn choice(&self, number: u32) -> Option<Choice> {
        let item = &self.items[number as usize];
        let cluster = self.clusters.of[number as usize];
        let rank = |value| {
            let known = self.values.get(&value);
            let wanted = known.is_some_and(|value| self.wanted[*value as usize] > 0);
            if !item.required && !wanted {
                3
            } else if self.clusters.may_come_next(cluster) {
                1
            } else {
                2
            }
        };
        let (rank, value) = match item.effect {
            Effect::Read(_) => return None,
            Effect::Swap(_, value) => (0, value),
            Effect::Write(value) => (rank(value), value),
            // It leaves another value, whichever that is.
            Effect::Unseen(_) => (rank(self.unused_value), self.unused_value),
            Effect::MaybeSwap(compare, swap) if compare == self.value => (rank(swap), swap),
            // It matters only for later items of its connection.
            Effect::MaybeSwap(..) if item.after.is_empty() => return None,
            Effect::MaybeSwap(..) => (4, self.value),
            Effect::MaybeAdd(add) => {
                let value = self.value.wrapping_add(add);
                (rank(value), value)
            }
        };
        let first_return = self.clusters.first_return[cluster as usize];
        Some(Choice { rank, first_return, item: number, value, dropped: false })
    }

    /// Returns whether the word may change now: no remaining item has to find the present value, or an item
    /// may leave it again.
    fn may_change(&self, choice: &Choice) -> bool {
        if choice.value == self.value || self.number == OTHER {
            return true;
        }
        let (item, value) = (choice.item as usize, self.number as usize);
        let wanted = self.wanted[value] - u32::from(self.finds[item] == self.number);
        let writers = self.writers[value] - u32::from(self.leaves[item] == self.number);
        let adders = self.adders - u32::from(matches!(self.items[item].effect, Effect::MaybeAdd(_)));
        wanted == 0 || writers > 0 || adders > 0
    }

    /// Keeps the one choice that is as good as any other.
    fn keep_best_choice(&self, choices: &mut Vec<Choice>) {
        let swap = choices.iter().position(|choice| choice.rank == 0);
        let wanted = self.wanted.get(self.number as usize).is_some_and(|wanted| *wanted > 0);
        let next = swap.or_else(|| choices.iter().position(|choice| !wanted && choice.rank == 1));
        *choices = next.map(|next| choices[next]).into_iter().collect();
    }

    fn take(&mut self, number: u32, value: u64, dropped: bool) {
        let item = &self.items[number as usize];
        self.posted.take(number);
        if item.returned != u64::MAX {
            self.returned.take(number);
        }
        self.remaining -= usize::from(item.required);
        if !dropped {
            item.after.iter().for_each(|after| self.waits[*after as usize] -= 1);
        }
        self.clusters.take(number, item);
        self.count(number, |count| *count -= 1);
        self.trail.push((number, self.value, self.number, dropped));
        if value != self.value {
            self.value = value;
            self.number = self.values.get(&value).copied().unwrap_or(OTHER);
        }
        self.update_hash(number, dropped);
    }

    fn back_to(&mut self, done: usize) {
        while self.trail.len() > done {
            let Some((number, value, value_number, dropped)) = self.trail.pop() else { return };
            let item = &self.items[number as usize];
            self.update_hash(number, dropped);
            (self.value, self.number) = (value, value_number);
            self.count(number, |count| *count += 1);
            self.clusters.put_back(number, item);
            if !dropped {
                item.after.iter().for_each(|after| self.waits[*after as usize] += 1);
            }
            self.remaining += usize::from(item.required);
            if item.returned != u64::MAX {
                self.returned.put_back(number);
            }
            self.posted.put_back(number);
        }
    }

    fn count(&mut self, number: u32, change: impl Fn(&mut u32)) {
        let (finds, leaves) = (self.finds[number as usize], self.leaves[number as usize]);
        if finds != OTHER {
            change(&mut self.wanted[finds as usize]);
        }
        if leaves != OTHER {
            change(&mut self.writers[leaves as usize]);
        }
        if matches!(self.items[number as usize].effect, Effect::MaybeAdd(_)) {
            change(&mut self.adders);
        }
    }

    /// Updates the hash of the set of placed items: 128 bits, in which no two sets collide in practice.
    fn update_hash(&mut self, number: u32, dropped: bool) {
        let number = (u64::from(number) + 1) * 2 + u64::from(dropped);
        self.hash[0] ^= mix(mix(number));
        self.hash[1] ^= mix(mix(number ^ 0x5eed << 40));
    }

    /// Records the state if the search got further than before.
    fn record_progress(&mut self) {
        if self.trail.len() < self.stuck.done {
            return;
        }
        let latest = self.trail.iter().rev().take(LISTED).rev().map(|(item, ..)| *item).collect();
        let next = Some(self.returned.first()).filter(|item| *item != self.returned.head());
        self.stuck = Stuck { value: self.value, done: self.trail.len(), latest, next, unwritten: false };
    }
}

//! A history, prepared for the search: what is known of each operation, and which has to come before which.

use super::{Action, Done, Op, Rules};
use std::collections::BTreeMap;

/// What an operation does to the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It finds this value and leaves it.
    Read(u64),
    /// It leaves this value.
    Write(u64),
    /// It finds the one and leaves the other.
    Swap(u64, u64),
    /// A `CmpSwap`, of which nobody knows what it found
    MaybeSwap(u64, u64),
    /// A `FetchAdd`, of which nobody knows what it found
    MaybeAdd(u64),
    /// A `CmpSwap` with this value; nobody has found what it leaves
    Unseen(u64),
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Its place in the history; none for the memory in the end
    pub(super) op: Option<usize>,
    pub(super) invoked: u64,
    /// When it was over at the latest; `u64::MAX` if nobody knows
    pub(super) returned: u64,
    /// It has to be in the order
    pub(super) must: bool,
    pub(super) effect: Effect,
    /// Those that come after it as its connection posted them so
    pub(super) after: Vec<u32>,
}

impl Item {
    /// The value that it has to find
    pub(super) const fn finds(&self) -> Option<u64> {
        match self.effect {
            Effect::Read(found) | Effect::Swap(found, _) => Some(found),
            _ => None,
        }
    }

    /// The value that it leaves, or may leave, by itself
    pub(super) const fn leaves(&self) -> Option<u64> {
        match self.effect {
            Effect::Write(left) | Effect::Swap(_, left) | Effect::MaybeSwap(_, left) => Some(left),
            Effect::Read(_) | Effect::MaybeAdd(_) | Effect::Unseen(_) => None,
        }
    }
}

/// Whether it may change the word.
fn changes(op: &Op) -> bool {
    match op.action {
        Action::Read => false,
        Action::Write(_) => true,
        Action::CompareSwap { compare, swap } => compare != swap,
        Action::FetchAdd(add) => add != 0,
    }
}

fn effect(op: &Op) -> Effect {
    match (op.action, op.done) {
        (Action::Write(value), _) => Effect::Write(value),
        (Action::CompareSwap { compare, swap }, None) => Effect::MaybeSwap(compare, swap),
        (Action::FetchAdd(add), None) => Effect::MaybeAdd(add),
        (_, Some(Done { fetched, .. })) => {
            let after = op.after(fetched);
            if after == fetched { Effect::Read(fetched) } else { Effect::Swap(fetched, after) }
        }
        (Action::Read, None) => Effect::Read(0),
    }
}

/// What the program order of a connection still needs to know.
#[derive(Debug, Default)]
struct Posted {
    change: Option<u32>,
    read: Option<u32>,
    /// READs that no fence stands behind
    reads: Vec<u32>,
    /// READs before a fence of what was left out
    fenced: Vec<u32>,
}

/// The items of a history, by the moment at which they were posted; the last one is the memory in the end, if that is known.
pub(super) fn prepare(ops: &[Op], last: Option<u64>, rules: Rules) -> Vec<Item> {
    let mut order: Vec<usize> = (0..ops.len()).collect();
    order.sort_by_key(|op| ops[*op].invoked);
    let mut items: Vec<Item> = Vec::with_capacity(order.len() + 1);
    let mut connections: BTreeMap<u32, Posted> = BTreeMap::new();
    for place in order {
        let (op, number) = (&ops[place], items.len() as u32);
        let posted = connections.entry(op.connection).or_default();
        let is_read = op.action == Action::Read;
        if op.done.is_none() && !changes(op) {
            // Of what changes nothing, and fetched nothing, there is nothing to be explained. It still stands between
            // others.
            if op.fence && !is_read {
                posted.fenced.append(&mut posted.reads);
            }
            continue;
        }
        let mut before: Vec<u32> = posted.change.iter().chain(&posted.fenced).copied().collect();
        if op.fence {
            before.extend(&posted.reads);
        } else if is_read && rules.reads_in_order {
            before.extend(posted.read);
        }
        for item in before {
            items[item as usize].after.push(number);
        }
        if is_read {
            posted.read = Some(number);
            posted.reads.push(number);
        } else {
            posted.change = Some(number);
            posted.fenced.clear();
            if op.fence {
                posted.reads.clear();
            }
        }
        items.push(Item {
            op: Some(place),
            invoked: op.invoked,
            returned: op.done.map_or(op.until, |done| done.at),
            must: op.done.is_some(),
            effect: effect(op),
            after: Vec::new(),
        });
    }
    items.extend(last.map(|last| Item {
        op: None,
        invoked: u64::MAX - 1,
        returned: u64::MAX - 1,
        must: true,
        effect: Effect::Read(last),
        after: Vec::new(),
    }));
    items
}

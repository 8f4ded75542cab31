//! A history, prepared for the search: the known effect of each operation, and which operations have to
//! precede which.

use super::op::{Action, Done, Op, Rules};
use std::collections::BTreeMap;

/// Effect of an operation on the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Finds this value and leaves it
    Read(u64),
    /// Leaves this value
    Write(u64),
    /// Finds the first value and leaves the second
    Swap(u64, u64),
    /// A `CmpSwap` (expected and new value) with an unknown outcome
    MaybeSwap(u64, u64),
    /// A `FetchAdd` (summand) with an unknown outcome
    MaybeAdd(u64),
    /// A `CmpSwap` with this expected value; no operation has found the value that it leaves
    Unseen(u64),
}

/// An operation of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Index in the history; `None` for the memory at the end
    pub(super) op: Option<usize>,
    pub(super) invoked: u64,
    /// Latest moment at which it may take effect; `u64::MAX` if there is none
    pub(super) returned: u64,
    /// Whether it has to be in the order
    pub(super) required: bool,
    pub(super) effect: Effect,
    /// Items that have to follow it, because its connection posted them later
    pub(super) after: Vec<u32>,
}

impl Item {
    /// Returns the value that it has to find.
    pub(super) const fn finds(&self) -> Option<u64> {
        match self.effect {
            Effect::Read(found) | Effect::Swap(found, _) => Some(found),
            _ => None,
        }
    }

    /// Returns the value that it leaves, or may leave, if that does not depend on the value before it.
    pub(super) const fn leaves(&self) -> Option<u64> {
        match self.effect {
            Effect::Write(left) | Effect::Swap(_, left) | Effect::MaybeSwap(_, left) => Some(left),
            Effect::Read(_) | Effect::MaybeAdd(_) | Effect::Unseen(_) => None,
        }
    }
}

/// Returns whether it may change the word.
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

/// State of a connection's program order.
#[derive(Debug, Default)]
struct Posted {
    change: Option<u32>,
    read: Option<u32>,
    /// READs that no fenced operation follows
    reads: Vec<u32>,
    /// READs before a fenced operation that was omitted
    fenced: Vec<u32>,
}

/// Returns the items of a history, by posting time. The last one is the memory at the end, if that is known.
pub(super) fn prepare(ops: &[Op], last: Option<u64>, rules: Rules) -> Vec<Item> {
    let mut order: Vec<usize> = (0..ops.len()).collect();
    order.sort_by_key(|op| ops[*op].invoked);
    let mut items: Vec<Item> = Vec::with_capacity(order.len() + 1);
    let mut connections: BTreeMap<u32, Posted> = BTreeMap::new();
    for op_index in order {
        let (op, number) = (&ops[op_index], items.len() as u32);
        let posted = connections.entry(op.connection).or_default();
        let is_read = op.action == Action::Read;
        if op.done.is_none() && !changes(op) {
            // An operation that changes and fetched nothing needs no explanation. Its fence still orders
            // other operations.
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
            op: Some(op_index),
            invoked: op.invoked,
            returned: op.done.map_or(op.until, |done| done.at),
            required: op.done.is_some(),
            effect: effect(op),
            after: Vec::new(),
        });
    }
    items.extend(last.map(|last| Item {
        op: None,
        invoked: u64::MAX - 1,
        returned: u64::MAX - 1,
        required: true,
        effect: Effect::Read(last),
        after: Vec::new(),
    }));
    items
}

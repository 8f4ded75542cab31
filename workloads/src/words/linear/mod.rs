//! Checks whether one order of all operations on a word of memory explains their results. In this order each
//! operation takes effect at one moment between its request and its completion (linearizability; Herlihy and
//! Wing 1990), and the operations of a connection keep the order in which they were posted, as far as RC
//! guarantees it.
//!
//! The search is that of Wing and Gong (1993) with the cache of Lowe (2017), as in Porcupine: it tries each
//! operation that may come next, and never tries the same set of remaining operations with the same value
//! twice. Two rules make it fast:
//!
//! * A READ of the word's present value may be placed at once, because it restricts nothing that follows.
//! * A value that a remaining operation has to read and that no remaining operation writes must not be
//!   overwritten. If every value is written once, this leaves only the order of the WRITEs to choose, each
//!   followed by all operations that read or extend its value (a *cluster*; Gibbons and Korach 1997). Any
//!   cluster that no other one has to precede may come first, so the search never backtracks.
//!
//! An operation whose outcome is unknown, because its connection broke, may take effect at any time from its
//! request until the responder's end of the connection is gone, or never. If it did, so did all operations
//! that its connection had posted before it.

mod clusters;
mod items;
mod resolve;
mod search;
#[cfg(test)]
mod tests;

use core::fmt;
use items::Item;
use search::{Found, Search};

/// Number of attempts to guess which operations with unknown outcomes took effect
const ATTEMPTS: u64 = 32;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fetches the value
    Read,
    /// Stores this value
    Write(u64),
    /// Stores `swap` if the word holds `compare`; fetches the value from before
    CompareSwap {
        /// Expected value
        compare: u64,
        /// New value
        swap: u64,
    },
    /// Adds this, modulo 2^64; fetches the value from before
    FetchAdd(u64),
}

/// Completion of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Logical time of the completion
    pub at: u64,
    /// Value that it fetched; meaningless for a WRITE
    pub fetched: u64,
}

/// An operation on a word. All logical times come from one clock, and no two are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The connection; its operations are numbered by [`invoked`](Self::invoked)
    pub connection: u32,
    /// Logical time at which it was posted
    pub invoked: u64,
    /// Completion; `None` if the outcome is unknown
    pub done: Option<Done>,
    /// Logical time after which the operation cannot take effect if it did not complete, because its
    /// connection is gone; `u64::MAX` if there is none
    pub until: u64,
    /// Whether it was sent only after the READs before it had completed
    pub fence: bool,
    /// What it does
    pub action: Action,
}

impl Op {
    /// Returns the word's value after the operation, if it held `value` before.
    pub const fn after(&self, value: u64) -> u64 {
        match self.action {
            Action::Write(written) => written,
            Action::CompareSwap { compare, swap } if compare == value => swap,
            Action::Read | Action::CompareSwap { .. } => value,
            Action::FetchAdd(add) => value.wrapping_add(add),
        }
    }
}

/// Guarantees beyond linearizability. Operations of a connection take effect in the order in which they were
/// posted, except that without a fence an operation may overtake a READ before it (IB 10.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rules {
    /// Whether a READ never returns an older value than the READ before it. True if the network keeps the
    /// order of packets; otherwise an overtaken response may be older than the response to a repeated request
    pub reads_in_order: bool,
}

/// Checks the operations on a word that held `first` before all of them, and holds `last` after all that
/// completed; `last` is `None` if the memory is lost.
///
/// # Errors
/// The longest explanation that the search found, and the operation that contradicts it.
pub fn check(ops: &[Op], first: u64, last: impl Into<Option<u64>>, rules: Rules) -> Result<(), String> {
    let last = last.into();
    let items = items::prepare(ops, last, rules);
    // The results of other operations nearly always reveal which operations with unknown outcomes took
    // effect. An explanation under such an assumption is a valid explanation.
    let mut first_stuck = None;
    for attempt in 0..ATTEMPTS {
        let (resolved, ambiguous) = resolve::resolve(&items, first, attempt);
        let stuck = match Search::new(&resolved, first).run() {
            Found::Order => return Ok(()),
            Found::None(stuck) if resolved == items => return Err(stuck.describe(ops, &items)),
            Found::None(stuck) | Found::Undecided(stuck) => stuck,
        };
        first_stuck.get_or_insert_with(|| stuck.describe(ops, &resolved));
        if !ambiguous {
            break;
        }
    }
    match Search::new(&items, first).run() {
        Found::Order => Ok(()),
        Found::None(stuck) => Err(stuck.describe(ops, &items)),
        // If the ends of connections make the search too long, they are ignored.
        Found::Undecided(_) if ops.iter().any(|op| op.until != u64::MAX) => {
            let ops: Vec<Op> = ops.iter().map(|op| Op { until: u64::MAX, ..*op }).collect();
            check(&ops, first, last, rules)
        }
        Found::Undecided(_) => {
            Err(format!("the search for an order was given up; {}", first_stuck.unwrap_or_default()))
        }
    }
}

/// State of the search where it got furthest.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Stuck {
    value: u64,
    done: usize,
    /// Latest operations of the partial order
    latest: Vec<u32>,
    /// Operation that has to come next
    next: Option<u32>,
    /// Whether no operation wrote the value that `next` found
    unwritten: bool,
}

impl Stuck {
    fn describe(&self, ops: &[Op], items: &[Item]) -> String {
        let name = |item: &u32| match (items[*item as usize].op, items[*item as usize].finds()) {
            (Some(op), _) => format!("\n    {}", ops[op]),
            (None, found) => format!("\n    the memory at the end: {:#x}", found.unwrap_or_default()),
        };
        let next: String = self.next.iter().map(name).collect();
        if self.unwritten {
            return format!("no operation wrote the value that this one found:{next}");
        }
        let latest: String = self.latest.iter().map(name).collect();
        let (done, all, value) = (self.done, items.len(), self.value);
        format!(
            "{done} of {all} operations can be explained; the last of them are:{latest}\n  \
             the word then holds {value:#x}, which contradicts the next operation:{next}"
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connection, invoked, done, until, fence, action } = self;
        match action {
            Action::Read => write!(f, "READ")?,
            Action::Write(value) => write!(f, "WRITE of {value:#x}")?,
            Action::CompareSwap { compare, swap } => write!(f, "CmpSwap from {compare:#x} to {swap:#x}")?,
            Action::FetchAdd(add) => write!(f, "FetchAdd of {add:#x}")?,
        }
        let fence = if *fence { ", fenced," } else { "" };
        write!(f, "{fence} by connection {connection} at {invoked}")?;
        match (done, action) {
            (None, _) if *until != u64::MAX => write!(f, ", never completed, impossible after {until}"),
            (None, _) => write!(f, ", never completed"),
            (Some(done), Action::Write(_)) => write!(f, ", completed at {}", done.at),
            (Some(done), _) => write!(f, ", completed at {}, found {:#x}", done.at, done.fetched),
        }
    }
}

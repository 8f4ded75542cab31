//! Whether what was seen of a word of memory can be explained by one order of all operations on it, in which each happens
//! at one moment between its request and its completion (linearizable; Herlihy and Wing 1990), and those of a connection
//! in the order in which they were posted, as far as RC promises it.
//!
//! The search is that of Wing and Gong (1993) with the memory of Lowe (2017), as Porcupine has it: operations that may
//! come next are tried, and what was tried with the same rest and the same value is not tried again. Two things make it
//! quick:
//!
//! * A READ of the value that the word has now may as well come now. It takes nothing from what follows.
//! * A value that is still to be read and that nobody will write again must not be overwritten. Where every value is
//!   written once, this leaves as choice the order of the WRITEs alone, each with all that reads or extends its value
//!   behind it (a *cluster*; Gibbons and Korach 1997): any cluster that no other one has to precede may come first, so
//!   nothing is ever tried in vain.
//!
//! An operation of which nobody knows whether it took effect, as its connection broke, may happen at any time from its
//! request until the responder's end of the connection is gone, or never; if it did, so did those that its connection had
//! posted before it.

mod clusters;
mod items;
mod resolve;
mod search;
#[cfg(test)]
mod tests;

use core::fmt;
use items::Item;
use search::{Found, Search};

/// How often it is decided anew which operations happened of which nobody knows
const ATTEMPTS: u64 = 32;

/// What an operation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Fetches the value.
    Read,
    /// Stores this.
    Write(u64),
    /// Stores `swap` if the word holds `compare`; fetches what it held.
    CompareSwap {
        /// What it has to hold
        compare: u64,
        /// What it holds then
        swap: u64,
    },
    /// Adds, modulo 2^64; fetches what it held.
    FetchAdd(u64),
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The moment of the completion
    pub at: u64,
    /// What it fetched; of a WRITE it means nothing
    pub fetched: u64,
}

/// An operation on a word. Moments are counted by one clock for all, and no two are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The connection, whose operations stand in the order in which they were posted
    pub connection: u32,
    /// The moment at which it was posted
    pub invoked: u64,
    /// `None`: nobody knows whether it happened
    pub done: Option<Done>,
    /// Moment after which it cannot happen if it did not complete: its connection is gone; `u64::MAX` if there is none
    pub until: u64,
    /// Whether it was sent after the READs before it had completed
    pub fence: bool,
    /// What it asks for
    pub action: Action,
}

impl Op {
    /// What the word holds after it, if it held `value`
    pub const fn after(&self, value: u64) -> u64 {
        match self.action {
            Action::Write(written) => written,
            Action::CompareSwap { compare, swap } if compare == value => swap,
            Action::Read | Action::CompareSwap { .. } => value,
            Action::FetchAdd(add) => value.wrapping_add(add),
        }
    }
}

/// What is promised beyond linearizability: that operations of a connection take effect in the order in which they were
/// posted, but for a READ and what follows it without a fence (IB 10.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rules {
    /// Whether a READ sees nothing older than the READ before it. So it is where the network keeps the order; a response
    /// that was overtaken may otherwise be older than one that was asked for again.
    pub reads_in_order: bool,
}

/// Checks the operations on a word that held `first` before all of them and holds `last` after all that completed; `None` if the
/// memory is lost.
///
/// # Errors
/// How far it can be explained, and what cannot.
pub fn check(ops: &[Op], first: u64, last: impl Into<Option<u64>>, rules: Rules) -> Result<(), String> {
    let last = last.into();
    let items = items::prepare(ops, last, rules);
    // What was seen of operations with an unknown outcome tells nearly always which of them happened. Who finds an
    // explanation with these has found one.
    let mut likely = None;
    for attempt in 0..ATTEMPTS {
        let (resolved, ambiguous) = resolve::resolve(&items, first, attempt);
        let stuck = match Search::new(&resolved, first).run() {
            Found::Order => return Ok(()),
            Found::None(stuck) if resolved == items => return Err(stuck.tell(ops, &items)),
            Found::None(stuck) | Found::Undecided(stuck) => stuck,
        };
        likely.get_or_insert_with(|| stuck.tell(ops, &resolved));
        if !ambiguous {
            break;
        }
    }
    match Search::new(&items, first).run() {
        Found::Order => Ok(()),
        Found::None(stuck) => Err(stuck.tell(ops, &items)),
        // Where the ends of connections make the search too long, they are left out.
        Found::Undecided(_) if ops.iter().any(|op| op.until != u64::MAX) => {
            let ops: Vec<Op> = ops.iter().map(|op| Op { until: u64::MAX, ..*op }).collect();
            check(&ops, first, last, rules)
        }
        Found::Undecided(_) => Err(format!("no order was found in time; {}", likely.unwrap_or_default())),
    }
}

/// How far a search got.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Stuck {
    value: u64,
    done: usize,
    /// The last ones of those that have an order
    behind: Vec<u32>,
    /// What has to come next
    next: Option<u32>,
    /// Nobody wrote what that found
    strange: bool,
}

impl Stuck {
    fn tell(&self, ops: &[Op], items: &[Item]) -> String {
        let name = |item: &u32| match (items[*item as usize].op, items[*item as usize].finds()) {
            (Some(op), _) => format!("\n    {}", ops[op]),
            (None, found) => format!("\n    the memory, in the end: {:#x}", found.unwrap_or_default()),
        };
        let next: String = self.next.iter().map(name).collect();
        if self.strange {
            return format!("nobody wrote what this found:{next}");
        }
        let behind: String = self.behind.iter().map(name).collect();
        let (done, all, value) = (self.done, items.len(), self.value);
        format!(
            "{done} of {all} operations can be explained, with these behind the others:{behind}\n  it holds {value:#x}, and next is{next}"
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
            (None, _) if *until != u64::MAX => write!(f, ", never completed, over at {until}"),
            (None, _) => write!(f, ", never completed"),
            (Some(done), Action::Write(_)) => write!(f, ", completed at {}", done.at),
            (Some(done), _) => write!(f, ", completed at {}, found {:#x}", done.at, done.fetched),
        }
    }
}

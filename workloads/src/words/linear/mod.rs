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
mod op;
mod resolve;
mod search;
mod stuck;
#[cfg(test)]
mod tests;

pub use op::{Action, Done, Op, Rules};

use search::{Found, Search};

/// Number of attempts to guess which operations with unknown outcomes took effect
const ATTEMPTS: u64 = 32;

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

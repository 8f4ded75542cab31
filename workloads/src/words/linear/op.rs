//! Operations on a word, and the guarantees that their order has to respect.

use core::fmt;

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

//! Durable records of one network, written by one leader at a time.

#[cfg(feature = "etcd")]
pub mod etcd;
mod memory;
mod redb;

#[cfg(feature = "etcd")]
pub use self::etcd::{EtcdConfig, EtcdStore};
pub use self::redb::RedbStore;
pub use memory::{Fault, MemoryStore};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Number of a leader's time in office: each is greater than all before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u32);

impl core::fmt::Display for Term {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Records by key
pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Number of changes that every store applies in one write
pub const MAX_CHANGES: usize = 100;

/// Bytes that every store applies in one write. A single change may be longer: it is up to the store then
pub const MAX_BYTES: usize = 1 << 20;

/// Change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets the value of a key
    Put(Vec<u8>, Vec<u8>),
    /// Removes a key
    Delete(Vec<u8>),
}

impl Change {
    /// Returns the bytes that the change takes of [`MAX_BYTES`], with room for what a store adds to it.
    pub fn size(&self) -> usize {
        const ADDED: usize = 128;
        let (Self::Put(key, _) | Self::Delete(key)) = self;
        let value = if let Self::Put(_, value) = self { value.len() } else { 0 };
        ADDED + key.len() + value
    }
}

/// Applies changes to records.
pub fn apply(records: &mut Records, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put(key, value) => drop(records.insert(key.clone(), value.clone())),
            Change::Delete(key) => drop(records.remove(key)),
        }
    }
}

/// Why a store did not do what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The term has ended
    #[error("another controller leads")]
    OtherTerm,
    /// Another program has the file open
    #[error("{0} is in use by another program; stop that controller, or give this one a file of its own")]
    Locked(PathBuf),
    /// The file is damaged
    #[error(
        "the store is damaged: {0}; restore it from a copy, or remove it while all processes are stopped"
    )]
    Torn(String),
    /// No space is left
    #[error("no space is left for the store; free some, nothing is decided until then")]
    Full,
    /// A write is longer than the store allows; nothing was applied
    #[error(
        "a write is too large for the store: {0}; start etcd's servers with a greater --max-request-bytes, or use a \
         store in a file; nothing is decided until then"
    )]
    TooLarge(String),
    /// The store is that of another network
    #[error(
        "the store belongs to the network {found:016x}, this is {own:016x}; name the store of this topology, or \
         a new file or prefix"
    )]
    OtherNetwork {
        /// Network of the store
        found: u64,
        /// Own network
        own: u64,
    },
    /// The store cannot be reached; nothing was applied
    #[error("the store cannot be used: {0}")]
    Unavailable(String),
    /// The changes may have been applied
    #[error("it is not known whether the changes were stored: {0}")]
    Unknown(String),
}

/// Durable records of one network, written by one leader at a time.
pub trait Store: Send {
    /// Waits for leadership, for `wait` at most. Returns the term, which is greater than all before, and all
    /// records as of its beginning; `None` if another controller leads.
    fn campaign(&mut self, wait: Duration) -> Result<Option<(Term, Records)>, StoreError>;

    /// Applies all changes, at most [`MAX_CHANGES`], or none, if `term` still leads. They are durable when it
    /// returns `Ok`.
    fn write(&mut self, term: Term, changes: &[Change]) -> Result<(), StoreError>;

    /// Returns whether the term may still lead. A hint: safety rests on `write` and on the terms at the nodes.
    fn leads(&self) -> bool;
}

#[cfg(test)]
mod laws;

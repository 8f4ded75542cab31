//! Planted bugs of the store in etcd.

/// Bugs that can be planted, to check that the tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A write compares neither the leader's key nor the term
    UncomparedWrite,
}

//! Planted bugs of connections.

/// Bugs that can be planted at both ends, to check that the tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Tags do not depend on the numbers of frames
    NoNumber,
    /// Both directions have the same key
    OneKey,
    /// Keys do not depend on the random numbers of the ends
    NoRandom,
    /// The controller takes a node without its proof
    NoProof,
}

impl Bug {
    /// All bugs
    pub const ALL: [Self; 4] = [Self::NoNumber, Self::OneKey, Self::NoRandom, Self::NoProof];

    /// Returns whether this bug is planted, which it is only with debug assertions.
    pub(crate) fn is(self, planted: Option<Self>) -> bool {
        cfg!(debug_assertions) && planted == Some(self)
    }
}

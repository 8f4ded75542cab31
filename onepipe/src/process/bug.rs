//! Planted bugs of a process.

/// Bugs that can be planted, to check that the tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Messages with equal timestamps are delivered in the order of arrival instead of by sender
    TieByArrival,
    /// A beacon overtakes messages that have been stamped, and promises that none of them follows
    OvertakingBeacon,
    /// A process that gives up the missing packets of one sender refuses the next packet of another sender
    SharedGap,
    /// A process takes barriers from messages although its switch does not declare that it writes them
    UndeclaredBarriers,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 4] =
        [Self::TieByArrival, Self::OvertakingBeacon, Self::SharedGap, Self::UndeclaredBarriers];
}

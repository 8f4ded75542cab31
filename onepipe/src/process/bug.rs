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
}

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 3] = [Self::TieByArrival, Self::OvertakingBeacon, Self::SharedGap];
}

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
    /// A process that starts accepts messages that were sent before it started
    NoFloor,
    /// A process that starts reports such messages as late, though its previous incarnation may have
    /// delivered them
    DeniesBeforeStart,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 6] = [
        Self::TieByArrival,
        Self::OvertakingBeacon,
        Self::SharedGap,
        Self::UndeclaredBarriers,
        Self::NoFloor,
        Self::DeniesBeforeStart,
    ];

    /// Returns whether the bug has an effect only where processes restart.
    pub const fn needs_restarts(self) -> bool {
        matches!(self, Self::NoFloor | Self::DeniesBeforeStart)
    }
}

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
    /// Reliable service: a scattering counts as decided before its last receiver has acknowledged it
    CommitBeforeLastAck,
    /// Reliable service: a recall is not repeated
    RecallOnce,
    /// Reliable service: in the merged order, best-effort messages do not wait for the commit barrier
    UnmergedReads,
    /// Reliable service: an acknowledgement of a process that is known to have failed counts
    AckAfterNotice,
}

impl Bug {
    /// All bugs of the best-effort service.
    pub const ALL: [Self; 3] = [Self::TieByArrival, Self::OvertakingBeacon, Self::SharedGap];
    /// All bugs of the reliable service.
    pub const RELIABLE: [Self; 4] =
        [Self::CommitBeforeLastAck, Self::RecallOnce, Self::UnmergedReads, Self::AckAfterNotice];
}

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
    /// A sample of the machine's clock counts from its arrival, not from when it was read
    SampleAtArrival,
    /// The clock follows every sample at once
    BelievesOutliers,
    /// The clock follows clock beacons also to an earlier time, at once
    ClockStepsBack,
    /// A machine's clock that is set while no clock beacons arrive moves the process's
    SetMovesClock,
    /// A process that starts does not wait for a switch that has fallen silent
    StartsInSilence,
    /// Reliable service: a scattering counts as decided before its last receiver has acknowledged it
    CommitBeforeLastAck,
    /// Reliable service: a recall is not repeated
    RecallOnce,
    /// Reliable service: in the merged order, best-effort messages do not wait for the commit barrier
    UnmergedReads,
    /// Reliable service: an acknowledgement of a process that is known to have failed counts
    AckAfterNotice,
    /// Membership: a message of an earlier term of the controller is obeyed
    OldTerm,
    /// Membership: a case is reported as completed before the application's callback has returned
    CompletedEarly,
    /// Membership: reliable frames of and to other incarnations are accepted
    OtherIncarnation,
    /// Membership: a process that recovers does not apply the recalls that it has missed
    RecoversWithoutRecalls,
    /// Membership: a process leaves with messages that it has acknowledged and not delivered
    LeavesWithMessages,
}

impl Bug {
    /// All bugs of the best-effort service.
    pub const ALL: [Self; 8] = [
        Self::TieByArrival,
        Self::OvertakingBeacon,
        Self::SharedGap,
        Self::UndeclaredBarriers,
        Self::NoFloor,
        Self::DeniesBeforeStart,
        Self::SampleAtArrival,
        Self::BelievesOutliers,
    ];
    /// All bugs of the reliable service.
    pub const RELIABLE: [Self; 4] =
        [Self::CommitBeforeLastAck, Self::RecallOnce, Self::UnmergedReads, Self::AckAfterNotice];

    /// All bugs of a process's membership, which need a controller.
    pub const MEMBERSHIP: [Self; 5] = [
        Self::OldTerm,
        Self::CompletedEarly,
        Self::OtherIncarnation,
        Self::RecoversWithoutRecalls,
        Self::LeavesWithMessages,
    ];

    /// Returns whether the bug has an effect without restarts of processes and samples of their clocks.
    pub const fn needs_messages_alone(self) -> bool {
        matches!(
            self,
            Self::TieByArrival | Self::OvertakingBeacon | Self::SharedGap | Self::UndeclaredBarriers
        )
    }
}

//! Planted bugs of a representative.

/// Bugs that can be planted, to check that the tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A link that returns takes part at once, and the barrier goes back to that link's barrier
    ReturningLink,
    /// The barrier is that of the link that was updated last, instead of the minimum
    LastLink,
    /// A switch silently drops some of the messages from its first link, without counting them
    SilentDrop,
    /// A beacon is accepted from any source address
    AnySource,
    /// A switch forwards beacons that name the switch itself as their source
    ForgedNeighbour,
    /// A switch that hears no link announces that nothing follows, although no link has left
    DeafNothingFollows,
    /// A barrier that is too far ahead of the clock is refused, and its link dies by that
    RefusesAhead,
    /// A link's first barrier is waited for however far it is behind
    FirstWord,
    /// A link that returns is compared with the other links alone, so that a fast one excludes it
    FastLinks,
    /// A chip takes barriers from the messages of a neighbour that does not declare that it writes them
    UndeclaredBarriers,
    /// A link that lags is waited for, however long
    NeverEvicts,
    /// All switches wait equally long for a link that lags, and compare what comes down with their own clock
    EvictsEverywhere,
    /// A link's commit register rises although it was reported to stand still
    FrozenRises,
    /// A link counts for the commit barrier before it has reached the floor of the switch's incarnation
    FloorIgnored,
    /// A commit barrier is accepted from any incarnation of the link's neighbour
    AnyCommitSource,
    /// Beacons carry a commit barrier although the controller wants them without one
    MutedSpeaks,
    /// A state that the controller wants takes effect in two parts
    PartialConfiguration,
    /// A state that the controller wanted earlier takes effect after a later one
    OldVersionObeyed,
    /// Beacons leave from the incarnation's queue pair also to neighbours that do not know it
    IntroducesToAll,
    /// Barriers of an end of a link count although the end has removed an input that the other end hears
    RemovedIgnored,
    /// The barrier of a link with two ends is their minimum
    MinimumOfEnds,
    /// The barrier of a link with two ends is their maximum also if both have removed an input
    MaximumOfRemoved,
    /// The lower half does not state that the upper one, which is its input, has removed an input
    LowerHalfTrusts,
    /// A half does not state that it follows an end of a link that has removed an input
    DoubtIgnored,
    /// An end of a link takes part again, and states so, before its inputs have caught up
    ReturnedAtOnce,
    /// Commit barriers of one end's queue pair are accepted from the other end
    OtherEnd,
    /// The group follows the clock of any process, however far it is ahead
    FollowsAnyClock,
    /// Processes may get a time that is before a floor of the commit registers
    GroupBeforeFloor,
    /// A representative that is not named any more gets commit barriers
    RetiredFed,
    /// A worker publishes a barrier before the frames that it bounds are in rings
    PublishBeforePush,
    /// A worker raises its barrier before it has handled the frames that are bounded by it
    AdoptBeforeDrain,
    /// A link takes part at once although no other link of its worker does, and others have gone on
    JoinWithoutHold,
    /// Each worker sends what it receives, so a port has several senders
    TwoSenders,
}

impl Bug {
    /// All bugs that need no standby.
    pub const ALL: [Self; 19] = [
        Self::ReturningLink,
        Self::LastLink,
        Self::SilentDrop,
        Self::AnySource,
        Self::ForgedNeighbour,
        Self::DeafNothingFollows,
        Self::RefusesAhead,
        Self::FirstWord,
        Self::FastLinks,
        Self::UndeclaredBarriers,
        Self::NeverEvicts,
        Self::EvictsEverywhere,
        Self::FrozenRises,
        Self::FloorIgnored,
        Self::AnyCommitSource,
        Self::MutedSpeaks,
        Self::PartialConfiguration,
        Self::OldVersionObeyed,
        Self::IntroducesToAll,
    ];

    /// Bugs of switches with several workers.
    pub const OF_WORKERS: [Self; 4] =
        [Self::PublishBeforePush, Self::AdoptBeforeDrain, Self::JoinWithoutHold, Self::TwoSenders];

    /// Bugs of best-effort barriers where switches have a standby.
    pub const OF_STANDBY: [Self; 6] = [
        Self::RemovedIgnored,
        Self::MinimumOfEnds,
        Self::MaximumOfRemoved,
        Self::LowerHalfTrusts,
        Self::DoubtIgnored,
        Self::ReturnedAtOnce,
    ];
}

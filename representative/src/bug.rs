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
    /// A chip takes barriers from the messages of a neighbour that does not declare that it writes them
    UndeclaredBarriers,
    /// A link that lags is waited for, however long
    NeverEvicts,
    /// All switches wait equally long for a link that lags, and compare what comes down with their own clock
    EvictsEverywhere,
    /// A link's commit register rises after the link has died and the control plane was told that register
    CommitRisesAfterDeath,
    /// A switch states a commit barrier before it is told that the list of its members is complete
    OpenBeforeComplete,
    /// The path between a switch's halves stays a member of the commit barrier when no member is left below
    LoopbackKeepsCommit,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Self; 14] = [
        Self::ReturningLink,
        Self::LastLink,
        Self::SilentDrop,
        Self::AnySource,
        Self::ForgedNeighbour,
        Self::DeafNothingFollows,
        Self::RefusesAhead,
        Self::FirstWord,
        Self::UndeclaredBarriers,
        Self::NeverEvicts,
        Self::EvictsEverywhere,
        Self::CommitRisesAfterDeath,
        Self::OpenBeforeComplete,
        Self::LoopbackKeepsCommit,
    ];
}

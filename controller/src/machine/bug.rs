//! Planted bugs of the controller.

/// Bugs that can be planted, to check that the tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The time of a failure is the minimum over the cut
    MinimumForT,
    /// A failure is decided without waiting until registers stand still
    NoFreeze,
    /// Members are notified before the decision is stored
    SendBeforeStore,
    /// Links leave commit before all callbacks have returned
    ResumeBeforeCallback,
    /// Links leave commit before the callbacks for another failure have returned
    CompletedApart,
    /// Links that fail no process leave commit before the callbacks for a failure have returned
    LinksLeaveApart,
    /// A new leader lets go what stood still for a decided case
    FenceForgotten,
    /// A process may leave before the others have decided their scatterings to it
    LeaveUnannounced,
    /// A process that is declared failed while a decision is being written is forgotten
    DeclaredForgotten,
    /// A node whose times are ahead of the controller's clock counts as one that does not answer
    AheadIsLate,
    /// A representative that registers is lost if its floors wait for a dead process
    RegisteringIsLost,
    /// A case is completed before switches have acknowledged that failed processes get no barriers, and switches that
    /// have not still get barriers
    CompletedUnmuted,
    /// A member fails if the other members' clocks are ahead of its own
    FastClocksBelieved,
    /// The link of a process that registers counts before it is heard
    UnheardCounts,
    /// Cases wait for the answers of processes whose links are not heard
    UnheardAnswer,
    /// A process that joins need not learn of failures in cases that did not wait for it
    UnheardUninformed,
    /// What one representative of a switch has answered is evidence, whatever the other one states
    FrozenAtOneSeat,
    /// What a representative has stated before it was retired is no evidence
    RetiredForgotten,
    /// A representative is drained before the other one of its switch is heard everywhere
    DrainsUnready,
    /// Each member's recalls are written as soon as possible, so that others need further writes
    RecallsOneByOne,
}

impl Bug {
    /// All bugs that drawn faults show; those of departures need real processes
    pub const ALL: [Self; 6] = [
        Self::MinimumForT,
        Self::NoFreeze,
        Self::SendBeforeStore,
        Self::ResumeBeforeCallback,
        Self::FenceForgotten,
        Self::DeclaredForgotten,
    ];

    /// All bugs of departures
    pub const DEPARTURES: [Self; 1] = [Self::LeaveUnannounced];
}

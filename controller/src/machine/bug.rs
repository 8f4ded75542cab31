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
    /// A new leader lets go what stood still for a decided case
    FenceForgotten,
    /// A process may leave before the others have decided their scatterings to it
    LeaveUnannounced,
}

impl Bug {
    /// All bugs but those of departures, which need real processes
    pub const ALL: [Self; 5] = [
        Self::MinimumForT,
        Self::NoFreeze,
        Self::SendBeforeStore,
        Self::ResumeBeforeCallback,
        Self::FenceForgotten,
    ];

    /// All bugs of departures
    pub const DEPARTURES: [Self; 1] = [Self::LeaveUnannounced];
}

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
}

impl Bug {
    /// All bugs
    pub const ALL: [Self; 5] = [
        Self::MinimumForT,
        Self::NoFreeze,
        Self::SendBeforeStore,
        Self::ResumeBeforeCallback,
        Self::FenceForgotten,
    ];
}

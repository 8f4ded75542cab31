//! Bugs that tests plant.

/// Bugs that can be planted, to check that tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A sender sends blocks without waiting for the receiver's ready word.
    IgnoresReadyWord,
    /// A member does not relay failures to the other members.
    NoRelay,
    /// The root closes a group without waiting for the members' `Received` messages.
    EarlyClose,
    /// A receiver stores the first block that arrives as block 0.
    WrongFirst,
    /// A relay completes a message when its blocks have arrived, although it has not sent all of them on.
    CompletesBeforeRelaying,
    /// A node that loses a peer reports itself as the failed member.
    WrongMember,
    /// A receiver that has accepted an offer ignores the name notes of later offers.
    IgnoresLaterNames,
    /// The root does not send receivers the note that names the switch.
    SwitchNoteOmitted,
    /// The root sends further segments without waiting until receivers have written the earlier ones.
    IgnoresWindow,
}

impl Bug {
    /// All bugs of groups.
    pub const ALL: [Self; 6] = [
        Self::IgnoresReadyWord,
        Self::NoRelay,
        Self::EarlyClose,
        Self::WrongFirst,
        Self::CompletesBeforeRelaying,
        Self::WrongMember,
    ];
    /// All bugs of deliveries.
    pub const DELIVERY: [Self; 3] = [Self::IgnoresLaterNames, Self::SwitchNoteOmitted, Self::IgnoresWindow];
}

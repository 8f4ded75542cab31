//! P4CE (paper: Dulong et al., "P4CE: Consensus over RDMA at Line Speed", ICDCS 2024).
//!
//! A leader opens one RDMA connection to the switch and writes once; the switch writes to every replica ([`P4ce`]: the
//! *scatter*), and acknowledges once a quorum of them has ([`gather`]). [`Control`] is the switch's control plane: it
//! answers the leader's request for a connection when it has connected every replica.
//!
//! docs/p4ce.md has the layouts of private data ([`wire`]) and says why nothing is acknowledged that is not held.

#![forbid(unsafe_code)]

pub mod consensus;
pub mod control;
pub mod function;
pub mod gather;
pub mod group;
mod secret;
pub mod wire;

pub use control::{Control, ControlConfig, ControlCounters, GroupStatus, Limits};
pub use function::{Command, Config, Counters, Event, P4ce};
pub use group::{Group, GroupConfig, GroupId, Peer, Replica};
pub use secret::Secret;

/// Bugs that can be planted, to see whether tests find them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// One acknowledgement less than a quorum is enough
    Minority,
    /// PSNs are compared as if they did not wrap
    WrongWrap,
    /// The first acknowledgement is passed on
    FirstAck,
    /// A NAK that the leader did not come back to withholds all later ones
    AskedForever,
    /// A replica that was dropped as too far behind is written to all the same
    DroppedSilently,
    /// Leaders and replicas are looked for where they were when their group was opened
    StaysPut,
    /// Requests for groups are not limited
    AnyRequest,
    /// A replica counts as if it held what a quorum holds
    LeftBehind,
    /// A leader is known by the UDP source port of its first packet, too
    LeaderByPort,
}

#[cfg(debug_assertions)]
impl Bug {
    /// Every bug.
    pub const ALL: [Self; 9] = [
        Self::Minority,
        Self::WrongWrap,
        Self::FirstAck,
        Self::AskedForever,
        Self::DroppedSilently,
        Self::StaysPut,
        Self::AnyRequest,
        Self::LeftBehind,
        Self::LeaderByPort,
    ];
}

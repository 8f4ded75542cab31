//! P4CE (Dulong et al., "P4CE: Consensus over RDMA at Line Speed", ICDCS 2024).
//!
//! A leader opens one RDMA connection to the switch and writes once. The switch writes to every replica
//! ([`P4ce`]: the *scatter*) and acknowledges once a quorum of them holds the write ([`gather`]). [`Control`]
//! is the switch's control plane: it accepts the leader's connection after it has connected to every replica.
//! The crate `consensus` has Mu's consensus protocol on top of replicated writes.
//!
//! docs/p4ce.md has the layouts of private data ([`wire`]), and the argument that every acknowledged write is
//! held by a quorum.

#![forbid(unsafe_code)]

mod client;
pub mod control;
pub mod function;
pub mod gather;
pub mod group;
pub mod secret;
pub mod wire;

pub use client::SwitchAddress;
pub use control::{Control, ControlConfig, ControlCounters, GroupStatus, Limits};
pub use function::{Command, Config, Counters, Event, P4ce};
pub use group::{Group, GroupConfig, GroupId, Peer, Replica};
pub use secret::Secret;

/// Bugs that a test can plant, to check that the test suites find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// One acknowledgement less than a quorum is enough
    Minority,
    /// PSNs are compared without wrap-around
    WrongWrap,
    /// The first acknowledgement is passed to the leader
    FirstAck,
    /// A NAK after which the leader did not go back suppresses all later NAKs
    StaleNakPending,
    /// A replica that was dropped for its lag is still written to
    DroppedSilently,
    /// Leaders and replicas keep the ports that they had when their group was opened
    FixedPorts,
    /// Requests for groups are not limited
    UnlimitedRequests,
    /// A replica counts as if it held everything that a quorum holds
    LagIgnored,
    /// A leader is identified by the UDP source port of its first packet, too
    LeaderByPort,
    /// Packets of less than 64 bytes, such as ACKs, are dispatched to the worker after their owner
    WrongOwner,
    /// Workers do not learn the stations that others have seen
    UnsharedStations,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 11] = [
        Self::Minority,
        Self::WrongWrap,
        Self::FirstAck,
        Self::StaleNakPending,
        Self::DroppedSilently,
        Self::FixedPorts,
        Self::UnlimitedRequests,
        Self::LagIgnored,
        Self::LeaderByPort,
        Self::WrongOwner,
        Self::UnsharedStations,
    ];
}

//! 1Pipe's network side (paper: Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks", SIGCOMM
//! 2021, sections 4 and 6.2): what a switch does so that every receiver knows which timestamps are still to come.
//!
//! [`Barrier`] is the minimum over a switch's input links. [`Representative`] keeps a switch's two of them, in one of the
//! paper's three [incarnations](Incarnation): as the switch itself, on the switch's CPU, or as a host in its place. docs/onepipe.md
//! says why no barrier is ever too high. [`process`] is the other side: an endpoint that sends and delivers in total order.

#![forbid(unsafe_code)]

pub mod barrier;
mod beacon;
pub mod config;
pub mod counters;
pub mod function;
mod half;
pub mod plan;
pub mod process;
pub mod view;

pub use barrier::Barrier;
pub use config::{
    BeaconForm, Config, ConfigError, Detour, Incarnation, Link, MIN_DEAD_AFTER, Pace, Registers, Side,
};
pub use counters::{Counters, Refusal};
pub use function::{Command, Event, LinkId, Representative};
pub use process::{Process, ProcessId};
pub use view::{Gauges, Lagging, LinkState, View, Watch};

/// Bugs that can be planted, to see whether tests find them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A link that comes back takes part at once, and the barrier goes back to what it says
    ReturningLink,
    /// The barrier is that of the link which spoke last
    LastLink,
    /// A process delivers messages of equal timestamps in the order in which they came
    TieByArrival,
    /// A process's beacon leaves ahead of messages that have their timestamps already, and says that none follow
    OvertakingBeacon,
    /// A switch drops some of what comes on its first link, and counts nothing
    SilentDrop,
    /// A process that gives up what is missing of one sender refuses the next packet of another
    SharedGap,
    /// A beacon is taken from any source
    AnySource,
    /// A switch passes beacons on that name itself as their source
    ForgedNeighbour,
}

#[cfg(debug_assertions)]
impl Bug {
    /// Every bug.
    pub const ALL: [Self; 8] = [
        Self::ReturningLink,
        Self::LastLink,
        Self::TieByArrival,
        Self::OvertakingBeacon,
        Self::SilentDrop,
        Self::SharedGap,
        Self::AnySource,
        Self::ForgedNeighbour,
    ];
}

//! 1Pipe in the network (Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks",
//! SIGCOMM 2021, sections 4 and 6.2): barrier timestamps, by which every receiver knows which timestamps may
//! still arrive.
//!
//! [`Barrier`] is the minimum over a switch's input links. [`Representative`] keeps a switch's two barriers
//! in one of the paper's three [incarnations](Incarnation): in the switching chip, on the switch CPU, or on a
//! host that represents the switch. docs/onepipe.md proves that no barrier is ever too high. [`process`] is
//! the endpoint, which sends scatterings and delivers messages in total order.

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
pub use view::{Gauges, LagMonitor, LagReport, LinkState, View};

/// Bugs that can be planted, to check that the tests find them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A link that returns takes part at once, and the barrier goes back to that link's barrier
    ReturningLink,
    /// The barrier is that of the link that was updated last, instead of the minimum
    LastLink,
    /// A process delivers messages with equal timestamps in the order of arrival instead of by sender
    TieByArrival,
    /// A process's beacon overtakes messages that have been stamped, and promises that none of them follows
    OvertakingBeacon,
    /// A switch silently drops some of the messages from its first link, without counting them
    SilentDrop,
    /// A process that gives up the missing packets of one sender refuses the next packet of another sender
    SharedGap,
    /// A beacon is accepted from any source address
    AnySource,
    /// A switch forwards beacons that name the switch itself as their source
    ForgedNeighbour,
}

#[cfg(debug_assertions)]
impl Bug {
    /// All bugs.
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

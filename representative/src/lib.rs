//! 1Pipe's network side (paper: Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks", SIGCOMM
//! 2021, sections 4 and 6.2): what a switch does so that every receiver knows which timestamps are still to come.
//!
//! [`Barrier`] is the minimum over a switch's input links. [`Representative`] keeps a switch's two of them, in one of the
//! paper's three [incarnations](Incarnation): as the switch itself, on the switch's CPU, or as a host in its place. docs/onepipe.md
//! says why no barrier is ever too high.

#![forbid(unsafe_code)]

pub mod barrier;
mod beacon;
pub mod config;
pub mod counters;
pub mod function;
mod half;

pub use barrier::Barrier;
pub use config::{BeaconForm, Config, ConfigError, Incarnation, Link, Pace, Registers, Side};
pub use counters::{Counters, Refusal};
pub use function::{Command, Event, LinkId, Representative};

/// Bugs that can be planted, to see whether tests find them.
#[cfg(feature = "canary")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A link that comes back takes part at once, and the barrier goes back to what it says
    ReturningLink,
    /// The barrier is that of the link which spoke last
    LastLink,
}

#[cfg(feature = "canary")]
impl Bug {
    /// Every bug.
    pub const ALL: [Self; 2] = [Self::ReturningLink, Self::LastLink];
}

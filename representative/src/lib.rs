//! 1Pipe in the network (Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks",
//! SIGCOMM 2021, sections 4 and 6.2): barrier timestamps, by which every receiver knows which timestamps may
//! still arrive.
//!
//! [`Barrier`] is the minimum over a switch's input links. [`Keeper`] lets the commit registers follow a
//! controller. [`Representative`] keeps a switch's two barriers
//! in one of the paper's three [incarnations](Incarnation): in the switching chip, on the switch CPU, or on a
//! host that represents the switch. docs/onepipe.md proves that no barrier is ever too high. The endpoint
//! is [`onepipe::Process`].

#![forbid(unsafe_code)]

pub mod barrier;
mod beacon;
mod bug;
mod commit;
pub mod config;
pub mod counters;
pub mod function;
mod half;
pub mod keeper;
pub mod plan;
mod plane;
pub mod view;
mod workers;

pub use barrier::Barrier;
pub use beacon::Templates;
pub use bug::Bug;
pub use commit::Configuration;
pub use config::{
    BeaconForm, Config, ConfigError, Detour, End, Incarnation, Link, LinkId, MIN_DEAD_AFTER, MIN_EVICT_AFTER,
    Pace, Registers, Side,
};
pub use counters::{Counters, Refusal};
pub use function::{Command, Event, Representative};
pub use keeper::Keeper;
pub use view::{Gauges, LagMonitor, LagReport, LinkState, View};
pub use workers::SharedWords;

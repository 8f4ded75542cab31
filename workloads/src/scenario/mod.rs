//! Scenarios: a network, the workload of its hosts, and faults. Every number may be a range, from which the
//! seed draws, so that a scenario describes one world for each seed.

mod faults;
mod network;
mod number;
mod parts;
mod run;
mod shrink;
mod spec;
mod text;
mod work;

pub use network::{
    AckSpec, EcnSpec, FaultKind, FaultSpec, HostSpec, LinkSpec, Scenario, SwitchKind, SwitchSpec,
};
pub use number::NumberRange;
pub use parts::Planted;
pub use run::{CaptureTo, HostReport, LinkReport, Outcome, SwitchReport, run};
pub use shrink::{Shrunk, shrink};
pub use spec::{GroupsSpec, VerbsSpec, Work};
pub use text::to_toml;

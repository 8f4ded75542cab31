//! What the hosts of a scenario do, and whether it was right.

mod groups;
mod verbs;

use super::{HostSpec, Scenario, SwitchKind, Work};
use crate::clock::Clock;
use crate::world::{NodeId, World};
use rnic::{Config, Rnic};

/// What the hosts of a scenario do.
pub(super) trait Workload {
    /// Makes the next host of the scenario. The workload says how large its NIC is.
    fn add_host(&mut self, world: &mut World, host: &HostSpec, nic: Config) -> NodeId;

    /// Everything stands, and captures run: the first frames leave.
    fn begin(&mut self, world: &mut World);

    /// Everything is done.
    fn is_done(&self) -> bool;

    /// Looked at after each event: something is wrong, which [`Workload::check`] tells.
    fn is_wrong(&mut self, world: &World) -> bool;

    /// Happens now and then: ends of connections hear that the other end has failed.
    fn spread(&mut self, world: &mut World);

    /// At the end: what is wrong, if anything. All switches are given.
    fn check(&mut self, world: &World, switches: &[(NodeId, SwitchKind)]) -> Option<String>;

    /// The NIC of a host, by its number
    fn nic<'a>(&self, world: &'a World, number: usize) -> &'a Rnic;

    /// Operations that completed, by name
    fn operations(&self, world: &World) -> Vec<(&'static str, u64)>;

    /// Ends of connections that failed
    fn broken(&self, world: &World) -> u64;
}

/// The workload of a scenario whose numbers are drawn.
pub(super) fn of(scenario: &Scenario, seed: u64) -> Box<dyn Workload> {
    match &scenario.work {
        Work::Verbs(spec) => Box::new(verbs::Work::new(spec, scenario, seed)),
        Work::Groups(spec) => Box::new(groups::Work::new(spec, scenario, seed)),
    }
}

fn clock_of(host: &HostSpec) -> Clock {
    Clock::new(host.clock_offset.value(), host.clock_drift.value())
}

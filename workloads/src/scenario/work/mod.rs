//! Workloads of scenarios, and their checks.

mod groups;
mod verbs;

use super::{HostSpec, Scenario, SwitchKind, Work};
use rnic::{Config, Rnic};
use sim::{Clock, NodeId, World};

/// A workload of a scenario.
pub(super) trait Workload {
    /// Adds the next host of the scenario. The workload sets the capacity of its NIC.
    fn add_host(&mut self, world: &mut World, host: &HostSpec, nic: Config) -> NodeId;

    /// Starts the workload: the network is complete and captures are running.
    fn begin(&mut self, world: &mut World);

    /// Returns whether the workload is done.
    fn is_done(&self) -> bool;

    /// Returns whether there is a violation, which [`Workload::check`] reports. Called after each event.
    fn is_wrong(&mut self, world: &World) -> bool;

    /// Notifies ends of connections that the other end has failed. Called now and then.
    fn notify_broken(&mut self, world: &mut World);

    /// Returns a violation, if any. Called at the end, with all switches.
    fn check(&mut self, world: &World, switches: &[(NodeId, SwitchKind)]) -> Option<String>;

    /// Returns the NIC of a host, by index.
    fn nic<'a>(&self, world: &'a World, number: usize) -> &'a Rnic;

    /// Returns the number of completed operations, by name.
    fn operations(&self, world: &World) -> Vec<(&'static str, u64)>;

    /// Returns the number of ends of connections that failed.
    fn broken(&self, world: &World) -> u64;
}

/// Creates the workload of a scenario whose numbers are drawn.
pub(super) fn of(scenario: &Scenario, seed: u64) -> Box<dyn Workload> {
    match &scenario.work {
        Work::Verbs(spec) => Box::new(verbs::Work::new(spec, scenario, seed)),
        Work::Groups(spec) => Box::new(groups::Work::new(spec, scenario, seed)),
    }
}

fn clock_of(host: &HostSpec) -> Clock {
    Clock::new(host.clock_offset.value(), host.clock_drift.value())
}

//! Interface of a workload to the run.

use crate::scenario::{HostSpec, SwitchKind};
use rnic::{Config, Rnic};
use sim::Clock;
use sim::NodeId;
use sim::World;

/// A workload of a scenario.
pub(in crate::scenario) trait Workload {
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

pub(super) fn clock_of(host: &HostSpec) -> Clock {
    Clock::new(host.clock_offset.value(), host.clock_drift.value())
}

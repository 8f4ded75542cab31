//! Workloads of scenarios, and their checks.

mod groups;
mod verbs;
mod workload;

use super::{Scenario, Work};
pub(super) use workload::Workload;

/// Creates the workload of a scenario whose numbers are drawn.
pub(super) fn of(scenario: &Scenario, seed: u64) -> Box<dyn Workload> {
    match &scenario.work {
        Work::Verbs(spec) => Box::new(verbs::Work::new(spec, scenario, seed)),
        Work::Groups(spec) => Box::new(groups::Work::new(spec, scenario, seed)),
    }
}

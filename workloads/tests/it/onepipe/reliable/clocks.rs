//! Clocks from beacons alone under the reliable service: machines whose clocks are wrong by up to a second, drift, show
//! another time after each restart and are set while they run, with the faults of the other systems.

use super::{ACTIVE, AFTERWARDS, JOINS, SETTLES_WITHIN, draw, kinds};
use crate::environment;
use switch::{Nanos, Rng};
use workloads::onepipe::reliable::{Bugs, Clocks, FaultKind, Plan, System, Totals};

/// Seeds in `make test`
const SEEDS: u64 = 12;
/// Faults with which no process and no switch restarts
const OF_CONTROLLERS: [FaultKind; 5] =
    [FaultKind::Controller, FaultKind::Management, FaultKind::Store, FaultKind::Takeover, FaultKind::Delay];

/// Draws a system, and the kinds of its faults.
fn draw_with_clocks(seed: u64) -> (Plan, Vec<FaultKind>) {
    let (mut plan, mut kinds) = (draw(seed), kinds(seed));
    let mut rng = Rng::stream(seed, 0x6265_6163_6f6e);
    let error_ns = *rng.pick(&[1_000, 1_000_000, 4_000_000, 1_000_000_000]);
    plan.clock_off = None;
    // Of a second, the time that would be lost when a clock is set back is longer than a run.
    let are_set = rng.below(2) == 0 && error_ns <= 4_000_000;
    plan.follow_beacons(Clocks { seed, error_ns, are_set });
    let hosts = plan.tree.hosts() as u64;
    if error_ns < 4_000_000 && hosts > 2 && rng.below(3) == 0 {
        // One machine is beyond the limit until its clock is set right, and its process does not take part. A fast
        // one determines the time of a switch that hears no other.
        let by = rng.between(30_000_000, 1_000_000_000) as i64;
        let is_fast = rng.below(2) == 0;
        if is_fast {
            kinds.retain(|kind| OF_CONTROLLERS.contains(kind));
        }
        plan.clock_off = Some((rng.below(hosts) as usize, if is_fast { by } else { -by }));
    }
    (plan, kinds)
}

/// Runs and checks a system.
fn run(seed: u64, bugs: Bugs) -> Result<System, String> {
    let (mut plan, kinds) = draw_with_clocks(seed);
    plan.bugs = bugs;
    let mut system = System::new(&plan, seed);
    let context = |error: String| format!("{kinds:?}, {:?}, {:?}: {error}", plan.clocks, plan.clock_off);
    let until = ACTIVE + Clocks::LATER;
    system.run_with_faults(JOINS + Clocks::LATER, until, &kinds).map_err(context)?;
    // What crashed restarts, and links heal.
    system.run_until(system.last_end().max(until) + Nanos::from_micros(100)).map_err(context)?;
    system.repair();
    let late = Nanos(20 * plan.tree.link.reorder_by.0.saturating_sub(400_000));
    // Each process that starts waits for the time of its network.
    let waits = Nanos(3 * Clocks::LATER.0);
    system.run_until_settled(SETTLES_WITHIN + late + waits).map_err(context)?;
    system.run_until(system.now() + AFTERWARDS).map_err(context)?;
    system.check().map_err(context)?;
    let totals = system.totals();
    if kinds.is_empty() && (totals.failed, totals.recalled) != (0, 0) {
        return Err(context(format!("without a fault {:?} failed", system.failures())));
    }
    Ok(system)
}

#[test]
fn scatterings_are_atomic_where_clocks_follow_beacons() {
    let mut totals = Totals::default();
    let mut wrong = Vec::new();
    for seed in environment::seeds("onepipe_reliable_clocks", SEEDS) {
        match run(seed, Bugs::default()) {
            Ok(system) => totals.add(&system.totals()),
            Err(error) => wrong.push(format!("seed {seed}: {error}")),
        }
    }
    println!("{totals:?}");
    assert!(wrong.is_empty(), "{} failed:\n{}", wrong.len(), wrong.join("\n"));
    if environment::selects_default_seeds() {
        assert!(totals.committed > 250 && totals.best_effort > 250, "{totals:?}");
        assert!(totals.recalled > 2 && totals.failed > 5, "{totals:?}");
    }
}

/// Bugs of which the other systems find none
#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_clocks_under_the_reliable_service_are_found() {
    let moves = Bugs { process: Some(onepipe::process::Bug::SetMovesClock), ..Bugs::default() };
    let floor = Bugs { representative: Some(representative::Bug::GroupBeforeFloor), ..Bugs::default() };
    for (bugs, what) in [(moves, "each machine was"), (floor, "not settled")] {
        let error = |seed| run(seed, bugs).err().filter(|error| error.contains(what));
        let found = environment::find_bug("onepipe_reliable_clocks", &bugs, 1..481, error);
        let found = found.map(|(seed, error)| (seed, error.lines().next().unwrap_or_default().to_string()));
        println!("{bugs:?}: {found:?}");
        assert!(found.is_some(), "{bugs:?} was not found");
    }
}

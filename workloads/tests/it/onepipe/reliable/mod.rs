//! 1Pipe's reliable service as a whole: real processes, representatives and controllers together, with faults
//! drawn from a seed, and named scenarios.

mod clocks;
mod scenarios;
mod seats;

use crate::environment;
use representative::config::{Incarnation, Pace};
use std::collections::BTreeMap;
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::Tree;
use workloads::onepipe::reliable::{Bugs, FaultKind, Plan, System, Totals};

/// Seeds in `make test`
const SEEDS: u64 = 24;
/// Time in which processes join before the first fault, time in which they send and faults happen
const JOINS: Nanos = Nanos::from_micros(400);
const ACTIVE: Nanos = Nanos::from_micros(2000);
/// Time within which everything is settled after the last fault
const SETTLES_WITHIN: Nanos = Nanos::from_millis(12);
/// Time for which what must not happen is looked for after that
const AFTERWARDS: Nanos = Nanos::from_micros(200);

/// Draws a system.
fn draw(seed: u64) -> Plan {
    let mut rng = Rng::stream(seed, 0x7768_6f6c);
    let (levels, fanout) = *rng.pick(&[(1, 3), (1, 4), (2, 2), (2, 2), (1, 2)]);
    let incarnation = *rng.pick(&[Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host]);
    let mut tree = Tree::new(incarnation, levels, fanout);
    tree.incarnations = (rng.below(2) == 0).then_some(seed);
    tree.pace = *rng.pick(&[Pace::Passing, Pace::Instants]);
    (tree.lasts, tree.every) = (ACTIVE, Nanos::from_micros(20));
    (tree.skew_ns, tree.drift_ppb) = (rng.below(400), 10_000);
    tree.link.jitter = Nanos(rng.below(1000));
    tree.link.loss = Probability::percent(*rng.pick(&[0, 1, 5]));
    tree.link.duplicate = Probability::percent(*rng.pick(&[0, 2]));
    tree.link.reorder = Probability::percent(*rng.pick(&[0, 0, 1, 5]));
    tree.link.reorder_by = Nanos(*rng.pick(&[5_000, 20_000, 400_000]));
    let mut plan = Plan::new(tree);
    plan.management_delay = *rng.pick(&[2_000, 10_000, 40_000]);
    plan.store_latency = *rng.pick(&[0, 20_000, 100_000]);
    // Another stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x756e_6d61);
    let hosts = tree.hosts() as u64;
    plan.unmanaged = (hosts > 2 && rng.below(3) == 0).then(|| rng.below(hosts) as usize);
    let mut rng = Rng::stream(seed, 0x6c61_7465);
    if rng.below(4) == 0 {
        let most = *rng.pick(&[150_000, 1_000_000]);
        let by = 50_000 + rng.below(most) as i64;
        plan.clock_off = Some((rng.below(hosts) as usize, if rng.below(3) == 0 { by } else { -by }));
    }
    if rng.below(4) == 0 {
        // Frames arrive after their receiver, or their sender, has restarted and joined again.
        plan.tree.link.reorder = Probability::percent(*rng.pick(&[1, 5]));
        plan.tree.link.reorder_by = Nanos(1_500_000);
    }
    plan
}

/// Runs and checks a system.
fn run(seed: u64, kinds: &[FaultKind], bugs: Bugs) -> Result<System, String> {
    run_plan(&draw(seed), seed, kinds, bugs, |_| {})
}

/// Runs and checks a system, which `prepare` gets before it runs.
fn run_plan(
    plan: &Plan,
    seed: u64,
    kinds: &[FaultKind],
    bugs: Bugs,
    prepare: impl FnOnce(&mut System),
) -> Result<System, String> {
    let mut plan = *plan;
    plan.bugs = bugs;
    let mut system = System::new(&plan, seed);
    prepare(&mut system);
    let lasts = system.lasts();
    if kinds.is_empty() {
        system.run_until(lasts)?;
    } else {
        system.run_with_faults(JOINS, lasts, kinds)?;
        // What crashed restarts, and links heal.
        system.run_until(system.last_end().max(lasts) + Nanos::from_micros(100))?;
        system.repair();
    }
    // Time-outs are as long as the latest frames are late.
    let late = Nanos(20 * plan.tree.link.reorder_by.0.saturating_sub(400_000));
    system.run_until_settled(SETTLES_WITHIN + late)?;
    system.run_until(system.now() + AFTERWARDS)?;
    system.check()?;
    let totals = system.totals();
    if kinds.is_empty() && (totals.failed, totals.recalled) != (0, 0) {
        return Err(format!("without a fault {:?} failed", system.failures()));
    }
    Ok(system)
}

/// Kinds of faults of a seed: none for every eighth.
fn kinds(seed: u64) -> Vec<FaultKind> {
    if seed.is_multiple_of(8) {
        return Vec::new();
    }
    let mut rng = Rng::stream(seed, 0x6b69_6e64);
    if rng.below(2) == 0 {
        // A few kinds, each often
        return (0..=rng.below(3)).map(|_| *rng.pick(&FaultKind::ALL)).collect();
    }
    let mut kinds: Vec<_> = FaultKind::ALL.into_iter().filter(|_| rng.below(3) > 0).collect();
    kinds.push(*rng.pick(&FaultKind::ALL));
    kinds
}

#[test]
fn every_scattering_is_delivered_everywhere_or_nowhere() {
    let (mut totals, mut faults) = (Totals::default(), BTreeMap::new());
    let mut wrong = Vec::new();
    for seed in environment::seeds("onepipe_reliable", SEEDS) {
        let kinds = kinds(seed);
        match run(seed, &kinds, Bugs::default()) {
            Ok(system) => {
                totals.add(&system.totals());
                system.faults().iter().for_each(|(&kind, count)| *faults.entry(kind).or_insert(0) += count);
            }
            Err(error) => wrong.push(format!("seed {seed}, {kinds:?}: {error}")),
        }
    }
    println!("{totals:?} {faults:?}");
    assert!(wrong.is_empty(), "{} failed:\n{}", wrong.len(), wrong.join("\n"));
    if environment::selects_default_seeds() {
        assert!(totals.committed > 500 && totals.best_effort > 500, "{totals:?}");
        assert!(totals.recalled > 5 && totals.failed > 10 && totals.recovered > 3, "{totals:?}");
        assert!(
            FaultKind::ALL.iter().all(|kind| faults.get(kind).is_some_and(|&count| count > 1)),
            "{faults:?}"
        );
    }
}

/// Bug of representatives that only a process without a controller shows
#[cfg(debug_assertions)]
pub(super) const UNMANAGED_BUG: representative::Bug = representative::Bug::IntroducesToAll;

/// Bugs that few of these seeds find
#[cfg(debug_assertions)]
fn bugs() -> Vec<Bugs> {
    use controller::machine::Bug as Controller;
    use onepipe::process::Bug as Process;
    let process = |bug| Bugs { process: Some(bug), ..Bugs::default() };
    let representative = |bug| Bugs { representative: Some(bug), ..Bugs::default() };
    let controller = |bug| Bugs { controller: Some(bug), ..Bugs::default() };
    let of_processes = [
        Process::CommitBeforeLastAck,
        Process::RecallOnce,
        Process::UnmergedReads,
        Process::OldTerm,
        Process::CompletedEarly,
        Process::RecoversWithoutRecalls,
        Process::OtherIncarnation,
    ];
    let of_representatives = [UNMANAGED_BUG, representative::Bug::OldVersionObeyed];
    let of_controllers = [
        Controller::MinimumForT,
        Controller::SendBeforeStore,
        Controller::NoFreeze,
        Controller::ResumeBeforeCallback,
        Controller::FenceForgotten,
        Controller::LeaveUnannounced,
    ];
    let of_processes = of_processes.map(process).into_iter();
    of_processes.chain(of_representatives.map(representative)).chain(of_controllers.map(controller)).collect()
}

#[cfg(debug_assertions)]
#[test]
fn a_switch_that_speaks_to_an_isolated_rack_is_found() {
    let bugs = Bugs { representative: Some(representative::Bug::MutedSpeaks), ..Bugs::default() };
    let error = |seed| run(seed, &[FaultKind::Isolation], bugs).err();
    let found = environment::find_bug("onepipe_reliable_isolation", &bugs, 1..961, error);
    assert!(found.is_some(), "{bugs:?} was not found");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_all_parts_are_found() {
    let mut missing = Vec::new();
    for bugs in bugs() {
        let error = |seed| run(seed, &kinds(seed), bugs).err();
        let found = environment::find_bug("onepipe_reliable", &bugs, 1..289, error);
        let found = found.map(|(seed, error)| (seed, error.lines().next().unwrap_or_default().to_string()));
        println!("{bugs:?}: {found:?}");
        missing.extend(found.is_none().then_some(bugs));
    }
    assert!(missing.is_empty(), "{missing:?} were not found");
}

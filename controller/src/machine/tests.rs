//! The state machine in a network of simple nodes, in which messages, steps of the data plane, store writes
//! and faults happen in a drawn order.

mod members;
mod messages;
mod nodes;
mod outages;
mod world;

use super::Bug;
use understudy_tests::planted;
use world::{
    Planted, World, run, run_ahead, run_double_death, run_drain, run_drain_among_faults,
    run_during_callbacks, run_late_command, run_seats, run_unheard, run_unseat, run_wrong_clock,
    run_wrong_members,
};

/// Seeds of [`run`] in `cargo test`; `FROM=1000 SEEDS=5000` runs others, as `make soak` does.
const SEEDS: u64 = 40;
/// Seeds of each other network in `cargo test`
const FEW: u64 = 10;
/// Seeds among which a test searches for one that finds a planted bug, unless `planted.txt` has one
const SEARCHED: u64 = 60;

/// Seeds that find planted bugs, one per line with its suite and the bug
const PLANTED: &str = include_str!("tests/planted.txt");

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

#[test]
fn drawn_faults_never_break_a_decision() {
    let mut failed = 0;
    let (from, seeds) = (number("FROM", 0), number("SEEDS", SEEDS));
    for seed in from..from + seeds {
        match run(seed, None) {
            Ok(cases) => failed += cases,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(failed > seeds as usize / 4 || seeds < SEEDS, "many seeds have failures: {failed}");
}

/// Returns what is found by the first seed that fails with a bug, and does not without.
fn found(planted: Planted, run: fn(u64, Option<Planted>) -> Result<usize, String>) -> Option<String> {
    let found = planted::find(PLANTED, "controller", &planted, 0..1_500, |seed| {
        let error = run(seed, Some(planted)).err()?;
        run(seed, None).ok().map(|_| error)
    });
    found.map(|(seed, error)| format!("seed {seed}: {error}"))
}

#[test]
fn planted_bugs_of_the_controller_are_found() {
    for bug in Bug::ALL {
        assert!(found(Planted::Controller(bug), run).is_some(), "{bug:?} is found by no seed");
    }
}

#[test]
fn without_faults_all_join_and_none_fails() {
    for racks in [&[2][..], &[2, 1], &[1, 1, 1]] {
        let mut world = World::new(7, racks, 2, None);
        world.steps(6_000).expect("no fault");
        world.check_settled().expect("all have joined");
        assert_eq!(world.cases(), 0);
    }
}

/// Runs a network in which a process dies, and its leader `steps` steps later.
fn leader_dies_after(steps: usize) -> Result<World, String> {
    let mut world = World::new(3, &[2, 1], 1, None);
    world.steps(3_000)?;
    world.check_settled()?;
    world.kill_process(1);
    world.steps(steps)?;
    world.replace_controller();
    world.steps(3_000)?;
    world.check_callbacks()?;
    world.repair();
    world.steps(4_000)?;
    world.check_settled()?;
    Ok(world)
}

#[test]
fn a_leader_that_dies_between_any_two_steps_leaves_one_decision() {
    // From the death of the process to the end of its case; every fourth step with DEPTH=2
    let stride = if number("DEPTH", 1) > 1 { 4 } else { 20 };
    for steps in (0..1_000).step_by(stride) {
        let world = leader_dies_after(steps).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
        assert_eq!(world.failures().len(), 1, "after {steps} steps: {:?}", world.failures());
    }
}

/// Returns the seeds of a network: the first [`FEW`], or those that the environment selects.
fn few_seeds() -> core::ops::Range<u64> {
    let from = number("FROM", 0);
    from..from + number("SEEDS", FEW)
}

/// Runs seeds of a network that must pass, and checks that each of these bugs is found by one of [`SEARCHED`] seeds.
fn pass_and_find(run: fn(u64, Option<Planted>) -> Result<(), String>, bugs: &[Planted]) {
    for seed in few_seeds() {
        run(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    for &bug in bugs {
        let found = (0..SEARCHED).find(|&seed| run(seed, Some(bug)).is_err());
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is found by no seed");
    }
}

#[test]
fn a_late_command_of_an_old_leader_is_refused() {
    pass_and_find(run_late_command, &[Planted::OldTermObeyed]);
}

#[test]
fn a_controller_with_a_wrong_clock_fails_no_living_process() {
    pass_and_find(run_wrong_clock, &[Planted::Controller(Bug::AheadIsLate)]);
}

#[test]
fn a_process_that_dies_with_its_representative_fails_alone() {
    pass_and_find(run_double_death, &[Planted::Controller(Bug::RegisteringIsLost)]);
}

#[test]
fn a_member_fails_if_its_clock_is_slow_and_not_if_others_are_fast() {
    pass_and_find(run_wrong_members, &[Planted::Controller(Bug::FastClocksBelieved)]);
}

#[test]
fn a_process_behind_a_dead_link_joins_when_it_is_heard_and_stops_no_other() {
    let bugs = [Bug::UnheardCounts, Bug::UnheardAnswer, Bug::UnheardUninformed];
    pass_and_find(run_unheard, &bugs.map(Planted::Controller));
}

#[test]
fn no_barrier_passes_a_failure_while_members_call_back() {
    let bugs = [Bug::CompletedApart, Bug::LinksLeaveApart].map(Planted::Controller);
    pass_and_find(run_during_callbacks, &bugs);
}

#[test]
fn drawn_faults_of_two_representatives_never_break_a_decision() {
    for seed in few_seeds() {
        run_seats(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn what_a_dead_representative_has_stated_bounds_a_decision() {
    for seed in few_seeds() {
        run_ahead(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let found = found(Planted::Controller(Bug::RetiredForgotten), run_ahead);
    assert!(found.is_some(), "it is found by no seed");
}

#[test]
fn an_answer_of_one_of_two_representatives_is_not_enough() {
    let found = found(Planted::Controller(Bug::FrozenAtOneSeat), run_seats);
    assert!(found.is_some(), "it is found by no seed");
}

#[test]
fn one_of_two_representatives_is_enough() {
    pass_and_find(run_unseat, &[]);
}

#[test]
fn switches_are_drained_without_a_case() {
    pass_and_find(run_drain, &[Planted::Controller(Bug::DrainsUnready)]);
}

#[test]
fn a_drain_among_faults_never_breaks_a_decision() {
    pass_and_find(run_drain_among_faults, &[]);
}

//! The state machine in a network of simple nodes, in which messages, steps of the data plane, store writes
//! and faults happen in a drawn order.

mod nodes;
mod world;

use super::Bug;
use world::{Planted, World, run};

const SEEDS: u64 = 250;

#[test]
fn drawn_faults_never_break_a_decision() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        match run(seed, None) {
            Ok(cases) => failed += cases,
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(failed > SEEDS as usize / 4, "many seeds have failures: {failed}");
}

/// Returns what is found by the first seed that fails with a bug, and does not without.
fn found(planted: Planted) -> Option<String> {
    (0..1_500).find_map(|seed| {
        let error = run(seed, Some(planted)).err()?;
        run(seed, None).ok().map(|_| format!("seed {seed}: {error}"))
    })
}

#[test]
fn planted_bugs_of_the_controller_are_found() {
    for bug in Bug::ALL {
        assert!(found(Planted::Controller(bug)).is_some(), "{bug:?} is found by no seed");
    }
}

#[test]
fn without_faults_all_join_and_nobody_fails() {
    for racks in [&[2][..], &[2, 1], &[1, 1, 1]] {
        let mut world = World::new(7, racks, 2, None);
        world.steps(6_000).expect("no fault");
        world.check_settled().expect("all have joined");
        assert_eq!(world.cases(), 0);
    }
}

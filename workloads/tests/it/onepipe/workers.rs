//! Switches with several workers. The suites draw them in some seeds; these have them in every switch that keeps its
//! barriers itself.

use super::trials::Totals;
use super::{clocks, crashes, environment, restarts, seeds};
use representative::config::Incarnation;
use sim::Workers;
use switch::{Nanos, Rng};
use workloads::onepipe::Tree;

/// Seeds of these tests in `make test`; `make soak` runs others.
const SEEDS: u64 = 60;

/// Lets all switches keep their barriers themselves, on several workers.
fn on_workers(seed: u64) -> impl Fn(&mut Tree) {
    move |tree| {
        let of = |incarnation| if incarnation == Incarnation::Host { Incarnation::Chip } else { incarnation };
        (tree.incarnation, tree.incarnations) = (of(tree.incarnation), None);
        tree.workers = Workers::of_senders(seed);
    }
}

#[test]
fn several_workers_keep_the_order() {
    for seed in environment::seeds("onepipe_workers", SEEDS) {
        if let Err(what) = seeds::run(seed, on_workers(seed), &mut seeds::Totals::default()) {
            panic!("seed {seed}: {what}");
        }
    }
}

#[test]
fn no_barrier_is_too_high_where_switches_of_several_workers_crash() {
    for suite in [crashes::SUITE, restarts::SUITE, clocks::SUITE] {
        for seed in environment::seeds("onepipe_workers", SEEDS) {
            let mut trial = (suite.draw)(seed);
            on_workers(seed)(&mut trial.tree);
            trial.tree.link.loss = switch::Probability::NEVER;
            if let Err(what) = suite.run(&trial, seed, &mut Totals::default()) {
                panic!("{}, seed {seed}: {what}\n{}", suite.name, suite.smallest(&trial, seed));
            }
        }
    }
}

/// Also where one worker pauses for a few beacon intervals while the others go on, and where rings are so small that most
/// messages for another worker are lost.
#[test]
fn no_barrier_is_too_high_where_workers_pause_and_rings_are_full() {
    let mut totals = Totals::default();
    for suite in [crashes::SUITE, clocks::SUITE] {
        for seed in environment::seeds("onepipe_workers", SEEDS) {
            let mut trial = (suite.draw)(seed);
            on_workers(seed)(&mut trial.tree);
            let mut rng = Rng::stream(seed, 0x7061_7573_6573);
            // Rings lose messages as links do.
            trial.tree.link.loss = switch::Probability::percent(1);
            let workers = &mut trial.tree.workers;
            (workers.pause_every, workers.pause) = (*rng.pick(&[300, 3_000]), Nanos(rng.between(500, 8_000)));
            workers.ring = *rng.pick(&[1, 2, 4, 8]);
            // A ring may lose all messages between two hosts.
            let is_asked = |what: &String| !what.contains("all faults had ended");
            if let Some(what) = suite.run(&trial, seed, &mut totals).err().filter(is_asked) {
                panic!("{}, seed {seed}: {what}\n{}", suite.name, suite.smallest(&trial, seed));
            }
        }
    }
    assert!(totals.dead > 0 && totals.delivered > 0, "{totals:?}");
}

/// What a planted bug has to violate: the order, or the barrier stands still for a link that is too far behind
#[cfg(debug_assertions)]
const QUESTIONS: [&str; 3] = ["barrier too high", "acknowledged but not delivered", "all faults had ended"];

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_workers_are_found() {
    for bug in representative::Bug::OF_WORKERS {
        let found = environment::find_bug("onepipe_workers", &bug, 1..1001, |seed| {
            let suite = if seed % 2 == 0 { crashes::SUITE } else { clocks::SUITE };
            let mut trial = (suite.draw)(seed);
            on_workers(seed)(&mut trial.tree);
            trial.tree.bug = Some(bug);
            let what = suite.run(&trial, seed, &mut Totals::default()).err()?;
            let is_asked = QUESTIONS.iter().any(|question| what.contains(question));
            is_asked.then_some(what)
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

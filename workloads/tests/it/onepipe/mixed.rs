//! Networks of nodes of two versions and three incarnations: those of the old version declare nothing in
//! their beacons, neither what they read and write nor that they can tell leaving from silence.

use super::environment;
use super::trials::{SEEDS, Suite, let_recover, orderly_tree, span};
use switch::{Probability, Rng};
use workloads::onepipe::{Failing, Outage, Part, Tree, Trial};

pub(super) const SUITE: Suite = Suite { draw, settled: Tree::clock_error, is_disorderly: false };

/// Draws a network in which half of the nodes are of the old version, hosts leave, and up to two nodes crash.
fn draw(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x6d69_7865_64);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    (tree.incarnations, tree.old) = (Some(seed), Some(seed));
    if rng.below(3) == 0 {
        tree.behaviour.leaves = Probability::percent(30);
    }
    let mut trial = Trial { tree, outages: Vec::new(), removals: Vec::new() };
    for _ in 0..rng.below(3) {
        let (from, until) = span(&tree, 60_000, rng);
        let host = rng.below(tree.hosts() as u64) as usize;
        let switch = rng.below(tree.switches() as u64) as usize;
        let part = *rng.pick(&[Part::Host(host), Part::Keeper(switch)]);
        trial.outages.push(Outage { from, until, what: Failing::Crash(part) });
    }
    let_recover(trial)
}

#[test]
fn nodes_of_two_versions_raise_no_barrier_too_high() {
    let totals = SUITE.check(environment::seeds("onepipe", SEEDS));
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        totals.assert_eligible();
        assert!(totals.left > 30 && totals.recovered > 1000 && totals.dead > 50, "{totals:?}");
    }
}

#[test]
fn survey_mixed() {
    SUITE.survey();
}

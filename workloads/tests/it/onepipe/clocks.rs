//! Wrong clocks of nodes that keep barriers, from the beginning or from an operator's mistake on: they decide
//! nothing as long as links live, and no barrier is too high.

use super::environment;
use super::trials::{SEEDS, Suite, let_recover, orderly_tree, span};
use switch::Rng;
use workloads::onepipe::{Failing, Outage, Part, Tree, Trial};

pub(super) const SUITE: Suite = Suite { draw, settled: Tree::clock_error, is_disorderly: false };

/// Largest error of a clock (ns): an hour
const LARGEST_ERROR: u64 = 3_600_000_000_000;

/// Draws a network in which half of the clocks at switches are wrong by up to an hour. In half of the seeds, one
/// node that keeps barriers crashes.
fn draw(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x636c_6f63_6b73);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    tree.wrong_keepers = Some((seed, LARGEST_ERROR));
    if std::env::var("HOST").is_ok() && rng.below(2) == 0 {
        let size = 1000_i64 << rng.below(32);
        let by = if rng.below(2) == 0 { size } else { -size - 3 * tree.join_window.0 as i64 };
        tree.wrong_host = Some((rng.below(tree.hosts() as u64) as usize, by));
    }
    let mut trial = Trial { tree, outages: Vec::new(), removals: Vec::new() };
    if rng.below(2) == 0 {
        let (from, until) = span(&tree, 60_000, rng);
        let keeper = rng.below(tree.switches() as u64) as usize;
        trial.outages.push(Outage { from, until, what: Failing::Crash(Part::Keeper(keeper)) });
    }
    let_recover(trial)
}

#[test]
fn wrong_clocks_of_switches_raise_no_barrier() {
    let totals = SUITE.check(environment::seeds("onepipe", SEEDS));
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        totals.assert_eligible();
        assert!(totals.wrong_clocks > 200 && totals.recovered > 1000, "{totals:?}");
    }
}
#[test]
fn survey_clocks() {
    SUITE.survey();
}

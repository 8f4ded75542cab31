//! Wrong clocks of nodes that keep barriers, or of one host, from the beginning on: they decide nothing as
//! long as links live, no barrier is too high, and only the host with the wrong clock is excluded.

use super::environment;
use super::trials::{SEEDS, Suite, let_recover, orderly_tree, span};
use switch::Rng;
use workloads::onepipe::{Failing, Outage, Part, Tree, Trial};

pub(super) const SUITE: Suite =
    Suite { name: "onepipe_clocks", draw, settled: Tree::clock_error, is_disorderly: false };

/// Largest error of a clock (ns): an hour
const LARGEST_ERROR: u64 = 3_600_000_000_000;

/// Draws a network in which half of the clocks at switches are wrong by up to an hour, or one host's is. In half
/// of the seeds, one node that keeps barriers crashes.
fn draw(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x636c_6f63_6b73);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    tree.wrong_keepers = Some((seed, LARGEST_ERROR));
    if rng.below(2) == 0 {
        // Fast by 1 us to an hour, or so slow that no link waits for it
        let by = 1000_i64 << rng.below(32);
        let by = if rng.below(2) == 0 { by } else { -by - 3 * tree.join_window.0 as i64 };
        tree.wrong_host = Some((rng.below(tree.hosts() as u64) as usize, by));
        // The clocks of switches are off by up to a thousand times as much. Only one clock is wrong.
        (tree.skew_ns, tree.wrong_keepers) = (tree.skew_ns % 30, None);
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
fn wrong_clocks_raise_no_barrier() {
    let totals = SUITE.check(environment::seeds("onepipe", SEEDS));
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        totals.assert_eligible();
        assert!(totals.wrong_clocks > 12 && totals.evicted > 4 && totals.recovered > 200, "{totals:?}");
    }
}

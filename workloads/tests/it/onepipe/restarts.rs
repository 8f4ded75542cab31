//! Processes that crash and restart with empty memory, over and over: over all incarnations of a host,
//! deliveries are in one order and no message is delivered twice.

use super::environment;
use super::trials::{SEEDS, Suite, let_recover, orderly_tree, span};
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::{Failing, Outage, Part, Tree, Trial};

pub(super) const SUITE: Suite =
    Suite { name: "onepipe_restarts", draw, settled: Tree::clock_error, is_disorderly: false };

/// Draws a network in which one to four processes crash, for 1 to 200 us each.
fn draw(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x7265_7374_6172);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    tree.behaviour.largest = *rng.pick(&[8, 3000]);
    let mut trial = Trial { tree, outages: Vec::new(), removals: Vec::new() };
    for _ in 0..rng.between(1, 4) {
        let longest = *rng.pick(&[3000, 20_000, 60_000, 200_000]);
        let (from, until) = span(&tree, longest, rng);
        let host = rng.below(tree.hosts() as u64) as usize;
        trial.outages.push(Outage { from, until, what: Failing::Crash(Part::Host(host)) });
        if rng.below(3) == 0 {
            // It crashes again, soon after its restart.
            let from = until + Nanos(rng.below(5000));
            let until = from + Nanos(rng.between(1000, 20_000));
            trial.outages.push(Outage { from, until, what: Failing::Crash(Part::Host(host)) });
        }
    }
    let_recover(trial)
}

#[test]
fn restarted_processes_keep_one_order() {
    let totals = SUITE.check(environment::seeds("onepipe", SEEDS));
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        assert!(2 * totals.eligible.eligible >= totals.eligible.arrivals, "{totals:?}");
        assert!(totals.restarts > 100 && totals.recovered > 200, "{totals:?}");
        assert!(totals.explained.restarted > 10, "{totals:?}");
    }
}
pub(super) const DISORDERLY: Suite = Suite {
    name: "onepipe_disorderly",
    draw: draw_disorderly,
    settled: Tree::clock_error,
    is_disorderly: true,
};

/// Draws a network as [`draw`] does, whose links duplicate frames and delay some by up to 1 ms, until long
/// after their receiver has restarted.
fn draw_disorderly(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x7265_706c_6179);
    let rng = &mut rng;
    let mut trial = draw(seed);
    // Where links do not keep the order, that of the workers is not seen.
    trial.tree.workers = sim::Workers::ONE;
    let link = &mut trial.tree.link;
    link.duplicate = Probability::percent(rng.between(1, 10));
    link.reorder = Probability::percent(rng.between(1, 10));
    let latest = *rng.pick(&[20_000, 200_000, 1_000_000]);
    link.reorder_by = Nanos(rng.between(5000, latest));
    trial
}

#[test]
fn restarted_processes_accept_no_copies_of_what_was_sent_before() {
    let totals = DISORDERLY.check(environment::seeds("onepipe", SEEDS));
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        assert!(totals.restarts > 100 && totals.explained.late > 200, "{totals:?}");
        assert!(totals.explained.restarted > 10, "{totals:?}");
    }
}

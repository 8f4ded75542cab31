//! Networks in which incarnations and versions are mixed: barriers in messages count only where the neighbour
//! declares that it writes them.

use representative::config::Incarnation;
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::{BEACON_INTERVAL, Tree};

/// The longest time without a rise of a barrier: that of a link that is dead, and two intervals, because a
/// chip of an earlier version sends beacons only in every third interval beside messages
const LONGEST_STALL: Nanos = Nanos(33_000 + 2 * BEACON_INTERVAL.0);
/// Seeds of these tests in `make test`; `make soak` runs others.
const SEEDS: u64 = 20;

/// Draws a tree of switches of all incarnations. In half of them, each node is of an earlier version with a
/// probability of one half.
fn drawn(seed: u64) -> Tree {
    let mut rng = Rng::stream(seed, 0x6d69_7864);
    let (levels, fanout) = [(1, 3), (2, 2), (2, 3), (3, 2)][rng.below(4) as usize];
    let mut tree = Tree::new(Incarnation::Chip, levels, fanout);
    tree.incarnations = Some(seed);
    tree.old = (rng.below(2) == 0).then_some(seed);
    tree.every = Nanos(rng.between(500, 6000));
    tree.lasts = Nanos::from_micros(rng.between(60, 150));
    tree.behaviour.timeout = Nanos::from_micros(100);
    tree.link.jitter = Nanos(rng.below(2000));
    tree.link.loss = Probability::percent(rng.below(3));
    tree.skew_ns = rng.below(2000);
    tree
}

/// Runs a seed, and checks it.
fn run(seed: u64, plant: impl Fn(&mut Tree)) -> Result<usize, String> {
    let mut tree = drawn(seed);
    plant(&mut tree);
    let mut network = tree.build(seed);
    network.world.run_until(tree.lasts + Nanos::from_micros(250));
    network.check(None)?;
    network.check_fates()?;
    let stall = network.each_host().map(|host| host.stall).max().unwrap_or_default();
    if stall > LONGEST_STALL {
        return Err(format!("a host's barrier did not rise for {} ns", stall.0));
    }
    Ok(network.each_host().map(|host| host.delivered.len()).sum())
}

#[test]
fn incarnations_and_versions_may_be_mixed() {
    let mut delivered = 0;
    for seed in crate::environment::seeds("onepipe_mixed", SEEDS) {
        delivered += run(seed, |_| {}).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    if crate::environment::selects_default_seeds() {
        assert!(delivered > 1_000, "{delivered}");
    }
}

/// That of a process is found by the seeds of its other bugs.
#[cfg(debug_assertions)]
#[test]
fn switch_that_reads_barriers_without_a_declaration_is_found() {
    let plant = |tree: &mut Tree| tree.bug = Some(representative::Bug::UndeclaredBarriers);
    assert!((0..200).any(|seed| run(seed, plant).is_err()));
}

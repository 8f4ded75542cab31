//! Nodes that keep barriers, that hear none of their links: no link counts as left while its hosts send.

use super::{ALL, lossy};
use onepipe::process;
use sim::Fault;
use switch::{Nanos, Rng};
use workloads::onepipe::Network;

/// Checks that no link counts as left: no host leaves, and no operator takes a link down.
fn check_left(network: &Network) -> Result<(), String> {
    let mut left = (0..network.representatives.len()).map(|n| network.counters(n).left.get());
    if let Some(n) = left.position(|left| left > 0) {
        return Err(format!("switch {n}: a link counts as left, and no host has left"));
    }
    let contradicts = |host: &workloads::onepipe::Host| {
        host.process.counters().refused(process::Refusal::Contradiction) > 0
    };
    match network.each_host().find(|host| contradicts(host)) {
        Some(host) => Err(format!("host {} was told that nothing follows", host.number())),
        None => Ok(()),
    }
}

/// Runs a tree in which a switch hears none of its links, or none from below, for longer than a link is waited
/// for; in half of the runs it also restarts meanwhile.
fn deaf(
    incarnation: representative::Incarnation,
    seed: u64,
    bug: Option<representative::Bug>,
) -> Result<(), String> {
    let mut tree = lossy(incarnation, seed);
    tree.levels = 2 + seed as u32 % 2;
    tree.bug = bug;
    let mut network = tree.build(seed);
    let mut rng = Rng::stream(seed, 0x6465_6166);
    let switch = rng.below(network.switches.len() as u64) as usize;
    let links: Vec<_> = network.links_of(switch).collect();
    let heard = if rng.below(2) == 0 { links.len() } else { tree.fanout };
    let at = Nanos(rng.between(20_000, 100_000));
    let until = at + Nanos(rng.between(50_000, 120_000));
    network.world.schedule(at, Fault::Cut(links[..heard].to_vec()));
    network.world.schedule(until, Fault::Heal(links[..heard].to_vec()));
    if rng.below(2) == 0 {
        let keeper = network.representatives[switch];
        network.world.schedule(at + Nanos(2_000), Fault::Crash(keeper));
        network.world.schedule(at + Nanos(5_000), Fault::Restart(keeper));
    }
    network.world.run_until(Nanos::from_micros(450));
    check_left(&network)?;
    network.check_order()?;
    network.check_fates().map(|_| ())
}

#[test]
fn links_leave_only_with_their_hosts() {
    for incarnation in ALL {
        for seed in 0..20 {
            assert_eq!(deaf(incarnation, seed, None), Ok(()), "{incarnation:?} seed {seed}");
        }
    }
}

/// Returns whether the tests of this file find this bug, which those of random networks need not.
pub(super) fn finds(bug: representative::Bug) -> bool {
    bug == representative::Bug::DeafNothingFollows
        && ALL.iter().all(|&incarnation| (0..20).any(|seed| deaf(incarnation, seed, Some(bug)).is_err()))
}

//! Nodes that keep barriers, with wrong clocks or without a link to hear: no barrier is too high, no link is
//! removed without a cause, and none counts as left while its hosts send.

use super::{ALL, lossy};
use onepipe::process;
use sim::Fault;
use switch::{Nanos, Rng};
use workloads::onepipe::{Host, Network, Tree};

/// Builds a tree with perfect links in which the clocks of keepers are off by up to 15 ms, which is more than
/// `ahead_max`.
fn wrong_clocks(
    incarnation: representative::Incarnation,
    seed: u64,
    bug: Option<representative::Bug>,
) -> Network {
    let mut tree = Tree::new(incarnation, 2, 2);
    tree.skew_ns = 15_000;
    tree.bug = bug;
    tree.build(seed)
}

/// Checks that no link was removed, and that no barrier is too high.
fn check_links(network: &Network) -> Result<(), String> {
    let dead: Vec<_> = (0..network.representatives.len()).map(|n| network.counters(n).dead.get()).collect();
    let left: Vec<_> = (0..network.representatives.len()).map(|n| network.counters(n).left.get()).collect();
    if dead.iter().chain(&left).any(|&count| count > 0) {
        return Err(format!("links without a fault were removed: {dead:?} dead, {left:?} left"));
    }
    network.check(None)
}

#[test]
fn wrong_clocks_of_keepers_raise_no_barrier() {
    for incarnation in ALL {
        for seed in 0..32 {
            let mut network = wrong_clocks(incarnation, seed, None);
            network.world.run_until(Nanos::from_micros(600));
            assert_eq!(check_links(&network), Ok(()), "{incarnation:?} seed {seed}");
        }
    }
}

/// Switches whose clocks are off by up to an hour believe their links from below.
#[test]
fn hosts_behind_keepers_with_wrong_clocks_deliver() {
    for incarnation in ALL {
        let mut tree = Tree::new(incarnation, 3, 2);
        tree.skew_ns = 0;
        let mut network = tree.build(4);
        for (n, by_ns) in
            [(0, -3_600), (1, 3_600), (2, -1), (4, -20), (6, -7)].map(|(n, s)| (n, s * 1_000_000_000))
        {
            let command = network.clock_off_by(n, by_ns);
            network.command(n, command);
        }
        network.world.run_until(Nanos::from_micros(600));
        let stall = network.each_host().map(|host| host.stall).max();
        assert!(stall.is_some_and(|stall| stall < Nanos::from_micros(40)), "{incarnation:?}: {stall:?}");
        assert_eq!(check_links(&network), Ok(()), "{incarnation:?}");
        assert!(network.check_fates().is_ok(), "{incarnation:?}: {:?}", network.check_fates());
        assert!(network.each_host().all(|host| !host.delivered.is_empty()), "{incarnation:?}");
    }
}

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
        Some(host) => Err(format!("host {} heard that nothing follows", host.number())),
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

/// Checks that a host of nine has received messages of all others but host 0, whose clock is wrong, that were sent after a
/// time of the world.
fn check_received(host: &Host, after: Nanos) -> Result<(), String> {
    let (number, after) = (host.number(), Network::time(after));
    let is_missing = |from| !host.delivered.iter().any(|&(ns, sender, _)| sender == from && ns > after);
    match (1..9).filter(|&from| from != number).find(|&from| is_missing(from)) {
        Some(from) => Err(format!("host {number} received nothing of host {from} after the restart")),
        None => Ok(()),
    }
}

/// Runs a tree in which a host's clock is an hour slow from the start, and its switch restarts.
fn slow_host(
    incarnation: representative::Incarnation,
    seed: u64,
    bug: Option<representative::Bug>,
) -> Result<(), String> {
    let mut tree = Tree::new(incarnation, 2, 3);
    tree.bug = bug;
    tree.lasts = Nanos::from_micros(450);
    let by_ns = [20_000, 1_000_000, 1_000_000_000, 3_600_000_000_000][seed as usize % 4] + 700_000;
    tree.wrong_host = Some((0, -by_ns));
    let mut network = tree.build(seed);
    let mut rng = Rng::stream(seed, 0x736c_6f77);
    let keeper = network.representatives[0];
    let at = Nanos(rng.between(100_000, 110_000));
    network.world.schedule(at, Fault::Crash(keeper));
    network.world.schedule(at + Nanos(rng.between(1_000, 60_000)), Fault::Restart(keeper));
    network.world.run_until(Nanos::from_micros(500));
    for host in network.each_host().filter(|host| host.number() != 0) {
        check_received(host, Nanos::from_micros(250))?;
        if host.stall > Nanos::from_micros(33 + 60) {
            return Err(format!("host {}: its barrier did not rise for {} ns", host.number(), host.stall.0));
        }
    }
    let evicted = |n: usize| network.counters(n).evicted.get();
    if evicted(0) == 0 || (1..network.representatives.len()).any(|n| evicted(n) > 0) {
        let evicted: Vec<_> = (0..network.representatives.len()).map(evicted).collect();
        return Err(format!("the host's switch alone has to leave it out, once or twice: {evicted:?}"));
    }
    network.check_order()
}

#[test]
fn host_whose_clock_is_slow_is_left_out_alone() {
    for incarnation in ALL {
        for seed in 0..8 {
            assert_eq!(slow_host(incarnation, seed, None), Ok(()), "{incarnation:?} seed {seed}");
        }
    }
}

/// Runs a tree in which a host's clock is fast by more than `join_window`, and all other hosts of its switch crash: when
/// they return, they are behind it.
fn fast_host(
    incarnation: representative::Incarnation,
    seed: u64,
    bug: Option<representative::Bug>,
) -> Result<(), String> {
    let mut tree = Tree::new(incarnation, 2, 3);
    tree.bug = bug;
    tree.lasts = Nanos::from_micros(2_400);
    let mut rng = Rng::stream(seed, 0x6661_7374);
    let by = Nanos(rng.between(350_000, 1_000_000));
    tree.wrong_host = Some((0, by.0 as i64));
    let mut network = tree.build(seed);
    for host in [1, 2] {
        let at = Nanos(rng.between(200_000, 210_000));
        let node = network.hosts[host];
        network.world.schedule(at, Fault::Crash(node));
        network.world.schedule(at + Nanos(rng.between(60_000, 160_000)), Fault::Restart(node));
    }
    network.world.run_until(Nanos::from_micros(2_500));
    let refused = network.refused(representative::Refusal::TooFarBehind);
    if refused > 0 {
        return Err(format!("{refused} beacons of hosts that have returned do not count"));
    }
    // Barriers stand still until what they have reached is past.
    network.each_host().try_for_each(|host| check_received(host, Nanos::from_micros(500) + by))?;
    network.check_order()
}

#[test]
fn host_whose_clock_is_fast_excludes_none_that_return() {
    for incarnation in ALL {
        for seed in 0..3 {
            assert_eq!(fast_host(incarnation, seed, None), Ok(()), "{incarnation:?} seed {seed}");
        }
    }
}

/// Runs a tree in which a host's clock has less than half of the right rate, so that its barrier lags more and
/// more.
fn host_that_lags(
    incarnation: representative::Incarnation,
    seed: u64,
    bug: Option<representative::Bug>,
) -> Result<(), String> {
    let mut tree = Tree::new(incarnation, 3, 2);
    tree.bug = bug;
    tree.every = Nanos::from_micros(50);
    tree.lasts = Nanos::from_micros(5_600);
    tree.wrong_rate = Some((0, -600_000_000 - seed as i64 * 7_777_777));
    let mut network = tree.build(seed);
    network.world.run_until(Nanos::from_micros(5_700));
    let evicted: Vec<_> =
        (0..network.representatives.len()).map(|n| network.counters(n).evicted.get()).collect();
    if evicted[0] != 1 || evicted[1..].iter().any(|&count| count > 0) {
        return Err(format!("the host's switch alone has to remove it, once: {evicted:?}"));
    }
    if (0..network.representatives.len()).any(|n| network.counters(n).dead.get() > 0) {
        return Err("a link died".into());
    }
    let later = Network::time(Nanos::from_micros(5_200));
    for host in network.each_host().filter(|host| host.number() != 0) {
        if !host.delivered.iter().any(|&(ns, from, _)| from != host.number() && ns > later) {
            return Err(format!("host {} receives nothing in the end", host.number()));
        }
    }
    if let Some(host) =
        network.each_host().find(|host| host.arrivals.iter().any(|arrival| arrival.late && arrival.from != 0))
    {
        return Err(format!("host {}: messages of another host arrived below the barrier", host.number()));
    }
    network.check_order()
}

#[test]
fn slow_host_is_evicted_by_its_own_switch_alone() {
    for incarnation in ALL {
        for seed in 0..3 {
            assert_eq!(host_that_lags(incarnation, seed, None), Ok(()), "{incarnation:?} seed {seed}");
        }
    }
}

/// Bugs that the tests of this file find
#[cfg(debug_assertions)]
pub(super) const BUGS: [representative::Bug; 6] = [
    representative::Bug::DeafNothingFollows,
    representative::Bug::RefusesAhead,
    representative::Bug::FirstWord,
    representative::Bug::FastLinks,
    representative::Bug::NeverEvicts,
    representative::Bug::EvictsEverywhere,
];

/// Returns whether the tests of this file find this bug in each incarnation.
#[cfg(debug_assertions)]
pub(super) fn finds(bug: representative::Bug) -> bool {
    let fails: fn(_, u64, _) -> bool = match bug {
        representative::Bug::DeafNothingFollows => {
            |incarnation, seed, bug| deaf(incarnation, seed, bug).is_err()
        }
        representative::Bug::RefusesAhead => |incarnation, seed, bug| {
            let mut network = wrong_clocks(incarnation, seed, bug);
            network.world.run_until(Nanos::from_micros(600));
            check_links(&network).is_err()
        },
        representative::Bug::FirstWord => |incarnation, seed, bug| slow_host(incarnation, seed, bug).is_err(),
        representative::Bug::FastLinks => |incarnation, seed, bug| fast_host(incarnation, seed, bug).is_err(),
        representative::Bug::NeverEvicts | representative::Bug::EvictsEverywhere => {
            |incarnation, seed, bug| host_that_lags(incarnation, seed, bug).is_err()
        }
        _ => return false,
    };
    ALL.iter().all(|&incarnation| (0..20).any(|seed| fails(incarnation, seed, Some(bug))))
}

//! 1Pipe's barriers in trees of switches: no barrier is ever too high, and barriers rise in time.

use crate::environment;
use representative::Refusal;
use representative::config::{Incarnation, Pace};
use sim::{Fault, LinkId};
use switch::{Nanos, Probability};
use workloads::onepipe::{BEACON_INTERVAL, Host, Message, Network, Tree};

mod beacon_clocks;
mod clocks;
mod commit;
mod crashes;
mod keepers;
mod mixed;
mod oracle;
mod reliable;
mod restarts;
mod seeds;
mod standby;
mod trials;
mod workers;

const ALL: [Incarnation; 3] = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];

/// Returns a tree that the seed selects, in which messages and beacons are lost.
fn lossy(incarnation: Incarnation, seed: u64) -> Tree {
    let mut tree = Tree::new(incarnation, 1 + seed as u32 % 3, 2 + seed as usize % 2);
    tree.pace = if seed % 4 == 3 { Pace::Instants } else { Pace::Passing };
    tree.link.jitter = Nanos(seed % 16 * 100);
    tree.link.loss = Probability::percent(seed % 5);
    tree.link.rate_bps = [10_000_000_000, 100_000_000_000][seed as usize % 2];
    tree.skew_ns = 300;
    tree.behaviour.timeout = Nanos::from_micros(60);
    tree.drift_ppb = 100_000;
    tree
}

#[test]
fn no_barrier_passes_a_message_in_flight() {
    for incarnation in ALL {
        for seed in 0..16 {
            let mut network = lossy(incarnation, seed).build(seed);
            network.world.run_until(Nanos::from_micros(400));
            let context = format!("{incarnation:?} seed {seed}");
            assert_eq!(network.check(None), Ok(()), "{context}");
            assert!(network.check_fates().is_ok(), "{context}: {:?}", network.check_fates());
            for host in network.each_host() {
                assert!(
                    host.delivered.len() > 30,
                    "{context}: only {} messages delivered",
                    host.delivered.len()
                );
            }
            for why in Refusal::ALL {
                assert_eq!(network.refused(why), 0, "{context}: {why:?}");
            }
        }
    }
}

/// Time at which a link is cut, and time at which the run ends
const CUT: Nanos = Nanos::from_micros(60);
const END: Nanos = Nanos::from_micros(400);

/// Schedules a cut of a link: for 20 us, after which it is not yet dead, or for longer.
fn cut_for(network: &mut Network, link: LinkId, seed: u64) {
    network.world.schedule(CUT, Fault::Cut(vec![link]));
    network.world.schedule(CUT + Nanos::from_micros(seed % 3 * 40 + 20), Fault::Heal(vec![link]));
}

/// Builds and runs a tree in which one link is cut for a while.
fn cut(tree: &Tree, seed: u64, link: impl Fn(&Network) -> LinkId) -> Network {
    let mut network = tree.build(seed);
    let link = link(&network);
    cut_for(&mut network, link, seed);
    network.world.run_until(END);
    network
}

#[test]
fn a_dead_link_stalls_other_hosts_for_ten_intervals() {
    for incarnation in ALL {
        for seed in 0..12 {
            let mut network = lossy(incarnation, seed).build(seed);
            let context = format!("{incarnation:?} seed {seed}");
            let (access, died) = (network.access[0], seed % 3 > 0);
            cut_for(&mut network, access, seed);
            // A link is dead ten intervals after its last beacon. One of the intervals may be shorter, where
            // timestamps wrap.
            network.world.run_until(CUT + Nanos(8 * BEACON_INTERVAL.0));
            assert_eq!(network.counters(0).dead.get(), 0, "{context}");
            network.world.run_until(CUT + Nanos(12 * BEACON_INTERVAL.0));
            assert_eq!(network.counters(0).dead.get(), u64::from(died), "{context}");
            network.world.run_until(END);
            assert_eq!(network.check(Some(0)), Ok(()), "{context}");
            assert_eq!(network.counters(0).joined.get(), u64::from(died), "{context}");
            assert!(network.check_fates().is_ok(), "{context}: {:?}", network.check_fates());
            let stall = network.each_host().skip(1).map(|host| host.stall.0 / BEACON_INTERVAL.0).max();
            assert!(
                stall.is_some_and(|stall| stall < 16),
                "{context}: {stall:?} intervals without a barrier"
            );
            // Messages sent after the link has rejoined are delivered again.
            let later = Network::time(Nanos::from_micros(200));
            let received = |host: &Host| host.delivered.iter().any(|&(ns, from, _)| from == 0 && ns > later);
            assert!(network.each_host().any(received), "{context}");
        }
    }
}

#[test]
fn a_tree_that_was_cut_in_two_becomes_one_again() {
    for incarnation in ALL {
        for seed in 0..6 {
            let mut tree = lossy(incarnation, seed);
            tree.levels = 2 + seed as u32 % 2;
            let network = cut(&tree, seed, |network| network.uplinks[0]);
            let context = format!("{incarnation:?} seed {seed}");
            assert_eq!(network.check_rising().and_then(|()| network.check_order()), Ok(()), "{context}");
            // In the end, hosts on one side receive messages from the other side, and in time.
            let later = Network::time(Nanos::from_micros(250));
            for host in network.each_host() {
                let near = |number: usize| number < tree.fanout;
                let from_far = |&&(ns, from, _): &&Message| ns > later && near(from) != near(host.number());
                let received = host.delivered.iter().filter(from_far).count();
                assert!(
                    received > 0 || !near(host.number()),
                    "{context}: host {} receives nothing from the other side",
                    host.number()
                );
            }
        }
    }
}

/// Returns the mean time from sending to delivery, in nanoseconds.
fn mean_delay(tree: &Tree) -> f64 {
    let mut network = tree.build(5);
    network.world.run_until(tree.lasts + Nanos::from_micros(100));
    assert_eq!(network.check(None), Ok(()));
    network.mean_delay_ns()
}

#[test]
fn barriers_cost_half_an_interval() {
    for levels in 1..=3 {
        // With few messages, nearly all barriers arrive in beacons.
        let mut tree = Tree::new(Incarnation::Chip, levels, 3);
        tree.every = Nanos::from_micros(40);
        tree.lasts = Nanos::from_micros(1500);
        // A barrier comes from the farthest host: one link per level up, and one down.
        let hop = tree.link.delay.0 as f64 + ((90 + sim::OVERHEAD) * 8) as f64 / 100.0;
        let expected = 2.0 * f64::from(levels) * hop + BEACON_INTERVAL.0 as f64 / 2.0;
        let chip = mean_delay(&tree);
        assert!(
            (chip - expected).abs() < 0.1 * expected,
            "{levels} levels: {chip:.0} ns, expected {expected:.0}"
        );
        // A representative adds a link to it and a link back, at each switch that a barrier passes.
        tree.incarnation = Incarnation::Host;
        let expected = expected + (2.0 * f64::from(levels) - 1.0) * 2.0 * hop;
        let host = mean_delay(&tree);
        assert!(
            (host - expected).abs() < 0.1 * expected,
            "{levels} levels: {host:.0} ns, expected {expected:.0}"
        );
    }
}

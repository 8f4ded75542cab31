//! 1Pipe in fat trees, where each flow takes one of several paths: barriers hold, and delivery takes as long
//! as the paper predicts.

use representative::Refusal;
use representative::config::{Incarnation, Pace};
use sim::OVERHEAD;
use switch::{Nanos, Probability};
use workloads::onepipe::{BEACON_INTERVAL, FatTree, Network};

const ALL: [Incarnation; 3] = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];
const HOPS: [u32; 3] = [1, 3, 5];
/// Bytes of a beacon that is a datagram, with its frame check sequence
const BEACON: u64 = 94;

#[test]
fn no_barrier_passes_a_message_in_flight() {
    for incarnation in ALL {
        for seed in 0..3 {
            let mut tree = FatTree::testbed(incarnation);
            tree.pace = if seed == 2 { Pace::Instants } else { Pace::Passing };
            tree.link.jitter = Nanos(seed * 300);
            tree.link.loss = Probability::percent(seed);
            tree.skew_ns = 300;
            tree.lasts = Nanos::from_micros(120);
            let mut network = tree.build(seed);
            network.world.run_until(Nanos::from_micros(250));
            let context = format!("{incarnation:?} seed {seed}");
            assert_eq!(network.check(None), Ok(()), "{context}");
            let far = network
                .each_host()
                .flat_map(|host| &host.delivered)
                .filter(|message| message.1 >= 16)
                .count();
            assert!(far > 200, "{context}: only {far} messages of the second pod were delivered");
            for host in network.each_host() {
                assert!(
                    host.delivered.len() > 10,
                    "{context}: only {} messages delivered",
                    host.delivered.len()
                );
            }
            assert!(network.check_fates().is_ok(), "{context}: {:?}", network.check_fates());
            for why in Refusal::ALL {
                assert_eq!(network.refused(why), 0, "{context}: {why:?}");
            }
        }
    }
}

#[test]
fn every_path_is_used() {
    let mut network = FatTree::testbed(Incarnation::Chip).build(3);
    network.world.run_until(Nanos::from_micros(250));
    for keeper in 0..network.representatives.len() {
        let messages = network.counters(keeper).messages.get();
        assert!(messages > 50, "switch {keeper} forwarded only {messages} messages");
    }
}

fn delay(tree: &FatTree) -> f64 {
    let mut network = tree.build(5);
    network.world.run_until(tree.lasts + Nanos::from_micros(100));
    assert_eq!(network.check(None), Ok(()));
    network.mean_delay_ns()
}

#[test]
fn barriers_cost_half_an_interval_and_host_representatives_their_links() {
    for hops in HOPS {
        let mut tree = FatTree::of_hops(Incarnation::Chip, hops);
        // With few messages, nearly all barriers arrive in beacons.
        tree.every = Nanos::from_micros(40);
        tree.lasts = Nanos::from_micros(400);
        // A barrier comes from the farthest host: one link more than hops.
        let link = tree.link.delay.0 as f64 + ((90 + OVERHEAD) * 8) as f64 / 100.0;
        let expected = f64::from(hops + 1) * link + BEACON_INTERVAL.0 as f64 / 2.0;
        let chip = delay(&tree);
        assert!(
            (chip - expected).abs() < 0.1 * expected,
            "{hops} hops: {chip:.0} ns, expected {expected:.0}"
        );
        // A representative adds a link to it and a link back, at each switch that a barrier passes.
        tree.incarnation = Incarnation::Host;
        let expected = expected + f64::from(hops) * 2.0 * link;
        let host = delay(&tree);
        assert!(
            (host - expected).abs() < 0.1 * expected,
            "{hops} hops: {host:.0} ns, expected {expected:.0}"
        );
    }
}

/// Returns the share of a link's bandwidth that the beacons of switches take.
fn beacon_share(tree: &FatTree, network: &mut Network) -> f64 {
    let sent = |network: &Network| {
        (0..network.representatives.len()).map(|n| network.counters(n).beacons.get()).sum::<u64>()
    };
    network.world.run_until(Nanos::from_micros(60));
    let before = sent(network);
    network.world.run_until(Nanos::from_micros(360));
    // Each link has two outputs, but those of hosts are not counted.
    let outputs = network.access.len() + 2 * network.uplinks.len();
    let beacons = (sent(network) - before) as f64 / outputs as f64;
    beacons * BEACON as f64 * 8.0 / (300e-6 * tree.link.rate_bps as f64)
}

#[test]
fn beacons_take_less_than_three_thousandths_of_a_link() {
    for incarnation in ALL {
        let mut tree = FatTree::testbed(incarnation);
        tree.lasts = Nanos::ZERO;
        assert_eq!(tree.link.rate_bps, 100_000_000_000);
        let share = beacon_share(&tree, &mut tree.build(1));
        assert!((0.001..0.003).contains(&share), "{incarnation:?}: {:.3} %", 100.0 * share);
    }
}

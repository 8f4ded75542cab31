//! What loss does to delivery: the shape of the paper's figure 9b.

use representative::config::Incarnation;
use sim::onepipe::{BEACON_INTERVAL, FatTree, Latency, Span};
use switch::Nanos;

fn latency(incarnation: Incarnation, loss: f64, seed: u64) -> Latency {
    let tree = FatTree::testbed(incarnation).losing(loss);
    let measured = tree.latency(Span::new(Nanos::from_micros(400)), seed);
    measured.map_or_else(|what| panic!("{incarnation:?}, {loss:e}: {what}"), |(latency, _)| latency)
}

/// Flat as far as healthy links go; beyond, the more the steeper on the figure's axis, and never by more than some intervals. What
/// arrives takes as long as ever.
#[test]
fn delivery_is_flat_where_links_are_healthy_and_grows_where_they_are_not() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let whole = latency(incarnation, 0.0, 1);
        assert!(whole.deliveries > 400 && whole.lost == 0.0, "{incarnation:?}: {whole:?}");
        let mut before = whole.mean_ns;
        // By how much the mean is above that without loss, in intervals
        for (loss, least, most) in [
            (1e-8, 0.0, 0.0),
            (1e-6, -0.02, 0.02),
            (1e-5, -0.02, 0.05),
            (1e-3, -0.02, 0.3),
            (1e-2, 0.25, 1.1),
            (1e-1, 1.5, 7.0),
        ] {
            let lossy = latency(incarnation, loss, 1);
            let grown = (lossy.mean_ns - whole.mean_ns) / BEACON_INTERVAL.0 as f64;
            let what = format!("{incarnation:?}, {loss:e}: {grown:.2} intervals, {lossy:?}");
            assert!((least..=most).contains(&grown), "{what}");
            // A message that is lost is none of those that are averaged.
            assert!(
                lossy.mean_ns > 0.99 * before && lossy.p99.0 as f64 > 0.99 * whole.p99.0 as f64,
                "{what}"
            );
            assert!((lossy.arrival_ns / whole.arrival_ns - 1.0).abs() < 0.1, "{what}");
            // On up to six links each; of some hundreds of messages
            assert!(lossy.lost <= 7.0 * loss + 0.02, "{what}");
            before = lossy.mean_ns;
        }
    }
}

/// "A lost beacon packet on any link will stall delivery of barrier until the next beacon, and all receivers need to wait for the worst
/// link" (section 7.2): where that is rare, an interval for each instant of which any beacon is lost on the way to a receiver.
#[test]
fn a_lost_beacon_costs_everybody_an_interval() {
    const LOSS: f64 = 1e-2;
    // Up from every host, then every switch; down to one pod's spine switches, to the rack, and to the host
    let beacons = [32, 8, 8, 4, 2, 1];
    // A representative's passes three links to the next, and two from and to hosts.
    for (incarnation, links) in [(Incarnation::Chip, [1; 6]), (Incarnation::Host, [2, 3, 3, 3, 3, 2])] {
        let chances: i32 = beacons.iter().zip(links).map(|(beacons, links)| beacons * links).sum();
        let expected = (1.0 - (1.0 - LOSS).powi(chances)) * BEACON_INTERVAL.0 as f64;
        let grown = |seed| latency(incarnation, LOSS, seed).mean_ns - latency(incarnation, 0.0, seed).mean_ns;
        let grown = (1..=3).map(grown).sum::<f64>() / 3.0;
        assert!(
            (0.75..1.35).contains(&(grown / expected)),
            "{incarnation:?}: {grown:.0} ns, not {expected:.0}"
        );
    }
}

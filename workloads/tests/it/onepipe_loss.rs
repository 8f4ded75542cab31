//! Effect of loss on delivery latency: the shape of figure 9b of the 1Pipe paper.

use representative::config::Incarnation;
use switch::Nanos;
use workloads::onepipe::{BEACON_INTERVAL, FatTree, Latency, Span};

fn latency(incarnation: Incarnation, loss: f64, seed: u64) -> Latency {
    let tree = FatTree::testbed(incarnation).losing(loss);
    let measured = tree.latency(Span::new(Nanos::from_micros(400)), seed);
    measured.map_or_else(|what| panic!("{incarnation:?}, {loss:e}: {what}"), |(latency, _)| latency)
}

/// Latency is flat at the loss rates of healthy links. Beyond, it grows more steeply with the loss, on the
/// figure's axis, but by a few intervals only. The time to arrival does not change.
#[test]
fn delivery_latency_is_flat_on_healthy_links_and_grows_on_lossy_ones() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let whole = latency(incarnation, 0.0, 1);
        assert!(whole.deliveries > 400 && whole.lost == 0.0, "{incarnation:?}: {whole:?}");
        let mut before = whole.mean_ns;
        // Bounds of the increase of the mean over that without loss, in intervals
        for (loss, least, most) in [
            (1e-8, 0.0, 0.0),
            (1e-6, -0.02, 0.02),
            (1e-5, -0.02, 0.05),
            (1e-3, -0.02, 0.3),
            (1e-2, 0.25, 1.1),
            (1e-1, 1.5, 7.0),
        ] {
            let lossy = latency(incarnation, loss, 1);
            let increase = (lossy.mean_ns - whole.mean_ns) / BEACON_INTERVAL.0 as f64;
            let what = format!("{incarnation:?}, {loss:e}: {increase:.2} intervals, {lossy:?}");
            assert!((least..=most).contains(&increase), "{what}");
            // Lost messages are not part of the average.
            assert!(
                lossy.mean_ns > 0.99 * before && lossy.p99.0 as f64 > 0.99 * whole.p99.0 as f64,
                "{what}"
            );
            assert!((lossy.arrival_ns / whole.arrival_ns - 1.0).abs() < 0.1, "{what}");
            // A message passes up to six links. The allowance of 0.02 is for the small sample of some hundred
            // messages.
            assert!(lossy.lost <= 7.0 * loss + 0.02, "{what}");
            before = lossy.mean_ns;
        }
    }
}

/// "A lost beacon packet on any link will stall delivery of barrier until the next beacon, and all receivers
/// need to wait for the worst link" (1Pipe, section 7.2). Where that is rare, delivery waits for one interval
/// at each instant of which any beacon on the way to a receiver is lost.
#[test]
fn a_lost_beacon_costs_all_receivers_an_interval() {
    const LOSS: f64 = 1e-2;
    // Up from every host, then from every switch; down to one pod's spine switches, to the rack, and to the
    // host
    let beacons = [32, 8, 8, 4, 2, 1];
    // A representative's beacon passes three links to the next representative, and two from and to hosts.
    for (incarnation, links) in [(Incarnation::Chip, [1; 6]), (Incarnation::Host, [2, 3, 3, 3, 3, 2])] {
        let beacon_count: i32 = beacons.iter().zip(links).map(|(beacons, links)| beacons * links).sum();
        let expected = (1.0 - (1.0 - LOSS).powi(beacon_count)) * BEACON_INTERVAL.0 as f64;
        let increase =
            |seed| latency(incarnation, LOSS, seed).mean_ns - latency(incarnation, 0.0, seed).mean_ns;
        let increase = (1..=3).map(increase).sum::<f64>() / 3.0;
        assert!(
            (0.75..1.35).contains(&(increase / expected)),
            "{incarnation:?}: {increase:.0} ns, expected {expected:.0}"
        );
    }
}

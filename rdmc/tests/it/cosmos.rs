//! A workload like that of RDMC, section 5.2.2 (figure 9), and senders with overlapping groups.

use rdmc::cosmos::{BLOCK, RATE_BPS, groups, latencies, sizes};
use rdmc::model::{Network, Object, run};
use rdmc::{Algorithm, Schedule};

const MB: f64 = 1e6;

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[test]
fn algorithms_have_the_order_of_figure_9() {
    let (sizes, groups) = (sizes(4000, 1), groups());
    assert_eq!(groups.len(), 455);
    let as_mb: Vec<f64> = sizes.iter().map(|bytes| *bytes as f64 / MB).collect();
    let mean = as_mb.iter().sum::<f64>() / as_mb.len() as f64;
    assert!((median(&as_mb) - 12.0).abs() < 1.0 && (mean - 29.0).abs() < 2.0, "{} {mean}", median(&as_mb));
    let all = [Algorithm::Pipeline, Algorithm::Tree, Algorithm::Sequential, Algorithm::InNetwork];
    let [pipeline, tree, sequential, switch] = all.map(|algorithm| latencies(&algorithm, &sizes, &groups));
    let total = |latencies: &[f64]| latencies.iter().sum::<f64>();
    let ratio = |other: &[f64]| {
        let each: Vec<f64> = other.iter().zip(&pipeline).map(|(other, pipeline)| other / pipeline).collect();
        (median(&each), total(other) / total(&pipeline))
    };
    let replicated = sizes.iter().sum::<u64>() as f64 * 8.0 / total(&pipeline);
    println!("replicated {:.1} Gb/s", replicated / 1e9);
    println!(
        "tree {:?}, sequential {:?}, a switch that copies {:?}",
        ratio(&tree),
        ratio(&sequential),
        ratio(&switch)
    );
    let (tree, sequential, switch) = (ratio(&tree), ratio(&sequential), ratio(&switch));
    // "Almost twice as fast as the tree, around three times as fast as sequential send", 93 Gb/s.
    assert!((1.7..2.0).contains(&tree.0) && (1.8..2.0).contains(&tree.1), "{tree:?}");
    assert!((2.5..3.0).contains(&sequential.0) && (2.7..3.0).contains(&sequential.1), "{sequential:?}");
    assert!((88e9..96e9).contains(&replicated), "{replicated}");
    assert!(switch.0 < 1.0 && switch.1 < 1.0, "{switch:?}");
}

/// Eight senders at once with overlapping groups: all get equal shares, and the network is nearly fully used.
#[test]
fn overlapping_groups_share_the_network_fairly() {
    let members = |root: usize| -> Vec<usize> { (0..8).map(|n| (root + n) % 8).collect() };
    let object = |root| Object {
        schedule: Schedule::new(Algorithm::Pipeline, 8, 100).unwrap(),
        members: members(root),
        bytes: 100 * BLOCK,
        block: BLOCK,
        at: 0.0,
    };
    let objects: Vec<Object> = (0..8).map(object).collect();
    let network = Network::new(8, RATE_BPS, 1.5e-6);
    let times: Vec<f64> = run(&network, &objects).iter().map(rdmc::model::TransferTimes::last).collect();
    // Jain's fairness index: 1 if all rates are equal, 1/8 if one object has the whole network.
    let rates: Vec<f64> = times.iter().map(|time| 1.0 / time).collect();
    let jain = rates.iter().sum::<f64>().powi(2) / (8.0 * rates.iter().map(|rate| rate * rate).sum::<f64>());
    // Seven copies of eight objects through eight ports, which are always full in the ideal case.
    let bytes_in = 8.0 * 7.0 * (100 * BLOCK) as f64;
    let ideal = bytes_in * 8.0 / (8.0 * RATE_BPS);
    let last = times.iter().copied().fold(0.0, f64::max);
    println!("Jain {jain:.4}, {:.3} of the ports' rate", ideal / last);
    assert!(jain > 0.99 && ideal / last > 0.8, "{jain}, {}", ideal / last);
}

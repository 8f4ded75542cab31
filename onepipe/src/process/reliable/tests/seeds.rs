//! Runs with drawn faults.

use super::super::super::Bug;
use super::network::{Network, Plan};

/// Seeds in `cargo test`; `FROM=1000 SEEDS=5000` runs others
const SEEDS: u64 = 30;

/// Runs a seed; a third of the seeds have no failures. Returns how often each thing has happened.
fn run(seed: u64, bug: Option<Bug>) -> Result<[u64; 6], String> {
    let mut network = Network::new(seed, Plan { bug, has_failures: !seed.is_multiple_of(3) });
    network.run()?;
    Ok(network.totals())
}

#[test]
fn every_scattering_is_delivered_by_all_or_by_none() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, count) = (number("FROM", 0), number("SEEDS", SEEDS));
    let mut totals = [0; 6];
    for seed in first..first + count {
        let happened = run(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        (0..6).for_each(|n| totals[n] += happened[n]);
    }
    println!("committed, recalled, repeated packets, recalls stored, recovered, joined again: {totals:?}");
    let least = [100, 2, 100, 1, 0, 0].map(|each| each * count);
    assert!(totals.iter().zip(least).all(|(total, least)| *total > least), "{totals:?}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in Bug::RELIABLE {
        // An ACK that comes late from a receiver which has failed is rare.
        let first = if bug == Bug::AckAfterNotice { 300 } else { 0 };
        let found = (first..first + 150)
            .find_map(|seed| run(seed, Some(bug)).err().map(|violation| (seed, violation)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}, {violation}");
    }
}

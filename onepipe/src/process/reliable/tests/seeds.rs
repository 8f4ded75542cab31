//! Runs with drawn faults.

use super::super::super::Bug;
use super::network::{Network, Plan};

/// Runs a seed; a third of the seeds have no failures.
fn run(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    Network::new(seed, Plan { bug, has_failures: !seed.is_multiple_of(3) }).run()
}

#[test]
fn every_scattering_is_delivered_by_all_or_by_none() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (first, count) = (number("FROM", 0), number("SEEDS", 150));
    for seed in first..first + count {
        if let Err(violation) = run(seed, None) {
            panic!("seed {seed}: {violation}");
        }
    }
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in Bug::RELIABLE {
        let found = (0..150).find_map(|seed| run(seed, Some(bug)).err().map(|violation| (seed, violation)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}, {violation}");
    }
}

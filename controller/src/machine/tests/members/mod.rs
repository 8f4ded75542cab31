//! Real processes and members with real controllers, on a data network that loses, delays and repeats, and a
//! management network that delays and breaks. Representatives are the models of [`super::nodes`].

mod control;
mod faults;
mod host;
mod network;
mod oracle;
mod search;

use super::number;
use network::{Network, Plan};
use onepipe::process::Bug;

/// Seeds in `cargo test`; `FROM=1000 SEEDS=5000` runs others
const SEEDS: u64 = 60;

/// Runs a drawn network. Returns its totals.
fn run(seed: u64, plan: Plan) -> Result<[u64; 7], String> {
    let mut network = Network::new(seed, plan);
    network.run()?;
    Ok(network.totals())
}

#[test]
fn every_scattering_is_delivered_everywhere_or_nowhere() {
    let (from, seeds) = (number("FROM", 0), number("SEEDS", SEEDS));
    let mut totals = [0; 7];
    for seed in from..from + seeds {
        let plan = Plan { has_faults: seed % 8 > 0, bug: None };
        let run = run(seed, plan).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        totals.iter_mut().zip(run).for_each(|(total, of_run)| *total += of_run);
    }
    let names = ["committed", "recalled", "failed", "stored recalls", "recovered", "carried", "terms"];
    let all: Vec<_> = names.iter().zip(totals).collect();
    assert!(seeds < SEEDS || totals.iter().all(|&total| total > 10), "{all:?}");
    println!("{all:?}");
}

/// Returns what is found by the first seed that fails with a bug, and does not without.
fn found(bug: Bug) -> Option<String> {
    (0..400).find_map(|seed| {
        let plan = |bug| Plan { has_faults: true, bug };
        let error = run(seed, plan(Some(bug))).err()?;
        run(seed, plan(None)).ok().map(|_| format!("seed {seed}: {error}"))
    })
}

#[test]
#[cfg(debug_assertions)]
fn planted_bugs_of_a_membership_are_found() {
    for bug in Bug::MEMBERSHIP {
        let found = found(bug);
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} is found by no seed");
    }
}

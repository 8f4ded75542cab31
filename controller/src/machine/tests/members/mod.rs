//! Real processes and members with real controllers, on a data network that loses, delays and repeats, and a
//! management network that delays and breaks. Representatives are the models of [`super::nodes`].

mod control;
mod faults;
mod host;
mod network;
mod oracle;
mod search;

use super::{PLANTED, number};
use crate::machine;
use network::{Network, Plan};
use onepipe::process::Bug;
use understudy_tests::planted;

/// Seeds in `cargo test`; `FROM=1000 SEEDS=5000` runs others
const SEEDS: u64 = 12;
/// Number of the totals of a run
const TOTALS: usize = 8;

/// Runs a drawn network. Returns its totals.
fn run(seed: u64, plan: Plan) -> Result<[u64; TOTALS], String> {
    let mut network = Network::new(seed, plan);
    network.run()?;
    Ok(network.totals())
}

#[test]
fn every_scattering_is_delivered_everywhere_or_nowhere() {
    let (from, seeds) = (number("FROM", 0), number("SEEDS", SEEDS));
    let mut totals = [0; TOTALS];
    for seed in from..from + seeds {
        let plan = Plan { has_faults: seed % 8 > 0, bug: None, controller_bug: None };
        let run = run(seed, plan).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        totals.iter_mut().zip(run).for_each(|(total, of_run)| *total += of_run);
    }
    let names =
        ["committed", "recalled", "failed", "stored recalls", "recovered", "carried", "terms", "left"];
    let all: Vec<_> = names.iter().zip(totals).collect();
    println!("{all:?}");
    assert!(seeds < SEEDS || totals.iter().all(|&total| total > 1), "{all:?}");
}

/// Returns what is found by the first seed that fails with a bug, and does not without.
fn found(bug: Option<Bug>, controller_bug: Option<machine::Bug>) -> Option<String> {
    let found = planted::find(PLANTED, "members", &(bug, controller_bug), 0..400, |seed| {
        let plan = |bug, controller_bug| Plan { has_faults: true, bug, controller_bug };
        // A broken invariant may end a process, too.
        let with_bug = std::panic::catch_unwind(|| run(seed, plan(bug, controller_bug)));
        let error = with_bug.unwrap_or_else(|_| Err("a panic".into())).err()?;
        run(seed, plan(None, None)).ok().map(|_| error)
    });
    found.map(|(seed, error)| format!("seed {seed}: {error}"))
}

#[test]
#[cfg(debug_assertions)]
fn planted_bugs_of_a_membership_are_found() {
    let of_processes = Bug::MEMBERSHIP.into_iter().map(|bug| (Some(bug), None));
    let of_controllers = machine::Bug::DEPARTURES.into_iter().map(|bug| (None, Some(bug)));
    for (bug, controller_bug) in of_processes.chain(of_controllers) {
        let found = found(bug, controller_bug);
        println!("{bug:?} {controller_bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} {controller_bug:?} is found by no seed");
    }
}

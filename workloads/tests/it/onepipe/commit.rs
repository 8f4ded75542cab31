//! Commit barriers with drawn members, links that die and return, hosts that leave, and representatives that
//! restart with empty memory, while a controller freezes, mutes and thaws links over connections that lose,
//! repeat, delay and reorder messages.

use super::environment;
use super::trials::{SEEDS, orderly_tree};
use representative::Refusal;
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::{ChangeKind, Controller, Counts, Failing, Outage, Part, Tree};

/// Longest time by which a host's commit barrier is behind its clock
const LAG: Nanos = Nanos::from_micros(5);
/// Time from which on the controller stops links
const STOPS_FROM: Nanos = Nanos::from_micros(20);
/// Time of the last fault, or departure
const LAST_FAULT: u64 = 200_000;
/// Time after that, in which links return, and the controller decides
const RECOVERS_WITHIN: Nanos = Nanos::from_micros(200);
/// Age of the commit barriers at the end: on their way through the tree they wait for beacons
const BEHIND: Nanos = Nanos::from_micros(50);

/// Counts over all seeds
#[derive(Debug, Default)]
struct Totals {
    /// Commit barriers that hosts have received
    commits: usize,
    dead: usize,
    left: usize,
    restarted: usize,
    members: usize,
    /// Of the controllers
    counts: Counts,
    /// Beacons of incarnations that were not named
    unknown: u64,
}

/// Runs a seed, and checks it.
fn run(seed: u64, plant: impl Fn(&mut Tree), totals: &mut Totals) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 0x636f_6d6d);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    tree.behaviour.commits = Some(LAG);
    tree.lasts = Nanos(LAST_FAULT);
    tree.behaviour.leaves = Probability::percent(*rng.pick(&[0, 30, 60]));
    plant(&mut tree);
    let mut network = tree.build(seed);
    network.world.record_losses();
    for _ in 0..rng.below(4) {
        // Links that are silent for this long die.
        let from = Nanos(rng.between(20_000, LAST_FAULT - 60_000));
        let until = from + Nanos(rng.between(31_000, 60_000));
        let host = rng.below(tree.hosts() as u64) as usize;
        let keeper = rng.below(tree.switches() as u64) as usize;
        let (until, what) = match rng.below(4) {
            0 => (until, Failing::Crash(Part::Host(host))),
            1 => (from + Nanos(rng.between(1000, 40_000)), Failing::Crash(Part::Keeper(keeper))),
            _ => (until, Failing::Cut(*rng.pick(&tree.wires()))),
        };
        network.schedule(&Outage { from, until, what });
    }
    let mut controller = Controller::new(&tree, seed, STOPS_FROM, Nanos(LAST_FAULT));
    controller.run(&mut network, &tree, Nanos(LAST_FAULT) + RECOVERS_WITHIN);
    totals.commits += network.check_commit(&tree, &controller, BEHIND)?;
    let changes = &network.record.changes;
    let count = |is: fn(&ChangeKind) -> bool| changes.iter().filter(|change| is(&change.kind)).count();
    totals.dead += count(|kind| matches!(kind, ChangeKind::Dead(_)));
    totals.left += count(|kind| matches!(kind, ChangeKind::Left(_)));
    totals.restarted += count(|kind| matches!(kind, ChangeKind::Restarted));
    totals.members += controller.members();
    totals.unknown += network.refused(Refusal::OtherIncarnation);
    totals.counts.add(&controller.counts());
    Ok(())
}

#[test]
fn commit_barriers_cover_all_members() {
    let mut totals = Totals::default();
    for seed in environment::seeds("onepipe_commit", SEEDS) {
        run(seed, |_| {}, &mut totals).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        assert!(totals.commits > 10_000 && totals.members > 60, "{totals:?}");
        assert!(totals.dead > 20 && totals.left > 20 && totals.restarted > 10, "{totals:?}");
        let Counts { bounds, silent, incarnations, refused } = totals.counts;
        assert!(bounds > 60 && silent > 20 && incarnations > 60, "{totals:?}");
        assert!(refused.iter().all(|&refused| refused > 4) && totals.unknown > 200, "{totals:?}");
    }
}

/// Bugs that these seeds find, each with what is found
#[cfg(debug_assertions)]
pub(super) const BUGS: [(representative::Bug, &str); 6] = [
    (representative::Bug::FrozenRises, "above a value that stands still"),
    (representative::Bug::MutedSpeaks, "above a value that stands still"),
    (representative::Bug::OldVersionObeyed, "above a value that stands still"),
    (representative::Bug::FloorIgnored, "below the floor"),
    (representative::Bug::AnyCommitSource, "above that of member"),
    (representative::Bug::PartialConfiguration, "above that of member"),
];

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_commit_registers_are_found() {
    for (bug, question) in BUGS {
        let found = environment::find_bug("onepipe_commit", &bug, 1..201, |seed| {
            let found = run(seed, |tree| tree.bug = Some(bug), &mut Totals::default()).err()?;
            found.contains(question).then_some(found)
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

//! Tests of the oracle: each question is answered with no where that is right, and a planted bug makes the
//! suites fail.

use representative::config::Incarnation;
use representative::{Command, LinkId};
use sim::Fault;
use switch::{Nanos, Probability};
use workloads::onepipe::{ChangeKind, Failing, Network, Outage, Part, Tree, Trial, Wiring};

const CUT: Nanos = Nanos::from_micros(80);
const HEALED: Nanos = Nanos::from_micros(160);
const END: Nanos = Nanos::from_micros(400);

fn tree() -> Tree {
    let mut tree = Tree::new(Incarnation::SwitchCpu, 2, 2);
    tree.behaviour.records = true;
    tree
}

/// Builds a tree in which the link of host 0 is cut for a while. An unrecorded cut is one that the oracle
/// does not know of.
fn cut(tree: &Tree, is_recorded: bool) -> Network {
    let mut network = tree.build(7);
    let outage = Outage { from: CUT, until: HEALED, what: Failing::Cut(Wiring::Access(0)) };
    if is_recorded {
        network.schedule(&outage);
    } else {
        let links = vec![network.access[0]];
        network.world.schedule(CUT, Fault::Cut(links.clone()));
        network.world.schedule(HEALED, Fault::Heal(links));
    }
    network.run_until(END);
    network
}

#[test]
fn a_link_dies_for_an_outage_only() {
    let tree = tree();
    assert_eq!(cut(&tree, true).check_removed(&tree), Ok(()));
    let wrong = cut(&tree, false).check_removed(&tree).unwrap_err();
    assert!(wrong.contains("keeper 0 removed link 0 for silence"), "{wrong}");
}

#[test]
fn muting_the_other_end_explains_no_death() {
    let tree = tree();
    for (sender, is_explained) in [(Part::Host(0), true), (Part::Switch(0), false)] {
        let mut network = tree.build(7);
        let links = vec![network.access[0]];
        // The host is silent, whatever the oracle knows.
        network.world.schedule(CUT, Fault::Mute(network.hosts[0], links.clone()));
        network.world.schedule(HEALED, Fault::Unmute(network.hosts[0], links));
        let what = Failing::Mute(sender, Wiring::Access(0));
        network.schedule(&Outage { from: CUT, until: HEALED, what });
        network.run_until(END);
        assert_eq!(network.check_removed(&tree).is_ok(), is_explained, "{sender:?}");
    }
}

/// Beacons of a host are lost while its messages pass, which no barrier covers. They are excused because the
/// switch reports that it has removed the link, and only as long as it is removed.
#[test]
fn a_removed_link_excuses_late_packets() {
    let mut tree = tree();
    tree.link.jitter = Nanos(5000);
    tree.every = Nanos(500);
    tree.behaviour.initial_window = 1 << 20;
    let mut network = tree.build(7);
    let interfaces = network.interfaces();
    let (host, switch) = (interfaces[0], interfaces[tree.hosts()]);
    network.world.schedule(CUT, Fault::PartitionPair(host, switch));
    network.world.schedule(HEALED, Fault::HealPair(host, switch));
    network.run_until(END);
    let check = |network: &Network, excused: &[usize]| network.check_late(&tree, Nanos::ZERO, excused);
    let eligible = check(&network, &[]).unwrap();
    assert!(eligible.excused > 0 && eligible.eligible > eligible.arrivals / 2, "{eligible:?}");
    let [dead, joined] = &mut network.record.changes[..] else { panic!("{:?}", network.record) };
    assert!(matches!((dead.kind, joined.kind), (ChangeKind::Dead(_), ChangeKind::Joined(_))));
    joined.at = dead.at;
    assert!(check(&network, &[]).is_err(), "the link joined before packets were sent");
    network.record.changes.clear();
    let wrong = check(&network, &[]).unwrap_err();
    assert!(wrong.contains("barrier too high: a packet of host"), "{wrong}");
    assert!(check(&network, &[0]).is_ok(), "the host is excused");
}

#[test]
fn a_link_leaves_with_its_hosts_or_by_command_only() {
    let tree = tree();
    let run = |act: fn(&mut Network)| {
        let mut network = tree.build(7);
        network.run_until(CUT);
        act(&mut network);
        network.run_until(END);
        network.check_left(&tree)
    };
    assert_eq!(run(|network| network.command(0, Command::Remove(LinkId(1)))), Ok(()));
    let wrong = run(|network| {
        network.command(0, Command::Remove(LinkId(1)));
        network.record.removals.clear();
    });
    let wrong = wrong.unwrap_err();
    assert!(wrong.contains("counts link 1 as left") && wrong.contains("host 1 has not"), "{wrong}");
}

#[test]
fn hosts_that_leave_make_their_links_leave() {
    let mut tree = tree();
    tree.behaviour.leaves = Probability::ALWAYS;
    let mut network = tree.build(7);
    network.run_until(END);
    let left = network.record.changes.iter().filter(|change| matches!(change.kind, ChangeKind::Left(_)));
    assert!(left.count() >= 6, "{:?}", network.record.changes);
    assert_eq!(network.check_left(&tree), Ok(()));
    assert!(network.each_host().all(|host| !host.nothing_follows.is_empty()));
}

#[test]
fn a_network_that_does_not_recover_is_found() {
    let tree = tree();
    assert!(cut(&tree, true).check_recovered(&tree, HEALED + Nanos::from_micros(40), &[]).unwrap() > 100);
    let wrong = cut(&tree, true).check_recovered(&tree, CUT, &[]).unwrap_err();
    assert!(wrong.contains("host 0"), "{wrong}");
}

#[test]
fn messages_pass_the_links_of_their_path() {
    let tree = Tree::new(Incarnation::Chip, 3, 2);
    let path = |from, to| tree.path(from, to).iter().map(|&(n, LinkId(link))| (n, link)).collect::<Vec<_>>();
    assert_eq!(path(1, 0), [(0, 1)]);
    assert_eq!(path(2, 1), [(1, 0), (4, 1), (0, 2)]);
    assert_eq!(path(3, 4), [(1, 1), (4, 1), (6, 0), (5, 2), (2, 2)]);
}

#[test]
fn a_failing_trial_is_made_smaller() {
    let outage = |host| Outage { from: CUT, until: HEALED, what: Failing::Crash(Part::Host(host)) };
    let mut trial = Trial { tree: tree(), outages: (0..4).map(outage).collect(), removals: Vec::new() };
    trial.tree.skew_ns = 500;
    let smallest = trial.smallest(|trial| trial.outages.contains(&outage(2)));
    assert_eq!((smallest.outages, smallest.tree.skew_ns), (vec![outage(2)], 0));
    let unchanged = trial.smallest(|trial| trial.outages.len() == 4 && trial.tree.skew_ns > 0);
    assert_eq!((unchanged.outages.len(), unchanged.tree.skew_ns), (4, 500));
}

/// A barrier that is that of the last link is too high; so is one that goes back when a link returns, at the
/// hosts behind other links.
#[cfg(debug_assertions)]
#[test]
fn planted_bugs_in_barriers_are_found() {
    use super::{clocks, crashes, restarts};
    use onepipe::process;
    use representative::Bug;
    let bugs = [
        (&crashes::SUITE, Bug::LastLink, "barrier too high"),
        (&clocks::SUITE, Bug::LastLink, "barrier too high"),
        (&restarts::SUITE, Bug::LastLink, "barrier too high"),
        (&crashes::SUITE, Bug::DeafNothingFollows, "has not left"),
        (&clocks::SUITE, Bug::RefusesAhead, "removed link"),
        (&clocks::SUITE, Bug::FirstWord, "acknowledged but not delivered"),
        (&crashes::SUITE, Bug::UndeclaredBarriers, "barrier too high"),
    ];
    for (suite, bug, question) in bugs {
        let found = suite.find(&bug, question, |tree| tree.bug = Some(bug));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?}: {question:?} was not found");
    }
    let process_bugs = [
        (&restarts::SUITE, process::Bug::TieByArrival, "order"),
        (&restarts::SUITE, process::Bug::OvertakingBeacon, "below a barrier"),
        (&restarts::DISORDERLY, process::Bug::NoFloor, "delivered twice"),
        (&restarts::DISORDERLY, process::Bug::DeniesBeforeStart, "delivered, but failed"),
    ];
    for (suite, bug, question) in process_bugs {
        let found = suite.find(&bug, question, |tree| tree.behaviour.bug = Some(bug));
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?}: {question:?} was not found");
    }
}

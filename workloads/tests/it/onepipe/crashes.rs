//! Crashes of switches, representatives and processes, in networks whose links keep the order of frames: no
//! barrier is too high unless a link was removed, and the network recovers.

use super::environment;
use super::trials::{SEEDS, Suite, deafen, let_recover, orderly_tree, span};
use representative::LinkId;
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::{BEACON_INTERVAL, Failing, Outage, Part, Removal, Tree, Trial};

pub(super) const SUITE: Suite =
    Suite { name: "onepipe_crashes", draw, settled: Tree::clock_error, is_disorderly: false };

/// Longest outage (ns)
const LONGEST: u64 = 80_000;

/// Shortest outage after which a switch may be of another incarnation
const REINCARNATES_AFTER: Nanos = Nanos(BEACON_INTERVAL.0 * 12);

/// Draws a network in which nodes crash, representatives hear nobody after a restart, links are cut in one or
/// both directions, and operators take links down. Some switches restart as another incarnation, and some nodes
/// are of an earlier version.
fn draw(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x6372_6173_6865);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    if rng.below(3) == 0 {
        tree.behaviour.leaves = Probability::percent(*rng.pick(&[30, 100]));
    }
    match rng.below(4) {
        0 => tree.reincarnate = Some(seed),
        1 => {
            // A switch takes a host of an earlier version that leaves for silent, so the last hosts to leave
            // are not told that nothing follows.
            (tree.old, tree.behaviour.leaves) = (Some(seed), Probability::NEVER);
        }
        _ => {}
    }
    let mut trial = Trial { tree, outages: Vec::new(), removals: Vec::new() };
    for _ in 0..rng.between(1, 3) {
        draw_fault(&mut trial, rng);
    }
    let_recover(trial)
}

fn draw_fault(trial: &mut Trial, rng: &mut Rng) {
    let tree = &trial.tree;
    let (from, mut until) = span(tree, LONGEST, rng);
    if tree.reincarnate.is_some() {
        // Neighbours take what a switch has declared as valid for as long as its link may live.
        until = until.max(from + REINCARNATES_AFTER);
    }
    let host = rng.below(tree.hosts() as u64) as usize;
    let switch = rng.below(tree.switches() as u64) as usize;
    let mut add = |what| trial.outages.push(Outage { from, until, what });
    match rng.below(8) {
        0 => add(Failing::Crash(Part::Host(host))),
        1 => add(Failing::Crash(Part::Switch(switch))),
        2 => add(Failing::Crash(Part::Keeper(switch))),
        3 => {
            // It hears no neighbour from before its restart on, and takes all of them for dead in half of
            // the cases.
            add(Failing::Crash(Part::Keeper(switch)));
            let deaf = (Nanos(until.0.saturating_sub(5000)), until + Nanos(rng.between(1000, 60_000)));
            trial.outages.extend(deafen(&trial.tree, switch, deaf));
        }
        4 => add(Failing::Pause(Part::Host(host))),
        5 => {
            let (sender, wire) = *rng.pick(&tree.senders_to(switch));
            add(Failing::Mute(sender, wire));
        }
        6 => add(Failing::Cut(*rng.pick(&tree.wires()))),
        _ => {
            // The operator takes a link down just after its representative is told.
            let link = rng.below(tree.links_of(switch) as u64) as u16;
            let at = Nanos(from.0 - rng.below(5000));
            add(Failing::Cut(tree.wire_at(switch, LinkId(link))));
            trial.removals.push(Removal { at, keeper: switch, link: LinkId(link) });
        }
    }
}

#[test]
fn no_barrier_is_too_high_where_nodes_crash() {
    let totals = SUITE.check(environment::seeds("onepipe", SEEDS));
    println!("{totals:?}");
    if environment::selects_default_seeds() {
        totals.assert_eligible();
        assert!(totals.restarts > 4 && totals.left > 6 && totals.recovered > 200, "{totals:?}");
        assert!(totals.dead > 20 && totals.joined > 20, "{totals:?}");
    }
}

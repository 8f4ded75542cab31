//! Switches with a standby: two representatives, of which one fails. No message arrives below a barrier, and no
//! barrier stands still for longer than an interval and the skew of the two.

use onepipe::ends;
use representative::{Bug, Incarnation};
use sim::Fault;
use switch::{Nanos, Rng};
use workloads::onepipe::{BEACON_INTERVAL, Network, Seat, Tree};

/// Planted bugs: of the representatives, and of the processes
type Bugs = (Option<Bug>, Option<ends::Bug>);

/// What happens to one of the two
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// It dies, and does not return
    Dies,
    /// It restarts with empty registers
    Restarts,
    /// It stands still, and then has a queue of old frames
    Lags,
    /// It does not hear one of its links, and is not heard there
    DeafForOne,
    /// It hears nothing
    Deaf,
    /// Nothing of it is heard
    Mute,
}

const FAILURES: [Failure; 6] =
    [Failure::Dies, Failure::Restarts, Failure::Lags, Failure::DeafForOne, Failure::Deaf, Failure::Mute];

/// Time for which the fault lasts: longer than a link without a beacon lives
const LASTS: Nanos = Nanos(BEACON_INTERVAL.0 * 25);

fn draw_tree(seed: u64, bugs: Bugs) -> Tree {
    let mut rng = Rng::stream(seed, 0x7374_616e_6462_7900);
    let mut tree = Tree::new(Incarnation::Host, rng.between(1, 3) as u32, 2);
    tree.standby = true;
    tree.skew_ns = rng.below(1_500);
    tree.drift_ppb = rng.below(50_000);
    (tree.bug, tree.behaviour.ends_bug) = bugs;
    // Messages wait in no window while a fault lasts.
    tree.behaviour.timeout = Nanos::from_micros(400);
    tree
}

/// Lets one of the two representatives of a switch fail.
fn fail(network: &mut Network, tree: &Tree, failure: Failure, rng: &mut Rng) {
    let switch = rng.below(network.switches.len() as u64) as usize;
    let Seat { node, link, mac } = network.seat(switch, rng.below(2) == 0);
    let at = Nanos(rng.between(60_000, 120_000));
    let (begin, end) = match failure {
        Failure::Dies => (Fault::Crash(node), None),
        Failure::Restarts => (Fault::Crash(node), Some(Fault::Restart(node))),
        Failure::Lags => (Fault::Pause(node), Some(Fault::Resume(node))),
        Failure::Deaf => {
            let to = network.switches[switch];
            (Fault::Mute(to, vec![link]), Some(Fault::Unmute(to, vec![link])))
        }
        Failure::Mute => (Fault::Mute(node, vec![link]), Some(Fault::Unmute(node, vec![link]))),
        Failure::DeafForOne => {
            let input = *rng.pick(&inputs(network, tree, switch));
            (Fault::PartitionPair(mac, input), Some(Fault::HealPair(mac, input)))
        }
    };
    network.world.schedule(at, begin);
    if let Some(end) = end {
        network.world.schedule(at + Nanos(rng.between(4_000, LASTS.0)), end);
    }
}

/// Returns the interfaces of the nodes below a switch, one of each.
fn inputs(network: &Network, tree: &Tree, switch: usize) -> Vec<rocev2::ethernet::MacAddr> {
    let hosts = network.hosts.len();
    if switch < hosts / tree.fanout {
        return network.interfaces()[switch * tree.fanout..][..tree.fanout].to_vec();
    }
    // Switches are numbered from the hosts up; those below it are a level of twice as many.
    let above = network.interfaces();
    let first = 2 * switch - hosts;
    (first..first + tree.fanout).map(|below| above[hosts + below]).collect()
}

/// Returns the longest time for which a host's barrier stood still.
fn stall(network: &Network) -> Nanos {
    network.each_host().map(|host| host.stall).max().expect("there are hosts")
}

/// Returns the longest time for which a barrier may stand still when one representative fails: an interval and
/// the skew of the two longer than without a failure.
fn stall_max(tree: &Tree, seed: u64) -> Nanos {
    let mut network = tree.build(seed);
    network.world.run_until(Nanos::from_micros(800));
    stall(&network) + BEACON_INTERVAL + Nanos(2 * tree.skew_ns + 500)
}

/// Runs a tree in which one representative fails. Returns what went wrong.
fn run(seed: u64, failure: Failure, bugs: Bugs) -> Result<(), String> {
    let tree = draw_tree(seed, bugs);
    let mut network = tree.build(seed);
    let mut rng = Rng::stream(seed, 0x6661_696c);
    fail(&mut network, &tree, failure, &mut rng);
    network.world.run_until(Nanos::from_micros(800));
    network.check(None)?;
    network.check_fates()?;
    let (stall, most) = (stall(&network), stall_max(&draw_tree(seed, (None, None)), seed));
    if stall > most {
        return Err(format!("a barrier stood still for {stall:?}, not {most:?}"));
    }
    let fails = |host: &workloads::onepipe::Host| host.sent.iter().any(|sent| sent.fate != Some(Ok(())));
    match network.each_host().find(|host| fails(host)) {
        Some(host) => Err(format!("a message of host {} failed", host.number())),
        None => Ok(()),
    }
}

#[test]
fn one_of_two_representatives_fails_and_nothing_else_does() {
    for failure in FAILURES {
        for seed in 0..25 {
            assert_eq!(run(seed, failure, (None, None)), Ok(()), "{failure:?} seed {seed}");
        }
    }
}

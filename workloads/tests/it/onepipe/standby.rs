//! Switches with a standby: two representatives, of which one fails, or does not hear one of its links. One
//! host's barrier is often far behind those of the others, so that a representative that has removed the host's
//! link states more than a bound. No message arrives below a barrier, and no barrier stands still for longer
//! than an interval and the skew of the two.

use crate::environment;
use onepipe::ends;
use onepipe::process::Failure;
use representative::{Bug, Incarnation};
use rocev2::ethernet::MacAddr;
use sim::Fault;
use switch::{Nanos, Rng};
use workloads::onepipe::{BEACON_INTERVAL, Network, Seat, Tree};

/// Planted bugs: of the representatives, and of the processes
type Bugs = (Option<Bug>, Option<ends::Bug>);

/// What happens to one of the two
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// It dies, and does not return
    Dies,
    /// It restarts with empty registers
    Restarts,
    /// It stands still, and then has a queue of old frames
    Lags,
    /// It does not hear one of its links, or is not heard there, or both
    DeafForOne,
    /// As `DeafForOne` at a host's switch, while a representative of the switch above does not hear the other one
    DeafInTurn,
    /// It hears nothing
    Deaf,
    /// Nothing of it is heard
    Mute,
}

/// Seeds of these tests in `make test`; `make soak` runs others.
const SEEDS: u64 = 20;
const TROUBLES: [Trouble; 10] = [
    Trouble::Dies,
    Trouble::Restarts,
    Trouble::Lags,
    Trouble::DeafForOne,
    Trouble::DeafForOne,
    Trouble::DeafForOne,
    Trouble::DeafInTurn,
    Trouble::DeafInTurn,
    Trouble::Deaf,
    Trouble::Mute,
];

/// Longest time for which a fault lasts: longer than a link without a beacon lives
const LASTS: Nanos = Nanos(BEACON_INTERVAL.0 * 30);
/// End of a run, when faults and the messages to a host that is dead have ended
const END: Nanos = Nanos::from_micros(1_000);

/// Network and faults that a seed draws
struct Drawn {
    tree: Tree,
    trouble: Trouble,
    /// Host whose barrier is behind those of the others, if any
    lagging: usize,
    /// Host that is dead, so that both representatives of its switch have removed its link
    dead: Option<usize>,
    rng: Rng,
}

fn draw(seed: u64, bugs: Bugs) -> Drawn {
    let mut rng = Rng::stream(seed, 0x7374_616e_6462_7900);
    let trouble = *rng.pick(&TROUBLES);
    let least = if trouble == Trouble::DeafInTurn { 2 } else { 1 };
    let levels = rng.between(least, 3) as u32;
    let mut tree =
        Tree::new(Incarnation::Host, levels, if levels < 3 { 2 + rng.below(2) as usize } else { 2 });
    tree.standby = true;
    tree.skew_ns = rng.below(1_500);
    tree.drift_ppb = rng.below(50_000);
    (tree.bug, tree.behaviour.ends_bug) = bugs;
    // Messages that wait in the window of a far host do not fail.
    (tree.behaviour.timeout, tree.every) = (Nanos::from_micros(500), Nanos::from_micros(4));
    let lagging = rng.below(tree.hosts() as u64) as usize;
    match rng.below(4) {
        0 | 1 => tree.wrong_host = Some((lagging, -(rng.between(3_000, 40_000) as i64))),
        // Beacons take less time than that after which a link is dead.
        2 => tree.far_host = Some((lagging, Nanos(rng.between(3_000, 20_000)))),
        _ => {}
    }
    // Another host of the lagging one's rack, or any other one
    let any = (lagging + 1 + rng.below(tree.hosts() as u64 - 1) as usize) % tree.hosts();
    let rack = lagging / tree.fanout * tree.fanout;
    let dead = if rng.below(2) == 0 { rack + (lagging + 1) % tree.fanout } else { any };
    let dead = (rng.below(3) == 0).then_some(dead);
    Drawn { tree, trouble, lagging, dead, rng }
}

impl Drawn {
    /// Schedules the faults.
    fn schedule(&mut self, network: &mut Network) {
        if let Some(dead) = self.dead {
            network.world.schedule(Nanos::from_micros(40), Fault::Crash(network.hosts[dead]));
        }
        let at = Nanos(self.rng.between(110_000, 160_000));
        let mut faults = Vec::new();
        match self.trouble {
            Trouble::DeafForOne => self.deafen_one(network, &mut faults),
            Trouble::DeafInTurn => self.deafen_in_turn(network, &mut faults),
            trouble => {
                let switch = self.rng.below(network.switches.len() as u64) as usize;
                let seat = network.seat(switch, self.rng.below(2) == 0);
                faults.push(of_seat(trouble, seat, network, switch));
            }
        }
        let until = at + Nanos(self.rng.between(4_000, LASTS.0));
        for (begin, end) in faults {
            network.world.schedule(at, begin);
            if let Some(end) = end {
                network.world.schedule(until, end);
            }
        }
    }

    /// Draws a link on the way of the lagging host's messages, or any other link; with the number of its switch.
    fn draw_link(&mut self) -> (usize, usize) {
        if self.rng.below(4) == 0 {
            let switch = self.rng.below(self.tree.switches() as u64) as usize;
            return (switch, self.rng.below(self.tree.links_of(switch) as u64) as usize);
        }
        let to = (self.lagging + self.tree.hosts() / 2) % self.tree.hosts();
        let (switch, link) = *self.rng.pick(&self.tree.path(self.lagging, to));
        (switch, usize::from(link.0))
    }

    /// Separates a representative from the nodes at the other end of one of its links, or from one of them.
    fn deafen_one(&mut self, network: &Network, faults: &mut Vec<(Fault, Option<Fault>)>) {
        let (switch, link) = self.draw_link();
        let Seat { mac, .. } = network.seat(switch, self.rng.below(2) == 0);
        let mut others = self.tree.interfaces_at(switch).swap_remove(link);
        if others.len() > 1 && self.rng.below(3) == 0 {
            others.swap_remove(self.rng.below(2) as usize);
        }
        let way = self.rng.below(4);
        for other in others {
            faults.push(match way {
                0 => (Fault::PartitionPair(mac, other), Some(Fault::HealPair(mac, other))),
                1 => mute(mac, other),
                _ => mute(other, mac),
            });
        }
    }

    /// Lets a representative of the lagging host's switch not hear the host, and one of the switch above not
    /// hear the other representative of the host's switch.
    fn deafen_in_turn(&mut self, network: &Network, faults: &mut Vec<(Fault, Option<Fault>)>) {
        let host = self.lagging;
        let switch = host / self.tree.fanout;
        let above = self.tree.switch_above(switch).expect("there are two levels");
        let deaf = self.rng.below(2) == 0;
        let host_mac = self.tree.interfaces_at(switch)[host % self.tree.fanout][0];
        faults.push(mute(host_mac, network.seat(switch, deaf).mac));
        let above = network.seat(above, self.rng.below(2) == 0);
        faults.push(mute(network.seat(switch, !deaf).mac, above.mac));
    }
}

/// Returns the fault that frames of one interface to another are lost.
fn mute(from: MacAddr, to: MacAddr) -> (Fault, Option<Fault>) {
    (Fault::MutePair(from, to), Some(Fault::UnmutePair(from, to)))
}

/// Returns what happens to one of the two representatives of a switch.
fn of_seat(trouble: Trouble, seat: Seat, network: &Network, switch: usize) -> (Fault, Option<Fault>) {
    let Seat { node, link, .. } = seat;
    match trouble {
        Trouble::Dies => (Fault::Crash(node), None),
        Trouble::Restarts => (Fault::Crash(node), Some(Fault::Restart(node))),
        Trouble::Lags => (Fault::Pause(node), Some(Fault::Resume(node))),
        Trouble::Mute => (Fault::Mute(node, vec![link]), Some(Fault::Unmute(node, vec![link]))),
        Trouble::Deaf | Trouble::DeafForOne | Trouble::DeafInTurn => {
            let to = network.switches[switch];
            (Fault::Mute(to, vec![link]), Some(Fault::Unmute(to, vec![link])))
        }
    }
}

/// Returns the longest time for which a host's barrier stood still.
fn stall(network: &Network) -> Nanos {
    network.each_host().map(|host| host.stall).max().expect("there are hosts")
}

/// Returns the longest time for which a barrier may stand still when one representative fails: an interval and
/// the skew of the two longer than without a failure.
fn stall_max(tree: &Tree, seed: u64) -> Nanos {
    let mut network = tree.build(seed);
    network.world.run_until(END);
    stall(&network) + BEACON_INTERVAL + Nanos(2 * tree.skew_ns + 500)
}

/// Runs a tree in which one representative fails. Returns what went wrong.
fn run(seed: u64, bugs: Bugs) -> Result<(), String> {
    let mut drawn = draw(seed, bugs);
    let mut network = drawn.tree.build(seed);
    drawn.schedule(&mut network);
    network.world.run_until(END);
    let context = |what: String| {
        let Tree { wrong_host, far_host, .. } = drawn.tree;
        format!("{:?}, slow {wrong_host:?}, far {far_host:?}, dead {:?}: {what}", drawn.trouble, drawn.dead)
    };
    network.check(None).map_err(context)?;
    let excused: Vec<usize> = drawn.dead.into_iter().collect();
    network.check_fates_except(&excused).map_err(context)?;
    // A host that dies stops the barrier for as long as without a standby.
    if drawn.dead.is_none() {
        let (stall, most) = (stall(&network), stall_max(&draw(seed, (None, None)).tree, seed));
        if stall > most {
            return Err(context(format!("a barrier stood still for {stall:?}, not {most:?}")));
        }
    }
    let hosts = network.each_host().filter(|host| !excused.contains(&host.number()));
    let sent = hosts.flat_map(|host| host.sent.iter().map(|sent| (host.number(), sent)));
    // Processes that start refuse what is older than they are by a slow clock.
    let from = Network::time(Nanos::from_micros(90));
    let mut sent = sent.filter(|(_, sent)| sent.timestamp.is_none_or(|time| time >= from));
    // A scattering is sent as a whole: its messages to others wait for room in the window of the dead host.
    let waits = |fate| drawn.dead.is_some() && fate == Some(Err(Failure::NotAcknowledged));
    let fails = |fate| fate != Some(Ok(())) && !waits(fate);
    match sent.find(|(_, sent)| fails(sent.fate) && !excused.contains(&sent.to)) {
        Some((from, sent)) => {
            Err(context(format!("a message of host {from} to {}: {:?}", sent.to, sent.fate)))
        }
        None => Ok(()),
    }
}

#[test]
fn one_of_two_representatives_fails_and_nothing_else_does() {
    for seed in environment::seeds("onepipe-standby", SEEDS) {
        assert_eq!(run(seed, (None, None)), Ok(()), "seed {seed}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_standbys_are_found() {
    let of_representatives = Bug::OF_STANDBY.map(|bug| (Some(bug), None));
    let of_processes = [ends::Bug::RemovedIgnored, ends::Bug::MinimumOfEnds, ends::Bug::MaximumOfRemoved];
    for bugs in of_representatives.into_iter().chain(of_processes.map(|bug| (None, Some(bug)))) {
        let found = environment::find_bug("onepipe-standby", &bugs, 1..101, |seed| run(seed, bugs).err());
        println!("{bugs:?}: {found:?}");
        assert!(found.is_some(), "{bugs:?} was not found");
    }
}

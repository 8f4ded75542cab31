//! 1Pipe processes on networks drawn from seeds. Under all faults, all processes deliver in one order, no
//! message is delivered twice, every sender learns the outcome of its messages, and no message is lost
//! without a cause that was drawn.

use super::environment;
#[cfg(debug_assertions)]
use super::{commit, keepers, reliable};
use onepipe::process;
use representative::config::{Incarnation, Pace};
use representative::{Command, LinkId, Refusal};
use sim::{Ecn, Fault, Workers};
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::{Conditions, Explained, Network, Outsider, Tree};

/// Adverse conditions of a network, besides loss of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// No other faults; links keep their order.
    Orderly,
    /// Clocks are exact, and hosts send at the same instants.
    Ties,
    /// Queues are short and mark packets, windows are small, messages are large, and applications are slow.
    Crowded,
    /// Links duplicate, damage and reorder.
    Disorderly,
    /// Links are cut, flap and carry only short packets, pairs of interfaces cannot reach each other,
    /// switches crash, and hosts are paused.
    Failing,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Orderly, Self::Ties, Self::Crowded, Self::Disorderly, Self::Failing];
}

/// The longest time without a rise of a barrier where links lose frames, nothing fails, and no clock is
/// stepped back: one interval more than the time after which a link is dead.
const LONGEST_STALL: Nanos = Nanos::from_micros(33);
/// Seeds of all kinds in `make test`; `make soak` runs others.
const SEEDS: u64 = 200;

/// Counts over all seeds.
#[derive(Debug, Default)]
pub(super) struct Totals {
    delivered: usize,
    failed: u64,
    /// Messages without an acknowledgement that were delivered
    ambiguous: usize,
    late: u64,
    duplicates: u64,
    no_room: u64,
    marked: u64,
    /// Messages that were sent at once
    at_once: u64,
    clamped: u64,
    /// Beacons and messages of outsiders that were refused
    forged: u64,
    /// The longest time in which a host's barrier did not rise, in nanoseconds
    stall: u64,
    /// Commands of an operator
    commands: u64,
    /// Deliveries with the timestamp of the previous delivery, from another sender
    ties: usize,
    explained: Explained,
}

fn percent(rng: &mut Rng, max: u64) -> Probability {
    let share = rng.below(10 * max + 1) as f64 / 1000.0;
    if rng.below(2) == 0 { Probability::NEVER } else { Probability::new(share).unwrap() }
}

/// Draws the network of a seed.
fn drawn(seed: u64, kind: Kind, rng: &mut Rng) -> Tree {
    let incarnation = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host][rng.below(3) as usize];
    let mixed = Rng::stream(seed, 0x6d69_7865).below(3) == 0;
    let (levels, fanout) = [(1, 2), (1, 4), (2, 2), (2, 2), (2, 3), (3, 2)][rng.below(6) as usize];
    let mut tree = Tree::new(incarnation, levels, fanout);
    tree.incarnations = mixed.then_some(seed);
    tree.pace = if seed.is_multiple_of(4) { Pace::Instants } else { Pace::Passing };
    tree.every = Nanos(rng.between(1000, 6000));
    tree.lasts = Nanos::from_micros(rng.between(30, 120));
    tree.behaviour.records = true;
    tree.behaviour.timeout = Nanos::from_micros(rng.between(40, 100));
    tree.link.jitter = Nanos(rng.below(2000));
    tree.link.loss = percent(rng, 4);
    if kind != Kind::Ties {
        tree.skew_ns = rng.below(2000);
        tree.drift_ppb = 100_000;
        tree.behaviour.step_ns = if rng.below(2) == 0 { 0 } else { rng.below(20_000) };
    }
    tree.link.rate_bps = [10_000_000_000, 100_000_000_000][rng.below(2) as usize];
    // A separate stream, so that all other draws of the seed stay the same.
    tree.behaviour.at_once =
        Probability::percent([0, 50, 100][Rng::stream(seed, 0x6f6e_6365).below(3) as usize]);
    if Rng::stream(seed, 0x776f_726b).below(2) == 0 {
        tree.workers = Workers::of_senders(seed);
    }
    let mut forgery = Rng::stream(seed, 0x6c69_6573);
    let mut flood_rng = Rng::stream(seed, 0x666c_6f64);
    if forgery.below(3) == 0 {
        let (switch, forged_packets) =
            (forgery.below(tree.switches() as u64) as usize, forgery.between(10, 100) as u32);
        let floods = flood_rng.below(3) == 0;
        tree.outsider = Some(Outsider { switch, forged_packets, floods });
    }
    tree.lasts = tree.lasts + tree.starts_sending();
    match kind {
        Kind::Orderly | Kind::Failing => tree.behaviour.largest = if rng.below(2) == 0 { 8 } else { 3000 },
        Kind::Ties => tree.behaviour.tick = Nanos(500),
        Kind::Crowded => {
            tree.link.rate_bps = 10_000_000_000;
            tree.link.ecn = Some(Ecn { min: 2000, max: 20_000, share: Probability::percent(50) });
            tree.link.queue = rng.between(20_000, 100_000) as usize;
            tree.behaviour.largest = rng.between(2000, 12_000);
            tree.behaviour.receive_window = rng.between(40_000, 60_000) as u32;
            tree.behaviour.receive_buffer = rng.between(10_000, 80_000) as usize;
            tree.behaviour.initial_window = rng.between(2000, 40_000) as u32;
            tree.behaviour.reads_every = Nanos(rng.below(30_000));
        }
        Kind::Disorderly => {
            tree.behaviour.largest = 3000;
            tree.link.duplicate = percent(rng, 5);
            tree.link.reorder = percent(rng, 5);
            tree.link.corrupt = percent(rng, 2);
            tree.link.reorder_by = Nanos(rng.between(500, 10_000));
            // A separate stream, so that all other draws of the seed stay the same.
            let mut late = Rng::stream(seed, 0x6c61_7465);
            if late.below(4) == 0 {
                // Long after a sender has given up
                tree.link.reorder_by = Nanos(late.between(200_000, 1_000_000));
            }
        }
    }
    tree
}

/// Faults of a run
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Time at which the first fault begins
    first: Option<Nanos>,
    /// Whether a switch crashes
    crash: bool,
    /// Whether a host is paused
    pause: bool,
}

/// Schedules links that are cut in one or both directions, switches that crash, hosts that are paused, and
/// clocks of switches that are stepped.
fn schedule_faults(network: &mut Network, lasts: Nanos, rng: &mut Rng) -> Faults {
    let mut faults = Faults::default();
    for _ in 0..rng.between(1, 3) {
        let at = Nanos(rng.below(lasts.0));
        let until = at + Nanos(rng.between(1000, 80_000));
        let links: Vec<_> = network.world.links().collect();
        let link = links[rng.below(links.len() as u64) as usize];
        let representative =
            network.representatives[rng.below(network.representatives.len() as u64) as usize];
        let (fault, end) = match rng.below(5) {
            0 | 1 => environment::cut(&network.world, link, at),
            2 => {
                faults.crash = true;
                (Fault::Crash(representative), Fault::Restart(representative))
            }
            3 => {
                faults.pause = true;
                let host = network.hosts[rng.below(network.hosts.len() as u64) as usize];
                (Fault::Pause(host), Fault::Resume(host))
            }
            _ => {
                let by = rng.below(20_000) as i64 - 10_000;
                network.world.schedule(at, Fault::ClockStep(representative, by));
                continue;
            }
        };
        faults.begin(network, (at, fault), (until, end));
    }
    faults
}

/// Schedules pairs of interfaces that cannot reach each other, links whose MTU is small for a while, and
/// links that flap.
fn schedule_link_faults(network: &mut Network, seed: u64, lasts: Nanos, faults: &mut Faults) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x6469_7374);
    let interfaces = network.interfaces();
    let links: Vec<_> = network.world.links().collect();
    for _ in 0..rng.below(3) {
        let at = Nanos(rng.below(lasts.0));
        let until = at + Nanos(rng.between(1000, 80_000));
        let link = links[rng.below(links.len() as u64) as usize];
        match rng.below(3) {
            0 => {
                let [a, b] = [(); 2].map(|()| interfaces[rng.below(interfaces.len() as u64) as usize]);
                faults.begin(network, (at, Fault::PartitionPair(a, b)), (until, Fault::HealPair(a, b)));
            }
            1 => {
                // A beacon takes 88 bytes.
                let mtu = rng.between(60, 1000) as usize;
                faults.begin(network, (at, Fault::Mtu(link, mtu)), (until, Fault::Mtu(link, 1500)));
            }
            _ => {
                let mut at = at;
                for _ in 0..rng.between(2, 5) {
                    let up = at + Nanos(rng.between(200, 6000));
                    faults.begin(network, (at, Fault::Cut(vec![link])), (up, Fault::Heal(vec![link])));
                    at = up + Nanos(rng.between(200, 6000));
                }
            }
        }
    }
}

/// Draws an operator's commands to the representatives, ordered by time: to set a clock, to show the
/// registers. Where links fail, also announces that a link will be taken down. Half of those links are taken down, some microseconds before or
/// after.
fn operate(
    network: &mut Network,
    seed: u64,
    kind: Kind,
    lasts: Nanos,
    faults: &mut Faults,
) -> Vec<(Nanos, usize, OperatorAction)> {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x6f70_6572);
    let count = if rng.below(3) == 0 { rng.between(1, 6) } else { 0 };
    let mut actions: Vec<_> = (0..count)
        .map(|_| {
            let at = Nanos(rng.between(10_000, lasts.0));
            let switch = rng.below(network.representatives.len() as u64) as usize;
            // Not all switches have a link of that number.
            let number = rng.below(8);
            let link = LinkId(number as u16);
            let action = match rng.below(if kind == Kind::Failing { 6 } else { 4 }) {
                0 => OperatorAction::SetClock(rng.below(2_000_000) as i64 - 1_000_000),
                1..=3 => OperatorAction::PublishGauges,
                _ => {
                    let cut = network.links_of(switch).nth(number as usize).filter(|_| rng.below(2) == 0);
                    if let Some(cut) = cut {
                        let at = Nanos((at.0 + rng.below(10_000)).saturating_sub(5000));
                        let until = at + Nanos(rng.between(1000, 80_000));
                        faults.begin(network, (at, Fault::Cut(vec![cut])), (until, Fault::Heal(vec![cut])));
                    }
                    if network.links_of(switch).nth(number as usize).is_some() {
                        faults.first = Some(faults.first.map_or(at, |first| first.min(at)));
                    }
                    OperatorAction::Remove(link)
                }
            };
            (at, switch, action)
        })
        .collect();
    actions.sort_by_key(|&(at, ..)| at);
    actions
}

/// An operator's order to a representative of barriers
#[derive(Clone, Copy, Debug)]
enum OperatorAction {
    PublishGauges,
    Remove(LinkId),
    /// Steps its clock by this many nanoseconds.
    SetClock(i64),
}

impl Faults {
    fn begin(&mut self, network: &mut Network, (at, fault): (Nanos, Fault), (until, end): (Nanos, Fault)) {
        network.world.schedule(at, fault);
        network.world.schedule(until, end);
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
    }
}

/// Runs a seed, and checks it. `plant` changes the network before it is built.
pub(super) fn run(seed: u64, plant: impl Fn(&mut Tree), totals: &mut Totals) -> Result<(), String> {
    let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
    let mut rng = Rng::stream(seed, 0x3150_6970);
    let mut tree = drawn(seed, kind, &mut rng);
    plant(&mut tree);
    let mut network = tree.build(seed);
    network.world.record_losses();
    let mut faults = Faults::default();
    if kind == Kind::Failing {
        faults = schedule_faults(&mut network, tree.lasts, &mut rng);
        schedule_link_faults(&mut network, seed, tree.lasts, &mut faults);
    }
    for (at, representative, action) in operate(&mut network, seed, kind, tree.lasts, &mut faults) {
        network.world.run_until(at);
        let command = |network: &Network| match action {
            OperatorAction::PublishGauges => Command::PublishGauges,
            OperatorAction::Remove(link) => Command::Remove(link),
            OperatorAction::SetClock(by_ns) => network.clock_off_by(representative, by_ns),
        };
        // A representative believes the median of three samples of its clock.
        let times = if matches!(action, OperatorAction::SetClock(_)) { 3 } else { 1 };
        for _ in 0..times {
            let command = command(&network);
            network.command(representative, command);
        }
        totals.commands += 1;
    }
    let mut until = tree.lasts + Nanos::from_micros(100);
    network.world.run_until(until);
    while network.each_host().any(|host| !host.is_settled()) && until < Nanos::from_millis(20) {
        until = until + Nanos::from_micros(100);
        network.world.run_until(until);
    }
    // The last acknowledged messages wait for the barrier.
    let late = Nanos(tree.link.reorder_by.0 * 2 * u64::from(tree.levels + 1));
    let max_delay = if kind == Kind::Disorderly { late } else { Nanos::ZERO };
    network.world.run_until(until + Nanos::from_micros(100) + max_delay);
    let incarnations: Vec<_> = (0..tree.switches()).map(|n| tree.incarnation_of(n)).collect();
    let context = |what: String| format!("{kind:?} {incarnations:?}: {what}");
    let stall = network.each_host().map(|host| host.stall).max().unwrap_or_default();
    let max = Nanos(LONGEST_STALL.0 + tree.behaviour.step_ns);
    if !matches!(kind, Kind::Failing | Kind::Disorderly) && stall > max {
        return Err(context(format!("a host's barrier did not rise for {} ns", stall.0)));
    }
    match kind {
        Kind::Orderly | Kind::Ties | Kind::Crowded => network.check(None),
        Kind::Failing if !faults.crash => network.check_rising().and_then(|()| network.check_order()),
        Kind::Disorderly | Kind::Failing => network.check_order(),
    }
    .map_err(context)?;
    totals.stall = totals.stall.max(stall.0);
    totals.ambiguous += network.check_fates().map_err(context)?;
    // A copy arrives later than its original, which may be lost after the link that duplicated it.
    let keeps_order = tree.link.reorder == Probability::NEVER && tree.link.duplicate == Probability::NEVER;
    let drawn = Conditions {
        late_from: if keeps_order { faults.first } else { Some(Nanos::ZERO) },
        small: kind == Kind::Crowded,
        pauses: faults.pause,
    };
    totals.explained.add(&network.check_losses(&drawn).map_err(context)?);
    totals.forged += network.refused(Refusal::WrongSource);
    for host in network.each_host() {
        let counters = host.process.counters();
        totals.forged += counters.refused(process::Refusal::UnknownSource);
        totals.forged += counters.refused(process::Refusal::WrongSource);
        totals.delivered += host.delivered.len();
        totals.failed += counters.failed.get();
        totals.late += counters.refused(process::Refusal::Late);
        totals.duplicates += counters.refused(process::Refusal::Duplicate);
        totals.no_room += counters.refused(process::Refusal::NoRoom);
        totals.marked += counters.marked.get();
        totals.at_once += host.sent_at_once;
        totals.clamped += counters.clamped.get();
        totals.ties +=
            host.delivered.windows(2).filter(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1).count();
    }
    Ok(())
}

/// Runs the seeds of one kind, out of the first [`SEEDS`] or those that the environment selects. `is_covered` states
/// which events must have occurred in the first ones for the test to be meaningful.
fn seeds(kind: Kind, is_covered: impl Fn(&Totals) -> bool) {
    let mut totals = Totals::default();
    for seed in environment::seeds("onepipe", SEEDS) {
        if Kind::ALL[seed as usize % Kind::ALL.len()] == kind
            && let Err(what) = run(seed, |_| {}, &mut totals)
        {
            panic!("seed {seed}: {what}");
        }
    }
    println!("{kind:?}: {totals:?}");
    if environment::selects_default_seeds() {
        let is_meaningful = totals.delivered > 2_000 && totals.at_once > 200 && totals.forged > 20;
        let is_meaningful = is_meaningful && totals.failed > 0 && totals.commands > 20;
        assert!(is_meaningful && is_covered(&totals), "{totals:?}");
    }
}

#[test]
fn orderly_networks_deliver_all_messages_in_time() {
    seeds(Kind::Orderly, |totals| totals.clamped > 0 && totals.late == 0);
}

#[test]
fn ties_are_broken_alike_by_all_receivers() {
    seeds(Kind::Ties, |totals| totals.ties > 200);
}

#[test]
fn congestion_and_slow_readers_lose_messages_but_keep_the_order() {
    seeds(Kind::Crowded, |totals| totals.marked > 0 && totals.no_room > 0);
}

#[test]
fn links_that_reorder_lose_messages_but_keep_the_order() {
    seeds(Kind::Disorderly, |totals| totals.late > 0 && totals.duplicates > 0 && totals.clamped > 0);
}

#[test]
fn failures_lose_messages_but_keep_the_order() {
    seeds(Kind::Failing, |totals| totals.late > 0);
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in representative::Bug::ALL {
        // Those of commit registers are found by their own seeds, and those of the whole service by its seeds.
        if commit::BUGS.iter().any(|(other, _)| *other == bug) || bug == reliable::UNMANAGED_BUG {
            continue;
        }
        if keepers::BUGS.contains(&bug) {
            assert!(keepers::finds(bug), "{bug:?} was not found");
            continue;
        }
        check_found(&bug, |tree| tree.bug = Some(bug));
    }
    for bug in process::Bug::ALL.into_iter().filter(|bug| bug.needs_messages_alone()) {
        check_found(&bug, |tree| tree.behaviour.bug = Some(bug));
    }
}

#[cfg(debug_assertions)]
fn check_found(bug: &impl core::fmt::Debug, plant: impl Fn(&mut Tree)) {
    let found = environment::find_bug("onepipe", bug, 1..1001, |seed| {
        run(seed, &plant, &mut Totals::default()).err()
    });
    println!("{bug:?}: {found:?}");
    assert!(found.is_some(), "{bug:?} was not found");
}

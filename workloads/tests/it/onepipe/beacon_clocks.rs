//! Clocks from beacons alone: wrong clocks of all nodes, which drift, cost nothing once clock beacons have been
//! exchanged, no clock goes back, and one wrong clock moves no other.

use super::environment;
use super::trials::{orderly_tree, span};
use switch::{Nanos, Rng};
use workloads::onepipe::{ClockCost, Failing, FatTree, Network, Outage, Part, Tree, Trial, Wiring};

/// Largest error of a machine's clock (ns)
const ERROR: u64 = 1_000_000_000;
/// Largest drift, in parts per billion
const DRIFT: u64 = 100_000;
/// Largest cost of wrong clocks (ns)
const GOAL: f64 = 1_000.0;
/// Seeds of these tests in `make test`; `make soak` runs others.
const SEEDS: u64 = 12;

#[test]
fn delivery_takes_as_long_as_with_perfect_clocks() {
    for incarnation in super::ALL {
        for (hops, seed) in [(1, 1), (3, 2), (5, 3), (5, 4)] {
            let tree = FatTree::of_hops(incarnation, hops);
            let cost = ClockCost::measure(&tree, (ERROR, DRIFT), Nanos::from_millis(1), seed).unwrap();
            let context = format!("{incarnation:?}, {hops} hops, seed {seed}: {cost:?}");
            assert!(cost.deliveries > 200 && cost.machines_ns > 100_000_000, "{context}");
            for difference in [cost.mean_ns, cost.p50_ns, cost.p99_ns] {
                assert!(difference.abs() < GOAL, "{context}");
            }
            assert!(cost.spread_ns < 500, "{context}");
        }
    }
}

#[test]
fn sender_whose_link_is_longer_is_ahead_by_its_delay() {
    // 10 us more in both directions: all other receivers would wait for its beacons.
    let mut tree = Tree::new(super::Incarnation::Chip, 2, 3);
    tree.beacon_clocks = Some((1, ERROR));
    tree.drift_ppb = DRIFT;
    tree.far_host = Some((4, Nanos::from_micros(10)));
    tree.lasts = Nanos::from_micros(3_500);
    let mut network = tree.build(1);
    network.world.run_until(Nanos::from_micros(4_000));
    assert_eq!(network.check(None).and_then(|()| network.check_clocks()), Ok(()));
    let errors = network.clock_errors();
    let ahead = errors[4] - errors[0];
    assert!((9_500..10_500).contains(&ahead), "{ahead}");
}

#[test]
fn directions_that_differ_are_compensated_exactly() {
    const LATER: Nanos = Nanos::from_micros(10);
    for (is_up, expected) in [(true, LATER.0 as i64), (false, 0)] {
        let mut tree = Tree::new(super::Incarnation::Chip, 2, 3);
        tree.beacon_clocks = Some((2, ERROR));
        tree.drift_ppb = DRIFT;
        tree.lasts = Nanos::from_micros(3_500);
        let mut network = tree.build(2);
        let (host, link) = (network.hosts[4], network.access[4]);
        let from = if is_up { host } else { network.switches[1] };
        network.world.delay_from(link, from, LATER);
        network.world.run_until(Nanos::from_micros(4_000));
        assert_eq!(network.check(None).and_then(|()| network.check_clocks()), Ok(()));
        let errors = network.clock_errors();
        let ahead = errors[4] - errors[0];
        assert!((ahead - expected).abs() < 500, "from host: {is_up}, ahead by {ahead} ns");
    }
}

/// Draws a network whose nodes exchange clock beacons, with a far and a wrong host in some, and outages in most.
fn draw(seed: u64) -> Trial {
    let mut rng = Rng::stream(seed, 0x6265_6163_6f6e);
    let rng = &mut rng;
    let mut tree = orderly_tree(seed, rng);
    (tree.skew_ns, tree.drift_ppb) = (0, DRIFT);
    tree.beacon_clocks = Some((seed, *rng.pick(&[1_000, 1_000_000, ERROR])));
    let hosts = tree.hosts() as u64;
    let host = |rng: &mut Rng| rng.below(hosts) as usize;
    if rng.below(4) == 0 {
        tree.far_host = Some((host(rng), Nanos(rng.below(20_000))));
    }
    if rng.below(3) == 0 && tree.fanout > 2 {
        let by = rng.between(20_000_000, 1_900_000_000) as i64;
        tree.wrong_host = Some((host(rng), if rng.below(2) == 0 { by } else { -by }));
        tree.beacon_clocks = Some((seed, 1_000_000));
    }
    let mut trial = Trial { tree, outages: Vec::new(), removals: Vec::new() };
    for _ in 0..rng.below(4) {
        let (from, until) = span(&tree, 60_000, rng);
        let n = host(rng);
        let what = match rng.below(5) {
            0 => Failing::Crash(Part::Keeper(rng.below(tree.switches() as u64) as usize)),
            1 => Failing::Crash(Part::Host(n)),
            2 => Failing::Pause(Part::Host(n)),
            3 => Failing::Mute(Part::Host(n), Wiring::Access(n)),
            _ => Failing::Cut(Wiring::Access(n)),
        };
        trial.outages.push(Outage { from, until, what });
    }
    trial.tree.lasts = trial.last_fault().max(tree.starts_sending()) + Nanos::from_millis(4);
    trial
}

/// Checks a network after its run: the orders of deliveries, the clocks of processes, and that what was sent after
/// the last fault has arrived.
fn check(trial: &Trial, network: &mut Network) -> Result<usize, String> {
    let tree = &trial.tree;
    network.check_order()?;
    network.check_clocks()?;
    if trial.outages.is_empty() {
        network.check_rising()?;
    }
    let errors = network.clock_errors();
    // Jitter and a longer link make measurements of a link wrong by a part of them, on each hop.
    let far = tree.far_host.map_or(0, |(_, by)| by.0);
    let jitter = tree.link.jitter.0 * 2 * u64::from(tree.levels + 1);
    let (least, most) = (errors.iter().min().unwrap_or(&0), errors.iter().max().unwrap_or(&0));
    let allowed = (1_000 + jitter + far + far / 2).cast_signed();
    if most - least > allowed {
        return Err(format!("clocks are apart by {} ns, more than {allowed}: {errors:?}", most - least));
    }
    if let Some((wrong, by)) = tree.wrong_host {
        // One wrong clock moves no other: all others are right to 1 ms.
        if most.abs() > 12_000_000 {
            return Err(format!("host {wrong}, off by {by} ns, moves others to {most} ns"));
        }
    }
    let since = Nanos(tree.lasts.0 - 800_000);
    let arrived = network.delays_ns(since, tree.lasts).len();
    let sent = network.sent_to_others(since, tree.lasts);
    if tree.link.loss == switch::Probability::NEVER && arrived < sent || 3 * arrived < 2 * sent {
        return Err(format!(
            "{arrived} of {sent} messages that were sent when all had recovered have arrived"
        ));
    }
    Ok(arrived)
}

fn run(trial: &Trial, seed: u64) -> Result<usize, String> {
    let until = trial.tree.lasts + Nanos::from_micros(300);
    let mut network = trial.run(seed, until);
    check(trial, &mut network)
}

#[test]
fn clocks_agree_again_after_faults_and_none_goes_back() {
    let mut total = 0;
    for seed in environment::seeds("onepipe", SEEDS) {
        let trial = draw(seed);
        total += run(&trial, seed).unwrap_or_else(|what| panic!("seed {seed}: {what}\n{trial:#?}"));
    }
    println!("{total} messages");
    assert!(total > 4_000 || !environment::selects_default_seeds(), "{total}");
}

/// Returns the first seed that finds a planted bug, with a violation that contains `what`.
#[cfg(debug_assertions)]
fn find(what: &str, plant: impl Fn(&mut Tree)) -> Option<u64> {
    (0..300).find(|&seed| {
        let mut trial = draw(seed);
        plant(&mut trial.tree);
        run(&trial, seed).is_err_and(|found| found.contains(what))
    })
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_clock_beacons_are_found() {
    let steps_back = |tree: &mut Tree| tree.behaviour.bug = Some(onepipe::process::Bug::ClockStepsBack);
    assert!(find("went back", steps_back).is_some());
    let follows_any = |tree: &mut Tree| tree.bug = Some(representative::Bug::FollowsAnyClock);
    assert!(find("moves others", follows_any).is_some());
}

//! Deliveries drawn from seeds: names of any length, disks that begin late, are slow, full or small, switches
//! that copy, are absent or fail, lossy networks, and crashes.
//!
//! FROM and SEEDS select other seeds: `SEEDS=50000 cargo test -p workloads --release --test it rdmc::deliveries`

use crate::environment;
use rdmc::Algorithm;
use rdmc::delivery::{LossReason, ReceiverError, Refusal, SenderError};
use sim::{Fault, Link, Queues};
use switch::{Nanos, Probability, Rng};
use workloads::rdmc::delivery::{Delivery, ReceiverBehaviour};
use workloads::rdmc::{Setup, ip};

/// Segments that a root keeps ahead of the slowest receiver
const WINDOW: u64 = 4;
/// Seeds of these tests in `make test`; `make soak` runs others.
const SEEDS: u64 = 40;

/// Counts over all runs.
#[derive(Debug, Default)]
struct Totals {
    /// Deliveries that all correct receivers completed; then those that some or all of them did not complete
    whole: usize,
    partial: usize,
    /// Deliveries through a switch that copies; then those that used another algorithm instead
    copied: usize,
    without: usize,
    /// Rounds beyond the first
    again: u32,
}

fn behaviour(rng: &mut Rng) -> ReceiverBehaviour {
    match rng.below(12) {
        0 => ReceiverBehaviour::NoSpace,
        1 => ReceiverBehaviour::Corrupts,
        2 => ReceiverBehaviour::MemoryLimit(rng.below(400_000)),
        3..6 => ReceiverBehaviour::CreateTime(Nanos(rng.below(100_000_000))),
        6 => ReceiverBehaviour::CreateTime(Nanos(rng.below(100_000))),
        7 => ReceiverBehaviour::WriteTime(Nanos(rng.below(3_000_000))),
        _ => ReceiverBehaviour::Correct,
    }
}

/// Returns whether a receiver with this behaviour gets the object if nothing else fails.
fn is_correct(behaviour: ReceiverBehaviour) -> bool {
    match behaviour {
        ReceiverBehaviour::Correct | ReceiverBehaviour::CreateTime(_) | ReceiverBehaviour::WriteTime(_) => {
            true
        }
        // Segments held at most: those not yet written, the same again, and the one that arrives
        ReceiverBehaviour::MemoryLimit(bytes) => bytes >= (2 * WINDOW + 1) * 40_000,
        _ => false,
    }
}

fn share(rng: &mut Rng, max: u64) -> Probability {
    Probability::new(rng.below(max) as f64 / 10_000.0).unwrap_or(Probability::NEVER)
}

/// What a seed has drawn.
struct Drawn {
    setup: Setup,
    behaviours: Vec<ReceiverBehaviour>,
    /// Whether there is neither loss nor crashes
    has_no_faults: bool,
    /// Whether the switch is at the configured address and has room
    has_switch: bool,
    algorithm: Algorithm,
    name: String,
    len: u64,
}

fn draw(seed: u64, rng: &mut Rng) -> Drawn {
    let has_no_faults = rng.below(2) == 0;
    let mut link = Link::default();
    if !has_no_faults {
        (link.loss, link.reorder) = (share(rng, 300), share(rng, 200));
        environment::late(&mut link, seed, Nanos::from_millis(4));
        environment::short_queue(&mut link, seed);
    }
    let behaviours: Vec<ReceiverBehaviour> = (0..rng.between(1, 6)).map(|_| behaviour(rng)).collect();
    let all =
        [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline, Algorithm::InNetwork];
    let algorithm = if rng.below(3) == 0 { Algorithm::InNetwork } else { rng.pick(&all).clone() };
    let has_switch = rng.below(4) > 0;
    let create_timeout = if has_no_faults { Nanos::from_millis(200) } else { Nanos::from_secs(2) };
    let mut setup = Setup {
        seed,
        hosts: behaviours.len() as u16 + 1,
        link,
        create_timeout,
        queues: Queues::drawn(seed),
        same_keys_after_restart: environment::same_keys_after_restart(seed),
        first_psn: environment::psns_near_the_wrap(seed),
        ..Setup::default()
    };
    if !has_switch {
        setup.switch_address = ip(99);
    }
    // A switch with too few queue pairs for a root and a receiver, the smallest possible group, is equivalent
    // to no switch.
    let has_room = Rng::stream(seed, 0x7061_6972).below(4) > 0;
    if !has_room {
        setup.queue_pairs = 1;
    }
    let has_switch = has_switch && has_room;
    let name_len = *rng.pick(&[1, 31, 32, 33, 64, 65, 255, 1 + seed % 255]);
    let name = (0..name_len).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
    let len = rng.between(3000, 600_000);
    Drawn { setup, behaviours, has_no_faults, has_switch, algorithm, name, len }
}

/// Runs a seed, and checks it. `plant` changes the setup of the hosts.
fn run(seed: u64, plant: impl Fn(&mut Setup), totals: &mut Totals) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 0x6465_6c69);
    let Drawn { mut setup, behaviours, has_no_faults, has_switch, algorithm, name, len } =
        draw(seed, &mut rng);
    plant(&mut setup);
    let context = format!("{behaviours:?} {} name of {}, {len} bytes", algorithm.name(), name.len());
    let mut delivery = Delivery::new(&setup, len, &behaviours, |config| {
        config.patience = if has_no_faults { Nanos::from_millis(300) } else { Nanos::from_secs(3) };
        (config.algorithm, config.name, config.window) = (algorithm.clone(), name, WINDOW as u32);
    })
    .map_err(|error| error.to_string())?;
    let (hosts, within) = (delivery.hosts.clone(), Nanos::from_millis(3));
    environment::rehash(&mut delivery.world, &hosts, seed, within);
    environment::drift(&mut delivery.world, &[&hosts[..], &[delivery.switch]].concat(), seed, within);
    let receivers = behaviours.len() as u16;
    let mut victims = Vec::new();
    if !has_no_faults {
        for _ in 0..rng.below(3) {
            let at = Nanos(rng.below(3_000_000));
            let victim = rng.between(0, u64::from(receivers) + 1) as u16;
            // The number after the last receiver is the switch, which restarts.
            if victim > receivers {
                delivery.world.schedule(at, Fault::Crash(delivery.switch));
                delivery.world.schedule(at + Nanos(rng.below(300_000)), Fault::Restart(delivery.switch));
            } else {
                delivery.world.schedule(at, Fault::Crash(delivery.hosts[usize::from(victim)]));
                victims.push(victim);
            }
        }
    }
    let live_receivers: Vec<u16> = (1..=receivers).filter(|host| !victims.contains(host)).collect();
    if victims.contains(&0) {
        delivery.world.run_until(Nanos::from_secs(8));
    } else if !delivery.run_until_outcome(Nanos::from_secs(180), &live_receivers) {
        return Err(format!("{context}: not over, result at the root: {:?}", delivery.root_outcome()));
    }
    let report = delivery.root_outcome().filter(|_| !victims.contains(&0));
    for host in &live_receivers {
        let behaviour = behaviours[usize::from(*host) - 1];
        let Some(outcome) = delivery.receiver_outcome(*host) else {
            return Err(format!("{context}: host {host} has no result"));
        };
        if outcome.is_ok() && !delivery.has_stored_object(*host) {
            return Err(format!("{context}: host {host} has stored something else"));
        }
        // No receiver reports a protocol violation of a root that follows the protocol.
        if is_correct(behaviour)
            && matches!(outcome, Err(ReceiverError::Violation(_) | ReceiverError::Refused(_)))
        {
            return Err(format!("{context}: host {host}: {outcome:?}"));
        }
        if delivery.max_unwritten(*host) > WINDOW {
            return Err(format!(
                "{context}: host {host} held {} unwritten segments, more than the window of {WINDOW}",
                delivery.max_unwritten(*host)
            ));
        }
        let lost = match report {
            Some(Ok(report)) => report.lost.as_slice(),
            Some(Err(SenderError::AllReceiversLost(lost))) => lost,
            _ => &[],
        };
        let lost = lost.iter().find(|(lost, _)| *lost == ip(*host)).map(|(_, why)| *why);
        let expected = match behaviour {
            _ if is_correct(behaviour) => None,
            ReceiverBehaviour::NoSpace => Some(LossReason::Refused(Refusal::NoSpace)),
            ReceiverBehaviour::MemoryLimit(_) => Some(LossReason::Refused(Refusal::Memory)),
            _ => Some(LossReason::Damaged),
        };
        if has_no_faults && lost != expected {
            return Err(format!(
                "{context}: the root lists host {host} as {lost:?}, expected {expected:?}: {report:?}"
            ));
        }
    }
    let Some(Ok(report)) = report else {
        totals.partial += 1;
        return Ok(());
    };
    if let Some(host) =
        (1..=receivers).find(|host| report.stored.contains(&ip(*host)) && !delivery.has_stored_object(*host))
    {
        return Err(format!("{context}: host {host} is listed as stored but has stored something else"));
    }
    if has_no_faults
        && algorithm == Algorithm::InNetwork
        && has_switch != (report.algorithm == Algorithm::InNetwork)
    {
        return Err(format!("{context}: {report:?}"));
    }
    totals.whole += usize::from(report.lost.is_empty());
    totals.partial += usize::from(!report.lost.is_empty());
    if algorithm == Algorithm::InNetwork {
        let copied = report.algorithm == Algorithm::InNetwork;
        *(if copied { &mut totals.copied } else { &mut totals.without }) += 1;
    }
    totals.again += report.rounds - 1;
    Ok(())
}

#[test]
fn all_correct_and_live_receivers_get_the_object() {
    let mut totals = Totals::default();
    for seed in crate::environment::seeds("rdmc", SEEDS) {
        run(seed, |_| {}, &mut totals).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{totals:?}");
    if crate::environment::selects_default_seeds() {
        assert!(
            totals.whole > 12 && totals.copied > 4 && totals.without > 0 && totals.again > 9,
            "{totals:?}"
        );
    }
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in rdmc::Bug::DELIVERY {
        let found = crate::environment::find_bug("rdmc-deliveries", &bug, 1..301, |seed| {
            run(seed, |setup| setup.bug = Some(bug), &mut Totals::default()).err()
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

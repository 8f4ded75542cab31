//! Switches with two representatives: faults of one of them, of both and of everything else, and representatives that
//! leave on an operator's request.

use super::{AFTERWARDS, JOINS, SETTLES_WITHIN, draw, kinds, run_plan};
use crate::environment;
use representative::config::Incarnation;
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::reliable::{Bugs, FaultKind, Plan, System};
use workloads::onepipe::{BEACON_INTERVAL, Tree};

/// Seeds in `make test`
const SEEDS: u64 = 4;
/// Time in which processes send and faults happen
const ACTIVE: Nanos = Nanos::from_micros(4000);
/// The same where one representative fails after another
const ONE_BY_ONE: Nanos = Nanos::from_micros(12_000);

/// Draws a system whose switches have two representatives each.
fn draw_doubled(seed: u64) -> Plan {
    let mut plan = draw(seed);
    (plan.tree.incarnation, plan.tree.incarnations, plan.tree.standby) = (Incarnation::Host, None, true);
    plan.tree.lasts = ACTIVE;
    plan
}

/// Runs and checks a system in which anything fails, and in which some switches have one representative at first.
fn run_among_faults(seed: u64, bugs: Bugs) -> Result<System, String> {
    let plan = draw_doubled(seed);
    let mut rng = Rng::stream(seed, 0x7365_6174);
    let mut kinds = kinds(seed);
    let seats = FaultKind::SEATS.into_iter().cycle().take(1 + kinds.len());
    if rng.below(8) > 0 {
        kinds.extend(seats.collect::<Vec<_>>());
    }
    let alone: Vec<_> = (0..plan.tree.switches() as u16).filter(|_| rng.below(4) == 0).collect();
    let seat = rng.below(2) as u8;
    run_plan(&plan, seed, &kinds, bugs, |system| {
        for switch in alone {
            system.end_seat(switch, seat);
        }
    })
}

/// Draws a system without losses, in which barriers stand still for no other reason than a fault.
fn draw_calm(seed: u64) -> Plan {
    let mut rng = Rng::stream(seed, 0x6361_6c6d);
    let (levels, fanout) = *rng.pick(&[(1, 3), (2, 2), (1, 2)]);
    let mut tree = Tree::new(Incarnation::Host, levels, fanout);
    (tree.standby, tree.lasts, tree.every) = (true, ONE_BY_ONE, Nanos::from_micros(20));
    (tree.skew_ns, tree.drift_ppb) = (rng.below(1_000), 10_000);
    tree.link.loss = Probability::percent(0);
    let mut plan = Plan::new(tree);
    plan.management_delay = *rng.pick(&[2_000, 10_000]);
    plan.store_latency = *rng.pick(&[0, 20_000]);
    plan
}

/// Runs a system in which one representative after another fails or leaves, and the other one of its switch lives: no
/// process fails, no case is opened, and no barrier stands still for an interval and the skew longer than without that.
fn run_one_by_one(seed: u64, bugs: Bugs) -> Result<System, String> {
    let mut plan = draw_calm(seed);
    plan.bugs = bugs;
    let mut system = System::new(&plan, seed);
    system.run_with_seat_faults(JOINS, ONE_BY_ONE)?;
    let stalls = system.stalls();
    system.run_until_settled(SETTLES_WITHIN)?;
    system.run_until(system.now() + AFTERWARDS)?;
    system.check()?;
    let (totals, cases) = (system.totals(), system.cases());
    if (totals.failed, totals.recalled, cases) != (0, 0, 0) {
        return Err(format!(
            "{:?} failed in {cases} cases, {} are recalled",
            system.failures(),
            totals.recalled
        ));
    }
    plan.bugs = Bugs::default();
    let mut calm = System::new(&plan, seed);
    calm.run_until(JOINS)?;
    calm.forget_stalls();
    calm.run_until(JOINS + Nanos::from_micros(1_000))?;
    let more = BEACON_INTERVAL.0 + 2 * plan.tree.skew_ns + 500;
    for (stall, usual) in stalls.into_iter().zip(calm.stalls()) {
        if stall.0 > usual.0 + more {
            return Err(format!(
                "barriers stood still for {stalls:?}, and {:?} without faults",
                calm.stalls()
            ));
        }
    }
    Ok(system)
}

#[test]
fn two_representatives_of_a_switch_keep_every_scattering_whole() {
    let (mut failed, mut drained, mut wrong) = (0, 0, Vec::new());
    for seed in environment::seeds("onepipe_reliable_seats", SEEDS) {
        match run_among_faults(seed, Bugs::default()) {
            Ok(system) => {
                failed += system.totals().failed;
                drained += system.drained();
            }
            Err(error) => wrong.push(format!("seed {seed}: {error}")),
        }
    }
    println!("{failed} failures, {drained} drained");
    assert!(wrong.is_empty(), "{} failed:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!environment::selects_default_seeds() || failed > 3, "{failed}");
}

#[test]
fn no_process_fails_with_one_of_two_representatives() {
    let (mut drained, mut wrong) = (0, Vec::new());
    for seed in environment::seeds("onepipe_reliable_seats", SEEDS) {
        match run_one_by_one(seed, Bugs::default()) {
            Ok(system) => drained += system.drained(),
            Err(error) => wrong.push(format!("seed {seed}: {error}")),
        }
    }
    println!("{drained} drained");
    assert!(wrong.is_empty(), "{} failed:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!environment::selects_default_seeds() || drained > 3, "{drained}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_two_representatives_are_found() {
    use controller::machine::Bug;
    type Run = fn(u64, Bugs) -> Result<System, String>;
    let controller = |bug| Bugs { controller: Some(bug), ..Bugs::default() };
    let bugs: [(_, Run); 3] = [
        (controller(Bug::DrainsUnready), run_one_by_one),
        (controller(Bug::UnheardUninformed), run_among_faults),
        (controller(Bug::FrozenAtOneSeat), run_among_faults),
    ];
    for (bugs, run) in bugs {
        let found = environment::find_bug("onepipe_reliable_seats", &bugs, 1..3_000, |seed| {
            let error = run(seed, bugs).err()?;
            run(seed, Bugs::default()).ok().map(|_| error)
        });
        let found = found.map(|(seed, error)| (seed, error.lines().next().unwrap_or_default().to_string()));
        println!("{bugs:?}: {found:?}");
        assert!(found.is_some(), "{bugs:?} was not found");
    }
}

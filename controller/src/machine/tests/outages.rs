//! Switches that are dead for good, nodes that connect late, and times that are old.

use super::world::{Planted, RESPOND_WITHIN, STEP, World};
use crate::machine::{Alarm, Bug, NodeKey};
use crate::store::{Fault, StoreError};
use onepipe::ProcessId;
use onepipe::control::Message;

/// Steps in which a node has to answer
const RESPOND_STEPS: usize = (RESPOND_WITHIN / STEP) as usize;
/// Switch of the first spine, behind two racks
const SPINE: u16 = 2;

/// Returns a network of two racks with one process each and two spines, in which all are members.
fn two_racks() -> World {
    let mut world = World::new(11, &[1, 1], 2, None);
    world.steps(6_000).expect("no fault");
    world.check_settled().expect("all have joined");
    world
}

/// Returns it after its first spine's representative has died for good.
fn without_a_spine() -> World {
    let mut world = two_racks();
    world.kill_rep(SPINE);
    world.steps(6_000).expect("no process fails");
    world.check_settled().expect("the other spine is left");
    assert_eq!(world.failures(), []);
    world
}

/// Returns the number of steps after which a process that is killed has failed.
fn steps_until_failed(mut world: World, id: u32) -> usize {
    world.kill_process(id);
    let decided = (0..60_000).find(|_| {
        world.step().expect("one failure");
        world.failed_at(id).is_some()
    });
    decided.expect("it has failed")
}

/// Checks that all are members again after a fault beside a dead core switch.
fn settles_without_a_spine(fault: impl Fn(&mut World)) {
    let mut world = without_a_spine();
    fault(&mut world);
    world.steps(20_000).expect("at most one rack fails");
    world.check_settled().expect("all are members");
}

#[test]
fn a_process_joins_where_a_core_switch_is_dead() {
    settles_without_a_spine(|world| world.fail(1));
}

#[test]
fn a_dead_core_switch_delays_no_later_decision() {
    let mut world = without_a_spine();
    world.fail(1);
    world.steps(12_000).expect("one failure");
    // By now the dead one has not answered for long.
    let without = steps_until_failed(world, 2);
    let with = steps_until_failed(two_racks(), 2);
    assert!(without < 2 * with, "{without} steps after {with}");
}

#[test]
fn a_representative_restarts_beside_a_dead_core_switch() {
    settles_without_a_spine(|world| world.restart_rep(0));
}

#[test]
fn a_write_that_is_too_large_is_named_and_tried_again_rarely() {
    let world = two_racks();
    world.store.inject([Some(Fault::TooLarge)]);
    let steps = steps_until_failed(world, 1);
    assert!(steps > 20 * RESPOND_STEPS, "{steps} steps");
    let mut world = two_racks();
    world.store.inject([Some(Fault::TooLarge); 3]);
    world.kill_process(1);
    world.steps(3 * RESPOND_STEPS).expect("nothing is decided");
    let is_too_large = |alarm: &&Alarm| matches!(alarm, Alarm::Store(StoreError::TooLarge(_)));
    assert_eq!(world.alarms.iter().filter(is_too_large).count(), 1, "{:?}", world.alarms);
    assert_eq!(world.failures(), []);
}

#[test]
fn a_new_leader_waits_for_nodes_that_connect_late() {
    let mut world = World::new(12, &[2, 2], 1, None);
    world.steps(8_000).expect("no fault");
    world.check_settled().expect("all have joined");
    world.kill_process(1);
    // All but its switch need longer than the time in which a node has to answer.
    world.replace_controller_late(2_500, |node| node != NodeKey::Rep(0, 0));
    world.keeps_memory = true;
    world.steps(12_000).expect("one failure");
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id).collect();
    assert_eq!(failed, [ProcessId(1)]);
}

#[test]
fn a_failed_process_gets_no_barrier_before_it_knows() {
    for seed in 0..20 {
        let mut world = World::new(seed, &[1, 1], 1, None);
        world.steps(6_000).expect("no fault");
        world.check_settled().expect("all have joined");
        world.part_rack(1);
        world.cut_rack(1, true);
        world.steps(12_000).expect("one failure");
        let time = world.failed_at(2).expect("its rack is lost");
        // The links heal; the connections with the controller do not.
        world.cut_rack(1, false);
        world.steps(6_000).expect("no other failure");
        assert!(world.barrier(2) <= time, "seed {seed}: {} is above {time}", world.barrier(2));
    }
}

/// Returns an error if a process gets barriers above its time from a switch that has no connection to the controller,
/// and whose outputs were cut and heal.
fn deaf_rack(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut world = World::new(seed, &[2, 1], 1, planted);
    world.steps(6_000)?;
    world.check_settled()?;
    world.part_for_good(NodeKey::Rep(0, 0));
    world.cut_outputs(0, true);
    for _ in 0..3_000 {
        if world.silent_links() == 3 {
            break;
        }
        world.step()?;
    }
    world.part_rack(0);
    world.steps(12_000)?;
    let times = [1, 2].map(|id| world.failed_at(id));
    world.cut_outputs(0, false);
    world.steps(6_000)?;
    for (id, time) in (1..).zip(times) {
        let (time, barrier) = (time.ok_or(format!("{id} has not failed"))?, world.barrier(id));
        if barrier > time {
            return Err(format!("{id} has {barrier}, above {time}"));
        }
    }
    Ok(())
}

#[test]
fn a_switch_that_hears_no_controller_passes_no_barrier_to_failed_processes() {
    for seed in 0..20 {
        deaf_rack(seed, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let planted = Some(Planted::Controller(Bug::CompletedUnmuted));
    let found = (0..20).any(|seed| deaf_rack(seed, planted).is_err());
    assert!(found, "a case that is completed too early is found by no seed");
}

#[test]
fn floors_and_values_that_are_days_old_are_not_times_of_the_future() {
    let mut world = two_racks();
    world.restart_rep(0);
    world.steps(12_000).expect("at most its rack fails");
    world.check_settled().expect("all are members");
    let of_rep = |world: &World| world.inbox[&NodeKey::Rep(0, 0)].len();
    let before = of_rep(&world);
    // More than half of the time after which timestamps repeat
    world.skip(40 * 3_600 * 1_000_000_000);
    world.steps(3_000).expect("barriers follow");
    world.fail(1);
    world.steps(12_000).expect("one failure");
    world.check_settled().expect("it has joined again");
    let mut floors = 0;
    for message in &world.inbox[&NodeKey::Rep(0, 0)][before..] {
        let Message::Configure { floors: sent, .. } = message else { continue };
        for floor in sent.iter().flatten() {
            floors += 1;
            assert!(floor.precedes(world.now()), "{floor:?} is in the future");
        }
    }
    assert!(floors > 0, "the restarted representative has floors");
}

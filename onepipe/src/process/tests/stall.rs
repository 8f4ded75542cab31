//! Reports of a barrier that stands still.

use super::*;

const AFTER: Nanos = Nanos::from_micros(30);
const INTERVAL: u64 = 3;

fn stalling() -> Group {
    Group::new(2, |config| config.stall_after = AFTER)
}

/// Advances the time without beacons.
fn stand_still(group: &mut Group, us: u64) {
    for _ in 0..us {
        group.now = group.now + Nanos::from_micros(1);
        for process in &mut group.processes {
            process.on_timer(group.now);
        }
    }
}

#[test]
fn barrier_that_stands_still_is_reported_once_and_so_is_its_rise() {
    let mut group = stalling();
    group.run(100);
    assert_eq!(group.events(0), [], "the barrier rises");
    let barrier = group.processes[0].barriers().0;
    stand_still(&mut group, AFTER.0 / 1000 - 2 * INTERVAL);
    assert_eq!(group.events(0), []);
    stand_still(&mut group, 4 * INTERVAL);
    assert_eq!(group.events(0), [Event::Stalled { barrier }]);
    stand_still(&mut group, 500);
    assert_eq!(group.events(0), [], "reported once");
    group.run(2 * INTERVAL);
    let [Event::Recovered { barrier: recovered, after }] = group.events(0)[..] else {
        panic!("not recovered")
    };
    assert!(barrier.unwrap().precedes(recovered));
    let most = Nanos::from_micros(AFTER.0 / 1000 + 500 + 5 * INTERVAL);
    assert!(Nanos::from_micros(500) < after && after <= most, "{after:?}");
    assert_eq!(group.processes[0].counters().stalls.get(), 1);
    group.run(100);
    assert_eq!(group.events(0), []);
}

#[test]
fn process_that_gets_no_barrier_is_stalled() {
    let mut group = stalling();
    stand_still(&mut group, 50);
    assert_eq!(group.events(0), [Event::Stalled { barrier: None }]);
    group.run(2 * INTERVAL);
    assert!(matches!(group.events(0)[..], [Event::Recovered { .. }]));
}

/// However often the barrier stands still, the application that does not poll finds the last change of each
/// kind at most, in their order.
#[test]
fn newer_reports_replace_older_ones() {
    let mut group = stalling();
    group.run(10);
    for _ in 0..5 {
        stand_still(&mut group, 50);
        group.run(2 * INTERVAL);
    }
    assert_eq!(group.processes[0].counters().stalls.get(), 5);
    assert!(matches!(group.events(0)[..], [Event::Stalled { .. }, Event::Recovered { .. }]));
    // The application knows of a stall, and then does not poll.
    stand_still(&mut group, 50);
    assert!(matches!(group.events(0)[..], [Event::Stalled { .. }]));
    group.run(2 * INTERVAL);
    stand_still(&mut group, 50);
    let barrier = group.processes[0].barriers().0;
    let [Event::Recovered { .. }, Event::Stalled { barrier: stalled }] = group.events(0)[..] else {
        panic!()
    };
    assert_eq!(stalled, barrier);
    group.run(2 * INTERVAL);
    stand_still(&mut group, 50);
    group.run(2 * INTERVAL);
    assert!(matches!(group.events(0)[..], [Event::Recovered { .. }, ..]));
}

#[test]
fn reports_take_no_room_of_messages() {
    let mut group = Group::new(2, |config| (config.stall_after, config.max_unsettled) = (AFTER, 1));
    group.run(10);
    stand_still(&mut group, 50);
    assert!(group.scatter(0, &[(1, b"x")]).is_ok());
    assert_eq!(group.scatter(0, &[(1, b"x")]), Err(SendError::Full));
    assert!(matches!(group.events(0)[..], [Event::Stalled { .. }]));
}

#[test]
fn process_that_has_left_is_not_stalled() {
    let mut group = stalling();
    group.run(10);
    group.processes[0].leave();
    stand_still(&mut group, 100);
    assert_eq!(group.events(0), []);
    assert!(matches!(group.events(1)[..], [Event::Stalled { .. }]), "the other process is");
}

//! Scenarios: what happens to both services while one part fails.

use super::{AFTERWARDS, SETTLES_WITHIN};
use controller::machine::NodeKey;
use onepipe::ProcessId;
use representative::config::Incarnation;
use switch::Nanos;
use workloads::onepipe::reliable::{Plan, System};
use workloads::onepipe::{Failing, Part, Tree, Wiring};

/// Time within which all processes of these systems have joined, and links count as silent without delay
const JOINED: Nanos = Nanos::from_micros(1500);

/// Returns a plan whose processes send for a time.
fn plan(levels: u32, fanout: usize, lasts: Nanos) -> Plan {
    let mut tree = Tree::new(Incarnation::Host, levels, fanout);
    (tree.lasts, tree.every) = (lasts, Nanos::from_micros(15));
    Plan::new(tree)
}

/// Returns a system in which all processes have joined, and send for a time.
fn joined(plan: &Plan, seed: u64) -> System {
    let mut system = System::new(plan, seed);
    system.run_until(JOINED).unwrap();
    for process in 0..plan.tree.hosts() {
        assert!(system.admitted(process).is_some(), "process {process} has not joined");
    }
    system
}

/// Runs for some microseconds.
fn run(system: &mut System, us: u64) -> Nanos {
    system.run_until(system.now() + Nanos::from_micros(us)).unwrap();
    system.now()
}

/// Runs until everything is settled, and checks the run.
fn finish(system: &mut System) {
    system.run_until(system.lasts()).unwrap();
    system.run_until_settled(SETTLES_WITHIN).unwrap();
    system.run_until(system.now() + AFTERWARDS).unwrap();
    system.check().unwrap();
}

/// Returns the processes that have failed.
fn failed(system: &System) -> Vec<u32> {
    system.failures().into_iter().map(|(process, ..)| process).collect()
}

#[test]
fn three_processes_at_one_switch_are_admitted_send_and_deliver() {
    let mut system = joined(&plan(1, 3, Nanos::from_micros(1900)), 1);
    run(&mut system, 400);
    finish(&mut system);
    let totals = system.totals();
    assert!(totals.committed > 20 && totals.best_effort > 20, "{totals:?}");
    assert_eq!((totals.failed, totals.recalled, totals.terms), (0, 0, 1), "{totals:?}");
}

#[test]
fn without_a_controller_both_services_go_on_and_a_failure_stalls_commit_alone() {
    let mut system = joined(&plan(1, 3, Nanos::from_micros(3900)), 2);
    system.stop_controller(0);
    let (down, up) = (run(&mut system, 50), run(&mut system, 500));
    assert!(system.delivered(down, up).iter().all(|&count| count > 20), "{:?}", system.delivered(down, up));
    system.fail(Failing::Crash(Part::Host(2)));
    let (stalled, until) = (run(&mut system, 100), run(&mut system, 500));
    let [best_effort, reliable] = system.delivered(stalled, until);
    assert!(best_effort > 5 && reliable == 0, "{best_effort} and {reliable}");
    system.mend(Failing::Crash(Part::Host(2)));
    run(&mut system, 300);
    assert_eq!(system.admitted(2), None, "a join waits for a controller");
    assert_eq!(failed(&system), []);
    system.start_controller();
    finish(&mut system);
    let (from, until) = (system.now(), run(&mut system, 1));
    assert_eq!((failed(&system), system.delivered(from, until).len()), (vec![2], 2));
    for process in [0, 1] {
        assert_eq!(system.callbacks(process).len(), 1, "process {process}");
    }
}

#[test]
fn a_leader_that_is_replaced_in_a_case_leaves_one_decision() {
    for (n, delay) in (0..300).step_by(20).enumerate() {
        let mut system = joined(&plan(1, 3, Nanos::from_micros(1900)), n as u64);
        system.fail(Failing::Crash(Part::Host(1)));
        run(&mut system, delay);
        let leader = system.leader_number().unwrap();
        if n % 2 == 0 {
            system.stop_controller(leader);
        } else {
            // It does not know that it does not lead any more, and goes on when it is resumed.
            system.pause_controller(leader, Nanos::from_micros(400));
        }
        system.start_controller();
        run(&mut system, 900);
        system.mend(Failing::Crash(Part::Host(1)));
        finish(&mut system);
        assert_eq!(failed(&system), [1], "after {delay} us");
        assert_eq!(system.totals().terms, 2);
        let called = [0, 2].map(|process| system.callbacks(process));
        assert_eq!((called[0].len(), &called[0]), (1, &called[1]), "after {delay} us");
    }
}

#[test]
fn a_killed_process_is_called_back_once_at_all_others_with_the_same_time() {
    let mut system = joined(&plan(2, 2, Nanos::from_micros(2400)), 4);
    system.fail(Failing::Crash(Part::Host(3)));
    let (from, until) = (run(&mut system, 300), run(&mut system, 300));
    assert!(system.delivered(from, until).iter().all(|&count| count > 20), "both services go on");
    let (process, _, time) = system.failures()[0];
    for other in 0..3 {
        assert_eq!(system.callbacks(other), [(process, time)], "process {other}");
    }
    system.mend(Failing::Crash(Part::Host(3)));
    finish(&mut system);
    assert_eq!(failed(&system), [3]);
}

#[test]
fn a_receiver_that_is_cut_off_delivers_what_the_others_deliver() {
    let mut outcomes = [0; 2];
    for delay in 0..24 {
        let mut quiet = plan(1, 3, Nanos::from_micros(1));
        quiet.tree.every = Nanos::from_millis(1);
        let mut system = joined(&quiet, delay);
        let scattering = system.send(0, &[1, 2]).unwrap();
        run(&mut system, delay / 2);
        system.fail(Failing::Cut(Wiring::Access(2)));
        run(&mut system, 400);
        let is_committed = system.is_committed(0, scattering);
        let expected = usize::from(is_committed == Some(true));
        outcomes[expected] += 1;
        assert_eq!((is_committed.is_some(), system.received(1)), (true, expected), "after {delay} us");
        system.mend(Failing::Cut(Wiring::Access(2)));
        finish(&mut system);
        assert_eq!((failed(&system), system.received(2)), (vec![2], expected), "after {delay} us");
    }
    assert!(outcomes.iter().all(|&count| count > 2), "recalled and committed: {outcomes:?}");
}

#[test]
fn a_link_that_speaks_again_is_thawed_and_no_process_fails() {
    let mut thawed = 0;
    for seed in 0..16 {
        let mut plan = plan(1, 3, Nanos::from_micros(2100));
        plan.management_delay = 40_000;
        let mut system = joined(&plan, seed);
        system.fail(Failing::Cut(Wiring::Access(1)));
        run(&mut system, 36 + seed % 4);
        system.mend(Failing::Cut(Wiring::Access(1)));
        finish(&mut system);
        let failures = failed(&system);
        assert!(system.thawed() == 0 || failures.is_empty(), "seed {seed}: {failures:?}");
        thawed += system.thawed();
    }
    assert!(thawed > 1, "{thawed}");
}

#[test]
fn a_representative_that_restarts_within_the_time_out_fails_no_process() {
    for seed in 0..8 {
        let mut plan = plan(1, 3, Nanos::from_micros(2100));
        (plan.management_delay, plan.store_latency) = (2_000, 0);
        let mut system = joined(&plan, seed);
        let before = system.totals().representatives;
        system.fail(Failing::Crash(Part::Keeper(0)));
        run(&mut system, 15);
        system.mend(Failing::Crash(Part::Keeper(0)));
        let (from, until) = (run(&mut system, 100), run(&mut system, 300));
        assert!(system.delivered(from, until).iter().all(|&count| count > 20), "seed {seed}");
        finish(&mut system);
        assert_eq!((failed(&system), system.totals().representatives), (vec![], before + 1), "seed {seed}");
    }
}

#[test]
fn one_half_of_a_fabric_goes_on_and_the_other_joins_again() {
    for is_cut_off in [false, true] {
        let mut system = joined(&plan(2, 2, Nanos::from_micros(5000)), 7);
        system.fail(Failing::Cut(Wiring::Uplink(1)));
        let half = [NodeKey::Process(ProcessId(2)), NodeKey::Process(ProcessId(3)), NodeKey::Rep(1)];
        for node in half {
            system.cut_off(node, is_cut_off);
        }
        let (from, until) = (run(&mut system, 2000), run(&mut system, 500));
        let [best_effort, reliable] = system.delivered(from, until);
        assert!(best_effort > 20 && reliable > 20, "{best_effort} and {reliable}");
        assert_eq!(failed(&system), [2, 3]);
        for node in half {
            system.cut_off(node, false);
        }
        system.mend(Failing::Cut(Wiring::Uplink(1)));
        finish(&mut system);
        assert_eq!(failed(&system), [2, 3]);
    }
}

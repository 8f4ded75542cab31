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
    assert_eq!(failed(&system), [0; 0]);
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

/// The process reaches the controller, recovers and registers again, but its link does not count before it is heard.
#[test]
fn a_process_behind_a_dead_link_fails_once_and_stops_no_other() {
    for seed in 0..4 {
        let mut system = joined(&plan(1, 3, Nanos::from_micros(9_500)), seed);
        system.fail(Failing::Cut(Wiring::Access(2)));
        run(&mut system, 1_500);
        for _ in 0..10 {
            let (from, until) = (system.now(), run(&mut system, 400));
            let [_, reliable] = system.delivered(from, until);
            assert!(reliable > 5, "{reliable} of the others' messages from {from:?} to {until:?}");
        }
        assert_eq!((failed(&system), system.admitted(2)), (vec![2], None), "seed {seed}");
        system.mend(Failing::Cut(Wiring::Access(2)));
        finish(&mut system);
        assert_eq!(failed(&system), [2], "seed {seed}");
        assert!(system.admitted(2).is_some(), "seed {seed}");
    }
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
        let half = [NodeKey::Process(ProcessId(2)), NodeKey::Process(ProcessId(3)), NodeKey::Rep(1, 0)];
        for node in half {
            system.cut_off(node, is_cut_off);
        }
        let (from, until) = (run(&mut system, 2000), run(&mut system, 500));
        let [best_effort, reliable] = system.delivered(from, until);
        assert!(best_effort > 10 && reliable > 10, "{best_effort} and {reliable}");
        assert_eq!(failed(&system), [2, 3]);
        for node in half {
            system.cut_off(node, false);
        }
        system.mend(Failing::Cut(Wiring::Uplink(1)));
        finish(&mut system);
        assert_eq!(failed(&system), [2, 3]);
    }
}

#[test]
fn messages_are_carried_by_the_controller_where_one_path_is_cut() {
    for (seed, both_ways) in (0..6).zip([false, true].into_iter().cycle()) {
        let mut system = joined(&plan(2, 2, Nanos::from_micros(3000)), seed);
        system.cut_path(0, 3, true);
        system.cut_path(3, 0, both_ways);
        run(&mut system, 700);
        let scattering = system.send(0, &[1, 3]).unwrap();
        finish(&mut system);
        let totals = system.totals();
        assert_eq!(system.is_committed(0, scattering), Some(true), "seed {seed}");
        assert_eq!((totals.failed, totals.recalled), (0, 0), "seed {seed}: {totals:?}");
        assert!(totals.carried > 20, "seed {seed}: {totals:?}");
    }
}

#[test]
fn a_sender_that_dies_in_its_recall_leaves_nothing_delivered() {
    let mut died_in_recall = 0;
    for delay in 8..48 {
        let mut quiet = plan(1, 3, Nanos::from_micros(1));
        (quiet.tree.every, quiet.management_delay) = (Nanos::from_millis(1), 5_000);
        let mut system = joined(&quiet, delay);
        // Process 2 never acknowledges, and process 1 acknowledges the message and not its recall.
        system.fail(Failing::Crash(Part::Host(2)));
        let scattering = system.send(0, &[1, 2]).unwrap();
        while failed(&system).is_empty() {
            run(&mut system, 1);
        }
        system.cut_path(1, 0, true);
        // The notice arrives within 5 us. The callback comes after the recall.
        run(&mut system, delay);
        let in_recall = system.is_committed(0, scattering).is_none() && system.callbacks(0).is_empty();
        died_in_recall += usize::from(in_recall);
        system.fail(Failing::Crash(Part::Host(0)));
        run(&mut system, 1500);
        assert_eq!(system.received(1), 0, "after {delay} us");
        let callbacks = system.callbacks(1).into_iter().map(|(process, _)| process);
        assert_eq!(callbacks.collect::<Vec<_>>(), [2, 0], "after {delay} us");
        system.cut_path(1, 0, false);
        system.mend(Failing::Crash(Part::Host(0)));
        system.mend(Failing::Crash(Part::Host(2)));
        finish(&mut system);
        assert_eq!((failed(&system), system.received(1)), (vec![0, 2], 0), "after {delay} us");
    }
    assert!(died_in_recall > 30, "{died_in_recall}");
}

#[test]
fn a_representative_that_restarts_late_fails_its_rack_once() {
    for seed in 0..6 {
        let mut system = joined(&plan(2, 2, Nanos::from_micros(4500)), seed);
        system.fail(Failing::Crash(Part::Keeper(1)));
        let (from, until) = (run(&mut system, 1300), run(&mut system, 300));
        let [best_effort, reliable] = system.delivered(from, until);
        assert!(best_effort > 20 && reliable > 20, "seed {seed}: {best_effort} and {reliable}");
        assert_eq!(failed(&system), [2, 3], "seed {seed}");
        let called = [0, 1].map(|process| system.callbacks(process));
        assert_eq!((called[0].len(), &called[0]), (2, &called[1]), "seed {seed}");
        system.mend(Failing::Crash(Part::Keeper(1)));
        finish(&mut system);
        assert_eq!(failed(&system), [2, 3], "seed {seed}: once");
    }
}

#[test]
fn commands_of_a_leader_in_a_minority_are_refused() {
    for seed in 0..8 {
        let mut system = joined(&plan(1, 3, Nanos::from_micros(4500)), seed);
        let old = system.leader_number().unwrap();
        // It reaches all nodes, but its store has another leader.
        system.pause_controller(old, Nanos::from_micros(300));
        system.start_controller();
        run(&mut system, 290);
        assert_eq!(system.totals().terms, 2, "seed {seed}");
        let before = system.refused_terms();
        // It has not heard of the other one yet, and commands as if a process had failed.
        system.declare_failed_by(old, 1);
        run(&mut system, 200);
        assert!(system.refused_terms() > before, "seed {seed}");
        assert_eq!((failed(&system), system.totals().terms), (vec![], 2), "seed {seed}");
        finish(&mut system);
        assert_eq!((failed(&system), system.totals().recalled), (vec![], 0), "seed {seed}");
    }
}

#[test]
fn a_process_whose_clock_is_off_by_a_second_is_not_admitted_and_the_others_go_on() {
    for (seed, off) in [(0, 1_000_000_000), (1, -1_000_000_000), (2, 1_000_000_000), (3, -1_000_000_000)] {
        let mut plan = plan(2, 2, Nanos::from_micros(4000));
        plan.tree.wrong_host = Some((1, off));
        // The representatives' clocks are not those of the controller.
        plan.tree.wrong_keepers = Some((seed, 200_000));
        plan.management_delay = 2_000;
        let mut system = System::new(&plan, seed);
        system.run_until(JOINED).unwrap();
        let right = [0, 2, 3];
        assert_eq!(system.admitted(1), None, "seed {seed}");
        assert!(right.iter().all(|&process| system.admitted(process).is_some()), "seed {seed}");
        let scattering = system.send(0, &[2, 3]).unwrap();
        let before = right.map(|process| system.received(process));
        run(&mut system, 1000);
        for (process, before) in right.into_iter().zip(before) {
            assert!(system.received(process) > before + 20, "seed {seed}: process {process}");
        }
        assert_eq!(system.is_committed(0, scattering), Some(true), "seed {seed}");
        assert_eq!(failed(&system), [0; 0], "seed {seed}");
    }
}

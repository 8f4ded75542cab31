//! 1Pipe's reliable service as a whole: real processes, representatives and controllers together, with faults
//! drawn from a seed.

use representative::config::Incarnation;
use switch::Nanos;
use workloads::onepipe::Tree;
use workloads::onepipe::reliable::{Plan, System};

/// Time within which everything is settled after the last fault
const SETTLES_WITHIN: Nanos = Nanos::from_millis(6);
/// Time for which what must not happen is looked for after that
const AFTERWARDS: Nanos = Nanos::from_micros(200);

#[test]
fn three_processes_at_one_switch_are_admitted_send_and_deliver() {
    let mut tree = Tree::new(Incarnation::Host, 1, 3);
    tree.lasts = Nanos::from_micros(800);
    tree.every = Nanos::from_micros(20);
    let mut system = System::new(&Plan::new(tree), 1);
    system.run_until(tree.lasts).unwrap();
    system.run_until_settled(SETTLES_WITHIN).unwrap();
    system.run_until(system.now() + AFTERWARDS).unwrap();
    system.check().unwrap();
    let totals = system.totals();
    assert!(totals.committed > 20 && totals.best_effort > 20, "{totals:?}");
    assert_eq!((totals.failed, totals.recalled, totals.terms), (0, 0, 1), "{totals:?}");
}

//! Benefit of steering for the Clover store of lists, compared with the goals. Times are virtual, so the
//! results are the same on any machine. Runs are short; `workloads::rack::steering::compare` does the full
//! comparison.

use switch::Nanos;
use swordbox::Layers;
use workloads::clients::clover::{Layout, Options};
use workloads::clients::ycsb::Mix;
use workloads::rack::costs::{Run, clover};
use workloads::rack::steering::{lists, steer, tails};
use workloads::rack::{Outcome, forward};

const LAYOUT: Layout = Layout { keys: 1024, node_len: 128 };

/// Returns a run with this number of threads. The warm-up is long enough for each key to be appended to, or
/// with a large theta for each hot key.
fn run(threads: usize, theta: f64) -> Run {
    let warm_up = Nanos::from_millis(if theta > 1.0 { 2 } else { 5 });
    Run { warm_up, span: Nanos::from_millis(1), ..Run::new(threads) }
}

fn steered(threads: usize, theta: f64, tracked: usize, remembered: usize) -> Outcome {
    let run = run(threads, theta);
    let switch = steer(&run, lists(LAYOUT, tracked, remembered), Layers::STEER);
    let outcome = clover(&run, Mix::A, LAYOUT, theta, Options::default(), switch).unwrap();
    println!("{threads} threads, Zipf {theta}, {tracked} keys, {remembered} nodes: {outcome}");
    outcome
}

fn plain(threads: usize, theta: f64) -> Outcome {
    let run = run(threads, theta);
    let outcome = clover(&run, Mix::A, LAYOUT, theta, Options::default(), forward(run.machines)).unwrap();
    println!("{threads} threads, Zipf {theta}: {outcome}");
    outcome
}

#[test]
fn no_cas_fails_when_all_keys_are_steered() {
    let (alone, many) = (plain(1, 0.99), steered(240, 0.99, 1024, 1 << 18));
    assert_eq!(many.tally.cas_failed, 0);
    assert!(many.tally.hit_share() > 0.9999, "{many}");
    let bytes = many.bytes_per_operation / alone.bytes_per_operation;
    assert!((0.95..1.05).contains(&bytes), "{bytes} times the bytes per operation");
    let tails = tails(&many);
    assert!(tails.iter().all(|tail| *tail < 3.0), "{tails:?}");
}

#[test]
fn reads_of_forgotten_nodes_find_the_tail_at_the_second_try() {
    let few = steered(240, 0.99, 1024, 3 * 1024);
    assert!(few.tally.cas_share() > 0.999, "{few}");
    assert!(few.tally.hit_share() > 0.75, "{few}");
    let tails = tails(&few);
    assert!(tails.iter().all(|tail| *tail < 3.0), "{tails:?}");
}

#[test]
fn steering_a_few_hot_keys_gains_most() {
    let without = plain(240, 1.5).operations_per_s;
    let [some, more, all] =
        [8, 64, 1024].map(|tracked| steered(240, 1.5, tracked, 1 << 18).operations_per_s / without);
    println!("{some:.1} {more:.1} {all:.1}");
    // Paper: 9.5, 27, 31
    assert!(some > 8.0 && more > 2.0 * some && all > more, "{some} {more} {all}");
}

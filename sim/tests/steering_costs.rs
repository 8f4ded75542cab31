//! What steering is worth for the store of lists, against the goals (virtual time: the same on any machine). Short runs.

use sim::rack::Outcome;
use sim::rack::costs::{NODES_VA, Run, clover};
use sim::rack::steering::{steer, tails};
use switch::Nanos;
use swordbox::Layers;
use swordbox::clients::clover::{Layout, Options};
use swordbox::clients::ycsb::Mix;

const LAYOUT: Layout = Layout { keys: 1024, node_len: 128 };

fn run(threads: usize) -> Run {
    let span = |name: &str| Nanos::from_millis(std::env::var(name).map_or(3, |value| value.parse().unwrap()));
    Run { warm_up: span("WARM"), span: span("SPAN"), ..Run::new(threads) }
}

fn steered(threads: usize, theta: f64, tracked: usize, layers: Layers) -> Outcome {
    let run = run(threads);
    let switch = steer(&run, LAYOUT, tracked, layers);
    let outcome = clover(&run, Mix::A, LAYOUT, theta, Options::default(), switch).unwrap();
    println!("{threads} threads, Zipf {theta}, {tracked} keys, {layers:?}: {outcome}, {:?}", tails(&outcome));
    outcome
}

#[test]
fn nothing_fails_when_all_keys_are_steered() {
    assert_eq!(NODES_VA % 8, 0);
    let alone = steered(1, 0.99, 1024, Layers::STEER);
    let without = steered(240, 0.99, 1024, Layers::PASS);
    let many = steered(240, 0.99, 1024, Layers::STEER);
    println!("{} {}", many.tally.cas_failed, many.bytes_per_operation / alone.bytes_per_operation);
    println!("{}", many.operations_per_s / without.operations_per_s);
}

#[test]
fn hot_keys_are_worth_most() {
    for tracked in [0, 8, 64, 1024] {
        steered(240, 1.5, tracked.max(1), if tracked == 0 { Layers::PASS } else { Layers::STEER });
    }
}

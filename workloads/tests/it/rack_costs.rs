//! Over a switch that only forwards, sharing gets more expensive with the number of threads, as the authors
//! of Swordbox measured. Times are virtual, so the results are the same on any machine. Runs are short, so
//! the tests check bounds instead of the paper's numbers; the clients are fitted to one of them.

use switch::Nanos;
use workloads::clients::Kind;
use workloads::clients::clover::{Layout, Options};
use workloads::clients::lock::Unlock;
use workloads::clients::ycsb::Mix;
use workloads::rack::costs::{Run, clover, locks, sherman};
use workloads::rack::{Outcome, forward};

const LAYOUT: Layout = Layout { keys: 1024, node_len: 128 };

fn run(threads: usize) -> Run {
    Run { warm_up: Nanos::from_millis(4), span: Nanos::from_millis(4), ..Run::new(threads) }
}

fn lists(threads: usize, mix: Mix, theta: f64) -> Outcome {
    let run = run(threads);
    let outcome = clover(&run, mix, LAYOUT, theta, Options::default(), forward(run.machines)).unwrap();
    println!("{threads} {mix:?} {theta}: {outcome}");
    outcome
}

#[test]
fn the_share_of_successful_cas_falls_with_the_number_of_threads() {
    let runs = [1, 6, 24, 240].map(|threads| lists(threads, Mix::A, 0.99));
    let [alone, few, some, many] = &runs;
    assert!(alone.tally.hit_share() > 0.999, "a single thread fails");
    // Paper: 32 %, 18 %, 3.7 %
    assert!((0.25..0.45).contains(&few.tally.hit_share()), "{few}");
    assert!((0.10..0.25).contains(&some.tally.hit_share()), "{some}");
    // Here 4.1 %, and 3.8 % in a longer run
    assert!(many.tally.hit_share() < 0.05, "{many}");
    // Paper: up to 16 times the bytes and 300 times the 99th percentile of latency, compared with Swordbox
    assert!(many.bytes_per_operation > 10.0 * alone.bytes_per_operation);
    assert!(many.latency(Kind::Write).p99.0 > 20 * alone.latency(Kind::Write).p99.0);
    assert!(many.latency(Kind::Read).p99.0 > 10 * alone.latency(Kind::Read).p99.0);
}

#[test]
fn read_only_workloads_scale() {
    let (few, many) = (lists(8, Mix::C, 0.99), lists(128, Mix::C, 0.99));
    assert!(many.operations_per_s > 12.0 * few.operations_per_s);
    assert!(many.tally.hit_share() > 0.999);
    assert!(many.bytes_per_operation < 1.1 * few.bytes_per_operation);
}

#[test]
fn hot_keys_lower_the_throughput() {
    let [even, hot] = [0.0, 1.5].map(|theta| lists(48, Mix::A, theta));
    assert!(even.operations_per_s > 2.0 * hot.operations_per_s, "{even} {hot}");
}

#[test]
fn a_contended_lock_is_slower_in_host_memory() {
    let take = |device, unlock| {
        let run = Run { device, ..run(64) };
        let outcome = locks(&run, 1, 0.0, unlock, forward(run.machines)).unwrap();
        println!("device {device} {unlock:?}: {outcome}");
        outcome
    };
    let (host, device) = (take(false, Unlock::Write), take(true, Unlock::Write));
    let ratio = device.operations_per_s / host.operations_per_s;
    // 8.97 M CAS/s against 2.93 M
    assert!((2.7..3.4).contains(&ratio), "{ratio}");
    assert!(host.tally.cas_share() < 0.03 && device.tally.cas_share() < 0.03);
    assert!(take(false, Unlock::CompareSwap).operations_per_s < host.operations_per_s);
}

#[test]
fn a_tree_with_hot_leaves_is_slow() {
    let tree = |threads, theta| {
        let run = Run { device: true, ..run(threads) };
        let outcome = sherman(&run, Mix::A, 10_000, theta, forward(run.machines)).unwrap();
        println!("{threads} {theta}: {outcome}");
        outcome
    };
    let (even, hot) = (tree(48, 0.0), tree(48, 1.5));
    assert!(even.operations_per_s > 2.0 * hot.operations_per_s);
    assert!(even.tally.cas_share() > 5.0 * hot.tally.cas_share());
}

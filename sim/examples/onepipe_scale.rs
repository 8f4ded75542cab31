//! 1Pipe in fat trees of 8 to 32,768 hosts: how long delivery takes beyond the network's own delay, and what a world of this
//! size needs. `cargo run --release -p sim --example onepipe_scale [HOSTS...]`

use representative::config::Incarnation;
use sim::onepipe::{BEACON_INTERVAL, FatTree};
use std::time::Instant;
use switch::Nanos;

/// Pods, racks of each, hosts of each; spines of each pod, and cores
const SIZES: [[usize; 5]; 6] = [
    [1, 1, 8, 0, 0],
    [2, 2, 8, 2, 2],
    [4, 4, 16, 4, 16],
    [8, 8, 32, 8, 64],
    [16, 16, 32, 16, 256],
    [32, 32, 32, 32, 1024],
];
/// For how long hosts send, in virtual time; barriers need some intervals before to come down for the first time
const LASTS: Nanos = Nanos::from_micros(30);

/// The most memory that this process has had, in MB
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).map_or(0, |kb: u64| kb / 1024)
}

#[allow(clippy::disallowed_methods, reason = "it says how long it takes")]
fn now() -> Instant {
    Instant::now()
}

fn main() {
    let wanted: Vec<usize> = std::env::args().skip(1).filter_map(|hosts| hosts.parse().ok()).collect();
    println!("   hosts  switches     links  deliveries  mean delay  overhead  seconds  memory so far");
    for [pods, racks, hosts, spines, cores] in SIZES {
        let mut tree = FatTree {
            pods,
            racks,
            hosts,
            spines,
            cores,
            lasts: LASTS,
            ..FatTree::testbed(Incarnation::Chip)
        };
        tree.every = Nanos::from_micros(10);
        // Who knows everybody has a table of everybody: of the largest network that would be a thousand million entries.
        tree.habits.friends = if tree.all_hosts() > 1024 { 32 } else { 0 };
        if !wanted.is_empty() && !wanted.contains(&tree.all_hosts()) {
            continue;
        }
        let began = now();
        let mut made = tree.build(1);
        made.world.run_until(LASTS + Nanos(5 * BEACON_INTERVAL.0));
        made.check(None).expect("barriers hold");
        let count: usize = made.each_host().map(|host| host.delivered.len()).sum();
        let mean = made.mean_delay_ns();
        // What a message takes from one end of the network to the other
        let base = f64::from(2 * tree.levels()) * (tree.link.delay.0 as f64 + 114.0 * 8.0 / 100.0);
        println!(
            "{:8}  {:8}  {:8}  {count:10}  {mean:7.0} ns  {:5.0} ns  {:7.1}  {:10} MB",
            tree.all_hosts(),
            made.keepers.len(),
            made.access.len() + made.uplinks.len(),
            mean - base,
            began.elapsed().as_secs_f64(),
            peak_mb()
        );
    }
}

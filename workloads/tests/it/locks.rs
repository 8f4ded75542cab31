//! Locks in remote memory: mutual exclusion under any network behaviour, and the cost without help from a
//! switch.

use sim::{Costs, Fault, Link};
use switch::{Nanos, Probability};
use workloads::clients::lock::{Locks, Unlock, WhileHeld};
use workloads::clients::ycsb::Zipf;
use workloads::clients::{Kind, ServerMemory};
use workloads::rack::{Outcome, Rack, RackConfig, forward};

const LOCKS_VA: u64 = 0x1000_0000;
const COUNTERS_VA: u64 = 0x2000_0000;
const TABLE: usize = 4096;

fn rack(config: RackConfig, locks: &Locks) -> Rack<Locks> {
    let memory = vec![ServerMemory::zeroed(LOCKS_VA, TABLE), ServerMemory::zeroed(COUNTERS_VA, TABLE)];
    let switch = forward(config.machines);
    Rack::new(config, memory, switch, |machine| Locks { machine: machine as u64, ..locks.clone() })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Runs threads of which each takes locks `locks.times` times and increments a counter while it holds one.
/// Checks that no increment is lost.
fn count(config: RackConfig, locks: &Locks) -> Rack<Locks> {
    let threads = (config.machines * config.threads) as u64;
    let mut rack = rack(config, locks);
    rack.finish(Nanos::from_secs(10)).unwrap();
    assert_eq!(words(rack.memory(1)).sum::<u64>(), threads * locks.times, "an increment was lost");
    assert!(rack.memory(0).iter().all(|byte| *byte == 0), "a lock is still held");
    let account = rack.account.lock();
    assert_eq!(account.operations(Kind::Lock), threads * locks.times);
    assert_eq!(account.operations(Kind::Unlock), threads * locks.times);
    assert_eq!(account.tally.hits, threads * locks.times);
    drop(account);
    rack
}

#[test]
fn a_lock_excludes_all_other_threads() {
    let zipf = Zipf::new(1, 0.0);
    for (unlock, cm) in [(Unlock::Write, true), (Unlock::CompareSwap, false)] {
        let locks =
            Locks { unlock, while_held: WhileHeld::Count, times: 50, ..Locks::new(zipf.clone(), 0, 1) };
        let config = RackConfig { machines: 4, threads: 4, cm, ..RackConfig::default() };
        let rack = count(config, &locks);
        assert!(rack.account.lock().tally.cas_failed > 100, "too little contention");
    }
}

#[test]
fn a_lock_excludes_on_a_lossy_link_and_with_costs() {
    let percent = Probability::percent;
    let (duplicate, reorder, corrupt) = (percent(2), percent(5), percent(1));
    for seed in 0..20 {
        let locks =
            Locks { while_held: WhileHeld::Count, times: 20, ..Locks::new(Zipf::new(4, 0.99), 0, seed) };
        let link = Link { loss: percent(2), duplicate, reorder, corrupt, ..Link::default() };
        let config = RackConfig {
            seed,
            machines: 4,
            threads: 3,
            costs: (seed % 2 == 0).then(|| Costs::connect_x5(None)),
            link,
            ack_timeout: 6,
            retry_count: rnic::ReadyToSend::NO_LIMIT,
            ..RackConfig::default()
        };
        count(config, &locks);
    }
}

#[test]
fn a_run_is_reproducible_to_the_byte() {
    let digest = || {
        let locks = Locks { times: 20, ..Locks::new(Zipf::new(8, 0.99), 0, 3) };
        let mut rack = rack(RackConfig { threads: 2, ..RackConfig::default() }, &locks);
        rack.finish(Nanos::from_secs(1)).unwrap();
        rack.world.digest()
    };
    assert_eq!(digest(), digest());
}

#[test]
fn threads_reconnect_after_the_server_restarts() {
    let locks =
        Locks { while_held: WhileHeld::Hold(Nanos::from_micros(3)), ..Locks::new(Zipf::new(16, 0.0), 0, 3) };
    let config = RackConfig {
        threads: 2,
        ack_timeout: 6,
        reconnect_after: Some(Nanos::from_millis(1)),
        ..RackConfig::default()
    };
    let mut rack = rack(config, &locks);
    let server = rack.server;
    rack.world.schedule(Nanos::from_millis(10), Fault::Crash(server));
    rack.world.schedule(Nanos::from_millis(11), Fault::Restart(server));
    rack.world.run_until(Nanos::from_millis(100));
    let before = rack.account.lock().operations(Kind::Lock);
    rack.world.run_until(Nanos::from_millis(101));
    assert!(
        rack.account.lock().operations(Kind::Lock) > before + 100,
        "too few locks were taken after the restart"
    );
    assert_eq!((0..8).map(|machine| rack.threads(machine).running()).sum::<usize>(), 16);
    assert_eq!(rack.server().app.clients(), 16);
}

fn contend(threads: usize, device: bool) -> Outcome {
    let locks = Locks::new(Zipf::new(1, 0.0), 0, 1);
    let costs = Some(Costs::connect_x5(device.then_some(LOCKS_VA..COUNTERS_VA)));
    let config = RackConfig { threads, costs, ..RackConfig::default() };
    rack(config, &locks).measure(Nanos::from_millis(5), Nanos::from_millis(5)).unwrap()
}

#[test]
fn more_threads_take_fewer_locks() {
    for device in [false, true] {
        let runs = [1, 4, 16].map(|threads| contend(threads, device));
        // Each release waits for all CASes before it, of which all but one fail.
        assert!(runs[0].operations_per_s.min(runs[1].operations_per_s) > 3.0 * runs[2].operations_per_s);
        assert!(runs[2].tally.cas_share() < 0.01, "more than one of 128 CASes succeeds");
        let (alone, many) = (runs[0].latency(Kind::Lock), runs[2].latency(Kind::Lock));
        assert!(many.p99.0 > 10 * alone.p99.0, "{alone:?} {many:?}");
        // The NIC executes requests at its measured rate: it is the bottleneck.
        let mops = runs[2].tally.requests() as f64 / 5e3;
        assert!((mops / if device { 8.97 } else { 2.93 } - 1.0).abs() < 0.03, "{mops}");
    }
}

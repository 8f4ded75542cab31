//! Locks in remote memory exclude, whatever the network does, and what they cost when nothing helps them.

use sim::rack::{Outcome, Rack, RackConfig, forward};
use sim::{Costs, Fault, Link};
use switch::{Nanos, Share};
use swordbox::clients::lock::{Locks, Under, Unlock};
use swordbox::clients::ycsb::Zipf;
use swordbox::clients::{Kind, Memory};

const LOCKS_VA: u64 = 0x1000_0000;
const COUNTERS_VA: u64 = 0x2000_0000;
const TABLE: usize = 4096;

fn rack(config: RackConfig, locks: &Locks) -> Rack<Locks> {
    let memory = vec![Memory::zeroed(LOCKS_VA, TABLE), Memory::zeroed(COUNTERS_VA, TABLE)];
    let switch = forward(config.machines);
    Rack::new(config, memory, switch, |machine| Locks { machine: machine as u64, ..locks.clone() })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Every thread takes locks so many times, and counts under them.
fn count(config: RackConfig, locks: &Locks) -> Rack<Locks> {
    let threads = (config.machines * config.threads) as u64;
    let mut rack = rack(config, locks);
    rack.finish(Nanos::from_secs(10)).unwrap();
    assert_eq!(words(rack.memory(1)).sum::<u64>(), threads * locks.times, "each was alone");
    assert!(rack.memory(0).iter().all(|byte| *byte == 0), "nobody holds anything");
    let account = rack.account.lock();
    assert_eq!(account.operations(Kind::Lock), threads * locks.times);
    assert_eq!(account.operations(Kind::Unlock), threads * locks.times);
    assert_eq!(account.tally.hits, threads * locks.times);
    drop(account);
    rack
}

#[test]
fn a_lock_excludes() {
    let zipf = Zipf::new(1, 0.0);
    for (unlock, cm) in [(Unlock::Write, true), (Unlock::CompareSwap, false)] {
        let locks = Locks { unlock, under: Under::Count, times: 50, ..Locks::new(zipf.clone(), 0, 1) };
        let config = RackConfig { machines: 4, threads: 4, cm, ..RackConfig::default() };
        let rack = count(config, &locks);
        assert!(rack.account.lock().tally.cas_failed > 100, "all want the same");
    }
}

#[test]
fn a_lock_excludes_on_a_bad_wire_and_with_costs() {
    let percent = Share::percent;
    let (duplicate, reorder, corrupt) = (percent(2), percent(5), percent(1));
    for seed in 0..20 {
        let locks = Locks { under: Under::Count, times: 20, ..Locks::new(Zipf::new(4, 0.99), 0, seed) };
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
fn a_run_repeats_to_the_byte() {
    let digest = || {
        let locks = Locks { times: 20, ..Locks::new(Zipf::new(8, 0.99), 0, 3) };
        let mut rack = rack(RackConfig { threads: 2, ..RackConfig::default() }, &locks);
        rack.finish(Nanos::from_secs(1)).unwrap();
        rack.world.digest()
    };
    assert_eq!(digest(), digest());
}

#[test]
fn threads_connect_again_when_the_server_begins_anew() {
    let locks = Locks { under: Under::Hold(Nanos::from_micros(3)), ..Locks::new(Zipf::new(16, 0.0), 0, 3) };
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
    assert!(rack.account.lock().operations(Kind::Lock) > before + 100, "they go on");
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
        // Each release waits for all tries before it, and all but one of those are in vain.
        assert!(runs[0].operations_per_s.min(runs[1].operations_per_s) > 3.0 * runs[2].operations_per_s);
        assert!(runs[2].tally.cas_share() < 0.01, "of 128 threads one succeeds");
        let (alone, many) = (runs[0].latency(Kind::Lock), runs[2].latency(Kind::Lock));
        assert!(many.p99.0 > 10 * alone.p99.0, "{alone:?} {many:?}");
        // What the NIC executes is what was measured: it has no time for anything else.
        let mops = runs[2].tally.requests() as f64 / 5e3;
        assert!((mops / if device { 8.97 } else { 2.93 } - 1.0).abs() < 0.03, "{mops}");
    }
}

//! The Clover key-value store, which keeps a list of versions per key. What clients read agrees with the
//! lists in one order that explains all observations, whatever the network does. Also its cost under
//! contention, which Swordbox is meant to reduce.

use sim::{Costs, Fault, Link};
use std::sync::{Arc, Mutex};
use switch::{Nanos, Probability, Rng};
use workloads::clients::clover::{Clover, Layout, Options, Store, Tails};
use workloads::clients::ycsb::{Mix, Workload};
use workloads::clients::{Kind, Start, Stopped, Thread};
use workloads::rack::{Outcome, Rack, RackConfig, forward};
use workloads::registers::{History, Observed};

const INDEX_VA: u64 = 0x1000_0000;
const NODES_VA: u64 = 0x7000_0000_0000;

/// Reads and updates random keys, and records what was observed.
async fn run_thread(
    start: Start,
    layout: Layout,
    options: Options,
    (machine, times, seed): (usize, u64, u64),
    (tails, history): (Tails, Arc<Mutex<History>>),
) -> Result<(), Stopped> {
    let verbs = start.verbs;
    let mut store = Store::new(verbs.clone(), &start.regions, layout, options, tails)?;
    let thread = (machine * 1000 + start.number) as u64;
    let mut rng = Rng::stream(seed, thread);
    for time in 0..times {
        let key = rng.below(layout.keys);
        let began = verbs.now();
        if rng.below(2) == 0 {
            let value = (thread << 32) + time + 1;
            store.put(key, &value.to_le_bytes()).await?;
            let written = Observed { value, began, ended: verbs.now() };
            history.lock().unwrap().add_write(key, written);
        } else {
            let bytes = store.get(key).await?;
            // The initial value is empty.
            let value = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            history.lock().unwrap().add_read(key, Observed { value, began, ended: verbs.now() });
        }
    }
    Ok(())
}

fn check(config: RackConfig, layout: Layout, options: Options, times: u64) {
    let threads = config.machines * config.threads;
    let history = Arc::<Mutex<History>>::default();
    let seed = config.seed;
    let shared = history.clone();
    let program = move |machine| {
        let (tails, history) = (Tails::new(layout.keys), shared.clone());
        move |start: Start| -> Thread {
            let tails = if options.shared_tails { tails.clone() } else { Tails::new(layout.keys) };
            Box::pin(run_thread(start, layout, options, (machine, times, seed), (tails, history.clone())))
        }
    };
    let memory = layout.memory(INDEX_VA, NODES_VA, threads * (times as usize + 200));
    let switch = forward(config.machines);
    let mut rack = Rack::new(config, memory, switch, program);
    rack.finish(Nanos::from_secs(20)).unwrap();
    let history = history.lock().unwrap();
    assert_eq!(history.len(), threads * times as usize);
    history.check().unwrap();
    for key in 0..layout.keys {
        let list = layout.list(rack.memory(0), rack.memory(1), NODES_VA, key).unwrap();
        let values = list[1..].iter().map(|value| u64::from_le_bytes(*value.first_chunk().unwrap()));
        history.check_order(key, &values.collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn reads_return_what_was_written() {
    for (node_len, shared_tails, cm) in [(128, true, true), (1024, false, false), (64, false, true)] {
        let config = RackConfig { machines: 4, threads: 4, cm, ..RackConfig::default() };
        let options = Options { shared_tails, nodes_at_once: 3, shortcut_after: 8, ..Options::default() };
        check(config, Layout { keys: 5, node_len }, options, 60);
    }
}

#[test]
fn reads_return_what_was_written_on_a_lossy_link_and_with_costs() {
    let percent = Probability::percent;
    for seed in 0..20 {
        let link = Link {
            loss: percent(2),
            duplicate: percent(2),
            reorder: percent(5),
            corrupt: percent(1),
            ..Link::default()
        };
        let config = RackConfig {
            seed,
            machines: 3,
            threads: 3,
            costs: (seed % 2 == 0).then(|| Costs::connect_x5(None)),
            link,
            ack_timeout: 6,
            retry_count: rnic::ReadyToSend::NO_LIMIT,
            ..RackConfig::default()
        };
        let options = Options { pipelined: seed % 3 == 0, shortcut_after: 2, ..Options::default() };
        check(config, Layout { keys: 3, node_len: 128 }, options, 30);
    }
}

#[test]
fn a_thread_stops_when_memory_is_used_up() {
    let layout = Layout { keys: 1, node_len: 128 };
    let workload = Workload::new(Mix::W, 1);
    let config = RackConfig { machines: 1, ..RackConfig::default() };
    let program = |machine| Clover::new(layout, workload.clone(), machine as u64, 1);
    let mut rack = Rack::new(config, layout.memory(INDEX_VA, NODES_VA, 100), forward(1), program);
    rack.world.run_until(Nanos::from_millis(50));
    assert_eq!(rack.threads(0).stopped().collect::<Vec<_>>(), [(0, Stopped::Full)]);
    assert_eq!(rack.account.lock().operations(Kind::Write), 99);
}

#[test]
fn threads_reconnect_after_their_machine_restarts() {
    let layout = Layout { keys: 16, node_len: 128 };
    let workload = Workload::new(Mix::A, 16);
    let reconnect_after = Some(Nanos::from_millis(1));
    let config = RackConfig { machines: 4, threads: 2, reconnect_after, ..RackConfig::default() };
    let program = |machine| Clover::new(layout, workload.clone(), machine as u64, 1);
    let mut rack = Rack::new(config, layout.memory(INDEX_VA, NODES_VA, 50_000), forward(4), program);
    for n in 0..5 {
        let at = Nanos::from_millis(2 + n);
        rack.world.schedule(at, Fault::Crash(rack.machines[0]));
        rack.world.schedule(at + Nanos::from_micros(300), Fault::Restart(rack.machines[0]));
    }
    rack.world.run_until(Nanos::from_millis(10));
    rack.check().unwrap();
    assert_eq!((0..4).map(|machine| rack.threads(machine).running()).collect::<Vec<_>>(), [2; 4]);
    let list = |key| layout.list(rack.memory(0), rack.memory(1), NODES_VA, key).unwrap();
    let updates: usize = (0..16).map(|key| list(key).len() - 1).sum();
    // Operations in flight when the machine crashed may have taken effect although they were not counted.
    let counted = rack.account.lock().operations(Kind::Write) as usize;
    assert!((counted..=counted + 10).contains(&updates), "{updates} {counted}");
}

fn contend(threads: usize, mix: Mix) -> Outcome {
    let layout = Layout { keys: 1024, node_len: 128 };
    let workload = Workload::new(mix, 1024);
    let config = RackConfig { threads, costs: Some(Costs::connect_x5(None)), ..RackConfig::default() };
    let memory = layout.memory(INDEX_VA, NODES_VA, 200_000);
    let program = |machine| Clover::new(layout, workload.clone(), machine as u64, 1);
    let mut rack = Rack::new(config, memory, forward(8), program);
    rack.measure(Nanos::from_millis(3), Nanos::from_millis(3)).unwrap()
}

#[test]
fn more_threads_fail_more_often() {
    let few = contend(1, Mix::A);
    let many = contend(16, Mix::A);
    assert!(few.tally.hit_share() > 3.0 * many.tally.hit_share(), "{few:?} {many:?}");
    assert!(many.bytes_per_operation > 2.0 * few.bytes_per_operation);
    assert!(many.latency(Kind::Write).p99 > few.latency(Kind::Write).p99);
    // Readers do not contend.
    let readers = contend(16, Mix::C);
    assert!(readers.tally.hit_share() > 0.999 && readers.tally.cas_failed == 0, "{readers:?}");
}

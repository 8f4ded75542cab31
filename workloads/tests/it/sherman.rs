//! The Sherman tree on remote memory. With one thread it behaves as a map; with many threads every key
//! behaves as a register, whatever the network does. No insertion is lost, and the tree is well-formed in the
//! end.

use rnic::PathMtu;
use sim::{Costs, Link};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use switch::{Nanos, Probability, Rng};
use workloads::clients::lock::{Unlock, tag};
use workloads::clients::sherman::{Sherman, Tree, memory, walk};
use workloads::clients::ycsb::{Mix, Workload, scattered};
use workloads::clients::{Kind, Start, Stopped, Thread};
use workloads::rack::{Rack, RackConfig, forward};
use workloads::registers::{History, Observed};

const LOCKS_VA: u64 = 0x1000_0000;
const TREE_VA: u64 = 0x7000_0000_0000;

#[test]
fn the_tree_behaves_as_a_map_for_one_thread() {
    for (mtu, keys) in [(PathMtu::B1024, 3000), (PathMtu::B256, 700), (PathMtu::B4096, 90)] {
        let model = Arc::<Mutex<BTreeMap<u64, u64>>>::default();
        let shared = model.clone();
        let program = move |_| {
            let model = shared.clone();
            move |start: Start| -> Thread {
                let model = model.clone();
                Box::pin(async move {
                    let mut tree = Tree::new(start.verbs, &start.regions, 8, 1, Unlock::Write)?;
                    let mut rng = Rng::new(keys);
                    for time in 0..6000 {
                        let key = rng.below(keys) * 7;
                        match rng.below(10) {
                            0..=5 => {
                                let before = tree.put(key, time).await?;
                                assert_eq!(before, model.lock().unwrap().insert(key, time));
                            }
                            6..=8 => {
                                let value = tree.get(key).await?;
                                assert_eq!(value, model.lock().unwrap().get(&key).copied());
                            }
                            _ => {
                                let count = rng.below(200) as usize;
                                let entries = tree.scan(key, count).await?;
                                let model = model.lock().unwrap();
                                let right = model.range(key..).take(count).map(|(key, value)| (*key, *value));
                                assert_eq!(entries, right.collect::<Vec<_>>());
                            }
                        }
                    }
                    Ok(())
                })
            }
        };
        let config = RackConfig { machines: 1, mtu, ..RackConfig::default() };
        let mut rack = Rack::new(config, memory(LOCKS_VA, 64, TREE_VA, vec![], 300), forward(1), program);
        rack.finish(Nanos::from_secs(10)).unwrap();
        let entries: Vec<_> = model.lock().unwrap().iter().map(|(key, value)| (*key, *value)).collect();
        assert_eq!(walk(rack.memory(1), TREE_VA), Ok(entries));
    }
}

/// What all threads of a run observed
#[derive(Debug, Default)]
struct Observations {
    history: History,
    /// By key, the previous values that insertions returned
    replaced: BTreeMap<u64, BTreeSet<u64>>,
}

#[derive(Clone, Copy)]
struct Run {
    keys: u64,
    times: u64,
    unlock: Unlock,
    /// Whether keys ascend, so that all insertions are at the right edge of the tree
    ascend: bool,
}

async fn run_thread(
    start: Start,
    run: Run,
    (machine, seed): (usize, u64),
    observations: Arc<Mutex<Observations>>,
) -> Result<(), Stopped> {
    let Start { number, incarnation, verbs, regions } = start;
    let thread = tag(machine as u64, number, incarnation);
    let mut tree = Tree::new(verbs.clone(), &regions, 8, thread, run.unlock)?;
    let mut rng = Rng::stream(seed, thread);
    for time in 0..run.times {
        let key = if run.ascend { run.keys * time / run.times } else { rng.below(run.keys) };
        let began = verbs.now();
        let observed = |value| Observed { value, began, ended: verbs.now() };
        match rng.below(if run.ascend { 6 } else { 10 }) {
            0..=5 => {
                let value = (thread << 20) + time + 1;
                let before = tree.put(key, value).await?;
                let observations = &mut *observations.lock().unwrap();
                observations.history.add_write(key, observed(value));
                if let Some(before) = before {
                    assert!(
                        observations.replaced.entry(key).or_default().insert(before),
                        "a value was replaced twice"
                    );
                }
            }
            6..=8 => {
                let value = tree.get(key).await?.unwrap_or(0);
                observations.lock().unwrap().history.add_read(key, observed(value));
            }
            _ => {
                let entries = tree.scan(key, 70).await?;
                assert!(entries.is_sorted_by(|one, other| one.0 < other.0));
                for (key, value) in entries {
                    observations.lock().unwrap().history.add_read(key, observed(value));
                }
            }
        }
    }
    Ok(())
}

fn check(config: RackConfig, run: Run) {
    let threads = config.machines * config.threads;
    let observations = Arc::<Mutex<Observations>>::default();
    let (seed, shared) = (config.seed, observations.clone());
    let program = move |machine| {
        let observations = shared.clone();
        move |start: Start| -> Thread {
            Box::pin(run_thread(start, run, (machine, seed), observations.clone()))
        }
    };
    let memory = memory(LOCKS_VA, 16, TREE_VA, vec![], 100 * threads);
    let switch = forward(config.machines);
    let mut rack = Rack::new(config, memory, switch, program);
    rack.finish(Nanos::from_secs(20)).unwrap();
    assert!(rack.memory(0).iter().all(|byte| *byte == 0), "a lock is still held");
    let mut observations = observations.lock().unwrap();
    let final_entries: BTreeMap<_, _> = walk(rack.memory(1), TREE_VA).unwrap().into_iter().collect();
    let now = rack.world.clock(rack.server);
    for key in 0..run.keys {
        let value = final_entries.get(&key).copied().unwrap_or(0);
        observations.history.add_read(key, Observed { value, began: now, ended: now });
    }
    observations.history.check().unwrap();
    assert!(!observations.history.is_empty());
}

const RUN: Run = Run { keys: 1500, times: 150, unlock: Unlock::Write, ascend: false };

#[test]
fn each_key_behaves_as_a_register_for_many_threads() {
    for (run, cm, mtu) in [
        (RUN, true, PathMtu::B1024),
        (Run { unlock: Unlock::CompareSwap, ..RUN }, false, PathMtu::B1024),
        // With few keys, all threads contend for the same leaves and read them while they are written, in
        // four packets.
        (Run { keys: 200, ..RUN }, true, PathMtu::B256),
        (Run { ascend: true, ..RUN }, true, PathMtu::B1024),
    ] {
        check(RackConfig { machines: 4, threads: 4, cm, mtu, ..RackConfig::default() }, run);
    }
}

#[test]
fn each_key_behaves_as_a_register_on_a_lossy_link_and_with_costs() {
    let percent = Probability::percent;
    for seed in 0..10 {
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
            costs: (seed % 2 == 0).then(|| Costs::connect_x5(Some(LOCKS_VA..LOCKS_VA + 4096))),
            link,
            mtu: if seed % 3 == 0 { PathMtu::B512 } else { PathMtu::B1024 },
            ack_timeout: 6,
            retry_count: rnic::ReadyToSend::NO_LIMIT,
            ..RackConfig::default()
        };
        check(config, Run { keys: 300, times: 80, ascend: seed % 4 == 3, ..RUN });
    }
}

#[test]
fn a_ycsb_workload_completes_and_keeps_all_keys() {
    let mut entries: Vec<_> = (0..5000).map(|key| (scattered(key), 0)).collect();
    entries.sort_unstable();
    let workload = Workload::new(Mix::A, 5000);
    let memory = memory(LOCKS_VA, 32_768, TREE_VA, entries.clone(), 200);
    let program = |machine| {
        let scan = if machine % 2 == 0 { 1 } else { 10 };
        Sherman { scan, ..Sherman::new(workload.clone(), machine as u64, 1) }
    };
    let mut rack = Rack::new(RackConfig::default(), memory, forward(8), program);
    let outcome = rack.measure(Nanos::from_millis(2), Nanos::from_millis(2)).unwrap();
    assert!(
        [Kind::Read, Kind::Write, Kind::Scan].map(|kind| outcome.latency(kind).operations > 100) == [true; 3]
    );
    let keys = |entries: &[(u64, u64)]| entries.iter().map(|(key, _)| *key).collect::<Vec<_>>();
    assert_eq!(keys(&walk(rack.memory(1), TREE_VA).unwrap()), keys(&entries), "the set of keys changed");
}

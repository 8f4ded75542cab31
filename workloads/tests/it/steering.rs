//! The Clover store of lists through a Swordbox that steers, under all kinds of faults. One order of all
//! reads and updates explains what clients observe. In the end every list is well-formed, and contains each
//! acknowledged update exactly once.

use crate::counter_totals::CounterTotals;
use crate::environment;
use sim::{Controlled, Costs, EPOCH, Fault, Link, Queues, Workers};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use switch::forward::Config as ForwardConfig;
use switch::metrics::Metrics as _;
use switch::{Nanos, Probability, Rng};
use swordbox::steering::{ListsConfig, Structure};
use swordbox::{Control, Layers, Swordbox, WordTable};
use workloads::clients::clover::{Layout, Options, Store, Tails};
use workloads::clients::{Start, Stopped, Thread};
use workloads::rack::steering::{config, swordbox_on};
use workloads::rack::{Rack, RackConfig};
use workloads::registers::{History, Observed};

/// Minimum of Swordbox counters over 100 seeds: at most half of the observed values
const MIN_COUNTERS: [(&str, u64); 13] = [
    ("steered", 3000),
    ("steered_reads", 2000),
    ("stale", 250),
    ("stale_tails", 30),
    ("withheld", 90),
    ("mended", 30),
    ("replayed", 200),
    ("reread", 250),
    ("remapped", 130),
    ("decided", 75),
    ("learnt", 10),
    ("lanes", 10),
    // Without forged packets, the count is 600 at most.
    ("forged", 750),
];
/// Seeds of both halves in `make test`; `make soak` runs others.
const SEEDS: u64 = 200;
const SEEDS_OF_WORKERS: u64 = 40;
const INDEX_VA: u64 = 0x1000_0000;
const NODES_VA: u64 = 0x7000_0000_0000;
/// Time limit of a run. The communication manager of a host that was unreachable needs long timeouts.
const LIMIT: Nanos = Nanos::from_secs(60);

/// Paths and clocks change until this time.
const FAULTS_END: Nanos = Nanos::from_millis(2);

/// What all clients have observed, and how much each has done
#[derive(Debug, Default)]
struct Observations {
    /// Completed updates and reads, with their keys
    updates: Vec<(u64, Observed)>,
    reads: Vec<(u64, Observed)>,
    /// Number of completed operations, by thread
    done: BTreeMap<u64, u64>,
    /// Updates that have not completed, or whose effect is unknown: key and start time by value
    unresolved: BTreeMap<u64, (u64, Nanos)>,
}

type Shared = Arc<Mutex<Observations>>;

/// The work of a thread, including after restarts
#[derive(Clone, Copy, Debug)]
struct Work {
    layout: Layout,
    options: Options,
    times: u64,
    reads_percent: u64,
    seed: u64,
}

async fn run_thread(
    start: Start,
    work: Work,
    machine: usize,
    tails: Tails,
    observations: Shared,
) -> Result<(), Stopped> {
    let verbs = start.verbs;
    let mut store = Store::new(verbs.clone(), &start.regions, work.layout, work.options, tails)?;
    let thread = (machine * 1000 + start.number) as u64;
    let incarnation = u64::from(start.incarnation);
    let mut rng = Rng::stream(work.seed, thread << 16 | incarnation);
    let mut number = 0;
    while observations.lock().unwrap().done.get(&thread).copied().unwrap_or(0) < work.times {
        let key = rng.below(work.layout.keys);
        let began = verbs.now();
        if rng.below(100) < work.reads_percent {
            let bytes = store.get(key).await?;
            // The initial value is empty.
            let value = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            assert!(bytes.chunks(8).all(|word| word == value.to_le_bytes()), "torn value: {bytes:x?}");
            observations.lock().unwrap().reads.push((key, Observed { value, began, ended: verbs.now() }));
        } else {
            number += 1;
            let value = (thread + 1) << 32 | incarnation << 16 | number;
            observations.lock().unwrap().unresolved.insert(value, (key, began));
            let bytes = value.to_le_bytes().repeat(work.layout.max_value() / 8);
            store.put(key, &bytes).await?;
            let mut observations = observations.lock().unwrap();
            observations.unresolved.remove(&value);
            observations.updates.push((key, Observed { value, began, ended: verbs.now() }));
        }
        *observations.lock().unwrap().done.entry(thread).or_default() += 1;
    }
    Ok(())
}

/// Values in the list of each key, oldest first
type Lists = Vec<Vec<u64>>;

type Threads = Box<dyn FnMut(Start) -> Thread + Send>;

struct Net {
    rack: Rack<Threads>,
    observations: Shared,
    layout: Layout,
    /// Machines that never restart
    never_restarted: BTreeSet<usize>,
    /// Times at which the memory server crashes and loses its memory, and at which it restarts with the
    /// initial memory
    restarts: Vec<(Nanos, Nanos)>,
    /// Values in each list just before each crash of the server
    lists_at_crash: Vec<Lists>,
    /// Whether the server restarts with the contents of its memory
    keeps_memory: bool,
}

/// What a seed has drawn.
#[derive(Clone, Debug)]
struct Drawn {
    rack: RackConfig,
    work: Work,
    swordbox_config: swordbox::Config,
    workers: Workers,
}

/// Draws the longest delay of late frames of the machines, in a quarter of the seeds. Where connections are
/// re-established, it is at most half of the ACK timeout: the CM's TIMEWAIT lasts as long as that timeout
/// assumes for the lifetime of packets.
fn late(seed: u64, may_fail: bool, ack_timeout: u8) -> Option<Nanos> {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut late = Rng::stream(seed, 0x6c61_7465);
    let max = if may_fail { (4096 << ack_timeout) / 2000 } else { 5000 };
    (late.below(4) == 0).then(|| Nanos::from_micros(late.between(20, max)))
}

fn drawn(seed: u64, may_fail: bool) -> (Drawn, Rng) {
    let mut rng = Rng::stream(seed, 0x7374_6565);
    // A separate stream, so that all other draws of the seed stay the same.
    let mut forgery = Rng::stream(seed, 0x6c69_6573);
    let share = |max: f64, rng: &mut Rng| {
        let share = Probability::new(rng.below(1000) as f64 / 1000.0 * max).unwrap();
        if rng.below(2) == 0 { Probability::NEVER } else { share }
    };
    let mut link = Link {
        jitter: Nanos(rng.below(600)),
        loss: share(0.04, &mut rng),
        duplicate: share(0.04, &mut rng),
        reorder: share(0.06, &mut rng),
        corrupt: share(0.02, &mut rng),
        ..Link::default()
    };
    environment::short_queue(&mut link, seed);
    let is_large = rng.below(20) == 0;
    let machines = if is_large { 8 } else { rng.between(1, 4) as usize };
    let threads = if is_large { 8 } else { rng.between(1, 4) as usize };
    let layout = Layout { keys: rng.between(1, 4), node_len: [64, 128, 1024][rng.below(3) as usize] };
    let costs = (rng.below(3) == 0).then(|| Costs {
        overtaken: Probability::percent(rng.below(20)),
        overtaken_by: Nanos(rng.below(20_000)),
        seed,
        ..Costs::connect_x5(None)
    });
    let rack = RackConfig {
        seed,
        machines,
        threads,
        costs,
        link: if rng.below(5) == 0 { Link::default() } else { link },
        mtu: rnic::PathMtu::ALL[rng.below(3) as usize],
        // Only connections made by the CM can be re-established.
        cm: may_fail || rng.below(2) == 0,
        ack_timeout: rng.between(5, 7) as u8,
        machine_reorder_by: None,
        first_psn: environment::psns_near_the_wrap(seed),
        retry_count: if may_fail { rng.between(4, 7) as u8 } else { rnic::ReadyToSend::NO_LIMIT },
        forgetful: Probability::percent(50),
        reconnect_after: may_fail.then(|| Nanos::from_micros(rng.between(100, 500))),
        same_keys_after_restart: Rng::stream(seed, 0x6b65_7973).below(2) == 0,
        keeps_memory: Rng::stream(seed, 0x6b65_6570).below(3) == 0,
        forged_rounds: if forgery.below(3) == 0 { forgery.between(10, 100) } else { 0 } as u32,
        forged_words: (*forgery.pick(&[INDEX_VA, NODES_VA]), layout.keys),
    };
    let rack = RackConfig { machine_reorder_by: late(seed, may_fail, rack.ack_timeout), ..rack };
    let work = Work {
        layout,
        options: Options {
            shared_tails: false,
            pipelined: rng.below(3) == 0,
            shortcut_after: [2, 8, u32::MAX][rng.below(3) as usize],
            nodes_at_once: rng.between(1, 8),
        },
        times: if is_large { 12 } else { rng.between(10, 40) },
        reads_percent: [0, 30, 50, 90][rng.below(4) as usize],
        seed,
    };
    let layers = match rng.below(8) {
        0 => Layers { steer_reads: false, ..Layers::STEER },
        1 => Layers { steer_writes: false, ..Layers::STEER },
        _ => Layers::STEER,
    };
    let nodes = NODES_VA..NODES_VA + (node_count(machines * threads, &work) * layout.node_len) as u64;
    let lists = ListsConfig {
        first_nodes: [0, layout.keys][rng.below(2) as usize],
        cached_nodes: [4, layout.keys as usize * 3, 1 << 16][rng.below(3) as usize],
        tracked_keys: rng.between(1, layout.keys) as usize,
        hot: rng.between(1, 3) as u32,
        ..ListsConfig::new(layout.keys, layout.node_len, nodes)
    };
    // Words of the index, and the most contended words, may use shared connections.
    let shared_qps = rng.below(4) == 0;
    let layers = if shared_qps { Layers { remap: true, cas_to_write: true, ..layers } } else { layers };
    let mut plain = config(machines, layers, vec![Structure::Lists(lists)]);
    if shared_qps {
        let range = INDEX_VA..INDEX_VA + 8;
        plain.servers[0].tables = vec![WordTable { rkey: None, range, stride: 8, writable: true }];
        plain.servers[0].detect_after = [0, 2, 8][rng.below(3) as usize];
        plain.settle = Nanos::from_micros(if may_fail { 100 } else { 60 });
    }
    plain.forward = ForwardConfig::bridge(machines as u16 + 2, 2 * machines + 4);
    let swordbox_config = swordbox::Config {
        // In some seeds, the table has no room for all connections. The remaining ones pass through
        // untouched.
        connections: if rng.below(6) == 0 { rng.between(1, 4) as usize } else { 256 },
        appends: [4, 64, 4096][rng.below(3) as usize],
        withheld: [1, 256][rng.below(2) as usize],
        replay_after: Nanos::from_micros(rng.between(20, 100)),
        // A connection that waits for longer than this is ended. Where no connection may fail, the limit is
        // not reached.
        dead_after: Nanos::from_micros(if may_fail { rng.between(300, 8_000) } else { 2_000_000 }),
        ..plain
    };
    (Drawn { rack, work, swordbox_config, workers: Workers::ONE }, rng)
}

fn node_count(threads: usize, work: &Work) -> usize {
    threads * (work.times as usize + 200) + work.layout.keys as usize
}

fn build(drawn: &Drawn) -> Net {
    let observations = Shared::default();
    let (work, shared) = (drawn.work, observations.clone());
    let program = move |machine| -> Threads {
        let observations = shared.clone();
        Box::new(move |start: Start| -> Thread {
            Box::pin(run_thread(start, work, machine, Tails::new(work.layout.keys), observations.clone()))
        })
    };
    let nodes = node_count(drawn.rack.machines * drawn.rack.threads, &work);
    let memory = work.layout.memory(INDEX_VA, NODES_VA, nodes);
    let switch =
        swordbox_on(drawn.workers, drawn.swordbox_config.clone()).with_queues(Queues::drawn(drawn.rack.seed));
    let keeps_memory = drawn.rack.keeps_memory;
    let mut rack = Rack::new(drawn.rack.clone(), memory, switch, program);
    let hosts = [&rack.machines[..], &[rack.server]].concat();
    environment::rehash(&mut rack.world, &hosts, drawn.rack.seed, FAULTS_END);
    // Machines' clocks do not drift, because they timestamp the history.
    environment::drift(&mut rack.world, &[rack.switch, rack.server], drawn.rack.seed, FAULTS_END);
    let (layout, never_restarted, restarts, lists_at_crash) =
        (work.layout, BTreeSet::new(), Vec::new(), Vec::new());
    Net { rack, observations, layout, never_restarted, restarts, lists_at_crash, keeps_memory }
}

impl Net {
    fn switch(&self) -> &Controlled<Control> {
        self.rack.world.node(self.rack.switch)
    }

    /// Runs until all threads are done except those on machines that stay down, applies the changes of layers
    /// at their times, and checks the result.
    fn run(&mut self, mut changes: Vec<(Nanos, Layers)>) -> Result<(), String> {
        let live_machines: Vec<_> =
            (0..self.rack.machines.len()).filter(|n| !self.never_restarted.contains(n)).collect();
        let threads = |net: &Self, n: usize| net.rack.threads(n).done();
        let all: usize = live_machines.len() * self.rack_threads();
        changes.sort_by_key(|(at, _)| *at);
        let mut changes = changes.into_iter().peekable();
        while live_machines.iter().map(|n| threads(self, *n)).sum::<usize>() < all {
            for machine in &live_machines {
                if let Some((thread, why)) = self.rack.threads(*machine).stopped().next() {
                    return Err(format!("thread {thread} of machine {machine}: {why}"));
                }
            }
            let next = self.rack.world.now() + Nanos::from_micros(50);
            while let Some((_, layers)) = changes.next_if(|(at, _)| *at <= next) {
                self.rack.world.with::<Controlled<Control>, _>(self.rack.switch, |switch, _| {
                    switch.control.set_layers(layers);
                });
            }
            self.run_until(next)?;
            if next > LIMIT {
                return Err(format!("not done: {:?}", self.observations.lock().unwrap().done));
            }
        }
        // Frames that are still in flight arrive.
        self.run_until(self.rack.world.now() + Nanos::from_millis(1))?;
        self.check()
    }

    /// Runs until `until`. Records the contents of the lists just before each crash of the server.
    fn run_until(&mut self, until: Nanos) -> Result<(), String> {
        while let Some((crash, _)) = self.restarts.get(self.lists_at_crash.len()).copied()
            && crash <= until
        {
            self.rack.world.run_until(Nanos(crash.0 - 1));
            self.lists_at_crash.push(self.lists()?);
        }
        self.rack.world.run_until(until);
        Ok(())
    }

    /// Returns the values in each list.
    fn lists(&self) -> Result<Lists, String> {
        let list = |key| {
            let list = self.layout.list(self.rack.memory(0), self.rack.memory(1), NODES_VA, key)?;
            Ok(list[1..].iter().map(|value| u64::from_le_bytes(*value.first_chunk().unwrap())).collect())
        };
        (0..self.layout.keys).map(list).collect()
    }

    /// Returns a violation together with the seed's draws, and the counters and the state of the Swordbox.
    fn describe(&self, wrong: &str, drawn: &Drawn) -> String {
        let functions = &self.switch().switch.functions;
        let counted = |function: &Swordbox| {
            function.counters().reported().filter(|(_, count)| *count > 0).collect::<Vec<_>>()
        };
        let counters: Vec<_> = functions.iter().map(counted).collect();
        format!("{wrong}\n{drawn:?}\n{counters:?}\n{functions:?}")
    }

    fn rack_threads(&self) -> usize {
        let threads = self.rack.threads(0);
        threads.threads()
    }

    /// Checks each incarnation of the memory: every list is well-formed and has each acknowledged update
    /// once, and one order explains the history.
    fn check(&self) -> Result<(), String> {
        let observations = self.observations.lock().unwrap();
        let now = EPOCH + self.rack.world.now();
        // Neither a connection nor an operation on it survives a restart of the server.
        let incarnation_of =
            |at: Nanos| self.restarts.iter().filter(|(_, restart)| EPOCH + *restart <= at.min(now)).count();
        let present = self.lists()?;
        for (incarnation, lists) in
            (0..=incarnation_of(now)).zip(self.lists_at_crash.iter().chain([&present]))
        {
            let is_of_incarnation =
                |(_, observed): &&(u64, Observed)| incarnation_of(observed.began) == incarnation;
            let mut history = History::default();
            for (key, update) in observations.updates.iter().filter(is_of_incarnation) {
                history.add_write(*key, *update);
            }
            for (key, read) in observations.reads.iter().filter(is_of_incarnation) {
                history.add_read(*key, *read);
            }
            // An update in a list took effect, whether or not its client has seen the completion.
            for (&value, &(key, began)) in &observations.unresolved {
                if lists[key as usize].contains(&value) && incarnation_of(began) == incarnation {
                    history.add_write(key, Observed { value, began, ended: Nanos(u64::MAX) });
                }
            }
            let wrong = |wrong| format!("incarnation {incarnation}: {wrong}");
            for (key, list) in (0..).zip(lists) {
                history.check_order(key, list).map_err(wrong)?;
            }
            history.check().map_err(wrong)?;
        }
        Ok(())
    }
}

/// Returns the seeds of one of two parts of the first [`SEEDS`], or of those that the environment selects.
fn seeds(partition: u64) -> impl Iterator<Item = u64> {
    crate::environment::seeds("steering", SEEDS).filter(move |seed| seed % 2 == partition)
}

fn lossy_links(partition: u64) {
    let mut counter_totals = CounterTotals::default();
    for seed in seeds(partition) {
        let (drawn, _) = drawn(seed, false);
        let mut net = build(&drawn);
        net.run(Vec::new()).unwrap_or_else(|wrong| panic!("seed {seed}: {}", net.describe(&wrong, &drawn)));
        counter_totals.add(&net.switch().switch.functions[0].counters());
        counter_totals.add_forged(net.rack.server().nic.counters());
    }
    counter_totals.check(&MIN_COUNTERS);
}

#[test]
fn lossy_links_leave_lists_correct_in_the_first_half_of_the_seeds() {
    lossy_links(0);
}

#[test]
fn lossy_links_leave_lists_correct_in_the_second_half_of_the_seeds() {
    lossy_links(1);
}

/// The memory server belongs to one worker, which gets its frames from the others. They are late by at most half of the
/// ACK timeout, as those of [`late`].
fn several_workers(drawn: &mut Drawn, seed: u64) {
    let workers = Workers::drawn(seed);
    drawn.workers =
        Workers { pause: workers.pause.min(Nanos((4096 << drawn.rack.ack_timeout) / 2)), ..workers };
}

#[test]
fn several_workers_leave_lists_correct() {
    let mut dispatched = 0;
    for seed in environment::seeds("steering_workers", SEEDS_OF_WORKERS) {
        let (mut drawn, _) = drawn(seed, false);
        several_workers(&mut drawn, seed);
        let mut net = build(&drawn);
        net.run(Vec::new()).unwrap_or_else(|wrong| panic!("seed {seed}: {}", net.describe(&wrong, &drawn)));
        dispatched += net.switch().switch.counters.dispatched;
        let net = with_crashes(seed, |drawn| several_workers(drawn, seed));
        let net = net.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        dispatched += net.switch().switch.counters.dispatched;
    }
    println!("{dispatched} packets dispatched");
    assert!(!environment::selects_default_seeds() || dispatched > 1_000);
}

fn schedule_faults(net: &mut Net, rng: &mut Rng, seed: u64) -> Vec<(Nanos, Layers)> {
    let mut changes = Vec::new();
    for _ in 0..rng.between(1, 5) {
        let at = Nanos::from_micros(rng.between(20, 600));
        let until = at + Nanos::from_micros(rng.between(1, 2000));
        let machine = rng.below(net.rack.machines.len() as u64) as usize;
        let client = net.rack.machines[machine];
        let mut links = net.rack.links.0.clone();
        links.push(net.rack.links.1);
        let link = links[rng.below(links.len() as u64) as usize];
        let layers = [Layers::PASS, Layers::STEER, Layers { steer_reads: false, ..Layers::STEER }]
            [rng.below(3) as usize];
        let (first, then) = match rng.below(14) {
            0 if net.never_restarted.len() + 1 < net.rack.machines.len() => {
                net.never_restarted.insert(machine);
                (Fault::Crash(client), None)
            }
            0..4 => (Fault::Crash(client), Some(Fault::Restart(client))),
            4..7 => (Fault::Crash(net.rack.switch), Some(Fault::Restart(net.rack.switch))),
            7..9 => (Fault::Pause(client), Some(Fault::Resume(client))),
            9..11 => {
                changes.extend([(at, layers), (until, Layers::STEER)]);
                continue;
            }
            _ => {
                let (cut, heal) = environment::cut(&net.rack.world, link, at);
                (cut, Some(heal))
            }
        };
        net.rack.world.schedule(at, first);
        if let Some(then) = then {
            net.rack.world.schedule(until, then);
        }
    }
    partition(net, seed);
    restart_server(net, seed);
    changes
}

/// In a third of the seeds, restarts the memory server once or several times.
fn restart_server(net: &mut Net, seed: u64) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7265_7374);
    if rng.below(3) != 0 {
        return;
    }
    let mut at = Nanos::from_micros(rng.between(20, 600));
    for _ in 0..rng.between(1, 3) {
        let crash = at;
        net.rack.world.schedule(crash, Fault::Crash(net.rack.server));
        at = at + Nanos::from_micros(1 << rng.between(0, 8));
        net.rack.world.schedule(at, Fault::Restart(net.rack.server));
        if !net.keeps_memory {
            net.restarts.push((crash, at));
        }
        at = at + Nanos::from_micros(rng.between(300, 3000));
    }
}

/// In a quarter of the seeds, a machine and the memory server cannot reach each other for a while, whereas
/// all other paths work.
fn partition(net: &mut Net, seed: u64) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7061_7274);
    if rng.below(4) == 0 {
        let at = Nanos::from_micros(rng.between(20, 600));
        let until = at + Nanos::from_micros(rng.between(1, 2000));
        let machine = rng.below(net.rack.machines.len() as u64) as usize;
        let [machine, memory] = [Some(machine), None].map(workloads::rack::mac);
        net.rack.world.schedule(at, Fault::PartitionPair(machine, memory));
        net.rack.world.schedule(until, Fault::HealPair(machine, memory));
    }
}

/// Runs a seed in which machines, the switch and the memory server fail.
fn with_crashes(seed: u64, plant: impl FnOnce(&mut Drawn)) -> Result<Net, String> {
    let (mut drawn, mut rng) = drawn(seed, true);
    plant(&mut drawn);
    let mut net = build(&drawn);
    let changes = schedule_faults(&mut net, &mut rng, seed);
    net.run(changes).map_err(|wrong| net.describe(&wrong, &drawn))?;
    Ok(net)
}

fn crashes(partition: u64) {
    let mut counter_totals = CounterTotals::default();
    for seed in seeds(partition) {
        let net = with_crashes(seed, |_| {}).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        counter_totals.add(&net.switch().switch.functions[0].counters());
        counter_totals.add_forged(net.rack.server().nic.counters());
    }
    counter_totals.check(&[&MIN_COUNTERS[..], &[("structures_forgotten", 10)]].concat());
}

#[test]
fn crashes_leave_lists_correct_in_the_first_half_of_the_seeds() {
    crashes(0);
}

#[test]
fn crashes_leave_lists_correct_in_the_second_half_of_the_seeds() {
    crashes(1);
}

#[cfg(debug_assertions)]
#[test]
fn planted_structures_kept_after_a_restart_are_found() {
    let wrong = |seed, bug| with_crashes(seed, |drawn| drawn.swordbox_config.bug = bug).err();
    let bug = swordbox::Bug::KeptStructure;
    let found = environment::find_bug("steering", &bug, 1..201, |seed| wrong(seed, Some(bug)));
    let (seed, what) = found.expect("the bug is found within 200 seeds");
    assert_eq!(wrong(seed, None), None);
    println!("KeptStructure: seed {seed}: {}", what.lines().next().unwrap_or_default());
}

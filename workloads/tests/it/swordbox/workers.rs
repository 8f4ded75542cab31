//! Swordbox on several workers, each of which has some of the memory servers.

use super::{FORGETFUL, MIN_COUNTERS, capture, operate, run, words_on};
use crate::counter_totals::CounterTotals;
use crate::drawn::{drawn, drift, may_fail, schedule_faults};
use crate::environment;
use crate::swordbox::shared_qps::draw_shared_qps;
use sim::{Controlled, Workers};
use std::collections::BTreeMap;
use switch::{DropReason, Nanos, Rng};
use swordbox::{Control, Layers};
use workloads::words;

/// Seeds of each test in `make test`; `make soak` runs others.
const SEEDS: u64 = 40;
/// Packets dispatched, and dropped by full rings, in the seeds of a test; at most half of the observed values
const MIN_DISPATCHED: u64 = 5_000;

/// Draws the configuration of a seed with one to four servers.
fn draw_servers(config: &words::Config) -> words::Config {
    let mut rng = Rng::stream(config.seed, 0x6f77_6e65_7273);
    words::Config { servers: rng.between(1, 4) as u16, clients: config.clients.min(32), ..config.clone() }
}

/// Runs a seed with several workers. Returns the violation found, if any.
fn violation(net: &mut words::Cluster) -> Result<(), String> {
    drift(net);
    capture(&mut net.world);
    operate(net);
    net.run(Nanos::from_secs(100))
}

/// Sums of what happened in several seeds.
#[derive(Default)]
struct Sums {
    counters: CounterTotals,
    dispatched: u64,
    dropped: u64,
}

impl Sums {
    fn add(&mut self, net: &words::Cluster) {
        let switch = &net.world.node::<Controlled<Control>>(net.sides.servers).switch;
        switch.functions.iter().for_each(|function| self.counters.add(&function.counters()));
        self.dispatched += switch.counters.dispatched;
        self.dropped += switch.counters.dropped[DropReason::InputFull.index()];
    }

    fn check(&self) {
        println!("{} packets dispatched, {} dropped by full rings", self.dispatched, self.dropped);
        // A run has two to four workers, one of which may have no server.
        self.counters.check(&MIN_COUNTERS.map(|(name, count)| (name, count / 8)));
        assert!(
            !environment::selects_default_seeds() || self.dispatched > MIN_DISPATCHED && self.dropped > 0
        );
    }
}

#[test]
fn several_workers_leave_words_correct_on_lossy_links() {
    let mut sums = Sums::default();
    for seed in environment::seeds("swordbox_workers", SEEDS) {
        let (config, shared_qp) = draw_shared_qps(&draw_servers(&drawn(seed, FORGETFUL).0));
        let mut net = words_on(&config, shared_qp, Workers::drawn(seed));
        violation(&mut net).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}\n{config:?}"));
        let totals = net.totals();
        assert_eq!((totals.broken, totals.unknown), (0, 0), "seed {seed}");
        sums.add(&net);
    }
    sums.check();
}

#[test]
fn several_workers_leave_words_correct_amid_crashes() {
    let mut sums = Sums::default();
    for seed in environment::seeds("swordbox_workers", SEEDS) {
        let (config, mut rng) = drawn(seed, FORGETFUL);
        let (config, shared_qp) = draw_shared_qps(&may_fail(&draw_servers(&config), &mut rng));
        let mut workers = Workers::drawn(seed);
        // A pause breaks no connection by itself, as its clients are still retransmitting when it ends.
        workers.pause.0 = workers.pause.0.min((4096 << config.timeout) * u64::from(config.retry_count) / 4);
        let mut net = words_on(&config, shared_qp, workers);
        schedule_faults(&mut net, &mut rng);
        violation(&mut net).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}\n{config:?}"));
        sums.add(&net);
    }
    sums.check();
}

/// Every host is a server, so workers share connections between their servers.
#[test]
fn several_workers_complete_every_verb_between_servers() {
    let mut sums = BTreeMap::<&str, u64>::new();
    for seed in environment::seeds("swordbox_workers", SEEDS) {
        for (name, value) in run(seed, Layers::CAS_TO_WRITE, Workers::drawn(seed)) {
            *sums.entry(name).or_default() += value;
        }
    }
    println!("{sums:?}");
    assert!(!environment::selects_default_seeds() || sums["decided"] > 0 && sums["coalesced"] > 0);
}

#[cfg(debug_assertions)]
#[test]
fn planted_hashed_owners_are_found() {
    use super::{configure_own_shared_qps, words_with};

    let found = environment::find_bug("swordbox_workers", &swordbox::Bug::WrongOwner, 1..151, |seed| {
        let (config, shared_qp) = draw_shared_qps(&draw_servers(&drawn(seed, FORGETFUL).0));
        let run = |bug| {
            let mut net = words_with(&config, Workers::drawn(seed), |swordbox| swordbox::Config {
                bug,
                ..configure_own_shared_qps(swordbox, shared_qp, config.v6, config.seed)
            });
            violation(&mut net).err()
        };
        let wrong = run(Some(swordbox::Bug::WrongOwner))?;
        run(None).is_none().then_some(wrong)
    });
    let (seed, wrong) = found.expect("hashed owners were not found");
    println!("seed {seed}: {wrong}");
}

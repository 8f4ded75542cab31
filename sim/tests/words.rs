//! Clients that contend for words of remote memory, through a plain bridge.

use sim::words::{Cluster, Config, Totals, Verb};
use sim::{Clock, Switch};
use switch::Nanos;
use switch::forward::{Config as ForwardConfig, Forward};

mod drawn;
use drawn::{disturb, drawn, may_fail, seeds};

const LIMIT: Nanos = Nanos::from_secs(100);

fn bridge(config: &Config) -> Cluster {
    Cluster::new(config, |world, wiring| {
        let forward = ForwardConfig::bridge(wiring.ports, 1024);
        world.add("switch", Switch::new(move || Forward::new(&forward)), Clock::default())
    })
}

fn run(config: &Config, prepare: impl FnOnce(&mut Cluster)) -> Totals {
    let mut net = bridge(config);
    prepare(&mut net);
    net.run(LIMIT).unwrap_or_else(|wrong| panic!("seed {}: {wrong}\n{config:?}", config.seed));
    net.totals()
}

#[test]
fn contended_words_and_locks() {
    let totals = run(&Config { operations: 200, sections: 20, ..Config::default() }, |_| {});
    assert_eq!((totals.broken, totals.unknown), (0, 0));
    for (verb, count) in Verb::ALL.into_iter().zip(totals.operations) {
        assert!(count > 10, "{verb:?}: {count}");
    }
    assert!(totals.swapped > 10 && totals.sections > 40, "{totals:?}");
}

fn bad_wires(part: u64) {
    let mut all = Totals::default();
    for seed in seeds(part, 3, 600) {
        let (config, _) = drawn(seed);
        let totals = run(&config, |_| {});
        assert_eq!((totals.broken, totals.unknown), (0, 0), "seed {seed}");
        all.add(&totals);
    }
    println!("{all:?}");
}

#[test]
fn bad_wires_in_the_first_third_of_the_seeds() {
    bad_wires(0);
}

#[test]
fn bad_wires_in_the_second_third_of_the_seeds() {
    bad_wires(1);
}

#[test]
fn bad_wires_in_the_last_third_of_the_seeds() {
    bad_wires(2);
}

fn crashes(part: u64) {
    let mut all = Totals::default();
    for seed in seeds(part, 2, 400) {
        let (config, mut chance) = drawn(seed);
        let config = may_fail(config, &mut chance);
        all.add(&run(&config, |net| disturb(net, &mut chance)));
    }
    println!("{all:?}");
}

#[test]
fn crashes_in_the_first_half_of_the_seeds() {
    crashes(0);
}

#[test]
fn crashes_in_the_second_half_of_the_seeds() {
    crashes(1);
}

//! Every verb of every two hosts, through a Swordbox that takes each host for a memory server.

use rnic::{Interface, Rnic};
use rocev2::ethernet::MacAddr;
use sim::verbs::{self, Verbs};
use sim::words;
use sim::{Clock, Controlled, Host, Link, NodeId, World};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use switch::forward::Config as ForwardConfig;
use switch::{Chance, Nanos, Share};
use swordbox::{Config, Connection, Control, Journal, Layers, Server, Swordbox, Table};

/// What a Swordbox has written down, which outlives it
#[derive(Clone, Debug, Default)]
struct Written(Arc<Mutex<BTreeSet<Connection>>>);

impl Journal for Written {
    fn add(&mut self, connection: Connection) -> io::Result<()> {
        self.0.lock().unwrap().insert(connection);
        Ok(())
    }

    fn remove(&mut self, connection: Connection) {
        self.0.lock().unwrap().remove(&connection);
    }
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n + 1].into()
}

/// Where the workload has its words
const WORDS: u64 = 0x3_0000_0000;

fn switch(hosts: u8, layers: Layers) -> Controlled<Control> {
    let server = |n| Server {
        tables: vec![Table { rkey: None, range: WORDS..WORDS + 4096, stride: 8, writable: true }],
        rd_atomic: 4,
        ..Server::new(ip(n))
    };
    swordbox(hosts.into(), (0..hosts).map(server).collect(), layers)
}

fn swordbox(ports: u16, servers: Vec<Server>, layers: Layers) -> Controlled<Control> {
    controlled(Config { servers, layers, ..Config::new(ForwardConfig::bridge(ports, 1024)) })
}

/// With a journal that outlives it.
fn controlled(config: Config) -> Controlled<Control> {
    let written = Written::default();
    let journal = written.clone();
    let config = Config { connections: 2048, settle: Nanos::from_micros(500), ..config };
    Controlled::new(
        move || {
            let ended = written.0.lock().unwrap().iter().copied().collect();
            Swordbox::new(Config { ended, ..config.clone() })
        },
        move |_| Control::new(Box::new(journal.clone())),
    )
}

mod drawn;
mod environment;
use drawn::{disturb, drawn, may_fail, seeds};

/// The share of NICs that forget old READs and atomics, as soft-RoCE does
const FORGETFUL: Share = Share::percent(50);

struct Rack {
    world: World,
    hosts: Vec<(NodeId, IpAddr)>,
    switch: NodeId,
    shared: Arc<verbs::Shared>,
}

fn rack(seed: u64, chance: &mut Chance, layers: Layers) -> Rack {
    let count = chance.between(2, 4) as u8;
    let percent = |chance: &mut Chance| match chance.below(2) {
        0 => Share::NEVER,
        _ => Share::new(chance.below(50) as f64 / 1000.0).unwrap(),
    };
    let work = Verbs {
        connections: chance.between(1, 3) as u32,
        operations: chance.between(10, 60) as u32,
        depth: chance.between(1, 16) as u32,
        max_size: 1 << chance.between(3, 13),
        timeout: chance.between(6, 9) as u8,
        words: chance.between(1, 4) as u32,
        mix: [1, 1, 1, 1, 1, 4, 4],
        ..Verbs::default()
    };
    let mut world = World::new(seed);
    let switch = world.add("swordbox", switch(count, layers), Clock::default());
    let (apps, shared) = verbs::apps(&work, seed, count.into(), false);
    let mut hosts = Vec::new();
    for (n, app) in (0..count).zip(apps) {
        let nic = move || {
            let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24);
            Rnic::new(rnic::Config { seed: seed ^ u64::from(n), ..rnic::Config::new(interface) })
        };
        let node = world.add(&format!("host {n}"), Host::new(nic, app), Clock::default());
        let link = Link {
            jitter: Nanos(chance.below(1000)),
            loss: percent(chance),
            duplicate: percent(chance),
            reorder: percent(chance),
            corrupt: percent(chance),
            ..Link::default()
        };
        world.connect(node, switch, link);
        hosts.push((node, ip(n)));
    }
    capture(&mut world);
    verbs::connect(&mut world, &hosts, &work, seed);
    verbs::begin(&mut world, &hosts);
    Rack { world, hosts, switch, shared }
}

fn run(seed: u64, layers: Layers) -> Vec<(&'static str, u64)> {
    let mut chance = Chance::stream(seed, 0x7377_6f72);
    let mut rack = rack(seed, &mut chance, layers);
    let end = Nanos::from_secs(20);
    while !rack.shared.is_done() && !rack.shared.is_wrong() && rack.world.step(end) {}
    let switch = rack.world.node::<Controlled<Control>>(rack.switch);
    let counters = switch.switch.function.counters();
    if !rack.shared.is_done() && !rack.shared.is_wrong() {
        let all: Vec<_> = counters.all().collect();
        let wrong = verbs::check(&rack.world, &rack.hosts);
        panic!("seed {seed}: not done: {wrong:?} {all:?} {:?}", switch.switch.function);
    }
    let wrong = verbs::check(&rack.world, &rack.hosts);
    assert_eq!(wrong, None, "seed {seed}");
    counters.all().collect()
}

/// Writes what is on each link to a file, if the environment names a folder.
fn capture(world: &mut World) {
    let Ok(folder) = std::env::var("PCAP") else { return };
    for (n, link) in world.links().enumerate() {
        world.capture(link, std::fs::File::create(format!("{folder}/{n}.pcap")).unwrap());
    }
}

/// Clients and memory servers around a Swordbox that knows where the words are.
fn words(config: &words::Config) -> words::Cluster {
    words_with(config, |config| config)
}

fn words_with(config: &words::Config, change: impl FnOnce(Config) -> Config) -> words::Cluster {
    words::Cluster::new(config, |world, wiring| {
        let table = words::TABLE_VA..words::TABLE_VA + config.table_size() as u64;
        let server = |host: &IpAddr| Server {
            tables: vec![Table { rkey: None, range: table.clone(), stride: 8, writable: true }],
            rd_atomic: config.max_rd_atomic,
            ..Server::new(*host)
        };
        let servers = wiring.servers.iter().map(server).collect();
        let bridge = ForwardConfig::bridge(wiring.ports, 1024);
        let mut swordbox = Config { servers, layers: Layers::CAS_TO_WRITE, ..Config::new(bridge) };
        if config.revocations > 0 {
            swordbox.proof = drawn::PROOF;
        }
        world.add("swordbox", controlled(change(swordbox)), Clock::default())
    })
}

fn decided(net: &words::Cluster) -> u64 {
    let switch = net.world.node::<Controlled<Control>>(net.sides.servers);
    switch.switch.function.counters().decided.get()
}

fn bad_wires(part: u64) {
    let mut all = words::Totals::default();
    let mut decisions = 0;
    for seed in seeds(part, 3, 600) {
        let (config, _) = drawn(seed, FORGETFUL);
        let mut net = words(&config);
        capture(&mut net.world);
        if let Err(wrong) = net.run(Nanos::from_secs(100)) {
            let switch = net.world.node::<Controlled<Control>>(net.sides.servers);
            let function = &switch.switch.function;
            let counters: Vec<_> = function.counters().all().filter(|(_, count)| *count > 0).collect();
            panic!("seed {seed}: {wrong}\n{config:?}\n{counters:?}\n{function:?}");
        }
        decisions += decided(&net);
        let totals = net.totals();
        assert_eq!((totals.broken, totals.unknown), (0, 0), "seed {seed}");
        all.add(&totals);
    }
    println!("{decisions} decided of {all:?}");
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
    let mut all = words::Totals::default();
    for seed in seeds(part, 2, 400) {
        let (config, mut chance) = drawn(seed, FORGETFUL);
        let config = may_fail(&config, &mut chance);
        let mut net = words(&config);
        capture(&mut net.world);
        disturb(&mut net, &mut chance);
        if let Err(wrong) = net.run(Nanos::from_secs(100)) {
            let switch = net.world.node::<Controlled<Control>>(net.sides.servers);
            let function = &switch.switch.function;
            let counters: Vec<_> = function.counters().all().filter(|(_, count)| *count > 0).collect();
            panic!("seed {seed}: {wrong}\n{config:?}\n{counters:?}\n{function:?}");
        }
        all.add(&net.totals());
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

#[test]
fn every_verb_through_a_swordbox() {
    let mut sum = std::collections::BTreeMap::<&str, u64>::new();
    for seed in environment::seeds(100) {
        for (name, value) in run(seed, Layers::CAS_TO_WRITE) {
            *sum.entry(name).or_default() += value;
        }
    }
    assert!(sum["decided"] > 0 && sum["coalesced"] > 0);
}

/// What a seed runs where nothing breaks, and where things do
#[cfg(feature = "canary")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Whole,
    Broken,
}

/// What a run came to: what is wrong, if anything, and requests that clients had to repeat.
#[cfg(feature = "canary")]
fn outcome(seed: u64, runs: Runs, bug: Option<swordbox::Bug>) -> (Option<String>, u64) {
    let (mut config, mut chance) = drawn(seed, FORGETFUL);
    if runs == Runs::Broken {
        config = may_fail(&config, &mut chance);
    }
    let mut net = words_with(&config, |config| Config { bug, ..config });
    if runs == Runs::Broken {
        disturb(&mut net, &mut chance);
    }
    let wrong = net.run(Nanos::from_secs(2)).err();
    let switch = net.world.node::<Controlled<Control>>(net.sides.servers);
    (wrong, switch.switch.function.counters().repeated.get())
}

/// Whether one of so many seeds shows a planted bug, and nothing without it.
#[cfg(feature = "canary")]
fn is_found(bug: swordbox::Bug, runs: Runs, seeds: u64) -> bool {
    (1..=seeds).any(|seed| {
        let (wrong, repeated) = outcome(seed, runs, Some(bug));
        // An answer that is lost is asked for again: that nobody has to on good wires is what is wrong then.
        let shows = match &wrong {
            Some(wrong) => !wrong.contains("not done") && !wrong.contains("again and again"),
            None => bug == swordbox::Bug::LostAck && repeated > 0,
        };
        let (without, repeats) = if shows { outcome(seed, runs, None) } else { (None, 0) };
        let found = shows && without.is_none() && (wrong.is_some() || repeats == 0);
        if found {
            println!("{bug:?}: seed {seed}: {wrong:?}, {repeated} repeated");
        }
        found
    })
}

#[cfg(feature = "canary")]
#[test]
fn planted_stale_words_are_found() {
    assert!(is_found(swordbox::Bug::StaleWord, Runs::Whole, 1000));
}

#[cfg(feature = "canary")]
#[test]
fn planted_losses_of_acknowledgements_are_found() {
    assert!(is_found(swordbox::Bug::LostAck, Runs::Whole, 1000));
}

#[cfg(feature = "canary")]
#[test]
fn planted_second_decisions_are_found() {
    assert!(is_found(swordbox::Bug::DecidedAnew, Runs::Whole, 1000));
}

#[cfg(feature = "canary")]
#[test]
fn planted_words_of_an_earlier_memory_are_found() {
    assert!(is_found(swordbox::Bug::KeptWord, Runs::Broken, 1000));
}

#[cfg(feature = "canary")]
#[test]
fn planted_connections_by_port_are_found() {
    assert!(is_found(swordbox::Bug::NewPort, Runs::Whole, 1000));
}

#[cfg(feature = "canary")]
#[test]
fn planted_rights_that_never_end_are_found() {
    assert!(is_found(swordbox::Bug::KeptRight, Runs::Broken, 1000));
}

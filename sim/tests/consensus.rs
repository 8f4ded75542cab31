//! Consensus in the simulator: servers, a bridge between them, and values that are proposed wherever somebody leads.

use core::net::IpAddr;
use p4ce::consensus::{Config as ServerConfig, Decided, Layout, Server, Standing, Through};
use p4ce::{Control, ControlConfig, P4ce};
use rnic::{Config, Interface, Rnic};
use rocev2::ethernet::MacAddr;
use sim::{App, Clock, Controlled, Fault, Host, Link, NodeId, World};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use switch::forward::Config as ForwardConfig;
use switch::table::mix;
use switch::{Chance, Nanos, Share};

/// What a row of values comes to, one after the other
fn chain(before: u64, value: &[u8]) -> u64 {
    let words = value.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(before ^ value.len() as u64, |sum, word| mix(sum ^ word))
}

/// What was proposed and decided, as far as anybody has said so; it outlives all servers.
#[derive(Default)]
struct Truth {
    proposed: BTreeSet<Vec<u8>>,
    values: Vec<Vec<u8>>,
    /// After each value
    sums: Vec<u64>,
    seen: BTreeSet<Vec<u8>>,
}

impl Truth {
    /// Says whether a value can be what is decided at this place: the same as anybody else has, and nothing that nobody
    /// has proposed, or that is there already.
    fn decide(&mut self, index: u64, value: Vec<u8>) -> Result<(), String> {
        match self.values.get(index as usize) {
            Some(known) if *known == value => Ok(()),
            None if index == self.values.len() as u64 => {
                if !self.proposed.contains(&value) || !self.seen.insert(value.clone()) {
                    return Err(format!("{value:?} was proposed by nobody, or is decided twice"));
                }
                self.sums.push(chain(self.sums.last().copied().unwrap_or(0), &value));
                self.values.push(value);
                Ok(())
            }
            known => Err(format!("{value:?} is decided at {index}, not {known:?}")),
        }
    }

    /// Says whether a snapshot is what the values come to.
    fn install(&self, next: u64, sum: u64) -> Result<(), String> {
        let known = if next == 0 { Some(&0) } else { self.sums.get(next as usize - 1) };
        (known == Some(&sum)).then_some(()).ok_or_else(|| format!("the snapshot of {next} is another"))
    }
}

/// A server that proposes as long as it leads, and forgets all when it restarts.
struct Proposer {
    config: ServerConfig,
    server: Server,
    chance: Chance,
    wanted: u64,
    /// In all its lives
    proposed: u64,
    lives: u64,
    truth: Arc<Mutex<Truth>>,
    installed: u64,
    next: u64,
    sum: u64,
    wrong: Option<String>,
}

impl Proposer {
    fn new(config: ServerConfig, seed: u64, wanted: u64, truth: Arc<Mutex<Truth>>) -> Self {
        Self {
            server: Server::new(config.clone()),
            chance: Chance::stream(seed, config.id.into()),
            config,
            wanted,
            proposed: 0,
            lives: 0,
            truth,
            installed: 0,
            next: 0,
            sum: 0,
            wrong: None,
        }
    }

    fn propose(&mut self, nic: &mut Rnic) {
        while self.server.leads() && self.proposed < self.wanted {
            let len = self.chance.below(40) as usize;
            let mut value = vec![self.config.id];
            value.extend(self.proposed.to_le_bytes());
            value.resize(9 + len, 0x77);
            if self.server.propose(nic, &value).is_err() {
                return;
            }
            self.proposed += 1;
            self.truth.lock().unwrap().proposed.insert(value);
        }
    }
}

impl App for Proposer {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        self.lives += 1;
        self.config.incarnation = mix(u64::from(self.config.id) << 32 | self.lives);
        self.server = Server::new(self.config.clone());
        (self.next, self.sum) = (0, 0);
        if let Err(error) = self.server.start(nic, now) {
            self.wrong = Some(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        self.propose(nic);
        let mut truth = self.truth.lock().unwrap();
        while let Some(decided) = self.server.poll_decided() {
            let result = match decided {
                Decided::Entry { index, .. } if index != self.next => {
                    Err(format!("entry {index} comes after {}", self.next))
                }
                Decided::Entry { index, value } => {
                    self.next = index + 1;
                    self.sum = chain(self.sum, &value);
                    truth.decide(index, value)
                }
                Decided::Snapshot { next, state } => {
                    let later = next > self.next;
                    self.installed += 1;
                    (self.next, self.sum) = (next, u64::from_le_bytes(*state.first_chunk().unwrap()));
                    if later { truth.install(next, self.sum) } else { Err(format!("a snapshot of {next}")) }
                }
            };
            if let Err(wrong) = result {
                self.wrong.get_or_insert(wrong);
            }
        }
        drop(truth);
        if self.server.wants_snapshot() {
            let mut state = self.sum.to_le_bytes().to_vec();
            state.resize(1000, 0x55);
            if let Err(error) = self.server.give_snapshot(nic, &state, now) {
                self.wrong = Some(error.to_string());
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.server.next_timer())
    }
}

struct Net {
    world: World,
    servers: Vec<NodeId>,
    switch: NodeId,
    truth: Arc<Mutex<Truth>>,
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n + 1].into()
}

const PORT: u16 = 18_515;

/// A bridge that replicates for those who ask it to.
fn switch(seed: u64, servers: u8) -> Controlled<Control> {
    let mac = MacAddr([2, 0, 0, 0, 1, 254]);
    let config = p4ce::Config {
        forward: ForwardConfig::bridge(servers.into(), 64),
        mac,
        addresses: vec![ip(253)],
        groups: 16,
        queue_pairs: 64,
        silent_after: Nanos::from_millis(1),
        #[cfg(feature = "canary")]
        bug: None,
    };
    let control = move |life| {
        Control::new(ControlConfig {
            interface: Interface::new(mac, ip(253), 24),
            port: PORT,
            groups: 16,
            queue_pairs: 64,
            max_replicas: 8,
            lists: [].into(),
            setup_timeout: Nanos::from_millis(20),
            seed: seed ^ 0x7377 ^ life << 32,
            first_psn: None,
        })
    };
    Controlled::new(move || P4ce::new(config.clone()), control)
}

impl Net {
    fn new(through: bool, seed: u64, servers: u8, slots: u64, window: u64, wanted: u64, link: Link) -> Self {
        let mut world = World::new(seed);
        let truth = Arc::<Mutex<Truth>>::default();
        let switch = world.add("switch", switch(seed, servers), Clock::default());
        let nodes: Vec<_> = (0..servers)
            .map(|n| {
                let mut config = Config::new(Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24));
                config.seed = seed ^ u64::from(n) << 8;
                let server = ServerConfig {
                    id: n,
                    servers: (0..servers).map(ip).collect(),
                    port: 7000,
                    layout: Layout::new(slots, 64, 1000),
                    heartbeat: Nanos::from_micros(100),
                    window,
                    ack_timeout: 5,
                    retry_count: 6,
                    through: through.then_some(Through { address: ip(253), port: PORT }),
                    incarnation: 0,
                };
                let app = Proposer::new(server, seed, wanted, Arc::clone(&truth));
                world.add(
                    &format!("server {n}"),
                    Host::new(move || Rnic::new(config.clone()), app),
                    Clock::default(),
                )
            })
            .collect();
        for node in &nodes {
            world.connect(*node, switch, link);
        }
        Self { world, servers: nodes, switch, truth }
    }

    fn apps(&self) -> impl Iterator<Item = &Proposer> {
        self.servers.iter().map(|node| &self.world.node::<Host<Proposer>>(*node).app)
    }

    fn check(&self) -> Result<(), String> {
        let wrong = self.apps().enumerate().find_map(|(n, app)| Some((n, app.wrong.as_ref()?)));
        wrong.map_or(Ok(()), |(n, wrong)| Err(format!("server {n}: {wrong}")))
    }

    fn app(&self, server: usize) -> &Proposer {
        &self.world.node::<Host<Proposer>>(self.servers[server]).app
    }

    fn leader(&self) -> Option<usize> {
        self.apps().position(|app| app.server.leads())
    }
}

#[test]
fn values_are_decided_everywhere() {
    let mut net = Net::new(false, 1, 3, 64, 8, 500, Link::default());
    net.world.run_until(Nanos::from_millis(20));
    net.check().unwrap();
    assert_eq!(net.leader(), Some(0), "the lowest number");
    for app in net.apps() {
        assert_eq!(app.next, 500);
    }
}

#[test]
fn a_switch_replicates_and_is_done_without_when_it_fails() {
    let mut net = Net::new(true, 1, 3, 64, 8, 1_000_000, Link::default());
    net.world.run_until(Nanos::from_millis(20));
    assert!(net.apps().next().unwrap().server.replicates_through());
    let copies =
        |net: &Net| net.world.node::<Controlled<Control>>(net.switch).switch.function.counters().copies.get();
    let before = net.apps().next().unwrap().next;
    let at_first = copies(&net);
    net.world.run_until(Nanos::from_millis(30));
    let decided = net.apps().next().unwrap().next - before;
    assert!(decided > 1000, "{decided}");
    assert!(copies(&net) - at_first >= 2 * decided);
    // It comes back and knows nothing.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.switch));
    net.world.schedule(Nanos::from_micros(30_050), Fault::Restart(net.switch));
    net.world.run_until(Nanos::from_millis(40));
    assert!(!net.apps().next().unwrap().server.replicates_through());
    let before = net.apps().next().unwrap().next;
    net.world.run_until(Nanos::from_millis(45));
    assert!(net.apps().next().unwrap().next > before + 500);
    net.world.run_until(Nanos::from_millis(200));
    assert!(net.apps().next().unwrap().server.replicates_through());
    net.check().unwrap();
}

#[test]
fn a_leader_that_crashes_is_followed_by_the_next() {
    let mut net = Net::new(false, 1, 5, 64, 8, 1_000_000, Link::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.world.run_until(Nanos::from_millis(10));
    let before = net.apps().nth(1).unwrap().next;
    assert!(before > 100, "{before}");
    net.world.run_until(Nanos::from_millis(30));
    net.check().unwrap();
    let app = net.apps().nth(1).unwrap();
    assert!(app.server.leads() && app.next > before + 100, "{} after {before}", app.next);
}

#[test]
fn who_forgot_everything_becomes_a_member_again() {
    let mut net = Net::new(false, 1, 3, 64, 8, 1_000_000, Link::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[2]));
    net.world.schedule(Nanos::from_millis(12), Fault::Restart(net.servers[2]));
    net.world.run_until(Nanos::from_millis(11));
    let before = net.app(0).next;
    assert!(before > 1000, "more than the log holds, {before}");
    net.world.run_until(Nanos::from_millis(30));
    assert_eq!((net.app(2).server.standing(), net.app(2).installed), (Standing::Member, 1));
    // It counts: there is no majority without it.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.servers[1]));
    net.world.run_until(Nanos::from_millis(32));
    let before = net.app(2).next;
    net.world.run_until(Nanos::from_millis(40));
    assert!(net.app(2).next > before + 500, "{} after {before}", net.app(2).next);
    net.check().unwrap();
}

#[test]
fn a_leader_that_restarts_leads_again() {
    let mut net = Net::new(false, 1, 3, 64, 8, 1_000_000, Link::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.world.schedule(Nanos::from_millis(15), Fault::Restart(net.servers[0]));
    net.world.run_until(Nanos::from_millis(14));
    assert!(net.app(1).server.leads());
    net.world.run_until(Nanos::from_millis(60));
    assert_eq!((net.leader(), net.app(0).installed), (Some(0), 1));
    assert_eq!(net.app(1).server.leader(), Some(0));
    net.check().unwrap();
}

#[test]
fn who_forgot_everything_does_not_count() {
    let mut net = Net::new(false, 1, 3, 64, 8, 1_000_000, Link::default());
    let alone: Vec<_> = net.world.links().skip(2).take(1).collect();
    net.world.schedule(Nanos::from_millis(10), Fault::Cut(alone.clone()));
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[1]));
    net.world.schedule(Nanos::from_millis(11), Fault::Restart(net.servers[1]));
    net.world.run_until(Nanos::from_millis(20));
    let before = net.app(0).next;
    net.world.run_until(Nanos::from_millis(50));
    assert_eq!(net.app(0).next, before, "one of three, and one that knows nothing");
    assert_eq!(net.app(1).server.standing(), Standing::Blank);
    net.world.schedule(Nanos::from_millis(50), Fault::Heal(alone));
    net.world.run_until(Nanos::from_millis(90));
    assert!(net.app(0).next > before + 1000, "{} after {before}", net.app(0).next);
    assert_eq!(net.app(1).server.standing(), Standing::Member);
    net.check().unwrap();
}

fn seeds(count: u64) -> core::ops::Range<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let from = read("FROM").unwrap_or(1);
    from..from + read("SEEDS").unwrap_or(count)
}

#[test]
fn logs_agree_whatever_happens() {
    let (mut entries, mut installed) = (0, 0);
    for seed in seeds(300) {
        let mut chance = Chance::new(seed);
        let mut share = || Share::new(chance.below(1000) as f64 / 1000.0 * 0.02).unwrap();
        let link =
            Link { loss: share(), duplicate: share(), reorder: share(), corrupt: share(), ..Link::default() };
        let servers = [3, 5][chance.below(2) as usize];
        let window = chance.between(1, 16);
        let wanted = 3000;
        let through = chance.below(2) == 0;
        let mut net =
            Net::new(through, seed, servers, chance.between(window.max(8), 64), window, wanted, link);
        let links: Vec<_> = net.world.links().collect();
        for n in 0..chance.between(1, 5) {
            let at = Nanos::from_micros(chance.between(1000, 15_000));
            let until = at + Nanos::from_micros(chance.between(10, 8000));
            let server = net.servers[chance.below(net.servers.len() as u64) as usize];
            let link = vec![links[chance.below(links.len() as u64) as usize]];
            match chance.below(4) {
                3 => {
                    net.world.schedule(at, Fault::Crash(net.switch));
                    net.world.schedule(until, Fault::Restart(net.switch));
                }
                // The last one never: what all have forgotten is forgotten.
                0 if server != net.servers[usize::from(servers) - 1] => {
                    net.world.schedule(at, Fault::Crash(server));
                    if n >= u64::from(servers / 2) || chance.below(2) == 0 {
                        net.world.schedule(until, Fault::Restart(server));
                    }
                }
                1 => {
                    net.world.schedule(at, Fault::Pause(server));
                    net.world.schedule(until, Fault::Resume(server));
                }
                _ => {
                    net.world.schedule(at, Fault::Cut(link.clone()));
                    net.world.schedule(until, Fault::Heal(link));
                }
            }
        }
        let end = Nanos::from_millis(25);
        let mut steps = 0u64;
        while net.world.step(end) {
            steps += 1;
            if steps.is_multiple_of(4096) {
                net.check().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            }
        }
        net.check().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        installed += net.apps().map(|app| app.installed).sum::<u64>();
        entries += net.truth.lock().unwrap().values.len();
    }
    assert!(entries > 10_000 && installed > 10, "{entries} entries, {installed} snapshots");
}

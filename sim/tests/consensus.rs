//! Consensus in the simulator: servers, a bridge between them, and values that are proposed wherever somebody leads.

use core::net::IpAddr;
use p4ce::consensus::{Config as ServerConfig, Layout, Server, Through};
use p4ce::{Control, ControlConfig, P4ce};
use rnic::{Config, Interface, Rnic};
use rocev2::ethernet::MacAddr;
use sim::{App, Clock, Controlled, Fault, Host, Link, NodeId, World};
use std::collections::BTreeSet;
use switch::forward::Config as ForwardConfig;
use switch::{Chance, Nanos, Share};

/// A server that proposes as long as it leads.
struct Proposer {
    server: Server,
    chance: Chance,
    wanted: u64,
    proposed: BTreeSet<Vec<u8>>,
    /// In order
    decided: Vec<Vec<u8>>,
    wrong: Option<String>,
}

impl Proposer {
    fn propose(&mut self, nic: &mut Rnic) {
        while self.server.leads() && (self.proposed.len() as u64) < self.wanted {
            let number = self.proposed.len() as u64;
            let len = self.chance.below(40) as usize;
            let mut value = vec![self.server.term().server(); 1];
            value.extend(number.to_le_bytes());
            value.resize(9 + len, 0x77);
            if self.server.propose(nic, &value).is_err() {
                return;
            }
            self.proposed.insert(value);
        }
    }
}

impl App for Proposer {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Err(error) = self.server.start(nic, now) {
            self.wrong = Some(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        self.propose(nic);
        while let Some((index, value)) = self.server.poll_decided() {
            if index != self.decided.len() as u64 {
                self.wrong = Some(format!("entry {index} comes after {}", self.decided.len()));
            }
            self.decided.push(value);
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
        let switch = world.add("switch", switch(seed, servers), Clock::default());
        let nodes: Vec<_> = (0..servers)
            .map(|n| {
                let mut config = Config::new(Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24));
                config.seed = seed ^ u64::from(n) << 8;
                let server = Server::new(ServerConfig {
                    id: n,
                    servers: (0..servers).map(ip).collect(),
                    port: 7000,
                    layout: Layout::new(slots, 64),
                    heartbeat: Nanos::from_micros(100),
                    window,
                    ack_timeout: 5,
                    retry_count: 6,
                    through: through.then_some(Through { address: ip(253), port: PORT }),
                });
                let chance = Chance::stream(seed, n.into());
                let app = Proposer {
                    server,
                    chance,
                    wanted,
                    proposed: BTreeSet::new(),
                    decided: Vec::new(),
                    wrong: None,
                };
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
        Self { world, servers: nodes, switch }
    }

    fn apps(&self) -> impl Iterator<Item = &Proposer> {
        self.servers.iter().map(|node| &self.world.node::<Host<Proposer>>(*node).app)
    }

    /// Everybody has decided the same, as far as they are, and nothing that nobody proposed, or twice.
    fn check(&self) -> Result<(), String> {
        let longest = self.apps().max_by_key(|app| app.decided.len()).map_or(&[][..], |app| &app.decided);
        for (n, app) in self.apps().enumerate() {
            if let Some(wrong) = &app.wrong {
                return Err(format!("server {n}: {wrong}"));
            }
            if app.decided != longest[..app.decided.len()] {
                return Err(format!("server {n} has decided something else"));
            }
        }
        let proposed: BTreeSet<&Vec<u8>> = self.apps().flat_map(|app| &app.proposed).collect();
        let mut seen = BTreeSet::new();
        for value in longest {
            if !proposed.contains(value) || !seen.insert(value) {
                return Err(format!("{value:?} was proposed by nobody, or is decided twice"));
            }
        }
        Ok(())
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
        assert_eq!(app.decided.len(), 500);
    }
}

#[test]
fn a_switch_replicates_and_is_done_without_when_it_fails() {
    let mut net = Net::new(true, 1, 3, 64, 8, 1_000_000, Link::default());
    net.world.run_until(Nanos::from_millis(20));
    assert!(net.apps().next().unwrap().server.replicates_through());
    let copies =
        |net: &Net| net.world.node::<Controlled<Control>>(net.switch).switch.function.counters().copies.get();
    let before = net.apps().next().unwrap().decided.len();
    let at_first = copies(&net);
    net.world.run_until(Nanos::from_millis(30));
    let decided = net.apps().next().unwrap().decided.len() - before;
    assert!(decided > 1000, "{decided}");
    assert!(copies(&net) - at_first >= 2 * decided as u64);
    // It comes back and knows nothing.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.switch));
    net.world.schedule(Nanos::from_micros(30_050), Fault::Restart(net.switch));
    net.world.run_until(Nanos::from_millis(40));
    assert!(!net.apps().next().unwrap().server.replicates_through());
    let before = net.apps().next().unwrap().decided.len();
    net.world.run_until(Nanos::from_millis(45));
    assert!(net.apps().next().unwrap().decided.len() > before + 500);
    net.world.run_until(Nanos::from_millis(200));
    assert!(net.apps().next().unwrap().server.replicates_through());
    net.check().unwrap();
}

#[test]
fn a_leader_that_crashes_is_followed_by_the_next() {
    let mut net = Net::new(false, 1, 5, 64, 8, 1_000_000, Link::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.world.run_until(Nanos::from_millis(10));
    let before = net.apps().nth(1).unwrap().decided.len();
    assert!(before > 100, "{before}");
    net.world.run_until(Nanos::from_millis(30));
    net.check().unwrap();
    let app = net.apps().nth(1).unwrap();
    assert!(app.server.leads() && app.decided.len() > before + 100, "{} after {before}", app.decided.len());
}

fn seeds(count: u64) -> core::ops::Range<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let from = read("FROM").unwrap_or(1);
    from..from + read("SEEDS").unwrap_or(count)
}

#[test]
fn logs_agree_whatever_happens() {
    let mut entries = 0;
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
                // As many as may, for good
                0 if n < u64::from(servers / 2) => net.world.schedule(at, Fault::Crash(server)),
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
        entries += net.apps().map(|app| app.decided.len()).max().unwrap_or(0);
    }
    assert!(entries > 10_000, "{entries}");
}

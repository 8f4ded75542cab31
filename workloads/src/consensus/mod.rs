//! A cluster of servers that agree on values ([`consensus`]), directly or through a switch. The checks:
//!
//! * all servers decide the same value at each index, in order;
//! * no decided value is lost or changed, whichever servers restart;
//! * every decided value was proposed, and is decided once;
//! * a snapshot equals the state after all values before it, byte for byte;
//! * a majority holds each decided value, without counting servers that are down or have just lost their
//!   memory;
//! * no server bootstraps a new group without an operator's command;
//! * no host outside of the group gets a connection.

pub mod costs;
mod history;
mod outsider;
mod proposer;

pub use history::Mark;
pub use outsider::Outsider;
pub use proposer::Proposer;

use consensus::{Config, Layout, Membership, SwitchAddress};
use core::net::IpAddr;
use history::History;
use p4ce::{Control, ControlConfig, P4ce, Secret};
use proposer::{Load, SERVERS_PORT, lock};
use rnic::{Interface, Rnic};
use rocev2::Psn;
use rocev2::ethernet::MacAddr;
use sim::{Clock, Controlled, Host, Link, NicCounters, NodeId, Queues, Workers, World, draws_forgetful};
use std::sync::{Arc, Mutex};
use switch::forward::Config as ForwardConfig;
use switch::{Nanos, Probability};

const PORT: u16 = 18_515;
/// Host number of the switch itself
const SWITCH: u8 = 253;
/// Host number of the host outside of the group
const OUTSIDER: u8 = 98;

/// Parameters of a cluster.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// Seed of everything that is drawn
    pub seed: u64,
    /// Number of servers
    pub servers: u8,
    /// Whether leaders replicate through the switch when they can
    pub through_switch: bool,
    /// Entries of a log
    pub slots: u64,
    /// Undecided values that a leader proposes at once
    pub window: u64,
    /// Shortest and longest value (bytes)
    pub sizes: (usize, usize),
    /// Size of a snapshot (bytes)
    pub snapshot: usize,
    /// Whether server 0 gets the command to bootstrap the group, before any restart
    pub bootstraps: bool,
    /// Whether servers and switch share a secret
    pub secret: bool,
    /// Server with a different secret, if any
    pub server_with_other_secret: Option<u8>,
    /// Interval at which a host outside of the group requests connections, if there is one
    pub outsider: Option<Nanos>,
    /// Values that each server proposes at most
    pub max_proposals: u64,
    /// Heartbeat interval
    pub heartbeat: Nanos,
    /// ACK timeout of the NICs: 4.096 us * 2^`ack_timeout`
    pub ack_timeout: u8,
    /// Link of each server to the switch
    pub link: Link,
    /// Queues between the switch's function and its control plane
    pub queues: Queues,
    /// Workers of the switch
    pub workers: Workers,
    /// Share of servers whose NICs keep no results of old READs and atomics, as soft-RoCE does not
    pub forgetful: Probability,
    /// Whether NICs give memory the same keys after a restart
    pub same_keys_after_restart: bool,
    /// Queue pairs that the switch has capacity for
    pub queue_pairs: usize,
    /// First PSN of the switch's connections; random if `None`
    pub first_psn: Option<Psn>,
    /// Bug to plant in every server
    pub bug: Option<consensus::Bug>,
}

impl Default for ClusterConfig {
    /// Three servers with short values, heartbeats of 100 us and fast links.
    fn default() -> Self {
        Self {
            seed: 1,
            servers: 3,
            through_switch: false,
            slots: 64,
            window: 8,
            sizes: (9, 48),
            snapshot: 1000,
            bootstraps: true,
            secret: false,
            server_with_other_secret: None,
            outsider: None,
            max_proposals: u64::MAX,
            heartbeat: Nanos::from_micros(100),
            ack_timeout: 5,
            link: Link::default(),
            queues: Queues::USUAL,
            workers: Workers::ONE,
            forgetful: Probability::percent(50),
            same_keys_after_restart: false,
            queue_pairs: 64,
            first_psn: None,
            bug: None,
        }
    }
}

/// Servers around a switch that forwards as a bridge, and replicates for leaders that request it.
#[derive(Debug)]
pub struct Cluster {
    /// The network
    pub world: World,
    /// Servers, by number
    pub servers: Vec<NodeId>,
    /// The switch
    pub switch: NodeId,
    /// Host outside of the group, if there is one
    pub outsider: Option<NodeId>,
    history: Arc<Mutex<History>>,
    /// Entries below this index were held by a majority when they were decided
    checked_entries: u64,
    bootstrap_count: u64,
    wrong: Option<String>,
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n + 1].into()
}

/// Returns the MAC address of a server.
pub const fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, n])
}

fn switch(config: &ClusterConfig, secret: Option<Secret>) -> Controlled<Control> {
    let ClusterConfig { seed, servers, queues, queue_pairs, workers, first_psn, .. } = *config;
    let mac = MacAddr([2, 0, 0, 0, 1, 254]);
    let config = p4ce::Config {
        forward: ForwardConfig::bridge(u16::from(servers) + 1, 64),
        mac,
        addresses: vec![ip(SWITCH)],
        groups: 16,
        queue_pairs,
        workers: workers.count,
        silent_after: Nanos::from_millis(1),
        bug: None,
    };
    let control = move |incarnation| {
        Control::new(ControlConfig {
            interface: Interface::new(mac, ip(SWITCH), 24),
            port: PORT,
            groups: 16,
            queue_pairs,
            workers: workers.count,
            max_replicas: 16,
            lists: [].into(),
            limits: p4ce::Limits::default(),
            secret: secret.clone(),
            setup_timeout: Nanos::from_millis(20),
            max_lag: p4ce::gather::MAX_LAG,
            seed: seed ^ 0x7377 ^ incarnation << 32,
            first_psn,
        })
    };
    Controlled::with_workers(workers, move |_| P4ce::new(config.clone()), control).with_queues(queues)
}

impl Cluster {
    /// Creates the servers and the switch. Nothing runs yet.
    pub fn new(config: &ClusterConfig) -> Self {
        let mut world = World::new(config.seed);
        let history = Arc::<Mutex<History>>::default();
        let secret = config.secret.then(|| Secret::new("a secret of the simulator's"));
        let switch = switch(config, secret.clone());
        let switch = world.add("switch", switch, Clock::default());
        let mut group = 0;
        let mut server = |n: u8| {
            let seed = config.seed ^ u64::from(n) << 8;
            let mut incarnations = 0;
            let forgetful = draws_forgetful(config.seed, n.into(), config.forgetful);
            let key_seed = config.same_keys_after_restart.then_some(seed);
            let nic = move || {
                incarnations += 1;
                let interface = Interface::new(mac(n), ip(n), 24);
                let seed = seed ^ incarnations << 32;
                Rnic::new(rnic::Config { seed, key_seed, forgetful, ..rnic::Config::new(interface) })
            };
            let server = Config {
                id: n,
                servers: (0..config.servers).map(ip).collect(),
                port: SERVERS_PORT,
                layout: Layout::new(config.slots, config.sizes.1, config.snapshot),
                heartbeat: config.heartbeat,
                window: config.window,
                ack_timeout: config.ack_timeout,
                retry_count: 6,
                switch: config.through_switch.then_some(SwitchAddress { address: ip(SWITCH), port: PORT }),
                incarnation: 0,
                secret: match config.server_with_other_secret {
                    Some(other) if other == n => Some(Secret::new("another one")),
                    _ => secret.clone(),
                },
                bug: config.bug,
            };
            // The group identifier is the same for all servers; this keeps that of the last one.
            group = server.group();
            let load = Load {
                seed: config.seed,
                sizes: config.sizes,
                snapshot: config.snapshot,
                max_proposals: config.max_proposals,
                bootstraps: config.bootstraps && n == 0,
            };
            let app = Proposer::new(server, load, Arc::clone(&history));
            let host = Host::new(nic, app);
            world.add(&format!("server {n}"), host, Clock::default())
        };
        let servers: Vec<_> = (0..config.servers).map(&mut server).collect();
        for node in &servers {
            world.connect(*node, switch, config.link);
        }
        let outsider = config.outsider.map(|every| {
            let seed = config.seed;
            let nic = move || {
                let interface = Interface::new(MacAddr([2, 0, 0, 0, 9, 9]), ip(OUTSIDER), 24);
                Rnic::new(rnic::Config { seed: seed ^ 0x7374, ..rnic::Config::new(interface) })
            };
            let addresses = (0..config.servers).map(ip).collect();
            let app = Outsider::new(seed, addresses, (ip(SWITCH), PORT), group, every);
            world.add("outsider", Host::new(nic, app), Clock::default())
        });
        if let Some(outsider) = outsider {
            world.connect(outsider, switch, Link::default());
        }
        Self {
            world,
            servers,
            switch,
            outsider,
            history,
            checked_entries: 0,
            bootstrap_count: 0,
            wrong: None,
        }
    }

    /// Runs until a time of the world, and checks all servers' memory whenever an entry is decided.
    pub fn run_until(&mut self, until: Nanos) {
        while self.step(until) {}
        self.world.run_until(until);
    }

    /// Handles the next event if it is due by `until`, and checks the entries that it decided. Returns
    /// whether there was an event.
    pub fn step(&mut self, until: Nanos) -> bool {
        let happened = self.world.step(until);
        self.check_holders();
        happened
    }

    /// Checks that a majority holds each newly decided entry.
    fn check_holders(&mut self) {
        let history = Arc::clone(&self.history);
        let history = lock(&history);
        if history.bootstrap_count() != self.bootstrap_count {
            (self.bootstrap_count, self.checked_entries) = (history.bootstrap_count(), 0);
        }
        for index in self.checked_entries..history.entries() {
            let value = history.value(index);
            let (mut holders, mut excused) = (0, 0);
            for node in &self.servers {
                let host = self.world.node::<Host<Proposer>>(*node);
                let server = &host.app.server;
                if self.world.is_down(*node) || server.membership() == Membership::Blank {
                    excused += 1;
                } else if host.app.next() > index || server.entry_value(&host.nic, index) == value.as_deref()
                {
                    holders += 1;
                }
            }
            let majority = self.servers.len() / 2 + 1;
            if holders + excused < majority {
                let wrong = format!("entry {index} is decided, but only {holders} servers hold it");
                self.wrong.get_or_insert(wrong);
            }
        }
        self.checked_entries = history.entries();
    }

    /// Gives a server the operator's command to bootstrap the group, which it executes as soon as it sees all
    /// other servers.
    pub fn bootstrap(&mut self, server: usize) {
        self.world.with::<Host<Proposer>, _>(self.servers[server], |host, _| host.app.bootstrap());
    }

    /// Returns how often the group was bootstrapped.
    pub fn bootstrap_count(&self) -> u64 {
        lock(&self.history).bootstrap_count()
    }

    /// Returns the application of a server.
    pub fn app(&self, server: usize) -> &Proposer {
        &self.world.node::<Host<Proposer>>(self.servers[server]).app
    }

    /// Returns the applications of all servers.
    pub fn apps(&self) -> impl Iterator<Item = &Proposer> {
        (0..self.servers.len()).map(|server| self.app(server))
    }

    /// Raises the number of values that each server proposes by `more`.
    pub fn propose_more(&mut self, more: u64) {
        for node in self.servers.clone() {
            self.world.with::<Host<Proposer>, _>(node, |host, _| host.app.propose_more(more));
        }
    }

    /// Returns the counters of a server's NIC since its last start.
    pub fn nic_counters(&self, server: usize) -> &NicCounters {
        self.world.node::<Host<Proposer>>(self.servers[server]).nic.counters()
    }

    /// Returns the number of frames that the switch has sent to replicas.
    pub fn copies(&self) -> u64 {
        let functions = &self.world.node::<Controlled<Control>>(self.switch).switch.functions;
        functions.iter().map(|function| function.counters().copies.get()).sum()
    }

    /// Returns the number of entries that any server has seen decided.
    pub fn entries(&self) -> u64 {
        lock(&self.history).entries()
    }

    /// Returns the decided and proposed values of this moment.
    pub fn mark(&self) -> Mark {
        let (bootstrap_count, entries) = (self.bootstrap_count(), self.entries());
        Mark { bootstrap_count, entries, proposed: self.apps().map(|app| app.proposed).collect() }
    }

    /// Returns the servers that are not down.
    pub fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.servers.len()).filter(|server| !self.world.is_down(self.servers[*server]))
    }

    fn outsider(&self) -> Option<&Outsider> {
        self.outsider.map(|node| &self.world.node::<Host<Outsider>>(node).app)
    }

    /// Returns the number of requests that the host outside of the group has sent.
    pub fn requests_of_outsider(&self) -> u64 {
        self.outsider().map_or(0, |outsider| outsider.requests)
    }

    /// Returns the live servers that have not applied any value that was proposed after `mark`.
    pub fn lagging(&self, mark: &Mark) -> Vec<usize> {
        let first = lock(&self.history).first_since(mark);
        self.live().filter(|server| first.is_none_or(|first| self.app(*server).next() <= first)).collect()
    }

    /// Returns the live servers that count for a majority, or will count as soon as they have read the
    /// bootstrap record that names them.
    pub fn members(&self) -> Vec<usize> {
        let begun: Vec<u64> = self
            .live()
            .flat_map(|server| self.app(server).server.bootstrap_incarnations())
            .copied()
            .collect();
        let counts = |server: &usize| {
            let app = self.app(*server);
            app.server.membership() != Membership::Blank || begun.contains(&app.incarnation())
        };
        self.live().filter(counts).collect()
    }

    /// Checks everything that was observed so far.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), String> {
        let history = lock(&self.history);
        for (n, app) in self.apps().enumerate() {
            if let Some(wrong) = &app.wrong {
                return Err(format!("server {n}: {wrong}"));
            }
            let (next, sum) = (app.next(), app.sum());
            // The state of a server that is down is that of its previous incarnation, perhaps of a previous
            // group.
            if !self.world.is_down(self.servers[n]) && history.sum(next) != Some(sum) {
                return Err(format!(
                    "server {n}: its state after {next} entries differs from the decided entries"
                ));
            }
        }
        if let Some(wrong) = &self.wrong {
            return Err(wrong.clone());
        }
        let granted = self.outsider().map_or(0, |outsider| outsider.granted);
        if granted > 0 {
            return Err(format!("a host outside of the group was granted {granted} connections"));
        }
        Ok(())
    }
}

//! A cluster of servers that agree on values ([`p4ce::consensus`]), directly or through a switch. What it checks:
//!
//! * all servers decide the same at each place, in order;
//! * nothing that was decided is lost or changed, whoever restarts;
//! * what is decided was proposed, and once;
//! * a snapshot is what the values before it come to.

pub mod costs;
mod proposer;
mod truth;

pub use proposer::Proposer;

use crate::host::draws_forgetful;
use crate::{Clock, Controlled, Host, Link, NicCounters, NodeId, World};
use core::net::IpAddr;
use p4ce::consensus::{Config, Layout, Through};
use p4ce::{Control, ControlConfig, P4ce};
use rnic::{Interface, Rnic};
use rocev2::ethernet::MacAddr;
use std::sync::{Arc, Mutex, PoisonError};
use switch::forward::Config as ForwardConfig;
use switch::{Nanos, Share};
use truth::Truth;

const PORT: u16 = 18_515;
/// The switch's own
const SWITCH: u8 = 253;

/// A cluster to be made.
#[derive(Clone, Copy, Debug)]
pub struct ClusterConfig {
    /// For everything that is drawn
    pub seed: u64,
    /// How many servers
    pub servers: u8,
    /// Whether leaders replicate through the switch when they can
    pub through: bool,
    /// Entries that a log holds
    pub slots: u64,
    /// Values that are proposed and not decided at once
    pub window: u64,
    /// Bytes of a value, from and to
    pub sizes: (usize, usize),
    /// Values that each server proposes at most
    pub wanted: u64,
    /// The time between two heartbeats
    pub heartbeat: Nanos,
    /// How long NICs wait for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// Each server's to the switch
    pub link: Link,
}

impl Default for ClusterConfig {
    /// Three servers with short values, heartbeats of 100 us and fast links.
    fn default() -> Self {
        Self {
            seed: 1,
            servers: 3,
            through: false,
            slots: 64,
            window: 8,
            sizes: (9, 48),
            wanted: u64::MAX,
            heartbeat: Nanos::from_micros(100),
            ack_timeout: 5,
            link: Link::default(),
        }
    }
}

/// Servers around a switch that bridges, and replicates for those who ask it to.
#[derive(Debug)]
pub struct Cluster {
    /// The network
    pub world: World,
    /// By their numbers
    pub servers: Vec<NodeId>,
    /// The switch
    pub switch: NodeId,
    truth: Arc<Mutex<Truth>>,
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n + 1].into()
}

fn switch(seed: u64, servers: u8) -> Controlled<Control> {
    let mac = MacAddr([2, 0, 0, 0, 1, 254]);
    let config = p4ce::Config {
        forward: ForwardConfig::bridge(servers.into(), 64),
        mac,
        addresses: vec![ip(SWITCH)],
        groups: 16,
        queue_pairs: 64,
        silent_after: Nanos::from_millis(1),
        #[cfg(feature = "canary")]
        bug: None,
    };
    let control = move |life| {
        Control::new(ControlConfig {
            interface: Interface::new(mac, ip(SWITCH), 24),
            port: PORT,
            groups: 16,
            queue_pairs: 64,
            max_replicas: 16,
            lists: [].into(),
            limits: p4ce::Limits::default(),
            setup_timeout: Nanos::from_millis(20),
            max_lag: p4ce::gather::MAX_LAG,
            seed: seed ^ 0x7377 ^ life << 32,
            first_psn: None,
        })
    };
    Controlled::new(move || P4ce::new(config.clone()), control)
}

impl Cluster {
    /// Servers that have not begun.
    pub fn new(config: &ClusterConfig) -> Self {
        let mut world = World::new(config.seed);
        let truth = Arc::<Mutex<Truth>>::default();
        let switch = world.add("switch", switch(config.seed, config.servers), Clock::default());
        let server = |n: u8| {
            let seed = config.seed ^ u64::from(n) << 8;
            let mut lives = 0;
            let forgetful = draws_forgetful(config.seed, n.into(), Share::percent(50));
            let nic = move || {
                lives += 1;
                let interface = Interface::new(MacAddr([2, 0, 0, 0, 1, n]), ip(n), 24);
                let seed = seed ^ lives << 32;
                Rnic::new(rnic::Config { seed, forgetful, ..rnic::Config::new(interface) })
            };
            let server = Config {
                id: n,
                servers: (0..config.servers).map(ip).collect(),
                port: 7000,
                layout: Layout::new(config.slots, config.sizes.1, proposer::SNAPSHOT),
                heartbeat: config.heartbeat,
                window: config.window,
                ack_timeout: config.ack_timeout,
                retry_count: 6,
                through: config.through.then_some(Through { address: ip(SWITCH), port: PORT }),
                incarnation: 0,
            };
            let app = Proposer::new(server, config.seed, config.sizes, config.wanted, Arc::clone(&truth));
            let host = Host::new(nic, app);
            world.add(&format!("server {n}"), host, Clock::default())
        };
        let servers: Vec<_> = (0..config.servers).map(server).collect();
        for node in &servers {
            world.connect(*node, switch, config.link);
        }
        Self { world, servers, switch, truth }
    }

    /// The application of a server
    pub fn app(&self, server: usize) -> &Proposer {
        &self.world.node::<Host<Proposer>>(self.servers[server]).app
    }

    /// The applications of all
    pub fn apps(&self) -> impl Iterator<Item = &Proposer> {
        (0..self.servers.len()).map(|server| self.app(server))
    }

    /// Has each server propose so many values more.
    pub fn want(&mut self, more: u64) {
        for node in self.servers.clone() {
            self.world.with::<Host<Proposer>, _>(node, |host, _| host.app.want(more));
        }
    }

    /// What a server's NIC has counted in this life
    pub fn nic_counters(&self, server: usize) -> &NicCounters {
        self.world.node::<Host<Proposer>>(self.servers[server]).nic.counters()
    }

    /// Frames that the switch has written to replicas
    pub fn copies(&self) -> u64 {
        self.world.node::<Controlled<Control>>(self.switch).switch.function.counters().copies.get()
    }

    /// Entries that anybody has seen decided
    pub fn entries(&self) -> u64 {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner).entries()
    }

    /// Says what is wrong, if anything ever was.
    ///
    /// # Errors
    /// The first thing that a server saw and that must not be.
    pub fn check(&self) -> Result<(), String> {
        let wrong = self.apps().enumerate().find_map(|(n, app)| Some((n, app.wrong.as_ref()?)));
        wrong.map_or(Ok(()), |(n, wrong)| Err(format!("server {n}: {wrong}")))
    }
}

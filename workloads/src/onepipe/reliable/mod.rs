//! 1Pipe's reliable service as a whole (1Pipe, section 5): processes with their members, representatives with
//! their keepers, controllers with their store and the management network, all of them the real ones, on a
//! [`Tree`] in virtual time.

mod clocks;
mod contact;
mod control;
mod cpu;
mod departure;
mod faults;
mod host;
mod measure;
mod message;
mod oracle;
mod outages;
mod recovery;
mod seats;
mod tap;

pub use clocks::Clocks;
pub use faults::FaultKind;
pub use measure::{Latencies, Load, Testbed, Throughput};
pub use oracle::Totals;
pub use outages::{Interval, Outage};
pub use recovery::{Broken, Recovery, Steps};

use super::{FatTree, Network, Tree};
use control::Controller;
use controller::graph::{Graph, Layout};
use controller::machine::NodeKey;
use controller::record::Image;
use controller::store::MemoryStore;
use host::Host;
use onepipe::ProcessId;
use onepipe::process::member::Refused;
use seats::{SeatId, Site, sites};
use std::collections::{BTreeMap, BTreeSet};
use switch::{Nanos, Rng};

/// Time between two looks at the management network
const STEP: Nanos = Nanos::from_micros(1);
/// Hash of the topology that all nodes have
const TOPOLOGY: u64 = 7;

/// Bugs to plant, to test whether the checks find them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bugs {
    /// Into processes and members
    pub process: Option<onepipe::process::Bug>,
    /// Into representatives and keepers
    pub representative: Option<representative::Bug>,
    /// Into controllers
    pub controller: Option<controller::machine::Bug>,
}

/// Parameters of a system.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Network; its hosts' behaviour is not used
    pub tree: Tree,
    /// Longest delay of a message between a node and a controller, in nanoseconds
    pub management_delay: u64,
    /// Longest time of a write, in nanoseconds
    pub store_latency: u64,
    /// Process that has no controller, and the best-effort service alone
    pub unmanaged: Option<usize>,
    /// Process whose clock is off, by this number of nanoseconds; all processes know by how much clocks may be off
    pub clock_off: Option<(usize, i64)>,
    /// Clocks of all machines, if processes follow clock beacons
    pub clocks: Option<Clocks>,
    /// Bugs to plant
    pub bugs: Bugs,
    /// Fat tree, in place of `tree`. Its faults are not drawn
    fat_tree: Option<FatTree>,
    /// What hosts do in a measurement
    load: Option<Load>,
}

impl Plan {
    /// Returns a system on perfect links, with a controller that is 10 us away and writes within 20 us.
    pub fn new(mut tree: Tree) -> Self {
        tree.controlled = true;
        Self {
            tree,
            management_delay: 10_000,
            store_latency: 20_000,
            unmanaged: None,
            clock_off: None,
            clocks: None,
            bugs: Bugs::default(),
            fat_tree: None,
            load: None,
        }
    }

    /// Returns by how much clocks are off at most, in addition to their usual error, in nanoseconds.
    fn clock_off_by(&self) -> u64 {
        self.clock_off.map_or(0, |(_, by)| by.unsigned_abs())
    }
}

/// System that was built.
pub struct System {
    plan: Plan,
    rng: Rng,
    graph: Graph,
    /// The data network
    pub network: Network,
    /// By switch and seat
    sites: BTreeMap<SeatId, Site>,
    down_hosts: BTreeSet<usize>,
    store: MemoryStore,
    controllers: Vec<Controller>,
    /// What controllers that have ended have sent to nodes
    closing: Vec<(NodeKey, control::Queue)>,
    contact: contact::Contact,
    /// Nodes that reach no controller
    cut_off: BTreeSet<NodeKey>,
    /// Everything that was stored, and the number of writes of it
    image: Image,
    applied: usize,
    /// When each case was stored
    decided: BTreeMap<u64, Nanos>,
    /// Number of controllers that have been started
    starts: u64,
    /// Number of terms
    terms: u64,
    /// Processes that could not be stopped in a case
    unfenced: BTreeSet<u32>,
    faults: faults::Faults,
    /// Number of representatives that have left on an operator's request
    drained: u64,
    setter: clocks::Setter,
}

impl Tree {
    /// Returns the routing graph of the tree, as the controller has it.
    pub fn graph(&self) -> Graph {
        let layout = |n: usize| {
            let level = self.level_of(n);
            let first = (n - self.first_of(level)) * self.fanout;
            let below = first..first + self.fanout;
            let above = self.parent(level, n).map(|(parent, _)| parent as u16).into_iter().collect();
            match level.checked_sub(1) {
                None => {
                    let processes = below.map(|host| Some(ProcessId(host as u32))).collect();
                    Layout { processes, above, standby: self.standby, ..Layout::default() }
                }
                Some(level) => {
                    let below = below.map(|child| (self.first_of(level) + child) as u16).collect();
                    Layout { below, above, standby: self.standby, ..Layout::default() }
                }
            }
        };
        Graph::new(&(0..self.switches()).map(layout).collect::<Vec<_>>())
    }
}

impl System {
    /// Builds a system with one controller.
    pub fn new(plan: &Plan, seed: u64) -> Self {
        let mut plan = *plan;
        plan.tree.bug = plan.bugs.representative;
        plan.tree.wrong_host = plan.clock_off.or(plan.tree.wrong_host);
        let unmanaged = plan.unmanaged;
        let clock_error = Nanos(if plan.clocks.is_some() { 0 } else { plan.clock_off_by() });
        let (bug, load) = (plan.bugs.process, plan.load);
        let clocks = plan.clocks.map(|clocks| (clocks, plan.tree.ahead_max()));
        let settings = host::Settings { topology: TOPOLOGY, seed, unmanaged, clock_error, clocks, bug, load };
        let host = |n, position| Host::new(n, position, settings);
        let (network, graph, configs, standbys) = if let Some(tree) = &plan.fat_tree {
            (tree.build_with(seed, host), tree.graph(), tree.configs(seed), tree.standby_configs(seed))
        } else {
            let tree = &plan.tree;
            let configs = (0..tree.switches()).map(|n| tree.config(tree.level_of(n), n)).collect();
            (tree.build_with(seed, host), tree.graph(), configs, tree.standby_configs())
        };
        let mut system = Self {
            plan,
            rng: Rng::stream(seed, 0x0077_686f_6c65),
            graph,
            network,
            sites: BTreeMap::new(),
            down_hosts: BTreeSet::new(),
            store: MemoryStore::default(),
            controllers: Vec::new(),
            closing: Vec::new(),
            contact: contact::Contact::default(),
            cut_off: BTreeSet::new(),
            image: Image::default(),
            applied: 0,
            decided: BTreeMap::new(),
            starts: 0,
            terms: 0,
            unfenced: BTreeSet::new(),
            faults: faults::Faults::default(),
            drained: 0,
            setter: clocks::Setter::new(seed),
        };
        system.sites = sites(&system.network, configs, standbys);
        system.start_controller();
        system
    }

    /// Returns the time of the world.
    pub fn now(&self) -> Nanos {
        self.network.world.now()
    }

    /// Returns the time until which processes send.
    pub const fn lasts(&self) -> Nanos {
        self.plan.tree.lasts
    }

    /// Runs until a time of the world.
    ///
    /// # Errors
    /// A violation that a step shows.
    pub fn run_until(&mut self, until: Nanos) -> Result<(), String> {
        while self.now() < until {
            self.step().map_err(|error| format!("at {} us: {error}", self.now().0 / 1000))?;
        }
        Ok(())
    }

    /// Runs until everything is settled: all processes are members, no case is open, and all scatterings have a
    /// result. Returns the time.
    ///
    /// # Errors
    /// A violation that a step shows; or it takes longer than `within`.
    pub fn run_until_settled(&mut self, within: Nanos) -> Result<Nanos, String> {
        let begin = self.now();
        while !self.is_settled() {
            if self.now() > begin + within {
                return Err(format!("not settled at {} us: {}", self.now().0 / 1000, self.describe()));
            }
            self.run_until(self.now() + Nanos::from_micros(10))?;
        }
        Ok(self.now())
    }

    fn step(&mut self) -> Result<(), String> {
        let now = self.now() + STEP;
        self.network.world.run_until(now);
        self.see_hosts()?;
        self.see_representatives()?;
        self.run_controllers();
        self.see_contact();
        self.see_writes()
    }

    /// Returns the time that a controller takes for a message, in a measurement.
    fn message_time(&self) -> Option<Nanos> {
        self.plan.load.map(|load| load.message_time)
    }

    fn host(&self, n: usize) -> &Host {
        self.network.world.node(self.network.hosts[n])
    }

    /// Returns the longest times in which the best-effort barrier and the commit barrier of a host did not rise, since
    /// the last [`Self::forget_stalls`].
    pub fn stalls(&self) -> [Nanos; 2] {
        [0, 1].map(|service| {
            let stalls = self.hosts().map(|host| host.meter.barriers[service].stall);
            stalls.max().unwrap_or_default()
        })
    }

    /// Forgets for how long barriers have stood still.
    pub fn forget_stalls(&mut self) {
        for n in 0..self.network.hosts.len() {
            let host: &mut Host = self.network.world.node_mut(self.network.hosts[n]);
            host.meter.barriers.iter_mut().for_each(|rises| rises.stall = Nanos::ZERO);
        }
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        (0..self.network.hosts.len()).map(|n| self.host(n))
    }

    /// Returns the incarnation with which a process is a member.
    pub fn admitted(&self, process: usize) -> Option<u32> {
        self.host(process).admitted
    }

    /// Returns the callbacks of a process since its start: the failed process, and its T_P.
    pub fn callbacks(&self, process: usize) -> Vec<(u32, u64)> {
        let life = self.host(process).lives.last();
        life.iter().flat_map(|life| &life.called).map(|(&(_, of), call)| (of, call.time)).collect()
    }

    /// Returns whether a process has been called back in a case.
    fn was_called(&self, process: usize, case: u64) -> bool {
        let life = self.host(process).lives.last();
        life.is_some_and(|life| life.called.keys().any(|&(of, _)| of == case))
    }

    /// Has a process send a reliable scattering. Returns its number.
    ///
    /// # Errors
    /// The process refuses it.
    pub fn send(&mut self, process: usize, to: &[u32]) -> Result<u64, onepipe::process::reliable::Error> {
        let node = self.network.hosts[process];
        self.network.world.with(node, |host: &mut Host, now| host.send(to, now))
    }

    /// Returns whether a scattering was committed, or recalled; `None` if that is not known yet.
    pub fn is_committed(&self, process: usize, scattering: u64) -> Option<bool> {
        let life = self.host(process).lives.last()?;
        match life.sent.get(&scattering)?.fate {
            host::Fate::Committed => Some(true),
            host::Fate::Recalled => Some(false),
            host::Fate::Unknown => None,
        }
    }

    /// Returns how many messages of an earlier term the processes and representatives of this moment have refused.
    pub fn refused_terms(&self) -> u64 {
        let of_hosts = self.hosts().map(|host| host.member.counters().refused(Refused::OldTerm));
        of_hosts.chain(self.sites.values().map(|site| site.keeper.refused().old_term)).sum()
    }

    /// Returns how many messages of either service a process has received since its start.
    pub fn received(&self, process: usize) -> usize {
        self.host(process).lives.last().map_or(0, |life| life.delivered.len())
    }

    /// Passes on what hosts send to controllers, and breaks the connections of those that have crashed.
    fn see_hosts(&mut self) -> Result<(), String> {
        let last = |host: &Host| Some((host.id, host.last_incarnation()?));
        let known: BTreeMap<u32, u32> = self.hosts().filter_map(last).collect();
        for n in 0..self.network.hosts.len() {
            let (id, node) = (self.network.hosts[n], NodeKey::Process(ProcessId(n as u32)));
            let is_down = self.network.world.is_down(id);
            if is_down && self.down_hosts.insert(n) {
                self.disconnect(node);
            } else if !is_down {
                self.down_hosts.remove(&n);
            }
            let host: &mut Host = self.network.world.node_mut(id);
            if let Some(wrong) = &host.wrong {
                return Err(format!("process {n}: {wrong}"));
            }
            if host.known != known {
                host.known.clone_from(&known);
            }
            let sent = core::mem::take(&mut host.outbox);
            let has_ended = host.departure == departure::Departure::Ended && !is_down;
            self.send_to_controllers(node, sent);
            if has_ended {
                self.end_host(n);
            }
        }
        Ok(())
    }
}

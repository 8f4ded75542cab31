//! Runs of scenarios: from a scenario to a world and its outcome.

use super::parts::{Planted, add_outsiders, add_switch, link_of, nic_of};
use super::work::{self, Workload};
use super::{Scenario, SwitchKind, faults};
use sim::{Controlled, LinkCounters, LinkId, NodeId, Switch, SwitchCounters, World};
use std::collections::BTreeMap;
use std::io::Write;
use switch::Nanos;
use switch::forward::Forward;

/// Number of events between two checks of whether the run is over
const EVENTS_PER_CHECK: u32 = 256;
/// Time that the run continues after everything is done, for late duplicates and timers
const DRAIN: Nanos = Nanos::from_secs(5);

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Seed of the run
    pub seed: u64,
    /// [`World::digest`]: equal for identical runs
    pub digest: u64,
    /// Time of the world at the end
    pub time: Nanos,
    /// Number of events
    pub events: u64,
    /// Number of frames that arrived at a node
    pub packets: u64,
    /// Number of completed operations, by name
    pub operations: Vec<(&'static str, u64)>,
    /// Number of ends of connections that failed
    pub broken: u64,
    /// Counters of the links
    pub links: Vec<LinkReport>,
    /// Counters of the hosts
    pub hosts: Vec<HostReport>,
    /// Counters of the switches
    pub switches: Vec<SwitchReport>,
    /// First violation, if any
    pub violation: Option<String>,
}

impl Outcome {
    /// Returns the number of completed operations of all kinds.
    pub fn operations_in_all(&self) -> u64 {
        self.operations.iter().map(|(_, count)| count).sum()
    }
}

/// Counters of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// Names of the nodes at its ends; the first direction is from the first to the second
    pub ends: [String; 2],
    /// Counters of both directions
    pub counters: [LinkCounters; 2],
}

/// Counters of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReport {
    /// Its name
    pub name: String,
    /// Counters of its NIC since the last start
    pub counters: rnic::Counters,
}

/// Counters of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchReport {
    /// Its name
    pub name: String,
    /// Its counters
    pub counters: SwitchCounters,
}

/// Destination of the capture of a link, with the link's index.
pub type CaptureTo = (usize, Box<dyn Write + Send>);

/// Runs a scenario with a seed, and writes captures of links.
///
/// # Panics
/// If `captures` names a link that does not exist.
pub fn run(scenario: &Scenario, seed: u64, planted: Planted, captures: Vec<CaptureTo>) -> Outcome {
    let scenario = scenario.drawn(seed);
    let mut run = Run::new(&scenario, seed, planted);
    for (link, to) in captures {
        run.world.capture(run.links[link], to);
    }
    // Started only now, so that the captures have the first frames.
    run.work.begin(&mut run.world);
    let mut violation = run.until_done(Nanos(scenario.limit.value().max(0) as u64));
    if violation.is_none() {
        violation = run.work.check(&run.world, &run.switches);
    }
    if let Err(error) = run.world.finish_captures() {
        violation.get_or_insert(format!("a capture cannot be written: {error}"));
    }
    run.outcome(seed, violation)
}

struct Run {
    world: World,
    work: Box<dyn Workload>,
    hosts: Vec<NodeId>,
    switches: Vec<(NodeId, SwitchKind)>,
    links: Vec<LinkId>,
}

impl Run {
    fn new(scenario: &Scenario, seed: u64, planted: Planted) -> Self {
        let mut world = World::new(seed);
        let mut work = work::of(scenario, seed);
        let mut nodes: BTreeMap<&str, NodeId> = BTreeMap::new();
        let mut hosts = Vec::new();
        for (number, host) in scenario.hosts.iter().enumerate() {
            let rate = scenario.links.iter().find(|link| link.ends.contains(&host.name));
            let nic = nic_of(host, number, seed, rate, planted);
            let node = work.add_host(&mut world, host, nic);
            nodes.insert(&host.name, node);
            hosts.push(node);
        }
        let mut switches = Vec::new();
        for (number, switch) in scenario.switches.iter().enumerate() {
            let node = add_switch(&mut world, scenario, number, switch, seed);
            nodes.insert(&switch.name, node);
            switches.push((node, switch.kind));
        }
        let node = |name: &str| nodes[name];
        let links: Vec<_> = scenario
            .links
            .iter()
            .map(|link| world.connect(node(&link.ends[0]), node(&link.ends[1]), link_of(link)))
            .collect();
        for (number, (spec, (switch, _))) in scenario.switches.iter().zip(&switches).enumerate() {
            add_outsiders(&mut world, scenario, (spec, number, *switch), seed);
        }
        for fault in &scenario.faults {
            let at = Nanos(fault.at.value().max(0) as u64);
            let end = fault.lasts.map(|lasts| at + Nanos(lasts.value().max(0) as u64));
            for (first, last) in faults::of(&fault.kind, scenario, node, &links) {
                world.schedule(at, first);
                if let (Some(end), Some(last)) = (end, last) {
                    world.schedule(end, last);
                }
            }
            for (after, announcement) in faults::announcements(&fault.kind, scenario, node) {
                for at in [Some(at), end].into_iter().flatten() {
                    world.schedule(at + after, announcement.clone());
                }
            }
        }
        Self { world, work, hosts, switches, links }
    }

    /// Runs until the workload is done and the network idle. Returns a violation, if any.
    fn until_done(&mut self, limit: Nanos) -> Option<String> {
        while !self.work.is_done() {
            for _ in 0..EVENTS_PER_CHECK {
                if !self.world.step(limit) {
                    break;
                }
                if self.work.is_wrong(&self.world) {
                    return None;
                }
            }
            self.work.notify_broken(&mut self.world);
            if self.work.is_done() {
                break;
            }
            if self.world.is_over() {
                return Some("no event is left, but the workload is not done".into());
            }
            if self.world.next_at().is_none_or(|at| at > limit) {
                return Some(format!("not done after {} ms", limit.0 / 1_000_000));
            }
        }
        let until = self.world.now() + DRAIN;
        while self.world.step(until) && !self.work.is_wrong(&self.world) {}
        self.check_links()
    }

    /// Checks that every frame that was given to a link is accounted for.
    fn check_links(&mut self) -> Option<String> {
        if !self.world.is_over() {
            return None;
        }
        let left = self
            .links
            .iter()
            .find(|link| self.world.counters(**link).iter().any(|counters| counters.under_way() != 0));
        left.map(|link| {
            let [a, b] = self.world.ends(*link).map(|node| self.world.name(node).to_owned());
            format!("frames between {a} and {b} are unaccounted for")
        })
    }

    fn outcome(self, seed: u64, violation: Option<String>) -> Outcome {
        let world = &self.world;
        let (events, packets) = world.events();
        let named = |node: NodeId| world.name(node).to_owned();
        Outcome {
            seed,
            digest: world.digest(),
            time: world.now(),
            events,
            packets,
            operations: self.work.operations(world),
            broken: self.work.broken(world),
            links: self
                .links
                .iter()
                .map(|link| LinkReport {
                    ends: world.ends(*link).map(named),
                    counters: world.counters(*link),
                })
                .collect(),
            hosts: self
                .hosts
                .iter()
                .enumerate()
                .map(|(number, node)| HostReport {
                    name: named(*node),
                    counters: *self.work.nic(world, number).counters(),
                })
                .collect(),
            switches: self
                .switches
                .iter()
                .map(|(node, kind)| SwitchReport {
                    name: named(*node),
                    counters: match kind {
                        SwitchKind::Bridge => world.node::<Switch<Forward>>(*node).counters.clone(),
                        SwitchKind::P4ce { .. } => {
                            world.node::<Controlled<p4ce::Control>>(*node).switch.counters.clone()
                        }
                    },
                })
                .collect(),
            violation,
        }
    }
}

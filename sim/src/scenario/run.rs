//! A scenario becomes a world, and what came of it.

use super::{AckSpec, FaultKind, HostSpec, LinkSpec, Scenario};
use crate::clock::Clock;
use crate::fault::Fault;
use crate::host::Host;
use crate::link::{Counters, Ecn, Link};
use crate::switch_node::{Counters as SwitchCounters, Switch};
use crate::verbs::{self, Shared, Verb, VerbsApp};
use crate::world::{LinkId, NodeId, World};
use core::net::IpAddr;
use rnic::congestion::Dcqcn;
use rnic::{AckPolicy, Config, Interface, Rnic};
use rocev2::ethernet::MacAddr;
use std::collections::BTreeMap;
use std::io::Write;
use switch::forward::Config as ForwardConfig;
use switch::forward::Forward;
use switch::{Nanos, Share};

/// Things that happen between two looks at whether the run is over
const GLANCE: u32 = 256;
/// What comes after everything is done: late duplicates, last timers
const AFTERWARDS: Nanos = Nanos::from_secs(5);

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What decided it
    pub seed: u64,
    /// Equal for equal runs
    pub digest: u64,
    /// How long it took in the world
    pub time: Nanos,
    /// Things that happened
    pub events: u64,
    /// Frames that arrived somewhere
    pub packets: u64,
    /// Operations that completed, in the order of [`Verb::ALL`]
    pub operations: [u64; Verb::ALL.len()],
    /// Ends of connections that failed
    pub broken: u64,
    /// The links
    pub links: Vec<LinkReport>,
    /// The hosts
    pub hosts: Vec<HostReport>,
    /// The switches
    pub switches: Vec<SwitchReport>,
    /// What is wrong, if anything
    pub violation: Option<String>,
}

/// A link's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// From where to where, in the first direction
    pub ends: [String; 2],
    /// Both directions
    pub counters: [Counters; 2],
}

/// A host's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReport {
    /// Its name
    pub name: String,
    /// What its NIC counted, since its last start
    pub counters: rnic::Counters,
}

/// A switch's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchReport {
    /// Its name
    pub name: String,
    /// What it counted
    pub counters: SwitchCounters,
}

/// What is planted in every NIC: nothing, unless the program is built to try out its tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Planted {
    /// A bug
    #[cfg(feature = "canary")]
    pub bug: Option<rnic::Bug>,
}

/// Where a capture of a link, by its number, goes.
pub type CaptureTo = (usize, Box<dyn Write + Send>);

/// Runs the world that a scenario is for a seed. Captures are of links by their number.
pub fn run(scenario: &Scenario, seed: u64, planted: Planted, captures: Vec<CaptureTo>) -> Outcome {
    let scenario = scenario.drawn(seed);
    let mut run = Run::new(&scenario, seed, planted);
    for (link, to) in captures {
        run.world.capture(run.links[link], to);
    }
    // Now, and not before: the first frames leave.
    verbs::begin(&mut run.world, &run.hosts);
    let mut violation = run.until_done(Nanos(scenario.limit.value().max(0) as u64));
    if violation.is_none() {
        violation = verbs::check(&run.world, &run.hosts);
    }
    if let Err(error) = run.world.finish_captures() {
        violation.get_or_insert(format!("a capture cannot be written: {error}"));
    }
    run.outcome(seed, violation)
}

struct Run<'a> {
    scenario: &'a Scenario,
    world: World,
    hosts: Vec<(NodeId, IpAddr)>,
    switches: Vec<NodeId>,
    links: Vec<LinkId>,
    shared: std::sync::Arc<Shared>,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, seed: u64, planted: Planted) -> Self {
        let mut world = World::new(seed);
        let workload = scenario.verbs.workload();
        let (apps, shared) = verbs::apps(&workload, seed, scenario.hosts.len(), scenario.may_fail());
        let mut nodes: BTreeMap<&str, NodeId> = BTreeMap::new();
        let mut hosts = Vec::new();
        let connections = (workload.connections + workload.unreliable) as usize * scenario.hosts.len();
        for (number, (host, app)) in scenario.hosts.iter().zip(apps).enumerate() {
            let rate = scenario.links.iter().find(|link| link.ends.contains(&host.name));
            let config = nic_of(host, number, seed, connections, rate, planted);
            let clock = Clock::new(host.clock_offset.value(), host.clock_drift.value());
            let node = world.add(&host.name, Host::new(move || Rnic::new(config.clone()), app), clock);
            nodes.insert(&host.name, node);
            hosts.push((node, host.address.0));
        }
        let mut switches = Vec::new();
        for name in &scenario.switches {
            let ports = scenario.links.iter().filter(|link| link.ends.contains(name)).count() as u16;
            let config = ForwardConfig::bridge(ports, 4096);
            let node = world.add(name, Switch::new(move || Forward::new(&config)), Clock::default());
            nodes.insert(name, node);
            switches.push(node);
        }
        let links: Vec<_> = scenario
            .links
            .iter()
            .map(|link| {
                let [a, b] = [0, 1].map(|end| nodes[link.ends[end].as_str()]);
                world.connect(a, b, link_of(link))
            })
            .collect();
        for fault in &scenario.faults {
            let at = Nanos(fault.at.value().max(0) as u64);
            let end = fault.lasts.map(|lasts| at + Nanos(lasts.value().max(0) as u64));
            let (first, last) = match &fault.kind {
                FaultKind::Crash(name) => {
                    (Fault::Crash(nodes[name.as_str()]), Some(Fault::Restart(nodes[name.as_str()])))
                }
                FaultKind::Pause(name) => {
                    (Fault::Pause(nodes[name.as_str()]), Some(Fault::Resume(nodes[name.as_str()])))
                }
                FaultKind::Partition(names) => {
                    let cut: Vec<_> = scenario
                        .links
                        .iter()
                        .zip(&links)
                        .filter(|(link, _)| names.contains(&link.ends[0]) != names.contains(&link.ends[1]))
                        .map(|(_, link)| *link)
                        .collect();
                    (Fault::Cut(cut.clone()), Some(Fault::Heal(cut)))
                }
                FaultKind::ClockStep(name, by) => (Fault::ClockStep(nodes[name.as_str()], by.value()), None),
                FaultKind::ClockDrift(name, by) => {
                    (Fault::ClockDrift(nodes[name.as_str()], by.value()), None)
                }
            };
            world.schedule(at, first);
            if let (Some(end), Some(last)) = (end, last) {
                world.schedule(end, last);
            }
        }
        verbs::connect(&mut world, &hosts, &workload, seed);
        Self { scenario, world, hosts, switches, links, shared }
    }

    /// Runs until everything is done and nothing is left to happen; what is wrong, if anything.
    fn until_done(&mut self, limit: Nanos) -> Option<String> {
        while !self.shared.is_done() {
            for _ in 0..GLANCE {
                if !self.world.step(limit) {
                    break;
                }
            }
            if self.scenario.may_fail() {
                for (host, _) in &self.hosts {
                    self.world.with(*host, |host: &mut Host<VerbsApp>, now| host.notice_broken(now));
                }
            }
            if self.shared.is_wrong() {
                return None;
            }
            if self.shared.is_done() {
                break;
            }
            if self.world.is_over() {
                return Some("nothing is left to happen, and something is left to do".into());
            }
            if self.world.next_at().is_none_or(|at| at > limit) {
                return Some(format!("not done after {} ms", limit.0 / 1_000_000));
            }
        }
        let until = self.world.now() + AFTERWARDS;
        while self.world.step(until) && !self.shared.is_wrong() {}
        self.check_links()
    }

    /// What was given to links has ended somehow.
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
            format!("frames between {a} and {b} are not accounted for")
        })
    }

    fn outcome(self, seed: u64, violation: Option<String>) -> Outcome {
        let world = &self.world;
        let (events, packets) = world.events();
        let hosts: Vec<&Host<VerbsApp>> = self.hosts.iter().map(|(host, _)| world.node(*host)).collect();
        let mut operations = [0; Verb::ALL.len()];
        for host in &hosts {
            operations.iter_mut().zip(host.app.totals()).for_each(|(sum, n)| *sum += n);
        }
        let named = |node: NodeId| world.name(node).to_owned();
        Outcome {
            seed,
            digest: world.digest(),
            time: world.now(),
            events,
            packets,
            operations,
            broken: hosts.iter().map(|host| host.app.broken() as u64).sum(),
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
                .zip(&hosts)
                .map(|((node, _), host)| HostReport { name: named(*node), counters: *host.nic.counters() })
                .collect(),
            switches: self
                .switches
                .iter()
                .map(|node| SwitchReport {
                    name: named(*node),
                    counters: world.node::<Switch<Forward>>(*node).counters.clone(),
                })
                .collect(),
            violation,
        }
    }
}

fn share(billionths: i64) -> Share {
    Share::new(billionths as f64 / 1e9).unwrap_or(Share::NEVER)
}

fn link_of(spec: &LinkSpec) -> Link {
    let unsigned = |number: super::Between| number.value().max(0) as u64;
    Link {
        rate_bps: unsigned(spec.rate),
        delay: Nanos(unsigned(spec.delay)),
        jitter: Nanos(unsigned(spec.jitter)),
        loss: share(spec.loss.value()),
        duplicate: share(spec.duplicate.value()),
        reorder: share(spec.reorder.value()),
        reorder_by: Nanos(unsigned(spec.reorder_by)),
        corrupt: share(spec.corrupt.value()),
        mtu: unsigned(spec.mtu) as usize,
        queue: unsigned(spec.queue) as usize,
        ecn: spec.ecn.map(|ecn| Ecn {
            min: unsigned(ecn.min) as usize,
            max: unsigned(ecn.max) as usize,
            share: share(ecn.share.value()),
        }),
    }
}

fn nic_of(
    host: &HostSpec,
    number: usize,
    seed: u64,
    connections: usize,
    link: Option<&LinkSpec>,
    planted: Planted,
) -> Config {
    let [.., high, low] = (number as u16 + 1).to_be_bytes();
    let mac = MacAddr([0x02, 0x75, 0x73, 0, high, low]);
    let rate = link.map_or(0, |link| link.rate.value().max(0) as u64);
    let rate = if rate == 0 { 100_000_000_000 } else { rate };
    let config = Config {
        max_qps: connections,
        // Target, landing zone and receives of each connection, pattern, words, shared receives
        max_regions: connections * 3 + 3,
        window: host.window.value() as u32,
        ack: match host.ack {
            AckSpec::EveryPacket => AckPolicy::EveryPacket,
            AckSpec::OnRequest | AckSpec::Any => AckPolicy::OnRequest,
            AckSpec::Every { packets, time } => AckPolicy::Every { packets, time: Nanos(time) },
        },
        credits: host.credits.is_true(),
        congestion: host.dcqcn.is_true().then(|| Dcqcn::of_paper(rate)),
        seed: switch::table::mix(seed ^ (number as u64 + 1) << 32),
        ..Config::new(Interface::new(mac, host.address.0, host.address.1))
    };
    plant(config, planted)
}

#[cfg(feature = "canary")]
fn plant(config: Config, planted: Planted) -> Config {
    Config { bug: planted.bug, ..config }
}

#[cfg(not(feature = "canary"))]
fn plant(config: Config, _planted: Planted) -> Config {
    config
}

//! Measurements of the reliable service on a fat tree (1Pipe, section 7.2): what hosts do, and what they
//! record. Messages, acknowledgements and beacons take a host some time each, and messages of the management
//! network take the controller as long.

use super::control::MEASURED_WITHIN;
use super::host::Host;
use super::{Plan, System};
use crate::onepipe::host::{true_time, unwrap};
use crate::onepipe::{FatTree, Network, Tree};
use onepipe::process::Config;
use onepipe::{OnePipe, OnePipeOpcode, Process, ProcessId, Timestamp};
use rocev2::Packet;
use std::collections::BTreeSet;
use switch::{Nanos, Probability, Rng};

/// Time within which all processes of a network join
const JOINS_WITHIN: Nanos = Nanos::from_millis(40);
/// Time after the last admission from which silence counts at once, and routes of the commit barrier are known
const QUIET: Nanos = Nanos(MEASURED_WITHIN.0 + 500_000);
/// Time in which messages that were sent are delivered
const DELIVERED_WITHIN: Nanos = Nanos::from_millis(1);

/// What the hosts of a measurement do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Time of a host's CPU for each frame in either direction, and of the controller for each message
    pub message_time: Nanos,
    /// Share of the frames that hosts lose when they arrive
    pub loss: Probability,
    /// Number of receivers of a scattering, which are drawn
    pub receivers: usize,
    /// Length of a message, in bytes
    pub payload: usize,
    /// Share of the scatterings that are reliable
    pub reliable: Probability,
    /// Number of reliable messages that a host has under way to the next one, as fast as it can send; 0: it sends at
    /// random times
    pub window: usize,
    /// Bytes that a process grants to each member
    pub grant: usize,
}

impl Load {
    /// Returns a load of single messages of 64 B, half of them reliable, without loss, of which each takes 200 ns.
    pub const fn light() -> Self {
        Self {
            message_time: Nanos(200),
            loss: Probability::NEVER,
            receivers: 1,
            payload: 64,
            reliable: Probability::percent(50),
            window: 0,
            grant: 64 << 10,
        }
    }

    pub(super) const fn is_saturating(&self) -> bool {
        self.window > 0
    }

    pub(super) fn configure(&self, config: &mut Config) {
        (config.mtu, config.reliable_buffer) = (1024, config.max_members * self.grant);
        config.initial_window = self.grant as u32;
    }

    /// Sends a scattering to processes that are drawn.
    pub(super) fn scatter(&self, process: &mut Process, meter: &mut Meter, rng: &mut Rng, now: Nanos) {
        let mut to: Vec<ProcessId> = process.config().peers.iter().map(|peer| peer.id).collect();
        let is_reliable = rng.happens(self.reliable);
        if is_reliable {
            let members = process.members();
            to.retain(|id| members.contains(id));
        }
        while to.len() > self.receivers {
            to.swap_remove(rng.below(to.len() as u64) as usize);
        }
        let payload = vec![7; self.payload];
        let messages: Vec<_> = to.iter().map(|&id| (id, &payload[..])).collect();
        if messages.is_empty() {
            return;
        }
        let is_sent = if is_reliable {
            process.reliable_send(now, &messages).is_ok()
        } else {
            process.unreliable_send(now, &messages).is_ok()
        };
        meter.refused += u64::from(!is_sent);
    }

    /// Sends as many messages to the next process as may be under way.
    pub(super) fn fill(&self, process: &mut Process, own: u32, now: Nanos) {
        let next = ProcessId((own + 1) % process.config().max_members as u32);
        let payload = vec![7; self.payload];
        while process.unsettled_reliable() < self.window
            && process.reliable_send(now, &[(next, &payload)]).is_ok()
        {}
    }
}

/// Rises of a barrier.
#[derive(Clone, Debug, Default)]
pub(super) struct Rises {
    value: Option<Timestamp>,
    /// When it last rose, and the longest time in which it did not
    pub(super) rose: Option<Nanos>,
    pub(super) stall: Nanos,
}

/// What a host records.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// Best-effort messages: unwrapped timestamps, and times to their arrival (ns)
    arrived: Vec<(u64, u64)>,
    /// Messages of the best-effort and of the reliable service: unwrapped timestamps, and times to their delivery (ns)
    delivered: [Vec<(u64, u64)>; 2],
    /// Scatterings that the process refused
    refused: u64,
    /// Best-effort and commit barrier
    pub(super) barriers: [Rises; 2],
    /// Greatest number of bytes of reliable messages that were held, with the cost of their packets
    held: usize,
}

impl Meter {
    /// Records a message that has arrived.
    pub(super) fn arrive(&mut self, frame: &[u8], now: Nanos) {
        let Some(packet) = Packet::parse(frame) else { return };
        let Some(&header) = OnePipe::of(&packet) else { return };
        if header.opcode() == OnePipeOpcode::DATA {
            let time = unwrap(header.timestamp(), now);
            self.arrived.push((time, true_time(now).saturating_sub(time)));
        }
    }

    /// Takes all messages that a process can deliver.
    pub(super) fn receive(&mut self, process: &mut Process, now: Nanos) {
        self.held = self.held.max(process.held_reliable());
        while let Some(message) = process.unreliable_recv() {
            let time = unwrap(message.timestamp, now);
            self.delivered[0].push((time, true_time(now).saturating_sub(time)));
            process.reuse_buffer(message.payload);
        }
        while let Some(message) = process.reliable_recv() {
            let time = unwrap(message.timestamp, now);
            self.delivered[1].push((time, true_time(now).saturating_sub(time)));
            process.reuse_reliable_buffer(message.payload);
        }
    }

    /// Records whether the barriers have risen.
    pub(super) fn see_barriers(&mut self, process: &Process, now: Nanos) {
        let (best_effort, commit) = process.barriers();
        for (rises, value) in self.barriers.iter_mut().zip([best_effort, commit]) {
            if value.is_none() || value == rises.value {
                continue;
            }
            rises.value = value;
            if let Some(rose) = rises.rose.replace(now) {
                rises.stall = rises.stall.max(now.since(rose));
            }
        }
    }
}

/// Mean latencies in nanoseconds, from the timestamp on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// To the arrival of best-effort messages
    pub arrival_ns: f64,
    /// To the delivery of best-effort messages
    pub best_effort_ns: f64,
    /// To the delivery of reliable messages
    pub reliable_ns: f64,
    /// Numbers of delivered messages of the best-effort and of the reliable service
    pub counts: [usize; 2],
}

/// Throughput of a host, and what it buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Reliable messages that a host delivers in a second, on average
    pub rate: f64,
    /// Mean time from the timestamp to the delivery (ns)
    pub delay_ns: f64,
    /// Greatest number of bytes that a host has held, with the cost of packets
    pub held: usize,
}

/// Network of hosts whose processes are members.
pub struct Testbed {
    pub(super) system: System,
    pub(super) tree: FatTree,
    /// Hosts that an [outage](super::Outage) has separated
    pub(super) absent: BTreeSet<usize>,
}

impl Testbed {
    /// Builds a network, and runs it until all processes have joined. The controller is 1 to 5 us away, and its store takes
    /// no time.
    ///
    /// # Errors
    /// A violation that a step shows, or a process does not join within 40 ms.
    pub fn new(tree: &FatTree, load: &Load, seed: u64) -> Result<Self, String> {
        let mut testbed = Self::join(tree, Some(*load), seed)?;
        testbed.run(QUIET)?;
        Ok(testbed)
    }

    /// Builds a network of hosts whose applications send scatterings of both services to drawn receivers and check what
    /// they receive, and runs it until all processes have joined.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_applications(tree: &FatTree, seed: u64) -> Result<Self, String> {
        Self::join(tree, None, seed)
    }

    fn join(tree: &FatTree, load: Option<Load>, seed: u64) -> Result<Self, String> {
        let mut tree = *tree;
        (tree.controlled, tree.lasts) = (true, Nanos::from_secs(1));
        let mut plan = Plan::new(Tree::new(tree.incarnation, 1, 1));
        (plan.management_delay, plan.store_latency) = (5_000, 0);
        (plan.fat_tree, plan.load) = (Some(tree), load);
        let mut testbed = Self { system: System::new(&plan, seed), tree, absent: BTreeSet::new() };
        let hosts = tree.all_hosts();
        while (0..hosts).any(|host| testbed.system.admitted(host).is_none()) {
            if testbed.system.now() > JOINS_WITHIN {
                return Err(format!("not all processes have joined: {}", testbed.system.describe()));
            }
            testbed.run(Nanos::from_micros(20))?;
        }
        Ok(testbed)
    }

    /// Runs for some time.
    pub(super) fn run(&mut self, time: Nanos) -> Result<(), String> {
        self.system.run_until(self.system.now() + time)
    }

    /// Lets hosts lose this share of the frames that arrive from now on.
    pub fn lose(&mut self, loss: Probability) {
        for node in self.system.network.hosts.clone() {
            self.system.network.world.node_mut::<Host>(node).lose(loss);
        }
    }

    /// Measures the messages that are sent within a time, of which those are counted that are delivered within a
    /// further millisecond.
    ///
    /// # Errors
    /// A violation that a step shows, or nothing was delivered.
    pub fn latencies(&mut self, time: Nanos) -> Result<Latencies, String> {
        let from = self.system.now();
        self.run(time)?;
        let span = Network::time(from)..Network::time(self.system.now());
        self.run(DELIVERED_WITHIN)?;
        let mean = |of: &dyn Fn(&Meter) -> &Vec<(u64, u64)>| {
            let (mut sum, mut count) = (0, 0);
            for host in self.system.hosts() {
                for (_, ns) in of(&host.meter).iter().filter(|(time, _)| span.contains(time)) {
                    (sum, count) = (sum + ns, count + 1);
                }
            }
            (sum as f64 / count as f64, count)
        };
        let (arrival_ns, _) = mean(&|meter| &meter.arrived);
        let (best_effort_ns, best_effort) = mean(&|meter| &meter.delivered[0]);
        let (reliable_ns, reliable) = mean(&|meter| &meter.delivered[1]);
        if best_effort == 0 || reliable == 0 {
            return Err(format!("{best_effort} best-effort and {reliable} reliable messages were delivered"));
        }
        Ok(Latencies { arrival_ns, best_effort_ns, reliable_ns, counts: [best_effort, reliable] })
    }

    /// Measures the reliable messages that are delivered within a time.
    ///
    /// # Errors
    /// A violation that a step shows, or nothing was delivered.
    pub fn throughput(&mut self, time: Nanos) -> Result<Throughput, String> {
        let totals = |system: &System| {
            let delivered = system.hosts().flat_map(|host| &host.meter.delivered[1]);
            delivered.fold((0, 0), |(count, sum), (_, ns)| (count + 1, sum + ns))
        };
        let before: (u64, u64) = totals(&self.system);
        self.run(time)?;
        let after = totals(&self.system);
        let (count, sum) = (after.0 - before.0, after.1 - before.1);
        if count == 0 {
            return Err("nothing was delivered".into());
        }
        let rate = count as f64 / self.tree.all_hosts() as f64 / (time.0 as f64 / 1e9);
        let held = self.system.hosts().map(|host| host.meter.held).max().unwrap_or(0);
        Ok(Throughput { rate, delay_ns: sum as f64 / count as f64, held })
    }
}

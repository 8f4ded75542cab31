//! Duration of transfers, block by block: schedules executed asynchronously on hosts with one full-duplex
//! port each.
//!
//! The rules are those of a group. A member sends its blocks in the order of its schedule, each when it has
//! the block and the receiver is ready for it; one at a time, except for consecutive blocks to the same
//! receiver. A receiver waits for one sender at a time. Blocks (of several objects) that leave or reach a
//! host at the same time share its port equally. The model leaves out packets, the messages that create a
//! group, and copies of first blocks. `sim` simulates those, and agrees within 2 % (`sim/tests/it/rdmc`). The
//! model is for sizes that a simulation of packets cannot hold.
//!
//! Times are in seconds, rates in bits per second.

use crate::schedule::{Schedule, To};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Network of hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Number of hosts.
    pub hosts: usize,
    /// Rate of a host's port in each direction, in bits per second.
    pub rate_bps: f64,
    /// Latency from one host to another, in seconds.
    pub latency: f64,
    /// Maximum number of blocks in flight between the same two members.
    pub max_in_flight: usize,
    /// Number of receivers to which a switch copies a block that the root sends once. For more receivers the
    /// root sends it several times.
    pub switch_fanout: usize,
    /// Pairs of hosts between which blocks have another rate, in both directions, in bits per second.
    pub slow: Vec<(usize, usize, f64)>,
}

impl Network {
    /// Returns a network of equal hosts with IPv4 addresses and two blocks in flight.
    pub const fn new(hosts: usize, rate_bps: f64, latency: f64) -> Self {
        let switch_fanout = crate::switch_fanout(true);
        Self { hosts, rate_bps, latency, max_in_flight: 2, switch_fanout, slow: Vec::new() }
    }
}

/// Object to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Schedule of its blocks.
    pub schedule: Schedule,
    /// Hosts of the schedule's nodes, the root first.
    pub members: Vec<usize>,
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes of a block, except for the last one.
    pub block: u64,
    /// Time at which the root begins, in seconds.
    pub at: f64,
}

impl Object {
    fn block_bytes(&self, block: u32) -> f64 {
        let begins = u64::from(block) * self.block;
        (self.bytes.saturating_sub(begins)).min(self.block) as f64
    }
}

/// Result of an object's transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferTimes {
    /// By node: time at which it had the whole object; for the root, the time at which its last block was
    /// acknowledged.
    pub complete: Vec<f64>,
    /// By node: bytes of blocks that it sent.
    pub bytes_out: Vec<f64>,
}

impl TransferTimes {
    /// Returns the time at which the last member was complete.
    pub fn last(&self) -> f64 {
        self.complete.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the time at which the first receiver was complete.
    pub fn first(&self) -> f64 {
        self.complete.iter().skip(1).copied().fold(f64::INFINITY, f64::min)
    }
}

/// Executes the transfers of objects over a network. Returns the result of each, in the order of `objects`.
///
/// # Panics
/// If an object has another number of members than its schedule has nodes, or a member is no host of the
/// network.
pub fn run(network: &Network, objects: &[Object]) -> Vec<TransferTimes> {
    let mut world = World::new(network, objects);
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(object.members.len(), object.schedule.nodes() as usize, "number of members and of nodes");
        world.schedule(object.at, Event::Begin(number));
    }
    while let Some((at, event)) = world.next() {
        world.now = at;
        world.handle(event);
    }
    world.transfers.into_iter().map(TransferState::into_result).collect()
}

/// A time that can be ordered. Times in the model are never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Begin(usize),
    /// A flow has left its sender, unless its rate has changed since (`version`).
    Left {
        flow: usize,
        version: u64,
    },
    /// A block has arrived: object, node, block.
    Arrived(usize, u32, u32),
    /// A send is acknowledged: object, node.
    Acknowledged(usize, u32),
    /// A receiver is ready for another block: object, sender, receiver.
    Ready(usize, u32, u32),
}

/// A block on its way.
#[derive(Clone, Debug)]
struct Flow {
    object: usize,
    from: u32,
    to: Vec<u32>,
    block: u32,
    remaining_bits: f64,
    rate: f64,
    /// Time for which `remaining_bits` is valid.
    since: f64,
    version: u64,
}

/// State of an object's transfer.
#[derive(Debug)]
struct TransferState {
    /// By node: blocks to send, in order, and how many of them it has begun to send.
    sends: Vec<Vec<(To, u32)>>,
    sends_begun: Vec<usize>,
    /// By node: how many of these are acknowledged, and whether one is leaving the port.
    acknowledged: Vec<usize>,
    leaving: Vec<bool>,
    /// By node: senders of its blocks, in order; how many blocks have arrived, and for how many it has
    /// reported to be ready.
    receives: Vec<Vec<u32>>,
    arrived: Vec<usize>,
    ready_reported: Vec<usize>,
    /// By sender and receiver: number of blocks that may be sent.
    ready: HashMap<(u32, u32), usize>,
    has_block: Vec<Vec<bool>>,
    complete: Vec<f64>,
    bytes_out: Vec<f64>,
}

impl TransferState {
    fn new(object: &Object) -> Self {
        let schedule = &object.schedule;
        let n = schedule.nodes();
        let mut has_block = vec![vec![false; schedule.blocks() as usize]; n as usize];
        has_block[0].fill(true);
        Self {
            sends: (0..n)
                .map(|node| schedule.sends(node).map(|(_, send)| (send.to, send.block)).collect())
                .collect(),
            sends_begun: vec![0; n as usize],
            acknowledged: vec![0; n as usize],
            leaving: vec![false; n as usize],
            receives: (0..n)
                .map(|node| schedule.receives(node).map(|(_, receive)| receive.from).collect())
                .collect(),
            arrived: vec![0; n as usize],
            ready_reported: vec![0; n as usize],
            ready: HashMap::new(),
            has_block,
            complete: vec![f64::NAN; n as usize],
            bytes_out: vec![0.0; n as usize],
        }
    }

    fn into_result(self) -> TransferTimes {
        TransferTimes { complete: self.complete, bytes_out: self.bytes_out }
    }
}

struct World<'a> {
    network: &'a Network,
    objects: &'a [Object],
    transfers: Vec<TransferState>,
    now: f64,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    sequence: u64,
    flows: Vec<Flow>,
    free: Vec<usize>,
    /// By host: flows that leave it, and flows that reach it.
    out: Vec<Vec<usize>>,
    into: Vec<Vec<usize>>,
}

impl<'a> World<'a> {
    fn new(network: &'a Network, objects: &'a [Object]) -> Self {
        Self {
            network,
            objects,
            transfers: objects.iter().map(TransferState::new).collect(),
            now: 0.0,
            events: BinaryHeap::new(),
            sequence: 0,
            flows: Vec::new(),
            free: Vec::new(),
            out: vec![Vec::new(); network.hosts],
            into: vec![Vec::new(); network.hosts],
        }
    }

    fn schedule(&mut self, at: f64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((Time(at), self.sequence, event)));
    }

    fn next(&mut self) -> Option<(f64, Event)> {
        self.events.pop().map(|Reverse((at, _, event))| (at.0, event))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin(object) => {
                for node in 0..self.objects[object].schedule.nodes() {
                    self.report_ready(object, node);
                }
                self.send(object, 0);
            }
            Event::Left { flow, version } if self.flows[flow].version == version => self.on_left(flow),
            Event::Left { .. } => {}
            Event::Arrived(object, node, block) => {
                let transfer = &mut self.transfers[object];
                transfer.has_block[node as usize][block as usize] = true;
                transfer.arrived[node as usize] += 1;
                if transfer.arrived[node as usize] == transfer.receives[node as usize].len() {
                    transfer.complete[node as usize] = self.now;
                }
                self.report_ready(object, node);
                self.send(object, node);
            }
            Event::Acknowledged(object, node) => {
                let transfer = &mut self.transfers[object];
                transfer.acknowledged[node as usize] += 1;
                if node == 0 && transfer.acknowledged[0] == transfer.sends[0].len() {
                    transfer.complete[0] = self.now;
                }
                self.send(object, node);
            }
            Event::Ready(object, from, to) => {
                *self.transfers[object].ready.entry((from, to)).or_default() += 1;
                self.send(object, from);
            }
        }
    }

    /// Reports a receiver's readiness for its next blocks, as far as they come from one sender.
    fn report_ready(&mut self, object: usize, node: u32) {
        let at = self.now + self.network.latency;
        let transfer = &mut self.transfers[object];
        let (arrived, receives) = (transfer.arrived[node as usize], &transfer.receives[node as usize]);
        let upcoming = receives[arrived..].iter().take(self.network.max_in_flight);
        let end = arrived + upcoming.take_while(|from| **from == receives[arrived]).count();
        let ready_reported = transfer.ready_reported[node as usize];
        transfer.ready_reported[node as usize] = ready_reported.max(end);
        for number in ready_reported..end {
            let from = self.transfers[object].receives[node as usize][number];
            self.schedule(at, Event::Ready(object, from, node));
        }
    }

    /// Begins to send a member's next block, if possible.
    fn send(&mut self, object: usize, node: u32) {
        let max_in_flight = self.network.max_in_flight;
        let transfer = &mut self.transfers[object];
        let (sends_begun, acknowledged) =
            (transfer.sends_begun[node as usize], transfer.acknowledged[node as usize]);
        let Some((to, block)) = transfer.sends[node as usize].get(sends_begun).copied() else { return };
        let follows = || {
            sends_begun - acknowledged < max_in_flight
                && transfer.sends[node as usize][sends_begun - 1].0 == to
        };
        if transfer.leaving[node as usize] || (sends_begun > acknowledged && !follows()) {
            return;
        }
        let to: Vec<u32> = match to {
            To::Node(to) => vec![to],
            To::All => (1..transfer.sends.len() as u32).collect(),
        };
        let ready = to.iter().all(|to| transfer.ready.get(&(node, *to)).is_some_and(|ready| *ready > 0));
        if !transfer.has_block[node as usize][block as usize] || !ready {
            return;
        }
        for to in &to {
            *transfer.ready.entry((node, *to)).or_default() -= 1;
        }
        transfer.leaving[node as usize] = true;
        transfer.sends_begun[node as usize] += 1;
        let times = to.len().div_ceil(self.network.switch_fanout);
        let bytes = self.objects[object].block_bytes(block) * times as f64;
        transfer.bytes_out[node as usize] += bytes;
        let flow = Flow {
            object,
            from: node,
            to,
            block,
            remaining_bits: bytes * 8.0,
            rate: 0.0,
            since: self.now,
            version: 0,
        };
        let number = self.free.pop().unwrap_or(self.flows.len());
        if number == self.flows.len() {
            self.flows.push(flow);
        } else {
            // Events of the previous flow in this slot must not match the new one.
            let version = self.flows[number].version + 1;
            self.flows[number] = Flow { version, ..flow };
        }
        for (leaves, host) in self.ports(number) {
            let flows = if leaves { &mut self.out[host] } else { &mut self.into[host] };
            flows.push(number);
        }
        self.update_rates(number);
    }

    /// Returns the ports that a flow shares: whether it leaves there, and the host.
    fn ports(&self, flow: usize) -> Vec<(bool, usize)> {
        let flow = &self.flows[flow];
        let members = &self.objects[flow.object].members;
        let into = flow.to.iter().map(|to| (false, members[*to as usize]));
        core::iter::once((true, members[flow.from as usize])).chain(into).collect()
    }

    /// Recomputes the rates of all flows at the ports of a flow that has begun or ended.
    fn update_rates(&mut self, flow: usize) {
        let mut touched = Vec::new();
        for (leaves, host) in self.ports(flow) {
            touched.extend_from_slice(if leaves { &self.out[host] } else { &self.into[host] });
        }
        touched.sort_unstable();
        touched.dedup();
        for sharer in touched {
            let rate = self.rate(sharer);
            let now = self.now;
            let flow = &mut self.flows[sharer];
            if (flow.rate - rate).abs() < f64::EPSILON {
                continue;
            }
            flow.remaining_bits -= (now - flow.since) * flow.rate;
            (flow.since, flow.rate) = (now, rate);
            flow.version += 1;
            let (at, version) = (now + flow.remaining_bits.max(0.0) / rate, flow.version);
            self.schedule(at, Event::Left { flow: sharer, version });
        }
    }

    fn rate(&self, flow: usize) -> f64 {
        let members = &self.objects[self.flows[flow].object].members;
        let mut rate = f64::INFINITY;
        for (leaves, host) in self.ports(flow) {
            let flow_count = if leaves { self.out[host].len() } else { self.into[host].len() };
            rate = rate.min(self.network.rate_bps / flow_count as f64);
        }
        let from = members[self.flows[flow].from as usize];
        for (a, b, slow) in &self.network.slow {
            let crosses = |to: usize| (from, to) == (*a, *b) || (from, to) == (*b, *a);
            if self.flows[flow].to.iter().any(|to| crosses(members[*to as usize])) {
                rate = rate.min(*slow);
            }
        }
        rate
    }

    fn on_left(&mut self, flow: usize) {
        for (leaves, host) in self.ports(flow) {
            let flows = if leaves { &mut self.out[host] } else { &mut self.into[host] };
            flows.retain(|other| *other != flow);
        }
        self.update_rates(flow);
        self.flows[flow].version += 1;
        let Flow { object, from, block, .. } = self.flows[flow];
        let latency = self.network.latency;
        for to in self.flows[flow].to.clone() {
            self.schedule(self.now + latency, Event::Arrived(object, to, block));
        }
        self.schedule(self.now + 2.0 * latency, Event::Acknowledged(object, from));
        self.free.push(flow);
        self.transfers[object].leaving[from as usize] = false;
        self.send(object, from);
    }
}

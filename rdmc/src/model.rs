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
    pub ahead: usize,
    /// Number of receivers to which a switch copies a block that the root sends once. For more receivers the
    /// root sends it several times.
    pub copied_at_once: usize,
    /// Pairs of hosts between which blocks have another rate, in both directions, in bits per second.
    pub slow: Vec<(usize, usize, f64)>,
}

impl Network {
    /// Returns a network of equal hosts with IPv4 addresses and two blocks in flight.
    pub const fn new(hosts: usize, rate_bps: f64, latency: f64) -> Self {
        let copied_at_once = crate::copied_at_once(true);
        Self { hosts, rate_bps, latency, ahead: 2, copied_at_once, slow: Vec::new() }
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
pub struct Sent {
    /// By node: time at which it had the whole object; for the root, the time at which its last block was
    /// acknowledged.
    pub complete: Vec<f64>,
    /// By node: bytes of blocks that it sent.
    pub bytes_out: Vec<f64>,
}

impl Sent {
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
pub fn run(network: &Network, objects: &[Object]) -> Vec<Sent> {
    let mut world = World::new(network, objects);
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(object.members.len(), object.schedule.nodes() as usize, "number of members and of nodes");
        world.agenda(object.at, What::Begin(number));
    }
    while let Some((at, what)) = world.next() {
        world.now = at;
        world.happen(what);
    }
    world.parts.into_iter().map(Part::sent).collect()
}

/// A time that can be ordered. Times in the model are never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct At(f64);

impl Eq for At {}

impl PartialOrd for At {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for At {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
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
    left: f64,
    rate: f64,
    /// Time for which `left` is valid.
    since: f64,
    version: u64,
}

/// State of an object's transfer.
#[derive(Debug)]
struct Part {
    /// By node: blocks to send, in order, and how many of them it has begun to send.
    sends: Vec<Vec<(To, u32)>>,
    begun: Vec<usize>,
    /// By node: how many of these are acknowledged, and whether one is leaving the port.
    acknowledged: Vec<usize>,
    leaving: Vec<bool>,
    /// By node: senders of its blocks, in order; how many blocks have arrived, and for how many it has
    /// reported to be ready.
    receives: Vec<Vec<u32>>,
    come: Vec<usize>,
    asked: Vec<usize>,
    /// By sender and receiver: number of blocks that may be sent.
    ready: HashMap<(u32, u32), usize>,
    has: Vec<Vec<bool>>,
    complete: Vec<f64>,
    bytes_out: Vec<f64>,
}

impl Part {
    fn new(object: &Object) -> Self {
        let schedule = &object.schedule;
        let n = schedule.nodes();
        let mut has = vec![vec![false; schedule.blocks() as usize]; n as usize];
        has[0].fill(true);
        Self {
            sends: (0..n)
                .map(|node| schedule.sends(node).map(|(_, send)| (send.to, send.block)).collect())
                .collect(),
            begun: vec![0; n as usize],
            acknowledged: vec![0; n as usize],
            leaving: vec![false; n as usize],
            receives: (0..n).map(|node| schedule.receives(node).map(|(_, one)| one.from).collect()).collect(),
            come: vec![0; n as usize],
            asked: vec![0; n as usize],
            ready: HashMap::new(),
            has,
            complete: vec![f64::NAN; n as usize],
            bytes_out: vec![0.0; n as usize],
        }
    }

    fn sent(self) -> Sent {
        Sent { complete: self.complete, bytes_out: self.bytes_out }
    }
}

struct World<'a> {
    network: &'a Network,
    objects: &'a [Object],
    parts: Vec<Part>,
    now: f64,
    agenda: BinaryHeap<Reverse<(At, u64, What)>>,
    scheduled: u64,
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
            parts: objects.iter().map(Part::new).collect(),
            now: 0.0,
            agenda: BinaryHeap::new(),
            scheduled: 0,
            flows: Vec::new(),
            free: Vec::new(),
            out: vec![Vec::new(); network.hosts],
            into: vec![Vec::new(); network.hosts],
        }
    }

    fn agenda(&mut self, at: f64, what: What) {
        self.scheduled += 1;
        self.agenda.push(Reverse((At(at), self.scheduled, what)));
    }

    fn next(&mut self) -> Option<(f64, What)> {
        self.agenda.pop().map(|Reverse((at, _, what))| (at.0, what))
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Begin(object) => {
                for node in 0..self.objects[object].schedule.nodes() {
                    self.ask(object, node);
                }
                self.send(object, 0);
            }
            What::Left { flow, version } if self.flows[flow].version == version => self.left(flow),
            What::Left { .. } => {}
            What::Arrived(object, node, block) => {
                let part = &mut self.parts[object];
                part.has[node as usize][block as usize] = true;
                part.come[node as usize] += 1;
                if part.come[node as usize] == part.receives[node as usize].len() {
                    part.complete[node as usize] = self.now;
                }
                self.ask(object, node);
                self.send(object, node);
            }
            What::Acknowledged(object, node) => {
                let part = &mut self.parts[object];
                part.acknowledged[node as usize] += 1;
                if node == 0 && part.acknowledged[0] == part.sends[0].len() {
                    part.complete[0] = self.now;
                }
                self.send(object, node);
            }
            What::Ready(object, from, to) => {
                *self.parts[object].ready.entry((from, to)).or_default() += 1;
                self.send(object, from);
            }
        }
    }

    /// Reports a receiver's readiness for its next blocks, as far as they come from one sender.
    fn ask(&mut self, object: usize, node: u32) {
        let at = self.now + self.network.latency;
        let part = &mut self.parts[object];
        let (come, receives) = (part.come[node as usize], &part.receives[node as usize]);
        let next = receives[come..].iter().take(self.network.ahead);
        let till = come + next.take_while(|from| **from == receives[come]).count();
        let asked = part.asked[node as usize];
        part.asked[node as usize] = asked.max(till);
        for number in asked..till {
            let from = self.parts[object].receives[node as usize][number];
            self.agenda(at, What::Ready(object, from, node));
        }
    }

    /// Begins to send a member's next block, if possible.
    fn send(&mut self, object: usize, node: u32) {
        let ahead = self.network.ahead;
        let part = &mut self.parts[object];
        let (begun, acknowledged) = (part.begun[node as usize], part.acknowledged[node as usize]);
        let Some((to, block)) = part.sends[node as usize].get(begun).copied() else { return };
        let follows = || begun - acknowledged < ahead && part.sends[node as usize][begun - 1].0 == to;
        if part.leaving[node as usize] || (begun > acknowledged && !follows()) {
            return;
        }
        let to: Vec<u32> = match to {
            To::Node(to) => vec![to],
            To::All => (1..part.sends.len() as u32).collect(),
        };
        let ready = to.iter().all(|to| part.ready.get(&(node, *to)).is_some_and(|ready| *ready > 0));
        if !part.has[node as usize][block as usize] || !ready {
            return;
        }
        for to in &to {
            *part.ready.entry((node, *to)).or_default() -= 1;
        }
        part.leaving[node as usize] = true;
        part.begun[node as usize] += 1;
        let times = to.len().div_ceil(self.network.copied_at_once);
        let bytes = self.objects[object].block_bytes(block) * times as f64;
        part.bytes_out[node as usize] += bytes;
        let flow =
            Flow { object, from: node, to, block, left: bytes * 8.0, rate: 0.0, since: self.now, version: 0 };
        let number = self.free.pop().unwrap_or(self.flows.len());
        if number == self.flows.len() {
            self.flows.push(flow);
        } else {
            // Events of the previous flow in this slot must not match the new one.
            let version = self.flows[number].version + 1;
            self.flows[number] = Flow { version, ..flow };
        }
        for (lanes, host) in self.lanes(number) {
            let lane = if lanes { &mut self.out[host] } else { &mut self.into[host] };
            lane.push(number);
        }
        self.share(number);
    }

    /// Returns the ports that a flow shares: whether it leaves there, and the host.
    fn lanes(&self, flow: usize) -> Vec<(bool, usize)> {
        let flow = &self.flows[flow];
        let members = &self.objects[flow.object].members;
        let into = flow.to.iter().map(|to| (false, members[*to as usize]));
        core::iter::once((true, members[flow.from as usize])).chain(into).collect()
    }

    /// Recomputes the rates of all flows at the ports of a flow that has begun or ended.
    fn share(&mut self, flow: usize) {
        let mut touched = Vec::new();
        for (leaves, host) in self.lanes(flow) {
            touched.extend_from_slice(if leaves { &self.out[host] } else { &self.into[host] });
        }
        touched.sort_unstable();
        touched.dedup();
        for one in touched {
            let rate = self.rate(one);
            let now = self.now;
            let flow = &mut self.flows[one];
            if (flow.rate - rate).abs() < f64::EPSILON {
                continue;
            }
            flow.left -= (now - flow.since) * flow.rate;
            (flow.since, flow.rate) = (now, rate);
            flow.version += 1;
            let (at, version) = (now + flow.left.max(0.0) / rate, flow.version);
            self.agenda(at, What::Left { flow: one, version });
        }
    }

    fn rate(&self, flow: usize) -> f64 {
        let members = &self.objects[self.flows[flow].object].members;
        let mut rate = f64::INFINITY;
        for (leaves, host) in self.lanes(flow) {
            let sharers = if leaves { self.out[host].len() } else { self.into[host].len() };
            rate = rate.min(self.network.rate_bps / sharers as f64);
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

    fn left(&mut self, flow: usize) {
        for (leaves, host) in self.lanes(flow) {
            let lane = if leaves { &mut self.out[host] } else { &mut self.into[host] };
            lane.retain(|other| *other != flow);
        }
        self.share(flow);
        self.flows[flow].version += 1;
        let Flow { object, from, block, .. } = self.flows[flow];
        let latency = self.network.latency;
        for to in self.flows[flow].to.clone() {
            self.agenda(self.now + latency, What::Arrived(object, to, block));
        }
        self.agenda(self.now + 2.0 * latency, What::Acknowledged(object, from));
        self.free.push(flow);
        self.parts[object].leaving[from as usize] = false;
        self.send(object, from);
    }
}

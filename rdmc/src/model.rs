//! What transfers take, block by block: schedules executed asynchronously on hosts with one full-duplex port each.
//!
//! The rules are a group's: a member sends its blocks in the order of its schedule, each when it has
//! it and the receiver has said that it is ready; one at a time, but for blocks that follow one another to the same
//! receiver. A receiver waits for one sender at a time. Blocks that leave, or reach, a host at the same time (those of other
//! objects) share its port equally. There are no packets here, no messages that bring a group together, and no
//! copies of first blocks: `sim` has those, and agrees within 2 % (`sim/tests/rdmc`). This is for
//! sizes that a simulation of packets cannot hold.
//!
//! Times are seconds, rates bits a second.

use crate::schedule::{Schedule, To};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Hosts and what is between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// How many hosts there are
    pub hosts: usize,
    /// The rate of a host's port, each way
    pub rate_bps: f64,
    /// From one host to another (seconds)
    pub latency: f64,
    /// Blocks from, or to, the same other member that are dealt with at once
    pub ahead: usize,
    /// Receivers to which a switch copies a block that the root sends once. If there are more, the root sends it several times
    pub copied_at_once: usize,
    /// Pairs of hosts between which blocks go at another rate, in both directions
    pub slow: Vec<(usize, usize, f64)>,
}

impl Network {
    /// Hosts that are all alike, which deal with two blocks at once and have addresses of IPv4.
    pub const fn new(hosts: usize, rate_bps: f64, latency: f64) -> Self {
        let copied_at_once = crate::copied_at_once(true);
        Self { hosts, rate_bps, latency, ahead: 2, copied_at_once, slow: Vec::new() }
    }
}

/// An object to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Who sends what to whom
    pub schedule: Schedule,
    /// The hosts that are its nodes, the root first
    pub members: Vec<usize>,
    /// Bytes
    pub bytes: u64,
    /// Bytes of a block, but for the last one
    pub block: u64,
    /// When the root begins
    pub at: f64,
}

impl Object {
    fn block_bytes(&self, block: u32) -> f64 {
        let begins = u64::from(block) * self.block;
        (self.bytes.saturating_sub(begins)).min(self.block) as f64
    }
}

/// What became of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// When each member had all of it, by node; the root when its last block was acknowledged
    pub complete: Vec<f64>,
    /// Bytes of blocks that each member put on its wire
    pub bytes_out: Vec<f64>,
}

impl Sent {
    /// When the last one had it
    pub fn last(&self) -> f64 {
        self.complete.iter().copied().fold(0.0, f64::max)
    }

    /// When the first receiver had it
    pub fn first(&self) -> f64 {
        self.complete.iter().skip(1).copied().fold(f64::INFINITY, f64::min)
    }
}

/// Runs objects over a network until all are everywhere. The outcome of each, in their order.
///
/// # Panics
/// If an object names hosts that there are not, or fewer than its schedule has nodes.
pub fn run(network: &Network, objects: &[Object]) -> Vec<Sent> {
    let mut world = World::new(network, objects);
    for (number, object) in objects.iter().enumerate() {
        assert_eq!(object.members.len(), object.schedule.nodes() as usize, "a host for each node");
        world.agenda(object.at, What::Begin(number));
    }
    while let Some((at, what)) = world.next() {
        world.now = at;
        world.happen(what);
    }
    world.parts.into_iter().map(Part::sent).collect()
}

/// A time that can be compared; there are no others here.
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
    /// A flow has left, if its rate has not changed since
    Left {
        flow: usize,
        version: u64,
    },
    /// A block has arrived: object, node, block
    Arrived(usize, u32, u32),
    /// A send is acknowledged: object, node
    Acknowledged(usize, u32),
    /// Somebody is ready for another block: object, sender, receiver
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
    /// When `left` was true
    since: f64,
    version: u64,
}

/// An object under way.
#[derive(Debug)]
struct Part {
    /// By node: what it sends, in order, and how many it has begun to
    sends: Vec<Vec<(To, u32)>>,
    begun: Vec<usize>,
    /// By node: of these, how many are acknowledged, and whether one is leaving right now
    acknowledged: Vec<usize>,
    leaving: Vec<bool>,
    /// By node: from whom its blocks come, in order; how many have come, and how many it has said it is ready for
    receives: Vec<Vec<u32>>,
    come: Vec<usize>,
    asked: Vec<usize>,
    /// By sender and receiver: blocks that may be sent
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
    /// Flows that leave and reach each host
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

    /// A receiver says that it is ready for the next blocks that come from one sender.
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

    /// A member begins to send its next block, if it can.
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
            // What is still on the agenda of the one before must not be taken for its own.
            let version = self.flows[number].version + 1;
            self.flows[number] = Flow { version, ..flow };
        }
        for (lanes, host) in self.lanes(number) {
            let lane = if lanes { &mut self.out[host] } else { &mut self.into[host] };
            lane.push(number);
        }
        self.share(number);
    }

    /// The ports that a flow takes part of: whether it leaves there, and the host
    fn lanes(&self, flow: usize) -> Vec<(bool, usize)> {
        let flow = &self.flows[flow];
        let members = &self.objects[flow.object].members;
        let into = flow.to.iter().map(|to| (false, members[*to as usize]));
        core::iter::once((true, members[flow.from as usize])).chain(into).collect()
    }

    /// Something began or ended at the ports of a flow: everything there gets its share anew.
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

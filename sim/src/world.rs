//! The world: nodes, links, faults, and virtual time that advances from event to event.

use crate::clock::Clock;
use crate::fault::Fault;
use crate::link::{Counters, Link, LinkId};
use crate::net::{Event, Net};
use crate::node::{Node, NodeId, Ports};
use crate::pcap::Capture;
use core::any::Any;
use std::collections::VecDeque;
use std::io::{self, Write};
use switch::memory::MemoryFrame;
use switch::{Nanos, PortId};

/// Capacity of a paused node's inbox, in frames; further frames are lost
const INBOX: usize = 1024;

/// Run state of a node.
#[derive(Debug, PartialEq, Eq)]
enum RunState {
    Up,
    Down,
    /// Stopped for a while, with the frames that arrived since, each with its port and the link direction
    /// that it came on
    Paused(VecDeque<(Vec<u8>, PortId, usize)>),
}

struct Slot {
    name: String,
    node: Box<dyn Node>,
    clock: Clock,
    /// Earlier clocks, each with the time of the world at which it was replaced
    earlier_clocks: Vec<(Nanos, Clock)>,
    state: RunState,
    /// Crash faults that have not ended
    crashes: u32,
    pauses: u32,
    /// Time of the earliest queued event for the node's timer
    armed: Option<Nanos>,
}

/// A network in virtual time. One seed determines everything random: two runs of the same world with the same
/// seed are identical to the byte.
///
/// Usage: [`add`](Self::add) nodes, [`connect`](Self::connect) them, [`schedule`](Self::schedule) faults,
/// then advance with [`run_until`](Self::run_until) or [`step`](Self::step). The nodes start at the first
/// call of one of the last two, or of [`with`](Self::with).
///
/// # Panics
/// Functions panic if a [`NodeId`] or a [`LinkId`] is of another world with more nodes or links.
pub struct World {
    net: Net,
    nodes: Vec<Slot>,
    faults: Vec<Fault>,
    links: Vec<[usize; 2]>,
    started: bool,
    events: u64,
}

impl World {
    /// Creates an empty world.
    pub fn new(seed: u64) -> Self {
        Self {
            net: Net::new(seed),
            nodes: Vec::new(),
            faults: Vec::new(),
            links: Vec::new(),
            started: false,
            events: 0,
        }
    }

    /// Adds a host or switch. Its ports are numbered in the order in which links are connected to it.
    pub fn add(&mut self, name: &str, node: impl Node, clock: Clock) -> NodeId {
        let (name, node) = (name.into(), Box::new(node));
        self.nodes.push(Slot {
            name,
            node,
            clock,
            earlier_clocks: Vec::new(),
            state: RunState::Up,
            crashes: 0,
            pauses: 0,
            armed: None,
        });
        NodeId(self.net.add_node())
    }

    /// Connects two nodes by a link, at the next free port of each.
    pub fn connect(&mut self, a: NodeId, b: NodeId, link: Link) -> LinkId {
        let number = self.net.join(a.0, b.0, link);
        self.links.push([2 * number, 2 * number + 1]);
        LinkId(number)
    }

    /// Schedules a fault at a time of the world, or now if that time has passed.
    pub fn schedule(&mut self, at: Nanos, fault: Fault) {
        let number = self.faults.len() as u32;
        self.faults.push(fault);
        self.net.schedule(at, Event::Fault { number });
    }

    /// Makes what `from` sends on a link arrive later by `by` from now on: a path whose two directions differ.
    pub fn delay_from(&mut self, link: LinkId, from: NodeId, by: Nanos) {
        for direction in self.links[link.0] {
            let direction = &mut self.net.directions[direction];
            if direction.from.0 == from.0 {
                direction.link.delay = direction.link.delay + by;
            }
        }
    }

    /// Captures every frame that is sent on a link, in both directions, as a pcap file with nanosecond
    /// timestamps.
    pub fn capture(&mut self, link: LinkId, to: impl Write + Send + 'static) {
        self.net.captures[link.0] = Some(Capture::new(Box::new(to)));
    }

    /// Ends all captures.
    ///
    /// # Errors
    /// The first error of writing a capture.
    pub fn finish_captures(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for capture in self.net.captures.iter_mut().filter_map(Option::take) {
            result = result.and(capture.finish());
        }
        result
    }

    /// Records, from now on, every frame that is lost or damaged on any link, and every frame lost at nodes
    /// that are down.
    pub fn record_losses(&mut self) {
        self.net.losses.get_or_insert_default();
    }

    /// Returns the recorded frames that were lost, and those that were damaged, as they were before the
    /// damage.
    pub fn losses(&self) -> &[Vec<u8>] {
        self.net.losses.as_deref().unwrap_or_default()
    }

    /// Returns the time of the world.
    pub fn now(&self) -> Nanos {
        self.net.now
    }

    /// Returns the reading of a node's clock.
    pub fn clock(&self, node: NodeId) -> Nanos {
        self.nodes[node.0].clock.reading_at(self.net.now)
    }

    /// Returns the time of the world at which a node's clock showed `local`: exact without drift, and up to 3
    /// ns late with it. Where a fault changed the clock, the reading before the change counts.
    pub fn when(&self, node: NodeId, local: Nanos) -> Nanos {
        let Slot { clock, earlier_clocks, .. } = &self.nodes[node.0];
        let shown = earlier_clocks.iter().find(|(until, clock)| local < clock.reading_at(*until));
        shown.map_or(clock, |(_, clock)| clock).when(local, Nanos::ZERO)
    }

    /// Returns a node's name.
    pub fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.0].name
    }

    /// Returns the number of events so far, and how many of them were arrivals of frames.
    pub fn events(&self) -> (u64, u64) {
        (self.events, self.net.arrivals)
    }

    /// Returns a digest of every byte that was sent on any link and of the times of sending; equal for
    /// identical runs.
    pub fn digest(&self) -> u64 {
        self.net.digest.value()
    }

    /// Returns a link's counters: of frames from its first end, and of those from its second.
    pub fn counters(&self, link: LinkId) -> [Counters; 2] {
        self.links[link.0].map(|direction| self.net.directions[direction].counters)
    }

    /// Returns the nodes at a link's ends.
    pub fn ends(&self, link: LinkId) -> [NodeId; 2] {
        let direction = &self.net.directions[self.links[link.0][0]];
        [NodeId(direction.from.0), NodeId(direction.to.0)]
    }

    /// Returns the MTU of a link: the bytes of the longest IP packet.
    pub fn mtu(&self, link: LinkId) -> usize {
        self.net.directions[self.links[link.0][0]].link.mtu
    }

    /// Returns all links.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.links.len()).map(LinkId)
    }

    /// Returns whether a node has crashed and not restarted.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.nodes[node.0].state == RunState::Down
    }

    /// Returns a node.
    ///
    /// # Panics
    /// If the node is not a `T`.
    pub fn node<T: Node>(&self, node: NodeId) -> &T {
        let any: &dyn Any = &*self.nodes[node.0].node;
        any.downcast_ref().expect("the node is of this type")
    }

    /// Returns a node to be changed between two steps. The world does not notice what the node wants to send,
    /// or that its timer changed, before the node's next event; use [`with`](Self::with) for that.
    ///
    /// # Panics
    /// If the node is not a `T`.
    pub fn node_mut<T: Node>(&mut self, node: NodeId) -> &mut T {
        let any: &mut dyn Any = &mut *self.nodes[node.0].node;
        any.downcast_mut().expect("the node is of this type")
    }

    /// Calls a node from outside: an application's call, or a command of the control plane. `act` gets the
    /// node and the reading of its clock. Then the world sends what the node has to send, and arms its timer.
    ///
    /// # Panics
    /// If the node is not a `T`.
    pub fn with<T: Node, R>(&mut self, node: NodeId, act: impl FnOnce(&mut T, Nanos) -> R) -> R {
        self.start();
        let now = self.clock(node);
        let any: &mut dyn Any = &mut *self.nodes[node.0].node;
        let result = act(any.downcast_mut().expect("the node is of this type"), now);
        self.service(node.0);
        result
    }

    /// Returns the time of the world at which the next event is due; `None` if no event is left.
    pub fn next_at(&mut self) -> Option<Nanos> {
        self.start();
        self.net.peek()
    }

    /// Returns whether no event is left.
    pub fn is_over(&mut self) -> bool {
        self.start();
        self.net.peek().is_none()
    }

    /// Handles all events up to a time of the world, and advances the time to it.
    pub fn run_until(&mut self, until: Nanos) {
        while self.step(until) {}
        self.net.now = self.net.now.max(until);
    }

    /// Handles the next event if it is due by `until`. Returns false if there is none.
    pub fn step(&mut self, until: Nanos) -> bool {
        self.start();
        let Some(event) = self.net.next(until) else { return false };
        self.events += 1;
        match event {
            Event::Arrive { direction, frame } => {
                let frame = self.net.take_frame(frame);
                self.arrive(direction as usize, frame);
            }
            Event::Sent { direction } => {
                self.net.sent(direction as usize);
                let (node, port) = self.net.directions[direction as usize].from;
                self.transmit_ready(node, port);
                self.arm_timer(node);
            }
            Event::Timer { node } => self.fire_timer(node as usize),
            Event::Fault { number } => self.apply_fault(self.faults[number as usize].clone()),
        }
        true
    }

    fn start(&mut self) {
        if self.started {
            return;
        }
        self.started = true;
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
    }

    fn start_node(&mut self, node: usize) {
        let slot = &mut self.nodes[node];
        let now = slot.clock.reading_at(self.net.now);
        slot.node.start(now, &mut Ports { net: &mut self.net, node });
        self.service(node);
    }

    fn arrive(&mut self, direction: usize, frame: Vec<u8>) {
        let Self { net, nodes, .. } = self;
        let number = direction;
        let direction = &mut net.directions[number];
        let (node, port) = direction.to;
        let slot = &mut nodes[node];
        if direction.cuts > 0 {
            direction.counters.cut += 1;
            net.lose(frame);
            return;
        }
        match &mut slot.state {
            RunState::Up => {
                direction.counters.arrived += 1;
                direction.counters.arrived_bytes += frame.len() as u64;
                net.arrivals += 1;
                let now = slot.clock.reading_at(net.now);
                slot.node.on_frame(MemoryFrame::new(frame), port, now, &mut Ports { net, node });
                self.service(node);
            }
            RunState::Paused(inbox) if inbox.len() < INBOX => {
                inbox.push_back((frame, port, number));
            }
            RunState::Paused(_) | RunState::Down => {
                direction.counters.undelivered += 1;
                net.lose(frame);
            }
        }
    }

    fn fire_timer(&mut self, node: usize) {
        let slot = &mut self.nodes[node];
        if slot.armed != Some(self.net.now) {
            return;
        }
        slot.armed = None;
        if slot.state != RunState::Up {
            return;
        }
        let now = slot.clock.reading_at(self.net.now);
        if slot.node.next_timer().is_some_and(|at| at <= now) {
            slot.node.on_timer(now, &mut Ports { net: &mut self.net, node });
        }
        self.service(node);
    }

    /// Sends what a node has to send, and arms its timer. Called after each event of the node.
    fn service(&mut self, node: usize) {
        for port in 0..self.net.ports_of(node) {
            self.transmit_ready(node, PortId(port as u16));
        }
        self.arm_timer(node);
    }

    fn transmit_ready(&mut self, node: usize, port: PortId) {
        let Self { net, nodes, .. } = self;
        let slot = &mut nodes[node];
        if slot.state != RunState::Up {
            return;
        }
        let direction = net.direction_of(node, port.index());
        while net.is_idle(direction) {
            let mut frame = net.spare();
            if !slot.node.poll_transmit(port, slot.clock.reading_at(net.now), &mut frame) {
                net.recycle(frame);
                return;
            }
            net.transmit(direction, frame);
        }
    }

    fn arm_timer(&mut self, node: usize) {
        let slot = &mut self.nodes[node];
        if slot.state != RunState::Up {
            return;
        }
        let Some(local) = slot.node.next_timer() else { return };
        let at = slot.clock.when(local, self.net.now);
        if slot.armed.is_none_or(|armed| at < armed) {
            slot.armed = Some(at);
            self.net.schedule(at, Event::Timer { node: node as u32 });
        }
    }

    fn apply_fault(&mut self, fault: Fault) {
        let now = self.net.now;
        match fault {
            Fault::Crash(NodeId(node)) => self.crash(node),
            Fault::Restart(NodeId(node)) => self.restart(node),
            Fault::Pause(NodeId(node)) => {
                let slot = &mut self.nodes[node];
                slot.pauses += 1;
                if slot.state == RunState::Up {
                    (slot.state, slot.armed) = (RunState::Paused(VecDeque::new()), None);
                }
            }
            Fault::Resume(NodeId(node)) => self.resume(node),
            Fault::Cut(links) => self.change_cuts(&links, |cuts| cuts + 1),
            Fault::Heal(links) => self.change_cuts(&links, |cuts| cuts.saturating_sub(1)),
            Fault::Mute(NodeId(node), links) => self.change_cuts_from(node, &links, |cuts| cuts + 1),
            Fault::Unmute(NodeId(node), links) => {
                self.change_cuts_from(node, &links, |cuts| cuts.saturating_sub(1));
            }
            Fault::PartitionPair(a, b) => self.net.partitioned.push([a, b]),
            Fault::HealPair(a, b) => {
                let at = self.net.partitioned.iter().position(|pair| *pair == [a, b] || *pair == [b, a]);
                at.map(|at| self.net.partitioned.swap_remove(at));
            }
            Fault::MutePair(from, to) => self.net.muted.push([from, to]),
            Fault::UnmutePair(from, to) => {
                let at = self.net.muted.iter().position(|pair| *pair == [from, to]);
                at.map(|at| self.net.muted.swap_remove(at));
            }
            Fault::Mtu(LinkId(link), mtu) => {
                for direction in self.links[link] {
                    self.net.directions[direction].link.mtu = mtu;
                }
            }
            Fault::Swap(LinkId(a), LinkId(b)) => self.net.swap(self.links[a], self.links[b]),
            Fault::Send(NodeId(node), frame) => {
                if self.nodes[node].state == RunState::Up {
                    // A full queue loses the frame, as a link may.
                    _ = self.net.send(node, PortId(0), frame);
                }
            }
            Fault::Rehash(NodeId(node), salt) => self.nodes[node].node.rehash(salt),
            Fault::ClockStep(NodeId(node), by) => self.change_clock(node, |clock| clock.step(now, by)),
            Fault::ClockDrift(NodeId(node), ppb) => {
                self.change_clock(node, |clock| clock.set_drift(now, ppb));
            }
        }
    }

    fn change_clock(&mut self, node: usize, change: impl FnOnce(&mut Clock)) {
        let slot = &mut self.nodes[node];
        slot.earlier_clocks.push((self.net.now, slot.clock));
        change(&mut slot.clock);
        slot.armed = None;
        self.service(node);
    }

    fn crash(&mut self, node: usize) {
        let slot = &mut self.nodes[node];
        slot.crashes += 1;
        if slot.state != RunState::Down {
            slot.node.crash();
            slot.armed = None;
            if let RunState::Paused(inbox) = core::mem::replace(&mut slot.state, RunState::Down) {
                for (frame, _, direction) in inbox {
                    self.net.directions[direction].counters.undelivered += 1;
                    self.net.lose(frame);
                }
            }
            self.net.clear_queues(node);
        }
    }

    fn restart(&mut self, node: usize) {
        let slot = &mut self.nodes[node];
        slot.crashes = slot.crashes.saturating_sub(1);
        if slot.state == RunState::Down && slot.crashes == 0 {
            slot.state = if slot.pauses > 0 { RunState::Paused(VecDeque::new()) } else { RunState::Up };
            self.start_node(node);
        }
    }

    /// Handles the frames that arrived during the pause, then the timer.
    fn resume(&mut self, node: usize) {
        let slot = &mut self.nodes[node];
        slot.pauses = slot.pauses.saturating_sub(1);
        if slot.pauses > 0 || !matches!(slot.state, RunState::Paused(_)) {
            return;
        }
        let RunState::Paused(inbox) = core::mem::replace(&mut slot.state, RunState::Up) else { return };
        let now = slot.clock.reading_at(self.net.now);
        for (frame, port, direction) in inbox {
            let counters = &mut self.net.directions[direction].counters;
            counters.arrived += 1;
            counters.arrived_bytes += frame.len() as u64;
            self.net.arrivals += 1;
            slot.node.on_frame(MemoryFrame::new(frame), port, now, &mut Ports { net: &mut self.net, node });
        }
        self.service(node);
    }

    fn change_cuts(&mut self, links: &[LinkId], change: impl Fn(u32) -> u32) {
        for LinkId(link) in links {
            for direction in self.links[*link] {
                let cuts = &mut self.net.directions[direction].cuts;
                *cuts = change(*cuts);
            }
        }
    }

    fn change_cuts_from(&mut self, node: usize, links: &[LinkId], change: impl Fn(u32) -> u32) {
        for LinkId(link) in links {
            for direction in self.links[*link] {
                let direction = &mut self.net.directions[direction];
                if direction.from.0 == node {
                    direction.cuts = change(direction.cuts);
                }
            }
        }
    }
}

impl core::fmt::Debug for World {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names: Vec<_> = self.nodes.iter().map(|slot| &slot.name).collect();
        f.debug_struct("World").field("now", &self.net.now).field("nodes", &names).finish_non_exhaustive()
    }
}

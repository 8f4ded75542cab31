//! Controllers with their store, and the management network: one connection of each node with each controller.
//! A connection delays messages and keeps their order; when it breaks, what is under way is lost.

use super::System;
use super::host::Host;
use crate::onepipe::Network;
use controller::machine::{Config, Effect, Input, NodeKey, WriteId};
use controller::store::{Change, MemoryStore, StoreError, Term};
use controller::{Machine, Store};
use onepipe::control::Envelope;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use switch::{Nanos, Rng};

/// Time for which a node waits before it connects again
const RECONNECTS_AFTER: u64 = 30_000;
/// Time after which a controller that does not answer has lost its lease
const LEASE: Nanos = Nanos::from_micros(150);
/// Interval of the controllers' timer
const TIMER: Nanos = Nanos::from_micros(8);
/// Time in which a node has to answer a controller
pub(super) const RESPOND_WITHIN: Nanos = Nanos::from_micros(800);

/// The same in measurements, in which writes take up to a millisecond
pub(super) const MEASURED_WITHIN: Nanos = Nanos::from_millis(3);

/// Messages of one direction
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// With their times of arrival
    messages: VecDeque<(Nanos, Vec<u8>)>,
    /// Nothing arrives before that
    stalled_until: Nanos,
}

impl Queue {
    /// Adds a message, which arrives after those before it.
    fn push(&mut self, envelope: &Envelope, at: Nanos) {
        let at = self.messages.back().map_or(at, |last| at.max(last.0)).max(self.stalled_until);
        self.messages.push_back((at, envelope.encode().expect("a message of a run is short")));
    }

    fn pop_due(&mut self, now: Nanos) -> Option<Envelope> {
        self.messages.front().filter(|(at, _)| *at <= now)?;
        let (_, bytes) = self.messages.pop_front()?;
        Some(Envelope::decode(&bytes).expect("just encoded"))
    }

    /// Stands still until a time: what is under way arrives then, in order.
    fn stall(&mut self, until: Nanos) {
        self.stalled_until = self.stalled_until.max(until);
        self.messages.iter_mut().for_each(|(at, _)| *at = until.max(*at));
    }
}

/// Connection of a node with a controller.
#[derive(Debug, Default)]
struct Connection {
    to_node: Queue,
    to_controller: Queue,
}

/// A controller.
#[derive(Debug)]
pub(super) struct Controller {
    machine: Machine,
    store: MemoryStore,
    connections: BTreeMap<NodeKey, Connection>,
    /// When nodes without a connection connect again
    reconnects: BTreeMap<NodeKey, Nanos>,
    write: Option<Write>,
    writes: VecDeque<(WriteId, Vec<Change>)>,
    /// Since when it has wanted to lead
    campaigns: Option<Nanos>,
    /// It does nothing until then, as a program that is suspended
    paused_until: Nanos,
    timer: Nanos,
    /// Error of its clock (ns)
    clock_off: i64,
    /// Time that it takes for a message in a measurement, in which writes take exactly as long as they may, and until
    /// when it is busy
    message_time: Option<Nanos>,
    busy_until: Nanos,
}

/// Write under way.
#[derive(Debug)]
struct Write {
    id: WriteId,
    /// Changes, until they are applied, and when that is
    changes: Option<Vec<Change>>,
    applied_at: Nanos,
    result: Result<(), StoreError>,
    answered_at: Nanos,
}

impl Controller {
    fn new(machine: Machine, store: MemoryStore, now: Nanos, message_time: Option<Nanos>) -> Self {
        Self {
            machine,
            store,
            connections: BTreeMap::new(),
            reconnects: BTreeMap::new(),
            write: None,
            writes: VecDeque::new(),
            campaigns: Some(now),
            paused_until: Nanos::ZERO,
            timer: now,
            clock_off: 0,
            message_time,
            busy_until: now,
        }
    }

    /// Returns the state machine.
    pub(super) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Takes the time of a message. Returns when it is done with it.
    fn spend(&mut self, now: Nanos) -> Nanos {
        self.busy_until = self.busy_until.max(now) + self.message_time.unwrap_or_default();
        self.busy_until
    }

    /// Returns whether it leads, as far as the store and the controller itself know.
    pub(super) fn leads(&self) -> bool {
        self.store.leads() && self.machine.term().is_some()
    }

    /// Returns whether it suspects a failure that it has not decided.
    pub(super) fn suspects(&self) -> bool {
        self.machine.suspects()
    }

    /// Returns whether it has a connection with a node, which does not stand still, and works.
    pub(super) fn reaches(&self, node: NodeKey, now: Nanos) -> bool {
        let stands_still = |connection: &Connection| {
            connection.to_node.stalled_until.max(connection.to_controller.stalled_until) > now
        };
        self.paused_until <= now && self.connections.get(&node).is_some_and(|of| !stands_still(of))
    }

    fn input(&mut self, input: Input, now: Nanos, rng: &mut Rng, delay: u64) {
        self.machine.on(input, now, Network::time(now).wrapping_add_signed(self.clock_off));
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Send(node, envelope) => {
                    let sent = self.spend(now);
                    if let Some(connection) = self.connections.get_mut(&node) {
                        connection.to_node.push(&envelope, sent + Nanos(rng.between(1000, delay)));
                    }
                }
                Effect::Write(id, changes) => self.writes.push_back((id, changes)),
                Effect::Campaign => self.campaigns = Some(now),
                Effect::Alarm(_) => {}
            }
        }
    }

    /// Applies and answers writes.
    fn run_store(&mut self, now: Nanos, rng: &mut Rng, latency: u64) -> Option<Input> {
        if self.write.is_none()
            && let Some((id, changes)) = self.writes.pop_front()
        {
            let is_exact = self.message_time.is_some();
            let answered_at = now + Nanos(if is_exact { latency } else { rng.below(latency + 1) });
            let applied_at =
                if is_exact { answered_at } else { now + Nanos(rng.below(answered_at.since(now).0 + 1)) };
            self.write = Some(Write { id, changes: Some(changes), applied_at, result: Ok(()), answered_at });
        }
        let write = self.write.as_mut()?;
        if write.applied_at <= now
            && let Some(changes) = write.changes.take()
        {
            let term = self.machine.term().unwrap_or(Term(0));
            write.result = self.store.write(term, &changes);
        }
        if write.answered_at > now {
            return None;
        }
        let Write { id, result, .. } = self.write.take()?;
        Some(Input::Written(id, result))
    }
}

impl System {
    /// Returns how many suspicions of the present leader have ended because all links spoke again.
    pub fn thawed(&self) -> u64 {
        self.leader().map_or(0, |leader| leader.machine.counts().thawed)
    }

    /// Starts a controller. It leads as soon as no other one does.
    pub fn start_controller(&mut self) {
        let config = Config {
            network: super::TOPOLOGY,
            gather: Nanos(2 * crate::onepipe::BEACON_INTERVAL.0),
            respond_within: if self.message_time().is_some() { MEASURED_WITHIN } else { RESPOND_WITHIN },
            reconnect_within: Nanos(RECONNECTS_AFTER),
            // That of the representatives, as in a plan
            ahead_max: self.plan.tree.ahead_max(),
            behind_max: Some(Nanos(2 * self.plan.tree.ahead_max().0)),
            max_recalls: 1000,
        };
        let mut machine = Machine::new(self.graph.clone(), config);
        if let Some(bug) = self.plan.bugs.controller {
            machine.plant(bug);
        }
        let now = self.now();
        let mut controller = Controller::new(machine, self.store.clone(), now, self.message_time());
        self.starts += 1;
        controller.clock_off = self.controller_clock_off(self.starts);
        for node in self.nodes() {
            controller.reconnects.insert(node, now + Nanos(self.rng.below(RECONNECTS_AFTER)));
        }
        self.controllers.push(controller);
    }

    /// Stops controller `n`: nothing of it is left but what it has stored, and what it has sent, which arrives.
    pub fn stop_controller(&mut self, n: usize) {
        let connections = self.controllers.remove(n).connections;
        self.closing.extend(connections.into_iter().map(|(node, connection)| (node, connection.to_node)));
    }

    /// Lets a connection of a node stand still in both directions or in one of them.
    pub(super) fn stall_connection(&mut self, n: usize, node: NodeKey, until: Nanos) {
        let which = self.rng.below(3);
        let Some(connection) = self.controllers[n].connections.get_mut(&node) else { return };
        if which != 0 {
            connection.to_node.stall(until);
        }
        if which != 1 {
            connection.to_controller.stall(until);
        }
    }

    /// Delivers what controllers have sent that have ended.
    fn deliver_of_ended(&mut self) {
        let now = self.now();
        for n in 0..self.closing.len() {
            let node = self.closing[n].0;
            while let Some(envelope) = self.closing[n].1.pop_due(now) {
                self.deliver(node, envelope);
            }
        }
        self.closing.retain(|(_, queue)| !queue.messages.is_empty());
    }

    fn deliver(&mut self, node: NodeKey, envelope: Envelope) {
        let copy = envelope.clone();
        self.with_node(
            node,
            move |host, now| host.on_envelope(&copy, now),
            move |keeper, now| keeper.on_envelope(envelope, now),
        );
    }

    /// Suspends controller `n` for some time, in which another one may take over.
    pub fn pause_controller(&mut self, n: usize, time: Nanos) {
        self.controllers[n].paused_until = self.now() + time;
    }

    /// Returns the number of controllers.
    pub fn controllers(&self) -> usize {
        self.controllers.len()
    }

    /// Returns the leader.
    pub(super) fn leader(&self) -> Option<&Controller> {
        self.controllers.iter().find(|controller| controller.leads())
    }

    /// Returns the number of the leader among the controllers, if there is one.
    pub fn leader_number(&self) -> Option<usize> {
        self.controllers.iter().position(Controller::leads)
    }

    /// Returns the nodes of the management network.
    pub(super) fn nodes(&self) -> Vec<NodeKey> {
        let hosts = (0..self.network.hosts.len()).map(|n| NodeKey::Process(onepipe::ProcessId(n as u32)));
        let nodes = hosts.chain(self.sites.keys().map(|&(switch, seat)| NodeKey::Rep(switch, seat)));
        nodes.filter(|&node| !self.is_unmanaged(node)).collect()
    }

    fn is_unmanaged(&self, node: NodeKey) -> bool {
        matches!(node, NodeKey::Process(id) if self.plan.unmanaged == Some(id.0 as usize))
    }

    pub(super) fn is_down(&self, node: NodeKey) -> bool {
        let id = match node {
            NodeKey::Process(id) => self.network.hosts[id.0 as usize],
            NodeKey::Rep(switch, seat) => self.sites[&(switch, seat)].worker,
        };
        self.network.world.is_down(id)
    }

    /// Breaks the connections of a node with all controllers.
    pub(super) fn disconnect(&mut self, node: NodeKey) {
        if self.is_unmanaged(node) {
            return;
        }
        self.closing.retain(|(of, _)| *of != node);
        for n in 0..self.controllers.len() {
            self.break_connection(n, node);
        }
    }

    /// Breaks a connection; the node connects again after a drawn time.
    fn break_connection(&mut self, n: usize, node: NodeKey) {
        let now = self.now();
        let at = now + Nanos(self.rng.below(RECONNECTS_AFTER));
        let (delay, rng) = (self.plan.management_delay, &mut self.rng);
        let controller = &mut self.controllers[n];
        if controller.connections.remove(&node).is_some() {
            controller.input(Input::Down(node), now, rng, delay);
        }
        controller.reconnects.insert(node, at);
    }

    /// Passes what a node has for the controllers to its connections.
    pub(super) fn send_to_controllers(
        &mut self,
        node: NodeKey,
        envelopes: impl IntoIterator<Item = Envelope>,
    ) {
        let now = self.now();
        for envelope in envelopes {
            for controller in &mut self.controllers {
                if let Some(connection) = controller.connections.get_mut(&node) {
                    let at = now + Nanos(self.rng.between(1000, self.plan.management_delay));
                    connection.to_controller.push(&envelope, at);
                }
            }
        }
    }

    /// Runs all controllers at the present time.
    pub(super) fn run_controllers(&mut self) {
        self.deliver_of_ended();
        for n in 0..self.controllers.len() {
            self.connect_nodes(n);
            if self.controllers[n].paused_until > self.now() {
                continue;
            }
            self.deliver_to_nodes(n);
            self.deliver_to_controller(n);
            let (now, delay) = (self.now(), self.plan.management_delay);
            let (controller, rng) = (&mut self.controllers[n], &mut self.rng);
            if let Some(input) = controller.run_store(now, rng, self.plan.store_latency) {
                controller.input(input, now, rng, delay);
            }
            let is_due = controller.machine.next_timer().is_some_and(|at| at <= now);
            if controller.timer <= now || is_due && controller.message_time.is_some() {
                controller.timer = now + TIMER;
                controller.input(Input::Timer, now, rng, delay);
                self.campaign(n);
            }
        }
    }

    /// Gives all controllers an input.
    pub(super) fn input_all(&mut self, input: &Input) {
        for n in 0..self.controllers.len() {
            self.input_one(n, input.clone());
        }
    }

    /// Gives one controller an input.
    pub(super) fn input_one(&mut self, n: usize, input: Input) {
        let (now, delay) = (self.now(), self.plan.management_delay);
        self.controllers[n].input(input, now, &mut self.rng, delay);
    }

    fn connect_nodes(&mut self, n: usize) {
        let now = self.now();
        let due = |(node, at): (&NodeKey, &Nanos)| {
            (*at <= now && !self.cut_off.contains(node) && !self.is_down(*node)).then_some(*node)
        };
        let due: Vec<_> = self.controllers[n].reconnects.iter().filter_map(due).collect();
        for node in due {
            let (delay, rng) = (self.plan.management_delay, &mut self.rng);
            let controller = &mut self.controllers[n];
            controller.reconnects.remove(&node);
            controller.connections.insert(node, Connection::default());
            controller.input(Input::Up(node), now, rng, delay);
            self.with_node(node, Host::on_connected, representative::Keeper::on_connected);
        }
    }

    fn deliver_to_nodes(&mut self, n: usize) {
        let now = self.now();
        let nodes: Vec<_> = self.controllers[n].connections.keys().copied().collect();
        for node in nodes {
            let due =
                |controller: &mut Controller| controller.connections.get_mut(&node)?.to_node.pop_due(now);
            while let Some(envelope) = due(&mut self.controllers[n]) {
                self.deliver(node, envelope);
            }
        }
    }

    fn deliver_to_controller(&mut self, n: usize) {
        let (now, delay) = (self.now(), self.plan.management_delay);
        let (controller, rng) = (&mut self.controllers[n], &mut self.rng);
        let nodes: Vec<_> = controller.connections.keys().copied().collect();
        for node in nodes {
            while let Some(envelope) = controller
                .connections
                .get_mut(&node)
                .filter(|_| controller.busy_until < now + super::STEP)
                .and_then(|connection| connection.to_controller.pop_due(now))
            {
                controller.spend(now);
                controller.input(Input::FromNode(node, envelope), now, rng, delay);
            }
        }
    }

    /// Has a node act on its controllers' messages.
    fn with_node(
        &mut self,
        node: NodeKey,
        host: impl FnOnce(&mut Host, Nanos),
        keeper: impl FnOnce(&mut representative::Keeper, Nanos),
    ) {
        match node {
            NodeKey::Process(id) => self.network.world.with(self.network.hosts[id.0 as usize], host),
            NodeKey::Rep(switch, seat) => {
                let now = self.now();
                if let Some(site) = self.sites.get_mut(&(switch, seat)) {
                    keeper(&mut site.keeper, now);
                }
                self.pass_commands((switch, seat));
            }
        }
    }

    /// Lets a controller lead that wants to, if no other one has a lease.
    fn campaign(&mut self, n: usize) {
        let now = self.now();
        let has_lease = |controller: &Controller| controller.leads() && controller.paused_until <= now;
        let Some(since) = self.controllers[n].campaigns else { return };
        if now.since(since) < LEASE && self.terms > 0 || self.controllers.iter().any(has_lease) {
            return;
        }
        let (delay, rng) = (self.plan.management_delay, &mut self.rng);
        let controller = &mut self.controllers[n];
        controller.campaigns = None;
        (controller.write, controller.writes) = (None, VecDeque::new());
        if let Ok(Some((term, records))) = controller.store.campaign(Duration::ZERO) {
            self.terms += 1;
            controller.input(Input::Led(term, records), now, rng, delay);
            for node in controller.connections.keys().copied().collect::<Vec<_>>() {
                controller.input(Input::Up(node), now, rng, delay);
            }
        }
    }
}

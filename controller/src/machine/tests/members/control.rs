//! The controllers, their store, and the management network: connections that delay, repeat and break, each in
//! order.

use super::host::EPOCH;
use super::network::{Network, STEP};
use crate::machine::tests::nodes::NETWORK;
use crate::machine::{Config, Effect, Input, Machine, NodeKey, WriteId};
use crate::store::{Change, MemoryStore, Store, StoreError, Term};
use onepipe::control::Envelope;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use switch::Nanos;

/// Messages of one direction of a connection, and when they arrive
type Queue = VecDeque<(u64, Envelope)>;

#[derive(Debug)]
pub(super) struct Controller {
    machine: Machine,
    store: MemoryStore,
    to_nodes: BTreeMap<NodeKey, Queue>,
    from_nodes: BTreeMap<NodeKey, Queue>,
    writes: VecDeque<(WriteId, Vec<Change>)>,
    /// Result of a write, and when it arrives
    results: VecDeque<(u64, WriteId, Result<(), StoreError>)>,
    campaigns: bool,
    /// Nothing is carried between it and the nodes until then
    stalled_until: u64,
}

/// Removes and returns the first message of a connection, if it has arrived.
fn pop_due(queue: Option<&mut Queue>, now: u64) -> Option<Envelope> {
    let queue = queue?;
    let is_due = queue.front().is_some_and(|(at, _)| *at <= now);
    if is_due { queue.pop_front().map(|(_, envelope)| envelope) } else { None }
}

impl Network {
    pub(super) fn new_controller(&mut self) {
        let config = Config {
            network: NETWORK,
            gather: Nanos(5 * STEP),
            respond_within: Nanos(1_500 * STEP),
            reconnect_within: Nanos(3_000 * STEP),
            ahead_max: Nanos(1_000_000),
            behind_max: None,
            max_recalls: 1_000,
        };
        let mut machine = Machine::new(self.graph.clone(), config);
        if let Some(bug) = self.plan.controller_bug {
            machine.plant(bug);
        }
        self.controllers.push(Controller {
            machine,
            store: self.store.clone(),
            to_nodes: BTreeMap::new(),
            from_nodes: BTreeMap::new(),
            writes: VecDeque::new(),
            results: VecDeque::new(),
            campaigns: true,
            stalled_until: 0,
        });
        let n = self.controllers.len() - 1;
        for node in self.nodes() {
            self.connect(n, node);
        }
    }

    /// Connects a node with a controller; what was under way is lost.
    pub(super) fn connect(&mut self, n: usize, node: NodeKey) {
        self.disconnect(n, node);
        if self.is_dead(node) {
            return;
        }
        self.input(n, Input::Up(node));
        if let NodeKey::Process(id) = node {
            let now = self.now;
            let host = self.host_mut(id.0);
            host.member.on_connected(&mut host.process, now);
        }
    }

    pub(super) fn disconnect(&mut self, n: usize, node: NodeKey) {
        self.controllers[n].to_nodes.remove(&node);
        self.controllers[n].from_nodes.remove(&node);
        self.input(n, Input::Down(node));
    }

    pub(super) fn controllers(&self) -> usize {
        self.controllers.len()
    }

    /// Replaces all controllers by a new one.
    pub(super) fn replace_controller(&mut self) {
        self.controllers.clear();
        self.new_controller();
    }

    /// A second controller takes over; the first one does not know, and is not heard for a while.
    pub(super) fn take_over(&mut self, stall: u64) {
        if self.controllers.len() == 1 {
            self.controllers[0].stalled_until = self.now.0 + stall;
            self.new_controller();
            self.campaign(1);
        } else {
            self.controllers.remove(0);
        }
    }

    fn has_leader(&self) -> bool {
        let leads = |controller: &Controller| controller.store.leads() && controller.machine.term().is_some();
        self.controllers.iter().any(leads)
    }

    fn campaign(&mut self, n: usize) {
        let controller = &mut self.controllers[n];
        controller.campaigns = false;
        controller.writes.clear();
        controller.results.clear();
        if let Ok(Some((term, records))) = controller.store.campaign(Duration::ZERO) {
            self.terms += 1;
            self.input(n, Input::Led(term, records));
            for node in self.nodes().into_iter().filter(|&node| !self.is_dead(node)).collect::<Vec<_>>() {
                self.input(n, Input::Up(node));
            }
        }
    }

    pub(super) fn input(&mut self, n: usize, input: Input) {
        let now = self.now.0;
        let controller = &mut self.controllers[n];
        controller.machine.on(input, Nanos(now), EPOCH + now);
        while let Some(effect) = controller.machine.poll_effect() {
            match effect {
                Effect::Send(node, envelope) => {
                    let bytes = envelope.encode().expect("short");
                    let envelope = Envelope::decode(&bytes).expect("just encoded");
                    let queue = controller.to_nodes.entry(node).or_default();
                    let last = queue.back().map_or(0, |(at, _)| *at);
                    let at = last.max(now + self.rng.between(STEP, 30 * STEP));
                    if self.rng.below(20) == 0 {
                        queue.push_back((at, envelope.clone()));
                    }
                    queue.push_back((at, envelope));
                }
                Effect::Write(id, changes) => controller.writes.push_back((id, changes)),
                Effect::Campaign => controller.campaigns = true,
                Effect::Alarm(_) => {}
            }
        }
    }

    /// Sends what a node has for the controllers.
    pub(super) fn send_to_controllers(&mut self, node: NodeKey, envelopes: &[Envelope]) {
        for envelope in envelopes {
            let bytes = envelope.encode().expect("short");
            let envelope = Envelope::decode(&bytes).expect("just encoded");
            for controller in &mut self.controllers {
                let queue = controller.from_nodes.entry(node).or_default();
                let last = queue.back().map_or(0, |(at, _)| *at);
                let at = last.max(self.now.0 + self.rng.between(STEP, 30 * STEP));
                queue.push_back((at, envelope.clone()));
            }
        }
    }

    /// Carries messages and writes, and has the controllers look at the time.
    pub(super) fn run_controllers(&mut self) -> Result<(), String> {
        for n in 0..self.controllers.len() {
            if self.controllers[n].stalled_until <= self.now.0 {
                self.carry_to_nodes(n)?;
                self.carry_from_nodes(n);
            }
            self.run_store(n);
            if (self.now.0 / STEP).is_multiple_of(8) {
                if self.controllers[n].campaigns && !self.has_leader() {
                    self.campaign(n);
                }
                self.input(n, Input::Timer);
            }
        }
        self.see_writes()
    }

    fn carry_to_nodes(&mut self, n: usize) -> Result<(), String> {
        let now = self.now.0;
        for node in self.nodes() {
            while let Some(envelope) = pop_due(self.controllers[n].to_nodes.get_mut(&node), now) {
                self.deliver_to_node(node, &envelope)?;
            }
        }
        Ok(())
    }

    fn deliver_to_node(&mut self, node: NodeKey, envelope: &Envelope) -> Result<(), String> {
        if self.is_dead(node) {
            return Ok(());
        }
        match node {
            NodeKey::Process(id) => {
                let now = self.now;
                self.host_mut(id.0).on_envelope(envelope, now)
            }
            NodeKey::Rep(switch, _) => {
                let rep = self.reps.get_mut(&switch).expect("a switch of the graph");
                if rep.terms.takes(envelope)
                    && let Some(message) = rep.on(&self.graph, switch, envelope.message.clone())
                {
                    let (term, incarnation) = (rep.terms.seen, rep.terms.incarnation);
                    self.send_to_controllers(node, &[Envelope { term, incarnation, message }]);
                }
                Ok(())
            }
        }
    }

    fn carry_from_nodes(&mut self, n: usize) {
        let now = self.now.0;
        for node in self.nodes() {
            while let Some(envelope) = pop_due(self.controllers[n].from_nodes.get_mut(&node), now) {
                self.input(n, Input::FromNode(node, envelope));
            }
        }
    }

    fn run_store(&mut self, n: usize) {
        let now = self.now.0;
        let controller = &mut self.controllers[n];
        if let Some((id, changes)) = controller.writes.pop_front() {
            let term = controller.machine.term().unwrap_or(Term(0));
            let result = controller.store.write(term, &changes);
            controller.results.push_back((now + self.rng.below(20 * STEP), id, result));
        }
        let results = &mut self.controllers[n].results;
        if results.front().is_some_and(|result| result.0 <= now)
            && let Some((_, id, result)) = results.pop_front()
        {
            self.input(n, Input::Written(id, result));
        }
    }

    /// Returns whether a controller is about to decide something.
    pub(super) fn is_undecided(&self) -> bool {
        self.controllers
            .iter()
            .all(|controller| controller.machine.suspects() || controller.machine.term().is_none())
    }

    pub(super) fn fail(&mut self, id: u32) {
        for n in 0..self.controllers.len() {
            self.input(n, Input::Fail(onepipe::ProcessId(id)));
        }
    }
}

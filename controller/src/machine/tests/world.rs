//! The network, its faults, and what has to hold.

mod callbacks;
mod carry;
mod drain;
mod leaders;
mod runs;
mod seats;
mod unheard;

pub(super) use callbacks::run_during_callbacks;
pub(super) use drain::{run_drain, run_drain_among_faults};
pub(super) use runs::{run, run_double_death, run_late_command, run_wrong_clock, run_wrong_members};
pub(super) use seats::{run_ahead, run_seats, run_unseat};
pub(super) use unheard::run_unheard;

use super::nodes::{Answer, Process, Rep, time};
use crate::graph::tests::fabric;
use crate::graph::{Graph, LinkId};
use crate::machine::{Alarm, Bug, Config, Effect, Input, Machine, NodeKey, WriteId};
use crate::record::{CaseRecord, Image, MemberState, Stage};
use crate::store::{Change, MemoryStore, Store, StoreError, Term};
use onepipe::control::{Envelope, Incarnation, Message};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use switch::{Nanos, Rng};

/// Nanoseconds per step
pub(super) const STEP: u64 = 1_000;
pub(super) const RESPOND_WITHIN: u64 = 1_500 * STEP;
/// Longest time after which a node connects to a new controller
const RECONNECT_WITHIN: u64 = 3 * RESPOND_WITHIN;
/// Largest time by which a node's values may be ahead of a controller's clock
const AHEAD_MAX: u64 = 1_000 * STEP;
/// Largest time by which a member's clock may be behind
const BEHIND_MAX: u64 = 2 * AHEAD_MAX;
/// Time after which a link is silent
const SILENT_AFTER: u64 = 400 * STEP;
/// Clock at the start
const EPOCH: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    Controller(Bug),
    OldTermObeyed,
}

struct Controller {
    machine: Machine,
    store: MemoryStore,
    to_nodes: BTreeMap<NodeKey, VecDeque<Envelope>>,
    from_nodes: BTreeMap<NodeKey, VecDeque<Envelope>>,
    /// Writes, and when the store ends them at the earliest
    writes: VecDeque<(u64, WriteId, Vec<Change>)>,
    results: VecDeque<(WriteId, Result<(), StoreError>)>,
    campaigns: bool,
    /// By how many nanoseconds its clock is ahead of the nodes'
    clock_error: i64,
    /// Nothing is carried between it and the nodes until then
    stalled_until: u64,
    /// Nodes that have not connected yet, and when they do
    away: BTreeMap<NodeKey, u64>,
}

/// A decided case as the test sees it.
struct Decided {
    record: CaseRecord,
    /// Members that have to call back
    audience: BTreeSet<(ProcessId, Incarnation)>,
}

/// A link, with the seats of its sender and of its keeper; those of a process are 0.
type Way = (LinkId, u8, u8);

#[allow(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
pub(super) struct World {
    graph: Graph,
    rng: Rng,
    now: u64,
    /// Nanoseconds in which nothing happened
    skipped: u64,
    pub(super) store: MemoryStore,
    controllers: Vec<Controller>,
    /// By switch and seat
    reps: BTreeMap<(u16, u8), Rep>,
    processes: BTreeMap<ProcessId, Process>,
    dead: BTreeSet<NodeKey>,
    cut: BTreeSet<LinkId>,
    /// Links that are cut between two representatives alone, by their seats
    cut_seats: BTreeSet<Way>,
    /// When a keeper last heard a sender, or began to listen
    heard: BTreeMap<Way, u64>,
    boots: u8,
    image: Image,
    applied: usize,
    decided: BTreeMap<u64, Decided>,
    times: BTreeMap<(ProcessId, Incarnation), u64>,
    /// Incarnations that the operator declared failed, with the term in which that was
    declared: Vec<(Term, ProcessId, Incarnation)>,
    planted: Option<Planted>,
    /// Whether failed processes wait instead of starting again
    pub(super) keeps_memory: bool,
    /// Whether some nodes need time to connect to a new controller
    pub(super) reconnects_late: bool,
    /// How often members with an open case do nothing, of four times
    pub(super) pauses: u64,
    /// Whether members have a recall to store for each failed process
    pub(super) stores_recalls: bool,
    /// Whether switches may have two representatives
    has_standbys: bool,
    /// Nanoseconds that a write takes at least
    pub(super) store_takes: u64,
    pub(super) alarms: Vec<Alarm>,
    /// By node: messages that were delivered to it
    pub(super) inbox: BTreeMap<NodeKey, Vec<Message>>,
}

impl World {
    pub(super) fn new(seed: u64, racks: &[usize], spines: usize, planted: Option<Planted>) -> Self {
        Self::with_seats(seed, racks, spines, &[0], planted)
    }

    /// Creates a network whose switches have a representative at each of these seats.
    pub(super) fn with_seats(
        seed: u64,
        racks: &[usize],
        spines: usize,
        seats: &[u8],
        planted: Option<Planted>,
    ) -> Self {
        let spines = if racks.len() > 1 { spines } else { 0 };
        let graph = Graph::new(&fabric(racks, spines));
        let store = MemoryStore::default();
        let mut world = Self {
            reps: (0..graph.switches().len() as u16)
                .flat_map(|switch| seats.iter().map(move |&seat| ((switch, seat), Rep::default())))
                .collect(),
            processes: graph.processes().map(|(id, _)| (id, Process::default())).collect(),
            graph,
            rng: Rng::new(seed),
            now: 0,
            skipped: 0,
            controllers: Vec::new(),
            store,
            dead: BTreeSet::new(),
            cut: BTreeSet::new(),
            cut_seats: BTreeSet::new(),
            has_standbys: seats.len() > 1,
            heard: BTreeMap::new(),
            boots: 0,
            image: Image::default(),
            applied: 0,
            decided: BTreeMap::new(),
            times: BTreeMap::new(),
            declared: Vec::new(),
            planted,
            keeps_memory: false,
            reconnects_late: false,
            pauses: 0,
            stores_recalls: false,
            store_takes: 0,
            alarms: Vec::new(),
            inbox: BTreeMap::new(),
        };
        let nodes: Vec<_> = world.nodes();
        for node in nodes {
            world.boot(node);
        }
        world.new_controller();
        world
    }

    fn nodes(&self) -> Vec<NodeKey> {
        let reps = self.reps.keys().map(|&(switch, seat)| NodeKey::Rep(switch, seat));
        reps.chain(self.processes.keys().map(|&id| NodeKey::Process(id))).collect()
    }

    fn draw(&mut self, below: usize) -> usize {
        self.rng.below(below as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = self.draw(from.len());
        from.get(at).copied()
    }

    /// Starts a node: it knows nothing.
    fn boot(&mut self, node: NodeKey) {
        self.boots += 1;
        let obeys_old = self.planted == Some(Planted::OldTermObeyed);
        match node {
            NodeKey::Rep(switch, seat) => {
                let mut rep = Rep::default();
                (rep.boot, rep.address) = (self.boots, [seat; 16]);
                rep.terms.obeys_old = obeys_old;
                self.reps.insert((switch, seat), rep);
            }
            NodeKey::Process(id) => {
                let mut process = Process::default();
                process.boot = self.boots;
                process.terms.obeys_old = obeys_old;
                self.processes.insert(id, process);
            }
        }
        self.dead.remove(&node);
        for n in 0..self.controllers.len() {
            self.connect(n, node);
        }
    }

    fn connect(&mut self, n: usize, node: NodeKey) {
        self.controllers[n].to_nodes.remove(&node);
        self.controllers[n].from_nodes.remove(&node);
        self.controllers[n].away.remove(&node);
        if !self.dead.contains(&node) {
            self.input(n, Input::Up(node));
        }
    }

    fn new_controller(&mut self) {
        let config = Config {
            network: super::nodes::NETWORK,
            gather: Nanos(5 * STEP),
            respond_within: Nanos(RESPOND_WITHIN),
            reconnect_within: Nanos(RECONNECT_WITHIN),
            ahead_max: Nanos(AHEAD_MAX),
            behind_max: Some(Nanos(BEHIND_MAX)),
            max_recalls: 1_000,
        };
        let mut machine = Machine::new(self.graph.clone(), config);
        if let Some(Planted::Controller(bug)) = self.planted {
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
            clock_error: 0,
            stalled_until: 0,
            away: BTreeMap::new(),
        });
        let n = self.controllers.len() - 1;
        for node in self.nodes() {
            let is_late = self.reconnects_late && self.draw(3) == 0;
            let at = if is_late { self.draw(RECONNECT_WITHIN as usize) as u64 } else { 0 };
            self.controllers[n].away.insert(node, self.now + at);
        }
        self.connect_due(n);
    }

    fn clock(&self) -> u64 {
        EPOCH + self.now + self.skipped
    }

    fn input(&mut self, n: usize, input: Input) {
        let (now, clock) = (Nanos(self.now), self.clock());
        let controller = &mut self.controllers[n];
        let clock = clock.saturating_add_signed(controller.clock_error);
        controller.machine.on(input, now, clock);
        while let Some(effect) = controller.machine.poll_effect() {
            match effect {
                Effect::Send(node, envelope) => {
                    // What is sent is what the other side reads.
                    let bytes = envelope.encode().expect("short");
                    let envelope = Envelope::decode(&bytes).expect("just encoded");
                    controller.to_nodes.entry(node).or_default().push_back(envelope);
                }
                Effect::Write(id, changes) => {
                    controller.writes.push_back((self.now + self.store_takes, id, changes));
                }
                Effect::Campaign => controller.campaigns = true,
                Effect::Alarm(alarm) => self.alarms.push(alarm),
            }
        }
    }

    fn reply(&mut self, n: usize, node: NodeKey, message: Message) {
        let (term, incarnation) = match node {
            NodeKey::Rep(switch, seat) => {
                let terms = &self.reps[&(switch, seat)].terms;
                (terms.seen, terms.incarnation)
            }
            NodeKey::Process(id) => (self.processes[&id].terms.seen, self.processes[&id].terms.incarnation),
        };
        let envelope = Envelope { term, incarnation, message };
        self.controllers[n].from_nodes.entry(node).or_default().push_back(envelope);
    }

    /// A node takes the next message of a controller.
    fn deliver_to_node(&mut self, n: usize, node: NodeKey) -> Result<(), String> {
        let Some(envelope) = self.controllers[n].to_nodes.get_mut(&node).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        if self.dead.contains(&node) {
            return Ok(());
        }
        let clock = self.clock();
        self.inbox.entry(node).or_default().push(envelope.message.clone());
        self.check_times(&envelope.message)?;
        let answer = match node {
            NodeKey::Rep(switch, seat) => {
                let rep = self.reps.get_mut(&(switch, seat)).expect("a switch of the graph");
                if !rep.terms.takes(&envelope) {
                    return Ok(());
                }
                if envelope.message == (Message::Retire {}) {
                    self.end_retired(node);
                    return Ok(());
                }
                rep.on(&self.graph, switch, envelope.message)
            }
            NodeKey::Process(id) => {
                let process = self.processes.get_mut(&id).expect("a process of the graph");
                if !process.terms.takes(&envelope) {
                    return Ok(());
                }
                if let Message::AskClock { number } = envelope.message {
                    let clock = Timestamp::new(clock.saturating_add_signed(process.clock_error));
                    Some(Message::Clock { number, clock })
                } else {
                    process.on(envelope.message)
                }
            }
        };
        if let Some(answer) = answer {
            self.reply(n, node, answer);
        }
        Ok(())
    }

    /// One time per incarnation, wherever it is mentioned.
    fn check_times(&mut self, message: &Message) -> Result<(), String> {
        let Message::Notice { case, failed } = message else { return Ok(()) };
        for failed in failed {
            let key = (failed.id, failed.incarnation);
            let at = failed.time.nanos();
            if *self.times.entry(key).or_insert(at) != at {
                return Err(format!("case {case}: {key:?} has times {} and {at}", self.times[&key]));
            }
        }
        Ok(())
    }

    /// A node does something by itself: registers, reports, goes on with a notice.
    fn act(&mut self, n: usize, node: NodeKey) {
        if self.dead.contains(&node) || self.controllers[n].away.contains_key(&node) {
            return;
        }
        // A report is repeated until acknowledged, but not more often than it is carried.
        let busy =
            |controller: &Controller| controller.from_nodes.get(&node).is_some_and(|queue| queue.len() > 2);
        if busy(&self.controllers[n]) {
            return;
        }
        let message = match node {
            NodeKey::Rep(switch, seat) => {
                let rep = self.reps.get_mut(&(switch, seat)).expect("a switch of the graph");
                if rep.terms.incarnation == Incarnation(0) {
                    Some(rep.register(switch))
                } else {
                    rep.report()
                }
            }
            NodeKey::Process(id) => {
                let process = self.processes.get_mut(&id).expect("a process of the graph");
                if process.failed {
                    // It has nothing to recover: it starts again.
                    let resumed = self.image.cases.values().all(|case| case.stage == Stage::Resumed);
                    if resumed && !self.keeps_memory {
                        self.boot(node);
                    }
                    return;
                }
                if process.terms.incarnation == Incarnation(0) {
                    Some(process.register(id))
                } else {
                    // Callbacks of two cases return in any order.
                    let is_open = |(answer, _): &(Answer, _)| *answer < Answer::Completed;
                    let open = process.cases.iter().filter(|(_, state)| is_open(state));
                    let open: Vec<_> = open.map(|(&case, _)| case).collect();
                    let at = self.rng.below(open.len() as u64) as usize;
                    match open.get(at).copied() {
                        Some(_) if self.rng.below(4) < self.pauses => None,
                        Some(case) if self.stores_recalls && !process.has_stored(case) => {
                            process.recall(case)
                        }
                        Some(case) => process.go_on(case),
                        None => process.report(),
                    }
                }
            }
        };
        if let Some(message) = message {
            self.reply(n, node, message);
        }
    }

    /// Looks at what was stored since.
    fn see_writes(&mut self) -> Result<(), String> {
        let log = self.store.log();
        for (_, changes) in &log[self.applied..] {
            let before: BTreeSet<_> = self.image.cases.keys().copied().collect();
            let members: Vec<_> =
                self.image.members.keys().copied().filter(|&(id, of)| !self.is_stored_out(id, of)).collect();
            let joining: Vec<_> = self
                .image
                .members
                .iter()
                .filter(|(_, member)| member.state == MemberState::Joining)
                .map(|(&key, _)| key)
                .collect();
            self.image.apply(changes);
            let new: Vec<_> = self.image.cases.iter().filter(|(case, _)| !before.contains(case)).collect();
            for (&case, record) in new {
                let mut audience: BTreeSet<_> = members.iter().copied().collect();
                for failed in &record.failed {
                    audience.remove(&(failed.id, failed.incarnation));
                    let process = &self.processes[&failed.id];
                    let same = process.terms.incarnation == failed.incarnation;
                    let most = process.announced.max(process.joined);
                    if same && failed.time > most && failed.time != 0 && process.admitted {
                        return Err(format!("case {case}: {failed:?} announced {most} at most"));
                    }
                    let key = (failed.id, failed.incarnation);
                    if *self.times.entry(key).or_insert(time(super::nodes::stamp(failed.time))) != failed.time
                    {
                        return Err(format!(
                            "case {case}: another time than {} for {failed:?}",
                            self.times[&key]
                        ));
                    }
                }
                // One that has not been admitted has sent nothing.
                let mut record = record.clone();
                record.failed.retain(|failed| !joining.contains(&(failed.id, failed.incarnation)));
                self.decided.insert(case, Decided { record, audience });
            }
        }
        self.applied = log.len();
        let ids: Vec<_> = self.processes.keys().copied().collect();
        ids.into_iter()
            .filter(|id| !self.dead.contains(&NodeKey::Process(*id)))
            .try_for_each(|id| self.check_barrier(id))
    }

    fn is_stored_out(&self, id: ProcessId, incarnation: Incarnation) -> bool {
        self.image
            .members
            .get(&(id, incarnation))
            .is_none_or(|record| !matches!(record.state, MemberState::Joining | MemberState::Member))
    }

    /// Something happens.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.now += STEP;
        let nodes = self.nodes();
        let n = self.draw(self.controllers.len());
        self.connect_due(n);
        let stalled = self.controllers[n].stalled_until > self.now;
        match self.draw(12) {
            5..9 if stalled => Ok(()),
            0..5 => {
                let links = self.graph.links().count();
                let link = LinkId(self.draw(links) as u32);
                self.carry(link)
            }
            5..7 => {
                let waiting: Vec<_> = nodes
                    .into_iter()
                    .filter(|node| {
                        self.controllers[n].to_nodes.get(node).is_some_and(|queue| !queue.is_empty())
                    })
                    .collect();
                self.pick(&waiting).map_or(Ok(()), |node| self.deliver_to_node(n, node))
            }
            7..9 => {
                let waiting: Vec<_> = nodes
                    .into_iter()
                    .filter(|node| {
                        self.controllers[n].from_nodes.get(node).is_some_and(|queue| !queue.is_empty())
                    })
                    .collect();
                if let Some(node) = self.pick(&waiting) {
                    let envelope = self.controllers[n]
                        .from_nodes
                        .get_mut(&node)
                        .and_then(VecDeque::pop_front)
                        .expect("not empty");
                    self.input(n, Input::FromNode(node, envelope));
                }
                Ok(())
            }
            9 => {
                let node = self.pick(&nodes).expect("there are nodes");
                self.act(n, node);
                Ok(())
            }
            10 => self.store_step(n),
            _ => {
                if self.controllers[n].campaigns && self.draw(20) == 0 && !self.has_leader() {
                    self.campaign(n);
                }
                self.input(n, Input::Timer);
                Ok(())
            }
        }
    }

    pub(super) fn steps(&mut self, count: usize) -> Result<(), String> {
        (0..count).try_for_each(|_| self.step())
    }
}

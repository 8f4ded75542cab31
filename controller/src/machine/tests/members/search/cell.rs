//! The smallest world: three processes at one switch, and a controller. What can happen next is a list of
//! events, each of which is one delivery, one step of a store or one time-out.

use super::part::{Part, digest};
use crate::graph::Graph;
use crate::graph::tests::fabric;
use crate::machine::tests::members::host::{EPOCH, Fate, Host, INTERVAL, process, representative};
use crate::machine::tests::members::network::frame;
use crate::machine::tests::nodes::{NETWORK, Rep, stamp};
use crate::machine::{Bug, Config, Effect, Input, Machine, NodeKey, WriteId};
use crate::record::Image;
use crate::store::{Change, Records, Term, apply};
use onepipe::control::{Envelope, Incarnation, LOOPBACK};
use onepipe::process::member::to_wire;
use onepipe::{OnePipe, OnePipeOpcode, ProcessId, Timestamp};
use rocev2::{Packet, Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::{Nanos, Rng};

/// Processes, by number
pub(super) const IDS: [u32; 3] = [1, 2, 3];
const RESPOND_WITHIN: Nanos = Nanos(60_000);
/// Time for which a queue stands still
const HELD_FOR: Nanos = Nanos(4 * INTERVAL);
const REP: NodeKey = NodeKey::Rep(0, 0);

/// What may happen next: each is the front of a queue, or a time-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Event {
    /// A node takes the controller's next message
    ToNode(NodeKey),
    /// The controller takes a node's next message
    FromNode(NodeKey),
    /// The store applies the controller's next write
    Apply,
    /// The controller learns of it
    Answer,
    /// A process takes the next frame of another one
    Frame(u32, u32),
    /// A process's latest beacon reaches the switch
    Up(u32),
    /// The switch's barrier reaches a process
    Down(u32),
    /// The switch finds the link of a dead process silent
    Silent(u32),
}

/// Bugs that are planted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bugs {
    pub(super) controller: Option<Bug>,
    pub(super) process: Option<onepipe::process::Bug>,
}

#[derive(Clone)]
pub(super) struct Cell {
    bugs: Bugs,
    graph: Graph,
    now: Nanos,
    /// Events, the most urgent ones first. It decides what happens if nothing else does
    order: Vec<Event>,
    /// An event that does not happen before this time
    held: Option<(Event, Nanos)>,
    hosts: Vec<Part<Host>>,
    rep: Part<Rep>,
    machine: Part<Machine>,
    queues: Part<Queues>,
    stored: Part<Stored>,
    /// Draws of the application, the same ones every time
    rng: Rng,
}

/// What is under way.
#[derive(Clone, Debug, Default)]
struct Queues {
    frames: BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
    to_nodes: BTreeMap<NodeKey, VecDeque<Envelope>>,
    from_nodes: BTreeMap<NodeKey, VecDeque<Envelope>>,
    writes: VecDeque<(WriteId, Vec<Change>)>,
    answers: VecDeque<WriteId>,
    /// Latest beacon of a process
    up: BTreeMap<u32, (u64, u32)>,
    /// What the switch last sent to a process; nothing if it is to send again
    down: BTreeMap<u32, (Option<u64>, Option<u32>)>,
    /// Report of the switch that was sent last
    report: Option<String>,
}

/// What outlives a controller, and what the test has seen of it.
#[derive(Clone, Debug, Default)]
struct Stored {
    term: Term,
    records: Records,
    image: Image,
}

impl Cell {
    pub(super) fn new(bugs: Bugs) -> Self {
        let graph = Graph::new(&fabric(&[3], 0));
        // A callback takes two or three intervals.
        let takes = |seed: &u64| (2..4).contains(&(Rng::new(*seed).below(60_000) / INTERVAL));
        let seed = (0..1_000).find(takes).expect("one of ten");
        let host = |id: u32| {
            Part::new(Host::new(id, &IDS, 0, id as u8, Nanos(0), &mut Rng::new(id.into()), bugs.process))
        };
        let mut rep = Rep::default();
        (rep.boot, rep.address) = (9, to_wire(representative(0).address));
        let nodes = [REP].into_iter().chain(IDS.map(|id| NodeKey::Process(ProcessId(id))));
        let mut order: Vec<_> = nodes.flat_map(|node| [Event::ToNode(node), Event::FromNode(node)]).collect();
        order.extend([Event::Apply, Event::Answer]);
        let pairs = IDS.into_iter().flat_map(|from| IDS.map(|to| (from, to)));
        order.extend(pairs.filter(|(from, to)| from != to).map(|(from, to)| Event::Frame(from, to)));
        order.extend(IDS.into_iter().flat_map(|id| [Event::Up(id), Event::Down(id), Event::Silent(id)]));
        let mut cell = Self {
            bugs,
            machine: Part::new(Self::controller(&graph, bugs)),
            graph,
            now: Nanos(0),
            order,
            held: None,
            hosts: IDS.map(host).into(),
            rep: Part::new(rep),
            queues: Part::new(Queues::default()),
            stored: Part::new(Stored::default()),
            rng: Rng::new(seed),
        };
        cell.lead();
        cell
    }

    fn controller(graph: &Graph, bugs: Bugs) -> Machine {
        let config = Config {
            network: NETWORK,
            gather: Nanos(0),
            respond_within: RESPOND_WITHIN,
            reconnect_within: RESPOND_WITHIN,
            ahead_max: Nanos(1_000_000),
            behind_max: None,
            max_recalls: 1_000,
        };
        let mut machine = Machine::new(graph.clone(), config);
        bugs.controller.into_iter().for_each(|bug| machine.plant(bug));
        machine
    }

    /// A new controller leads, to which all nodes that live connect.
    fn lead(&mut self) {
        let queues = self.queues.edit();
        (queues.to_nodes, queues.from_nodes) = (BTreeMap::new(), BTreeMap::new());
        (queues.writes, queues.answers, queues.report) = (VecDeque::new(), VecDeque::new(), None);
        self.machine = Part::new(Self::controller(&self.graph, self.bugs));
        let stored = self.stored.edit();
        stored.term.0 += 1;
        let led = Input::Led(stored.term, stored.records.clone());
        self.input(led);
        self.input(Input::Up(REP));
        for id in self.living() {
            self.input(Input::Up(NodeKey::Process(ProcessId(id))));
            let now = self.now;
            let host = self.host_mut(id);
            host.member.on_connected(&mut host.process, now);
        }
    }

    /// The controller dies, with what is under way to and from it and what it has not stored. Another one begins.
    pub(super) fn restart_controller(&mut self) -> Result<(), String> {
        self.lead();
        self.act_all()
    }

    /// A process dies. Its frames that are under way to `lost` are lost with it.
    pub(super) fn kill(&mut self, id: u32, lost: &[u32]) {
        let node = NodeKey::Process(ProcessId(id));
        let host = self.host_mut(id);
        host.is_dead = true;
        host.lost.extend(host.member.last_incarnation());
        let queues = self.queues.edit();
        queues.frames.retain(|&(from, to), _| to != id && !(from == id && lost.contains(&to)));
        queues.to_nodes.remove(&node);
        queues.from_nodes.remove(&node);
        self.input(Input::Down(node));
    }

    pub(super) fn host(&self, id: u32) -> &Host {
        self.hosts[id as usize - 1].get()
    }

    fn host_mut(&mut self, id: u32) -> &mut Host {
        self.hosts[id as usize - 1].edit()
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> + Clone {
        self.hosts.iter().map(Part::get)
    }

    pub(super) fn living(&self) -> Vec<u32> {
        IDS.into_iter().filter(|&id| !self.host(id).is_dead).collect()
    }

    pub(super) fn image(&self) -> &Image {
        &self.stored.get().image
    }

    pub(super) fn suspects(&self) -> bool {
        self.machine.get().suspects()
    }

    pub(super) fn now(&self) -> Nanos {
        self.now
    }

    /// Returns a digest of everything on which the future depends.
    pub(super) fn digest(&mut self) -> u64 {
        let held = self.held.map(|(event, until)| (event, until.0));
        let mut all =
            vec![self.now.0, digest(&(&self.order, held)), self.rep.digest(), self.machine.digest()];
        all.extend([self.queues.digest(), self.stored.digest()]);
        all.extend(self.hosts.iter_mut().map(Part::digest));
        digest(&all)
    }

    /// Lets an event not happen for some time, and be the least urgent one after that.
    pub(super) fn defer(&mut self, event: Event) {
        self.held = Some((event, self.now + HELD_FOR));
        self.order.retain(|other| *other != event);
        self.order.push(event);
    }

    /// Returns whether a queue stands still.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Returns the most urgent event that can happen; `None` if only time can pass.
    pub(super) fn next(&self) -> Option<Event> {
        let is_held = |event: Event| self.held.is_some_and(|(held, _)| held == event);
        self.order.iter().copied().find(|&event| !is_held(event) && self.can_happen(event))
    }

    fn can_happen(&self, event: Event) -> bool {
        let queues = self.queues.get();
        let lives = |id: u32| !self.host(id).is_dead;
        match event {
            Event::ToNode(node) => queues.to_nodes.get(&node).is_some_and(|queue| !queue.is_empty()),
            Event::FromNode(node) => queues.from_nodes.get(&node).is_some_and(|queue| !queue.is_empty()),
            Event::Apply => !queues.writes.is_empty(),
            Event::Answer => !queues.answers.is_empty(),
            Event::Frame(from, to) => queues.frames.get(&(from, to)).is_some_and(|queue| !queue.is_empty()),
            Event::Up(id) => queues.up.contains_key(&id),
            Event::Down(id) => lives(id) && queues.down.get(&id) != Some(&self.barrier_to(id)),
            Event::Silent(id) => {
                let input = self.rep.get().inputs.get(&(id as u16 - 1));
                !lives(id) && input.is_some_and(|input| input.counted && input.quiet == 0)
            }
        }
    }

    /// Returns the commit barrier and the queue pair of the switch's beacons to a process.
    fn barrier_to(&self, id: u32) -> (Option<u64>, Option<u32>) {
        let (rep, number) = (self.rep.get(), id as u16 - 1);
        (rep.sends(number, true).map(|(sent, _)| sent), rep.queue_pair(number))
    }

    /// Lets an event happen.
    ///
    /// # Errors
    /// A violation that it shows.
    pub(super) fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::ToNode(node) => {
                let queue = self.queues.edit().to_nodes.get_mut(&node);
                let envelope = queue.and_then(VecDeque::pop_front).expect("the event can happen");
                self.deliver_to_node(node, &envelope)
            }
            Event::FromNode(node) => {
                self.take_from_node(node);
                Ok(())
            }
            Event::Apply => self.apply(),
            Event::Answer => {
                let id = self.queues.edit().answers.pop_front().expect("the event can happen");
                self.input(Input::Written(id, Ok(())));
                Ok(())
            }
            Event::Frame(from, to) => {
                let queue = self.queues.edit().frames.get_mut(&(from, to));
                let frame = queue.and_then(VecDeque::pop_front).expect("the event can happen");
                self.take_frame(to, &frame)
            }
            Event::Up(id) => {
                let (commit, qpn) = self.queues.edit().up.remove(&id).expect("the event can happen");
                self.rep.edit().accept(&self.graph, 0, id as u16 - 1, commit, Some(qpn));
                self.after_rep();
                Ok(())
            }
            Event::Down(id) => {
                let frame = self.beacon_to(id);
                self.take_frame(id, &frame)
            }
            Event::Silent(id) => {
                self.rep.edit().set_quiet(id as u16 - 1, 1, true);
                self.after_rep();
                Ok(())
            }
        }
    }

    /// Lets an interval pass: timers expire, and everybody sends beacons. It happens only if nothing else can.
    pub(super) fn pass_time(&mut self) -> Result<(), String> {
        self.now = self.now + Nanos(INTERVAL);
        self.held.take_if(|(_, until)| *until <= self.now);
        let queues = self.queues.edit();
        queues.down.clear();
        queues.report = None;
        self.input(Input::Timer);
        let now = self.now;
        for id in self.living() {
            self.host_mut(id).on_timers(now);
        }
        self.after_rep();
        self.act_all()
    }

    /// Has a process send a scattering to others, which it may.
    pub(super) fn send(&mut self, from: u32, to: &[u32], serial: u32) {
        let incarnation = |id: u32| self.host(id).admitted.expect("it is a member");
        let to: Vec<_> = to.iter().map(|&id| (id, incarnation(id))).collect();
        let (src, now) = ((from, incarnation(from)), self.now);
        self.host_mut(from).scatter_to(serial, src, &to, now);
    }

    fn apply(&mut self) -> Result<(), String> {
        let (id, changes) = self.queues.edit().writes.pop_front().expect("the event can happen");
        self.queues.edit().answers.push_back(id);
        let stored = self.stored.edit();
        let before = super::oracle::failed(&stored.image);
        apply(&mut stored.records, &changes);
        stored.image.apply(&changes);
        super::oracle::check_written(&before, &stored.image)
    }

    fn deliver_to_node(&mut self, node: NodeKey, envelope: &Envelope) -> Result<(), String> {
        match node {
            NodeKey::Process(ProcessId(id)) => {
                let now = self.now;
                self.host_mut(id).on_envelope(envelope, now)?;
                self.act(id)
            }
            NodeKey::Rep(..) => {
                let rep = self.rep.edit();
                if rep.terms.takes(envelope)
                    && let Some(message) = rep.on(&self.graph, 0, envelope.message.clone())
                {
                    let (term, incarnation) = (rep.terms.seen, rep.terms.incarnation);
                    self.send_to_controller(REP, Envelope { term, incarnation, message });
                }
                self.after_rep();
                Ok(())
            }
        }
    }

    fn take_from_node(&mut self, node: NodeKey) {
        let queue = self.queues.edit().from_nodes.get_mut(&node);
        let envelope = queue.and_then(VecDeque::pop_front).expect("the event can happen");
        self.input(Input::FromNode(node, envelope));
    }

    fn send_to_controller(&mut self, node: NodeKey, envelope: Envelope) {
        self.queues.edit().from_nodes.entry(node).or_default().push_back(envelope);
    }

    fn input(&mut self, input: Input) {
        let (machine, queues) = (self.machine.edit(), self.queues.edit());
        machine.on(input, self.now, EPOCH + self.now.0);
        while let Some(effect) = machine.poll_effect() {
            match effect {
                Effect::Send(node, envelope) => queues.to_nodes.entry(node).or_default().push_back(envelope),
                Effect::Write(id, changes) => queues.writes.push_back((id, changes)),
                Effect::Campaign | Effect::Alarm(_) => {}
            }
        }
    }

    /// Passes the barrier between the switch's halves on, and sends what it has to report.
    fn after_rep(&mut self) {
        let rep = self.rep.edit();
        rep.accept(&self.graph, 0, LOOPBACK, rep.outputs[0], None);
        rep.inputs.values_mut().for_each(|input| input.fresh = false);
        let is_new = rep.terms.incarnation == Incarnation(0);
        let Some(message) = (if is_new { Some(rep.register(0)) } else { rep.report() }) else { return };
        let (term, incarnation) = (rep.terms.seen, rep.terms.incarnation);
        // It is repeated in every interval until it is acknowledged.
        let text = Some(format!("{message:?}"));
        if self.queues.get().report != text {
            self.queues.edit().report = text;
            self.send_to_controller(REP, Envelope { term, incarnation, message });
        }
    }

    fn act_all(&mut self) -> Result<(), String> {
        self.living().into_iter().try_for_each(|id| self.act(id))
    }

    /// Has a process's application receive, and sends what the process has to send.
    fn act(&mut self, id: u32) -> Result<(), String> {
        let (now, mut rng) = (self.now, self.rng.clone());
        let host = self.host_mut(id);
        host.act(now, &mut rng)?;
        let mut frames = Vec::new();
        let mut frame = Vec::new();
        while host.process.poll_transmit(now, &mut frame) {
            frames.push(frame.clone());
        }
        host.act(now, &mut rng)?;
        let envelopes = host.poll_envelopes(now)?;
        let queues = self.queues.edit();
        for frame in frames {
            let packet = Packet::parse(&frame).expect("a packet");
            let header = *OnePipe::of(&packet).expect("a header");
            if header.opcode() == OnePipeOpcode::BEACON {
                let qpn = packet.deth().expect("a datagram").src_qp();
                if let Some(commit) = header.commit() {
                    queues.up.insert(id, (commit.nanos(), qpn.get()));
                }
                continue;
            }
            let to = u32::from(packet.ethernet().dst.0[5]);
            if !self.hosts[to as usize - 1].get().is_dead {
                queues.frames.entry((id, to)).or_default().push_back(frame);
            }
        }
        let queue = queues.from_nodes.entry(NodeKey::Process(ProcessId(id))).or_default();
        queue.extend(envelopes);
        super::oracle::check_delivered(self.host(id), self.image())?;
        self.check_barrier(id)
    }

    fn take_frame(&mut self, to: u32, frame: &[u8]) -> Result<(), String> {
        let now = self.now;
        // The process counts what it refuses.
        _ = self.host_mut(to).process.on_frame(frame, now);
        self.act(to)
    }

    /// Returns the switch's beacon to a process.
    fn beacon_to(&mut self, id: u32) -> Vec<u8> {
        let sent = self.barrier_to(id);
        self.queues.edit().down.insert(id, sent);
        let (commit, qpn) = sent;
        let mut from = representative(0);
        from.qpn = qpn.map_or(from.qpn, Qpn::new);
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(EPOCH + self.now.0), Psn::ZERO);
        header.set_barrier(None);
        header.set_commit(commit.and_then(stamp));
        frame(from, process(id), &header)
    }

    /// Returns whether a scattering of a living process has no result.
    pub(super) fn is_undecided(&self) -> bool {
        let living = self.hosts().filter(|host| !host.is_dead);
        living.flat_map(|host| host.sent.values()).any(|(_, sent)| sent.fate == Fate::Unknown)
    }
}

//! The data network: frames, beacons, and time.

use super::control::Controller;
use super::host::{EPOCH, Host, INTERVAL, process, representative};
use crate::graph::tests::fabric;
use crate::graph::{Graph, LinkId, Node};
use crate::machine::tests::nodes::{Rep, keeper, sender, stamp};
use crate::machine::{self, NodeKey};
use crate::record::Image;
use crate::store::MemoryStore;
use onepipe::control::{Envelope, Incarnation, LOOPBACK};
use onepipe::datagram::Template;
use onepipe::process::member::to_wire;
use onepipe::process::{Bug, Peer};
use onepipe::{OnePipe, OnePipeOpcode, ProcessId, Timestamp};
use rocev2::path_headers::{PathHeaderFields, PathHeaders};
use rocev2::{Packet, Psn, Qpn};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use switch::{Nanos, Rng};

/// Nanoseconds per step
pub(super) const STEP: u64 = 1_000;
/// Time after which a link is silent
const SILENT_AFTER: u64 = 40 * STEP;
/// Time in which processes send and faults happen, and the longest run
const ACTIVE: u64 = 4_000 * STEP;
const END: u64 = 60_000 * STEP;

/// Time of arrival, number, receiver and bytes of a frame
type InFlight = (u64, u64, u32, Vec<u8>);

/// What a run has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) has_faults: bool,
    pub(super) bug: Option<Bug>,
    pub(super) controller_bug: Option<machine::Bug>,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) graph: Graph,
    pub(super) rng: Rng,
    pub(super) now: Nanos,
    pub(super) store: MemoryStore,
    pub(super) controllers: Vec<Controller>,
    pub(super) reps: BTreeMap<u16, Rep>,
    /// All processes that ever were, and the present one of each number
    pub(super) hosts: Vec<Host>,
    pub(super) current: BTreeMap<u32, usize>,
    pub(super) dead_reps: BTreeSet<u16>,
    pub(super) cut: BTreeSet<LinkId>,
    /// (sender, receiver) between which no frame arrives
    pub(super) cut_pairs: BTreeSet<(u32, u32)>,
    heard: BTreeMap<LinkId, u64>,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    frames: u64,
    pub(super) boots: u8,
    pub(super) plan: Plan,
    loss: u64,
    repeats: u64,
    slow: u64,
    serial: u32,
    pub(super) next_fault: u64,
    /// Time at which a process leaves, or one that has left starts again
    pub(super) next_departure: u64,
    pub(super) image: Image,
    pub(super) applied: usize,
    pub(super) terms: u64,
    pub(super) unfenced: BTreeSet<u32>,
}

impl Network {
    pub(super) fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let racks = *rng.pick::<&[usize]>(&[&[3][..], &[4], &[3], &[2, 1], &[2, 2]]);
        let graph = Graph::new(&fabric(racks, usize::from(racks.len() > 1)));
        let [loss, repeats, slow] = [*rng.pick(&[0, 20, 100]), *rng.pick(&[0, 50]), *rng.pick(&[0, 30, 200])];
        let mut network = Self {
            reps: BTreeMap::new(),
            hosts: Vec::new(),
            current: BTreeMap::new(),
            graph,
            now: Nanos(0),
            store: MemoryStore::default(),
            controllers: Vec::new(),
            dead_reps: BTreeSet::new(),
            cut: BTreeSet::new(),
            cut_pairs: BTreeSet::new(),
            heard: BTreeMap::new(),
            in_flight: BinaryHeap::new(),
            frames: 0,
            boots: 0,
            plan,
            loss,
            repeats,
            slow,
            serial: 0,
            next_departure: 500 * STEP + rng.below(3_000 * STEP),
            next_fault: 600 * STEP + rng.below(500 * STEP),
            rng,
            image: Image::default(),
            applied: 0,
            terms: 0,
            unfenced: BTreeSet::new(),
        };
        for switch in 0..network.graph.switches().len() as u16 {
            network.boot_rep(switch);
        }
        let ids: Vec<_> = network.graph.processes().map(|(id, _)| id.0).collect();
        for id in ids {
            network.boot_process(id);
        }
        network.new_controller();
        network
    }

    pub(super) fn nodes(&self) -> Vec<NodeKey> {
        let reps = self.reps.keys().map(|&switch| NodeKey::Rep(switch, 0));
        reps.chain(self.current.keys().map(|&id| NodeKey::Process(ProcessId(id)))).collect()
    }

    pub(super) fn is_dead(&self, node: NodeKey) -> bool {
        match node {
            NodeKey::Rep(switch, _) => self.dead_reps.contains(&switch),
            NodeKey::Process(id) => self.host(id.0).is_dead,
        }
    }

    pub(super) fn host(&self, id: u32) -> &Host {
        &self.hosts[self.current[&id]]
    }

    pub(super) fn host_mut(&mut self, id: u32) -> &mut Host {
        let index = self.current[&id];
        &mut self.hosts[index]
    }

    pub(super) fn boot_rep(&mut self, switch: u16) {
        self.boots += 1;
        let mut rep = Rep::default();
        (rep.boot, rep.address) = (self.boots, to_wire(representative(switch).address));
        self.reps.insert(switch, rep);
        self.dead_reps.remove(&switch);
        (0..self.controllers.len()).for_each(|n| self.connect(n, NodeKey::Rep(switch, 0)));
    }

    pub(super) fn boot_process(&mut self, id: u32) {
        self.boots += 1;
        let peers: Vec<_> = self.graph.processes().map(|(id, _)| id.0).collect();
        let switch = self.graph.place(ProcessId(id)).expect("a process of the graph").switch;
        let host = Host::new(id, &peers, switch, self.boots, self.now, &mut self.rng, self.plan.bug);
        self.current.insert(id, self.hosts.len());
        self.hosts.push(host);
        (0..self.controllers.len()).for_each(|n| self.connect(n, NodeKey::Process(ProcessId(id))));
    }

    /// Runs until everything is settled.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let mut settled_at = None;
        let mut is_repaired = false;
        while self.now.0 < END {
            self.step().map_err(|error| format!("at {} us: {error}", self.now.0 / 1000))?;
            if self.now.0 < ACTIVE {
                self.draw_departure();
                self.draw_fault();
                continue;
            }
            if !core::mem::replace(&mut is_repaired, true) {
                self.repair();
            }
            // Some that leave are let go only now.
            self.boot_dead();
            if settled_at.is_none() && self.is_settled() {
                settled_at = Some(self.now.0);
            }
            // What must not happen may also happen late.
            if settled_at.is_some_and(|at| self.now.0 > at + 300 * STEP) {
                return self.check().map_err(|error| format!("{error}\n{:#?}", self.image.cases));
            }
        }
        Err(format!("not settled: {}", self.describe()))
    }

    fn is_settled(&self) -> bool {
        self.current.keys().all(|&id| self.host(id).admitted.is_some() && self.host(id).is_idle())
            && self.is_closed()
    }

    fn describe(&self) -> String {
        let hosts = self.current.keys().map(|&id| {
            let host = self.host(id);
            let process = &host.process;
            let counters = process.counters();
            let refused = onepipe::process::Refusal::ALL.iter().map(|&why| (why, counters.refused(why)));
            let refused: Vec<_> = refused.filter(|(_, count)| *count > 0).collect();
            let by_member = host.member.counters();
            let refused_messages = onepipe::process::member::Refused::ALL.iter();
            let refused_messages: Vec<_> = refused_messages
                .map(|&why| (why, by_member.refused(why)))
                .filter(|(_, count)| *count > 0)
                .collect();
            format!(
                "{refused:?} {refused_messages:?}\n{id}: {:?}, {} unsettled, {} held, barrier {:?}, waits for {:?}, stored {:?}\n",
                host.admitted,
                process.unsettled_reliable(),
                process.held_reliable(),
                process.delivered_up_to(),
                process.unanswered(),
                self.image.member(ProcessId(id)),
            )
        });
        hosts.collect::<String>()
    }

    fn step(&mut self) -> Result<(), String> {
        self.now = self.now + Nanos(STEP);
        let now = self.now;
        while let Some(Reverse((at, ..))) = self.in_flight.peek()
            && *at <= now.0
        {
            let Some(Reverse((_, _, to, frame))) = self.in_flight.pop() else { break };
            let host = self.host_mut(to);
            if !host.is_dead {
                _ = host.process.on_frame(&frame, now);
            }
        }
        let ids: Vec<_> = self.current.keys().copied().collect();
        let known: BTreeMap<_, _> =
            ids.iter().filter_map(|&id| Some((id, self.host(id).member.incarnation()?))).collect();
        for id in ids {
            let index = self.current[&id];
            if self.hosts[index].is_dead {
                continue;
            }
            let (host, rng) = (&mut self.hosts[index], &mut self.rng);
            host.on_timers(now);
            if now.0 < ACTIVE && rng.below(100) < 3 {
                self.serial += 1;
                host.scatter(self.serial, &known, now, rng);
            }
            host.act(now, rng)?;
            let envelopes = host.poll_envelopes(now)?;
            self.send_to_controllers(NodeKey::Process(ProcessId(id)), &envelopes);
            self.transmit(index);
            if self.hosts[index].end_if_left() {
                (0..self.controllers.len()).for_each(|n| self.disconnect(n, NodeKey::Process(ProcessId(id))));
            }
        }
        if now.0.is_multiple_of(INTERVAL) {
            self.carry_links();
        }
        self.run_controllers()
    }

    fn transmit(&mut self, index: usize) {
        let mut frame = Vec::new();
        let id = self.hosts[index].id;
        while self.hosts[index].process.poll_transmit(self.now, &mut frame) {
            let packet = Packet::parse(&frame).expect("a packet");
            let header = *OnePipe::of(&packet).expect("a header");
            if header.opcode() == OnePipeOpcode::BEACON {
                let qpn = packet.deth().expect("a datagram").src_qp();
                self.on_beacon(id, header.commit(), qpn);
                continue;
            }
            let to = u32::from(packet.ethernet().dst.0[5]);
            let place = |id| self.graph.place(ProcessId(id)).expect("a process of the graph");
            let is_cut = self.cut_pairs.contains(&(id, to))
                || self.cut.contains(&place(id).up)
                || self.cut.contains(&place(to).down);
            if !is_cut {
                self.send(to, &frame);
            }
        }
    }

    /// Sends a frame. Frames overtake one another.
    fn send(&mut self, to: u32, frame: &[u8]) {
        if self.rng.below(1000) < self.loss {
            return;
        }
        for _ in 0..=u64::from(self.rng.below(1000) < self.repeats) {
            // Some frames arrive when their receiver has another incarnation.
            let extra = match self.rng.below(1000) {
                draw if draw < self.slow / 10 => 4_000_000,
                draw if draw < self.slow => 250_000,
                _ => 3000,
            };
            self.frames += 1;
            let at = self.now.0 + 1000 + self.rng.below(extra);
            self.in_flight.push(Reverse((at, self.frames, to, frame.to_vec())));
        }
    }

    /// A process's beacon reaches its switch.
    fn on_beacon(&mut self, id: u32, commit: Option<Timestamp>, qpn: Qpn) {
        let place = self.graph.place(ProcessId(id)).expect("a process of the graph");
        let Some((switch, number)) = keeper(&self.graph, place.up) else { return };
        if self.cut.contains(&place.up)
            || self.dead_reps.contains(&switch)
            || self.rng.below(1000) < self.loss
        {
            return;
        }
        let Some(commit) = commit else { return };
        self.heard.insert(place.up, self.now.0);
        let rep = self.reps.get_mut(&switch).expect("a switch of the graph");
        rep.accept(&self.graph, switch, number, commit.nanos(), Some(qpn.get()));
    }

    fn carry_links(&mut self) {
        for link in self.graph.links().collect::<Vec<_>>() {
            self.carry(link);
        }
        for switch in self.reps.keys().copied().collect::<Vec<_>>() {
            if self.dead_reps.contains(&switch) || self.rng.below(8) > 0 {
                continue;
            }
            let rep = self.reps.get_mut(&switch).expect("a switch of the graph");
            let is_new = rep.terms.incarnation == Incarnation(0);
            let message = if is_new { Some(rep.register(switch)) } else { rep.report() };
            let (term, incarnation) = (rep.terms.seen, rep.terms.incarnation);
            if let Some(message) = message {
                self.send_to_controllers(NodeKey::Rep(switch, 0), &[Envelope { term, incarnation, message }]);
            }
        }
    }

    /// A switch's beacon passes a link, or the link's keeper finds it silent.
    fn carry(&mut self, link: LinkId) {
        let ends = self.graph.ends(link);
        let from = self.graph.at(ends.from).switch().filter(|switch| !self.dead_reps.contains(switch));
        let is_lost = self.cut.contains(&link) || self.rng.below(1000) < self.loss;
        if let Node::Process(id) = self.graph.at(ends.to) {
            if let Some(switch) = from.filter(|_| !is_lost) {
                self.send_barrier(switch, link, id.0);
            }
            return;
        }
        let Some((switch, number)) = keeper(&self.graph, link) else { return };
        if self.dead_reps.contains(&switch) {
            return;
        }
        let sent = from.filter(|_| !is_lost).and_then(|from| {
            if number == LOOPBACK {
                let sent = self.reps[&from].outputs[0];
                return (sent != 0).then_some((sent, None));
            }
            let (_, output) = sender(&self.graph, link)?;
            let lower = matches!(self.graph.at(ends.from), Node::Down(_));
            self.reps[&from].sends(output, lower).map(|(sent, qpn)| (sent, Some(qpn)))
        });
        if from.is_some() && !is_lost {
            self.heard.insert(link, self.now.0);
        }
        let heard = *self.heard.entry(link).or_insert(self.now.0);
        // Beacons without a commit barrier are heard, too.
        let heard_from = from.filter(|_| !is_lost).and_then(|from| {
            let (_, output) = sender(&self.graph, link)?;
            self.reps[&from].queue_pair(output)
        });
        let rep = self.reps.get_mut(&switch).expect("a switch of the graph");
        if heard_from.is_some() {
            rep.hear(number, heard_from);
        }
        let input = rep.inputs.get_mut(&number);
        let is_fresh = input.map(|input| core::mem::take(&mut input.fresh) || !input.counted);
        if is_fresh != Some(false) {
            self.heard.remove(&link);
        } else if number != LOOPBACK {
            rep.set_quiet(number, 1, self.now.0 - heard > SILENT_AFTER);
        }
        if let Some((sent, qpn)) = sent {
            rep.accept(&self.graph, switch, number, sent, qpn);
        }
    }

    /// A representative's beacon to a process: without a commit barrier if its output is muted.
    fn send_barrier(&mut self, switch: u16, link: LinkId, id: u32) {
        let (_, number) = sender(&self.graph, link).expect("a switch sends");
        let rep = &self.reps[&switch];
        let mut from = representative(switch);
        if let Some(qpn) = rep.queue_pair(number) {
            from.qpn = Qpn::new(qpn);
        }
        let commit = rep.sends(number, true).map(|(sent, _)| sent);
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(EPOCH + self.now.0), Psn::ZERO);
        header.set_barrier(None);
        header.set_commit(commit.and_then(stamp));
        let frame = frame(from, process(id), &header);
        self.frames += 1;
        let at = self.now.0 + 1000 + self.rng.below(2000);
        self.in_flight.push(Reverse((at, self.frames, id, frame)));
    }
}

/// Builds a frame without a payload.
pub(super) fn frame(from: Peer, to: Peer, header: &OnePipe) -> Vec<u8> {
    let route = PathHeaders::new(&PathHeaderFields {
        src_mac: from.mac,
        dst_mac: to.mac,
        vlan: None,
        src: from.address,
        dst: to.address,
        traffic_class: 0,
        hop_limit: 1,
        src_port: 0xc000,
    });
    let mut frame = Vec::new();
    let route = route.expect("addresses of one version");
    Template::new(route, to.qpn, OnePipe::QKEY, from.qpn).emit(&mut frame, header, &[]);
    frame
}

//! Processes, one switch between them, and the faults of the links, all drawn from a seed.

use super::super::super::tests::{TOR, frame, peer};
use super::super::super::{Bug, Peer, Process, ProcessId, Scattering};
use super::super::{Error, Event, Failure, Member};
use super::controller::Controller;
use super::oracle::{Delivery, Fate, Sent};
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use core::cmp::Reverse;
use rocev2::{Packet, Psn, Qpn};
use std::collections::{BTreeMap, BinaryHeap};
use switch::{Nanos, Rng};

/// Time of a step
const STEP: u64 = 250;
/// Time in which scatterings are sent
const ACTIVE: u64 = 600_000;
/// Time after which everything has to be settled
const END: u64 = 100_000_000;
/// Bytes granted to each sender
pub(super) const GRANT: u32 = 4096;

/// Whether a process runs, and is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Live,
    /// It runs, and no frame leaves or reaches it. The controller reaches it
    Isolated,
    /// Isolated, and it has recovered what it had received
    Recovered,
    Killed,
}

/// One incarnation of a process.
pub(super) struct Host {
    pub(super) process: Process,
    pub(super) id: u8,
    pub(super) incarnation: u32,
    pub(super) life: Life,
    /// Whether the controller has decided that it has failed.
    pub(super) is_failed: bool,
    /// Latest timestamp that it held when it was fenced
    pub(super) held: Option<Timestamp>,
    pub(super) delivered: Vec<Delivery>,
    pub(super) sent: BTreeMap<u32, Sent>,
    /// Cases whose callbacks are to be answered
    pub(super) callbacks: Vec<(u64, u64, ProcessId)>,
    /// Scatterings by their numbers
    serials: BTreeMap<u64, u32>,
    /// Reads once in this many steps
    reads_every: u64,
}

/// Registers of a process's link at the switch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Register {
    pub(super) barrier: Option<u64>,
    pub(super) commit: Option<u64>,
    /// Whether it is part of the best-effort and of the commit barrier.
    pub(super) is_alive: bool,
    pub(super) is_counted: bool,
    pub(super) is_frozen: bool,
}

/// Time of arrival, number, receiver (`None` is the switch), and frame
type InFlight = (u64, u64, Option<u8>, Vec<u8>);

/// What a run is to be like.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) bug: Option<Bug>,
    /// Whether processes fail.
    pub(super) has_failures: bool,
}

pub(super) struct Network {
    pub(super) hosts: Vec<Host>,
    /// Present incarnation of each process
    pub(super) current: Vec<usize>,
    pub(super) registers: Vec<Register>,
    /// Commit output of the switch
    pub(super) commit: u64,
    pub(super) now: Nanos,
    pub(super) rng: Rng,
    pub(super) controller: Controller,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    frames: u64,
    bug: Option<Bug>,
    /// Probability of a loss in 1/1000, of a duplicate, and of a long delay
    lossy: u64,
    repeats: u64,
    slow: u64,
    /// First violation
    pub(super) violation: Option<String>,
    serial: u32,
}

/// Returns the queue pair of an incarnation.
pub(super) fn qpn(id: u8, incarnation: u32) -> Qpn {
    Qpn::new(0x40 + u32::from(id) + 0x100 * (incarnation - 1))
}

/// Returns the time of the test's clock at the start, unwrapped.
pub(super) fn start() -> u64 {
    super::config(0, 1).clock.nanos()
}

/// Unwraps a timestamp next to the start.
pub(super) fn unwrap(time: Timestamp) -> u64 {
    start().wrapping_add_signed(time.distance(super::config(0, 1).clock))
}

impl Network {
    pub(super) fn new(seed: u64, plan: Plan) -> Self {
        let mut rng = Rng::new(seed);
        let count = rng.between(3, 5) as u8;
        let [lossy, repeats, slow] =
            [*rng.pick(&[0, 20, 150]), *rng.pick(&[0, 50]), *rng.pick(&[0, 30, 200])];
        let mut network = Self {
            hosts: Vec::new(),
            current: (0..usize::from(count)).collect(),
            registers: vec![
                Register { is_alive: true, is_counted: true, ..Register::default() };
                count.into()
            ],
            commit: 0,
            now: Nanos::ZERO,
            controller: Controller::new(count, plan, &mut rng),
            rng,
            in_flight: BinaryHeap::new(),
            frames: 0,
            bug: plan.bug,
            lossy,
            repeats,
            slow,
            violation: None,
            serial: 0,
        };
        for id in 0..count {
            let host = network.host(id, 1);
            network.hosts.push(host);
        }
        let members: Vec<_> = (0..count).map(|id| network.member(id.into())).collect();
        for host in &mut network.hosts {
            let others: Vec<_> =
                members.iter().filter(|member| member.id.0 != u32::from(host.id)).copied().collect();
            host.process.join(1, &others, Nanos::ZERO).unwrap();
            host.process.admit(super::config(0, 1).clock, Nanos::ZERO).unwrap();
        }
        network
    }

    pub(super) fn count(&self) -> u8 {
        self.current.len() as u8
    }

    /// Returns a new incarnation of a process, which knows the present ones of its peers.
    pub(super) fn host(&mut self, id: u8, incarnation: u32) -> Host {
        let mut config = super::config(id, self.count());
        config.own.qpn = qpn(id, incarnation);
        for peer in &mut config.peers {
            let present = self.current[peer.id.0 as usize];
            peer.qpn = qpn(peer.id.0 as u8, self.hosts.get(present).map_or(1, |host| host.incarnation));
        }
        (config.max_members, config.reliable_buffer) = (8, 8 * GRANT as usize);
        (config.bug, config.seed) = (self.bug, self.rng.bits());
        config.clock = config.clock.add(self.rng.below(2000));
        Host {
            process: Process::new(config).unwrap(),
            id,
            incarnation,
            life: Life::Live,
            is_failed: false,
            held: None,
            delivered: Vec::new(),
            sent: BTreeMap::new(),
            callbacks: Vec::new(),
            serials: BTreeMap::new(),
            reads_every: *self.rng.pick(&[1, 1, 40]),
        }
    }

    pub(super) fn member(&self, host: usize) -> Member {
        let Host { id, incarnation, .. } = self.hosts[host];
        Member { id: ProcessId(id.into()), incarnation, qpn: qpn(id, incarnation), grant: GRANT }
    }

    /// Returns the present incarnations that have not failed.
    pub(super) fn live(&self) -> Vec<usize> {
        self.current.iter().copied().filter(|&host| !self.hosts[host].is_failed).collect()
    }

    pub(super) fn violate(&mut self, what: &str) {
        self.violation.get_or_insert(format!("at {} ns: {what}", self.now.0));
    }

    /// Runs until everything is settled. Returns the first violation.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let mut settled_at = None;
        while self.now.0 < END && self.violation.is_none() {
            self.step();
            if settled_at.is_none() && self.now.0 > ACTIVE && self.is_settled() {
                settled_at = Some(self.now.0);
            }
            // What must not happen may also happen late.
            if settled_at.is_some_and(|at| self.now.0 > at + 300_000) {
                return self.violation.take().map_or_else(|| self.check(), Err);
            }
        }
        self.check_counters()?;
        let open: Vec<_> =
            self.hosts.iter().map(|host| (host.life, host.process.unsettled_reliable())).collect();
        Err(self.violation.take().unwrap_or_else(|| format!("not settled: {open:?}, {:?}", self.controller)))
    }

    fn is_settled(&self) -> bool {
        let is_done = |&host: &usize| {
            let Host { process, callbacks, .. } = &self.hosts[host];
            process.unsettled_reliable() == 0 && process.held_reliable() == 0 && callbacks.is_empty()
        };
        self.live().iter().all(is_done) && self.controller.is_settled(self)
    }

    fn step(&mut self) {
        self.now = self.now + Nanos(STEP);
        while let Some(Reverse((at, ..))) = self.in_flight.peek()
            && *at <= self.now.0
        {
            let Some(Reverse((_, _, to, frame))) = self.in_flight.pop() else { return };
            self.arrive(to, &frame);
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].life == Life::Killed {
                continue;
            }
            let process = &mut self.hosts[host].process;
            if process.next_timer().is_some_and(|at| at <= self.now) {
                process.on_timer(self.now);
            }
            self.act(host);
            self.transmit(host);
        }
        if self.now.0.is_multiple_of(4 * STEP) {
            self.send_barriers();
        }
        self.run_controller();
    }

    fn arrive(&mut self, to: Option<u8>, frame: &[u8]) {
        let Some(id) = to else { return self.update_registers(frame) };
        let host = &mut self.hosts[self.current[usize::from(id)]];
        if host.life == Life::Live {
            _ = host.process.on_frame(frame, self.now);
            let held = host.process.held_reliable();
            let id = host.id;
            if held > 8 * GRANT as usize {
                self.violate(&format!("process {id} holds {held} bytes"));
            }
        }
    }

    /// Updates the registers by a beacon of a present incarnation.
    fn update_registers(&mut self, frame: &[u8]) {
        let packet = Packet::parse(frame).unwrap();
        let header = *OnePipe::of(&packet).unwrap();
        let id = packet.ethernet().src.0[5];
        let incarnation = self.hosts[self.current[usize::from(id)]].incarnation;
        if packet.deth().unwrap().src_qp() != qpn(id, incarnation) {
            return;
        }
        let register = &mut self.registers[usize::from(id)];
        register.barrier = register.barrier.max(header.barrier().map(unwrap));
        if !register.is_frozen {
            register.commit = register.commit.max(header.commit().map(unwrap));
        }
    }

    /// Sends both barriers to all processes whose links are not muted.
    fn send_barriers(&mut self) {
        let minimum = |values: Vec<Option<u64>>| values.into_iter().min().flatten();
        let alive = self.registers.iter().filter(|register| register.is_alive);
        let barrier = minimum(alive.map(|register| register.barrier).collect());
        let counted = self.registers.iter().filter(|register| register.is_counted);
        self.commit =
            self.commit.max(minimum(counted.map(|register| register.commit).collect()).unwrap_or(0));
        for id in 0..self.count() {
            if self.registers[usize::from(id)].is_frozen {
                continue;
            }
            let incarnation = self.hosts[self.current[usize::from(id)]].incarnation;
            let commit = (self.commit > 0).then(|| Timestamp::new(self.commit));
            let mut header =
                OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(start() + self.now.0), Psn::ZERO);
            header.set_barrier(barrier.map(Timestamp::new));
            header.set_commit(commit);
            let to = Peer { qpn: qpn(id, incarnation), ..peer(false, id) };
            let frame = frame(peer(false, TOR), to, &header, &[]);
            self.send(Some(id), &frame, false);
        }
    }

    /// Sends a frame to a process, or to the switch. Frames of the reliable service overtake one another.
    fn send(&mut self, to: Option<u8>, frame: &[u8], is_reliable: bool) {
        if self.rng.below(1000) < self.lossy {
            return;
        }
        let copies = 1 + u64::from(is_reliable && self.rng.below(1000) < self.repeats);
        for _ in 0..copies {
            let extra = match self.rng.below(1000) {
                _ if !is_reliable => 0,
                draw if draw < self.slow => self.rng.below(250_000),
                _ => self.rng.below(3000),
            };
            self.frames += 1;
            let at = self.now.0 + 1000 + extra;
            self.in_flight.push(Reverse((at, self.frames, to, frame.to_vec())));
        }
    }

    fn transmit(&mut self, host: usize) {
        let mut frame = Vec::new();
        while self.hosts[host].process.poll_transmit(self.now, &mut frame) {
            self.transmit_frame(host, &frame);
        }
    }

    fn transmit_frame(&mut self, host: usize, frame: &[u8]) {
        let packet = Packet::parse(frame).unwrap();
        let header = *OnePipe::of(&packet).unwrap();
        let to = packet.ethernet().dst.0[5];
        let is_reliable = header.opcode().is_reliable();
        if is_reliable && header.barrier().or(header.commit()).is_some() {
            self.violate(&format!("a barrier in {header}"));
        }
        if self.hosts[host].life == Life::Live {
            let to = (header.opcode() != OnePipeOpcode::BEACON).then_some(to);
            self.send(to, frame, is_reliable);
        }
    }

    /// Sends a scattering by the reliable service, immediately in half of the cases in which that is possible.
    fn send_reliably(&mut self, host: usize, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, Error> {
        let process = &mut self.hosts[host].process;
        let mut frame = Vec::new();
        if let &[(dst, payload)] = messages
            && self.rng.below(2) == 0
            && let Some(number) = process.reliable_send_at_once(self.now, dst, payload, &mut frame)
        {
            self.transmit_frame(host, &frame);
            return Ok(number);
        }
        process.reliable_send(self.now, messages)
    }

    /// Has the application of a process send, receive, and answer callbacks.
    fn act(&mut self, host: usize) {
        let is_sending = self.now.0 < ACTIVE && self.hosts[host].life == Life::Live;
        if is_sending && self.rng.below(100) < 8 {
            self.scatter(host, true);
        }
        if is_sending && self.rng.below(100) < 4 {
            self.scatter(host, false);
        }
        let reads = self.now.0 > ACTIVE || (self.now.0 / STEP).is_multiple_of(self.hosts[host].reads_every);
        if reads {
            self.receive(host);
        }
        let now = self.now;
        let state = &mut self.hosts[host];
        while let Some(event) = state.process.poll_reliable_event() {
            match event {
                Event::ProcessFailed(failed) => {
                    let at = now.0 + self.rng.below(30_000);
                    state.callbacks.push((at, failed.case, failed.process));
                }
                Event::SendFailed { scattering, why, .. } => {
                    let sent = state.sent.get_mut(&state.serials[&scattering.0]).unwrap();
                    let is_known = matches!(why, Failure::Recalled | Failure::Dead);
                    sent.fate = if is_known { Fate::Recalled } else { Fate::Unknown };
                }
                Event::Settled { scattering, timestamp, failed } => {
                    let sent = state.sent.get_mut(&state.serials[&scattering.0]).unwrap();
                    sent.time = timestamp.map(unwrap);
                    if failed == 0 {
                        sent.fate = Fate::Committed;
                    }
                    sent.reports += 1;
                }
                _ => {}
            }
        }
        let due = |callback: &mut (u64, u64, ProcessId)| callback.0 <= now.0;
        let cases: Vec<_> = state.callbacks.extract_if(.., due).collect();
        for (_, case, process) in cases {
            state.process.callback_done(case, process);
        }
        while state.process.poll_event().is_some() {}
    }

    fn receive(&mut self, host: usize) {
        let now = self.now;
        let state = &mut self.hosts[host];
        loop {
            let message = match state.life {
                // The best-effort barrier does not reach it any more.
                Life::Recovered => state.process.reliable_recv(),
                Life::Isolated if state.is_failed => None,
                _ => state.process.recv().unwrap(),
            };
            let Some(message) = message else { return };
            let clock = state.process.timestamp(now);
            if !message.timestamp.precedes(clock) {
                self.violation.get_or_insert(format!("delivered {} at {clock}", message.timestamp));
                return;
            }
            state.delivered.push(Delivery::of(&message));
        }
    }

    /// Sends a scattering to some of the members.
    fn scatter(&mut self, host: usize, is_reliable: bool) {
        let (id, incarnation) = (self.hosts[host].id, self.hosts[host].incarnation);
        self.serial += 1;
        let serial = self.serial;
        let count = u64::from(self.count());
        let receivers = self.rng.between(1, count);
        let first = self.rng.below(count);
        let longest = *self.rng.pick(&[20, 20, 900]);
        let mut messages = Vec::new();
        for n in 0..receivers {
            let to = (first + n) % count;
            for part in 0..*self.rng.pick(&[1u8, 1, 2]) {
                let mut payload = Delivery::header(id, incarnation, is_reliable, serial, part);
                payload.resize(payload.len() + self.rng.below(longest) as usize, part);
                messages.push((ProcessId(to as u32), payload));
            }
        }
        let borrowed: Vec<_> = messages.iter().map(|(to, payload)| (*to, &payload[..])).collect();
        if !is_reliable {
            _ = self.hosts[host].process.unreliable_send(self.now, &borrowed);
            return;
        }
        match self.send_reliably(host, &borrowed) {
            Ok(number) => {
                let mut receivers: Vec<(u8, u32)> = Vec::new();
                for (to, _) in &messages {
                    let host = self.current[to.0 as usize];
                    receivers.push((to.0 as u8, self.hosts[host].incarnation));
                }
                let sent = Sent { receivers, fate: Fate::Unknown, time: None, reports: 0 };
                let state = &mut self.hosts[self.current[usize::from(id)]];
                state.serials.insert(number.0, serial);
                state.sent.insert(serial, sent);
            }
            Err(Error::NotMember(_) | Error::NotAdmitted | Error::Fenced) => {}
            Err(error) => self.violate(&format!("{error}")),
        }
    }
}

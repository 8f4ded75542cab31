//! A host of the whole system: a process with its member, and an application that sends scatterings of both
//! services at random, receives, and answers callbacks. Its records outlive crashes.

use super::clocks::{Clocks, HostClock};
use super::cpu::Cpu;
use super::departure::Departure;
use super::measure::{Load, Meter};
use super::message::{Body, Endpoint, Service};
use super::tap::Tap;
use crate::onepipe::addresses::{Addresses, BEACON_INTERVAL, host_addresses};
use crate::onepipe::host::{Position, unwrap};
use onepipe::control::{Envelope, Message};
use onepipe::process::member::{self, Member};
use onepipe::process::reliable::{self, Event, Failed, Failure};
use onepipe::process::{self, BeaconPeer, Bug, Config, Peer};
use onepipe::{Process, ProcessId};
use rocev2::ethernet::MacAddr;
use sim::{Node, Ports};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::memory::MemoryFrame;
use switch::{Frame, Nanos, PortId, Probability, Rng};

/// Bytes of reliable messages that a process grants to each member
const GRANT: usize = 8192;
/// Longest time that the application takes for a callback
const CALLBACK: u64 = 60_000;

/// Message that was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Unwrapped timestamp
    pub(super) time: u64,
    pub(super) body: Body,
    /// When it was received, by the host's clock
    pub(super) at: Nanos,
}

/// What the sender knows about a scattering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unknown,
    Committed,
    Recalled,
}

/// Reliable scattering that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) src: Endpoint,
    pub(super) serial: u32,
    pub(super) receivers: BTreeSet<Endpoint>,
    pub(super) fate: Fate,
}

/// What happened from a start of the process to its crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    /// Incarnations that were members
    pub(super) incarnations: BTreeSet<u32>,
    /// Those whose messages the application may not have taken
    waiting: BTreeSet<u32>,
    /// Those whose messages a crash may have taken: what was held is gone
    pub(super) lost: BTreeSet<u32>,
    /// Whether both services are received in one order
    pub(super) merges: bool,
    pub(super) delivered: Vec<Delivery>,
    /// Reliable scatterings
    pub(super) sent: BTreeMap<u64, Sent>,
    /// Best-effort scatterings: serial numbers
    pub(super) sent_best_effort: usize,
    /// Callbacks by case and process
    pub(super) called: BTreeMap<(u64, u32), Call>,
    /// Admissions, by the host's clock
    pub(super) admissions: Vec<Nanos>,
    /// Incarnations that were admitted
    pub(super) admitted: BTreeSet<u32>,
    /// Incarnation that has left in agreement with the controller
    pub(super) left: Option<u32>,
}

/// Callback for a failed process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// T_P, unwrapped
    pub(super) time: u64,
    /// Incarnation that is called
    pub(super) by: u32,
    /// Whether it was a member: one that joins bounds no other process
    pub(super) is_member: bool,
    /// When it returned, by the host's clock
    pub(super) returned: Option<Nanos>,
}

/// A host.
pub(super) struct Host {
    pub(super) id: u32,
    seed: u64,
    config: Config,
    topology: u64,
    /// Whether it has no controller
    is_unmanaged: bool,
    rng: Rng,
    pub(super) process: Process,
    pub(super) member: Member,
    /// Whether it has just been created: the first start keeps the process
    is_new: bool,
    every: Nanos,
    until: Nanos,
    next_send: Nanos,
    pub(super) outbox: VecDeque<Envelope>,
    /// Interfaces whose frames do not reach this host
    pub(super) unheard: Vec<MacAddr>,
    /// Incarnation of each process that is or was last a member
    pub(super) known: BTreeMap<u32, u32>,
    pub(super) admitted: Option<u32>,
    last_incarnation: Option<u32>,
    callbacks: Vec<(Nanos, Failed)>,
    pub(super) departure: Departure,
    /// The machine's clock, if the process's follows clock beacons
    pub(super) clock: Option<HostClock>,
    pub(super) tap: Tap,
    serial: u32,
    pub(super) lives: Vec<Life>,
    /// First violation that the host itself observes
    pub(super) wrong: Option<String>,
    /// What it does in a measurement, and what was measured
    load: Option<Load>,
    pub(super) meter: Meter,
    cpu: Cpu,
    /// Highest term that it was shown, and state that it has answered
    term: u64,
    answered: (u32, u64),
}

/// What a host is created from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) topology: u64,
    pub(super) seed: u64,
    pub(super) unmanaged: Option<usize>,
    /// Error of clocks, in addition to that of the tree
    pub(super) clock_error: Nanos,
    /// Machines' clocks where clocks follow clock beacons, and the maximum time by which a barrier is ahead
    pub(super) clocks: Option<(Clocks, Nanos)>,
    pub(super) bug: Option<Bug>,
    pub(super) load: Option<Load>,
}

fn new_member(id: u32, life: usize, topology: u64, process: &Process) -> Member {
    let [low, high] = (life as u16).to_be_bytes();
    let mut boot = [id as u8; 16];
    (boot[0], boot[1]) = (low, high);
    let mut settings = member::Config::new(boot, topology);
    settings.repeat = (Nanos::from_micros(100), Nanos::from_millis(1));
    Member::new(settings, process).expect("the configuration allows for the reliable service")
}

impl Host {
    pub(super) fn new(n: usize, position: Position, settings: Settings) -> Self {
        let peer = |n: usize| {
            let at = host_addresses(n);
            Peer { id: ProcessId(n as u32), mac: at.mac, address: at.ip.into(), qpn: at.qpn }
        };
        let beacon_peer = |Addresses { mac, ip, qpn }: Addresses| BeaconPeer {
            mac,
            address: ip.into(),
            qpn,
            detour: Vec::new(),
        };
        let mut config = Config::new(peer(n), beacon_peer(position.tor));
        config.standby = position.standby.map(beacon_peer);
        config.peers = (0..position.hosts).filter(|&other| other != n).map(peer).collect();
        (config.mtu, config.max_members) = (256, position.hosts);
        config.reliable_buffer = position.hosts * GRANT;
        (config.receive_window, config.receive_buffer) = (1 << 20, 16 << 20);
        config.beacon_interval = BEACON_INTERVAL;
        config.timeout = Nanos::from_micros(100);
        config.clock = crate::onepipe::addresses::shifted_clock(position.clock_off_by);
        (config.seed, config.bug) = (settings.seed, settings.bug);
        config.clock_error = position.clock_error + settings.clock_error;
        if let Some(load) = &settings.load {
            load.configure(&mut config);
        }
        let clock = settings
            .clocks
            .map(|(clocks, ahead_max)| HostClock::new(clocks, ahead_max, position.clock_off_by, &mut config));
        let process = Process::new(config.clone()).expect("the configuration is valid");
        Self {
            id: n as u32,
            load: settings.load,
            meter: Meter::default(),
            cpu: Cpu::new(settings.load.map_or(Nanos::ZERO, |load| load.message_time)),
            seed: settings.seed,
            member: new_member(n as u32, 0, settings.topology, &process),
            topology: settings.topology,
            is_unmanaged: settings.unmanaged == Some(n),
            process,
            config,
            rng: Rng::stream(settings.seed, 1 << 43 | n as u64),
            is_new: true,
            every: position.every,
            until: position.until,
            next_send: Nanos::ZERO,
            outbox: VecDeque::new(),
            unheard: Vec::new(),
            known: BTreeMap::new(),
            admitted: None,
            last_incarnation: None,
            callbacks: Vec::new(),
            departure: Departure::default(),
            clock,
            tap: Tap::default(),
            serial: 0,
            lives: Vec::new(),
            wrong: None,
            term: 0,
            answered: (0, 0),
        }
    }

    pub(super) fn life(&mut self) -> &mut Life {
        self.lives.last_mut().expect("it has started")
    }

    fn report(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// Returns the incarnation that the process had last.
    pub(super) const fn last_incarnation(&self) -> Option<u32> {
        self.last_incarnation
    }

    /// Returns whether the application has no scattering or callback under way, and waits for no message.
    pub(super) fn is_idle(&self) -> bool {
        self.process.unsettled_reliable() == 0
            && self.process.held_reliable() == 0
            && self.process.unsettled() == 0
            && self.callbacks.is_empty()
    }

    pub(super) fn on_connected(&mut self, now: Nanos) {
        self.member.on_connected(&mut self.process, now);
        self.after(now);
    }

    /// Takes a message of a controller.
    pub(super) fn on_envelope(&mut self, envelope: &Envelope, now: Nanos) {
        let is_old = envelope.term < self.term;
        self.term = self.term.max(envelope.term);
        let is_taken = self.member.on_envelope(envelope, &mut self.process, now).is_ok();
        if is_old && is_taken {
            self.report(format!("it obeys an old term: {envelope:?}"));
        }
        if let (Message::Desired { sources, .. }, true) = (&envelope.message, is_taken) {
            let barrier = self.process.delivered_up_to().map_or(0, |barrier| unwrap(barrier, now));
            self.tap.listen_to(sources, barrier);
        }
        if let Some(incarnation) = self.member.incarnation() {
            self.last_incarnation = Some(incarnation);
            self.life().incarnations.insert(incarnation);
            self.life().waiting.insert(incarnation);
        }
        self.after(now);
    }

    pub(super) fn after(&mut self, now: Nanos) {
        if let Some(Err(wrong)) = self.clock.as_mut().map(|clock| clock.see(&mut self.process, now)) {
            self.report(wrong);
        }
        self.receive(now);
        self.handle_events(now);
        self.advance_departure();
        while let Some(envelope) = self.member.poll_envelope(&mut self.process, now) {
            self.check_sent(&envelope);
            self.outbox.push_back(envelope);
        }
    }

    /// Checks that it completes no case before its callbacks have returned, and answers no earlier state.
    fn check_sent(&mut self, envelope: &Envelope) {
        match envelope.message {
            // A process that leaves answers without waiting for its application.
            Message::Completed { case } if !self.departure.has_begun() => {
                let mut of = self.life().called.iter().filter(|((of, _), _)| *of == case).peekable();
                let is_early = of.peek().is_none() || of.any(|(_, call)| call.returned.is_none());
                if is_early {
                    self.report(format!("it completes case {case} before its callbacks"));
                }
            }
            Message::DesiredAck { version, .. } => {
                let answer = (envelope.incarnation.0, version);
                if answer < self.answered {
                    self.report(format!("it answers state {answer:?} after {:?}", self.answered));
                }
                self.answered = answer;
            }
            _ => {}
        }
    }

    fn poll_message(&mut self) -> Option<process::Message> {
        if self.life().merges {
            self.process.recv().ok().flatten()
        } else {
            self.process.reliable_recv().or_else(|| self.process.unreliable_recv())
        }
    }

    fn receive(&mut self, now: Nanos) {
        if self.load.is_some() {
            return self.meter.receive(&mut self.process, now);
        }
        while let Some(message) = self.poll_message() {
            let clock = self.process.timestamp(now);
            if !message.timestamp.precedes(clock) {
                self.report(format!("it delivers {} ahead of its clock {clock}", message.timestamp));
            }
            let Some(body) = Body::decode(&message.payload) else {
                self.report("it delivers a damaged message".into());
                continue;
            };
            if body.src.0 != message.src.0 {
                self.report(format!("it delivers {body:?} as of process {}", message.src));
            }
            let delivery = Delivery { time: unwrap(message.timestamp, now), body, at: now };
            self.life().delivered.push(delivery);
            if body.service == Service::Reliable {
                // What was for earlier incarnations came before.
                self.life().waiting.retain(|&incarnation| incarnation >= body.dst.1);
            }
        }
        if self.process.held_reliable() == 0 {
            let last = self.member.last_incarnation();
            self.life().waiting.retain(|&incarnation| Some(incarnation) == last);
        }
    }

    fn handle_events(&mut self, now: Nanos) {
        while let Some(event) = self.process.poll_reliable_event() {
            match event {
                Event::Admitted { incarnation } => {
                    self.admitted = Some(incarnation);
                    self.life().admissions.push(now);
                    self.life().admitted.insert(incarnation);
                }
                Event::ProcessFailed(failed) => {
                    let key = (failed.case, failed.process.0);
                    let time = unwrap(failed.timestamp, now);
                    let by = self.last_incarnation.unwrap_or(0);
                    let call = Call { time, by, is_member: self.admitted == Some(by), returned: None };
                    if self.life().called.insert(key, call).is_some() {
                        self.report(format!("it is called back twice: {failed:?}"));
                    }
                    let longest = if self.load.is_some() { 1 } else { CALLBACK };
                    self.callbacks.push((now + Nanos(self.rng.below(longest)), failed));
                }
                Event::SendFailed { scattering, why: Failure::Recalled | Failure::Dead, .. } => {
                    self.set_fate(scattering.0, Fate::Recalled);
                }
                Event::Settled { scattering, failed: 0, .. } => {
                    self.set_fate(scattering.0, Fate::Committed);
                }
                Event::Fenced { .. } => self.admitted = None,
                Event::SendFailed { .. } | Event::Settled { .. } | Event::Stalled | Event::Recovered => {}
            }
        }
        while self.process.poll_event().is_some() {}
        let is_leaving = self.departure.has_begun();
        let is_due = |callback: &mut (Nanos, Failed)| callback.0 <= now || is_leaving;
        for (_, failed) in self.callbacks.extract_if(.., is_due).collect::<Vec<_>>() {
            if let Some(call) = self.life().called.get_mut(&(failed.case, failed.process.0)) {
                call.returned = Some(now);
            }
            self.process.callback_done(failed.case, failed.process);
        }
    }

    fn set_fate(&mut self, scattering: u64, fate: Fate) {
        if self.load.is_some() {
            return;
        }
        let sent = self.life().sent.get_mut(&scattering);
        let is_first = match sent {
            Some(sent) => {
                let before = core::mem::replace(&mut sent.fate, fate);
                before == Fate::Unknown || before == fate
            }
            None => false,
        };
        if !is_first {
            self.report(format!("scattering {scattering} has two results, or was not sent"));
        }
    }

    /// Sends a scattering to some of the processes.
    fn scatter(&mut self, now: Nanos) {
        if let Some(load) = self.load {
            if self.admitted.is_some() && !load.is_saturating() {
                load.scatter(&mut self.process, &mut self.meter, &mut self.rng, now);
            }
            return;
        }
        let is_reliable = self.rng.below(10) < 6;
        if is_reliable && (self.admitted.is_none() || self.departure.has_begun()) {
            return;
        }
        let mut to: Vec<u32> = if is_reliable {
            self.process.members().iter().map(|id| id.0).collect()
        } else {
            self.config.peers.iter().map(|peer| peer.id.0).collect()
        };
        to.push(self.id);
        let count = 1 + self.rng.below(to.len() as u64) as usize;
        while to.len() > count {
            to.swap_remove(self.rng.below(to.len() as u64) as usize);
        }
        to.sort_unstable();
        if is_reliable {
            // A full buffer, or a member that has just failed: nothing is sent.
            _ = self.send(&to, now);
        } else {
            let (_, messages) = self.messages(Service::BestEffort, &to);
            let parts: Vec<_> = messages.iter().map(|(to, bytes)| (*to, &bytes[..])).collect();
            if self.process.unreliable_send(now, &parts).is_ok() {
                self.life().sent_best_effort += 1;
            }
        }
    }

    /// Returns the messages of a scattering, and its receivers with the incarnations that `known` has.
    fn messages(&mut self, service: Service, to: &[u32]) -> (BTreeSet<Endpoint>, Vec<(ProcessId, Vec<u8>)>) {
        self.serial += 1;
        let (src, serial) = ((self.id, self.admitted.unwrap_or(0)), self.serial);
        let incarnation =
            |id: u32| if id == src.0 { src.1 } else { self.known.get(&id).copied().unwrap_or(0) };
        let receivers: BTreeSet<_> = to.iter().map(|&id| (id, incarnation(id))).collect();
        let longest = *self.rng.pick(&[1, 40, 900]);
        let mut message = |&dst: &Endpoint| {
            let body = Body { service, src, dst, serial };
            (ProcessId(dst.0), body.encode(self.rng.below(longest) as usize))
        };
        let messages = receivers.iter().map(&mut message).collect();
        (receivers, messages)
    }

    /// Sends a reliable scattering. Returns its number.
    pub(super) fn send(&mut self, to: &[u32], now: Nanos) -> Result<u64, reliable::Error> {
        let (receivers, messages) = self.messages(Service::Reliable, to);
        let (src, serial) = ((self.id, self.admitted.unwrap_or(0)), self.serial);
        let parts: Vec<_> = messages.iter().map(|(to, bytes)| (*to, &bytes[..])).collect();
        let scattering = self.process.reliable_send(now, &parts)?;
        let sent = Sent { src, serial, receivers, fate: Fate::Unknown };
        self.life().sent.insert(scattering.0, sent);
        Ok(scattering.0)
    }
}

impl Host {
    /// Sends no more scatterings.
    pub(super) const fn stop_sending(&mut self) {
        self.until = Nanos::ZERO;
    }

    /// Loses this share of the frames that arrive, in a measurement.
    pub(super) fn lose(&mut self, loss: Probability) {
        if let Some(load) = &mut self.load {
            load.loss = loss;
        }
    }

    /// Takes a frame, when the CPU has come to it.
    fn take(&mut self, frame: &MemoryFrame, now: Nanos) {
        if self.load.is_some() {
            self.meter.arrive(frame.bytes(), now);
        }
        if let Err(wrong) = self.tap.on_frame(frame.bytes(), now) {
            self.report(wrong);
        }
        // The process counts whether it accepted the frame.
        _ = self.process.on_frame(frame.bytes(), now);
        self.after(now);
        self.meter.see_barriers(&self.process, now);
    }
}

impl Node for Host {
    fn on_frame(&mut self, frame: MemoryFrame, _port: PortId, now: Nanos, _out: &mut Ports<'_>) {
        if frame.bytes().get(6..12).is_some_and(|src| self.unheard.iter().any(|mac| mac.0 == *src))
            || self.load.is_some_and(|load| self.rng.happens(load.loss))
        {
            return;
        }
        if let Some(frame) = self.cpu.arrive(frame, now) {
            self.take(&frame, now);
        }
    }

    fn on_timer(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        while let Some(frame) = self.cpu.poll(now) {
            self.take(&frame, now);
        }
        if self.process.next_timer().is_some_and(|at| at <= now) {
            self.process.on_timer(now);
        }
        if self.member.next_timer() <= now {
            self.member.on_timer(&mut self.process, now);
        }
        if self.next_send <= now {
            if now < self.until {
                self.scatter(now);
            }
            self.next_send = now + Nanos(self.rng.between(1, 2 * self.every.0));
        }
        if let Some(load) = self.load.filter(|load| load.is_saturating() && now < self.until) {
            load.fill(&mut self.process, self.id, now);
        }
        self.after(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        let next_send = Some(self.next_send).filter(|&at| at < self.until);
        let callbacks = self.callbacks.iter().map(|callback| callback.0).min();
        // One that has left has no timers.
        let member = Some(self.member.next_timer()).filter(|_| !self.member.has_left());
        let timers = [self.process.next_timer(), member, next_send, callbacks, self.cpu.next_timer()];
        timers.into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, _port: PortId, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if !self.cpu.may_send(now) {
            return false;
        }
        let more = self.process.poll_transmit(now, frame);
        if more {
            self.cpu.sent(now);
        }
        // Sending may deliver messages to the host itself.
        self.after(now);
        more
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        let life = self.lives.len();
        if !core::mem::replace(&mut self.is_new, false) {
            if let Some(clock) = &mut self.clock {
                self.config.clock = clock.restart(self.id, life);
            }
            let config = Config { seed: self.seed ^ (life as u64) << 32, ..self.config.clone() };
            self.process = Process::new(config).expect("the configuration is valid");
            self.member = new_member(self.id, life, self.topology, &self.process);
            (self.term, self.answered) = (0, (0, 0));
            (self.departure, self.tap) = (Departure::default(), Tap::default());
        }
        self.lives.push(Life { merges: self.rng.below(2) == 0 && !self.is_unmanaged, ..Life::default() });
        self.next_send = now + Nanos(self.rng.below(2 * self.every.0));
    }

    fn crash(&mut self) {
        let last = self.member.last_incarnation();
        let life = self.life();
        life.lost = core::mem::take(&mut life.waiting);
        life.lost.extend(last);
        // One that has left has delivered all.
        let left = life.left;
        life.lost.retain(|&incarnation| Some(incarnation) != left);
        self.admitted = None;
        self.callbacks.clear();
        self.outbox.clear();
        self.cpu.clear();
    }
}

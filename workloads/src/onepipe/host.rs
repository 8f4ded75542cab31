//! A host of 1Pipe: a process ([`onepipe::Process`]), an application that scatters messages at random,
//! and a record of what it observed. This file inspects all frames before the process gets them, with its own
//! implementation of the rules.

use super::Behaviour;
use super::addresses::{Addresses, BEACON_INTERVAL, CLOCK, host_addresses, shifted_clock};
use super::clocks::Clocked;
use super::commit::{self, Commits};
use super::incarnations::{HostIncarnation, starts_sending};
use super::outsider;
use super::traffic::{Traffic, host_of};
use super::variation::clock_source;
use onepipe::process::{self, Event, Failure, Peer, Scattering};
use onepipe::{ClockSample, OnePipe, OnePipeOpcode, Process, ProcessId, Timestamp};
use rocev2::{Packet, Psn};
use sim::{Node, Ports};
use std::collections::{BTreeMap, BTreeSet};
use switch::memory::MemoryFrame;
use switch::{Frame, Nanos, PortId, Rng};

/// A message at its receiver: its unwrapped timestamp (ns), its sender, and the sender's number for it. Sorts
/// in the order of delivery
pub type Message = (u64, usize, u64);

/// State of a message at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its receiver
    pub to: usize,
    /// Number of the first message of its scattering
    pub scattering: u64,
    /// Outcome as the process reports it; `None` before that
    pub fate: Option<Result<(), Failure>>,
    /// Whether the process crashed before it reported the outcome
    pub abandoned: bool,
    /// Unwrapped timestamp, once its scattering is settled, if it got one
    pub timestamp: Option<u64>,
}

/// A packet of a message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its sender
    pub from: usize,
    /// Its PSN
    pub psn: Psn,
    /// When it arrived, by the receiver's clock
    pub at: Nanos,
    /// Whether it is below the barrier that the link has carried before
    pub late: bool,
}

/// A host: sends scatterings at random times, and records its deliveries.
pub struct Host {
    own: usize,
    pub(super) seed: u64,
    position: Position,
    pub(super) behaviour: Behaviour,
    /// Incarnations of the process
    pub(super) incarnations: Vec<HostIncarnation>,
    /// Time of its last event
    pub(super) last_event: Nanos,
    /// When it is to leave
    pub(super) leave_at: Option<Nanos>,
    /// Hosts that it sends to
    destinations: Vec<usize>,
    rng: Rng,
    /// The process
    pub process: Process,
    /// Whether it sends messages at once where that is possible
    at_once: bool,
    /// Frame of such a message, which leaves before any other frame
    pub(super) frame: Option<Vec<u8>>,
    /// Number of messages that were sent at once
    pub sent_at_once: u64,
    next_message: Nanos,
    pub(super) next_read: Nanos,
    /// When its clock is to be stepped, and the resulting offset (ns)
    pub(super) step: Option<(Nanos, i64)>,
    /// Offset to which it was stepped (ns); 0 before that
    pub(super) stepped_by: i64,
    /// Messages by number
    pub sent: Vec<Sent>,
    /// Scatterings that are not settled: the number of the first message, and the count
    pub(super) open: BTreeMap<Scattering, (usize, usize)>,
    /// Number of scatterings that the process refused because its buffer was full
    pub full: u64,
    /// Deliveries
    pub delivered: Vec<Message>,
    /// First violation
    pub wrong: Option<String>,
    /// Time from sending to delivery of each delivered message (ns)
    pub latencies_ns: Vec<u64>,
    /// Times by the host's clock, and what the process's clock has shown
    pub(super) clocked: Clocked,
    /// Each message that arrived from another host, delivered or not: its unwrapped timestamp, and the time
    /// from then to its arrival (ns)
    pub arrived: Vec<(u64, u64)>,
    /// Highest barrier on its link, and when it last rose
    pub(super) barrier: Option<Timestamp>,
    pub(super) last_rise: Option<Nanos>,
    /// Until when messages carry the barrier of the link, as its switch has declared
    tor_writes_until: Nanos,
    /// Longest time without a rise of the barrier
    pub stall: Nanos,
    /// Packets of messages that arrived: all of them if it records packets, otherwise those below the barrier
    pub arrivals: Vec<Arrival>,
    /// Arrivals of beacons that announced that nothing follows
    pub nothing_follows: Vec<Nanos>,
    /// Number of barriers that went back
    pub went_back: u64,
    /// Number of barriers ahead of the host's own clock: a message below such a barrier may be delivered
    /// before a message that caused it is sent
    pub ahead: u64,
    /// Highest barrier that the host has sent on its own link
    pub(super) promised: Option<Timestamp>,
    /// Number of messages sent below that barrier
    pub broken: u64,
    /// Packets on its link, if it records them
    pub(super) traffic: Option<Traffic>,
    /// Commit barriers that it has sent and received
    pub(super) commits: Option<Commits>,
}

/// Position of a host in the network, and its load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// Number of all hosts
    pub(super) hosts: usize,
    /// Destination of its beacons
    pub(super) tor: Addresses,
    /// Second destination of its beacons, if its switch has a standby
    pub(super) standby: Option<Addresses>,
    /// Mean time between two scatterings
    pub(super) every: Nanos,
    /// Largest difference between the clocks of two hosts
    pub(super) clock_error: Nanos,
    /// Time by which its 1Pipe clock is wrong from the beginning (ns)
    pub(super) clock_off_by: i64,
    /// Whether its clock follows clock beacons
    pub(super) beacon_clock: bool,
    /// End of sending, by the host's clock
    pub(super) until: Nanos,
    /// Whether messages carry the barrier of the link
    pub(super) barriers_in_messages: bool,
    /// Whether its beacons declare nothing, as those of earlier versions
    pub(super) is_old: bool,
}

/// Time after which a process that follows clock beacons takes part
pub(super) const SYNCHRONIZES_WITHIN: Nanos = Nanos::from_micros(2_200);

/// Time for which a declaration of the switch is valid
const LEASE: Nanos = Nanos(10 * BEACON_INTERVAL.0);

/// Returns 1Pipe's time without its wrap (ns).
pub(super) fn true_time(now: Nanos) -> u64 {
    (1 << 48) + CLOCK.nanos() + now.0
}

/// Returns the unwrapped time near `now` for a timestamp.
pub(super) fn unwrap(timestamp: Timestamp, now: Nanos) -> u64 {
    let now = true_time(now);
    now.wrapping_add_signed(timestamp.distance(Timestamp::new(now)))
}

/// Returns the hosts that host `own` sends to: itself, and hosts that also send to it.
fn destinations(own: usize, hosts: usize, partners: usize, seed: u64) -> Vec<usize> {
    if partners == 0 {
        return (0..hosts).collect();
    }
    assert!(hosts.is_power_of_two(), "{hosts} hosts");
    let mut rng = Rng::stream(seed, 1 << 34);
    let distances: BTreeSet<usize> = (0..partners).map(|_| rng.below(hosts as u64) as usize).collect();
    [0].into_iter().chain(distances.into_iter().filter(|&by| by > 0)).map(|by| own ^ by).collect()
}

/// Returns the payload of a message: its number, and bytes derived from it.
fn payload(number: usize, len: usize) -> Vec<u8> {
    let byte = |n: usize| (number.wrapping_mul(31) + n) as u8;
    (number as u32).to_be_bytes().into_iter().chain((4..len).map(byte)).collect()
}

impl Host {
    pub(super) fn new(own: usize, position: Position, behaviour: Behaviour, seed: u64) -> Self {
        let peer = |n: usize| {
            let at = host_addresses(n);
            Peer { id: ProcessId(n as u32), mac: at.mac, address: at.ip.into(), qpn: at.qpn }
        };
        let Addresses { mac, ip, qpn } = position.tor;
        let tor = process::BeaconPeer { mac, address: ip.into(), qpn, detour: Vec::new() };
        let mut config = process::Config::new(peer(own), tor);
        config.standby = position.standby.map(|Addresses { mac, ip, qpn }| process::BeaconPeer {
            mac,
            address: ip.into(),
            qpn,
            detour: Vec::new(),
        });
        let destinations = destinations(own, position.hosts, behaviour.partners, seed);
        config.peers = destinations.iter().copied().filter(|&n| n != own).map(peer).collect();
        config.declares = !position.is_old;
        config.beacon_interval = BEACON_INTERVAL;
        (config.receive_window, config.initial_window) = (behaviour.receive_window, behaviour.initial_window);
        config.receive_buffer = behaviour.receive_buffer;
        config.timeout = behaviour.timeout;
        config.clock = shifted_clock(position.clock_off_by);
        config.clock_error = position.clock_error;
        config.clock_source = clock_source(position.beacon_clock);
        config.seed = seed;
        (config.bug, config.ends_bug) = (behaviour.bug, behaviour.ends_bug);
        let mut rng = Rng::stream(seed, 1 << 32 | own as u64);
        let at = sim::EPOCH + Nanos(rng.below(position.until.since(sim::EPOCH).0.max(1)));
        let by = rng.below(2 * behaviour.step_ns + 1) as i64 - behaviour.step_ns as i64;
        // A separate stream, so that all other draws of the seed stay the same.
        let mut leaving = Rng::stream(seed, 1 << 41 | own as u64);
        let lasts = position.until.since(sim::EPOCH).0.max(1);
        let leave_at = leaving.happens(behaviour.leaves).then(|| sim::EPOCH + Nanos(leaving.below(lasts)));
        Self {
            own,
            seed,
            incarnations: Vec::new(),
            last_event: Nanos::ZERO,
            leave_at,
            stepped_by: 0,
            position,
            behaviour,
            destinations,
            rng,
            process: Process::new(config).expect("the configuration is valid"),
            at_once: Rng::stream(seed, 1 << 35 | own as u64).happens(behaviour.at_once),
            frame: None,
            sent_at_once: 0,
            next_message: Nanos::ZERO,
            next_read: Nanos::ZERO,
            step: (by != 0).then_some((at, by)),
            sent: Vec::new(),
            open: BTreeMap::new(),
            full: 0,
            delivered: Vec::new(),
            wrong: None,
            latencies_ns: Vec::new(),
            clocked: Clocked::default(),
            arrived: Vec::new(),
            barrier: None,
            last_rise: None,
            tor_writes_until: Nanos::ZERO,
            stall: Nanos::ZERO,
            arrivals: Vec::new(),
            nothing_follows: Vec::new(),
            went_back: 0,
            ahead: 0,
            promised: None,
            broken: 0,
            traffic: behaviour.records.then(Traffic::default),
            commits: behaviour
                .commits
                .map(|lag| Commits::new(own, lag, Rng::stream(seed, 1 << 42 | own as u64))),
        }
    }

    /// Returns 1Pipe's time of the host's machine when the host's clock shows 0.
    pub(super) fn machine_clock(&self) -> Timestamp {
        shifted_clock(self.position.clock_off_by.wrapping_add(self.stepped_by))
    }

    /// Returns the largest difference between the clocks of two hosts.
    pub(super) const fn clock_error(&self) -> Nanos {
        self.position.clock_error
    }

    /// Returns the time after which an unacknowledged message has failed.
    pub(super) const fn timeout(&self) -> Nanos {
        self.behaviour.timeout
    }

    /// Returns the host's number.
    pub fn number(&self) -> usize {
        self.own
    }

    /// Reports the failure of hosts to the process, and stops sending to them.
    pub fn forget(&mut self, dead: &[usize], now: Nanos) {
        self.destinations.retain(|host| !dead.contains(host));
        for &host in dead {
            self.process.set_alive(ProcessId(host as u32), false, now);
        }
    }

    /// Returns whether every message has an outcome.
    pub fn is_settled(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the number of a message's scattering: that of its first message.
    pub fn scattering_of(&self, message: u64) -> u64 {
        self.sent.get(message as usize).map_or(message, |sent| sent.scattering)
    }

    /// Returns the earliest time, not before `at`, at which a scattering may be sent.
    fn next_tick(&self, at: Nanos) -> Nanos {
        let tick = self.behaviour.tick.0.max(1);
        Nanos(at.0.div_ceil(tick) * tick)
    }

    fn scatter(&mut self, now: Nanos) {
        let first = self.sent.len();
        let mut messages = Vec::new();
        let count =
            if self.behaviour.broadcasts { self.destinations.len() } else { self.rng.between(1, 3) as usize };
        for n in 0..count {
            let chosen = if self.behaviour.broadcasts {
                n
            } else {
                self.rng.below(self.destinations.len() as u64) as usize
            };
            let to = self.destinations[chosen];
            let large = self.behaviour.largest > 64 && self.rng.below(8) == 0;
            let len = self.rng.between(4, if large { self.behaviour.largest } else { 8 }) as usize;
            messages.push((ProcessId(to as u32), payload(self.sent.len(), len)));
            self.clocked.sent_at.push(now);
            self.sent.push(Sent {
                to,
                scattering: first as u64,
                fate: None,
                abandoned: false,
                timestamp: None,
            });
        }
        let parts: Vec<_> = messages.iter().map(|(to, payload)| (*to, &payload[..])).collect();
        if let [(to, payload)] = parts[..]
            && self.at_once
            && self.frame.is_none()
        {
            let mut frame = Vec::new();
            if let Some(scattering) = self.process.send_at_once(now, to, payload, &mut frame) {
                self.open.insert(scattering, (first, 1));
                self.frame = Some(frame);
                self.sent_at_once += 1;
                return;
            }
        }
        match self.process.unreliable_send(now, &parts) {
            Ok(scattering) => {
                self.open.insert(scattering, (first, parts.len()));
            }
            Err(process::SendError::Full) => {
                self.full += 1;
                self.sent.truncate(first);
                self.clocked.sent_at.truncate(first);
            }
            Err(error) => self.report(format!("the process refused a scattering: {error}")),
        }
    }

    fn report(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn handle_events(&mut self, now: Nanos) {
        while let Some(event) = self.process.poll_event() {
            match event {
                Event::SendFailed { scattering, dst, part, why, .. } => {
                    let sent = self
                        .open
                        .get(&scattering)
                        .and_then(|(first, _)| self.sent.get_mut(first + part as usize));
                    match sent {
                        Some(sent) if sent.to == dst.0 as usize && sent.fate.is_none() => {
                            sent.fate = Some(Err(why));
                        }
                        _ => self.report(format!(
                            "{scattering:?} part {part} failed a second time, or was never sent"
                        )),
                    }
                }
                Event::Stalled { .. } | Event::Recovered { .. } => {}
                Event::Settled { scattering, timestamp, failed } => {
                    let Some((first, count)) = self.open.remove(&scattering) else {
                        self.report(format!("{scattering:?} was settled a second time"));
                        continue;
                    };
                    let mut bad = 0;
                    for sent in &mut self.sent[first..first + count] {
                        bad += u32::from(sent.fate.is_some());
                        sent.fate.get_or_insert(Ok(()));
                        sent.timestamp = timestamp.map(|timestamp| unwrap(timestamp, now));
                    }
                    if bad != failed {
                        self.report(format!(
                            "{scattering:?}: {bad} failures of messages were reported, but {failed} counted"
                        ));
                    }
                }
            }
        }
    }

    /// Takes deliveries from the process, and checks them.
    fn read(&mut self, now: Nanos) {
        while let Some(message) = self.process.unreliable_recv() {
            let clock = self.process.timestamp(now);
            if !message.timestamp.precedes(clock) {
                self.report(format!(
                    "a message with timestamp {} was delivered too early, at {clock}",
                    message.timestamp
                ));
            }
            let (ns, from) = (unwrap(message.timestamp, now), message.src.0 as usize);
            let Some(&[a, b, c, d]) = message.payload.first_chunk() else {
                self.report("a message without a number was delivered".into());
                continue;
            };
            let number = u32::from_be_bytes([a, b, c, d]);
            if message.payload != payload(number as usize, message.payload.len()) {
                self.report(format!("message {number} of host {from} has a wrong payload"));
            }
            self.clocked.delivered_at.push(now);
            self.latencies_ns.push(true_time(now).saturating_sub(ns));
            self.delivered.push((ns, from, number.into()));
        }
    }

    /// Inspects a frame that arrives.
    fn inspect_received(&mut self, frame: &[u8], now: Nanos) {
        let Some(packet) = Packet::parse(frame) else { return };
        let ends = packet.ethernet();
        // Frames of the host outside of the tree do not count.
        if !packet.verify_icrc() || ends.dst != host_addresses(self.own).mac || ends.src == outsider::OWN.mac
        {
            return;
        }
        let Some(&header) = OnePipe::of(&packet) else { return };
        // Of two ends, neither alone states the barrier of the link.
        if let Some(barrier) = self.process.barriers().0.filter(|_| self.position.standby.is_some()) {
            self.note_barrier(barrier, now);
        }
        let message = header.opcode() == OnePipeOpcode::DATA;
        if message && !header.timestamp_follows() {
            let ns = unwrap(header.timestamp(), now);
            self.arrived.push((ns, true_time(now).saturating_sub(ns)));
        }
        let late = message && self.barrier.is_some_and(|barrier| header.timestamp().precedes(barrier));
        if message && (late || self.traffic.is_some()) {
            let Some(from) = host_of(packet.src()) else { return };
            self.arrivals.push(Arrival { from, psn: header.psn(), at: now, late });
        }
        if header.opcode() == OnePipeOpcode::BEACON && header.nothing_follows() {
            self.nothing_follows.push(now);
        }
        let is_early = message && self.is_before_start(unwrap(header.timestamp(), now), now);
        if let Some(traffic) = &mut self.traffic {
            if header.opcode() == OnePipeOpcode::BEACON && header.nothing_follows() {
                traffic.on_nothing_follows(self.process.timestamp(now));
            }
            traffic.on_received(&packet, &header, self.barrier, is_early, now);
        }
        let is_beacon = header.opcode() == OnePipeOpcode::BEACON;
        if is_beacon {
            if let Some(commits) = &mut self.commits {
                commits.on_received(&packet, &header, now);
            }
            let writes = header.declares() && header.writes_barriers();
            self.tor_writes_until = if writes { now + LEASE } else { Nanos::ZERO };
        }
        let by_chip = self.position.barriers_in_messages || now < self.tor_writes_until;
        let carries_barrier = is_beacon || message && by_chip;
        let Some(barrier) = header.barrier().filter(|_| carries_barrier) else { return };
        if self.position.standby.is_none() {
            self.note_barrier(barrier, now);
        }
        if is_beacon && !self.process.is_waiting() {
            self.open_incarnation(barrier, now);
        }
    }

    /// Notes the barrier of the host's link.
    fn note_barrier(&mut self, barrier: Timestamp, now: Nanos) {
        self.went_back += u64::from(self.barrier.is_some_and(|before| barrier.precedes(before)));
        // No process delivers a message before its own clock has passed the timestamp (causality).
        if !self.process.is_waiting() {
            self.ahead += u64::from(self.process.timestamp(now).precedes(barrier));
        }
        if self.barrier.is_none_or(|before| before.precedes(barrier)) {
            self.stall = self.stall.max(now.since(self.last_rise.unwrap_or(now)));
            self.last_rise = Some(now);
            self.barrier = Some(barrier);
        }
    }

    /// Inspects a frame that the host sends: no message may be below a barrier that it sent earlier.
    fn inspect_sent(&mut self, frame: &[u8], now: Nanos) {
        let Some(packet) = Packet::parse(frame) else { return };
        let Some(&header) = OnePipe::of(&packet) else { return };
        if let Some(traffic) = &mut self.traffic {
            traffic.on_sent(&packet, &header, now);
        }
        if header.opcode() == OnePipeOpcode::DATA {
            let kept = self.promised.is_none_or(|promised| !header.timestamp().precedes(promised));
            self.broken += u64::from(!kept);
        }
        if header.opcode() != OnePipeOpcode::CLOCK
            && let Some(barrier) = header.barrier()
            && self.promised.is_none_or(|promised| promised.precedes(barrier))
        {
            self.promised = Some(barrier);
        }
    }

    fn after(&mut self, now: Nanos) {
        self.last_event = now;
        if self.behaviour.reads_every == Nanos::ZERO {
            self.read(now);
        }
        self.handle_events(now);
    }
}

impl Node for Host {
    fn on_frame(&mut self, mut frame: MemoryFrame, _port: PortId, now: Nanos, _out: &mut Ports<'_>) {
        self.inspect_received(frame.bytes(), now);
        if self.commits.is_some() {
            commit::as_of_any_incarnation(frame.bytes_mut(), &self.position.tor);
        }
        // The process counts whether it accepted the frame.
        _ = self.process.on_frame(frame.bytes(), now);
        self.after(now);
    }

    fn on_timer(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        if let Some((at, by)) = self.step
            && at <= now
        {
            let by_all = by.wrapping_add(self.position.clock_off_by);
            let clock = Timestamp::new(true_time(now).wrapping_add_signed(by_all));
            // The process believes the median of three samples.
            for _ in 0..3 {
                self.process.set_clock(ClockSample::at(clock, now), now);
            }
            (self.step, self.stepped_by) = (None, by);
        }
        if self.process.next_timer().is_some_and(|at| at <= now) {
            self.process.on_timer(now);
        }
        self.leave_if_due(now);
        if self.next_message <= now {
            if now < self.position.until && !self.has_left() {
                self.scatter(now);
            }
            let interval = self.rng.between(1, 2 * self.position.every.0);
            self.next_message = self.next_tick(now + Nanos(interval));
        }
        if self.behaviour.reads_every > Nanos::ZERO && self.next_read <= now {
            self.read(now);
            self.next_read = now + self.behaviour.reads_every;
        }
        self.after(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        let next_message = Some(self.next_message).filter(|&at| at < self.position.until);
        let next_read = (self.behaviour.reads_every > Nanos::ZERO).then_some(self.next_read);
        let step = self.step.map(|(at, _)| at);
        [self.process.next_timer(), next_message, next_read, step, self.leave_at].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, _port: PortId, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let more = match self.frame.take() {
            Some(before) => {
                *frame = before;
                true
            }
            None => self.process.poll_transmit(now, frame),
        };
        if more && !self.process.is_waiting() {
            let clock = unwrap(self.process.timestamp(now), now);
            self.clocked.show(clock);
            if let Some(commits) = &mut self.commits {
                commits.write(frame, clock, self.incarnations.len(), now);
            }
            self.inspect_sent(frame, now);
        }
        // Sending may deliver messages to the host itself.
        self.after(now);
        more
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        self.start_incarnation(now);
        // Spreads the hosts' first scatterings.
        let within = self.rng.below(2 * self.position.every.0);
        let synchronizes = if self.position.beacon_clock { SYNCHRONIZES_WITHIN } else { Nanos::ZERO };
        let from = sim::EPOCH + starts_sending(self.position.clock_error) + synchronizes;
        self.next_message = self.next_tick(now.max(from) + Nanos(within));
    }

    fn crash(&mut self) {
        self.end_incarnation();
    }
}

//! A process with its member and its application.

use crate::machine::tests::nodes::NETWORK;
use onepipe::control::{Envelope, Incarnation, Message};
use onepipe::process::member::{self, Member};
use onepipe::process::reliable::{Event, Failed, Failure};
use onepipe::process::{BeaconPeer, Bug, Config, Peer, Process};
use onepipe::{ProcessId, Timestamp};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use switch::{Nanos, Rng};

/// Clock at the start, in nanoseconds: in the half of the 48 bits in which a timestamp of 0 is not past
pub(super) const EPOCH: u64 = (6_000 << 48) + (3 << 46);
/// Time between two beacons
pub(super) const INTERVAL: u64 = 3_000;
const GRANT: usize = 8192;

/// Returns a process as its peers address it.
pub(super) fn process(id: u32) -> Peer {
    let mac = MacAddr([2, 0, 0, 0, 0, id as u8]);
    Peer { id: ProcessId(id), mac, address: IpAddr::from([10, 0, 0, id as u8]), qpn: Qpn::new(0x40 + id) }
}

/// Returns the representative of a switch.
pub(super) fn representative(switch: u16) -> Peer {
    let mac = MacAddr([2, 0, 0, 0, 1, switch as u8]);
    let address = IpAddr::from([10, 0, 1, switch as u8]);
    Peer { id: ProcessId(0), mac, address, qpn: Qpn::new(0x30 + u32::from(switch)) }
}

/// Message of the test: who sent it, for whom it is, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Body {
    pub(super) src: (u32, u32),
    pub(super) dst: (u32, u32),
    pub(super) serial: u32,
}

impl Body {
    fn encode(self) -> Vec<u8> {
        let numbers = [self.src.0, self.src.1, self.dst.0, self.dst.1, self.serial];
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Self {
        let number = |n: usize| u32::from_be_bytes(bytes[4 * n..4 * n + 4].try_into().expect("four bytes"));
        assert!(bytes[20..].iter().all(|&byte| byte == 7), "the payload was changed");
        Self { src: (number(0), number(1)), dst: (number(2), number(3)), serial: number(4) }
    }
}

/// Message that was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    pub(super) time: u64,
    pub(super) body: Body,
}

/// What the sender knows about a scattering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unknown,
    Committed,
    Recalled,
}

#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) src: (u32, u32),
    pub(super) receivers: BTreeSet<(u32, u32)>,
    pub(super) fate: Fate,
}

#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) id: u32,
    pub(super) process: Process,
    pub(super) member: Member,
    pub(super) is_dead: bool,
    is_leaving: bool,
    /// Incarnations that were members, and those whose memory is gone
    pub(super) incarnations: BTreeSet<u32>,
    pub(super) lost: BTreeSet<u32>,
    pub(super) delivered: Vec<Delivery>,
    pub(super) sent: BTreeMap<u64, (u32, Sent)>,
    /// Callbacks that have not returned, and when they do; those that have
    callbacks: Vec<(u64, Failed)>,
    pub(super) called: BTreeSet<(u64, u32)>,
    pub(super) returned: BTreeSet<(u64, u32)>,
    pub(super) admitted: Option<u32>,
    /// Incarnation that has left in agreement with the controller
    pub(super) left: Option<u32>,
    /// Highest term that it has been shown, and highest state that it has answered
    term: u64,
    version: (u32, u64),
}

impl Host {
    pub(super) fn new(
        id: u32,
        peers: &[u32],
        switch: u16,
        boot: u8,
        now: Nanos,
        rng: &mut Rng,
        bug: Option<Bug>,
    ) -> Self {
        let Peer { mac, address, qpn, .. } = representative(switch);
        let mut config = Config::new(process(id), BeaconPeer { mac, address, qpn, detour: Vec::new() });
        config.peers = peers.iter().filter(|&&peer| peer != id).map(|&peer| process(peer)).collect();
        (config.mtu, config.max_members, config.reliable_buffer) = (256, 8, 8 * GRANT);
        (config.bug, config.seed, config.stall_after) = (bug, rng.bits(), Nanos(0));
        config.clock = Timestamp::new(EPOCH + rng.below(2000));
        let mut process = Process::new(config).expect("valid");
        process.on_timer(now);
        let mut settings = member::Config::new([boot; 16], NETWORK);
        settings.repeat = (Nanos(100_000), Nanos(1_000_000));
        let member = Member::new(settings, &process).expect("valid");
        Self {
            id,
            process,
            member,
            is_dead: false,
            is_leaving: false,
            incarnations: BTreeSet::new(),
            lost: BTreeSet::new(),
            delivered: Vec::new(),
            sent: BTreeMap::new(),
            callbacks: Vec::new(),
            called: BTreeSet::new(),
            returned: BTreeSet::new(),
            admitted: None,
            left: None,
            term: 0,
            version: (0, 0),
        }
    }

    pub(super) fn on_timers(&mut self, now: Nanos) {
        if self.process.next_timer().is_some_and(|at| at <= now) {
            self.process.on_timer(now);
        }
        if self.member.next_timer() <= now {
            self.member.on_timer(&mut self.process, now);
        }
    }

    /// Takes a message of a controller.
    ///
    /// # Errors
    /// It obeys one of an earlier term.
    pub(super) fn on_envelope(&mut self, envelope: &Envelope, now: Nanos) -> Result<(), String> {
        let is_old = envelope.term < self.term;
        self.term = self.term.max(envelope.term);
        let is_taken = self.member.on_envelope(envelope, &mut self.process, now).is_ok();
        if let Some(incarnation) = self.member.incarnation() {
            self.incarnations.insert(incarnation);
        }
        if is_old && is_taken { Err(format!("{} obeys an old term: {envelope:?}", self.id)) } else { Ok(()) }
    }

    /// Returns what it sends to the controllers.
    ///
    /// # Errors
    /// It completes a case before its callbacks have returned, or answers an earlier state.
    pub(super) fn poll_envelopes(&mut self, now: Nanos) -> Result<Vec<Envelope>, String> {
        let mut all = Vec::new();
        while let Some(envelope) = self.member.poll_envelope(&mut self.process, now) {
            match envelope.message {
                Message::Completed { case } => {
                    let is_open = self.called.iter().any(|key| key.0 == case && !self.returned.contains(key));
                    if is_open || !self.called.iter().any(|key| key.0 == case) {
                        return Err(format!("{} completes case {case} before its callbacks", self.id));
                    }
                }
                Message::DesiredAck { version, .. } => {
                    let Incarnation(incarnation) = envelope.incarnation;
                    if (incarnation, version) < self.version {
                        return Err(format!("{} answers state {version} after {:?}", self.id, self.version));
                    }
                    self.version = (incarnation, version);
                }
                _ => {}
            }
            all.push(envelope);
        }
        Ok(all)
    }

    /// Has the application receive, and answer callbacks.
    pub(super) fn act(&mut self, now: Nanos, rng: &mut Rng) -> Result<(), String> {
        while let Some(message) = self.process.reliable_recv() {
            if !message.timestamp.precedes(self.process.timestamp(now)) {
                return Err(format!("{} delivers {} ahead of its clock", self.id, message.timestamp));
            }
            let body = Body::decode(&message.payload);
            self.delivered.push(Delivery { time: message.timestamp.nanos(), body });
        }
        while let Some(event) = self.process.poll_reliable_event() {
            match event {
                Event::Admitted { incarnation } => self.admitted = Some(incarnation),
                Event::ProcessFailed(failed) => {
                    if !self.called.insert((failed.case, failed.process.0)) {
                        return Err(format!("{} is called back twice: {failed:?}", self.id));
                    }
                    self.callbacks.push((now.0 + rng.below(60_000), failed));
                }
                Event::SendFailed { scattering, why: Failure::Recalled | Failure::Dead, .. } => {
                    let sent = self.sent.get_mut(&scattering.0).expect("it was sent");
                    sent.1.fate = Fate::Recalled;
                }
                Event::Settled { scattering, failed: 0, .. } => {
                    let sent = self.sent.get_mut(&scattering.0).expect("it was sent");
                    sent.1.fate = Fate::Committed;
                }
                Event::Fenced { .. } => self.admitted = None,
                _ => {}
            }
        }
        let is_leaving = self.is_leaving;
        let due = |callback: &mut (u64, Failed)| callback.0 <= now.0 || is_leaving;
        for (_, failed) in self.callbacks.extract_if(.., due).collect::<Vec<_>>() {
            self.returned.insert((failed.case, failed.process.0));
            self.process.callback_done(failed.case, failed.process);
        }
        Ok(())
    }

    /// Starts to leave: callbacks count as returned.
    pub(super) fn leave(&mut self, now: Nanos) {
        if !self.is_dead {
            self.is_leaving = true;
            self.member.leave(&mut self.process, now);
        }
    }

    /// Ends if it has left. Returns whether it has.
    pub(super) fn end_if_left(&mut self) -> bool {
        let has_ended = !self.is_dead && self.member.has_left();
        if has_ended {
            self.is_dead = true;
            self.left = self.member.incarnation();
            // One that has failed meanwhile does not recover.
            self.lost.extend(self.member.last_incarnation().filter(|_| self.left.is_none()));
        }
        has_ended
    }

    /// Returns whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.process.unsettled_reliable() == 0
            && self.process.held_reliable() == 0
            && self.callbacks.is_empty()
    }

    /// Sends a scattering to some of the members, whose incarnations `known` has.
    pub(super) fn scatter(&mut self, serial: u32, known: &BTreeMap<u32, u32>, now: Nanos, rng: &mut Rng) {
        let Some(incarnation) = self.admitted.filter(|_| !self.is_leaving) else { return };
        let mut to: Vec<_> = self.process.members().iter().map(|id| id.0).collect();
        to.push(self.id);
        let count = 1 + rng.below(to.len() as u64) as usize;
        while to.len() > count {
            to.swap_remove(rng.below(to.len() as u64) as usize);
        }
        let src = (self.id, incarnation);
        let dst = |id: u32| if id == self.id { src } else { (id, known.get(&id).copied().unwrap_or(0)) };
        let receivers: BTreeSet<_> = to.iter().map(|&id| dst(id)).collect();
        let longest = *rng.pick(&[1, 40, 900]);
        let messages: Vec<_> = receivers
            .iter()
            .map(|&dst| {
                let mut bytes = Body { src, dst, serial }.encode();
                bytes.resize(20 + rng.below(longest) as usize, 7);
                (ProcessId(dst.0), bytes)
            })
            .collect();
        self.send(serial, src, receivers, &messages, now);
    }

    /// Sends a short scattering to these receivers.
    pub(super) fn scatter_to(&mut self, serial: u32, src: (u32, u32), to: &[(u32, u32)], now: Nanos) {
        let message = |&dst: &(u32, u32)| (ProcessId(dst.0), Body { src, dst, serial }.encode());
        let messages: Vec<_> = to.iter().map(message).collect();
        self.send(serial, src, to.iter().copied().collect(), &messages, now);
    }

    fn send(
        &mut self,
        serial: u32,
        src: (u32, u32),
        receivers: BTreeSet<(u32, u32)>,
        messages: &[(ProcessId, Vec<u8>)],
        now: Nanos,
    ) {
        let borrowed: Vec<_> = messages.iter().map(|(to, bytes)| (*to, &bytes[..])).collect();
        if let Ok(number) = self.process.reliable_send(now, &borrowed) {
            self.sent.insert(number.0, (serial, Sent { src, receivers, fate: Fate::Unknown }));
        }
    }
}

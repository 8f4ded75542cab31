//! Sending: scatterings are accepted, wait for windows, are fragmented, stamped, sent, and settled (1Pipe,
//! section 6.1).

mod answers;
pub(super) mod congestion;
mod outbound;
mod results;
mod scattering;
pub(super) mod schedule;
mod transmit;

use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::Psn;
use std::sync::Arc;
use switch::{Nanos, Rng};

use super::clock::Clock;
use super::config::{Config, MAX_MESSAGE, cost};
use super::counters::Counters;
use super::peers::Peers;
use super::types::{Event, Failure, ProcessId, Scattering, SendError};
use outbound::{InFlight, Outbound, PartOf};
use results::Results;
use scattering::{RunId, Scatterings, State, cost_of};
use schedule::Schedule;
use switch::timers::Timers;

/// Settings of the sending side, as in [`Config`].
#[derive(Clone, Debug)]
struct Settings {
    own: ProcessId,
    /// Maximum number of data bytes of a packet
    fragment: usize,
    send_buffer: usize,
    max_unsettled: usize,
    /// Window of a receiver before it has advertised one, in bytes
    window: usize,
    timeout: Nanos,
}

/// Sending side of a process.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    settings: Settings,
    /// State of each receiver by peer, created with the first message; the last one is for this process
    /// itself
    receivers: Box<[Option<Box<Outbound>>]>,
    scatterings: Scatterings,
    schedule: Schedule,
    results: Results,
    /// Bytes of messages that have not been sent
    unsent: usize,
    /// Timers of receivers that may be silent
    timers: Timers,
    has_left: bool,
    /// Source of the first PSNs
    rng: Rng,
    /// Scratch buffer to sort a scattering's messages by receiver
    order: Vec<(u32, u32)>,
    counters: Arc<Counters>,
}

impl Sender {
    /// Creates a sender without messages, which draws its first PSNs from `rng`.
    pub(super) fn new(config: &Config, rng: Rng, counters: &Arc<Counters>) -> Self {
        let count = config.peers.len();
        let settings = Settings {
            own: config.own.id,
            fragment: config.fragment(),
            send_buffer: config.send_buffer,
            max_unsettled: config.max_unsettled,
            window: config.receive_window as usize,
            timeout: config.timeout,
        };
        Self {
            settings,
            receivers: (0..=count).map(|_| None).collect(),
            scatterings: Scatterings::default(),
            schedule: Schedule::default(),
            results: Results::new(Arc::clone(counters)),
            unsent: 0,
            timers: Timers::new(count),
            has_left: false,
            rng,
            order: Vec::new(),
            counters: Arc::clone(counters),
        }
    }

    /// Returns the number of messages that are not settled.
    pub(super) const fn unsettled(&self) -> usize {
        self.results.unsettled()
    }

    /// Returns the bytes of messages that have not been sent.
    pub(super) const fn unsent(&self) -> usize {
        self.unsent
    }

    /// Returns whether this process has left.
    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Returns the timestamp of the scattering whose last packets are being sent.
    #[inline]
    pub(super) fn finishing(&self) -> Option<u64> {
        self.schedule.finishing().map(|finishing| finishing.time)
    }

    /// Returns whether no packet can be sent now.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.schedule.is_empty()
    }

    /// Returns the congestion window of a receiver in bytes, or `None` if nothing was sent to it.
    pub(super) fn congestion_window(&self, peer: u32) -> Option<u32> {
        self.receivers[peer as usize].as_ref().map(|outbound| outbound.congestion_window())
    }

    /// Returns the number of a new scattering.
    pub(super) const fn next_number(&mut self) -> Scattering {
        self.scatterings.next_number()
    }

    /// Removes and returns the next event.
    #[inline]
    pub(super) fn pop_event(&mut self) -> Option<Event> {
        self.results.pop()
    }

    /// Returns the next events, at least one if there are any.
    pub(super) fn events(&self) -> &[Event] {
        self.results.events()
    }

    /// Removes the next `count` events. Panics if there are fewer.
    pub(super) fn remove_events(&mut self, count: usize) {
        self.results.remove(count);
    }

    /// Accepts a scattering; see [`Process::unreliable_send`](super::Process::unreliable_send).
    pub(super) fn send(
        &mut self,
        messages: &[(ProcessId, &[u8])],
        config: &Config,
        peers: &Peers,
        now: Nanos,
    ) -> Result<Scattering, SendError> {
        let bytes = self.sort(messages, peers)?;
        if self.unsent + bytes > self.settings.send_buffer
            || self.results.outstanding() + messages.len() > self.settings.max_unsettled
        {
            return Err(SendError::Full);
        }
        let scattering = self.scatterings.next_number();
        self.unsent += bytes;
        self.results.expect(messages.len());
        let index = self.scatterings.add();
        let entry = self.scatterings.get_mut(index);
        entry.fill(scattering, messages, &self.order, self.settings.fragment);
        let mut run = 0;
        while let Some(peer) = self.scatterings.get(index).receiver(run) {
            let dst = if peer == self.own_index() { self.settings.own } else { peers.id(peer) };
            let outbound = self.receivers[peer as usize].get_or_insert_with(|| {
                let first = Psn::new(self.rng.below(1 << 24) as u32);
                Box::new(Outbound::new(dst, first, config))
            });
            if outbound.push((index, run)) {
                self.advance(peer, now);
            }
            run += 1;
        }
        Ok(scattering)
    }

    /// Sends one message at once, if nothing waits before it and the windows have room; see
    /// [`Process::send_at_once`](super::Process::send_at_once).
    #[inline]
    pub(super) fn send_at_once(
        &mut self,
        (dst, message): (ProcessId, &[u8]),
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> Option<Scattering> {
        let has_room = message.len() <= self.settings.fragment
            && self.unsent + message.len() <= self.settings.send_buffer
            && self.results.outstanding() < self.settings.max_unsettled;
        if !self.schedule.is_empty() || !has_room || self.has_left {
            return None;
        }
        let peer = peers.find(dst)?;
        let outbound = self.receivers[peer as usize].as_deref_mut()?;
        let cost = cost(message.len());
        if peers.is_dead(peer) || outbound.first().is_some() || !outbound.has_room(cost) {
            return None;
        }
        let Scattering(number) = self.scatterings.next_number();
        self.results.expect(1);
        self.schedule.on_sent();
        let time = clock.stamp(now);
        let psn = outbound.send(cost, now);
        let part_of = PartOf::Alone { number, time };
        outbound.add_in_flight(InFlight { first: psn, last: psn, sent_at: now, part_of });
        let mut header = OnePipe::new(OnePipeOpcode::DATA, Timestamp::new(time), psn);
        header.set_first(true);
        header.set_end_of_message(true);
        peers.route(peer).emit(frame, &header, message);
        self.counters.sent.add(1);
        self.counters.packets_sent.add(1);
        self.timers.arm(peer, now + self.settings.timeout);
        Some(Scattering(number))
    }

    /// Validates a scattering, and sorts the indices of its messages by receiver. Returns the sum of its
    /// bytes.
    fn sort(&mut self, messages: &[(ProcessId, &[u8])], peers: &Peers) -> Result<usize, SendError> {
        if self.has_left {
            return Err(SendError::Left);
        }
        if messages.is_empty() {
            return Err(SendError::Empty);
        }
        self.order.clear();
        for (n, &(dst, _)) in (0..).zip(messages) {
            let peer = if dst == self.settings.own {
                self.own_index()
            } else {
                let peer = peers.find(dst).ok_or(SendError::Unknown(dst))?;
                if peers.is_dead(peer) {
                    return Err(SendError::Dead(dst));
                }
                peer
            };
            self.order.push((peer, n));
        }
        self.order.sort_unstable();
        let Settings { fragment, window, send_buffer, max_unsettled, .. } = self.settings;
        let (mut bytes, mut run_cost, mut before) = (0, 0, None);
        for &(peer, n) in &self.order {
            let (dst, message) = messages[n as usize];
            if message.len() > MAX_MESSAGE {
                return Err(SendError::TooLong { dst, len: message.len() });
            }
            run_cost = if before == Some(peer) { run_cost } else { 0 } + cost_of(message.len(), fragment);
            before = Some(peer);
            bytes += message.len();
            if run_cost > window {
                return Err(SendError::TooLarge { dst, cost: run_cost, window });
            }
        }
        // Offsets of messages have 32 bits.
        if bytes > send_buffer.min(u32::MAX as usize) || messages.len() > max_unsettled {
            return Err(SendError::TooMuch { bytes, messages: messages.len() });
        }
        Ok(bytes)
    }

    /// Advances the first run in a peer's queue as far as the windows allow.
    fn advance(&mut self, peer: u32, now: Nanos) {
        let is_own = peer == self.own_index();
        let Some(outbound) = &mut self.receivers[peer as usize] else { return };
        let Some((index, run)) = outbound.first() else {
            outbound.unblock();
            return;
        };
        if !outbound.can_advance() {
            return;
        }
        let entry = self.scatterings.get_mut(index);
        if is_own {
            // These messages do not leave the host.
            outbound.reserve(0);
        } else {
            let cost = cost(entry.piece(run, self.settings.fragment).range.len());
            if !outbound.has_room(cost) {
                let at = outbound.last().max(now) + self.settings.timeout;
                self.timers.arm(peer, at);
                return;
            }
            if entry.left(run) > 1 {
                outbound.set_in_round(true);
                self.schedule.add_to_round(peer);
                return;
            }
            outbound.reserve(cost);
        }
        if entry.make_ready(run) {
            self.schedule.add_ready(index);
        }
    }

    /// Returns the index of this process itself, behind its peers.
    const fn own_index(&self) -> u32 {
        self.receivers.len() as u32 - 1
    }

    /// Settles a run that was sent, or one that will not be.
    #[inline(never)]
    fn settle_sent(&mut self, peer: u32, part_of: PartOf, result: Result<(), Failure>) {
        let (number, time) = match part_of {
            PartOf::Scattering(id) => return self.settle(id, result),
            PartOf::Alone { number, time } => (number, time),
        };
        let (scattering, timestamp) = (Scattering(number), Some(Timestamp::new(time)));
        match result {
            Ok(()) => self.results.acknowledge(1),
            Err(why) => self.results.fail(scattering, timestamp, (self.dst(peer), 0), why),
        }
        self.results.settle(1);
        self.results.report_settled(scattering, timestamp, result.is_err().into());
    }

    /// Returns the number of a receiver to which messages were passed.
    fn dst(&self, peer: u32) -> ProcessId {
        self.receivers[peer as usize].as_ref().map_or(self.settings.own, |outbound| outbound.dst())
    }

    /// Settles a run of a scattering, which was sent or will not be.
    fn settle(&mut self, (index, run): RunId, result: Result<(), Failure>) {
        let entry = self.scatterings.get_mut(index);
        let (before, is_ready) = entry.settle(run, result.is_err());
        match result {
            Ok(()) => self.results.acknowledge(entry.messages_of(run).into()),
            Err(why) => {
                let timestamp = entry.time().filter(|_| before == State::Sent).map(Timestamp::new);
                let entry = self.scatterings.get(index);
                let dst = entry.receiver(run).map_or(self.settings.own, |peer| self.dst(peer));
                for part in entry.numbers_of(run) {
                    self.results.fail(entry.number(), timestamp, (dst, part), why);
                }
            }
        }
        if is_ready {
            self.schedule.add_ready(index);
        }
        self.remove_if_settled(index);
    }

    fn remove_if_settled(&mut self, index: u32) {
        let entry = self.scatterings.get_mut(index);
        if !entry.is_settled() {
            return;
        }
        self.unsent -= entry.forget_bytes();
        self.results.settle(entry.messages());
        self.results.report_settled(entry.number(), entry.time().map(Timestamp::new), entry.failed());
        self.scatterings.remove(index);
    }

    /// Handles the failure of a peer: messages for it fail.
    pub(super) fn on_peer_dead(&mut self, peer: u32, now: Nanos) {
        self.fail_all(peer, Failure::Dead);
        self.advance(peer, now);
    }

    /// Leaves: messages that are not settled fail, and no more are accepted.
    pub(super) fn leave(&mut self) {
        self.has_left = true;
        for peer in 0..self.receivers.len() as u32 {
            self.fail_all(peer, Failure::Left);
        }
        for index in self.schedule.take_scatterings() {
            self.scatterings.get_mut(index).end_sending();
            self.remove_if_settled(index);
        }
    }

    fn fail_all(&mut self, peer: u32, why: Failure) {
        while let Some(outbound) = &mut self.receivers[peer as usize] {
            let sent = outbound.pop_oldest().map(|sent| sent.part_of);
            let Some(next) = sent.or_else(|| outbound.pop().map(PartOf::Scattering)) else {
                outbound.presume_all_gone();
                return;
            };
            self.settle_sent(peer, next, Err(why));
        }
    }
}

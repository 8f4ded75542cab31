//! Receiving: packets are reassembled, buffered until the barrier has passed them, delivered, and
//! acknowledged (1Pipe, sections 4.1 and 6.1).

mod acks;
pub(super) mod inbound;
pub(super) mod reorder;
mod room;

use crate::header::{NakBody, OnePipe, Timestamp};
use rocev2::Psn;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::Nanos;

use super::barriers::Barriers;
use super::bug::Bug;
use super::clock::Clock;
use super::config::{Config, cost};
use super::counters::{Counters, Refusal};
use super::peers::Peers;
use super::types::{Failure, Message, ProcessId};
use acks::Acks;
use inbound::{Inbound, Outcome, Run, RunFlags};
use reorder::{DeliveryKey, Reorder, Waiting};
use room::Room;

/// "Congestion experienced" (RFC 3168)
const MARKED: u8 = 3;
/// Maximum number of payload buffers kept for reuse, and maximum capacity of each
const MAX_SPARES: usize = 1024;
const MAX_SPARE_BYTES: usize = 4096;
/// A run is abandoned when its sender has been silent for this many timeouts. Its last packet waits for the
/// other runs of its scattering, which may be 16 MB on a slow link.
const ABANDONED_AFTER: u64 = 10_000;

/// Number of beacon intervals for which a declaration of the switch is valid: those after which a silent link
/// is dead (1Pipe, section 4.2)
pub(super) const LEASE_INTERVALS: u64 = 10;

/// Index of a sender among the peers, and its number
pub(super) type SenderId = (u32, ProcessId);

/// Receiving side of a process.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// State of each sender, created with its first packet
    senders: Box<[Option<Box<Inbound>>]>,
    barriers: Barriers,
    /// Time until which it counts that messages arrive with the barrier of the link, by the switch's last beacon
    tor_writes_until: Nanos,
    /// Time for which such a declaration is valid
    lease: Nanos,
    /// Messages with earlier timestamps may have been sent before this process started; `u64::MAX` before the
    /// first barrier
    floor: u64,
    clock_error: u64,
    reorder: Reorder,
    /// Delivered messages, each with the sender's index and the bytes of the sender's window that it frees
    inbox: VecDeque<(Message, u32, usize)>,
    /// Time until which the next message to be delivered waits for this process's own clock
    wake_at: Option<Nanos>,
    room: Room,
    acks: Acks,
    outcome: Outcome,
    /// Sender that is checked next for an abandoned run
    sweep: u32,
    /// Silence of a sender, in nanoseconds, after which its incomplete run is abandoned
    abandoned_after: u64,
    counters: Arc<Counters>,
    /// Planted bug
    bug: Option<Bug>,
    /// For [`Bug::SharedGap`]: sender whose missing packets were given up last
    gave_up: Option<u32>,
}

impl Receiver {
    /// Creates a receiver that has received nothing yet. `incarnation` is in its ACKs.
    pub(super) fn new(config: &Config, incarnation: u8, counters: &Arc<Counters>) -> Self {
        let mut reorder = Reorder::default();
        if config.has_bug(Bug::TieByArrival) {
            reorder.order_by_arrival();
        }
        Self {
            senders: config.peers.iter().map(|_| None).collect(),
            barriers: Barriers::new(config),
            tor_writes_until: Nanos::ZERO,
            lease: Nanos(LEASE_INTERVALS * config.beacon_interval.0),
            floor: if config.clock_error == Nanos::ZERO || config.has_bug(Bug::NoFloor) {
                0
            } else {
                u64::MAX
            },
            clock_error: config.clock_error.0,
            reorder,
            inbox: VecDeque::new(),
            wake_at: None,
            room: Room::new(config),
            acks: Acks::new(config, incarnation, Arc::clone(counters)),
            outcome: Outcome::default(),
            sweep: 0,
            abandoned_after: config.timeout.0.saturating_mul(ABANDONED_AFTER),
            counters: Arc::clone(counters),
            bug: config.bug,
            gave_up: None,
        }
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the best-effort and the commit barrier of the link.
    pub(super) fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        self.barriers.timestamps()
    }

    /// Returns the best-effort barrier, unwrapped; 0 before there is one.
    pub(super) const fn barrier(&self) -> u64 {
        self.barriers.best_effort()
    }

    /// Returns the bytes buffered of messages that the application has not taken.
    pub(super) const fn held(&self) -> usize {
        self.room.held()
    }

    /// Returns whether a message has been delivered that the application has not taken.
    pub(super) fn has_message(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Returns the timestamp and the sender of the next message that was delivered.
    pub(super) fn head(&self) -> Option<(Timestamp, ProcessId)> {
        self.inbox.front().map(|(message, ..)| (message.timestamp, message.src))
    }

    /// Removes and returns the next message that was delivered.
    pub(super) fn pop_message(&mut self) -> Option<Message> {
        let (message, peer, cost) = self.inbox.pop_front()?;
        self.release_window(peer, cost);
        Some(message)
    }

    /// Passes delivered messages to `take`, in order; see
    /// [`Process::unreliable_recv_each`](super::Process::unreliable_recv_each).
    pub(super) fn pop_messages(
        &mut self,
        mut take: impl FnMut(Timestamp, ProcessId, Vec<u8>) -> Result<Option<Vec<u8>>, Vec<u8>>,
    ) -> bool {
        while let Some((message, peer, cost)) = self.inbox.front_mut() {
            let (peer, cost) = (*peer, *cost);
            match take(message.timestamp, message.src, core::mem::take(&mut message.payload)) {
                Ok(memory) => {
                    self.inbox.pop_front();
                    self.release_window(peer, cost);
                    if let Some(memory) = memory {
                        self.reuse_buffer(memory);
                    }
                }
                Err(payload) => {
                    message.payload = payload;
                    return false;
                }
            }
        }
        true
    }

    #[inline]
    fn release_window(&mut self, peer: u32, cost: usize) {
        self.room.release(cost);
        self.acks.update_limited_windows(&self.room);
        if let Some(Some(inbound)) = self.senders.get_mut(peer as usize) {
            inbound.release(cost);
            self.acks.update_window(peer, inbound.held(), &self.room);
        }
    }

    /// Keeps the memory of a received payload for reuse.
    #[inline]
    pub(super) fn reuse_buffer(&mut self, payload: Vec<u8>) {
        if payload.capacity() <= MAX_SPARE_BYTES && self.outcome.spare.len() < MAX_SPARES {
            self.outcome.spare.push(payload);
        }
    }

    /// Handles a beacon of the link's other end. `has_left` states whether this process has left.
    pub(super) fn on_beacon(
        &mut self,
        header: &OnePipe,
        has_left: bool,
        clock: &mut Clock,
        now: Nanos,
    ) -> Result<(), Refusal> {
        // This process's own link is an input of what its switch sends down.
        if header.nothing_follows() && !has_left {
            return Err(Refusal::Contradiction);
        }
        let time = self.barriers.check_beacon(header, clock, now)?;
        let result = self.barriers.update_by_beacon(header, time, clock, now);
        if self.floor == u64::MAX && result.is_ok() && self.barriers.best_effort() > 0 {
            // The clocks of senders were at most `clock_error` ahead when this process started. The barrier is
            // compared, too, because the clock may have been set back.
            self.floor = self.barriers.best_effort().max(clock.read(now)) + self.clock_error;
        }
        self.deliver(clock, now);
        result?;
        self.tor_writes_until = if header.writes_barriers() { now + self.lease } else { Nanos::ZERO };
        self.counters.beacons_taken.add(1);
        Ok(())
    }

    /// Returns whether messages arrive with the barrier of the link, as from a switching chip that keeps
    /// barriers. Other incarnations of a switch leave the barrier that the sender wrote, which is not valid
    /// for this link.
    #[inline]
    fn reads_barriers(&self, now: Nanos) -> bool {
        now < self.tor_writes_until || self.has_bug(Bug::UndeclaredBarriers)
    }

    /// Handles a packet of a message.
    #[inline]
    pub(super) fn on_data(
        &mut self,
        sender: SenderId,
        (header, payload): (&OnePipe, &[u8]),
        ecn: u8,
        clock: &mut Clock,
        now: Nanos,
    ) -> Result<(), Refusal> {
        if self.has_bug(Bug::SharedGap) && self.gave_up.take_if(|of| *of != sender.0).is_some() {
            return Err(Refusal::Late);
        }
        let time = clock.unwrap_timestamp(header.timestamp(), now);
        if self.barriers.is_ahead(time, clock, now) {
            return Err(Refusal::Ahead);
        }
        if time < self.floor {
            return Err(self.refuse_before_start(sender.0, header.psn()));
        }
        let last = !header.timestamp_follows();
        let flags = RunFlags { first: header.first(), end: header.end_of_message() || last, last };
        let packet = inbound::Packet { psn: header.psn(), time, flags, marked: ecn == MARKED, payload };
        let result = self.take_packet(sender, packet, now);
        // The packet's own barrier covers what follows the packet, so the packet is handled first.
        let barriers =
            if self.reads_barriers(now) { self.barriers.update(header, clock, now) } else { Ok(()) };
        self.deliver(clock, now);
        result.and(barriers)
    }

    /// Refuses a packet that may have been sent before this process started. No ACK or NAK is sent: the sender
    /// must not take the message for undelivered.
    #[cold]
    fn refuse_before_start(&mut self, peer: u32, psn: Psn) -> Refusal {
        if self.has_bug(Bug::DeniesBeforeStart) {
            self.acks.queue_nak(peer, psn, NakBody::LATE);
        }
        Refusal::BeforeStart
    }

    /// Returns whether messages that are stamped now, by this process's clock, are accepted.
    pub(super) fn is_open(&self, clock: &Clock, now: Nanos) -> bool {
        self.barriers.best_effort() > 0 && clock.read(now) >= self.floor
    }

    #[inline]
    fn take_packet(
        &mut self,
        (peer, id): SenderId,
        packet: inbound::Packet<'_>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let cost = cost(packet.payload.len());
        if packet.time >= self.barriers.best_effort()
            && let Some(inbound) = &mut self.senders[peer as usize]
            && self.room.has(cost, inbound.held(), self.reorder.len())
            && let Some(position) = inbound.accept_in_order(&packet, now)
        {
            self.room.take(cost);
            let mut data = self.outcome.spare.pop().unwrap_or_default();
            data.clear();
            data.extend_from_slice(packet.payload);
            let run = Run { time: packet.time, position, data, ends: Vec::new(), cost };
            self.reorder.push(DeliveryKey::new(packet.time, id, position), peer, Some(run));
            self.acks.schedule(peer, inbound, now);
            self.counters.packets_taken.add(1);
            self.counters.marked.add(packet.marked.into());
            return Ok(());
        }
        // A copy, so that the compiler can keep the fields of the original in registers.
        self.take_any_packet((peer, id), &{ packet }, now)
    }

    /// Handles a packet other than a single-packet run that arrives in order.
    #[inline(never)]
    fn take_any_packet(
        &mut self,
        (peer, id): SenderId,
        packet: &inbound::Packet<'_>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let cost = cost(packet.payload.len());
        let inbound = self.senders[peer as usize].get_or_insert_with(|| Box::new(Inbound::new(packet.psn)));
        let before = inbound.held();
        if inbound.is_after_restart(packet) {
            inbound.restart(packet.psn, &mut self.outcome);
            self.counters.restarts.add(1);
        }
        inbound.on_packet(now);
        let admission = if packet.time < self.barriers.best_effort() {
            Err(Refusal::Late)
        } else if !self.room.has(cost, inbound.held(), self.reorder.len()) {
            Err(Refusal::NoRoom)
        } else {
            Ok(())
        };
        let result = inbound.accept(packet, admission, &mut self.outcome);
        self.room.update(before, inbound.held());
        self.acks.schedule(peer, inbound, now);
        self.counters.packets_taken.add(result.is_ok().into());
        self.counters.marked.add(packet.marked.into());
        self.take_outcome((peer, id));
        if let Some(position) = result? {
            self.reorder.push(DeliveryKey::new(packet.time, id, position), peer, None);
        }
        Ok(())
    }

    /// Consumes the outcome of a call to a sender's state.
    fn take_outcome(&mut self, (peer, id): SenderId) {
        if let [_] = self.outcome.runs[..]
            && let Some(run) = self.outcome.runs.pop()
        {
            self.reorder.push(DeliveryKey::new(run.time, id, run.position), peer, Some(run));
        }
        if self.outcome.is_empty() {
            return;
        }
        for run in self.outcome.runs.drain(..) {
            self.reorder.push(DeliveryKey::new(run.time, id, run.position), peer, Some(run));
        }
        for (psn, reason) in self.outcome.naks.drain(..) {
            self.acks.queue_nak(peer, psn, reason);
        }
        for _ in 0..core::mem::take(&mut self.outcome.incomplete) {
            self.counters.refuse(Refusal::Incomplete);
        }
    }

    /// Accepts a run of this process to itself: its messages, and the end of each but the last.
    pub(super) fn take_own(
        &mut self,
        (index, id): SenderId,
        time: u64,
        (messages, ends): (&[u8], Vec<u32>),
        clock: &mut Clock,
        now: Nanos,
    ) -> Result<(), Failure> {
        let cost = messages.len() + (ends.len() + 1) * cost(0);
        if !self.room.has_for_all(cost) {
            return Err(Failure::NoRoom);
        }
        self.room.take(cost);
        let run = Run { time, position: 0, data: messages.to_vec(), ends, cost };
        self.reorder.push(DeliveryKey::new(time, id, 0), index, Some(run));
        self.deliver(clock, now);
        Ok(())
    }

    /// Delivers the messages below the barrier and below this process's own clock, so that whatever it sends
    /// afterwards is later than what was delivered (causality; 1Pipe, section 4.1). The barrier is below the
    /// clock, unless this link was removed from it.
    #[inline]
    pub(super) fn deliver(&mut self, clock: &mut Clock, now: Nanos) {
        self.wake_at = None;
        if self.reorder.has_before(self.barriers.best_effort()) {
            self.deliver_all(clock, now);
        }
    }

    fn deliver_all(&mut self, clock: &mut Clock, now: Nanos) {
        let barrier = self.barriers.best_effort();
        let due = barrier.min(clock.read(now));
        while let Some(Waiting { key, peer, run }) = self.reorder.pop_before(due) {
            clock.issue(now);
            if let Some(Some(inbound)) = self.senders.get_mut(peer as usize) {
                let before = inbound.held();
                if inbound.settle(key.position, &mut self.outcome) {
                    self.room.update(before, inbound.held());
                    self.take_outcome((peer, key.sender));
                    self.acks.queue(peer);
                    if self.has_bug(Bug::SharedGap) {
                        self.gave_up = Some(peer);
                    }
                }
            }
            if let Some(run) = run {
                self.deliver_run(peer, key, run);
            }
        }
        if let Some(key) = self.reorder.first()
            && key.time < barrier
        {
            self.wake_at = Some(clock.when_past(key.time, now));
        }
    }

    #[inline]
    fn deliver_run(&mut self, peer: u32, key: DeliveryKey, run: Run) {
        let timestamp = Timestamp::new(run.time);
        self.counters.delivered.add(run.ends.len() as u64 + 1);
        let Run { mut data, ends, cost, .. } = run;
        if !ends.is_empty() {
            let mut start = 0;
            // The run's last message frees the window's bytes for all messages of the run.
            for end in ends {
                let mut payload = self.outcome.spare.pop().unwrap_or_default();
                payload.clear();
                payload.extend_from_slice(&data[start..end as usize]);
                self.inbox.push_back((Message { timestamp, src: key.sender, payload }, peer, 0));
                start = end as usize;
            }
            // An application that keeps the last message should not keep the memory of the ones before it.
            if start > 0 {
                data = data.split_off(start);
            }
        }
        self.inbox.push_back((Message { timestamp, src: key.sender, payload: data }, peer, cost));
    }

    /// Checks one sender for an incomplete run that it has abandoned.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.sweep = if self.sweep + 1 < self.senders.len() as u32 { self.sweep + 1 } else { 0 };
        let Some(Some(inbound)) = self.senders.get_mut(self.sweep as usize) else { return };
        if now.since(inbound.last_received_at()).0 > self.abandoned_after {
            let before = inbound.held();
            if inbound.discard_assembly() {
                self.counters.refuse(Refusal::Incomplete);
            }
            self.room.update(before, inbound.held());
        }
    }

    /// Handles all timers that are due.
    pub(super) fn on_timer(&mut self, clock: &mut Clock, now: Nanos) {
        self.acks.on_timer(now);
        if self.wake_at.is_some_and(|at| at <= now) {
            self.deliver(clock, now);
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        [self.acks.next_timer(), self.wake_at].into_iter().flatten().min()
    }

    /// Returns whether an ACK or NAK is to be sent.
    #[inline]
    pub(super) fn has_acks_to_send(&self) -> bool {
        self.acks.has_any()
    }

    /// Writes the next NAK or ACK. Returns false if there is none.
    pub(super) fn send_ack_or_nak(
        &mut self,
        clock: &Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> bool {
        self.acks.send_nak(clock, peers, now, frame)
            || self.acks.send_ack(&self.senders, &self.room, peers, frame)
    }
}

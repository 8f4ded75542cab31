//! Receiving side: packets are kept within granted windows, acknowledged, and delivered up to the commit
//! barrier, unless they are recalled or discarded (1Pipe, sections 5.1 and 5.2).

use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use crate::reliable::{RecallBody, RecallResult};
use rocev2::Psn;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::super::clock::Clock;
use super::super::config::{Config, MAX_ANSWERS, cost};
use super::super::counters::{Counters, Refusal};
use super::super::peers::Peers;
use super::super::receiver::inbound::{Run, RunFlags};
use super::super::types::{Message, ProcessId};
use super::acks::Acks;
use super::inbound::{Complete, Inbound, Packet};
use super::merge::Position;
use super::queue::Queue;
use super::windows::Grants;

/// Maximum number of payload buffers kept for reuse
const MAX_SPARES: usize = 1024;

/// Message that is delivered, its sender's index, and the bytes of the sender's window that it frees
pub(super) type Delivered = (Message, u32, usize);

/// Receiving side of the reliable service.
#[derive(Clone, Debug)]
pub(super) struct Receiver {
    /// State of each sender that is a member
    senders: Box<[Option<Box<Inbound>>]>,
    own: ProcessId,
    grants: Grants,
    queue: Queue,
    inbox: VecDeque<Delivered>,
    /// Commit barrier, unwrapped; 0 before there is one
    commit: u64,
    /// Whether the commit barrier must not rise, by order of the controller.
    is_on_hold: bool,
    /// Time until which the next run waits for this process's own clock
    wake_at: Option<Nanos>,
    acks: Acks,
    /// Answers to recalls, by the sender's index
    answers: VecDeque<(u32, Timestamp, RecallBody)>,
    complete: Complete,
    /// Maximum time by which a timestamp may be ahead of the clock, in nanoseconds
    ahead_max: u64,
    counters: Arc<Counters>,
}

impl Receiver {
    pub(super) fn new(config: &Config, counters: &Arc<Counters>) -> Self {
        Self {
            senders: config.peers.iter().map(|_| None).collect(),
            own: config.own.id,
            grants: Grants::new(config),
            queue: Queue::default(),
            inbox: VecDeque::new(),
            commit: 0,
            is_on_hold: false,
            wake_at: None,
            acks: Acks::new(config),
            answers: VecDeque::new(),
            complete: Complete::default(),
            ahead_max: config.ahead_max.0,
            counters: Arc::clone(counters),
        }
    }

    /// Returns the index of this process itself, behind its peers.
    const fn own_index(&self) -> u32 {
        self.senders.len() as u32
    }

    /// Returns the commit barrier, unwrapped.
    pub(super) const fn commit(&self) -> u64 {
        self.commit
    }

    /// Returns the bytes held of messages that the application has not taken.
    pub(super) const fn held(&self) -> usize {
        self.grants.total()
    }

    /// Returns the latest timestamp of a complete run that is not delivered, or 0 if there is none.
    pub(super) fn latest_waiting(&self) -> u64 {
        self.queue.latest()
    }

    /// Accepts packets of a new incarnation of a peer, and grants it a window.
    pub(super) fn add_sender(&mut self, peer: u32) {
        self.senders[peer as usize] = Some(Box::new(Inbound::new()));
        self.acks.reset(peer);
        self.acks.queue(peer);
    }

    /// Refuses the packets of a sender that has left. Everything that it has sent is decided.
    pub(super) fn remove_sender(&mut self, peer: u32) {
        if let Some(inbound) = self.senders[peer as usize].take() {
            self.grants.release(peer, inbound.incomplete());
        }
        self.acks.reset(peer);
        self.answers.retain(|&(of, ..)| of != peer);
    }

    /// Discards what a failed sender has sent with timestamps after `after`, and refuses its packets from now
    /// on (1Pipe, section 5.2, discard).
    pub(super) fn discard(&mut self, peer: u32, id: ProcessId, after: u64) {
        self.remove_sender(peer);
        self.grants.release(peer, self.queue.discard(id, after));
    }

    /// Handles a packet of a message.
    #[inline]
    pub(super) fn on_data(
        &mut self,
        (peer, id): (u32, ProcessId),
        (header, payload): (&OnePipe, &[u8]),
        marked: bool,
        clock: &Clock,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let inbound = self.senders[peer as usize].as_mut().ok_or(Refusal::OtherIncarnation)?;
        let time = clock.unwrap_timestamp(header.timestamp(), now);
        if time > clock.read(now).saturating_add(self.ahead_max) {
            return Err(Refusal::Ahead);
        }
        inbound.count(marked);
        self.counters.marked.add(marked.into());
        let last = !header.timestamp_follows();
        let flags = RunFlags { first: header.first(), end: header.end_of_message() || last, last };
        let cost = cost(payload.len());
        let index = match inbound.check(header.psn(), self.grants.packets()) {
            Err(Refusal::Duplicate) => {
                // The ACK may have been lost.
                self.acks.queue(peer);
                return Err(Refusal::Duplicate);
            }
            index => index?,
        };
        if last && time <= self.commit {
            return Err(Refusal::BelowCommit);
        }
        if !self.grants.fits(peer, cost) {
            return Err(Refusal::Window);
        }
        self.grants.take(peer, cost);
        let packet = Packet { time, flags, payload };
        let is_behind_gap = inbound.accept(&packet, index, &mut self.complete);
        if last || is_behind_gap {
            self.acks.queue(peer);
        } else {
            self.acks.schedule(peer, now);
        }
        self.counters.packets_taken.add(1);
        self.take_complete(peer, id);
        Ok(())
    }

    /// Consumes what a call to a sender's state has completed or dropped.
    fn take_complete(&mut self, peer: u32, id: ProcessId) {
        if self.complete.runs.len() == 1
            && let Some(run) = self.complete.runs.pop()
        {
            self.queue.push(id, peer, run);
        } else {
            for run in self.complete.runs.drain(..) {
                self.queue.push(id, peer, run);
            }
        }
        if self.complete.dropped > 0 {
            self.grants.release(peer, core::mem::take(&mut self.complete.dropped));
        }
    }

    /// Handles a probe for the window.
    pub(super) fn on_probe(&mut self, peer: u32) -> Result<(), Refusal> {
        self.senders[peer as usize].as_ref().ok_or(Refusal::OtherIncarnation)?;
        self.acks.queue(peer);
        Ok(())
    }

    /// Handles a recall: drops a run, and refuses its packets from now on (1Pipe, section 5.2, recall).
    pub(super) fn on_recall(
        &mut self,
        (peer, id): (u32, ProcessId),
        (header, payload): (&OnePipe, &[u8]),
        clock: &Clock,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (body, _) = RecallBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let is_stamped = body.is_stamped().ok_or(Refusal::Recall)?;
        let inbound = self.senders[peer as usize].as_mut().ok_or(Refusal::OtherIncarnation)?;
        inbound.recall(body.packets(), self.grants.packets(), &mut self.complete)?;
        let time = clock.unwrap_timestamp(header.timestamp(), now);
        let queued = if is_stamped { self.queue.recall(id, time) } else { None };
        let result = if queued.is_some() || self.complete.dropped > 0 {
            RecallResult::Dropped
        } else if is_stamped && time <= self.commit {
            RecallResult::Delivered
        } else {
            RecallResult::WasNotThere
        };
        self.complete.dropped += queued.unwrap_or(0);
        self.take_complete(peer, id);
        self.counters.recalls_taken.add(1);
        // The sender repeats a recall that is not answered.
        if self.answers.len() < MAX_ANSWERS {
            self.answers.push_back((peer, header.timestamp(), body.answer(result)));
        }
        self.acks.queue(peer);
        Ok(())
    }

    /// Returns whether this process has granted itself this many bytes, and takes them.
    pub(super) fn reserve_own(&mut self, cost: usize) -> bool {
        let own = self.own_index();
        let fits = self.grants.fits(own, cost);
        if fits {
            self.grants.take(own, cost);
        }
        fits
    }

    /// Returns reserved bytes of this process's own window.
    pub(super) fn release_own(&mut self, cost: usize) {
        self.grants.release(self.own_index(), cost);
    }

    /// Accepts a run of this process to itself, for which bytes are reserved.
    pub(super) fn take_own(&mut self, run: Run) {
        self.queue.push(self.own, self.own_index(), run);
    }

    /// Recalls the run of this process to itself with this timestamp.
    pub(super) fn recall_own(&mut self, time: u64) {
        if let Some(cost) = self.queue.recall(self.own, time) {
            self.grants.release(self.own_index(), cost);
        }
    }

    /// Discards the runs of this process to itself with timestamps after `after`, as this process has failed.
    pub(super) fn discard_own(&mut self, after: u64) {
        let cost = self.queue.discard(self.own, after);
        self.grants.release(self.own_index(), cost);
    }

    /// Applies a recall that the controller has stored, on recovery.
    pub(super) fn recall_stored(&mut self, peer: u32, id: ProcessId, time: u64) {
        if let Some(cost) = self.queue.recall(id, time) {
            self.grants.release(peer, cost);
        }
    }

    /// Sets whether the commit barrier must not rise.
    pub(super) const fn hold(&mut self, is_on_hold: bool) {
        self.is_on_hold = is_on_hold;
    }

    /// Raises the commit barrier, unless it must not rise, and delivers what it has reached. Returns whether it
    /// has risen. A value that is ahead of the clock counts as the latest valid time.
    pub(super) fn on_commit(&mut self, commit: u64, clock: &mut Clock, now: Nanos) -> bool {
        let commit = commit.min(clock.read(now).saturating_add(self.ahead_max));
        let rises = commit > self.commit && !self.is_on_hold;
        if rises {
            self.commit = commit;
            self.deliver(clock, now);
        }
        rises
    }

    /// Returns whether a run up to the commit barrier waits for this process's own clock.
    pub(super) const fn waits_for_clock(&self) -> bool {
        self.wake_at.is_some()
    }

    /// Returns the messages that are delivered and not taken, of a process's earlier incarnation.
    pub(super) fn take_inbox(&mut self) -> VecDeque<Delivered> {
        core::mem::take(&mut self.inbox)
    }

    /// Accepts the messages that an earlier incarnation of this process has delivered. They occupy their senders'
    /// windows until they are taken.
    pub(super) fn inherit(&mut self, inbox: VecDeque<Delivered>) {
        for &(_, peer, cost) in &inbox {
            self.grants.take(peer, cost);
        }
        self.inbox = inbox;
    }

    /// Raises the commit barrier to the value with which the controller has answered this process's recovery.
    pub(super) fn recover(&mut self, commit: u64, clock: &mut Clock, now: Nanos) {
        self.commit = self.commit.max(commit);
        self.deliver(clock, now);
    }

    /// Delivers the runs up to the commit barrier and below this process's own clock, so that whatever it
    /// sends afterwards is later than what was delivered (1Pipe, section 4.1).
    pub(super) fn deliver(&mut self, clock: &mut Clock, now: Nanos) {
        self.wake_at = None;
        let due = self.commit.saturating_add(1).min(clock.read(now));
        while let Some((sender, peer, run)) = self.queue.pop_before(due) {
            clock.issue(now);
            self.deliver_run(sender, peer, run);
        }
        if let Some(time) = self.queue.first()
            && time <= self.commit
        {
            self.wake_at = Some(clock.when_past(time, now));
        }
    }

    fn deliver_run(&mut self, src: ProcessId, peer: u32, run: Run) {
        let Run { time, mut data, ends, cost, .. } = run;
        let timestamp = Timestamp::new(time);
        self.counters.delivered.add(ends.len() as u64 + 1);
        let mut start = 0;
        // The run's last message frees the window's bytes for all messages of the run.
        for end in ends {
            let payload = data[start..end as usize].to_vec();
            self.inbox.push_back((Message { timestamp, src, payload }, peer, 0));
            start = end as usize;
        }
        if start > 0 {
            data = data.split_off(start);
        }
        self.inbox.push_back((Message { timestamp, src, payload: data }, peer, cost));
    }

    /// Returns the position of the next message that is delivered.
    #[inline]
    pub(super) fn head(&self) -> Option<Position> {
        self.inbox.front().map(|(message, ..)| (message.timestamp, message.src))
    }

    /// Removes and returns the next message that is delivered, and whether it was this process's own.
    pub(super) fn pop_message(&mut self) -> Option<(Message, bool)> {
        let (message, peer, cost) = self.inbox.pop_front()?;
        self.grants.release(peer, cost);
        if let Some(Some(inbound)) = self.senders.get(peer as usize) {
            let window = self.grants.window(peer, inbound.ahead());
            self.acks.update_window(peer, window, |window| self.grants.is_small(window));
        }
        Some((message, peer == self.own_index()))
    }

    /// Keeps the memory of a received payload for reuse.
    #[inline]
    pub(super) fn reuse_buffer(&mut self, payload: Vec<u8>) {
        if self.complete.spare.len() < MAX_SPARES {
            self.complete.spare.push(payload);
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
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        [self.acks.next_timer(), self.wake_at].into_iter().flatten().min()
    }

    /// Returns whether an ACK or an answer to a recall is to be sent.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        self.acks.has_any() || !self.answers.is_empty()
    }

    /// Writes the next answer to a recall, or the next ACK. Returns false if there is none.
    pub(super) fn send_answer(&mut self, peers: &mut Peers, frame: &mut Vec<u8>) -> bool {
        while let Some((peer, timestamp, body)) = self.answers.pop_front() {
            let header = header(OnePipeOpcode::RECALL_ACK, timestamp, body.packets().1);
            if peers.answer(peer, &header, body.as_bytes(), frame) {
                return true;
            }
        }
        while let Some(peer) = self.acks.pop() {
            let Some(Some(inbound)) = self.senders.get(peer as usize) else { continue };
            let (latest, highest, mut body) = inbound.ack_contents();
            let window = self.grants.window(peer, inbound.ahead());
            self.acks.granted(peer, window);
            body.window = window.into();
            let header = header(OnePipeOpcode::RELIABLE_ACK, Timestamp::new(latest), highest);
            let is_written = peers.answer(peer, &header, body.as_bytes(), frame);
            self.counters.acks_sent.add(1);
            if is_written {
                return true;
            }
        }
        false
    }
}

/// Returns a header without barriers.
pub(super) fn header(opcode: OnePipeOpcode, time: Timestamp, psn: Psn) -> OnePipe {
    let mut header = OnePipe::new(opcode, time, psn);
    header.set_barrier(None);
    header
}

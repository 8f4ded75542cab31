//! Sending side: scatterings wait for windows, are stamped when nothing but their last packets is left, and
//! are repeated until they are decided (1Pipe, section 5.1).

mod at_once;
mod recall;
mod transmit;

use crate::header::{OnePipe, Timestamp};
use crate::reliable::ReliableAckBody;
use rocev2::Psn;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::Nanos;
use switch::timers::Timers;
use zerocopy::FromBytes;

use super::super::bug::Bug;
use super::super::config::{Config, MAX_MESSAGE};
use super::super::counters::{Counters, Refusal};
use super::super::peers::Peers;
use super::super::sender::schedule::Schedule;
use super::super::types::{ProcessId, Scattering, SendError};
use super::members::Members;
use super::outbound::{Arrived, Outbound};
use super::receiver::Receiver;
use super::scattering::{Entry, Fate, Phase, Run, RunId, Scatterings, State, Undecided, cost_of};
use super::types::{Error, Event, Failure, ToController};
use recall::Cases;

pub(super) use at_once::Receiving;

/// Sending side of the reliable service.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    /// Numbers of the peers by index, and of this process, which is the last
    ids: Box<[ProcessId]>,
    /// Maximum number of data bytes of a packet
    fragment: usize,
    send_buffer: usize,
    max_unsettled: usize,
    /// State of each receiver that is a member
    receivers: Box<[Option<Box<Outbound>>]>,
    /// Runs of this process to itself that are not stamped, and whether the first one has its window
    own_queue: VecDeque<RunId>,
    is_own_ready: bool,
    scatterings: Scatterings,
    undecided: Undecided,
    /// Whether the commit value may have risen since it was last asked.
    has_risen: bool,
    schedule: Schedule,
    /// Peers for which packets are to be repeated
    resends: VecDeque<u32>,
    /// Peers to which recalls or probes are to be sent
    control: VecDeque<u32>,
    timers: Timers,
    /// Least time between two timeouts of a receiver
    interval: Nanos,
    /// Bytes of messages that are not decided
    buffered: usize,
    /// Messages whose result was not reported
    unsettled: usize,
    pub(super) events: VecDeque<Event>,
    pub(super) to_controller: VecDeque<ToController>,
    cases: Cases,
    /// Scratch buffers
    order: Vec<(u32, u32, u32)>,
    arrived: Vec<Arrived>,
    counters: Arc<Counters>,
    bug: Option<Bug>,
    /// For [`Bug::AckAfterNotice`]: receiver that has failed
    zombie: Option<(u32, Box<Outbound>)>,
}

impl Sender {
    pub(super) fn new(config: &Config, counters: &Arc<Counters>) -> Self {
        let count = config.peers.len();
        Self {
            ids: config.peers.iter().map(|peer| peer.id).chain([config.own.id]).collect(),
            fragment: config.fragment(),
            send_buffer: config.send_buffer,
            max_unsettled: config.max_unsettled,
            receivers: (0..count).map(|_| None).collect(),
            own_queue: VecDeque::new(),
            is_own_ready: false,
            scatterings: Scatterings::default(),
            undecided: Undecided::default(),
            has_risen: false,
            schedule: Schedule::default(),
            resends: VecDeque::new(),
            control: VecDeque::new(),
            timers: Timers::new(count),
            interval: config.beacon_interval,
            buffered: 0,
            unsettled: 0,
            events: VecDeque::new(),
            to_controller: VecDeque::new(),
            cases: Cases::default(),
            order: Vec::new(),
            arrived: Vec::new(),
            counters: Arc::clone(counters),
            bug: config.bug,
            zombie: None,
        }
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    pub(super) fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the index of this process itself, behind its peers.
    pub(super) const fn own_index(&self) -> u32 {
        self.receivers.len() as u32
    }

    /// Returns the number of messages whose result was not reported.
    pub(super) const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Returns the commit value of a beacon that carries the time `issued`.
    pub(super) fn commit(&mut self, issued: u64) -> u64 {
        self.undecided.commit(issued)
    }

    /// Returns whether the commit value may have risen since the last call.
    pub(super) const fn has_risen(&mut self) -> bool {
        core::mem::replace(&mut self.has_risen, false)
    }

    /// Accepts a receiver's new incarnation.
    pub(super) fn add_receiver(&mut self, peer: u32, outbound: Outbound) {
        self.receivers[peer as usize] = Some(Box::new(outbound));
    }

    /// Records an answer of a receiver that came directly.
    pub(super) fn on_direct_answer(&mut self, peer: u32) {
        if let Some(outbound) = &mut self.receivers[peer as usize] {
            outbound.on_direct_answer();
        }
    }

    /// Records that the controller carries no frames to this incarnation. Returns whether it is the present one.
    pub(super) fn stop_relaying(&mut self, peer: u32, incarnation: u32) -> bool {
        let receiver = self.receivers[peer as usize].as_mut();
        let Some(receiver) = receiver.filter(|to| to.incarnation == incarnation) else { return false };
        receiver.stop_relaying();
        true
    }

    /// Returns the processes that do not answer.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = ProcessId> {
        let silent = |to: &Option<Box<Outbound>>| to.as_ref().is_some_and(|to| to.is_unanswered());
        let receivers = self.ids.iter().zip(&self.receivers);
        receivers.filter(move |(_, to)| silent(to)).map(|(&id, _)| id)
    }

    /// Removes a receiver that has failed.
    pub(super) fn remove_receiver(&mut self, peer: u32) {
        let outbound = self.receivers[peer as usize].take();
        self.timers.remove(peer);
        if self.has_bug(Bug::AckAfterNotice) {
            self.zombie = outbound.map(|outbound| (peer, outbound));
        }
    }

    /// Returns whether every scattering to this incarnation of a receiver is decided.
    pub(super) fn is_decided_for(&self, peer: u32, incarnation: u32) -> bool {
        let is_open = |entry: &Entry| {
            let is_its = |run: &Run| (run.peer, run.incarnation) == (peer, incarnation);
            matches!(entry.phase, Phase::Sending | Phase::Aborting) && entry.runs.iter().any(is_its)
        };
        self.scatterings.find(is_open).is_empty()
    }

    /// Accepts a scattering; see [`Process::reliable_send`](super::super::Process::reliable_send).
    pub(super) fn send(
        &mut self,
        next_number: impl FnOnce() -> Scattering,
        messages: &[(ProcessId, &[u8])],
        (members, receiver): (&Members, &mut Receiver),
        peers: &Peers,
        now: Nanos,
    ) -> Result<Scattering, Error> {
        let bytes = self.sort(messages, members, peers)?;
        if self.buffered + bytes > self.send_buffer
            || self.unsettled + self.events.len() + messages.len() > self.max_unsettled
        {
            return Err(SendError::Full.into());
        }
        let number = next_number();
        self.buffered += bytes;
        self.unsettled += messages.len();
        let index = self.scatterings.add();
        self.scatterings.get_mut(index).fill(number, messages, &self.order, self.fragment);
        for run in 0..self.scatterings.get(index).runs.len() as u32 {
            let peer = self.scatterings.get(index).run(run).peer;
            if peer == self.own_index() {
                self.own_queue.push_back((index, run));
                self.advance_own(receiver);
            } else if let Some(outbound) = &mut self.receivers[peer as usize] {
                outbound.queue.push_back((index, run));
                self.advance(peer, now);
            }
        }
        Ok(number)
    }

    /// Validates a scattering, and sorts the indices of its messages by receiver. Returns the sum of its
    /// bytes.
    fn sort(
        &mut self,
        messages: &[(ProcessId, &[u8])],
        members: &Members,
        peers: &Peers,
    ) -> Result<usize, Error> {
        if messages.is_empty() {
            return Err(SendError::Empty.into());
        }
        self.order.clear();
        for (n, &(dst, _)) in (0..).zip(messages) {
            if dst == self.ids[self.receivers.len()] {
                self.order.push((self.own_index(), 0, n));
                continue;
            }
            let peer = peers.find(dst).ok_or(SendError::Unknown(dst))?;
            let member = members.get_receiver(peer).ok_or(Error::NotMember(dst))?;
            self.order.push((peer, member.incarnation, n));
        }
        self.order.sort_unstable();
        let (mut bytes, mut run_cost, mut before) = (0, 0, None);
        for &(peer, _, n) in &self.order {
            let (dst, message) = messages[n as usize];
            if message.len() > MAX_MESSAGE {
                return Err(SendError::TooLong { dst, len: message.len() }.into());
            }
            let cost = cost_of(message.len(), self.fragment);
            run_cost = if before == Some(peer) { run_cost } else { 0 } + cost;
            before = Some(peer);
            bytes += message.len();
            let window = members.grant_of(peer) as usize;
            if run_cost > window {
                return Err(SendError::TooLarge { dst, cost: run_cost, window }.into());
            }
        }
        if bytes > self.send_buffer.min(u32::MAX as usize) || messages.len() > self.max_unsettled {
            return Err(SendError::TooMuch { bytes, messages: messages.len() }.into());
        }
        Ok(bytes)
    }

    /// Advances the first run in a peer's queue as far as the windows and acknowledgements allow.
    pub(super) fn advance(&mut self, peer: u32, now: Nanos) {
        let Some(outbound) = &mut self.receivers[peer as usize] else { return };
        let Some(&(index, run)) = outbound.queue.front() else {
            outbound.unblock();
            return;
        };
        if !outbound.can_advance() {
            return;
        }
        let entry = self.scatterings.get_mut(index);
        let (sent, left, arrived) = (entry.run(run).sent, entry.run(run).left(), entry.run(run).arrived);
        if left == 1 && arrived < sent {
            // A scattering that is stamped must not wait for anything but its last packets.
            outbound.unblock();
            return;
        }
        let (piece, _) = entry.piece(run, sent);
        if !outbound.has_room(piece.cost(), now) {
            self.on_blocked(peer);
        } else if left > 1 {
            outbound.rounds.new = true;
            self.schedule.add_to_round(peer);
        } else {
            outbound.reserve(piece.cost());
            if entry.make_ready(run) {
                entry.is_scheduled = true;
                self.schedule.add_ready(index);
            }
        }
    }

    fn on_blocked(&mut self, peer: u32) {
        self.add_control(peer);
        self.arm(peer);
    }

    /// Advances the first run of this process to itself, if its window has room.
    pub(super) fn advance_own(&mut self, receiver: &mut Receiver) {
        let Some(&(index, run)) = self.own_queue.front() else { return };
        let entry = self.scatterings.get_mut(index);
        if self.is_own_ready || !receiver.reserve_own(entry.cost(run)) {
            return;
        }
        self.is_own_ready = true;
        if entry.make_ready(run) {
            entry.is_scheduled = true;
            self.schedule.add_ready(index);
        }
    }

    /// Adds a peer to those to which recalls or probes are to be sent, if there are any.
    pub(super) fn add_control(&mut self, peer: u32) {
        if let Some(outbound) = &mut self.receivers[peer as usize]
            && outbound.has_control()
            && !core::mem::replace(&mut outbound.rounds.control, true)
        {
            self.control.push_back(peer);
        }
    }

    fn add_resends(&mut self, peer: u32) {
        if let Some(outbound) = &mut self.receivers[peer as usize]
            && outbound.can_resend()
            && !core::mem::replace(&mut outbound.rounds.resends, true)
        {
            self.resends.push_back(peer);
        }
    }

    /// Sets a peer's timer.
    pub(super) fn arm(&mut self, peer: u32) {
        if let Some(at) = self.receivers[peer as usize].as_ref().and_then(|to| to.deadline()) {
            self.timers.arm(peer, at);
        }
    }

    /// Handles an acknowledgement.
    pub(super) fn on_ack(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (body, _) = ReliableAckBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let mut arrived = core::mem::take(&mut self.arrived);
        let result = if let Some(outbound) = &mut self.receivers[peer as usize] {
            outbound.on_ack(header.psn(), &body, now, &mut arrived)
        } else {
            self.arrived = arrived;
            return self.on_late_ack(peer, header.psn(), &body, now);
        };
        for Arrived { run, is_new, is_complete } in arrived.drain(..) {
            if is_new {
                self.scatterings.get_mut(run.0).runs[run.1 as usize].arrived += 1;
            }
            if is_complete {
                self.acknowledge(run);
            }
        }
        self.arrived = arrived;
        result?;
        self.counters.acks_taken.add(1);
        self.advance(peer, now);
        self.add_resends(peer);
        self.add_control(peer);
        self.arm(peer);
        Ok(())
    }

    /// Refuses an acknowledgement of a receiver that is no member: if it has failed, the runs that it had not
    /// acknowledged are being recalled. With a planted bug, the acknowledgement counts.
    #[cold]
    fn on_late_ack(
        &mut self,
        peer: u32,
        highest: Psn,
        body: &ReliableAckBody,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let zombie = self.zombie.as_mut().filter(|(of, _)| *of == peer);
        let (_, outbound) = zombie.ok_or(Refusal::OtherIncarnation)?;
        let mut arrived = Vec::new();
        outbound.on_ack(highest, body, now, &mut arrived)?;
        for Arrived { run: (index, _), .. } in arrived.into_iter().filter(|arrived| arrived.is_complete) {
            if self.scatterings.get(index).phase == Phase::Aborting {
                self.commit_in_spite_of_recalls(index);
            }
        }
        Ok(())
    }

    /// Records that a receiver has acknowledged a run.
    fn acknowledge(&mut self, (index, run): RunId) {
        let commits_early = self.has_bug(Bug::CommitBeforeLastAck);
        let entry = self.scatterings.get_mut(index);
        entry.run_mut(run).state = State::Acknowledged;
        entry.open -= 1;
        self.counters.acknowledged.add(entry.messages_of(run));
        match (entry.open, entry.time) {
            (0, _) => self.commit_scattering(index),
            (1, Some(time)) if commits_early => self.has_risen |= self.undecided.decide(time, Fate::Early),
            _ => {}
        }
    }

    /// Decides that a scattering is committed, as every run is acknowledged.
    fn commit_scattering(&mut self, index: u32) {
        let entry = self.scatterings.get_mut(index);
        let Some(time) = entry.time else { return };
        entry.phase = Phase::Committed;
        self.buffered -= entry.forget_bytes();
        self.has_risen |= self.undecided.decide(time, Fate::Committed);
    }

    /// Reports the committed scatterings up to this process's own commit barrier: no earlier, because this
    /// process may have failed, and then only what its link's keeper has let through is delivered.
    pub(super) fn report_committed(&mut self, commit: u64) {
        while let Some(index) = self.undecided.take_committed(commit) {
            let entry = self.scatterings.get(index);
            let (scattering, timestamp) = (Scattering(entry.number), entry.time.map(Timestamp::new));
            self.unsettled -= entry.count();
            self.events.push_back(Event::Settled { scattering, timestamp, failed: 0 });
            self.scatterings.get_mut(index).phase = Phase::Done;
            self.remove_if_done(index);
        }
    }

    /// Decides that a scattering is recalled, and reports that its messages have failed.
    pub(super) fn fail_scattering(&mut self, index: u32, why: impl Fn(ProcessId) -> Failure) {
        let entry = self.scatterings.get_mut(index);
        let (scattering, timestamp) = (Scattering(entry.number), entry.time.map(Timestamp::new));
        entry.phase = Phase::Done;
        self.buffered -= entry.forget_bytes();
        let failed = entry.count();
        for (peer, part) in entry.messages() {
            let dst = self.ids[peer as usize];
            self.events.push_back(Event::SendFailed { scattering, timestamp, dst, part, why: why(dst) });
        }
        self.events.push_back(Event::Settled { scattering, timestamp, failed: failed as u32 });
        self.counters.failed.add(failed as u64);
        self.unsettled -= failed;
        if let Some(time) = self.scatterings.get(index).time {
            self.has_risen |= self.undecided.decide(time, Fate::Recalled);
        }
        self.remove_if_done(index);
    }

    fn remove_if_done(&mut self, index: u32) {
        let entry = self.scatterings.get(index);
        if entry.phase == Phase::Done && !entry.is_scheduled {
            self.scatterings.remove(index);
        }
    }

    /// Fails everything that was not reported: this process has left, or is excluded.
    pub(super) fn fail_all(&mut self, why: Failure, receiver: &mut Receiver) {
        if self.is_own_ready
            && let Some(&(index, run)) = self.own_queue.front()
        {
            receiver.release_own(self.scatterings.get(index).cost(run));
        }
        for index in self.schedule.take_scatterings() {
            self.scatterings.get_mut(index).is_scheduled = false;
            self.remove_if_done(index);
        }
        self.undecided.clear();
        for peer in 0..self.own_index() {
            self.receivers[peer as usize] = None;
            self.timers.remove(peer);
        }
        self.own_queue.clear();
        self.is_own_ready = false;
        for index in self.scatterings.find(|entry| entry.phase != Phase::Done) {
            self.fail_scattering(index, |_| why);
        }
    }

    /// Handles all timers that are due.
    pub(super) fn on_timer(&mut self, now: Nanos) {
        while let Some(peer) = self.timers.pop_due(now) {
            let Some(outbound) = &mut self.receivers[peer as usize] else { continue };
            let due = outbound.on_timeout(now);
            if due.control && !core::mem::replace(&mut outbound.rounds.control, true) {
                self.control.push_back(peer);
            }
            if due.resend {
                self.add_resends(peer);
            }
            // A recall that is due, and was not sent yet, must not make the timer expire again at once.
            if let Some(at) = self.receivers[peer as usize].as_ref().and_then(|to| to.deadline()) {
                self.timers.arm(peer, at.max(now + self.interval));
            }
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.timers.first()
    }

    /// Returns whether a recall, a probe or a repeated packet is to be sent.
    pub(super) fn has_repeats(&self) -> bool {
        !self.control.is_empty() || !self.resends.is_empty()
    }
}

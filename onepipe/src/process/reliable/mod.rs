//! Reliable service: each scattering is delivered by all of its receivers that do not fail, or by none (1Pipe,
//! section 5).
//!
//! A sender *prepares* a scattering: it repeats the packets until every receiver has acknowledged them, and
//! receivers keep them. Then the scattering is *committed*: the sender's commit value, which its beacons carry,
//! passes the timestamp. The commit barrier is the minimum over all members, and receivers deliver up to it. If
//! a receiver fails before it has acknowledged, the sender recalls the scattering from all receivers, and the
//! commit value waits until that is acknowledged.
//!
//! The controller decides who is a member and who has failed. Its messages arrive by the methods of
//! [`Process`](super::Process) that begin with [`join`](super::Process::join); without them, the service is
//! refused, and beacons carry no commit value.
//!
//! Commit values are facts about what was decided, not about what is on a link: they may be repeated, delayed,
//! reordered or sent on any path.

mod acks;
mod api;
mod inbound;
mod members;
mod merge;
mod outbound;
mod pace;
mod queue;
mod receiver;
mod scattering;
mod sender;
mod types;
mod windows;

#[cfg(test)]
mod tests;

pub use types::{Error, Event, Failed, Failure, Member, MemberError, StoredRecall, ToController};

use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use std::sync::Arc;
use switch::Nanos;

use super::clock::Clock;
use super::config::Config;
use super::counters::{Counters, Refusal};
use super::peers::Peers;
use super::types::{ProcessId, Scattering};
use members::Members;
use outbound::Outbound;
use pace::Pace;
use receiver::Receiver;
use sender::Sender;

/// "Congestion experienced" (RFC 3168)
const MARKED: u8 = 3;
/// Number of intervals without a rise of the commit barrier after which it is reported
const STALLED_AFTER: u64 = 20;

/// Stage of this process's membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It announces its commit value and receives, and must not send yet.
    Joining,
    Member,
    /// It sends no more scatterings, and leaves when all are decided.
    Draining,
    /// The controller has determined that it has failed, or it has left.
    Excluded,
}

/// Reliable service of a process that has joined.
#[derive(Clone, Debug)]
struct Service {
    stage: Stage,
    incarnation: u32,
    members: Members,
    sender: Sender,
    receiver: Receiver,
    pace: Pace,
    /// Time at which the commit barrier last rose, and whether it was reported that it stands still
    risen_at: Nanos,
    is_stalled: bool,
    stalled_after: u64,
    /// Whether it was excluded and has delivered what it held, so that it may join again
    is_recovered: bool,
    /// Whether the last turn was one of this service.
    is_next: bool,
}

/// Reliable service of a process, if it has joined.
#[derive(Clone, Debug, Default)]
pub(super) struct Reliable(Option<Box<Service>>);

impl Service {
    fn new(config: &Config, counters: &Arc<Counters>, incarnation: u32, now: Nanos) -> Self {
        Self {
            stage: Stage::Joining,
            incarnation,
            members: Members::new(config),
            sender: Sender::new(config, counters),
            receiver: Receiver::new(config, counters),
            pace: Pace::new(config.beacon_interval),
            risen_at: now,
            is_stalled: false,
            stalled_after: STALLED_AFTER * config.beacon_interval.0,
            is_recovered: false,
            is_next: false,
        }
    }

    /// Adds a member, whose queue pair replaces that of the peer's previous incarnation.
    fn add_member(
        &mut self,
        member: Member,
        peers: &mut Peers,
        config: &Config,
    ) -> Result<bool, MemberError> {
        let Member { id, incarnation, qpn, .. } = member;
        let peer = peers.find(id).ok_or(MemberError::Unknown(id))?;
        if self.members.is_known(peer, &member)? {
            return Ok(false);
        }
        if !peers.set_queue_pair(peer, qpn, config) {
            return Err(MemberError::QueuePair { process: id, qpn });
        }
        // The notice that its earlier incarnation has left may have been lost.
        if self.members.get(peer).is_some() {
            self.receiver.remove_sender(peer);
            self.sender.remove_receiver(peer);
        }
        self.members.add(peer, member);
        self.receiver.add_sender(peer);
        self.sender.add_receiver(peer, Outbound::new(incarnation, config));
        Ok(true)
    }

    /// Handles a case; see [`Process::notice_failed`](super::Process::notice_failed).
    fn on_failed(&mut self, case: u64, failed: &[Failed], peers: &Peers, clock: &Clock, now: Nanos) {
        if self.sender.repeat_answers(case) {
            return;
        }
        let mut known = Vec::new();
        for &Failed { process, incarnation, timestamp, .. } in failed {
            let Some(peer) = peers.find(process) else { continue };
            if self.members.remove(peer, incarnation) {
                self.receiver.discard(peer, process, clock.unwrap_timestamp(timestamp, now));
                self.sender.remove_receiver(peer);
            }
            known.push((peer, process, incarnation));
        }
        self.sender.on_failed(case, failed, &known, &mut self.receiver, now);
    }

    /// Handles a frame of a peer.
    fn on_frame(
        &mut self,
        from: (u32, ProcessId),
        (ecn, header, payload): (u8, &OnePipe, &[u8]),
        clock: &Clock,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (peer, _) = from;
        match header.opcode() {
            OnePipeOpcode::RELIABLE_DATA => {
                self.receiver.on_data(from, (header, payload), ecn == MARKED, clock, now)
            }
            OnePipeOpcode::RELIABLE_ACK => self.sender.on_ack(peer, header, payload, now),
            OnePipeOpcode::RECALL => self.receiver.on_recall(from, (header, payload), clock, now),
            OnePipeOpcode::RECALL_ACK => self.sender.on_recall_ack(peer, header, payload),
            OnePipeOpcode::RELIABLE_PROBE => self.receiver.on_probe(peer),
            _ => Err(Refusal::Opcode),
        }
    }

    /// Requests a beacon if the commit value may have risen. Returns whether it may leave now.
    fn wants_beacon(&mut self, now: Nanos) -> bool {
        if self.sender.has_risen() && self.stage != Stage::Excluded {
            self.pace.request();
        }
        self.pace.take(now)
    }

    /// Raises the commit barrier, and delivers and reports what it has reached.
    fn on_commit(&mut self, commit: u64, clock: &mut Clock, now: Nanos) {
        // One that is not admitted is not among the receivers that are stopped when a sender fails.
        let takes_part = !matches!(self.stage, Stage::Joining | Stage::Excluded);
        if !takes_part || !self.receiver.on_commit(commit, clock, now) {
            return;
        }
        self.risen_at = now;
        if core::mem::take(&mut self.is_stalled) {
            self.sender.events.push_back(Event::Recovered);
        }
        self.sender.report_committed(self.receiver.commit());
    }

    /// Excludes this process: everything that was not reported fails.
    fn exclude(&mut self, why: Failure) {
        self.stage = Stage::Excluded;
        self.sender.fail_all(why, &mut self.receiver);
        self.pace.satisfied();
    }

    fn on_timer(&mut self, clock: &mut Clock, now: Nanos) {
        self.sender.on_timer(now);
        self.receiver.on_timer(clock, now);
        let stands_still = now.since(self.risen_at).0 > self.stalled_after && self.stage == Stage::Member;
        if stands_still && !self.is_stalled {
            self.is_stalled = true;
            self.sender.events.push_back(Event::Stalled);
        }
    }
}

impl Reliable {
    /// Returns the commit value of a beacon that carries the time `issued`, unwrapped, or `None` if this
    /// process is not a member.
    #[inline]
    pub(super) fn commit(&mut self, issued: u64) -> Option<Timestamp> {
        let service = self.0.as_mut()?;
        if service.stage == Stage::Excluded {
            return None;
        }
        service.pace.satisfied();
        Some(Timestamp::new(service.sender.commit(issued)))
    }

    /// Handles the commit barrier in a beacon of the link's other end.
    #[inline]
    pub(super) fn on_beacon(&mut self, commit: Option<Timestamp>, clock: &mut Clock, now: Nanos) {
        if let (Some(service), Some(commit)) = (&mut self.0, commit) {
            service.on_commit(clock.unwrap_timestamp(commit, now), clock, now);
        }
    }

    /// Handles a frame with an opcode of the service. Returns whether a beacon is to leave at once.
    pub(super) fn on_frame(
        &mut self,
        from: (u32, ProcessId),
        (ecn, header, payload): (u8, &OnePipe, &[u8]),
        clock: &Clock,
        now: Nanos,
    ) -> Result<bool, Refusal> {
        if !header.opcode().is_reliable() {
            return Err(Refusal::Opcode);
        }
        let service = self.0.as_mut().filter(|service| service.stage != Stage::Excluded);
        let service = service.ok_or(Refusal::NotAdmitted)?;
        service.on_frame(from, (ecn, header, payload), clock, now)?;
        Ok(service.wants_beacon(now))
    }

    /// Records an answer of a receiver that came directly.
    pub(super) fn on_direct_answer(&mut self, peer: u32) {
        if let Some(service) = &mut self.0 {
            service.sender.on_direct_answer(peer);
        }
    }

    /// Delivers what the clock has passed.
    pub(super) fn on_clock_set(&mut self, clock: &mut Clock, now: Nanos) {
        if let Some(service) = &mut self.0 {
            service.receiver.deliver(clock, now);
        }
    }

    /// Handles all timers that are due. Returns whether a beacon is to leave at once.
    pub(super) fn on_timer(&mut self, clock: &mut Clock, now: Nanos) -> bool {
        let Some(service) = &mut self.0 else { return false };
        service.on_timer(clock, now);
        service.wants_beacon(now)
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        let service = self.0.as_ref()?;
        let timers = [service.sender.next_timer(), service.receiver.next_timer(), service.pace.next_timer()];
        timers.into_iter().flatten().min()
    }

    /// Returns whether an answer, a recall or a repeated packet is to be sent.
    #[inline]
    pub(super) fn has_answers(&self) -> bool {
        self.0.as_ref().is_some_and(|service| service.receiver.has_answers() || service.sender.has_repeats())
    }

    /// Writes the next answer. Returns false if there is none.
    #[inline]
    pub(super) fn send_answer(&mut self, peers: &mut Peers, frame: &mut Vec<u8>) -> bool {
        self.0.as_mut().is_some_and(|service| service.receiver.send_answer(peers, frame))
    }

    /// Returns whether the process has joined.
    #[inline]
    pub(super) const fn is_joined(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether the next packet is one of this service, if both have one. They take turns.
    pub(super) fn takes_turn(&mut self) -> bool {
        self.0.as_mut().is_some_and(|service| {
            service.is_next = !service.is_next;
            service.is_next
        })
    }

    /// Writes the next packet of a message, or a recall. Returns false if there is none.
    #[inline]
    pub(super) fn send_data(
        &mut self,
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> bool {
        let Some(service) = &mut self.0 else { return false };
        service.sender.poll(&mut service.receiver, clock, peers, now, frame)
    }

    /// Sends one message at once, if nothing waits before it and the windows have room.
    #[inline]
    pub(super) fn send_at_once(
        &mut self,
        next_number: impl FnOnce() -> Scattering,
        (dst, message): (ProcessId, &[u8]),
        clock: &mut Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> Option<Scattering> {
        let service = self.0.as_mut().filter(|service| service.stage == Stage::Member)?;
        let peer = peers.find(dst)?;
        let Service { members, sender, .. } = &mut **service;
        let to = sender::Receiving { peer, member: members.get_receiver(peer)? };
        sender.send_at_once(next_number, to, message, clock, peers, now, frame)
    }

    /// Leaves: everything that was not reported fails, and beacons carry no commit value any more.
    pub(super) fn leave(&mut self) {
        if let Some(service) = &mut self.0
            && service.stage != Stage::Excluded
        {
            service.exclude(Failure::Left);
        }
    }
}

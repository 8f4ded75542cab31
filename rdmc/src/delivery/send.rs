//! The root's side of a delivery.

mod config;
mod rounds;

pub use config::{DeliveryReport, SenderConfig, SenderError};

use super::note::{MAX_NAME_LEN, Note};
use super::{Buffers, DIGEST, LossReason, Refusal, is_fatal};
use crate::config::{CallError, Config, Failure, GroupConfig, MessageMemory};
use crate::node::{Event, Node};
use crate::schedule::{Algorithm, Schedule};
use core::net::IpAddr;
use rnic::{Access, Rnic};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use switch::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Links to all receivers are being established, until this time.
    Connecting(Nanos),
    /// The object is offered, and receivers report what they have, until this time.
    Offering(Nanos),
    Sending,
    /// The group was closed, and receivers compare digests.
    Storing,
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReceiverState {
    reached: bool,
    have: Option<u64>,
    written: u64,
    stored: bool,
}

/// A delivery at its root.
///
/// Call [`start`](Self::start) first. Then call [`run`](Self::run) when something has arrived at the NIC and
/// when the time of [`next_timer`](Self::next_timer) has come. After each call, provide the segment that
/// [`next_segment`](Self::next_segment) returns and the digest when [`needs_digest`](Self::needs_digest) is
/// true, until there is an [`outcome`](Self::outcome).
#[derive(Debug)]
pub struct ObjectSender {
    config: SenderConfig,
    node: Node,
    own: IpAddr,
    stage: Stage,
    round: u32,
    receivers: BTreeMap<IpAddr, ReceiverState>,
    /// For the hybrid algorithm: rack of each member.
    racks: BTreeMap<IpAddr, u32>,
    lost: Vec<(IpAddr, LossReason)>,
    /// Pairs of receivers that have reported that they cannot reach each other. `None` unless the previous
    /// round ended because members did not connect to each other in time: after any other end, an unreached
    /// member shows nothing.
    unreachable_pairs: Option<BTreeSet<(IpAddr, IpAddr)>>,
    /// Number of lost receivers when the switch failed the last time.
    switch_failed: Option<usize>,
    open: bool,
    /// Index of the next segment to be sent.
    next: u64,
    finished: bool,
    /// The digest was sent, in this round or in an earlier one.
    digest_sent: bool,
    /// Count of all signs of progress, and the time at which it last changed.
    progress_count: u64,
    last_progress: Nanos,
    buffers: Buffers,
    /// Memory of messages that are complete.
    complete: Arc<Mutex<Vec<MessageMemory>>>,
    outcome: Option<Result<DeliveryReport, SenderError>>,
}

impl ObjectSender {
    /// Returns a delivery by a node of this configuration. It has not started.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(node: Config, config: SenderConfig) -> Result<Self, SenderError> {
        let own = node.address;
        if config.len == 0 {
            return Err(SenderError::Empty);
        }
        if config.receivers.is_empty() {
            return Err(SenderError::NoReceivers);
        }
        let mut receivers = BTreeMap::new();
        for ip in &config.receivers {
            if *ip == own || receivers.insert(*ip, ReceiverState::default()).is_some() {
                return Err(SenderError::Twice(*ip));
            }
        }
        if !(1..=MAX_NAME_LEN).contains(&config.name.len()) {
            return Err(SenderError::Name(config.name.len()));
        }
        let (block, len) = (config.block_bytes, config.len);
        if block == 0 || u64::from(block) > len || block > GroupConfig::MAX_BLOCK {
            return Err(SenderError::Block { block, len });
        }
        let blocks = config.segment_bytes / block;
        if !(1..=GroupConfig::MAX_BLOCKS).contains(&blocks) || config.window == 0 {
            return Err(SenderError::Segment);
        }
        if config.algorithm == Algorithm::InNetwork && config.switch.is_none() {
            return Err(SenderError::NoSwitch);
        }
        Schedule::new(config.algorithm.clone(), config.receivers.len() as u32 + 1, 1)?;
        let all = core::iter::once(&own).chain(&config.receivers).copied().zip(0..);
        let racks = match &config.algorithm {
            Algorithm::Hybrid(racks) => all.map(|(ip, node)| (ip, racks.rack(node))).collect(),
            _ => BTreeMap::new(),
        };
        Ok(Self {
            node: Node::new(node),
            own,
            stage: Stage::Over,
            round: 0,
            receivers,
            racks,
            lost: Vec::new(),
            unreachable_pairs: None,
            switch_failed: None,
            open: false,
            next: 0,
            finished: false,
            digest_sent: false,
            progress_count: 0,
            last_progress: Nanos::ZERO,
            buffers: Buffers::default(),
            complete: Arc::default(),
            outcome: None,
            config,
        })
    }

    /// Starts the node, and requests links to all receivers.
    ///
    /// # Errors
    /// If the NIC or the node has no room.
    pub fn start(&mut self, nic: &mut Rnic, now: Nanos) -> Result<(), SenderError> {
        self.node.start(nic)?;
        for ip in self.config.receivers.clone() {
            self.node.request_link(nic, ip, now)?;
        }
        self.stage = Stage::Connecting(now + self.config.patience);
        Ok(())
    }

    /// Returns the number of segments of the object.
    pub fn segments(&self) -> u64 {
        self.config.len.div_ceil(self.config.segment_bytes.into())
    }

    /// Returns the number of bytes of a segment.
    pub fn segment_len(&self, segment: u64) -> u32 {
        let begins = segment * u64::from(self.config.segment_bytes);
        self.config.len.saturating_sub(begins).min(self.config.segment_bytes.into()) as u32
    }

    /// Returns the number of segments that every receiver has written.
    pub fn written(&self) -> u64 {
        self.unfinished().map(|(_, receiver)| receiver.written).min().unwrap_or(self.segments())
    }

    /// Returns the receivers that have not stored the object yet.
    fn unfinished(&self) -> impl Iterator<Item = (IpAddr, &ReceiverState)> {
        self.receivers.iter().filter(|(_, receiver)| !receiver.stored).map(|(ip, receiver)| (*ip, receiver))
    }

    /// Returns the members of this round's group.
    fn members(&self) -> Vec<IpAddr> {
        core::iter::once(self.own).chain(self.unfinished().map(|(ip, _)| ip)).collect()
    }

    /// Returns the index of the segment to be provided next by [`send_segment`](Self::send_segment). After a
    /// failure it may be one that was provided before. `None` if no segment may be sent now.
    pub fn next_segment(&self) -> Option<u64> {
        let room = self.written() + u64::from(self.config.window);
        let room = if self.node.has_bug(crate::Bug::IgnoresWindow) { u64::MAX } else { room };
        (self.stage == Stage::Sending && self.open && self.next < self.segments().min(room))
            .then_some(self.next)
    }

    /// Returns whether all segments were provided, and the digest of the object has to be provided by
    /// [`send_digest`](Self::send_digest).
    pub fn needs_digest(&self) -> bool {
        self.stage == Stage::Sending && self.open && self.next == self.segments() && !self.finished
    }

    /// Sends the segment that [`next_segment`](Self::next_segment) returns. Does nothing if that is `None`.
    ///
    /// # Panics
    /// If `bytes` has another length than [`segment_len`](Self::segment_len).
    pub fn send_segment(&mut self, nic: &mut Rnic, bytes: Vec<u8>) {
        let Some(segment) = self.next_segment() else { return };
        assert_eq!(bytes.len(), self.segment_len(segment) as usize, "length of segment {segment}");
        self.next += 1;
        self.send(nic, bytes);
    }

    /// Sends the digest of the whole object, if [`needs_digest`](Self::needs_digest) is true.
    pub fn send_digest(&mut self, nic: &mut Rnic, digest: [u8; DIGEST]) {
        if self.needs_digest() {
            (self.finished, self.digest_sent) = (true, true);
            self.send(nic, digest.to_vec());
            // This cannot be refused: the group exists, or has failed, which an event reports.
            _ = self.node.destroy_group(self.round);
        }
    }

    fn send(&mut self, nic: &mut Rnic, bytes: Vec<u8>) {
        let Some(pd) = self.node.pd() else { return };
        let len = bytes.len() as u32;
        let memory = match self.buffers.register(nic, pd, bytes, Access::LOCAL_READ) {
            Ok(memory) => memory,
            Err(error) => return self.end(Err(CallError::Memory(error).into())),
        };
        if let Err(error) = self.node.send(nic, self.round, memory, len) {
            self.buffers.deregister(nic, memory);
            if is_fatal(&error) {
                self.end(Err(error.into()));
            }
        }
    }

    /// Stops the delivery, and informs the receivers.
    pub fn stop(&mut self, nic: &mut Rnic, now: Nanos) {
        if self.stage != Stage::Over {
            for ip in self.receivers.keys() {
                self.node.send_note(nic, *ip, Note::Stop.to_bytes());
            }
            // There may be no group at this time.
            _ = self.node.abandon_group(nic, self.round, now);
            self.end(Err(SenderError::Stopped));
        }
    }

    /// Returns the outcome, once the delivery has ended. Call [`run`](Self::run) after that until
    /// [`all_acknowledged`](Self::all_acknowledged) is true.
    pub fn outcome(&self) -> Option<&Result<DeliveryReport, SenderError>> {
        self.outcome.as_ref()
    }

    /// Returns whether all messages to receivers are acknowledged.
    pub fn all_acknowledged(&self) -> bool {
        self.node.all_acknowledged()
    }

    /// Returns the time at which [`run`](Self::run) is to be called, unless something arrives earlier.
    pub fn next_timer(&self) -> Option<Nanos> {
        let until = match self.stage {
            Stage::Connecting(at) | Stage::Offering(at) => Some(at),
            Stage::Sending | Stage::Storing => {
                self.is_waiting().then(|| self.last_progress + self.config.patience)
            }
            Stage::Over => None,
        };
        [self.node.next_timer(), until].into_iter().flatten().min()
    }

    /// Handles everything that has arrived, all calls of the application, and all deadlines up to `now`.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.node.run(nic, now);
        let complete = core::mem::take(&mut *self.complete.lock().unwrap_or_else(PoisonError::into_inner));
        for memory in complete {
            self.buffers.deregister(nic, memory);
        }
        self.handle_events(nic, now);
        self.note_progress(now);
        self.on_time(nic, now);
        // Events that the deadlines have caused.
        self.handle_events(nic, now);
    }

    fn handle_events(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = self.node.poll_event() {
            self.on_event(nic, event, now);
        }
    }

    /// Updates the time of the last progress: segments that receivers have written, and blocks that were
    /// sent.
    fn note_progress(&mut self, now: Nanos) {
        let written: u64 = self.receivers.values().map(|receiver| receiver.written).sum();
        let progress_count = written + self.node.counters().blocks_sent;
        if progress_count != self.progress_count {
            (self.progress_count, self.last_progress) = (progress_count, now);
        }
    }

    /// Returns whether the delivery waits for this receiver.
    fn is_waited_for(&self, receiver: &ReceiverState) -> bool {
        match self.stage {
            Stage::Sending if self.next < self.segments() => {
                !receiver.stored && receiver.written + u64::from(self.config.window) <= self.next
            }
            Stage::Sending => receiver.written < self.segments() && !receiver.stored,
            Stage::Storing => !receiver.stored,
            _ => false,
        }
    }

    /// Returns whether the delivery can do nothing but wait for receivers.
    fn is_waiting(&self) -> bool {
        let can_act = self.next_segment().is_some() || self.needs_digest();
        (self.open || self.stage == Stage::Storing)
            && !can_act
            && self.receivers.values().any(|receiver| self.is_waited_for(receiver))
    }

    fn end(&mut self, outcome: Result<DeliveryReport, SenderError>) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.outcome = Some(outcome);
        }
    }

    fn on_event(&mut self, nic: &mut Rnic, event: Event, now: Nanos) {
        match event {
            Event::LinkUp(ip) => {
                if let Some(receiver) = self.receivers.get_mut(&ip) {
                    receiver.reached = true;
                }
                self.offer_if_all_are_reached(nic, now);
            }
            // The node establishes the link again until the time for that is over: the receiver may restart.
            Event::LinkLost(ip) if matches!(self.stage, Stage::Connecting(_)) => {
                if let Some(receiver) = self.receivers.get_mut(&ip) {
                    receiver.reached = false;
                }
            }
            Event::LinkLost(ip) => self.drop_receiver(nic, ip, LossReason::Gone, now),
            Event::Note(ip, bytes) => match Note::from_bytes(&bytes) {
                Some(note) => self.on_note(nic, ip, note, now),
                None => self.drop_receiver(nic, ip, LossReason::Failed(Failure::Violation(ip)), now),
            },
            Event::Open(group) if group == self.round => {
                self.open = true;
                self.unreachable_pairs = None;
            }
            Event::Closed(group) if group == self.round && self.stage == Stage::Sending => {
                (self.stage, self.last_progress) = (Stage::Storing, now);
                self.conclude();
            }
            Event::Open(_) | Event::Closed(_) => {}
            Event::Failed { group, failure, unfinished, missing_members } => {
                for memory in unfinished {
                    self.buffers.deregister(nic, memory);
                }
                // The failure is handled here, so the node may forget it.
                _ = self.node.destroy_group(group);
                if group == self.round && self.stage == Stage::Sending {
                    self.on_failed(nic, failure, &missing_members, now);
                }
            }
        }
    }

    fn on_failed(&mut self, nic: &mut Rnic, failure: Failure, missing_members: &[IpAddr], now: Nanos) {
        let ip = failure.member();
        let is_timeout = matches!(failure, Failure::NotCreated(_) | Failure::NotJoined(_));
        self.unreachable_pairs = is_timeout.then(|| self.unreachable_pairs.take().unwrap_or_default());
        // A switch ends the group when a receiver does not acknowledge. So the root uses the switch once
        // more, without the receivers that have failed.
        if matches!(failure, Failure::Switch(_))
            && self.switch_failed.replace(self.lost.len()) == Some(self.lost.len())
        {
            self.config.algorithm = Algorithm::Pipeline;
        }
        self.stage = Stage::Offering(now);
        let why = match failure {
            // Members that have not connected to each other report the unreached ones after the next offer.
            // The member that this failure names may have waited in vain for another one that no member can
            // reach.
            Failure::NotCreated(_) | Failure::NotJoined(_) => {
                let silent = missing_members.iter().map(|ip| (*ip, LossReason::Silent)).collect::<Vec<_>>();
                return self.drop_receivers(nic, &silent, now);
            }
            Failure::Gone(_) => LossReason::Gone,
            other => LossReason::Failed(other),
        };
        let lost = self.receivers.contains_key(&ip).then_some((ip, why));
        self.drop_receivers(nic, lost.as_slice(), now);
    }

    fn on_note(&mut self, nic: &mut Rnic, ip: IpAddr, note: Note, now: Nanos) {
        let segments = self.segments();
        let Some(receiver) = self.receivers.get_mut(&ip) else { return };
        match note {
            Note::Have { round, segments: have } if round == self.round && have <= segments => {
                if matches!(self.stage, Stage::Offering(_)) {
                    receiver.have = Some(have);
                    self.begin(nic, now);
                }
            }
            Note::Unreached { ip: other } => {
                if let Some(unreachable_pairs) = &mut self.unreachable_pairs {
                    unreachable_pairs.insert((ip.min(other), ip.max(other)));
                }
            }
            // A response to an earlier round.
            Note::Have { round, .. } if round < self.round => {}
            // The receiver may restart.
            Note::Refuse(Refusal::Stopped) if matches!(self.stage, Stage::Connecting(_)) => {
                receiver.reached = false;
            }
            Note::Refuse(refusal) => self.drop_receiver(nic, ip, LossReason::Refused(refusal), now),
            Note::Written { segments: written } if written <= segments => {
                receiver.written = receiver.written.max(written);
                // A receiver that has all segments responds to the offer after it has compared the digest.
                if let Stage::Offering(at) = &mut self.stage {
                    *at = now + self.config.patience;
                }
            }
            Note::Stored if self.digest_sent => {
                receiver.stored = true;
                match self.stage {
                    // The receiver is a member of the offered round.
                    Stage::Offering(_) => self.start_next_round(nic, now),
                    _ => self.conclude(),
                }
            }
            Note::Damaged => self.drop_receiver(nic, ip, LossReason::Damaged, now),
            _ => self.drop_receiver(nic, ip, LossReason::Failed(Failure::Violation(ip)), now),
        }
    }

    fn on_time(&mut self, nic: &mut Rnic, now: Nanos) {
        let is_stalled = self.is_waiting() && self.last_progress + self.config.patience <= now;
        let late = |is: fn(&ReceiverState) -> bool| -> Vec<IpAddr> {
            self.receivers.iter().filter(|(_, receiver)| !is(receiver)).map(|(ip, _)| *ip).collect()
        };
        match self.stage {
            Stage::Connecting(at) if at <= now => {
                let silent = late(|receiver| receiver.reached);
                self.end(Err(SenderError::Silent(silent)));
            }
            Stage::Offering(at) if at <= now => {
                let silent = late(|receiver| receiver.have.is_some() || receiver.stored);
                let silent: Vec<_> = silent.into_iter().map(|ip| (ip, LossReason::Silent)).collect();
                self.drop_receivers(nic, &silent, now);
            }
            // Removes receivers that are reachable, but make no progress.
            Stage::Sending | Stage::Storing if is_stalled => {
                let waited_for = self.receivers.iter().filter(|(_, receiver)| self.is_waited_for(receiver));
                for ip in waited_for.map(|(ip, _)| *ip).collect::<Vec<_>>() {
                    self.drop_receiver(nic, ip, LossReason::Silent, now);
                }
            }
            _ => {}
        }
    }
}

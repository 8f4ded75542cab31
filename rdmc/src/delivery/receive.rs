//! A receiver's side of a delivery.

use super::note::{Note, Terms, algorithm_from_number};
use super::{Buffers, DIGEST, Refusal, is_fatal};
use crate::config::{CallError, Config, GroupConfig, MessageMemory, StartError};
use crate::node::{Event, Node};
use crate::schedule::Algorithm;
use core::net::IpAddr;
use p4ce::SwitchAddress;
use rnic::{Access, Rnic};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// Configuration of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Address of the root.
    pub from: IpAddr,
    /// Time for the root to appear, and to return after a failure. A root that is reachable may send nothing
    /// for twice this time, since it waits this long for other receivers.
    pub patience: Nanos,
    /// Maximum bytes of memory for segments. A root's offer needs room for `2 * window + 1` of its segments.
    pub max_memory: u64,
}

impl ReceiverConfig {
    /// Default of [`max_memory`](Self::max_memory): 1 GiB.
    pub const MEMORY: u64 = 1 << 30;

    /// Returns the maximum number of segments that a receiver holds if the root stays `window` segments ahead
    /// of the slowest receiver: those that it has not written; as many that arrive again after a failure; and
    /// the one that is arriving.
    const fn segments_held(window: u32) -> u64 {
        2 * window as u64 + 1
    }
}

/// Reason for which nothing is received, or the delivery has ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiverError {
    /// The NIC has no room.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The node returned an error.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The root made no offer in time.
    #[error("{0} made no offer in time")]
    NoOffer(IpAddr),
    /// The link to the root was lost, or the root went on without this node.
    #[error("the connection to {0} is lost, or {0} went on without this receiver")]
    Gone(IpAddr),
    /// The root is reachable, and sends nothing.
    #[error("{0} is reachable, but sends nothing")]
    Stuck(IpAddr),
    /// The root stopped the delivery.
    #[error("{0} stopped the delivery")]
    Stopped(IpAddr),
    /// This receiver refused the object.
    #[error("this receiver refused the object: {0}")]
    Refused(Refusal),
    /// The digest of what was written differs from the root's.
    #[error("the received object is damaged: its digest differs from the sender's")]
    Damaged,
    /// The root sent an invalid note or message.
    #[error("{0} violated the protocol")]
    Violation(IpAddr),
}

/// Object that the root offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The root's name of the object. Do not trust it as a path.
    pub name: String,
    /// Bytes of the object.
    pub len: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for the root and its offer, or for the offer of the next round, until this time.
    Waiting(Nanos),
    /// Waits for the application to accept or refuse the offer.
    Offered,
    /// Waits for the root to start the group, until this time.
    Ready(Nanos),
    Receiving,
    /// Waits for the application to compare the digest.
    Comparing,
    Over,
}

/// State that a group's callbacks share with the receiver.
#[derive(Debug, Default)]
struct Shared {
    buffers: Buffers,
    /// Messages that are complete.
    arrived: VecDeque<Vec<u8>>,
    /// Number of segments that have arrived and are not written.
    unwritten: u64,
}

impl Shared {
    /// Returns the number of segments in memory.
    fn held(&self) -> u64 {
        (self.buffers.len() + self.arrived.len()) as u64 + self.unwritten
    }
}

/// An offer whose notes are arriving. It replaces the previous offer only when it is complete.
#[derive(Debug, Default)]
struct PartialOffer {
    name: Vec<u8>,
    terms: Option<Terms>,
    switch: Option<SwitchAddress>,
    /// By member index: address and rack.
    members: Vec<Option<(IpAddr, u32)>>,
}

impl PartialOffer {
    /// Returns whether this is the offer of this round.
    fn is_of_round(&self, round: u32) -> bool {
        self.terms.is_some_and(|terms| terms.round == round)
    }

    /// Returns the offer, if all of its notes have arrived.
    fn complete(&self) -> Option<CompleteOffer> {
        let terms = self.terms?;
        let needs_switch = algorithm_from_number(terms.algorithm, &[0, 0]) == Some(Algorithm::InNetwork);
        let members = self.members.iter().copied().collect::<Option<Vec<_>>>()?;
        (!needs_switch || self.switch.is_some()).then(|| CompleteOffer {
            name: self.name.clone(),
            terms,
            switch: self.switch,
            members,
        })
    }
}

/// The last complete offer of the root.
#[derive(Debug)]
struct CompleteOffer {
    name: Vec<u8>,
    terms: Terms,
    switch: Option<SwitchAddress>,
    /// By member index: address and rack.
    members: Vec<(IpAddr, u32)>,
}

/// A delivery at a receiver.
///
/// Call [`start`](Self::start) first. Then call [`run`](Self::run) when something has arrived at the NIC and
/// when the time of [`next_timer`](Self::next_timer) has come. After each call, decide on
/// [`offered`](Self::offered), write the segments of [`poll_segment`](Self::poll_segment), and compare the
/// digest of [`digest_to_compare`](Self::digest_to_compare), until there is an [`outcome`](Self::outcome).
#[derive(Debug)]
pub struct ObjectReceiver {
    config: ReceiverConfig,
    node: Node,
    stage: Stage,
    partial: Option<PartialOffer>,
    offer: Option<CompleteOffer>,
    accepted: bool,
    /// Number of segments that have arrived, in order; and the segment number of the next message of this
    /// round's group.
    received: u64,
    message: u64,
    written: u64,
    queue: VecDeque<Vec<u8>>,
    digest: Option<[u8; DIGEST]>,
    /// Members that were not reached in the previous round's group.
    unreached: Vec<IpAddr>,
    /// Count of all signs of progress, and the time at which it last changed.
    progress_count: u64,
    last_progress: Nanos,
    shared: Arc<Mutex<Shared>>,
    outcome: Option<Result<(), ReceiverError>>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ObjectReceiver {
    /// Returns a receiver on a node of this configuration. It has not started.
    pub fn new(node: Config, config: ReceiverConfig) -> Self {
        Self {
            config,
            node: Node::new(node),
            stage: Stage::Over,
            partial: None,
            offer: None,
            accepted: false,
            received: 0,
            message: 0,
            written: 0,
            queue: VecDeque::new(),
            digest: None,
            unreached: Vec::new(),
            progress_count: 0,
            last_progress: Nanos::ZERO,
            shared: Arc::default(),
            outcome: None,
        }
    }

    /// Starts the node, and requests a link to the root.
    ///
    /// # Errors
    /// If the NIC or the node has no room.
    pub fn start(&mut self, nic: &mut Rnic, now: Nanos) -> Result<(), ReceiverError> {
        self.node.start(nic)?;
        self.node.request_link(nic, self.config.from, now)?;
        self.stage = Stage::Waiting(now + self.config.patience);
        Ok(())
    }

    /// Returns the offer, while it is undecided. [`accept`](Self::accept) it or [`refuse`](Self::refuse) it.
    pub fn offered(&self) -> Option<Offer> {
        let CompleteOffer { name, terms, .. } =
            self.offer.as_ref().filter(|_| self.stage == Stage::Offered)?;
        let name = String::from_utf8_lossy(name).into_owned();
        Some(Offer { name, len: terms.len, segment_bytes: terms.segment })
    }

    /// Accepts the offer.
    pub fn accept(&mut self, nic: &mut Rnic, now: Nanos) {
        self.accepted = true;
        // If the next round's offer is arriving, the response follows when all of its notes have arrived.
        if self.stage == Stage::Offered {
            self.send_have(nic, now);
        }
    }

    /// Refuses the object, also after it was accepted, and informs the root.
    pub fn refuse(&mut self, nic: &mut Rnic, refusal: Refusal, now: Nanos) {
        if self.stage != Stage::Over {
            self.send_note(nic, Note::Refuse(refusal));
            if let Some(terms) = self.terms() {
                // There may be no group at this time.
                _ = self.node.abandon_group(nic, terms.round, now);
            }
            self.end(Err(ReceiverError::Refused(refusal)));
        }
    }

    /// Returns the next segment. Each segment is returned once, in order. Call
    /// [`segment_written`](Self::segment_written) when it is written.
    pub fn poll_segment(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }

    /// Returns the number of segments that have arrived and are not written.
    pub fn unwritten(&self) -> u64 {
        self.received - self.written
    }

    /// Counts the next segment as written, and reports it to the root.
    pub fn segment_written(&mut self, nic: &mut Rnic) {
        self.written += 1;
        self.count_unwritten();
        self.send_note(nic, Note::Written { segments: self.written });
    }

    /// Returns the digest to compare with, when the whole object has arrived and is written. Report the
    /// result by [`report_comparison`](Self::report_comparison).
    pub fn digest_to_compare(&self) -> Option<[u8; DIGEST]> {
        self.digest.filter(|_| self.stage == Stage::Comparing && self.written == self.received)
    }

    /// Reports whether the digest matches to the root, and ends the delivery.
    pub fn report_comparison(&mut self, nic: &mut Rnic, equal: bool) {
        if self.stage == Stage::Comparing {
            self.send_note(nic, if equal { Note::Stored } else { Note::Damaged });
            self.end(if equal { Ok(()) } else { Err(ReceiverError::Damaged) });
        }
    }

    /// Returns the outcome, once the delivery has ended. Call [`run`](Self::run) after that until
    /// [`all_acknowledged`](Self::all_acknowledged) is true.
    pub fn outcome(&self) -> Option<&Result<(), ReceiverError>> {
        self.outcome.as_ref()
    }

    /// Returns whether all messages to the root are acknowledged.
    pub fn all_acknowledged(&self) -> bool {
        self.node.all_acknowledged()
    }

    /// Returns the time at which [`run`](Self::run) is to be called, unless something arrives earlier.
    pub fn next_timer(&self) -> Option<Nanos> {
        let until = match self.stage {
            Stage::Waiting(at) | Stage::Ready(at) => Some(at),
            Stage::Receiving if self.waits_for_root() => Some(self.root_deadline()),
            _ => None,
        };
        [self.node.next_timer(), until].into_iter().flatten().min()
    }

    /// Handles everything that has arrived, all calls of the application, and all deadlines up to `now`.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.node.run(nic, now);
        self.on_complete_messages();
        while let Some(event) = self.node.poll_event() {
            self.on_event(nic, event, now);
        }
        let progress_count = self.node.counters().blocks_received + self.written;
        if progress_count != self.progress_count {
            (self.progress_count, self.last_progress) = (progress_count, now);
        }
        if self.stage == Stage::Receiving && self.waits_for_root() && self.root_deadline() <= now {
            _ = self.terms().map(|terms| self.node.abandon_group(nic, terms.round, now));
            self.end(Err(ReceiverError::Stuck(self.config.from)));
        }
        if let Stage::Waiting(at) | Stage::Ready(at) = self.stage
            && at <= now
        {
            let from = self.config.from;
            let error =
                if self.offer.is_some() { ReceiverError::Gone(from) } else { ReceiverError::NoOffer(from) };
            self.end(Err(error));
        }
    }

    fn has_whole_object(&self) -> bool {
        self.terms().is_some_and(|terms| Self::segments(&terms) == self.received) && self.digest.is_some()
    }

    /// Returns whether all segments that have arrived are written, so that the root has to act next.
    fn waits_for_root(&self) -> bool {
        self.written == self.received
    }

    fn root_deadline(&self) -> Nanos {
        Nanos(self.last_progress.0.saturating_add(self.config.patience.0.saturating_mul(2)))
    }

    fn end(&mut self, outcome: Result<(), ReceiverError>) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.outcome = Some(outcome);
        }
    }

    fn violation(&mut self) {
        self.end(Err(ReceiverError::Violation(self.config.from)));
    }

    fn send_note(&mut self, nic: &mut Rnic, note: Note) {
        self.node.send_note(nic, self.config.from, note.to_bytes());
    }

    fn terms(&self) -> Option<Terms> {
        self.offer.as_ref().map(|offer| offer.terms)
    }

    fn count_unwritten(&self) {
        lock(&self.shared).unwritten = self.unwritten();
    }

    fn segments(terms: &Terms) -> u64 {
        terms.len.div_ceil(terms.segment.into())
    }

    /// Handles complete messages: segments, and the digest after the last one.
    fn on_complete_messages(&mut self) {
        let arrived = core::mem::take(&mut lock(&self.shared).arrived);
        for bytes in arrived {
            let Some(terms) = self.terms() else { return };
            let number = self.message;
            self.message += 1;
            let begins = number.saturating_mul(terms.segment.into());
            if number == Self::segments(&terms) {
                match <[u8; DIGEST]>::try_from(bytes) {
                    Ok(digest) => self.digest = Some(digest),
                    Err(_) => return self.violation(),
                }
            } else if bytes.len() as u64 != terms.len.saturating_sub(begins).min(terms.segment.into()) {
                return self.violation();
            } else if number == self.received {
                self.received += 1;
                self.count_unwritten();
                self.queue.push_back(bytes);
            }
            // Any other segment has arrived in an earlier round. It is repeated for receivers that do not
            // have it.
        }
    }

    fn on_event(&mut self, nic: &mut Rnic, event: Event, now: Nanos) {
        match event {
            Event::Note(_, bytes) => match Note::from_bytes(&bytes) {
                Some(note) => self.on_note(nic, note, now),
                None => self.violation(),
            },
            // When the whole object has arrived, only the comparison is left.
            Event::LinkLost(_) if self.offer.is_some() && self.stage != Stage::Comparing => {
                self.end(Err(ReceiverError::Gone(self.config.from)));
            }
            // If the root returns, it begins its offer again.
            Event::LinkLost(_) => self.partial = None,
            Event::LinkUp(_) | Event::Open(_) => {}
            Event::Closed(group) => {
                let round = self.terms().map(|terms| terms.round);
                if round == Some(group) && self.stage == Stage::Receiving && self.has_whole_object() {
                    self.stage = Stage::Comparing;
                } else {
                    self.violation();
                }
            }
            Event::Failed { group, unfinished, missing_members, .. } => {
                self.unreached = missing_members;
                for memory in unfinished {
                    lock(&self.shared).buffers.deregister(nic, memory);
                }
                // The failure is handled here, so the node may forget it.
                _ = self.node.destroy_group(group);
                if self.stage == Stage::Receiving {
                    // When the whole object has arrived, only the comparison is left, whatever happens to
                    // other members.
                    let waiting = Stage::Waiting(now + self.config.patience);
                    self.stage = if self.has_whole_object() { Stage::Comparing } else { waiting };
                }
            }
        }
    }

    fn on_note(&mut self, nic: &mut Rnic, note: Note, now: Nanos) {
        if self.stage == Stage::Comparing {
            // This receiver has the whole object, and reports the result soon. Another round concerns other
            // receivers.
            return;
        }
        match note {
            Note::Name { at, len, part } => self.on_name(usize::from(at), &part[..usize::from(len)]),
            Note::Offer(terms) => self.on_terms(terms),
            Note::Switch { round, switch } => {
                match self.partial.as_mut().filter(|partial| partial.is_of_round(round)) {
                    Some(partial) => partial.switch = Some(switch),
                    None => self.violation(),
                }
                self.on_offer(nic, now);
            }
            Note::Member { round, index, rack, ip } => {
                let partial = self.partial.as_mut().filter(|partial| partial.is_of_round(round));
                match partial.and_then(|partial| partial.members.get_mut(index as usize)) {
                    Some(member) => *member = Some((ip, rack)),
                    None => self.violation(),
                }
                self.on_offer(nic, now);
            }
            Note::Stop => self.end(Err(ReceiverError::Stopped(self.config.from))),
            Note::Start { round, first } => self.on_start(nic, round, first, now),
            _ => self.violation(),
        }
    }

    /// Handles part of a name. The first part begins a new offer.
    fn on_name(&mut self, at: usize, part: &[u8]) {
        if self.node.has_bug(crate::Bug::IgnoresLaterNames) && self.accepted {
            return;
        }
        if at == 0 {
            self.partial = Some(PartialOffer::default());
        }
        match self.partial.as_mut().filter(|partial| partial.terms.is_none() && partial.name.len() == at) {
            Some(partial) => partial.name.extend_from_slice(part),
            None => self.violation(),
        }
    }

    fn on_terms(&mut self, terms: Terms) {
        let is_valid = terms.len > 0
            && terms.window > 0
            && (1..=terms.segment).contains(&terms.block)
            && (2..=crate::Schedule::MAX_NODES).contains(&terms.members)
            && algorithm_from_number(terms.algorithm, &[0, 0]).is_some();
        let has_name = |partial: &&mut PartialOffer| {
            partial.terms.is_none() && partial.name.len() == usize::from(terms.name_len)
        };
        match self.partial.as_mut().filter(has_name).filter(|_| is_valid) {
            Some(partial) => {
                partial.terms = Some(terms);
                partial.members = vec![None; terms.members as usize];
            }
            None => self.violation(),
        }
    }

    /// Applies an offer when all of its notes have arrived. The offer of a later round has to be of the same
    /// object.
    fn on_offer(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(offer) = self.partial.as_ref().and_then(PartialOffer::complete) else { return };
        self.partial = None;
        if self.stage == Stage::Over {
            return;
        }
        let terms = offer.terms;
        if let Some(before) = &self.offer {
            let object = |offer: &CompleteOffer| (offer.terms.len, offer.terms.segment, offer.name.clone());
            if object(before) != object(&offer) || before.terms.round >= terms.round {
                return self.violation();
            }
            // The group of the previous round has ended, whether or not this node has been notified.
            _ = self.node.abandon_group(nic, before.terms.round, now);
        }
        let is_name = core::str::from_utf8(&offer.name).is_ok();
        self.offer = Some(offer);
        let held = u64::from(terms.segment).saturating_mul(ReceiverConfig::segments_held(terms.window));
        if !is_name {
            self.refuse(nic, Refusal::Name, now);
        } else if held > self.config.max_memory {
            self.refuse(nic, Refusal::Memory, now);
        } else if self.accepted {
            self.send_have(nic, now);
        } else {
            self.stage = Stage::Offered;
        }
    }

    fn send_have(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(terms) = self.terms() else { return };
        self.stage = Stage::Ready(now + self.config.patience);
        for ip in core::mem::take(&mut self.unreached) {
            self.send_note(nic, Note::Unreached { ip });
        }
        self.send_note(nic, Note::Have { round: terms.round, segments: self.received });
    }

    fn on_start(&mut self, nic: &mut Rnic, round: u32, first: u64, now: Nanos) {
        let offer = self.offer.as_ref().filter(|offer| offer.terms.round == round && first <= self.received);
        let (Some(offer), Stage::Ready(_), Some(pd)) = (offer, self.stage, self.node.pd()) else {
            return self.violation();
        };
        let (terms, switch) = (offer.terms, offer.switch);
        let (members, racks): (Vec<_>, Vec<_>) = offer.members.iter().copied().unzip();
        let Some(algorithm) = algorithm_from_number(terms.algorithm, &racks) else { return self.violation() };
        (self.stage, self.message, self.digest, self.last_progress) = (Stage::Receiving, first, None, now);
        let group =
            GroupConfig { algorithm, block_bytes: terms.block, switch, ..GroupConfig::new(round, members) };
        let max_len = terms.segment.max(DIGEST as u32);
        let max_held = ReceiverConfig::segments_held(terms.window);
        let shared = Arc::clone(&self.shared);
        let incoming = move |nic: &mut Rnic, len: u32| {
            let mut shared = lock(&shared);
            // A root that respects the window never reaches this limit.
            let bytes = (len <= max_len && shared.held() < max_held).then(|| vec![0; len as usize])?;
            shared.buffers.register(nic, pd, bytes, Access::LOCAL_WRITE).ok()
        };
        let shared = Arc::clone(&self.shared);
        let complete = move |nic: &mut Rnic, memory: MessageMemory, _: u32| {
            let mut shared = lock(&shared);
            let bytes = shared.buffers.deregister(nic, memory);
            shared.arrived.push_back(bytes);
        };
        match self.node.create_group(nic, group, Box::new(incoming), Box::new(complete), now) {
            Err(error) if is_fatal(&error) => {
                self.send_note(nic, Note::Refuse(Refusal::Group));
                self.end(Err(error.into()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

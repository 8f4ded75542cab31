//! A receiver's side of a delivery.

use super::note::{Note, Terms, algorithm};
use super::{Buffers, DIGEST, Refusal, is_fatal};
use crate::config::{CallError, Config, GroupConfig, Memory, StartError};
use crate::node::{Event, Node};
use crate::schedule::Algorithm;
use core::net::IpAddr;
use p4ce::consensus::SwitchAddress;
use rnic::{Access, Rnic};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// From whom an object is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeConfig {
    /// The root
    pub from: IpAddr,
    /// How long it has to come, and to come back after a failure; twice as long it may send nothing while it is there, as it
    /// waits for other receivers so long
    pub patience: Nanos,
    /// Bytes of memory for segments at most. What the root offers needs room for
    /// [so many](Self::segments_held) of its segments
    pub max_memory: u64,
}

impl TakeConfig {
    /// Bytes of memory if nothing else is said: 1 GiB
    pub const MEMORY: u64 = 1 << 30;

    /// Segments that a receiver holds at most, if the root keeps `window` segments ahead of the slowest receiver: those that
    /// it has not written; as many that come again after a failure; and the one that comes in.
    const fn segments_held(window: u32) -> u64 {
        2 * window as u64 + 1
    }
}

/// Why nothing is taken (any more).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// The NIC has no room
    #[error(transparent)]
    Start(#[from] StartError),
    /// The node refuses
    #[error(transparent)]
    Call(#[from] CallError),
    /// It offers nothing
    #[error("{0} offers nothing")]
    Silent(IpAddr),
    /// It is gone, or goes on without this node
    #[error("{0} is gone, or goes on without this node")]
    Gone(IpAddr),
    /// It is there, and sends nothing
    #[error("{0} is there, and sends nothing any more")]
    Stuck(IpAddr),
    /// It gave up
    #[error("{0} has given up")]
    Left(IpAddr),
    /// It was not taken
    #[error("it was not taken: {0}")]
    Refused(Refusal),
    /// What was written is not what was sent
    #[error("what was written is not what was sent: the digests differ")]
    Damaged,
    /// The root does what it must not
    #[error("{0} breaks the protocol")]
    Violation(IpAddr),
}

/// What is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What the root calls it: not to be trusted as a path
    pub name: String,
    /// Bytes
    pub len: u64,
    /// Bytes of a segment
    pub segment_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For the root, an offer, or another one
    Waiting(Nanos),
    /// For the application, to take it
    Offered,
    /// For the root, to begin
    Ready(Nanos),
    Receiving,
    /// For the application, to compare
    Comparing,
    Over,
}

/// What callbacks of a group share with the receiver.
#[derive(Debug, Default)]
struct Shared {
    buffers: Buffers,
    /// Messages that are complete
    arrived: VecDeque<Vec<u8>>,
    /// Segments that have come and are not written
    unwritten: u64,
}

impl Shared {
    /// Segments in memory
    fn held(&self) -> u64 {
        (self.buffers.len() + self.arrived.len()) as u64 + self.unwritten
    }
}

/// An offer while its notes come in. What was offered before stays as it is until this one is complete.
#[derive(Debug, Default)]
struct Partial {
    name: Vec<u8>,
    terms: Option<Terms>,
    switch: Option<SwitchAddress>,
    /// With their racks
    members: Vec<Option<(IpAddr, u32)>>,
}

impl Partial {
    /// Whether these are the notes of this round's offer.
    fn is_of(&self, round: u32) -> bool {
        self.terms.is_some_and(|terms| terms.round == round)
    }

    /// The offer, if all of its notes have come.
    fn complete(&self) -> Option<Complete> {
        let terms = self.terms?;
        let needs_switch = algorithm(terms.algorithm, &[0, 0]) == Some(Algorithm::InNetwork);
        let members = self.members.iter().copied().collect::<Option<Vec<_>>>()?;
        (!needs_switch || self.switch.is_some()).then(|| Complete {
            name: self.name.clone(),
            terms,
            switch: self.switch,
            members,
        })
    }
}

/// What the root offered last
#[derive(Debug)]
struct Complete {
    name: Vec<u8>,
    terms: Terms,
    switch: Option<SwitchAddress>,
    /// With their racks
    members: Vec<(IpAddr, u32)>,
}

/// A delivery at a receiver.
#[derive(Debug)]
pub struct Take {
    config: TakeConfig,
    node: Node,
    stage: Stage,
    partial: Option<Partial>,
    offer: Option<Complete>,
    accepted: bool,
    /// Segments that have come, in order, and what the next message of this round's group is
    received: u64,
    message: u64,
    written: u64,
    queue: VecDeque<Vec<u8>>,
    digest: Option<[u8; DIGEST]>,
    /// Who was not reached in the group before
    lacks: Vec<IpAddr>,
    /// What shows that something goes on, and when it last did
    signs: u64,
    moved: Nanos,
    shared: Arc<Mutex<Shared>>,
    outcome: Option<Result<(), TakeError>>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Take {
    /// A receiver on a node of this configuration.
    pub fn new(node: Config, config: TakeConfig) -> Self {
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
            lacks: Vec::new(),
            signs: 0,
            moved: Nanos::ZERO,
            shared: Arc::default(),
            outcome: None,
        }
    }

    /// Begins.
    ///
    /// # Errors
    /// If the NIC has no room.
    pub fn start(&mut self, nic: &mut Rnic, now: Nanos) -> Result<(), TakeError> {
        self.node.start(nic)?;
        self.node.call(nic, self.config.from, now)?;
        self.stage = Stage::Waiting(now + self.config.patience);
        Ok(())
    }

    /// What is offered, if it has not been decided about: [`accept`](Self::accept) it or [`refuse`](Self::refuse).
    pub fn offered(&self) -> Option<Offer> {
        let Complete { name, terms, .. } = self.offer.as_ref().filter(|_| self.stage == Stage::Offered)?;
        let name = String::from_utf8_lossy(name).into_owned();
        Some(Offer { name, len: terms.len, segment_bytes: terms.segment })
    }

    /// Takes it.
    pub fn accept(&mut self, nic: &mut Rnic, now: Nanos) {
        self.accepted = true;
        // If it is being offered anew just now, the answer to that follows when all of its notes have come.
        if self.stage == Stage::Offered {
            self.tell_have(nic, now);
        }
    }

    /// Does not take it, or not any more. The root hears of it.
    pub fn refuse(&mut self, nic: &mut Rnic, refusal: Refusal, now: Nanos) {
        if self.stage != Stage::Over {
            self.tell(nic, Note::Refuse(refusal));
            if let Some(terms) = self.terms() {
                // There may be no group at the time.
                _ = self.node.abandon_group(nic, terms.round, now);
            }
            self.end(Err(TakeError::Refused(refusal)));
        }
    }

    /// The next segment: each once, in order. [`written`](Self::written) says that it is where it belongs.
    pub fn poll_segment(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }

    /// Segments that have come and are not written
    pub fn unwritten(&self) -> u64 {
        self.received - self.written
    }

    /// The next segment has been written.
    pub fn written(&mut self, nic: &mut Rnic) {
        self.written += 1;
        self.count_unwritten();
        self.tell(nic, Note::Written { segments: self.written });
    }

    /// The digest to compare with, when everything has come and was written: [`compared`](Self::compared) says how it went.
    pub fn wants_comparison(&self) -> Option<[u8; DIGEST]> {
        self.digest.filter(|_| self.stage == Stage::Comparing && self.written == self.received)
    }

    /// What was written is, or is not, what was sent.
    pub fn compared(&mut self, nic: &mut Rnic, equal: bool) {
        if self.stage == Stage::Comparing {
            self.tell(nic, if equal { Note::Stored } else { Note::Damaged });
            self.end(if equal { Ok(()) } else { Err(TakeError::Damaged) });
        }
    }

    /// What became of it, when it is over; then it runs on until [`is_heard`](Self::is_heard).
    pub fn outcome(&self) -> Option<&Result<(), TakeError>> {
        self.outcome.as_ref()
    }

    /// Whether everything that was said to others has been heard.
    pub fn is_heard(&self) -> bool {
        self.node.is_heard()
    }

    /// When [`run`](Self::run) is to be called, if nothing comes in before
    pub fn next_timer(&self) -> Option<Nanos> {
        let until = match self.stage {
            Stage::Waiting(at) | Stage::Ready(at) => Some(at),
            Stage::Receiving if self.waits_for_root() => Some(self.given_up_at()),
            _ => None,
        };
        [self.node.next_timer(), until].into_iter().flatten().min()
    }

    /// Something came in, something was decided, or the time has come.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.node.run(nic, now);
        self.on_arrived();
        while let Some(event) = self.node.poll_event() {
            self.on_event(nic, event, now);
        }
        let signs = self.node.counters().blocks_received + self.written;
        if signs != self.signs {
            (self.signs, self.moved) = (signs, now);
        }
        if self.stage == Stage::Receiving && self.waits_for_root() && self.given_up_at() <= now {
            _ = self.terms().map(|terms| self.node.abandon_group(nic, terms.round, now));
            self.end(Err(TakeError::Stuck(self.config.from)));
        }
        if let Stage::Waiting(at) | Stage::Ready(at) = self.stage
            && at <= now
        {
            let from = self.config.from;
            let error = if self.offer.is_some() { TakeError::Gone(from) } else { TakeError::Silent(from) };
            self.end(Err(error));
        }
    }

    fn is_all_here(&self) -> bool {
        self.terms().is_some_and(|terms| Self::segments(&terms) == self.received) && self.digest.is_some()
    }

    /// Whether everything that has come is written, so that it is the root's turn.
    fn waits_for_root(&self) -> bool {
        self.written == self.received
    }

    fn given_up_at(&self) -> Nanos {
        Nanos(self.moved.0.saturating_add(self.config.patience.0.saturating_mul(2)))
    }

    fn end(&mut self, outcome: Result<(), TakeError>) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.outcome = Some(outcome);
        }
    }

    fn violation(&mut self) {
        self.end(Err(TakeError::Violation(self.config.from)));
    }

    fn tell(&mut self, nic: &mut Rnic, note: Note) {
        self.node.tell(nic, self.config.from, note.to_bytes());
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

    /// What has come in full: segments, and behind the last one the digest.
    fn on_arrived(&mut self) {
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
            // Any other came in an earlier round; others had not got it.
        }
    }

    fn on_event(&mut self, nic: &mut Rnic, event: Event, now: Nanos) {
        match event {
            Event::Note(_, bytes) => match Note::from_bytes(&bytes) {
                Some(note) => self.on_note(nic, note, now),
                None => self.violation(),
            },
            // With everything here, it is only to be compared.
            Event::Lost(_) if self.offer.is_some() && self.stage != Stage::Comparing => {
                self.end(Err(TakeError::Gone(self.config.from)));
            }
            // What it had begun to offer is offered from the beginning, if it comes back.
            Event::Lost(_) => self.partial = None,
            Event::Reached(_) | Event::Open(_) => {}
            Event::Closed(group) => {
                let round = self.terms().map(|terms| terms.round);
                if round == Some(group) && self.stage == Stage::Receiving && self.is_all_here() {
                    self.stage = Stage::Comparing;
                } else {
                    self.violation();
                }
            }
            Event::Failed { group, unfinished, lacking, .. } => {
                self.lacks = lacking;
                for memory in unfinished {
                    lock(&self.shared).buffers.take(nic, memory);
                }
                // It is told here, and forgotten.
                _ = self.node.destroy_group(group);
                if self.stage == Stage::Receiving {
                    // With everything here, it is only to be compared, whatever becomes of others.
                    let waiting = Stage::Waiting(now + self.config.patience);
                    self.stage = if self.is_all_here() { Stage::Comparing } else { waiting };
                }
            }
        }
    }

    fn on_note(&mut self, nic: &mut Rnic, note: Note, now: Nanos) {
        if self.stage == Stage::Comparing {
            // It has everything, and says soon how that is; another round is others'.
            return;
        }
        match note {
            Note::Name { at, len, part } => self.on_name(usize::from(at), &part[..usize::from(len)]),
            Note::Offer(terms) => self.on_terms(terms),
            Note::Switch { round, switch } => {
                match self.partial.as_mut().filter(|partial| partial.is_of(round)) {
                    Some(partial) => partial.switch = Some(switch),
                    None => self.violation(),
                }
                self.on_offer(nic, now);
            }
            Note::Member { round, place, rack, ip } => {
                let partial = self.partial.as_mut().filter(|partial| partial.is_of(round));
                match partial.and_then(|partial| partial.members.get_mut(place as usize)) {
                    Some(member) => *member = Some((ip, rack)),
                    None => self.violation(),
                }
                self.on_offer(nic, now);
            }
            Note::Stop => self.end(Err(TakeError::Left(self.config.from))),
            Note::Start { round, first } => self.on_start(nic, round, first, now),
            _ => self.violation(),
        }
    }

    /// Part of a name: the first one begins another offer.
    fn on_name(&mut self, at: usize, part: &[u8]) {
        #[cfg(debug_assertions)]
        if self.accepted && self.node.has_bug(crate::Bug::HalfName) {
            return;
        }
        if at == 0 {
            self.partial = Some(Partial::default());
        }
        match self.partial.as_mut().filter(|partial| partial.terms.is_none() && partial.name.len() == at) {
            Some(partial) => partial.name.extend_from_slice(part),
            None => self.violation(),
        }
    }

    fn on_terms(&mut self, terms: Terms) {
        let right = terms.len > 0
            && terms.window > 0
            && (1..=terms.segment).contains(&terms.block)
            && (2..=crate::Schedule::MAX_NODES).contains(&terms.members)
            && algorithm(terms.algorithm, &[0, 0]).is_some();
        let named = |partial: &&mut Partial| {
            partial.terms.is_none() && partial.name.len() == usize::from(terms.name_len)
        };
        match self.partial.as_mut().filter(named).filter(|_| right) {
            Some(partial) => {
                partial.terms = Some(terms);
                partial.members = vec![None; terms.members as usize];
            }
            None => self.violation(),
        }
    }

    /// Takes an offer over when all of its notes have come. One of another round is of the same object.
    fn on_offer(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(offer) = self.partial.as_ref().and_then(Partial::complete) else { return };
        self.partial = None;
        if self.stage == Stage::Over {
            return;
        }
        let terms = offer.terms;
        if let Some(before) = &self.offer {
            let object = |offer: &Complete| (offer.terms.len, offer.terms.segment, offer.name.clone());
            if object(before) != object(&offer) || before.terms.round >= terms.round {
                return self.violation();
            }
            // The group of the round before is over, whether or not this node has heard of it.
            _ = self.node.abandon_group(nic, before.terms.round, now);
        }
        let is_name = core::str::from_utf8(&offer.name).is_ok();
        self.offer = Some(offer);
        let held = u64::from(terms.segment).saturating_mul(TakeConfig::segments_held(terms.window));
        if !is_name {
            self.refuse(nic, Refusal::Name, now);
        } else if held > self.config.max_memory {
            self.refuse(nic, Refusal::Memory, now);
        } else if self.accepted {
            self.tell_have(nic, now);
        } else {
            self.stage = Stage::Offered;
        }
    }

    fn tell_have(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(terms) = self.terms() else { return };
        self.stage = Stage::Ready(now + self.config.patience);
        for ip in core::mem::take(&mut self.lacks) {
            self.tell(nic, Note::Lacks { ip });
        }
        self.tell(nic, Note::Have { round: terms.round, segments: self.received });
    }

    fn on_start(&mut self, nic: &mut Rnic, round: u32, first: u64, now: Nanos) {
        let offer = self.offer.as_ref().filter(|offer| offer.terms.round == round && first <= self.received);
        let (Some(offer), Stage::Ready(_), Some(pd)) = (offer, self.stage, self.node.pd()) else {
            return self.violation();
        };
        let (terms, through) = (offer.terms, offer.switch);
        let (members, racks): (Vec<_>, Vec<_>) = offer.members.iter().copied().unzip();
        let Some(algorithm) = algorithm(terms.algorithm, &racks) else { return self.violation() };
        (self.stage, self.message, self.digest, self.moved) = (Stage::Receiving, first, None, now);
        let group =
            GroupConfig { algorithm, block_bytes: terms.block, through, ..GroupConfig::new(round, members) };
        let most = terms.segment.max(DIGEST as u32);
        let room = TakeConfig::segments_held(terms.window);
        let shared = Arc::clone(&self.shared);
        let incoming = move |nic: &mut Rnic, len: u32| {
            let mut shared = lock(&shared);
            // A root that waits for what is written, as it has to, does not come this far.
            let bytes = (len <= most && shared.held() < room).then(|| vec![0; len as usize])?;
            shared.buffers.give(nic, pd, bytes, Access::LOCAL_WRITE).ok()
        };
        let shared = Arc::clone(&self.shared);
        let complete = move |nic: &mut Rnic, memory: Memory, _: u32| {
            let mut shared = lock(&shared);
            let bytes = shared.buffers.take(nic, memory);
            shared.arrived.push_back(bytes);
        };
        match self.node.create_group(nic, group, Box::new(incoming), Box::new(complete), now) {
            Err(error) if is_fatal(&error) => {
                self.tell(nic, Note::Refuse(Refusal::Group));
                self.end(Err(error.into()));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;

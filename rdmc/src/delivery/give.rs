//! The root's side of a delivery.

mod config;

pub use config::{GiveConfig, GiveError, Given};

use super::note::{NAME, Note, PART, Terms, number};
use super::{Buffers, DIGEST, Lost, Refusal, is_fatal};
use crate::config::{CallError, Config, Failure, GroupConfig, Memory};
use crate::node::{Event, Node};
use crate::schedule::{Algorithm, Racks, Schedule};
use core::net::IpAddr;
use p4ce::consensus::SwitchAddress;
use rnic::{Access, Rnic};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use switch::Nanos;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Receivers are called.
    Calling(Nanos),
    /// They are asked what they have.
    Offering(Nanos),
    Sending,
    /// They compare what they have.
    Storing,
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
struct Receiver {
    reached: bool,
    have: Option<u64>,
    written: u64,
    stored: bool,
}

/// A delivery at its root.
#[derive(Debug)]
pub struct Give {
    config: GiveConfig,
    node: Node,
    own: IpAddr,
    stage: Stage,
    round: u32,
    receivers: BTreeMap<IpAddr, Receiver>,
    /// For the hybrid: everybody's rack
    racks: BTreeMap<IpAddr, u32>,
    lost: Vec<(IpAddr, Lost)>,
    /// Receivers that cannot reach each other, as they have said: (one, another).
    /// `None` unless the round before ended because receivers did not come together: after any other end they had no time to
    apart: Option<BTreeSet<(IpAddr, IpAddr)>>,
    /// How many receivers were lost when the switch failed the last time
    switch_failed: Option<usize>,
    open: bool,
    /// The next segment to be sent
    next: u64,
    finished: bool,
    /// The digest was given, in this round or in one before
    told_digest: bool,
    /// What shows that something goes on, and when it last did
    signs: u64,
    moved: Nanos,
    buffers: Buffers,
    /// Memory of messages that are complete
    complete: Arc<Mutex<Vec<Memory>>>,
    outcome: Option<Result<Given, GiveError>>,
}

impl Give {
    /// A delivery by a node of this configuration.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn new(node: Config, config: GiveConfig) -> Result<Self, GiveError> {
        let own = node.address;
        if config.len == 0 {
            return Err(GiveError::Empty);
        }
        if config.receivers.is_empty() {
            return Err(GiveError::NoReceivers);
        }
        let mut receivers = BTreeMap::new();
        for ip in &config.receivers {
            if *ip == own || receivers.insert(*ip, Receiver::default()).is_some() {
                return Err(GiveError::Twice(*ip));
            }
        }
        if !(1..=NAME).contains(&config.name.len()) {
            return Err(GiveError::Name(config.name.len()));
        }
        let (block, len) = (config.block_bytes, config.len);
        if block == 0 || u64::from(block) > len || block > GroupConfig::MAX_BLOCK {
            return Err(GiveError::Block { block, len });
        }
        let blocks = config.segment_bytes / block;
        if !(1..=GroupConfig::MAX_BLOCKS).contains(&blocks) || config.window == 0 {
            return Err(GiveError::Segment);
        }
        if config.algorithm == Algorithm::InNetwork && config.through.is_none() {
            return Err(GiveError::NoSwitch);
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
            apart: None,
            switch_failed: None,
            open: false,
            next: 0,
            finished: false,
            told_digest: false,
            signs: 0,
            moved: Nanos::ZERO,
            buffers: Buffers::default(),
            complete: Arc::default(),
            outcome: None,
            config,
        })
    }

    /// Begins.
    ///
    /// # Errors
    /// If the NIC has no room.
    pub fn start(&mut self, nic: &mut Rnic, now: Nanos) -> Result<(), GiveError> {
        self.node.start(nic)?;
        for ip in self.config.receivers.clone() {
            self.node.call(nic, ip, now)?;
        }
        self.stage = Stage::Calling(now + self.config.patience);
        Ok(())
    }

    /// Segments of the object
    pub fn segments(&self) -> u64 {
        self.config.len.div_ceil(self.config.segment_bytes.into())
    }

    /// Bytes of a segment
    pub fn segment_len(&self, segment: u64) -> u32 {
        let begins = segment * u64::from(self.config.segment_bytes);
        self.config.len.saturating_sub(begins).min(self.config.segment_bytes.into()) as u32
    }

    /// Segments that every receiver has written
    pub fn written(&self) -> u64 {
        self.rest().map(|(_, receiver)| receiver.written).min().unwrap_or(self.segments())
    }

    /// Who has not got it yet
    fn rest(&self) -> impl Iterator<Item = (IpAddr, &Receiver)> {
        self.receivers.iter().filter(|(_, receiver)| !receiver.stored).map(|(ip, receiver)| (*ip, receiver))
    }

    /// The members of this round's group
    fn members(&self) -> Vec<IpAddr> {
        core::iter::once(self.own).chain(self.rest().map(|(ip, _)| ip)).collect()
    }

    /// The segment that is wanted next: [`give`](Self::give) it. After a failure it may be one that was given before.
    pub fn wants(&self) -> Option<u64> {
        let room = self.written() + u64::from(self.config.window);
        #[cfg(debug_assertions)]
        let room = if self.node.has_bug(crate::Bug::Heedless) { u64::MAX } else { room };
        (self.stage == Stage::Sending && self.open && self.next < self.segments().min(room))
            .then_some(self.next)
    }

    /// Whether all segments were given, and the object's digest is wanted: [`finish`](Self::finish).
    pub fn wants_digest(&self) -> bool {
        self.stage == Stage::Sending && self.open && self.next == self.segments() && !self.finished
    }

    /// Gives the segment that is wanted.
    ///
    /// # Panics
    /// If it is not [as long as it has to be](Self::segment_len).
    pub fn give(&mut self, nic: &mut Rnic, bytes: Vec<u8>) {
        let Some(segment) = self.wants() else { return };
        assert_eq!(bytes.len(), self.segment_len(segment) as usize, "bytes of segment {segment}");
        self.next += 1;
        self.send(nic, bytes);
    }

    /// Gives the digest of the whole object.
    pub fn finish(&mut self, nic: &mut Rnic, digest: [u8; DIGEST]) {
        if self.wants_digest() {
            (self.finished, self.told_digest) = (true, true);
            self.send(nic, digest.to_vec());
            // It cannot be refused: the group is there, or has failed, which is told.
            _ = self.node.destroy_group(self.round);
        }
    }

    fn send(&mut self, nic: &mut Rnic, bytes: Vec<u8>) {
        let Some(pd) = self.node.pd() else { return };
        let len = bytes.len() as u32;
        let memory = match self.buffers.give(nic, pd, bytes, Access::LOCAL_READ) {
            Ok(memory) => memory,
            Err(error) => return self.end(Err(CallError::Memory(error).into())),
        };
        if let Err(error) = self.node.send(nic, self.round, memory, len) {
            self.buffers.take(nic, memory);
            if is_fatal(&error) {
                self.end(Err(error.into()));
            }
        }
    }

    /// Gives it up. Receivers hear of it.
    pub fn stop(&mut self, nic: &mut Rnic, now: Nanos) {
        if self.stage != Stage::Over {
            for ip in self.receivers.keys() {
                self.node.tell(nic, *ip, Note::Stop.to_bytes());
            }
            // There may be no group at the time.
            _ = self.node.abandon_group(nic, self.round, now);
            self.end(Err(GiveError::Stopped));
        }
    }

    /// What became of it, when it is over; then it runs on until [`is_heard`](Self::is_heard).
    pub fn outcome(&self) -> Option<&Result<Given, GiveError>> {
        self.outcome.as_ref()
    }

    /// Whether everything that was said to others has been heard.
    pub fn is_heard(&self) -> bool {
        self.node.is_heard()
    }

    /// When [`run`](Self::run) is to be called, if nothing comes in before
    pub fn next_timer(&self) -> Option<Nanos> {
        let until = match self.stage {
            Stage::Calling(at) | Stage::Offering(at) => Some(at),
            Stage::Sending | Stage::Storing => self.is_held_up().then(|| self.moved + self.config.patience),
            Stage::Over => None,
        };
        [self.node.next_timer(), until].into_iter().flatten().min()
    }

    /// Something came in, something was given, or the time has come.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.node.run(nic, now);
        let complete = core::mem::take(&mut *self.complete.lock().unwrap_or_else(PoisonError::into_inner));
        for memory in complete {
            self.buffers.take(nic, memory);
        }
        self.hear(nic, now);
        self.look(now);
        self.on_time(nic, now);
        // What came of that
        self.hear(nic, now);
    }

    fn hear(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = self.node.poll_event() {
            self.on_event(nic, event, now);
        }
    }

    /// Whether anything goes on: segments that receivers write, and blocks that they get.
    fn look(&mut self, now: Nanos) {
        let written: u64 = self.receivers.values().map(|receiver| receiver.written).sum();
        let signs = written + self.node.counters().blocks_sent;
        if signs != self.signs {
            (self.signs, self.moved) = (signs, now);
        }
    }

    /// Whether a receiver is waited for.
    fn holds_up(&self, receiver: &Receiver) -> bool {
        match self.stage {
            Stage::Sending if self.next < self.segments() => {
                !receiver.stored && receiver.written + u64::from(self.config.window) <= self.next
            }
            Stage::Sending => receiver.written < self.segments() && !receiver.stored,
            Stage::Storing => !receiver.stored,
            _ => false,
        }
    }

    /// Whether there is nothing to do but to wait for receivers.
    fn is_held_up(&self) -> bool {
        let may_go_on = self.wants().is_some() || self.wants_digest();
        (self.open || self.stage == Stage::Storing)
            && !may_go_on
            && self.receivers.values().any(|receiver| self.holds_up(receiver))
    }

    fn end(&mut self, outcome: Result<Given, GiveError>) {
        if self.stage != Stage::Over {
            self.stage = Stage::Over;
            self.outcome = Some(outcome);
        }
    }

    fn on_event(&mut self, nic: &mut Rnic, event: Event, now: Nanos) {
        match event {
            Event::Reached(ip) => {
                if let Some(receiver) = self.receivers.get_mut(&ip) {
                    receiver.reached = true;
                }
                self.offer_if_all_are_reached(nic, now);
            }
            // It is called again, until the time for that is over: it may be started anew.
            Event::Lost(ip) if matches!(self.stage, Stage::Calling(_)) => {
                if let Some(receiver) = self.receivers.get_mut(&ip) {
                    receiver.reached = false;
                }
            }
            Event::Lost(ip) => self.lose(nic, ip, Lost::Gone, now),
            Event::Note(ip, bytes) => match Note::from_bytes(&bytes) {
                Some(note) => self.on_note(nic, ip, note, now),
                None => self.lose(nic, ip, Lost::Failed(Failure::Violation(ip)), now),
            },
            Event::Open(group) if group == self.round => {
                self.open = true;
                self.apart = None;
            }
            Event::Closed(group) if group == self.round && self.stage == Stage::Sending => {
                (self.stage, self.moved) = (Stage::Storing, now);
                self.conclude();
            }
            Event::Open(_) | Event::Closed(_) => {}
            Event::Failed { group, failure, unfinished, lacking } => {
                for memory in unfinished {
                    self.buffers.take(nic, memory);
                }
                // It is told here, and forgotten.
                _ = self.node.destroy_group(group);
                if group == self.round && self.stage == Stage::Sending {
                    self.on_failed(nic, failure, &lacking, now);
                }
            }
        }
    }

    fn on_failed(&mut self, nic: &mut Rnic, failure: Failure, lacking: &[IpAddr], now: Nanos) {
        let ip = failure.member();
        let waited = matches!(failure, Failure::Silent(_) | Failure::Unjoined(_));
        self.apart = waited.then(|| self.apart.take().unwrap_or_default());
        // A switch ends the group when a receiver does not acknowledge. So it is asked once more, when those who are gone are
        // known to be.
        if matches!(failure, Failure::Switch(_))
            && self.switch_failed.replace(self.lost.len()) == Some(self.lost.len())
        {
            self.config.algorithm = Algorithm::Pipeline;
        }
        self.stage = Stage::Offering(now);
        let why = match failure {
            // Others that have not come together say at the next offer whom they lack; the one that is named here may have
            // been waited for in vain by somebody that nobody reaches.
            Failure::Silent(_) | Failure::Unjoined(_) => {
                let silent = lacking.iter().map(|ip| (*ip, Lost::Silent)).collect::<Vec<_>>();
                return self.lose_all(nic, &silent, now);
            }
            Failure::Gone(_) => Lost::Gone,
            other => Lost::Failed(other),
        };
        let lost = self.receivers.contains_key(&ip).then_some((ip, why));
        self.lose_all(nic, lost.as_slice(), now);
    }

    /// Goes on without some, or ends if nobody is left.
    fn lose_all(&mut self, nic: &mut Rnic, lost: &[(IpAddr, Lost)], now: Nanos) {
        // All at once, so that there is one round more and not many.
        for (ip, why) in lost {
            if self.receivers.get(ip).is_some_and(|receiver| !receiver.stored) {
                self.receivers.remove(ip);
                self.lost.push((*ip, *why));
                self.node.hang_up(*ip);
            }
        }
        self.go_on(nic, now);
    }

    /// Begins another round, if there is anybody left for it.
    fn go_on(&mut self, nic: &mut Rnic, now: Nanos) {
        if self.receivers.is_empty() {
            self.end(Err(GiveError::Alone(self.lost.clone())));
        } else if self.rest().next().is_none() {
            self.conclude();
        } else {
            self.offer(nic, now);
        }
    }

    /// Of receivers that cannot reach each other, as few as have to go for the others to: each time the one that most others
    /// are apart from
    fn apart(&self) -> Vec<(IpAddr, Lost)> {
        let is_left = |ip: &IpAddr| self.receivers.contains_key(ip);
        let mut apart = self.apart.clone().unwrap_or_default();
        apart.retain(|(one, other)| is_left(one) && is_left(other));
        let mut lost = Vec::new();
        while let Some((one, other)) = apart.first().copied() {
            let of = |ip: IpAddr| move |pair: &&(IpAddr, IpAddr)| pair.0 == ip || pair.1 == ip;
            let count = |ip: &IpAddr| apart.iter().filter(of(*ip)).count();
            let all: BTreeSet<IpAddr> = apart.iter().flat_map(|(one, other)| [*one, *other]).collect();
            let worst = all.into_iter().max_by_key(count).unwrap_or(other);
            let from = apart.iter().find(of(worst)).map_or(one, |(a, b)| if *a == worst { *b } else { *a });
            lost.push((worst, Lost::Apart(from)));
            apart.retain(|pair| pair.0 != worst && pair.1 != worst);
        }
        lost
    }

    /// A receiver is no longer one.
    fn lose(&mut self, nic: &mut Rnic, ip: IpAddr, why: Lost, now: Nanos) {
        let is_out = |receiver: &Receiver| receiver.stored;
        if self.stage == Stage::Over || self.receivers.get(&ip).is_none_or(is_out) {
            return;
        }
        self.receivers.remove(&ip);
        self.lost.push((ip, why));
        self.node.hang_up(ip);
        if self.receivers.is_empty() {
            return self.end(Err(GiveError::Alone(self.lost.clone())));
        }
        match self.stage {
            Stage::Calling(_) => self.offer_if_all_are_reached(nic, now),
            Stage::Offering(_) => self.go_on(nic, now),
            // That its group fails is told by itself; if it is no member, it does not matter.
            Stage::Sending => _ = self.node.abandon_group(nic, self.round, now),
            Stage::Storing => self.conclude(),
            Stage::Over => {}
        }
    }

    fn offer_if_all_are_reached(&mut self, nic: &mut Rnic, now: Nanos) {
        let all = self.receivers.values().all(|receiver| receiver.reached);
        if all && matches!(self.stage, Stage::Calling(_)) {
            self.offer(nic, now);
        }
    }

    /// The switch that copies this round's blocks
    fn through(&self) -> Option<SwitchAddress> {
        self.config.through.filter(|_| self.config.algorithm == Algorithm::InNetwork)
    }

    fn rack(&self, ip: IpAddr) -> u32 {
        self.racks.get(&ip).copied().unwrap_or_default()
    }

    /// Asks everybody who is left what they have, and tells them who they are.
    fn offer(&mut self, nic: &mut Rnic, now: Nanos) {
        let most = 2 * self.config.receivers.len() as u32 + 4;
        if self.round >= most {
            return self.end(Err(GiveError::Rounds(self.round)));
        }
        self.round += 1;
        self.stage = Stage::Offering(now + self.config.patience);
        (self.open, self.finished) = (false, false);
        let name = self.config.name.as_bytes();
        let members = self.members();
        // Those who are left
        let racks: Vec<u32> = members.iter().map(|ip| self.rack(*ip)).collect();
        if let Algorithm::Hybrid(of) = &mut self.config.algorithm
            && let Ok(left) = Racks::new(&racks)
        {
            *of = left;
        }
        let terms = Terms {
            round: self.round,
            members: members.len() as u32,
            len: self.config.len,
            segment: self.config.segment_bytes,
            block: self.config.block_bytes,
            window: self.config.window,
            algorithm: number(&self.config.algorithm),
            name_len: name.len() as u8,
        };
        // A name has 255 bytes at most, so its parts begin below 256.
        let parts = name.chunks(PART).enumerate().map(|(n, bytes)| {
            let mut part = [0; PART];
            part[..bytes.len()].copy_from_slice(bytes);
            Note::Name { at: (n * PART) as u8, len: bytes.len() as u8, part }
        });
        let places = (0..).zip(members.iter().zip(racks));
        let places =
            places.map(|(place, (ip, rack))| Note::Member { round: terms.round, place, rack, ip: *ip });
        let switch = self.through().map(|switch| Note::Switch { round: terms.round, switch });
        #[cfg(debug_assertions)]
        let switch = switch.filter(|_| !self.node.has_bug(crate::Bug::SwitchUntold));
        let notes: Vec<_> = parts.chain([Note::Offer(terms)]).chain(switch).chain(places).collect();
        for (ip, receiver) in self.receivers.iter_mut().filter(|(_, receiver)| !receiver.stored) {
            receiver.have = None;
            for note in &notes {
                self.node.tell(nic, *ip, note.to_bytes());
            }
        }
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
            Note::Lacks { ip: other } => {
                if let Some(apart) = &mut self.apart {
                    apart.insert((ip.min(other), ip.max(other)));
                }
            }
            // Of an earlier round
            Note::Have { round, .. } if round < self.round => {}
            // It may be started anew.
            Note::Refuse(Refusal::Stopped) if matches!(self.stage, Stage::Calling(_)) => {
                receiver.reached = false;
            }
            Note::Refuse(refusal) => self.lose(nic, ip, Lost::Refused(refusal), now),
            Note::Written { segments: written } if written <= segments => {
                receiver.written = receiver.written.max(written);
                // Who has everything answers an offer when it has compared it.
                if let Stage::Offering(at) = &mut self.stage {
                    *at = now + self.config.patience;
                }
            }
            Note::Stored if self.told_digest => {
                receiver.stored = true;
                match self.stage {
                    // It stands among the members that were told.
                    Stage::Offering(_) => self.go_on(nic, now),
                    _ => self.conclude(),
                }
            }
            Note::Damaged => self.lose(nic, ip, Lost::Damaged, now),
            _ => self.lose(nic, ip, Lost::Failed(Failure::Violation(ip)), now),
        }
    }

    /// Goes on where the one goes on that has least, if all have said what they have.
    fn begin(&mut self, nic: &mut Rnic, now: Nanos) {
        let have = self.rest().map(|(_, receiver)| receiver.have);
        let Some(first) = have.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().min()) else {
            return;
        };
        let apart = self.apart();
        if !apart.is_empty() {
            return self.lose_all(nic, &apart, now);
        }
        (self.next, self.stage, self.moved) = (first, Stage::Sending, now);
        for ip in &self.members()[1..] {
            self.node.tell(nic, *ip, Note::Start { round: self.round, first }.to_bytes());
        }
        let group = GroupConfig {
            algorithm: self.config.algorithm.clone(),
            block_bytes: self.config.block_bytes,
            through: self.through(),
            ..GroupConfig::new(self.round, self.members())
        };
        let complete = Arc::clone(&self.complete);
        let done = move |_: &mut Rnic, memory: Memory, _: u32| {
            complete.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        };
        let made = self.node.create_group(nic, group, Box::new(|_, _| None), Box::new(done), now);
        if let Err(error) = made {
            self.end(Err(error.into()));
        }
    }

    /// Ends it when everybody who is left has said that it is stored.
    fn conclude(&mut self) {
        let all = self.receivers.values().all(|receiver| receiver.stored);
        if all && matches!(self.stage, Stage::Offering(_) | Stage::Storing) {
            let stored = self.receivers.keys().copied().collect();
            let algorithm = self.config.algorithm.clone();
            self.end(Ok(Given { stored, lost: self.lost.clone(), rounds: self.round, algorithm }));
        }
    }

    fn on_time(&mut self, nic: &mut Rnic, now: Nanos) {
        let stalls = self.is_held_up() && self.moved + self.config.patience <= now;
        let late = |is: fn(&Receiver) -> bool| -> Vec<IpAddr> {
            self.receivers.iter().filter(|(_, receiver)| !is(receiver)).map(|(ip, _)| *ip).collect()
        };
        match self.stage {
            Stage::Calling(at) if at <= now => {
                let silent = late(|receiver| receiver.reached);
                self.end(Err(GiveError::Silent(silent)));
            }
            Stage::Offering(at) if at <= now => {
                let silent = late(|receiver| receiver.have.is_some() || receiver.stored);
                let silent: Vec<_> = silent.into_iter().map(|ip| (ip, Lost::Silent)).collect();
                self.lose_all(nic, &silent, now);
            }
            // Whom nothing comes from any more, though it is there
            Stage::Sending | Stage::Storing if stalls => {
                let held = self.receivers.iter().filter(|(_, receiver)| self.holds_up(receiver));
                for ip in held.map(|(ip, _)| *ip).collect::<Vec<_>>() {
                    self.lose(nic, ip, Lost::Silent, now);
                }
            }
            _ => {}
        }
    }
}

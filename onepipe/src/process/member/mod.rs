//! Membership: the process's side of the controller's protocol (1Pipe, section 5.2), without I/O.
//!
//! A [`Member`] registers its process, joins with the incarnation and the queue pair that the controller gives it,
//! and passes the controller's decisions to the [`Process`] and the process's answers to the controller. After
//! its process has failed, it recovers what the process holds, and registers again.
//!
//! # Usage
//!
//! Its owner, which also owns the process,
//!
//! * calls [`on_connected`](Member::on_connected) whenever a connection to a controller has come up,
//! * passes every [`Envelope`] of any controller to [`on_envelope`](Member::on_envelope),
//! * calls [`on_timer`](Member::on_timer) at [`next_timer`](Member::next_timer),
//! * and sends what [`poll_envelope`](Member::poll_envelope) returns to all connected controllers: those that do
//!   not lead ignore it. To be polled after each call of a method of the process or of the member.
//!
//! # What is obeyed
//!
//! A message with a lower term than one seen is refused. [`Message::Welcome`] is taken by the number that this
//! process has drawn at its start; every other message only if it is for the present incarnation. A state that
//! is older than the present one is refused. Everything unanswered is repeated, after times that double.

mod answers;
mod counters;
mod leaving;
mod link;
mod recovery;
mod repeat;

#[cfg(test)]
mod tests;

pub use counters::{Counters, Refused};

use super::reliable::{Failed, MemberError};
use super::{Bug, Process, ProcessId, reliable};
use crate::control::{self, Address, Boot, Envelope, Incarnation, Message, Reason};
use crate::header::Timestamp;
use answers::{Answers, Recalls};
use core::net::{IpAddr, Ipv6Addr};
use leaving::Departures;
use link::Link;
use recovery::Recovery;
use repeat::Repeat;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::Nanos;

/// Frames for a member
type Batch = ((ProcessId, Incarnation), Vec<Vec<u8>>);

/// Time in which a bounded number of bytes leave for the controller to carry
const RELAY_EVERY: Nanos = Nanos::from_millis(1);
/// That number, which the last frame may exceed
const RELAY_BYTES: usize = 32 << 10;

/// Settings of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number drawn at the program's start, by which the controller tells this process from an earlier one
    pub boot: Boot,
    /// Hash of the topology
    pub topology: u64,
    /// Number of beacon intervals without a beacon after which the link is silent, at least 5
    pub fail_after: u32,
    /// Times after which what is not answered is repeated, first and at most
    pub repeat: (Nanos, Nanos),
}

impl Config {
    /// Returns settings with the defaults: silent after 10 intervals, repetitions after 10 ms to 1 s.
    pub const fn new(boot: Boot, topology: u64) -> Self {
        Self { boot, topology, fail_after: 10, repeat: (Nanos::from_millis(10), Nanos::from_millis(1000)) }
    }
}

/// Something that an operator has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Event {
    /// The controller lets this process wait
    #[error("the controller lets this process wait: {0:?}, because of {1}")]
    Waits(Reason, u32),
    /// The controller refuses this process
    #[error("the controller refuses this process: {0:?}")]
    Refused(Reason),
    /// This process cannot join, or cannot accept a member
    #[error("{0}")]
    Member(MemberError),
    /// A member has another address than the process file
    #[error(
        "process {process} registered with the address {registered}, but this process's file has {configured}; give all nodes files of the same plan"
    )]
    OtherAddress {
        /// The member
        process: ProcessId,
        /// Address with which it registered
        registered: IpAddr,
        /// Address in the table of peers
        configured: IpAddr,
    },
}

/// Stage of the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has no incarnation.
    Registering,
    /// It has an incarnation, which has not failed.
    Joined,
    /// Its incarnation has failed, and it asks for what it has missed.
    Recovering,
}

/// Process's side of the controller's protocol; see the [module](self).
#[derive(Clone, Debug)]
pub struct Member {
    config: Config,
    id: ProcessId,
    address: Address,
    /// Bytes that each member grants to each sender: all processes have the same settings
    grant: u32,
    stage: Stage,
    /// Highest term seen
    term: u64,
    /// Latest incarnation of this process; 0 before the first one
    incarnation: Incarnation,
    /// Version of the present state
    version: u64,
    registration: Repeat,
    /// Whether a controller may have a request to join that it has not answered
    awaits_answer: bool,
    is_connected: bool,
    link: Link,
    answers: Answers,
    recalls: Recalls,
    recovery: Recovery,
    departures: Departures,
    /// When this time begins again
    relay_at: Nanos,
    /// Bytes for the controller to carry that may leave until then
    relay_left: usize,
    envelopes: VecDeque<Envelope>,
    events: VecDeque<Event>,
    /// Last event, which is not reported again
    reported: Option<Event>,
    counters: Arc<Counters>,
    bug: Option<Bug>,
}

/// Returns an address in the protocol's form.
pub fn to_wire(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn from_wire(address: Address) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(address)).to_canonical()
}

impl Member {
    /// Creates the member of a process that has not joined. It registers at once.
    ///
    /// # Errors
    /// The process's configuration does not allow for the reliable service.
    pub fn new(config: Config, process: &Process) -> Result<Self, super::ConfigError> {
        let of = process.config();
        of.check_reliable()?;
        let repeat = Repeat::new(config.repeat);
        Ok(Self {
            id: of.own.id,
            address: to_wire(of.own.address),
            grant: of.reliable_grant() as u32,
            stage: Stage::Registering,
            term: 0,
            incarnation: Incarnation(0),
            version: 0,
            registration: repeat,
            awaits_answer: false,
            is_connected: false,
            link: Link::new(of.beacon_interval, config.fail_after, repeat),
            answers: Answers::new(repeat),
            recalls: Recalls::new(repeat),
            recovery: Recovery::new(repeat),
            departures: Departures::new(repeat),
            relay_at: Nanos::ZERO,
            relay_left: 0,
            envelopes: VecDeque::new(),
            events: VecDeque::new(),
            reported: None,
            counters: Arc::default(),
            bug: of.bug,
            config,
        })
    }

    /// Returns the counters, which stay up to date.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the incarnation that the process has joined with, if it has not failed.
    pub fn incarnation(&self) -> Option<u32> {
        (self.stage == Stage::Joined).then_some(self.incarnation.0)
    }

    /// Returns the latest incarnation of the process, failed ones included.
    pub fn last_incarnation(&self) -> Option<u32> {
        (self.incarnation != Incarnation(0)).then_some(self.incarnation.0)
    }

    /// Returns the highest term of a controller that was seen.
    pub const fn term(&self) -> u64 {
        self.term
    }

    /// Returns the next event for the operator. One that is equal to the one before is not repeated.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Repeats everything that is not answered, as a connection to a controller has come up.
    pub fn on_connected(&mut self, process: &mut Process, now: Nanos) {
        self.is_connected = true;
        self.registration.restart(now);
        self.recovery.repeat.restart(now);
        self.link.repeat.restart(now);
        self.recalls.repeat.restart(now);
        self.answers.restart(now);
        self.departures.restart(now);
        self.on_timer(process, now);
    }

    /// Handles all timers that are due.
    pub fn on_timer(&mut self, process: &mut Process, now: Nanos) {
        if process.sender.has_left() || self.has_left() {
            return;
        }
        match self.stage {
            Stage::Registering => self.register(process, now),
            Stage::Joined => {
                self.link.check(process.commit_beacons(), now);
                if let Some(report) = self.link.take_report(now) {
                    self.send(report);
                }
                self.relay(process, now);
                self.advance_departures(process, now);
            }
            Stage::Recovering => self.advance_recovery(process, now),
        }
        if self.stage == Stage::Joined {
            let due = self.recalls.take_due(now).into_iter().chain(self.answers.take_due(now));
            due.collect::<Vec<_>>().into_iter().for_each(|message| self.send(message));
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    pub fn next_timer(&self) -> Nanos {
        match self.stage {
            Stage::Registering => self.registration.at(),
            Stage::Recovering => self.recovery.repeat.at(),
            Stage::Joined => {
                let departures = self.departures.next_timer();
                let others = [self.recalls.next_timer(), self.answers.next_timer(), departures];
                others.into_iter().flatten().fold(self.link.next_timer().min(self.relay_at), Nanos::min)
            }
        }
    }

    /// Returns the next message for the controllers.
    pub fn poll_envelope(&mut self, process: &mut Process, now: Nanos) -> Option<Envelope> {
        while let Some(message) = process.poll_to_controller() {
            self.answer(message, now);
        }
        self.recalls.start(now);
        if let Some(batch) = self.recalls.take_due(now) {
            self.send(batch);
        }
        let envelope = self.envelopes.pop_front()?;
        self.counters.sent.add(1);
        Some(envelope)
    }

    /// Handles a message of a controller.
    ///
    /// # Errors
    /// The reason why it was refused, which is counted. The caller need not act on it.
    pub fn on_envelope(
        &mut self,
        envelope: &Envelope,
        process: &mut Process,
        now: Nanos,
    ) -> Result<(), Refused> {
        let result = self.take(envelope, process, now);
        match result {
            Ok(()) => self.counters.taken.add(1),
            Err(why) => self.counters.refuse(why),
        }
        result
    }

    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    fn take(&mut self, envelope: &Envelope, process: &mut Process, now: Nanos) -> Result<(), Refused> {
        if envelope.term < self.term && !self.has_bug(Bug::OldTerm) {
            return Err(Refused::OldTerm);
        }
        self.term = self.term.max(envelope.term);
        if self.has_left() {
            return Err(Refused::Unexpected);
        }
        match (&envelope.message, self.stage) {
            (Message::Welcome { boot, incarnation, qpn, members }, _) => {
                if *boot != self.config.boot {
                    return Err(Refused::OtherBoot);
                }
                self.welcome((*incarnation, *qpn), members, process, now)
            }
            (&Message::Wait { reason, of }, Stage::Registering) => {
                self.awaits_answer = false;
                self.report(Event::Waits(reason, of));
                Ok(())
            }
            (&Message::Refused { reason }, Stage::Registering) => {
                self.awaits_answer = false;
                self.report(Event::Refused(reason));
                Ok(())
            }
            (Message::YouFailed { .. }, Stage::Registering) => self.forget(envelope.incarnation, now),
            _ if envelope.incarnation != self.incarnation || self.stage == Stage::Registering => {
                Err(Refused::OtherIncarnation)
            }
            (message, Stage::Joined) => self.on_message(message, process, now),
            (message, _) => self.on_message_recovering(envelope.term, message, process, now),
        }
    }

    /// Handles the notice that an incarnation has failed of which this process has nothing any more: it never had
    /// it, or has recovered. The controller may forget it.
    fn forget(&mut self, incarnation: Incarnation, now: Nanos) -> Result<(), Refused> {
        if incarnation == Incarnation(0) {
            return Err(Refused::OtherIncarnation);
        }
        self.envelopes.push_back(Envelope { term: self.term, incarnation, message: Message::Recovered {} });
        self.registration.soon(now);
        Ok(())
    }

    fn on_message(&mut self, message: &Message, process: &mut Process, now: Nanos) -> Result<(), Refused> {
        match message {
            Message::MemberUp { peer } => self.member_up(peer, process),
            Message::Admitted { after } => {
                // A timestamp of 0 in place of none would be ahead of half of all clocks.
                let after = after.unwrap_or_else(|| process.timestamp(now));
                process.admit(after, now).map_err(|error| self.refuse_member(error))
            }
            Message::Desired { version, held, sources } => {
                self.desired(*version, *held, sources, process, now)
            }
            Message::ReportAck { number } => self.link.on_ack(*number),
            Message::Notice { case, failed } => self.notice(*case, failed, process, now),
            Message::RecallsStored { batch } => {
                let recalls = self.recalls.take_stored(*batch, now).ok_or(Refused::Unexpected)?;
                for recall in recalls {
                    process.recall_stored(&recall, now);
                }
                Ok(())
            }
            Message::Forwarded { from, incarnation, frames } => {
                for frame in frames {
                    // Duplicates are usual: the sender sends directly, too.
                    _ = process.on_relayed(*from, incarnation.0, frame, now);
                }
                Ok(())
            }
            Message::NotMember { id, incarnation } => {
                let is_known = process.stop_relaying(*id, incarnation.0);
                is_known.then_some(()).ok_or(Refused::Unexpected)
            }
            Message::Progress {} => {
                let (barrier, waits) = (process.delivered_up_to(), process.unanswered());
                self.send(Message::ProgressReply { barrier, waits });
                Ok(())
            }
            Message::Ping { number } => {
                self.send(Message::Pong { number: *number });
                Ok(())
            }
            Message::AskClock { number } => {
                self.send(Message::Clock { number: *number, clock: process.timestamp(now) });
                Ok(())
            }
            Message::YouFailed { time, .. } => {
                self.fail(*time, process, now);
                Ok(())
            }
            &Message::Leaving { id, incarnation } => self.on_leaving((id, incarnation), process),
            &Message::MayLeave { number } => self.on_may_leave(number, process, now),
            &Message::Left { id, incarnation } => self.on_left((id, incarnation), process),
            _ => Err(Refused::Unexpected),
        }
    }

    fn register(&mut self, process: &mut Process, now: Nanos) {
        if process.is_waiting() {
            // Its clock may be set back until it has the time of its network, and asking for it would fix it.
            self.registration.take(now);
            return;
        }
        // A request that was sent may be granted: it is repeated also by a process that leaves.
        if (!self.is_leaving() || self.awaits_answer) && self.registration.take(now) {
            self.awaits_answer |= self.is_connected;
            let Self { id, address, .. } = *self;
            let Config { boot, topology, .. } = self.config;
            let clock = Some(process.timestamp(now));
            let message = Message::Register { id, boot, address, topology, clock };
            self.envelopes.push_back(Envelope { term: self.term, incarnation: Incarnation(0), message });
        }
    }

    /// Joins with an incarnation, or takes the members of the present one again.
    fn welcome(
        &mut self,
        (incarnation, qpn): (Incarnation, rocev2::Qpn),
        members: &[control::Peer],
        process: &mut Process,
        now: Nanos,
    ) -> Result<(), Refused> {
        let own = self.id;
        let others = members.iter().filter(|peer| peer.id != own);
        if (self.stage, incarnation) == (Stage::Joined, self.incarnation) {
            for peer in others {
                // Late, and failed since; or known, as are most.
                _ = self.accept(peer, process);
            }
            return Ok(());
        }
        if self.stage != Stage::Registering || incarnation <= self.incarnation {
            return Err(Refused::OtherIncarnation);
        }
        for peer in others.clone() {
            self.check_address(peer, process)?;
        }
        let others: Vec<_> = others.map(|peer| self.describe(peer)).collect();
        process.join_as(incarnation.0, qpn, &others, now).map_err(|error| self.refuse_member(error))?;
        (self.stage, self.incarnation, self.version) = (Stage::Joined, incarnation, 0);
        self.awaits_answer = false;
        if self.is_leaving() {
            process.drain();
            self.departures.restart(now);
        }
        self.reported = None;
        self.link.join(process.commit_beacons(), now);
        self.answers.clear();
        self.recalls.clear();
        self.departures.clear();
        (self.relay_at, self.relay_left) = (now + RELAY_EVERY, RELAY_BYTES);
        Ok(())
    }

    fn describe(&self, peer: &control::Peer) -> reliable::Member {
        let &control::Peer { id, incarnation, qpn, .. } = peer;
        reliable::Member { id, incarnation: incarnation.0, qpn, grant: self.grant }
    }

    fn check_address(&mut self, peer: &control::Peer, process: &Process) -> Result<(), Refused> {
        let registered = from_wire(peer.address);
        match process.peer_address(peer.id) {
            Some(configured) if configured != registered => {
                self.report(Event::OtherAddress { process: peer.id, registered, configured });
                Err(Refused::Member)
            }
            _ => Ok(()),
        }
    }

    fn accept(&mut self, peer: &control::Peer, process: &mut Process) -> Result<(), Refused> {
        self.check_address(peer, process)?;
        process.member_up(self.describe(peer)).map(drop).map_err(|error| self.refuse_member(error))
    }

    fn member_up(&mut self, peer: &control::Peer, process: &mut Process) -> Result<(), Refused> {
        if peer.id == self.id {
            return Err(Refused::Unexpected);
        }
        self.accept(peer, process)?;
        let (id, incarnation, barrier) = (peer.id, peer.incarnation, process.delivered_up_to());
        self.send(Message::MemberAck { id, incarnation, barrier });
        Ok(())
    }

    fn desired(
        &mut self,
        version: u64,
        held: bool,
        sources: &[control::Source],
        process: &mut Process,
        now: Nanos,
    ) -> Result<(), Refused> {
        if version < self.version && !self.has_bug(Bug::OldTerm) {
            return Err(Refused::OldVersion);
        }
        self.version = version;
        let sources = sources.iter().map(|source| (from_wire(source.address), source.qpn)).collect();
        if process.set_commit_sources(sources) {
            self.link.restart(process.commit_beacons(), process.commit_ends(), now);
        }
        let barrier = process.hold(held);
        let (silent, quiet) = (self.link.is_silent(), self.link.quiet_ends());
        self.send(Message::DesiredAck { version, barrier, silent, quiet });
        Ok(())
    }

    fn notice(
        &mut self,
        case: u64,
        failed: &[control::Failed],
        process: &mut Process,
        now: Nanos,
    ) -> Result<(), Refused> {
        let failed: Vec<_> = failed.iter().map(|failed| describe_failed(case, failed)).collect();
        if failed.is_empty() {
            return Err(Refused::Unexpected);
        }
        if failed.iter().any(|failed| (failed.process, failed.incarnation) == (self.id, self.incarnation.0)) {
            // The controller sends `YouFailed` to a process that has failed.
            return Err(Refused::Unexpected);
        }
        process.notice_failed(&failed, now).map_err(|error| self.refuse_member(error))
    }

    /// Passes the frames for members that do not answer to the controller.
    fn relay(&mut self, process: &mut Process, now: Nanos) {
        if now >= self.relay_at {
            (self.relay_at, self.relay_left) = (now + RELAY_EVERY, RELAY_BYTES);
        }
        let mut batches: Vec<Batch> = Vec::new();
        while self.relay_left > 0
            && let Some(super::Relayed { to, incarnation, frame }) = process.poll_relayed()
        {
            self.relay_left = self.relay_left.saturating_sub(frame.len());
            let to = (to, Incarnation(incarnation));
            match batches.iter_mut().find(|(of, _)| *of == to) {
                Some((_, frames)) => frames.push(frame),
                None => batches.push((to, vec![frame])),
            }
        }
        for ((to, incarnation), frames) in batches {
            self.send(Message::Forward { to, incarnation, frames });
        }
    }

    fn send(&mut self, message: Message) {
        self.envelopes.push_back(Envelope { term: self.term, incarnation: self.incarnation, message });
    }

    fn refuse_member(&mut self, error: MemberError) -> Refused {
        // A late message about an incarnation that has failed is no mistake of anyone.
        if !matches!(error, MemberError::Old { .. }) {
            self.report(Event::Member(error));
        }
        Refused::Member
    }

    fn report(&mut self, event: Event) {
        if self.reported != Some(event) {
            self.reported = Some(event);
            self.events.push_back(event);
        }
    }
}

fn describe_failed(case: u64, failed: &control::Failed) -> Failed {
    let &control::Failed { id, incarnation, time } = failed;
    Failed { case, process: id, incarnation: incarnation.0, timestamp: time }
}

/// Returns a timestamp that is none if it is 0.
fn nonzero(time: Timestamp) -> Option<Timestamp> {
    (time.nanos() != 0).then_some(time)
}

//! The thread of the state machine.

use super::alarms::{Alarms, Urgency};
use super::storage::{Job, Stored};
use super::{Counts, Happened, Snapshot};
use crate::machine::{self, Alarm, Drain, Effect, Input, Machine, NodeKey};
use crate::operator::{Answer, Request, Status, Summary};
use crate::record::{MemberState, Stage};
use crate::store::{StoreError, Term};
use crossbeam_channel::{Receiver, Sender, TryRecvError, select};
use management::{ConnectionId, Peer, Reason, Server, ServerEvent};
use onepipe::ProcessId;
use onepipe::control::{Envelope, Incarnation, Message};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use switch::Nanos;
use tracing::{debug, info, warn};

/// Time between two attempts to use a store that has refused
const RETRY: Nanos = Nanos::from_secs(1);
/// Time for which a snapshot is recent
const FRESH: Nanos = Nanos::from_millis(20);
/// Why an operator's request is refused
const NOT_LEADING: &str = "this controller does not lead; ask the one that leads";
/// Longest time without a step
const IDLE: Nanos = Nanos::from_millis(100);

pub(super) struct Worker {
    machine: Machine,
    network: u64,
    server: Arc<Server>,
    jobs: Sender<Job>,
    snapshot: Arc<Mutex<Snapshot>>,
    start: Instant,
    peers: BTreeMap<ConnectionId, Peer>,
    connections: BTreeMap<NodeKey, ConnectionId>,
    /// Term of the last campaign that succeeded
    term: Term,
    /// Time at which to campaign again
    retry: Option<Nanos>,
    /// Greatest number of a case that was printed
    printed: u64,
    alarms: Alarms,
    counts: Counts,
    /// Time of the last snapshot
    published: Nanos,
}

/// Returns the time since the Unix epoch, in nanoseconds.
#[allow(clippy::disallowed_methods, reason = "the thread reads the clock, the state machine does not")]
fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[allow(clippy::disallowed_methods, reason = "the thread reads the clock, the state machine does not")]
fn monotonic() -> Instant {
    Instant::now()
}

impl Worker {
    pub(super) fn new(
        machine: Machine,
        config: machine::Config,
        server: Arc<Server>,
        jobs: Sender<Job>,
        snapshot: Arc<Mutex<Snapshot>>,
    ) -> Self {
        Self {
            machine,
            network: config.network,
            server,
            jobs,
            snapshot,
            start: monotonic(),
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            term: Term(0),
            retry: Some(Nanos::ZERO),
            printed: 0,
            alarms: Alarms::default(),
            counts: Counts::default(),
            published: Nanos::ZERO,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(monotonic().duration_since(self.start).as_nanos() as u64)
    }

    /// Runs until [`Happened::Stop`].
    pub(super) fn run(&mut self, happened: &Receiver<Happened>, stored: &Receiver<Stored>) {
        loop {
            if self.retry.is_some_and(|at| at <= self.now()) {
                self.retry = None;
                self.campaign();
            }
            let now = self.now();
            let timer = self.machine.next_timer().into_iter().chain(self.retry).min();
            let wait = timer.map_or(IDLE, |at| at.since(now).min(IDLE));
            // What the store has done first: other inputs may wait for it.
            let done = match stored.try_recv() {
                Err(TryRecvError::Empty) => {
                    select! {
                        recv(stored) -> done => done.ok(),
                        recv(happened) -> event => {
                            match event {
                                Ok(Happened::Network(event)) => self.on_network(event),
                                Ok(Happened::Stop) | Err(_) => return,
                            }
                            None
                        }
                        default(Duration::from_nanos(wait.0)) => {
                            self.input(Input::Timer);
                            None
                        }
                    }
                }
                done => done.ok(),
            };
            if let Some(done) = done {
                self.on_stored(done);
            }
            self.publish();
        }
    }

    fn campaign(&self) {
        // It fails when the store's thread has panicked.
        drop(self.jobs.send(Job::Campaign));
    }

    fn on_stored(&mut self, stored: Stored) {
        match stored {
            Stored::Campaigned(Ok(Some((term, records)))) => {
                self.term = term;
                self.printed = u64::MAX;
                self.input(Input::Led(term, records));
                // It does not if there are records that cannot be read.
                if self.machine.term().is_some() {
                    info!("This controller leads in term {term}.");
                }
                let cases = self.machine.image().map(|image| image.cases.keys().next_back().copied());
                self.printed = cases.flatten().unwrap_or(0);
            }
            Stored::Campaigned(Ok(None)) => self.retry = Some(self.now()),
            Stored::Campaigned(Err(error)) => {
                self.store_error(&error);
                self.retry = Some(self.now() + RETRY);
            }
            Stored::Written(id, result) => {
                self.counts.writes += 1;
                self.input(Input::Written(id, result));
            }
            Stored::Deposed => {
                warn!("This controller does not lead any more.");
                self.input(Input::Deposed);
                self.retry = Some(self.now());
            }
        }
    }

    fn store_error(&mut self, error: &StoreError) {
        self.counts.store_errors += 1;
        self.raise("store".into(), format!("{error}; until then, nothing is decided"), Urgency::Error);
    }

    fn raise(&mut self, kind: String, text: String, urgency: Urgency) {
        self.counts.alarms += 1;
        let now = self.now();
        self.alarms.raise(kind, text, urgency, now, clock());
    }

    fn on_network(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::Connected(id, peer, address) => {
                debug!("{peer} has connected from {address}.");
                self.peers.insert(id, peer);
                if let Some(node) = node(peer) {
                    self.connections.insert(node, id);
                    self.input(Input::Up(node));
                }
            }
            ServerEvent::Disconnected(id, reason) => {
                let Some(peer) = self.peers.remove(&id) else { return };
                debug!("{peer} is disconnected: {reason}.");
                if is_alarming(reason) {
                    let text = format!("{peer} was disconnected: {reason}");
                    self.raise(format!("disconnected, {}", reason.name()), text, Urgency::Warning);
                }
                let node = node(peer).filter(|node| self.connections.get(node) == Some(&id));
                if let Some(node) = node {
                    self.connections.remove(&node);
                    self.input(Input::Down(node));
                }
            }
            ServerEvent::Refused(address, reason) => {
                let text = format!("connection from {address} refused: {reason}");
                self.raise(format!("refused, {}", reason.name()), text, Urgency::Warning);
            }
            ServerEvent::Message(id, message) => match self.peers.get(&id).copied() {
                Some(Peer::Operator) => self.on_request(id, &message),
                Some(peer) => self.on_message(peer, &message),
                None => {}
            },
        }
    }

    fn on_message(&mut self, peer: Peer, message: &[u8]) {
        let Some(from) = node(peer) else { return };
        match Envelope::decode(message) {
            Ok(envelope) if is_of_other(&envelope.message, from) => {
                self.counts.other_name += 1;
                let text = format!("{peer} registers with another number; its message is refused");
                self.raise("other name".into(), text, Urgency::Warning);
            }
            Ok(envelope) => self.input(Input::FromNode(from, envelope)),
            Err(refusal) => {
                self.counts.undecodable += 1;
                let text = format!("message of {peer} refused: {refusal}");
                self.raise("message".into(), text, Urgency::Warning);
            }
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        self.machine.on(input, now, clock());
        while let Some(effect) = self.machine.poll_effect() {
            self.carry_out(effect);
        }
        self.print_cases();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(node, envelope) => {
                let Some(&id) = self.connections.get(&node) else { return };
                match envelope.encode() {
                    Ok(bytes) => self.server.send(id, &bytes),
                    Err(refusal) => {
                        self.counts.too_long += 1;
                        let text = format!("message to {node} not sent: {refusal}");
                        self.raise("too long".into(), text, Urgency::Error);
                    }
                }
            }
            Effect::Write(id, changes) => {
                // It fails when the store's thread has panicked.
                drop(self.jobs.send(Job::Write(id, self.term, changes)));
            }
            Effect::Campaign => self.retry = Some(self.now()),
            Effect::Alarm(Alarm::Store(error)) => self.store_error(&error),
            Effect::Alarm(alarm) => {
                let (kind, urgency) = kind(&alarm);
                self.raise(kind, alarm.to_string(), urgency);
            }
        }
    }

    /// Prints the cases that have been decided since the last call.
    fn print_cases(&mut self) {
        let Some(image) = self.machine.image() else { return };
        let Some(&last) = image.cases.keys().next_back().filter(|last| **last > self.printed) else { return };
        for (case, record) in image.cases.range(self.printed.saturating_add(1)..) {
            for failed in &record.failed {
                warn!(
                    "Case {case}: process {} has failed; its messages count up to {} ns.",
                    failed.id, failed.time
                );
            }
            if record.failed.is_empty() {
                info!("Case {case}: {} links are dead, and no process has failed.", record.dead.len());
            }
        }
        self.printed = last;
    }

    fn on_request(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.counts.requests += 1;
        let answers = match Request::decode(bytes) {
            Ok(Request::Status) => self.status().answers(),
            Ok(Request::Fail(process)) => match self.fail(process) {
                Ok(()) => vec![Answer::Done],
                Err(why) => vec![Answer::Refused(why)],
            },
            Ok(Request::Drain(switch, incarnation)) => match self.drain(switch, incarnation) {
                Ok(()) => vec![Answer::Done],
                Err(why) => vec![Answer::Refused(why)],
            },
            Err(refusal) => vec![Answer::Refused(refusal.to_string())],
        };
        self.counts.requests_refused += u64::from(matches!(answers[..], [Answer::Refused(_)]));
        for answer in answers {
            self.server.send(id, &answer.encode());
        }
    }

    fn fail(&mut self, process: ProcessId) -> Result<(), String> {
        let image = self.machine.image().ok_or(NOT_LEADING)?;
        let state = image.member(process).map(|(_, record)| record.state);
        match state {
            Some(MemberState::Member | MemberState::Joining) => {
                info!("An operator declares process {process} failed.");
                self.input(Input::Fail(process));
                Ok(())
            }
            Some(MemberState::Failed) => Err(format!("process {process} has failed already")),
            Some(MemberState::Gone | MemberState::Left) | None => {
                Err(format!("process {process} is not a member; `status` lists the members"))
            }
        }
    }

    fn drain(&mut self, switch: u16, incarnation: Incarnation) -> Result<(), String> {
        self.machine.image().ok_or(NOT_LEADING)?;
        match self.machine.drained(switch, incarnation) {
            Ok(Drain::Ready(seat)) => {
                info!(
                    "An operator drains switch {switch}: its representative of incarnation {incarnation} leaves."
                );
                self.input(Input::Drain(switch, seat));
                Ok(())
            }
            Ok(Drain::Leaves | Drain::Retired) => Ok(()),
            Err(why) => Err(why.to_string()),
        }
    }

    fn status(&self) -> Status {
        let counts = self.machine.counts();
        let term = self.machine.term().map_or(0, |term| term.0);
        let (network, up_ns) = (self.network, self.now().0);
        Status {
            summary: Summary { network, term, up_ns, thawed: counts.thawed, failed: counts.failed },
            members: self.machine.member_status(),
            reps: self.machine.rep_status(),
            cases: self.machine.case_status(),
            suspicion: self.machine.suspicion_status(),
            silent: self.machine.silent_links(),
            alarms: self.alarms.status(),
        }
    }

    /// Writes a snapshot, unless the last one is recent.
    fn publish(&mut self) {
        let now = self.now();
        if now.since(self.published) < FRESH {
            return;
        }
        self.published = now;
        let image = self.machine.image();
        let snapshot = Snapshot {
            at: now,
            term: self.machine.term().map_or(0, |term| term.0),
            members: image.map_or(0, |image| {
                image.members.values().filter(|record| record.state == MemberState::Member).count() as u64
            }),
            connected: self.connections.len() as u64,
            open_cases: image.map_or(0, |image| {
                image.cases.values().filter(|case| case.stage != Stage::Resumed).count() as u64
            }),
            suspects: self.machine.suspects(),
            silent_links: self.machine.silent_links().len() as u64,
            processes: self.machine.member_status(),
            reps: self.machine.rep_status(),
            machine: self.machine.counts(),
            counts: self.counts,
        };
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

/// Returns the node of a peer; `None` for an operator.
fn node(peer: Peer) -> Option<NodeKey> {
    match peer {
        Peer::Process(id) => Some(NodeKey::Process(ProcessId(id))),
        Peer::Switch(switch, seat) => Some(NodeKey::Rep(switch, seat)),
        Peer::Operator => None,
    }
}

/// Returns whether a message registers another node than the one whose connection it came over.
fn is_of_other(message: &Message, from: NodeKey) -> bool {
    match *message {
        Message::Register { id, .. } => from != NodeKey::Process(id),
        Message::RegisterRep { switch, seat, .. } => from != NodeKey::Rep(switch, seat),
        _ => false,
    }
}

/// Returns whether a connection of a node ended for a reason that an operator has to know.
fn is_alarming(reason: Reason) -> bool {
    !matches!(reason, Reason::Closed | Reason::Ended | Reason::Io(_) | Reason::Replaced | Reason::Silent)
}

fn kind(alarm: &Alarm) -> (String, Urgency) {
    match alarm {
        Alarm::Store(_) => ("store".into(), Urgency::Error),
        Alarm::Record(_) => ("record".into(), Urgency::Error),
        Alarm::Ahead(node, _) => (format!("ahead, {node}"), Urgency::Warning),
        Alarm::OwnClock(..) => ("own clock".into(), Urgency::Error),
        Alarm::Living(id) => (format!("living, {id}"), Urgency::Warning),
        Alarm::Clock(id, _) => (format!("clock, {}", NodeKey::Process(*id)), Urgency::Warning),
        Alarm::Behind(id, _) => (format!("behind, {}", NodeKey::Process(*id)), Urgency::Warning),
        Alarm::OtherTopology(node) => (format!("other topology, {node}"), Urgency::Warning),
        Alarm::Unknown(node) => (format!("unknown, {node}"), Urgency::Warning),
        Alarm::Deaf(node) => (format!("deaf, {node}"), Urgency::Warning),
        Alarm::JoinWaits(switch) => (format!("join waits, {switch}"), Urgency::Warning),
        Alarm::JoinUnheard(id) => (format!("join unheard, {id}"), Urgency::Warning),
        Alarm::Unfenced(case, _) => (format!("unfenced, {case}"), Urgency::Error),
    }
}

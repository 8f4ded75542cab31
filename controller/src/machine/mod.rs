//! The controller's state machine (1Pipe, section 5.2), without I/O, clock or thread.
//!
//! [`Machine::on`] takes what happened, [`Machine::poll_effect`] returns what is to be done. Whatever another
//! node may act on irreversibly (an incarnation, an admission, a decision, a stored recall) is sent by the
//! handler of the successful write, so it cannot be sent before it is stored.
//!
//! Each node has one *desired state*, a function of the records and of the present suspicion. It is sent with
//! a version, until the node answers with that version.

mod bug;
mod cases;
mod clocks;
mod departures;
mod derived;
mod drain;
mod evidence;
mod forward;
mod lag;
mod links;
mod members;
mod nodes;
mod recover;
mod reps;
mod seats;
mod status;
mod suspicion;
mod writes;

pub use bug::Bug;
pub use drain::{Drain, NotReady};

use crate::decide::Fence;
use crate::graph::Graph;
use crate::record::Image;
use crate::store::{Change, Records, StoreError, Term};
use cases::Progress;
use clocks::Ahead;
use derived::Derived;
use nodes::{At, LinkStatus, NodeState};
use onepipe::control::{Envelope, Incarnation, Message, Source};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use suspicion::Suspicion;
use switch::Nanos;
pub use writes::WriteId;
use writes::Writes;

/// Node of the management network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeKey {
    /// A process
    Process(ProcessId),
    /// A representative of a switch, by its seat: 0, or 1 for the standby
    Rep(u16, u8),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A node has connected
    Up(NodeKey),
    /// A node's connection has ended
    Down(NodeKey),
    /// A node has sent a message
    FromNode(NodeKey, Envelope),
    /// This controller leads, with the records of the term's beginning
    Led(Term, Records),
    /// It does not lead any more
    Deposed,
    /// A write has ended
    Written(WriteId, Result<(), StoreError>),
    /// Time has passed
    Timer,
    /// The operator declares a process failed
    Fail(ProcessId),
    /// The operator has a representative of a switch leave, with this seat, because the other one serves
    Drain(u16, u8),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a message to a node
    Send(NodeKey, Envelope),
    /// Write changes; answered by [`Input::Written`]
    Write(WriteId, Vec<Change>),
    /// This controller does not know any more what is stored, or another one leads: campaign again
    Campaign,
    /// Tell the operator
    Alarm(Alarm),
}

/// Something that an operator has to know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// The store refuses; nothing is decided
    #[error("{0}")]
    Store(StoreError),
    /// Records that cannot be read; nothing is decided
    #[error("{0}")]
    Record(crate::record::Bad),
    /// A node reports a time that is ahead of the clock
    #[error("{0} reports a time that is ahead of the clock by {1} ns; its values are refused")]
    Ahead(NodeKey, u64),
    /// Several nodes report times that are ahead of the clock: the number of nodes, one of them, and the least time
    /// by which the clock is behind, in nanoseconds
    #[error(
        "the clock of this controller is behind those of {0} nodes, such as {1}, by at least {2} ns, and nothing is decided; \
         synchronise the clock of the controller's machine"
    )]
    OwnClock(usize, NodeKey, u64),
    /// A process that is a member registered with another number
    #[error("process {0} registered while another process of this number is alive; give each its own number")]
    Living(ProcessId),
    /// A process whose clock differs from the controller's, by this many nanoseconds
    #[error("the clock of process {0} differs from the controller's by {1} ns; synchronise both")]
    Clock(ProcessId, i64),
    /// A member that is declared failed because its clock is behind, by this many nanoseconds
    #[error(
        "the clock of process {0} is behind those of the other members and the controller's by {1} ns, so the process \
         fails; synchronise the clock of its machine"
    )]
    Behind(ProcessId, u64),
    /// A node of another topology
    #[error("{0} has another topology; give all nodes files of the same plan")]
    OtherTopology(NodeKey),
    /// A process or switch that the topology does not have
    #[error("{0} is not in the topology")]
    Unknown(NodeKey),
    /// A representative of a switch that hears less than the other one
    #[error(
        "{0} does not hear a link that the switch's other representative hears, and is retired; mend its path"
    )]
    Deaf(NodeKey),
    /// A join waits for a representative
    #[error("joins wait for the representative of switch {0}")]
    JoinWaits(u16),
    /// The link of a process that joins is dead in one direction or both
    #[error("process {0} waits to join: its link is not heard; mend the link or what sends on it")]
    JoinUnheard(ProcessId),
    /// Receivers that could not be stopped
    #[error(
        "processes {1:?} could not be stopped in case {0}; they may deliver messages that others discard"
    )]
    Unfenced(u64, Vec<ProcessId>),
}

/// Settings of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Hash of the topology
    pub network: u64,
    /// Time for which further reports join a case
    pub gather: Nanos,
    /// Time in which a node has to answer what a case needs, and in which a callback has to return
    pub respond_within: Nanos,
    /// Time in which a node connects again to a controller that has started to lead: as long as the longest wait
    /// of a node between two tries. A node that has not connected is not late before
    pub reconnect_within: Nanos,
    /// Reported times that are ahead of the clock by more are refused
    pub ahead_max: Nanos,
    /// Members whose clocks are behind those of the others and the controller's by more than this fail; `None`: no
    /// clocks are compared. Longer than `ahead_max`, as a clock may be off by that
    pub behind_max: Option<Nanos>,
    /// Number of recalls that are stored for a failed process
    pub max_recalls: u32,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Machine {
    graph: Graph,
    config: Config,
    now: Nanos,
    /// Nanoseconds since the Unix epoch
    clock: u64,
    up: BTreeSet<NodeKey>,
    effects: VecDeque<Effect>,
    leader: Option<Leader>,
    counts: Counts,
    bug: Option<Bug>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Suspicions that ended because all links spoke again
    pub thawed: u64,
    /// Processes that failed
    pub failed: u64,
    /// Processes that left without a failure
    pub left: u64,
    /// Frames carried for processes
    pub forwarded: u64,
    /// Frames refused because too many were under way
    pub forward_refused: u64,
    /// Messages of other incarnations, and answers to nothing
    pub ignored: u64,
}

/// What only a leader has.
#[derive(Clone, Debug)]
struct Leader {
    term: Term,
    /// When it began to lead
    since: Nanos,
    /// Nodes that have been connected since then
    met: BTreeSet<NodeKey>,
    /// The records, as stored
    image: Image,
    /// What follows from them
    derived: Derived,
    writes: Writes,
    nodes: BTreeMap<NodeKey, NodeState>,
    /// What the desired states in `nodes` were computed from: records, epoch, and what stands still
    refreshed: Option<(u64, u32, Fence)>,
    /// By link and seat of its keeper; a process has seat 0
    links: BTreeMap<At, LinkStatus>,
    /// Those whose keepers hear nothing, for longer than their senders may need to become audible
    silent: BTreeSet<At>,
    /// Those whose keepers hear nothing, but whose senders may not be audible yet
    unheard: BTreeSet<At>,
    /// When a keeper last had to listen to a new sender
    introduced: BTreeMap<At, Nanos>,
    /// By process: senders of its link's beacons that it has acknowledged
    given: BTreeMap<ProcessId, Vec<Source>>,
    seats: seats::Watch,
    joins: BTreeMap<ProcessId, members::Join>,
    departures: BTreeMap<ProcessId, departures::Departure>,
    /// Number of desired states that were sent
    versions: u64,
    /// Number of joins, by which every representative acknowledges again
    epoch: u32,
    suspicion: Option<Suspicion>,
    /// Incarnations that the operator declared failed while a decision was being written
    declared: BTreeSet<(ProcessId, Incarnation)>,
    /// Nodes whose last times were ahead of the clock
    ahead: BTreeMap<NodeKey, Ahead>,
    clocks: lag::Clocks,
    /// By case: answers of the members
    progress: BTreeMap<u64, Progress>,
    recoveries: BTreeMap<ProcessId, recover::Recovery>,
    forwards: forward::Forwards,
}

impl Machine {
    /// Returns a controller that does not lead.
    pub fn new(graph: Graph, config: Config) -> Self {
        Self {
            graph,
            config,
            now: Nanos(0),
            clock: 0,
            up: BTreeSet::new(),
            effects: VecDeque::new(),
            leader: None,
            counts: Counts::default(),
            bug: None,
        }
    }

    /// Plants a bug, in builds with debug assertions.
    pub fn plant(&mut self, bug: Bug) {
        self.bug = Some(bug);
    }

    fn has(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns what is to be done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the term in which this controller leads.
    pub fn term(&self) -> Option<Term> {
        self.leader.as_ref().map(|leader| leader.term)
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the records, as far as this leader has stored them.
    pub fn image(&self) -> Option<&Image> {
        self.leader.as_ref().map(|leader| &leader.image)
    }

    /// Returns whether a failure is suspected and not decided yet.
    pub fn suspects(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.suspicion.is_some())
    }

    /// Takes an input, at a time of a monotonic clock and at a time since the Unix epoch, in nanoseconds.
    pub fn on(&mut self, input: Input, now: Nanos, clock: u64) {
        (self.now, self.clock) = (now, clock);
        match input {
            Input::Up(node) => {
                self.up.insert(node);
                self.meet(node);
                self.connect(node);
                self.resend(node);
            }
            Input::Down(node) => {
                self.up.remove(&node);
                self.part(node);
                self.forget_ahead(node);
            }
            Input::FromNode(node, envelope) => self.on_envelope(node, envelope),
            Input::Led(term, records) => self.lead(term, &records),
            Input::Deposed => self.step_down(false),
            Input::Written(id, result) => self.written(id, result),
            Input::Timer => {}
            Input::Fail(process) => self.declare_failed(process),
            Input::Drain(switch, seat) => self.drain(switch, seat),
        }
        self.advance();
    }

    /// Does what has become possible. Each step either changes something or does nothing.
    fn advance(&mut self) {
        if self.leader.is_none() {
            return;
        }
        self.advance_reps();
        self.activate_reps();
        self.hear_links();
        self.watch_seats();
        self.ask_again();
        self.take_declared();
        self.scan_links();
        self.advance_suspicion();
        self.advance_cases();
        self.advance_joins();
        self.advance_departures();
        self.advance_recoveries();
        self.settle_links();
        self.ask_for_registers();
        self.check_forwards();
        self.watch_clocks();
        self.refresh();
        self.start_write();
    }

    fn lead(&mut self, term: Term, records: &Records) {
        let image = match Image::load(records) {
            Ok(image) => image,
            Err(bad) => {
                self.effects.extend(bad.into_iter().map(|bad| Effect::Alarm(Alarm::Record(bad))));
                self.leader = None;
                return;
            }
        };
        let writes = Writes::new(image.next.clone());
        self.leader = Some(Leader {
            term,
            since: self.now,
            met: self.up.clone(),
            image,
            derived: Derived::default(),
            writes,
            nodes: BTreeMap::new(),
            refreshed: None,
            links: BTreeMap::new(),
            silent: BTreeSet::new(),
            unheard: BTreeSet::new(),
            introduced: BTreeMap::new(),
            given: BTreeMap::new(),
            seats: seats::Watch::default(),
            joins: BTreeMap::new(),
            departures: BTreeMap::new(),
            versions: 0,
            epoch: 0,
            suspicion: None,
            declared: BTreeSet::new(),
            ahead: BTreeMap::new(),
            clocks: lag::Clocks::default(),
            progress: BTreeMap::new(),
            recoveries: BTreeMap::new(),
            forwards: forward::Forwards::default(),
        });
        self.derive();
        self.resume_cases();
        self.resume_joins();
    }

    /// Forgets what only a leader has.
    fn step_down(&mut self, campaign: bool) {
        if self.leader.take().is_some() && campaign {
            self.effects.push_back(Effect::Campaign);
        }
    }

    fn leader(&self) -> &Leader {
        self.leader.as_ref().expect("called while this controller leads")
    }

    fn leader_mut(&mut self) -> &mut Leader {
        self.leader.as_mut().expect("called while this controller leads")
    }

    fn on_envelope(&mut self, node: NodeKey, envelope: Envelope) {
        let Envelope { term, incarnation, message } = envelope;
        let Some(leader) = &self.leader else { return };
        if term > leader.term.0.into() {
            return self.step_down(true);
        }
        match (node, message) {
            (NodeKey::Process(id), Message::Register { boot, address, topology, clock, .. }) => {
                if self.has_right_clock(id, clock) {
                    self.register(id, boot, address, topology);
                }
            }
            (NodeKey::Rep(switch, seat), Message::RegisterRep { boot, address, topology, .. }) => {
                self.register_rep((switch, seat), boot, address, topology);
            }
            (node, message) if self.incarnation(node) == Some(incarnation) => self.on_message(node, message),
            _ => self.counts.ignored += 1,
        }
    }

    fn on_message(&mut self, node: NodeKey, message: Message) {
        match (node, message) {
            (NodeKey::Rep(switch, seat), Message::Configured { version, outputs, links }) => {
                self.configured((switch, seat), version, outputs, &links);
            }
            (NodeKey::Process(id), Message::DesiredAck { version, barrier, silent, quiet }) => {
                self.desired_ack(id, version, barrier, (silent, quiet));
            }
            (node, Message::Report { number, links }) => self.report(node, number, &links),
            (NodeKey::Process(id), Message::MemberAck { id: of, incarnation, barrier }) => {
                self.member_ack(id, of, incarnation, barrier);
            }
            (NodeKey::Process(id), Message::Noticed { case }) => {
                self.answered(id, case, cases::Answer::Noticed);
            }
            (NodeKey::Process(id), Message::Recalled { case }) => {
                self.answered(id, case, cases::Answer::Recalled);
            }
            (NodeKey::Process(id), Message::Completed { case }) => {
                self.answered(id, case, cases::Answer::Completed);
            }
            (NodeKey::Process(id), Message::StoreRecalls { batch, recalls }) => {
                self.store_recalls(id, batch, &recalls);
            }
            (NodeKey::Process(id), Message::Forward { to, incarnation, frames }) => {
                self.forward(id, to, incarnation, frames);
            }
            (NodeKey::Process(id), Message::Recover { case_done, held_max, .. }) => {
                self.recover(id, case_done, held_max);
            }
            (NodeKey::Process(id), Message::Recovered {}) => self.recovered(id),
            (NodeKey::Process(id), Message::Leave { time, barrier, delivered }) => {
                self.leave(id, time, barrier, delivered);
            }
            (NodeKey::Process(id), Message::LeavingAck { id: of, incarnation }) => {
                self.leaving_ack(id, of, incarnation);
            }
            (NodeKey::Process(id), Message::ProgressReply { barrier, .. }) => {
                self.progress_reply(id, barrier);
            }
            (NodeKey::Process(id), Message::Clock { number, clock }) => self.take_clock(id, number, clock),
            (node, Message::Pong { number }) => self.pong(node, number),
            (node, Message::Ping { number }) => self.send(node, Message::Pong { number }),
            _ => self.counts.ignored += 1,
        }
    }

    /// Returns the seat of a representative; 0 for a process.
    const fn seat(node: NodeKey) -> u8 {
        match node {
            NodeKey::Process(_) => 0,
            NodeKey::Rep(_, seat) => seat,
        }
    }

    /// Returns a node's present incarnation, as stored.
    fn incarnation(&self, node: NodeKey) -> Option<Incarnation> {
        let image = &self.leader.as_ref()?.image;
        match node {
            NodeKey::Process(id) => image.member(id).map(|(incarnation, _)| incarnation),
            NodeKey::Rep(switch, seat) => image.rep(switch, seat).map(|(incarnation, _)| incarnation),
        }
    }

    fn send(&mut self, node: NodeKey, message: Message) {
        if !self.up.contains(&node) {
            return;
        }
        let Some(leader) = &self.leader else { return };
        let incarnation = self.incarnation(node).unwrap_or_default();
        let envelope = Envelope { term: leader.term.0.into(), incarnation, message };
        self.effects.push_back(Effect::Send(node, envelope));
    }

    fn alarm(&mut self, alarm: Alarm) {
        self.effects.push_back(Effect::Alarm(alarm));
    }

    /// Returns a time that the clocks of all nodes have passed, and to which their timestamps are near. A time far
    /// from the present, as 0, must not be sent: a timestamp of 48 bits is as well one of the future.
    fn recent(&self) -> u64 {
        self.clock.saturating_sub(self.config.ahead_max.0).max(1)
    }

    /// Returns the 64-bit time of a timestamp, the one next to the clock; 0 for none.
    fn time(&self, timestamp: Option<Timestamp>) -> u64 {
        let Some(timestamp) = timestamp else { return 0 };
        let distance = timestamp.distance(Timestamp::new(self.clock));
        // Before the epoch there is nothing; 0 would be none.
        self.clock.saturating_add_signed(distance).max(1)
    }

    /// Returns the timestamp of a stored time; none for 0.
    fn timestamp(time: u64) -> Option<Timestamp> {
        (time != 0).then(|| Timestamp::new(time))
    }

    fn since(&self, then: Nanos) -> Nanos {
        Nanos(self.now.0.saturating_sub(then.0))
    }

    fn is_late(&self, then: Nanos) -> bool {
        self.since(then) >= self.config.respond_within
    }

    /// Notes that a node has connected. The time in which it has to answer begins now.
    fn meet(&mut self, node: NodeKey) {
        let is_new = self.leader.as_mut().is_some_and(|leader| leader.met.insert(node));
        if let NodeKey::Process(id) = node
            && is_new
        {
            self.renew_notices(id);
        }
    }

    /// Returns whether a node has not connected yet to this leader, and still has time to.
    fn may_connect(&self, node: NodeKey) -> bool {
        let leader = self.leader();
        !leader.met.contains(&node) && self.since(leader.since) < self.config.reconnect_within
    }
}

#[cfg(test)]
mod tests;

//! A server of the service: proposes what it is asked for while it leads, and applies what is decided.
//!
//! This is all that has to do with consensus. It runs on a worker, and owns no thread, socket or clock: the tests below run
//! three of them in the simulator.

use crate::command::{Command, Entry};
use crate::store::{Outcome, Store};
use crossbeam_channel::Sender;
use p4ce::consensus::{BootstrapError, Config, Decided, ProposeError, Server, Standing, Term, Waiting};
use rnic::{App, Rnic};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use switch::table::mix;

/// What an answer is for.
pub(crate) type Ticket = u64;

/// What comes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is decided, and was applied.
    Applied(Outcome),
    /// Nothing: this server does not lead, but this one does, as far as it knows.
    NotLeader(Option<u8>),
    /// It was proposed, and then this server lost its office: it may be applied yet, or never.
    Unknown,
    /// Nothing: it does not fit into an entry of so many bytes.
    TooLong(usize),
    /// What was asked for
    Info(Info),
    /// Whether the group has begun now
    Begun(Result<(), BootstrapError>),
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) id: u8,
    pub(crate) leads: bool,
    pub(crate) leader: Option<u8>,
    pub(crate) standing: Standing,
    /// What it waits for while it counts for nothing
    pub(crate) waits_for: Option<Waiting>,
    /// Requests of hosts that it does not take for servers
    pub(crate) refused: u64,
    pub(crate) term: Term,
    pub(crate) through_switch: bool,
    pub(crate) applied: u64,
    pub(crate) keys: usize,
    pub(crate) used: usize,
}

/// A server.
pub(crate) struct Replica {
    config: Config,
    server: Server,
    store: Store,
    /// Entries below are in the store.
    applied: u64,
    /// Commands that have to wait for others
    waiting: VecDeque<(Ticket, Command)>,
    /// Commands that were proposed, each in which term
    pending: BTreeMap<Ticket, Term>,
    answers: Sender<(Ticket, Answer)>,
}

impl Replica {
    /// A server that knows nothing. Answers go to `answers`, which has to have room for all that is asked: a worker does
    /// not wait.
    pub(crate) fn new(config: Config, answers: Sender<(Ticket, Answer)>) -> Self {
        Self {
            server: Server::new(config.clone()),
            store: Store::new(config.layout.max_snapshot()),
            config,
            applied: 0,
            waiting: VecDeque::new(),
            pending: BTreeMap::new(),
            answers,
        }
    }

    /// Takes a command; there will be one answer. Tickets are used once.
    pub(crate) fn ask(&mut self, ticket: Ticket, command: Command) {
        self.waiting.push_back((ticket, command));
    }

    /// Asks how it is.
    pub(crate) fn ask_info(&mut self, ticket: Ticket) {
        let info = Info {
            id: self.config.id,
            leads: self.server.leads(),
            leader: self.server.leader(),
            standing: self.server.standing(),
            waits_for: self.server.waits_for(),
            refused: self.server.refused(),
            term: self.server.term(),
            through_switch: self.server.replicates_through(),
            applied: self.applied,
            keys: self.store.keys(),
            used: self.store.used(),
        };
        self.answer(ticket, Answer::Info(info));
    }

    /// Begins the group, empty, if all servers are there and none has anything. It is not kept for later.
    pub(crate) fn bootstrap(&mut self, ticket: Ticket) {
        let begun = self.server.bootstrap();
        self.answer(ticket, Answer::Begun(begun));
    }

    fn answer(&self, ticket: Ticket, answer: Answer) {
        // Who does not listen any more needs no answer.
        _ = self.answers.try_send((ticket, answer));
    }

    /// Proposes what it was asked for, as much as may be under way at once.
    fn propose(&mut self, nic: &mut Rnic) {
        while let Some((ticket, command)) = self.waiting.pop_front() {
            let entry = Entry { incarnation: self.config.incarnation, ticket, command };
            match self.server.propose(nic, &entry.encode()) {
                Ok(_) => _ = self.pending.insert(ticket, self.server.term()),
                Err(ProposeError::Busy) => {
                    self.waiting.push_front((ticket, entry.command));
                    return;
                }
                Err(ProposeError::NotLeader) => {
                    self.answer(ticket, Answer::NotLeader(self.server.leader()));
                }
                Err(ProposeError::TooLong) => {
                    self.answer(ticket, Answer::TooLong(self.config.layout.max_value()));
                }
            }
        }
    }

    /// Applies what is decided, and answers if it was asked for here: also when somebody else has led it to its decision.
    fn apply(&mut self) {
        while let Some(decided) = self.server.poll_decided() {
            match decided {
                Decided::Entry { index, value } => {
                    self.applied = index + 1;
                    // Whatever is no entry is none at all servers.
                    let Some(entry) = Entry::decode(&value) else { continue };
                    let outcome = self.store.apply(entry.command);
                    if entry.incarnation == self.config.incarnation
                        && self.pending.remove(&entry.ticket).is_some()
                    {
                        self.answer(entry.ticket, Answer::Applied(outcome));
                    }
                }
                Decided::Snapshot { next, state } => {
                    self.applied = next;
                    self.store = Store::from_snapshot(self.config.layout.max_snapshot(), &state)
                        .expect("servers have one version, and give each other what they have");
                }
            }
        }
    }

    /// Gives up what was proposed in an office that is over.
    fn give_up(&mut self) {
        let office = self.server.leads().then(|| self.server.term());
        let answers = &self.answers;
        self.pending.retain(|ticket, term| {
            let lasts = office == Some(*term);
            if !lasts {
                _ = answers.try_send((*ticket, Answer::Unknown));
            }
            lasts
        });
    }
}

impl App for Replica {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        // In the simulator, a host begins anew with what it was made with, and must not be taken for the one before.
        self.config.incarnation = mix(self.config.incarnation);
        *self = Self::new(self.config.clone(), self.answers.clone());
        self.server.start(nic, now).expect("a NIC of its own has room");
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        self.apply();
        self.give_up();
        self.propose(nic);
        if self.server.wants_snapshot() {
            // It is asked for again if it came too late; the store sees to it that it is not too long.
            _ = self.server.give_snapshot(nic, &self.store.to_snapshot(), now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.server.next_timer())
    }
}

#[cfg(test)]
mod tests;

//! A server of the service: proposes commands while it leads, and applies what is decided.
//!
//! This is the only part that uses consensus. It runs on a worker, and owns no thread, socket or clock: the
//! tests run three replicas in the simulator.

use crate::command::{Command, Entry};
use crate::store::{Outcome, Store};
use consensus::{BootstrapError, Config, Decided, Membership, ProposeError, Server, Term, WaitReason};
use crossbeam_channel::Sender;
use rnic::{App, Rnic};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use switch::table::mix;

/// Identifies a request, for its result.
pub(crate) type Ticket = u64;

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// The command is decided, and was applied.
    Applied(Outcome),
    /// The command was not proposed, because this server does not lead. The leader, if this server has one
    NotLeader(Option<u8>),
    /// The command was proposed, but this server lost the leadership: it may still be applied, or never.
    Unknown,
    /// The command was not proposed, because it does not fit into an entry of this many bytes.
    TooLong(usize),
    /// The requested status
    Info(Info),
    /// Whether this request bootstrapped the group
    Bootstrapped(Result<(), BootstrapError>),
}

/// Status of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) id: u8,
    pub(crate) leads: bool,
    pub(crate) leader: Option<u8>,
    pub(crate) membership: Membership,
    /// Reason for which it is not a member yet
    pub(crate) waits_for: Option<WaitReason>,
    /// Requests of hosts that are not servers of the group
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
    /// Number of entries that have been applied to the store
    applied: u64,
    /// Commands that wait for the window to open
    waiting: VecDeque<(Ticket, Command)>,
    /// Proposed commands, with the term of each
    pending: BTreeMap<Ticket, Term>,
    responses: Sender<(Ticket, Response)>,
}

impl Replica {
    /// Returns a server with an empty store. Results are sent to `responses`, which has to have room for all
    /// outstanding requests, because a worker does not wait.
    pub(crate) fn new(config: Config, responses: Sender<(Ticket, Response)>) -> Self {
        Self {
            server: Server::new(config.clone()),
            store: Store::new(config.layout.max_snapshot()),
            config,
            applied: 0,
            waiting: VecDeque::new(),
            pending: BTreeMap::new(),
            responses,
        }
    }

    /// Accepts a command, which will have exactly one result. Each ticket may be used once.
    pub(crate) fn submit(&mut self, ticket: Ticket, command: Command) {
        self.waiting.push_back((ticket, command));
    }

    /// Requests the status.
    pub(crate) fn request_info(&mut self, ticket: Ticket) {
        let info = Info {
            id: self.config.id,
            leads: self.server.is_leader(),
            leader: self.server.leader(),
            membership: self.server.membership(),
            waits_for: self.server.waits_for(),
            refused: self.server.refused(),
            term: self.server.term(),
            through_switch: self.server.replicates_through_switch(),
            applied: self.applied,
            keys: self.store.keys(),
            used: self.store.used(),
        };
        self.respond(ticket, Response::Info(info));
    }

    /// Bootstraps the group with an empty store, if all servers run and none has entries. The request is not
    /// kept for later.
    pub(crate) fn bootstrap(&mut self, ticket: Ticket) {
        let result = self.server.bootstrap();
        self.respond(ticket, Response::Bootstrapped(result));
    }

    fn respond(&self, ticket: Ticket, response: Response) {
        // A receiver that is gone needs no result.
        _ = self.responses.try_send((ticket, response));
    }

    /// Proposes waiting commands, as many as the window allows.
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
                    self.respond(ticket, Response::NotLeader(self.server.leader()));
                }
                Err(ProposeError::TooLong) => {
                    self.respond(ticket, Response::TooLong(self.config.layout.max_value()));
                }
            }
        }
    }

    /// Applies decided entries. Responds to commands that were submitted here, even if another leader has
    /// brought them to their decision.
    fn apply(&mut self) {
        while let Some(decided) = self.server.poll_decided() {
            match decided {
                Decided::Entry { index, value } => {
                    self.applied = index + 1;
                    // Invalid bytes are skipped by all servers alike.
                    let Some(entry) = Entry::decode(&value) else { continue };
                    let outcome = self.store.apply(entry.command);
                    if entry.incarnation == self.config.incarnation
                        && self.pending.remove(&entry.ticket).is_some()
                    {
                        self.respond(entry.ticket, Response::Applied(outcome));
                    }
                }
                Decided::Snapshot { next, state } => {
                    self.applied = next;
                    self.store = Store::from_snapshot(self.config.layout.max_snapshot(), &state)
                        .expect("all servers have the same version, and exchange valid snapshots");
                }
            }
        }
    }

    /// Gives up commands that were proposed in a term that is over.
    fn drop_lost_proposals(&mut self) {
        let own_term = self.server.is_leader().then(|| self.server.term());
        let responses = &self.responses;
        self.pending.retain(|ticket, term| {
            let is_current = own_term == Some(*term);
            if !is_current {
                _ = responses.try_send((*ticket, Response::Unknown));
            }
            is_current
        });
    }
}

impl App for Replica {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        // In the simulator, a host restarts with its original configuration, and needs another incarnation
        // than before.
        self.config.incarnation = mix(self.config.incarnation);
        *self = Self::new(self.config.clone(), self.responses.clone());
        self.server.start(nic, now).expect("the replica has the NIC to itself, so it has room");
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        self.apply();
        self.drop_lost_proposals();
        self.propose(nic);
        if self.server.wants_snapshot() {
            // A snapshot that comes too late is requested again. The store limits its length.
            _ = self.server.provide_snapshot(nic, &self.store.to_snapshot(), now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.server.next_timer())
    }
}

#[cfg(test)]
mod tests;

//! Events from outside at a node: completions, CM events and messages; their effect on groups, and the end of
//! groups.

use super::{EarlyCreate, Event, MAX_EARLY, Node};
use crate::config::{Failure, MessageMemory};
use crate::group::{Group, Outcome, QpUse};
use crate::in_network;
use crate::mesh::MeshEvent;
use crate::wire::Message;
use core::net::IpAddr;
use rnic::cm::Event as CmEvent;
use rnic::{Completion, CompletionOpcode, Rnic, Status};
use rocev2::cm::RejReason;
use std::collections::BTreeMap;
use switch::Nanos;

impl Node {
    /// Marks waiting groups that can go on as due.
    pub(super) fn wake(&mut self, nic: &Rnic) {
        let Some(resources) = &self.resources else { return };
        let Self { waiting, groups, due, .. } = self;
        waiting.retain(|number, awaited| {
            let can_progress = match awaited {
                Some((ready_word, condition)) => condition.is_met(resources.ready_word(nic, *ready_word)),
                None => groups.get(number).is_none_or(|group| group.can_progress(nic, resources)),
            };
            if can_progress {
                due.insert(*number);
            }
            !can_progress
        });
    }

    /// Handles the events of the mesh.
    pub(super) fn handle_mesh_events(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = self.mesh.poll() {
            match event {
                MeshEvent::Established(peer) => {
                    self.send_creates(nic, peer);
                    if self.requested_links.contains(&peer) {
                        self.events.push_back(Event::LinkUp(peer));
                    }
                }
                MeshEvent::Lost(peer) => {
                    self.on_lost(nic, peer, now);
                    if self.requested_links.contains(&peer) {
                        self.events.push_back(Event::LinkLost(peer));
                    }
                }
                MeshEvent::Message(peer, _, Message::Note(note)) => {
                    // Notes from nodes to which no link was requested are ignored.
                    if self.requested_links.contains(&peer) {
                        self.events.push_back(Event::Note(peer, note));
                    }
                }
                MeshEvent::Message(peer, group, message) => self.on_message(nic, peer, group, message, now),
            }
        }
    }

    /// Sends a peer the `Create` messages of all groups with it.
    fn send_creates(&mut self, nic: &mut Rnic, peer: IpAddr) {
        let Some(resources) = &self.resources else { return };
        for (number, group) in &self.groups {
            if let Some(member) = group.member(peer) {
                let create = group.create_for(nic, resources, member);
                self.mesh.send(nic, peer, *number, create);
            }
        }
    }

    /// Handles the loss of a peer: all groups that it has created fail, and what it has announced of other
    /// groups is dropped.
    fn on_lost(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) {
        self.early.remove(&peer);
        self.dropped_early.remove(&peer);
        let named = if self.has_bug(crate::Bug::WrongMember) { self.config.address } else { peer };
        let shared = self.groups.iter().filter(|(_, group)| {
            group.member(peer).is_some_and(|member| group.member_states[member as usize].create.is_some())
        });
        for number in shared.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.fail(nic, number, Failure::Gone(named), now);
        }
    }

    pub(super) fn on_message(
        &mut self,
        nic: &mut Rnic,
        peer: IpAddr,
        number: u32,
        message: Message,
        now: Nanos,
    ) {
        // A message after the announcement of a later incarnation of the group belongs to that incarnation.
        let early = self.early.get_mut(&peer).and_then(|early| early.get_mut(&number));
        if let Some(early) = early {
            match message {
                Message::Create(create) => *early = EarlyCreate { create, failed: None },
                Message::Failed { code, member } => {
                    // This node has as much time to create the group as the members that have created it.
                    // After that, the failure would apply to another group of the same number.
                    let until = now + self.config.create_timeout;
                    early.failed = Some((code, member, until));
                    self.deadline = Some(self.deadline.map_or(until, |at| at.min(until)));
                }
                // A peer sends no other message before this node has created the group, too.
                _ => {}
            }
            return;
        }
        let group = self.groups.get_mut(&number);
        let found = group.and_then(|group| group.member(peer).map(|member| (group, member)));
        let known = found.as_ref().and_then(|(group, member)| group.member_states[*member as usize].create);
        if let Message::Create(create) = message {
            match (found, known) {
                (Some((group, member)), None) => {
                    let Some(resources) = &self.resources else { return };
                    let result = group.on_create(nic, resources, member, create);
                    self.apply_result(nic, number, result, now);
                }
                // A repeated `Create`.
                (Some(_), Some(known)) if known.incarnation == create.incarnation => {}
                _ => {
                    let early = self.early.entry(peer).or_default();
                    if early.len() < MAX_EARLY {
                        early.insert(number, EarlyCreate { create, failed: None });
                    } else {
                        self.counters.forgotten += 1;
                        self.dropped_early.insert(peer);
                        // This node is at fault, and not the peer that waits for it.
                        let code = Failure::NoRoom(peer).code();
                        let refusal = Message::Failed { code, member: Message::SENDER };
                        self.mesh.send(nic, peer, number, refusal);
                    }
                }
            }
            return;
        }
        // Messages about a previous incarnation of the group are ignored.
        let (Some((group, member)), Some(_)) = (found, known) else { return };
        let result = match message {
            Message::Joined => {
                group.on_joined(member);
                Ok(())
            }
            Message::Failed { code, member } => {
                let members = &group.config.members;
                let at_fault = match member {
                    Message::SENDER => Some(peer),
                    member => members.get(member as usize).copied(),
                };
                Err(at_fault.and_then(|ip| Failure::of(code, ip)).unwrap_or(Failure::Violation(peer)))
            }
            Message::Close { messages } => group.on_close(member, messages),
            Message::Received { messages } => group.on_received(member, messages),
            Message::Done => match group.on_done(member) {
                Ok(()) => return self.close(nic, number, now),
                wrong => wrong,
            },
            Message::Create(_) | Message::Ping | Message::Pong | Message::Note(_) => Ok(()),
        };
        self.apply_result(nic, number, result, now);
    }

    /// Continues after an event of a group: the group is due, or fails.
    fn apply_result(&mut self, nic: &mut Rnic, number: u32, result: Result<(), Failure>, now: Nanos) {
        match result {
            Ok(()) => _ = self.due.insert(number),
            Err(failure) => self.fail(nic, number, failure, now),
        }
    }

    pub(super) fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            let joined = in_network::requested_group(&request.private_data).and_then(|(root, number)| {
                let is_from_switch = |group: &&mut Group| {
                    let switch = group.config.switch.map(|switch| switch.address);
                    group.ip(0) == root && switch == Some(request.addresses.remote)
                };
                let group = self.groups.get_mut(&number).filter(is_from_switch)?;
                let resources = self.resources.as_mut()?;
                in_network::accept_switch(group, nic, resources, &mut self.conns, conn, now)?;
                self.due.insert(number);
                Some(())
            });
            if joined.is_none() {
                _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
            }
            return;
        }
        let Some((number, qp_use)) = self.conns.get(&conn).copied() else { return };
        if event.is_last() {
            self.conns.remove(&conn);
        }
        if let Some(group) = self.groups.get_mut(&number).filter(|group| !group.is_only_closing()) {
            let result = in_network::on_cm(group, qp_use, event);
            self.apply_result(nic, number, result, now);
        }
    }

    pub(super) fn on_completion(&mut self, nic: &mut Rnic, done: &Completion, now: Nanos) {
        let Some(resources) = &self.resources else { return };
        let Some((number, qp_use)) = resources.uses.get(&done.qpn.get()).copied() else { return };
        let Some(group) = self.groups.get_mut(&number) else { return };
        let index = if let QpUse::Neighbour(index) = qp_use { index } else { 0 };
        let result = if done.status == Status::Success {
            match done.opcode {
                CompletionOpcode::Recv => {
                    self.counters.blocks_received += 1;
                    group.on_block(nic, resources, index, done.immediate, done.len)
                }
                CompletionOpcode::Send => {
                    self.counters.blocks_sent += 1;
                    group.on_sent(qp_use);
                    Ok(())
                }
                // A WRITE with immediate data has consumed the receive of a block.
                _ => Err(Failure::Violation(match qp_use {
                    QpUse::Neighbour(index) => group.ip(group.neighbours[index].member),
                    QpUse::ToSwitch(_) | QpUse::FromSwitch => group.ip(0),
                })),
            }
        } else if group.is_only_closing() {
            return;
        } else {
            Err(match qp_use {
                QpUse::Neighbour(index) => {
                    let ip = group.ip(group.neighbours[index].member);
                    match done.status {
                        Status::RetryExceeded | Status::RnrRetryExceeded | Status::Flushed => {
                            Failure::Gone(ip)
                        }
                        Status::LocalProtection => Failure::NoMemory(self.config.address),
                        // For instance a block that is too long, or a ready word at an invalid address.
                        _ => Failure::Violation(ip),
                    }
                }
                QpUse::ToSwitch(_) | QpUse::FromSwitch => Failure::Switch(group.ip(0)),
            })
        };
        self.apply_result(nic, number, result, now);
    }

    pub(super) fn on_deadline(&mut self, nic: &mut Rnic, now: Nanos) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        let late = self.groups.values().filter(|group| !group.is_open() && group.deadline <= now);
        let late = late.map(|group| {
            let failure = match group.timeout_failure() {
                // This node has dropped the peer's group.
                Failure::NotCreated(peer) if self.dropped_early.contains(&peer) => {
                    Failure::NoRoom(self.config.address)
                }
                failure => failure,
            };
            (group.config.number, failure)
        });
        for (number, failure) in late.collect::<Vec<_>>() {
            self.fail(nic, number, failure, now);
        }
        for early in self.early.values_mut() {
            early.retain(|_, early| early.failed.is_none_or(|(_, _, until)| until > now));
        }
        self.early.retain(|_, early| !early.is_empty());
        let forming = self.groups.values().filter(|group| !group.is_open()).map(|group| group.deadline);
        let failed = self.early.values().flat_map(BTreeMap::values);
        let forgotten = failed.filter_map(|early| early.failed.map(|(_, _, until)| until));
        self.deadline = forming.chain(forgotten).min();
    }

    pub(super) fn progress(&mut self, nic: &mut Rnic, number: u32, now: Nanos) {
        let (Some(resources), Some(group)) = (&mut self.resources, self.groups.get_mut(&number)) else {
            return;
        };
        if let (Some(switch), Some(switch_connections)) = (group.config.switch, &group.switch_connections)
            && group.is_root()
            && switch_connections.to_switch.is_empty()
            && group.is_created_by_all()
        {
            let switch = (switch, self.config.port);
            if let Err(failure) =
                in_network::request_groups(group, nic, resources, &mut self.conns, switch, now)
            {
                return self.fail(nic, number, failure, now);
            }
        }
        let before = group.messages;
        match group.progress(nic, resources) {
            Err(failure) => self.fail(nic, number, failure, now),
            Ok(Outcome { to_send, opened, closed, waits }) => {
                self.counters.messages += group.messages - before;
                for (member, message) in to_send {
                    self.mesh.send(nic, group.config.members[member as usize], number, message);
                }
                if opened {
                    self.events.push_back(Event::Open(number));
                }
                if waits {
                    self.waiting.insert(number, group.awaited_ready_word());
                } else {
                    self.waiting.remove(&number);
                }
                if closed {
                    self.close(nic, number, now);
                }
            }
        }
    }

    /// Closes a group: all members have all messages.
    fn close(&mut self, nic: &mut Rnic, number: u32, now: Nanos) {
        if self.remove(nic, number, now).is_some() {
            self.events.push_back(Event::Closed(number));
        }
    }

    /// Fails a group, and reports the failure to all members that can be reached.
    pub(super) fn fail(&mut self, nic: &mut Rnic, number: u32, failure: Failure, now: Nanos) {
        let Some((group, unfinished)) = self.remove(nic, number, now) else { return };
        let late = matches!(failure, Failure::NotCreated(_) | Failure::NotJoined(_) | Failure::Switch(_));
        let missing_members = if late { group.missing_members() } else { Vec::new() };
        let members = &group.config.members;
        let message = Message::failed(&failure, members);
        for peer in members.iter().filter(|ip| **ip != self.config.address) {
            if self.has_bug(crate::Bug::NoRelay) {
                break;
            }
            self.mesh.send(nic, *peer, number, message);
        }
        self.failed.insert(number, failure);
        self.events.push_back(Event::Failed { group: number, failure, unfinished, missing_members });
    }

    fn remove(&mut self, nic: &mut Rnic, number: u32, now: Nanos) -> Option<(Group, Vec<MessageMemory>)> {
        let resources = self.resources.as_mut()?;
        let mut group = self.groups.remove(&number)?;
        self.due.remove(&number);
        self.waiting.remove(&number);
        self.conns.retain(|_, (of, _)| *of != number);
        let unfinished = group.tear_down(nic, resources, now);
        for member in group.other_members() {
            self.mesh.release(group.ip(member));
        }
        Some((group, unfinished))
    }
}

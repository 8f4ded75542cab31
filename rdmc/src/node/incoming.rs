//! What comes in at a node: completions, connections and messages, what its groups make of them, and how they end.

use super::{Ahead, Event, MAX_AHEAD, Node};
use crate::config::{Failure, Memory};
use crate::group::{Group, Outcome, Use};
use crate::mesh::News;
use crate::through;
use crate::wire::Message;
use core::net::IpAddr;
use rnic::cm::Event as CmEvent;
use rnic::{Completion, CompletionOpcode, Rnic, Status};
use rocev2::cm::RejReason;
use std::collections::BTreeMap;
use switch::Nanos;

impl Node {
    /// Groups that waited, and can go on
    pub(super) fn wake(&mut self, nic: &Rnic) {
        let Some(resources) = &self.resources else { return };
        let Self { waiting, groups, due, .. } = self;
        waiting.retain(|number, of| {
            let goes_on = match of {
                Some((word, need)) => need.is_met(resources.word(nic, *word)),
                None => groups.get(number).is_none_or(|group| group.may_go_on(nic, resources)),
            };
            if goes_on {
                due.insert(*number);
            }
            !goes_on
        });
    }

    /// What there is to hear from others.
    pub(super) fn hear(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(news) = self.mesh.poll() {
            match news {
                News::Up(peer) => {
                    self.introduce(nic, peer);
                    if self.called.contains(&peer) {
                        self.events.push_back(Event::Reached(peer));
                    }
                }
                News::Lost(peer) => {
                    self.on_lost(nic, peer, now);
                    if self.called.contains(&peer) {
                        self.events.push_back(Event::Lost(peer));
                    }
                }
                News::Message(peer, _, Message::Note(note)) => {
                    // Who was not called has nothing to say.
                    if self.called.contains(&peer) {
                        self.events.push_back(Event::Note(peer, note));
                    }
                }
                News::Message(peer, group, message) => self.on_message(nic, peer, group, message, now),
            }
        }
    }

    /// Tells another node of the groups with it.
    fn introduce(&mut self, nic: &mut Rnic, peer: IpAddr) {
        let Some(resources) = &self.resources else { return };
        for (number, group) in &self.groups {
            if let Some(member) = group.member(peer) {
                let create = group.create_for(nic, resources, member);
                self.mesh.send(nic, peer, *number, create);
            }
        }
    }

    /// A node is gone: with it all groups in which it has said something, and what it has said of others.
    fn on_lost(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) {
        self.ahead.remove(&peer);
        #[cfg(debug_assertions)]
        let named = if self.config.bug == Some(crate::Bug::WrongMember) { self.config.address } else { peer };
        #[cfg(not(debug_assertions))]
        let named = peer;
        let shared = self.groups.iter().filter(|(_, group)| {
            group.member(peer).is_some_and(|member| group.others[member as usize].create.is_some())
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
        // What is said behind the announcement of a later life of the group is about that one.
        let ahead = self.ahead.get_mut(&peer).and_then(|ahead| ahead.get_mut(&number));
        if let Some(ahead) = ahead {
            match message {
                Message::Create(create) => *ahead = Ahead { create, failed: None },
                Message::Failed { code, member } => {
                    // Members that are about to create it have as long as those that have done so. Behind that it would be
                    // another group of this number that fails.
                    let until = now + self.config.create_timeout;
                    ahead.failed = Some((code, member, until));
                    self.deadline = Some(self.deadline.map_or(until, |at| at.min(until)));
                }
                // Nothing else can be said before this node has created it, too.
                _ => {}
            }
            return;
        }
        let group = self.groups.get_mut(&number);
        let of = group.and_then(|group| group.member(peer).map(|member| (group, member)));
        let known = of.as_ref().and_then(|(group, member)| group.others[*member as usize].create);
        if let Message::Create(create) = message {
            match (of, known) {
                (Some((group, member)), None) => {
                    let Some(resources) = &self.resources else { return };
                    let made = group.on_create(nic, resources, member, create);
                    self.settle(nic, number, made, now);
                }
                // It was introduced twice.
                (Some(_), Some(known)) if known.life == create.life => {}
                _ => {
                    let ahead = self.ahead.entry(peer).or_default();
                    if ahead.len() < MAX_AHEAD {
                        ahead.insert(number, Ahead { create, failed: None });
                    } else {
                        self.counters.forgotten += 1;
                    }
                }
            }
            return;
        }
        // What is about an earlier life of the group is no news.
        let (Some((group, member)), Some(_)) = (of, known) else { return };
        let heard = match message {
            Message::Joined => {
                group.on_joined(member);
                Ok(())
            }
            Message::Failed { code, member: of } => {
                let of = group.config.members.get(of as usize).copied();
                Err(of.and_then(|ip| Failure::of(code, ip)).unwrap_or(Failure::Violation(peer)))
            }
            Message::Close { messages } => group.on_close(member, messages),
            Message::Received { messages } => group.on_received(member, messages),
            Message::Done => match group.on_done(member) {
                Ok(()) => return self.close(nic, number, now),
                wrong => wrong,
            },
            Message::Create(_) | Message::Ping | Message::Pong | Message::Note(_) => Ok(()),
        };
        self.settle(nic, number, heard, now);
    }

    /// After something happened to a group: it goes on, or fails.
    fn settle(&mut self, nic: &mut Rnic, number: u32, result: Result<(), Failure>, now: Nanos) {
        match result {
            Ok(()) => _ = self.due.insert(number),
            Err(failure) => self.fail(nic, number, failure, now),
        }
    }

    pub(super) fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            let joined = through::asked_for(&request.private_data).and_then(|(root, number)| {
                let of = |group: &&mut Group| {
                    let switch = group.config.through.map(|switch| switch.address);
                    group.ip(0) == root && switch == Some(request.peer.remote)
                };
                let group = self.groups.get_mut(&number).filter(of)?;
                let resources = self.resources.as_mut()?;
                through::join(group, nic, resources, &mut self.conns, conn, now)?;
                self.due.insert(number);
                Some(())
            });
            if joined.is_none() {
                _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
            }
            return;
        }
        let Some((number, of)) = self.conns.get(&conn).copied() else { return };
        if event.is_last() {
            self.conns.remove(&conn);
        }
        if let Some(group) = self.groups.get_mut(&number).filter(|group| !group.is_through()) {
            let result = through::on_cm(group, of, event);
            self.settle(nic, number, result, now);
        }
    }

    pub(super) fn on_completion(&mut self, nic: &mut Rnic, done: &Completion, now: Nanos) {
        let Some(resources) = &self.resources else { return };
        let Some((number, of)) = resources.uses.get(&done.qpn.get()).copied() else { return };
        let Some(group) = self.groups.get_mut(&number) else { return };
        let place = if let Use::Neighbour(place) = of { place } else { 0 };
        let result = if done.status == Status::Success {
            match done.opcode {
                CompletionOpcode::Recv => {
                    self.counters.blocks_received += 1;
                    group.on_block(nic, resources, place, done.immediate, done.len)
                }
                CompletionOpcode::Send => {
                    self.counters.blocks_sent += 1;
                    group.on_sent(of);
                    Ok(())
                }
                // A WRITE with an immediate value has taken the receive of a block.
                _ => Err(Failure::Violation(match of {
                    Use::Neighbour(place) => group.ip(group.neighbours[place].member),
                    Use::Lane(_) | Use::Feed => group.ip(0),
                })),
            }
        } else if group.is_through() {
            return;
        } else {
            Err(match of {
                Use::Neighbour(place) => {
                    let ip = group.ip(group.neighbours[place].member);
                    match done.status {
                        Status::RetryExceeded | Status::RnrRetryExceeded | Status::Flushed => {
                            Failure::Gone(ip)
                        }
                        Status::LocalProtection => Failure::NoMemory(self.config.address),
                        // A block that is longer than it can be, a word where none is, ...
                        _ => Failure::Violation(ip),
                    }
                }
                Use::Lane(_) | Use::Feed => Failure::Switch(group.ip(0)),
            })
        };
        self.settle(nic, number, result, now);
    }

    pub(super) fn on_deadline(&mut self, nic: &mut Rnic, now: Nanos) {
        if self.deadline.is_none_or(|at| at > now) {
            return;
        }
        let late = self.groups.values().filter(|group| !group.is_open() && group.deadline <= now);
        let late = late.map(|group| (group.config.number, group.late()));
        for (number, failure) in late.collect::<Vec<_>>() {
            self.fail(nic, number, failure, now);
        }
        for ahead in self.ahead.values_mut() {
            ahead.retain(|_, ahead| ahead.failed.is_none_or(|(_, _, until)| until > now));
        }
        self.ahead.retain(|_, ahead| !ahead.is_empty());
        let forming = self.groups.values().filter(|group| !group.is_open()).map(|group| group.deadline);
        let failed = self.ahead.values().flat_map(BTreeMap::values);
        let forgotten = failed.filter_map(|ahead| ahead.failed.map(|(_, _, until)| until));
        self.deadline = forming.chain(forgotten).min();
    }

    pub(super) fn progress(&mut self, nic: &mut Rnic, number: u32, now: Nanos) {
        let (Some(resources), Some(group)) = (&mut self.resources, self.groups.get_mut(&number)) else {
            return;
        };
        if let (Some(switch), Some(through)) = (group.config.through, &group.through)
            && group.is_root()
            && through.lanes.is_empty()
            && group.is_created_by_all()
        {
            let switch = (switch, self.config.port);
            if let Err(failure) = through::open(group, nic, resources, &mut self.conns, switch, now) {
                return self.fail(nic, number, failure, now);
            }
        }
        let before = group.messages;
        match group.progress(nic, resources) {
            Err(failure) => self.fail(nic, number, failure, now),
            Ok(Outcome { say, opened, closed, waits }) => {
                self.counters.messages += group.messages - before;
                for (member, message) in say {
                    self.mesh.send(nic, group.config.members[member as usize], number, message);
                }
                if opened {
                    self.events.push_back(Event::Open(number));
                }
                if waits {
                    self.waiting.insert(number, group.waits_for());
                } else {
                    self.waiting.remove(&number);
                }
                if closed {
                    self.close(nic, number, now);
                }
            }
        }
    }

    /// Everything is everywhere.
    fn close(&mut self, nic: &mut Rnic, number: u32, now: Nanos) {
        if self.remove(nic, number, now).is_some() {
            self.events.push_back(Event::Closed(number));
        }
    }

    /// A group has failed: whoever can be told is told.
    pub(super) fn fail(&mut self, nic: &mut Rnic, number: u32, failure: Failure, now: Nanos) {
        let Some((group, unfinished)) = self.remove(nic, number, now) else { return };
        let late = matches!(failure, Failure::Silent(_) | Failure::Unjoined(_) | Failure::Switch(_));
        let lacking = if late { group.lacking() } else { Vec::new() };
        let members = &group.config.members;
        let message = Message::failed(&failure, members);
        for peer in members.iter().filter(|ip| **ip != self.config.address) {
            #[cfg(debug_assertions)]
            if self.config.bug == Some(crate::Bug::NoRelay) {
                break;
            }
            self.mesh.send(nic, *peer, number, message);
        }
        self.failed.insert(number, failure);
        self.events.push_back(Event::Failed { group: number, failure, unfinished, lacking });
    }

    fn remove(&mut self, nic: &mut Rnic, number: u32, now: Nanos) -> Option<(Group, Vec<Memory>)> {
        let resources = self.resources.as_mut()?;
        let mut group = self.groups.remove(&number)?;
        self.due.remove(&number);
        self.waiting.remove(&number);
        self.conns.retain(|_, (of, _)| *of != number);
        let unfinished = group.tear_down(nic, resources, now);
        for member in group.others_of() {
            self.mesh.release(group.ip(member));
        }
        Some((group, unfinished))
    }
}

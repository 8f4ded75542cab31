//! A node: all groups that it is a member of, on one NIC, and what an application asks of it. [`incoming`] is what others
//! do to it.

mod incoming;

use crate::config::{CallError, Config, Failure, GroupConfig, Memory, StartError};
use crate::group::ready::Need;
use crate::group::transfer::is_within;
use crate::group::{self, Group, IncomingMessage, MessageComplete, READY_VA, Resources, Use, WORD};
use crate::mesh::{Mesh, Queues};
use crate::wire::{Create, Message, NOTE};
use core::net::IpAddr;
use rnic::cm::{Conn, PortSpace};
use rnic::{Access, Pd, ResourceCounts, Rnic};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::{Nanos, Rng};

/// Groups that another node has created and this one has not (yet)
const MAX_AHEAD: usize = 4096;

/// What happened to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All members are there.
    Open(u32),
    /// It was closed, and every message is at every member. It is gone.
    Closed(u32),
    /// It failed, and is gone but for [`Node::destroy_group`].
    Failed {
        /// Its number
        group: u32,
        /// Why
        failure: Failure,
        /// The memory of messages that are not complete here, also if it was none that could be used
        unfinished: Vec<Memory>,
        /// If it failed as its time was over: members that this node has not heard creating it
        lacking: Vec<IpAddr>,
    },
    /// A node that was [called](Node::call) can be spoken to.
    Reached(IpAddr),
    /// A node that was called is gone. It is tried again.
    Lost(IpAddr),
    /// What the application of another node says
    Note(IpAddr, [u8; Node::NOTE]),
}

/// What a node has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks sent, one that a switch copies once for each P4CE group
    pub blocks_sent: u64,
    /// Blocks received
    pub blocks_received: u64,
    /// Messages complete here
    pub messages: u64,
    /// Messages between nodes that were none
    pub malformed: u64,
    /// Groups that one other node has created and that were forgotten, as there were too many
    pub forgotten: u64,
}

/// Another node's part of a group that this one has not created (yet).
#[derive(Clone, Copy, Debug)]
struct Ahead {
    create: Create,
    /// That member says that it has failed: how, and when this is forgotten
    failed: Option<(u32, u32, Nanos)>,
}

/// A node. It does no I/O: [`run`](Self::run) is to be called when something came in at its NIC, when the time of
/// [`next_timer`](Self::next_timer) has come, and behind the calls that create, send and close.
#[derive(Debug)]
pub struct Node {
    config: Config,
    resources: Option<Resources>,
    mesh: Mesh,
    groups: BTreeMap<u32, Group>,
    /// Failed, and not destroyed
    failed: BTreeMap<u32, Failure>,
    /// By node and group
    ahead: BTreeMap<IpAddr, BTreeMap<u32, Ahead>>,
    /// Nodes that are spoken to beside groups
    called: BTreeSet<IpAddr>,
    /// Connections with switches
    conns: BTreeMap<Conn, (u32, Use)>,
    /// Groups with something to do
    due: BTreeSet<u32>,
    /// Groups that wait for others to say that they are ready: if it is one member's word, which, and what it has to say. A
    /// WRITE completes nothing where it is executed, so these are looked at whenever something came in.
    waiting: BTreeMap<u32, Option<(u32, Need)>>,
    /// No group is late before, and nothing is forgotten
    deadline: Option<Nanos>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Node {
    /// A node that has nothing.
    pub fn new(config: Config) -> Self {
        Self {
            mesh: Mesh::new(&config),
            resources: None,
            groups: BTreeMap::new(),
            failed: BTreeMap::new(),
            ahead: BTreeMap::new(),
            called: BTreeSet::new(),
            conns: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: BTreeMap::new(),
            deadline: None,
            events: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Takes what it needs of its NIC.
    ///
    /// # Errors
    /// If the NIC has no room, or somebody listens at the port.
    pub fn start(&mut self, nic: &mut Rnic) -> Result<(), StartError> {
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(self.config.completions())?;
        let words = self.config.connections as u32;
        let ready = nic.register_new(pd, words as usize * WORD, READY_VA, Access::REMOTE_WRITE)?;
        nic.listen(PortSpace::Tcp, self.config.port)?;
        self.resources = Some(Resources {
            pd,
            cq,
            ready,
            free_words: (0..words).rev().collect(),
            chance: Rng::stream(self.config.seed, 0x5244),
            uses: BTreeMap::new(),
            ack_timeout: self.config.ack_timeout,
            retry_count: self.config.retry_count,
            own: self.config.address,
            #[cfg(debug_assertions)]
            bug: self.config.bug,
        });
        Ok(())
    }

    /// The protection domain that messages have to be registered in
    pub fn pd(&self) -> Option<Pd> {
        self.resources.as_ref().map(|resources| resources.pd)
    }

    /// What it has taken of its NIC beside groups and their messages: a queue pair and a region for each link to another
    /// node, and a region for the words of all groups
    pub fn held(&self) -> ResourceCounts {
        let links = self.mesh.lanes();
        let regions = links + usize::from(self.resources.is_some());
        ResourceCounts { queue_pairs: links, regions, buffers: regions }
    }

    /// Words that groups have taken, one for each connection for blocks
    pub fn words(&self) -> usize {
        self.resources.as_ref().map_or(0, |resources| self.config.connections - resources.free_words.len())
    }

    /// What it has counted
    pub fn counters(&self) -> Counters {
        Counters { malformed: self.mesh.malformed, ..self.counters }
    }

    /// What happened to a group next
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Creates a group with other members that do the same (paper figure 1). `incoming_message` is asked for memory when a
    /// message begins to come in; `message_complete` is told when a message is complete here, at the root when its memory
    /// may be used anew. [`Event::Open`] says that all members are there.
    ///
    /// # Errors
    /// If the group cannot be. That a member has another idea of it is told by [`Event::Failed`].
    pub fn create_group(
        &mut self,
        nic: &mut Rnic,
        config: GroupConfig,
        incoming_message: IncomingMessage,
        message_complete: MessageComplete,
        now: Nanos,
    ) -> Result<(), CallError> {
        let resources = self.resources.as_mut().ok_or(CallError::NotStarted)?;
        let number = config.number;
        if self.groups.contains_key(&number) {
            return Err(CallError::Exists(number));
        }
        let own = group::check(&config, self.config.address)?;
        let others = config.members.iter().copied().filter(|ip| *ip != self.config.address);
        let peers: Vec<IpAddr> = others.collect();
        let lacking = self.mesh.make_room(nic, &peers, now);
        if lacking > 0 {
            return Err(CallError::Links(lacking));
        }
        let deadline = now + self.config.create_timeout;
        let callbacks = (incoming_message, message_complete);
        let group = Group::new(nic, resources, config, own, deadline, callbacks)?;
        self.deadline = Some(self.deadline.map_or(deadline, |at| at.min(deadline)));
        let queues = Queues { pd: resources.pd, cq: resources.cq };
        self.failed.remove(&number);
        for peer in &peers {
            self.mesh.want(nic, queues, *peer, now);
            if let Some(member) = group.member(*peer).filter(|_| self.mesh.is_up(*peer)) {
                let create = group.create_for(nic, resources, member);
                self.mesh.send(nic, *peer, number, create);
            }
        }
        self.groups.insert(number, group);
        self.due.insert(number);
        for peer in peers {
            let ahead = self.ahead.get_mut(&peer).and_then(|ahead| ahead.remove(&number));
            if let Some(Ahead { create, failed }) = ahead {
                self.on_message(nic, peer, number, Message::Create(create), now);
                if let Some((code, member, _)) = failed {
                    self.on_message(nic, peer, number, Message::Failed { code, member }, now);
                }
            }
        }
        Ok(())
    }

    /// Sends a message to a group, behind those before: the first `len` bytes from `memory` on, which belong to the node
    /// until `message_complete` is called.
    ///
    /// # Errors
    /// If this node is not the root, the group has failed or is being closed, or there is nothing to send.
    pub fn send(&mut self, nic: &Rnic, number: u32, memory: Memory, len: u32) -> Result<(), CallError> {
        let resources = self.resources.as_ref().ok_or(CallError::NotStarted)?;
        let Some(group) = self.groups.get_mut(&number) else {
            return Err(self.failed.get(&number).map_or(CallError::Unknown(number), |why| (*why).into()));
        };
        if !group.is_root() {
            return Err(CallError::NotRoot(number));
        }
        if group.closing {
            return Err(CallError::Closing(number));
        }
        if len == 0 {
            return Err(CallError::Empty);
        }
        let blocks = len.div_ceil(group.config.block_bytes);
        if blocks > GroupConfig::MAX_BLOCKS {
            return Err(CallError::Blocks(blocks));
        }
        if !is_within(nic, resources, memory, len, Access::LOCAL_READ) {
            return Err(CallError::NotRegistered);
        }
        group.queue.push_back((memory, len));
        self.due.insert(number);
        Ok(())
    }

    /// Closes a group. The root calls it when it has given everything to be sent: [`Event::Closed`] comes when every member
    /// has every message, [`Event::Failed`] if that will never be. A member may call it at any time, and hears the same.
    ///
    /// # Errors
    /// If the group has failed, which is forgotten then; or there is none, or none any more: a member may have heard that
    /// it is closed before.
    pub fn destroy_group(&mut self, number: u32) -> Result<(), CallError> {
        match self.groups.get_mut(&number) {
            Some(group) => {
                // Members are told by the root.
                group.closing |= group.is_root();
                self.due.insert(number);
                Ok(())
            }
            None => Err(self.failed.remove(&number).map_or(CallError::Unknown(number), Into::into)),
        }
    }

    /// Gives a group up, whatever has arrived: it fails at all members.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn abandon_group(&mut self, nic: &mut Rnic, number: u32, now: Nanos) -> Result<(), CallError> {
        if !self.groups.contains_key(&number) {
            return Err(CallError::Unknown(number));
        }
        self.fail(nic, number, Failure::Left(self.config.address), now);
        Ok(())
    }

    /// Whether everything that it had to say to others has been heard: a process that ends before leaves them in doubt.
    pub fn is_heard(&self) -> bool {
        self.mesh.is_heard()
    }

    /// Messages for other nodes that wait until those before are heard. What others say makes no more of them than groups and calls
    /// of its own have a use for.
    pub fn unsaid(&self) -> usize {
        self.mesh.unsaid()
    }

    /// Whether this bug was planted.
    #[cfg(debug_assertions)]
    pub(crate) fn has_bug(&self, bug: crate::Bug) -> bool {
        self.config.bug == Some(bug)
    }

    /// Bytes of a note
    pub const NOTE: usize = NOTE;

    /// Wants to speak to another node, beside any group: [`Event::Reached`] says when that is possible.
    ///
    /// # Errors
    /// If there is no room for a link to it, or the node has not started.
    pub fn call(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) -> Result<(), CallError> {
        let resources = self.resources.as_ref().ok_or(CallError::NotStarted)?;
        if peer.is_ipv4() != self.config.address.is_ipv4() {
            return Err(CallError::Family(peer));
        }
        if peer == self.config.address {
            return Err(CallError::Itself(peer));
        }
        if self.called.contains(&peer) {
            return Ok(());
        }
        let lacking = self.mesh.make_room(nic, &[peer], now);
        if lacking > 0 {
            return Err(CallError::Links(lacking));
        }
        self.called.insert(peer);
        self.mesh.want(nic, Queues { pd: resources.pd, cq: resources.cq }, peer, now);
        if self.mesh.is_up(peer) {
            self.events.push_back(Event::Reached(peer));
        }
        Ok(())
    }

    /// Does not want to speak to it any more.
    pub fn hang_up(&mut self, peer: IpAddr) {
        if self.called.remove(&peer) {
            self.mesh.release(peer);
        }
    }

    /// Says something to the application of a node that can be spoken to. It arrives once, and in order, unless
    /// [`Event::Lost`] comes.
    pub fn tell(&mut self, nic: &mut Rnic, peer: IpAddr, note: [u8; Self::NOTE]) {
        self.mesh.send(nic, peer, 0, Message::Note(note));
    }

    /// When [`run`](Self::run) is to be called, if nothing comes in before
    pub fn next_timer(&self) -> Option<Nanos> {
        if !self.due.is_empty() {
            return Some(Nanos::ZERO);
        }
        [self.mesh.next_timer(), self.deadline].into_iter().flatten().min()
    }

    /// Something came in, something was asked for, or the time has come.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(resources) = &self.resources else { return };
        let queues = Queues { pd: resources.pd, cq: resources.cq };
        loop {
            self.take_in(nic, queues, now);
            // What they tell is told by completions and connections as well.
            while nic.poll_event().is_some() {}
            self.mesh.on_timer(nic, queues, now);
            self.hear(nic, now);
            self.on_deadline(nic, now);
            self.wake(nic);
            while let Some(number) = self.due.pop_first() {
                self.progress(nic, number, now);
            }
            // What fails as soon as it is posted: nothing stays in the queue, which has room for all that may come before the next
            // time.
            if !nic.cq_has_completions(queues.cq) {
                break;
            }
        }
    }

    /// All that has come.
    fn take_in(&mut self, nic: &mut Rnic, queues: Queues, now: Nanos) {
        loop {
            // Connections first: what has come on one belongs to it.
            if let Some(event) = nic.poll_cm_event() {
                if !self.mesh.on_cm(nic, queues, &event, now) {
                    self.on_cm(nic, &event, now);
                }
            } else if let Some(done) = nic.poll_cq(queues.cq) {
                if !self.mesh.on_completion(nic, &done, now) {
                    self.on_completion(nic, &done, now);
                }
            } else {
                break;
            }
            self.hear(nic, now);
        }
    }
}

#[cfg(test)]
mod tests;

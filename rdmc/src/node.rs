//! A node: all groups of one endpoint on one NIC, and the calls of its application. [`incoming`] handles
//! events from other nodes.

mod incoming;

use crate::config::{CallError, Config, Failure, GroupConfig, MessageMemory, StartError};
use crate::group::ready::ReadyCondition;
use crate::group::transfer::is_within;
use crate::group::{
    self, Group, IncomingMessage, MessageComplete, QpUse, READY_VA, READY_WORD_LEN, Resources,
};
use crate::mesh::{Mesh, NicHandles};
use crate::wire::{Create, Message, NOTE};
use core::net::IpAddr;
use rnic::cm::{Conn, PortSpace};
use rnic::{Access, Pd, ResourceCounts, Rnic};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::{Nanos, Rng};

/// Maximum number of groups that one other node has created and this node has not (yet).
const MAX_EARLY: usize = 4096;

/// Event of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All members have created the group and are connected to each other.
    Open(u32),
    /// The group was closed: every member has every message. The group no longer exists.
    Closed(u32),
    /// The group failed. Only [`Node::destroy_group`] remains to be called.
    Failed {
        /// Number of the group.
        group: u32,
        /// Reason.
        failure: Failure,
        /// Memory of all messages that are not complete at this node, including memory that was unusable.
        unfinished: Vec<MessageMemory>,
        /// If the group failed at its deadline: the members of which this node has received no `Create`.
        missing_members: Vec<IpAddr>,
    },
    /// The link to a node that was [requested](Node::request_link) is established.
    LinkUp(IpAddr),
    /// The link to a node that was requested is lost. The node keeps trying to establish it again.
    LinkLost(IpAddr),
    /// Note from the application of another node.
    Note(IpAddr, [u8; Node::NOTE]),
}

/// Counters of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks sent. A block that a switch copies counts once for each P4CE group.
    pub blocks_sent: u64,
    /// Blocks received.
    pub blocks_received: u64,
    /// Messages complete at this node.
    pub messages: u64,
    /// Malformed messages from other nodes.
    pub malformed: u64,
    /// Groups that another node created first and that were dropped because there were too many.
    pub forgotten: u64,
    /// Notes that were not sent, because no link was established.
    pub notes_dropped: u64,
}

/// State of another member for a group that this node has not created (yet).
#[derive(Clone, Copy, Debug)]
struct EarlyCreate {
    create: Create,
    /// The failure that the member has reported: code, index of the member at fault, and the time at which
    /// this entry expires.
    failed: Option<(u32, u32, Nanos)>,
}

/// An RDMC endpoint. It does no I/O. Call [`run`](Self::run) when something has arrived at its NIC, when the
/// time of [`next_timer`](Self::next_timer) has come, and after calls that create, send and close.
///
/// Call [`start`](Self::start) first, then [`create_group`](Self::create_group) at all members,
/// [`send`](Self::send) at the root, and [`destroy_group`](Self::destroy_group) at the end; take events from
/// [`poll_event`](Self::poll_event).
#[derive(Debug)]
pub struct Node {
    config: Config,
    resources: Option<Resources>,
    mesh: Mesh,
    groups: BTreeMap<u32, Group>,
    /// Groups that have failed and were not destroyed.
    failed: BTreeMap<u32, Failure>,
    /// By node and group number.
    early: BTreeMap<IpAddr, BTreeMap<u32, EarlyCreate>>,
    /// Peers of which a group was dropped because there were too many
    dropped_early: BTreeSet<IpAddr>,
    /// Nodes to which the application keeps a link besides those of groups.
    requested_links: BTreeSet<IpAddr>,
    /// Connections with switches.
    conns: BTreeMap<Conn, (u32, QpUse)>,
    /// Groups that may be able to make progress.
    due: BTreeSet<u32>,
    /// Groups that wait for ready words. If it is the word of one neighbour: its index, and the condition on
    /// it. A WRITE completes nothing where it is executed, so these words are read after every event.
    waiting: BTreeMap<u32, Option<(u32, ReadyCondition)>>,
    /// Lower bound of the deadlines of groups and of the expiry of failures reported early.
    deadline: Option<Nanos>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Node {
    /// Returns a node that has not started.
    pub fn new(config: Config) -> Self {
        Self {
            mesh: Mesh::new(&config),
            resources: None,
            groups: BTreeMap::new(),
            failed: BTreeMap::new(),
            early: BTreeMap::new(),
            dropped_early: BTreeSet::new(),
            requested_links: BTreeSet::new(),
            conns: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: BTreeMap::new(),
            deadline: None,
            events: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// Allocates the node's resources of its NIC, and listens for connections.
    ///
    /// # Errors
    /// If the NIC has no room, or the port is in use.
    pub fn start(&mut self, nic: &mut Rnic) -> Result<(), StartError> {
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(self.config.completions())?;
        let word_count = self.config.connections as u32;
        let ready_words =
            nic.register_new(pd, word_count as usize * READY_WORD_LEN, READY_VA, Access::REMOTE_WRITE)?;
        nic.listen(PortSpace::Tcp, self.config.port)?;
        self.resources = Some(Resources {
            pd,
            cq,
            ready_words,
            free_ready_words: (0..word_count).rev().collect(),
            rng: Rng::stream(self.config.seed, 0x5244),
            uses: BTreeMap::new(),
            ack_timeout: self.config.ack_timeout,
            retry_count: self.config.retry_count,
            own: self.config.address,
            bug: self.config.bug,
        });
        Ok(())
    }

    /// Returns the protection domain in which messages have to be registered, or `None` before
    /// [`start`](Self::start).
    pub fn pd(&self) -> Option<Pd> {
        self.resources.as_ref().map(|resources| resources.pd)
    }

    /// Returns the resources that the node has taken of its NIC besides those of groups and their messages: a
    /// queue pair and a region for each link to another node, and a region for the ready words of all groups.
    pub fn resource_counts(&self) -> ResourceCounts {
        let links = self.mesh.connection_count();
        let regions = links + usize::from(self.resources.is_some());
        ResourceCounts { queue_pairs: links, regions, buffers: regions }
    }

    /// Returns the number of ready words in use by groups, one for each block connection.
    pub fn ready_words_in_use(&self) -> usize {
        self.resources
            .as_ref()
            .map_or(0, |resources| self.config.connections - resources.free_ready_words.len())
    }

    /// Returns the node's counters.
    pub fn counters(&self) -> Counters {
        Counters { malformed: self.mesh.malformed, ..self.counters }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Creates a group with other members, which do the same (RDMC, figure 1). `incoming_message` is called
    /// for memory when a message begins to arrive. `message_complete` is called when a message is complete at
    /// this member; at the root, when its memory may be reused. [`Event::Open`] reports that all members have
    /// created the group.
    ///
    /// # Errors
    /// If the configuration is invalid, the group exists, or the node or the NIC has no room. If a member has
    /// another configuration of the group, [`Event::Failed`] reports it later.
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
        let missing_links = self.mesh.make_room(nic, &peers, now);
        if missing_links > 0 {
            return Err(CallError::Links(missing_links));
        }
        let deadline = now + self.config.create_timeout;
        let callbacks = (incoming_message, message_complete);
        let group = Group::new(nic, resources, config, own, deadline, callbacks)?;
        self.deadline = Some(self.deadline.map_or(deadline, |at| at.min(deadline)));
        let handles = NicHandles { pd: resources.pd, cq: resources.cq };
        self.failed.remove(&number);
        for peer in &peers {
            self.mesh.acquire(nic, handles, *peer, now);
            if let Some(member) = group.member(*peer).filter(|_| self.mesh.is_up(*peer)) {
                let create = group.create_for(nic, resources, member);
                self.mesh.send(nic, *peer, number, create);
            }
        }
        self.groups.insert(number, group);
        self.due.insert(number);
        for peer in peers {
            let early = self.early.get_mut(&peer).and_then(|early| early.remove(&number));
            if let Some(EarlyCreate { create, failed }) = early {
                self.on_message(nic, peer, number, Message::Create(create), now);
                if let Some((code, member, _)) = failed {
                    self.on_message(nic, peer, number, Message::Failed { code, member }, now);
                }
            }
        }
        Ok(())
    }

    /// Queues a message to a group, after the messages queued before: the first `len` bytes from `memory` on.
    /// The memory belongs to the node until `message_complete` is called.
    ///
    /// # Errors
    /// If this node is not the root, the group has failed or is being closed, or the message is empty, too
    /// long, or not in a region of the node's protection domain.
    pub fn send(
        &mut self,
        nic: &Rnic,
        number: u32,
        memory: MessageMemory,
        len: u32,
    ) -> Result<(), CallError> {
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

    /// Closes a group. The root calls it after the last [`send`](Self::send). [`Event::Closed`] reports that
    /// every member has every message, [`Event::Failed`] that this is impossible. Another member may call it
    /// at any time, and gets the same events.
    ///
    /// # Errors
    /// If the group has failed; the failure is then forgotten. If there is no such group, which is also the
    /// case at a member to which the root has already reported that the group is closed.
    pub fn destroy_group(&mut self, number: u32) -> Result<(), CallError> {
        match self.groups.get_mut(&number) {
            Some(group) => {
                // The root informs the other members.
                group.closing |= group.is_root();
                self.due.insert(number);
                Ok(())
            }
            None => Err(self.failed.remove(&number).map_or(CallError::Unknown(number), Into::into)),
        }
    }

    /// Abandons a group: it fails at all members, whatever has arrived.
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

    /// Returns whether all messages to other nodes are acknowledged. A process that ends earlier leaves its
    /// peers without them.
    pub fn all_acknowledged(&self) -> bool {
        self.mesh.is_acknowledged()
    }

    /// Returns the number of messages to other nodes that wait for earlier ones to be acknowledged. Messages
    /// from peers do not make it larger than the node's own groups and requested links require.
    pub fn queued_messages(&self) -> usize {
        self.mesh.queued_messages()
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(crate) fn has_bug(&self, bug: crate::Bug) -> bool {
        cfg!(debug_assertions) && self.config.bug == Some(bug)
    }

    /// Bytes of a note.
    pub const NOTE: usize = NOTE;

    /// Requests a link to another node, independently of groups. [`Event::LinkUp`] reports that it is
    /// established.
    ///
    /// # Errors
    /// If there is no room for a link, the address is this node's own or of the other IP version, or the node
    /// has not started.
    pub fn request_link(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) -> Result<(), CallError> {
        let resources = self.resources.as_ref().ok_or(CallError::NotStarted)?;
        if peer.is_ipv4() != self.config.address.is_ipv4() {
            return Err(CallError::Family(peer));
        }
        if peer == self.config.address {
            return Err(CallError::Itself(peer));
        }
        if self.requested_links.contains(&peer) {
            return Ok(());
        }
        let missing_links = self.mesh.make_room(nic, &[peer], now);
        if missing_links > 0 {
            return Err(CallError::Links(missing_links));
        }
        self.requested_links.insert(peer);
        self.mesh.acquire(nic, NicHandles { pd: resources.pd, cq: resources.cq }, peer, now);
        if self.mesh.is_up(peer) {
            self.events.push_back(Event::LinkUp(peer));
        }
        Ok(())
    }

    /// Releases a link that was requested by [`request_link`](Self::request_link).
    pub fn release_link(&mut self, peer: IpAddr) {
        if self.requested_links.remove(&peer) {
            self.mesh.release(peer);
        }
    }

    /// Sends a note to the application of a node to which a link is established. It arrives once, and in
    /// order, unless [`Event::LinkLost`] follows. Without a link, drops and counts the note, and returns
    /// `false`.
    pub fn send_note(&mut self, nic: &mut Rnic, peer: IpAddr, note: [u8; Self::NOTE]) -> bool {
        let sent = self.mesh.send(nic, peer, 0, Message::Note(note));
        self.counters.notes_dropped += u64::from(!sent);
        sent
    }

    /// Returns the time at which [`run`](Self::run) is to be called, unless something arrives earlier.
    pub fn next_timer(&self) -> Option<Nanos> {
        if !self.due.is_empty() {
            return Some(Nanos::ZERO);
        }
        [self.mesh.next_timer(), self.deadline].into_iter().flatten().min()
    }

    /// Handles everything that has arrived, all requests of the application, and all deadlines up to `now`.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(resources) = &self.resources else { return };
        let handles = NicHandles { pd: resources.pd, cq: resources.cq };
        loop {
            self.poll_nic(nic, handles, now);
            // Completions and CM events carry the same information.
            while nic.poll_event().is_some() {}
            self.mesh.on_timer(nic, handles, now);
            self.handle_mesh_events(nic, now);
            self.on_deadline(nic, now);
            self.wake(nic);
            while let Some(number) = self.due.pop_first() {
                self.progress(nic, number, now);
            }
            // A request may fail as soon as it is posted. Nothing is left in the completion queue, which has
            // room for all completions until the next call.
            if !nic.cq_has_completions(handles.cq) {
                break;
            }
        }
    }

    /// Handles all CM events and completions.
    fn poll_nic(&mut self, nic: &mut Rnic, handles: NicHandles, now: Nanos) {
        loop {
            // CM events come first: a completion needs the connection to which it belongs.
            if let Some(event) = nic.poll_cm_event() {
                if !self.mesh.on_cm(nic, handles, &event, now) {
                    self.on_cm(nic, &event, now);
                }
            } else if let Some(done) = nic.poll_cq(handles.cq) {
                if !self.mesh.on_completion(nic, &done, now) {
                    self.on_completion(nic, &done, now);
                }
            } else {
                break;
            }
            self.handle_mesh_events(nic, now);
        }
    }
}

#[cfg(test)]
mod tests;

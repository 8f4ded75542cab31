//! Group state at one member: creation, block connections and closing. [`transfer`] sends and receives
//! blocks.
//!
//! ```text
//! create_group:  Create, with the ends of connections, to all ---> Create received from all: connected
//!                Joined to all ---> Joined received from all: open
//! destroy_group: root: Close to all when all messages are sent ---> member: Received to the root when complete
//!                root: Done to all when Received has come from all, closed ---> member: closed
//! any failure:   Failed to all, relayed by each member to all: failed
//! ```

mod closing;
pub(crate) mod ready;
mod resources;
pub(crate) mod transfer;
mod validate;

pub(crate) use resources::{QpUse, READY_VA, READY_WORD_LEN, Resources};
pub(crate) use validate::check;

use crate::config::{CallError, Failure, GroupConfig, MessageMemory};
use crate::depth::Depth;
use crate::schedule::{Algorithm, Schedule};
use crate::wire::{Create, End, Message};
use core::net::IpAddr;
use ready::ReadyCondition;
use rnic::cm::Conn;
use rnic::{
    Access, Buffer, Data, Modify, Mr, Operation, Path, PathMtu, ReadyToReceive, ReadyToSend, Remote, Rnic,
    SendRequest,
};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use transfer::{ReceiveTarget, Transfer, TransferContext};

/// Callback for an incoming message of the given number of bytes. Returns memory for it, or `None` if there
/// is none.
pub type IncomingMessage = Box<dyn FnMut(&mut Rnic, u32) -> Option<MessageMemory> + Send>;
/// Callback for a message that is complete at this member, with its memory and its number of bytes. The
/// memory may be reused.
pub type MessageComplete = Box<dyn FnMut(&mut Rnic, MessageMemory, u32) + Send>;

/// State of another member, as known here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemberState {
    pub(crate) create: Option<Create>,
    joined: bool,
    /// At the root: this member has all messages.
    received: bool,
}

/// Member with which this member exchanges blocks.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub(crate) member: u32,
    pub(crate) qpn: Qpn,
    psn: Psn,
    /// Index of the ready word in which the neighbour reports how many blocks it is ready for.
    pub(crate) ready_word: u32,
    /// Location of the neighbour's ready word, to which this member writes.
    pub(crate) remote_ready_word: Option<Remote>,
    /// Blocks sent to the neighbour, and receives posted for blocks from it, since the group was created.
    pub(crate) sent: u64,
    pub(crate) receives_posted: u64,
    /// Receives that are posted and have not completed.
    pub(crate) receive_targets: VecDeque<ReceiveTarget>,
    /// Index in the staging buffer for the first block of a message, if the neighbour may send that block.
    pub(crate) staging_slot: Option<u32>,
    /// Message for which a staging receive is posted without an expected block: it takes the first block of
    /// that message.
    pub(crate) spare_for_message: Option<u64>,
    /// Another neighbour may send the first block of a message, too. The ready word then carries the message
    /// of the spare receive.
    pub(crate) first_sender_ambiguous: bool,
    /// A ready word is written only while fewer sends than this are pending. The rest of the send queue is
    /// reserved for blocks.
    ready_write_limit: usize,
    /// The neighbour's ready word is out of date, because the send queue was full.
    pub(crate) ready_word_stale: bool,
}

/// State of a group whose blocks a switch copies.
#[derive(Debug, Default)]
pub(crate) struct SwitchConnections {
    /// At the root: queue pairs to the switch, one for each P4CE group.
    pub(crate) to_switch: Vec<SwitchConnection>,
    /// At any other member: queue pair from the switch.
    pub(crate) from_switch: Option<(Qpn, Conn, Mr, Buffer)>,
    pub(crate) from_switch_connected: bool,
}

#[derive(Debug)]
pub(crate) struct SwitchConnection {
    pub(crate) qpn: Qpn,
    pub(crate) conn: Conn,
    pub(crate) connected: bool,
    pub(crate) acknowledged: u64,
}

/// Result of [`Group::progress`], for the node to carry out.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Messages to members, by member index.
    pub(crate) to_send: Vec<(u32, Message)>,
    pub(crate) opened: bool,
    pub(crate) closed: bool,
    /// The group waits for the ready word of a receiver.
    pub(crate) waits: bool,
}

impl Outcome {
    fn send_to_all(&mut self, group: &Group, message: Message) {
        self.to_send.extend(group.other_members().map(|member| (member, message)));
    }
}

/// Progress of a group's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A member's `Create` is missing, or the switch has not established its connections.
    Forming,
    /// This member's connections are established, and it has sent `Joined`.
    Joined,
    /// The connections of all members are established.
    Open,
}

/// A group at one member.
pub(crate) struct Group {
    pub(crate) config: GroupConfig,
    /// Index of this member.
    pub(crate) own: u32,
    pub(crate) incarnation: u64,
    config_hash: u64,
    pub(crate) member_states: Vec<MemberState>,
    pub(crate) neighbours: Vec<Neighbour>,
    /// By member index: index in `neighbours`.
    pub(crate) index_by_member: BTreeMap<u32, usize>,
    /// Staging buffer for first blocks.
    pub(crate) staging_buffer: Option<(Buffer, Mr)>,
    pub(crate) switch_connections: Option<SwitchConnections>,
    pub(crate) deadline: Nanos,
    stage: Stage,
    pub(crate) transfer: Option<Transfer>,
    /// At the root: messages that wait to be sent, with their lengths in bytes.
    pub(crate) queue: VecDeque<(MessageMemory, u32)>,
    /// Memory that the application gave for a message, outside of any usable region.
    pub(crate) unusable_memory: Option<MessageMemory>,
    /// Number of messages that are complete at this member.
    pub(crate) messages: u64,
    /// At the root: no more messages will be sent.
    pub(crate) closing: bool,
    close_reported: bool,
    /// At any other member: total number of messages, once the root has announced it.
    total_messages: Option<u64>,
    pub(crate) incoming: IncomingMessage,
    pub(crate) complete: MessageComplete,
}

impl Group {
    /// Creates the state, queue pairs and memory of a group. Sends nothing.
    ///
    /// # Errors
    /// If the NIC has no room, or the node has too few ready words. Nothing is kept then.
    pub(crate) fn new(
        nic: &mut Rnic,
        resources: &mut Resources,
        config: GroupConfig,
        own: u32,
        deadline: Nanos,
        callbacks: (IncomingMessage, MessageComplete),
    ) -> Result<Self, CallError> {
        let n = config.members.len() as u32;
        let switch_connections = (config.algorithm == Algorithm::InNetwork).then(SwitchConnections::default);
        let mut group = Self {
            config_hash: validate::config_hash(&config),
            own,
            incarnation: resources.rng.bits(),
            member_states: vec![MemberState::default(); n as usize],
            neighbours: Vec::new(),
            index_by_member: BTreeMap::new(),
            staging_buffer: None,
            switch_connections,
            deadline,
            stage: Stage::Forming,
            transfer: None,
            queue: VecDeque::new(),
            unusable_memory: None,
            messages: 0,
            closing: false,
            close_reported: false,
            total_messages: None,
            incoming: callbacks.0,
            complete: callbacks.1,
            config,
        };
        let result = group.allocate(nic, resources);
        if result.is_err() {
            group.tear_down(nic, resources, Nanos::ZERO);
        }
        result.map(|()| group)
    }

    fn allocate(&mut self, nic: &mut Rnic, resources: &mut Resources) -> Result<(), CallError> {
        let (algorithm, n) = (&self.config.algorithm, self.config.members.len() as u32);
        let members = Schedule::neighbours(algorithm, n, self.own);
        let free = resources.free_ready_words.len();
        if members.len() > free {
            return Err(CallError::Connections(members.len() - free));
        }
        let first = Schedule::first_senders(algorithm, n, self.own);
        if !first.is_empty() {
            let len = first.len() * self.config.block_bytes as usize;
            self.staging_buffer = Some(nic.register_new(resources.pd, len, 0, Access::LOCAL_WRITE)?);
        }
        let max_in_flight = self.config.max_in_flight as usize;
        for member in members {
            let qpn = nic.create_qp(resources.queue_pair(Depth::blocks(max_in_flight)))?;
            let Some(ready_word) = resources.free_ready_words.pop() else {
                _ = nic.destroy_qp(qpn);
                return Err(CallError::Connections(1));
            };
            let at = ready_word as usize * READY_WORD_LEN;
            if let Some(bytes) = nic.bytes_mut(resources.ready_words.0).get_mut(at..at + READY_WORD_LEN) {
                bytes.fill(0);
            }
            let index = self.neighbours.len();
            resources.uses.insert(qpn.get(), (self.config.number, QpUse::Neighbour(index)));
            self.index_by_member.insert(member, index);
            let staging_slot = first.iter().position(|from| *from == member).map(|index| index as u32);
            self.neighbours.push(Neighbour {
                member,
                qpn,
                psn: Psn::new(resources.rng.bits() as u32),
                ready_word,
                remote_ready_word: None,
                sent: 0,
                receives_posted: 0,
                receive_targets: VecDeque::new(),
                staging_slot,
                spare_for_message: None,
                first_sender_ambiguous: staging_slot.is_some() && first.len() > 1,
                ready_write_limit: Depth::ready_writes(max_in_flight),
                ready_word_stale: false,
            });
            nic.modify_qp(qpn, Modify::Init { access: Access::REMOTE_WRITE, qkey: 0 })?;
        }
        Ok(())
    }

    /// Returns all resources to the NIC, except the memory of messages, which belongs to the application.
    /// Returns the memory of the messages that are not complete.
    pub(crate) fn tear_down(
        &mut self,
        nic: &mut Rnic,
        resources: &mut Resources,
        now: Nanos,
    ) -> Vec<MessageMemory> {
        for neighbour in self.neighbours.drain(..) {
            resources.uses.remove(&neighbour.qpn.get());
            resources.free_ready_words.push(neighbour.ready_word);
            // This cannot fail: the queue pairs belong to this group alone.
            _ = nic.destroy_qp(neighbour.qpn);
        }
        if let Some(switch_connections) = self.switch_connections.take() {
            let from_switch = switch_connections.from_switch.map(|(qpn, conn, mr, buffer)| {
                _ = nic.deregister(mr);
                _ = nic.free(buffer);
                (qpn, conn)
            });
            let to_switch =
                switch_connections.to_switch.into_iter().map(|connection| (connection.qpn, connection.conn));
            for (qpn, conn) in to_switch.chain(from_switch) {
                resources.uses.remove(&qpn.get());
                // Without the reset, all posted requests would complete.
                _ = nic.modify_qp(qpn, Modify::Reset);
                _ = nic.disconnect(conn, &[], now);
                _ = nic.destroy_qp(qpn);
            }
        }
        if let Some((buffer, mr)) = self.staging_buffer.take() {
            _ = nic.deregister(mr);
            _ = nic.free(buffer);
        }
        let under_way = self.transfer.take().map(|transfer| transfer.memory);
        under_way
            .into_iter()
            .chain(self.unusable_memory.take())
            .chain(self.queue.drain(..).map(|(memory, _)| memory))
            .collect()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.own == 0
    }

    /// Returns the other members.
    pub(crate) fn other_members(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.own;
        (0..self.config.members.len() as u32).filter(move |member| *member != own)
    }

    pub(crate) fn ip(&self, member: u32) -> IpAddr {
        self.config.members[member as usize]
    }

    pub(crate) fn member(&self, ip: IpAddr) -> Option<u32> {
        self.config.members.iter().position(|member| *member == ip).map(|member| member as u32)
    }

    /// Returns the `Create` message for a member.
    pub(crate) fn create_for(&self, nic: &Rnic, resources: &Resources, member: u32) -> Message {
        let end = self.index_by_member.get(&member).map(|index| {
            let neighbour = &self.neighbours[*index];
            End {
                qpn: neighbour.qpn,
                psn: neighbour.psn,
                mtu: nic.config().mtu.bytes() as u16,
                ready_word: Remote {
                    va: READY_VA + u64::from(neighbour.ready_word) * READY_WORD_LEN as u64,
                    rkey: resources.ready_words.1.0,
                },
            }
        });
        Message::Create(Create { incarnation: self.incarnation, config_hash: self.config_hash, end })
    }

    /// Handles a member's `Create`: connects the queue pair to it.
    pub(crate) fn on_create(
        &mut self,
        nic: &mut Rnic,
        resources: &Resources,
        member: u32,
        create: Create,
    ) -> Result<(), Failure> {
        let ip = self.ip(member);
        if create.config_hash != self.config_hash {
            return Err(Failure::Mismatch(ip));
        }
        self.member_states[member as usize].create = Some(create);
        match (self.index_by_member.get(&member), create.end) {
            (Some(index), Some(end)) => {
                let neighbour = &mut self.neighbours[*index];
                neighbour.remote_ready_word = Some(end.ready_word);
                let own_mtu = nic.config().mtu;
                let theirs = PathMtu::of_bytes(end.mtu).ok_or(Failure::Violation(ip))?;
                let receive = ReadyToReceive {
                    path: Path::new(resources.own, ip),
                    dest_qp: end.qpn,
                    mtu: own_mtu.min(theirs),
                    rq_psn: neighbour.psn,
                    max_dest_rd_atomic: 0,
                    min_rnr_timer: RnrTimer(1),
                };
                let send = ReadyToSend {
                    sq_psn: end.psn,
                    max_rd_atomic: 0,
                    timeout: resources.ack_timeout,
                    retry_count: resources.retry_count,
                    rnr_retry: 7,
                    flow_control: false,
                };
                let result = nic.modify_qp(neighbour.qpn, Modify::Rtr(receive));
                let result = result.and_then(|()| nic.modify_qp(neighbour.qpn, Modify::Rts(send)));
                result.map_err(|_| Failure::NoRoom(resources.own))
            }
            (None, None) => Ok(()),
            // The agreed configuration determines which members exchange blocks.
            _ => Err(Failure::Violation(ip)),
        }
    }

    /// Returns whether every other member has created the group.
    pub(crate) fn is_created_by_all(&self) -> bool {
        self.other_members().all(|member| self.member_states[member as usize].create.is_some())
    }

    /// Returns the reason for which the group is not open at its deadline. This is a member that has not
    /// created it; otherwise the switch, if it has not connected every member; otherwise a member that has
    /// not joined.
    pub(crate) fn timeout_failure(&self) -> Failure {
        let first = |waits: fn(&MemberState) -> bool| {
            let other = self.other_members().find(|member| waits(&self.member_states[*member as usize]));
            other.map(|member| self.ip(member))
        };
        let silent = first(|other| other.create.is_none()).map(Failure::NotCreated);
        let unjoined = || first(|other| !other.joined).filter(|_| self.is_switch_ready());
        silent.or_else(|| unjoined().map(Failure::NotJoined)).unwrap_or(Failure::Switch(self.ip(0)))
    }

    /// Returns whether the switch, if there is one, has connected every member, as far as this node can tell.
    fn is_switch_ready(&self) -> bool {
        // The root requests the connections when all members have created the group, and the switch answers
        // when it has connected all of them. So if this member is connected and the root has not joined, the
        // root still waits for the switch.
        let has_responded =
            self.switch_connections.is_none() || self.is_root() || self.member_states[0].joined;
        has_responded && self.is_switch_connected()
    }

    /// Returns the members that have not created the group, as far as this node can tell.
    pub(crate) fn missing_members(&self) -> Vec<IpAddr> {
        let missing_members =
            self.other_members().filter(|member| self.member_states[*member as usize].create.is_none());
        missing_members.map(|member| self.ip(member)).collect()
    }

    /// Returns whether this member's connections with the switch are established. True without a switch.
    fn is_switch_connected(&self) -> bool {
        self.switch_connections.as_ref().is_none_or(|connections| {
            if self.own == 0 {
                !connections.to_switch.is_empty()
                    && connections.to_switch.iter().all(|connection| connection.connected)
            } else {
                connections.from_switch_connected
            }
        })
    }

    /// Returns whether all of this member's connections are established.
    fn is_connected(&self) -> bool {
        self.is_switch_connected() && self.is_created_by_all()
    }

    /// Handles a member's `Joined`: its connections are established.
    pub(crate) fn on_joined(&mut self, member: u32) {
        self.member_states[member as usize].joined = true;
    }

    /// Advances the group as far as possible: creation, transfers and closing.
    pub(crate) fn progress(&mut self, nic: &mut Rnic, resources: &Resources) -> Result<Outcome, Failure> {
        let mut out = Outcome::default();
        if self.stage == Stage::Forming && self.is_connected() {
            self.stage = Stage::Joined;
            out.send_to_all(self, Message::Joined);
        }
        if self.stage == Stage::Joined
            && self.other_members().all(|member| self.member_states[member as usize].joined)
        {
            self.stage = Stage::Open;
            out.opened = true;
        }
        if !self.is_open() {
            return Ok(out);
        }
        loop {
            self.transfer_context(nic, resources).begin()?;
            if self.transfer.is_none() {
                break;
            }
            out.waits = self.transfer_context(nic, resources).advance()?;
            let complete = self.transfer.as_ref().is_some_and(Transfer::is_complete);
            let complete = complete
                || resources.has_bug(crate::Bug::CompletesBeforeRelaying)
                    && self
                        .transfer
                        .as_ref()
                        .is_some_and(|transfer| !self.is_root() && transfer.has_all_blocks());
            if !complete {
                break;
            }
            if let Some(transfer) = self.transfer.take() {
                self.messages += 1;
                (self.complete)(nic, transfer.memory, transfer.len);
            }
        }
        if resources.has_bug(crate::Bug::EarlyClose) && self.closing {
            self.member_states.iter_mut().for_each(|other| other.received = true);
        }
        self.advance_closing(&mut out)?;
        for neighbour in &mut self.neighbours {
            out.waits |= neighbour.ready_word_stale && !Self::write_ready_word(nic, neighbour);
        }
        Ok(out)
    }

    /// Returns whether all members have joined.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns the ready word for which the group waits, and what it has to carry, if that is the word of one
    /// neighbour.
    pub(crate) fn awaited_ready_word(&self) -> Option<(u32, ReadyCondition)> {
        let ready_word_stale = self.neighbours.iter().any(|neighbour| neighbour.ready_word_stale);
        let index = self.transfer.as_ref().filter(|_| !ready_word_stale)?.next_receiver()?;
        let ready_word = self.neighbours[index].ready_word;
        Some((ready_word, self.transfer.as_ref()?.ready_condition(self, index)))
    }

    /// Returns whether a waiting group can go on.
    pub(crate) fn can_progress(&self, nic: &Rnic, resources: &Resources) -> bool {
        let ready_word_stale = || self.neighbours.iter().any(|neighbour| neighbour.ready_word_stale);
        self.transfer.as_ref().is_some_and(|transfer| transfer.is_ready(self, nic, resources))
            || ready_word_stale()
    }

    fn transfer_context<'a>(
        &'a mut self,
        nic: &'a mut Rnic,
        resources: &'a Resources,
    ) -> TransferContext<'a> {
        TransferContext { group: self, nic, resources }
    }

    /// Handles a block from the neighbour at this index.
    pub(crate) fn on_block(
        &mut self,
        nic: &mut Rnic,
        resources: &Resources,
        index: usize,
        total: Option<u32>,
        len: u32,
    ) -> Result<(), Failure> {
        self.transfer_context(nic, resources).on_block(index, total, len)
    }

    /// Counts a block that a neighbour has acknowledged, or that a switch has acknowledged for all members to
    /// which it copies.
    pub(crate) fn on_sent(&mut self, qp_use: QpUse) {
        let Some(transfer) = &mut self.transfer else { return };
        match (qp_use, &mut self.switch_connections) {
            (QpUse::ToSwitch(index), Some(switch_connections)) => {
                switch_connections.to_switch[index].acknowledged += 1;
                transfer.acknowledged = switch_connections
                    .to_switch
                    .iter()
                    .map(|connection| connection.acknowledged)
                    .min()
                    .unwrap_or(0) as usize;
            }
            _ => transfer.acknowledged += 1,
        }
    }

    /// Writes this member's ready word at a neighbour. Returns whether that was possible; if not, the write
    /// is repeated after the next event.
    pub(crate) fn write_ready_word(nic: &mut Rnic, neighbour: &mut Neighbour) -> bool {
        let Some(remote_ready_word) = neighbour.remote_ready_word else { return true };
        let reserved_for = neighbour.spare_for_message.filter(|_| neighbour.first_sender_ambiguous);
        let ready_word = ready::ready_word(neighbour.receives_posted, reserved_for).to_be_bytes().to_vec();
        let write = SendRequest::new(0, Operation::Write(remote_ready_word), Data::Inline(ready_word));
        let request = SendRequest { signaled: false, ..write };
        // A queue pair that has failed completes the request with an error.
        let is_room = nic.pending_sends(neighbour.qpn) < neighbour.ready_write_limit;
        neighbour.ready_word_stale = !is_room || nic.post_send(neighbour.qpn, request).is_err();
        !neighbour.ready_word_stale
    }
}

impl core::fmt::Debug for Group {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group")
            .field("number", &self.config.number)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

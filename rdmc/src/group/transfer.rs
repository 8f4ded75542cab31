//! Transfer of one message at one member: which block is sent to, and received from, which member next (RDMC,
//! sections 4.2 and 4.3).
//!
//! *Sending.* Blocks leave in the order of the schedule. A block is sent when this member has it, the
//! receiver's ready word permits it, and the block before it is acknowledged. Consecutive blocks to the same
//! member do not wait for acknowledgements, up to [`max_in_flight`](crate::GroupConfig::max_in_flight).
//!
//! *Receiving.* A member waits for exactly one sender at a time. It posts receives for the next block of its
//! schedule, and for the blocks after it as far as the same member sends them. With receives for other
//! senders as well, blocks that are not needed yet would arrive at the same time, and take half of the port's
//! rate from the block on which all others depend.
//!
//! *The first block.* The immediate data of every block carries the length of the message, which determines
//! the schedule. Before the first block a member only knows which members may send it
//! ([`Schedule::first_senders`]). For each of them it has a staging buffer of one block, from which the block
//! is copied to its position in the message. Where there are two such members, the ready word tells each of
//! them of which message it may send the first block ([`ready`](super::ready)), and that it may send no other
//! block. The staging receive that was not used stays posted. It takes the next block from that member,
//! whether that belongs to this message or to a later one.

use super::ready::ReadyCondition;
use super::{Group, Neighbour, Resources};
use crate::config::{Failure, GroupConfig, MessageMemory};
use crate::schedule::{Schedule, To};
use rnic::{Access, Data, Operation, RecvRequest, Rnic, SendRequest, Sge};

/// Marker for all members, through a switch.
const ALL: u32 = u32::MAX;
/// Identifier of work requests that send or receive a block.
pub(crate) const BLOCK: u64 = 1;

/// Destination of a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveTarget {
    /// The block's position in the message.
    InPlace,
    /// The staging buffer.
    Staging,
}

/// Transfer of one message.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) memory: MessageMemory,
    pub(crate) len: u32,
    /// Blocks to send, in order: the neighbour's index, or [`ALL`], and the block.
    sends: Vec<(u32, u32)>,
    sends_begun: usize,
    pub(crate) acknowledged: usize,
    /// Blocks to receive, in order: the neighbour's index and the block; and whether each has arrived.
    receives: Vec<(u32, u32)>,
    arrived: Vec<bool>,
    /// Index of the first block to receive that has not arrived.
    first_missing: usize,
    /// Number of blocks to receive, in order, for which receives are posted.
    receives_posted: usize,
    has_block: Vec<bool>,
    /// By neighbour: the first block of this message that it receives, if this member sends that block.
    first_blocks: Vec<Option<u32>>,
    /// By neighbour: index in `receives` before which all blocks from this neighbour have arrived.
    cursors: Vec<usize>,
}

impl Transfer {
    /// Returns whether all blocks have arrived, and all blocks sent are acknowledged.
    pub(crate) fn is_complete(&self) -> bool {
        self.first_missing == self.receives.len() && self.acknowledged == self.sends.len()
    }

    /// Returns whether all blocks have arrived.
    pub(crate) fn has_all_blocks(&self) -> bool {
        self.first_missing == self.receives.len()
    }

    /// Returns the neighbour to which the next block goes, if it goes to one.
    pub(crate) fn next_receiver(&self) -> Option<usize> {
        self.sends.get(self.sends_begun).filter(|(to, _)| *to != ALL).map(|(to, _)| *to as usize)
    }

    /// Returns whether the ready words of all receivers of the next block permit it.
    pub(crate) fn is_ready(&self, group: &Group, nic: &Rnic, resources: &Resources) -> bool {
        if resources.has_bug(crate::Bug::IgnoresReadyWord) {
            return true;
        }
        let ready_word = |index: usize| resources.ready_word(nic, group.neighbours[index].ready_word);
        let is_ready = |index: usize| self.ready_condition(group, index).is_met(ready_word(index));
        match self.sends.get(self.sends_begun) {
            Some((ALL, _)) => (0..group.neighbours.len()).all(is_ready),
            Some((to, _)) => is_ready(*to as usize),
            None => false,
        }
    }

    /// Returns the condition on a neighbour's ready word for the next block to be sent to it.
    pub(crate) fn ready_condition(&self, group: &Group, index: usize) -> ReadyCondition {
        let next = self.sends.get(self.sends_begun).copied();
        let is_first = self.first_blocks[index].is_some_and(|block| next == Some((index as u32, block)));
        ReadyCondition {
            block: group.neighbours[index].sent + 1,
            first_of_message: is_first.then_some(group.messages),
        }
    }
}

/// A group, with the NIC and the resources that its transfers need.
pub(crate) struct TransferContext<'a> {
    pub(crate) group: &'a mut Group,
    pub(crate) nic: &'a mut Rnic,
    pub(crate) resources: &'a Resources,
}

impl TransferContext<'_> {
    fn violation(&self, index: usize) -> Failure {
        Failure::Violation(self.group.ip(self.group.neighbours[index].member))
    }

    fn no_room(&self) -> Failure {
        Failure::NoRoom(self.resources.own)
    }

    /// Between messages: starts the next message at the root, and posts receives for its first block at the
    /// other members.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        if self.group.transfer.is_some() {
            return Ok(());
        }
        if let Some((memory, len)) = self.group.queue.pop_front() {
            return self.start(memory, len);
        }
        for index in 0..self.group.neighbours.len() {
            let (neighbour, next) = (&self.group.neighbours[index], self.group.messages);
            if neighbour.staging_slot.is_none() || neighbour.spare_for_message == Some(next) {
                continue;
            }
            let is_posted = neighbour.spare_for_message.is_some();
            if !is_posted {
                self.post(index, None)?;
            }
            let neighbour = &mut self.group.neighbours[index];
            neighbour.spare_for_message = Some(next);
            if !is_posted || neighbour.first_sender_ambiguous {
                Group::write_ready_word(self.nic, neighbour);
            }
        }
        Ok(())
    }

    /// Starts the transfer of a message of `len` bytes.
    fn start(&mut self, memory: MessageMemory, len: u32) -> Result<(), Failure> {
        let group = &mut *self.group;
        let n = group.config.members.len() as u32;
        let blocks = len.div_ceil(group.config.block_bytes);
        // The algorithm and the nodes were checked when the group was created, and the message has at least
        // one block.
        let Ok(schedule) = Schedule::new(group.config.algorithm.clone(), n, blocks) else {
            return Err(Failure::NoRoom(self.resources.own));
        };
        let index = |member: u32| group.index_by_member.get(&member).map_or(ALL, |index| *index as u32);
        let sends = schedule.sends(group.own).map(|(_, send)| match send.to {
            To::Node(to) => (index(to), send.block),
            To::All => (ALL, send.block),
        });
        let sends: Vec<_> = sends.collect();
        let receives = schedule.receives(group.own).map(|(_, receive)| (index(receive.from), receive.block));
        let receives: Vec<_> = receives.collect();
        if let Some(switch_connections) = &mut group.switch_connections {
            for connection in &mut switch_connections.to_switch {
                connection.acknowledged = 0;
            }
        }
        let sends_to = |index: usize| sends.iter().any(|(to, _)| *to as usize == index);
        let first = |(index, neighbour): (usize, &Neighbour)| {
            let first = sends_to(index).then(|| schedule.receives(neighbour.member).next())?;
            first.filter(|(_, first)| first.from == group.own).map(|(_, first)| first.block)
        };
        let first_blocks = group.neighbours.iter().enumerate().map(first).collect();
        group.transfer = Some(Transfer {
            memory,
            len,
            sends,
            sends_begun: 0,
            acknowledged: 0,
            arrived: vec![false; receives.len()],
            receives,
            first_missing: 0,
            receives_posted: 0,
            has_block: vec![group.own == 0; blocks as usize],
            first_blocks,
            cursors: vec![0; group.neighbours.len()],
        });
        Ok(())
    }

    /// Posts receives and sends blocks. Returns whether a block waits for a ready word.
    pub(crate) fn advance(&mut self) -> Result<bool, Failure> {
        self.post_receives()?;
        self.send()
    }

    fn post_receives(&mut self) -> Result<(), Failure> {
        let max_in_flight = self.group.config.max_in_flight as usize;
        let Some(transfer) = &self.group.transfer else { return Ok(()) };
        let Some((from, _)) = transfer.receives.get(transfer.first_missing).copied() else { return Ok(()) };
        let (index, end) = (from as usize, transfer.first_missing + max_in_flight);
        let mut is_changed = false;
        loop {
            let Some(transfer) = &mut self.group.transfer else { return Ok(()) };
            let next = transfer.receives_posted.max(transfer.first_missing);
            let Some((sender, block)) = transfer.receives.get(next).copied() else { break };
            if next >= end || sender != from {
                break;
            }
            transfer.receives_posted = next + 1;
            if transfer.arrived[next] {
                continue;
            }
            let neighbour = &mut self.group.neighbours[index];
            // A receive for this block is posted, and the sender's ready word counts it.
            if neighbour.spare_for_message.take().is_some() {
                is_changed |= neighbour.first_sender_ambiguous;
                continue;
            }
            self.post(index, Some(block))?;
            is_changed = true;
        }
        if is_changed {
            Group::write_ready_word(self.nic, &mut self.group.neighbours[index]);
        }
        Ok(())
    }

    /// Posts a receive for a block from a neighbour: in place, or in the staging buffer if the block is
    /// unknown.
    fn post(&mut self, index: usize, block: Option<u32>) -> Result<(), Failure> {
        let block_bytes = self.group.config.block_bytes;
        let neighbour = &self.group.neighbours[index];
        let sge = match (block, &self.group.transfer, &self.group.staging_buffer, neighbour.staging_slot) {
            (Some(block), Some(transfer), ..) => {
                let at = u64::from(block) * u64::from(block_bytes);
                let len = block_bytes.min(transfer.len - at as u32);
                Sge { mr: transfer.memory.mr, va: transfer.memory.va + at, len }
            }
            (None, _, Some((_, mr)), Some(slot)) => {
                Sge { mr: *mr, va: u64::from(slot) * u64::from(block_bytes), len: block_bytes }
            }
            _ => return Err(self.no_room()),
        };
        let from_switch =
            self.group.switch_connections.as_ref().and_then(|connections| connections.from_switch.as_ref());
        let qpn = from_switch.map_or(neighbour.qpn, |(qpn, ..)| *qpn);
        let request = RecvRequest { id: BLOCK, data: Some(sge) };
        self.nic.post_recv(qpn, request).map_err(|_| self.no_room())?;
        let neighbour = &mut self.group.neighbours[index];
        neighbour.receives_posted += 1;
        neighbour.receive_targets.push_back(if block.is_some() {
            ReceiveTarget::InPlace
        } else {
            ReceiveTarget::Staging
        });
        Ok(())
    }

    /// Sends all blocks that may be sent now. Returns whether one waits for a ready word.
    fn send(&mut self) -> Result<bool, Failure> {
        let max_in_flight = self.group.config.max_in_flight as usize;
        loop {
            let Some(transfer) = &self.group.transfer else { return Ok(false) };
            let Some((to, block)) = transfer.sends.get(transfer.sends_begun).copied() else {
                return Ok(false);
            };
            let under_way = transfer.sends_begun - transfer.acknowledged;
            let follows = || under_way < max_in_flight && transfer.sends[transfer.sends_begun - 1].0 == to;
            if !transfer.has_block[block as usize] || (under_way > 0 && !follows()) {
                return Ok(false);
            }
            if !transfer.is_ready(self.group, self.nic, self.resources) {
                return Ok(true);
            }
            self.send_block(to, block)?;
        }
    }

    fn send_block(&mut self, to: u32, block: u32) -> Result<(), Failure> {
        let no_room = self.no_room();
        let group = &mut *self.group;
        let Some(transfer) = &mut group.transfer else { return Ok(()) };
        let at = u64::from(block) * u64::from(group.config.block_bytes);
        let len = group.config.block_bytes.min(transfer.len - at as u32);
        let sge = Sge { mr: transfer.memory.mr, va: transfer.memory.va + at, len };
        let request = SendRequest::new(BLOCK, Operation::SendImm(transfer.len), Data::Memory(sge));
        transfer.sends_begun += 1;
        if to == ALL {
            for neighbour in &mut group.neighbours {
                neighbour.sent += 1;
            }
            let to_switch = group.switch_connections.iter().flat_map(|connections| &connections.to_switch);
            for connection in to_switch {
                self.nic.post_send(connection.qpn, request.clone()).map_err(|_| no_room)?;
            }
            return Ok(());
        }
        let neighbour = &mut group.neighbours[to as usize];
        neighbour.sent += 1;
        self.nic.post_send(neighbour.qpn, request).map_err(|_| no_room)
    }

    /// Handles a block of `len` bytes from a neighbour, of a message of `total` bytes.
    pub(crate) fn on_block(&mut self, index: usize, total: Option<u32>, len: u32) -> Result<(), Failure> {
        let Some(total) = total.filter(|total| *total > 0) else { return Err(self.violation(index)) };
        let Some(target) = self.group.neighbours[index].receive_targets.pop_front() else {
            return Err(self.violation(index));
        };
        match (target, self.next_from(index)) {
            (ReceiveTarget::Staging, _) => self.on_staged(index, total, len),
            (ReceiveTarget::InPlace, Some(next)) => self.on_expected(index, next, target, total, len),
            (ReceiveTarget::InPlace, None) => Err(self.violation(index)),
        }
    }

    /// Handles a block in the staging buffer.
    fn on_staged(&mut self, index: usize, total: u32, len: u32) -> Result<(), Failure> {
        match self.next_from(index) {
            Some(next) => self.on_expected(index, next, ReceiveTarget::Staging, total, len),
            None if self.group.transfer.is_none() => self.on_first(index, total, len),
            // No ready word has permitted a block of a later message.
            None => Err(self.violation(index)),
        }
    }

    /// Returns the index in `receives` of the next block from a neighbour, if one is to arrive from it.
    fn next_from(&mut self, index: usize) -> Option<usize> {
        let transfer = self.group.transfer.as_mut()?;
        let from = &transfer.receives[transfer.cursors[index]..];
        let skip = from.iter().position(|(from, _)| *from as usize == index)?;
        transfer.cursors[index] += skip;
        Some(transfer.cursors[index])
    }

    /// Handles the first block of a message, which is in the staging buffer.
    fn on_first(&mut self, index: usize, total: u32, len: u32) -> Result<(), Failure> {
        if total.div_ceil(self.group.config.block_bytes) > GroupConfig::MAX_BLOCKS {
            return Err(self.violation(index));
        }
        let Some(memory) = (self.group.incoming)(self.nic, total) else {
            return Err(Failure::NoMemory(self.resources.own));
        };
        if !is_within(self.nic, self.resources, memory, total, Access::LOCAL_WRITE) {
            self.group.unusable_memory = Some(memory);
            return Err(Failure::NoMemory(self.resources.own));
        }
        self.start(memory, total)?;
        match self.next_from(index) {
            Some(next) => self.on_expected(index, next, ReceiveTarget::Staging, total, len),
            None => Err(self.violation(index)),
        }
    }

    fn on_expected(
        &mut self,
        index: usize,
        next: usize,
        target: ReceiveTarget,
        total: u32,
        len: u32,
    ) -> Result<(), Failure> {
        let violation = self.violation(index);
        let group = &mut *self.group;
        let Some(transfer) = &mut group.transfer else { return Err(violation) };
        let (_, block) = transfer.receives[next];
        let at = u64::from(block) * u64::from(group.config.block_bytes);
        let expected = group.config.block_bytes.min(transfer.len - at as u32);
        if total != transfer.len || len != expected {
            return Err(violation);
        }
        let neighbour = &mut group.neighbours[index];
        let at = if self.resources.has_bug(crate::Bug::WrongFirst) { 0 } else { at };
        if target == ReceiveTarget::Staging {
            // A block that arrives before it was expected has used the spare receive.
            if next >= transfer.receives_posted {
                neighbour.spare_for_message = None;
            }
            let (Some((buffer, _)), Some(slot)) = (group.staging_buffer, neighbour.staging_slot) else {
                return Err(violation);
            };
            let from = slot as usize * group.config.block_bytes as usize;
            let bytes = self.nic.bytes(buffer)[from..from + len as usize].to_vec();
            let Some(region) = self.nic.region(transfer.memory.mr).copied() else {
                return Err(Failure::NoMemory(self.resources.own));
            };
            let to = region.offset + (transfer.memory.va - region.va + at) as usize;
            match self.nic.bytes_mut(region.buffer).get_mut(to..to + len as usize) {
                Some(destination) => destination.copy_from_slice(&bytes),
                None => return Err(Failure::NoMemory(self.resources.own)),
            }
        }
        transfer.cursors[index] = next + 1;
        transfer.arrived[next] = true;
        transfer.has_block[block as usize] = true;
        while transfer.arrived.get(transfer.first_missing) == Some(&true) {
            transfer.first_missing += 1;
        }
        Ok(())
    }
}

/// Returns whether `len` bytes from `memory` on lie in one region of the node's protection domain that has
/// this access right.
pub(crate) fn is_within(
    nic: &Rnic,
    resources: &Resources,
    memory: MessageMemory,
    len: u32,
    access: Access,
) -> bool {
    nic.region(memory.mr).is_some_and(|region| {
        let at = memory.va.checked_sub(region.va);
        let fits = at.and_then(|at| at.checked_add(len.into())).is_some_and(|end| end <= region.len);
        fits && region.pd == resources.pd && region.access.contains(access)
    })
}

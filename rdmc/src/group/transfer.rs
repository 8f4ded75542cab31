//! A message on its way: which block is sent to whom and received from whom next (paper 4.2, 4.3).
//!
//! *Sending.* Blocks leave in the order of the schedule: each when it is here, the receiver has said that it is ready for it,
//! and the one before is acknowledged; blocks that follow one another to the same member do not wait for that, up to
//! [`ahead`](crate::GroupConfig::ahead).
//!
//! *Receiving.* A member waits for exactly one sender at a time: it is ready for the next block of its schedule, and for
//! those behind it as far as they come from the same member. If it were ready for others too, blocks that are not needed
//! yet would come at the same time, and take half of its port from the one that all the rest waits for.
//!
//! *The first block.* How long a message is, and so which block comes when, is in the immediate data of every block of it.
//! Before the first one a member only knows from whom it may come ([`Schedule::first_senders`]): for each of those it has a
//! block's room aside, from where the block is copied to its place. Where there are two, each is told of which message it may
//! send that block ([`ready`](super::ready)), and that it may send no other; the one that was not used stays posted, and
//! takes whatever that member sends next, be it of this message or of a later one.

use super::ready::Need;
use super::{Group, Neighbour, Resources};
use crate::config::{Failure, GroupConfig, Memory};
use crate::schedule::{Schedule, To};
use rnic::{Access, Data, Operation, RecvRequest, Rnic, SendRequest, Sge};

/// Stands for all members, by a switch
const ALL: u32 = u32::MAX;
/// The name of a request that sends a block
pub(crate) const BLOCK: u64 = 1;

/// Where a posted receive puts a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posted {
    /// Where it belongs
    InPlace,
    /// Aside
    Aside,
}

/// A message.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) memory: Memory,
    pub(crate) len: u32,
    /// To whom (a neighbour's place, or all) and which block, in order
    sends: Vec<(u32, u32)>,
    begun: usize,
    pub(crate) acknowledged: usize,
    /// From whom (a neighbour's place) and which block, in order; and whether it has come
    receives: Vec<(u32, u32)>,
    come: Vec<bool>,
    /// The first one that has not
    first: usize,
    /// A receive is posted for those before
    asked: usize,
    has: Vec<bool>,
    /// By neighbour: the block of this message that it gets before all others, if it gets that from here
    firsts: Vec<Option<u32>>,
    /// By neighbour: those before in `receives` are from others, or have come
    cursors: Vec<usize>,
}

impl Transfer {
    /// Everything is here, and everything that was sent on is acknowledged.
    pub(crate) fn is_complete(&self) -> bool {
        self.first == self.receives.len() && self.acknowledged == self.sends.len()
    }

    /// Everything is here.
    #[cfg(debug_assertions)]
    pub(crate) fn is_here(&self) -> bool {
        self.first == self.receives.len()
    }

    /// The neighbour to whom the next block goes, if it is one
    pub(crate) fn next_to(&self) -> Option<usize> {
        self.sends.get(self.begun).filter(|(to, _)| *to != ALL).map(|(to, _)| *to as usize)
    }

    /// Whether those to whom the next block goes have said that they are ready for it.
    pub(crate) fn is_ready(&self, group: &Group, nic: &Rnic, resources: &Resources) -> bool {
        #[cfg(debug_assertions)]
        if resources.bug == Some(crate::Bug::Unready) {
            return true;
        }
        let word = |place: usize| resources.word(nic, group.neighbours[place].word);
        let is_ready = |place: usize| self.needs(group, place).is_met(word(place));
        match self.sends.get(self.begun) {
            Some((ALL, _)) => (0..group.neighbours.len()).all(is_ready),
            Some((to, _)) => is_ready(*to as usize),
            None => false,
        }
    }

    /// What a neighbour's word has to say for the next block to be sent to it.
    pub(crate) fn needs(&self, group: &Group, place: usize) -> Need {
        let next = self.sends.get(self.begun).copied();
        let is_first = self.firsts[place].is_some_and(|block| next == Some((place as u32, block)));
        Need { block: group.neighbours[place].sent + 1, first_of: is_first.then_some(group.messages) }
    }
}

/// A group with what its blocks need.
pub(crate) struct Links<'a> {
    pub(crate) group: &'a mut Group,
    pub(crate) nic: &'a mut Rnic,
    pub(crate) resources: &'a Resources,
}

impl Links<'_> {
    fn violation(&self, place: usize) -> Failure {
        Failure::Violation(self.group.ip(self.group.neighbours[place].member))
    }

    fn no_room(&self) -> Failure {
        Failure::NoRoom(self.resources.own)
    }

    /// If nothing is under way: receivers wait for the next message, the root begins with it.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        if self.group.transfer.is_some() {
            return Ok(());
        }
        if let Some((memory, len)) = self.group.queue.pop_front() {
            return self.start(memory, len);
        }
        for place in 0..self.group.neighbours.len() {
            let (neighbour, next) = (&self.group.neighbours[place], self.group.messages);
            if neighbour.side.is_none() || neighbour.spare == Some(next) {
                continue;
            }
            let posted = neighbour.spare.is_some();
            if !posted {
                self.post(place, None)?;
            }
            let neighbour = &mut self.group.neighbours[place];
            neighbour.spare = Some(next);
            if !posted || neighbour.doubtful {
                Group::tell_ready(self.nic, neighbour);
            }
        }
        Ok(())
    }

    /// A message of so many bytes begins here.
    fn start(&mut self, memory: Memory, len: u32) -> Result<(), Failure> {
        let group = &mut *self.group;
        let n = group.config.members.len() as u32;
        let blocks = len.div_ceil(group.config.block_bytes);
        // Nodes and algorithm were looked at when the group was created, and it has a block.
        let Ok(schedule) = Schedule::new(group.config.algorithm.clone(), n, blocks) else {
            return Err(Failure::NoRoom(self.resources.own));
        };
        let place = |member: u32| group.place.get(&member).map_or(ALL, |place| *place as u32);
        let sends = schedule.sends(group.own).map(|(_, send)| match send.to {
            To::Node(to) => (place(to), send.block),
            To::All => (ALL, send.block),
        });
        let sends: Vec<_> = sends.collect();
        let receives = schedule.receives(group.own).map(|(_, receive)| (place(receive.from), receive.block));
        let receives: Vec<_> = receives.collect();
        if let Some(through) = &mut group.through {
            for lane in &mut through.lanes {
                lane.acknowledged = 0;
            }
        }
        let sends_to = |place: usize| sends.iter().any(|(to, _)| *to as usize == place);
        let first = |(place, neighbour): (usize, &Neighbour)| {
            let first = sends_to(place).then(|| schedule.receives(neighbour.member).next())?;
            first.filter(|(_, first)| first.from == group.own).map(|(_, first)| first.block)
        };
        let firsts = group.neighbours.iter().enumerate().map(first).collect();
        group.transfer = Some(Transfer {
            memory,
            len,
            sends,
            begun: 0,
            acknowledged: 0,
            come: vec![false; receives.len()],
            receives,
            first: 0,
            asked: 0,
            has: vec![group.own == 0; blocks as usize],
            firsts,
            cursors: vec![0; group.neighbours.len()],
        });
        Ok(())
    }

    /// Asks for blocks and sends some. Whether somebody has to say first that they are ready.
    pub(crate) fn advance(&mut self) -> Result<bool, Failure> {
        self.ask()?;
        self.send()
    }

    fn ask(&mut self) -> Result<(), Failure> {
        let ahead = self.group.config.ahead as usize;
        let Some(transfer) = &self.group.transfer else { return Ok(()) };
        let Some((from, _)) = transfer.receives.get(transfer.first).copied() else { return Ok(()) };
        let (place, end) = (from as usize, transfer.first + ahead);
        let mut told = false;
        loop {
            let Some(transfer) = &mut self.group.transfer else { return Ok(()) };
            let next = transfer.asked.max(transfer.first);
            let Some((one, block)) = transfer.receives.get(next).copied() else { break };
            if next >= end || one != from {
                break;
            }
            transfer.asked = next + 1;
            if transfer.come[next] {
                continue;
            }
            let neighbour = &mut self.group.neighbours[place];
            // It was told already, and has a receive.
            if neighbour.spare.take().is_some() {
                told |= neighbour.doubtful;
                continue;
            }
            self.post(place, Some(block))?;
            told = true;
        }
        if told {
            Group::tell_ready(self.nic, &mut self.group.neighbours[place]);
        }
        Ok(())
    }

    /// Posts a receive for a block from a neighbour; aside, if it is not known which one.
    fn post(&mut self, place: usize, block: Option<u32>) -> Result<(), Failure> {
        let block_bytes = self.group.config.block_bytes;
        let neighbour = &self.group.neighbours[place];
        let sge = match (block, &self.group.transfer, &self.group.side, neighbour.side) {
            (Some(block), Some(transfer), ..) => {
                let at = u64::from(block) * u64::from(block_bytes);
                let len = block_bytes.min(transfer.len - at as u32);
                Sge { mr: transfer.memory.mr, va: transfer.memory.va + at, len }
            }
            (None, _, Some((_, mr)), Some(side)) => {
                Sge { mr: *mr, va: u64::from(side) * u64::from(block_bytes), len: block_bytes }
            }
            _ => return Err(self.no_room()),
        };
        let feed = self.group.through.as_ref().and_then(|through| through.feed.as_ref());
        let qpn = feed.map_or(neighbour.qpn, |(qpn, ..)| *qpn);
        let request = RecvRequest { id: BLOCK, data: Some(sge) };
        self.nic.post_recv(qpn, request).map_err(|_| self.no_room())?;
        let neighbour = &mut self.group.neighbours[place];
        neighbour.asked += 1;
        neighbour.posted.push_back(if block.is_some() { Posted::InPlace } else { Posted::Aside });
        Ok(())
    }

    /// Sends what can be sent. Whether somebody has to say first that they are ready.
    fn send(&mut self) -> Result<bool, Failure> {
        let ahead = self.group.config.ahead as usize;
        loop {
            let Some(transfer) = &self.group.transfer else { return Ok(false) };
            let Some((to, block)) = transfer.sends.get(transfer.begun).copied() else { return Ok(false) };
            let under_way = transfer.begun - transfer.acknowledged;
            let follows = || under_way < ahead && transfer.sends[transfer.begun - 1].0 == to;
            if !transfer.has[block as usize] || (under_way > 0 && !follows()) {
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
        transfer.begun += 1;
        if to == ALL {
            for neighbour in &mut group.neighbours {
                neighbour.sent += 1;
            }
            let lanes = group.through.iter().flat_map(|through| &through.lanes);
            for lane in lanes {
                self.nic.post_send(lane.qpn, request.clone()).map_err(|_| no_room)?;
            }
            return Ok(());
        }
        let neighbour = &mut group.neighbours[to as usize];
        neighbour.sent += 1;
        self.nic.post_send(neighbour.qpn, request).map_err(|_| no_room)
    }

    /// A block has come from a neighbour: of a message of `total` bytes, itself `len` bytes.
    pub(crate) fn on_block(&mut self, place: usize, total: Option<u32>, len: u32) -> Result<(), Failure> {
        let Some(total) = total.filter(|total| *total > 0) else { return Err(self.violation(place)) };
        let Some(posted) = self.group.neighbours[place].posted.pop_front() else {
            return Err(self.violation(place));
        };
        match (posted, self.next_from(place)) {
            (Posted::Aside, _) => self.on_aside(place, total, len),
            (Posted::InPlace, Some(next)) => self.on_expected(place, next, posted, total, len),
            (Posted::InPlace, None) => Err(self.violation(place)),
        }
    }

    /// A block has come that lies aside.
    fn on_aside(&mut self, place: usize, total: u32, len: u32) -> Result<(), Failure> {
        match self.next_from(place) {
            Some(next) => self.on_expected(place, next, Posted::Aside, total, len),
            None if self.group.transfer.is_none() => self.on_first(place, total, len),
            // Nobody was told of a message beyond this one.
            None => Err(self.violation(place)),
        }
    }

    /// The place in the order of the next block from a neighbour, if one is to come from it
    fn next_from(&mut self, place: usize) -> Option<usize> {
        let transfer = self.group.transfer.as_mut()?;
        let from = &transfer.receives[transfer.cursors[place]..];
        let skip = from.iter().position(|(from, _)| *from as usize == place)?;
        transfer.cursors[place] += skip;
        Some(transfer.cursors[place])
    }

    /// The first block of a message, which lies aside.
    fn on_first(&mut self, place: usize, total: u32, len: u32) -> Result<(), Failure> {
        if total.div_ceil(self.group.config.block_bytes) > GroupConfig::MAX_BLOCKS {
            return Err(self.violation(place));
        }
        let Some(memory) = (self.group.incoming)(self.nic, total) else {
            return Err(Failure::NoMemory(self.resources.own));
        };
        if !is_within(self.nic, self.resources, memory, total, Access::LOCAL_WRITE) {
            self.group.unusable = Some(memory);
            return Err(Failure::NoMemory(self.resources.own));
        }
        self.start(memory, total)?;
        match self.next_from(place) {
            Some(next) => self.on_expected(place, next, Posted::Aside, total, len),
            None => Err(self.violation(place)),
        }
    }

    fn on_expected(
        &mut self,
        place: usize,
        next: usize,
        posted: Posted,
        total: u32,
        len: u32,
    ) -> Result<(), Failure> {
        let violation = self.violation(place);
        let group = &mut *self.group;
        let Some(transfer) = &mut group.transfer else { return Err(violation) };
        let (_, block) = transfer.receives[next];
        let at = u64::from(block) * u64::from(group.config.block_bytes);
        let expected = group.config.block_bytes.min(transfer.len - at as u32);
        if total != transfer.len || len != expected {
            return Err(violation);
        }
        let neighbour = &mut group.neighbours[place];
        #[cfg(debug_assertions)]
        let at = if self.resources.bug == Some(crate::Bug::WrongFirst) { 0 } else { at };
        if posted == Posted::Aside {
            // If it was not expected yet, it is the one that was.
            if next >= transfer.asked {
                neighbour.spare = None;
            }
            let (Some((buffer, _)), Some(side)) = (group.side, neighbour.side) else { return Err(violation) };
            let from = side as usize * group.config.block_bytes as usize;
            let bytes = self.nic.bytes(buffer)[from..from + len as usize].to_vec();
            let Some(region) = self.nic.region(transfer.memory.mr).copied() else {
                return Err(Failure::NoMemory(self.resources.own));
            };
            let to = region.offset + (transfer.memory.va - region.va + at) as usize;
            match self.nic.bytes_mut(region.buffer).get_mut(to..to + len as usize) {
                Some(place) => place.copy_from_slice(&bytes),
                None => return Err(Failure::NoMemory(self.resources.own)),
            }
        }
        transfer.cursors[place] = next + 1;
        transfer.come[next] = true;
        transfer.has[block as usize] = true;
        while transfer.come.get(transfer.first) == Some(&true) {
            transfer.first += 1;
        }
        Ok(())
    }
}

/// Whether so many bytes of memory can be used by a group's queue pairs.
pub(crate) fn is_within(nic: &Rnic, resources: &Resources, memory: Memory, len: u32, access: Access) -> bool {
    nic.region(memory.mr).is_some_and(|region| {
        let at = memory.va.checked_sub(region.va);
        let fits = at.and_then(|at| at.checked_add(len.into())).is_some_and(|end| end <= region.len);
        fits && region.pd == resources.pd && region.access.contains(access)
    })
}

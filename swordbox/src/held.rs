//! Frames held until they can be forwarded, copied to preallocated slots, and the flows that can continue.

use crate::{Id, NONE};
use std::collections::VecDeque;
use switch::PortId;

/// Maximum length in bytes of a held frame; the client has to retransmit longer ones
pub(crate) const LONGEST: usize = 512;
/// Divisor of the slot count that gives the limit of one queue
const SHARE: usize = 8;
/// Minimum limit of one queue, in frames; half of all slots if that is less
const FEWEST: usize = 16;

/// Slots for frames, in queues.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: Box<[u8]>,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Flows with held frames whose own requests are all complete
    ready: VecDeque<Id>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    len: u16,
    port: u16,
    next: u32,
    /// Frames in its queue; valid in the queue's first slot
    count: u32,
}

impl Held {
    pub(crate) fn with_capacity(slots: usize) -> Self {
        Self {
            bytes: vec![0; slots * LONGEST].into(),
            slots: vec![Slot { len: 0, port: 0, next: NONE, count: 0 }; slots].into(),
            free: (0..slots as u32).rev().collect(),
            ready: VecDeque::with_capacity(64),
        }
    }

    /// Returns the memory in bytes of this number of slots.
    pub(crate) const fn bytes(slots: usize) -> usize {
        slots * (LONGEST + size_of::<Slot>() + size_of::<u32>())
    }

    /// Returns whether no slot is free.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns the number of held frames.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Appends a frame to a queue. Returns false if no slot is free, or the queue is at its limit.
    pub(crate) fn push(&mut self, queue: &mut [u32; 2], frame: &[u8], port: PortId) -> bool {
        let count = self.slots.get(queue[0] as usize).map_or(0, |first| first.count);
        let all = self.slots.len();
        if frame.len() > LONGEST || count as usize >= (all / SHARE).max(FEWEST).min(all.div_ceil(2)) {
            return false;
        }
        let Some(slot) = self.free.pop() else { return false };
        let at = slot as usize * LONGEST;
        self.bytes[at..at + frame.len()].copy_from_slice(frame);
        self.slots[slot as usize] = Slot { len: frame.len() as u16, port: port.0, next: NONE, count: 0 };
        match queue {
            [NONE, _] => queue[0] = slot,
            [_, last] => self.slots[*last as usize].next = slot,
        }
        queue[1] = slot;
        self.slots[queue[0] as usize].count = count + 1;
        true
    }

    /// Returns the first frame of a queue, and the port on which it arrived.
    pub(crate) fn first(&self, queue: [u32; 2]) -> Option<(&[u8], PortId)> {
        let slot = self.slots.get(queue[0] as usize)?;
        let at = queue[0] as usize * LONGEST;
        Some((&self.bytes[at..at + usize::from(slot.len)], PortId(slot.port)))
    }

    /// Removes the first frame of a queue.
    pub(crate) fn pop(&mut self, queue: &mut [u32; 2]) {
        let Some(&Slot { next, count, .. }) = self.slots.get(queue[0] as usize) else { return };
        self.free.push(queue[0]);
        queue[0] = next;
        match self.slots.get_mut(next as usize) {
            Some(first) => first.count = count - 1,
            None => queue[1] = NONE,
        }
    }

    /// Removes all frames of a queue but the first.
    pub(crate) fn clear_behind_first(&mut self, queue: &mut [u32; 2]) {
        let Some(first) = self.slots.get_mut(queue[0] as usize) else { return };
        let mut rest = [core::mem::replace(&mut first.next, NONE), queue[1]];
        let count = core::mem::replace(&mut first.count, 1) - 1;
        queue[1] = queue[0];
        if let Some(first) = self.slots.get_mut(rest[0] as usize) {
            first.count = count;
        }
        self.clear(&mut rest);
    }

    /// Removes all frames of a queue.
    pub(crate) fn clear(&mut self, queue: &mut [u32; 2]) {
        while queue[0] != NONE {
            self.pop(queue);
        }
    }

    /// Adds a flow to those that can continue.
    #[inline]
    pub(crate) fn continue_later(&mut self, flow: Id) {
        self.ready.push_back(flow);
    }

    /// Returns whether a flow can continue.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of flows that can continue.
    pub(crate) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Removes the flow that can continue first.
    pub(crate) fn next_ready(&mut self) -> Option<Id> {
        self.ready.pop_front()
    }

    /// Removes a flow from those that can continue.
    pub(crate) fn forget(&mut self, flow: Id) {
        self.ready.retain(|other| *other != flow);
    }
}

//! The table of queue pairs: found by number in an array, and scheduled in a round-robin queue.

use crate::qp::{Qp, QpInit};
use rocev2::Qpn;
use std::collections::VecDeque;
use switch::Full;

/// Queue pair numbers below this one are not assigned to applications.
const FIRST_QPN: u32 = 16;

/// A slot for a queue pair, and the number that the next queue pair in it gets.
#[derive(Debug)]
struct Slot {
    qpn: u32,
    /// Whether the slot is in the round-robin queue. It stays set when another queue pair takes the slot.
    scheduled: bool,
    qp: Option<Box<Qp>>,
}

/// Queue pairs, and which of them may have something to send.
#[derive(Debug)]
pub(super) struct QpTable {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Slots of queue pairs that may have something to send, in round-robin order
    ready: VecDeque<u32>,
    capacity: usize,
    /// Difference between consecutive queue pair numbers of the same slot, a power of two
    stride: u32,
}

impl QpTable {
    /// Creates a table for `capacity` queue pairs.
    pub(super) fn new(capacity: usize) -> Self {
        let stride = (capacity.next_power_of_two() as u32).min(1 << 23);
        Self { slots: Vec::new(), free: VecDeque::new(), ready: VecDeque::new(), capacity, stride }
    }

    /// Creates a queue pair in the reset state. Returns its number.
    pub(super) fn create(&mut self, init: QpInit) -> Result<Qpn, Full> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() < self.capacity => {
                let slot = self.slots.len() as u32;
                self.slots.push(Slot { qpn: FIRST_QPN + slot, scheduled: false, qp: None });
                slot
            }
            None => return Err(Full),
        };
        let entry = &mut self.slots[slot as usize];
        let qpn = Qpn::new(entry.qpn);
        entry.qp = Some(Box::new(Qp::new(qpn, init)));
        Ok(qpn)
    }

    /// Removes and returns the queue pair in a slot. The next one in this slot gets another number, so that
    /// late packets do not reach it.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Box<Qp>> {
        let entry = self.slots.get_mut(slot as usize)?;
        let qp = entry.qp.take()?;
        entry.qpn += self.stride;
        if entry.qpn >= 1 << 24 {
            entry.qpn = FIRST_QPN + slot;
        }
        self.free.push_back(slot);
        Some(qp)
    }

    /// Returns the slot of the queue pair with this number.
    #[inline]
    pub(super) fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.get().checked_sub(FIRST_QPN)? & (self.stride - 1);
        let entry = self.slots.get(slot as usize)?;
        (entry.qpn == qpn.get() && entry.qp.is_some()).then_some(slot)
    }

    /// Returns the queue pair with this number.
    #[inline]
    pub(super) fn find(&self, qpn: Qpn) -> Option<&Qp> {
        self.slots[self.slot(qpn)? as usize].qp.as_deref()
    }

    /// Returns the queue pair in a slot, if there still is one.
    #[inline]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.qp.as_deref_mut()
    }

    /// Returns the number of queue pairs.
    pub(super) fn count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.qp.is_some()).count()
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Appends a queue pair to the round-robin queue, unless it is in it already or waits for its neighbour.
    pub(super) fn schedule(&mut self, slot: u32) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        if !entry.scheduled && entry.qp.as_ref().is_some_and(|qp| !qp.is_unresolved()) {
            entry.scheduled = true;
            self.ready.push_back(slot);
        }
    }

    /// Removes the next slot from the round-robin queue. The slot may be empty by now.
    pub(super) fn next_scheduled(&mut self) -> Option<u32> {
        let slot = self.ready.pop_front()?;
        if let Some(entry) = self.slots.get_mut(slot as usize) {
            entry.scheduled = false;
        }
        Some(slot)
    }

    /// Returns the length of the round-robin queue.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }
}

//! The table of queue pairs: found by number in an array, and scheduled in a round-robin queue.

use crate::part::{FIRST_QPN, MAX_QPS, Part};
use crate::qp::{Qp, QpInit};
use rocev2::Qpn;
use std::collections::VecDeque;
use switch::Full;

/// Binary digits of the fraction by which a number is divided by the number of parts
const SHIFT: u32 = 40;

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
    /// Number of slots of a part, a power of two
    stride: u32,
    part: Part,
    /// 1 divided by the number of parts, as a fraction of 2^[`SHIFT`], rounded up
    parts_inverse: u64,
}

impl QpTable {
    /// Creates the table of a part, for `capacity` queue pairs.
    pub(super) fn new(capacity: usize, part: Part) -> Self {
        assert!(part.index < part.count, "parts are numbered from 0");
        let most = MAX_QPS / (part.count as usize).next_power_of_two();
        let stride = capacity.next_power_of_two().min(most) as u32;
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            ready: VecDeque::new(),
            capacity: capacity.min(most),
            stride,
            part,
            parts_inverse: (1u64 << SHIFT).div_ceil(part.count.into()),
        }
    }

    /// Returns the first number of a queue pair in a slot.
    const fn first_qpn(&self, slot: u32) -> u32 {
        FIRST_QPN + slot * self.part.count + self.part.index
    }

    /// Creates a queue pair in the reset state. Returns its number.
    pub(super) fn create(&mut self, init: QpInit) -> Result<Qpn, Full> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() < self.capacity => {
                let slot = self.slots.len() as u32;
                self.slots.push(Slot { qpn: self.first_qpn(slot), scheduled: false, qp: None });
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
        let (first, step) = (self.first_qpn(slot), self.stride * self.part.count);
        let entry = self.slots.get_mut(slot as usize)?;
        let qp = entry.qp.take()?;
        entry.qpn += step;
        // The last number means multicast (IB 9.2.3.1).
        if entry.qpn >= (1 << 24) - 1 {
            entry.qpn = first;
        }
        self.free.push_back(slot);
        Some(qp)
    }

    /// Returns the slot of the queue pair with this number.
    #[inline]
    pub(super) fn slot(&self, qpn: Qpn) -> Option<u32> {
        // Exact: the number has 24 bits, and there are fewer than 2^16 parts.
        let number = (u64::from(qpn.get().checked_sub(FIRST_QPN)?) * self.parts_inverse) >> SHIFT;
        let slot = number as u32 & (self.stride - 1);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pd;
    use crate::queue::Cq;

    #[test]
    fn numbers_of_a_part_stay_its_own_however_often_a_slot_is_used_again() {
        for count in 1..=9 {
            for index in 0..count {
                let mut table = QpTable::new(1 << 18, Part { index, count });
                let init = QpInit::rc(Pd(0), Cq(0), 1, 1);
                let _other_slot = table.create(init).unwrap();
                let mut last = None;
                for _ in 0..200 {
                    let qpn = table.create(init).unwrap();
                    assert_eq!((qpn.get() - FIRST_QPN) % count, index);
                    assert!(qpn.get() >= FIRST_QPN && qpn.get() < 0xff_ffff && last != Some(qpn));
                    assert_eq!((table.slot(qpn), last.and_then(|last| table.slot(last))), (Some(1), None));
                    for other in 0..count {
                        let number = FIRST_QPN + (qpn.get() - FIRST_QPN) / count * count + other;
                        assert!(other == index || table.slot(Qpn::new(number)).is_none());
                    }
                    table.remove(1);
                    last = Some(qpn);
                }
            }
        }
    }

    #[test]
    fn all_parts_have_numbers_for_their_queue_pairs() {
        for count in [1, 2, 3, 16, 128] {
            let table = QpTable::new(1 << 24, Part { index: count - 1, count });
            let last = table.first_qpn(table.capacity as u32 - 1);
            assert!(table.capacity <= table.stride as usize && last < 1 << 23, "{count} parts");
        }
    }
}

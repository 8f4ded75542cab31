//! Withheld responses: copied to preallocated slots, and released in the order of each connection.

use crate::Id;
use rocev2::Psn;
use switch::PortId;

/// Maximum length in bytes of a withheld frame. A longer one is dropped, and the client retransmits its
/// request
pub(crate) const LONGEST: usize = 2304;

/// A withheld response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    buffer: u32,
    len: u16,
    /// Port on which it arrived
    pub port: PortId,
    /// Flow whose request it answers
    pub flow: Id,
    /// The client's PSN
    pub psn: Psn,
}

/// Withheld frames, in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Withheld {
    bytes: Box<[u8]>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Withheld {
    pub(crate) fn with_capacity(frames: usize) -> Self {
        Self {
            bytes: vec![0; frames * LONGEST].into(),
            slots: Vec::with_capacity(frames),
            free: (0..frames as u32).rev().collect(),
        }
    }

    /// Returns the memory in bytes for `frames` frames.
    pub(crate) const fn bytes(frames: usize) -> usize {
        frames * (LONGEST + size_of::<Slot>() + size_of::<u32>())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the PSN of a flow's last withheld response.
    pub(crate) fn last_of(&self, flow: Id) -> Option<Psn> {
        self.slots.iter().rev().find(|slot| slot.flow == flow).map(|slot| slot.psn)
    }

    /// Stores a frame. Returns false if it is too long or no slot is free.
    pub(crate) fn push(&mut self, flow: Id, psn: Psn, frame: &[u8], port: PortId) -> bool {
        if frame.len() > LONGEST {
            return false;
        }
        let Some(buffer) = self.free.pop() else { return false };
        self.bytes[buffer as usize * LONGEST..][..frame.len()].copy_from_slice(frame);
        self.slots.push(Slot { buffer, len: frame.len() as u16, port, flow, psn });
        true
    }

    /// Returns the position, from `from` on, of the first response that is the oldest of its flow and that
    /// `may_go`.
    pub(crate) fn find(&self, from: usize, mut may_go: impl FnMut(&Slot) -> bool) -> Option<usize> {
        (from..self.slots.len()).find(|at| {
            let slot = &self.slots[*at];
            self.slots[..*at].iter().all(|before| before.flow != slot.flow) && may_go(slot)
        })
    }

    /// Returns the response at a position, and its frame.
    pub(crate) fn get(&self, at: usize) -> (Slot, &[u8]) {
        let slot = self.slots[at];
        (slot, &self.bytes[slot.buffer as usize * LONGEST..][..usize::from(slot.len)])
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let slot = self.slots.remove(at);
        self.free.push(slot.buffer);
    }

    /// Removes all responses of a flow.
    pub(crate) fn clear(&mut self, flow: Id) {
        let free = &mut self.free;
        self.slots.retain(|slot| {
            if slot.flow == flow {
                free.push(slot.buffer);
            }
            slot.flow != flow
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_released_in_the_order_of_their_flow() {
        let mut withheld = Withheld::with_capacity(3);
        for (flow, psn) in [(1, 10), (1, 11), (2, 5)] {
            assert!(withheld.push(flow, Psn::new(psn), &[psn as u8; 4], PortId(flow as u16)));
        }
        assert!(!withheld.push(3, Psn::ZERO, &[0; 4], PortId(0)), "all slots are in use");
        assert_eq!(withheld.last_of(1), Some(Psn::new(11)));
        assert_eq!(withheld.last_of(3), None);
        // The second response of flow 1 may go, but is not its oldest.
        assert_eq!(withheld.find(0, |slot| slot.psn != Psn::new(10)), Some(2));
        let (slot, bytes) = withheld.get(2);
        assert_eq!((slot.flow, slot.port, bytes), (2, PortId(2), &[5; 4][..]));
        withheld.remove(2);
        assert_eq!(withheld.find(0, |slot| slot.psn != Psn::new(10)), None);
        withheld.remove(0);
        assert_eq!(withheld.find(0, |_| true), Some(0));
        withheld.clear(1);
        assert!(withheld.is_empty());
        assert!(!withheld.push(1, Psn::ZERO, &[0; LONGEST + 1], PortId(0)));
        for _ in 0..3 {
            assert!(withheld.push(1, Psn::ZERO, &[0; LONGEST], PortId(0)));
        }
    }
}

//! Answers that are kept from their clients for a while: copied to places that are there from the start, and let go in the
//! order in which those of each connection came.

use crate::Id;
use rocev2::Psn;
use switch::PortId;

/// Bytes of the longest frame that is kept; of a longer one, the client will ask again
pub(crate) const LONGEST: usize = 2304;

/// One of them
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    place: u32,
    len: u16,
    /// Where it came from
    pub port: PortId,
    /// Whose requests it answers
    pub flow: Id,
    /// As its client knows it
    pub psn: Psn,
}

/// Frames, in the order in which they came.
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

    /// What so many take.
    pub(crate) const fn bytes(frames: usize) -> usize {
        frames * (LONGEST + size_of::<Slot>() + size_of::<u32>())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The PSN of the last one of a flow
    pub(crate) fn last_of(&self, flow: Id) -> Option<Psn> {
        self.slots.iter().rev().find(|slot| slot.flow == flow).map(|slot| slot.psn)
    }

    /// Keeps a frame, if there is a place for it.
    pub(crate) fn push(&mut self, flow: Id, psn: Psn, frame: &[u8], port: PortId) -> bool {
        if frame.len() > LONGEST {
            return false;
        }
        let Some(place) = self.free.pop() else { return false };
        self.bytes[place as usize * LONGEST..][..frame.len()].copy_from_slice(frame);
        self.slots.push(Slot { place, len: frame.len() as u16, port, flow, psn });
        true
    }

    /// The first that is first of its flow and may go, from this position on
    pub(crate) fn find(&self, from: usize, mut may_go: impl FnMut(&Slot) -> bool) -> Option<usize> {
        (from..self.slots.len()).find(|at| {
            let slot = &self.slots[*at];
            self.slots[..*at].iter().all(|before| before.flow != slot.flow) && may_go(slot)
        })
    }

    /// One by its position
    pub(crate) fn get(&self, at: usize) -> (Slot, &[u8]) {
        let slot = self.slots[at];
        (slot, &self.bytes[slot.place as usize * LONGEST..][..usize::from(slot.len)])
    }

    pub(crate) fn remove(&mut self, at: usize) {
        let slot = self.slots.remove(at);
        self.free.push(slot.place);
    }

    /// Those of a flow are not wanted any more.
    pub(crate) fn clear(&mut self, flow: Id) {
        let free = &mut self.free;
        self.slots.retain(|slot| {
            if slot.flow == flow {
                free.push(slot.place);
            }
            slot.flow != flow
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_in_the_order_of_their_flows() {
        let mut withheld = Withheld::with_capacity(3);
        for (flow, psn) in [(1, 10), (1, 11), (2, 5)] {
            assert!(withheld.push(flow, Psn::new(psn), &[psn as u8; 4], PortId(flow as u16)));
        }
        assert!(!withheld.push(3, Psn::ZERO, &[0; 4], PortId(0)), "no room");
        assert_eq!(withheld.last_of(1), Some(Psn::new(11)));
        assert_eq!(withheld.last_of(3), None);
        // The second of flow 1 may go, but is not the first.
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

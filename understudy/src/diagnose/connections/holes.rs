//! PSNs that a requester has sent, to judge by later ones, but that were not seen.

use crate::diagnose::packet::Sight;
use rocev2::Psn;

/// A range of PSNs that were not seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub from: Psn,
    pub len: u32,
    /// Packet that revealed the hole
    pub at: Sight,
    /// Whether the loss was reported
    pub reported: bool,
    /// Whether the packets had been seen before, and are missing in a retransmission
    pub again: bool,
}

impl Hole {
    fn contains(&self, psn: Psn) -> bool {
        (0..self.len as i32).contains(&psn.distance(self.from))
    }

    /// Returns the PSN behind the hole.
    fn end(&self) -> Psn {
        self.from.add(self.len)
    }
}

/// Maximum count of holes of one flow
const MAX_HOLES: usize = 8;

/// Holes of one flow, in the order in which they were revealed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holes([Option<Hole>; MAX_HOLES]);

impl Holes {
    /// Adds a hole. Returns the oldest one if there is no room for it.
    pub(super) fn add(&mut self, hole: Hole) -> Option<Hole> {
        if let Some(free) = self.0.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(hole);
            return None;
        }
        self.0.rotate_left(1);
        self.0[MAX_HOLES - 1].replace(hole)
    }

    /// Returns the hole with this PSN.
    pub(super) fn find(&mut self, psn: Psn) -> Option<&mut Hole> {
        self.0.iter_mut().flatten().find(|hole| hole.contains(psn))
    }

    /// Removes `span` PSNs, which were seen. Of a hole that they split, the part behind them remains if there
    /// is no room for both.
    pub(super) fn fill(&mut self, psn: Psn, span: u32) {
        let mut front = None;
        for slot in &mut self.0 {
            let Some(hole) = slot.filter(|hole| hole.contains(psn)) else { continue };
            let before = psn.distance(hole.from) as u32;
            let behind = hole.end().distance(psn.add(span)).max(0) as u32;
            let rest = |from, len| (len > 0).then_some(Hole { from, len, ..hole });
            let (head, tail) = (rest(hole.from, before), rest(hole.end().sub(behind), behind));
            *slot = tail.or(head);
            front = tail.and(head);
        }
        if let (Some(front), Some(free)) = (front, self.0.iter_mut().find(|slot| slot.is_none())) {
            *free = Some(front);
        }
    }

    /// Removes the holes that end before or at `psn`, which the responder has acknowledged.
    pub(super) fn acknowledge(&mut self, psn: Psn, mut removed: impl FnMut(Hole)) {
        for slot in &mut self.0 {
            if let Some(hole) = slot.filter(|hole| hole.end().distance(psn) <= 1) {
                removed(hole);
                *slot = None;
            }
        }
    }

    /// Removes the holes in earlier retransmissions, because another one begins.
    pub(super) fn begin_again(&mut self) {
        for slot in &mut self.0 {
            *slot = slot.filter(|hole| !hole.again);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hole> {
        self.0.iter().flatten()
    }
}

//! Frames that are held back: copies in places that are there from the start, given out again by time or by the number of
//! frames that have passed since.

use crate::{Frame, Full, Nanos, Output, PortId};

/// For how long a frame waits that is due while its port has no room, before it is offered again
const RETRY: Nanos = Nanos::from_micros(1);

/// Frames held back, for each port that they are for.
pub(super) struct Held {
    bytes: Box<[u8]>,
    slot_len: usize,
    /// Length of the frame in each slot
    lens: Box<[usize]>,
    free: Vec<u32>,
    lanes: Box<[Lane]>,
    /// Frames held back so far: what comes earlier, leaves earlier at the same time
    count: u64,
}

/// What is on its way to one port.
struct Lane {
    /// Every frame held back, by the time when it is due
    by_time: Heap,
    /// Those among them that wait for others to pass, by how many have to
    by_passed: Heap,
    /// Frames that passed so far
    passed: u64,
    /// Frames that are due are not offered before, because the port had no room
    retry: Nanos,
}

impl Lane {
    fn next(&self) -> Option<Nanos> {
        self.by_time.first().map(|(due, _)| Nanos(due).max(self.retry))
    }
}

/// Until when a frame is held back.
#[derive(Clone, Copy)]
pub(super) struct Until {
    pub(super) due: Nanos,
    /// Or until so many frames have passed
    pub(super) behind: Option<u64>,
}

impl Held {
    /// Places for `slots` frames of up to `slot_len` bytes, for `ports` ports.
    pub(super) fn new(slots: usize, slot_len: usize, ports: u16) -> Self {
        let lane = |_| Lane {
            by_time: Heap::new(slots),
            by_passed: Heap::new(slots),
            passed: 0,
            retry: Nanos::ZERO,
        };
        Self {
            bytes: vec![0; slots * slot_len].into(),
            slot_len,
            lens: vec![0; slots].into(),
            free: (0..slots as u32).rev().collect(),
            lanes: (0..ports).map(lane).collect(),
            count: 0,
        }
    }

    /// Holds back a copy of `frame`, which is for `port`.
    pub(super) fn hold(&mut self, frame: &[u8], port: PortId, until: Until) -> Result<(), Full> {
        if frame.len() > self.slot_len {
            return Err(Full);
        }
        let slot = self.free.pop().ok_or(Full)?;
        let at = slot as usize * self.slot_len;
        self.bytes[at..at + frame.len()].copy_from_slice(frame);
        self.lens[slot as usize] = frame.len();
        let lane = &mut self.lanes[port.index()];
        lane.by_time.insert(slot, (until.due.0, self.count));
        if let Some(behind) = until.behind {
            lane.by_passed.insert(slot, (lane.passed.saturating_add(behind), self.count));
        }
        self.count += 1;
        Ok(())
    }

    /// A frame passes on to `port`. What waited for it is due from now on, and leaves before the next frame.
    #[inline]
    pub(super) fn pass(&mut self, port: PortId, now: Nanos) {
        let lane = &mut self.lanes[port.index()];
        lane.passed += 1;
        while let Some((target, order)) = lane.by_passed.first().filter(|(target, _)| *target <= lane.passed)
        {
            debug_assert_eq!(target, lane.passed, "every frame that passes is looked at");
            let Some(slot) = lane.by_passed.pop() else { break };
            lane.by_time.remove(slot);
            lane.by_time.insert(slot, (now.0, order));
        }
    }

    /// When the next frame is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.lanes.iter().filter_map(Lane::next).min()
    }

    /// Sends what is due on `port`, as long as there is room; how many frames that was.
    #[inline]
    pub(super) fn release<O: Output>(&mut self, port: PortId, now: Nanos, out: &mut O) -> u64 {
        let mut released = 0;
        while self.lanes[port.index()].next().is_some_and(|due| due <= now) {
            if self.release_first(port, out).is_err() {
                self.lanes[port.index()].retry = now + RETRY;
                break;
            }
            released += 1;
        }
        released
    }

    /// Sends what is due on any port; how many frames that was.
    pub(super) fn release_all<O: Output>(&mut self, now: Nanos, out: &mut O) -> u64 {
        (0..self.lanes.len() as u16).map(|port| self.release(PortId(port), now, out)).sum()
    }

    #[cold]
    fn release_first<O: Output>(&mut self, port: PortId, out: &mut O) -> Result<(), Full> {
        let lane = &mut self.lanes[port.index()];
        let Some(slot) = lane.by_time.slot() else { return Err(Full) };
        if out.room(port) == 0 {
            return Err(Full);
        }
        let (at, len) = (slot as usize * self.slot_len, self.lens[slot as usize]);
        let mut frame = out.make(len)?;
        frame.bytes_mut().copy_from_slice(&self.bytes[at..at + len]);
        lane.by_time.remove(slot);
        lane.by_passed.remove(slot);
        self.free.push(slot);
        // There was room; should there be none after all, the runner counts the frame.
        _ = out.send(frame, port);
        Ok(())
    }
}

/// What slots are sorted by; no two are equal.
type Key = (u64, u64);

/// Slots by key, smallest first: a binary heap that knows where each slot stands, so that any can be taken out.
struct Heap {
    entries: Vec<(Key, u32)>,
    /// Where each slot stands in `entries`
    place: Box<[u32]>,
}

/// The place of a slot that is not in the heap
const NOWHERE: u32 = u32::MAX;

impl Heap {
    fn new(slots: usize) -> Self {
        Self { entries: Vec::with_capacity(slots), place: vec![NOWHERE; slots].into() }
    }

    #[inline]
    fn first(&self) -> Option<Key> {
        self.entries.first().map(|&(key, _)| key)
    }

    fn slot(&self) -> Option<u32> {
        self.entries.first().map(|&(_, slot)| slot)
    }

    fn pop(&mut self) -> Option<u32> {
        let slot = self.slot()?;
        self.remove(slot);
        Some(slot)
    }

    /// Adds a slot that is not in it.
    fn insert(&mut self, slot: u32, key: Key) {
        let at = self.entries.len();
        self.entries.push((key, slot));
        self.place[slot as usize] = at as u32;
        self.rise(at);
    }

    /// Takes a slot out, if it is in.
    fn remove(&mut self, slot: u32) {
        let at = core::mem::replace(&mut self.place[slot as usize], NOWHERE);
        if at == NOWHERE {
            return;
        }
        let at = at as usize;
        self.entries.swap_remove(at);
        if let Some(&(_, moved)) = self.entries.get(at) {
            self.place[moved as usize] = at as u32;
            self.rise(at);
            self.sink(self.place[moved as usize] as usize);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        for at in [a, b] {
            self.place[self.entries[at].1 as usize] = at as u32;
        }
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.entries[at].0 < self.entries[(at - 1) / 2].0 {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.entries.len());
            let Some(least) = children.min_by_key(|&child| self.entries[child].0) else { return };
            if self.entries[at].0 <= self.entries[least].0 {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_heap_is_a_sorted_map(operations in proptest::collection::vec((0u32..24, 0u64..50, any::<bool>()), 0..300)) {
            let mut heap = Heap::new(24);
            let mut model: BTreeMap<Key, u32> = BTreeMap::new();
            for (order, (slot, due, remove)) in operations.into_iter().enumerate() {
                let known = model.iter().find(|&(_, &other)| other == slot).map(|(&key, _)| key);
                if let Some(key) = known {
                    heap.remove(slot);
                    model.remove(&key);
                } else if remove {
                    prop_assert_eq!(heap.pop(), model.pop_first().map(|(_, slot)| slot));
                } else {
                    let key = (due, order as u64);
                    heap.insert(slot, key);
                    model.insert(key, slot);
                }
                prop_assert_eq!((heap.first(), heap.slot()), (model.keys().next().copied(), model.values().next().copied()));
            }
            while let Some((_, slot)) = model.pop_first() {
                prop_assert_eq!(heap.pop(), Some(slot));
            }
            prop_assert_eq!(heap.pop(), None);
        }
    }
}

//! Held frames: copies in preallocated slots, released when their time has come or when enough later frames
//! have passed.

use crate::heap::Heap;
use crate::{Frame, Full, Nanos, Output, PortId};

/// Time until a due frame is offered again after its port had no room
const RETRY: Nanos = Nanos::from_micros(1);

/// Held frames, with a queue for each output port.
#[derive(Debug)]
pub(super) struct Held {
    bytes: Box<[u8]>,
    slot_len: usize,
    /// Length of the frame in each slot, in bytes
    lens: Box<[usize]>,
    free: Vec<u32>,
    queues: Box<[PortQueue]>,
    /// Count of frames held so far: frames that are due at the same time leave in the order in which they
    /// were held
    count: u64,
}

/// The held frames of one output port.
#[derive(Debug)]
struct PortQueue {
    /// All held frames, by due time
    by_time: Heap,
    /// Those that wait for later frames to pass, by the count of passed frames that releases them
    by_passed: Heap,
    /// Count of frames that have passed
    passed: u64,
    /// Time before which due frames are not offered, because the port had no room
    retry: Nanos,
}

impl PortQueue {
    #[inline]
    fn next(&self) -> Option<Nanos> {
        self.by_time.first().map(|(due, _)| Nanos(due).max(self.retry))
    }
}

/// When a held frame is released.
#[derive(Clone, Copy)]
pub(super) struct Release {
    pub(super) due: Nanos,
    /// Count of later frames whose passing releases the frame before it is due
    pub(super) behind: Option<u64>,
}

impl Held {
    /// Allocates `slots` slots of `slot_len` bytes for `ports` ports.
    pub(super) fn new(slots: usize, slot_len: usize, ports: u16) -> Self {
        let queue = |_| PortQueue {
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
            queues: (0..ports).map(queue).collect(),
            count: 0,
        }
    }

    /// Returns the slots without their frames, for a planted bug.
    #[cfg(test)]
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.lens.len(), self.slot_len, self.queues.len() as u16)
    }

    /// Holds back a copy of `frame`, which is to be sent through `port`.
    ///
    /// # Errors
    /// [`Full`] if no slot is free or the frame is longer than a slot.
    pub(super) fn hold(&mut self, frame: &[u8], port: PortId, release: Release) -> Result<(), Full> {
        if frame.len() > self.slot_len {
            return Err(Full);
        }
        let slot = self.free.pop().ok_or(Full)?;
        let at = slot as usize * self.slot_len;
        self.bytes[at..at + frame.len()].copy_from_slice(frame);
        self.lens[slot as usize] = frame.len();
        let queue = &mut self.queues[port.index()];
        queue.by_time.insert(slot, (release.due.0, self.count));
        if let Some(behind) = release.behind {
            queue.by_passed.insert(slot, (queue.passed.saturating_add(behind), self.count));
        }
        self.count += 1;
        Ok(())
    }

    /// Records that a frame is forwarded to `port`. Held frames that this releases become due, and leave
    /// before the next frame.
    #[inline]
    pub(super) fn pass(&mut self, port: PortId, now: Nanos) {
        let queue = &mut self.queues[port.index()];
        queue.passed += 1;
        while let Some((target, order)) =
            queue.by_passed.first().filter(|(target, _)| *target <= queue.passed)
        {
            debug_assert_eq!(target, queue.passed, "pass() is called for every frame");
            let Some(slot) = queue.by_passed.pop() else { break };
            queue.by_time.remove(slot);
            queue.by_time.insert(slot, (now.0, order));
        }
    }

    /// Returns when the next frame is due.
    #[inline]
    pub(super) fn next(&self) -> Option<Nanos> {
        self.queues.iter().filter_map(PortQueue::next).min()
    }

    /// Sends the due frames of `port` while there is room. Returns their count.
    #[inline]
    pub(super) fn release<O: Output>(&mut self, port: PortId, now: Nanos, out: &mut O) -> u64 {
        let mut released = 0;
        while self.queues[port.index()].next().is_some_and(|due| due <= now) {
            if self.release_first(port, out).is_err() {
                self.queues[port.index()].retry = now + RETRY;
                break;
            }
            released += 1;
        }
        released
    }

    /// Sends the due frames of all ports. Returns their count.
    pub(super) fn release_all<O: Output>(&mut self, now: Nanos, out: &mut O) -> u64 {
        (0..self.queues.len() as u16).map(|port| self.release(PortId(port), now, out)).sum()
    }

    #[cold]
    fn release_first<O: Output>(&mut self, port: PortId, out: &mut O) -> Result<(), Full> {
        let queue = &mut self.queues[port.index()];
        let Some(slot) = queue.by_time.slot() else { return Err(Full) };
        if out.room(port) == 0 {
            return Err(Full);
        }
        let (at, len) = (slot as usize * self.slot_len, self.lens[slot as usize]);
        let mut frame = out.make(len)?;
        frame.bytes_mut().copy_from_slice(&self.bytes[at..at + len]);
        queue.by_time.remove(slot);
        queue.by_passed.remove(slot);
        self.free.push(slot);
        // `room` was checked above; if the port still refuses the frame, the runner counts it.
        _ = out.send(frame, port);
        Ok(())
    }
}

//! Held frames: copies in preallocated slots, released when their time has come or when enough later frames
//! have passed.

use crate::heap::Heap;
use crate::{Frame, Full, Nanos, Output, PortId};

/// Time until a due frame is offered again after its port had no room
const RETRY: Nanos = Nanos::from_micros(1);

/// Held frames, with a queue for each output port.
pub(super) struct Held {
    bytes: Box<[u8]>,
    slot_len: usize,
    /// Length of the frame in each slot, in bytes
    lens: Box<[usize]>,
    free: Vec<u32>,
    lanes: Box<[Lane]>,
    /// Count of frames held so far: frames that are due at the same time leave in the order in which they
    /// were held
    count: u64,
}

/// The held frames of one output port.
struct Lane {
    /// All held frames, by due time
    by_time: Heap,
    /// Those that wait for later frames to pass, by the count of passed frames that releases them
    by_passed: Heap,
    /// Count of frames that have passed
    passed: u64,
    /// Time before which due frames are not offered, because the port had no room
    retry: Nanos,
}

impl Lane {
    fn next(&self) -> Option<Nanos> {
        self.by_time.first().map(|(due, _)| Nanos(due).max(self.retry))
    }
}

/// When a held frame is released.
#[derive(Clone, Copy)]
pub(super) struct Until {
    pub(super) due: Nanos,
    /// Count of later frames that have to pass first
    pub(super) behind: Option<u64>,
}

impl Held {
    /// Allocates `slots` slots of `slot_len` bytes for `ports` ports.
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

    /// Holds back a copy of `frame`, which is to be sent through `port`.
    ///
    /// # Errors
    /// [`Full`] if no slot is free or the frame is longer than a slot.
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

    /// Records that a frame is forwarded to `port`. Held frames that this releases become due, and leave
    /// before the next frame.
    #[inline]
    pub(super) fn pass(&mut self, port: PortId, now: Nanos) {
        let lane = &mut self.lanes[port.index()];
        lane.passed += 1;
        while let Some((target, order)) = lane.by_passed.first().filter(|(target, _)| *target <= lane.passed)
        {
            debug_assert_eq!(target, lane.passed, "pass() is called for every frame");
            let Some(slot) = lane.by_passed.pop() else { break };
            lane.by_time.remove(slot);
            lane.by_time.insert(slot, (now.0, order));
        }
    }

    /// Returns when the next frame is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.lanes.iter().filter_map(Lane::next).min()
    }

    /// Sends the due frames of `port` while there is room. Returns their count.
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

    /// Sends the due frames of all ports. Returns their count.
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
        // `room` was checked above; if the port still refuses the frame, the runner counts it.
        _ = out.send(frame, port);
        Ok(())
    }
}

//! Frames that are held back: copies in places that are there from the start, given out again by time or by the number of
//! frames that have passed since.

use crate::heap::Heap;
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

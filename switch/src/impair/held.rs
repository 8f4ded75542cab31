//! Frames that are held back: copies in memory that was taken when the function was made.

use crate::{Frame, Full, Nanos, Output, PortId};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// A frame that waits.
#[derive(Debug)]
struct Slot {
    bytes: Vec<u8>,
    port: PortId,
    /// Frames that have still to overtake it; none for one that only waits
    behind: u32,
    /// It has left, and its time has not come yet
    gone: bool,
}

/// Frames that wait.
#[derive(Debug)]
pub(super) struct Held {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// When, in the order in which they came
    due: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    order: u64,
    /// Those that wait to be overtaken
    reordered: Vec<u32>,
    max_frame: usize,
}

impl Held {
    pub(super) fn new(count: usize, max_frame: usize) -> Self {
        let slot = |_| Slot { bytes: Vec::with_capacity(max_frame), port: PortId(0), behind: 0, gone: false };
        Self {
            slots: (0..count).map(slot).collect(),
            free: (0..count as u32).rev().collect(),
            due: BinaryHeap::with_capacity(count),
            order: 0,
            reordered: Vec::with_capacity(count),
            max_frame,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Keeps a frame until `until`, or until `behind` frames have overtaken it, if that is not 0.
    pub(super) fn keep(&mut self, frame: &[u8], port: PortId, until: Nanos, behind: u32) -> Result<(), Full> {
        if frame.len() > self.max_frame {
            return Err(Full);
        }
        let number = self.free.pop().ok_or(Full)?;
        let slot = &mut self.slots[number as usize];
        slot.bytes.clear();
        slot.bytes.extend_from_slice(frame);
        (slot.port, slot.behind, slot.gone) = (port, behind, false);
        self.order += 1;
        self.due.push(Reverse((until, self.order, number)));
        if behind > 0 {
            self.reordered.push(number);
        }
        Ok(())
    }

    /// A frame leaves through `port`; whether others were waiting for that.
    pub(super) fn passes(&mut self, port: PortId) -> bool {
        let mut any = false;
        for &number in &self.reordered {
            let slot = &mut self.slots[number as usize];
            if slot.port == port && slot.behind > 0 {
                slot.behind -= 1;
                any |= slot.behind == 0;
            }
        }
        any
    }

    /// Sends those that have been overtaken.
    pub(super) fn release_overtaken<O: Output>(&mut self, out: &mut O) {
        let Self { slots, reordered, .. } = self;
        reordered.retain(|&number| {
            let slot = &mut slots[number as usize];
            if slot.behind > 0 || out.room(slot.port) == 0 {
                return true;
            }
            slot.gone = send(slot, out);
            !slot.gone
        });
    }

    /// Sends those whose time has come.
    pub(super) fn release_due<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.release_overtaken(out);
        while let Some(&Reverse((at, _, number))) = self.due.peek()
            && at <= now
        {
            let slot = &mut self.slots[number as usize];
            if !slot.gone && (out.room(slot.port) == 0 || !send(slot, out)) {
                // The port or the pool of buffers is full: at the next turn.
                return;
            }
            self.due.pop();
            self.reordered.retain(|other| *other != number);
            self.free.push(number);
        }
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.due.peek().map(|Reverse((at, ..))| *at)
    }
}

/// Sends a copy; false if there is no buffer for it.
fn send<O: Output>(slot: &Slot, out: &mut O) -> bool {
    let Ok(mut frame) = out.make(slot.bytes.len()) else { return false };
    frame.bytes_mut().copy_from_slice(&slot.bytes);
    // Refused in spite of its room it is dropped, and counted as such.
    _ = out.send(frame, slot.port);
    true
}

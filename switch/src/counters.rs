//! Counters: written by one worker with plain additions, read by anyone at any time.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread adds to. A reader on another thread sees a value that was true a moment ago; sums over
/// several counters are exact once their writers have stopped.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. To be called from the one thread that owns the counter: this is a load and a store, not an atomic
    /// addition, and costs what a plain `+=` costs.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Frames and their bytes (from the destination address to the end, without the frame check sequence).
#[derive(Debug, Default)]
pub struct FrameCounter {
    /// Frames
    pub frames: Counter,
    /// Bytes of those frames
    pub bytes: Counter,
}

impl FrameCounter {
    /// Counts a frame of `len` bytes.
    #[inline]
    pub fn count(&self, len: usize) {
        self.count_many(1, len as u64);
    }

    /// Counts several frames at once.
    #[inline]
    pub fn count_many(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.bytes.add(bytes);
    }

    /// Frames and bytes.
    pub fn get(&self) -> (u64, u64) {
        (self.frames.get(), self.bytes.get())
    }
}

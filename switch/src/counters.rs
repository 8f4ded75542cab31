//! Counters: written by one worker with plain additions, read by any thread at any time.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with one writing thread. A reader on another thread gets a recent value; sums over several
/// counters are exact only after their writers have stopped.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the thread that owns the counter may call this: it is a load and a store, not an atomic
    /// addition, and costs as much as a plain `+=`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A value that may fall, with one writing thread
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value. Only the thread that owns the gauge may call this.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The largest value since the start, with one writing thread
#[derive(Debug, Default)]
pub struct Maximum(AtomicU64);

impl Maximum {
    /// Raises the maximum to `value` if that is larger. Only the thread that owns the maximum may call this.
    #[inline]
    pub fn raise(&self, value: u64) {
        if value > self.0.load(Relaxed) {
            self.0.store(value, Relaxed);
        }
    }

    /// Returns the maximum.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counter of frames and their bytes (from the destination address to the end, without the frame check
/// sequence).
#[derive(Debug, Default)]
pub struct FrameCounter {
    /// Count of frames
    pub frames: Counter,
    /// Total length of those frames, in bytes
    pub bytes: Counter,
}

impl FrameCounter {
    /// Counts a frame of `len` bytes.
    #[inline]
    pub fn count(&self, len: usize) {
        self.count_many(1, len as u64);
    }

    /// Counts several frames of `bytes` bytes in total.
    #[inline]
    pub fn count_many(&self, frames: u64, bytes: u64) {
        self.frames.add(frames);
        self.bytes.add(bytes);
    }

    /// Returns the counts of frames and bytes.
    pub fn get(&self) -> (u64, u64) {
        (self.frames.get(), self.bytes.get())
    }
}

//! Time that a function takes per frame: from the first frame of a burst until the function has handled all
//! of them, plus the time of its timer. The drivers' receive and send functions are excluded; allocating and
//! freeing buffers is included, and so is sending frames beyond the 32 that wait for a port.

use crate::time::{cycles, hz};
use core::cell::Cell;
use std::sync::Arc;
use switch::counters::Counter;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// Number of frames after which a lap ends: few enough that the thread is not preempted in most laps
const LAP: u64 = 1024;
/// Number of histogram bins per cycle, and maximum number of cycles
const BINS_PER_CYCLE: u64 = 8;
const MAX_CYCLES: u64 = 4096;

/// Histogram of laps by their cycles per frame: written by a worker, read by any thread.
#[derive(Debug)]
pub struct Laps(Box<[Counter]>);

impl Laps {
    fn add(&self, cycles: u64, frames: u64) {
        let bin = (cycles * BINS_PER_CYCLE / frames).min(BINS_PER_CYCLE * MAX_CYCLES - 1);
        self.0[bin as usize].add(1);
    }

    /// Returns the median of the laps, in nanoseconds per frame. Laps in which the thread was preempted do
    /// not move the median.
    pub fn median_ns(&self) -> Option<f64> {
        let all: u64 = self.0.iter().map(Counter::get).sum();
        let mut left = all.div_ceil(2);
        let median = self.0.iter().position(|laps| {
            left = left.saturating_sub(laps.get());
            left == 0
        });
        let cycles = (median? as f64 + 0.5) / BINS_PER_CYCLE as f64;
        (all > 0).then(|| cycles * 1e9 / hz() as f64)
    }
}

/// A function with time measurement. It reads the clock four times per burst.
pub struct Stopwatch<F> {
    function: F,
    laps: Arc<Laps>,
    /// Start of the burst; 0 between two bursts
    start: Cell<u64>,
    /// Cycles and frames of this lap
    cycles: Cell<u64>,
    frames: Cell<u64>,
}

impl<F> Stopwatch<F> {
    /// Measures `function`.
    pub fn new(function: F) -> Self {
        let laps = (0..BINS_PER_CYCLE * MAX_CYCLES).map(|_| Counter::default()).collect();
        let zero = || Cell::new(0);
        Self { function, laps: Arc::new(Laps(laps)), start: zero(), cycles: zero(), frames: zero() }
    }

    /// Returns the measured laps.
    pub fn laps(&self) -> Arc<Laps> {
        Arc::clone(&self.laps)
    }

    fn add_time(&self, since: u64) {
        self.cycles.set(self.cycles.get() + cycles().wrapping_sub(since));
    }
}

impl<F: Function> Function for Stopwatch<F> {
    type Command = F::Command;
    type Event = F::Event;
    const HAS_OWNERS: bool = F::HAS_OWNERS;
    const HAS_SENDERS: bool = F::HAS_SENDERS;

    #[inline]
    fn owner(&self, frame: &impl Frame, port: PortId) -> Option<usize> {
        self.function.owner(frame, port)
    }

    fn receiver(&self, port: PortId) -> usize {
        self.function.receiver(port)
    }

    fn sender(&self, port: PortId) -> usize {
        self.function.sender(port)
    }

    #[inline]
    fn on_handoff(&mut self, frame: &mut impl Frame, port: PortId, now: Nanos) {
        self.function.on_handoff(frame, port, now);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.function.publish()
    }

    #[inline]
    fn snapshot(&mut self) {
        self.function.snapshot();
    }

    #[inline]
    fn adopt(&mut self, now: Nanos) {
        self.function.adopt(now);
    }

    fn receives_from(&self, port: PortId) -> bool {
        self.function.receives_from(port)
    }

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if self.start.get() == 0 {
            if self.frames.get() >= LAP {
                self.laps.add(self.cycles.take(), self.frames.take());
            }
            self.start.set(cycles());
        }
        self.frames.set(self.frames.get() + 1);
        self.function.on_frame(frame, port, now, out)
    }

    #[inline]
    fn prefetch_table(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.function.prefetch_table(frame, fetch);
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.function.prefetch_state(frame, fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let start = cycles();
        self.function.on_timer(now, out);
        self.add_time(start);
    }

    /// Ends the measurement of a burst: a worker calls this after each burst.
    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        let start = self.start.take();
        if start > 0 {
            self.add_time(start);
        }
        self.function.next_timer()
    }

    fn on_command(&mut self, command: F::Command, now: Nanos) {
        self.function.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<F::Event> {
        self.function.poll_event()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_lap_is_found() {
        let laps = Laps((0..BINS_PER_CYCLE * MAX_CYCLES).map(|_| Counter::default()).collect());
        assert_eq!(laps.median_ns(), None);
        for cycles in [100, 30, 31, 1_000_000_000, 29] {
            laps.add(cycles * LAP, LAP);
        }
        let ns = 1e9 / hz() as f64;
        let median = laps.median_ns().unwrap() / ns;
        assert!((31.0..31.2).contains(&median), "{median}");
    }
}

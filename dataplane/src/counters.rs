//! Counters of the runtime, by worker.

use switch::DropReason;
use switch::counters::{Counter, FrameCounter};

/// Counters of one worker: written by that worker, read by any thread.
#[derive(Debug)]
pub struct WorkerCounters {
    /// Frames received and sent, by port
    pub ports: Box<[PortCounters]>,
    /// Frames dropped, by [`DropReason::index`]
    pub drops: [Counter; DropReason::COUNT],
    /// Frames consumed by the function
    pub consumed: Counter,
    /// Frames passed to the control plane
    pub punted: Counter,
    /// Frames handed off to the worker that owns the port's send queue
    pub handed_off: Counter,
    /// Frames that the function sent in addition to the one received
    pub made: Counter,
    /// Loop iterations in which frames were received
    pub busy_turns: Counter,
    /// TSC cycles of those iterations
    pub busy_cycles: Counter,
    /// Loop iterations in total
    pub turns: Counter,
}

/// Frames received and sent on a port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Received frames
    pub rx: FrameCounter,
    /// Frames that the port accepted for sending
    pub tx: FrameCounter,
}

impl WorkerCounters {
    pub(crate) fn new(ports: usize) -> Self {
        Self {
            ports: (0..ports).map(|_| PortCounters::default()).collect(),
            drops: core::array::from_fn(|_| Counter::default()),
            consumed: Counter::default(),
            punted: Counter::default(),
            handed_off: Counter::default(),
            made: Counter::default(),
            busy_turns: Counter::default(),
            busy_cycles: Counter::default(),
            turns: Counter::default(),
        }
    }

    /// Counts a dropped frame.
    #[inline]
    pub(crate) fn count_drop(&self, reason: DropReason) {
        self.drops[reason.index()].add(1);
    }

    /// Returns the count of frames received on all ports.
    pub fn received(&self) -> u64 {
        self.ports.iter().map(|port| port.rx.frames.get()).sum()
    }
}

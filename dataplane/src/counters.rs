//! What the runtime counts, by worker.

use switch::DropReason;
use switch::counters::{Counter, FrameCounter};

/// Counters of one worker: written by it alone, read by anyone.
#[derive(Debug)]
pub struct WorkerCounters {
    /// What the worker received and sent, by port
    pub ports: Box<[PortCounters]>,
    /// Frames dropped, by [`DropReason::index`]
    pub drops: [Counter; DropReason::COUNT],
    /// Frames that ended in the function, taken in
    pub consumed: Counter,
    /// Frames given to the control plane
    pub punted: Counter,
    /// Frames given to the worker that owns the port
    pub handed_off: Counter,
    /// Frames that the function sent beside the one that came in
    pub made: Counter,
    /// Turns of the loop in which frames were received, and the cycles these took
    pub busy_turns: Counter,
    /// Cycles of those turns
    pub busy_cycles: Counter,
    /// Turns of the loop in all
    pub turns: Counter,
}

/// Frames in and out of a port.
#[derive(Debug, Default)]
pub struct PortCounters {
    /// Received
    pub rx: FrameCounter,
    /// Taken by the port to be sent
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

    /// Frames received on all ports.
    pub fn received(&self) -> u64 {
        self.ports.iter().map(|port| port.rx.frames.get()).sum()
    }
}

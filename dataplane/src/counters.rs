//! Counters of the runtime, by worker.

use switch::DropReason;
use switch::counters::{Counter, FrameCounter};
use switch::metrics;

metrics! {
    /// Counters of one worker: written by that worker, read by any thread.
    #[derive(Debug)]
    pub struct WorkerCounters of worker by [worker] {
        /// Frames received and sent, by port
        pub ports: Box<[PortCounters]>,
        /// Frames dropped, by [`DropReason::index`]
        pub drops: [Counter; DropReason::COUNT],
        /// Frames consumed by the function
        pub consumed: Counter [frames as consumed / consumed_frames],
        /// Frames passed to the control plane
        pub punted: Counter [frames as punted / punted_frames],
        /// Frames handed off to the worker that owns the port's send queue
        pub handed_off: Counter [frames as handed_off / handed_off_frames],
        /// Frames received here and given to the worker that owns the state which they need
        pub dispatched: Counter [frames as dispatched / dispatched_frames],
        /// Frames that other workers received and this one handled
        pub taken: Counter [frames as taken / taken_frames],
        /// Frames that the function sent in addition to the one received
        pub made: Counter [frames as made / made_frames],
        /// Iterations of the loop in which frames were received
        pub busy_turns: Counter [turns],
        /// TSC cycles of the iterations in which frames were received
        pub busy_cycles: Counter [cycles],
        /// Iterations of the loop
        pub turns: Counter [turns],
    }
    also {
        /// Frames received
        Counter rx_frames [frames as rx_frames / received_frames] = Self::received,
        /// Frames for which the function was run
        Counter handled [frames as handled / handled_frames] = Self::handled,
    }
}

metrics! {
    /// Frames received and sent on a port.
    // As for all counters of a worker: no other worker writes to the cache line.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub struct PortCounters of port by [port] {
        /// Frames received
        pub rx: FrameCounter {
            frames: [frames as rx_frames / received_frames],
            bytes: [bytes as rx_bytes / received_bytes],
        },
        /// Frames that the port accepted for sending
        pub tx: FrameCounter {
            frames: [frames as tx_frames / sent_frames],
            bytes: [bytes as tx_bytes / sent_bytes],
        },
    }
}

impl WorkerCounters {
    pub(crate) fn new(ports: usize) -> Self {
        Self {
            ports: (0..ports).map(|_| PortCounters::default()).collect(),
            drops: core::array::from_fn(|_| Counter::default()),
            consumed: Counter::default(),
            punted: Counter::default(),
            handed_off: Counter::default(),
            dispatched: Counter::default(),
            taken: Counter::default(),
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

    /// Returns the count of frames for which the function was run.
    pub fn handled(&self) -> u64 {
        let input_full = self.drops[DropReason::InputFull.index()].get();
        // Each counter is read by itself, a moment after the ones before it.
        (self.received() + self.taken.get()).saturating_sub(self.dispatched.get() + input_full)
    }

    /// Returns the count of frames received on all ports.
    pub fn received(&self) -> u64 {
        self.ports.iter().map(|port| port.rx.frames.get()).sum()
    }
}

//! Costs of sharing remote memory, in virtual time, over any switch: the experiments of Swordbox's paper
//! (Grant et al.) with clients of our own. The same run gives the same numbers on any machine.
//!
//! Over a switch that only [forwards](super::forward), the shape is what the authors measured without
//! Swordbox: with the number of threads, the success rate falls, and the bytes per operation and the tail
//! latency grow. How far the rate falls is not an independent result: the server's rates are the measured
//! ones, and one parameter of the clients is fitted to the authors' curve (see
//! [`Options::default`](crate::clients::clover::Options)). Meaningful is the comparison of two switches
//! with the same clients.
//!
//! Only operations that end within the measured time count, so a latency close to that time is
//! underestimated.

use super::{Outcome, Rack, RackConfig};
use crate::clients::clover::{Clover, Layout, Options};
use crate::clients::lock::{Locks, Unlock};
use crate::clients::sherman::{self, Sherman};
use crate::clients::ycsb::{Mix, Workload, Zipf, scattered};
use crate::clients::{Program, ServerMemory};
use sim::{Costs, Link, Node};
use switch::Nanos;

/// Virtual address of the locks of [`locks()`] and [`sherman()`]: region 0 of the server
pub const LOCKS_VA: u64 = 0x1000_0000;
/// Size of the table of locks (bytes): as much as fits into the memory of a NIC
pub const LOCKS_LEN: usize = 128 << 10;
/// Virtual address of Clover's index: region 0 of the server
pub const INDEX_VA: u64 = 0x2000_0000;
/// Virtual address of Clover's nodes: region 1
pub const NODES_VA: u64 = 0x7000_0000_0000;
/// Virtual address of Sherman's tree: region 1
pub const TREE_VA: u64 = 0x6000_0000_0000;
/// Upper bound of the updates per second that a server executes
const MOST_UPDATES: u64 = 60_000_000;

/// Parameters of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Seed of everything that is drawn
    pub seed: u64,
    /// Number of client machines; the switch needs a port for each, after one for the server
    pub machines: usize,
    /// Number of threads, distributed evenly over the machines
    pub threads: usize,
    /// Whether locks are in the memory of the NIC, whose atomics are faster
    pub device: bool,
    /// Time before the measurement
    pub warm_up: Nanos,
    /// Duration of the measurement
    pub span: Nanos,
}

impl Run {
    /// Returns a run with this number of threads on up to eight machines, as the authors had; it measures 10
    /// ms after 10 ms.
    pub fn new(threads: usize) -> Self {
        let (warm_up, span) = (Nanos::from_millis(10), Nanos::from_millis(10));
        Self { seed: 1, machines: threads.clamp(1, 8), threads, device: false, warm_up, span }
    }

    fn updates(&self) -> usize {
        let span = self.warm_up + self.span;
        (MOST_UPDATES * span.0 / 1_000_000_000) as usize + self.threads * 64
    }

    fn measure<P: Program>(
        &self,
        memory: Vec<ServerMemory>,
        switch: impl Node,
        program: impl FnMut(usize) -> P,
    ) -> Result<Outcome, String> {
        let on_device = self.device.then_some(LOCKS_VA..LOCKS_VA + LOCKS_LEN as u64);
        let config = RackConfig {
            seed: self.seed,
            machines: self.machines,
            threads: self.threads.div_ceil(self.machines),
            costs: Some(Costs::connect_x5(on_device)),
            // Some jitter, so that threads do not synchronize, and queues that never overflow.
            link: Link { jitter: Nanos(300), queue: 1 << 24, ..Link::default() },
            ..RackConfig::default()
        };
        Rack::new(config, memory, switch, program).measure(self.warm_up, self.span)
    }
}

/// Runs threads that take and release locks, chosen by Zipf's law with exponent `theta`; with a single lock,
/// all threads contend for it.
///
/// # Errors
/// What went wrong in the run.
pub fn locks(
    run: &Run,
    locks: usize,
    theta: f64,
    unlock: Unlock,
    switch: impl Node,
) -> Result<Outcome, String> {
    let locks = Zipf::new(locks, theta);
    let program = |machine| Locks { unlock, ..Locks::new(locks.clone(), machine as u64, run.seed) };
    run.measure(vec![ServerMemory::zeroed(LOCKS_VA, LOCKS_LEN)], switch, program)
}

/// Runs threads that read and update keys of Clover, the store of lists.
///
/// # Errors
/// What went wrong in the run.
pub fn clover(
    run: &Run,
    mix: Mix,
    layout: Layout,
    theta: f64,
    options: Options,
    switch: impl Node,
) -> Result<Outcome, String> {
    let keys = layout.keys as usize;
    let workload = Workload { mix, keys: Zipf::new(keys, theta) };
    let program = |machine| {
        let mut clover = Clover::new(layout, workload.clone(), machine as u64, run.seed);
        clover.options = options;
        clover
    };
    run.measure(layout.memory(INDEX_VA, NODES_VA, keys + run.updates()), switch, program)
}

/// Runs threads that look up and set keys of Sherman's tree, which contains all keys from the beginning.
///
/// # Errors
/// What went wrong in the run.
pub fn sherman(run: &Run, mix: Mix, keys: usize, theta: f64, switch: impl Node) -> Result<Outcome, String> {
    let workload = Workload { mix, keys: Zipf::new(keys, theta) };
    let mut entries: Vec<_> = (0..keys as u64).map(|key| (scattered(key), 0)).collect();
    entries.sort_unstable();
    // No key is new, so no node is split; each thread allocates space nevertheless.
    let memory = sherman::memory(LOCKS_VA, LOCKS_LEN / 8, TREE_VA, entries, run.threads * 64);
    run.measure(memory, switch, |machine| Sherman::new(workload.clone(), machine as u64, run.seed))
}

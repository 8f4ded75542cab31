//! Frames that one worker received and another owns ([`switch::Function::owner`]), in rings from each worker to each
//! other.

use crate::counters::WorkerCounters;
use crate::mbuf::Mbuf;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use dpdk_sys::rte_mbuf;
use rtrb::chunks::ChunkError;
use rtrb::{Consumer, Producer};
use switch::{DropReason, Function, PortId};

/// Number of frames that are put into a ring, and taken from it, together: an index that the other worker's CPU has
/// changed costs a cache miss, and a chunk needs it once
pub const CHUNK: usize = 32;
/// Distance, in frames, at which headers are prefetched
const DISTANCE: usize = 8;

/// Dispatches the frames that a worker receives to their owners.
pub(crate) struct Dispatcher {
    worker: usize,
    /// Rings to the other workers, by their number; `None` for the worker itself
    rings: Vec<Option<OutputRing>>,
}

/// Frames on their way to one worker.
struct OutputRing {
    ring: Producer<Mbuf>,
    /// Frames for the ring, up to [`CHUNK`]
    waiting: Vec<Mbuf>,
}

impl OutputRing {
    /// Puts the waiting frames into the ring. Frames for which it has no room are lost, as on a wire, and all frames if
    /// the other worker has ended.
    fn flush(&mut self, counters: &WorkerCounters) {
        let written = if self.ring.is_abandoned() { 0 } else { self.write() };
        counters.dispatched.add(written as u64);
        if !self.waiting.is_empty() {
            counters.drops[DropReason::InputFull.index()].add(self.waiting.len() as u64);
            self.waiting.clear();
        }
    }

    /// Moves waiting frames into the ring, as many as it has room for. Returns their number.
    #[inline]
    fn write(&mut self) -> usize {
        let mut count = self.waiting.len();
        // `slots` would read the other worker's index each time, which costs a cache miss.
        if let Err(ChunkError::TooFewSlots(room)) = self.ring.write_chunk_uninit(count) {
            count = room;
        }
        let Ok(chunk) = self.ring.write_chunk_uninit(count) else { return 0 };
        chunk.fill_from_iter(self.waiting.drain(..count))
    }
}

impl Dispatcher {
    /// Creates the dispatcher of a worker. `rings` are those to the other workers, by number.
    pub(crate) fn new(worker: usize, rings: Vec<Option<Producer<Mbuf>>>) -> Self {
        let output = |ring| OutputRing { ring, waiting: Vec::with_capacity(CHUNK) };
        Self { worker, rings: rings.into_iter().map(|ring| ring.map(output)).collect() }
    }

    /// Takes the frames of a burst that other workers own, and moves the remaining frames to its front. Returns the number
    /// of remaining frames, and the length of the taken ones, in bytes.
    ///
    /// # Safety
    /// The caller owns the frames, and afterwards only those at the front.
    #[inline]
    pub(crate) unsafe fn split<F: Function>(
        &mut self,
        function: &F,
        burst: &mut [*mut rte_mbuf],
        port: PortId,
        counters: &WorkerCounters,
    ) -> (usize, u64) {
        let (mut own, mut bytes) = (0, 0);
        for &mbuf in burst.iter().take(DISTANCE) {
            crate::worker::prefetch(mbuf);
        }
        for at in 0..burst.len() {
            if let Some(&ahead) = burst.get(at + DISTANCE) {
                crate::worker::prefetch(ahead);
            }
            // SAFETY: drivers write non-null pointers to buffers that the receiver owns. It is dropped only where this
            // entry of the burst is not used again.
            let frame = unsafe { Mbuf::from_raw(NonNull::new_unchecked(burst[at])) };
            let mut frame = ManuallyDrop::new(frame);
            let owner = function.owner(&*frame, port).filter(|owner| *owner != self.worker);
            let Some(ring) = owner.and_then(|owner| self.rings.get_mut(owner)?.as_mut()) else {
                burst[own] = burst[at];
                own += 1;
                continue;
            };
            bytes += frame.frame_len() as u64;
            frame.set_port(port);
            ring.waiting.push(ManuallyDrop::into_inner(frame));
            if ring.waiting.len() == CHUNK {
                ring.flush(counters);
            }
        }
        (own, bytes)
    }

    /// Puts all waiting frames into the rings.
    #[inline]
    pub(crate) fn flush(&mut self, counters: &WorkerCounters) {
        for ring in self.rings.iter_mut().flatten().filter(|ring| !ring.waiting.is_empty()) {
            ring.flush(counters);
        }
    }
}

/// Takes frames from a ring into `burst`. Returns their number; the caller owns them.
#[inline]
pub(crate) fn take(ring: &mut Consumer<Mbuf>, burst: &mut [*mut rte_mbuf; CHUNK]) -> usize {
    let count = ring.slots().min(CHUNK);
    let Ok(chunk) = ring.read_chunk(count) else { return 0 };
    for (slot, frame) in burst.iter_mut().zip(chunk) {
        *slot = frame.into_raw().as_ptr();
    }
    count
}

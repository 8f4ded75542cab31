//! Transmit path of a worker.

use crate::counters::WorkerCounters;
use crate::mbuf::Mbuf;
use core::ptr::NonNull;
use dpdk_sys::{rte_eth_fp_ops, rte_mbuf, rte_mempool};
use rtrb::Producer;
use rtrb::chunks::ChunkError;
use switch::{DropReason, Frame as _, Full, Output, PortId};

/// Maximum number of frames that wait for a port. Frames that a port does not accept are offered again, in
/// order, up to this count: a burst of a lossless network should survive a short stall.
pub const QUEUE: usize = 512;
/// Number of waiting frames at which they are offered to the port before the end of an iteration
const BURST: usize = 32;

/// A frame for a port whose send queue another worker owns.
pub(crate) struct Handoff {
    pub(crate) frame: Mbuf,
    pub(crate) port: PortId,
}

/// Frames on their way to the worker that sends them.
pub(crate) struct HandoffRing {
    ring: Producer<Handoff>,
    /// Frames that are not in the ring yet, up to a burst; `None` if each frame is put there at once
    waiting: Option<Vec<Handoff>>,
}

impl HandoffRing {
    /// Creates the sending end of a ring. `in_bursts` selects that frames are put there in bursts, and at the end of a
    /// turn: an index that the other worker's CPU has changed costs a cache miss, and a burst needs it once.
    pub(crate) fn new(ring: Producer<Handoff>, in_bursts: bool) -> Self {
        Self { ring, waiting: in_bursts.then(|| Vec::with_capacity(BURST)) }
    }

    #[inline]
    fn push(&mut self, handoff: Handoff, counters: &WorkerCounters) -> Result<(), Full> {
        if let Some(waiting) = &mut self.waiting {
            waiting.push(handoff);
            if waiting.len() == BURST {
                self.flush(counters);
            }
            return Ok(());
        }
        match self.ring.push(handoff) {
            Ok(()) => {
                counters.handed_off.add(1);
                Ok(())
            }
            Err(rtrb::PushError::Full(_)) => {
                counters.count_drop(DropReason::HandoffFull);
                Err(Full)
            }
        }
    }

    /// Puts the waiting frames into the ring. Frames for which it has no room are lost, as on a wire.
    #[inline]
    fn flush(&mut self, counters: &WorkerCounters) {
        let Some(waiting) = self.waiting.as_mut().filter(|waiting| !waiting.is_empty()) else { return };
        let mut count = waiting.len();
        // `slots` would read the other worker's index each time, which costs a cache miss.
        if let Err(ChunkError::TooFewSlots(room)) = self.ring.write_chunk_uninit(count) {
            count = room;
        }
        let written = match self.ring.write_chunk_uninit(count) {
            Ok(chunk) => chunk.fill_from_iter(waiting.drain(..count)),
            Err(_) => 0,
        };
        counters.handed_off.add(written as u64);
        counters.drops[DropReason::HandoffFull.index()].add(waiting.len() as u64);
        waiting.clear();
    }

    fn room(&self) -> usize {
        self.ring.slots().saturating_sub(self.waiting.as_ref().map_or(0, Vec::len))
    }
}

/// How a worker sends through a port.
pub(crate) enum Exit {
    /// Through a send queue of its own
    Queue(Queue),
    /// Through the worker that owns the send queue
    Worker(usize),
    /// Not at present, because the port has no peer or its link is not up; the send queue is kept for later and
    /// is empty
    Detached(Queue),
}

/// A send queue of a port, and the frames that wait for it. No other worker writes to its cache line.
#[repr(align(64))]
pub(crate) struct Queue {
    port: u16,
    /// DPDK's queue ID
    number: u16,
    waiting: Box<[*mut rte_mbuf; QUEUE]>,
    len: usize,
    /// Total length of the waiting frames, in bytes
    bytes: u64,
}

// SAFETY: the queue owns the waiting frames, which belong to no thread.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) fn new(port: u16, queue: u16) -> Self {
        Self { port, number: queue, waiting: Box::new([core::ptr::null_mut(); QUEUE]), len: 0, bytes: 0 }
    }

    /// Returns whether no frame waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn push(&mut self, frame: Mbuf) -> Result<(), Mbuf> {
        let Some(slot) = self.waiting.get_mut(self.len) else { return Err(frame) };
        self.bytes += frame.frame_len() as u64;
        *slot = frame.into_raw().as_ptr();
        self.len += 1;
        Ok(())
    }

    /// Allocates frames with these bytes directly in the queue, at most up to the end of a burst, and calls
    /// `finish` to overwrite each of them. Returns their count, which is 0 if the queue is full or the pool
    /// nearly empty.
    ///
    /// # Safety
    /// `pool` is a pool of packet buffers that outlives the mbufs allocated from it.
    #[inline]
    unsafe fn push_copies(
        &mut self,
        pool: NonNull<rte_mempool>,
        bytes: &[u8],
        count: usize,
        finish: &mut impl FnMut(&mut [u8]),
    ) -> usize {
        let (begin, room) = (self.len, BURST - self.len % BURST);
        let Some(slots) = self.waiting.get_mut(begin..begin + count.min(room)) else { return 0 };
        // SAFETY: the caller guarantees the pool; `slots` has room for the pointers.
        let failed = unsafe {
            dpdk_sys::rte_mempool_get_bulk(pool.as_ptr(), slots.as_mut_ptr().cast(), slots.len() as u32)
        };
        if failed != 0 {
            return 0;
        }
        for at in begin..begin + slots.len() {
            // SAFETY: pools return valid buffers, which are owned here only.
            let frame = unsafe { Mbuf::fill(NonNull::new_unchecked(self.waiting[at]), bytes) };
            // A buffer that is too short for these bytes has been returned to the pool.
            let Ok(mut frame) = frame else { continue };
            finish(frame.bytes_mut());
            self.waiting[self.len] = frame.into_raw().as_ptr();
            self.len += 1;
        }
        let made = self.len - begin;
        self.bytes += (made * bytes.len()) as u64;
        made
    }

    /// Offers the waiting frames to the port, if they are one or more whole bursts.
    #[inline]
    fn flush_bursts(&mut self, sent: &switch::counters::FrameCounter) {
        if self.len >= BURST && self.len.is_multiple_of(BURST) {
            self.flush(sent);
        }
    }

    /// Offers the waiting frames to the port.
    #[inline]
    fn flush(&mut self, sent: &switch::counters::FrameCounter) {
        if self.len == 0 {
            return;
        }
        // SAFETY: the port is started, and only this worker uses the queue; the port takes ownership of the
        // frames that it accepts, which are the first ones.
        let accepted = usize::from(unsafe {
            tx_burst(self.port, self.number, self.waiting.as_mut_ptr(), self.len as u16)
        });
        if accepted == self.len {
            sent.count_many(accepted as u64, self.bytes);
            (self.len, self.bytes) = (0, 0);
        } else if accepted > 0 {
            let before = self.bytes;
            self.waiting.copy_within(accepted..self.len, 0);
            self.len -= accepted;
            // SAFETY: the queue still owns the frames that the port did not accept.
            self.bytes =
                self.waiting[..self.len].iter().map(|&mbuf| u64::from(unsafe { (*mbuf).pkt_len })).sum();
            sent.count_many(accepted as u64, before - self.bytes);
        }
    }

    /// Frees the waiting frames. Returns their count.
    pub(crate) fn discard(&mut self) -> usize {
        // SAFETY: the queue owns the waiting frames, and removes them below.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.waiting.as_mut_ptr(), self.len as u32) };
        self.bytes = 0;
        core::mem::take(&mut self.len)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Calls the send function of a port directly, as `rte_eth_tx_burst` does. Returns the number of frames that
/// the port accepted.
///
/// # Safety
/// The port is started, `queue` is one of its send queues and used by the calling thread only, and `frames`
/// points to `len` owned buffers.
#[inline]
unsafe fn tx_burst(port: u16, queue: u16, frames: *mut *mut rte_mbuf, len: u16) -> u16 {
    // SAFETY: DPDK fills the entry when the port starts, and keeps it until the port stops.
    unsafe {
        let ops = &raw const rte_eth_fp_ops[usize::from(port)];
        let burst = (*ops).tx_pkt_burst.unwrap_unchecked();
        burst(*(*ops).txq.data.add(usize::from(queue)), frames, len)
    }
}

/// Calls the receive function of a port directly, as `rte_eth_rx_burst` does. Returns the number of frames
/// written to `frames`.
///
/// # Safety
/// The port is started, `queue` is one of its receive queues and used by the calling thread only, and
/// `frames` has room for `len` pointers. The caller owns the frames.
#[inline]
pub(crate) unsafe fn rx_burst(port: u16, queue: u16, frames: *mut *mut rte_mbuf, len: u16) -> u16 {
    // SAFETY: as for `tx_burst`.
    unsafe {
        let ops = &raw const rte_eth_fp_ops[usize::from(port)];
        let burst = (*ops).rx_pkt_burst.unwrap_unchecked();
        burst(*(*ops).rxq.data.add(usize::from(queue)), frames, len)
    }
}

/// Cache of raw mbufs, which are taken from a pool in bursts.
pub(crate) struct MbufCache {
    buffers: [*mut rte_mbuf; BURST],
    len: usize,
}

// SAFETY: the buffers are owned, and belong to no thread.
unsafe impl Send for MbufCache {}

impl MbufCache {
    /// Returns an empty cache.
    pub(crate) const fn new() -> Self {
        Self { buffers: [core::ptr::null_mut(); BURST], len: 0 }
    }

    /// Returns a raw mbuf.
    ///
    /// # Safety
    /// `pool` is a pool of packet buffers that outlives the mbufs allocated from it.
    #[inline]
    unsafe fn alloc(&mut self, pool: NonNull<rte_mempool>) -> Result<NonNull<rte_mbuf>, Full> {
        if self.len == 0 {
            // SAFETY: the caller guarantees the pool; `buffers` has room for the pointers.
            self.len = unsafe { alloc_burst(pool, &mut self.buffers) };
            if self.len == 0 {
                return Err(Full);
            }
        }
        self.len -= 1;
        // SAFETY: pools return valid buffers, and this one is owned here only.
        Ok(unsafe { NonNull::new_unchecked(self.buffers[self.len]) })
    }
}

/// Allocates a burst of raw mbufs from the pool, or a single one if the pool is nearly empty. Returns the
/// count.
///
/// # Safety
/// `pool` is a pool of packet buffers.
#[inline]
unsafe fn alloc_burst(pool: NonNull<rte_mempool>, buffers: &mut [*mut rte_mbuf]) -> usize {
    for count in [buffers.len(), 1] {
        // SAFETY: the caller guarantees the pool; `buffers` has room for the pointers.
        if unsafe { dpdk_sys::rte_mempool_get_bulk(pool.as_ptr(), buffers.as_mut_ptr().cast(), count as u32) }
            == 0
        {
            return count;
        }
    }
    0
}

impl Drop for MbufCache {
    fn drop(&mut self) {
        // SAFETY: the first `len` are owned here. Raw mbufs have a reference count of 1 and one segment.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.buffers.as_mut_ptr(), self.len as u32) };
    }
}

/// Transmit state of a worker.
pub(crate) struct Tx {
    /// Exits, by port
    pub(crate) exits: Vec<Exit>,
    /// Hand-off rings, by worker; `None` for the worker itself
    pub(crate) handoffs: Vec<Option<HandoffRing>>,
    /// Payload length from which on copies share their payload, by port, in bytes
    pub(crate) share_from: Vec<usize>,
    /// Pool for copies and generated frames
    pub(crate) pool: NonNull<rte_mempool>,
    /// Raw mbufs of that pool for the next frames
    pub(crate) mbuf_cache: MbufCache,
    pub(crate) counters: std::sync::Arc<WorkerCounters>,
}

// SAFETY: pools may be used from any thread; those that are registered with the EAL have a cache.
unsafe impl Send for Tx {}

impl Tx {
    /// Sends `frame` through `port`, or drops and counts it.
    #[inline]
    pub(crate) fn push(&mut self, frame: Mbuf, port: PortId) -> Result<(), Full> {
        match &mut self.exits[port.index()] {
            Exit::Queue(queue) => {
                queue.flush_bursts(&self.counters.ports[port.index()].tx);
                queue.push(frame).map_err(|frame| {
                    drop(frame);
                    self.counters.count_drop(DropReason::PortFull);
                    Full
                })
            }
            &mut Exit::Worker(owner) => self.hand_off(frame, port, owner),
            // A link without a peer accepts every frame.
            Exit::Detached(_) => {
                drop(frame);
                self.counters.count_drop(DropReason::LinkDown);
                Ok(())
            }
        }
    }

    /// Returns the reason why a frame was lost, given the result of [`push`](Self::push); `None` if it was
    /// queued.
    #[cold]
    pub(crate) fn lost(&self, port: PortId, accepted: Result<(), Full>) -> Option<DropReason> {
        match (&self.exits[port.index()], accepted) {
            (Exit::Detached(_), _) => Some(DropReason::LinkDown),
            (_, Ok(())) => None,
            (Exit::Queue(_), Err(Full)) => Some(DropReason::PortFull),
            (Exit::Worker(_), Err(Full)) => Some(DropReason::HandoffFull),
        }
    }

    /// Begins to use a port, whose link is up now.
    #[cold]
    pub(crate) fn adopt(&mut self, port: PortId) {
        self.replace_exit(port, |exit| match exit {
            Exit::Detached(queue) => Exit::Queue(queue),
            other => other,
        });
    }

    /// Stops using a port, whose link is not up any more. Frames that wait for it are lost.
    #[cold]
    pub(crate) fn release(&mut self, port: PortId) {
        let mut lost = 0;
        self.replace_exit(port, |exit| match exit {
            Exit::Queue(mut queue) => {
                lost = queue.discard();
                Exit::Detached(queue)
            }
            other => other,
        });
        self.counters.drops[DropReason::LinkDown.index()].add(lost as u64);
    }

    fn replace_exit(&mut self, port: PortId, by: impl FnOnce(Exit) -> Exit) {
        let exit = &mut self.exits[port.index()];
        *exit = by(core::mem::replace(exit, Exit::Worker(usize::MAX)));
    }

    #[inline]
    fn hand_off(&mut self, frame: Mbuf, port: PortId, owner: usize) -> Result<(), Full> {
        let ring = self.handoffs[owner].as_mut().expect("a worker does not hand off to itself");
        ring.push(Handoff { frame, port }, &self.counters)
    }

    /// Offers all waiting frames to the ports, and puts those for other workers into rings.
    #[inline]
    pub(crate) fn flush(&mut self) {
        for ring in self.handoffs.iter_mut().flatten() {
            ring.flush(&self.counters);
        }
        for (exit, port) in self.exits.iter_mut().zip(&self.counters.ports) {
            if let Exit::Queue(queue) = exit {
                queue.flush(&port.tx);
            }
        }
    }

    /// Returns whether no frame waits for a port.
    pub(crate) fn is_empty(&self) -> bool {
        self.exits.iter().all(|exit| !matches!(exit, Exit::Queue(queue) if !queue.is_empty()))
    }

    /// Drops and counts the frames that the ports did not accept.
    pub(crate) fn discard(&mut self) {
        for exit in &mut self.exits {
            if let Exit::Queue(queue) = exit {
                let left = queue.discard();
                self.counters.drops[DropReason::PortFull.index()].add(left as u64);
            }
        }
    }
}

impl Output for Tx {
    type Frame = Mbuf;

    fn make(&mut self, len: usize) -> Result<Mbuf, Full> {
        let mut frame = self.make_from(&[])?;
        frame.resize(len).map_err(|switch::NoRoom| Full)?;
        Ok(frame)
    }

    #[inline]
    fn make_from(&mut self, bytes: &[u8]) -> Result<Mbuf, Full> {
        // SAFETY: the pool outlives the workers and, through `Runtime`, all frames. The buffer is owned here.
        unsafe { Mbuf::fill(self.mbuf_cache.alloc(self.pool)?, bytes) }
    }

    #[inline]
    fn room(&self, port: PortId) -> usize {
        match &self.exits[port.index()] {
            Exit::Queue(queue) => QUEUE - queue.len,
            Exit::Worker(owner) => self.handoffs[*owner].as_ref().map_or(0, HandoffRing::room),
            Exit::Detached(_) => QUEUE,
        }
    }

    fn copy(&mut self, frame: &Mbuf) -> Result<Mbuf, Full> {
        // SAFETY: as above.
        unsafe { frame.copy_to(self.pool) }
    }

    #[inline]
    fn prefers_sharing(&self, port: PortId, len: usize) -> bool {
        len >= self.share_from[port.index()]
    }

    fn share(&mut self, frame: &mut Mbuf, head: usize, tail: usize) -> Result<Mbuf, Full> {
        // SAFETY: as above.
        unsafe { frame.share_to(self.pool, head, tail) }
    }

    #[inline]
    fn send(&mut self, frame: Mbuf, port: PortId) -> Result<(), Full> {
        self.counters.made.add(1);
        self.push(frame, port)
    }

    #[inline]
    fn send_copies(
        &mut self,
        bytes: &[u8],
        count: usize,
        port: PortId,
        mut finish: impl FnMut(&mut [u8]),
    ) -> usize {
        let mut made = 0;
        while made < count {
            let appended = match &mut self.exits[port.index()] {
                Exit::Queue(queue) => {
                    queue.flush_bursts(&self.counters.ports[port.index()].tx);
                    // SAFETY: the pool outlives the workers and, through `Runtime`, all frames.
                    unsafe { queue.push_copies(self.pool, bytes, count - made, &mut finish) }
                }
                Exit::Worker(_) | Exit::Detached(_) => 0,
            };
            self.counters.made.add(appended as u64);
            made += appended;
            if appended == 0 {
                // The port has no queue here, the queue is full, or the pool is nearly empty.
                let Ok(mut frame) = self.make_from(bytes) else { return made };
                finish(frame.bytes_mut());
                _ = self.send(frame, port);
                made += 1;
            }
        }
        count
    }
}

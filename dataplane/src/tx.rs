//! Frames on their way out of a worker.

use crate::counters::WorkerCounters;
use crate::mbuf::Mbuf;
use core::ptr::NonNull;
use dpdk_sys::{rte_eth_fp_ops, rte_mbuf, rte_mempool};
use rtrb::Producer;
use switch::{DropReason, Frame as _, Full, Output, PortId};

/// Frames that wait for a port at most. What a port does not take at once is offered again, in order, until there are
/// more than this: a burst of a lossless network should survive a short stall.
pub const QUEUE: usize = 512;
/// Waiting frames at which they are offered to the port in the middle of a burst
const BURST: usize = 32;

/// A frame for a port that another worker sends through.
pub(crate) struct Handoff {
    pub(crate) frame: Mbuf,
    pub(crate) port: PortId,
}

/// How this worker reaches a port.
pub(crate) enum Exit {
    /// Through a send queue of its own
    Queue(Queue),
    /// Through the worker that owns the send queue
    Worker(usize),
    /// Nowhere, while the port has no peer: the send queue is empty, and waits
    Away(Queue),
}

/// A send queue of a port, and the frames that wait for it.
pub(crate) struct Queue {
    port: u16,
    /// DPDK's number of the queue
    number: u16,
    waiting: Box<[*mut rte_mbuf; QUEUE]>,
    len: usize,
    /// Bytes of the waiting frames
    bytes: u64,
}

// SAFETY: the waiting frames are owned by the queue, and belong to no thread.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) fn new(port: u16, queue: u16) -> Self {
        Self { port, number: queue, waiting: Box::new([core::ptr::null_mut(); QUEUE]), len: 0, bytes: 0 }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn push(&mut self, frame: Mbuf) -> Result<(), Mbuf> {
        let Some(place) = self.waiting.get_mut(self.len) else { return Err(frame) };
        self.bytes += frame.frame_len() as u64;
        *place = frame.into_raw().as_ptr();
        self.len += 1;
        Ok(())
    }

    /// Makes frames of these bytes where they wait for the port, up to the end of a burst, and has `finish` write over each. How
    /// many: none if the queue is full or the pool nearly empty.
    ///
    /// # Safety
    /// `pool` is a pool of packet buffers that outlives what comes from it.
    #[inline]
    unsafe fn append_copies(
        &mut self,
        pool: NonNull<rte_mempool>,
        bytes: &[u8],
        many: usize,
        finish: &mut impl FnMut(&mut [u8]),
    ) -> usize {
        let (begin, room) = (self.len, BURST - self.len % BURST);
        let Some(places) = self.waiting.get_mut(begin..begin + many.min(room)) else { return 0 };
        // SAFETY: as the caller promises; there is room for so many pointers.
        let failed = unsafe {
            dpdk_sys::rte_mempool_get_bulk(pool.as_ptr(), places.as_mut_ptr().cast(), places.len() as u32)
        };
        if failed != 0 {
            return 0;
        }
        for at in begin..begin + places.len() {
            // SAFETY: pools give valid buffers, which are owned by nobody else from now on.
            let frame = unsafe { Mbuf::fill(NonNull::new_unchecked(self.waiting[at]), bytes) };
            // One that is too short for these bytes has gone back.
            let Ok(mut frame) = frame else { continue };
            finish(frame.bytes_mut());
            self.waiting[self.len] = frame.into_raw().as_ptr();
            self.len += 1;
        }
        let made = self.len - begin;
        self.bytes += (made * bytes.len()) as u64;
        made
    }

    /// Offers what waits to the port, if that is one whole burst or several.
    #[inline]
    fn flush_bursts(&mut self, sent: &switch::counters::FrameCounter) {
        if self.len >= BURST && self.len.is_multiple_of(BURST) {
            self.flush(sent);
        }
    }

    /// Offers what waits to the port.
    #[inline]
    fn flush(&mut self, sent: &switch::counters::FrameCounter) {
        if self.len == 0 {
            return;
        }
        // SAFETY: the port is started and this worker alone uses the queue; the port owns the frames that it takes, which
        // are the first ones.
        let taken = usize::from(unsafe {
            tx_burst(self.port, self.number, self.waiting.as_mut_ptr(), self.len as u16)
        });
        if taken == self.len {
            sent.count_many(taken as u64, self.bytes);
            (self.len, self.bytes) = (0, 0);
        } else if taken > 0 {
            let before = self.bytes;
            self.waiting.copy_within(taken..self.len, 0);
            self.len -= taken;
            // SAFETY: what the port did not take is still owned by the queue.
            self.bytes =
                self.waiting[..self.len].iter().map(|&mbuf| u64::from(unsafe { (*mbuf).pkt_len })).sum();
            sent.count_many(taken as u64, before - self.bytes);
        }
    }

    /// Gives back what still waits; how many frames that was.
    pub(crate) fn discard(&mut self) -> usize {
        // SAFETY: the waiting frames are owned by the queue, which forgets them.
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

/// The send function of a port, called without a detour through C.
///
/// # Safety
/// The port is started, `queue` is one of its send queues and used by the calling thread alone, and `frames` points to
/// `len` owned buffers.
#[inline]
unsafe fn tx_burst(port: u16, queue: u16, frames: *mut *mut rte_mbuf, len: u16) -> u16 {
    // SAFETY: DPDK fills the entry when the port starts, and it stays until the port stops.
    unsafe {
        let ops = &raw const rte_eth_fp_ops[usize::from(port)];
        let burst = (*ops).tx_pkt_burst.unwrap_unchecked();
        burst(*(*ops).txq.data.add(usize::from(queue)), frames, len)
    }
}

/// The receive function of a port, called without a detour through C. Returns how many frames it wrote to `frames`.
///
/// # Safety
/// The port is started, `queue` is one of its receive queues and used by the calling thread alone, and `frames` has room
/// for `len` pointers. The caller owns the frames.
#[inline]
pub(crate) unsafe fn rx_burst(port: u16, queue: u16, frames: *mut *mut rte_mbuf, len: u16) -> u16 {
    // SAFETY: as for `tx_burst`.
    unsafe {
        let ops = &raw const rte_eth_fp_ops[usize::from(port)];
        let burst = (*ops).rx_pkt_burst.unwrap_unchecked();
        burst(*(*ops).rxq.data.add(usize::from(queue)), frames, len)
    }
}

/// Buffers that were taken from a pool all at once, by one call, as they lie there.
pub(crate) struct Stock {
    buffers: [*mut rte_mbuf; BURST],
    len: usize,
}

// SAFETY: the buffers are owned, and belong to no thread.
unsafe impl Send for Stock {}

impl Stock {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self { buffers: [core::ptr::null_mut(); BURST], len: 0 }
    }

    /// A buffer as it lies in its pool.
    ///
    /// # Safety
    /// `pool` is a pool of packet buffers that outlives what comes from it.
    #[inline]
    unsafe fn take(&mut self, pool: NonNull<rte_mempool>) -> Result<NonNull<rte_mbuf>, Full> {
        if self.len == 0 {
            // SAFETY: as the caller promises; there is room for so many pointers.
            self.len = unsafe { take_from(pool, &mut self.buffers) };
            if self.len == 0 {
                return Err(Full);
            }
        }
        self.len -= 1;
        // SAFETY: pools give valid buffers, and this one is owned by nobody else from now on.
        Ok(unsafe { NonNull::new_unchecked(self.buffers[self.len]) })
    }
}

/// Fills `buffers` with some of a pool, as they lie there, or, of a pool that is nearly empty, takes one, if there is one: how
/// many it were.
///
/// # Safety
/// `pool` is a pool of packet buffers.
#[inline]
unsafe fn take_from(pool: NonNull<rte_mempool>, buffers: &mut [*mut rte_mbuf]) -> usize {
    for many in [buffers.len(), 1] {
        // SAFETY: as the caller promises; there is room for so many pointers.
        if unsafe { dpdk_sys::rte_mempool_get_bulk(pool.as_ptr(), buffers.as_mut_ptr().cast(), many as u32) }
            == 0
        {
            return many;
        }
    }
    0
}

impl Drop for Stock {
    fn drop(&mut self) {
        // SAFETY: the first `len` are owned here. As they lay in their pool, they have one owner and one segment.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.buffers.as_mut_ptr(), self.len as u32) };
    }
}

/// Everything through which a worker's frames leave.
pub(crate) struct Tx {
    /// By port
    pub(crate) exits: Vec<Exit>,
    /// To each other worker; none to itself
    pub(crate) handoffs: Vec<Option<Producer<Handoff>>>,
    /// From how many bytes on a port's copies share their payload, by port
    pub(crate) share_from: Vec<usize>,
    /// For copies and frames made here
    pub(crate) pool: NonNull<rte_mempool>,
    /// Buffers of that pool for the next frames
    pub(crate) stock: Stock,
    pub(crate) counters: std::sync::Arc<WorkerCounters>,
}

// SAFETY: pools may be used from any thread that is registered with the EAL, and from others more slowly.
unsafe impl Send for Tx {}

impl Tx {
    /// Sends `frame` out of `port`, or drops and counts it.
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
            // A wire without an end takes what it is given.
            Exit::Away(_) => {
                drop(frame);
                self.counters.count_drop(DropReason::LinkDown);
                Ok(())
            }
        }
    }

    /// Why a frame that was pushed is lost, by what [`push`](Self::push) said of it; `None` if it is under way.
    #[cold]
    pub(crate) fn lost(&self, port: PortId, taken: Result<(), Full>) -> Option<DropReason> {
        match (&self.exits[port.index()], taken) {
            (Exit::Away(_), _) => Some(DropReason::LinkDown),
            (_, Ok(())) => None,
            (Exit::Queue(_), Err(Full)) => Some(DropReason::PortFull),
            (Exit::Worker(_), Err(Full)) => Some(DropReason::HandoffFull),
        }
    }

    /// The port has a peer, and can be used.
    #[cold]
    pub(crate) fn adopt(&mut self, port: PortId) {
        self.exchange(port, |exit| match exit {
            Exit::Away(queue) => Exit::Queue(queue),
            other => other,
        });
    }

    /// The port has none any more. What waits for it is lost.
    #[cold]
    pub(crate) fn release(&mut self, port: PortId) {
        let mut lost = 0;
        self.exchange(port, |exit| match exit {
            Exit::Queue(mut queue) => {
                lost = queue.discard();
                Exit::Away(queue)
            }
            other => other,
        });
        self.counters.drops[DropReason::LinkDown.index()].add(lost as u64);
    }

    fn exchange(&mut self, port: PortId, by: impl FnOnce(Exit) -> Exit) {
        let exit = &mut self.exits[port.index()];
        *exit = by(core::mem::replace(exit, Exit::Worker(usize::MAX)));
    }

    #[cold]
    fn hand_off(&mut self, frame: Mbuf, port: PortId, owner: usize) -> Result<(), Full> {
        let ring =
            self.handoffs[owner].as_mut().expect("a worker owns the ports that it reaches through itself");
        match ring.push(Handoff { frame, port }) {
            Ok(()) => {
                self.counters.handed_off.add(1);
                Ok(())
            }
            Err(rtrb::PushError::Full(_)) => {
                self.counters.count_drop(DropReason::HandoffFull);
                Err(Full)
            }
        }
    }

    /// Offers all that waits to the ports.
    #[inline]
    pub(crate) fn flush(&mut self) {
        for (exit, port) in self.exits.iter_mut().zip(&self.counters.ports) {
            if let Exit::Queue(queue) = exit {
                queue.flush(&port.tx);
            }
        }
    }

    /// Whether nothing waits for a port.
    pub(crate) fn is_empty(&self) -> bool {
        self.exits.iter().all(|exit| !matches!(exit, Exit::Queue(queue) if !queue.is_empty()))
    }

    /// Gives up what the ports do not take, and counts it.
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
        // SAFETY: the pool outlives the workers and, through `Runtime`, all frames. What is taken is owned here.
        unsafe { Mbuf::fill(self.stock.take(self.pool)?, bytes) }
    }

    #[inline]
    fn room(&self, port: PortId) -> usize {
        match &self.exits[port.index()] {
            Exit::Queue(queue) => QUEUE - queue.len,
            Exit::Worker(owner) => self.handoffs[*owner].as_ref().map_or(0, Producer::slots),
            Exit::Away(_) => QUEUE,
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
        many: usize,
        port: PortId,
        mut finish: impl FnMut(&mut [u8]),
    ) -> usize {
        let mut made = 0;
        while made < many {
            let appended = match &mut self.exits[port.index()] {
                Exit::Queue(queue) => {
                    queue.flush_bursts(&self.counters.ports[port.index()].tx);
                    // SAFETY: the pool outlives the workers and, through `Runtime`, all frames.
                    unsafe { queue.append_copies(self.pool, bytes, many - made, &mut finish) }
                }
                Exit::Worker(_) | Exit::Away(_) => 0,
            };
            self.counters.made.add(appended as u64);
            made += appended;
            if appended == 0 {
                // It goes elsewhere, or the queue is full, or the pool nearly empty.
                let Ok(mut frame) = self.make_from(bytes) else { return made };
                finish(frame.bytes_mut());
                _ = self.send(frame, port);
                made += 1;
            }
        }
        many
    }
}

//! A poll-mode worker (lcore): receives bursts, runs the function, sends, and between two bursts polls its
//! rings and queues. It runs to completion, and neither allocates nor locks nor makes a system call in the
//! path of a frame.

use crate::control::{ToControl, ToWorker};
use crate::idle::Idler;
use crate::inputs::{self, Dispatcher};
use crate::mbuf::Mbuf;
use crate::memif::Signal;
use crate::time::{Clock, cycles};
use crate::tx::{Handoff, Tx, rx_burst};
use crate::users::{DrainState, Users};
use crate::watch::{TracingOutput, Watch};
use core::mem::ManuallyDrop;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::{Receiver, Sender};
use dpdk_sys::rte_mbuf;
use rtrb::Consumer;
use switch::{DropReason, Function, Nanos, PortId, Verdict};

/// Maximum number of frames per burst
pub(crate) const BURST: usize = 32;
/// Maximum number of bursts that a worker takes from one ring of input frames in a turn
const INPUT_BURSTS: usize = 4;
/// Distance, in frames, at which headers are prefetched
const HEADER_DISTANCE: usize = 12;
/// Distance, in frames, at which the function prefetches its tables
const TABLE_DISTANCE: usize = 8;
/// Distance, in frames, at which the function prefetches its state
const STATE_DISTANCE: usize = 4;
/// Time for which a stopping worker offers its last frames to the ports
const DRAIN: Nanos = Nanos::from_millis(100);

/// A receive queue that a worker polls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxQueue {
    /// DPDK's port ID
    pub(crate) device: u16,
    pub(crate) queue: u16,
    pub(crate) port: PortId,
}

/// State of a worker.
pub(crate) struct Worker<F: Function> {
    pub(crate) index: usize,
    pub(crate) function: F,
    pub(crate) rx: Vec<RxQueue>,
    /// Receive queues of ports without a peer, which must not be polled
    pub(crate) detached: Vec<RxQueue>,
    pub(crate) tx: Tx,
    /// Hands frames over to the workers that own them, if frames have owners and there are several workers
    pub(crate) dispatcher: Option<Dispatcher>,
    /// Rings of frames that other workers received and this one owns
    pub(crate) inputs: Vec<Consumer<Mbuf>>,
    /// Hand-off rings from the other workers
    pub(crate) handoffs: Vec<Consumer<Handoff>>,
    /// Memory for a burst of their frames
    pub(crate) taken: Vec<Handoff>,
    pub(crate) to_control: Sender<ToControl<F>>,
    pub(crate) from_control: Receiver<ToWorker<F>>,
    pub(crate) clock: Clock,
    /// Event for which the queue to the control plane had no room
    pub(crate) unsent: Option<F::Event>,
    /// Packet trace, if there is one
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) idler: Idler,
}

impl<F: Function> Worker<F> {
    /// Polls until `stop` is set, then drains. `receiving` counts the workers that may still hand frames over to their
    /// owners, `running` those that may still hand off frames to be sent.
    pub(crate) fn run(mut self, stop: &AtomicBool, receiving: &Users, running: &Users) {
        let mut now = self.clock.nanos(cycles());
        let mut iteration_start = cycles();
        while !stop.load(Ordering::Relaxed) {
            let mut received = 0;
            for at in 0..self.rx.len() {
                received += self.poll(self.rx[at], now);
            }
            received += self.poll_inputs(now);
            let mut worked = self.poll_rings(now) || received > 0;
            if self.function.next_timer().is_some_and(|at| at <= now) {
                let made = self.tx.counters.made.get();
                match &mut self.watch {
                    None => self.function.on_timer(now, &mut self.tx),
                    Some(watch) => {
                        watch.set_time();
                        self.function.on_timer(now, &mut TracingOutput { tx: &mut self.tx, watch });
                    }
                }
                // A function that waits for room in a queue is idle: other threads may need the CPU to make
                // room.
                worked |= self.tx.counters.made.get() != made;
            }
            self.tx.flush();
            if F::HAS_SENDERS {
                self.function.publish();
            }
            self.send_events();

            let iteration_end = cycles();
            now = self.clock.nanos(iteration_end);
            let counters = &self.tx.counters;
            counters.turns.add(1);
            if received > 0 {
                counters.busy_turns.add(1);
                counters.busy_cycles.add(iteration_end - iteration_start);
            }
            iteration_start = iteration_end;
            if worked {
                self.idler.worked();
            } else {
                let (function, tx) = (&self.function, &self.tx);
                let due = || tx.is_empty().then(|| function.next_timer().unwrap_or(Nanos(u64::MAX)));
                if self.idler.idle(now, due) {
                    iteration_start = cycles();
                    now = self.clock.nanos(iteration_start);
                }
            }
        }
        self.drain(receiving, running);
    }

    /// Receives a burst and runs the function on those frames that no other worker owns. Returns the number of
    /// frames.
    #[inline]
    fn poll(&mut self, rx: RxQueue, now: Nanos) -> usize {
        let mut burst = [null_mut::<rte_mbuf>(); BURST];
        // SAFETY: the port is started, and only this worker polls the queue.
        let received =
            usize::from(unsafe { rx_burst(rx.device, rx.queue, burst.as_mut_ptr(), BURST as u16) });
        if received == 0 {
            return 0;
        }
        let (mut own, mut bytes) = (received, 0);
        if F::HAS_OWNERS
            && let Some(dispatcher) = &mut self.dispatcher
        {
            // SAFETY: the frames were just received.
            (own, bytes) = unsafe {
                dispatcher.split(&self.function, &mut burst[..received], rx.port, &self.tx.counters)
            };
        }
        bytes += self.handle(&burst[..own], |_| rx.port, now);
        self.tx.counters.ports[rx.port.index()].rx.count_many(received as u64, bytes);
        received
    }

    /// Runs the function on frames that other workers received. Returns their number.
    #[inline]
    fn poll_inputs(&mut self, now: Nanos) -> usize {
        let mut total = 0;
        if F::HAS_OWNERS
            && let Some(dispatcher) = &mut self.dispatcher
        {
            dispatcher.flush(&self.tx.counters);
            for at in 0..self.inputs.len() {
                // More than a burst, because a worker with several receive queues may have received that many.
                for _ in 0..INPUT_BURSTS {
                    let mut burst = [null_mut::<rte_mbuf>(); BURST];
                    let taken = inputs::take(&mut self.inputs[at], &mut burst);
                    self.handle(&burst[..taken], Mbuf::port, now);
                    total += taken;
                    if taken < BURST {
                        break;
                    }
                }
            }
            self.tx.counters.taken.add(total as u64);
        }
        total
    }

    /// Runs the function on owned frames, each of which was received on the port that `port_of` returns. Returns their
    /// length in bytes.
    #[inline]
    fn handle(&mut self, burst: &[*mut rte_mbuf], port_of: impl Fn(&Mbuf) -> PortId, now: Nanos) -> u64 {
        if self.watch.is_some() {
            return self.run_watched(burst, port_of, now);
        }
        for &mbuf in burst.iter().take(HEADER_DISTANCE) {
            prefetch(mbuf);
        }
        for &mbuf in burst.iter().take(TABLE_DISTANCE) {
            // SAFETY: the frame was just received.
            self.function.prefetch_table(&*unsafe { borrow(mbuf) }, fetch);
        }
        for &mbuf in burst.iter().take(STATE_DISTANCE) {
            // SAFETY: as above.
            self.function.prefetch_state(&*unsafe { borrow(mbuf) }, fetch);
        }
        let mut bytes = 0;
        let mut to_free = FreeList { frames: [null_mut(); BURST], len: 0 };
        for (at, &raw) in burst.iter().enumerate() {
            if let Some(&ahead) = burst.get(at + HEADER_DISTANCE) {
                prefetch(ahead);
            }
            if let Some(&ahead) = burst.get(at + TABLE_DISTANCE) {
                // SAFETY: the frame has not been handled yet.
                self.function.prefetch_table(&*unsafe { borrow(ahead) }, fetch);
            }
            if let Some(&ahead) = burst.get(at + STATE_DISTANCE) {
                // SAFETY: as above.
                self.function.prefetch_state(&*unsafe { borrow(ahead) }, fetch);
            }
            // SAFETY: drivers write non-null pointers to buffers that the receiver owns.
            let mut frame = unsafe { Mbuf::from_raw(NonNull::new_unchecked(raw)) };
            bytes += frame.frame_len() as u64;
            let port = port_of(&frame);
            let verdict = self.function.on_frame(&mut frame, port, now, &mut self.tx);
            self.carry_out(verdict, frame, port, &mut to_free);
        }
        bytes
    }

    #[inline]
    fn carry_out(&mut self, verdict: Verdict, frame: Mbuf, port: PortId, to_free: &mut FreeList) {
        match verdict {
            // `push` counts a frame that does not fit.
            Verdict::Forward(port) => _ = self.tx.push(frame, port),
            Verdict::Drop(reason) => {
                self.tx.counters.count_drop(reason);
                to_free.push(frame);
            }
            Verdict::Punt => _ = self.punt(frame, port),
            Verdict::Consume => {
                self.tx.counters.consumed.add(1);
                to_free.push(frame);
            }
        }
    }

    /// Runs the function on frames with a packet trace, as [`handle`](Self::handle) does without.
    #[cold]
    fn run_watched(&mut self, burst: &[*mut rte_mbuf], port_of: impl Fn(&Mbuf) -> PortId, now: Nanos) -> u64 {
        let Some(mut watch) = self.watch.take() else { return 0 };
        watch.set_time();
        let mut bytes = 0;
        let mut to_free = FreeList { frames: [null_mut(); BURST], len: 0 };
        for &raw in burst {
            // SAFETY: drivers write non-null pointers to buffers that the receiver owns.
            let mut frame = unsafe { Mbuf::from_raw(NonNull::new_unchecked(raw)) };
            bytes += frame.frame_len() as u64;
            let port = port_of(&frame);
            watch.record_rx(&frame, port);
            let mut out = TracingOutput { tx: &mut self.tx, watch: &mut watch };
            let verdict = self.function.on_frame(&mut frame, port, now, &mut out);
            watch.record_verdict(&frame, verdict);
            let lost = match verdict {
                Verdict::Forward(to) => {
                    let result = self.tx.push(frame, to);
                    self.tx.lost(to, result)
                }
                Verdict::Punt => self.punt(frame, port),
                verdict => {
                    self.carry_out(verdict, frame, port, &mut to_free);
                    None
                }
            };
            watch.finish_event(lost);
        }
        self.watch = Some(watch);
        bytes
    }

    /// Replaces or ends the packet trace.
    #[cold]
    fn on_watch(&mut self, watch: Option<Box<Watch>>) {
        if let Some(ended) = core::mem::replace(&mut self.watch, watch) {
            // Freed by the control plane, unless its queue is full.
            drop(self.to_control.try_send(ToControl::Watch(ended)));
        }
    }

    /// Passes a frame to the control plane. Returns the reason if it was dropped.
    #[cold]
    fn punt(&mut self, frame: Mbuf, port: PortId) -> Option<DropReason> {
        // The control plane learns first what the function has learnt from the frame.
        self.send_events();
        if self.to_control.try_send(ToControl::Punt { worker: self.index, frame, port }).is_ok() {
            self.tx.counters.punted.add(1);
            return None;
        }
        self.tx.counters.count_drop(DropReason::ControlFull);
        Some(DropReason::ControlFull)
    }

    /// Handles frames from other workers, and commands and frames from the control plane. Returns whether
    /// there were any.
    #[inline]
    fn poll_rings(&mut self, now: Nanos) -> bool {
        let mut any = if F::HAS_SENDERS { self.poll_ordered_handoffs(now) } else { self.poll_handoffs() };
        while !self.from_control.is_empty() {
            any = true;
            match self.from_control.try_recv() {
                Ok(ToWorker::Command(command)) => self.function.on_command(command, now),
                Ok(ToWorker::Send { frame, port }) => {
                    if let Some(watch) = &mut self.watch {
                        watch.set_time();
                        watch.record_tx(&frame, port);
                    }
                    let result = self.tx.push(frame, port);
                    if let Some(watch) = &mut self.watch {
                        watch.correct_tx(self.tx.lost(port, result));
                    }
                }
                Ok(ToWorker::Watch(watch)) => self.on_watch(watch),
                Ok(ToWorker::Port(signal)) => self.on_signal(signal),
                Ok(ToWorker::SendThrough(port, true)) => self.tx.adopt(port),
                Ok(ToWorker::SendThrough(port, false)) => self.tx.release(port),
                Err(_) => break,
            }
        }
        any
    }

    /// Sends frames from other workers. Returns whether there were any.
    #[inline]
    fn poll_handoffs(&mut self) -> bool {
        let mut any = false;
        for ring in &mut self.handoffs {
            for _ in 0..BURST {
                let Ok(Handoff { frame, port }) = ring.pop() else { break };
                _ = self.tx.push(frame, port);
                any = true;
            }
        }
        any
    }

    /// Sends the frames that the other workers' rings have, after what these workers have published was read, and lets
    /// the function adopt that. Returns whether there were any frames.
    #[inline]
    fn poll_ordered_handoffs(&mut self, now: Nanos) -> bool {
        let mut any = false;
        self.function.snapshot();
        for ring in &mut self.handoffs {
            // The other worker puts frames there before it publishes.
            let mut left = ring.slots();
            any |= left > 0;
            while left > 0 {
                let Ok(chunk) = ring.read_chunk(left.min(BURST)) else { break };
                left -= chunk.len();
                self.taken.extend(chunk);
                for handoff in &self.taken {
                    prefetch(handoff.frame.as_raw());
                }
                for Handoff { mut frame, port } in self.taken.drain(..) {
                    self.function.on_handoff(&mut frame, port, now);
                    _ = self.tx.push(frame, port);
                }
            }
        }
        self.function.adopt(now);
        any
    }

    /// Handles a change of a port's peer.
    #[cold]
    fn on_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Adopt(port) => {
                self.tx.adopt(port);
                self.rx.extend(self.detached.extract_if(.., |rx| rx.port == port));
            }
            // After this closure the port may be stopped.
            Signal::Release(port, users) => users.leave(|| {
                self.tx.release(port);
                self.detached.extend(self.rx.extract_if(.., |rx| rx.port == port));
            }),
        }
    }

    /// Passes events to the control plane while there is room for them. Other workers use the same queue, so there may
    /// be none although there was a moment ago.
    #[inline]
    fn send_events(&mut self) {
        while let Some(event) = self.unsent.take().or_else(|| self.function.poll_event()) {
            // The control plane drains the queue before it is dropped, and workers end before that.
            if let Err(error) = self.to_control.try_send(ToControl::Event { worker: self.index, event }) {
                if let ToControl::Event { event, .. } = error.into_inner() {
                    self.unsent = Some(event);
                }
                break;
            }
        }
    }

    /// Stops receiving, handles the frames that other workers have received for this one, and sends the remaining
    /// frames if the ports accept them.
    fn drain(&mut self, receiving: &Users, running: &Users) {
        let began = self.clock.nanos(cycles());
        // Until all workers have stopped receiving, the function may run, which hands off frames to be sent.
        receiving.drain(|| {
            let now = self.clock.nanos(cycles());
            self.poll_inputs(now);
            self.drain_once(began, |worker| worker.inputs.iter().all(Consumer::is_empty))
        });
        running.drain(|| {
            let is_empty = |worker: &Self| worker.handoffs.iter().all(Consumer::is_empty);
            self.drain_once(began, |worker| worker.tx.is_empty() && is_empty(worker))
        });
        self.tx.discard();
        for ring in &mut self.inputs {
            let left = core::iter::from_fn(|| ring.pop().ok()).count();
            self.tx.counters.taken.add(left as u64);
            self.tx.counters.drops[DropReason::InputFull.index()].add(left as u64);
        }
    }

    /// Performs a turn without receiving, of a drain that began at `began` and ends when `is_empty` holds.
    fn drain_once(&mut self, began: Nanos, is_empty: impl Fn(&Self) -> bool) -> DrainState {
        let now = self.clock.nanos(cycles());
        self.poll_rings(now);
        self.send_events();
        self.tx.flush();
        std::thread::yield_now();
        if now.since(began) > DRAIN {
            DrainState::Late
        } else if is_empty(self) {
            DrainState::Empty
        } else {
            DrainState::Busy
        }
    }
}

/// Dropped and consumed frames of a burst, which are freed together in one call.
struct FreeList {
    frames: [*mut rte_mbuf; BURST],
    len: usize,
}

impl FreeList {
    #[inline]
    fn push(&mut self, frame: Mbuf) {
        self.frames[self.len] = frame.into_raw().as_ptr();
        self.len += 1;
    }
}

impl Drop for FreeList {
    #[inline]
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the frames are owned here, and not used again.
            unsafe { dpdk_sys::rte_pktmbuf_free_bulk(self.frames.as_mut_ptr(), self.len as u32) };
        }
    }
}

/// Returns a borrowed frame of a burst, for inspection.
///
/// # Safety
/// `mbuf` was received in a burst, and is not freed while the frame is in use.
#[inline]
unsafe fn borrow(mbuf: *mut rte_mbuf) -> ManuallyDrop<Mbuf> {
    // SAFETY: drivers write non-null pointers to buffers that the receiver owns. The frame is neither changed
    // nor freed through this reference.
    ManuallyDrop::new(unsafe { Mbuf::from_raw(NonNull::new_unchecked(mbuf)) })
}

/// Prefetches the first bytes of a frame.
#[inline]
pub(crate) fn prefetch(mbuf: *mut rte_mbuf) {
    // SAFETY: the buffer is valid.
    let (start, offset) = unsafe { ((*mbuf).buf_addr.cast::<u8>(), usize::from((*mbuf).data_off)) };
    fetch(start.wrapping_add(offset));
}

/// Prefetches a cache line.
#[inline]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect, whatever address it gets.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

//! Switch functions: state machines over frames.
//!
//! A runner (a DPDK worker, the simulator, a test) passes frames and the time to a [`Function`] and carries
//! out its verdicts. A function owns no socket, thread, clock or allocator, so a run with the same input is
//! reproducible to the byte.

use crate::DropReason;
use core::fmt;
use core::ops::Add;

/// A port of the switch, numbered from 0 in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl PortId {
    /// Index into an array with one element per port
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

/// A point in time or a time span, in nanoseconds. Points count from an origin that the runner chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin, or an empty span
    pub const ZERO: Self = Self(0);

    /// Returns a span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// Returns a span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Returns a span of `s` seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Returns the span from `earlier` to `self`, or zero if `earlier` is the later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// What the runner does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the frame through this port
    Forward(PortId),
    /// Drop the frame
    Drop(DropReason),
    /// Pass the frame to the control plane
    Punt,
    /// Free the frame: the function was its destination
    Consume,
}

/// A queue is full, or the pool of packet buffers is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The frame's buffer has no room to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// An Ethernet frame in a buffer with headroom and tailroom.
pub trait Frame {
    /// Returns the frame from its destination address on, without the frame check sequence.
    fn bytes(&self) -> &[u8];

    /// Returns the frame for rewriting in place.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns whether [`bytes`](Self::bytes) is the whole frame. Of a frame longer than a buffer it is only
    /// the first part.
    fn is_whole(&self) -> bool;

    /// Changes the frame's length to `len` bytes, at its end. New bytes are zero.
    ///
    /// # Errors
    /// [`NoRoom`], without any change, if the tailroom is too small.
    fn resize(&mut self, len: usize) -> Result<(), NoRoom>;

    /// Adds `len` zero bytes in front.
    ///
    /// # Errors
    /// [`NoRoom`], without any change, if the headroom is too small.
    fn prepend(&mut self, len: usize) -> Result<(), NoRoom>;

    /// Removes `len` bytes in front.
    ///
    /// # Panics
    /// If the frame is shorter.
    fn strip(&mut self, len: usize);
}

/// Allocates, copies and sends a function's own frames. All resources are bounded; callers have to handle
/// [`Full`].
pub trait Output {
    /// Frame type
    type Frame: Frame;

    /// Allocates a frame of `len` zero bytes.
    fn make(&mut self, len: usize) -> Result<Self::Frame, Full>;

    /// Allocates a frame with these bytes.
    #[inline]
    fn make_from(&mut self, bytes: &[u8]) -> Result<Self::Frame, Full> {
        let mut frame = self.make(bytes.len())?;
        frame.bytes_mut().copy_from_slice(bytes);
        Ok(frame)
    }

    /// Returns the count of further frames that [`send`](Self::send) would accept for `port` now.
    fn room(&self, port: PortId) -> usize;

    /// Returns a copy of `frame`.
    fn copy(&mut self, frame: &Self::Frame) -> Result<Self::Frame, Full>;

    /// Returns whether copies for `port` with a payload of `len` bytes should [`share`](Self::share) the
    /// payload instead of copying it.
    #[inline]
    fn prefers_sharing(&self, _port: PortId, _len: usize) -> bool {
        false
    }

    /// Returns a copy of `frame` as it is now. All but its first `head` and last `tail` bytes may refer to
    /// `frame`'s own memory, which must not be written any more. [`bytes`](Frame::bytes) of the copy returns
    /// its head only.
    fn share(&mut self, frame: &mut Self::Frame, _head: usize, _tail: usize) -> Result<Self::Frame, Full> {
        self.copy(frame)
    }

    /// Sends `frame` through `port`, in the order of the calls and before the frame whose verdict is pending.
    /// The runner drops and counts a frame for which there is no room.
    fn send(&mut self, frame: Self::Frame, port: PortId) -> Result<(), Full>;

    /// Allocates `count` frames with the same bytes, calls `finish` once for each to overwrite it (the length
    /// must not change), and sends them through `port`. Returns the count of frames made, which is lower if
    /// buffers run out.
    #[inline]
    fn send_copies(
        &mut self,
        bytes: &[u8],
        count: usize,
        port: PortId,
        mut finish: impl FnMut(&mut [u8]),
    ) -> usize {
        for made in 0..count {
            let Ok(mut frame) = self.make_from(bytes) else { return made };
            finish(frame.bytes_mut());
            // The runner counts a frame that the port does not accept.
            _ = self.send(frame, port);
        }
        count
    }
}

/// A switch function: a state machine over frames.
///
/// The runner calls the methods of one instance from one thread; several workers have an instance each, and an
/// instance may own some of the frames ([`owner`](Self::owner)). It
/// calls [`on_frame`](Self::on_frame) for each received frame and [`on_timer`](Self::on_timer) when the time
/// of [`next_timer`](Self::next_timer) has come. Between two bursts it calls [`on_command`](Self::on_command)
/// for each command of the control plane, and [`poll_event`](Self::poll_event) until it returns `None`.
pub trait Function {
    /// Command of the control plane
    type Command: Send;
    /// Event for the control plane
    type Event: Send;

    /// Whether frames have owners ([`owner`](Self::owner)), so that a function with state of its own for each
    /// connection can run on several workers. Otherwise the worker that receives a frame handles it.
    const HAS_OWNERS: bool = false;

    /// Returns the worker, from 0, whose instance has to handle a frame, or `None` if any instance may.
    ///
    /// With several workers, the runner calls this first, on the worker that received the frame, and hands the
    /// frame over if the owner is another worker. All workers have to return the same: the result depends on the
    /// frame, the port and the configuration only. Frames from one receive queue arrive at an owner in their order,
    /// those from different queues in any order.
    #[inline]
    fn owner(&self, _frame: &impl Frame, _port: PortId) -> Option<usize> {
        None
    }

    /// Whether each port has one worker that alone receives from it, and one that alone sends through it, so that
    /// instances on several workers can keep the order of frames ([`sender`](Self::sender)).
    const HAS_SENDERS: bool = false;

    /// Returns the worker, from 0, that receives from `port`, if the function
    /// [has senders](Self::HAS_SENDERS). The same for the whole run at all instances.
    fn receiver(&self, _port: PortId) -> usize {
        0
    }

    /// Returns the worker, from 0, that sends through `port`, if the function [has senders](Self::HAS_SENDERS). The
    /// same for the whole run at all instances.
    ///
    /// With several workers, frames that the other instances forward to `port`, or send through it, go through a ring
    /// to this worker, one for each pair of workers, each first in, first out. A full ring drops frames.
    fn sender(&self, _port: PortId) -> usize {
        0
    }

    /// Handles a frame that another instance has sent through `port`, whose [sender](Self::sender) this instance is,
    /// before the frame is queued at the port.
    fn on_handoff(&mut self, _frame: &mut impl Frame, _port: PortId, _now: Nanos) {}

    /// Publishes state for the other instances, and returns whether there was any that is new. Called at the end of
    /// each turn of the worker, when every frame that the instance has sent through other workers is in their rings, or
    /// lost.
    fn publish(&mut self) -> bool {
        false
    }

    /// Reads what the other instances have [published](Self::publish). Called in each turn, before the worker reads
    /// how many frames its rings have.
    fn snapshot(&mut self) {}

    /// Adopts what the last [snapshot](Self::snapshot) has read. Called when all frames that the rings had then were
    /// handled ([`on_handoff`](Self::on_handoff)).
    fn adopt(&mut self, _now: Nanos) {}

    /// Returns whether to receive frames from `port`. Called once, before a run; a port that is only sent to
    /// need not be polled.
    fn receives_from(&self, _port: PortId) -> bool {
        true
    }

    /// Handles a frame that was received on `port` at `now`. Rewrites it in place and returns its verdict.
    /// Further frames (a replica's copy, an acknowledgement, a beacon) are sent through `out`.
    fn on_frame<O: Output>(&mut self, frame: &mut O::Frame, port: PortId, now: Nanos, out: &mut O)
    -> Verdict;

    /// Prefetch hint for a frame that [`prefetch_state`](Self::prefetch_state) will get next: calls `fetch` with the
    /// addresses of the table slots that `prefetch_state` will search.
    #[inline]
    fn prefetch_table(&self, _frame: &impl Frame, _fetch: impl Fn(*const u8)) {}

    /// Prefetch hint for a frame that [`on_frame`](Self::on_frame) will get soon: calls `fetch` with the
    /// addresses of the state that it will need, as far as a cheap look-up can determine them. The runner
    /// prefetches them into the cache.
    #[inline]
    fn prefetch_state(&self, _frame: &impl Frame, _fetch: impl Fn(*const u8)) {}

    /// Handles the expiry of the timer that [`next_timer`](Self::next_timer) returned.
    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O);

    /// Returns when to call [`on_timer`](Self::on_timer), or `None` if no timer is armed. Called after every
    /// burst, so it has to be cheap.
    fn next_timer(&self) -> Option<Nanos>;

    /// Handles a command of the control plane, between two bursts.
    fn on_command(&mut self, command: Self::Command, now: Nanos);

    /// Returns the next event for the control plane. Called between two bursts until it returns `None`.
    fn poll_event(&mut self) -> Option<Self::Event>;
}

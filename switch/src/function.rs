//! A switch function: a state machine over frames.
//!
//! Whoever runs it (a DPDK worker, the simulator, a test) hands it frames and the time, and carries out what it
//! says. It owns no socket, no thread, no clock and no allocator, so a run with the same input repeats to the byte.

use crate::DropReason;
use core::fmt;
use core::ops::Add;

/// A port of the switch, counted from 0 in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl PortId {
    /// As an index of an array with an element a port
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

/// A point in time or a span, in nanoseconds. Points count from an origin that the runner chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin, or no time at all
    pub const ZERO: Self = Self(0);

    /// A span of microseconds
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// A span of milliseconds
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// A span of seconds
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// The span from `earlier` to this; zero if that lies ahead.
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

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves through this port.
    Forward(PortId),
    /// It goes no further.
    Drop(DropReason),
    /// It goes up to the control plane.
    Punt,
    /// It ends here: the function has taken in what it says.
    Consume,
}

/// There is no room, in a queue or in the pool of packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// There is no room in the frame's buffer to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// An Ethernet frame in a buffer with some room before and behind it.
pub trait Frame {
    /// The frame from its destination address on, without the frame check sequence
    fn bytes(&self) -> &[u8];

    /// The same, to be rewritten where it lies
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Whether [`bytes`](Self::bytes) shows all of it. A frame longer than a buffer shows its beginning only.
    fn is_whole(&self) -> bool;

    /// Makes the frame `len` bytes long, at its end. New bytes are zero.
    fn resize(&mut self, len: usize) -> Result<(), NoRoom>;

    /// Adds `len` bytes in front. They are zero.
    fn prepend(&mut self, len: usize) -> Result<(), NoRoom>;

    /// Takes `len` bytes away in front.
    ///
    /// # Panics
    /// If the frame is shorter.
    fn strip(&mut self, len: usize);
}

/// Where a function's further frames come from and leave through. Bounded: "full" is an answer to deal with.
pub trait Output {
    /// The kind of frame
    type Frame: Frame;

    /// A frame of `len` zero bytes.
    fn make(&mut self, len: usize) -> Result<Self::Frame, Full>;

    /// A frame of these bytes.
    #[inline]
    fn make_from(&mut self, bytes: &[u8]) -> Result<Self::Frame, Full> {
        let mut frame = self.make(bytes.len())?;
        frame.bytes_mut().copy_from_slice(bytes);
        Ok(frame)
    }

    /// How many more frames [`send`](Self::send) would take for `port` now.
    fn room(&self, port: PortId) -> usize;

    /// A copy of `frame`.
    fn copy(&mut self, frame: &Self::Frame) -> Result<Self::Frame, Full>;

    /// Whether copies for `port` had better [`share`](Self::share) a payload of `len` bytes than have one each.
    #[inline]
    fn prefers_sharing(&self, _port: PortId, _len: usize) -> bool {
        false
    }

    /// A copy of `frame` as it is now. All but its first `head` and last `tail` bytes may be `frame`'s own memory, which is
    /// not to be written to any more; the copy shows its head only.
    fn share(&mut self, frame: &mut Self::Frame, _head: usize, _tail: usize) -> Result<Self::Frame, Full> {
        self.copy(frame)
    }

    /// Sends `frame` through `port`, in the order of the calls and before the frame whose verdict is still due. A frame
    /// for which there is no room is dropped and counted by the runner.
    fn send(&mut self, frame: Self::Frame, port: PortId) -> Result<(), Full>;

    /// Makes so many frames of the same bytes, has `finish` write over each, which stays as long as it is, and sends them through
    /// `port`. How many were made: fewer if buffers ran out. `finish` is called once for each.
    #[inline]
    fn send_copies(
        &mut self,
        bytes: &[u8],
        many: usize,
        port: PortId,
        mut finish: impl FnMut(&mut [u8]),
    ) -> usize {
        for made in 0..many {
            let Ok(mut frame) = self.make_from(bytes) else { return made };
            finish(frame.bytes_mut());
            // What is not taken is counted by the runner.
            _ = self.send(frame, port);
        }
        many
    }
}

/// A state machine over frames: the one idea of this project.
///
/// The runner calls the methods of one instance from one thread. With several workers there are several instances.
pub trait Function {
    /// What the control plane can tell it
    type Command: Send;
    /// What it tells the control plane
    type Event: Send;

    /// Whether frames are to be received from `port`; asked for once, before a run. A port that only sends need not be polled.
    fn receives_from(&self, _port: PortId) -> bool {
        true
    }

    /// A frame came in on `port` at `now`. Rewrites it where it lies and says what becomes of it; further frames (a
    /// replica's copy, an acknowledgement made here, a beacon) leave through `out`.
    fn on_frame<O: Output>(&mut self, frame: &mut O::Frame, port: PortId, now: Nanos, out: &mut O)
    -> Verdict;

    /// A frame will come to [`foresee`](Self::foresee). `fetch` is to be told where the tables lie that will be searched then.
    #[inline]
    fn glimpse(&self, _frame: &impl Frame, _fetch: impl Fn(*const u8)) {}

    /// A frame will soon come to [`on_frame`](Self::on_frame). `fetch` is to be told where the state lies that will be
    /// needed for it, as far as that can be said at a glance: the runner has it fetched into the cache meanwhile.
    #[inline]
    fn foresee(&self, _frame: &impl Frame, _fetch: impl Fn(*const u8)) {}

    /// The time asked for has come.
    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O);

    /// When to call [`on_timer`](Self::on_timer), if at all. Asked for after every burst, so it has to be cheap.
    fn next_timer(&self) -> Option<Nanos>;

    /// The control plane changes something, between two bursts.
    fn on_command(&mut self, command: Self::Command, now: Nanos);

    /// The next thing to tell the control plane; asked for between two bursts until there is none.
    fn poll_event(&mut self) -> Option<Self::Event>;
}

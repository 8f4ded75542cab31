//! Looking over a worker's shoulder: of chosen frames the beginning is copied as they came, and again as they, or what was made of
//! them, leave. Without a watch a worker pays one branch a burst; with one, the function runs with an output that copies, and
//! frames are no longer fetched ahead.

use crate::mbuf::Mbuf;
use crate::time::{Clock, cycles};
use crate::tx::Tx;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use switch::counters::Counter;
use switch::{DropReason, Frame as _, Full, Nanos, Output, PortId, Verdict};

/// Bytes that are kept of a frame: all headers, with something of what they carry
pub const KEPT: usize = 256;
/// Frames that are kept of those that leave for one that came, beside what came and what became of it
const LEAVING: usize = 32;

/// A frame that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The same for a frame that came and all that left for it; counted by worker
    pub occasion: u64,
    /// Since the watch was made
    pub at: Nanos,
    /// Wanted frames before it that could not be told of, since the watch was made
    pub missed: u64,
    /// Frames that left for what came before this one did, and of which there is no sighting: there were too many
    pub left_out: u64,
    /// What became of it
    pub what: What,
    /// Bytes of the frame
    pub len: u32,
    kept: u16,
    bytes: [u8; KEPT],
}

/// What is seen of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It came in.
    In(PortId),
    /// It left: what came in, rewritten, or something made for it. Without one that came, a timer or the control plane sent it.
    Out(PortId),
    /// It was to leave there, and was dropped on its way: the queue was full, or the port has no peer.
    Lost(PortId, DropReason),
    /// What came in goes no further.
    Dropped(DropReason),
    /// What came in went up to the control plane.
    Punted,
    /// What came in ended in the function.
    Consumed,
}

impl Sight {
    /// Its beginning, up to [`KEPT`] bytes; nothing where there is no frame to be seen any more.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.kept)]
    }
}

/// Which frames are wanted, by what can be seen of them.
pub type Wanted = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// A worker's end of a watch.
pub struct Watch {
    wanted: Wanted,
    ring: Producer<Sight>,
    missed: Arc<Counter>,
    clock: Clock,
    at: Nanos,
    occasion: u64,
    /// Of the frame that is under way: what came, some of what left for it, and what became of it
    seen: Vec<Sight>,
    left_out: u64,
    any_wanted: bool,
    /// Whether frames are for one that came in
    came: bool,
}

/// The other end.
pub struct Watcher {
    ring: Consumer<Sight>,
    missed: Arc<Counter>,
    clock: Clock,
}

/// Watches on so many workers, each of which holds up to `room` sightings that nobody has fetched yet; all count their time
/// from now. The EAL has to be up.
pub fn watches(workers: usize, wanted: &Wanted, room: usize) -> (Vec<Box<Watch>>, Vec<Watcher>) {
    let clock = Clock::start();
    (0..workers).map(|_| watch(Arc::clone(wanted), room, clock)).unzip()
}

fn watch(wanted: Wanted, room: usize, clock: Clock) -> (Box<Watch>, Watcher) {
    let (producer, consumer) = RingBuffer::new(room);
    let missed = Arc::<Counter>::default();
    let watch = Watch {
        wanted,
        ring: producer,
        missed: Arc::clone(&missed),
        clock,
        at: Nanos::ZERO,
        occasion: 0,
        seen: Vec::with_capacity(LEAVING + 2),
        left_out: 0,
        any_wanted: false,
        came: false,
    };
    (Box::new(watch), Watcher { ring: consumer, missed, clock })
}

impl Watcher {
    /// The next sighting, in the order of the worker. If one of an occasion is there, all are.
    pub fn pop(&mut self) -> Option<Sight> {
        self.ring.pop().ok()
    }

    /// When the next one was seen, if there is one.
    pub fn next_at(&self) -> Option<Nanos> {
        self.ring.peek().ok().map(|sight| sight.at)
    }

    /// Since the watches were made
    pub fn now(&self) -> Nanos {
        self.clock.nanos(cycles())
    }

    /// The next one of this occasion.
    pub fn next_of(&mut self, occasion: u64) -> Option<Sight> {
        let next = self.ring.peek().ok()?;
        if next.occasion == occasion { self.pop() } else { None }
    }

    /// Whether there is nothing to fetch now
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Whether the worker is watched no longer. What is there can still be fetched.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Wanted frames of which nothing can be told, because nobody fetched what was told of others
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }
}

impl Watch {
    /// A burst begins.
    pub(crate) fn look_at_the_clock(&mut self) {
        self.at = self.clock.nanos(cycles());
    }

    /// Keeps a sighting, if `within` says that there is a place for it.
    fn keep(&mut self, frame: Option<&Mbuf>, what: What, within: usize) {
        let bytes = frame.map_or(&[][..], |frame| frame.bytes());
        self.any_wanted |= frame.is_some() && (self.wanted)(bytes);
        if self.seen.len() >= within {
            self.left_out += 1;
            return;
        }
        let mut sight = Sight {
            occasion: self.occasion,
            at: self.at,
            missed: self.missed.get(),
            left_out: self.left_out,
            what,
            len: frame.map_or(0, |frame| frame.frame_len() as u32),
            kept: bytes.len().min(KEPT) as u16,
            bytes: [0; KEPT],
        };
        sight.bytes[..usize::from(sight.kept)].copy_from_slice(&bytes[..usize::from(sight.kept)]);
        self.seen.push(sight);
    }

    /// A frame has come in, and the function will see it next.
    pub(crate) fn comes(&mut self, frame: &Mbuf, port: PortId) {
        self.came = true;
        self.keep(Some(frame), What::In(port), 1);
    }

    /// The function has seen it, and this is about to be done with it. What became of it always has a place.
    pub(crate) fn ends(&mut self, frame: &Mbuf, verdict: Verdict) {
        let (frame, what) = match verdict {
            Verdict::Forward(port) => (Some(frame), What::Out(port)),
            Verdict::Drop(reason) => (None, What::Dropped(reason)),
            Verdict::Punt => (None, What::Punted),
            Verdict::Consume => (None, What::Consumed),
        };
        self.keep(frame, what, LEAVING + 2);
    }

    /// It has been done; `lost` is why not.
    pub(crate) fn ended(&mut self, lost: Option<DropReason>) {
        if let (Some(reason), Some(sight)) = (lost, self.seen.last_mut()) {
            sight.what = match sight.what {
                What::Out(port) => What::Lost(port, reason),
                _ => What::Dropped(reason),
            };
        }
        self.came = false;
        self.tell();
    }

    /// A frame is about to leave: with what came in, or alone.
    pub(crate) fn leaves(&mut self, frame: &Mbuf, port: PortId) {
        self.keep(Some(frame), What::Out(port), LEAVING + 1);
    }

    /// It has left; `lost` is why not.
    pub(crate) fn left(&mut self, lost: Option<DropReason>) {
        if let (Some(reason), Some(sight), 0) = (lost, self.seen.last_mut(), self.left_out)
            && let What::Out(port) = sight.what
        {
            sight.what = What::Lost(port, reason);
        }
        if !self.came {
            self.tell();
        }
    }

    /// What was wanted is told, all of an occasion or nothing.
    fn tell(&mut self) {
        if self.any_wanted {
            match self.ring.write_chunk_uninit(self.seen.len()) {
                Ok(chunk) => _ = chunk.fill_from_iter(self.seen.iter().copied()),
                Err(_) => self.missed.add(1),
            }
            self.occasion += 1;
        }
        (self.any_wanted, self.left_out) = (false, 0);
        self.seen.clear();
    }
}

/// An output that shows what is sent through it.
pub(crate) struct Watched<'a> {
    pub(crate) tx: &'a mut Tx,
    pub(crate) watch: &'a mut Watch,
}

impl Output for Watched<'_> {
    type Frame = Mbuf;

    fn make(&mut self, len: usize) -> Result<Mbuf, Full> {
        self.tx.make(len)
    }

    fn make_from(&mut self, bytes: &[u8]) -> Result<Mbuf, Full> {
        self.tx.make_from(bytes)
    }

    fn room(&self, port: PortId) -> usize {
        self.tx.room(port)
    }

    fn copy(&mut self, frame: &Mbuf) -> Result<Mbuf, Full> {
        self.tx.copy(frame)
    }

    fn prefers_sharing(&self, port: PortId, len: usize) -> bool {
        self.tx.prefers_sharing(port, len)
    }

    fn share(&mut self, frame: &mut Mbuf, head: usize, tail: usize) -> Result<Mbuf, Full> {
        self.tx.share(frame, head, tail)
    }

    fn send(&mut self, frame: Mbuf, port: PortId) -> Result<(), Full> {
        self.watch.leaves(&frame, port);
        let taken = self.tx.send(frame, port);
        self.watch.left(self.tx.lost(port, taken));
        taken
    }
}

//! Packet trace of a worker: copies the first bytes of selected frames on RX and TX, 256 unless the trace asks
//! for more. Without a watch a worker pays one branch per burst. With one, the function runs with an output that
//! copies, and frames are not prefetched. A worker copies into memory that the control plane has allocated.

use crate::mbuf::Mbuf;
use crate::time::{Clock, cycles};
use crate::tx::Tx;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use switch::counters::Counter;
use switch::{DropReason, Frame as _, Full, Nanos, Output, PortId, Verdict};

/// Length that is copied of a frame unless a trace asks for another one, in bytes: all headers, and the start of
/// the payload
pub const SNAP_LEN: usize = 256;
/// Maximum length that is copied of a frame, in bytes: the whole of any frame
pub const MAX_SNAP_LEN: usize = 65_535;
/// Memory for copies of more than [`SNAP_LEN`] bytes that have not been read, in bytes
const LONG_COPIES: usize = 16 << 20;
/// Maximum number of sent frames that are recorded for one received frame, besides the received frame and its
/// result
const MAX_TX_RECORDS: usize = 32;

/// A record of one frame.
#[derive(Clone, Debug)]
pub struct FrameRecord {
    head: RecordHead,
    bytes: Vec<u8>,
}

impl core::ops::Deref for FrameRecord {
    type Target = RecordHead;

    fn deref(&self) -> &RecordHead {
        &self.head
    }
}

/// A record without the bytes of its frame.
#[derive(Clone, Copy, Debug)]
pub struct RecordHead {
    /// Event number, common to a received frame and all frames sent for it; counted by worker
    pub event_id: u64,
    /// Time since the watch was created
    pub at: Nanos,
    /// Number of selected frames before this one that could not be recorded, since the watch was created
    pub missed: u64,
    /// Number of frames sent for the same received frame before this one that were not recorded, because
    /// there were too many
    pub omitted: u64,
    /// What happened to the frame
    pub action: TraceAction,
    /// Length of the frame, in bytes
    pub len: u32,
    /// Length of the copy of the frame, in bytes
    kept: u32,
}

/// What happened to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceAction {
    /// The frame was received.
    In(PortId),
    /// The frame was sent: the received frame, rewritten, or one generated for it. Without a received frame,
    /// a timer or the control plane sent it.
    Out(PortId),
    /// The frame was to be sent but was dropped: the queue was full, or the port's link is not up.
    Lost(PortId, DropReason),
    /// The received frame was dropped.
    Dropped(DropReason),
    /// The received frame was passed to the control plane.
    Punted,
    /// The function consumed the received frame.
    Consumed,
}

impl FrameRecord {
    /// Returns the start of the frame, as long as the trace asks for; empty if the frame is no longer available.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the start of the frame.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Predicate that selects frames, by the bytes of their first segment.
pub type FrameFilter = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// A worker's end of a packet trace.
pub struct Watch {
    filter: FrameFilter,
    snap_len: usize,
    ring: Producer<RecordHead>,
    /// Copies of the frames in `ring`, one after the other
    copies: Producer<u8>,
    missed: Arc<Counter>,
    clock: Clock,
    at: Nanos,
    event_id: u64,
    /// Records of the current event: the received frame, some of the frames sent for it, and its result
    records: Vec<RecordHead>,
    /// Copies of their frames, one after the other
    kept: Vec<u8>,
    left_out: u64,
    any_selected: bool,
    /// Whether the current event has a received frame
    has_rx: bool,
}

/// The control plane's end of a packet trace.
pub struct Watcher {
    ring: Consumer<RecordHead>,
    copies: Consumer<u8>,
    missed: Arc<Counter>,
    clock: Clock,
}

/// Creates packet traces for `workers` workers, each with room for `room` records that have not been read, with
/// the first `snap_len` bytes of each frame, at most [`MAX_SNAP_LEN`]. Their times begin now. The EAL has to be
/// initialised.
pub fn watches(
    workers: usize,
    filter: &FrameFilter,
    room: usize,
    snap_len: usize,
) -> (Vec<Box<Watch>>, Vec<Watcher>) {
    let clock = Clock::start();
    let snap_len = snap_len.min(MAX_SNAP_LEN);
    (0..workers).map(|_| watch(Arc::clone(filter), room, snap_len, clock)).unzip()
}

fn watch(filter: FrameFilter, room: usize, snap_len: usize, clock: Clock) -> (Box<Watch>, Watcher) {
    let (producer, consumer) = RingBuffer::new(room);
    // Frames are seldom as long as the longest.
    let bytes = if snap_len > SNAP_LEN { LONG_COPIES } else { room * snap_len };
    let (copies, read_copies) = RingBuffer::new(bytes);
    let missed = Arc::<Counter>::default();
    let watch = Watch {
        filter,
        snap_len,
        ring: producer,
        copies,
        missed: Arc::clone(&missed),
        clock,
        at: Nanos::ZERO,
        event_id: 0,
        records: Vec::with_capacity(MAX_TX_RECORDS + 2),
        kept: Vec::with_capacity((MAX_TX_RECORDS + 2) * snap_len),
        left_out: 0,
        any_selected: false,
        has_rx: false,
    };
    (Box::new(watch), Watcher { ring: consumer, copies: read_copies, missed, clock })
}

impl Watcher {
    /// Returns the next record, in the worker's order. The records of an event become available together.
    pub fn pop(&mut self) -> Option<FrameRecord> {
        let head = self.ring.pop().ok()?;
        // A worker publishes the copy before the record.
        let copy = self.copies.read_chunk(head.kept as usize).ok()?;
        let (first, second) = copy.as_slices();
        let bytes = [first, second].concat();
        copy.commit_all();
        Some(FrameRecord { head, bytes })
    }

    /// Returns the time of the next record, if there is one.
    pub fn next_at(&self) -> Option<Nanos> {
        self.ring.peek().ok().map(|record| record.at)
    }

    /// Returns the time since the watches were created.
    pub fn now(&self) -> Nanos {
        self.clock.nanos(cycles())
    }

    /// Returns the next record if it belongs to this event.
    pub fn next_of(&mut self, event_id: u64) -> Option<FrameRecord> {
        let next = self.ring.peek().ok()?;
        if next.event_id == event_id { self.pop() } else { None }
    }

    /// Returns whether no record is available.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns whether the worker's end was dropped. Remaining records can still be read.
    pub fn is_over(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Returns the number of selected frames that were not recorded because the ring was full.
    pub fn missed(&self) -> u64 {
        self.missed.get()
    }
}

impl Watch {
    /// Sets the time of the next records, at the beginning of a burst.
    pub(crate) fn set_time(&mut self) {
        self.at = self.clock.nanos(cycles());
    }

    /// Adds a record, unless there are `within` records already.
    fn record(&mut self, frame: Option<&Mbuf>, action: TraceAction, within: usize) {
        self.any_selected |= frame.is_some_and(|frame| (self.filter)(frame.bytes()));
        if self.records.len() >= within {
            self.left_out += 1;
            return;
        }
        let before = self.kept.len();
        if let Some(frame) = frame {
            frame.copy_start(self.snap_len, &mut self.kept);
        }
        self.records.push(RecordHead {
            event_id: self.event_id,
            at: self.at,
            missed: self.missed.get(),
            omitted: self.left_out,
            action,
            len: frame.map_or(0, |frame| frame.frame_len() as u32),
            kept: (self.kept.len() - before) as u32,
        });
    }

    /// Records a received frame before the function handles it.
    pub(crate) fn record_rx(&mut self, frame: &Mbuf, port: PortId) {
        self.has_rx = true;
        self.record(Some(frame), TraceAction::In(port), 1);
    }

    /// Records the verdict, before it is carried out. There is always room for this record.
    pub(crate) fn record_verdict(&mut self, frame: &Mbuf, verdict: Verdict) {
        let (frame, action) = match verdict {
            Verdict::Forward(port) => (Some(frame), TraceAction::Out(port)),
            Verdict::Drop(reason) => (None, TraceAction::Dropped(reason)),
            Verdict::Punt => (None, TraceAction::Punted),
            Verdict::Consume => (None, TraceAction::Consumed),
        };
        self.record(frame, action, MAX_TX_RECORDS + 2);
    }

    /// Completes the event after the verdict was carried out; `lost` is the reason if the frame was lost.
    pub(crate) fn finish_event(&mut self, lost: Option<DropReason>) {
        if let (Some(reason), Some(record)) = (lost, self.records.last_mut()) {
            record.action = match record.action {
                TraceAction::Out(port) => TraceAction::Lost(port, reason),
                _ => TraceAction::Dropped(reason),
            };
        }
        self.has_rx = false;
        self.publish();
    }

    /// Records a frame before it is sent, as part of an event or alone.
    pub(crate) fn record_tx(&mut self, frame: &Mbuf, port: PortId) {
        self.record(Some(frame), TraceAction::Out(port), MAX_TX_RECORDS + 1);
    }

    /// Corrects the last record after the frame was sent; `lost` is the reason if the frame was lost.
    pub(crate) fn correct_tx(&mut self, lost: Option<DropReason>) {
        if let (Some(reason), Some(record), 0) = (lost, self.records.last_mut(), self.left_out)
            && let TraceAction::Out(port) = record.action
        {
            record.action = TraceAction::Lost(port, reason);
        }
        if !self.has_rx {
            self.publish();
        }
    }

    /// Publishes the records of the event, all or none, if a frame of it was selected.
    fn publish(&mut self) {
        if self.any_selected {
            if self.ring.slots() < self.records.len() || !self.publish_copies() {
                self.missed.add(1);
            } else if let Ok(chunk) = self.ring.write_chunk_uninit(self.records.len()) {
                chunk.fill_from_iter(self.records.iter().copied());
            }
            self.event_id += 1;
        }
        (self.any_selected, self.left_out) = (false, 0);
        self.records.clear();
        self.kept.clear();
    }

    /// Publishes the copies of the event's frames, if there is room for all.
    fn publish_copies(&mut self) -> bool {
        let Ok(mut chunk) = self.copies.write_chunk(self.kept.len()) else { return false };
        let (first, second) = chunk.as_mut_slices();
        let (head, tail) = self.kept.split_at(first.len());
        first.copy_from_slice(head);
        second.copy_from_slice(tail);
        chunk.commit_all();
        true
    }
}

/// An output that records the frames sent through it.
pub(crate) struct TracingOutput<'a> {
    pub(crate) tx: &'a mut Tx,
    pub(crate) watch: &'a mut Watch,
}

impl Output for TracingOutput<'_> {
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
        self.watch.record_tx(&frame, port);
        let result = self.tx.send(frame, port);
        self.watch.correct_tx(self.tx.lost(port, result));
        result
    }
}

//! What a generator counts: written by its worker, read by anyone.

use crate::histogram::Histogram;
use rocev2::Fault;
use switch::counters::{Counter, FrameCounter};

/// Counters of a generator.
#[derive(Debug)]
pub struct Counters {
    /// By stream
    pub streams: Box<[StreamCounters]>,
    /// Malformed packets that came in, by fault; a wrong ICRC is one
    pub faults: [Counter; Fault::ALL.len()],
    /// RoCEv2 packets that came in and are of no stream
    pub foreign: Counter,
    /// Frames that came in and are no RoCEv2 packets
    pub other: Counter,
    /// Times that sending stopped because no packet buffer was free
    pub no_buffer: Counter,
    /// Times that a stream had to wait because its port took no more, though its rate had come due
    pub port_busy: Counter,
}

/// Counters of a stream.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Packets sent, but for malformed ones
    pub sent: FrameCounter,
    /// Malformed packets sent
    pub malformed: FrameCounter,
    /// Messages of which the last packet was sent
    pub messages: Counter,
    /// Packets, or bits, that the rate was due and that were never sent
    pub forfeited: Counter,
    /// For how long it has sent, in nanoseconds
    pub sending_ns: Counter,

    /// Packets that came for the first time
    pub received: FrameCounter,
    /// Packets that were skipped by a later one of their queue pair, whether they came then or not
    pub skipped: Counter,
    /// Those of them that came: they are received, too, and were reordered
    pub late: Counter,
    /// Packets that came again
    pub duplicates: Counter,
    /// Packets that came later than the window reaches: they were counted as lost, unless they came before, too
    pub stale: Counter,
    /// Packets to a queue pair of the stream that are not what was sent there: another opcode, or a PSN not sent yet
    pub unexpected: Counter,

    /// Answers that the responder sent, in packets
    pub replies: Counter,
    /// Requests that the responder could not answer: no room, no buffer, or no such place in its memory
    pub unable: Counter,
    /// Answers that came back, in packets
    pub responses: Counter,
    /// Requests that were answered, with [`outstanding`](crate::Stream::outstanding)
    pub answered: Counter,
    /// Requests that were given up: none came in time, or a later one came before
    pub unanswered: Counter,
    /// Answers that say nothing new
    pub stale_responses: Counter,
    /// Compare and swap: those whose answer says that they swapped, and that they did not
    pub swapped: Counter,
    /// See [`swapped`](Self::swapped)
    pub not_swapped: Counter,

    /// Times from sending to receiving, of packets that came for the first time
    pub latency: Histogram,
    /// Times from a request's last packet to its own answer
    pub round_trip: Histogram,
}

impl StreamCounters {
    /// Packets that were overtaken, and have not come.
    pub fn lost(&self) -> u64 {
        // The worker counts in this order, too.
        let late = self.late.get();
        self.skipped.get().saturating_sub(late)
    }

    /// Packets behind which none of their queue pair has come: in flight, or lost at the end.
    pub fn unseen(&self) -> u64 {
        let seen = self.received.frames.get() + self.lost();
        self.sent.frames.get().saturating_sub(seen)
    }

    /// Requests that are under way.
    pub fn under_way(&self) -> u64 {
        let over = self.answered.get() + self.unanswered.get();
        self.messages.get().saturating_sub(over)
    }
}

impl Counters {
    pub(crate) fn new(streams: usize) -> Self {
        Self {
            streams: (0..streams).map(|_| StreamCounters::default()).collect(),
            faults: core::array::from_fn(|_| Counter::default()),
            foreign: Counter::default(),
            other: Counter::default(),
            no_buffer: Counter::default(),
            port_busy: Counter::default(),
        }
    }
}

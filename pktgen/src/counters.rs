//! What a generator counts: written by its worker, read by anyone.

use crate::histogram::Histogram;
use crate::pace::{Unit, WIRE_OVERHEAD};
use crate::profile::Stream;
use rocev2::Fault;
use switch::Nanos;
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
    /// Frames that came when everything had been waited for: of no stream any more
    pub too_late: Counter,
    /// Times that the last packets or answers had not come when they were waited for no longer
    pub drain_expired: Counter,
    /// The longest time, in nanoseconds, that passed from when something was due until the worker looked: it was busy, or away
    pub longest_away_ns: Counter,
}

/// A worker's turn: who is so late is not slow
const LATE: Nanos = Nanos::from_micros(200);

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
    /// Times that sending stopped because requests waited for answers
    pub waited: Counter,
    /// For how long it has sent, in nanoseconds
    pub sending_ns: Counter,

    /// Packets that came for the first time
    pub received: FrameCounter,
    /// Packets behind which none of their queue pair has come, counted by queue pair when the run ends
    pub behind: Counter,
    /// Packets that were skipped by a later one of their queue pair, whether they came then or not
    pub skipped: Counter,
    /// Those of them that came: they are received, too, and were reordered
    pub late: Counter,
    /// Packets that came again
    pub duplicates: Counter,
    /// Packets that came later than the window reaches: they were counted as lost, unless they came before, too
    pub stale: Counter,
    /// Packets to a queue pair of the stream that are not what was sent there: another opcode, or a PSN not sent yet; and answers
    /// to what nobody answers
    pub unexpected: Counter,
    /// Packets of the stream that came to the port that sends, at which none is received, and answers that came to that of the
    /// responder: the network sent them back. They are counted nowhere else
    pub reflected: Counter,

    /// Answers that the responder sent, in packets
    pub replies: Counter,
    /// Answers that the responder could not give: no room, no buffer, or no such place in its memory
    pub unable: Counter,
    /// Answers that came back, in packets
    pub responses: Counter,
    /// Those of them that refuse a request: NAKs, and those for receivers that are not ready
    pub naks: Counter,
    /// Those of them that tell of congestion (RoCEv2's CNPs), and answer nothing
    pub cnps: Counter,
    /// Requests that were answered, with [`outstanding`](crate::Stream::outstanding)
    pub answered: Counter,
    /// Requests that were given up: none came in time, or a later one came before
    pub unanswered: Counter,
    /// Requests that wait for answers, counted by queue pair when the run ends
    pub waiting: Counter,
    /// Answers that say nothing new
    pub stale_responses: Counter,
    /// Answers to what was never asked, a PSN not sent yet: they answer nothing, and are not among the responses
    pub unexpected_responses: Counter,
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

    /// Packets, and bits on the wire, that it sent, malformed ones included: its rate counts them all.
    pub fn units(&self) -> (u64, u64) {
        let ((good, good_bytes), (bad, bad_bytes)) = (self.sent.get(), self.malformed.get());
        let packets = good + bad;
        (packets, (good_bytes + bad_bytes + packets * WIRE_OVERHEAD as u64) * 8)
    }

    /// The part of what came due while it sent that was sent; none, if as much as possible was asked for. What is off by less
    /// than a burst, or came a worker's turn late (0.2 ms), is not off.
    pub fn part_of_rate(&self, stream: &Stream) -> Option<f64> {
        let (packets, bits) = self.units();
        let sent = u128::from(if stream.rate.unit()? == Unit::Bits { bits } else { packets });
        let time = Nanos(self.sending_ns.get());
        let due = stream.rate.earned(time);
        let per_packet = sent / u128::from(packets.max(1));
        let burst = per_packet * u128::from(stream.burst.unwrap_or(1));
        let least = stream.rate.earned(Nanos(time.0.saturating_sub(LATE.0)));
        let kept = sent + burst >= least && sent <= due + burst;
        Some(if kept { 1.0 } else { sent as f64 / due as f64 })
    }

    /// Requests that are under way, by what became of the others.
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
            too_late: Counter::default(),
            drain_expired: Counter::default(),
            longest_away_ns: Counter::default(),
        }
    }
}

//! Counters of a generator: written by its worker, read by any thread.

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
    /// Malformed packets received, by fault; a wrong ICRC is one
    pub faults: [Counter; Fault::ALL.len()],
    /// RoCEv2 packets received that belong to no stream
    pub foreign: Counter,
    /// Frames received that are not RoCEv2
    pub other: Counter,
    /// Times that sending stopped because no packet buffer was free
    pub no_buffer: Counter,
    /// Times that a stream had to wait because its port took no more, though its rate had come due
    pub port_busy: Counter,
    /// Frames received after the end of the drain; they are not attributed to a stream
    pub too_late: Counter,
    /// Drains that ended with packets or responses still missing
    pub drain_expired: Counter,
    /// Longest time, in nanoseconds, from when something was due until the worker checked: it was busy, or
    /// away
    pub longest_away_ns: Counter,
}

/// Tolerance of rates: a worker that checks a turn late is not slow
const RATE_TOLERANCE: Nanos = Nanos::from_micros(200);

/// Counters of a stream.
#[derive(Debug, Default)]
pub struct StreamCounters {
    /// Packets sent, without malformed ones
    pub sent: FrameCounter,
    /// Malformed packets sent
    pub malformed: FrameCounter,
    /// Messages whose last packet was sent
    pub messages: Counter,
    /// Packets, or bits, that came due by the rate and were never sent
    pub forfeited: Counter,
    /// Times that sending stopped because requests waited for responses
    pub waited: Counter,
    /// Time for which the stream has sent, in nanoseconds
    pub sending_ns: Counter,

    /// Packets received for the first time
    pub received: FrameCounter,
    /// Packets behind which none of their queue pair was received, counted by queue pair when the run ends
    pub behind: Counter,
    /// Packets that were skipped by a later one of their queue pair, whether or not they were received
    /// afterwards
    pub skipped: Counter,
    /// Skipped packets that were received afterwards: they are also in `received`, and were reordered
    pub late: Counter,
    /// Packets received again
    pub duplicates: Counter,
    /// Packets received that were further behind than the window reaches: they were counted as lost, unless
    /// they were received before, too
    pub stale: Counter,
    /// Packets to a queue pair of the stream that were not sent there: another opcode, or a PSN not sent yet;
    /// and responses to a verb that has none
    pub unexpected: Counter,
    /// Requests that arrived at the port that sends, though another one receives, or none does, and responses
    /// that arrived at the responder's port: the network sent them back. They are counted nowhere else
    pub reflected: Counter,

    /// Response packets that the responder sent
    pub replies: Counter,
    /// Responses that the responder could not send: no room, no buffer, or no such address in its memory
    pub unable: Counter,
    /// Response packets received
    pub responses: Counter,
    /// Responses that refuse a request: NAKs and RNR NAKs
    pub naks: Counter,
    /// Congestion notifications among the responses (RoCEv2 CNPs); they answer no request
    pub cnps: Counter,
    /// Requests that were answered, with [`outstanding`](crate::Stream::outstanding)
    pub answered: Counter,
    /// Requests that were given up: no response arrived in time, or a later one arrived before
    pub unanswered: Counter,
    /// Requests that wait for responses, counted by queue pair when the run ends
    pub waiting: Counter,
    /// Responses that complete no outstanding request
    pub stale_responses: Counter,
    /// Responses to a PSN not sent yet: they answer no request, and are not among the responses
    pub unexpected_responses: Counter,
    /// Compare-and-swap requests whose response shows that they swapped
    pub swapped: Counter,
    /// Compare-and-swap requests whose response shows that they did not swap
    pub not_swapped: Counter,

    /// Times from sending to receiving, of packets received for the first time
    pub latency: Histogram,
    /// Times from a request's last packet to its own response
    pub round_trip: Histogram,
}

impl StreamCounters {
    /// Returns the packets that were overtaken and not received.
    pub fn lost(&self) -> u64 {
        // The worker increments `late` after `skipped`, so a concurrent reader has to read `late` first.
        let late = self.late.get();
        self.skipped.get().saturating_sub(late)
    }

    /// Returns the packets behind which none of their queue pair was received: in flight, or lost at the end.
    pub fn unseen(&self) -> u64 {
        let seen = self.received.frames.get() + self.lost();
        self.sent.frames.get().saturating_sub(seen)
    }

    /// Returns the packets, and the bits on the wire, that the stream sent, including malformed ones: its
    /// rate counts them all.
    pub fn units(&self) -> (u64, u64) {
        let ((good, good_bytes), (bad, bad_bytes)) = (self.sent.get(), self.malformed.get());
        let packets = good + bad;
        (packets, (good_bytes + bad_bytes + packets * WIRE_OVERHEAD as u64) * 8)
    }

    /// Returns the part of what came due while the stream sent that was sent; `None` for
    /// [`Rate::Max`](crate::Rate::Max). A deviation of less than a burst, or of a worker's turn (0.2 ms),
    /// counts as none.
    pub fn part_of_rate(&self, stream: &Stream) -> Option<f64> {
        let (packets, bits) = self.units();
        let sent = u128::from(if stream.rate.unit()? == Unit::Bits { bits } else { packets });
        let time = Nanos(self.sending_ns.get());
        let due = stream.rate.earned(time);
        let per_packet = sent / u128::from(packets.max(1));
        let burst = per_packet * u128::from(stream.burst.unwrap_or(1));
        let least = stream.rate.earned(Nanos(time.0.saturating_sub(RATE_TOLERANCE.0)));
        let kept = sent + burst >= least && sent <= due + burst;
        Some(if kept { 1.0 } else { sent as f64 / due as f64 })
    }

    /// Returns the outstanding requests, computed from the completed ones.
    pub fn under_way(&self) -> u64 {
        let completed = self.answered.get() + self.unanswered.get();
        self.messages.get().saturating_sub(completed)
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

//! Counters of a generator: written by its worker, read by any thread.

use crate::histogram::Histogram;
use crate::pace::{Rate, Unit, WIRE_OVERHEAD};
use crate::profile::Stream;
use rocev2::Fault;
use switch::Nanos;
use switch::counters::{Counter, FrameCounter, Maximum};
use switch::metrics;

metrics! {
    /// Counters of a generator.
    #[derive(Debug)]
    pub struct Counters {
        /// By stream
        pub streams: Box<[StreamCounters]>,
        /// Malformed packets received, by fault; a wrong ICRC is one
        pub faults: [Counter; Fault::ALL.len()],
        /// RoCEv2 packets received that belong to no stream
        pub foreign: Counter [packets as foreign / foreign_frames],
        /// Frames received that are not RoCEv2
        pub other: Counter [frames as other / other_frames],
        /// Times that sending stopped because no packet buffer was free
        pub no_buffer: Counter [times],
        /// Times that a stream had to wait because its port took no more, though its rate had come due
        pub port_busy: Counter [times],
        /// Frames received after all that was expected had arrived, or after the end of the drain; they are
        /// not attributed to a stream. If packets are missing, raise `drain_ms`
        pub too_late: Counter [frames as too_late / _],
        /// Drains that ended with packets or responses still missing
        pub drain_expired: Counter,
        /// Longest time, in nanoseconds, from when something was due until the worker checked: it was busy, or
        /// away
        pub longest_away_ns: Maximum [ns as longest_away_ns / _],
    }
    also {
        /// Malformed packets received; a packet with a wrong ICRC is one
        Counter malformed [packets as _ / malformed_frames] = |counters: &Self| {
            counters.faults.iter().map(Counter::get).sum()
        },
        /// Packets of all streams that were overtaken and not received
        Gauge lost [packets as _ / lost] = |counters: &Self| {
            counters.streams.iter().map(StreamCounters::lost).sum()
        },
        /// Packets of all streams behind which none was received: in flight, or lost at the end
        Gauge unseen [packets as _ / unseen] = |counters: &Self| {
            counters.streams.iter().map(StreamCounters::unseen).sum()
        },
    }
}

/// Tolerance of rates: a worker that checks a turn late is not slow
const RATE_TOLERANCE: Nanos = Nanos::from_micros(200);

metrics! {
    /// Counters of a stream.
    #[derive(Debug, Default)]
    pub struct StreamCounters of stream by [stream] {
        /// Packets sent, without malformed ones
        pub sent: FrameCounter { frames: [packets as sent], bytes: [bytes as sent_bytes] },
        /// Malformed packets sent
        pub malformed: FrameCounter { frames: [packets as malformed_sent] },
        /// Messages whose last packet was sent
        pub messages: Counter [messages as messages / _],
        /// Packets, or bits, that came due by the rate and were never sent
        pub forfeited: Counter [units],
        /// Times that sending stopped because requests waited for responses
        pub waited: Counter [times as "answers.requests.waited" / _],
        /// Time for which the stream has sent, in nanoseconds
        pub sending_ns: Counter,

        /// Packets received for the first time
        pub received: FrameCounter {
            frames: [packets as "arrived.received" / received],
            bytes: [bytes as "arrived.received_bytes" / _],
        },
        /// Packets behind which none of their queue pair was received, counted by queue pair when the run ends
        pub behind: Counter,
        /// Packets that were skipped by a later one of their queue pair, whether or not they were received
        /// afterwards
        pub skipped: Counter,
        /// Skipped packets that were received afterwards: they are also in `received`, and were reordered
        pub late: Counter [packets as "arrived.reordered" / late],
        /// Packets received again
        pub duplicates: Counter [packets as "arrived.duplicates" / duplicates],
        /// Packets received that were further behind than the window reaches: they were counted as lost, unless
        /// they were received before, too
        pub stale: Counter [packets as "arrived.stale" / stale],
        /// Packets to a queue pair of the stream that were not sent there: another opcode, or a PSN not sent yet;
        /// and responses to a verb that has none
        pub unexpected: Counter [packets as "arrived.unexpected" / unexpected],
        /// Requests that arrived at the port that sends, though another one receives, or none does, and responses
        /// that arrived at the responder's port: the network sent them back. They are counted nowhere else
        pub reflected: Counter [packets],

        /// Response packets that the responder sent
        pub replies: Counter [packets as "answers.replies" / _],
        /// Responses that the responder could not send: no room, no buffer, or no such address in its memory
        pub unable: Counter [requests as "answers.unable" / _],
        /// Response packets received
        pub responses: Counter [packets as "answers.responses" / responses],
        /// Responses that refuse a request: NAKs and RNR NAKs
        pub naks: Counter [packets as "answers.naks" / naks],
        /// Congestion notifications among the responses (RoCEv2 CNPs); they answer no request
        pub cnps: Counter [packets as "answers.cnps" / _],
        /// Requests that were answered, if the stream limits those that are outstanding
        pub answered: Counter [requests as "answers.requests.answered" / answered],
        /// Requests that were given up: no response arrived in time, or a later one arrived before
        pub unanswered: Counter [requests as "answers.requests.unanswered" / unanswered],
        /// Requests that wait for responses, counted by queue pair when the run ends
        pub waiting: Counter,
        /// Responses that complete no outstanding request
        pub stale_responses: Counter [packets as "answers.requests.stale_responses" / _],
        /// Responses to a PSN not sent yet: they answer no request, and are not among the responses
        pub unexpected_responses: Counter [packets as "answers.unexpected" / _],
        /// Compare-and-swap requests whose response shows that they swapped
        pub swapped: Counter [requests as "answers.requests.swapped" / _],
        /// Compare-and-swap requests whose response shows that they did not swap
        pub not_swapped: Counter [requests as "answers.requests.not_swapped" / _],

        /// Times from sending to receiving, of packets received for the first time
        pub latency: Histogram,
        /// Times from a request's last packet to its own response
        pub round_trip: Histogram,
    }
    also {
        /// Packets that a later one of their queue pair overtook and that were not received. A late packet was
        /// counted here before
        Gauge lost [packets as "arrived.lost" / lost] = Self::lost,
        /// Packets behind which none of their queue pair was received: in flight, or lost at the end
        Gauge unseen [packets as "arrived.unseen" / unseen] = Self::unseen,
        /// Requests that wait for responses
        Gauge under_way [requests as "answers.requests.under_way" / _] = Self::under_way,
    }
}

/// Returns the part of what came due at a rate in `time` that was sent: `packets` and `bits`. Of these, `kept`
/// packets may have come due at an earlier rate.
pub(crate) fn part_of_rate(
    rate: Rate,
    (burst, kept): (u64, u64),
    time: Nanos,
    (packets, bits): (u64, u64),
) -> Option<f64> {
    let sent = u128::from(if rate.unit()? == Unit::Bits { bits } else { packets });
    let due = rate.earned(time);
    let per_packet = sent / u128::from(packets.max(1));
    let burst = per_packet * u128::from(burst);
    let least = rate.earned(Nanos(time.0.saturating_sub(RATE_TOLERANCE.0)));
    let most = due + burst + per_packet * u128::from(kept);
    Some(if sent + burst >= least && sent <= most { 1.0 } else { sent as f64 / due as f64 })
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
    /// [`Rate::Max`]. A deviation of less than a burst, or of a worker's turn (0.2 ms),
    /// counts as none. If the rate was changed, [`RateHistory::part`](crate::RateHistory::part) is the answer.
    pub fn part_of_rate(&self, stream: &Stream) -> Option<f64> {
        part_of_rate(
            stream.rate,
            (stream.burst.unwrap_or(1).into(), 0),
            Nanos(self.sending_ns.get()),
            self.units(),
        )
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
            longest_away_ns: Maximum::default(),
        }
    }
}

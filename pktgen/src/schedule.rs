//! The schedule of a stream: how many packets are due, in which bursts, and when the next are.

use crate::counters::{Counters, StreamCounters};
use crate::pace::{Pacer, Rate, Unit, WIRE_OVERHEAD};
use crate::part::{Part, Share};
use crate::profile::burst_at;
use switch::Nanos;

/// Packets that a stream sends in one turn of the worker at most, so that other streams and received frames
/// get their turn
const MAX_PACKETS_PER_TURN: u64 = 256;
/// Time of a timer that is not set
pub(crate) const NEVER: Nanos = Nanos(u64::MAX);

/// Schedule of a stream.
pub(crate) struct Schedule {
    /// Rate of the whole stream
    rate: Rate,
    share: Share,
    pacer: Pacer,
    /// Time at which the stream began
    began: Nanos,
    /// Packets of a burst, and a packet's mean length in the rate's units
    burst: u64,
    packet_units: u64,
    /// A packet's mean length on the wire, in bits
    packet_bits: u64,
    /// Packets of a burst in the profile
    fixed_burst: Option<u16>,
    /// Whether the last burst did not leave whole: the rest does not wait for a whole burst
    burst_incomplete: bool,
    /// Whether the last burst before the end of the sending time did not leave whole: the stream has not kept
    /// up with its rate
    fell_behind: bool,
    /// Packets left to send
    packets_left: u64,
    due: Nanos,
}

/// What is due in a turn.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    /// Time of the worker, and time for which the turn is, which may be before
    now: Nanos,
    at: Nanos,
    /// Whether the sending time ends
    ends: bool,
    burst: u64,
    /// Packets that are due, before the limits of a turn and of the port
    due: u64,
    /// Units that may be spent
    allowance: u64,
    /// Packets to send at most
    pub(crate) most: u64,
}

/// What was sent in a turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sent {
    /// Packets, with malformed ones
    pub(crate) packets: u64,
    /// Packets of the stream, and their bytes
    pub(crate) good: u64,
    pub(crate) bytes: u64,
    /// Units of the rate
    pub(crate) units: u64,
}

impl Schedule {
    /// Creates the schedule of a part of a stream whose frames have this mean length in bytes.
    pub(crate) fn new(part: &Part, mean: u64, catch_up: Nanos) -> Self {
        let stream = &part.stream;
        let mut schedule = Self {
            rate: Rate::Max,
            share: part.share,
            pacer: Pacer::new(stream.rate, Nanos::ZERO, catch_up),
            began: Nanos::ZERO,
            burst: 0,
            packet_units: 1,
            packet_bits: (mean + WIRE_OVERHEAD as u64) * 8,
            fixed_burst: stream.burst,
            burst_incomplete: false,
            fell_behind: false,
            packets_left: stream.packets.unwrap_or(u64::MAX),
            due: NEVER,
        };
        schedule.adopt(stream.rate);
        schedule
    }

    /// Takes over a rate and what follows from it.
    fn adopt(&mut self, rate: Rate) {
        self.rate = rate;
        self.packet_units = if self.is_by_bits() { self.packet_bits } else { 1 };
        self.burst = burst_at(self.fixed_burst, self.share.of(rate.at(Nanos::ZERO)) / self.packet_units);
    }

    /// Starts the rate.
    pub(crate) fn begin(&mut self, now: Nanos, catch_up: Nanos) {
        self.began = now;
        self.pacer = Pacer::new(self.rate, now, catch_up).with_share(self.share, self.packet_units);
        self.due = self.pacer.next(now, self.burst(now) * self.packet_units);
    }

    /// Changes the rate, also before the stream begins.
    pub(crate) fn change(&mut self, rate: Rate, now: Nanos, counters: &StreamCounters) {
        let before = self.packet_units;
        let sends = self.packets_left > 0 && self.due != NEVER;
        if sends {
            self.note_time(now, counters);
        }
        self.adopt(rate);
        (self.burst_incomplete, self.fell_behind) = (false, false);
        if sends {
            self.pacer.change(rate, now, (before, self.packet_units));
            counters.forfeited.add(self.pacer.forfeited() - counters.forfeited.get());
            let burst = self.burst(now).min(self.packets_left);
            self.due = self.pacer.next(now, burst * self.packet_units);
        }
    }

    /// Returns the mean length of a packet on the wire, in bits.
    pub(crate) const fn packet_bits(&self) -> u64 {
        self.packet_bits
    }

    /// Returns the share of the stream's rate.
    pub(crate) const fn share(&self) -> Share {
        self.share
    }

    /// Stops sending. The stream was to send until `until`.
    pub(crate) fn end(&mut self, until: Nanos, counters: &StreamCounters) {
        // The timer of a stream that never began is not set.
        if self.packets_left > 0 && self.due != NEVER {
            self.note_time(until, counters);
        }
        self.due = NEVER;
        self.packets_left = 0;
    }

    /// Returns when the next packets are due.
    #[inline]
    pub(crate) const fn due(&self) -> Nanos {
        self.due
    }

    /// Returns whether all packets were sent.
    #[inline]
    pub(crate) const fn is_over(&self) -> bool {
        self.packets_left == 0
    }

    /// Returns whether something is due at `at`. When the sending time `ends`, a part of a burst may be due.
    #[inline]
    pub(crate) fn is_due(&self, at: Nanos, ends: bool) -> bool {
        if ends { self.is_paced() && !self.is_over() } else { self.due <= at }
    }

    /// Returns whether something is due by the end of the sending time, at a rate other than the maximum.
    #[inline]
    pub(crate) fn is_pending(&self, end: Nanos) -> bool {
        self.is_paced() && self.due <= end
    }

    /// Returns whether the stream has a rate other than the maximum.
    #[inline]
    fn is_paced(&self) -> bool {
        self.rate != Rate::Max
    }

    /// Returns whether the rate is in bits.
    #[inline]
    pub(crate) fn is_by_bits(&self) -> bool {
        self.rate.unit() == Some(Unit::Bits)
    }

    /// Returns the packets of a burst now.
    #[inline]
    fn burst(&self, now: Nanos) -> u64 {
        match self.rate {
            Rate::Ramp { .. } => {
                let rate = self.share.of(self.rate.at(self.pacer.time(now)));
                burst_at(self.fixed_burst, rate / self.packet_units)
            }
            Rate::Max | Rate::Steady { .. } => self.burst,
        }
    }

    /// Notes how long the stream has sent.
    #[inline]
    fn note_time(&self, now: Nanos, counters: &StreamCounters) {
        counters.sending_ns.add(now.since(self.began).0.saturating_sub(counters.sending_ns.get()));
    }

    /// Returns what is due at `at`, which may be before `now`, but no more than its share of the port's
    /// `room`. If the sending time `ends`, what is due need not be a whole burst.
    #[inline]
    pub(crate) fn turn(&mut self, (now, at, ends): (Nanos, Nanos, bool), room: u64, all: &Counters) -> Turn {
        let by_bits = self.is_by_bits();
        let left = if by_bits { u64::MAX } else { self.packets_left };
        let burst = self.burst(at);
        let allowance = self.pacer.allowance(at, burst * self.packet_units, left);
        let whole = if ends || self.burst_incomplete { 1 } else { burst };
        let due = match self.rate {
            Rate::Max => burst,
            _ if by_bits && allowance < whole * self.packet_units => 0,
            _ if by_bits => MAX_PACKETS_PER_TURN,
            // Whole bursts, or the rest of the packets to send
            _ if allowance >= self.packets_left => self.packets_left,
            _ => allowance / whole * whole,
        };
        let wanted = due.min(MAX_PACKETS_PER_TURN).min(self.packets_left);
        let most = wanted.min(room);
        if most < wanted {
            all.port_busy.add(1);
        }
        Turn { now, at, ends, burst, due, allowance, most }
    }

    /// Accounts for what was sent in a turn, and sets the timer.
    #[inline]
    pub(crate) fn account(&mut self, turn: &Turn, sent: &Sent, counters: &StreamCounters) {
        let Turn { now, at, ends, .. } = *turn;
        counters.sent.count_many(sent.good, sent.bytes);
        if self.packets_left != u64::MAX {
            self.packets_left -= sent.good;
        }
        self.pacer.spend(sent.units);
        counters.forfeited.add(self.pacer.forfeited() - counters.forfeited.get());
        // A stream that had kept up until its worker came late to the end has sent until `at`, and not until
        // `now`.
        self.note_time(if sent.packets > 0 && (self.fell_behind || !ends) { now } else { at }, counters);
        let by_bits = self.is_by_bits();
        let over = if by_bits { sent.units >= turn.allowance } else { sent.packets == turn.due };
        self.burst_incomplete = turn.due > 0 && !over;
        if !ends {
            self.fell_behind = self.burst_incomplete;
        }
        let next = if self.burst_incomplete { 1 } else { turn.burst };
        let next = if by_bits { next * self.packet_units } else { next.min(self.packets_left) };
        self.due = if self.packets_left == 0 { NEVER } else { self.pacer.next(at, next) };
    }
}

impl Turn {
    /// Returns whether more may be sent after this, at a rate in bits.
    #[inline]
    pub(crate) const fn allows(&self, units: u64) -> bool {
        units < self.allowance
    }
}

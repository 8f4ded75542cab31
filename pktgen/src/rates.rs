//! Rates of a stream that was sent at several: what it sent at each, and how much of what came due.

use crate::counters::{StreamCounters, part_of_rate};
use crate::pace::Rate;
use crate::part::Share;
use crate::profile::Stream;
use std::collections::VecDeque;
use switch::Nanos;

/// Packets that a change of the rate leaves to the new one at most, at each worker: a whole one, and a part of one
const LEFT: u64 = 2;
/// Latest rates of a stream that are kept; all are in the sum
const KEPT: usize = 64;

/// What a stream had sent at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateMark {
    /// Time for which it had sent
    pub sending: Nanos,
    /// Packets, with malformed ones
    pub packets: u64,
    /// Bits on the wire
    pub bits: u64,
}

impl RateMark {
    /// Returns what the stream with these counters has sent so far.
    pub fn of(counters: &StreamCounters) -> Self {
        let (packets, bits) = counters.units();
        Self { sending: Nanos(counters.sending_ns.get()), packets, bits }
    }

    /// Returns what all parts of a stream had sent, given with the share of each. The time is the mean, weighted by the
    /// shares: in it, the whole of a steady rate earns what the parts have earned.
    pub fn sum(parts: impl IntoIterator<Item = (Self, Share)>) -> Self {
        let (mut time, mut all, mut sum) = (0, 1, Self::default());
        for (mark, share) in parts {
            time += u128::from(mark.sending.0) * u128::from(share.own);
            all = u128::from(share.all);
            (sum.packets, sum.bits) = (sum.packets + mark.packets, sum.bits + mark.bits);
        }
        Self { sending: Nanos((time / all) as u64), ..sum }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            sending: self.sending.since(earlier.sending),
            packets: self.packets.saturating_sub(earlier.packets),
            bits: self.bits.saturating_sub(earlier.bits),
        }
    }
}

/// What a stream sent at one rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AtRate {
    /// The rate
    pub rate: Rate,
    /// What was sent at it, and for how long
    pub sent: RateMark,
    /// Part of what came due that was sent, as [`StreamCounters::part_of_rate`] states it
    pub part: Option<f64>,
}

/// The rates of a stream during a run. Its memory does not grow with the number of changes.
#[derive(Clone, Debug)]
pub struct RateHistory {
    /// Packets of a burst, and by which the parts of several workers may deviate
    burst: u64,
    parts: u64,
    rate: Rate,
    since: RateMark,
    /// Latest of the earlier rates
    earlier: VecDeque<AtRate>,
    /// Earlier rates that are not kept
    omitted: u64,
    /// Sum, over all earlier rates but the maximum, of the time at the rate, and of this time multiplied by the
    /// part of the rate, in nanoseconds
    paced_ns: f64,
    kept_ns: f64,
}

impl RateHistory {
    /// Returns the history of a stream that has sent nothing. `parts` is the number of workers that send it.
    pub fn new(stream: &Stream, parts: usize) -> Self {
        let parts = parts.max(1) as u64;
        Self {
            burst: u64::from(stream.burst.unwrap_or(1)) + parts - 1,
            parts,
            rate: stream.rate,
            since: RateMark::default(),
            earlier: VecDeque::new(),
            omitted: 0,
            paced_ns: 0.0,
            kept_ns: 0.0,
        }
    }

    /// Returns the current rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns whether the rate was changed while the stream sent.
    pub fn has_changed(&self) -> bool {
        self.omitted > 0 || !self.earlier.is_empty()
    }

    /// Returns the count of earlier rates that [`rates`](Self::rates) leaves out.
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Notes that the rate was changed when the stream had sent `mark`.
    pub fn change(&mut self, rate: Rate, mark: RateMark) {
        let ended = self.at_current(mark);
        (self.rate, self.since) = (rate, mark);
        if ended.sent == RateMark::default() {
            return;
        }
        if let Some(part) = ended.part {
            let time = ended.sent.sending.0 as f64;
            self.paced_ns += time;
            self.kept_ns += time * part;
        }
        self.earlier.push_back(ended);
        if self.earlier.len() > KEPT {
            self.earlier.pop_front();
            self.omitted += 1;
        }
    }

    fn at_current(&self, now: RateMark) -> AtRate {
        let sent = now.since(self.since);
        let left = if self.since == RateMark::default() { 0 } else { LEFT * self.parts };
        let part = part_of_rate(self.rate, (self.burst, left), sent.sending, (sent.packets, sent.bits));
        AtRate { rate: self.rate, sent, part }
    }

    /// Returns what the stream with these counters has sent at each rate, the current one last.
    pub fn rates(&self, counters: &StreamCounters) -> impl Iterator<Item = AtRate> {
        let current = self.at_current(RateMark::of(counters));
        self.earlier.iter().copied().chain([current])
    }

    /// Returns the part of what came due that was sent: the mean over all rates but the maximum, weighted by the
    /// time for which the stream had each; `None` if it had only the maximum.
    pub fn part(&self, counters: &StreamCounters) -> Option<f64> {
        let current = self.at_current(RateMark::of(counters));
        if self.paced_ns == 0.0 {
            return current.part;
        }
        let time = if current.part.is_some() { current.sent.sending.0 as f64 } else { 0.0 };
        let part = (self.kept_ns + time * current.part.unwrap_or(0.0)) / (self.paced_ns + time);
        // Rounding is no deviation.
        Some(if (part - 1.0).abs() < 1e-9 { 1.0 } else { part })
    }
}

//! Incarnations of a host's process: what a crash loses, and the start of the next one with empty memory.

use super::host::{Host, true_time, unwrap};
use super::traffic::Traffic;
use onepipe::process::Config;
use onepipe::{Process, Timestamp};
use switch::Nanos;

/// Time from the start of the network until every process has received its first barrier, where few beacons
/// are lost
const FIRST_BARRIER_WITHIN: Nanos = Nanos::from_micros(20);

/// Largest difference between the clocks of two hosts that are off by up to `skew_ns` and are stepped by up
/// to `step_ns`, with room for drift.
pub(super) const fn clock_error(skew_ns: u64, step_ns: u64) -> Nanos {
    Nanos(2 * (skew_ns + step_ns) + 5000)
}

/// Age of the world at which hosts begin to send: a process accepts messages that were sent later than its
/// start by the largest difference between two clocks.
pub(super) const fn starts_sending(clock_error: Nanos) -> Nanos {
    Nanos(clock_error.0 + FIRST_BARRIER_WITHIN.0)
}

/// Incarnation of a host's process, from a start to a crash. Times are readings of the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostIncarnation {
    /// Time of its start
    pub started: Nanos,
    /// Unwrapped time below which it accepts no message: that of its first beacon with a barrier, or the
    /// barrier if that is later, and the largest difference between two clocks
    pub floor: Option<u64>,
    /// Time at which it left
    pub left: Option<Nanos>,
    /// Time of its last event before it crashed
    pub crashed: Option<Nanos>,
    /// Unwrapped time below which everything was delivered before it crashed
    pub delivered_below: u64,
}

impl Host {
    /// Returns the incarnations of its process so far, in order.
    pub fn incarnations(&self) -> &[HostIncarnation] {
        &self.incarnations
    }

    /// Returns whether its current incarnation has left.
    pub fn has_left(&self) -> bool {
        self.incarnations.last().is_some_and(|incarnation| incarnation.left.is_some())
    }

    /// Returns whether any incarnation has left.
    pub(super) fn has_ever_left(&self) -> bool {
        self.incarnations.iter().any(|incarnation| incarnation.left.is_some())
    }

    /// Returns the incarnation at a time of its clock.
    pub(super) fn incarnation_at(&self, at: Nanos) -> Option<&HostIncarnation> {
        self.incarnations.iter().rfind(|incarnation| incarnation.started <= at)
    }

    /// Returns whether its process may have acknowledged a message with this unwrapped timestamp, and lost it
    /// in a crash before it was delivered.
    pub(super) fn may_have_lost(&self, time: u64) -> bool {
        self.incarnations.iter().enumerate().any(|(n, incarnation)| {
            let next = self.incarnations.get(n + 1);
            let until = next.map_or(u64::MAX, |next| true_time(next.started + self.clock_error()));
            incarnation.crashed.is_some() && (incarnation.delivered_below..until).contains(&time)
        })
    }

    /// Records what a crash of the process loses: scatterings that are not settled have no outcome, and
    /// messages above the barrier are not delivered.
    pub(super) fn end_incarnation(&mut self) {
        let now = self.last_event;
        let reads_at_once = self.behaviour.reads_every == Nanos::ZERO;
        let barrier = self.barrier.map_or(0, |barrier| unwrap(barrier, now));
        let clock = unwrap(self.process.timestamp(now), now);
        if let Some(incarnation) = self.incarnations.last_mut() {
            incarnation.crashed = Some(now);
            // Before its floor, which begins with a beacon, a process delivers nothing, not even to itself.
            let delivers = incarnation.floor.is_some_and(|floor| floor <= clock);
            incarnation.delivered_below = if reads_at_once && delivers { barrier.min(clock) } else { 0 };
        }
        for (first, count) in core::mem::take(&mut self.open).into_values() {
            for sent in &mut self.sent[first..first + count] {
                sent.abandoned = true;
            }
        }
        self.frame = None;
    }

    /// Starts an incarnation with empty memory. The machine's clock goes on.
    pub(super) fn start_incarnation(&mut self, now: Nanos) {
        let number = self.incarnations.len() as u64;
        if number > 0 {
            let config = self.process.config();
            let config =
                Config { seed: self.seed ^ number << 32, clock: self.machine_clock(), ..config.clone() };
            self.process = Process::new(config).expect("the configuration is valid");
            (self.barrier, self.last_rise) = (None, None);
            self.clocked.forget();
            if self.step.is_none() && self.stepped_by < 0 {
                // Its clock was stepped back, and stood still in the previous incarnation alone.
                self.promised = None;
            }
            self.traffic.as_mut().map(Traffic::forget_senders);
        }
        self.incarnations.push(HostIncarnation { started: now, ..HostIncarnation::default() });
        (self.last_event, self.next_read) = (now, Nanos::ZERO);
    }

    /// Records the first barrier of the incarnation, and that of its process's clock.
    pub(super) fn open_incarnation(&mut self, barrier: Timestamp, now: Nanos) {
        let clock = unwrap(self.process.timestamp(now), now);
        let floor = unwrap(barrier, now).max(clock) + self.clock_error().0;
        if let Some(incarnation) = self.incarnations.last_mut() {
            incarnation.floor.get_or_insert(floor);
        }
    }

    /// Returns whether a message with this unwrapped timestamp, which arrives at a time of the host's clock,
    /// may have been sent before the incarnation started.
    pub(super) fn is_before_start(&self, time: u64, at: Nanos) -> bool {
        self.incarnation_at(at).is_none_or(|incarnation| incarnation.floor.is_none_or(|floor| time < floor))
    }

    /// Leaves, if that is due.
    pub(super) fn leave_if_due(&mut self, now: Nanos) {
        if self.leave_at.is_some_and(|at| at <= now) {
            self.leave_at = None;
            self.process.leave();
            if let Some(incarnation) = self.incarnations.last_mut() {
                incarnation.left = Some(now);
            }
        }
    }
}

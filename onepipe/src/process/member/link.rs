//! Silence of the process's link, and its reports: a process is the keeper of the link from its switch (1Pipe,
//! section 5.2, detect).

use super::Refused;
use super::repeat::Repeat;
use crate::control::{LinkValue, Message};
use switch::Nanos;

/// Number of ticks without a beacon after which the link is silent
const TICKS: u32 = 5;

/// State of the link from the switch.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Time between two ticks. A program that sleeps for longer counts one tick, so it declares no link silent.
    tick: Nanos,
    /// Time between two ticks before a beacon has come
    first_tick: Nanos,
    tick_at: Nanos,
    /// By end of the link: number of beacons at the last tick, and of ticks without one
    heard: [u64; 2],
    quiet: [u32; 2],
    /// Ends with a named source, as bits
    named: u8,
    /// Those of them that are not heard, as the last report says
    quiet_ends: u8,
    is_silent: bool,
    /// Whether a beacon has come in this incarnation
    was_heard: bool,
    /// Number of the last report, and of the last one that the controller has acknowledged. One that was not may
    /// have arrived.
    number: u32,
    acknowledged: u32,
    pub(super) repeat: Repeat,
}

impl Link {
    pub(super) fn new(interval: Nanos, fail_after: u32, repeat: Repeat) -> Self {
        let tick = Nanos(interval.0 * u64::from(fail_after).div_ceil(TICKS.into()));
        Self {
            tick,
            first_tick: interval,
            tick_at: Nanos::ZERO,
            heard: [0; 2],
            quiet: [0; 2],
            named: 1,
            quiet_ends: 0,
            is_silent: false,
            was_heard: false,
            number: 0,
            acknowledged: 0,
            repeat,
        }
    }

    /// Starts to listen in a new incarnation, after `heard` beacons. The link is silent until a beacon comes: it counts
    /// from then on.
    pub(super) fn join(&mut self, heard: [u64; 2], now: Nanos) {
        self.was_heard = false;
        self.restart(heard, self.named, now);
    }

    /// Starts to listen to other sources, after `heard` beacons, at the ends `named`.
    pub(super) fn restart(&mut self, heard: [u64; 2], named: u8, now: Nanos) {
        (self.tick_at, self.heard, self.named) = (now + self.tick(), heard, named);
        self.quiet = [if self.was_heard { 0 } else { TICKS }; 2];
        self.set_silent(now);
    }

    const fn tick(&self) -> Nanos {
        if self.was_heard { self.tick } else { self.first_tick }
    }

    /// Reports the ends that are not heard, if that has changed.
    fn set_silent(&mut self, now: Nanos) {
        let is_silent = self.quiet.iter().all(|&quiet| quiet >= TICKS);
        let quiet = |end: usize| u8::from(self.quiet[end] >= TICKS) << end;
        let quiet_ends = (quiet(0) | quiet(1)) & self.named;
        if (self.is_silent, self.quiet_ends) != (is_silent, quiet_ends) || self.number == 0 {
            (self.is_silent, self.quiet_ends) = (is_silent, quiet_ends);
            self.number += 1;
            self.repeat.restart(now);
        }
    }

    /// Returns whether no beacon has come for too long.
    pub(super) const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Returns the ends with a named source that is not heard, as bits.
    pub(super) const fn quiet_ends(&self) -> u8 {
        self.quiet_ends
    }

    /// Counts a tick if it is due. `heard` is the number of beacons so far, by end.
    pub(super) fn check(&mut self, heard: [u64; 2], now: Nanos) {
        if now < self.tick_at {
            return;
        }
        self.was_heard |= heard != self.heard;
        self.tick_at = now + self.tick();
        for (quiet, is_heard) in self.quiet.iter_mut().zip([0, 1].map(|end| heard[end] != self.heard[end])) {
            *quiet = if is_heard { 0 } else { quiet.saturating_add(1) };
        }
        self.heard = heard;
        self.set_silent(now);
    }

    /// Returns the report if it is not acknowledged and due.
    pub(super) fn take_report(&mut self, now: Nanos) -> Option<Message> {
        if self.acknowledged == self.number || !self.repeat.take(now) {
            return None;
        }
        let value =
            LinkValue { link: 0, caught: true, silent: self.is_silent, quiet: self.quiet_ends, raw: None };
        Some(Message::Report { number: self.number, links: vec![value] })
    }

    /// Handles the answer to a report.
    pub(super) fn on_ack(&mut self, number: u32) -> Result<(), Refused> {
        if number != self.number {
            return Err(Refused::Unexpected);
        }
        self.acknowledged = number;
        Ok(())
    }

    /// Returns the time of the next tick, or of the next repetition.
    pub(super) fn next_timer(&self) -> Nanos {
        let report = (self.acknowledged != self.number).then_some(self.repeat.at());
        report.map_or(self.tick_at, |at| at.min(self.tick_at))
    }
}

//! Results of messages: events for the application, and the number of messages without a result.

use crate::header::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;

use super::super::counters::Counters;
use super::super::types::{Event, Failure, ProcessId, Scattering};

/// Events that the application has not taken, and messages that are not settled.
#[derive(Clone, Debug)]
pub(super) struct Results {
    events: VecDeque<Event>,
    /// Messages that are not settled
    unsettled: usize,
    counters: Arc<Counters>,
}

impl Results {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self { events: VecDeque::new(), unsettled: 0, counters }
    }

    /// Returns the number of messages that are not settled.
    pub(super) const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Returns the number of messages whose result the application has not taken.
    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        self.unsettled + self.events.len()
    }

    /// Removes and returns the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next events, at least one if there are any.
    pub(super) fn events(&self) -> &[Event] {
        self.events.as_slices().0
    }

    /// Removes the next `count` events. Panics if there are fewer.
    pub(super) fn remove(&mut self, count: usize) {
        self.events.drain(..count);
    }

    /// Accounts for messages that were accepted for sending.
    #[inline]
    pub(super) const fn expect(&mut self, messages: usize) {
        self.unsettled += messages;
    }

    /// Counts messages that were acknowledged.
    #[inline]
    pub(super) fn acknowledge(&self, messages: u64) {
        self.counters.acknowledged.add(messages);
    }

    /// Reports that a message has failed.
    pub(super) fn fail(
        &mut self,
        scattering: Scattering,
        timestamp: Option<Timestamp>,
        (dst, part): (ProcessId, u32),
        why: Failure,
    ) {
        self.counters.failed.add(1);
        self.events.push_back(Event::SendFailed { scattering, timestamp, dst, part, why });
    }

    /// Reports that all messages of a scattering have a result. To be accounted for by
    /// [`settle`](Self::settle).
    #[inline]
    pub(super) fn report_settled(
        &mut self,
        scattering: Scattering,
        timestamp: Option<Timestamp>,
        failed: u32,
    ) {
        self.events.push_back(Event::Settled { scattering, timestamp, failed });
    }

    /// Accounts for messages that have a result.
    #[inline]
    pub(super) const fn settle(&mut self, messages: usize) {
        self.unsettled -= messages;
    }
}

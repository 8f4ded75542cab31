//! Reports to the application that the barrier of the process's link stands still, and that it rises again.

use crate::header::Timestamp;
use std::collections::VecDeque;
use switch::Nanos;

use super::config::Config;
use super::counters::Counters;
use super::types::Event;

/// Time for which the barrier has not risen.
#[derive(Clone, Debug)]
pub(super) struct Stall {
    /// Time after which a barrier that does not rise is reported; 0 for never
    after: Nanos,
    /// Barrier at the last check, unwrapped; 0 before there is one
    barrier: u64,
    /// Time of the check that first found this barrier; `None` before the first check
    rose_at: Option<Nanos>,
    is_stalled: bool,
    /// Events that the application has not taken: at most one of each kind
    pending: VecDeque<Event>,
}

impl Stall {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            after: config.stall_after,
            barrier: 0,
            rose_at: None,
            is_stalled: false,
            pending: VecDeque::with_capacity(2),
        }
    }

    /// Checks the barrier.
    pub(super) fn check(&mut self, barrier: u64, now: Nanos, counters: &Counters) {
        let rose_at = *self.rose_at.get_or_insert(now);
        if barrier != self.barrier {
            if core::mem::take(&mut self.is_stalled) {
                let barrier = Timestamp::new(barrier);
                self.report(Event::Recovered { barrier, after: now.since(rose_at) });
            }
            self.barrier = barrier;
            self.rose_at = Some(now);
        } else if self.after > Nanos::ZERO && !self.is_stalled && now.since(rose_at) >= self.after {
            self.is_stalled = true;
            counters.stalls.add(1);
            let barrier = (barrier != 0).then(|| Timestamp::new(barrier));
            self.report(Event::Stalled { barrier });
        }
    }

    /// Queues an event. Two earlier ones of which the application has taken none are obsolete.
    fn report(&mut self, event: Event) {
        if self.pending.len() == 2 {
            self.pending.clear();
        }
        self.pending.push_back(event);
    }

    /// Removes and returns the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.pending.pop_front()
    }
}

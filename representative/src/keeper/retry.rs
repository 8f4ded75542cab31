//! Repetition of what is not answered.

use switch::Nanos;

/// Maximum of the time between two repetitions, in multiples of the first one
const MAX_TIMES: u64 = 64;

/// Timer whose intervals are doubled.
#[derive(Debug)]
pub(super) struct Retry {
    first: Nanos,
    next: Nanos,
    due: Option<Nanos>,
}

impl Retry {
    /// Creates a timer that is not armed.
    pub(super) const fn new(first: Nanos) -> Self {
        Self { first, next: first, due: None }
    }

    /// Begins with the first interval again.
    pub(super) fn restart(&mut self) {
        self.next = self.first;
    }

    /// Disarms the timer.
    pub(super) fn stop(&mut self) {
        self.restart();
        self.due = None;
    }

    /// Arms the timer; the interval after that is twice as long.
    pub(super) fn schedule(&mut self, now: Nanos) {
        self.due = Some(now + self.next);
        self.next = Nanos((2 * self.next.0).min(MAX_TIMES * self.first.0));
    }

    /// Returns whether the timer has expired.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// Returns when the timer expires.
    pub(super) const fn due(&self) -> Option<Nanos> {
        self.due
    }
}

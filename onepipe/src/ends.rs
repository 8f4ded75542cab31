//! The two ends of a link whose far side is a switch with a standby: one word from the words of both.
//!
//! A barrier is a lower bound, however old it is. So the maximum of both ends' barriers is one, and it is
//! enough to hear one of the ends. There are two exceptions, in which an end states more than a bound:
//!
//! * It has *removed* an input that has not left ([`OnePipe::removed`]): a message of that input may lie below
//!   its barrier. Its barriers do not count while the other end is heard and has removed nothing. If both have,
//!   the minimum counts: each input that one of them still has bounds it.
//! * It announces that *nothing follows* although a sender has returned that it does not hear. So nothing
//!   follows if all ends that are heard announce it.
//!
//! An end is *heard* if its last barrier or announcement is at most `dead_after` ticks old.

use crate::header::{OnePipe, Timestamp};

/// Bugs that can be planted, to check that the tests find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The flag that an input was removed is ignored
    RemovedIgnored,
    /// The minimum of both ends counts instead of the maximum, also that of an end that is not heard
    MinimumOfEnds,
    /// The maximum counts also if both ends have removed an input
    MaximumOfRemoved,
}

/// A beacon is below what its end has sent before: it is late, or repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// Last word of an end.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// Last barrier; `None` before the first one
    barrier: Option<Timestamp>,
    /// Tick of the last barrier or announcement
    heard_at: Option<u64>,
    removed: bool,
    left: bool,
}

impl End {
    /// Returns whether its barrier is a bound.
    fn bounds(&self, bug: Option<Bug>) -> bool {
        self.barrier.is_some() && !self.left && (!self.removed || bug == Some(Bug::RemovedIgnored))
    }
}

/// Last words of both ends of a link.
#[derive(Clone, Debug)]
pub struct Ends {
    words: [End; 2],
    dead_after: u64,
    /// Latest barrier taken from an end that has removed an input, while the other end was not heard. What is
    /// below may still arrive, and a node that hears the other end knows it
    doubted: Option<Timestamp>,
    bug: Option<Bug>,
}

/// Returns the later of two times.
fn later(a: Timestamp, b: Timestamp) -> Timestamp {
    if a.precedes(b) { b } else { a }
}

impl Ends {
    /// Creates the ends, of which none was heard. An end is heard for `dead_after` ticks. A planted bug has no
    /// effect without debug assertions.
    pub fn new(dead_after: u64, bug: Option<Bug>) -> Self {
        let bug = bug.filter(|_| cfg!(debug_assertions));
        Self { words: [End::default(); 2], dead_after, doubted: None, bug }
    }

    /// Returns whether the word of this link may be above timestamps that follow, and other nodes may know
    /// that: the flag that an input was removed has to be passed on.
    pub const fn is_doubted(&self) -> bool {
        self.doubted.is_some()
    }

    fn is_heard(&self, end: usize, tick: u64) -> bool {
        self.words[end].heard_at.is_some_and(|at| tick - at <= self.dead_after)
    }

    /// Returns a beacon of end 0 or 1 as if the link had one end: with the barrier of both, and the announcement
    /// that nothing follows if that holds. No barrier means that the link was heard, and that nothing changes.
    ///
    /// # Errors
    /// [`Stale`]: the beacon's barrier is below the last one of its end, while that is heard.
    ///
    /// # Panics
    /// If `end` is neither 0 nor 1.
    pub fn on_beacon(&mut self, end: usize, mut header: OnePipe, tick: u64) -> Result<OnePipe, Stale> {
        let was_heard = self.is_heard(end, tick);
        let is_final = header.nothing_follows();
        let word = &mut self.words[end];
        if !was_heard {
            // It may have restarted.
            *word = End::default();
        }
        match header.barrier() {
            _ if is_final => word.left = true,
            // It is starting, and states nothing.
            None => return Ok(header),
            Some(barrier) if word.barrier.is_some_and(|last| barrier.precedes(last)) => return Err(Stale),
            Some(barrier) => {
                (word.barrier, word.left, word.removed) = (Some(barrier), false, header.removed());
            }
        }
        word.heard_at = Some(tick);
        let (own, other) = (*word, 1 - end);
        let is_alone = !self.is_heard(other, tick) && self.bug != Some(Bug::MinimumOfEnds);
        let other = self.words[other];
        header.set_nothing_follows(own.left && (is_alone || other.left));
        header.set_barrier(match (own.bounds(self.bug), other.bounds(self.bug)) {
            _ if own.left && (is_alone || other.left) => None,
            (bounds, _) if is_alone => self.doubt(own.barrier, bounds),
            (true, true) => self.trust(self.both(own, other)),
            (true, false) => self.trust(own.barrier),
            (false, true) => None,
            (false, false) if own.left || other.left => {
                if own.left {
                    None
                } else {
                    own.barrier
                }
            }
            (false, false) if self.bug == Some(Bug::MaximumOfRemoved) => {
                self.trust(own.barrier.zip(other.barrier).map(|(own, other)| later(own, other)))
            }
            (false, false) => self.trust(minimum(own.barrier, other.barrier)),
        });
        Ok(header)
    }

    /// Returns what two barriers state that are both bounds.
    fn both(&self, own: End, other: End) -> Option<Timestamp> {
        if self.bug == Some(Bug::MinimumOfEnds) {
            return minimum(own.barrier, other.barrier);
        }
        own.barrier.zip(other.barrier).map(|(own, other)| later(own, other))
    }

    /// Notes that this barrier bounds everything that follows. Returns it.
    fn trust(&mut self, barrier: Option<Timestamp>) -> Option<Timestamp> {
        self.doubted.take_if(|doubted| barrier.is_some_and(|barrier| !barrier.precedes(*doubted)));
        barrier
    }

    /// Notes the barrier of the only end that is heard. Returns it.
    fn doubt(&mut self, barrier: Option<Timestamp>, bounds: bool) -> Option<Timestamp> {
        if bounds {
            return self.trust(barrier);
        }
        let latest = |barrier| self.doubted.map_or(barrier, |doubted| later(doubted, barrier));
        self.doubted = barrier.map(latest).or(self.doubted);
        barrier
    }
}

/// Returns the earlier of two barriers, if there are both.
fn minimum(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.zip(b).map(|(a, b)| a.earlier(b))
}

#[cfg(test)]
mod tests;

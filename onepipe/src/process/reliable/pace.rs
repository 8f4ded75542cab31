//! Pace of the beacons that leave because the commit value has risen: two at once, and one more every half
//! interval. Without a limit, a busy process would send one for every acknowledgement.

use switch::Nanos;

/// Number of beacons that may leave at once
const MAX_TOKENS: u64 = 2;

/// Token bucket.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Time per token, in nanoseconds
    period: u64,
    /// Time at which the bucket was empty, or would have been
    empty_at: u64,
    /// Whether a beacon waits for a token.
    is_wanted: bool,
}

impl Pace {
    pub(super) const fn new(interval: Nanos) -> Self {
        Self { period: interval.0 / 2, empty_at: 0, is_wanted: false }
    }

    /// Requests a beacon, because the commit value has risen.
    pub(super) const fn request(&mut self) {
        self.is_wanted = true;
    }

    /// Returns whether the requested beacon may leave now; it counts as sent then.
    pub(super) fn take(&mut self, now: Nanos) -> bool {
        let from = self.empty_at.max(now.0.saturating_sub(MAX_TOKENS * self.period));
        let is_granted = self.is_wanted && (now.0 >= from + self.period || now.0 < self.period);
        if is_granted {
            self.empty_at = from + self.period;
            self.is_wanted = false;
        }
        is_granted
    }

    /// Cancels the request, because another beacon leaves.
    pub(super) const fn satisfied(&mut self) {
        self.is_wanted = false;
    }

    /// Returns the time at which a beacon that waits may leave.
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.is_wanted.then_some(Nanos(self.empty_at + self.period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beacons_leave_at_once_but_not_often() {
        let mut pace = Pace::new(Nanos(1000));
        let mut sent = Vec::new();
        for now in 5000..8000 {
            pace.request();
            if pace.take(Nanos(now)) {
                sent.push(now);
            }
            assert!(pace.next_timer().is_none_or(|at| at.0 > now));
        }
        assert_eq!(sent, [5000, 5001, 5500, 6000, 6500, 7000, 7500]);
        assert!(!pace.take(Nanos(9000)) || pace.next_timer().is_none());
        pace.request();
        pace.satisfied();
        assert!(!pace.take(Nanos(20_000)));
    }
}
